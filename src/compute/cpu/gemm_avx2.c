/* gemm_avx2.c - fp32 micro-kernel for AVX2 with FMA: 6 x 16 of C in 12 of the 16 registers, A broadcast from memory.
 * kc = 256: a panel of B (16 KiB) and one of A (6 KiB) share a first cache of 32 KiB. */
#include <immintrin.h>

enum { GEMM_MR = 6, GEMM_NR = 16 };
#define GEMM_A_STAYS   0
#define EACH_ROW(X)    X(0) X(1) X(2) X(3) X(4) X(5)
#define V              __m256
#define V_(op)         _mm256_##op##_ps
#define UNROLL_K       _Pragma("GCC unroll 4")
#define V_DOT(x, b, c) V_(fmadd)(x, b, c)
#define STEPS(kb)      (kb)
#include "compute/cpu/gemm_avx.h"
#include "compute/cpu/gemm_pack.h"

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const gemm_kernel gemm_kernel_avx2 = {
    .name = "avx2",
    .usable = usable,
    GEMM_TILE_KERNEL,
    .kc = 256,
    .mt = 96,
    .nt = 256,
    .tmp_nbytes = 384,
};
