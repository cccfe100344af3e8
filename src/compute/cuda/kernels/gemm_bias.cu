/* gemm_bias.cu - out[m][n] += bias[n], for products whose library has no such epilogue for a shape.
 *
 * Bytes   4MN (16-bit types): read and written once; the bias stays in L1. */
#include "compute/cuda/kernels/gemm_bias.h"
#include "compute/cuda/gpu.cuh"

namespace {

#define THREADS 256

/* P elements per thread; P 1 where rows do not come in packs. */
template <class O, class T, int P>
__global__ void __launch_bounds__(THREADS) add_bias(O *out, const T *bias, int64_t M, int64_t N, int64_t ld)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * P;
    if (i >= M * N) return;
    const int64_t n = i % N;
    O *at = out + i / N * ld + n;
    if constexpr (P == 1) {
        *at = from_float<O>(to_float(*at) + to_float(bias[n]));
    } else {
        pack<O> v = load_pack(at);
#pragma unroll
        for (int k = 0; k < P; k++) v[k] = from_float<O>(to_float(v[k]) + to_float(bias[n + k]));
        store_pack(at, v);
    }
}

template <class O, class T> int start(void *stream, void *out, const void *bias, int64_t M, int64_t N, int64_t ld)
{
    constexpr int P = pack<O>::n;
    const bool whole = packs<O>(out, N) && ld % P == 0;
    const unsigned blocks = (unsigned)ceil_div(M * N, (int64_t)THREADS * (whole ? P : 1));
    if (whole) return LS_LAUNCH((add_bias<O, T, P>), blocks, THREADS, 0, stream, (O *)out, (const T *)bias, M, N, ld);
    return LS_LAUNCH((add_bias<O, T, 1>), blocks, THREADS, 0, stream, (O *)out, (const T *)bias, M, N, ld);
}

} // namespace

extern "C" int cu_gemm_bias(void *stream, ls_dtype out_dt, void *out, ls_dtype dt, const void *bias, int64_t M,
                            int64_t N, int64_t ld)
{
    if (M <= 0 || N <= 0) return 0;
    LS_DISPATCH(dt, T, {
        if (out_dt == dt) return start<T, T>(stream, out, bias, M, N, ld);
        if (out_dt == LS_F32) return start<float, T>(stream, out, bias, M, N, ld);
    });
    return (int)cudaErrorInvalidValue;
}
