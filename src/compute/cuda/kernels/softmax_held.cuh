/* softmax_held.cuh - softmax cross-entropy of a row of 16-bit logits that a block's registers hold, as float, between
 * the sum and the gradient: one exponential per element.
 *
 *   shared memory   row r | row r+1     where rows land (cp.async): a thread's packs of row r are in its registers as
 *                                       soon as it looks at them, and row r+2 is fetched over them
 *   registers       x (16 bits)  ->  e = 2^(x log2(e) - m of the warp)  ->  dx = e * (2^(m - m of the row) dloss / sum)
 *
 * Cost    about 8 instructions an element (widening, fma, 2^x, +, * 1 each; rounding two 0.5; the largest of three pairs
 *         0.25; loads and stores 0.4 and their addresses), one of them on the unit of 2^x, 16 a clock: 50304 columns
 *         take an SM some 4400 clocks, their bytes 9000 at 1.5 GHz.
 * Order   the eight of a pack as a tree, a thread's packs, lanes, warps. V and ld decide it. */
#ifndef LS_CUDA_KERNELS_SOFTMAX_HELD_CUH
#define LS_CUDA_KERNELS_SOFTMAX_HELD_CUH

#include "compute/cuda/kernels/vec.cuh"

#define HELD_THREADS 512 /* 128 registers each: 13 packs of float are 104 */
#define HELD_WARPS   (HELD_THREADS / 32)
#define LOG2_E       1.44269504088896340736f
#define LN_2         0.69314718055994530942

namespace {

/* ---- shared with softmax.cu ---- */

enum { LOSS, GRAD, PARTS };

template <class T> struct job {
    T *logits;
    double *out; /* (rows) losses, or (rows, 3) parts */
    const int32_t *target;
    int64_t rows, first;
    int V, ld;
    float dloss;
    const ls_pass_head *at;
};

/* The column of a target, -1 if it is not here. */
template <class T> LS_DEVICE int target_column(const job<T> &a, int32_t id)
{
    const int64_t wanted = id >= 0 ? id - a.first : -1;
    return wanted >= 0 && wanted < a.V ? (int)wanted : -1;
}

/* What a row has for the caller: sum of 2^x below `top`, and the target's logit, 0 if it is not here. */
template <int WHAT, class T>
LS_DEVICE void put_row(const job<T> &a, int64_t r, int32_t id, float top, float sum, double at_target)
{
    if (WHAT == PARTS) {
        a.out[3 * r] = (double)top * LN_2;
        a.out[3 * r + 1] = (double)sum;
        a.out[3 * r + 2] = at_target;
    } else {
        a.out[r] = id < 0 ? 0.0 : ((double)top + (double)log2f(sum)) * LN_2 - at_target;
    }
}

/* Numbers beside the vocabulary, in a row's last pack (number p), become -inf; for the thread that has it. */
template <int N, class T> LS_DEVICE void hide_beside(T *x, int p, int V)
{
    float f[N];
    widen(f, vec_load<N>(x + p * N));
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = p * N + i < V ? f[i] : -INFINITY;
    vec_store<N>(x + p * N, vec_of<T>(f));
}

/* ---- the kernel ---- */

LS_DEVICE unsigned least2(bf16)
{
    return 0xff80ff80u;
}
LS_DEVICE unsigned least2(f16)
{
    return 0xfc00fc00u;
}

/* This thread's packs of row r, from global to shared memory. The last may not be there. */
template <int K, class T> LS_DEVICE void fetch_held(T *to, const job<T> &a, int r, int n_read)
{
    const T *from = a.logits + (int64_t)r * a.ld + threadIdx.x * 8;
    to += threadIdx.x * 8;
#pragma unroll
    for (int k = 0; k < K; k++)
        if (k < K - 1 || k * HELD_THREADS + (int)threadIdx.x < n_read)
            cp_async16(to + k * HELD_THREADS * 8, from + k * HELD_THREADS * 8);
}

/* Rows of more than K-1 packs a thread (of V) and at most K (of ld); rows and what is ahead of them fit into an int.
 * Few numbers live beside e: what can be had again is not kept. */
template <class T, int K, int WHAT>
__global__ void __launch_bounds__(HELD_THREADS, K <= 4 ? 2 : 1) softmax_held(const job<T> a)
{
    T *kept = LS_SHARED_DYNAMIC(T);
    LS_SHARED(float2, room, [2][HELD_WARPS]);
    LS_SHARED(float, right, [2]); /* the target's logit */
    LS_SHARED(float, dloss, [1]);
    const int tid = (int)threadIdx.x, n_read = ceil_div(a.V, 8), rows = (int)a.rows, step = (int)gridDim.x;
    const bool has_last = (K - 1) * HELD_THREADS + tid < n_read;
    if (tid == 0) dloss[0] = a.at ? (float)a.at->dloss : a.dloss;
    for (int i = 0; i < 2; i++) {
        if ((int)blockIdx.x + i * step < rows) fetch_held<K>(kept + i * a.ld, a, (int)blockIdx.x + i * step, n_read);
        cp_async_commit();
    }
    for (int r = (int)blockIdx.x, turn = 0; r < rows; r += step, turn ^= 1) {
        T *x = kept + turn * a.ld;
        cp_async_wait<1>();
        if (a.V % 8 != 0 && (n_read - 1) % HELD_THREADS == tid) hide_beside<8>(x, n_read - 1, a.V);

        vec<T, 8> raw[K];
        unsigned most = least2(T());
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (k < K - 1 || has_last) raw[k] = vec_load<8>(x + (k * HELD_THREADS + tid) * 8);
            else raw[k].u = make_uint4(least2(T()), least2(T()), least2(T()), least2(T()));
        }
        const int32_t id = a.target[r];
        const int target = target_column(a, id);
        const bool has_target = target >= 0 && target / 8 % HELD_THREADS == tid;
        if (has_target) right[turn] = to_float(x[target]);
        if (LS_ARCH < 80) compiler_fence(); /* plain stores of another type to x follow */
#pragma unroll
        for (int k = 0; k < K; k++) {
            most = max2(max2(most, raw[k].u.x, T()), raw[k].u.y, T()); /* one instruction */
            most = max2(max2(most, raw[k].u.z, T()), raw[k].u.w, T());
        }
        if (r < rows - 2 * step) fetch_held<K>(x, a, r + 2 * step, n_read); /* over what the thread has read */
        cp_async_commit();

#pragma unroll
        for (int d = 16; d > 0; d >>= 1) most = max2(most, __shfl_xor_sync(0xffffffffu, most, d), T());
        const float2 two = widen2(most, T());
        const float warp_top = fmaxf(two.x, two.y) * LOG2_E, from = warp_top == -INFINITY ? 0.0f : warp_top;
        float sum = 0, e[K][8];
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (k == K - 1 && !has_last) {
#pragma unroll
                for (int i = 0; i < 8; i++) e[k][i] = 0;
                continue;
            }
            widen(e[k], raw[k]);
#pragma unroll
            for (int i = 0; i < 8; i++) e[k][i] = ex2(fmaf(e[k][i], LOG2_E, -from));
            sum += ((e[k][0] + e[k][1]) + (e[k][2] + e[k][3])) + ((e[k][4] + e[k][5]) + (e[k][6] + e[k][7]));
        }

