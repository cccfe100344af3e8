/* gemm_bf16_emulate.h - the arithmetic of the bf16 instructions, for CPUs without them and for tests.
 *
 * VDPBF16PS and TDPBF16PS (Intel's manual): fp32 multiply-adds rounded once to the nearest even, whatever MXCSR says; numbers below the
 * smallest normal one, in operands and results, are zero.
 *
 *   VDPBF16PS    c = (c + a1 b1) + a0 b0 in each lane: the odd element of the pair first
 *   TDPBF16PS    even and odd elements of 16 pairs are summed separately, from zero and in order; c = c + (even + odd)
 *   VCVTNE2PS2BF16   to the nearest even; denormals become zero, NaN stays NaN (quiet)
 *
 * BFMMLA (Arm's manual, FPCR.EBF = 0, the state in which Linux starts a process): products of two pairs are added, then the sum is added to
 * c, for the first pair of k and then for the second; every operation rounds to odd (a result that is not exact is cut, and its last bit
 * becomes 1), flushes denormals, and makes infinity of what is 2^128 or more.
 *
 * What the manuals leave to the CPU: whether a result is too small before or after it is rounded, and the bits of a NaN. CPUs with FEAT_EBF16
 * round BFMMLA in another way if FPCR.EBF is set. */
#ifndef LS_COMPUTE_CPU_GEMM_BF16_EMULATE_H
#define LS_COMPUTE_CPU_GEMM_BF16_EMULATE_H

#include "compute/cpu/gemm_vec16.h"

#include <math.h>
#include <string.h>
#ifdef __FMA__
#include <immintrin.h>
#endif

#define EMU_EXPONENT 0x7f800000u

/* ---- x86: 16 lanes ---- */

/* Denormals become zeros of their sign. */
GEMM_INLINE vf emu_flush(vf x)
{
    const vu u = (vu)x;
    return (vf)(u & ~((vu)((u & EMU_EXPONENT) == 0u) & 0x7fffffffu));
}

#ifndef __FMA__
GEMM_INLINE bool emu_any(vu mask)
{
    uint32_t any = 0;
    for (int i = 0; i < 16; i++) any |= mask[i];
    return any != 0;
}
#endif

/* a b + c. Without an instruction for it: the product of two bf16 numbers is exact in fp32, unless it is too small or too large; then fmaf has
 * the true sum. */
GEMM_INLINE vf emu_fma(vf a, vf b, vf c)
{
#ifdef __FMA__
    __m256 x[2], y[2], z[2];
    const vf fa = emu_flush(a), fb = emu_flush(b);
    memcpy(x, &fa, sizeof x);
    memcpy(y, &fb, sizeof y);
    memcpy(z, &c, sizeof z);
    for (int i = 0; i < 2; i++) z[i] = _mm256_fmadd_ps(x[i], y[i], z[i]);
    vf r;
    memcpy(&r, z, sizeof r);
#else
    const vf x = emu_flush(a), y = emu_flush(b), p = x * y;
    const vu e = (vu)p & EMU_EXPONENT, small = (vu)(e == 0u) & (vu)(x != 0.0f) & (vu)(y != 0.0f);
    vf r = c + p;
    if (emu_any(small | (vu)(e == EMU_EXPONENT)))
        for (int i = 0; i < 16; i++) r[i] = fmaf(x[i], y[i], c[i]);
#endif
    return emu_flush(r);
}

GEMM_INLINE vf emu_even(vu pairs)
{
    return (vf)(pairs << 16);
}

GEMM_INLINE vf emu_odd(vu pairs)
{
    return (vf)(pairs & 0xffff0000u);
}

/* VDPBF16PS */
GEMM_INLINE vf emu_dpbf16(vf c, vf a, vf b)
{
    return emu_fma(emu_even((vu)a), emu_even((vu)b), emu_fma(emu_odd((vu)a), emu_odd((vu)b), c));
}

