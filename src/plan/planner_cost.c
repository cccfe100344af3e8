/* planner_cost.c - predicts the step time of a layout: units on this cluster, pipelines, totals.
 *
 * A pipeline is simulated with the cost of each part (parallel/simulate.h). Other work of a stage (waits for buckets, update) is added once,
 * for the slowest stage. */
#include "plan/planner_impl.h"

#include "core/mem.h"
#include "core/minmax.h"
#include "parallel/pipe_exec.h"
#include "parallel/simulate.h"

#include <math.h>
#include <string.h>

/* ---- collectives ---- */

double planner_collective_sec(const planner_worker *w, ls_coll kind, int n, int span, double bytes)
{
    const int on_host = w->crowd.on_host;
    const bool between = w->c->mesh.world > on_host && (span > on_host || on_host % span);
    ls_coll_group g = {.n = n, .hosts = 1, .ordered = !w->cl->cpu && w->c->deterministic};
    if (between) { /* every stride-th rank belongs to the group */
        const int stride = span / n, here = stride < on_host ? on_host / stride : 1;
        g.hosts = LS_MAX(2, (n + here - 1) / here);
    }
    return ls_cluster_collective(w->cl, kind, g, bytes) * (between ? 1 : w->crowd.slower);
}

/* ---- units ---- */

/* Bytes of an activation element that is sent. */
static double width_of(const planner_worker *w)
{
    return w->cl->cpu || w->c->dtype == LS_F32 ? w->cl->wire_bytes : (double)ls_dtype_nbytes(w->c->dtype);
}

/* All-reduces between T shards that the pass of a unit waits for (parallel/tensor.h): 4L + 2 of (R,C) per micro-batch; with sequence
 * parallelism a scatter and a gather each, and 2L more gathers. */
static double tp_sec(const planner_worker *w, int T, bool by_rows, ls_unit_time k)
{
    const ls_train_config *c = w->c;
    const double rows = (double)c->micro_batch * c->seq_len, bytes = rows * c->model.n_embd * width_of(w);
    const double gather = planner_collective_sec(w, LS_COLL_ALL_GATHER, T, T, bytes),
                 scatter = planner_collective_sec(w, LS_COLL_REDUCE_SCATTER, T, T, bytes),
                 one = by_rows ? scatter + gather : planner_collective_sec(w, LS_COLL_ALL_REDUCE, T, T, bytes),
                 again = by_rows ? 2 * gather : 0;
    switch (k) {
    case LS_TIME_EMBED_FWD: return one;
    case LS_TIME_BLOCK_FWD: return 2 * one;
    case LS_TIME_BLOCK_BWD:
    case LS_TIME_BLOCK_IN: return 2 * one + again;
    case LS_TIME_HEAD_FWD: return one + planner_collective_sec(w, LS_COLL_ALL_GATHER, T, T, 24.0 * rows * T);
    default: return 0;
    }
}

/* If no shard was measured: norms, residuals and dropout, which each shard computes for all rows, at the cost of gradient sums. */
static double uncut(const planner_worker *w, ls_unit_time k)
{
    const double n = (double)w->c->micro_batch * w->c->seq_len * w->c->model.n_embd;
    const double passes = k == LS_TIME_BLOCK_FWD                            ? 16
                          : k == LS_TIME_BLOCK_BWD || k == LS_TIME_BLOCK_IN ? 24
                          : k == LS_TIME_HEAD_BWD                           ? 8
                                                                            : 0;
    return passes * n * w->pass.add;
}

/* Time of a unit, or of its shard without all-reduces: a replicated part (with sequence parallelism divided by rows) and a divided part.
 * The measured time of two shards gives both; if a shard is slower than the whole unit, all of it counts as replicated. */
static double unit_on(const planner_worker *w, int workers, ls_unit_time k)
{
    const ls_train_config *c = w->c;
    const int T = c->mesh.n[LS_AXIS_TP];
    const double whole =
        ls_cluster_unit(w->cl, workers, 1, c->dtype, &c->model, c->deterministic, c->micro_batch, c->seq_len, k);
    if (T == 1) return whole;
    const double with = ls_cluster_unit(w->cl, workers, 2, c->dtype, &c->model, c->deterministic, c->micro_batch,
                                        c->seq_len, k),
                 two = fmax(0, with - tp_sec(w, 2, false, k));
    const double each = with < 0 ? fmin(whole, uncut(w, k)) : fmin(two, fmax(0, 2 * two - whole)),
                 shared = with < 0 ? whole - each : 2 * (two - each);
    return each / (c->sequence_parallel ? T : 1) + fmax(0, shared) / T;
}

