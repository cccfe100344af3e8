/* gemm_check.h - checks that every matrix-product kernel must pass, for the tests of the real kernels and of the emulated ones.
 *
 * Error bound: any order of K additions and multiplications, each rounded once, is within K u / (1 - K u) of
 * sum |a||b| (u = 2^-24); the initial C and the bias are two more terms. The split of AMX omits products below 2^-23 of
 * |a||b|, for which `extra` terms are allowed. Kernels for bf16 are given numbers that bf16 has; their bound is twice as large, because BFMMLA
 * rounds to odd. */
#ifndef LS_TESTS_GEMM_CHECK_H
#define LS_TESTS_GEMM_CHECK_H

#include "compute/cpu/gemm.h"
#include "core/half.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

typedef struct gemm_case {
    bool ta, tb, acc, bias, bf16; /* bf16: A and B have numbers of that type */
    int64_t M, N, K, pad;         /* pad: added to the leading dimensions */
} gemm_case;

typedef struct gemm_data {
    float *a, *b, *c, *c0, *bias;
    int64_t n_a, n_b, n_c;
    gemm_args args;
} gemm_data;

/* Numbers with 24 bits and different exponents, of both signs; cheaper than normal ones, which would take longer than the products. */
static inline float *check_fill(int64_t n, uint64_t key)
{
    static const float scale[] = {0x1p-31f, 0x1p-30f, 0x1p-32f, 0x1p-34f};
    float *p = ls_alloc((size_t)(n + 1) * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t r = ls_rng_u64(key, (uint64_t)i);
        p[i] = (float)(int32_t)(r >> 32) * scale[r & 3];
    }
    return p;
}

static inline void check_round(float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) p[i] = ls_from_bf16(ls_to_bf16(p[i]));
}

static inline gemm_data check_make(const gemm_case *q, uint64_t seed)
{
    gemm_data d = {0};
    int64_t lda = (q->ta ? q->M : q->K) + q->pad, ldb = (q->tb ? q->K : q->N) + q->pad, ldc = q->N + q->pad;
    d.n_a = lda * (q->ta ? q->K : q->M);
    d.n_b = ldb * (q->tb ? q->N : q->K);
    d.n_c = ldc * q->M;
    d.a = check_fill(d.n_a, ls_rng_key(seed, LS_RNG_TEST, 1, 0));
    d.b = check_fill(d.n_b, ls_rng_key(seed, LS_RNG_TEST, 2, 0));
    d.c = check_fill(d.n_c, ls_rng_key(seed, LS_RNG_TEST, 3, 0));
    d.c0 = ls_alloc((size_t)(d.n_c + 1) * sizeof *d.c0);
    assert_non_null(d.c0);
    memcpy(d.c0, d.c, (size_t)d.n_c * sizeof *d.c0);
    d.bias = check_fill(q->N, ls_rng_key(seed, LS_RNG_TEST, 4, 0));
    if (q->bf16) {
        check_round(d.a, d.n_a);
        check_round(d.b, d.n_b);
    }
    d.args = (gemm_args){.ta = q->ta,
                         .tb = q->tb,
                         .M = q->M,
                         .N = q->N,
                         .K = q->K,
                         .A = d.a,
                         .B = d.b,
                         .lda = lda,
                         .ldb = ldb,
                         .ldc = ldc,
                         .C = d.c,
                         .bias = q->bias ? d.bias : NULL,
                         .acc = q->acc};
    return d;
}

static inline void check_free(gemm_data *d)
{
    ls_free(d->a);
    ls_free(d->b);
    ls_free(d->c);
    ls_free(d->c0);
    ls_free(d->bias);
}

static inline void check_run(const gemm_kernel *k, const gemm_data *d, int n_thread)
{
    size_t n = gemm_scratch(k, n_thread);
    void *scratch = ls_alloc(n);
    assert_non_null(scratch);
    memset(scratch, 0xff, n); /* NaN: a read of memory that was not packed is visible */
    memcpy(d->c, d->c0, (size_t)d->n_c * sizeof *d->c);
    gemm_run(k, &d->args, n_thread, scratch);
    ls_free(scratch);
}

