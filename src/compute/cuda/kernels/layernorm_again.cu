/* layernorm_again.cu - a norm's output once more, from its input and the statistics that forward kept.
 *
 *   y = (x - mean) rstd w + b          the same operations as layernorm_fwd.cu's, so the same bits
 *
 * Bytes   4RC (16-bit types). A warp makes a row; w and b come out of L1. */
#include "compute/cuda/kernels/norm.cuh"
#include "compute/cuda/kernels/norm.h"

namespace {

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

template <class T>
int again(void *stream, void *y, const void *x, const float *mean, const float *rstd, const void *w, const void *b,
          int64_t R, int64_t C)
{
    const unsigned blocks = (unsigned)ceil_div<int64_t>(R, NORM_WARPS);
    if (C % whole<T> == 0 && aligned16(y, x, w, b))
        return LS_LAUNCH((norm_again<T, whole<T>>), blocks, NORM_THREADS, 0, stream, (T *)y, (const T *)x, mean, rstd,
                         (const T *)w, (const T *)b, R, (int)C);
    return LS_LAUNCH((norm_again<T, 1>), blocks, NORM_THREADS, 0, stream, (T *)y, (const T *)x, mean, rstd,
                     (const T *)w, (const T *)b, R, (int)C);
}

} // namespace

extern "C" int cu_layernorm_again(void *stream, ls_dtype dt, void *y, const void *x, const float *mean,
                                  const float *rstd, const void *w, const void *b, int64_t R, int64_t C)
{
    if (R <= 0 || C <= 0) return 0;
    LS_DISPATCH(dt, T, return again<T>(stream, y, x, mean, rstd, w, b, R, C));
    return (int)cudaErrorInvalidValue;
}