/* A worker has `threads` cores: speed is interpolated linearly between measurements with more and with fewer cores. */
static double unit_sec(const planner_worker *w, ls_unit_time k)
{
    const ls_cluster *cl = w->cl;
    const int timed = w->crowd.timed;
    const double sec = unit_on(w, timed, k), even = (double)cl->devices / timed, by = w->threads > even ? 2 : 0.5;
    if (!w->threads || w->threads == even) return sec * w->crowd.slower;
    double near = even, other = even * by; /* cores of those measured on both sides */
    while ((by > 1 ? other < w->threads : other > w->threads) && other > 1 && other < cl->devices)
        near = other, other *= by;
    const double speed = 1 / unit_on(w, (int)(cl->devices / near), k),
                 far = 1 / unit_on(w, (int)(cl->devices / other), k);
    if (cl->n_units && far == speed) return sec * even / w->threads; /* one number of cores was measured alone */
    const double at = speed + (far - speed) * (w->threads - near) / (other - near);
    return at > 0.1 * speed ? 1 / at : sec * even / w->threads;
}

/* The requested threads, if there are enough cores. */
static int threads_asked(const planner_worker *w)
{
    const int n = w->c->threads;
    return w->cl->cpu && (int64_t)n * w->crowd.on_host <= w->cl->devices ? n : 0;
}

static void unit_times(planner_worker *w)
{
    static const ls_unit_time fwd_of[] = {LS_TIME_EMBED_FWD, LS_TIME_BLOCK_FWD, LS_TIME_HEAD_FWD},
                              bwd_of[] = {LS_TIME_EMBED_BWD, LS_TIME_BLOCK_BWD, LS_TIME_HEAD_BWD};
    const ls_train_config *c = w->c;
    const int T = c->mesh.n[LS_AXIS_TP];
    for (int k = LS_UNIT_EMBED; k <= LS_UNIT_HEAD; k++) {
        const bool twice = k == LS_UNIT_BLOCK && c->recompute;
        w->fwd[k] = unit_sec(w, fwd_of[k]);
        w->bwd[k] = unit_sec(w, bwd_of[k]) + (twice ? w->fwd[k] : 0);
        if (T == 1) continue;
        w->tp_fwd[k] = tp_sec(w, T, c->sequence_parallel, fwd_of[k]);
        w->tp_bwd[k] = tp_sec(w, T, c->sequence_parallel, bwd_of[k]) + (twice ? w->tp_fwd[k] : 0);
    }
}

/* ---- pipelines ---- */

/* As in the executor: the forward pass of the head belongs to the backward pass of its part (parallel/pipe_exec.h). All-reduces of tensor
 * parallelism belong to the passes. */
static ls_part_cost part_cost(const planner_worker *w, int first, int last, bool split)
{
    const ls_model *m = w->parts.model;
    ls_part_cost k = {.act = 1};
    double n = 0;
    for (int u = first; u < last; u++) {
        const ls_unit_kind kind = m->unit[u].kind;
        n += (double)m->unit[u].n_grad;
        if (kind == LS_UNIT_HEAD) {
            k.bwd_in += (w->fwd[kind] + w->bwd[kind]) * w->alike + w->tp_fwd[kind];
            continue;
        }
        k.fwd += w->fwd[kind] * w->alike + w->tp_fwd[kind];
        k.bwd_in += w->tp_bwd[kind];
        if (kind == LS_UNIT_BLOCK && split) {
            k.bwd_in += unit_sec(w, LS_TIME_BLOCK_IN) * w->alike;
            k.bwd_w += unit_sec(w, LS_TIME_BLOCK_W) * w->alike;
        } else k.bwd_w += w->bwd[kind] * w->alike;
    }
    const double M = w->c->grad_accum; /* M - 1 sums in all */
    k.bwd_w += n / (w->by_parts ? w->D : 1) * w->pass.add * (M - 1) / M;
    return k;
}

