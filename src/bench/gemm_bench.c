#include "bench/gemm_bench.h"
#include "compute/cpu/cpu_impl.h"
#include "compute/cpu/gemm.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/plan.h"
#include "core/stat.h"
#include "core/str.h"

#include <cblas.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM = 1 };  /* products of a shape before those that are timed */
#define BURST_S 2.0 /* of the multiply instruction alone, before the first product */
#define BLAS_SPINS_NS \
    100000000 /* the library's threads keep their cores busy for a while after a product; ours would share them */

/* ---- rows: the same for the CPU and a device ---- */

static double shape_bytes(const gemm_shape *q)
{
    const double M = (double)q->M, N = (double)q->N, K = (double)q->K;
    return (M * K + K * N + M * N) * sizeof(float) + M * K * sizeof(uint16_t); /* A may be there as bf16, too */
}

/* Sizes that fit the int of CBLAS and whose products fit an int64_t, and matrices that fit in the memory of the host (a device refuses its own). */
static ls_status check_sizes(const ls_gemm_bench *o)
{
    char need[32], have[32];
    gemm_shape shapes[GEMM_STEP_SHAPES];
    if (o->rows > INT32_MAX)
        return ls_fail(LS_E_ARG, "--batch x --seq is %lld rows: must be at most %d", (long long)o->rows, INT32_MAX);
    if (o->width > INT32_MAX / 4)
        return ls_fail(LS_E_ARG, "--width %lld: must be at most %d", (long long)o->width, INT32_MAX / 4);
    const double room = o->device ? 0x1p60 : (double)ls_plan_available();
    const int n = gemm_step_shapes(shapes, o->rows, o->width, o->layers, o->vocab, o->chunk);
    for (int i = 0; i < n; i++) {
        const double nbytes = shape_bytes(&shapes[i]);
        if (nbytes > room && o->device) return ls_nomem(nbytes, shapes[i].what);
        if (nbytes > room)
            return ls_fail(LS_E_NOMEM, "the matrices of %s need %s, but %s are available; use smaller sizes",
                           shapes[i].what, ls_human_bytes(need, nbytes), ls_human_bytes(have, room));
    }
    return LS_OK;
}

static ls_status time_shape(const ls_gemm_bench *o, const gemm_timer *t, const gemm_shape *q, ls_gemm_row *r)
{
    double time[LS_GEMM_MAX_SIDE][LS_GEMM_MAX_TURN], unused;
    for (int k = 0; k < t->warm; k++)
        for (int s = 0; s < t->n_side; s++) LS_TRY(t->once(t->ctx, q, s, &unused));
    for (int k = 0; k < o->turns; k++)
        for (int s = 0; s < t->n_side; s++) LS_TRY(t->once(t->ctx, q, s, &time[s][k]));
    for (int s = 0; s < t->n_side; s++) {
        qsort(time[s], (size_t)o->turns, sizeof(double), ls_by_value);
        r->best[s] = time[s][0];
        r->median[s] = ls_median(time[s], o->turns);
    }
    return LS_OK;
}

ls_status gemm_bench_rows(const ls_gemm_bench *o, const gemm_timer *t)
{
    static const char *const op[2][2] = {{"NN", "NT"}, {"TN", "TT"}};
    gemm_shape shapes[GEMM_STEP_SHAPES];
    ls_gemm_row step = {.what = "step", .op = "", .n_side = t->n_side};
    memcpy(step.side, t->side, sizeof step.side);
    memcpy(step.type, t->type, sizeof step.type);
    const int n = gemm_step_shapes(shapes, o->rows, o->width, o->layers, t->vocab, o->chunk);
    for (int i = 0; i < n; i++) {
        const gemm_shape *q = &shapes[i];
        const double real = strstr(q->what, "logits") ? (double)o->vocab / (double)t->vocab : 1; /* without padding */
        ls_gemm_row r = step;
        r.what = q->what;
        r.op = op[q->ta != 0][q->tb != 0];
        r.M = q->M, r.N = q->N, r.K = q->K, r.count = q->count;
        r.flop = 2.0 * (double)q->M * (double)q->N * (double)q->K * real;
        LS_TRY(time_shape(o, t, q, &r));
        for (int s = 0; s < t->n_side; s++) {
            step.best[s] += r.best[s] * (double)r.count;
            step.median[s] += r.median[s] * (double)r.count;
        }
        step.flop += r.flop * (double)r.count;
        step.count += r.count;
        o->row(o->ctx, &r);
    }
    for (int s = 0; t->peak && s < t->n_side; s++) step.peak[s] = t->peak(t->ctx, s);
    o->row(o->ctx, &step);
    return LS_OK;
}

/* ---- the CPU ---- */

typedef struct side {
    const gemm_kernel *kernel; /* NULL: CBLAS with its own threads */
    void *scratch;
} side;

