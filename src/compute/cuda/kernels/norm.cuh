/* norm.cuh - what the kernels of layer normalisation share: how a row is laid over warps, and sums over those. */
#ifndef LS_CUDA_KERNELS_NORM_CUH
#define LS_CUDA_KERNELS_NORM_CUH

#include "compute/cuda/kernels/vec.cuh"

/* Gains as they are stored (compute.h, ls_gains), to be multiplied by. */
template <class T, int N> LS_DEVICE void widen_gains(float (&w)[N], const vec<T, N> &stored)
{
    widen(w, stored);
#pragma unroll
    for (int i = 0; i < N; i++) w[i] += sizeof(T) == 2 ? 1.0f : 0.0f;
}

template <class T> LS_DEVICE float gain_of(T stored)
{
    return sizeof(T) == 2 ? 1.0f + to_float(stored) : to_float(stored);
}

#define NORM_THREADS 256
#define NORM_WARPS   (NORM_THREADS / 32)

/* The sum of v over the W warps that own a row, to all of their lanes. room: NORM_WARPS floats, not used again before
 * another barrier of the block. All threads of the block come here when W > 1. */
template <int W> LS_DEVICE float group_sum(float v, float *room)
{
    v = warp_sum(v);
    if (W == 1) return v;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) room[warp] = v;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int k = 0; k < W; k++) sum += room[warp / W * W + k];
    return sum;
}

/* Calls to.rows<NP, W>() with the smallest layout that holds C columns in registers, or to.any(). A lane holds at most
 * 32 numbers. */
template <class T, class To> static int norm_pick(int64_t C, bool aligned, const To &to)
{
    constexpr int N = whole<T>, TOP = 32 / N;
    if (C % N != 0 || !aligned || C > 4 * 32 * 32) return to.any();
    const int64_t n_pack = C / N;
    const int W = n_pack <= 32 * TOP ? 1 : n_pack <= 64 * TOP ? 2 : 4;
    const int64_t np = ceil_div<int64_t>(n_pack, 32 * W);
    if constexpr (N == 4) { /* float: up to 8 packs a lane */
        if (W == 1)
            return np <= 2   ? to.template rows<2, 1>()
                   : np <= 4 ? to.template rows<4, 1>()
                   : np <= 6 ? to.template rows<6, 1>()
                             : to.template rows<8, 1>();
        return W == 2 ? (np <= 6 ? to.template rows<6, 2>() : to.template rows<8, 2>())
                      : (np <= 6 ? to.template rows<6, 4>() : to.template rows<8, 4>());
    } else {
        if (W == 1)
            return np <= 1   ? to.template rows<1, 1>()
                   : np <= 2 ? to.template rows<2, 1>()
                   : np <= 3 ? to.template rows<3, 1>()
                             : to.template rows<4, 1>();
        return W == 2 ? (np <= 3 ? to.template rows<3, 2>() : to.template rows<4, 2>())
                      : (np <= 3 ? to.template rows<3, 4>() : to.template rows<4, 4>());
    }
}

#endif