        sum = warp_sum(sum);
        if (lane_id() == 0) room[turn][warp_id()] = make_float2(warp_top, sum);
        __syncthreads(); /* the next but one writes over room[turn], right[turn] */
        const float2 v = room[turn][lane_id() % HELD_WARPS];
        float top = v.x;
#pragma unroll
        for (int d = HELD_WARPS / 2; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        sum = v.x == -INFINITY ? 0.0f : v.y * ex2(v.x - top);
#pragma unroll
        for (int d = HELD_WARPS / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);

        if (WHAT == GRAD && id < 0) {
            T *out = a.logits + (int64_t)r * a.ld;
#pragma unroll 1
            for (int p = tid; p < a.ld / 8; p += HELD_THREADS) vec_store<8>(out + p * 8, vec_zero<T, 8>());
        } else if (WHAT == GRAD) {
            T *out = a.logits + (int64_t)r * a.ld + tid * 8;
            const float scale = dloss[0] / sum, factor = ex2(warp_top - top) * scale;
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (k == K - 1 && k * HELD_THREADS + tid >= a.ld / 8) continue;
#pragma unroll
                for (int i = 0; i < 8; i++) e[k][i] *= factor;
                vec_store<8>(out + k * HELD_THREADS * 8, vec_of<T>(e[k]));
            }
            if (has_target) {
                compiler_fence(); /* after the pack, whose type is another */
                a.logits[(int64_t)r * a.ld + target] =
                    from_float<T>(ex2(fmaf(right[turn], LOG2_E, -top)) * scale - dloss[0]);
            }
        }
        if (tid == 0) put_row<WHAT>(a, r, id, top, sum, target >= 0 ? (double)right[turn] : 0.0);
    }
    cp_async_wait<0>();
}

} // namespace

#endif
