/* gemm_vec16.h - vectors of 16 lanes and their transposition, for packing. Generic vectors: AVX-512 where the file is compiled for it, and
 * whatever there is in emulated kernels. */
#ifndef LS_COMPUTE_CPU_GEMM_VEC16_H
#define LS_COMPUTE_CPU_GEMM_VEC16_H

#include "compute/cpu/gemm_impl.h"

#include <string.h>

typedef float vf __attribute__((vector_size(64), may_alias));
typedef uint32_t vu __attribute__((vector_size(64), may_alias));
typedef uint16_t vh __attribute__((vector_size(64), may_alias));
typedef float vf_at __attribute__((vector_size(64), may_alias, aligned(4))); /* anywhere in memory */
typedef uint16_t vh_half __attribute__((vector_size(32), may_alias, aligned(2)));

/* Copies w <= 16 rows (columns) of kb <= n_k steps to `to` (16 x n_k, zero elsewhere), laid out as the source is: floats, or numbers of half
 * their size. */
GEMM_INLINE void copy_with_zeros(void *to, int64_t n_k, const void *src, bool half, int64_t ld, bool k_contig,
                                 int64_t w, int64_t kb)
{
    const size_t nbytes = half ? 2 : 4;
    memset(to, 0, (size_t)(16 * n_k) * nbytes);
    for (int64_t i = 0; i < w; i++)
        for (int64_t k = 0; k < kb; k++)
            memcpy((char *)to + (size_t)(k_contig ? i * n_k + k : k * 16 + i) * nbytes,
                   (const char *)src + (size_t)(k_contig ? i * ld + k : k * ld + i) * nbytes, nbytes);
}

#define SHUFFLE __builtin_shufflevector

/* x[i][j] <-> x[j][i] */
GEMM_INLINE void transpose16(vf x[16])
{
    vf y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = SHUFFLE(x[i], x[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        y[i + 1] = SHUFFLE(x[i], x[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    for (int i = 0; i < 16; i += 4) { /* then lane L of x[i+j] holds column 4L+j of rows i..i+3 */
        for (int e = 0; e < 2; e++) {
            x[i + 2 * e] = SHUFFLE(y[i + e], y[i + 2 + e], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
            x[i + 2 * e + 1] =
                SHUFFLE(y[i + e], y[i + 2 + e], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
        }
    }
#define EVEN_LANES(p, q) SHUFFLE(p, q, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD_LANES(p, q)  SHUFFLE(p, q, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
    for (int j = 0; j < 4; j++) {
        vf even0 = EVEN_LANES(x[j], x[4 + j]), odd0 = ODD_LANES(x[j], x[4 + j]);
        vf even1 = EVEN_LANES(x[8 + j], x[12 + j]), odd1 = ODD_LANES(x[8 + j], x[12 + j]);
        y[j] = EVEN_LANES(even0, even1);
        y[4 + j] = EVEN_LANES(odd0, odd1);
        y[8 + j] = ODD_LANES(even0, even1);
        y[12 + j] = ODD_LANES(odd0, odd1);
    }
    for (int i = 0; i < 16; i++) x[i] = y[i];
}

#endif
