/* norm.cuh - what the kernels of layer normalisation share: how a row is laid over warps, sums over those, and the steps of forward. */
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

/* ---- forward: a row in the registers of W warps, packs lane, lane + 32 W, … of it in a lane; 0 where there is none ---- */

template <int W, class T, int NP, int N>
LS_DEVICE void norm_load(vec<T, N> (&x)[NP], const T *row, bool live, int lane, int n_pack)
{
#pragma unroll
    for (int k = 0; k < NP; k++) {
        const int p = lane + k * 32 * W;
        x[k] = live && p < n_pack ? vec_load<N>(row + p * N) : vec_zero<T, N>();
    }
}

/* x += drop(d), rounded to the type and stored to res; row_at: the index of the row's first element. */
template <int W, class T, int NP, int N>
LS_DEVICE void norm_add(vec<T, N> (&x)[NP], const vec<T, N> (&d)[NP], T *res, int64_t row_at, const drop_arg &drop,
                        uint64_t key, bool live, int lane, int n_pack)
{
#pragma unroll
    for (int k = 0; k < NP; k++) {
        const int p = lane + k * 32 * W;
        const int64_t at = row_at + p * N;
        float f[N], of[N];
        widen(f, d[k]);
        widen(of, x[k]);
        drop_all(f, drop, key, drop.first + at);
#pragma unroll
        for (int i = 0; i < N; i++) f[i] += of[i];
        x[k] = vec_of<T>(f);
        if (live && p < n_pack) vec_store<N>(res + at, x[k]);
    }
}

struct norm_stats {
    float mean, rstd;
};

template <int N> LS_DEVICE void widen(float (&f)[N], const float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = x[i];
}

/* x: packs of N numbers, as vec or widened. room: as in group_sum, for two of them. */
template <int W, int N, class X, int NP>
LS_DEVICE norm_stats norm_stats_of(const X (&x)[NP], float inv, float eps, int lane, int n_pack,
                                   float (*room)[NORM_WARPS])
{
    float sum = 0, square = 0;
#pragma unroll
    for (int k = 0; k < NP; k++) {
        float f[N];
        widen(f, x[k]);
#pragma unroll
        for (int i = 0; i < N; i++) sum += f[i];
    }
    const float mean = group_sum<W>(sum, room[0]) * inv;
#pragma unroll
    for (int k = 0; k < NP; k++)
        if (lane + k * 32 * W < n_pack) {
            float f[N];
            widen(f, x[k]);
#pragma unroll
            for (int i = 0; i < N; i++) square += (f[i] - mean) * (f[i] - mean);
        }
    return {mean, 1.0f / sqrtf(group_sum<W>(square, room[1]) * inv + eps)};
}

/* Calls to.rows<NP, W>() with the smallest layout that holds C columns in registers, or to.any(). A lane holds at most
 * 32 numbers. */
template <class T, class To> static int norm_pick(int64_t C, bool aligned, const To &to)
{
    constexpr int N = whole<T>, TOP = 32 / N;
    if (C % N != 0 || !aligned || C > 4 * 32 * 32) return to.any();
    const int64_t n_pack = C / N;
    const int W = n_pack <= 32 * TOP ? 1 : n_pack <= 64 * TOP ? 2 : 4;
    constexpr int U = 8 / N; /* packs of 8 numbers; a lane holds one to four times as many */
    const int64_t u = ceil_div<int64_t>(n_pack, 32 * W * U);
    if (W == 1)
        return u <= 1   ? to.template rows<U, 1>()
               : u <= 2 ? to.template rows<2 * U, 1>()
               : u <= 3 ? to.template rows<3 * U, 1>()
                        : to.template rows<4 * U, 1>();
    if (W == 2) return u <= 3 ? to.template rows<3 * U, 2>() : to.template rows<4 * U, 2>();
    return u <= 3 ? to.template rows<3 * U, 4>() : to.template rows<4 * U, 4>();
}

#endif
