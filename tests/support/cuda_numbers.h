/* cuda_numbers.h - arrays for tests on the emulated device: numbers rounded to a type, in double on the host, and copies on the device. */
#ifndef LS_TESTS_CUDA_NUMBERS_H
#define LS_TESTS_CUDA_NUMBERS_H

#include "cmocka_all.h"
#include "fake_cuda/runtime.h"
#include "core/buf.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define CU(call) assert_int_equal((int)(call), 0)

/* The nearest number of a type, ties to even: `bits` fraction bits, exponents of at least `least`. */
static inline double num_round(double x, int bits, int least)
{
    int e;
    if (x == 0 || isnan(x) || isinf(x)) return x;
    (void)frexp(x, &e); /* |x| in [2^(e-1), 2^e) */
    if (e - 1 < least) e = least + 1;
    return ldexp(rint(ldexp(x, bits - (e - 1))), e - 1 - bits);
}

static inline double num_as(ls_dtype dt, double x)
{
    return dt == LS_BF16  ? num_round(x, 7, -126)
           : dt == LS_F16 ? num_round(x, 10, -14)
           : dt == LS_F32 ? (double)(float)x
                          : x;
}

static inline double num_get(ls_dtype dt, const void *p, int64_t i)
{
    if (dt == LS_F64) return ((const double *)p)[i];
    if (dt == LS_F32) return (double)((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    if (dt == LS_BF16) {
        const uint32_t u = (uint32_t)h << 16;
        float f;
        memcpy(&f, &u, sizeof f);
        return (double)f;
    }
    const int e = h >> 10 & 31, m = h & 1023;
    const double a = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -a : a;
}

/* x is one of the type's numbers. */
static inline void num_put(ls_dtype dt, void *p, int64_t i, double x)
{
    if (dt == LS_F64) ((double *)p)[i] = x;
    else if (dt == LS_F32) ((float *)p)[i] = (float)x;
    else if (dt == LS_BF16) {
        const float f = (float)x;
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
    } else {
        int e;
        const double a = fabs(x);
        (void)frexp(a, &e);
        uint16_t h = 0;
        if (a > 0 && e - 1 >= -14) h = (uint16_t)((e + 14) << 10 | ((int)ldexp(a, 11 - e) & 1023));
        else if (a > 0) h = (uint16_t)ldexp(a, 24);
        ((uint16_t *)p)[i] = (uint16_t)(h | (signbit(x) ? 0x8000 : 0));
    }
}

/* n normal random numbers times scale, rounded to the type. */
static inline double *num_normal(ls_dtype dt, int64_t n, uint64_t key, double scale)
{
    double *x = ls_alloc((size_t)(n ? n : 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = num_as(dt, ls_rng_normal(key, (uint64_t)i) * scale);
    return x;
}

/* A copy on the device, without memory after the last element. `off` elements before it make it unaligned. */
static inline void *num_device(ls_dtype dt, const double *x, int64_t n, int64_t off)
{
    const size_t size = ls_dtype_nbytes(dt);
    char *host = ls_alloc((size_t)(n + off) * size + 1), *p = NULL;
    assert_non_null(host);
    for (int64_t i = 0; i < n; i++) num_put(dt, host + (size_t)off * size, i, x ? x[i] : 0);
    CU(cudaMalloc((void **)&p, (size_t)(n + off) * size + 1));
    CU(cudaMemcpy(p, host, (size_t)(n + off) * size, cudaMemcpyHostToDevice));
    ls_free(host);
    return p + (size_t)off * size;
}

/* A copy on the host, after all queued operations. */
static inline double *num_host(ls_dtype dt, const void *p, int64_t n)
{
    const size_t size = ls_dtype_nbytes(dt);
    char *raw = ls_alloc((size_t)n * size + 1);
    double *x = ls_alloc((size_t)(n ? n : 1) * sizeof *x);
    assert_non_null(raw);
    assert_non_null(x);
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(raw, p, (size_t)n * size, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; i++) x[i] = num_get(dt, raw, i);
    ls_free(raw);
    return x;
}

static inline void num_free(ls_dtype dt, void *p, int64_t off)
{
    if (p) CU(cudaFree((char *)p - (size_t)off * ls_dtype_nbytes(dt)));
}

#endif
