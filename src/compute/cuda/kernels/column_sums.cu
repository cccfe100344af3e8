/* column_sums.cu - sums (N) (+)= the sums of the columns of x (R,N): the gradient of a bias, where the product beside
 * it does not make it; and the second stage of such sums (cu_fold).
 *
 * Bytes   2RN (16-bit types), and 4N per share of the rows for the partial sums, which are then read out of L2.
 * Order   a share of the rows is summed by 8 warps, or groups of lanes, that take them in turn; those in order. Then the
 *         shares: 16 warps take shares i, i+16, …, and those sums in order. R alone decides the shares.
 *   many rows   a block has 32 packs of columns of one share; a second launch folds.
 *   few         a block has LANES packs of columns and all shares, a warp each: one launch. */
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define WARPS      8
#define FOLD_WARPS 16
#define ROWS_LEAST CU_SUMS_ROWS_LEAST

__global__ void __launch_bounds__(32 * FOLD_WARPS)
    fold_rows(float *out, float *out2, int64_t cut, const float *part, int rows, int64_t n, bool acc)
{
    LS_SHARED(float, sums, [FOLD_WARPS][33]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t j = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
    if (j < n) {
#pragma unroll 16
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

/* ---- few rows ---- */

#define FEW_ROWS    4096
#define FEW_COLUMNS 8192         /* two blocks an SM; more columns fill the device with large blocks */
#define LANES       (32 / WARPS) /* packs of a block: 64 bytes of a row */

template <class T, int N>
__global__ void __launch_bounds__(1024) sum_few(float *out, const T *x, int R, int shares, int columns, bool acc)
{
    LS_SHARED(float, group, [32][WARPS][LANES * N]);
    LS_SHARED(float, part, [FEW_ROWS / ROWS_LEAST][LANES * N]);
    const int lane = lane_id(), warp = warp_id(), warps = (int)blockDim.x / 32, turn = lane / LANES;
    const int share = ceil_div(R, shares);
    const int first = (int)blockIdx.x * LANES * N, j = first + lane % LANES * N;
    for (int k = warp; k < shares; k += warps) {
        const int from = k * share + turn, end = (k + 1) * share < R ? (k + 1) * share : R;
        vec<T, N> row[ROWS_LEAST / WARPS]; /* a share has ROWS_LEAST rows at most, where there are few */
        float sum[N];
#pragma unroll
        for (int t = 0; t < ROWS_LEAST / WARPS; t++) {
            row[t] = vec_zero<T, N>(); /* adds nothing */
            if (from + t * WARPS < end && j < columns) row[t] = vec_load<N>(x + (from + t * WARPS) * columns + j);
        }
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = 0;
#pragma unroll
        for (int t = 0; t < ROWS_LEAST / WARPS; t++) {
            float f[N];
            widen(f, row[t]);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += f[i];
        }
#pragma unroll
        for (int i = 0; i < N; i++) group[warp][turn][lane % LANES * N + i] = sum[i];
        __syncwarp();
        if (lane < LANES * N) {
            float s = 0;
            for (int v = 0; v < WARPS; v++) s += group[warp][v][lane];
            part[k][lane] = s;
        }
        __syncwarp();
    }
    __syncthreads();
    if (warp > 0 || lane >= LANES * N || first + lane >= columns) return;
    float s = 0;
#pragma unroll
    for (int k = 0; k < FOLD_WARPS; k++) {
        float v = 0;
#pragma unroll
        for (int i = k; i < FEW_ROWS / ROWS_LEAST; i += FOLD_WARPS) v += i < shares ? part[i][lane] : 0.0f;
        s += v;
    }
    float *to = out + first + lane;
    *to = acc ? *to + s : s;
}

/* ---- launching ---- */

template <class T> int start(void *stream, float *sums, const void *x, int64_t R, int64_t N, bool acc, float *part)
{
    constexpr int P = whole<T>;
    const bool packs = N % P == 0 && aligned16(x);
    const int64_t n = cu_sums_shares(R);
    if (packs && R > 0 && R <= FEW_ROWS && N <= FEW_COLUMNS)
        return LS_LAUNCH((sum_few<T, P>), (unsigned)ceil_div<int64_t>(N, LANES * P), (unsigned)(n < 32 ? n : 32) * 32,
                         0, stream, sums, (const T *)x, (int)R, (int)n, (int)N, acc);
    const dim3 grid((unsigned)ceil_div<int64_t>(N, packs ? 32 * P : 32), (unsigned)n);
    int e = 0;
    if (R > 0)
        e = LS_LAUNCH((packs ? sum_columns<T, P> : sum_columns<T, 1>), grid, 32 * WARPS, 0, stream, part, (const T *)x,
                      R, N);
    return e ? e : cu_fold(stream, sums, nullptr, N, part, n, N, acc);
}

} // namespace

extern "C" int cu_fold(void *stream, float *out, float *out2, int64_t cut, const float *part, int64_t rows, int64_t n,
                       bool acc)
{
    return LS_LAUNCH(fold_rows, (unsigned)ceil_div<int64_t>(n, 32), 32 * FOLD_WARPS, 0, stream, out, out2, cut, part,
                     (int)rows, n, acc);
}

/* One kernel is compiled for the same architectures as all. */
extern "C" int cu_code(int *arch, bool *ptx)
{
    cudaFuncAttributes a;
    const cudaError_t e = cudaFuncGetAttributes(&a, fold_rows);
    *arch = e == cudaSuccess ? a.ptxVersion : 0;
    *ptx = e == cudaSuccess && a.ptxVersion < a.binaryVersion;
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e == cudaErrorInvalidDeviceFunction ? (int)cudaErrorNoKernelImageForDevice : (int)e;
}

/* The rows of the device and of the code that runs on it. */
static bool cards(const ls_card *&device, const ls_card *&code)
{
    int arch, now = 0, major = 0, minor = 0;
    bool ptx;
    if (cu_code(&arch, &ptx) || cudaGetDevice(&now) ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, now) ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, now))
        return false;
    device = ls_card_of(10 * major + minor), code = ls_card_of(arch);
    return device && code;
}

extern "C" const ls_card *cu_card(void)
{
    const ls_card *device, *code;
    if (!cards(device, code)) return nullptr;
    return code->capability < device->capability ? code : device;
}

/* An L4 has less than an A100, whose code it runs. */
extern "C" int cu_shared(void)
{
    const ls_card *device, *code;
    if (!cards(device, code)) return 0;
    return code->shared < device->shared ? code->shared : device->shared;
}

extern "C" int cu_column_sums(void *stream, ls_dtype dt, float *sums, const void *x, int64_t R, int64_t N, bool acc,
                              void *scratch)
{
    if (N <= 0) return 0;
    LS_DISPATCH(dt, T, return start<T>(stream, sums, x, R, N, acc, (float *)scratch));
}
