/* attention_cached.cu - y_i = softmax(q_i k^T / sqrt(D)) v over positions 0 … pos+i of a cache, for i = 0 … Tq-1 new positions.
 *
 * A block for each (b, h, i), or for SHARE of the i. A row of D elements is read by D*sizeof(T)/16 neighbouring lanes, 16 bytes each, so that a warp reads several
 * keys at once. These lanes take every GROUPS-th key, UNROLL of them in flight, with a running maximum and sum (m, l, o):
 *     s = q k_j / sqrt(D);  m' = max(m, s);  o = o e^(m-m') + e^(s-m') v_j;  l likewise
 * and the parts are joined in order. A row's sums do not depend on how many rows there are (compute.h, invariant 4).
 * Bytes: B H (pos+Tq) D 2 elements of the cache, for every new position.
 *
 * One new position: its block reads the new key and value from qkv and writes them to the cache. More: `keep` writes them first.
 * Rows that are no power of two of 16 bytes, or longer than 512: `attend_any`, a key for each warp.
 *
 * Many new positions, as of a prompt, whose rows need not be alike: flash.h, where 64 or 128 of them read a key once. */
#include "compute/cuda/kernels/flash.h"
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define WARPS  8
#define UNROLL 4
#define SHARE  4  /* new positions that read a key once, with heads of 64 in 16 bits */
#define MANY   16 /* new positions: from here on flash is faster */
#define MOST   8  /* elements of a row that a lane of attend_any holds: D up to 256 */

template <class T> struct job {
    T *y, *kcache, *vcache;
    const T *qkv;
    int64_t Tq, pos, Tmax, H, D;
    const ls_pass_head *at; /* pos of it, if not NULL */
    float scale;
};

template <class T> LS_DEVICE int64_t first_pos(const job<T> &a)
{
    return a.at ? a.at->pos : a.pos;
}

template <class T> __global__ void keep(const job<T> a, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, H = a.H, D = a.D; /* of (B,Tq,H,D) */
    if (i >= n) return;
    const int64_t d = i % D, h = i / D % H, t = i / (D * H) % a.Tq, b = i / (D * H * a.Tq);
    const int64_t from = (b * a.Tq + t) * 3 * H * D + h * D + d, to = ((b * H + h) * a.Tmax + first_pos(a) + t) * D + d;
    a.kcache[to] = a.qkv[from + H * D];
    a.vcache[to] = a.qkv[from + 2 * H * D];
}

/* Weight of a part whose maximum is m when the maximum of all is top; 0 of an empty part, NaN of NaN. Both are logarithms to base 2. */
LS_DEVICE float weight(float m, float top)
{
    return m == -INFINITY ? 0.0f : ex2(m - top);
}

/* The warps' parts, added in order, become y (D). */
template <class T>
LS_DEVICE void join(T *y, const float *top, const float *total, const float *part, int64_t ld, int64_t D)
{
    float all_top = -INFINITY, all_total = 0;
    for (int w = 0; w < WARPS; w++) all_top = top[w] > all_top ? top[w] : all_top;
    for (int w = 0; w < WARPS; w++) all_total += total[w] * weight(top[w], all_top);
    for (int64_t d = threadIdx.x; d < D; d += 32 * WARPS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += part[w * ld + d] * weight(top[w], all_top);
        y[d] = from_float<T>(sum / all_total);
    }
}

