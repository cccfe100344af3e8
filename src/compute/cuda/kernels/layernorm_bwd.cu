/* layernorm_bwd.cu - gradients of layer normalisation.
 *
 *   h = (x - mean) rstd,  g = dy w:     dx = rstd (g - mean(g) - h mean(g h)) + dres
 *   dw (+)= sum over rows of dy h,      db (+)= sum over rows of dy
 *
 * Bytes   6RC, 8RC with dres (16-bit types), and the partial sums: 8C a block, written once and read out of L2.
 * Shape   as forward: a row is in the registers of W warps, which walk over rows and keep their columns' sums in
 *         registers as well.
 * Order   every block sums its rows in order, then its warps' sums in order, into a row of scratch; cu_fold adds those.
 *         R and C alone decide how many blocks there are. */
#include "compute/cuda/kernels/norm.cuh"

namespace {

static_assert(CU_NORM_ROWS == 2 * NORM_WARPS, "blocks have two turns at least, as far as there are rows");

template <class T> struct job {
    T *dx;
    float *part; /* (blocks, 2C) */
    const T *dy, *dres, *x, *w;
    const float *mean, *rstd;
    int64_t R;
    int C;
};

/* Of the sums of a row's warps in shared memory, those of a lane's elements are so far apart: lanes write side by side, and who reads
 * columns side by side, N of a lane, meets no bank twice. */
template <class T> constexpr int sums_stride(int W)
{
    return 32 * W + 32 / whole<T>;
}

template <class T, int NP, int W>
__global__ void __launch_bounds__(NORM_THREADS, NP <= 3 ? 2 : 1) norm_bwd_rows(const job<T> a)
{
    constexpr int N = whole<T>, LANES = 32 * W, G = NORM_THREADS / LANES;
    float *sums = LS_SHARED_DYNAMIC(float); /* (G, NP N, STRIDE) */
    LS_SHARED(float, room, [2][2][NORM_WARPS]);
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, n_pack = a.C / N;
    const float inv = 1.0f / (float)a.C;
    float dw[NP][N], db[NP][N];
#pragma unroll
    for (int k = 0; k < NP; k++)
#pragma unroll
        for (int i = 0; i < N; i++) dw[k][i] = db[k][i] = 0;
    int turn = 0;
    for (int64_t first = (int64_t)blockIdx.x * G; first < a.R; first += (int64_t)gridDim.x * G, turn ^= 1) {
        const int64_t r = first + group;
        const bool live = r < a.R;
        const float mean = live ? a.mean[r] : 0.0f, rstd = live ? a.rstd[r] : 0.0f;
        vec<T, N> x[NP], dy[NP], dres[NP];
#pragma unroll
        for (int k = 0; k < NP; k++) {
            const int p = lane + k * LANES;
            const bool here = live && p < n_pack;
            x[k] = here ? vec_load<N>(a.x + r * a.C + p * N) : vec_zero<T, N>();
            dy[k] = here ? vec_load<N>(a.dy + r * a.C + p * N) : vec_zero<T, N>();
            dres[k] = here && a.dres ? vec_load<N>(a.dres + r * a.C + p * N) : vec_zero<T, N>();
        }
        float g = 0, gh = 0;
#pragma unroll
        for (int k = 0; k < NP; k++)
            if (lane + k * LANES < n_pack) {
                float h[N], d[N], w[N];
                widen(h, x[k]);
                widen(d, dy[k]);
                widen_gains(w, vec_load<N>(a.w + (lane + k * LANES) * N));
#pragma unroll
                for (int i = 0; i < N; i++) {
                    h[i] = (h[i] - mean) * rstd;
                    dw[k][i] += d[i] * h[i];
                    db[k][i] += d[i];
                    d[i] *= w[i];
                    g += d[i];
                    gh += d[i] * h[i];
                }
            }
        /* both sums after one barrier; the next turn writes the other room */
        g = warp_sum(g), gh = warp_sum(gh);
        if (W > 1) {
            const int warp = threadIdx.x / 32;
            if (threadIdx.x % 32 == 0) room[turn][0][warp] = g, room[turn][1][warp] = gh;
            __syncthreads();
            g = gh = 0;
#pragma unroll
            for (int k = 0; k < W; k++) g += room[turn][0][group * W + k], gh += room[turn][1][group * W + k];
        }
        g *= inv, gh *= inv;
#pragma unroll
        for (int k = 0; k < NP; k++) {
            const int p = lane + k * LANES;
            if (live && p < n_pack) {
                float h[N], d[N], w[N], more[N];
                widen(h, x[k]);
                widen(d, dy[k]);
                widen_gains(w, vec_load<N>(a.w + p * N));
                widen(more, dres[k]);
#pragma unroll
                for (int i = 0; i < N; i++) d[i] = rstd * (d[i] * w[i] - g - (h[i] - mean) * rstd * gh) + more[i];
                vec_store<N>(a.dx + r * a.C + p * N, vec_of<T>(d));
            }
        }
    }
    /* Each group's sums to shared memory, then every thread adds the groups' in order, of dw and then of db. */
    constexpr int STRIDE = sums_stride<T>(W), WIDE = NP * N * STRIDE;
#pragma unroll
    for (int which = 0; which < 2; which++) {
        if (which) __syncthreads();
#pragma unroll
        for (int k = 0; k < NP; k++)
#pragma unroll
            for (int i = 0; i < N; i++) sums[group * WIDE + (k * N + i) * STRIDE + lane] = which ? db[k][i] : dw[k][i];
        __syncthreads();
        for (int j = threadIdx.x; j < a.C; j += NORM_THREADS) {
            const int p = j / N, from = (p / LANES * N + j % N) * STRIDE + p % LANES;
            float sum = sums[from];
#pragma unroll
            for (int who = 1; who < G; who++) sum += sums[who * WIDE + from];
            a.part[((int64_t)blockIdx.x * 2 + which) * a.C + j] = sum;
        }
    }
}

/* Any width and address, first dx: a block owns a row, … */
template <class T> __global__ void __launch_bounds__(NORM_THREADS) norm_bwd_any(const job<T> a)
{
    LS_SHARED(float, room, [2][NORM_WARPS]);
    const float inv = 1.0f / (float)a.C;
    for (int64_t r = blockIdx.x; r < a.R; r += gridDim.x) {
        const float mean = a.mean[r], rstd = a.rstd[r];
        float g = 0, gh = 0;
        for (int j = threadIdx.x; j < a.C; j += NORM_THREADS) {
            const float h = (to_float(a.x[r * a.C + j]) - mean) * rstd;
            const float dww = to_float(a.dy[r * a.C + j]) * gain_of(a.w[j]);
            g += dww;
            gh += dww * h;
        }
        g = group_sum<NORM_WARPS>(g, room[0]) * inv;
        gh = group_sum<NORM_WARPS>(gh, room[1]) * inv;
        for (int j = threadIdx.x; j < a.C; j += NORM_THREADS) {
            const int64_t at = r * a.C + j;
            const float h = (to_float(a.x[at]) - mean) * rstd, dww = to_float(a.dy[at]) * gain_of(a.w[j]);
            a.dx[at] = from_float<T>(rstd * (dww - g - h * gh) + (a.dres ? to_float(a.dres[at]) : 0.0f));
        }
    }
}

/* … and before it the sums (dx may overlap what they read): a thread owns a column, a block a share of the rows. */
template <class T> __global__ void __launch_bounds__(NORM_THREADS) norm_bwd_columns(const job<T> a)
{
    const int64_t share = ceil_div<int64_t>(a.R, gridDim.y), from = blockIdx.y * share;
    const int64_t end = from + share < a.R ? from + share : a.R;
    const int j = (int)blockIdx.x * NORM_THREADS + (int)threadIdx.x;
    if (j >= a.C) return;
    float dw = 0, db = 0;
#pragma unroll 4
    for (int64_t r = from; r < end; r++) {
        const float d = to_float(a.dy[r * a.C + j]);
        dw += d * ((to_float(a.x[r * a.C + j]) - a.mean[r]) * a.rstd[r]);
        db += d;
    }
    a.part[(int64_t)blockIdx.y * 2 * a.C + j] = dw;
    a.part[(int64_t)blockIdx.y * 2 * a.C + a.C + j] = db;
}

template <class T> struct start {
    const job<T> &a;
    void *stream;
    template <int NP, int W> int rows() const
    {
        const size_t smem = (size_t)(NORM_WARPS / W * NP * whole<T> * sums_stride<T>(W)) * sizeof(float);
        return LS_LAUNCH((norm_bwd_rows<T, NP, W>), (unsigned)cu_norm_parts(a.R), NORM_THREADS, smem, stream, a);
    }
    int any() const
    {
        const dim3 grid((unsigned)ceil_div<int64_t>(a.C, NORM_THREADS), (unsigned)cu_norm_parts(a.R));
        const int e = LS_LAUNCH((norm_bwd_columns<T>), grid, NORM_THREADS, 0, stream, a);
        if (e) return e;
        return LS_LAUNCH((norm_bwd_any<T>), (unsigned)(a.R < 65536 ? a.R : 65536), NORM_THREADS, 0, stream, a);
    }
};

int bwd(void *stream, ls_dtype dt, void *dx, const void *dy, const void *dres, const void *x, const void *w,
        const float *mean, const float *rstd, int64_t R, int64_t C, float *part)
{
    LS_DISPATCH(dt, T, {
        const job<T> a = {(T *)dx, part, (const T *)dy, (const T *)dres, (const T *)x, (const T *)w, mean,
                          rstd,    R,    (int)C};
        const start<T> s = {a, stream};
        return norm_pick<T>(C, aligned16(dx, dy, dres, x, w), s);
    });
}

} // namespace

extern "C" int cu_layernorm_bwd(void *stream, ls_dtype dt, void *dx, float *dw, float *db, const void *dy,
                                const void *dres, const void *x, const void *w, const float *mean, const float *rstd,
                                int64_t R, int64_t C, bool acc, void *scratch)
{
    if (C <= 0) return 0;
    const int e = R > 0 ? bwd(stream, dt, dx, dy, dres, x, w, mean, rstd, R, C, (float *)scratch) : 0;
    return e ? e : cu_fold(stream, dw, db, C, (const float *)scratch, cu_norm_parts(R), 2 * C, acc);
}
