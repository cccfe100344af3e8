/* gemm_tile.h - what the fp32 kernels share: packing of panels, and the loops over micro-tiles inside one block of C. The including file
 * defines, before it includes this one,
 *
 *   GEMM_MR, GEMM_NR     the micro-tile; constants, so that copies of panels become a few vector moves
 *   GEMM_A_STAYS         1: a panel of A stays in the first cache while panels of B stream; 0: the other way round
 *
 * and then micro(), and a kernel that begins with GEMM_TILE_KERNEL. At the edges of C the whole micro-tile is computed into tmp and the
 * part that exists is added by element: the same operations on every element as inside. */
#ifndef LS_COMPUTE_CPU_GEMM_TILE_H
#define LS_COMPUTE_CPU_GEMM_TILE_H

#include "compute/cpu/gemm_impl.h"

#include <string.h>

/* A whole micro-tile: c = the sum, or c + the sum; then + bias where it is not NULL. */
static void micro(int64_t kb, const float *pa, const float *pb, float *c, int64_t ldc, const float *bias, bool add);

/* ---- packing: both operands use the same code; only which index is contiguous in memory matters ---- */

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

/* ---- micro-tiles ---- */

static void micro_edge(const gemm_block *b, const float *pa, const float *pb, int64_t i, int64_t j)
{
    int64_t m = LS_MIN(b->m - i, GEMM_MR), n = LS_MIN(b->n - j, GEMM_NR);
    float *c = b->c + i * b->ldc + j;
    micro(b->kb, pa, pb, b->tmp, GEMM_NR, NULL, false);
    for (int64_t r = 0; r < m; r++)
        for (int64_t s = 0; s < n; s++) {
            float v = b->tmp[r * GEMM_NR + s];
            if (b->add) v = c[r * b->ldc + s] + v;
            if (b->bias) v = v + b->bias[j + s];
            c[r * b->ldc + s] = v;
        }
}

static inline void micro_at(const gemm_block *b, int64_t i, int64_t j)
{
    const float *pa = (const float *)(const void *)(b->pa + (size_t)(i / GEMM_MR) * b->a_panel);
    const float *pb = (const float *)(const void *)(b->pb + (size_t)(j / GEMM_NR) * b->b_panel);
    if (i + GEMM_MR <= b->m && j + GEMM_NR <= b->n)
        micro(b->kb, pa, pb, b->c + i * b->ldc + j, b->ldc, b->bias ? b->bias + j : NULL, b->add);
    else micro_edge(b, pa, pb, i, j);
}

static void gemm_tile_block(const gemm_block *b)
{
#if GEMM_A_STAYS
    for (int64_t i = 0; i < b->m; i += GEMM_MR)
        for (int64_t j = 0; j < b->n; j += GEMM_NR) micro_at(b, i, j);
#else
    /* the next panel of B comes into the second cache while this one is used, a piece with every micro-tile */
    size_t piece = (b->b_panel * GEMM_MR / (size_t)b->m + 64) & ~(size_t)63;
    for (int64_t j = 0; j < b->n; j += GEMM_NR) {
        const char *next = b->pb + (size_t)(j / GEMM_NR + 1) * b->b_panel, *end = next + b->b_panel;
        for (int64_t i = 0; i < b->m; i += GEMM_MR) {
            for (const char *stop = next + piece; next < stop && next < end; next += 64) __builtin_prefetch(next, 0, 2);
            micro_at(b, i, j);
        }
    }
#endif
}

/* The members that follow from the micro-tile. */
#define GEMM_TILE_KERNEL                                                                              \
    .mr = GEMM_MR, .nr = GEMM_NR, .k_round = 1, .elem_nbytes = 4, .pack_a = pack_a, .pack_b = pack_b, \
    .block = gemm_tile_block

#endif
