/* simd_avx2.c - the vector kernels, compiled for avx2. */
#define SIMD_AVX2
#define SIMD_OPS  simd_avx2
#define SIMD_NAME "avx2"
#include "compute/cpu/simd_kernels.inc"
