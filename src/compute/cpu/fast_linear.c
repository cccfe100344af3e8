/* fast_linear.c - matrix products: linear layers, and the classifier fused with its loss and gradient.
 *
 * The classifier takes FAST_LOGIT_ROWS rows at a time:
 *   logits = x w^T  ->  each row: loss, then (softmax - onehot) dloss in its place  ->  dx = dlogits w,  dw += dlogits^T x
 * so a chunk of logits is made, used and forgotten. The chunk does not depend on the number of threads. */
#include "compute/cpu/fast_impl.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/simd.h"

#include <math.h>
#include <string.h>

static void matmul(ls_compute *c, gemm_args a)
{
    gemm_run(gemm_pick(NULL), &a, c->n_thread, c->scratch);
}

static float *after_gemm(const ls_compute *c)
{
    return (float *)(void *)((char *)c->scratch + fast_gemm_scratch(c->n_thread));
}

ls_status fast_linear_fwd(ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R, int64_t K,
                          int64_t N)
{
    const simd_ops *k = simd_pick();
    if (R > LS_FEW_ROWS) {
        matmul(c, (gemm_args){.M = R, .N = N, .K = K, .A = x, .lda = K, .B = w, .ldb = N, .C = y, .ldc = N, .bias = b});
        return LS_OK;
    }
#pragma omp parallel num_threads(c->n_thread) if (K * N > FAST_SERIAL)
    {
        fast_range s = fast_share(N, 16);
        if (s.hi > s.lo) k->linear_few(y, x, w, b, R, K, N, s.lo, s.hi);
    }
    return LS_OK;
}

/* out (N) [+]= column sums of x (R,N) */
static void column_sums(ls_compute *c, float *out, const float *x, int64_t R, int64_t N, bool acc)
{
    const simd_ops *k = simd_pick();
    float *part = after_gemm(c);
    int64_t rows = fast_block_rows(R), n_block = fast_blocks(R);
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (R * N > FAST_SERIAL)
    for (int64_t i = 0; i < n_block; i++) {
        float *p = part + i * N;
        memset(p, 0, (size_t)N * sizeof *p);
        for (int64_t r = i * rows; r < R && r < (i + 1) * rows; r++) k->add(p, p, x + r * N, N);
    }
    fast_add_blocks(c, out, part, n_block, N, N, acc);
}

ls_status fast_linear_bwd(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *x, const void *w,
                          int64_t R, int64_t K, int64_t N, bool acc)
{
    if (dx)
        matmul(c,
               (gemm_args){.tb = true, .M = R, .N = K, .K = N, .A = dy, .lda = N, .B = w, .ldb = N, .C = dx, .ldc = K});
    if (dw)
        matmul(c, (gemm_args){.ta = true,
                              .M = K,
                              .N = N,
                              .K = R,
                              .A = x,
                              .lda = K,
                              .B = dy,
                              .ldb = N,
                              .C = dw,
                              .ldc = N,
                              .acc = acc});
    if (db) column_sums(c, db, dy, R, N, acc);
    return LS_OK;
}

ls_status fast_logits(ls_compute *c, void *y, const void *x, const void *w, int64_t R, int64_t C, int64_t V)
{
    const simd_ops *k = simd_pick();
    if (R > LS_FEW_ROWS) {
        matmul(c,
               (gemm_args){.tb = true, .M = R, .N = V, .K = C, .A = x, .lda = C, .B = w, .ldb = C, .C = y, .ldc = V});
        return LS_OK;
    }
#pragma omp parallel num_threads(c->n_thread) if (C * V > FAST_SERIAL)
    {
        fast_range s = fast_share(V, 16);
        k->dots_few(y, V, x, w, R, C, s.lo, s.hi);
    }
    return LS_OK;
}

/* Turns a row of logits into its gradient (when wanted); returns the loss. */
static double loss_row(const simd_ops *k, float *p, int64_t V, int32_t target, double dloss, bool gradient)
{
    if (target < 0) {
        if (gradient) memset(p, 0, (size_t)V * sizeof *p);
        return 0;
    }
    double right = (double)p[target];
    float top;
    double sum = k->exp_row(p, V, &top);
    if (gradient) {
        k->scale(p, V, (float)(dloss / sum));
        p[target] -= (float)dloss;
    }
    return (double)top + log(sum) - right;
}

ls_status fast_classifier(ls_compute *c, const ls_classifier *a)
{
    const simd_ops *k = simd_pick();
    const float *x = a->x;
    float *dx = a->dx, *p = after_gemm(c);
    int64_t C = a->C, V = a->V, ld = fast_logit_ld(V);
    if (a->R == 0 && a->dw && !a->acc) return fast_zero(c, a->dw, V * C);
    for (int64_t r0 = 0; r0 < a->R; r0 += FAST_LOGIT_ROWS) {
        int64_t n = a->R - r0 < FAST_LOGIT_ROWS ? a->R - r0 : FAST_LOGIT_ROWS;
        const float *xr = x + r0 * C;
        matmul(c, (gemm_args){
                      .tb = true, .M = n, .N = V, .K = C, .A = xr, .lda = C, .B = a->w, .ldb = C, .C = p, .ldc = ld});
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n * V > FAST_SERIAL)
        for (int64_t r = 0; r < n; r++)
            a->row_loss[r0 + r] = loss_row(k, p + r * ld, V, a->target[r0 + r], a->dloss, dx || a->dw);
        if (dx)
            matmul(c, (gemm_args){
                          .M = n, .N = C, .K = V, .A = p, .lda = ld, .B = a->w, .ldb = C, .C = dx + r0 * C, .ldc = C});
        if (a->dw)
            matmul(c, (gemm_args){.ta = true,
                                  .M = V,
                                  .N = C,
                                  .K = n,
                                  .A = p,
                                  .lda = ld,
                                  .B = xr,
                                  .ldb = C,
                                  .C = a->dw,
                                  .ldc = C,
                                  .acc = a->acc || r0 > 0});
    }
    return LS_OK;
}
