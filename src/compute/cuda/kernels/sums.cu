/* sums.cu - sums of squares for the norm of the gradient, and the sum of a batch's losses.
 *
 *   block_sum[i] = sum of x[j]^2, i*block <= j < (i+1)*block, in double        4n bytes
 *   *out         = sum of x[i], in double                                      8n
 *
 * Order   a warp sums a block: lanes take packs in turn, then a tree over lanes; n and block alone decide it. The sums
 *         of 32 blocks leave together, as results go to the host's memory, where a small write costs what a large one
 *         does. `sum` is one block. */
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define WARPS 8
#define SUMS  32 /* blocks of the caller that one of ours has */

/* Four neighbours; the order of the sum is that of whole packs wherever they are. */
template <bool WHOLE> LS_DEVICE float4 four(const float *x)
{
    if (WHOLE) return *reinterpret_cast<const float4 *>(x);
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* Sums number `number` * SUMS … of a range. */
template <bool WHOLE> LS_DEVICE void sum_some(double *out, const float *x, int64_t n, int64_t block, int64_t number)
{
    LS_SHARED(double, sums, [SUMS]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t first = number * SUMS, count = ceil_div<int64_t>(n, block);
    for (int k = warp; k < SUMS; k += WARPS) {
        const int64_t from = (first + k) * block, end = from + block < n ? from + block : n;
        double s = 0;
        if (first + k < count) {
#pragma unroll 8
            for (int64_t j = from + lane * 4; j + 4 <= end; j += 32 * 4) {
                const float4 v = four<WHOLE>(x + j);
                s += (double)v.x * (double)v.x;
                s += (double)v.y * (double)v.y;
                s += (double)v.z * (double)v.z;
                s += (double)v.w * (double)v.w;
            }
            const int64_t rest = (end - from) % 4;
            if (lane < rest) s += (double)x[end - rest + lane] * (double)x[end - rest + lane];
        }
        s = warp_sum(s);
        if (lane == 0) sums[k] = s;
    }
    __syncthreads();
    if (warp == 0 && first + lane < count) out[first + lane] = sums[lane];
}

template <bool WHOLE>
__global__ void __launch_bounds__(32 * WARPS) sum_squares(double *out, const float *x, int64_t n, int64_t block)
{
    sum_some<WHOLE>(out, x, n, block, blockIdx.x);
}

/* Several ranges in one launch: the device does not drain between them. */
#define RANGES 128
struct ranges {
    int n;
    uint32_t first[RANGES]; /* block where range i begins */
    const float *x[RANGES];
    int64_t count[RANGES];
    double *out[RANGES];
};

template <bool WHOLE>
__global__ void __launch_bounds__(32 * WARPS) sum_squares_of(const __grid_constant__ ranges a, int64_t block)
{
    int i = 0, end = a.n;
    while (i + 1 < end) { /* the last range that begins here or before */
        const int half = (i + end) / 2;
        if (blockIdx.x >= a.first[half]) i = half;
        else end = half;
    }
    sum_some<WHOLE>(a.out[i], a.x[i], a.count[i], block, blockIdx.x - a.first[i]);
}

#define SUM_THREADS 1024

__global__ void __launch_bounds__(SUM_THREADS) sum_all(double *out, const double *x, int64_t n)
{
    LS_SHARED(double, sums, [32]);
    double s = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += SUM_THREADS) s += x[i];
    s = warp_sum(s);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    s = warp_sum(sums[threadIdx.x]);
    if (threadIdx.x == 0) *out = s;
}

} // namespace

extern "C" int cu_sumsq(void *stream, double *block_sum, const float *x, int64_t n, int64_t block)
{
    if (n <= 0) return 0;
    const unsigned blocks = (unsigned)ceil_div<int64_t>(ceil_div<int64_t>(n, block), SUMS);
    const bool packs = block % 4 == 0 && aligned16(x);
    return LS_LAUNCH((packs ? sum_squares<true> : sum_squares<false>), blocks, 32 * WARPS, 0, stream, block_sum, x, n,
                     block);
}

extern "C" int cu_sumsq_many(void *stream, double *block_sum, const void *const *x, const int64_t *n, int n_range,
                             int64_t block)
{
    bool packs = block % 4 == 0;
    for (int i = 0; i < n_range; i++) packs = packs && aligned16(x[i]);
    for (int from = 0; from < n_range; from += RANGES) {
        ranges a = {};
        uint32_t blocks = 0;
        for (int i = from; i < n_range && i < from + RANGES; i++) {
            const int64_t count = ceil_div<int64_t>(n[i], block);
            if (!count) continue;
            a.first[a.n] = blocks;
            a.x[a.n] = (const float *)x[i];
            a.count[a.n] = n[i];
            a.out[a.n++] = block_sum;
            block_sum += count;
            blocks += (uint32_t)ceil_div<int64_t>(count, SUMS);
        }
        if (!a.n) continue;
        const int code =
            LS_LAUNCH((packs ? sum_squares_of<true> : sum_squares_of<false>), blocks, 32 * WARPS, 0, stream, a, block);
        if (code) return code;
    }
    return 0;
}

extern "C" int cu_sum(void *stream, double *out, const double *x, int64_t n)
{
    return LS_LAUNCH(sum_all, 1, SUM_THREADS, 0, stream, out, x, n);
}
