/* layernorm_fwd.cu - layer normalisation of rows, alone or with the residual sum before it; and once more from the statistics kept.
 *
 *   res = x + drop(delta)        (only with delta; rounded to the type, and the norm is that of the rounded row)
 *   y   = (x - mean) rstd w + b,   rstd = 1 / sqrt(mean of (x - mean)^2 + eps)
 *
 * Bytes   4RC alone, 8RC with the sum (16-bit types): each array once, the row stays in registers between the passes.
 * Shape   W warps own a row, NP packs of 16 bytes per lane (W = 1 up to 1024 columns of 16 bits); w and b come out of L1.
 *         Other widths and addresses: a block owns a row and reads it three times, from L1 mostly.
 *         Again (4RC): a warp makes a row, with the same operations on elements, so the same bits.
 * Order   sums run over a lane's elements, then over lanes, then over warps: the width alone decides it. */
#include "compute/cuda/kernels/norm.cuh"

namespace {

template <class T> struct job {
    T *y, *res;
    float *mean, *rstd;
    const T *x, *delta, *w, *b;
    int64_t R;
    int C;
    float eps;
    drop_arg drop;
};

template <class T, int NP, int W, bool ADD>
__global__ void __launch_bounds__(NORM_THREADS, NP <= 3 ? 3 : 2) norm_rows(const job<T> a)
{
    constexpr int N = whole<T>, LANES = 32 * W, G = NORM_THREADS / LANES;
    LS_SHARED(float, room, [2][NORM_WARPS]);
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, n_pack = a.C / N;
    const float inv = 1.0f / (float)a.C;
    const uint64_t key = drop_key(a.drop);
    for (int64_t first = (int64_t)blockIdx.x * G; first < a.R; first += (int64_t)gridDim.x * G) {
        const int64_t r = first + group;
        const bool live = r < a.R;
        vec<T, N> x[NP];
        norm_load<W>(x, a.x + r * a.C, live, lane, n_pack);
        if (ADD) {
            vec<T, N> d[NP];
            norm_load<W>(d, a.delta + r * a.C, live, lane, n_pack);
            norm_add<W>(x, d, a.res, r * a.C, a.drop, key, live, lane, n_pack);
        }
        const norm_stats s = norm_stats_of<W, N>(x, inv, a.eps, lane, n_pack, room);
        if (!live) continue;
        if (lane == 0) {
            a.mean[r] = s.mean;
            a.rstd[r] = s.rstd;
        }
#pragma unroll
        for (int k = 0; k < NP; k++) {
            const int p = lane + k * LANES;
            if (p < n_pack) {
                float f[N], w[N], b[N];
                widen(f, x[k]);
                widen_gains(w, vec_load<N>(a.w + p * N));
                widen(b, vec_load<N>(a.b + p * N));
#pragma unroll
                for (int i = 0; i < N; i++) f[i] = fmaf((f[i] - s.mean) * s.rstd, w[i], b[i]);
                vec_store<N>(a.y + r * a.C + p * N, vec_of<T>(f));
            }
        }
    }
}

template <class T, bool ADD> __global__ void __launch_bounds__(NORM_THREADS) norm_rows_any(const job<T> a)
{
    LS_SHARED(float, room, [2][NORM_WARPS]);
    const uint64_t key = drop_key(a.drop);
    const float inv = 1.0f / (float)a.C;
    for (int64_t r = blockIdx.x; r < a.R; r += gridDim.x) {
        const T *x = (ADD ? a.res : a.x) + r * a.C;
        float sum = 0, square = 0;
        for (int j = threadIdx.x; j < a.C; j += NORM_THREADS) {
            const int64_t at = r * a.C + j;
            /* only this thread comes back to element j: what it stores it sees */
            if (ADD) {
                const float keep = drop_factor(a.drop, key, (uint32_t)(a.drop.first + at));
                a.res[at] = from_float<T>(to_float(a.x[at]) + keep * to_float(a.delta[at]));
            }
            sum += to_float(x[j]);
        }
        const float mean = group_sum<NORM_WARPS>(sum, room[0]) * inv;
        for (int j = threadIdx.x; j < a.C; j += NORM_THREADS)
            square += (to_float(x[j]) - mean) * (to_float(x[j]) - mean);
        const float rstd = 1.0f / sqrtf(group_sum<NORM_WARPS>(square, room[1]) * inv + a.eps);
        for (int j = threadIdx.x; j < a.C; j += NORM_THREADS)
            a.y[r * a.C + j] = from_float<T>(fmaf((to_float(x[j]) - mean) * rstd, gain_of(a.w[j]), to_float(a.b[j])));
        if (threadIdx.x == 0) {
            a.mean[r] = mean;
            a.rstd[r] = rstd;
        }
    }
}

template <class T, int N>
__global__ void __launch_bounds__(NORM_THREADS)
    norm_again(T *y, const T *x, const float *mean, const float *rstd, const T *w, const T *b, int64_t R, int C)
{
    const int lane = threadIdx.x % 32;
    const int64_t r = (int64_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    if (r >= R) return;
    const float m = mean[r], s = rstd[r];
#pragma unroll 4
    for (int j = lane * N; j < C; j += 32 * N) {
        float f[N], ws[N], bs[N];
        widen(f, vec_load<N>(x + r * C + j));
        widen_gains(ws, vec_load<N>(w + j));
        widen(bs, vec_load<N>(b + j));
#pragma unroll
        for (int i = 0; i < N; i++) f[i] = fmaf((f[i] - m) * s, ws[i], bs[i]);
        vec_store<N>(y + r * C + j, vec_of<T>(f));
    }
}

/* 8 a multiprocessor: more than fit, so that the last ones fill the gaps. Rows are computed alike whoever does it. */
int64_t most_blocks()
{
    int device = 0, n = 132;
    if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return 8 * (int64_t)n;
}

template <class T, bool ADD> struct start {
    const job<T> &a;
    void *stream;
    template <int NP, int W> int rows() const
    {
        const int64_t blocks = ceil_div<int64_t>(a.R * W, NORM_WARPS), most = most_blocks();
        return LS_LAUNCH((norm_rows<T, NP, W, ADD>), (unsigned)(blocks < most ? blocks : most), NORM_THREADS, 0, stream,
                         a);
    }
    int any() const
    {
        return LS_LAUNCH((norm_rows_any<T, ADD>), (unsigned)(a.R < 65536 ? a.R : 65536), NORM_THREADS, 0, stream, a);
    }
};

template <class T, bool ADD> int fwd(void *stream, const job<T> &a)
{
    const start<T, ADD> s = {a, stream};
    return norm_pick<T>(a.C, aligned16(a.y, a.x, a.w, a.b, a.res, a.delta), s);
}

} // namespace

extern "C" int cu_layernorm_fwd(void *stream, ls_dtype dt, void *res, void *y, float *mean, float *rstd, const void *x,
                                const void *delta, const void *w, const void *b, int64_t R, int64_t C, double eps,
                                ls_drop drop)
{
    if (R <= 0 || C <= 0) return 0;
    LS_DISPATCH(dt, T, {
        const job<T> a = {(T *)y,       (T *)res,     mean, rstd,   (const T *)x, (const T *)delta,
                          (const T *)w, (const T *)b, R,    (int)C, (float)eps,   drop_of(drop)};
        return delta ? fwd<T, true>(stream, a) : fwd<T, false>(stream, a);
    });
}

extern "C" int cu_layernorm_again(void *stream, ls_dtype dt, void *y, const void *x, const float *mean,
                                  const float *rstd, const void *w, const void *b, int64_t R, int64_t C)
{
    if (R <= 0 || C <= 0) return 0;
    LS_DISPATCH(dt, T, {
        const bool packs = C % whole<T> == 0 && aligned16(y, x, w, b);
        return LS_LAUNCH((packs ? norm_again<T, whole<T>> : norm_again<T, 1>),
                         (unsigned)ceil_div<int64_t>(R, NORM_WARPS), NORM_THREADS, 0, stream, (T *)y, (const T *)x,
                         mean, rstd, (const T *)w, (const T *)b, R, (int)C);
    });
}
