/* gemm_avx512.c - fp32 micro-kernel for AVX-512: 14 x 32 of C in 28 of the 32 registers, A broadcast from memory inside the
 * multiply-add.
 *
 * A step of K is 28 multiply-adds (14 cycles on two pipes), 2 loads of B and 14 broadcasts of A. kc = 384: the panel of A
 * (21 KiB) stays in the first cache while panels of B stream from the second at 9 bytes a cycle. */
#include <immintrin.h>

enum { GEMM_MR = 14, GEMM_NR = 32 };
#define GEMM_A_STAYS   1
#define EACH_ROW(X)    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
#define V              __m512
#define V_(op)         _mm512_##op##_ps
#define UNROLL_K       _Pragma("GCC unroll 2")
#define V_DOT(x, b, c) V_(fmadd)(x, b, c)
#define STEPS(kb)      (kb)
#include "compute/cpu/gemm_avx.h"
#include "compute/cpu/gemm_pack.h"

static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const gemm_kernel gemm_kernel_avx512 = {
    .name = "avx512",
    .usable = usable,
    GEMM_TILE_KERNEL,
    .kc = 384,
    .mt = 140,
    .nt = 256,
    .tmp_nbytes = 1792,
};
