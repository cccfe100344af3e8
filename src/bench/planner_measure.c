/* planner_measure.c - workers are started, time their units, and leave what they found. */
#include "bench/planner_measure_impl.h"

#include "comm/launch.h"
#include "core/clock.h"
#include "core/cores.h"
#include "core/mem.h"
#include "core/rng.h"
#include "train/plan_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LAYERS 4

/* What rank 0 leaves for the parent, in memory that both see. */
typedef struct found {
    ls_cluster_units units[LS_MEASURE_MICRO];
    int n_units;
    ls_cluster_passes passes;
    ls_cluster_curve curve[LS_N_COLL];
    int n_curve;
    char words[400]; /* of a worker that failed */
} found;

typedef struct task {
    const ls_measure_opts *o;
    double seconds; /* of this number of workers */
    found *f;
} task;

/* One worker's small model. */
typedef struct bench {
    ls_comm *comm, *self;
    bool fastest;
    ls_train_config cfg;
    ls_compute compute;
    ls_stages stages;
    ls_run_parts parts;
    ls_acts *split; /* with a backward in two halves */
    int d_row;
    int32_t *ids, *target;
    ls_hooks hooks;
} bench;

/* ---- statistics ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int ls_measure_rows(const double *x, int n_column, int n, bool fastest)
{
    int k = n / 2 + 1;
    if (fastest) return (n + 9) / 10;
    while (k < n && x[k * n_column] <= 2 * x[n / 2 * n_column]) k++;
    return k;
}

double planner_mean(double *x, int n, bool fastest)
{
    double sum = 0;
    qsort(x, (size_t)n, sizeof *x, by_value);
    const int k = ls_measure_rows(x, 1, n, fastest);
    for (int i = 0; i < k; i++) sum += x[i];
    return sum / k;
}

ls_status planner_over_workers(ls_comm *c, double *x, int n)
{
    double all[64 * PLANNER_TIMED];
    const int W = ls_comm_size(c),
              per = 4096 / 8 / W < PLANNER_TIMED ? 1 : n; /* a gather of at most 4096 bytes at once */
    LS_ASSERT(n <= PLANNER_TIMED && W <= 64);
    for (int at = 0; at < n; at += per) {
        const int k = n - at < per ? n - at : per;
        LS_TRY(ls_all_gather(c, (ls_view){all, (int64_t)W * k, LS_F64}, (ls_view){x + at, k, LS_F64}, LS_SITE, NULL));
        for (int i = 0; i < k; i++) {
            double sum = 0;
            for (int r = 0; r < W; r++) sum += all[r * k + i];
            x[at + i] = sum / W;
        }
    }
    return LS_OK;
}

/* ---- the model ---- */

static ls_status acquire(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_acquire(((bench *)ctx)->parts.strategy, u, pass);
}

static void close_bench(bench *b)
{
    ls_acts_destroy(&b->split);
    ls_run_parts_fini(&b->parts);
    ls_comm_destroy(&b->self);
}

static ls_status open_bench(bench *b, const ls_measure_opts *o, int micro, ls_comm *comm, int threads)
{
    const int64_t R = (int64_t)micro * o->seq_len;
    *b = (bench){.comm = comm, .fastest = o->fastest, .parts.stages = &b->stages};
    b->cfg = (ls_train_config){.model = o->model,
                               .world_size = 1,
                               .seq_len = o->seq_len,
                               .micro_batch = micro,
                               .grad_accum = 1,
                               .global_batch = micro,
                               .compute = "cpu",
                               .strategy = "single",
                               .mesh = {.n = {1, 1, 1}, .world = 1},
                               .interleave = 1,
                               .bucket = 1,
                               .gather_bucket = 1,
                               .deterministic = true};
    if (b->cfg.model.n_layer > LAYERS) b->cfg.model.n_layer = LAYERS;
    ls_run_groups g = {0};
    ls_run_parts *p = &b->parts;
    LS_TRY(ls_comm_self(&b->self));
    g.dp = b->self;
    ls_status st = ls_compute_open(&b->compute, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, threads);
    if (st == LS_OK) st = ls_run_plan(&b->cfg, &b->compute, &g, 0, p);
    const ls_acts_opts two = {.B = micro, .T = o->seq_len, .train = true, .pipe = true, .split = true};
    if (st == LS_OK) st = ls_acts_plan(&b->split, p->model, &two, &p->plan);
    b->d_row = ls_plan_add(&p->plan, LS_PART_ACT, R * o->model.n_embd * 4, LS_PLAN_ALWAYS, "d x");
    if (st == LS_OK) st = ls_plan_layout(&p->plan);
    p->plan.n_copy = ls_comm_size(comm);
    if (st == LS_OK) st = ls_plan_alloc(&p->plan, p->plan.n_copy > 1);
    if (st == LS_OK && p->plan.n_copy > 1) { /* as the trainer does */
        void *memory = ls_comm_alloc(comm, (size_t)ls_plan_host_bytes(&p->plan));
        if (memory) st = ls_plan_take(&p->plan, memory);
        else st = ls_nomem(p->plan.total, "the memory plan");
    }
    if (st == LS_OK) {
        ls_strategy_bind(p->strategy, &p->plan);
        ls_acts_bind(b->split, p->model, &p->plan);
        ls_acts_bind(p->acts, p->model, &p->plan);
        b->split->da = ls_plan_at(&p->plan, b->d_row);
        ls_input_bind(&p->input, &p->plan);
        st = ls_input_open(&p->input, 0, &b->ids, &b->target);
        for (int64_t i = 0; i < R; i++) {
            b->ids[i] = (int32_t)(ls_rng_u64(1, (uint64_t)i) % (uint64_t)o->model.vocab_size);
            b->target[i] = (int32_t)(ls_rng_u64(2, (uint64_t)i) % (uint64_t)o->model.vocab_size);
        }
        ls_model_init(p->model, 1);
        ls_strategy_begin(p->strategy, 0);
        b->hooks = (ls_hooks){.ctx = b, .acquire = acquire};
    }
    return st;
}

