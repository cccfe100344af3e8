/* gemm_bf16_pairs.h - packing for AVX512_BF16 and AMX: fp32 becomes bf16 (or is bf16 already), two neighbouring steps of K become one lane of
 * 32 bits.
 *
 *   k_contig   a row of 32 steps is one conversion of two vectors: 16 pairs of one row (column)
 *   otherwise  two rows of memory, 16 wide, are interleaved: one pair of 16 rows (columns)
 *
 * Sixteen such vectors are a block of 16 x 16 pairs, which is stored as it is or transposed. */
#ifndef LS_COMPUTE_CPU_GEMM_BF16_PAIRS_H
#define LS_COMPUTE_CPU_GEMM_BF16_PAIRS_H

#include "compute/cpu/gemm_vec16.h"

#include <string.h>
#ifdef GEMM_EMULATE
#include "compute/cpu/gemm_bf16_emulate.h"
#else
#include <immintrin.h>
#endif

enum { CHUNK = 32 }; /* steps of K of one block of pairs */

/* 32 words: lo, hi */
GEMM_INLINE void words_of(vh *out, const vf *lo, const vf *hi)
{
#ifdef GEMM_EMULATE
    *out = SHUFFLE((vh)emu_round(*lo), (vh)emu_round(*hi), 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                   32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62);
#else
    *out = (vh)_mm512_cvtne2ps_pbh((__m512)*hi, (__m512)*lo);
#endif
}

/* d[i] = pairs of row i, when k_contig; else d[p] = pair p of all rows */
GEMM_INLINE void block_of_pairs(vf d[16], const void *src, int64_t ld, bool k_contig, bool half)
{
    for (int i = 0; i < 16; i++) {
        const int64_t lo = k_contig ? i * ld : 2 * i * ld, hi = k_contig ? lo + 16 : lo + ld;
        vh w;
        if (half) {
            const uint16_t *s = src;
            const vh_half a = *(const vh_half *)(s + lo), b = *(const vh_half *)(s + hi);
            w = SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
                        25, 26, 27, 28, 29, 30, 31);
        } else {
            const float *s = src;
            const vf a = *(const vf_at *)(s + lo), b = *(const vf_at *)(s + hi);
            words_of(&w, &a, &b);
        }
        d[i] = k_contig ? (vf)w
                        : (vf)SHUFFLE(w, w, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10,
                                      26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
}

/* How the blocks of a panel lie in it. A chunk has 32 steps of K, a unit of it 16 rows (columns). */
typedef struct pairs_layout {
    int w;       /* rows (columns) of a panel                                          */
    bool by_row; /* a row of the packed block is a row of op(A), not a pair of steps    */
    bool half;   /* the source is bf16                                                  */
    bool whole;  /* chunks are always whole                                             */
    int unit;    /* bytes from one unit of a chunk to the next                          */
    int stride;  /* bytes from one row of a packed block to the next                    */
} pairs_layout;

/* w <= 16 rows (columns) and kb <= 32 steps. `room`: how many may be read; less than a block goes through a copy with zeros. */
GEMM_INLINE void pack_unit(char *out, const void *src, int64_t ld, bool k_contig, int64_t w, int64_t room, int64_t kb,
                           pairs_layout l)
{
    float copy[CHUNK * 16];
    vf d[16];
    if (room < 16 || kb < CHUNK) {
        copy_with_zeros(copy, CHUNK, src, l.half, ld, k_contig, w, kb);
        src = copy;
        ld = k_contig ? CHUNK : 16;
    }
    block_of_pairs(d, src, ld, k_contig, l.half);
    if (k_contig != l.by_row) transpose16(d);
    const int64_t rows = l.whole ? 16 : gemm_ceil_div(kb, 2);
    const size_t nbytes = (size_t)LS_MIN(l.w, 16) * sizeof(uint32_t);
    for (int64_t r = 0; r < rows; r++) memcpy(out + r * l.stride, &d[r], nbytes);
}

/* A panel at a time: it reads l.w rows (k_contig), or 32 rows of memory and then the next 32. */
GEMM_INLINE void pack_pairs(void *dst, size_t panel, const void *src, int64_t ld, bool k_contig, int64_t w, int64_t kb,
                            pairs_layout l)
{
    const int64_t nbytes = l.half ? 2 : 4;
    for (int64_t i0 = 0; i0 < w; i0 += l.w, dst = (char *)dst + panel)
        for (int64_t k = 0; k < kb; k += CHUNK) {
            const int64_t n_k = LS_MIN(kb - k, CHUNK);
            char *chunk = (char *)dst + k / 2 * l.w * (int64_t)sizeof(uint32_t);
            for (int u = 0; u < l.w; u += 16) {
                const int64_t i = i0 + u, left = LS_MAX(w - i, 0);
                pack_unit(chunk + u / 16 * l.unit, (const char *)src + (k_contig ? i * ld + k : k * ld + i) * nbytes,
                          ld, k_contig, LS_MIN(left, LS_MIN(l.w, 16)), left, n_k, l);
            }
        }
}

#endif
