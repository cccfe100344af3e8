/* bench_gemm.c - how fast the matrix products of a GPT-2 training step run in our kernels and in the linked CBLAS.
 *
 * The sides take turns on every shape, so that a busy machine slows all of them alike. "blas-own" is CBLAS called once with its
 * own threads: what anybody gets from the library, the floor. Prints GFLOP/s (best and median of the turns), then the time of
 * all products of a step: sum over shapes of calls x median, and the same with the best times. */
#include "compute/cpu/gemm.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/opt.h"

#include <cblas.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    int64_t threads, turns, batch, seq, chunk;
    ls_opt_list kernels;
    bool cpu_time;
} settings;

static const ls_opt table[] = {
    {"threads", LS_OPT_INT, offsetof(settings, threads), "N", "0", "threads; 0 = all cores", "Options"},
    {"turns", LS_OPT_INT, offsetof(settings, turns), "N", "5", "times each side runs each shape", NULL},
    {"batch", LS_OPT_INT, offsetof(settings, batch), "B", "4", "sequences", NULL},
    {"seq", LS_OPT_INT, offsetof(settings, seq), "T", "512", "tokens of a sequence", NULL},
    {"chunk", LS_OPT_INT, offsetof(settings, chunk), "R", "512", "rows of the classifier at a time", NULL},
    {"cpu-time", LS_OPT_SWITCH, offsetof(settings, cpu_time), "", NULL,
     "count this process's processor time, not the clock's (with one thread, on a busy machine)", NULL},
    {"kernels", LS_OPT_LIST, offsetof(settings, kernels), "NAME...", NULL,
     "kernels to compare; default: the best, and blas-own", NULL},
};
enum { N_ROW = sizeof table / sizeof table[0], MAX_SIDE = 6, MAX_TURN = 64 };

typedef struct side {
    const char *name;
    const gemm_kernel *kernel; /* NULL: CBLAS with its own threads */
    void *scratch;
    double median_s, best_s; /* of a whole step */
} side;

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

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static float *filled(int64_t n)
{
    float *p = ls_alloc((size_t)n * sizeof *p);
    for (int64_t i = 0; p && i < n; i++) p[i] = (float)((i * 7919) % 2017 - 1008) * 1e-3f;
    return p;
}

static int bench_shape(const gemm_shape *q, side *sides, int n_side, const settings *set)
{
    gemm_args a = {.ta = q->ta,
                   .tb = q->tb,
                   .acc = q->acc,
                   .M = q->M,
                   .N = q->N,
                   .K = q->K,
                   .lda = q->ta ? q->M : q->K,
                   .ldb = q->tb ? q->K : q->N,
                   .ldc = q->N};
    float *x = filled(q->M * q->K), *y = filled(q->K * q->N), *z = filled(q->M * q->N);
    if (!x || !y || !z) {
        fprintf(stderr, "bench_gemm: no memory for %s\n", q->what);
        return 1;
    }
    a.A = x;
    a.B = y;
    a.C = z;
    double time[MAX_SIDE][MAX_TURN], flop = 2.0 * (double)q->M * (double)q->N * (double)q->K;
    for (int s = 0; s < n_side; s++) run_side(&sides[s], &a, (int)set->threads); /* warm-up */
    for (int t = 0; t < (int)set->turns; t++)
        for (int s = 0; s < n_side; s++) {
            double t0 = set->cpu_time ? ls_cpu_seconds() : ls_now();
            run_side(&sides[s], &a, (int)set->threads);
            time[s][t] = (set->cpu_time ? ls_cpu_seconds() : ls_now()) - t0;
        }
    printf("%-10s %6lld %6lld %6lld  %s%s %4lld", q->what, (long long)q->M, (long long)q->N, (long long)q->K,
           q->ta ? "T" : "N", q->tb ? "T" : "N", (long long)q->count);
    for (int s = 0; s < n_side; s++) {
        qsort(time[s], (size_t)set->turns, sizeof(double), by_value);
        double best = time[s][0], median = time[s][set->turns / 2];
        printf("  %8.1f %8.1f", flop / best * 1e-9, flop / median * 1e-9);
        sides[s].best_s += best * (double)q->count;
        sides[s].median_s += median * (double)q->count;
    }
    printf("\n");
    fflush(stdout);
    ls_free(x);
    ls_free(y);
    ls_free(z);
    return 0;
}

