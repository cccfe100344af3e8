/* planner_measure_units.c - the units of a few blocks between embed and head, and passes over their parameters, again and again.
 *
 *   a repetition    all workers: units, passes, a backward in two halves    workers meet, then each goes its way
 *                   rank 0: AdamW                                           the others wait (dp)
 *                   every second worker: units                              the others wait (stages of a pipeline)
 *                   all workers: units of a shard of each layer             two neighbours have a layer (tp) */
#include "bench/planner_measure_impl.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/stat.h"
#include "parallel/tensor.h"

#include <stdlib.h>
#include <string.h>

#define LAYERS 4

/* ---- the model ---- */

static ls_status acquire(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_acquire(((planner_bench *)ctx)->parts.strategy, u, pass);
}

void planner_bench_close(planner_bench *b)
{
    ls_acts_destroy(&b->split);
    ls_run_parts_fini(&b->parts);
    ls_comm_destroy(&b->tensor);
    ls_comm_destroy(&b->self);
}

/* This worker's place, and whom it shares layers with. */
static ls_status groups(planner_bench *b, int shards, ls_run_groups *g)
{
    const int rank = ls_comm_rank(b->comm);
    LS_TRY(ls_comm_self(&b->self));
    if (shards > 1) LS_TRY(ls_comm_split(b->comm, rank / shards, rank % shards, &b->tensor));
    *g = (ls_run_groups){.at.at[LS_AXIS_TP] = rank % shards, .dp = b->self, .tp = b->tensor};
    return LS_OK;
}

static ls_status plan_bench(planner_bench *b, const ls_run_groups *g)
{
    ls_run_parts *p = &b->parts;
    const int64_t R = (int64_t)b->cfg.micro_batch * b->cfg.seq_len;
    const ls_acts_opts two = {.B = b->cfg.micro_batch, .T = b->cfg.seq_len, .train = true, .pipe = true, .split = true};
    LS_TRY(ls_run_plan(&b->cfg, &b->compute, g, 0, p));
    if (b->tensor) ls_tensor_join(p->model, b->tensor);
    LS_TRY(ls_acts_plan(&b->split, p->model, &two, &p->plan));
    b->d_row = ls_plan_add(&p->plan, LS_PART_ACT, R * b->cfg.model.n_embd * 4, LS_PLAN_ALWAYS, "d x");
    return ls_plan_layout(&p->plan);
}

/* As the trainer does: several workers take memory that their peers can read. */
static ls_status take_memory(planner_bench *b)
{
    ls_plan *p = &b->parts.plan;
    p->n_copy = ls_comm_size(b->comm);
    LS_TRY(ls_plan_alloc(p, p->n_copy > 1));
    if (p->n_copy == 1) return LS_OK;
    void *memory = ls_comm_alloc(b->comm, (size_t)ls_plan_host_bytes(p));
    return memory ? ls_plan_take(p, memory) : ls_nomem(p->total, "the memory plan");
}

static ls_status bind(planner_bench *b)
{
    ls_run_parts *p = &b->parts;
    const uint64_t R = (uint64_t)b->cfg.micro_batch * (uint64_t)b->cfg.seq_len, V = (uint64_t)b->cfg.model.vocab_size;
    ls_strategy_bind(p->strategy, &p->plan);
    ls_acts_bind(b->split, p->model, &p->plan);
    ls_acts_bind(p->acts, p->model, &p->plan);
    b->split->da = ls_plan_at(&p->plan, b->d_row);
    ls_input_bind(&p->input, &p->plan);
    LS_TRY(ls_input_open(&p->input, 0, &b->ids, &b->target));
    for (uint64_t i = 0; i < R; i++) {
        b->ids[i] = (int32_t)(ls_rng_u64(1, i) % V);
        b->target[i] = (int32_t)(ls_rng_u64(2, i) % V);
    }
    ls_model_init(p->model, 1);
    ls_strategy_begin(p->strategy, 0);
    b->hooks = (ls_hooks){.ctx = b, .acquire = acquire};
    return LS_OK;
}

