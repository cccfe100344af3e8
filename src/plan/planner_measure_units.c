/* planner_measure_units.c - times embed, a few blocks and head of a small model, and passes over its parameters, repeatedly.
 *
 * The model is planned, allocated and initialized as in the trainer, on CPU or GPU.
 *
 *   a repetition    all workers: units, passes, a backward in two halves    after a barrier, not synchronized
 *                   rank 0: AdamW                                           the others wait (dp)
 *                   every second worker: units                              the others wait (stages of a pipeline)
 *                   all workers: units of a shard of each layer             two neighbours share each layer (tp) */
#include "plan/planner_measure_impl.h"

#include "plan/planner.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/stat.h"
#include "parallel/tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- the model ---- */

static ls_status acquire(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_acquire(((planner_bench *)ctx)->parts.strategy, u, pass);
}

void planner_bench_close(planner_bench *b)
{
    if (b->compute.ops) (void)ls_compute_sync(&b->compute);
    ls_acts_destroy(&b->split);
    ls_run_parts_fini(&b->parts);
    ls_comm_destroy(&b->tensor);
    ls_comm_destroy(&b->self);
}

/* The rank of this worker, and the workers that share its layers. */
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
    const ls_acts_opts two = {.B = b->cfg.micro_batch,
                              .T = b->cfg.seq_len,
                              .train = true,
                              .pipe = true,
                              .split = true,
                              .keep_gelu = b->compute.device != NULL};
    LS_TRY(ls_run_plan(&b->cfg, &b->compute, g, 0, p));
    if (b->tensor) ls_tensor_join(p->model, b->tensor);
    LS_TRY(ls_acts_plan(&b->split, p->model, &two, &p->plan));
    b->d_row = ls_plan_add(&p->plan, LS_PART_ACT, R * b->cfg.model.n_embd * 4, LS_PLAN_ALWAYS, "d x");
    return ls_plan_layout(&p->plan);
}

/* As in the trainer: with several workers, memory is readable by peers. */
static ls_status take_memory(planner_bench *b)
{
    ls_plan *p = &b->parts.plan;
    const bool several = ls_comm_size(b->comm) > 1;
    p->n_copy = ls_comm_where(b->comm).local_size;
    LS_TRY(ls_plan_alloc(p, several));
    if (!several) return LS_OK;
    void *memory = ls_comm_alloc(b->comm, (size_t)ls_plan_host_bytes(p));
    return memory ? ls_plan_take(p, memory) : ls_nomem(ls_plan_host_bytes(p), "the memory plan");
}

/* Random weights: a device that multiplies zeros draws less power and runs faster. */
static ls_status fill(planner_bench *b)
{
    ls_run_parts *p = &b->parts;
    ls_piece *piece = ls_alloc(3 * (size_t)p->model->n_unit * sizeof *piece);
    if (!piece) return ls_nomem(3 * (size_t)p->model->n_unit * sizeof *piece, "the parts of the model");
    const int n = ls_strategy_pieces(p->strategy, false, piece);
    ls_status st = LS_OK;
    for (int i = 0; i < n && st == LS_OK; i++)
        if (piece[i].what == LS_FLAT_PARAM) st = ls_model_init_piece(p->model, 1, &piece[i]);
    ls_free(piece);
    return st == LS_OK ? ls_strategy_publish(p->strategy, 0, 0) : st;
}

static ls_status make_input(planner_bench *b)
{
    ls_run_parts *p = &b->parts;
    const uint64_t R = (uint64_t)b->cfg.micro_batch * (uint64_t)b->cfg.seq_len, V = (uint64_t)b->cfg.model.vocab_size;
    int32_t *ids, *target;
    LS_TRY(ls_input_open(&p->input, 0, &ids, &target));
    for (uint64_t i = 0; i < R; i++) {
        ids[i] = (int32_t)(ls_rng_u64(1, i) % V);
        target[i] = (int32_t)(ls_rng_u64(2, i) % V);
    }
    b->mb = (ls_micro){.B = b->cfg.micro_batch,
                       .T = b->cfg.seq_len,
                       .train = true,
                       .loss = b->compute.device ? ls_plan_at(&p->plan, p->row.micro_loss) : NULL,
                       .dloss = 1.0 / (double)R,
                       .drop_key = 7};
    return ls_input_send(&p->input, 0, &b->mb);
}