static ls_micro micro_of(const bench *b)
{
    return (ls_micro){.ids = b->ids,
                      .target = b->target,
                      .B = b->cfg.micro_batch,
                      .T = b->cfg.seq_len,
                      .train = true,
                      .dloss = 1.0 / (double)(b->cfg.micro_batch * b->cfg.seq_len),
                      .drop_key = 7};
}

/* ---- units and passes ---- */

static ls_status fwd_and_bwd(bench *b, double *sec)
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

static ls_status two_halves(bench *b, double *sec)
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

/* One update of every unit, in calls as the trainer makes them. */
static ls_status update(bench *b)
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

static ls_status passes(bench *b, double *sec)
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

/* AdamW of rank 0 while the others wait. */
static ls_status master(bench *b, double *sec)
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

/* About what the small model takes once. */
static double whole_pass(const double *sec)
{
    double sum = 0;
    for (int k = 0; k < LS_N_UNIT_TIME; k++)
        sum += sec[k] * (k >= LS_TIME_BLOCK_FWD && k <= LS_TIME_BLOCK_W ? LAYERS : 1);
    return sum;
}

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

/* Workers meet at every sum, so a step takes what the slowest of them takes: in a repetition they all have that one's times. Where others use the
 * machine, too, each is slow at other times, and a mean of workers would be of a step that never was. The time of rank 0 alone becomes a mean. */
static ls_status slowest(ls_comm *c, double *sec)
{
    double most = whole_pass(sec), alone = sec[T_ALONE];
    int worst = 0;
    if (ls_comm_size(c) == 1) return LS_OK;
    LS_TRY(largest(c, &most, &worst));
    LS_TRY(ls_broadcast(c, (ls_view){sec, PLANNER_TIMED, LS_F64}, worst, LS_SITE, NULL));
    LS_TRY(planner_over_workers(c, &alone, 1));
    sec[T_ALONE] = alone;
    return LS_OK;
}

/* apart: the worker that is slowest on the whole, of the sum of the slowest of each repetition. */
static ls_status time_units(bench *b, double seconds, double *out, double *apart)
{
    /* a row: the slowest worker's time, this one's, the slowest's in parts */
    enum { WHOLE, OWN, TIMES, ROW = TIMES + PLANNER_TIMED };
    double(*rep)[ROW] = ls_alloc(PLANNER_REPS * sizeof *rep);
    ls_status st = rep ? LS_OK : ls_nomem(PLANNER_REPS * sizeof *rep, "repetitions");
    double sec[PLANNER_TIMED], begin = 0;
    int n = -1, enough = 0; /* the first one warms up */
    for (; st == LS_OK && n < PLANNER_REPS && !enough; n++) {
        st = ls_barrier(b->comm, LS_SITE);
        if (st == LS_OK) st = fwd_and_bwd(b, sec);
        if (st == LS_OK) st = passes(b, sec);
        if (st == LS_OK) st = two_halves(b, sec);
        if (st == LS_OK) st = master(b, sec);
        if (st == LS_OK && n >= 0) rep[n][OWN] = whole_pass(sec);
        if (st == LS_OK) st = slowest(b->comm, sec);
        if (st == LS_OK && n >= 0) {
            rep[n][WHOLE] = whole_pass(sec);
            memcpy(rep[n] + TIMES, sec, sizeof sec);
        }
        if (n < 0) begin = ls_now();
        if (st == LS_OK) st = ls_agree(b->comm, n >= 2 && ls_now() - begin > seconds, LS_SITE, &enough);
    }
    if (st == LS_OK) {
        qsort(rep, (size_t)n, sizeof *rep, by_value);
        const int rows = ls_measure_rows(rep[0], ROW, n, b->fastest);
        double whole = 0, own = 0;
        memset(out, 0, sizeof sec);
        for (int i = 0; i < rows; i++) {
            whole += rep[i][WHOLE];
            own += rep[i][OWN];
            for (int k = 0; k < PLANNER_TIMED; k++) out[k] += rep[i][TIMES + k] / rows;
        }
        int who;
        st = largest(b->comm, &own, &who);
        *apart = own / whole;
    }
    ls_free(rep);
    return st;
}

