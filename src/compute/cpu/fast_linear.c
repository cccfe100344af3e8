/* fast_linear.c - matrix products: linear layers, and the classifier fused with its loss and gradient.
 *
 * The classifier takes fast_logit_rows rows at a time:
 *   logits = x w^T  ->  each row: loss, then (softmax - onehot) dloss in its place  ->  dx = dlogits w,  dw += dlogits^T x
 * so a chunk of logits is made, used and forgotten. The chunk does not depend on the number of threads. The gradient is written as bf16, at
 * the beginning of its row, where the kernel takes it so: the next two products would round it the same way. Where the vocabulary is cut,
 * the parts of a chunk's rows are joined between its exponentials and its gradient. */
#include "compute/cpu/cpu_impl.h"
#include "compute/cpu/fast_impl.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/packed.h"
#include "compute/cpu/simd.h"
#include "core/minmax.h"

#include <math.h>
#include <string.h>

/* A leading dimension that is not given is that of a dense matrix. */
static void matmul(ls_compute *c, gemm_args a)
{
    if (!a.lda) a.lda = a.ta ? a.M : a.K;
    if (!a.ldb) a.ldb = a.tb ? a.K : a.N;
    if (!a.ldc) a.ldc = a.N;
    fast_look(c);
    gemm_run(fast_kernel(c), &a, c->n_thread, c->scratch);
}

static float *after_gemm(const ls_compute *c)
{
    return (float *)(void *)((char *)c->scratch + fast_gemm_scratch(c));
}

ls_status fast_linear_fwd(ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R, int64_t K,
                          int64_t N)
{
    const simd_ops *k = simd_pick();
    if (R > LS_FEW_ROWS || gemm_is_bf16(fast_kernel(c))) {
        matmul(c, (gemm_args){.M = R, .N = N, .K = K, .A = x, .B = w, .C = y, .bias = b});
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
    if (dx) matmul(c, (gemm_args){.tb = true, .M = R, .N = K, .K = N, .A = dy, .B = w, .C = dx});
    if (dw) matmul(c, (gemm_args){.ta = true, .M = K, .N = N, .K = R, .A = x, .B = dy, .C = dw, .acc = acc});
    if (db) column_sums(c, db, dy, R, N, acc);
    return LS_OK;
}

ls_status fast_logits(ls_compute *c, void *y, const void *x, const void *w, int64_t R, int64_t C, int64_t V)
{
    const simd_ops *k = simd_pick();
    if (R > LS_FEW_ROWS || gemm_is_bf16(fast_kernel(c))) {
        matmul(c, (gemm_args){.tb = true, .M = R, .N = V, .K = C, .A = x, .B = w, .C = y});
        return LS_OK;
    }
#pragma omp parallel num_threads(c->n_thread) if (C * V > FAST_SERIAL)
    {
        fast_range s = fast_share(V, 16);
        k->dots_few(y, V, x, w, R, C, s.lo, s.hi);
    }
    return LS_OK;
}

/* A row of V logits becomes exponentials; target: its place in the row, if it is in this part. */
static cpu_row begin_row(const simd_ops *k, float *p, int64_t V, int64_t target)
{
    cpu_row row = {.right = target >= 0 && target < V ? (double)p[target] : 0};
    float top;
    row.sum = k->exp_row(p, V, &top);
    row.top = (double)top;
    return row;
}

/* Then, with the whole row known, the exponentials become the gradient: times `by`, less dloss at the target. narrow: a kernel for which it
 * becomes bf16, or NULL. */
static void make_gradient(const simd_ops *k, const gemm_kernel *narrow, float *p, int64_t V, int64_t target, float by,
                          float dloss)
{
    const bool here = target >= 0 && target < V;
    if (!narrow) {
        k->scale(p, V, by);
        if (here) p[target] -= dloss;
        return;
    }
    uint16_t *q = (uint16_t *)(void *)p;
    const float right = here ? p[target] * by - dloss : 0;
    gemm_narrow(narrow, q, p, V, by);
    if (here) gemm_narrow(narrow, q + target, &right, 1, 1);
}

/* The kernel, if gradients of logits are bf16 numbers for it. */
static const gemm_kernel *narrows(const ls_compute *c, const ls_classifier *a)
{
    return !a->packed && gemm_takes_bf16(fast_kernel(c)) ? fast_kernel(c) : NULL;
}

/* Losses and gradients of n rows of logits from r0 on, ld apart. parts: n_part times n rows; only one part: not used. */
static ls_status loss_rows(ls_compute *c, const ls_classifier *a, float *logits, int64_t ld, int64_t r0, int64_t n,
                           cpu_row *parts)
{
    const simd_ops *k = simd_pick();
    const gemm_kernel *narrow = narrows(c, a);
    const bool gradient = a->dx || a->dw, cut = a->n_part > 1;
    const int32_t *target = a->target + r0;
    cpu_row *mine = parts + a->part * n;
    if (cut) {
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n * a->V > FAST_SERIAL)
        for (int64_t r = 0; r < n; r++)
            mine[r] = target[r] < 0 ? (cpu_row){0} : begin_row(k, logits + r * ld, a->V, target[r] - a->first);
        LS_TRY(a->gather(a->gather_ctx, &parts->top, n * CPU_ROW_N));
    }
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n * a->V > FAST_SERIAL)
    for (int64_t r = 0; r < n; r++) {
        float *p = logits + r * ld;
        const int64_t t = target[r] - a->first;
        a->row_loss[r0 + r] = 0;
        if (target[r] >= 0) {
            const cpu_row row = cut ? cpu_join_row(parts + r, a->n_part, n) : begin_row(k, p, a->V, t);
            const double top = cut ? mine[r].top : row.top;
            if (gradient)
                make_gradient(k, narrow, p, a->V, t, (float)(a->dloss * exp(top - row.top) / row.sum), (float)a->dloss);
            a->row_loss[r0 + r] = row.top + log(row.sum) - row.right;
        } else if (gradient) memset(p, 0, (size_t)a->V * (narrow ? sizeof(uint16_t) : sizeof *p));
    }
    return LS_OK;
}

