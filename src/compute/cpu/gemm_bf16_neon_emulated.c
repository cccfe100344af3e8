/* gemm_bf16_neon_emulated.c - the kernel of gemm_bf16_neon.c with its instructions emulated, for every CPU. */
#define GEMM_EMULATE
#include "compute/cpu/gemm_bf16_neon.c"
