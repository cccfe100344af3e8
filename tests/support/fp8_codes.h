/* fp8_codes.h - the numbers of e4m3 and e5m2 by their definition, for tests. */
#ifndef LS_TESTS_FP8_CODES_H
#define LS_TESTS_FP8_CODES_H

#include "compute/compute.h"

#include <math.h>
#include <stdint.h>

/* The number of a code, from the definition of the formats; NaN and infinity are NaN. */
static inline double fp8_value(uint8_t code, ls_fp8 form)
{
    const int bits = form == LS_E5M2 ? 2 : 3, bias = form == LS_E5M2 ? 15 : 7, e = (code & 127) >> bits,
              m = code & ((1 << bits) - 1);
    if (form == LS_E5M2 ? e == 31 : (code & 127) == 127) return NAN;
    const double a = e ? ldexp(1 + ldexp(m, -bits), e - bias) : ldexp(m, 1 - bias - bits);
    return code & 128 ? -a : a;
}

static inline double fp8_most(ls_fp8 form)
{
    return form == LS_E5M2 ? 57344 : 448;
}

/* The code of x: the nearest of all codes, the even one of two that are equally near, the largest for what is larger. */
static inline uint8_t fp8_code(double x, ls_fp8 form)
{
    const uint8_t sign = signbit(x) ? 128 : 0;
    const double a = fmin(fabs(x), fp8_most(form));
    int best = 0;
    for (int k = 1; k < 127 && !isnan(fp8_value((uint8_t)k, form)); k++) {
        const double near = fabs(fp8_value((uint8_t)k, form) - a), was = fabs(fp8_value((uint8_t)best, form) - a);
        if (near < was || (near == was && k % 2 == 0)) best = k;
    }
    return (uint8_t)(sign | best);
}

#endif
