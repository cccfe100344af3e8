/* gemm_bias.cu - what products need beside the library.
 *
 *   bias          out[m][n] += bias[n], where the library has no such epilogue for a shape: 4MN bytes (16-bit types)
 *   fingerprint   of factor * x, bit for bit: whether two runs of a product agree (factor 1), and whether a product added to itself is an
 *                 addition (factor 2, which rounds nothing), without a second matrix in memory; only while algorithms are measured
 *                 print = sum over elements of mix(bits(factor * x), place), modulo 2^64       integers: their order does not matter */
#include "compute/cuda/kernels/vec.cuh"

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
    float f[P];
    widen(f, vec_load<P>(at));
#pragma unroll
    for (int k = 0; k < P; k++) f[k] += to_float(bias[n + k]);
    vec_store<P>(at, vec_of<O>(f));
}

template <class O, class T> int start(void *stream, void *out, const void *bias, int64_t M, int64_t N, int64_t ld)
{
    constexpr int P = whole<O>;
    const bool packs = N % P == 0 && ld % P == 0 && aligned16(out);
    const unsigned blocks = (unsigned)ceil_div(M * N, (int64_t)THREADS * (packs ? P : 1));
    return LS_LAUNCH((packs ? add_bias<O, T, P> : add_bias<O, T, 1>), blocks, THREADS, 0, stream, (O *)out,
                     (const T *)bias, M, N, ld);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    print_rows(unsigned long long *print, const T *x, float factor, int64_t M, int64_t N, int64_t ld)
{
    unsigned long long mine = 0;
    for (int64_t m = blockIdx.x; m < M; m += gridDim.x)
        for (int64_t n = threadIdx.x; n < N; n += THREADS) {
            vec<T, 1> v = vec_load<1>(x + m * ld + n);
            const float f[1] = {factor * to_float(x[m * ld + n])};
            if (factor != 1.0f) v = vec_of<T>(f);
            mine += ls_rng_u64(v.u, (uint64_t)(m * N + n));
        }
    atomicAdd(print, mine);
}

} // namespace

extern "C" int cu_gemm_bias(void *stream, ls_dtype out_dt, void *out, ls_dtype dt, const void *bias, int64_t M,
                            int64_t N, int64_t ld)
{
    if (M <= 0 || N <= 0) return 0;
    LS_DISPATCH(dt, T, {
        if (out_dt == dt) return start<T, T>(stream, out, bias, M, N, ld);
        if (out_dt == LS_F32) return start<float, T>(stream, out, bias, M, N, ld);
        return (int)cudaErrorInvalidValue;
    });
}

extern "C" int cu_fingerprint(void *stream, ls_dtype dt, uint64_t *print, const void *x, float factor, int64_t M,
                              int64_t N, int64_t ld)
{
    const int e = (int)cudaMemsetAsync(print, 0, sizeof *print, (cudaStream_t)stream);
    if (e || M <= 0) return e;
    LS_DISPATCH(dt, T,
                return LS_LAUNCH(print_rows<T>, (unsigned)(M < 1024 ? M : 1024), THREADS, 0, stream,
                                 (unsigned long long *)print, (const T *)x, factor, M, N, ld));
}