typedef struct job {
    const ls_gemm_bench *o;
    side side[LS_GEMM_MAX_SIDE];
    const gemm_shape *shape; /* that the matrices are of */
    float *x, *y, *z;
    uint16_t *x16; /* x as bf16 numbers, where a training step has them so, or NULL */
    double rate[LS_GEMM_MAX_SIDE][GEMM_STEP_SHAPES * (WARM + LS_GEMM_MAX_TURN)]; /* of the instruction alone, FLOP/s */
    int n_rate[LS_GEMM_MAX_SIDE];
} job;

static float *filled(int64_t n)
{
    float *p = ls_alloc((size_t)n * sizeof *p);
    for (int64_t i = 0; p && i < n; i++) p[i] = (float)((i * 7919) % 2017 - 1008) * 1e-3f;
    return p;
}

static void free_matrices(job *j)
{
    ls_free(j->x);
    ls_free(j->y);
    ls_free(j->z);
    ls_free(j->x16);
    j->x = j->y = j->z = NULL;
    j->x16 = NULL;
}

static ls_status make_matrices(job *j, const gemm_shape *q)
{
    if (j->shape == q) return LS_OK;
    free_matrices(j);
    j->x = filled(q->M * q->K);
    j->y = filled(q->K * q->N);
    j->z = filled(q->M * q->N);
    j->shape = q;
    if (j->x && j->y && j->z) return LS_OK;
    return ls_nomem(shape_bytes(q), q->what);
}

/* The gradient of the logits, if the kernel takes it as bf16 numbers. */
static ls_status narrow_matrix(job *j, const gemm_shape *q, const gemm_kernel *k, const uint16_t **a16)
{
    *a16 = NULL;
    if (!k || !gemm_takes_bf16(k) || strncmp(q->what, "logits d", 8)) return LS_OK;
    if (!j->x16) j->x16 = ls_alloc((size_t)(q->M * q->K) * sizeof *j->x16);
    if (!j->x16) return ls_nomem((size_t)(q->M * q->K) * sizeof *j->x16, q->what);
    gemm_narrow(k, j->x16, j->x, q->M * q->K, 1);
    *a16 = j->x16;
    return LS_OK;
}

static void run_side(const side *s, const gemm_args *a, int n_thread)
{
    if (s->kernel) {
        gemm_run(s->kernel, a, n_thread, s->scratch);
        return;
    }
    gemm_blas_threads(n_thread);
    cblas_sgemm(CblasRowMajor, a->ta ? CblasTrans : CblasNoTrans, a->tb ? CblasTrans : CblasNoTrans, (int)a->M,
                (int)a->N, (int)a->K, 1.0f, a->A, (int)a->lda, a->B, (int)a->ldb, a->acc ? 1.0f : 0.0f, a->C,
                (int)a->ldc);
}

static double seconds_now(const job *j)
{
    return j->o->cpu_time ? ls_cpu_seconds() : ls_now();
}

/* The instruction alone, for as long as the product before it took. */
static void time_peak(job *j, int s, double seconds)
{
    const double begin = seconds_now(j), flop = gemm_spin(j->side[s].kernel, j->o->threads, seconds);
    const double took = seconds_now(j) - begin;
    if (flop > 0 && took > 0) j->rate[s][j->n_rate[s]++] = flop / took;
}

static double peak_of(void *ctx, int s)
{
    job *j = ctx;
    qsort(j->rate[s], (size_t)j->n_rate[s], sizeof(double), ls_by_value);
    return j->n_rate[s] ? ls_median(j->rate[s], j->n_rate[s]) : 0;
}

static ls_status time_once(void *ctx, const gemm_shape *q, int s, double *seconds)
{
    job *j = ctx;
    LS_TRY(make_matrices(j, q));
    const uint16_t *a16;
    LS_TRY(narrow_matrix(j, q, j->side[s].kernel, &a16));
    const gemm_args a = {.ta = q->ta,
                         .tb = q->tb,
                         .acc = q->acc,
                         .M = q->M,
                         .N = q->N,
                         .K = q->K,
                         .A = j->x,
                         .A16 = a16,
                         .B = j->y,
                         .C = j->z,
                         .lda = q->ta ? q->M : q->K,
                         .ldb = q->tb ? q->K : q->N,
                         .ldc = q->N};
    const double begin = seconds_now(j), at = ls_now();
    run_side(&j->side[s], &a, j->o->threads);
    *seconds = seconds_now(j) - begin;
    if (j->side[s].kernel) time_peak(j, s, LS_MAX(ls_now() - at, 1e-3));
    if (!j->side[s].kernel && j->o->threads > 1) nanosleep(&(struct timespec){.tv_nsec = BLAS_SPINS_NS}, NULL);
    return LS_OK;
}

/* Whether a kernel of --kernels is for the other type than --precision says; the first one alone: others may be there to compare with it. */
static ls_status check_type(const ls_gemm_bench *o)
{
    const bool bf16 = o->dtype == LS_BF16;
    const char *name = o->n_kernel ? o->kernel[0] : NULL;
    if (!o->typed || !name || !strcmp(name, "blas-own") || gemm_pick(bf16, name) || !gemm_pick(!bf16, name))
        return LS_OK;
    return ls_fail(LS_E_ARG, "--kernels %s is for %s, but --precision is %s; leave --precision out", name,
                   bf16 ? "fp32" : "bf16", bf16 ? "bf16" : "fp32");
}

