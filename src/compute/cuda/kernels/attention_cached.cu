/* attention_cached.cu - y_i = softmax(q_i k^T / sqrt(D)) v over positions 0 … pos+i of a cache, for i = 0 … Tq-1 new positions.
 *
 * A block for each (b, h, i). A row of D elements is read by D*sizeof(T)/16 neighbouring lanes, 16 bytes each, so that a warp reads several
 * keys at once. These lanes take every GROUPS-th key, UNROLL of them in flight, with a running maximum and sum (m, l, o):
 *     s = q k_j / sqrt(D);  m' = max(m, s);  o = o e^(m-m') + e^(s-m') v_j;  l likewise
 * and the parts are joined in order. A row's sums do not depend on how many rows there are (compute.h, invariant 4).
 * Bytes: B H (pos+Tq) D 2 elements of the cache, for every new position.
 *
 * One new position: its block reads the new key and value from qkv and writes them to the cache. More: `keep` writes them first.
 * Rows that are no power of two of 16 bytes, or longer than 512: `attend_any`, a key for each warp. */
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define WARPS  8
#define UNROLL 4
#define MOST   8 /* elements of a row that a lane of attend_any holds: D up to 256 */

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

/* LANES lanes read a row. */
template <class T, int LANES> __global__ void __launch_bounds__(32 * WARPS) attend(const job<T> a)
{
    constexpr int N = whole<T>, D = LANES * N, KEYS = 32 / LANES, GROUPS = WARPS * KEYS;
    LS_SHARED(float, top, [WARPS]);
    LS_SHARED(float, total, [WARPS]);
    LS_SHARED(float, part, [WARPS * D]);
    const int lane = lane_id(), warp = warp_id(), at = lane % LANES * N, slot = warp * KEYS + lane / LANES;
    const int64_t H = a.H, h = blockIdx.x % H, t = blockIdx.x / H % a.Tq, b = blockIdx.x / (H * a.Tq);
    const int64_t last = first_pos(a) + t; /* the position of this row */
    T *k = a.kcache + (b * H + h) * a.Tmax * D + at, *v = a.vcache + (b * H + h) * a.Tmax * D + at;
    const T *row = a.qkv + (b * a.Tq + t) * 3 * H * D + h * D + at;
    float q[N], o[N], m = -INFINITY, l = 0;
    widen(q, vec_load<N>(row));
#pragma unroll
    for (int e = 0; e < N; e++) q[e] *= a.scale, o[e] = 0;
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
        float s[UNROLL], higher = m;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float x[N];
            widen(x, key[u]);
            s[u] = 0;
#pragma unroll
            for (int e = 0; e < N; e++) s[u] += q[e] * x[e];
#pragma unroll
            for (int d = LANES / 2; d > 0; d >>= 1) s[u] += __shfl_xor_sync(0xffffffffu, s[u], d);
            if (j0 + u * GROUPS > last) s[u] = -INFINITY;
            higher = s[u] > higher ? s[u] : higher;
        }
        const float old = weight(m, higher);
        l *= old;
#pragma unroll
        for (int e = 0; e < N; e++) o[e] *= old;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const float p = weight(s[u], higher);
            float x[N];
            widen(x, value[u]);
            l += p;
#pragma unroll
            for (int e = 0; e < N; e++) o[e] += p * x[e];
            if (a.Tq == 1 && j0 + u * GROUPS == last) {
                vec_store<N>(k + last * D, key[u]);
                vec_store<N>(v + last * D, value[u]);
            }
        }
        m = higher;
    }
#pragma unroll
    for (int d = LANES; d < 32; d <<= 1) { /* the keys of a warp */
        const float other = __shfl_xor_sync(0xffffffffu, m, d), more = __shfl_xor_sync(0xffffffffu, l, d);
        const float higher = other > m ? other : m, mine = weight(m, higher), others = weight(other, higher);
        l = l * mine + more * others;
#pragma unroll
        for (int e = 0; e < N; e++) o[e] = o[e] * mine + __shfl_xor_sync(0xffffffffu, o[e], d) * others;
        m = higher;
    }
    if (lane == 0) top[warp] = m, total[warp] = l;
    if (lane < LANES)
#pragma unroll
        for (int e = 0; e < N; e++) part[warp * D + at + e] = o[e];
    __syncthreads();
    join(a.y + (b * a.Tq + t) * H * D + h * D, top, total, part, D, D);
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

template <class T> int run(void *stream, const job<T> &a, int64_t B)
{
    const unsigned blocks = (unsigned)(B * a.Tq * a.H);
    const bool even = a.D % whole<T> == 0 && aligned16(a.y, a.kcache, a.vcache, a.qkv);
    const int64_t lanes = even ? a.D / whole<T> : 0, n = B * a.Tq * a.H * a.D;
    void (*f)(job<T>) = lanes == 2    ? attend<T, 2>
                        : lanes == 4  ? attend<T, 4>
                        : lanes == 8  ? attend<T, 8>
                        : lanes == 16 ? attend<T, 16>
                        : lanes == 32 ? attend<T, 32>
                                      : nullptr;
    if (!f || a.Tq > 1) {
        const int e = LS_LAUNCH(keep<T>, (unsigned)ceil_div<int64_t>(n, 256), 256, 0, stream, a, n);
        if (e) return e;
    }
    if (!f) return LS_LAUNCH(attend_any<T>, blocks, 32 * WARPS, 0, stream, a);
    return LS_LAUNCH(f, blocks, 32 * WARPS, 0, stream, a);
}

} // namespace

extern "C" int cu_attention_cached(void *stream, ls_dtype dt, void *y, void *kcache, void *vcache, const void *qkv,
                                   int64_t B, int64_t Tq, int64_t pos, const ls_pass_head *at, int64_t Tmax, int64_t H,
                                   int64_t D)
{
    if (D > 32 * MOST) return cudaErrorInvalidValue;
    if (B * Tq == 0) return cudaSuccess;
    const float scale = 1.44269504f / sqrtf((float)D); /* for powers of 2 */
    LS_DISPATCH(dt, T, {
        const job<T> a = {(T *)y, (T *)kcache, (T *)vcache, (const T *)qkv, Tq, pos, Tmax, H, D, at, scale};
        return run<T>(stream, a, B);
    });
}
