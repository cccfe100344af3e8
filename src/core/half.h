/* half.h - the two 16-bit types as floats and back, on the host. Rounding is to the nearest, ties to even; what is too large becomes an
 * infinity, a NaN stays one. */
#ifndef LS_CORE_HALF_H
#define LS_CORE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float ls_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint32_t ls_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* bfloat16: the upper half of a float. */
static inline float ls_from_bf16(uint16_t h)
{
    return ls_float_of((uint32_t)h << 16);
}

static inline uint16_t ls_to_bf16(float x)
{
    const uint32_t b = ls_bits_of(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(b >> 16 | 0x40);
    return (uint16_t)((b + 0x7fffu + (b >> 16 & 1)) >> 16);
}

/* IEEE half: 5 bits of exponent, 10 of fraction. */
static inline float ls_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mant = h & 0x3ffu, exp = h >> 10 & 31;
    if (exp == 31) return ls_float_of(sign | 0x7f800000u | mant << 13);
    if (exp) return ls_float_of(sign | (exp + 112) << 23 | mant << 13);
    const float x = (float)mant * 0x1p-24f; /* subnormal, exact */
    return sign ? -x : x;
}

static inline uint16_t ls_to_f16(float x)
{
    const uint32_t b = ls_bits_of(x), sign = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (a < 0x38800000u)                                     /* below 2^-14: adding 0.5 rounds at 2^-24 */
        return (uint16_t)(sign | (ls_bits_of(ls_float_of(a) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13));
}

#endif
