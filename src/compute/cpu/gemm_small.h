/* gemm_small.h - products with a few rows (generation): the weights are read once, where they lie, at the memory's speed.
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

/* MB rows of C, columns [n0,n1), ku <= SMALL_KU steps of K from k */
GEMM_INLINE void small_nn_rows(const gemm_args *a, int64_t i, int MB, int64_t k, int ku, int64_t n0, int64_t n1)
{
    const float *b = a->B + k * a->ldb;
    float *c = a->C + i * a->ldc;
    int64_t n = n0;
    for (; n + V_N <= n1; n += V_N) {
        V s[4];
        for (int r = 0; r < MB; r++) s[r] = V_LOAD(c + r * a->ldc + n);
        for (int u = 0; u < ku; u++) {
            V w = V_LOAD(b + u * a->ldb + n);
            for (int r = 0; r < MB; r++) s[r] = V_FMA(V_SET1(a->A[(i + r) * a->lda + k + u]), w, s[r]);
        }
        for (int r = 0; r < MB; r++) V_STORE(c + r * a->ldc + n, s[r]);
    }
    for (; n < n1; n++)
        for (int r = 0; r < MB; r++) {
            float s = c[r * a->ldc + n];
            for (int u = 0; u < ku; u++) s = S_FMA(a->A[(i + r) * a->lda + k + u], b[u * a->ldb + n], s);
            c[r * a->ldc + n] = s;
        }
}

static void small_nn(const gemm_args *a, int64_t n0, int64_t n1)
{
    for (int64_t i = 0; i < a->M; i++)
        for (int64_t n = n0; n < n1 && !a->acc; n++) a->C[i * a->ldc + n] = 0.0f;
    int64_t strip = 4096 / a->M / 64 * 64; /* the strip of C stays in the first cache */
    for (int64_t s0 = n0; s0 < n1; s0 += strip) {
        int64_t s1 = gemm_min(s0 + strip, n1), k = 0;
        for (; k < a->K; k += SMALL_KU) {
            int64_t i = 0;
            if (k + SMALL_KU <= a->K) {
                for (; i + 4 <= a->M; i += 4) small_nn_rows(a, i, 4, k, SMALL_KU, s0, s1);
                if (i + 2 <= a->M) {
                    small_nn_rows(a, i, 2, k, SMALL_KU, s0, s1);
                    i += 2;
                }
                if (i < a->M) small_nn_rows(a, i, 1, k, SMALL_KU, s0, s1);
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
    const float *x = a->A + i * a->lda, *w = a->B + n * a->ldb;
    V s[16];
    for (int e = 0; e < MB * NB; e++) s[e] = V_SET1(0.0f);
    int64_t k = 0;
    for (; k + V_N <= a->K; k += V_N) {
        V xs[4];
        for (int r = 0; r < MB; r++) xs[r] = V_LOAD(x + r * a->lda + k);
        for (int q = 0; q < NB; q++) {
            V wv = V_LOAD(w + q * a->ldb + k);
            for (int r = 0; r < MB; r++) s[r * NB + q] = V_FMA(xs[r], wv, s[r * NB + q]);
        }
    }
    for (int r = 0; r < MB; r++)
        for (int q = 0; q < NB; q++) {
            float lane[V_N], sum = 0.0f;
            V_STORE(lane, s[r * NB + q]);
            for (int e = 0; e < V_N; e++) sum += lane[e];
            for (int64_t t = k; t < a->K; t++) sum = S_FMA(x[r * a->lda + t], w[q * a->ldb + t], sum);
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