/* ---- overlap ---- */

/* Share of the collectives' time that is gained by computing meanwhile; below 0 where they disturb each other. */
static ls_status time_overlap(bench *b, planner_buffers *buf, int64_t nbytes, double seconds, double *overlap)
{
    enum { TRIES = 9 };
    double alone[TRIES], comm[TRIES], both[TRIES], sec[PLANNER_TIMED], begin = ls_now();
    int n = 0, many = 1, enough = 0;
    if (nbytes > 16 << 20) nbytes = 16 << 20;
    for (; n < TRIES && !enough; n++) {
        ls_ticket t = 0;
        LS_TRY(ls_barrier(b->comm, LS_SITE));
        double t0 = ls_now();
        LS_TRY(fwd_and_bwd(b, sec));
        alone[n] = ls_now() - t0;
        LS_TRY(ls_barrier(b->comm, LS_SITE));
        t0 = ls_now();
        for (int k = 0; k < many; k++) LS_TRY(planner_collective(b->comm, LS_COLL_ALL_REDUCE, buf, nbytes, &t));
        LS_TRY(ls_wait(b->comm, t));
        comm[n] = ls_now() - t0;
        if (n == 0) { /* half as much to send as to compute; the same number everywhere */
            const double want = 0.5 * alone[0] / comm[0];
            LS_TRY(ls_agree(b->comm, want < 1 ? 1 : want > 24 ? 24 : (int)want, LS_SITE, &many));
            comm[0] *= many;
        }
        LS_TRY(ls_barrier(b->comm, LS_SITE));
        t0 = ls_now();
        for (int k = 0; k < many; k++) LS_TRY(planner_collective(b->comm, LS_COLL_ALL_REDUCE, buf, nbytes, &t));
        LS_TRY(fwd_and_bwd(b, sec));
        LS_TRY(ls_wait(b->comm, t));
        both[n] = ls_now() - t0;
        LS_TRY(ls_agree(b->comm, n >= 2 && ls_now() - begin > seconds, LS_SITE, &enough));
    }
    double x[3] = {planner_mean(alone, n, b->fastest), planner_mean(comm, n, b->fastest),
                   planner_mean(both, n, b->fastest)};
    LS_TRY(planner_over_workers(b->comm, x, 3));
    const double gained = (x[0] + x[1] - x[2]) / (x[1] < x[0] ? x[1] : x[0]);
    *overlap = gained < -2 ? -2 : gained > 1 ? 1 : gained;
    return LS_OK;
}

/* ---- a worker ---- */

static ls_status measure(const task *t, ls_comm *comm, int threads)
{
    static const ls_coll kind[] = {LS_COLL_ALL_REDUCE, LS_COLL_REDUCE_SCATTER, LS_COLL_ALL_GATHER,
                                   LS_COLL_BROADCAST,  LS_COLL_REDUCE,         LS_COLL_SEND};
    enum { N = sizeof kind / sizeof kind[0] };
    const ls_measure_opts *o = t->o;
    const int W = ls_comm_size(comm);
    found f = {0};
    double sec[PLANNER_TIMED];
    const double budget = t->seconds * (W > 1 ? 0.5 : 1) / o->n_micro;
    planner_buffers buf = {0};
    if (W > 1) {
        buf.whole = ls_comm_alloc(comm, PLANNER_BUFFER);
        buf.part = ls_comm_alloc(comm, PLANNER_BUFFER / (size_t)W);
        if (!buf.whole || !buf.part) return ls_nomem(PLANNER_BUFFER, "the buffers of collectives");
        for (int64_t i = 0; i < PLANNER_BUFFER / 4; i++) ((float *)(void *)buf.whole)[i] = 1e-6F;
        memset(buf.part, 0, PLANNER_BUFFER / (size_t)W);
    }
    f.passes = (ls_cluster_passes){.workers = W, .overlap = 1, .apart = 1};
    for (int i = 0; i < o->n_micro; i++) {
        bench b;
        ls_status st = open_bench(&b, o, o->micro[i], comm, threads);
        if (st == LS_OK) st = time_units(&b, budget, sec, &f.passes.apart);
        if (st == LS_OK && W > 1 && (i == o->n_micro - 1 || whole_pass(sec) > budget))
            st = time_overlap(&b, &buf, o->bucket * 4, 0.2 * t->seconds, &f.passes.overlap);
        close_bench(&b);
        LS_TRY(st);
        ls_cluster_units *u = &f.units[f.n_units++];
        *u = (ls_cluster_units){.workers = W,
                                .threads = threads,
                                .n_embd = o->model.n_embd,
                                .n_head = o->model.n_head,
                                .vocab = o->model.vocab_size,
                                .dropout = o->model.attn_pdrop > 0,
                                .B = o->micro[i],
                                .T = o->seq_len};
        memcpy(u->sec, sec, sizeof u->sec);
        f.passes.adamw = sec[T_ADAMW];
        f.passes.alone = sec[T_ALONE] * W; /* a mean over workers, of which one worked */
        f.passes.sumsq = sec[T_SUMSQ];
        f.passes.add = sec[T_ADD];
        if (whole_pass(sec) > budget) break; /* a larger one would take too long: it is scaled by its work */
    }
    for (int k = 0; k < N && W > 1; k++)
        LS_TRY(planner_curve(comm, kind[k], &buf, 0.3 * t->seconds / N, o->fastest, &f.curve[f.n_curve++]));
    if (ls_comm_rank(comm) == 0) *t->f = f;
    return LS_OK;
}

