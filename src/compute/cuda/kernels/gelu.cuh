/* gelu.cuh - GELU and its slope of one number, in the tanh and the erf form (the equations are in gelu.cu). */
#ifndef LS_CUDA_KERNELS_GELU_CUH
#define LS_CUDA_KERNELS_GELU_CUH

#include "compute/cuda/gpu.cuh"

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

#endif
