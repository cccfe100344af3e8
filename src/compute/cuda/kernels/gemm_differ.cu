/* gemm_differ.cu - counts the elements of y that are not factor * x, bit for bit: whether two runs of a product agree (factor 1), and
 * whether a product added to itself is an addition (factor 2, which rounds nothing).
 *
 * Bytes   2n elements; only while algorithms are measured. The count is of integers: their order does not matter. */
#include "compute/cuda/gpu.cuh"
#include "compute/cuda/kernels/gemm_bias.h"

namespace {

#define THREADS 256

LS_DEVICE unsigned bits(float x)
{
    return __float_as_uint(x);
}
LS_DEVICE unsigned bits(bf16 x)
{
    return __bfloat16_as_ushort(x);
}
LS_DEVICE unsigned bits(f16 x)
{
    return __half_as_ushort(x);
}

template <class T>
__global__ void __launch_bounds__(THREADS) count_differing(int *differ, const T *y, const T *x, float factor, int64_t n)
{
    const int64_t step = (int64_t)gridDim.x * THREADS;
    int mine = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        mine += bits(y[i]) != bits(factor == 1.0f ? x[i] : from_float<T>(factor * to_float(x[i])));
    if (mine) atomicAdd(differ, mine);
}

} // namespace

extern "C" int cu_differ(void *stream, ls_dtype dt, int *differ, const void *y, const void *x, float factor, int64_t n)
{
    const int64_t blocks = ceil_div(n, (int64_t)THREADS);
    const int e = (int)cudaMemsetAsync(differ, 0, sizeof *differ, (cudaStream_t)stream);
    if (e || n <= 0) return e;
    LS_DISPATCH(dt, T,
                return LS_LAUNCH(count_differing<T>, (unsigned)(blocks < 1024 ? blocks : 1024), THREADS, 0, stream,
                                 differ, (const T *)y, (const T *)x, factor, n));
    return (int)cudaErrorInvalidValue;
}
