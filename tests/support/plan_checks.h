/* plan_checks.h - compares the planner's memory and collectives with those of a trainer. */
#ifndef LS_TESTS_PLAN_CHECKS_H
#define LS_TESTS_PLAN_CHECKS_H

#include "plan/planner.h"
#include "train/trainer.h"

/* All parts of the planned memory equal those of the plan that was allocated. `how`: how it was planned, for the message. */
static inline ls_status plan_same_memory(const char *how, const ls_plan_memory *m, const ls_plan *p)
{
    if (m->total != p->total)
        return ls_fail(LS_E_CONFIG, "%s, total: planned %lld, allocated %lld", how, (long long)m->total,
                       (long long)p->total);
    for (int k = 0; k < LS_N_PART; k++)
        if (m->part[k] != ls_plan_part_bytes(p, (ls_part)k))
            return ls_fail(LS_E_CONFIG, "%s, %s: planned %lld, allocated %lld", how, ls_part_word((ls_part)k),
                           (long long)m->part[k], (long long)ls_plan_part_bytes(p, (ls_part)k));
    return LS_OK;
}

/* Trains two steps and compares the bucket collectives of the second one with those that the planner predicts. Only rank 0 compares: the
 * prediction is for its stage. */
static inline ls_status plan_same_collectives(ls_trainer *t, const ls_cluster *cluster)
{
    ls_step_result r;
    ls_prediction p;
    LS_TRY(ls_trainer_step(t, &r));
    LS_TRY(ls_barrier(t->dp, LS_SITE)); /* after the collectives that are still pending */
    ls_comm_stats_reset(t->dp);
    LS_TRY(ls_trainer_step(t, &r));
    LS_TRY(ls_barrier(t->dp, LS_SITE));
    if (ls_comm_rank(t->comm) || ls_comm_size(t->dp) == 1) return LS_OK;
    LS_TRY(ls_planner_predict(cluster, t->cfg, &p));
    for (int k = 0; k < LS_COLL_SEND; k++) {
        ls_comm_stat sum = {0};
        for (int label = 1; label < LS_COMM_LABELS; label++) {
            const ls_comm_stat s = ls_comm_label_stats(t->dp, (ls_coll)k, label);
            sum.calls += s.calls;
            sum.elements += s.elements;
        }
        if (sum.calls != p.calls[k] || sum.elements != p.elements[k])
            return ls_fail(LS_E_CONFIG, "%s: predicted %lld calls with %lld elements, the run made %lld with %lld",
                           ls_coll_word((ls_coll)k), (long long)p.calls[k], (long long)p.elements[k],
                           (long long)sum.calls, (long long)sum.elements);
    }
    return LS_OK;
}

#endif
