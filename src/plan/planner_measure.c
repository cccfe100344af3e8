/* planner_measure.c - starts workers, which time their units and collectives, and collects the results. */
#include "plan/planner_measure_impl.h"

#include "comm/launch.h"
#include "comm/start.h"
#include "core/clock.h"
#include "core/cores.h"
#include "core/mem.h"
#include "core/stat.h"
#include "core/stop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUFFER (64LL << 20) /* bytes that collectives walk through */
#define SHARDS 2            /* of a layer that is measured */

/* Results of rank 0 for the parent process, in shared memory. */
typedef struct found {
    ls_cluster_units units[2 * LS_MEASURE_MICRO]; /* whole layers, shards of them */
    int n_units;
    ls_cluster_passes passes;
    ls_cluster_curve curve[LS_N_COLL];
    int n_curve;
    ls_device_info gpu; /* name and numbers of a GPU, ... */
    char compute[LS_COMPUTE_WORDS], said[240];
    ls_cluster_rates rates; /* ... and what it reaches with one worker */
    char words[400];        /* of a worker that failed */
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

/* Sorts x and returns the mean of the values that are used (ls_measure_rows). */
static double mean_of(double *x, int n, bool fastest)
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
    return most == 2 ? ls_fail(LS_E_STOPPED, "plan --measure was stopped; nothing was written") : LS_OK;
}

ls_status planner_gather(ls_comm *c, double mine, double all[PLANNER_WORKERS])
{
    const int W = ls_comm_size(c);
    LS_ASSERT(W <= PLANNER_WORKERS);
    return ls_all_gather(c, (ls_view){all, W, LS_F64}, (ls_view){&mine, 1, LS_F64}, LS_SITE, NULL);
}

ls_status planner_over_workers(ls_comm *c, double *x, int n)
{
    double all[PLANNER_WORKERS];
    const int W = ls_comm_size(c);
    for (int i = 0; i < n; i++) {
        double sum = 0;
        LS_TRY(planner_gather(c, x[i], all));
        for (int r = 0; r < W; r++) sum += all[r];
        x[i] = sum / W;
    }
    return LS_OK;
}

/* ---- collectives ---- */

/* Memory that collectives use piece by piece, so that it is not in the cache. */
typedef struct buffers {
    const ls_compute *compute;
    void *whole, *part;
    int64_t at; /* bytes: the next piece of `whole` */
} buffers;

static ls_status collective(ls_comm *c, ls_coll kind, buffers *b, int64_t nbytes, ls_ticket *t)
{
    const int64_t W = ls_comm_size(c), r = ls_comm_rank(c), part = nbytes / 4 / W, n = part * W;
    if (b->at + nbytes > BUFFER) b->at = 0;
    const ls_view all = {(char *)b->whole + b->at, n, LS_F32};
    b->at += nbytes;
    switch (kind) {
    case LS_COLL_ALL_REDUCE: return ls_all_reduce(c, all, LS_SITE, t);
    case LS_COLL_REDUCE_SCATTER: return ls_reduce_scatter(c, (ls_view){b->part, part, LS_F32}, all, LS_SITE, t);
    case LS_COLL_ALL_GATHER: /* from elsewhere, as zero3's: a worker's own part is copied, too */
        return ls_all_gather(c, all, (ls_view){b->part, part, LS_F32}, LS_SITE, t);
    case LS_COLL_BROADCAST: return ls_broadcast(c, all, 0, LS_SITE, t);
    case LS_COLL_REDUCE: return ls_reduce(c, all, 0, LS_SITE, t);
    default: break;
    }
    if (r % 2 == 0) return r + 1 < W ? ls_send(c, all, (int)r + 1, LS_SITE, t) : LS_OK;
    return ls_recv(c, all, (int)r - 1, LS_SITE, t);
}

/* A message as in a pipeline, where the receiver has waited long enough to sleep. Seconds from the send to the end of the receive. */
static ls_status one_message(ls_comm *c, buffers *b, int64_t nbytes, double *sec)
{
    const int W = ls_comm_size(c), r = ls_comm_rank(c);
    double mine = 0, all[PLANNER_WORKERS];
    LS_TRY(ls_barrier(c, LS_SITE));
    for (double begin = ls_now(); r % 2 == 0 && ls_now() - begin < 500e-6;) {}
    if (r % 2 == 0) mine = ls_now();
    LS_TRY(collective(c, LS_COLL_SEND, b, nbytes, NULL));
    LS_TRY(ls_compute_sync(b->compute));
    if (r % 2) mine = ls_now();
    LS_TRY(planner_gather(c, mine, all));
    *sec = 0;
    const int pairs = W / 2;
    for (int k = 0; k + 1 < W; k += 2) *sec += (all[k + 1] - all[k]) / pairs;
    return LS_OK;
}

