/* round.cuh - from float to a parameter's type, to the nearest or stochastically. */
#ifndef LS_CUDA_KERNELS_ROUND_CUH
#define LS_CUDA_KERNELS_ROUND_CUH

#include "compute/cuda/kernels/optim.h"
#include "compute/cuda/kernels/vec.cuh"

/* Up with the probability of the bits that are dropped over 2^16: they carry into the rest when 16 random bits are added. */
LS_DEVICE __nv_bfloat16 bf16_stochastic(float x, uint32_t random)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return __float2bfloat16_rn(x); /* infinities, NaNs */
    return __ushort_as_bfloat16((unsigned short)((u + (random & 0xffffu)) >> 16));
}

template <class T, bool STOCHASTIC> LS_DEVICE T round_to(float x, const cu_rounding &round, int64_t i)
{
    if constexpr (STOCHASTIC) return bf16_stochastic(x, rng_u32(round.key, (uint32_t)(round.first + i)));
    return from_float<T>(x);
}

#endif
