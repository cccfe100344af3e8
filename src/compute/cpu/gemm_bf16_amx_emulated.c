/* gemm_bf16_amx_emulated.c - the kernel of gemm_bf16_amx.c with its instructions emulated, for every CPU. */
#define GEMM_EMULATE
#include "compute/cpu/gemm_bf16_amx.c"
