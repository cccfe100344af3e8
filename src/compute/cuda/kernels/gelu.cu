/* gelu.cu - GELU and its slope, in the tanh and the erf form.
 *
 *   tanh form   y = x s,  s = 1 / (1 + exp(-2u)),  u = sqrt(2/pi) (x + 0.044715 x^3)      as (1 + tanh u)/2 = s
 *               dx = dy (s + 2 x s (1 - s) u')
 *   erf form    y = x (1 + erf(x/sqrt 2))/2,       dx = dy ((1 + erf(x/sqrt 2))/2 + x exp(-x^2/2)/sqrt(2 pi))
 *
 * Bytes   forward 4n, backward 6n (16-bit types). At full bandwidth there is time for about 20 instructions an element,
 *         hence the form with one exponential and one division, both in the fast form (2 units in the last place). */
#include "compute/cuda/kernels/point.cuh"

namespace {

#define SQRT_2_OVER_PI  0.79788456080286535588f
#define SQRT_1_OVER_2   0.70710678118654752440f
#define SQRT_1_OVER_2PI 0.39894228040143267794f
#define CUBIC           0.044715f

#define LOG2_E 1.44269504088896340736f

/* 1 / (1 + exp(-2u)) */
LS_DEVICE float gate(float x)
{
    constexpr float linear = -2.0f * SQRT_2_OVER_PI * LOG2_E, cubic = linear * CUBIC;
    return rcp(1.0f + ex2(x * (linear + cubic * (x * x))));
}

template <ls_gelu KIND> LS_DEVICE float gelu(float x)
{
    if (KIND == LS_GELU_ERF) return 0.5f * x * (1.0f + erff(x * SQRT_1_OVER_2));
    return x * gate(x);
}

template <ls_gelu KIND> LS_DEVICE float slope(float x)
{
    if (KIND == LS_GELU_ERF)
        return 0.5f * (1.0f + erff(x * SQRT_1_OVER_2)) + x * SQRT_1_OVER_2PI * ex2(-0.5f * LOG2_E * (x * x));
    const float s = gate(x), du2 = 2.0f * SQRT_2_OVER_PI + 6.0f * SQRT_2_OVER_PI * CUBIC * x * x;
    return s + x * s * (1.0f - s) * du2;
}

template <ls_gelu KIND> struct fwd {
    __device__ void prepare() {}
    template <int N> __device__ void all(float (&v)[1][N], int64_t) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) v[0][i] = gelu<KIND>(v[0][i]);
    }
};

template <ls_gelu KIND> struct bwd {
    __device__ void prepare() {}
    template <int N> __device__ void all(float (&v)[2][N], int64_t) const /* dy, x */
    {
#pragma unroll
        for (int i = 0; i < N; i++) v[0][i] *= slope<KIND>(v[1][i]);
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
