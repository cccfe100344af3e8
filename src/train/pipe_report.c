#include "train/pipe_report.h"

#include "core/mem.h"
#include "parallel/simulate.h"
#include "train/train_impl.h"

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

enum { FACTS = sizeof(facts) / sizeof(double), BOX = 5 };

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

static void write_boxes(const ls_trainer *t, const double *box, int n_each, ls_str *out)
{
    static const char *const word[] = {"forward", "backward", "backward (input)", "backward (weights)"};
    ls_jsonw w;
    ls_jsonw_init(&w, out, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "schedule", t->schedule->name);
    ls_jsonw_put_open(&w, "rows", '[');
    for (int k = 0; k < t->schedule->n_stage; k++) {
        for (int i = 0; i < n_each; i++) {
            const double *b = box + ((int64_t)k * n_each + i) * BOX;
            char label[32];
            if (b[4] <= b[3]) continue;
            const int kind = (int)b[0], chunk = (int)b[2];
            if (t->schedule->n_chunk > 1) snprintf(label, sizeof label, "%d.%d", (int)b[1], chunk);
            else snprintf(label, sizeof label, "%d", (int)b[1]);
            ls_jsonw_open(&w, '{');
            ls_jsonw_put_int(&w, "lane", k);
            ls_jsonw_put_real(&w, "begin", b[3]);
            ls_jsonw_put_real(&w, "end", b[4]);
            ls_jsonw_put_str(&w, "kind", word[kind < 4 ? kind : 0]);
            ls_jsonw_put_str(&w, "label", label);
            ls_jsonw_close(&w);
        }
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

/* Simulates the last step again, with the measured time of each action. */
static ls_status replay(const ls_trainer *t, const double *box, int n_each, ls_pipe_report *out)
{
    const ls_schedule *s = t->schedule;
    const double *action[LS_PIPE_MAX_STAGE];
    double *cost = ls_alloc((size_t)(s->n_stage * n_each) * sizeof *cost), busy = 0, end = 0;
    if (!cost) return ls_nomem((size_t)(s->n_stage * n_each) * sizeof *cost, "the picture of a step");
    for (int k = 0; k < s->n_stage; k++) {
        int b = 0; /* boxes are the computing actions, in order */
        action[k] = cost + (int64_t)k * n_each;
        for (int i = 0; i < s->rank[k].n_action; i++) {
            if (!ls_pipe_computes(s->rank[k].action[i].kind)) continue;
            const double *x = box + ((int64_t)k * n_each + b++) * BOX;
            cost[(int64_t)k * n_each + i] = x[4] - x[3];
            busy += x[4] - x[3];
            end = x[4] > end ? x[4] : end;
        }
    }
    const ls_pipe_costs costs = {.each = {.act = 1}, .action = action};
    ls_sim sim;
    ls_status st = ls_simulate(&sim, s, &costs, 0);
    ls_free(cost);
    LS_TRY(st);
    out->replayed = sim.bubble;
    out->last = end > 0 ? 1 - busy / (s->n_stage * end) : 0;
    ls_sim_fini(&sim);
    return LS_OK;
}

/* The boxes of the last step of all stages of this replica. */
static ls_status gather_boxes(ls_trainer *t, ls_pipe_report *out)
{
    const ls_schedule *s = t->schedule;
    const int rank = ls_comm_rank(t->pp);
    int most = 0, n = 0;
    for (int k = 0; k < s->n_stage; k++) most = s->rank[k].n_action > most ? s->rank[k].n_action : most;
    const int64_t each = (int64_t)most * BOX;
    double *box = ls_comm_alloc(t->pp, (size_t)(each * s->n_stage) * sizeof *box);
    if (!box) return ls_nomem((size_t)(each * s->n_stage) * sizeof *box, "the picture of a step");
    const ls_pipe_span *span = ls_pipe_spans(t->pipe, &n);
    for (int i = 0; i < n; i++) {
        const double one[BOX] = {(double)span[i].kind, span[i].micro, span[i].chunk, span[i].begin, span[i].end};
        memcpy(box + rank * each + (int64_t)i * BOX, one, sizeof one);
    }
    LS_TRY(ls_all_gather(t->pp, (ls_view){box, each * s->n_stage, LS_F64}, (ls_view){box + rank * each, each, LS_F64},
                         LS_SITE, NULL));
    if (ls_comm_rank(t->comm)) return LS_OK;
    write_boxes(t, box, most, &out->rows);
    return replay(t, box, most, out);
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
    LS_TRY(gather_boxes(t, out));
    if (ls_comm_rank(t->comm)) return LS_OK;
    double busy = 0;
    for (int k = 0; k < P; k++) {
        out->makespan = all[k].span > out->makespan ? all[k].span : out->makespan;
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
    ls_jsonw_put_str(w, "schedule", t->schedule->name);
    ls_jsonw_put_int(w, "stages", t->schedule->n_stage);
    ls_jsonw_put_int(w, "interleave", t->schedule->n_chunk);
    ls_jsonw_put_int(w, "micro_batches", t->schedule->n_micro);
    ls_jsonw_put_real(w, "bubble_measured", r->measured);
    ls_jsonw_put_real(w, "bubble_predicted", r->predicted);
    ls_jsonw_put_real(w, "bubble_last_step", r->last);
    ls_jsonw_put_real(w, "bubble_last_step_replayed", r->replayed);
    ls_jsonw_put_real(w, "makespan_sec", r->makespan);
    ls_jsonw_put_real(w, "makespan_predicted_sec", r->predicted_makespan);
    ls_jsonw_put_open(w, "per_stage", '[');
    for (int k = 0; k < t->schedule->n_stage; k++) {
        const facts *s = &r->stage[k];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_int(w, "stage", k);
        write_units(t, k, w);
        ls_jsonw_put_real(w, "busy_sec", s->busy);
        ls_jsonw_put_real(w, "bubble_measured", r->makespan > 0 ? 1 - s->busy / r->makespan : 0);
        ls_jsonw_put_real(w, "bubble_predicted", s->predicted);
        ls_jsonw_put_int(w, "peak_micro_batches", t->schedule->rank[k].peak_all);
        ls_jsonw_put_int(w, "activation_bytes", (int64_t)s->act_bytes);
        ls_jsonw_put_int(w, "sent_bytes_per_step", (int64_t)s->sent);
        ls_jsonw_put_real(w, "exposed_sec_per_step", s->exposed);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    ls_jsonw_close(w);
}

void ls_pipe_report_print(const ls_pipe_report *r, const ls_trainer *t)
{
    if (!r->stage) return;
    train_tell(t,
               "pipeline %s: bubble %.1f %% measured, %.1f %% predicted for mean costs (a step %.3f s, predicted %.3f "
               "s); last step %.1f %% measured, %.1f %% simulated from its own actions\n",
               t->schedule->name, 100 * r->measured, 100 * r->predicted, r->makespan, r->predicted_makespan,
               100 * r->last, 100 * r->replayed);
}