ls_status planner_bench_open(planner_bench *b, const ls_measure_opts *o, int micro, int shards, ls_comm *comm,
                             int threads)
{
    ls_run_groups g;
    *b = (planner_bench){.comm = comm, .fastest = o->fastest, .parts.stages = &b->stages};
    b->cfg =
        (ls_train_config){.model = o->model,
                          .world_size = shards,
                          .seq_len = o->seq_len,
                          .micro_batch = micro,
                          .grad_accum = 1,
                          .global_batch = micro,
                          .compute = "cpu",
                          .strategy = "single",
                          .mesh = {.n = {[LS_AXIS_DP] = 1, [LS_AXIS_PP] = 1, [LS_AXIS_TP] = shards}, .world = shards},
                          .interleave = 1,
                          .bucket = 1,
                          .gather_bucket = 1,
                          .deterministic = true};
    if (b->cfg.model.n_layer > LAYERS) b->cfg.model.n_layer = LAYERS;
    LS_TRY(groups(b, shards, &g));
    LS_TRY(ls_compute_open(&b->compute, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, threads));
    LS_TRY(plan_bench(b, &g));
    LS_TRY(take_memory(b));
    return bind(b);
}

static ls_micro micro_of(const planner_bench *b)
{
    return (ls_micro){.ids = b->ids,
                      .target = b->target,
                      .B = b->cfg.micro_batch,
                      .T = b->cfg.seq_len,
                      .train = true,
                      .dloss = 1.0 / (double)(b->cfg.micro_batch * b->cfg.seq_len),
                      .drop_key = 7};
}

/* ---- units ---- */

ls_status planner_fwd_and_bwd(planner_bench *b, double *sec)
{
    ls_model *m = b->parts.model;
    ls_acts *a = b->parts.acts;
    ls_micro mb = micro_of(b);
    const int L = m->n_unit - 2, head = m->n_unit - 1;
    double t[7];
    t[0] = ls_now();
    LS_TRY(ls_walk_fwd(m, a, &mb, &b->hooks, 0, 1));
    t[1] = ls_now();
    LS_TRY(ls_walk_fwd(m, a, &mb, &b->hooks, 1, head));
    t[2] = ls_now();
    LS_TRY(ls_walk_fwd(m, a, &mb, &b->hooks, head, head + 1));
    t[3] = ls_now();
    LS_TRY(ls_walk_bwd(m, a, &mb, &b->hooks, head, head + 1));
    t[4] = ls_now();
    LS_TRY(ls_walk_bwd(m, a, &mb, &b->hooks, 1, head));
    t[5] = ls_now();
    LS_TRY(ls_walk_bwd(m, a, &mb, &b->hooks, 0, 1));
    t[6] = ls_now();
    sec[LS_TIME_EMBED_FWD] = t[1] - t[0];
    sec[LS_TIME_BLOCK_FWD] = (t[2] - t[1]) / L;
    sec[LS_TIME_HEAD_FWD] = t[3] - t[2];
    sec[LS_TIME_HEAD_BWD] = t[4] - t[3];
    sec[LS_TIME_BLOCK_BWD] = (t[5] - t[4]) / L;
    sec[LS_TIME_EMBED_BWD] = t[6] - t[5];
    return LS_OK;
}

static ls_status two_halves(planner_bench *b, double *sec)
{
    ls_model *m = b->parts.model;
    ls_micro mb = micro_of(b);
    const int L = m->n_unit - 2, head = m->n_unit - 1;
    LS_TRY(ls_walk_fwd(m, b->split, &mb, &b->hooks, 0, head));
    const double t0 = ls_now();
    LS_TRY(ls_walk_bwd_in(m, b->split, &mb, &b->hooks, 1, head));
    const double t1 = ls_now();
    LS_TRY(ls_walk_bwd_w(m, b->split, &mb, &b->hooks, 1, head));
    sec[LS_TIME_BLOCK_IN] = (t1 - t0) / L;
    sec[LS_TIME_BLOCK_W] = (ls_now() - t1) / L;
    return LS_OK;
}

double planner_whole_pass(const double *sec)
{
    double sum = 0;
    for (int k = 0; k < LS_N_UNIT_TIME; k++)
        sum += sec[k] * (k >= LS_TIME_BLOCK_FWD && k <= LS_TIME_BLOCK_W ? LAYERS : 1);
    return sum;
}

/* ---- passes over memory ---- */

