/* gemm_avx.h - the micro-kernel of AVX2, AVX-512 and AVX512_BF16: a row of C is two vectors, A is broadcast from memory inside the
 * multiply-add. The including file defines, besides what gemm_tile.h needs,
 *
 *   V, V_(op)      the vector and its operation of that name
 *   V_DOT(x, b, c) c + x b, in each lane: one product, or the sum of a pair of bf16 products
 *   STEPS(kb)      how many of them kb steps of K are
 *   EACH_ROW(X)    X(0) … X(GEMM_MR - 1)
 *   UNROLL_K       the pragma that unrolls the loop over K */
#ifndef LS_COMPUTE_CPU_GEMM_AVX_H
#define LS_COMPUTE_CPU_GEMM_AVX_H

#include "compute/cpu/gemm_tile.h"

enum { HALF = GEMM_NR / 2 };

static void micro(int64_t kb, const float *pa, const float *pb, float *c, int64_t ldc, const float *bias, bool add)
{
#define DECLARE(i) V c##i##_0 = V_(setzero)(), c##i##_1 = V_(setzero)();
#define FMA(i)                             \
    {                                      \
        V x = V_(set1)(pa[i]);             \
        c##i##_0 = V_DOT(x, b0, c##i##_0); \
        c##i##_1 = V_DOT(x, b1, c##i##_1); \
    }
#define ADD(i)                                            \
    c##i##_0 = V_(add)(V_(loadu)(c + (i)*ldc), c##i##_0); \
    c##i##_1 = V_(add)(V_(loadu)(c + (i)*ldc + HALF), c##i##_1);
#define BIAS(i)                       \
    c##i##_0 = V_(add)(c##i##_0, b0); \
    c##i##_1 = V_(add)(c##i##_1, b1);
#define OUT(i)                         \
    V_(storeu)(c + (i)*ldc, c##i##_0); \
    V_(storeu)(c + (i)*ldc + HALF, c##i##_1);
    EACH_ROW(DECLARE)
    for (int i = 0; i < GEMM_MR; i++) {
        for (int j = 0; j < GEMM_NR; j += 16) __builtin_prefetch(c + i * ldc + j, 1);
        __builtin_prefetch(c + i * ldc + GEMM_NR - 1, 1);
    }
    UNROLL_K
    for (int64_t k = 0; k < STEPS(kb); k++) {
        V b0 = V_(loadu)(pb), b1 = V_(loadu)(pb + HALF);
        for (int j = 0; GEMM_A_STAYS && j < GEMM_NR; j += 16) __builtin_prefetch(pb + 8 * GEMM_NR + j, 0, 3);
        EACH_ROW(FMA)
        pa += GEMM_MR;
        pb += GEMM_NR;
    }
    if (add) { EACH_ROW(ADD) }
    if (bias) {
        V b0 = V_(loadu)(bias), b1 = V_(loadu)(bias + HALF);
        EACH_ROW(BIAS)
    }
    EACH_ROW(OUT)
}

#endif
