/* gemm_bf16_avx512_emulated.c - the kernel of gemm_bf16_avx512.c with its instructions emulated, for every CPU. */
#define GEMM_EMULATE
#include "compute/cpu/gemm_bf16_avx512.c"