/* Seconds of a step outside forward and backward; all-reduces of tensor parallelism belong to the parts, too. */
static double rest_of(const planner_worker *w)
{
    const ls_model *m = w->parts.model;
    double sums = 0;
    for (int u = 0; u < m->n_unit; u++)
        if (ls_strategy_here(w->parts.strategy, u)) sums += w->tp_fwd[m->unit[u].kind] + w->tp_bwd[m->unit[u].kind];
    return w->p.step - w->p.forward - w->p.backward - sums * w->c->grad_accum;
}

static bool splits(const ls_schedule *s)
{
    for (int i = 0; i < s->rank[0].n_action; i++)
        if (s->rank[0].action[i].kind == LS_PIPE_BWD_W) return true;
    return false;
}

/* Stage k of the first replica: the costs of its parts, and its other time. */
static ls_status stage(planner_worker *w, int k, ls_part_cost *part, double *rest, ls_prediction *p)
{
    w->threads = w->c->stage_thread[0] ? w->c->stage_thread[k] : threads_asked(w);
    unit_times(w);
    ls_status st = planner_open(w, ls_mesh_rank(&w->c->mesh, (ls_coord){.at = {[LS_AXIS_PP] = k}}));
    const int P = w->c->mesh.n[LS_AXIS_PP];
    if (st == LS_OK) st = planner_walk(w);
    if (st == LS_OK) {
        for (int g = k; g < P * w->stages.n_chunk; g += P)
            part[g] = part_cost(w, w->stages.first[g], w->stages.first[g + 1], splits(w->parts.schedule));
        *rest = rest_of(w);
        *p = w->p;
    }
    planner_close(w);
    return st;
}

/* Whether stages a and b have as many blocks in each part, and no other units: their times are equal. */
static bool same_stages(const planner_worker *w, int a, int b)
{
    const ls_stages *s = &w->stages;
    const int *thread = w->c->stage_thread;
    if (thread[0] && thread[a] != thread[b]) return false;
    for (int g = 0; g < s->n_stage * s->n_chunk; g += s->n_stage) {
        const int *x = s->first + g + a, *y = s->first + g + b;
        const bool ends = x[0] == 0 || y[0] == 0 || x[1] == s->n_unit || y[1] == s->n_unit;
        if (ends || x[1] - x[0] != y[1] - y[0]) return false;
    }
    return true;
}

/* Takes the times of part costs from an equal stage before k, if there is one. */
static bool copy_stage(const planner_worker *w, int k, ls_part_cost *part)
{
    const int P = w->c->mesh.n[LS_AXIS_PP];
    for (int j = 0; j < k; j++) {
        if (!same_stages(w, j, k)) continue;
        for (int g = 0; g < P * w->stages.n_chunk; g += P) part[g + k] = part[g + j];
        return true;
    }
    return false;
}

/* Stages compute faster while others wait. This was measured with every second worker waiting; more waiting workers were not measured. */
static ls_status simulate(const planner_worker *w, const ls_schedule *s, ls_part_cost *part, double transfer,
                          ls_sim *out)
{
    const ls_pipe_costs costs = {.part = part, .transfer = transfer};
    LS_TRY(ls_simulate(out, s, &costs, 0));
    if (w->pass.beside >= 1) return LS_OK;
    double waiting;
    ls_status st = ls_sim_waiting(out, s, &waiting);
    ls_sim_fini(out);
    LS_TRY(st);
    const double faster = 1 - fmin(1, 2 * waiting) * (1 - w->pass.beside);
    for (int g = 0; g < s->n_stage * s->n_chunk; g++) {
        part[g].fwd *= faster;
        part[g].bwd_in *= faster;
        part[g].bwd_w *= faster;
    }
    return ls_simulate(out, s, &costs, 0);
}