static ls_status time_curve(ls_comm *c, ls_coll kind, buffers *b, double seconds, bool fastest, ls_cluster_curve *v)
{
    static const int64_t size[] = {512, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20};
    enum { N = sizeof size / sizeof size[0] };
    *v = (ls_cluster_curve){.kind = kind, .workers = ls_comm_size(c)};
    for (int i = 0; i < N; i++) {
        double rep[PLANNER_REPS], begin = ls_now();
        int n = -1;
        bool enough = false;
        for (; n < PLANNER_REPS && !enough; n++) {
            double sec;
            LS_TRY(ls_barrier(c, LS_SITE));
            const double t = ls_now();
            if (kind == LS_COLL_SEND) {
                LS_TRY(one_message(c, b, size[i], &sec));
            } else {
                LS_TRY(collective(c, kind, b, size[i], NULL));
                LS_TRY(ls_compute_sync(b->compute)); /* a GPU's queue waits, not this thread */
                sec = ls_now() - t;
            }
            if (n >= 0) rep[n] = sec;
            LS_TRY(planner_enough(c, n >= 4 && ls_now() - begin > seconds / N, &enough));
        }
        v->bytes[i] = (double)size[i];
        v->sec[i] = mean_of(rep, n, fastest);
        LS_TRY(planner_over_workers(c, &v->sec[i], 1));
    }
    v->n = N;
    return LS_OK;
}

/* ---- overlap ---- */

/* Seconds of forward and backward (compute) and of `many` all_reduces, at the same time if both. */
static ls_status run_both(planner_bench *b, bool compute, buffers *buf, int many, int64_t nbytes, double *sec)
{
    double units[PLANNER_TIMED];
    ls_ticket t = 0;
    LS_TRY(ls_barrier(b->comm, LS_SITE));
    const double begin = ls_now();
    for (int k = 0; k < many; k++) LS_TRY(collective(b->comm, LS_COLL_ALL_REDUCE, buf, nbytes, &t));
    if (compute) LS_TRY(planner_fwd_and_bwd(b, units));
    if (many) LS_TRY(ls_wait(b->comm, t));
    LS_TRY(ls_compute_sync(&b->compute));
    *sec = ls_now() - begin;
    return LS_OK;
}

/* Fraction of the time of the collectives that overlap saves; negative if they slow each other down. */
static ls_status time_overlap(planner_bench *b, buffers *buf, int64_t nbytes, double seconds, double *overlap)
{
    enum { TRIES = 9 };
    double alone[TRIES], comm[TRIES], both[TRIES], begin = ls_now();
    int n = 0, many = 1;
    bool enough = false;
    if (nbytes > 16 << 20) nbytes = 16 << 20;
    for (; n < TRIES && !enough; n++) {
        LS_TRY(run_both(b, true, buf, 0, nbytes, &alone[n]));
        LS_TRY(run_both(b, false, buf, many, nbytes, &comm[n]));
        if (n == 0) { /* half as much to send as to compute; the same number everywhere */
            const double want = 0.5 * alone[0] / comm[0];
            LS_TRY(ls_agree(b->comm, want < 1 ? 1 : want > 24 ? 24 : (int)want, LS_SITE, &many));
            comm[0] *= many;
        }
        LS_TRY(run_both(b, true, buf, many, nbytes, &both[n]));
        const double spent = ls_now() - begin;
        LS_TRY(planner_enough(b->comm, spent > seconds && (n >= 2 || spent > 2 * seconds), &enough));
    }
    double x[3] = {mean_of(alone, n, b->fastest), mean_of(comm, n, b->fastest), mean_of(both, n, b->fastest)};
    LS_TRY(planner_over_workers(b->comm, x, 3));
    *overlap = fmax(-2, fmin(1, (x[0] + x[1] - x[2]) / fmin(x[0], x[1])));
    return LS_OK;
}

/* ---- a worker ---- */

static void keep_units(found *f, const ls_cluster_units *shape, int shards, const double *sec)
{
    ls_cluster_units *u = &f->units[f->n_units++];
    *u = *shape;
    u->tp = shards;
    memcpy(u->sec, sec, sizeof u->sec);
}