static ls_status bind(planner_bench *b)
{
    ls_run_parts *p = &b->parts;
    LS_TRY(ls_strategy_bind(p->strategy, &p->plan));
    ls_acts_bind(b->split, p->model, &p->plan);
    ls_acts_bind(p->acts, p->model, &p->plan);
    b->split->da = ls_plan_at(&p->plan, b->d_row);
    ls_input_bind(&p->input, &p->plan);
    LS_TRY(make_input(b));
    LS_TRY(fill(b));
    ls_strategy_begin(p->strategy, 0);
    b->hooks = (ls_hooks){.ctx = b, .acquire = acquire};
    return LS_OK;
}

ls_status planner_bench_open(planner_bench *b, const ls_measure_opts *o, int micro, int shards, ls_comm *comm,
                             const ls_compute *compute)
{
    static uint64_t serial;
    ls_run_groups g;
    *b = (planner_bench){.comm = comm, .fastest = o->fastest, .serial = ++serial, .parts.stages = &b->stages};
    const ls_planner_query q = {.model = o->model,
                                .global_batch = micro,
                                .seq_len = o->seq_len,
                                .bucket = 1,
                                .cuda = o->cuda,
                                .dtype = o->dtype,
                                .no_deterministic = o->no_deterministic};
    ls_mesh mesh;
    b->compute = *compute;
    LS_TRY(ls_mesh_build(&mesh, shards, 1, 1, shards));
    b->cfg = ls_planner_config(&q, "single", mesh, NULL, 1, micro);
    if (b->cfg.model.n_layer > PLANNER_LAYERS) b->cfg.model.n_layer = PLANNER_LAYERS;
    LS_TRY(groups(b, shards, &g));
    LS_TRY(plan_bench(b, &g));
    LS_TRY(take_memory(b));
    return bind(b);
}

/* ---- the clock ---- */

/* Points of a pass: on cores the time now; on a GPU marks in its queue, read when it has passed them. */
typedef struct stamps {
    int n;
    ls_mark mark[8];
    double at[8];
} stamps;

static ls_status stamp(planner_bench *b, stamps *s)
{
    const ls_device *d = b->compute.device;
    LS_ASSERT(s->n < (int)(sizeof s->at / sizeof s->at[0]));
    if (d) return d->mark(d->ctx, &s->mark[s->n++]);
    s->at[s->n++] = ls_now();
    return LS_OK;
}

static ls_status read_stamps(planner_bench *b, stamps *s)
{
    const ls_device *d = b->compute.device;
    if (!d) return LS_OK;
    LS_TRY(ls_compute_sync(&b->compute));
    for (int i = 0; i < s->n; i++) LS_TRY(d->seconds(d->ctx, s->mark[i], &s->at[i]));
    return LS_OK;
}

/* ---- units ---- */

/* Runs units first … last - 1, then takes a timestamp. The passes of a single worker are recorded as one graph, as in the trainer. */
static ls_status pass(planner_bench *b, ls_pass way, ls_acts *a, int first, int last, stamps *s)
{
    ls_compute *c = &b->compute;
    const bool whole = c->ops->region_begin && ls_comm_size(b->comm) == 1;
    bool queued = false;
    if (whole)
        LS_TRY(c->ops->region_begin(c, b->serial << 16 | (uint64_t)(a == b->split) << 8 | (uint64_t)s->n, &queued));
    if (!queued) {
        const ls_status st = ls_walk(b->parts.model, a, &b->mb, &b->hooks, way, first, last),
                        end = whole ? c->ops->region_end(c) : LS_OK;
        LS_TRY(st);
        LS_TRY(end);
    }
    return stamp(b, s);
}

static ls_status queue_fwd_and_bwd(planner_bench *b, stamps *s)
{
    ls_acts *a = b->parts.acts;
    const int head = b->parts.model->n_unit - 1;
    LS_TRY(stamp(b, s));
    LS_TRY(pass(b, LS_FWD, a, 0, 1, s));
    LS_TRY(pass(b, LS_FWD, a, 1, head, s));
    LS_TRY(pass(b, LS_FWD, a, head, head + 1, s));
    LS_TRY(pass(b, LS_BWD, a, head, head + 1, s));
    LS_TRY(pass(b, LS_BWD, a, 1, head, s));
    return pass(b, LS_BWD, a, 0, 1, s);
}

