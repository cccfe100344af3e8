/* scratch.h - bytes of working space of the CUDA backend's operations, by shape alone: kernels allocate by it, and plans for machines that are
 * not this one count by it (compute/sizes.c). cuDNN's plans are the one thing that only the device knows. */
#ifndef LS_CUDA_SCRATCH_H
#define LS_CUDA_SCRATCH_H

#include "core/buf.h"
#include "core/minmax.h"

#include <stddef.h>
#include <stdint.h>

#define CU_GEMM_LIBRARY_NBYTES ((size_t)64 << 20) /* workspace of the library for products … */
#define CU_GEMM_SIDE_NBYTES    ((size_t)8 << 20)  /* … and of the kernels beside it          */
#define CU_GEMM_NBYTES         (CU_GEMM_LIBRARY_NBYTES + CU_GEMM_SIDE_NBYTES)

#define CU_SUMS_ROWS_LEAST  64 /* column_sums.cu: of a share */
#define CU_SUMS_SHARES_MOST 128
#define CU_QUANTIZE_TILE    128  /* quantize.cu: rows and columns */
#define CU_NORM_ROWS        16   /* layernorm_bwd.cu: 2 * NORM_WARPS, of a part */
#define CU_NORM_PARTS_MOST  264  /* 2 a multiprocessor of an H200              */
#define CU_EMBED_PIECE      32   /* embed_bwd.cu: the lanes of a warp          */
#define CU_SORT_TILE        2048 /* sort_ids.cu                               */
#define CU_SORT_DIGITS      256
#define CU_HASH_BLOCKS      1056 /* hash.cu: 8 a multiprocessor of an H200     */

#define CU_LOGITS_PAD      64  /* classifier.c: elements */
#define CU_LOGITS_ROUND    128 /* rows                   */
#define CU_LOGITS_CUT_ROWS 8192
#define CU_LOGITS_BYTES    1110000000

static inline int64_t cu_pieces(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

static inline size_t cu_bytes_up(size_t nbytes)
{
    return (nbytes + 255) & ~(size_t)255;
}

static inline int64_t cu_sums_shares(int64_t R)
{
    return LS_MIN(cu_pieces(R, CU_SUMS_ROWS_LEAST), CU_SUMS_SHARES_MOST);
}

static inline size_t cu_sums_nbytes(int64_t R, int64_t N)
{
    return (size_t)(cu_sums_shares(R) * N) * sizeof(float);
}

/* Partial sums of columns. */
static inline size_t cu_quantize_nbytes(int64_t R, int64_t N)
{
    return (size_t)(cu_pieces(R, CU_QUANTIZE_TILE) * N) * sizeof(float);
}

static inline int64_t cu_norm_parts(int64_t R)
{
    return LS_MIN(cu_pieces(R, CU_NORM_ROWS), CU_NORM_PARTS_MOST);
}

static inline size_t cu_norm_bwd_nbytes(int64_t R, int64_t C)
{
    return (size_t)(cu_norm_parts(R) * 2 * C) * sizeof(float);
}

/* Numbers of 4 bytes, up to whole 16 bytes. */
static inline int64_t cu_padded(int64_t n)
{
    return 4 * cu_pieces(n, 4);
}

static inline size_t cu_sort_nbytes(int64_t R)
{
    return (size_t)(2 * cu_padded(R) + cu_pieces(R, CU_SORT_TILE) * CU_SORT_DIGITS) * sizeof(int32_t);
}

static inline size_t cu_embed_bwd_nbytes(int64_t R, int64_t C)
{
    return (size_t)(2 * cu_padded(R)) * sizeof(int32_t) +
           (size_t)(cu_pieces(R, CU_EMBED_PIECE) * 2 * C) * sizeof(float) + cu_sort_nbytes(R);
}

/* Our own attention's backward: lse and delta of whole tiles of 64 rows (on Hopper; elsewhere delta alone, the start of it) */
static inline size_t cu_flash_nbytes(int64_t B, int64_t T, int64_t H, int backward)
{
    return backward ? cu_bytes_up((size_t)(B * H * cu_pieces(T, 64) * 64 * 2) * sizeof(float)) : 0;
}

/* Elements from one row of logits to the next. */
static inline int64_t cu_logits_ld(int64_t V)
{
    return CU_LOGITS_PAD * cu_pieces(V, CU_LOGITS_PAD);
}

/* Rows of logits that exist at once; limit: bytes of them. */
static inline int64_t cu_logits_rows(ls_dtype dt, int64_t R, int64_t V, int n_part, int64_t limit)
{
    if (n_part > 1) return R < CU_LOGITS_CUT_ROWS ? R : CU_LOGITS_CUT_ROWS;
    int64_t rows = limit / (cu_logits_ld(V) * (int64_t)ls_dtype_nbytes(dt));
    if (rows > CU_LOGITS_ROUND) rows -= rows % CU_LOGITS_ROUND;
    if (rows < 1) rows = 1;
    return R < rows ? R : rows;
}

static inline size_t cu_logits_nbytes(ls_dtype dt, int64_t rows, int64_t V, int n_part)
{
    return cu_bytes_up((size_t)(rows * cu_logits_ld(V)) * ls_dtype_nbytes(dt)) +
           (n_part > 1 ? cu_bytes_up((size_t)(rows * n_part) * 3 * sizeof(double)) : 0);
}

/* All of it: 256, as the caller's alignment may be less; the products' workspace; the largest operation's. */
static inline size_t cu_scratch_nbytes(size_t largest)
{
    return 256 + CU_GEMM_NBYTES + cu_bytes_up(largest);
}

#endif