/* Measures units with the i-th micro-batch size and what its model also gives. last: larger sizes would take too long and are extrapolated. */
static ls_status units(const task *t, ls_comm *comm, const ls_compute *compute, int i, double budget, buffers *buf,
                       found *f, bool *last)
{
    const ls_measure_opts *o = t->o;
    const int W = ls_comm_size(comm), T = SHARDS, micro = o->micro[i];
    const bool cut = W % T == 0 && ls_shard_check(&o->model, T) == LS_OK;
    planner_bench b, shard = {0};
    planner_times x = {0};
    ls_err_clear();
    ls_status st = planner_bench_open(&b, o, micro, 1, comm, compute);
    if (st == LS_OK && cut) st = planner_bench_open(&shard, o, micro, T, comm, compute);
    if (st == LS_OK) st = planner_time_units(&b, cut ? &shard : NULL, budget, &x);
    *last = i + 1 == o->n_micro || x.repetition * o->micro[i + 1] / micro > budget;
    if (st == LS_OK && W > 1 && *last) st = time_overlap(&b, buf, o->bucket * 4, 0.15 * t->seconds, &x.pass.overlap);
    planner_bench_close(&shard);
    planner_bench_close(&b);
    LS_TRY(st);
    ls_cluster_units shape = {.workers = W,
                              .threads = compute->n_thread,
                              .n_embd = o->model.n_embd,
                              .n_head = o->model.n_head,
                              .vocab = o->model.vocab_size,
                              .dropout = o->model.attn_pdrop > 0,
                              .dtype = o->dtype,
                              .B = micro,
                              .T = o->seq_len};
    if (!o->cuda) ls_compute_kernel(ls_compute_describe(compute, (char[LS_COMPUTE_WORDS]){0}), shape.kernel);
    keep_units(f, &shape, 1, x.sec);
    if (cut) keep_units(f, &shape, T, x.shard);
    f->passes = x.pass;
    f->passes.workers = W;
    f->passes.dtype = o->dtype;
    return LS_OK;
}

/* Buffers of collectives, in host or GPU memory. */
static ls_status take_buffers(ls_comm *comm, const ls_compute *compute, buffers *buf)
{
    const size_t part = BUFFER / (size_t)ls_comm_size(comm);
    const ls_device *d = compute->device;
    buf->compute = compute;
    if (d) { /* zeroed */
        LS_TRY(d->alloc(d->ctx, BUFFER, &buf->whole));
        return d->alloc(d->ctx, part, &buf->part);
    }
    buf->whole = ls_comm_alloc(comm, BUFFER);
    buf->part = ls_comm_alloc(comm, part);
    if (!buf->whole || !buf->part) return ls_nomem(BUFFER, "the buffers of the collectives");
    for (int64_t i = 0; i < BUFFER / 4; i++) ((float *)buf->whole)[i] = 1e-6F;
    memset(buf->part, 0, part);
    return LS_OK;
}

static void give_buffers(const ls_compute *compute, buffers *buf)
{
    const ls_device *d = compute->device;
    if (!d) return; /* the communicator's */
    (void)d->sync(d->ctx);
    if (buf->whole) d->release(d->ctx, buf->whole);
    if (buf->part) d->release(d->ctx, buf->part);
}

static ls_status measure(const task *t, ls_comm *comm, ls_compute *compute, buffers *buf, found *f)
{
    static const ls_coll kind[] = {LS_COLL_ALL_REDUCE, LS_COLL_REDUCE_SCATTER, LS_COLL_ALL_GATHER,
                                   LS_COLL_BROADCAST,  LS_COLL_REDUCE,         LS_COLL_SEND};
    enum { N = sizeof kind / sizeof kind[0] };
    const ls_measure_opts *o = t->o;
    const int W = ls_comm_size(comm);
    const double budget = t->seconds * (o->cuda ? 0.65 : W > 1 ? 0.7 : 1) / o->n_micro;
    if (W > 1) LS_TRY(take_buffers(comm, compute, buf));
    bool last = false;
    for (int i = 0; !last; i++) LS_TRY(units(t, comm, compute, i, budget, buf, f, &last));
    for (int k = 0; k < N && W > 1; k++)
        LS_TRY(time_curve(comm, kind[k], buf, 0.15 * t->seconds / N, o->fastest, &f->curve[f->n_curve++]));
    if (W == 1 && o->cuda) LS_TRY(planner_time_rates(compute, 0.2 * t->seconds, &f->rates));
    if (o->cuda) LS_TRY(planner_time_offload(compute, comm, 0.05 * t->seconds, &f->passes));
    return LS_OK;
}

