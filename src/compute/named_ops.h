/* named_ops.h - every operation that queues work, with its parameters and arguments: kernel_times.c wraps each one to know which operation is
 * about to be queued. */
#ifndef LS_COMPUTE_NAMED_OPS_H
#define LS_COMPUTE_NAMED_OPS_H

#include "compute/compute.h"

/* X(name, parameters, arguments) */
#define NAMED_OPS(X)                                                                                                   \
    X(embed_fwd,                                                                                                       \
      (ls_compute * c, void *y, const int32_t *ids, int64_t first, int64_t V, const void *wte, const void *wpe,        \
       int64_t B, int64_t T, int64_t C, ls_drop drop),                                                                 \
      (c, y, ids, first, V, wte, wpe, B, T, C, drop))                                                                  \
    X(embed_bwd,                                                                                                       \
      (ls_compute * c, void *dwte, void *dwpe, const void *dy, const int32_t *ids, int64_t first, int64_t B,           \
       int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop, bool acc),                                            \
      (c, dwte, dwpe, dy, ids, first, B, T, C, V, P, drop, acc))                                                       \
    X(layernorm_fwd,                                                                                                   \
      (ls_compute * c, void *y, void *mean, void *rstd, const void *x, const void *w, const void *b, int64_t R,        \
       int64_t C, double eps),                                                                                         \
      (c, y, mean, rstd, x, w, b, R, C, eps))                                                                          \
    X(add_layernorm_fwd,                                                                                               \
      (ls_compute * c, void *res, void *y, void *mean, void *rstd, const void *x, const void *delta, const void *w,    \
       const void *b, int64_t R, int64_t C, double eps, ls_drop drop),                                                 \
      (c, res, y, mean, rstd, x, delta, w, b, R, C, eps, drop))                                                        \
    X(layernorm_bwd,                                                                                                   \
      (ls_compute * c, void *dx, void *dw, void *db, const void *dy, const void *dres, const void *x, const void *w,   \
       const void *mean, const void *rstd, int64_t R, int64_t C, bool acc),                                            \
      (c, dx, dw, db, dy, dres, x, w, mean, rstd, R, C, acc))                                                          \
    X(layernorm_again,                                                                                                 \
      (ls_compute * c, void *y, const void *x, const void *mean, const void *rstd, const void *w, const void *b,       \
       int64_t R, int64_t C),                                                                                          \
      (c, y, x, mean, rstd, w, b, R, C))                                                                               \
    X(linear_fwd,                                                                                                      \
      (ls_compute * c, void *y, const void *x, const void *w, const void *b, int64_t R, int64_t K, int64_t N),         \
      (c, y, x, w, b, R, K, N))                                                                                        \
    X(linear_bwd,                                                                                                      \
      (ls_compute * c, void *dx, void *dw, void *db, const void *dy, const void *x, const void *w, int64_t R,          \
       int64_t K, int64_t N, bool acc),                                                                                \
      (c, dx, dw, db, dy, x, w, R, K, N, acc))                                                                         \
    X(linear_gelu_fwd,                                                                                                 \
      (ls_compute * c, void *y, void *pre, const void *x, const void *w, const void *b, int64_t R, int64_t K,          \
       int64_t N, ls_gelu kind),                                                                                       \
      (c, y, pre, x, w, b, R, K, N, kind))                                                                             \
    X(linear_add_fwd,                                                                                                  \
      (ls_compute * c, void *y, const void *res, const void *x, const void *w, const void *b, int64_t R, int64_t K,    \
       int64_t N),                                                                                                     \
      (c, y, res, x, w, b, R, K, N))                                                                                   \
    X(linear_gelu_bwd,                                                                                                 \
      (ls_compute * c, void *dpre, const void *dy, const void *w, const void *pre, int64_t R, int64_t K, int64_t N,    \
       ls_gelu kind),                                                                                                  \
      (c, dpre, dy, w, pre, R, K, N, kind))                                                                            \
    X(gelu_fwd, (ls_compute * c, void *y, const void *x, int64_t n, ls_gelu kind), (c, y, x, n, kind))                 \
    X(gelu_bwd, (ls_compute * c, void *dx, const void *dy, const void *x, int64_t n, ls_gelu kind),                    \
      (c, dx, dy, x, n, kind))                                                                                         \
    X(add_fwd, (ls_compute * c, void *y, const void *x, const void *delta, int64_t n, ls_drop drop),                   \
      (c, y, x, delta, n, drop))                                                                                       \
    X(drop_bwd, (ls_compute * c, void *dx, const void *dy, int64_t n, ls_drop drop), (c, dx, dy, n, drop))             \
    X(attention_fwd,                                                                                                   \
      (ls_compute * c, void *y, void *lse, const void *qkv, int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop), \
      (c, y, lse, qkv, B, T, H, D, drop))                                                                              \
    X(attention_bwd,                                                                                                   \
      (ls_compute * c, void *dqkv, const void *dy, const void *y, const void *lse, const void *qkv, int64_t B,         \
       int64_t T, int64_t H, int64_t D, ls_drop drop),                                                                 \
      (c, dqkv, dy, y, lse, qkv, B, T, H, D, drop))                                                                    \
    X(classifier, (ls_compute * c, const ls_classifier *a), (c, a))                                                    \
    X(quantize, (ls_compute * c, const ls_quantize *a), (c, a))                                                        \
    X(turn8, (ls_compute * c, void *to, const void *from, int64_t R, int64_t N), (c, to, from, R, N))                  \
    X(product8, (ls_compute * c, const ls_product8 *a), (c, a))                                                        \
    X(adamw, (ls_compute * c, void *p, void *master, const void *g, void *m, void *v, int64_t n, const ls_adamw *h),   \
      (c, p, master, g, m, v, n, h))                                                                                   \
    X(narrow, (ls_compute * c, void *p, const void *x, int64_t n, const ls_gains *gains, const ls_rounding *round),    \
      (c, p, x, n, gains, round))                                                                                      \
    X(sumsq, (ls_compute * c, double *block_sum, const void *x, int64_t n, int64_t block),                             \
      (c, block_sum, x, n, block))                                                                                     \
    X(adamw_many, (ls_compute * c, const ls_adamw_job *job, int n_job), (c, job, n_job))                               \
    X(sumsq_many,                                                                                                      \
      (ls_compute * c, double *block_sum, const void *const *x, const int64_t *n, int n_range, int64_t block),         \
      (c, block_sum, x, n, n_range, block))                                                                            \
    X(decide, (ls_compute * c, const ls_decide *a), (c, a))                                                            \
    X(sum, (ls_compute * c, double *out, const double *x, int64_t n), (c, out, x, n))                                  \
    X(add, (ls_compute * c, void *y, const void *a, const void *b, int64_t n), (c, y, a, b, n))                        \
    X(zero, (ls_compute * c, void *y, size_t nbytes), (c, y, nbytes))                                                  \
    X(copy, (ls_compute * c, void *y, const void *x, size_t nbytes), (c, y, x, nbytes))                                \
    X(hash, (ls_compute * c, uint64_t * out, const void *x, size_t nbytes, bool more), (c, out, x, nbytes, more))

#endif
