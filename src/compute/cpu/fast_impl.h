/* fast_impl.h - inside the fast CPU backend: how work is cut between threads, and the operations by file.
 *
 * Threads share elements, rows or heads in ranges that depend on their number; sums that cross such a range are cut in blocks
 * that depend on the shapes alone, each block is summed by one thread, and the blocks are added in order. */
#ifndef LS_COMPUTE_CPU_FAST_IMPL_H
#define LS_COMPUTE_CPU_FAST_IMPL_H

#include "compute/compute.h"

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

#define FAST_LOGIT_ROWS 512 /* rows of logits that exist at one time */

/* A row of logits, padded to whole cache lines. */
static inline int64_t fast_logit_ld(int64_t V)
{
    return (V + 15) / 16 * 16;
}

/* out[j] [+]= sum over blocks of part[block*ld + j], j < n; serial code, starts its own threads */
void fast_add_blocks(const ls_compute *c, float *out, const float *part, int64_t n_block, int64_t ld, int64_t n,
                     bool acc);
/* Bytes at the start of scratch that belong to matrix products. */
size_t fast_gemm_scratch(int n_thread);

ls_status fast_embed_fwd(ls_compute *c, void *y, const int32_t *ids, int64_t first, int64_t V, const void *wte,
                         const void *wpe, int64_t B, int64_t T, int64_t C, ls_drop drop);
ls_status fast_embed_bwd(ls_compute *c, void *dwte, void *dwpe, const void *dy, const int32_t *ids, int64_t first,
                         int64_t B, int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop, bool acc);
ls_status fast_layernorm_fwd(ls_compute *c, void *y, void *mean, void *rstd, const void *x, const void *w,
                             const void *b, int64_t R, int64_t C, double eps);
ls_status fast_add_layernorm_fwd(ls_compute *c, void *res, void *y, void *mean, void *rstd, const void *x,
                                 const void *delta, const void *w, const void *b, int64_t R, int64_t C, double eps,
                                 ls_drop drop);
ls_status fast_layernorm_bwd(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *dres,
                             const void *x, const void *w, const void *mean, const void *rstd, int64_t R, int64_t C,
                             bool acc);
ls_status fast_layernorm_again(ls_compute *c, void *y, const void *x, const void *mean, const void *rstd, const void *w,
                               const void *b, int64_t R, int64_t C);
ls_status fast_linear_fwd(ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R, int64_t K,
                          int64_t N);
ls_status fast_linear_bwd(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *x, const void *w,
                          int64_t R, int64_t K, int64_t N, bool acc);
ls_status fast_gelu_fwd(ls_compute *c, void *y, const void *x, int64_t n, ls_gelu kind);
ls_status fast_gelu_bwd(ls_compute *c, void *dx, const void *dy, const void *x, int64_t n, ls_gelu kind);
ls_status fast_add_fwd(ls_compute *c, void *y, const void *x, const void *delta, int64_t n, ls_drop drop);
ls_status fast_drop_bwd(ls_compute *c, void *dx, const void *dy, int64_t n, ls_drop drop);
ls_status fast_attention_fwd(ls_compute *c, void *y, void *lse, const void *qkv, int64_t B, int64_t T, int64_t H,
                             int64_t D, ls_drop drop);
ls_status fast_attention_bwd(ls_compute *c, void *dqkv, const void *dy, const void *y, const void *lse, const void *qkv,
                             int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop);
ls_status fast_attention_cached(ls_compute *c, void *y, void *kcache, void *vcache, const void *qkv, int64_t B,
                                int64_t Tq, int64_t pos, int64_t Tmax, int64_t H, int64_t D);
ls_status fast_classifier(ls_compute *c, const ls_classifier *a);
ls_status fast_logits(ls_compute *c, void *y, const void *x, const void *w, int64_t R, int64_t C, int64_t V);
ls_status fast_adamw(ls_compute *c, void *p, void *master, const void *g, void *m, void *v, int64_t n,
                     const ls_adamw *h);
ls_status fast_narrow(ls_compute *c, void *p, const void *x, int64_t n, const ls_gains *gains);
ls_status fast_sum(ls_compute *c, double *out, const double *x, int64_t n);
ls_status fast_sumsq(ls_compute *c, double *block_sum, const void *x, int64_t n, int64_t block);
ls_status fast_add(ls_compute *c, void *y, const void *a, const void *b, int64_t n);
ls_status fast_zero(ls_compute *c, void *y, size_t nbytes);
ls_status fast_copy(ls_compute *c, void *y, const void *x, size_t nbytes);

#endif