/* Compares every element, and the padding between rows, which must not change. Returns the root of the mean square of
 * error / (u * sum|a||b|), to compare kernels. */
static inline double check_values(const gemm_kernel *k, const gemm_data *d, double extra)
{
    const gemm_args *a = &d->args;
    const double u = gemm_is_bf16(k) ? 0x1p-23 : 0x1p-24;
    double square = 0;
    for (int64_t i = 0; i < a->M; i++)
        for (int64_t j = 0; j < a->ldc; j++) {
            int64_t at = i * a->ldc + j;
            if (j >= a->N) {
                if (memcmp(&a->C[at], &d->c0[at], sizeof(float)) != 0) fail_msg("%s wrote past a row", gemm_name(k));
                continue;
            }
            double want = a->acc ? (double)d->c0[at] : 0.0, size = fabs(want);
            for (int64_t p = 0; p < a->K; p++) {
                double x = a->ta ? a->A[p * a->lda + i] : a->A[i * a->lda + p];
                double y = a->tb ? a->B[j * a->ldb + p] : a->B[p * a->ldb + j];
                want += x * y;
                size += fabs(x * y);
            }
            if (a->bias) {
                want += (double)a->bias[j];
                size += fabs((double)a->bias[j]);
            }
            double err = fabs((double)a->C[at] - want), bound = ((double)a->K + 2 + extra) * u * size * 1.01 + 0x1p-140;
            if (!(err <= bound))
                fail_msg(
                    "%s t%d%d M=%lld N=%lld K=%lld acc=%d bias=%d: C[%lld,%lld] = %.9g, want %.9g, error %.3g > %.3g",
                    gemm_name(k), a->ta, a->tb, (long long)a->M, (long long)a->N, (long long)a->K, a->acc,
                    a->bias != NULL, (long long)i, (long long)j, (double)a->C[at], want, err, bound);
            square += size > 0 ? (err / (u * size)) * (err / (u * size)) : 0;
        }
    return a->M * a->N > 0 ? sqrt(square / (double)(a->M * a->N)) : 0;
}

/* Shapes around every limit of a kernel: empty, one element, less than a tile, exactly one and more; the same for a block of K. */
static inline void check_shapes(const gemm_kernel *k, double extra, int n_random)
{
    static const int64_t edge[] = {0, 1, 2, 3, 5, 7, 8, 9, 12, 13, 14, 16, 31, 32, 33, 63, 65};
    static const int64_t deep[] = {1, 2, 31, 32, 33, 127, 129, 256, 300, 511, 513, 769, 800};
    enum { N_EDGE = sizeof edge / sizeof edge[0], N_DEEP = sizeof deep / sizeof deep[0] };
    uint64_t key = ls_rng_key(7, LS_RNG_TEST, 9, 9), draw = 0;
    for (int r = 0; r < n_random; r++) {
        uint64_t bits = ls_rng_u64(key, draw++);
        gemm_case q = {.ta = bits & 1, .tb = bits & 2, .acc = bits & 4, .bias = bits & 8, .pad = bits & 16 ? 5 : 0};
        q.bf16 = gemm_is_bf16(k);
        q.M = bits & 32 ? edge[ls_rng_u64(key, draw++) % N_EDGE] : (int64_t)(ls_rng_u64(key, draw++) % 150);
        q.N = bits & 64 ? edge[ls_rng_u64(key, draw++) % N_EDGE] : (int64_t)(ls_rng_u64(key, draw++) % 150);
        q.K = bits & 128 ? edge[ls_rng_u64(key, draw++) % N_EDGE] : deep[ls_rng_u64(key, draw++) % N_DEEP];
        gemm_data d = check_make(&q, bits);
        check_run(k, &d, 1 + (int)((bits >> 8) % 3));
        check_values(k, &d, extra);
        check_free(&d);
    }
}