static ls_status pipeline(planner_worker *w, ls_prediction *out)
{
    const int P = w->c->mesh.n[LS_AXIS_PP];
    const double bytes = (double)w->c->micro_batch * w->c->seq_len * w->c->model.n_embd * width_of(w);
    ls_part_cost *part = NULL;
    ls_schedule *s = NULL;
    ls_sim sim;
    double most = 0;
    ls_status st = ls_run_stages(w->c, NULL, &w->stages, &s);
    w->schedule = s;
    if (st == LS_OK) part = ls_alloc((size_t)(P * s->n_chunk) * sizeof *part);
    if (st == LS_OK && !part) st = ls_nomem((size_t)(P * s->n_chunk) * sizeof *part, "the prediction of a pipeline");
    for (int k = 0; k < P && st == LS_OK; k++) {
        double rest = 0;
        ls_prediction p;
        if (copy_stage(w, k, part)) continue;
        st = stage(w, k, part, &rest, &p);
        if (st == LS_OK && k == 0) *out = p;
        most = fmax(most, rest);
    }
    if (st == LS_OK)
        st =
            simulate(w, s, part, planner_collective_sec(w, LS_COLL_SEND, 2, P * w->c->mesh.n[LS_AXIS_TP], bytes), &sim);
    if (st == LS_OK) {
        out->step = sim.makespan + most;
        out->bubble = sim.bubble;
        out->forward = out->backward = 0;
        for (int g = 0; g < P * s->n_chunk; g += P) {
            out->forward += part[g].fwd * s->n_micro;
            out->backward += (part[g].bwd_in + part[g].bwd_w) * s->n_micro;
        }
        out->exposed = fmax(0, out->step - out->forward - out->backward - out->optimizer - out->other);
        ls_sim_fini(&sim);
    }
    ls_free(part);
    ls_schedule_destroy(&s);
    return st;
}

static void begin(planner_worker *w, const ls_cluster *cl, const ls_train_config *c)
{
    w->cl = cl;
    w->c = c;
    w->D = c->mesh.n[LS_AXIS_DP];
    w->crowd = ls_cluster_crowd(cl, c->mesh.world);
    w->pass = ls_cluster_pass(cl, w->crowd.timed, c->dtype);
    w->pass.adamw *= w->crowd.slower; /* workers that share a core run one after the other */
    w->pass.sumsq *= w->crowd.slower;
    w->pass.add *= w->crowd.slower;
    w->pass.step *= w->crowd.slower;
    w->threads = threads_asked(w);
}

ls_status ls_planner_check_times(const ls_train_config *c)
{
    if (c->tf32)
        return ls_fail(LS_E_UNSUPPORTED,
                       "TF32: cluster files have no times of it; plan or check a run in fp32 or bf16");
    if (c->fp8.on)
        return ls_fail(LS_E_UNSUPPORTED, "fp8: cluster files have no times of it; plan or check a run in bf16");
    return LS_OK;
}

ls_status ls_planner_predict(const ls_cluster *cl, const ls_train_config *c, ls_prediction *out)
{
    LS_TRY(ls_planner_check_times(c));
    LS_TRY(ls_cluster_check_precision(cl, c->dtype));
    LS_TRY(ls_cluster_check_links(cl, c->mesh.world));
    if (c->offload) LS_TRY(ls_cluster_check_offload(cl, ls_cluster_crowd(cl, c->mesh.world).timed, c->dtype));
    planner_worker *w = ls_alloc(sizeof *w);
    if (!w) return ls_nomem(sizeof *w, "a prediction");
    begin(w, cl, c);
    ls_status st;
    if (c->mesh.n[LS_AXIS_PP] > 1) {
        st = pipeline(w, out);
    } else {
        unit_times(w);
        st = planner_open(w, 0);
        if (st == LS_OK) st = planner_walk(w);
        *out = w->p;
        planner_close(w);
    }
    if (st == LS_OK) out->tokens_per_sec = (double)(c->global_batch * c->seq_len) / out->step;
    ls_free(w);
    return st;
}

/* ---- buckets ---- */

enum { MOST_BUCKET = 1 << 26 }; /* elements */

/* The default, or the power of two whose transfer takes as long as the latency of its collective. */
static int64_t bucket_for(const planner_worker *w, ls_coll kind, double each, int64_t usual)
{
    const double some = 1e9, latency = planner_collective_sec(w, kind, w->D, w->c->mesh.world, 0),
                 sec = planner_collective_sec(w, kind, w->D, w->c->mesh.world, some) - latency;
    int64_t n = usual;
    while (n < MOST_BUCKET && (double)n * each / some * sec < latency) n = n < 1 << 20 ? 1 << 20 : n * 2;
    return n > MOST_BUCKET ? LS_MAX(usual, MOST_BUCKET) : n;
}