/* The worker opens its GPU, and the communicator uses GPU memory, as in training. */
static ls_status join_device(const ls_measure_opts *o, ls_comm *comm, ls_compute *compute, ls_comm **with, found *f)
{
    const ls_device *d = compute->device;
    ls_comm *boot = NULL;
    ls_str said = {0};
    LS_TRY(d->info(d->ctx, &f->gpu));
    ls_compute_describe(compute, f->compute);
    LS_TRY(ls_comm_split(comm, 0, ls_comm_rank(comm), &boot));
    ls_status st = ls_comm_for_device(boot, d, "auto", !o->no_deterministic, with, &said);
    if (st != LS_OK) ls_comm_destroy(&boot);
    if (st == LS_OK && ls_comm_size(comm) > 1)
        snprintf(f->said, sizeof f->said, "%s%s%.150s", ls_comm_name(*with), said.data && *said.data ? ": " : "",
                 said.data ? said.data : "");
    ls_str_fini(&said);
    return st;
}

static ls_status body(void *ctx, ls_comm *comm, int n_core)
{
    const task *t = ctx;
    const ls_measure_opts *o = t->o;
    const ls_compute_open_opts opts = {.dtype = o->dtype,
                                       .device = o->device,
                                       .local_rank = ls_comm_where(comm).local_rank,
                                       .deterministic = !o->no_deterministic};
    ls_compute compute;
    ls_comm *with = NULL;
    buffers buf = {0};
    found *f = ls_alloc(sizeof *f);
    if (!f) return ls_nomem(sizeof *f, "the measurements");
    ls_status st = ls_compute_open(&compute, o->cuda ? "cuda" : "cpu", &opts, n_core);
    if (st == LS_OK) {
        if (o->cuda) st = join_device(o, comm, &compute, &with, f);
        if (st == LS_OK) st = measure(t, with ? with : comm, &compute, &buf, f);
        give_buffers(&compute, &buf);
        if (st == LS_OK && ls_comm_rank(comm) == 0) *t->f = *f;
        ls_comm_destroy(&with);
        ls_compute_close(&compute);
    }
    ls_free(f);
    return st;
}

static void report(void *ctx, int rank, ls_status st)
{
    found *f = ((task *)ctx)->f;
    if (st == LS_OK || st == LS_E_COMM || st == LS_E_STOPPED) return;
    snprintf(f->words, sizeof f->words, "worker %d: %.360s", rank, ls_err_words());
}

/* ---- all workers ---- */

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

static ls_status describe_cpu(ls_cluster *c, const ls_measure_opts *o, int cores)
{
    char when[24], words[LS_COMPUTE_WORDS] = "";
    ls_compute compute;
    ls_utc_stamp(when);
    LS_TRY(ls_compute_open(&compute, "cpu", &(ls_compute_open_opts){.dtype = o->dtype}, cores));
    ls_compute_describe(&compute, words);
    snprintf(c->source, sizeof c->source, "measured %s: %d cores, %.200s; units of %s with %d tokens", when, cores,
             words, o->model.name, o->seq_len);
    return LS_OK;
}

/* Launch overhead: the time of the shortest pass (forward of embed with the smallest micro-batch) minus its memory traffic. */
static double overhead_of(const ls_cluster *c, const found *f)
{
    const ls_cluster_units *u = &f->units[0];
    if (!f->n_units || c->bandwidth <= 0) return 0;
    const double bytes = 2.0 * (double)(u->B * u->T) * u->n_embd * (double)ls_dtype_nbytes(u->dtype);
    return fmax(0, u->sec[LS_TIME_EMBED_FWD] - bytes / c->bandwidth);
}

/* Describes the GPU of the first worker. Peak and power come from the data sheet if a preset has its name. If there are more workers than
 * GPUs, they share GPUs and their memory. */
