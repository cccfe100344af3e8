/* gemm_small.h - products with a few rows (generation): the weights are read once, where they are, at the memory's speed.
 * The including file defines the vector: V (type), V_N (floats in it), V_LOAD, V_STORE, V_SET1, V_FMA(a,b,c) = a*b+c, and
 * S_FMA, the same for one float with the same rounding.
 *
 * The order of each element's sum depends on neither the columns' split over threads nor its place:
 *   B (K,N): k ascending, one after the other;
 *   B (N,K): V_N partial sums over k = lane modulo V_N, then the lanes in order, then the rest of k. */
#ifndef LS_COMPUTE_CPU_GEMM_SMALL_H
#define LS_COMPUTE_CPU_GEMM_SMALL_H

#include "compute/cpu/gemm_pack.h"

enum { SMALL_KU = 8 }; /* rows of B that are read side by side */

/* Every loop over an array of vectors is unrolled, or the compiler keeps the array in memory. */

/* MB rows of C, columns [n0,n1), ku <= SMALL_KU steps of K from k; two vectors of columns at a time share the broadcasts */
GEMM_INLINE void small_nn_rows(const gemm_args *a, int64_t i, int MB, int64_t k, int ku, int64_t n0, int64_t n1)
{
    const int64_t ldb = a->ldb, ldc = a->ldc;
    const float *b = a->B + k * ldb;
    float *c = a->C + i * ldc, x[4][SMALL_KU];
    for (int r = 0; r < MB; r++)
        for (int u = 0; u < ku; u++) x[r][u] = a->A[(i + r) * a->lda + k + u];
    int64_t n = n0;
    for (; n + 2 * V_N <= n1; n += 2 * V_N) {
        V s[4][2];
#pragma GCC unroll 4
        for (int r = 0; r < MB; r++) {
            s[r][0] = V_LOAD(c + r * ldc + n);
            s[r][1] = V_LOAD(c + r * ldc + n + V_N);
        }
#pragma GCC unroll 8
        for (int u = 0; u < ku; u++) {
            V w0 = V_LOAD(b + u * ldb + n), w1 = V_LOAD(b + u * ldb + n + V_N);
#pragma GCC unroll 4
            for (int r = 0; r < MB; r++) {
                V y = V_SET1(x[r][u]);
                s[r][0] = V_FMA(y, w0, s[r][0]);
                s[r][1] = V_FMA(y, w1, s[r][1]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < MB; r++) {
            V_STORE(c + r * ldc + n, s[r][0]);
            V_STORE(c + r * ldc + n + V_N, s[r][1]);
        }
    }
    for (; n < n1; n++)
        for (int r = 0; r < MB; r++) {
            float s = c[r * ldc + n];
            for (int u = 0; u < ku; u++) s = S_FMA(x[r][u], b[u * ldb + n], s);
            c[r * ldc + n] = s;
        }
}

static void small_nn(const gemm_args *a, int64_t n0, int64_t n1)
{
    for (int64_t i = 0; i < a->M; i++)
        for (int64_t n = n0; n < n1 && !a->acc; n++) a->C[i * a->ldc + n] = 0.0f;
    /* a strip of C, and of B when several rows use it, stays in the first cache */
    int64_t strip = a->M == 1 ? 4096 : a->M <= 4 ? 1024 : 512;
    for (int64_t s0 = n0; s0 < n1; s0 += strip) {
        int64_t s1 = gemm_min(s0 + strip, n1), k = 0;
        for (; k < a->K; k += SMALL_KU) {
            int64_t i = 0;
            if (k + SMALL_KU <= a->K) {
                for (; i + 4 <= a->M; i += 4) small_nn_rows(a, i, 4, k, SMALL_KU, s0, s1);
                for (; i < a->M; i++) small_nn_rows(a, i, 1, k, SMALL_KU, s0, s1);
            } else {
                for (; i < a->M; i++) small_nn_rows(a, i, 1, k, (int)(a->K - k), s0, s1);
            }
        }
    }
    for (int64_t i = 0; i < a->M && a->bias; i++)
        for (int64_t n = n0; n < n1; n++) a->C[i * a->ldc + n] += a->bias[n];
}

GEMM_INLINE void small_nt_block(const gemm_args *a, int64_t i, int MB, int64_t n, int NB)
{
    const int64_t lda = a->lda, ldb = a->ldb, K = a->K;
    const float *x = a->A + i * lda, *w = a->B + n * ldb;
    V s[16];
#pragma GCC unroll 16
    for (int e = 0; e < MB * NB; e++) s[e] = V_SET1(0.0f);
    int64_t k = 0;
    for (; k + V_N <= K; k += V_N) {
        V xs[4];
#pragma GCC unroll 4
        for (int r = 0; r < MB; r++) xs[r] = V_LOAD(x + r * lda + k);
#pragma GCC unroll 8
        for (int q = 0; q < NB; q++) {
            V wv = V_LOAD(w + q * ldb + k);
#pragma GCC unroll 4
            for (int r = 0; r < MB; r++) s[r * NB + q] = V_FMA(xs[r], wv, s[r * NB + q]);
        }
    }
    float lane[16][V_N];
#pragma GCC unroll 16
    for (int e = 0; e < MB * NB; e++) V_STORE(lane[e], s[e]);
    for (int r = 0; r < MB; r++)
        for (int q = 0; q < NB; q++) {
            float sum = 0.0f;
            for (int e = 0; e < V_N; e++) sum += lane[r * NB + q][e];
            for (int64_t t = k; t < K; t++) sum = S_FMA(x[r * lda + t], w[q * ldb + t], sum);
            float *c = a->C + (i + r) * a->ldc + n + q;
            if (a->acc) sum = *c + sum;
            if (a->bias) sum = sum + a->bias[n + q];
            *c = sum;
        }
}

static void small_nt(const gemm_args *a, int64_t n0, int64_t n1)
{
    int64_t n = n0;
    for (; n + 8 <= n1; n += 8) {
        int64_t i = 0;
        for (; i + 4 <= a->M; i += 4) {
            small_nt_block(a, i, 4, n, 4);
            small_nt_block(a, i, 4, n + 4, 4);
        }
        if (i + 2 <= a->M) {
            small_nt_block(a, i, 2, n, 8);
            i += 2;
        }
        if (i < a->M) small_nt_block(a, i, 1, n, 8);
    }
    for (; n < n1; n++)
        for (int64_t i = 0; i < a->M; i++) small_nt_block(a, i, 1, n, 1);
}

static void small_columns(const gemm_args *a, int64_t n0, int64_t n1)
{
    if (a->tb) small_nt(a, n0, n1);
    else small_nn(a, n0, n1);
}

#endif