void planner_buckets(const ls_cluster *cl, ls_train_config *c)
{
    planner_worker w = {0};
    begin(&w, cl, c);
    if (w.D < 2) return;
    const bool all = !strcmp(c->strategy, "ddp") && !c->one_state;
    c->bucket = bucket_for(&w, all ? LS_COLL_ALL_REDUCE : LS_COLL_REDUCE_SCATTER, w.cl->wire_bytes, c->bucket);
    if (!strcmp(c->strategy, "zero1") || !strcmp(c->strategy, "zero2"))
        c->gather_bucket = bucket_for(&w, LS_COLL_ALL_GATHER, width_of(&w), c->gather_bucket);
}

/* ---- a lower bound ---- */

/* Compute of the average stage, or the way of one micro-batch through all stages; a naive schedule does nothing at the same time. */
static double least_compute(const planner_worker *w)
{
    const ls_train_config *c = w->c;
    const int P = c->mesh.n[LS_AXIS_PP], L = c->model.n_layer;
    const double M = c->grad_accum, less = w->pass.apart * w->pass.beside,
                 in = P > 1 ? unit_sec(w, LS_TIME_BLOCK_IN) : w->bwd[LS_UNIT_BLOCK],
                 halves = P > 1 ? in + unit_sec(w, LS_TIME_BLOCK_W) : in,
                 block = w->fwd[LS_UNIT_BLOCK] + fmin(w->bwd[LS_UNIT_BLOCK], halves),
                 ends = w->fwd[LS_UNIT_EMBED] + w->bwd[LS_UNIT_EMBED] + w->fwd[LS_UNIT_HEAD] + w->bwd[LS_UNIT_HEAD];
    double shards = L * (w->tp_fwd[LS_UNIT_BLOCK] + w->tp_bwd[LS_UNIT_BLOCK]);
    shards += w->tp_fwd[LS_UNIT_EMBED] + w->tp_bwd[LS_UNIT_EMBED] + w->tp_fwd[LS_UNIT_HEAD] + w->tp_bwd[LS_UNIT_HEAD];
    const double all = less * (L * block + ends) + shards;
    if (P == 1) return M * all;
    if (!strcmp(c->schedule, "naive")) return M * all;
    return fmax(M * all / P, less * L * (w->fwd[LS_UNIT_BLOCK] + fmin(in, w->bwd[LS_UNIT_BLOCK])));
}

/* Sums of gradients and gathers of parameters, each as one message. */
static double least_comm(const planner_worker *w, double n)
{
    const ls_train_config *c = w->c;
    const int D = w->D, span = c->mesh.world;
    const double wide = n * w->cl->wire_bytes, M = c->grad_accum, bytes = n * width_of(w);
    if (D == 1) return 0;
    if (!strcmp(c->strategy, "dp"))
        return planner_collective_sec(w, LS_COLL_REDUCE, D, span, wide) +
               planner_collective_sec(w, LS_COLL_BROADCAST, D, span, bytes);
    if (!strcmp(c->strategy, "ddp") && !c->one_state)
        return planner_collective_sec(w, LS_COLL_ALL_REDUCE, D, span, wide);
    const double scatter = planner_collective_sec(w, LS_COLL_REDUCE_SCATTER, D, span, wide),
                 gather = planner_collective_sec(w, LS_COLL_ALL_GATHER, D, span, bytes);
    if (c->one_state) return scatter;
    if (!strcmp(c->strategy, "zero1")) return scatter + gather;
    return M * scatter + gather;
}

double planner_least(const ls_cluster *cl, const ls_train_config *c)
{
    planner_worker w = {0};
    const ls_model_config *m = &c->model;
    const double C = m->n_embd, n = (12.0 * m->n_layer * C * C + C * m->vocab_size) /
                                    (c->mesh.n[LS_AXIS_PP] * c->mesh.n[LS_AXIS_TP]); /* parameters of a worker */
    begin(&w, cl, c);
    unit_times(&w);
    const bool dp = !strcmp(c->strategy, "dp"), sharded = !strncmp(c->strategy, "zero", 4) || c->one_state;
    const double compute = least_compute(&w), comm = least_comm(&w, n);
    return (dp ? compute + comm : fmax(compute, comm)) + w.pass.step +
           n / (sharded ? w.D : 1) * fmin(w.pass.adamw, w.pass.alone);
}
