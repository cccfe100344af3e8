/* gemm_avx512.c - fp32 micro-kernel for AVX-512: 14 x 32 of C in 28 of the 32 registers, A broadcast from memory inside the
 * multiply-add.
 *
 * A step of K is 28 multiply-adds (14 cycles on two pipes), 2 loads of B and 14 broadcasts of A. kc = 384: the panel of A
 * (21 KiB) stays in the first cache while panels of B stream from the second at 9 bytes a cycle. */
#include "compute/cpu/gemm_impl.h"
#include "compute/cpu/gemm_pack.h"

#include <immintrin.h>
#include <math.h>

enum { GEMM_MR = 14, GEMM_NR = 32 };
#define GEMM_A_STAYS 1

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)

static void micro(int64_t kb, const float *pa, const float *pb, float *c, int64_t ldc, const float *bias, bool add)
{
#define DECLARE(i) __m512 c##i##_0 = _mm512_setzero_ps(), c##i##_1 = _mm512_setzero_ps();
#define FMA(i)                                       \
    {                                                \
        __m512 x = _mm512_set1_ps(pa[i]);            \
        c##i##_0 = _mm512_fmadd_ps(x, b0, c##i##_0); \
        c##i##_1 = _mm512_fmadd_ps(x, b1, c##i##_1); \
    }
#define ADD(i)                                                        \
    c##i##_0 = _mm512_add_ps(_mm512_loadu_ps(c + (i)*ldc), c##i##_0); \
    c##i##_1 = _mm512_add_ps(_mm512_loadu_ps(c + (i)*ldc + 16), c##i##_1);
#define BIAS(i)                             \
    c##i##_0 = _mm512_add_ps(c##i##_0, b0); \
    c##i##_1 = _mm512_add_ps(c##i##_1, b1);
#define OUT(i)                               \
    _mm512_storeu_ps(c + (i)*ldc, c##i##_0); \
    _mm512_storeu_ps(c + (i)*ldc + 16, c##i##_1);
    EACH_ROW(DECLARE)
    for (int i = 0; i < GEMM_MR; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + 16, 1);
        __builtin_prefetch(c + i * ldc + GEMM_NR - 1, 1);
    }
#pragma GCC unroll 2
    for (int64_t k = 0; k < kb; k++) {
        __m512 b0 = _mm512_loadu_ps(pb), b1 = _mm512_loadu_ps(pb + 16);
        __builtin_prefetch(pb + 8 * GEMM_NR, 0, 3);
        __builtin_prefetch(pb + 8 * GEMM_NR + 16, 0, 3);
        EACH_ROW(FMA)
        pa += GEMM_MR;
        pb += GEMM_NR;
    }
    if (add) { EACH_ROW(ADD) }
    if (bias) {
        __m512 b0 = _mm512_loadu_ps(bias), b1 = _mm512_loadu_ps(bias + 16);
        EACH_ROW(BIAS)
    }
    EACH_ROW(OUT)
}

#include "compute/cpu/gemm_tile.h"

#define V              __m512
#define V_N            16
#define V_LOAD(p)      _mm512_loadu_ps(p)
#define V_STORE(p, v)  _mm512_storeu_ps(p, v)
#define V_SET1(x)      _mm512_set1_ps(x)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define S_FMA(a, b, c) fmaf(a, b, c)
#include "compute/cpu/gemm_small.h"

void gemm_small_avx512(const gemm_args *a, int64_t n0, int64_t n1)
{
    small_columns(a, n0, n1);
}

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
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const gemm_kernel gemm_kernel_avx512 = {
    .name = "avx512",
    .usable = usable,
    .mr = GEMM_MR,
    .nr = GEMM_NR,
    .kc = 384,
    .k_round = 1,
    .elem_nbytes = 4,
    .mt = 140,
    .nt = 256,
    .tmp_nbytes = 1792,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = gemm_tile_block,
    .small = gemm_small_avx512,
};