static ls_status body(void *ctx, ls_comm *comm, int n_core)
{
    return measure(ctx, comm, n_core);
}

static void report(void *ctx, int rank, ls_status st)
{
    found *f = ((task *)ctx)->f;
    if (st == LS_OK || st == LS_E_COMM || st == LS_E_STOPPED) return;
    snprintf(f->words, sizeof f->words, "worker %d: %.360s", rank, ls_err_words());
}

/* ---- all of them ---- */

static int64_t memory_bytes(void)
{
    int64_t kib = -1;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "MemAvailable:", 13)) kib = strtoll(line + 13, NULL, 10);
    if (f) fclose(f);
    return kib > 0 ? kib * 1024 : (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

static ls_status keep(ls_cluster *out, const found *f)
{
    for (int i = 0; i < f->n_units; i++) LS_TRY(ls_cluster_add_units(out, &f->units[i]));
    for (int i = 0; i < f->n_curve; i++) LS_TRY(ls_cluster_add_curve(out, &f->curve[i]));
    return ls_cluster_add_passes(out, &f->passes);
}

static void describe(ls_cluster *c, const ls_measure_opts *o, int cores)
{
    char when[24], host[48] = "this machine", words[LS_COMPUTE_WORDS] = "";
    ls_compute compute;
    (void)gethostname(host, sizeof host - 1);
    ls_utc_stamp(when);
    if (ls_compute_open(&compute, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, cores) == LS_OK)
        ls_compute_describe(&compute, words);
    snprintf(c->name, sizeof c->name, "%s", host);
    snprintf(c->source, sizeof c->source, "measured %s: %d cores, %.200s; units of %s with %d ids", when, cores, words,
             o->model.name, o->seq_len);
}

ls_status ls_planner_measure(const ls_measure_opts *given, ls_cluster *out)
{
    ls_measure_opts o = *given;
    const int cores = ls_cores_usable();
    if (!o.n_micro) {
        o.micro[o.n_micro++] = 1;
        o.micro[o.n_micro++] = 4;
    }
    for (int w = 1; !given->n_workers && w <= cores && o.n_workers < 8; w *= 2) o.workers[o.n_workers++] = w;
    if (o.seconds <= 0) o.seconds = 20;
    if (o.bucket <= 0) o.bucket = 1 << 20;
    *out = (ls_cluster){
        .cpu = true, .hosts = 1, .devices = cores, .memory = memory_bytes(), .wire_bytes = 4, .update_bytes = 28};
    describe(out, &o, cores);
    found *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f == MAP_FAILED) return ls_nomem(sizeof *f, "the measurements");
    ls_status st = LS_OK;
    for (int i = 0; i < o.n_workers && st == LS_OK; i++) {
        char text[96];
        snprintf(text, sizeof text, "measuring %d worker%s …", o.workers[i], o.workers[i] == 1 ? "" : "s");
        if (o.say) o.say(o.ctx, text);
        task t = {.o = &o, .seconds = o.seconds / o.n_workers, .f = f};
        *f = (found){0};
        st = ls_launch_local(&(ls_launch){.n = o.workers[i], .pin = true, .body = body, .report = report, .ctx = &t});
        if (st != LS_OK && f->words[0]) st = ls_fail(st, "plan --measure, %s", f->words);
        if (st == LS_OK) st = keep(out, f);
    }
    munmap(f, sizeof *f);
    if (st != LS_OK) ls_cluster_fini(out);
    return st;
}