/* The same bits with any number of threads. */
static inline void check_threads(const gemm_kernel *k, const gemm_case *q)
{
    gemm_data d = check_make(q, 11);
    float *first = ls_alloc((size_t)d.n_c * sizeof(float) + 1);
    assert_non_null(first);
    check_run(k, &d, 1);
    memcpy(first, d.c, (size_t)d.n_c * sizeof(float));
    static const int threads[] = {2, 3, 4, 7};
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        check_run(k, &d, threads[t]);
        if (memcmp(first, d.c, (size_t)d.n_c * sizeof(float)) != 0)
            fail_msg("%s: %d threads change the bits of t%d%d M=%lld N=%lld K=%lld", gemm_name(k), threads[t], q->ta,
                     q->tb, (long long)q->M, (long long)q->N, (long long)q->K);
    }
    ls_free(first);
    check_free(&d);
}

static inline void check_all_threads(const gemm_kernel *k)
{
    static const gemm_case cases[] = {
        {.M = 203, .N = 301, .K = 1100, .bias = true},
        {.tb = true, .M = 130, .N = 515, .K = 770, .acc = true, .pad = 3},
        {.ta = true, .M = 387, .N = 99, .K = 520, .acc = true},
        {.ta = true, .tb = true, .M = 70, .N = 2000, .K = 64},
        {.M = 2100, .N = 40, .K = 65, .bias = true},
        {.M = 1, .N = 1537, .K = 770, .bias = true},
        {.tb = true, .M = 3, .N = 1001, .K = 771, .acc = true},
        {.M = 7, .N = 700, .K = 300},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_threads(k, &cases[i]);
}

/* Y t == X (W t) for a random vector t: finds a wrong element in shapes that are too large for the reference. */
static inline void check_algebra(const gemm_kernel *k, const gemm_case *q, int n_thread)
{
    gemm_data d = check_make(q, 5);
    const gemm_args *a = &d.args;
    check_run(k, &d, n_thread);
    double *wt = ls_alloc((size_t)a->K * sizeof *wt), *awt = ls_alloc((size_t)a->K * sizeof *awt);
    double *t = ls_alloc((size_t)a->N * sizeof *t);
    assert_non_null(wt);
    assert_non_null(awt);
    assert_non_null(t);
    for (int64_t j = 0; j < a->N; j++) t[j] = ls_rng_normal(99, (uint64_t)j);
    for (int64_t p = 0; p < a->K; p++)
        for (int64_t j = 0; j < a->N; j++) {
            double w = a->tb ? a->B[j * a->ldb + p] : a->B[p * a->ldb + j];
            wt[p] += w * t[j];
            awt[p] += fabs(w * t[j]);
        }
    for (int64_t i = 0; i < a->M; i++) {
        double left = 0, right = 0, size = 0;
        for (int64_t j = 0; j < a->N; j++) left += (double)a->C[i * a->ldc + j] * t[j];
        for (int64_t p = 0; p < a->K; p++) {
            double x = a->ta ? a->A[p * a->lda + i] : a->A[i * a->lda + p];
            right += x * wt[p];
            size += fabs(x) * awt[p];
        }
        if (!(fabs(left - right) <= ((double)a->K + 4) * 0x1p-24 * size))
            fail_msg("%s: row %lld times t is %.9g, X (W t) is %.9g", gemm_name(k), (long long)i, left, right);
    }
    ls_free(wt);
    ls_free(awt);
    ls_free(t);
    check_free(&d);
}

/* The mean error of a product with a K as large as in the model, in units of u * sum|a||b|. */
static inline double check_error(const gemm_kernel *k, double extra)
{
    gemm_case q = {.M = 64, .N = 96, .K = 3072, .bf16 = gemm_is_bf16(k)};
    gemm_data d = check_make(&q, 3);
    check_run(k, &d, 2);
    double e = check_values(k, &d, extra);
    check_free(&d);
    return e;
}

#endif