static void describe_gpu(ls_cluster *c, const ls_measure_opts *o, const found *f, int most)
{
    char when[24], shared[64] = "", like[112] = "";
    ls_cluster sheet;
    const int n = f->gpu.count > 0 ? f->gpu.count : 1, each = (most + n - 1) / n;
    ls_utc_stamp(when);
    c->devices = most > n ? most : n;
    c->memory = f->gpu.total / each;
    c->rates[ls_precision_index(o->dtype)] = f->rates;
    if (!o->no_deterministic) c->rates[ls_precision_index(o->dtype)].ordered = f->rates.attention;
    c->bandwidth = (c->update_bytes + (o->dtype == LS_F32 ? 0.0 : (double)ls_dtype_nbytes(o->dtype))) / f->passes.adamw;
    c->ramp = f->rates.matmul > 0 ? 0.25 * 65536 * f->gpu.multiprocessors / f->rates.matmul : 0; /* planner_presets.c */
    c->unit_overhead = overhead_of(c, f);
    c->step_overhead = f->passes.step;
    c->overlap = 1;
    if (each > 1) snprintf(shared, sizeof shared, ", up to %d workers share a GPU", each);
    if (ls_cluster_preset_of(f->gpu.name, &sheet)) {
        for (int k = 0; k < LS_N_PRECISION; k++) c->rates[k].peak = sheet.rates[k].peak;
        c->power = sheet.power;
        snprintf(like, sizeof like, "; peaks and power: data sheet (%s)", sheet.name);
    }
    snprintf(c->source, sizeof c->source, "measured %s: %d x %.60s%s, %s%s, %.200s; units of %s with %d tokens%s", when,
             n, f->gpu.name, shared, ls_precision_word(o->dtype), o->no_deterministic ? ", not deterministic" : "",
             f->compute, o->model.name, o->seq_len, like);
}

/* Measures with W workers; the results are in f. */
static ls_status one_number(const ls_measure_opts *o, int W, double seconds, found *f)
{
    char text[96];
    snprintf(text, sizeof text, "measuring %d worker%s …", W, W == 1 ? "" : "s");
    if (o->say) o->say(o->ctx, text);
    task t = {.o = o, .seconds = seconds, .f = f};
    *f = (found){0};
    ls_status st = ls_launch_local(&(ls_launch){.n = W, .pin = true, .body = body, .report = report, .ctx = &t});
    if (st != LS_OK && f->words[0]) st = ls_fail(st, "plan --measure, %s", f->words);
    if (st == LS_OK && f->said[0] && o->say) o->say(o->ctx, f->said);
    return st;
}

/* Default numbers of workers: up to the number of cores or, after one worker has counted them, GPUs. */
static void choose_workers(ls_measure_opts *o, int places)
{
    for (int w = o->n_workers ? 2 * o->workers[o->n_workers - 1] : 1; w <= places && o->n_workers < 8; w *= 2)
        o->workers[o->n_workers++] = w;
}

static ls_status measure_all(ls_measure_opts *o, bool choose, int cores, found *f, ls_cluster *out)
{
    int most = 1;
    found one = {0}; /* source of the GPU data: the measurement with one worker, if there is one */
    if (choose) choose_workers(o, o->cuda ? 1 : cores);
    const double share = o->seconds / (o->n_workers ? o->n_workers : 1);
    for (int i = 0; i < o->n_workers; i++) {
        if (o->workers[i] > most) most = o->workers[i];
        LS_TRY(one_number(o, o->workers[i], share, f));
        LS_TRY(keep(out, f));
        if (i == 0 && o->cuda && choose) choose_workers(o, f->gpu.count);
        if (i == 0 || o->workers[i] == 1) one = *f;
    }
    if (o->cuda) describe_gpu(out, o, &one, most);
    return LS_OK;
}

ls_status ls_planner_measure(const ls_measure_opts *given, ls_cluster *out)
{
    ls_measure_opts o = *given;
    const int cores = ls_cores_usable();
    if (!o.cuda && o.dtype == LS_F16)
        return ls_fail(LS_E_UNSUPPORTED,
                       "--precision %s: CPUs compute in fp32 and bf16; use one of them or --device cuda",
                       ls_precision_word(o.dtype));
    if (!o.n_micro) {
        o.micro[o.n_micro++] = 1;
        o.micro[o.n_micro++] = 4;
    }
    if (o.seconds <= 0) o.seconds = 20;
    if (o.bucket <= 0) o.bucket = 1 << 20;
    *out = (ls_cluster){
        .cpu = !o.cuda, .hosts = 1, .devices = cores, .memory = memory_bytes(), .wire_bytes = 4, .update_bytes = 28};
    snprintf(out->name, sizeof out->name, "this machine");
    (void)gethostname(out->name, sizeof out->name - 1);
    if (!o.cuda) LS_TRY(describe_cpu(out, &o, cores));
    found *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f == MAP_FAILED) return ls_nomem(sizeof *f, "the measurements");
    const ls_status st = measure_all(&o, !given->n_workers, cores, f, out);
    munmap(f, sizeof *f);
    if (st != LS_OK) ls_cluster_fini(out);
    return st;
}
