/* gemm_pack.h - what the fp32 kernels share besides gemm_tile.h: packing of panels. A kernel begins with GEMM_TILE_KERNEL. */
#ifndef LS_COMPUTE_CPU_GEMM_PACK_H
#define LS_COMPUTE_CPU_GEMM_PACK_H

#include "compute/cpu/gemm_tile.h"

#include <string.h>

/* Both operands use the same code; only which index is contiguous in memory matters. */

typedef float gemm_v4 __attribute__((vector_size(16), may_alias, aligned(4)));

/* Any panel, any edge: one element at a time. */
GEMM_INLINE void pack_edge(float *dst, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb, int W)
{
    for (int64_t k = 0; k < kb; k++)
        for (int i = 0; i < W; i++) dst[k * W + i] = i < w ? (k_contig ? src[i * ld + k] : src[k * ld + i]) : 0.0f;
}

/* R <= 4 rows of memory become R neighbours at every k: 4x4 transpositions. */
GEMM_INLINE void pack_rows(float *dst, const float *src, int64_t ld, int R, int W)
{
    gemm_v4 r[4] = {{0}, {0}, {0}, {0}};
    for (int i = 0; i < R; i++) r[i] = *(const gemm_v4 *)(src + i * ld);
    gemm_v4 lo01 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5),
            hi01 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    gemm_v4 lo23 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5),
            hi23 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    gemm_v4 out[4] = {__builtin_shufflevector(lo01, lo23, 0, 1, 4, 5), __builtin_shufflevector(lo01, lo23, 2, 3, 6, 7),
                      __builtin_shufflevector(hi01, hi23, 0, 1, 4, 5), __builtin_shufflevector(hi01, hi23, 2, 3, 6, 7)};
    for (int j = 0; j < 4; j++) memcpy(dst + j * W, &out[j], (size_t)R * sizeof(float));
}

GEMM_INLINE void pack_full(float *dst, const float *src, int64_t ld, int64_t kb, int W)
{
    int64_t k = 0;
    for (; k + 4 <= kb; k += 4) {
        int i = 0;
        for (; i + 4 <= W; i += 4) pack_rows(dst + k * W + i, src + i * ld + k, ld, 4, W);
        if (W % 4) pack_rows(dst + k * W + i, src + i * ld + k, ld, W % 4, W);
    }
    for (; k < kb; k++)
        for (int i = 0; i < W; i++) dst[k * W + i] = src[i * ld + k];
}

GEMM_INLINE void gemm_pack_panels(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w,
                                  int64_t kb, int W)
{
    int64_t full = w / W;
    char *out = dst;
    if (k_contig) {
        for (int64_t p = 0; p < full; p++)
            pack_full((float *)(void *)(out + (size_t)p * panel), src + p * W * ld, ld, kb, W);
    } else {
        /* all panels of a memory row together, because neighbours share cache lines and pages */
        for (int64_t k = 0; k < kb; k++)
            for (int64_t p = 0; p < full; p++)
                memcpy((float *)(void *)(out + (size_t)p * panel) + k * W, src + k * ld + p * W,
                       (size_t)W * sizeof(float));
    }
    if (full * W < w) {
        const float *rest = k_contig ? src + full * W * ld : src + full * W;
        pack_edge((float *)(void *)(out + (size_t)full * panel), rest, ld, k_contig, w - full * W, kb, W);
    }
}

static void pack_a(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    gemm_pack_panels(dst, panel, src, ld, k_contig, w, kb, GEMM_MR);
}

static void pack_b(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    gemm_pack_panels(dst, panel, src, ld, k_contig, w, kb, GEMM_NR);
}

/* The members that follow from the micro-tile. */
#define GEMM_TILE_KERNEL                                                                              \
    .mr = GEMM_MR, .nr = GEMM_NR, .k_round = 1, .elem_nbytes = 4, .pack_a = pack_a, .pack_b = pack_b, \
    .block = gemm_tile_block

#endif
