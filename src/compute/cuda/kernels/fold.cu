/* fold.cu - out[j] (+)= sum over i of part[i][j]: 32 columns a block, each summed by 16 warps in rows i, i+16, …, and
 * those sums in order.
 *
 * Bytes   4 * rows * n, out of L2. */
#include "compute/cuda/kernels/fold.cuh"

namespace {

#define FOLD_WARPS 16

__global__ void __launch_bounds__(32 * FOLD_WARPS)
    fold_rows(float *out, float *out2, int64_t cut, const float *part, int rows, int64_t n, bool acc)
{
    LS_SHARED(float, sums, [FOLD_WARPS][33]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t j = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
    if (j < n) {
#pragma unroll 4
        for (int i = warp; i < rows; i += FOLD_WARPS) sum += part[i * n + j];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || j >= n) return;
    float *to = j < cut ? out + j : out2 + (j - cut);
    sum = 0;
    for (int k = 0; k < FOLD_WARPS; k++) sum += sums[k][lane];
    *to = acc ? *to + sum : sum; /* added to like (the sum, then an addition) */
}

} // namespace

int cu_fold(void *stream, float *out, float *out2, int64_t cut, const float *part, int64_t rows, int64_t n, bool acc)
{
    return LS_LAUNCH(fold_rows, (unsigned)ceil_div<int64_t>(n, 32), 32 * FOLD_WARPS, 0, stream, out, out2, cut, part,
                     (int)rows, n, acc);
}
