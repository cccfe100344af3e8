/* packed.h - matrices stored for reading: the layouts of pack, unpack and linear_packed (compute.h).
 *
 * y = x w + b, w (K,N). A form has panels of 16 columns, one after the other; a panel is read from its first byte to its last,
 * so a product with one row reads memory in order. Columns beyond N, and rows beyond K up to the end of a group, are zero.
 *
 *   bf16   k 0,1: (w[0] w[1]) of col 0, of col 1, ... col 15   k 2,3: ...        64 bytes for two k: one word for each column,
 *                                                                                even k in its lower half, odd k in the upper; k is padded to
 *                                                                                a multiple of 32, so that 1 KiB is a tile of AMX
 *   int8   group 0: scale[16], then quads of k: four bytes of col 0 ... col 15   1088 bytes for 64 k
 *
 * int8: both factors are cut into groups of 64 along k, each group with its own scale:
 *
 *   w[k][n] ~ scale[g][n] q[k][n],   x[k] ~ xs[g] p[k],   q and p in -127 … 127, rounded to nearest
 *   y[n] = b[n] + sum over g of  xs[g] scale[g][n] * (sum over the group of p[k] q[k][n])
 *
 * The inner sum is exact in int32 (at most 64 * 127 * 127). On x86, whose dot products multiply unsigned with signed bytes, q is
 * stored as q + 128 (PACKED_FLIP), and 128 * sum of p is subtracted; that sum belongs to the row, not to the column.
 *
 * Sums of a column run over k in ascending order, whatever the number of rows, so a row has the same bits in every call. */
#ifndef LS_COMPUTE_CPU_PACKED_H
#define LS_COMPUTE_CPU_PACKED_H

#include "compute/compute.h"
#include "core/half.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

#define PACKED_PANEL 16  /* columns */
#define PACKED_GROUP 64  /* int8: numbers along k with one scale */
#define PACKED_STEPS 32  /* bf16: k is padded to a multiple of it */
#define PACKED_ROWS  128 /* rows that share one reading of the matrix */

#if defined(__x86_64__)
#define PACKED_FLIP 0x80
#else
#define PACKED_FLIP 0
#endif

typedef struct q8_group {
    float scale[PACKED_PANEL];
    uint8_t w[PACKED_GROUP / 4][PACKED_PANEL][4]; /* q, exclusive-or PACKED_FLIP */
} q8_group;

/* A group of a row of input. */
typedef struct q8_row_group {
    int8_t p[PACKED_GROUP];
    float scale;
    int32_t start; /* -128 * the sum of p where q is stored as q + 128, else 0: what a dot product starts with */
} q8_row_group;

static inline int64_t packed_groups(int64_t K)
{
    return (K + PACKED_GROUP - 1) / PACKED_GROUP;
}

static inline int64_t packed_panels(int64_t N)
{
    return (N + PACKED_PANEL - 1) / PACKED_PANEL;
}

/* bf16: a number as the kernels of --precision bf16 round it; one that is smaller than the smallest normal number is 0. */
static inline uint16_t packed_bf16(float w)
{
    return ls_to_bf16(fabsf(w) < FLT_MIN ? 0 * w : w);
}

/* bf16: pairs of k in one panel. */
static inline int64_t packed_pairs(int64_t K)
{
    return (K + PACKED_STEPS - 1) / PACKED_STEPS * (PACKED_STEPS / 2);
}

/* Bytes of one panel. */
static inline int64_t packed_panel_nbytes(ls_pack form, int64_t K)
{
    if (form == LS_PACK_INT8) return packed_groups(K) * (int64_t)sizeof(q8_group);
    return packed_pairs(K) * PACKED_PANEL * (int64_t)sizeof(uint32_t);
}

/* Bytes of scratch for products with rows of up to K numbers. */
size_t packed_scratch(const ls_compute *c, int64_t K);

/* y[r*ldy + n] = the product, for rows r < R: linear_packed with a distance between rows of y. On a backend opened for bf16 whose matrix-product
 * kernel takes panels (gemm.h), a bf16 matrix is multiplied by that kernel, with x rounded to bf16. */
void packed_product(ls_compute *c, ls_pack form, float *y, int64_t ldy, const float *x, const void *w, const float *b,
                    int64_t R, int64_t K, int64_t N);

/* One panel of int8 times `rows` (1 … Q8_ROWS) rows: y[r*ldy + 0..15]. x (n_group,rows): the rows of one group side by side. */
#define Q8_ROWS 8
typedef void q8_kernel(float *y, int64_t ldy, const q8_group *w, const q8_row_group *x, int64_t n_group, int rows);
#if defined(__aarch64__)
q8_kernel q8_panel_neon;
#elif defined(__x86_64__)
q8_kernel q8_panel_avx2, q8_panel_avx512;
#endif

/* Cases 1 … Q8_ROWS of a kernel whose inlined body needs the number of rows as a constant. */
#define Q8_EACH_ROWS(rows, call)   \
    switch (rows) {                \
    case 1: call(1); break;        \
    case 2: call(2); break;        \
    case 3: call(3); break;        \
    case 4: call(4); break;        \
    case 5: call(5); break;        \
    case 6: call(6); break;        \
    case 7: call(7); break;        \
    default: call(Q8_ROWS); break; \
    }

#endif
