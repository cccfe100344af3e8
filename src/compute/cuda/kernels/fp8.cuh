/* fp8.cuh - numbers in 8 bits: codes, the transposition of bytes, and the largest magnitude of a tensor. */
#ifndef LS_CUDA_KERNELS_FP8_CUH
#define LS_CUDA_KERNELS_FP8_CUH

#include "compute/cuda/gpu.cuh"

#include <cuda_fp8.h>

/* Rounded to nearest even and saturated; a is the lowest byte. */
template <bool E5M2> LS_DEVICE uint32_t code4(float a, float b, float c, float d)
{
    constexpr __nv_fp8_interpretation_t form = E5M2 ? __NV_E5M2 : __NV_E4M3;
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, form);
    return low | (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, form) << 16;
}

/* Four rows of four bytes become four columns. */
LS_DEVICE void turn4(uint32_t (&w)[4])
{
    const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140),
                   c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410);
    w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410);
    w[3] = __byte_perm(c, d, 0x7632);
}

/* A magnitude as an integer: ordered as the numbers are, NaN above all. Returns the larger of `most` and that of f. */
LS_DEVICE unsigned larger(unsigned most, float f)
{
    const unsigned size = __float_as_uint(f) & 0x7fffffffu;
    return size > most ? size : most;
}

/* For one thread of a block; few blocks have to write. */
LS_DEVICE void raise(unsigned *amax, unsigned most)
{
    if (most > *static_cast<volatile unsigned *>(amax)) atomicMax(amax, most);
}

#endif
