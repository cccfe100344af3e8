/* gemm_plain.c - the kernel for any CPU: C loops that a compiler can vectorise as it knows how. Multiplication and addition
 * round separately, so that the bits do not depend on whether the machine has a fused instruction. */
#include "compute/cpu/gemm_impl.h"
#include "compute/cpu/gemm_pack.h"

enum { GEMM_MR = 4, GEMM_NR = 8 };
#define GEMM_A_STAYS 0

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

#include "compute/cpu/gemm_tile.h"

static inline gemm_v4 v4_set1(float x)
{
    return (gemm_v4){x, x, x, x};
}

#define V              gemm_v4
#define V_N            4
#define V_LOAD(p)      (*(const gemm_v4 *)(p))
#define V_STORE(p, v)  (*(gemm_v4 *)(p) = (v))
#define V_SET1(x)      v4_set1(x)
#define V_FMA(a, b, c) ((a) * (b) + (c))
#define S_FMA(a, b, c) ((a) * (b) + (c))
#include "compute/cpu/gemm_small.h"

static void pack_a(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    gemm_pack_panels(dst, panel, src, ld, k_contig, w, kb, GEMM_MR);
}

static void pack_b(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    gemm_pack_panels(dst, panel, src, ld, k_contig, w, kb, GEMM_NR);
}

static bool usable(void)
{
    return true;
}

const gemm_kernel gemm_kernel_plain = {
    .name = "plain",
    .usable = usable,
    .mr = GEMM_MR,
    .nr = GEMM_NR,
    .kc = 256,
    .k_round = 1,
    .elem_nbytes = 4,
    .mt = 128,
    .nt = 192,
    .tmp_nbytes = 128,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = gemm_tile_block,
    .small = small_columns,
};