/* One update of every unit, in calls as the trainer makes them. */
static ls_status update(planner_bench *b)
{
    const ls_model *m = b->parts.model;
    ls_compute *c = &b->compute;
    const ls_adamw h = {.lr = 1e-9, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .bias1 = 1, .bias2 = 1, .grad_scale = 1};
    for (int u = 0; u < m->n_unit; u++) {
        const ls_own o = ls_strategy_own(b->parts.strategy, u);
        LS_TRY(c->ops->adamw(c, o.param, o.master, o.grad, o.m, o.v, o.n, &h));
    }
    return LS_OK;
}

static ls_status passes(planner_bench *b, double *sec)
{
    const ls_model *m = b->parts.model;
    ls_compute *c = &b->compute;
    double n = 0, t[4];
    t[0] = ls_now();
    for (int u = 0; u < m->n_unit; u++) {
        const ls_own o = ls_strategy_own(b->parts.strategy, u);
        LS_TRY(c->ops->sumsq(c, b->parts.strategy->norm, o.grad, o.n, LS_NORM_BLOCK));
        n += (double)o.n;
    }
    t[1] = ls_now();
    LS_TRY(update(b));
    t[2] = ls_now();
    for (int u = 0; u < m->n_unit; u++) {
        const ls_own o = ls_strategy_own(b->parts.strategy, u);
        LS_TRY(c->ops->add(c, o.grad, o.grad, o.param, o.n));
    }
    t[3] = ls_now();
    sec[T_SUMSQ] = (t[1] - t[0]) / n;
    sec[T_ADAMW] = (t[2] - t[1]) / n;
    sec[T_ADD] = (t[3] - t[2]) / n;
    return LS_OK;
}

/* ---- while others wait ---- */

/* AdamW of rank 0. */
static ls_status master(planner_bench *b, double *sec)
{
    const ls_model *m = b->parts.model;
    double n = 0;
    for (int u = 0; u < m->n_unit; u++) n += (double)m->unit[u].n_pad;
    LS_TRY(ls_barrier(b->comm, LS_SITE));
    const double begin = ls_now();
    if (ls_comm_rank(b->comm) == 0) LS_TRY(update(b));
    sec[T_ALONE] = ls_comm_rank(b->comm) == 0 ? (ls_now() - begin) / n : 0;
    return ls_barrier(b->comm, LS_SITE);
}

/* Units of every second worker; 0 for the others. */
static ls_status half(planner_bench *b, double *elapsed)
{
    double sec[PLANNER_TIMED];
    LS_TRY(ls_barrier(b->comm, LS_SITE));
    const double begin = ls_now();
    const bool works = ls_comm_rank(b->comm) % 2 == 0;
    if (works) LS_TRY(planner_fwd_and_bwd(b, sec));
    *elapsed = works ? ls_now() - begin : 0;
    return ls_barrier(b->comm, LS_SITE);
}

/* ---- repetitions ---- */

/* x becomes the largest of all workers', `who` has it. */
static ls_status largest(ls_comm *c, double *x, int *who)
{
    const int W = ls_comm_size(c);
    double all[64];
    LS_ASSERT(W <= 64);
    LS_TRY(ls_all_gather(c, (ls_view){all, W, LS_F64}, (ls_view){x, 1, LS_F64}, LS_SITE, NULL));
    *who = 0;
    for (int r = 1; r < W; r++)
        if (all[r] > all[*who]) *who = r;
    *x = all[*who];
    return LS_OK;
}

/* Workers meet at every sum, so a step takes what the slowest of them takes: in a repetition they all have that one's times (n numbers). Where
 * others use the machine, too, each is slow at other times, and a mean of workers would be of a step that never was. */
static ls_status slowest(ls_comm *c, double *sec, int n)
{
    double most = planner_whole_pass(sec);
    int worst = 0;
    LS_TRY(largest(c, &most, &worst));
    return ls_broadcast(c, (ls_view){sec, n, LS_F64}, worst, LS_SITE, NULL);
}

/* Neighbours come from a barrier one after the other, and the first sum would count it. In a step they come from a sum. */
static ls_status meet(planner_bench *shard)
{
    ls_micro mb = micro_of(shard);
    LS_TRY(ls_barrier(shard->comm, LS_SITE));
    return ls_walk_fwd(shard->parts.model, shard->parts.acts, &mb, &shard->hooks, 0, 1);
}

