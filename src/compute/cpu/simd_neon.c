/* simd_neon.c - the vector kernels, compiled for neon. */
#define SIMD_NEON
#define SIMD_OPS  simd_neon
#define SIMD_NAME "neon"
#include "compute/cpu/simd_kernels.inc"
