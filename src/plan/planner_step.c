/* planner_step.c - a worker that does not run: its memory plan, and the time of its step.
 *
 * Memory is the plan of the trainer with dry communicators. Time is that of the strategy and walk of training on a simulated clock:
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
 * An optimizer in host memory takes the time of its own passes, after the backward pass; without clipping and loss scale, the CPU begins
 * during the backward pass of the last micro-batch (parallel/offload_early.c).
 *
 * Not modelled: input, checkpoints, validation. */
#include "plan/planner_impl.h"

#include "core/mem.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#define NOWHERE ((void *)(uintptr_t)(1 << 20)) /* the address of every buffer; nobody looks there */

/* ---- memory ---- */

static ls_status dry(int rank, int size, ls_dry_clock *clock, ls_comm **out)
{
    return clock ? ls_comm_dry_clocked(rank, size, clock, out) : ls_comm_dry(rank, size, out);
}

/* The dry process groups of worker `rank`, with a clock if given. Close them even after a failure. */
static ls_status groups_open(const ls_mesh *mesh, int rank, ls_dry_clock *clock, ls_run_groups *g)
{
    g->at = ls_mesh_coord(mesh, rank);
    const int p = g->at.at[LS_AXIS_PP], P = mesh->n[LS_AXIS_PP], T = mesh->n[LS_AXIS_TP];
    LS_TRY(dry(g->at.at[LS_AXIS_DP], mesh->n[LS_AXIS_DP], clock, &g->dp));
    if (T > 1) LS_TRY(dry(g->at.at[LS_AXIS_TP], T, clock, &g->tp));
    if (P == 1) return LS_OK;
    LS_TRY(dry(p, P, clock, &g->pp));
    LS_TRY(dry(p, P, clock, &g->pp_acts));
    return dry(p, P, clock, &g->pp_grads);
}

static void groups_close(ls_run_groups *g)
{
    ls_comm_destroy(&g->dp);
    ls_comm_destroy(&g->tp);
    ls_comm_destroy(&g->pp);
    ls_comm_destroy(&g->pp_acts);
    ls_comm_destroy(&g->pp_grads);
}

/* A backend that only reports sizes, of a CPU or of a GPU that need not be present. */
static ls_status open_sizes(const ls_train_config *c, ls_worker_cpu cpu, ls_compute *out)
{
    if (!strcmp(c->compute, "cuda")) return ls_compute_open_sizes(out, c->dtype);
    if (!strcmp(c->compute, "cpu"))
        return ls_compute_open_cpu_sizes(out, c->dtype, cpu.kernel ? cpu.kernel : "", cpu.threads);
    return ls_compute_open(out, c->compute, &(ls_compute_open_opts){.dtype = c->dtype}, cpu.threads);
}

static bool always(const ls_plan_row *r)
{
    return r->first == 0 && r->last == INT32_MAX;
}

/* Permanent rows are at the bottom of the arena and overlap in time with all others: for the total they are one row. */
static ls_status total_of(const ls_plan *p, int64_t *total)
{
    ls_plan few = {.device = p->device};
    int64_t bottom = 0;
    if (p->total < 0) return ls_fail(LS_E_NOMEM, "cannot allocate the rows of a memory plan");
    for (int i = 0; i < p->n_row; i++)
        if (always(&p->row[i]) && !(p->device && p->row[i].host)) bottom += p->row[i].nbytes;
    ls_plan_add(&few, LS_PART_WORK, bottom, LS_PLAN_ALWAYS, "all permanent rows");
    for (int i = 0; i < p->n_row; i++)
        if (!always(&p->row[i]))
            ls_plan_add(&few, p->row[i].part, p->row[i].nbytes, p->row[i].first, p->row[i].last, "%s", p->row[i].name);
    ls_status st = ls_plan_layout(&few);
    *total = few.total;
    ls_plan_fini(&few);
    return st;
}

/* Host memory, without a layout. */
static int64_t host_of(const ls_plan *p, int64_t total)
{
    int64_t sum = 0;
    if (!p->device) return total;
    for (int i = 0; i < p->n_row; i++)
        if (p->row[i].host) sum += p->row[i].nbytes;
    return sum;
}

ls_status planner_memory_in(const ls_train_config *c, ls_compute *gpu, ls_worker_cpu cpu, int rank, int64_t val_seqs,
                            ls_stages *stages, ls_schedule *schedule, ls_plan_memory *out)
{
    ls_compute sizes;
    ls_run_groups g = {0};
    ls_run_parts parts = {.stages = stages, .schedule = schedule};
    *out = (ls_plan_memory){0};
    if (!gpu) LS_TRY(open_sizes(c, cpu, &sizes));
    ls_status st = groups_open(&c->mesh, rank, NULL, &g);
    if (st == LS_OK) st = ls_run_plan(c, gpu ? gpu : &sizes, &g, val_seqs, &parts);
    if (st == LS_OK) st = total_of(&parts.plan, &out->total);
    for (int p = 0; p < LS_N_PART; p++) out->part[p] = ls_plan_part_bytes(&parts.plan, (ls_part)p);
    out->host = host_of(&parts.plan, out->total);
    parts.schedule = NULL; /* the caller's */
    ls_run_parts_fini(&parts);
    groups_close(&g);
    return st;
}

