/* gemm_bf16_emulated_avx2.c - the emulation of gemm_bf16_avx512.c, compiled for AVX2 with FMA: the same arithmetic, several times as fast. It is what
 * --precision bf16 uses on an x86 CPU without bf16 instructions. */
#define GEMM_EMULATE
#include "compute/cpu/gemm_bf16_avx512.c"
