/* column_sums.cu - sums (N) (+)= the sums of the columns of x (R,N): the gradient of a bias, where the product beside
 * it does not make it.
 *
 * Bytes   2RN (16-bit types), and 4N a share of the rows for the partial sums.
 * Order   a block has 32 packs of columns and a share of the rows, its 8 warps take them in turn; warps in order, then
 *         shares in order (fold.cu). R alone decides the shares. */
#include "compute/cuda/kernels/fold.cuh"
#include "compute/cuda/kernels/norm.h"

namespace {

#define WARPS       8
#define ROWS_LEAST  64 /* of a share */
#define SHARES_MOST 128

int64_t shares(int64_t R)
{
    const int64_t n = ceil_div<int64_t>(R, ROWS_LEAST);
    return n < SHARES_MOST ? n : SHARES_MOST;
}

template <class T, int N>
__global__ void __launch_bounds__(32 * WARPS) sum_columns(float *part, const T *x, int64_t R, int64_t columns)
{
    LS_SHARED(float, sums, [WARPS][32 * N + 1]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t j = ((int64_t)blockIdx.x * 32 + lane) * N, share = ceil_div<int64_t>(R, gridDim.y),
                  from = blockIdx.y * share;
    const int64_t end = from + share < R ? from + share : R;
    float sum[N];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = 0;
    if (j < columns) {
#pragma unroll 8
        for (int64_t r = from + warp; r < end; r += WARPS) {
            float f[N];
            widen(f, vec_load<N>(x + r * columns + j));
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += f[i];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) sums[warp][i * 32 + lane] = sum[i];
    __syncthreads();
    for (int k = threadIdx.x; k < 32 * N; k += 32 * WARPS) {
        const int64_t column = ((int64_t)blockIdx.x * 32 + k % 32) * N + k / 32;
        float s = 0;
        for (int v = 0; v < WARPS; v++) s += sums[v][k];
        if (column < columns) part[blockIdx.y * columns + column] = s;
    }
}

template <class T> int start(void *stream, float *part, const void *x, int64_t R, int64_t N)
{
    constexpr int P = whole<T>;
    const bool packs = N % P == 0 && aligned16(x);
    const dim3 grid((unsigned)ceil_div<int64_t>(N, packs ? 32 * P : 32), (unsigned)shares(R));
    if (packs) return LS_LAUNCH((sum_columns<T, P>), grid, 32 * WARPS, 0, stream, part, (const T *)x, R, N);
    return LS_LAUNCH((sum_columns<T, 1>), grid, 32 * WARPS, 0, stream, part, (const T *)x, R, N);
}

int by_type(void *stream, ls_dtype dt, float *part, const void *x, int64_t R, int64_t N)
{
    LS_DISPATCH(dt, T, return start<T>(stream, part, x, R, N));
    return (int)cudaErrorInvalidValue;
}

} // namespace

extern "C" size_t cu_column_sums_scratch(int64_t R, int64_t N)
{
    return (size_t)(shares(R) * N) * sizeof(float);
}

extern "C" int cu_column_sums(void *stream, ls_dtype dt, float *sums, const void *x, int64_t R, int64_t N, bool acc,
                              void *scratch)
{
    if (N <= 0) return 0;
    const int e = R > 0 ? by_type(stream, dt, (float *)scratch, x, R, N) : 0;
    return e ? e : cu_fold(stream, sums, nullptr, N, (const float *)scratch, shares(R), N, acc);
}