ls_status planner_fwd_and_bwd(planner_bench *b, double *sec)
{
    const int L = b->parts.model->n_unit - 2;
    stamps s = {0};
    LS_TRY(queue_fwd_and_bwd(b, &s));
    LS_TRY(read_stamps(b, &s));
    const double *t = s.at;
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
    const int L = b->parts.model->n_unit - 2, head = b->parts.model->n_unit - 1;
    stamps s = {0};
    LS_TRY(pass(b, LS_FWD, b->split, 0, head, &s));
    LS_TRY(pass(b, LS_BWD_IN, b->split, 1, head, &s));
    LS_TRY(pass(b, LS_BWD_W, b->split, 1, head, &s));
    LS_TRY(read_stamps(b, &s));
    sec[LS_TIME_BLOCK_IN] = (s.at[1] - s.at[0]) / L;
    sec[LS_TIME_BLOCK_W] = (s.at[2] - s.at[1]) / L;
    return LS_OK;
}

/* Approximate time of one pass of the small model. */
static double whole_pass(const double *sec)
{
    double sum = 0;
    for (int k = 0; k < LS_N_UNIT_TIME; k++)
        sum += sec[k] * (k >= LS_TIME_BLOCK_FWD && k <= LS_TIME_BLOCK_W ? PLANNER_LAYERS : 1);
    return sum;
}

/* ---- passes over memory ---- */

/* Elements of the parameters that this worker updates. */
static double n_own(const planner_bench *b)
{
    double n = 0;
    for (int u = 0; u < b->parts.model->n_unit; u++) n += (double)ls_strategy_own(b->parts.strategy, u).n;
    return n;
}

/* One update of every unit, with the same calls as the trainer. */
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
    const double n = n_own(b);
    stamps s = {0};
    LS_TRY(stamp(b, &s));
    for (int u = 0; u < m->n_unit; u++) {
        const ls_own o = ls_strategy_own(b->parts.strategy, u);
        LS_TRY(c->ops->sumsq(c, b->parts.strategy->norm, o.grad, o.n, LS_NORM_BLOCK));
    }
    LS_TRY(stamp(b, &s));
    LS_TRY(update(b));
    LS_TRY(stamp(b, &s));
    for (int u = 0; u < m->n_unit; u++) {
        const ls_own o = ls_strategy_own(b->parts.strategy, u);
        LS_TRY(c->ops->add(c, o.grad, o.grad, o.master, o.n));
    }
    LS_TRY(stamp(b, &s));
    LS_TRY(read_stamps(b, &s));
    const double *t = s.at;
    sec[T_SUMSQ] = (t[1] - t[0]) / n;
    sec[T_ADAMW] = (t[2] - t[1]) / n;
    sec[T_ADD] = (t[3] - t[2]) / n;
    return LS_OK;
}

/* ---- while others wait ---- */

