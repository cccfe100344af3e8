/* planner_step.c - predicts the time of a step: the strategy and walk of training on a simulated clock.
 *
 *   computing    |F0 F1 … Fh|Bh …        B1 B0|        |norm, update|          units, sums of gradients, passes over memory
 *   collectives        |bucket| |bucket|   |bucket|                  |gather   one at a time, in the order of posts
 *                                             waits ►|  exposed
 *
 * src/parallel decides when a strategy posts and waits. Dry communicators advance the clock by the times of the cluster (comm/self.c), so
 * do units of the walk (ls_hooks.unit) and passes over memory of the backend. Buffers have addresses but no memory. The second of two steps
 * is used, because parameter gathers extend into the next step.
 *
 * Overlap has a cost: an overlapped collective slows compute by (1 - overlap) of its time. On CPU cores that is most of it.
 *
 * Unit times are those of the slowest worker in a micro-batch. If workers synchronize after each micro-batch (zero2, zero3, tensor
 * parallelism) they add up. If workers synchronize once per step, random delays average out: over n micro-batches the random part grows
 * with the square root of n. The same holds for replicas of a stage, whose neighbours wait in the simulation, and for replicas of
 * shards.
 *
 * Not modelled: input, checkpoints, validation. */
#include "plan/planner_impl.h"

#include "core/mem.h"

#include <math.h>

#define NOWHERE ((void *)(uintptr_t)(1 << 20)) /* the address of every buffer; nobody looks there */

static void spend(planner_worker *w, double sec, double *part)
{
    w->clock.now += sec;
    *part += sec;
}

/* ---- a backend that advances the clock ---- */

static planner_worker *worker_of(ls_compute *c)
{
    return (planner_worker *)(void *)c;
}

static ls_status take_add(ls_compute *c, void *y, const void *a, const void *b, int64_t n)
{
    planner_worker *w = worker_of(c);
    (void)y, (void)a, (void)b;
    spend(w, (double)n * w->pass.add, w->part);
    return LS_OK;
}

static ls_status take_copy(ls_compute *c, void *y, const void *x, size_t nbytes)
{
    return take_add(c, y, x, x, (int64_t)(nbytes / sizeof(float)));
}

static ls_status take_sumsq(ls_compute *c, double *block_sum, const void *x, int64_t n, int64_t block)
{
    planner_worker *w = worker_of(c);
    (void)block_sum, (void)x, (void)block;
    spend(w, (double)n * w->pass.sumsq, w->part);
    return LS_OK;
}

static ls_status take_adamw(ls_compute *c, void *p, void *master, const void *g, void *m, void *v, int64_t n,
                            const ls_adamw *h)
{
    planner_worker *w = worker_of(c);
    (void)p, (void)master, (void)g, (void)m, (void)v, (void)h;
    spend(w, (double)n * (w->master ? w->pass.alone : w->pass.adamw), w->part);
    return LS_OK;
}

/* Operations that strategies call; the others are those of the backend and are not called. */
static void take_over(planner_worker *w)
{
    w->ops = *w->compute.ops;
    w->ops.name = "clock";
    w->ops.add = take_add;
    w->ops.copy = take_copy;
    w->ops.sumsq = take_sumsq;
    w->ops.adamw = take_adamw;
    w->compute.ops = &w->ops;
}

/* ---- the worker ---- */

static double seconds(void *ctx, const ls_comm *c, ls_coll kind, int64_t n, ls_dtype dt)
{
    const planner_worker *w = ctx;
    const ls_mesh *m = &w->c->mesh;
    const bool stages = c == w->g.pp || c == w->g.pp_acts || c == w->g.pp_grads;
    /* shards of a stage have adjacent ranks, replicas a stride: a group spans all ranks between */
    const int span = c == w->g.tp ? m->n[LS_AXIS_TP] : stages ? m->n[LS_AXIS_PP] * m->n[LS_AXIS_TP] : m->world;
    const double each = dt == LS_F32 ? w->cl->wire_bytes : (double)ls_dtype_nbytes(dt);
    return planner_collective_sec(w, kind, ls_comm_size(c), span, (double)n * each);
}

/* The sums of squares are really computed: they are 0. */
static ls_status bind(planner_worker *w)
{
    ls_run_parts *p = &w->parts;
    ls_strategy *s = p->strategy;
    LS_TRY(ls_plan_take(&p->plan, NOWHERE));
    ls_strategy_bind(s, &p->plan);
    s->norm = ls_alloc((size_t)p->plan.row[s->norm_row].nbytes + 64);
    s->unit_sum = ls_alloc((size_t)p->plan.row[s->unit_sum_row].nbytes + 64);
    return s->norm && s->unit_sum ? LS_OK : ls_nomem(1 << 20, "the prediction of a step");
}

ls_status planner_open(planner_worker *w, int rank)
{
    const int world = w->c->mesh.world;
    w->parts = (ls_run_parts){.stages = &w->stages, .schedule = w->schedule};
    w->g = (ls_run_groups){0};
    w->clock = (ls_dry_clock){.seconds = seconds, .ctx = w};
    w->world = NULL;
    LS_TRY(planner_sizes(w->c, 1, &w->compute));
    LS_TRY(planner_groups(&w->c->mesh, rank, &w->clock, &w->g));
    LS_TRY(ls_comm_dry_clocked(rank, world, &w->clock, &w->world));
    LS_TRY(ls_run_plan_strategy(w->c, &w->compute, &w->g, &w->parts));
    take_over(w);
    w->by_parts = (w->parts.strategy->ops->parts & LS_SHARD_GRAD) != 0;
    w->master = w->parts.strategy->ops->master;
    const bool often = w->by_parts || (w->c->mesh.n[LS_AXIS_TP] > 1 && w->D == 1);
    w->alike = often ? 1 : w->pass.apart + (1 - w->pass.apart) / sqrt(w->c->grad_accum);
    return bind(w);
}

