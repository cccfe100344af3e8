/* gemm_avx2.c - fp32 micro-kernel for AVX2 with FMA: 6 x 16 of C in 12 of the 16 registers, A broadcast from memory.
 * kc = 256: a panel of B (16 KiB) and one of A (6 KiB) share a first cache of 32 KiB. */
#include "compute/cpu/gemm_impl.h"
#include "compute/cpu/gemm_pack.h"

#include <immintrin.h>
#include <math.h>

enum { GEMM_MR = 6, GEMM_NR = 16 };
#define GEMM_A_STAYS 0

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)

static void micro(int64_t kb, const float *pa, const float *pb, float *c, int64_t ldc, const float *bias, bool add)
{
#define DECLARE(i) __m256 c##i##0 = _mm256_setzero_ps(), c##i##1 = _mm256_setzero_ps();
#define FMA(i)                                     \
    {                                              \
        __m256 x = _mm256_broadcast_ss(pa + i);    \
        c##i##0 = _mm256_fmadd_ps(x, b0, c##i##0); \
        c##i##1 = _mm256_fmadd_ps(x, b1, c##i##1); \
    }
#define ADD(i)                                                      \
    c##i##0 = _mm256_add_ps(_mm256_loadu_ps(c + (i)*ldc), c##i##0); \
    c##i##1 = _mm256_add_ps(_mm256_loadu_ps(c + (i)*ldc + 8), c##i##1);
#define BIAS(i)                           \
    c##i##0 = _mm256_add_ps(c##i##0, b0); \
    c##i##1 = _mm256_add_ps(c##i##1, b1);
#define OUT(i)                              \
    _mm256_storeu_ps(c + (i)*ldc, c##i##0); \
    _mm256_storeu_ps(c + (i)*ldc + 8, c##i##1);
    EACH_ROW(DECLARE)
    for (int i = 0; i < GEMM_MR; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + GEMM_NR - 1, 1);
    }
#pragma GCC unroll 4
    for (int64_t k = 0; k < kb; k++) {
        __m256 b0 = _mm256_loadu_ps(pb), b1 = _mm256_loadu_ps(pb + 8);
        EACH_ROW(FMA)
        pa += GEMM_MR;
        pb += GEMM_NR;
    }
    if (add) { EACH_ROW(ADD) }
    if (bias) {
        __m256 b0 = _mm256_loadu_ps(bias), b1 = _mm256_loadu_ps(bias + 8);
        EACH_ROW(BIAS)
    }
    EACH_ROW(OUT)
}

#include "compute/cpu/gemm_tile.h"

#define V              __m256
#define V_N            8
#define V_LOAD(p)      _mm256_loadu_ps(p)
#define V_STORE(p, v)  _mm256_storeu_ps(p, v)
#define V_SET1(x)      _mm256_set1_ps(x)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define S_FMA(a, b, c) fmaf(a, b, c)
#include "compute/cpu/gemm_small.h"

static void pack_a(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    gemm_pack_panels(dst, panel, src, ld, k_contig, w, kb, GEMM_MR);
}

static void pack_b(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    gemm_pack_panels(dst, panel, src, ld, k_contig, w, kb, GEMM_NR);
}

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const gemm_kernel gemm_kernel_avx2 = {
    .name = "avx2",
    .usable = usable,
    .mr = GEMM_MR,
    .nr = GEMM_NR,
    .kc = 256,
    .k_round = 1,
    .elem_nbytes = 4,
    .mt = 96,
    .nt = 256,
    .tmp_nbytes = 384,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = gemm_tile_block,
    .small = small_columns,
};
