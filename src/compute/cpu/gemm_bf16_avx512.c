/* gemm_bf16_avx512.c - micro-kernel for AVX512_BF16: 14 x 32 of C in 28 of the 32 registers; a lane of A and of B is a pair of bf16 numbers, two
 * steps of K.
 *
 * A pair of steps is 28 dot products (28 cycles on one pipe), 2 loads of B and 14 broadcasts of A. kc = 768: the panel of A (21 KiB) stays in
 * the first cache while panels of B stream from the second.
 *
 * With GEMM_EMULATE (gemm_bf16_avx512_emulated.c) the vectors and the instructions are those of gemm_bf16_emulate.h. */
#include "compute/cpu/gemm_bf16_pairs.h"

enum { GEMM_MR = 14, GEMM_NR = 32 };
#define GEMM_A_STAYS 1
#define EACH_ROW(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
#define STEPS(kb)    gemm_ceil_div(kb, 2)
#ifdef GEMM_EMULATE
#define UNROLL_K       /* an emulated instruction is many: unrolled, this takes the compiler three times as long */
#define V              vf
#define V_(op)         emu_##op
#define V_DOT(x, b, c) emu_dpbf16(c, x, b)

GEMM_INLINE vf emu_setzero(void)
{
    return (vf){0};
}
GEMM_INLINE vf emu_loadu(const float *p)
{
    return *(const vf_at *)p;
}
GEMM_INLINE void emu_storeu(float *p, vf x)
{
    *(vf_at *)p = x;
}
GEMM_INLINE vf emu_set1(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (vf)((vu){0} + bits);
}
GEMM_INLINE vf emu_add(vf a, vf b)
{
    return a + b;
}
#else
#define UNROLL_K       _Pragma("GCC unroll 2")
#define V              __m512
#define V_(op)         _mm512_##op##_ps
#define V_DOT(x, b, c) _mm512_dpbf16_ps(c, (__m512bh)(x), (__m512bh)(b))
#endif
#include "compute/cpu/gemm_avx.h"

static void pack_a(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    const pairs_layout l = {.w = GEMM_MR, .stride = 4 * GEMM_MR};
    if (k_contig) pack_pairs(dst, panel, src, ld, true, w, kb, l);
    else pack_pairs(dst, panel, src, ld, false, w, kb, l);
}

static void pack_b(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    const pairs_layout l = {.w = GEMM_NR, .stride = 4 * GEMM_NR, .unit = 64};
    if (k_contig) pack_pairs(dst, panel, src, ld, true, w, kb, l);
    else pack_pairs(dst, panel, src, ld, false, w, kb, l);
}

#ifndef GEMM_EMULATE
static double spin(int64_t n)
{
#define ROUND(i)                      \
    c##i##_0 = V_DOT(x, x, c##i##_0); \
    c##i##_1 = V_DOT(x, x, c##i##_1);
#define SUM(i) x = V_(add)(x, V_(add)(c##i##_0, c##i##_1));
    EACH_ROW(DECLARE)
    V x = V_(setzero)();
    float out[16];
    for (int64_t k = 0; k < n; k++) {
        __asm__ volatile("" : "+v"(x)); /* a number that the compiler does not know */
        EACH_ROW(ROUND)
    }
    EACH_ROW(SUM)
    V_(storeu)(out, x);
    return (double)n * 2 * GEMM_MR * 16 * 4 + (double)out[0];
}
#endif

#ifdef __AVX2__ /* implied by AVX-512; the emulation is compiled with it and without it */
static bool usable(void)
{
#ifdef GEMM_EMULATE
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
#endif
}
#endif

const gemm_kernel GEMM_BF16_KERNEL(avx512) = {
    .name = "avx512-bf16" GEMM_BF16_SUFFIX,
    .bf16 = true,
#ifdef GEMM_EMULATE
    .emulated = true,
#endif
#ifdef __AVX2__
    .usable = usable,
#endif
    .mr = GEMM_MR,
    .nr = GEMM_NR,
    .kc = 768,
    .k_round = 2,
    .elem_nbytes = 2,
    .mt = 140,
    .nt = 512,
    .tmp_nbytes = 1792, /* 14 x 32 floats */
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = gemm_tile_block,
#ifndef GEMM_EMULATE
    .spin = spin,
#endif
};