void planner_close(planner_worker *w)
{
    if (w->parts.strategy && w->parts.plan.arena) {
        ls_free(w->parts.strategy->norm);
        ls_free(w->parts.strategy->unit_sum);
    }
    w->parts.schedule = NULL; /* the caller's */
    ls_run_parts_fini(&w->parts);
    planner_groups_close(&w->g);
    ls_comm_destroy(&w->world);
}

/* ---- a step ---- */

static ls_status acquire(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_acquire(((planner_worker *)ctx)->parts.strategy, u, pass);
}

static ls_status release(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_release(((planner_worker *)ctx)->parts.strategy, u, pass);
}

static ls_status grad_ready(void *ctx, int u)
{
    return ls_strategy_grad_ready(((planner_worker *)ctx)->parts.strategy, u);
}

/* Shards of a layer wait for their all-reduces. */
static ls_status compute(void *ctx, int u, ls_pass pass)
{
    planner_worker *w = ctx;
    const ls_unit_kind k = w->parts.model->unit[u].kind;
    const double seam = pass == LS_FWD ? w->seam_fwd[k] : w->seam_bwd[k];
    if (pass == LS_FWD) spend(w, w->fwd[k] * w->alike, &w->p.forward);
    else spend(w, w->bwd[k] * w->alike, &w->p.backward);
    w->clock.busy += seam;
    spend(w, seam, &w->clock.waited);
    return LS_OK;
}

/* The units of this worker; in a pipeline each part separately, as without other stages. */
static ls_status micro_batch(planner_worker *w, int m)
{
    const ls_hooks hooks = {
        .ctx = w, .acquire = acquire, .release = release, .grad_ready = grad_ready, .unit = compute};
    const ls_schedule *s = w->parts.schedule;
    const int P = s ? s->n_stage : 1, n_chunk = s ? s->n_chunk : 1, stage = s ? w->g.at.at[LS_AXIS_PP] : 0;
    ls_model *model = w->parts.model;
    ls_acts acts = {.B = w->c->micro_batch, .T = w->c->seq_len};
    ls_micro mb = {.B = acts.B, .T = acts.T, .train = true};
    ls_strategy_begin(w->parts.strategy, m);
    for (int k = 0; k < n_chunk; k++) {
        const int g = stage + k * P;
        LS_TRY(ls_walk_fwd(model, &acts, &mb, &hooks, s ? w->stages.first[g] : 0,
                           s ? w->stages.first[g + 1] : model->n_unit));
    }
    for (int k = n_chunk - 1; k >= 0; k--) {
        const int g = stage + k * P;
        LS_TRY(ls_walk_bwd(model, &acts, &mb, &hooks, s ? w->stages.first[g] : 0,
                           s ? w->stages.first[g + 1] : model->n_unit));
    }
    return LS_OK;
}

/* The message of sum_losses in the trainer (train/step.c). */
static ls_status losses(planner_worker *w)
{
    const int64_t n = 2 * (int64_t)w->c->grad_accum;
    LS_TRY(ls_all_gather(w->g.dp, (ls_view){NULL, n * w->D, LS_F64}, (ls_view){NULL, n, LS_F64}, LS_SITE, NULL));
    if (!w->g.pp) return LS_OK;
    return ls_broadcast(w->g.pp, (ls_view){NULL, 2, LS_F64}, 0, LS_SITE, NULL);
}

/* The order of ls_trainer_step. */
static ls_status step(planner_worker *w, bool counts)
{
    ls_strategy *s = w->parts.strategy;
    double squares;
    int stop;
    LS_TRY(ls_agree(w->world, 0, LS_SITE, &stop));
    w->part = &w->p.backward;
    for (int m = 0; m < w->c->grad_accum; m++) LS_TRY(micro_batch(w, m));
    LS_TRY(ls_strategy_step_due(s));
    w->part = &w->p.optimizer;
    if (counts)
        LS_TRY(ls_strategy_sum_squares(s, &squares)); /* the longest of all to go through; nothing of it stays */
    LS_TRY(losses(w));
    for (int u = 0; u < w->parts.model->n_unit; u++) {
        const ls_own o = ls_strategy_own(s, u);
        if (!ls_strategy_here(s, u)) continue;
        LS_TRY(take_adamw(&w->compute, o.param, o.master, o.grad, o.m, o.v, o.n, NULL));
        LS_TRY(ls_strategy_unit_done(s, u));
    }
    LS_TRY(ls_strategy_step_done(s));
    spend(w, w->pass.step, &w->p.other);
    return LS_OK;
}

static void count(planner_worker *w)
{
    for (int k = 0; k < LS_N_COLL && w->D > 1; k++)
        for (int label = 1; label < LS_COMM_LABELS; label++) {
            const ls_comm_stat s = ls_comm_label_stats(w->g.dp, (ls_coll)k, label);
            w->p.calls[k] += s.calls;
            w->p.elements[k] += s.elements;
        }
}

ls_status planner_walk(planner_worker *w)
{
    LS_TRY(step(w, false));
    const double begin = w->clock.now;
    w->p = (ls_prediction){0};
    w->clock.busy = w->clock.waited = 0;
    ls_comm_stats_reset(w->g.dp);
    LS_TRY(step(w, true));
    w->p.exposed = w->clock.waited;
    const double hidden = fmax(0, w->clock.busy - w->p.exposed), price = (1 - w->pass.overlap) * hidden;
    w->p.comm = w->clock.busy;
    w->p.backward += price;
    w->p.step = w->clock.now - begin + price;
    count(w);
    return LS_OK;
}