/* LANES lanes read a row. The keys that are read serve ROWS new positions; those after a position have no part in it. */
template <class T, int LANES, int ROWS> __global__ void __launch_bounds__(32 * WARPS) attend(const job<T> a)
{
    constexpr int N = whole<T>, D = LANES * N, KEYS = 32 / LANES, GROUPS = WARPS * KEYS;
    LS_SHARED(float, top, [WARPS]);
    LS_SHARED(float, total, [WARPS]);
    LS_SHARED(float, part, [WARPS * D]);
    const int lane = lane_id(), warp = warp_id(), at = lane % LANES * N, slot = warp * KEYS + lane / LANES;
    const int64_t H = a.H, n_t = (a.Tq + ROWS - 1) / ROWS;
    const int64_t h = blockIdx.x % H, t = blockIdx.x / H % n_t * ROWS, b = blockIdx.x / (H * n_t);
    const int rows = ROWS == 1 || a.Tq - t >= ROWS ? ROWS : (int)(a.Tq - t);
    const int64_t first = first_pos(a) + t, last = first + rows - 1; /* positions of these rows */
    T *k = a.kcache + (b * H + h) * a.Tmax * D + at, *v = a.vcache + (b * H + h) * a.Tmax * D + at;
    const T *row = a.qkv + (b * a.Tq + t) * 3 * H * D + h * D + at;
    float q[ROWS][N], o[ROWS][N], m[ROWS], l[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        widen(q[r], vec_load<N>(row + (r < rows ? r : 0) * 3 * H * D));
        m[r] = -INFINITY, l[r] = 0;
#pragma unroll
        for (int e = 0; e < N; e++) q[r][e] *= a.scale, o[r][e] = 0;
    }
    for (int64_t j0 = slot; j0 - slot <= last; j0 += UNROLL * GROUPS) {
        vec<T, N> key[UNROLL], value[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t j = j0 + u * GROUPS;
            const bool fresh = a.Tq == 1 && j == last;
            key[u] = value[u] = vec_zero<T, N>();
            if (j <= last) {
                key[u] = vec_load<N>(fresh ? row + H * D : k + j * D);
                value[u] = vec_load<N>(fresh ? row + 2 * H * D : v + j * D);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float s[UNROLL], higher = m[r];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                float x[N];
                widen(x, key[u]);
                s[u] = 0;
#pragma unroll
                for (int e = 0; e < N; e++) s[u] += q[r][e] * x[e];
#pragma unroll
                for (int d = LANES / 2; d > 0; d >>= 1) s[u] += __shfl_xor_sync(0xffffffffu, s[u], d);
                if (j0 + u * GROUPS > first + r) s[u] = -INFINITY;
                higher = s[u] > higher ? s[u] : higher;
            }
            const float old = weight(m[r], higher);
            l[r] *= old;
#pragma unroll
            for (int e = 0; e < N; e++) o[r][e] *= old;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const float p = weight(s[u], higher);
                float x[N];
                widen(x, value[u]);
                l[r] += p;
#pragma unroll
                for (int e = 0; e < N; e++) o[r][e] += p * x[e];
            }
            m[r] = higher;
        }
        if (a.Tq == 1)
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (j0 + u * GROUPS == last) {
                    vec_store<N>(k + last * D, key[u]);
                    vec_store<N>(v + last * D, value[u]);
                }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int d = LANES; d < 32; d <<= 1) { /* the keys of a warp */
            const float other = __shfl_xor_sync(0xffffffffu, m[r], d), more = __shfl_xor_sync(0xffffffffu, l[r], d);
            const float higher = other > m[r] ? other : m[r], mine = weight(m[r], higher),
                        others = weight(other, higher);
            l[r] = l[r] * mine + more * others;
#pragma unroll
            for (int e = 0; e < N; e++) o[r][e] = o[r][e] * mine + __shfl_xor_sync(0xffffffffu, o[r][e], d) * others;
            m[r] = higher;
        }
        if (r) __syncthreads(); /* the row before has been joined */
        if (lane == 0) top[warp] = m[r], total[warp] = l[r];
        if (lane < LANES)
#pragma unroll
            for (int e = 0; e < N; e++) part[warp * D + at + e] = o[r][e];
        __syncthreads();
        if (r < rows) join(a.y + (b * a.Tq + t + r) * H * D + h * D, top, total, part, D, D);
    }
}

