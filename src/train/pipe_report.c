#include "train/pipe_report.h"

#include "core/mem.h"
#include "core/minmax.h"
#include "parallel/simulate.h"
#include "train/train_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What each worker sends to rank 0, per step. All doubles, so that it travels as F64. */
typedef struct ls_stage_facts {
    double busy, span;                 /* seconds */
    double sent, exposed;              /* bytes to neighbours; seconds waited for them */
    double act_bytes;                  /* planned for activations */
    double cost[LS_PIPE_MAX_CHUNK][4]; /* mean of F, B, I, W of a chunk */
    double predicted;                  /* bubble; filled by rank 0 */
} facts;

enum { FACTS = sizeof(facts) / sizeof(double) };

static void own_facts(const ls_trainer *t, facts *f)
{
    const ls_pipe_stats *s = ls_pipe_measured(t->pipe);
    const double n = s->steps ? (double)s->steps : 1;
    const ls_comm_stat acts = ls_comm_stats(t->pp_acts, LS_COLL_SEND), grads = ls_comm_stats(t->pp_grads, LS_COLL_SEND);
    *f = (facts){.busy = s->busy / n,
                 .span = s->span / n,
                 .sent = (double)(acts.bytes + grads.bytes) / n,
                 .exposed = (ls_comm_exposed(t->pp_acts) + ls_comm_exposed(t->pp_grads)) / n,
                 .act_bytes = (double)ls_plan_part_bytes(&t->plan, LS_PART_ACT)};
    for (int c = 0; c < t->schedule->n_chunk; c++)
        for (int k = 0; k < 4; k++) f->cost[c][k] = s->calls[c][k] ? s->time[c][k] / (double)s->calls[c][k] : 0;
}

static ls_status predict(const ls_trainer *t, facts *all, ls_pipe_report *r)
{
    const ls_schedule *s = t->schedule;
    const int n_part = s->n_stage * s->n_chunk;
    ls_part_cost *part = ls_alloc((size_t)n_part * sizeof *part);
    if (!part) return ls_nomem((size_t)n_part * sizeof *part, "the costs of a pipeline");
    for (int g = 0; g < n_part; g++) {
        const double *c = all[g % s->n_stage].cost[g / s->n_stage];
        /* the simulator adds the two halves of a backward; a whole one counts as the first */
        part[g] = (ls_part_cost){.fwd = c[0], .bwd_in = c[2] > 0 ? c[2] : c[1], .bwd_w = c[3], .act = 1};
    }
    const ls_pipe_costs costs = {.part = part};
    ls_sim sim;
    ls_status st = ls_simulate(&sim, s, &costs, 0);
    ls_free(part);
    LS_TRY(st);
    r->predicted_makespan = sim.makespan;
    r->predicted = sim.bubble;
    for (int k = 0; k < s->n_stage; k++) all[k].predicted = sim.makespan > 0 ? 1 - sim.rank[k].busy / sim.makespan : 0;
    ls_sim_fini(&sim);
    return LS_OK;
}