/* AdamW of rank 0. */
static ls_status master(planner_bench *b, double *sec)
{
    const bool works = ls_comm_rank(b->comm) == 0;
    LS_TRY(ls_barrier(b->comm, LS_SITE));
    const double begin = ls_now();
    if (works) LS_TRY(update(b));
    LS_TRY(ls_compute_sync(&b->compute));
    sec[T_ALONE] = works ? (ls_now() - begin) / n_own(b) : 0;
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

/* ---- between steps of a GPU ---- */

/* Idle seconds of a GPU per step: from the last sum of squares, which the host waits for, to the update. (Later work is queued while the
 * update runs.) */
static ls_status gap(planner_bench *b, double sumsq, double *step)
{
    enum { STEPS = 6 };
    double idle = 0, squares;
    *step = 0;
    if (!b->compute.device) return LS_OK;
    for (int k = 0; k < STEPS; k++) {
        stamps units = {0}, s = {0};
        LS_TRY(queue_fwd_and_bwd(b, &units));
        LS_TRY(stamp(b, &s));
        LS_TRY(ls_strategy_sum_squares(b->parts.strategy, &squares));
        LS_TRY(stamp(b, &s));
        LS_TRY(update(b));
        LS_TRY(read_stamps(b, &s));
        if (k) idle += s.at[1] - s.at[0] - n_own(b) * sumsq; /* the first one warms up */
    }
    *step = idle > 0 ? idle / (STEPS - 1) : 0;
    return LS_OK;
}

/* ---- repetitions ---- */

/* x becomes its maximum over all workers, which `who` has. */
static ls_status largest(ls_comm *c, double *x, int *who)
{
    double all[PLANNER_WORKERS];
    LS_TRY(planner_gather(c, *x, all));
    *who = 0;
    for (int r = 1; r < ls_comm_size(c); r++)
        if (all[r] > all[*who]) *who = r;
    *x = all[*who];
    return LS_OK;
}

/* Workers synchronize at every sum, so the slowest one determines the step: in a repetition all use its times (n numbers). On a shared
 * machine workers are slow at different times, so a mean over workers would describe no real step. */
static ls_status slowest(ls_comm *c, double *sec, int n)
{
    double most = whole_pass(sec);
    int worst = 0;
    LS_TRY(largest(c, &most, &worst));
    return ls_broadcast(c, (ls_view){sec, n, LS_F64}, worst, LS_SITE, NULL);
}

/* Workers leave a barrier one after the other, which the first sum would include. In a step they come from a sum. */
static ls_status meet(planner_bench *shard)
{
    LS_TRY(ls_barrier(shard->comm, LS_SITE));
    return ls_walk(shard->parts.model, shard->parts.acts, &shard->mb, &shard->hooks, LS_FWD, 0, 1);
}

/* Results of one repetition. */
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
    r->own = whole_pass(r->sec);
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
    r->whole = whole_pass(r->sec);
    r->all = r->whole + whole_pass(r->shard);
    return LS_OK;
}

/* apart: total of the slowest worker relative to the sum of the slowest times of each repetition. beside: unit times of every second
 * worker relative to those while all compute. */
static ls_status sum_up(ls_comm *c, repetition *rep, int n, bool fastest, planner_times *out)
{
    qsort(rep, (size_t)n, sizeof *rep, ls_by_value);
    const int rows = ls_measure_rows(&rep[0].all, sizeof *rep / sizeof(double), n, fastest);
    double whole = 0, own = 0, pair[2] = {0}, sec[PLANNER_TIMED] = {0};
    *out = (planner_times){0};
    for (int i = 0; i < rows; i++) {
        whole += rep[i].whole;
        own += rep[i].own;
        pair[0] += rep[i].half;
        pair[1] += rep[i].together;
        for (int k = 0; k < PLANNER_TIMED; k++) sec[k] += rep[i].sec[k] / rows;
        for (int k = 0; k < LS_N_UNIT_TIME; k++) out->shard[k] += rep[i].shard[k] / rows;
    }
    int who;
    LS_TRY(largest(c, &own, &who));
    LS_TRY(planner_over_workers(c, pair, 2));
    memcpy(out->sec, sec, sizeof out->sec);
    out->pass = (ls_cluster_passes){.adamw = sec[T_ADAMW],
                                    .alone = sec[T_ALONE],
                                    .sumsq = sec[T_SUMSQ],
                                    .add = sec[T_ADD],
                                    .overlap = 1,
                                    .apart = own / whole,
                                    .beside = ls_comm_size(c) > 1 && pair[0] < pair[1] ? pair[0] / pair[1] : 1};
    return LS_OK;
}

ls_status planner_time_units(planner_bench *b, planner_bench *shard, double seconds, planner_times *out)
{
    repetition *rep = ls_alloc(PLANNER_REPS * sizeof *rep);
    ls_status st = rep ? LS_OK : ls_nomem(PLANNER_REPS * sizeof *rep, "repetitions");
    int n = 0;
    bool enough = false;
    /* the first one warms up; a GPU's libraries choose in the first, passes are recorded in the second */
    for (int k = 0; k < (b->compute.device ? 3 : 1) && st == LS_OK; k++) st = repeat(b, shard, &rep[0]);
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
    if (st == LS_OK) st = gap(b, out->pass.sumsq, &out->pass.step);
    out->repetition = each;
    ls_free(rep);
    return st;
}