static int add_side(side *sides, int n, const char *name, int n_thread)
{
    side *s = &sides[n];
    s->name = name;
    s->kernel = strcmp(name, "blas-own") == 0 ? NULL : gemm_pick(name);
    if (!s->kernel && strcmp(name, "blas-own") != 0) {
        fprintf(stderr, "bench_gemm: no kernel '%s' on this CPU; there are:", name);
        bool usable;
        const gemm_kernel *k;
        for (int i = 0; (k = gemm_list(i, &usable)); i++)
            if (usable) fprintf(stderr, " %s", gemm_name(k));
        fprintf(stderr, " blas-own\n");
        return -1;
    }
    if (s->kernel && !(s->scratch = ls_alloc(gemm_scratch(s->kernel, n_thread)))) {
        fprintf(stderr, "bench_gemm: no memory for the scratch of %s\n", name);
        return -1;
    }
    return n + 1;
}

int main(int argc, char **argv)
{
    settings set = {0};
    bool help = false;
    if (ls_opt_defaults(table, N_ROW, &set) != LS_OK ||
        ls_opt_parse(table, N_ROW, &set, NULL, argc - 1, argv + 1, NULL, &help) != LS_OK) {
        fprintf(stderr, "bench_gemm: %s\n", ls_err_words());
        return 2;
    }
    if (help) {
        ls_str text = {0};
        ls_opt_help(table, N_ROW, &text);
        printf("bench_gemm: the matrix products of a GPT-2 124M training step\n%s", text.data ? text.data : "");
        ls_str_fini(&text);
        return 0;
    }
    if (set.cpu_time && set.threads != 1) {
        fprintf(stderr, "bench_gemm: --cpu-time adds up all threads' time; it goes with --threads 1\n");
        return 2;
    }
    if (set.threads == 0) set.threads = omp_get_num_procs();
    if (set.turns < 1 || set.turns > MAX_TURN || set.threads < 1 || set.batch < 1 || set.seq < 1 || set.chunk < 1) {
        fprintf(stderr, "bench_gemm: --turns is 1 to %d; the others are at least 1\n", MAX_TURN);
        return 2;
    }
    side sides[MAX_SIDE] = {0};
    int n_side = 0;
    if (set.kernels.n == 0) {
        n_side = add_side(sides, n_side, gemm_name(gemm_pick(NULL)), (int)set.threads);
        if (n_side > 0) n_side = add_side(sides, n_side, "blas-own", (int)set.threads);
    }
    for (int i = 0; i < set.kernels.n && i < MAX_SIDE && n_side >= 0; i++)
        n_side = add_side(sides, n_side, set.kernels.word[i], (int)set.threads);
    if (n_side < 0) return 2;

    gemm_shape shapes[GEMM_STEP_SHAPES];
    gemm_step_shapes(shapes, set.batch * set.seq, 768, 12, 50257, set.chunk);
    printf("threads %lld, B %lld, T %lld, turns %lld, CBLAS: %s\n", (long long)set.threads, (long long)set.batch,
           (long long)set.seq, (long long)set.turns, gemm_blas_describe());
    printf("%-10s %6s %6s %6s  op %4s", "GFLOP/s", "M", "N", "K", "n");
    for (int s = 0; s < n_side; s++) printf("  %8s %8s", sides[s].name, "median");
    printf("\n");
    double flop = 0;
    for (int i = 0; i < GEMM_STEP_SHAPES; i++) {
        if (bench_shape(&shapes[i], sides, n_side, &set)) return 5;
        flop += 2.0 * (double)shapes[i].M * (double)shapes[i].N * (double)shapes[i].K * (double)shapes[i].count;
    }
    printf("\nall products of a step, %.3f TFLOP\n", flop * 1e-12);
    for (int s = 0; s < n_side; s++) {
        printf("  %-10s best %.3f s (%.1f GFLOP/s), median %.3f s (%.1f GFLOP/s)", sides[s].name, sides[s].best_s,
               flop / sides[s].best_s * 1e-9, sides[s].median_s, flop / sides[s].median_s * 1e-9);
        if (s > 0) printf(", %.2f x the time of %s", sides[s].median_s / sides[0].median_s, sides[0].name);
        printf("\n");
        ls_free(sides[s].scratch);
    }
    return 0;
}
