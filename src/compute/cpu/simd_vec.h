/* simd_vec.h - a vector of VW floats, in the compiler's vector types, with the few operations these do not have.
 *
 * The including file defines one of SIMD_NEON, SIMD_AVX2, SIMD_AVX512, SIMD_GENERIC; it is compiled for that instruction
 * set. vf floats, vi signed and vu unsigned integers of the same number of lanes. In vf_max and vf_min a NaN in the second
 * operand is passed on. v_fma is a*b + c, rounded once except in the generic table. */
#ifndef LS_COMPUTE_CPU_SIMD_VEC_H
#define LS_COMPUTE_CPU_SIMD_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(SIMD_NEON)
#include <arm_neon.h>
#define VW 4
#elif defined(SIMD_AVX2)
#include <immintrin.h>
#define VW     8
#define MM(op) _mm256_##op##_ps
typedef __m256 mm;
#elif defined(SIMD_AVX512)
#include <immintrin.h>
#define VW     16
#define MM(op) _mm512_##op##_ps
typedef __m512 mm;
#else
#define VW 4
#endif

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef float vf_at __attribute__((vector_size(4 * VW), aligned(4), may_alias)); /* anywhere in memory */

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define V_INLINE static inline __attribute__((always_inline, unused))

V_INLINE vf vf_set(float x)
{
    return x - (vf){0};
}

V_INLINE vf vf_load(const float *p)
{
    return *(const vf_at *)p;
}

V_INLINE void vf_store(float *p, vf x)
{
    *(vf_at *)p = x;
}

/* The first k lanes; the others are `fill`. k is a constant VW in main loops, where this is a plain load. */
V_INLINE vf vf_load_k(const float *p, int64_t k, float fill)
{
    if (k >= VW) return vf_load(p);
    float tmp[VW];
    for (int i = 0; i < VW; i++) tmp[i] = fill;
    memcpy(tmp, p, (size_t)k * sizeof *p);
    return vf_load(tmp);
}

V_INLINE void vf_store_k(float *p, vf x, int64_t k)
{
    if (k >= VW) {
        vf_store(p, x);
    } else {
        float tmp[VW];
        vf_store(tmp, x);
        memcpy(p, tmp, (size_t)k * sizeof *p);
    }
}

/* Runs `body` with i = 0, VW, 2 VW, ... and k lanes in use. */
#define V_EACH(i, k, n, body)            \
    do {                                 \
        int64_t i = 0;                   \
        for (; i + VW <= (n); i += VW) { \
            const int64_t k = VW;        \
            body                         \
        }                                \
        if (i < (n)) {                   \
            const int64_t k = (n)-i;     \
            body                         \
        }                                \
    } while (0)

V_INLINE vf v_select(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

V_INLINE vu vu_lanes(void)
{
    vu x;
    for (int i = 0; i < VW; i++) x[i] = (uint32_t)i;
    return x;
}

#if defined(SIMD_NEON)
V_INLINE vf v_fma(vf a, vf b, vf c)
{
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
V_INLINE vf vf_max(vf a, vf b)
{
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}
V_INLINE vf vf_min(vf a, vf b)
{
    return (vf)vminq_f32((float32x4_t)a, (float32x4_t)b);
}
V_INLINE vf vf_sqrt(vf a)
{
    return (vf)vsqrtq_f32((float32x4_t)a);
}
V_INLINE float vf_sum(vf a)
{
    return vaddvq_f32((float32x4_t)a);
}
V_INLINE float vf_top(vf a)
{
    return vmaxvq_f32((float32x4_t)a);
}
#else
#if defined(SIMD_AVX2) || defined(SIMD_AVX512)
V_INLINE vf v_fma(vf a, vf b, vf c)
{
    return (vf)MM(fmadd)((mm)a, (mm)b, (mm)c);
}
V_INLINE vf vf_max(vf a, vf b)
{
    return (vf)MM(max)((mm)a, (mm)b);
}
V_INLINE vf vf_min(vf a, vf b)
{
    return (vf)MM(min)((mm)a, (mm)b);
}
V_INLINE vf vf_sqrt(vf a)
{
    return (vf)MM(sqrt)((mm)a);
}
#else
V_INLINE vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
V_INLINE vf vf_max(vf a, vf b)
{
    return v_select((vi)(a > b), a, b);
}
V_INLINE vf vf_min(vf a, vf b)
{
    return v_select((vi)(a < b), a, b);
}
V_INLINE vf vf_sqrt(vf a)
{
    for (int i = 0; i < VW; i++) a[i] = __builtin_sqrtf(a[i]);
    return a;
}
#endif
/* Halves are folded onto each other: a tree, the same one every time. */
V_INLINE float vf_sum(vf a)
{
    float t[VW];
    vf_store(t, a);
    for (int half = VW / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}
V_INLINE float vf_top(vf a)
{
    float t[VW];
    vf_store(t, a);
    for (int half = VW / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
    return t[0];
}
#endif

#endif
