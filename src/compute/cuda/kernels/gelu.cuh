/* gelu.cuh - GELU and its slope of one number, in the tanh and the erf form (formulas: gelu.cu). */
#ifndef LS_CUDA_KERNELS_GELU_CUH
#define LS_CUDA_KERNELS_GELU_CUH

#include "compute/cuda/gpu.cuh"

#define GELU_SQRT_2_OVER_PI  0.79788456080286535588f
#define GELU_SQRT_1_OVER_2   0.70710678118654752440f
#define GELU_SQRT_1_OVER_2PI 0.39894228040143267794f
#define GELU_CUBIC           0.044715f

#define GELU_LOG2_E 1.44269504088896340736f

/* 1 / (1 + exp(-2u)) */
LS_DEVICE float gelu_gate(float x)
{
    constexpr float linear = -2.0f * GELU_SQRT_2_OVER_PI * GELU_LOG2_E, cubic = linear * GELU_CUBIC;
    return rcp(1.0f + ex2(x * (linear + cubic * (x * x))));
}

template <ls_gelu KIND> LS_DEVICE float gelu_value(float x)
{
    if (KIND == LS_GELU_ERF) return 0.5f * x * (1.0f + erff(x * GELU_SQRT_1_OVER_2));
    return x * gelu_gate(x);
}

template <ls_gelu KIND> LS_DEVICE float gelu_slope(float x)
{
    if (KIND == LS_GELU_ERF)
        return 0.5f * (1.0f + erff(x * GELU_SQRT_1_OVER_2)) +
               x * GELU_SQRT_1_OVER_2PI * ex2(-0.5f * GELU_LOG2_E * (x * x));
    const float s = gelu_gate(x), du2 = 2.0f * GELU_SQRT_2_OVER_PI + 6.0f * GELU_SQRT_2_OVER_PI * GELU_CUBIC * x * x;
    return s + x * s * (1.0f - s) * du2;
}

#endif