ls_status ls_planner_memory(const ls_train_config *c, ls_compute *gpu, ls_worker_cpu cpu, int rank, int64_t val_seqs,
                            ls_plan_memory *out)
{
    ls_stages stages;
    ls_schedule *schedule = NULL;
    *out = (ls_plan_memory){0};
    ls_status st = ls_run_stages(c, NULL, &stages, &schedule);
    if (st == LS_OK) st = planner_memory_in(c, gpu, cpu, rank, val_seqs, &stages, schedule, out);
    ls_schedule_destroy(&schedule);
    return st;
}

/* ---- a backend that advances the clock ---- */

static void spend(planner_worker *w, double sec, double *part)
{
    w->clock.now += sec;
    *part += sec;
}

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

static ls_status take_decide(ls_compute *c, const ls_decide *a)
{
    (void)c, (void)a;
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
    w->ops.decide = take_decide;
    w->ops.sumsq_many = NULL;
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
    LS_TRY(ls_strategy_bind(s, &p->plan));
    s->norm = ls_alloc((size_t)p->plan.row[s->norm_row].nbytes + 64);
    s->unit_sum = ls_alloc((size_t)p->plan.row[s->unit_sum_row].nbytes + 64);
    s->decided = ls_alloc(sizeof *s->decided);
    return s->norm && s->unit_sum && s->decided ? LS_OK : ls_nomem(1 << 20, "the prediction of a step");
}

ls_status planner_open(planner_worker *w, int rank)
{
    const int world = w->c->mesh.world;
    w->parts = (ls_run_parts){.stages = &w->stages, .schedule = w->schedule};
    w->g = (ls_run_groups){0};
    w->clock = (ls_dry_clock){.seconds = seconds, .ctx = w};
    w->world = NULL;
    LS_TRY(open_sizes(w->c, (ls_worker_cpu){1, ls_cluster_kernel(w->cl, w->c->dtype)}, &w->compute));
    LS_TRY(groups_open(&w->c->mesh, rank, &w->clock, &w->g));
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
        ls_free(w->parts.strategy->decided);
    }
    w->parts.schedule = NULL; /* the caller's */
    ls_run_parts_fini(&w->parts);
    groups_close(&w->g);
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
    const double wait = pass == LS_FWD ? w->tp_fwd[k] : w->tp_bwd[k];
    if (pass == LS_FWD) spend(w, w->fwd[k] * w->alike, &w->p.forward);
    else spend(w, w->bwd[k] * w->alike, &w->p.backward);
    w->clock.busy += wait;
    spend(w, wait, &w->clock.waited);
    return LS_OK;
}

/* The units of this worker; in a pipeline each part separately, as without other stages. */
static ls_status micro_batch(planner_worker *w, int m)
{
    const ls_hooks hooks = {
        .ctx = w, .acquire = acquire, .release = release, .grad_ready = grad_ready, .unit = compute};
    const ls_schedule *s = w->parts.schedule;
    ls_model *model = w->parts.model;
    ls_acts acts = {.B = w->c->micro_batch, .T = w->c->seq_len};
    ls_micro mb = {.B = acts.B, .T = acts.T, .train = true};
    ls_strategy_begin(w->parts.strategy, m);
    if (!s) {
        LS_TRY(ls_walk(model, &acts, &mb, &hooks, LS_FWD, 0, model->n_unit));
        return ls_walk(model, &acts, &mb, &hooks, LS_BWD, 0, model->n_unit);
    }
    const int *first = w->stages.first + w->g.at.at[LS_AXIS_PP], P = s->n_stage; /* of each chunk of this stage */
    for (int k = 0; k < s->n_chunk; k++)
        LS_TRY(ls_walk(model, &acts, &mb, &hooks, LS_FWD, first[k * P], first[k * P + 1]));
    for (int k = s->n_chunk - 1; k >= 0; k--)
        LS_TRY(ls_walk(model, &acts, &mb, &hooks, LS_BWD, first[k * P], first[k * P + 1]));
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

/* Elements that the CPU updates before the backward pass is over. The tied embedding is the last to be complete. */
static double updated_early(const planner_worker *w)
{
    const ls_strategy *s = w->parts.strategy;
    const ls_model *m = w->parts.model;
    double n = 0, backward = 0;
    if (!s->opts.overlap || !(w->pass.on_host > 0)) return 0;
    for (int u = 0; u < m->n_unit; u++) {
        if (!ls_strategy_here(s, u)) continue;
        if (u > 0 || !m->cfg.tied) n += (double)ls_strategy_own(s, u).n;
        backward += w->bwd[m->unit[u].kind] * w->alike;
    }
    return fmin(n, backward / w->pass.on_host);
}

/* The update of a state in host memory is complete before the first parameters are gathered. */
static void update_offloaded(planner_worker *w)
{
    double n = -updated_early(w);
    for (int u = 0; u < w->parts.model->n_unit; u++) n += (double)ls_strategy_own(w->parts.strategy, u).n;
    spend(w, n * w->pass.offload, w->part);
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
    if (s->opts.offload) update_offloaded(w);
    for (int u = 0; u < w->parts.model->n_unit; u++) {
        const ls_own o = ls_strategy_own(s, u);
        if (!ls_strategy_here(s, u)) continue;
        if (!s->opts.offload) LS_TRY(take_adamw(&w->compute, o.param, o.master, o.grad, o.m, o.v, o.n, NULL));
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
