/* gemm_print.cu - a fingerprint of factor * x, bit for bit: whether two runs of a product agree (factor 1), and whether a product added to
 * itself is an addition (factor 2, which rounds nothing), without a second matrix in memory.
 *
 *   print = sum over elements of mix(bits(factor * x), place), modulo 2^64       integers: their order does not matter
 *
 * Bytes   MN elements, read once; only while algorithms are measured. */
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
__global__ void __launch_bounds__(THREADS)
    print_rows(unsigned long long *print, const T *x, float factor, int64_t M, int64_t N, int64_t ld)
{
    unsigned long long mine = 0;
    for (int64_t m = blockIdx.x; m < M; m += gridDim.x)
        for (int64_t n = threadIdx.x; n < N; n += THREADS) {
            const T v = factor == 1.0f ? x[m * ld + n] : from_float<T>(factor * to_float(x[m * ld + n]));
            mine += rng_u64(bits(v), (uint64_t)(m * N + n));
        }
    atomicAdd(print, mine);
}

} // namespace

extern "C" int cu_fingerprint(void *stream, ls_dtype dt, uint64_t *print, const void *x, float factor, int64_t M,
                              int64_t N, int64_t ld)
{
    const int e = (int)cudaMemsetAsync(print, 0, sizeof *print, (cudaStream_t)stream);
    if (e || M <= 0) return e;
    LS_DISPATCH(dt, T,
                return LS_LAUNCH(print_rows<T>, (unsigned)(M < 1024 ? M : 1024), THREADS, 0, stream,
                                 (unsigned long long *)print, (const T *)x, factor, M, N, ld));
    return (int)cudaErrorInvalidValue;
}
