/* simd_avx512.c - the vector kernels, compiled for avx512. */
#define SIMD_AVX512
#define SIMD_OPS  simd_avx512
#define SIMD_NAME "avx512"
#include "compute/cpu/simd_kernels.inc"
