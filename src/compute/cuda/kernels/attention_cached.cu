/* attention_cached.cu - y_i = softmax(q_i k^T / sqrt(D)) v over positions 0 … pos+i of a cache, for i = 0 … Tq-1 new positions.
 *
 * First the new keys and values go to the cache (2 B Tq H D elements read and written). Then a block for each (b, h, i): its warps take every
 * WARPS-th key, lanes hold D/32 elements of a row each, with a running maximum and sum (m, l, o):
 *     s = q k_j / sqrt(D);  m' = max(m, s);  o = o e^(m-m') + e^(s-m') v_j;  l likewise
 * and the warps' parts are joined in order. A row's sums do not depend on how many rows there are (compute.h, invariant 4).
 * Bytes: B H (pos+Tq) D 2 elements of the cache, for every new position. */
#include "compute/cuda/gpu.cuh"

#define WARPS 8
#define MOST  8 /* elements of a row that a lane holds: D up to 256 */

template <class T>
static __global__ void keep(T *__restrict__ kcache, T *__restrict__ vcache, const T *__restrict__ qkv, int64_t Tq,
                            int64_t pos, int64_t Tmax, int64_t H, int64_t D, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; /* of (B,Tq,H,D) */
    if (i >= n) return;
    const int64_t d = i % D, h = i / D % H, t = i / (D * H) % Tq, b = i / (D * H * Tq);
    const int64_t from = (b * Tq + t) * 3 * H * D + h * D + d, to = ((b * H + h) * Tmax + pos + t) * D + d;
    kcache[to] = qkv[from + H * D];
    vcache[to] = qkv[from + 2 * H * D];
}

template <class T>
static __global__ void __launch_bounds__(32 * WARPS)
    attend(T *__restrict__ y, const T *__restrict__ kcache, const T *__restrict__ vcache, const T *__restrict__ qkv,
           int64_t Tq, int64_t pos, int64_t Tmax, int64_t H, int64_t D, float scale)
{
    LS_SHARED(float, top, [WARPS]);
    LS_SHARED(float, total, [WARPS]);
    LS_SHARED(float, part, [WARPS][32 * MOST]);
    const int lane = lane_id(), warp = warp_id();
    const int64_t h = blockIdx.x % H, t = blockIdx.x / H % Tq, b = blockIdx.x / (H * Tq), n = pos + t + 1;
    const T *k = kcache + (b * H + h) * Tmax * D, *v = vcache + (b * H + h) * Tmax * D;
    const T *row = qkv + (b * Tq + t) * 3 * H * D + h * D;
    float q[MOST], o[MOST], m = -INFINITY, l = 0;
#pragma unroll
    for (int e = 0; e < MOST; e++) {
        q[e] = lane + 32 * e < D ? to_float(row[lane + 32 * e]) * scale : 0.0f;
        o[e] = 0;
    }
    for (int64_t j = warp; j < n; j += WARPS) {
        float s = 0;
#pragma unroll
        for (int e = 0; e < MOST; e++)
            if (lane + 32 * e < D) s += q[e] * to_float(k[j * D + lane + 32 * e]);
        s = warp_sum(s);
        const float higher = s > m ? s : m, old = m > -INFINITY ? expf(m - higher) : 0.0f, p = expf(s - higher);
#pragma unroll
        for (int e = 0; e < MOST; e++)
            if (lane + 32 * e < D) o[e] = o[e] * old + p * to_float(v[j * D + lane + 32 * e]);
        l = l * old + p;
        m = higher;
    }
    if (lane == 0) top[warp] = m, total[warp] = l;
#pragma unroll
    for (int e = 0; e < MOST; e++) part[warp][lane + 32 * e] = o[e];
    __syncthreads();
    float all_top = -INFINITY, all_total = 0;
    for (int w = 0; w < WARPS; w++) all_top = top[w] > all_top ? top[w] : all_top;
    for (int w = 0; w < WARPS; w++) all_total += top[w] > -INFINITY ? total[w] * expf(top[w] - all_top) : 0.0f;
    for (int64_t d = threadIdx.x; d < D; d += 32 * WARPS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += top[w] > -INFINITY ? part[w][d] * expf(top[w] - all_top) : 0.0f;
        y[(b * Tq + t) * H * D + h * D + d] = from_float<T>(sum / all_total);
    }
}

template <class T>
static int run(void *stream, T *y, T *kcache, T *vcache, const T *qkv, int64_t B, int64_t Tq, int64_t pos, int64_t Tmax,
               int64_t H, int64_t D)
{
    const int64_t n = B * Tq * H * D;
    const int e = LS_LAUNCH(keep<T>, (unsigned)ceil_div<int64_t>(n, 256), 256, 0, stream, kcache, vcache, qkv, Tq, pos,
                            Tmax, H, D, n);
    if (e) return e;
    return LS_LAUNCH(attend<T>, (unsigned)(B * Tq * H), 32 * WARPS, 0, stream, y, kcache, vcache, qkv, Tq, pos, Tmax, H,
                     D, 1.0f / sqrtf((float)D));
}

extern "C" int cu_attention_cached(void *stream, ls_dtype dt, void *y, void *kcache, void *vcache, const void *qkv,
                                   int64_t B, int64_t Tq, int64_t pos, int64_t Tmax, int64_t H, int64_t D)
{
    if (D > 32 * MOST) return cudaErrorInvalidValue;
    if (B * Tq == 0) return cudaSuccess;
    LS_DISPATCH(dt, T, return run<T>(stream, (T *)y, (T *)kcache, (T *)vcache, (const T *)qkv, B, Tq, pos, Tmax, H, D));
}