template <class T> __global__ void __launch_bounds__(32 * WARPS) attend_any(const job<T> a)
{
    LS_SHARED(float, top, [WARPS]);
    LS_SHARED(float, total, [WARPS]);
    LS_SHARED(float, part, [WARPS * 32 * MOST]);
    const int lane = lane_id(), warp = warp_id();
    const int64_t H = a.H, D = a.D, h = blockIdx.x % H, t = blockIdx.x / H % a.Tq, b = blockIdx.x / (H * a.Tq);
    const int64_t n = first_pos(a) + t + 1;
    const T *k = a.kcache + (b * H + h) * a.Tmax * D, *v = a.vcache + (b * H + h) * a.Tmax * D;
    const T *row = a.qkv + (b * a.Tq + t) * 3 * H * D + h * D;
    float q[MOST], o[MOST], m = -INFINITY, l = 0;
#pragma unroll
    for (int e = 0; e < MOST; e++) {
        q[e] = lane + 32 * e < D ? to_float(row[lane + 32 * e]) * a.scale : 0.0f;
        o[e] = 0;
    }
    for (int64_t j = warp; j < n; j += WARPS) {
        float s = 0;
#pragma unroll
        for (int e = 0; e < MOST; e++)
            if (lane + 32 * e < D) s += q[e] * to_float(k[j * D + lane + 32 * e]);
        s = warp_sum(s);
        const float higher = s > m ? s : m, old = weight(m, higher), p = ex2(s - higher);
#pragma unroll
        for (int e = 0; e < MOST; e++)
            if (lane + 32 * e < D) o[e] = o[e] * old + p * to_float(v[j * D + lane + 32 * e]);
        l = l * old + p;
        m = higher;
    }
    if (lane == 0) top[warp] = m, total[warp] = l;
#pragma unroll
    for (int e = 0; e < MOST; e++) part[warp * 32 * MOST + lane + 32 * e] = o[e];
    __syncthreads();
    join(a.y + (b * a.Tq + t) * H * D + h * D, top, total, part, 32 * MOST, D);
}

/* Keys and values of the new positions, into the cache. */
template <class T> int keep_all(void *stream, const job<T> &a, int64_t B)
{
    const int64_t n = B * a.Tq * a.H * a.D;
    return LS_LAUNCH(keep<T>, (unsigned)ceil_div<int64_t>(n, 256), 256, 0, stream, a, n);
}

template <class T> int run_many(void *stream, const job<T> &a, int64_t B, ls_dtype dt, bool tf32)
{
    cu_attention_job j = {};
    j.y = a.y, j.qkv = a.qkv, j.B = B, j.T = a.Tq, j.H = a.H, j.D = a.D;
    j.cache.k = a.kcache, j.cache.v = a.vcache, j.cache.Tmax = a.Tmax, j.cache.pos = a.pos, j.cache.at = a.at;
    const int e = keep_all(stream, a, B);
    return e ? e : flash_fwd_cached(&j, dt, tf32, stream);
}

template <class T> int run(void *stream, const job<T> &a, int64_t B)
{
    const bool even = a.D % whole<T> == 0 && aligned16(a.y, a.kcache, a.vcache, a.qkv);
    const int64_t lanes = even ? a.D / whole<T> : 0;
    const bool shared = lanes == 8 && a.Tq >= SHARE;
    void (*f)(job<T>) = lanes == 2    ? attend<T, 2, 1>
                        : lanes == 4  ? attend<T, 4, 1>
                        : shared      ? attend<T, 8, SHARE>
                        : lanes == 8  ? attend<T, 8, 1>
                        : lanes == 16 ? attend<T, 16, 1>
                        : lanes == 32 ? attend<T, 32, 1>
                                      : nullptr;
    const unsigned blocks = (unsigned)(B * ceil_div<int64_t>(a.Tq, shared ? SHARE : 1) * a.H);
    if (!f || a.Tq > 1) {
        const int e = keep_all(stream, a, B);
        if (e) return e;
    }
    if (!f) return LS_LAUNCH(attend_any<T>, blocks, 32 * WARPS, 0, stream, a);
    return LS_LAUNCH(f, blocks, 32 * WARPS, 0, stream, a);
}

} // namespace

extern "C" int cu_attention_cached(void *stream, ls_dtype dt, void *y, void *kcache, void *vcache, const void *qkv,
                                   int64_t B, int64_t Tq, int64_t pos, const ls_pass_head *at, int64_t Tmax, int64_t H,
                                   int64_t D, bool alike, bool tf32)
{
    if (D > 32 * MOST) return cudaErrorInvalidValue;
    if (B * Tq == 0) return cudaSuccess;
    const float scale = 1.44269504f / sqrtf((float)D); /* for powers of 2 */
    LS_DISPATCH(dt, T, {
        const job<T> a = {(T *)y, (T *)kcache, (T *)vcache, (const T *)qkv, Tq, pos, Tmax, H, D, at, scale};
        if (!alike && Tq >= MANY && D <= LS_FLASH_D_MAX && aligned16(y, kcache, vcache, qkv))
            return run_many<T>(stream, a, B, dt, tf32);
        return run<T>(stream, a, B);
    });
}
