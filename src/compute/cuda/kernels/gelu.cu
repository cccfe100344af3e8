/* gelu.cu - GELU and its slope, in the tanh and the erf form.
 *
 *   tanh form   y = x s,  s = 1 / (1 + exp(-2u)),  u = sqrt(2/pi) (x + 0.044715 x^3)      as (1 + tanh u)/2 = s
 *               dx = dy (s + 2 x s (1 - s) u')
 *   erf form    y = x (1 + erf(x/sqrt 2))/2,       dx = dy ((1 + erf(x/sqrt 2))/2 + x exp(-x^2/2)/sqrt(2 pi))
 *
 * Bytes   forward 4n, backward 6n (16-bit types). At full bandwidth there is time for about 20 instructions an element,
 *         hence the form with one exponential and one division, both in the fast form (2 units in the last place). */
#include "compute/cuda/kernels/gelu.cuh"
#include "compute/cuda/kernels/point.cuh"

namespace {

template <ls_gelu KIND> struct fwd {
    __device__ void prepare() {}
    template <int N> __device__ void all(float (&v)[1][N], int64_t) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) v[0][i] = gelu_value<KIND>(v[0][i]);
    }
};

template <ls_gelu KIND> struct bwd {
    __device__ void prepare() {}
    template <int N> __device__ void all(float (&v)[2][N], int64_t) const /* dy, x */
    {
#pragma unroll
        for (int i = 0; i < N; i++) v[0][i] *= gelu_slope<KIND>(v[1][i]);
    }
};

} // namespace

extern "C" int cu_gelu_fwd(void *stream, ls_dtype dt, void *y, const void *x, int64_t n, ls_gelu kind)
{
    LS_DISPATCH(dt, T, {
        return kind == LS_GELU_ERF ? elements_start<T>(stream, y, {x}, n, fwd<LS_GELU_ERF>())
                                   : elements_start<T>(stream, y, {x}, n, fwd<LS_GELU_TANH>());
    });
}

extern "C" int cu_gelu_bwd(void *stream, ls_dtype dt, void *dx, const void *dy, const void *x, int64_t n, ls_gelu kind)
{
    LS_DISPATCH(dt, T, {
        return kind == LS_GELU_ERF ? elements_start<T>(stream, dx, {dy, x}, n, bwd<LS_GELU_ERF>())
                                   : elements_start<T>(stream, dx, {dy, x}, n, bwd<LS_GELU_TANH>());
    });
}
