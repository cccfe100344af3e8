/* half.h - 16-bit reals as numbers: bfloat16 (8 bits of exponent, 7 of fraction) and IEEE binary16 (5, 10). From float: to the nearest, ties
 * to even; what is too large becomes infinite; a NaN stays one. */
#ifndef LS_CORE_HALF_H
#define LS_CORE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float ls_bf16_to_f32(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint16_t ls_bf16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffU) > 0x7f800000U) return 0x7fff;
    return (uint16_t)((u + 0x7fffU + (u >> 16 & 1U)) >> 16);
}

static inline float ls_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t u;
    float x;
    if (rest >= 0x7c00) u = sign | 0x7f800000U | (rest & 0x3ff) << 13;
    else if (rest >= 0x400) u = sign | ((rest << 13) + (112U << 23));
    else { /* below the smallest normal one: a multiple of 2^-24 */
        x = (float)rest * 0x1p-24f;
        memcpy(&u, &x, sizeof u);
        u |= sign;
    }
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint16_t ls_f16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffffU;
    if (u > 0x7f800000U) return 0x7fff;
    if (u >= 0x477ff000U) return (uint16_t)(sign | 0x7c00); /* 65520 and more */
    if (u < 0x38800000U) {                                  /* below 2^-14: the sum's last bit is worth 2^-24 */
        float y;
        memcpy(&y, &u, sizeof y);
        y += 0.5f;
        memcpy(&u, &y, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000U));
    }
    return (uint16_t)(sign | ((u - (112U << 23) + 0xfffU + (u >> 13 & 1U)) >> 13));
}

#endif