/* 16 numbers to bf16, in the lower half of each lane, as VCVTNE2PS2BF16 rounds them */
GEMM_INLINE vu emu_round(vf x)
{
    const vu v = (vu)emu_flush(x), nan = (vu)((v & 0x7fffffffu) > EMU_EXPONENT);
    return (nan & ((v >> 16) | 0x40u)) | (~nan & ((v + 0x7fffu + ((v >> 16) & 1u)) >> 16));
}

/* TDPBF16PS: c (16,16) += a (16 rows of 16 pairs) b (16 pairs of k x 16 columns) */
static inline void emu_tdpbf16(float *c, const uint32_t *a, const uint32_t *b)
{
    for (int i = 0; i < 16; i++) {
        vf even = {0}, odd = {0};
        for (int p = 0; p < 16; p++) {
            vu row;
            memcpy(&row, b + 16 * p, sizeof row);
            const vu x = (vu){0} + a[16 * i + p];
            even = emu_fma(emu_even(x), emu_even(row), even);
            odd = emu_fma(emu_odd(x), emu_odd(row), odd);
        }
        vf sum;
        memcpy(&sum, c + 16 * i, sizeof sum);
        sum = emu_flush(emu_flush(sum) + emu_flush(even + odd));
        memcpy(c + 16 * i, &sum, sizeof sum);
    }
}

/* ---- Arm: 4 lanes ---- */

typedef float emu_v4 __attribute__((vector_size(16), may_alias));
typedef uint32_t emu_u4 __attribute__((vector_size(16), may_alias));

GEMM_INLINE emu_v4 emu_flush4(emu_v4 x)
{
    const emu_u4 u = (emu_u4)x;
    return (emu_v4)(u & ~((emu_u4)((u & EMU_EXPONENT) == 0u) & 0x7fffffffu));
}

/* a + b where the nearest number is infinity or NaN: below 2^128 rounding to odd has the largest number instead. */
static inline float emu_add_large(float a, float b)
{
    const double s = (double)a + (double)b;
    if (fabs(s) < 0x1p128) return s < 0 ? -0x1.fffffep127f : 0x1.fffffep127f;
    return a + b;
}

/* a + b, rounded to odd: the error of the nearest sum (exact, by Knuth's two-sum) says which way it was rounded. */
GEMM_INLINE emu_v4 emu_add_odd(emu_v4 a, emu_v4 b)
{
    const emu_v4 s = a + b, t = s - a, error = (a - (s - t)) + (b - t);
    const emu_u4 inexact = (emu_u4)(error != 0.0f),
                 away = inexact & (emu_u4)(((emu_u4)error ^ (emu_u4)s) >> 31 == 1u); /* rounded away from zero */
    const emu_u4 large = (emu_u4)(((emu_u4)s & EMU_EXPONENT) == EMU_EXPONENT);
    emu_v4 r = (emu_v4)((((emu_u4)s + away) & ~inexact) | ((((emu_u4)s + away) | 1u) & inexact)); /* + away: - 1 */
    if (large[0] | large[1] | large[2] | large[3])
        for (int i = 0; i < 4; i++)
            if (large[i]) r[i] = emu_add_large(a[i], b[i]);
    return emu_flush4(r);
}

/* BFMMLA: c (2,2) += a (2,4) b (2,4)^T */
GEMM_INLINE emu_v4 emu_bfmmla(emu_v4 c, const uint16_t a[8], const uint16_t b[8])
{
    for (int k = 0; k < 4; k += 2) {
        emu_v4 p[2];
        for (int e = 0; e < 2; e++) {
            const emu_u4 x = {a[k + e], a[k + e], a[4 + k + e], a[4 + k + e]},
                         y = {b[k + e], b[4 + k + e], b[k + e], b[4 + k + e]};
            p[e] = emu_flush4(emu_flush4((emu_v4)(x << 16)) * emu_flush4((emu_v4)(y << 16)));
        }
        c = emu_add_odd(c, emu_add_odd(p[0], p[1]));
    }
    return c;
}

#endif
