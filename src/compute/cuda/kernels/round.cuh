/* round.cuh - from float to a parameter's type, to the nearest or stochastically; gains of norms less 1 (compute.h, ls_gains). */
#ifndef LS_CUDA_KERNELS_ROUND_CUH
#define LS_CUDA_KERNELS_ROUND_CUH

#include "compute/cuda/kernels/optim.h"
#include "compute/cuda/kernels/vec.cuh"

/* Up with the probability of the bits that are dropped over 2^16: they carry into the rest when 16 random bits are
 * added. */
LS_DEVICE __nv_bfloat16 bf16_stochastic(float x, uint32_t random)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return __float2bfloat16_rn(x); /* infinities, NaNs */
    return __ushort_as_bfloat16((unsigned short)((u + (random & 0xffffu)) >> 16));
}

/* Elements at … at+N-1 of the range; gains among them are changed. */
template <class T, bool STOCHASTIC, int N>
LS_DEVICE vec<T, N> round_all(float (&f)[N], const cu_rounding &round, const ls_gains &gains, int64_t at)
{
#pragma unroll
    for (int k = 0; k < LS_MOST_GAINS; k++)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (k < gains.n && at + i >= gains.at[k][0] && at + i < gains.at[k][1]) f[i] -= 1.0f;
    if constexpr (STOCHASTIC) {
        bf16 x[N];
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = bf16_stochastic(f[i], rng_u32(round.key, (uint32_t)(round.first + at + i)));
        vec<T, N> v;
        memcpy(&v, x, sizeof v);
        return v;
    } else {
        return vec_of<T>(f);
    }
}

#endif
