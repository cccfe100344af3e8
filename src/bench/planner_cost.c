/* planner_cost.c - the seconds of a layout: units on this cluster, pipelines, the whole prediction.
 *
 * A pipeline is simulated with the cost of each part (parallel/simulate.h); what a stage does beside forward and backward (its buckets'
 * waits, its update) is added once, of the stage that takes longest. */
#include "bench/planner_impl.h"

#include "core/mem.h"
#include "parallel/pipe_exec.h"
#include "parallel/simulate.h"
#include "train/plan_run.h"

#include <math.h>
#include <string.h>

static planner_way way_of(const char *strategy)
{
    static const char *const name[N_WAY] = {"single", "dp", "ddp", "zero1", "zero2", "zero3"};
    int k = 0;
    while (k < N_WAY - 1 && strcmp(strategy, name[k])) k++;
    return (planner_way)k;
}

/* Of a unit whose layers are split: norms, residuals and dropout that every shard does for all rows, in passes like a sum's. */
static double uncut(const planner_worker *w, ls_unit_time k)
{
    const double n = (double)w->c->micro_batch * w->c->seq_len * w->c->model.n_embd;
    const int rows = w->c->sequence_parallel ? w->c->mesh.n[LS_AXIS_TP] : 1;
    const double passes = k == LS_TIME_BLOCK_FWD                            ? 16
                          : k == LS_TIME_BLOCK_BWD || k == LS_TIME_BLOCK_IN ? 24
                          : k == LS_TIME_HEAD_BWD                           ? 8
                                                                            : 0;
    return passes * n / rows * w->pass.add;
}

/* A worker has `threads` cores: between what was measured with more and with fewer, speed grows with them in a straight line. */
static double unit_sec(const planner_worker *w, ls_unit_time k)
{
    const ls_cluster *cl = w->cl;
    const ls_train_config *c = w->c;
    const int world = c->mesh.world < cl->devices ? c->mesh.world : cl->devices, T = c->mesh.n[LS_AXIS_TP];
    const double whole = ls_cluster_unit(cl, world, &c->model, c->micro_batch, c->seq_len, k),
                 sec = whole / T + (1 - 1.0 / T) * fmin(whole, uncut(w, k));
    const double even = (double)cl->devices / world;
    if (!w->threads || w->threads == even) return sec;
    const double other = w->threads > even ? even * 2 : even / 2; /* cores of the next measured one */
    const double speed = 1 / sec,
                 far = T / ls_cluster_unit(cl, (int)(cl->devices / other), &c->model, c->micro_batch, c->seq_len, k);
    const double at = speed + (far - speed) * (w->threads - even) / (other - even);
    return at > 0.1 * speed ? 1 / at : sec * even / w->threads;
}

static void unit_times(planner_worker *w)
{
    const ls_train_config *c = w->c;
    const int T = c->mesh.n[LS_AXIS_TP];
    w->fwd[LS_UNIT_EMBED] = unit_sec(w, LS_TIME_EMBED_FWD);
    w->bwd[LS_UNIT_EMBED] = unit_sec(w, LS_TIME_EMBED_BWD);
    w->fwd[LS_UNIT_BLOCK] = unit_sec(w, LS_TIME_BLOCK_FWD);
    w->bwd[LS_UNIT_BLOCK] = unit_sec(w, LS_TIME_BLOCK_BWD) + (c->recompute ? w->fwd[LS_UNIT_BLOCK] : 0);
    w->fwd[LS_UNIT_HEAD] = unit_sec(w, LS_TIME_HEAD_FWD);
    w->bwd[LS_UNIT_HEAD] = unit_sec(w, LS_TIME_HEAD_BWD);
    if (T == 1) return;
    /* parallel/tensor.h: 4L + 2 sums of (R,C) a micro-batch, by rows a scatter and a gather each and 2L gathers more */
    const double bytes = (double)c->micro_batch * c->seq_len * c->model.n_embd * w->cl->wire_bytes;
    const bool far = T > w->cl->devices;
    const double scatter_sec = ls_cluster_collective(w->cl, LS_COLL_REDUCE_SCATTER, T, bytes, far),
                 gather_sec = ls_cluster_collective(w->cl, LS_COLL_ALL_GATHER, T, bytes, far),
                 sum_sec = ls_cluster_collective(w->cl, LS_COLL_ALL_REDUCE, T, bytes, far),
                 one = c->sequence_parallel ? scatter_sec + gather_sec : sum_sec,
                 again = c->sequence_parallel ? 2 * gather_sec : 0;
    w->seam_fwd[LS_UNIT_EMBED] = one;
    w->seam_fwd[LS_UNIT_BLOCK] = 2 * one;
    w->seam_bwd[LS_UNIT_BLOCK] = 2 * one + again + (c->recompute ? 2 * one : 0);
    w->seam_fwd[LS_UNIT_HEAD] =
        one + ls_cluster_collective(w->cl, LS_COLL_ALL_GATHER, T, 24.0 * c->micro_batch * c->seq_len * T, far);
}

/* ---- pipelines ---- */