/* span: n_each for each stage. */
static void write_spans(const ls_trainer *t, const char *key, const ls_pipe_span *span, int n_each, ls_jsonw *w)
{
    static const char *const word[] = {"forward", "backward", "backward (input)", "backward (weights)"};
    ls_jsonw_put_open(w, key, '[');
    for (int i = 0; i < t->schedule->n_stage * n_each; i++) {
        const ls_pipe_span *b = &span[i];
        char label[32];
        if (b->end <= b->begin) continue;
        if (t->schedule->n_chunk > 1) snprintf(label, sizeof label, "%d.%d", b->micro, b->chunk);
        else snprintf(label, sizeof label, "%d", b->micro);
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("lane", i / n_each), LS_KV("begin", b->begin), LS_KV("end", b->end),
                         LS_KV("kind", word[(int)b->kind < 4 ? (int)b->kind : 0]), LS_KV("label", label));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

/* Simulates the last step again, with the measured time of each action: the spans become those of the simulation. */
static ls_status replay(const ls_trainer *t, ls_pipe_span *span, int n_each, ls_pipe_report *out)
{
    const ls_schedule *s = t->schedule;
    const double *action[LS_PIPE_MAX_STAGE];
    double *cost = ls_alloc((size_t)(s->n_stage * n_each) * sizeof *cost), busy = 0, end = 0;
    if (!cost) return ls_nomem((size_t)(s->n_stage * n_each) * sizeof *cost, "the picture of a step");
    for (int k = 0; k < s->n_stage; k++) {
        const ls_pipe_span *x = span + k * n_each; /* spans are the computing actions, in order */
        action[k] = cost + k * n_each;
        for (int i = 0; i < s->rank[k].n_action; i++) {
            if (!ls_pipe_computes(s->rank[k].action[i].kind)) continue;
            cost[k * n_each + i] = x->end - x->begin;
            busy += x->end - x->begin;
            end = fmax(end, x->end);
            x++;
        }
    }
    const ls_pipe_costs costs = {.each = {.act = 1}, .action = action};
    ls_sim sim;
    ls_status st = ls_simulate(&sim, s, &costs, 0);
    ls_free(cost);
    LS_TRY(st);
    out->replayed = sim.bubble;
    for (int k = 0, at = 0; k < s->n_stage; k++) {
        ls_pipe_span *x = span + k * n_each;
        for (int i = 0; i < s->rank[k].n_action; i++, at++)
            if (ls_pipe_computes(s->rank[k].action[i].kind))
                x->begin = sim.span[at].begin, x->end = sim.span[at].end, x++;
    }
    out->last = end > 0 ? 1 - busy / (s->n_stage * end) : 0;
    ls_sim_fini(&sim);
    return LS_OK;
}

/* The spans of the last step of all stages of this replica. */
static ls_status gather_spans(ls_trainer *t, ls_pipe_report *out)
{
    const ls_schedule *s = t->schedule;
    const int rank = ls_comm_rank(t->pp);
    int most = 0, n = 0;
    for (int k = 0; k < s->n_stage; k++) most = LS_MAX(most, s->rank[k].n_action);
    const int64_t each = most * (int64_t)sizeof(ls_pipe_span);
    ls_pipe_span *all = ls_comm_alloc(t->pp, (size_t)(each * s->n_stage));
    if (!all) return ls_nomem(each * s->n_stage, "the picture of a step");
    const ls_pipe_span *span = ls_pipe_spans(t->pipe, &n);
    memcpy(all + rank * most, span, (size_t)n * sizeof *span);
    LS_TRY(ls_all_gather(t->pp, (ls_view){all, each * s->n_stage, LS_U8}, (ls_view){all + rank * most, each, LS_U8},
                         LS_SITE, NULL));
    if (ls_comm_rank(t->comm)) return LS_OK;
    ls_jsonw w;
    ls_jsonw_init(&w, &out->rows, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "schedule", s->name);
    write_spans(t, "rows", all, most, &w);
    LS_TRY(replay(t, all, most, out));
    write_spans(t, "simulated", all, most, &w);
    ls_jsonw_close(&w);
    return LS_OK;
}

ls_status ls_pipe_report_gather(ls_trainer *t, ls_pipe_report *out)
{
    *out = (ls_pipe_report){0};
    if (!t->pipe) return LS_OK;
    const int P = t->schedule->n_stage, rank = ls_comm_rank(t->pp);
    facts *all = ls_comm_alloc(t->pp, (size_t)P * sizeof *all);
    if (!all) return ls_nomem((size_t)P * sizeof *all, "the facts of a pipeline");
    own_facts(t, &all[rank]);
    LS_TRY(ls_all_gather(t->pp, (ls_view){all, (int64_t)P * FACTS, LS_F64}, (ls_view){&all[rank], FACTS, LS_F64},
                         LS_SITE, NULL));
    LS_TRY(gather_spans(t, out));
    if (ls_comm_rank(t->comm)) return LS_OK;
    double busy = 0;
    for (int k = 0; k < P; k++) {
        out->makespan = fmax(out->makespan, all[k].span);
        busy += all[k].busy;
    }
    out->stage = all;
    out->measured = out->makespan > 0 ? 1 - busy / (P * out->makespan) : 0;
    return predict(t, all, out);
}

static void write_units(const ls_trainer *t, int stage, ls_jsonw *w)
{
    ls_jsonw_put_open(w, "units", '[');
    for (int c = 0; c < t->stages.n_chunk; c++) {
        const int g = c * t->stages.n_stage + stage;
        char run[32];
        snprintf(run, sizeof run, "%d-%d", t->stages.first[g], t->stages.first[g + 1] - 1);
        ls_jsonw_str(w, run);
    }
    ls_jsonw_close(w);
}

void ls_pipe_report_write(const ls_pipe_report *r, const ls_trainer *t, ls_jsonw *w)
{
    if (!r->stage) return;
    ls_jsonw_put_open(w, "pipeline", '{');
    ls_jsonw_members(w, LS_KV("schedule", t->schedule->name), LS_KV("stages", t->schedule->n_stage),
                     LS_KV("interleave", t->schedule->n_chunk), LS_KV("micro_batches", t->schedule->n_micro),
                     LS_KV("bubble_measured", r->measured), LS_KV("bubble_predicted", r->predicted),
                     LS_KV("bubble_last_step", r->last), LS_KV("bubble_last_step_replayed", r->replayed),
                     LS_KV("makespan_sec", r->makespan), LS_KV("makespan_predicted_sec", r->predicted_makespan));
    ls_jsonw_put_open(w, "per_stage", '[');
    for (int k = 0; k < t->schedule->n_stage; k++) {
        const facts *s = &r->stage[k];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_int(w, "stage", k);
        write_units(t, k, w);
        ls_jsonw_members(
            w, LS_KV("busy_sec", s->busy), LS_KV("bubble_measured", r->makespan > 0 ? 1 - s->busy / r->makespan : 0),
            LS_KV("bubble_predicted", s->predicted), LS_KV("peak_micro_batches", t->schedule->rank[k].peak_all),
            LS_KV("activation_bytes", (int64_t)s->act_bytes), LS_KV("sent_bytes_per_step", (int64_t)s->sent),
            LS_KV("exposed_sec_per_step", s->exposed));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    ls_jsonw_close(w);
}

void ls_pipe_report_print(const ls_pipe_report *r, const ls_trainer *t)
{
    if (!r->stage) return;
    train_tell(
        t,
        "pipeline %s, mean of all steps: bubble %.1f %% measured, %.1f %% simulated with the mean time of each action; step time %.3f s measured, %.3f s simulated\n"
        "pipeline %s, last step: bubble %.1f %% measured, %.1f %% simulated with the times of its own actions\n",
        t->schedule->name, 100 * r->measured, 100 * r->predicted, r->makespan, r->predicted_makespan, t->schedule->name,
        100 * r->last, 100 * r->replayed);
}
