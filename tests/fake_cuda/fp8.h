/* fp8.h - CUDA's 8-bit floating-point formats in plain C++: e4m3 (bias 7, no infinity, 448 is the largest) and e5m2 (bias 15, 57344). Conversions
 * round to nearest even and saturate to the largest finite number; NaN stays NaN. */
#ifndef LS_EMU_FP8_H
#define LS_EMU_FP8_H

#include <math.h>
#include <stdint.h>

typedef enum { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;
typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;

static inline float emu_of_fp8(uint8_t code, bool e5m2)
{
    const int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, m = code & ((1 << mantissa_bits) - 1);
    const int e = (code & 127) >> mantissa_bits;
    const float sign = code & 128 ? -1.0f : 1.0f;
    if ((code & 127) == 127 || (e5m2 && e == 31 && m)) return NAN;
    if (e5m2 && e == 31) return sign * INFINITY;
    if (!e) return sign * ldexpf((float)m, 1 - bias - mantissa_bits);
    return sign * ldexpf((float)(m + (1 << mantissa_bits)), e - bias - mantissa_bits);
}

static inline uint8_t emu_to_fp8(float x, bool e5m2)
{
    const int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, most = e5m2 ? 0x7b : 0x7e;
    const uint8_t sign = signbit(x) ? 128 : 0;
    const float a = fabsf(x);
    int e = 0;
    if (x != x) return (uint8_t)(sign | 0x7f);
    if (a >= emu_of_fp8((uint8_t)most, e5m2)) return (uint8_t)(sign | most);
    (void)frexpf(
        a, &e); /* a = f 2^e, 1/2 <= f < 1: steps of 2^(e - 1 - mantissa_bits), and one size below the normal numbers */
    const int step = a > 0 && e - 1 > 1 - bias ? e - 1 - mantissa_bits : 1 - bias - mantissa_bits;
    const int steps = (int)rintf(ldexpf(a, -step)); /* to nearest even */
    const int code = steps + ((step - (1 - bias - mantissa_bits)) << mantissa_bits);
    return (uint8_t)(sign | (code > most ? most : code));
}

static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t, __nv_fp8_interpretation_t form)
{
    return (__nv_fp8x2_storage_t)(emu_to_fp8(x.x, form == __NV_E5M2) | emu_to_fp8(x.y, form == __NV_E5M2) << 8);
}

#endif
