/* gemm_plain.c - the kernel for any CPU: C loops that a compiler can vectorise as it knows how. Multiplication and addition
 * round separately, so that the bits do not depend on whether the machine has a fused instruction. */
enum { GEMM_MR = 4, GEMM_NR = 8 };
#define GEMM_A_STAYS 0
#include "compute/cpu/gemm_pack.h"

static void micro(int64_t kb, const float *pa, const float *pb, float *c, int64_t ldc, const float *bias, bool add)
{
    gemm_v4 s[GEMM_MR][2] = {{{0}}};
    for (int64_t k = 0; k < kb; k++, pa += GEMM_MR, pb += GEMM_NR) {
        gemm_v4 b0 = *(const gemm_v4 *)pb, b1 = *(const gemm_v4 *)(pb + 4);
        for (int i = 0; i < GEMM_MR; i++) {
            s[i][0] += pa[i] * b0;
            s[i][1] += pa[i] * b1;
        }
    }
    for (int i = 0; i < GEMM_MR; i++)
        for (int j = 0; j < 2; j++) {
            gemm_v4 *out = (gemm_v4 *)(c + i * ldc + 4 * j);
            gemm_v4 v = s[i][j];
            if (add) v = *out + v;
            if (bias) v = v + *(const gemm_v4 *)(bias + 4 * j);
            *out = v;
        }
}

const gemm_kernel gemm_kernel_plain = {
    .name = "plain",
    GEMM_TILE_KERNEL,
    .kc = 256,
    .mt = 128,
    .nt = 192,
    .tmp_nbytes = 128,
};