ls_status fast_classifier(ls_compute *c, const ls_classifier *a)
{
    const float *x = a->x;
    float *dx = a->dx, *p = a->packed ? (float *)(void *)((char *)c->scratch + packed_scratch(c, a->C)) : after_gemm(c);
    const int64_t C = a->C, V = a->V, ld = fast_logit_ld(V), rows = fast_logit_rows(c, a->R, a->n_part);
    cpu_row *parts = (cpu_row *)(void *)(p + rows * ld);
    /* the gradient of the logits in their place: p, or half as large numbers in rows as long */
    const bool narrow = narrows(c, a) != NULL;
    const uint16_t *p16 = narrow ? (const uint16_t *)(const void *)p : NULL;
    const int64_t ldp = narrow ? 2 * ld : ld;
    if (a->R == 0 && a->dw && !a->acc) return fast_zero(c, a->dw, (size_t)(V * C) * sizeof(float));
    for (int64_t r0 = 0; r0 < a->R; r0 += rows) {
        const int64_t n = LS_MIN(a->R - r0, rows);
        const float *xr = x + r0 * C;
        if (a->packed) packed_product(c, a->form, p, ld, xr, a->packed, NULL, n, C, V);
        else matmul(c, (gemm_args){.tb = true, .M = n, .N = V, .K = C, .A = xr, .B = a->w, .C = p, .ldc = ld});
        LS_TRY(loss_rows(c, a, p, ld, r0, n, parts));
        if (dx)
            matmul(c, (gemm_args){.M = n, .N = C, .K = V, .A = p, .A16 = p16, .lda = ldp, .B = a->w, .C = dx + r0 * C});
        if (!a->dw) continue;
        const bool acc = a->acc || r0 > 0;
        matmul(
            c,
            (gemm_args){
                .ta = true, .M = V, .N = C, .K = n, .A = p, .A16 = p16, .lda = ldp, .B = xr, .C = a->dw, .acc = acc});
    }
    return LS_OK;
}
