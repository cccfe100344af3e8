/* fast_impl.h - inside the fast CPU backend: how work is cut between threads, and the operations.
 *
 * Threads share elements, rows or heads in ranges that depend on their number; sums that cross such a range are cut in blocks
 * that depend on the shapes alone, each block is summed by one thread, and the blocks are added in order. */
#ifndef LS_COMPUTE_CPU_FAST_IMPL_H
#define LS_COMPUTE_CPU_FAST_IMPL_H

#include "compute/compute_impl.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/simd.h"

#include <omp.h>

typedef struct fast_range {
    int64_t lo, hi;
} fast_range;

/* The calling thread's share of 0..n, in multiples of `grain` (except the end). Inside a parallel region. */
static inline fast_range fast_share(int64_t n, int64_t grain)
{
    int64_t t = omp_get_thread_num(), nt = omp_get_num_threads(), units = (n + grain - 1) / grain;
    int64_t lo = units * t / nt * grain, hi = units * (t + 1) / nt * grain;
    return (fast_range){lo < n ? lo : n, hi < n ? hi : n};
}

/* Below so many elements a parallel region costs more than it gives. */
#define FAST_SERIAL 16384

/* Rows of a sum over R rows that one thread adds up before blocks are added: at least 32, and at most 64 blocks. */
static inline int64_t fast_block_rows(int64_t R)
{
    int64_t rows = (R + 63) / 64;
    return rows < 32 ? 32 : rows;
}

static inline int64_t fast_blocks(int64_t R)
{
    return (R + fast_block_rows(R) - 1) / fast_block_rows(R);
}

/* A row of logits, padded to whole cache lines. */
static inline int64_t fast_logit_ld(int64_t V)
{
    return (V + 15) / 16 * 16;
}

/* Before a long operation: it may get more threads. */
static inline void fast_look(ls_compute *c)
{
    if (c->look) c->look(c->look_ctx);
}

/* out[j] [+]= sum over blocks of part[block*ld + j], j < n; serial code, starts its own threads */
void fast_add_blocks(const ls_compute *c, float *out, const float *part, int64_t n_block, int64_t ld, int64_t n,
                     bool acc);
/* The matrix-product kernel: that of a backend opened for bf16, else the fp32 kernel. */
const gemm_kernel *fast_kernel(const ls_compute *c);
/* Bytes at the start of scratch that belong to matrix products. */
size_t fast_gemm_scratch(const ls_compute *c);
/* Rows of logits that exist at one time, of R. The sums over rows are cut there, so their number is part of the results, except with a kernel
 * whose sums run on. It follows from the kernel and from whether the vocabulary is cut. */
int64_t fast_logit_rows(const ls_compute *c, int64_t R, int64_t n_part);

/* Attention of one head with bf16 products, and its working space in floats. */
void fast_attn_bf16_fwd(const gemm_kernel *g, const simd_attn *a);
void fast_attn_bf16_bwd(const gemm_kernel *g, const simd_attn *a);
int64_t fast_attn_bf16_floats(const gemm_kernel *g, int64_t T, int64_t D, bool backward);

/* The operations, as the table in compute.h declares them. */
#define X(op) __typeof__(*((const ls_compute_ops *)NULL)->op) fast_##op;
COMPUTE_OPS(X)
#undef X

#endif
