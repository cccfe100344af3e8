/* gemm_tile.h - what kernels with a micro-tile in registers share: the loops over micro-tiles inside one block of C. The including file
 * defines, before it includes this one,
 *
 *   GEMM_MR, GEMM_NR     the micro-tile; constants, so that copies of panels become a few vector moves
 *   GEMM_A_STAYS         1: a panel of A stays in the first cache while panels of B stream; 0: the other way round
 *
 * and then micro(). */
#ifndef LS_COMPUTE_CPU_GEMM_TILE_H
#define LS_COMPUTE_CPU_GEMM_TILE_H

#include "compute/cpu/gemm_impl.h"

/* A whole micro-tile: c = the sum, or c + the sum; then + bias where it is not NULL. pa, pb: packed panels, in the kernel's own layout. */
static void micro(int64_t kb, const float *pa, const float *pb, float *c, int64_t ldc, const float *bias, bool add);

/* ---- micro-tiles ---- */

static void micro_edge(const gemm_block *b, const float *pa, const float *pb, int64_t i, int64_t j)
{
    micro(b->kb, pa, pb, b->tmp, GEMM_NR, NULL, false);
    gemm_write_edge(b, i, j, GEMM_MR, GEMM_NR);
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

#endif