/* What one repetition found. */
typedef struct repetition {
    double all;            /* what decides whether it counts: the slowest's time, whole layers and shards */
    double whole, own;     /* a pass of the slowest worker, of this one                                   */
    double together, half; /* this worker's units while all compute, while every second one does; 0: it waits */
    double sec[PLANNER_TIMED], shard[LS_N_UNIT_TIME]; /* of the slowest */
} repetition;

static ls_status repeat(planner_bench *b, planner_bench *shard, repetition *r)
{
    const int W = ls_comm_size(b->comm);
    *r = (repetition){0};
    LS_TRY(ls_barrier(b->comm, LS_SITE));
    const double begin = ls_now();
    LS_TRY(planner_fwd_and_bwd(b, r->sec));
    if (ls_comm_rank(b->comm) % 2 == 0) r->together = ls_now() - begin;
    LS_TRY(passes(b, r->sec));
    LS_TRY(two_halves(b, r->sec));
    LS_TRY(master(b, r->sec));
    r->own = planner_whole_pass(r->sec);
    if (W > 1) {
        double alone = r->sec[T_ALONE];
        LS_TRY(half(b, &r->half));
        LS_TRY(slowest(b->comm, r->sec, PLANNER_TIMED));
        LS_TRY(planner_over_workers(b->comm, &alone, 1));
        r->sec[T_ALONE] = alone * W; /* a mean over workers, of which one worked */
    }
    if (shard) {
        LS_TRY(meet(shard));
        LS_TRY(planner_fwd_and_bwd(shard, r->shard));
        LS_TRY(two_halves(shard, r->shard));
        LS_TRY(slowest(b->comm, r->shard, LS_N_UNIT_TIME));
    }
    r->whole = planner_whole_pass(r->sec);
    r->all = r->whole + planner_whole_pass(r->shard);
    return LS_OK;
}

/* apart: the worker that is slowest on the whole, of the sum of the slowest of each repetition. beside: what units of every second worker
 * take, of what they take while all compute. */
static ls_status sum_up(ls_comm *c, repetition *rep, int n, bool fastest, planner_times *out)
{
    qsort(rep, (size_t)n, sizeof *rep, ls_by_value);
    const int rows = ls_measure_rows(&rep[0].all, sizeof *rep / sizeof(double), n, fastest);
    double whole = 0, own = 0, pair[2] = {0};
    *out = (planner_times){0};
    for (int i = 0; i < rows; i++) {
        whole += rep[i].whole;
        own += rep[i].own;
        pair[0] += rep[i].half;
        pair[1] += rep[i].together;
        for (int k = 0; k < PLANNER_TIMED; k++) out->sec[k] += rep[i].sec[k] / rows;
        for (int k = 0; k < LS_N_UNIT_TIME; k++) out->shard[k] += rep[i].shard[k] / rows;
    }
    int who;
    LS_TRY(largest(c, &own, &who));
    LS_TRY(planner_over_workers(c, pair, 2));
    out->apart = own / whole;
    out->beside = ls_comm_size(c) > 1 && pair[0] < pair[1] ? pair[0] / pair[1] : 1;
    return LS_OK;
}

ls_status planner_time_units(planner_bench *b, planner_bench *shard, double seconds, planner_times *out)
{
    repetition *rep = ls_alloc(PLANNER_REPS * sizeof *rep);
    ls_status st = rep ? LS_OK : ls_nomem(PLANNER_REPS * sizeof *rep, "repetitions");
    int n = 0;
    bool enough = false;
    if (st == LS_OK) st = repeat(b, shard, &rep[0]); /* the first one warms up */
    if (st == LS_OK) st = planner_enough(b->comm, false, &enough);
    const double begin = ls_now();
    while (st == LS_OK && n < PLANNER_REPS && !enough) {
        st = repeat(b, shard, &rep[n++]);
        const double spent = ls_now() - begin; /* three, unless they take twice the time there is */
        if (st == LS_OK) st = planner_enough(b->comm, spent > seconds && (n >= 3 || spent > 2 * seconds), &enough);
    }
    double each = (ls_now() - begin) / (n ? n : 1);
    if (st == LS_OK) st = planner_over_workers(b->comm, &each, 1);
    if (st == LS_OK) st = sum_up(b->comm, rep, n, b->fastest, out);
    out->repetition = each;
    ls_free(rep);
    return st;
}
