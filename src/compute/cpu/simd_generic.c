/* simd_generic.c - the vector kernels, compiled for whatever the compiler targets by default. */
#define SIMD_GENERIC
#define SIMD_OPS  simd_generic
#define SIMD_NAME "generic"
#include "compute/cpu/simd_kernels.inc"