static ls_status check_kernels(const ls_gemm_bench *o)
{
    if (!o->n_kernel) return cpu_fast_check(o->dtype == LS_BF16); /* LS_GEMM */
    for (int i = 0; i < o->n_kernel; i++)
        for (int k = 0; k < i; k++)
            if (!strcmp(o->kernel[i], o->kernel[k]))
                return ls_fail(LS_E_ARG, "--kernels has %s twice; leave one out", o->kernel[i]);
    return check_type(o);
}

static ls_status pick(side *s, const char *name, int n_thread)
{
    if (!strcmp(name, "blas-own")) return LS_OK;
    s->kernel = gemm_pick(false, name);
    if (!s->kernel) s->kernel = gemm_pick(true, name);
    if (!s->kernel) {
        ls_str there = {0};
        bool usable;
        const gemm_kernel *k;
        for (int i = 0; (k = gemm_list(i, &usable)); i++)
            if (usable &&
                gemm_pick(gemm_is_bf16(k), gemm_name(k)) == k) /* of kernels with one name the first is used */
                ls_str_addf(&there, "%s (%s), ", gemm_name(k), gemm_is_bf16(k) ? "bf16" : "fp32");
        ls_status st = ls_fail(LS_E_ARG, "kernel '%s' is not available on this CPU; available: %sblas-own (fp32)", name,
                               there.data ? there.data : "");
        ls_str_fini(&there);
        return st;
    }
    s->scratch = ls_alloc(gemm_scratch(s->kernel, n_thread));
    return s->scratch ? LS_OK : ls_nomem(gemm_scratch(s->kernel, n_thread), "the scratch memory of a kernel");
}

/* Of the classifier, with that kernel; other names are judged later. */
static int64_t rows_at_a_time(const char *kernel)
{
    const gemm_kernel *k = gemm_pick(true, kernel);
    if (!k) k = gemm_best(false);
    return gemm_logit_rows(k);
}

static int usual_kernels(bool bf16, const char *name[3])
{
    int n = 0;
    name[n++] = gemm_name(gemm_pick(bf16, NULL));
    if (bf16) name[n++] = gemm_name(gemm_best(false));
    name[n++] = "blas-own";
    return n;
}

ls_status ls_gemm_bench_run(const ls_gemm_bench *given)
{
    ls_gemm_bench o = *given;
    const char *usual[3];
    ls_status st = LS_OK;
    if (o.cpu_time && o.threads != 1)
        return ls_fail(LS_E_ARG, "--cpu_time needs --threads 1: it adds up the time of all threads");
    if (!o.device) LS_TRY(check_kernels(&o));
    if (!o.threads) o.threads = ls_gemm_bench_cores();
    if (!o.device && !o.n_kernel) o.kernel = usual, o.n_kernel = usual_kernels(o.dtype == LS_BF16, usual);
    if (!o.chunk) o.chunk = o.device ? 16384 : rows_at_a_time(o.kernel[0]);
    if (o.turns < 1 || o.turns > LS_GEMM_MAX_TURN || o.threads < 1 || o.rows < 1 || o.width < 1 || o.layers < 1 ||
        o.vocab < 1 || o.chunk < 1 || o.n_kernel > LS_GEMM_MAX_SIDE)
        return ls_fail(
            LS_E_ARG,
            "--turns must be 1 to %d, at most %d kernels can be compared, and all other numbers must be at least 1",
            LS_GEMM_MAX_TURN, LS_GEMM_MAX_SIDE);
    LS_TRY(check_sizes(&o));
    if (o.device) return gemm_bench_device(&o);
    job j = {.o = &o};
    gemm_timer t = {
        .n_side = o.n_kernel, .warm = WARM, .vocab = o.vocab, .peak = peak_of, .once = time_once, .ctx = &j};
    for (int s = 0; s < o.n_kernel && st == LS_OK; s++) {
        t.side[s] = o.kernel[s];
        st = pick(&j.side[s], o.kernel[s], o.threads);
        t.type[s] = j.side[s].kernel && gemm_is_bf16(j.side[s].kernel) ? "bf16" : "fp32";
        if (st == LS_OK && j.side[s].kernel) (void)gemm_spin(j.side[s].kernel, o.threads, BURST_S);
    }
    if (st == LS_OK) st = gemm_bench_rows(&o, &t);
    for (int s = 0; s < LS_GEMM_MAX_SIDE; s++) ls_free(j.side[s].scratch);
    free_matrices(&j);
    return st;
}

const char *ls_gemm_bench_blas(void)
{
    return gemm_blas_describe();
}

int ls_gemm_bench_cores(void)
{
    return omp_get_num_procs();
}