/* What the executor does: head's forward belongs to the backward of its part (parallel/pipe_exec.h). */
static ls_part_cost part_cost(const planner_worker *w, int first, int last, bool split)
{
    ls_part_cost k = {.act = 1};
    double n = 0;
    for (int u = first; u < last; u++) {
        const ls_unit_kind kind = w->m->unit[u].kind;
        n += (double)w->m->unit[u].n_grad;
        if (kind == LS_UNIT_HEAD) {
            k.bwd_in += w->fwd[kind] + w->bwd[kind] + w->seam_fwd[kind];
            continue;
        }
        k.fwd += w->fwd[kind] + w->seam_fwd[kind];
        k.bwd_in += w->seam_bwd[kind];
        if (kind == LS_UNIT_BLOCK && split) {
            k.bwd_in += unit_sec(w, LS_TIME_BLOCK_IN);
            k.bwd_w += unit_sec(w, LS_TIME_BLOCK_W);
        } else k.bwd_w += w->bwd[kind];
    }
    const double M = w->c->grad_accum; /* M - 1 sums in all */
    k.bwd_w += n / (w->way >= ZERO2 ? w->D : 1) * w->pass.add * (M - 1) / M;
    return k;
}

static double seams(const planner_worker *w)
{
    double sum = 0;
    for (int u = 0; u < w->m->n_unit; u++)
        if (planner_here(w, u)) sum += w->seam_fwd[w->m->unit[u].kind] + w->seam_bwd[w->m->unit[u].kind];
    return sum * w->c->grad_accum;
}

static ls_status pipeline(planner_worker *w, const ls_schedule *s, const ls_stages *cut, ls_prediction *out)
{
    const int P = s->n_stage, n_part = P * s->n_chunk, U = w->m->n_unit;
    const double bytes = (double)w->c->micro_batch * w->c->seq_len * w->c->model.n_embd * w->cl->wire_bytes;
    ls_part_cost *part = ls_alloc((size_t)n_part * sizeof *part);
    unsigned char *role = ls_alloc((size_t)U);
    ls_status st = part && role ? LS_OK : ls_nomem((size_t)U * 16, "the prediction of a pipeline");
    bool split = false;
    for (int i = 0; i < s->rank[0].n_action; i++) split = split || s->rank[0].action[i].kind == LS_PIPE_BWD_W;
    double most = 0;
    for (int k = 0; k < P && st == LS_OK; k++) {
        planner_worker one = *w;
        one.threads = w->c->stage_thread[0] ? w->c->stage_thread[k] : 0;
        unit_times(&one);
        for (int g = k; g < n_part; g += P) part[g] = part_cost(&one, cut->first[g], cut->first[g + 1], split);
        ls_pipe_roles(cut, w->c->model.tied, k, role);
        one.role = role;
        st = planner_walk(&one);
        /* sums between shards are in the parts' costs already */
        const double rest = one.p.step - one.p.forward - one.p.backward - seams(&one);
        if (st == LS_OK && k == 0) *out = one.p;
        most = fmax(most, rest);
    }
    ls_sim sim;
    const ls_pipe_costs costs = {.part = part,
                                 .transfer = ls_cluster_collective(w->cl, LS_COLL_SEND, 2, bytes, P > w->cl->devices)};
    if (st == LS_OK) st = ls_simulate(&sim, s, &costs, 0);
    if (st == LS_OK) {
        out->step = sim.makespan + most;
        out->bubble = sim.bubble;
        out->forward = out->backward = 0;
        for (int g = 0; g < n_part; g += P) {
            out->forward += part[g].fwd * s->n_micro;
            out->backward += (part[g].bwd_in + part[g].bwd_w) * s->n_micro;
        }
        out->exposed = fmax(0, out->step - out->forward - out->backward - out->optimizer - out->other);
        ls_sim_fini(&sim);
    }
    ls_free(part);
    ls_free(role);
    return st;
}

ls_status ls_planner_predict(const ls_cluster *cl, const ls_train_config *c, ls_prediction *out)
{
    const int D = c->mesh.n[LS_AXIS_DP], world = c->mesh.world;
    ls_compute compute;
    ls_model *m = NULL;
    ls_stages cut;
    ls_schedule *s = NULL;
    LS_TRY(ls_compute_open(&compute, c->compute, &(ls_compute_open_opts){.dtype = LS_F32}, 1));
    LS_TRY(ls_model_create_shard(&m, &c->model, &compute, ls_strategy_pad(c->strategy, D),
                                 (ls_shard){.size = c->mesh.n[LS_AXIS_TP], .rows = c->sequence_parallel}));
    planner_worker w = {.cl = cl,
                        .c = c,
                        .m = m,
                        .way = way_of(c->strategy),
                        .D = D,
                        .between = world > cl->devices && D > 1,
                        .pass = ls_cluster_pass(cl, world < cl->devices ? world : cl->devices)};
    unit_times(&w);
    ls_status st = ls_run_stages(c, NULL, &cut, &s);
    if (st == LS_OK && s) st = pipeline(&w, s, &cut, out);
    else if (st == LS_OK) st = planner_walk(&w);
    if (st == LS_OK && !s) *out = w.p;
    if (st == LS_OK) out->tokens_per_sec = (double)(c->global_batch * c->seq_len) / out->step;
    ls_schedule_destroy(&s);
    ls_model_destroy(&m);
    return st;
}
