/* planner_measure.c - workers are started, time their units, and leave what they found. */
#include "bench/planner_measure_impl.h"

#include "comm/launch.h"
#include "core/clock.h"
#include "core/cores.h"
#include "core/mem.h"
#include "core/stat.h"
#include "core/stop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What rank 0 leaves for the parent, in memory that both see. */
typedef struct found {
    ls_cluster_units units[2 * LS_MEASURE_MICRO]; /* whole layers, shards of them */
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

/* ---- statistics ---- */

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
    qsort(x, (size_t)n, sizeof *x, ls_by_value);
    const int k = ls_measure_rows(x, 1, n, fastest);
    for (int i = 0; i < k; i++) sum += x[i];
    return sum / k;
}

ls_status planner_enough(ls_comm *c, bool mine, bool *enough)
{
    int most = 0;
    LS_TRY(ls_agree(c, ls_stop_requested() ? 2 : mine, LS_SITE, &most));
    *enough = most > 0;
    return most == 2 ? ls_fail(LS_E_STOPPED, "plan --measure was asked to stop; nothing is written") : LS_OK;
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

/* ---- overlap ---- */

/* Share of the collectives' time that is gained by computing meanwhile; below 0 where they disturb each other. */
static ls_status time_overlap(planner_bench *b, planner_buffers *buf, int64_t nbytes, double seconds, double *overlap)
{
    enum { TRIES = 9 };
    double alone[TRIES], comm[TRIES], both[TRIES], sec[PLANNER_TIMED], begin = ls_now();
    int n = 0, many = 1;
    bool enough = false;
    if (nbytes > 16 << 20) nbytes = 16 << 20;
    for (; n < TRIES && !enough; n++) {
        ls_ticket t = 0;
        LS_TRY(ls_barrier(b->comm, LS_SITE));
        double t0 = ls_now();
        LS_TRY(planner_fwd_and_bwd(b, sec));
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
        LS_TRY(planner_fwd_and_bwd(b, sec));
        LS_TRY(ls_wait(b->comm, t));
        both[n] = ls_now() - t0;
        const double spent = ls_now() - begin;
        LS_TRY(planner_enough(b->comm, spent > seconds && (n >= 2 || spent > 2 * seconds), &enough));
    }
    double x[3] = {planner_mean(alone, n, b->fastest), planner_mean(comm, n, b->fastest),
                   planner_mean(both, n, b->fastest)};
    LS_TRY(planner_over_workers(b->comm, x, 3));
    const double gained = (x[0] + x[1] - x[2]) / (x[1] < x[0] ? x[1] : x[0]);
    *overlap = gained < -2 ? -2 : gained > 1 ? 1 : gained;
    return LS_OK;
}

/* ---- a worker ---- */

static void keep_units(const task *t, int W, int threads, int micro, int shards, const double *sec, found *f)
{
    const ls_measure_opts *o = t->o;
    ls_cluster_units *u = &f->units[f->n_units++];
    *u = (ls_cluster_units){.workers = W,
                            .threads = threads,
                            .tp = shards,
                            .n_embd = o->model.n_embd,
                            .n_head = o->model.n_head,
                            .vocab = o->model.vocab_size,
                            .dropout = o->model.attn_pdrop > 0,
                            .B = micro,
                            .T = o->seq_len};
    memcpy(u->sec, sec, sizeof u->sec);
}

/* Units of the i-th micro-batch, and what else its model can tell. last: a larger one would take too long, and is scaled by its work. */
static ls_status units(const task *t, ls_comm *comm, int threads, int i, double budget, planner_buffers *buf, found *f,
                       bool *last)
{
    const ls_measure_opts *o = t->o;
    const int W = ls_comm_size(comm), T = PLANNER_SHARDS, micro = o->micro[i];
    const bool cut = W % T == 0 && ls_shard_check(&o->model, T) == LS_OK;
    planner_bench b, shard = {0};
    planner_times x = {0};
    ls_err_clear();
    ls_status st = planner_bench_open(&b, o, micro, 1, comm, threads);
    if (st == LS_OK && cut) st = planner_bench_open(&shard, o, micro, T, comm, threads);
    if (st == LS_OK) st = planner_time_units(&b, cut ? &shard : NULL, budget, &x);
    *last = i + 1 == o->n_micro || x.repetition * o->micro[i + 1] / micro > budget;
    if (st == LS_OK && W > 1 && *last) st = time_overlap(&b, buf, o->bucket * 4, 0.15 * t->seconds, &f->passes.overlap);
    planner_bench_close(&shard);
    planner_bench_close(&b);
    LS_TRY(st);
    keep_units(t, W, threads, micro, 1, x.sec, f);
    if (cut) keep_units(t, W, threads, micro, T, x.shard, f);
    f->passes.adamw = x.sec[T_ADAMW];
    f->passes.alone = x.sec[T_ALONE];
    f->passes.sumsq = x.sec[T_SUMSQ];
    f->passes.add = x.sec[T_ADD];
    f->passes.apart = x.apart;
    f->passes.beside = x.beside;
    return LS_OK;
}

static ls_status measure(const task *t, ls_comm *comm, int threads)
{
    static const ls_coll kind[] = {LS_COLL_ALL_REDUCE, LS_COLL_REDUCE_SCATTER, LS_COLL_ALL_GATHER,
                                   LS_COLL_BROADCAST,  LS_COLL_REDUCE,         LS_COLL_SEND};
    enum { N = sizeof kind / sizeof kind[0] };
    const ls_measure_opts *o = t->o;
    const int W = ls_comm_size(comm);
    found f = {0};
    const double budget = t->seconds * (W > 1 ? 0.7 : 1) / o->n_micro;
    planner_buffers buf = {0};
    if (W > 1) {
        buf.whole = ls_comm_alloc(comm, PLANNER_BUFFER);
        buf.part = ls_comm_alloc(comm, PLANNER_BUFFER / (size_t)W);
        if (!buf.whole || !buf.part) return ls_nomem(PLANNER_BUFFER, "the buffers of collectives");
        for (int64_t i = 0; i < PLANNER_BUFFER / 4; i++) ((float *)(void *)buf.whole)[i] = 1e-6F;
        memset(buf.part, 0, PLANNER_BUFFER / (size_t)W);
    }
    f.passes = (ls_cluster_passes){.workers = W, .overlap = 1, .apart = 1, .beside = 1};
    bool last = false;
    for (int i = 0; !last; i++) LS_TRY(units(t, comm, threads, i, budget, &buf, &f, &last));
    for (int k = 0; k < N && W > 1; k++)
        LS_TRY(planner_curve(comm, kind[k], &buf, 0.15 * t->seconds / N, o->fastest, &f.curve[f.n_curve++]));
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
