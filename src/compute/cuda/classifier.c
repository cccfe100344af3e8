/* classifier.c - logits, cross-entropy and its gradient, for a chunk of rows at a time (compute.h, ls_classifier).
 *
 *   logits (n, ld) = x w^T        softmax over them in place: losses, dlogits        dx = dlogits w        dw (+)= dlogits^T x, in float
 *
 * Logits are in scratch with rows padded to 64 elements, so that all three products have aligned strides whatever V is. Where w may be read
 * after its last row (V_room), the products take the padded width, too: what comes out after V is not looked at by the softmax, which
 * writes zeros there, and zeros times finite rows add nothing to dx.
 *
 * Chunks     one more reads and writes dw once more (8VC bytes: 309 MB or 0.07 ms of an H200 for GPT-2), a row takes 2V bytes of scratch
 *            and its products 0.33 us. At B64 T1024 (bf16): 11008 rows are 1.11 GB, 6 chunks and 0.4 ms of 21.7 spent on dw; 16384 rows are
 *            1.65 GB and 0.2 ms; 65536 rows would be 6.6 GB and nothing. The limit is 1.11 GB (LS_CLASSIFIER_MIB says another), chunks are of
 *            equal size as far as 128 divides them, and few rows are one chunk. R and V alone decide, so that equal batches give equal
 *            bits in every strategy.
 *
 * A vocabulary that is cut (n_part > 1): between the softmax's two halves the parts of every row meet in `gather`, once per chunk; so
 * chunks must not depend on V, which differs between parts: they are of CU_LOGITS_CUT_ROWS rows. The callback waits for the device, hence such a call
 * must not be inside a recorded region (region_begin). */
#include "compute/cuda/cuda_impl.h"
#include "compute/cuda/kernels/kernels.h"
#include "core/minmax.h"
#include "core/str.h"

#include <stdlib.h>

#define PAD   CU_LOGITS_PAD
#define ROUND CU_LOGITS_ROUND

static int64_t up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Rows that scratch has room for. */
static int64_t most_rows(ls_dtype dt, int64_t R, int64_t V, int n_part)
{
    const char *text = getenv("LS_CLASSIFIER_MIB");
    int64_t mib = 0, limit = CU_LOGITS_BYTES;
    if (text && ls_parse_i64(text, &mib) && mib > 0) limit = mib << 20;
    return cu_logits_rows(dt, R, V, n_part, limit);
}

static int64_t chunk_rows(int64_t R, int64_t most)
{
    if (R <= most || most <= ROUND) return most;
    const int64_t n = (R + most - 1) / most;
    return up((R + n - 1) / n, ROUND);
}

size_t cuda_classifier_scratch(const cuda *x, const ls_compute_shapes *s)
{
    const int64_t rows = s->V ? most_rows(x->ops.dtype, s->B * s->T, s->V, s->n_part) : 0;
    return cu_logits_nbytes(x->ops.dtype, rows, s->V, s->n_part);
}

/* dw (V,C) (+)= dlogits^T x. V is along the rows of dlogits in memory, and Hopper's kernels want a multiple of 8 of it: what is left over
 * of an odd vocabulary is a small product of its own (GPT-2's 50257 rows in one: 448 TFLOP/s of an H200, 50240 of them: 660). */
static ls_status add_to_dw(ls_compute *c, const ls_classifier *a, const void *dlogits, const void *x, int64_t n,
                           int64_t ld, bool acc)
{
    const int64_t even = a->V % 8 ? a->V - a->V % PAD : a->V;
    for (int64_t from = 0, to = even ? even : a->V; from < a->V; from = to, to = a->V) {
        void *dw = (float *)a->dw + from * a->C;
        LS_TRY(cuda_product(c, (cu_product){.out = dw,
                                            .a = ls_at(c, dlogits, from),
                                            .b = x,
                                            .M = to - from,
                                            .N = a->C,
                                            .K = n,
                                            .lda = ld,
                                            .ta = true,
                                            .dt = c->ops->dtype,
                                            .out_dt = LS_F32,
                                            .add = acc ? dw : NULL}));
    }
    return LS_OK;
}

/* Rows r0 … r0+n-1 of a; logits and parts are in scratch. */
static ls_status chunk(ls_compute *c, const ls_classifier *a, int64_t r0, int64_t n, void *logits, double *parts)
{
    const cuda *u = cuda_of(c);
    const int64_t ld = up(a->V, PAD), V = a->V_room >= ld ? ld : a->V; /* columns that products take */
    const void *x = ls_at(c, a->x, r0 * a->C);
    const cu_softmax s = {.logits = logits,
                          .row_loss = a->row_loss + r0,
                          .target = a->target + r0,
                          .rows = n,
                          .V = a->V,
                          .ld = ld,
                          .first = a->first,
                          .dloss = a->dloss,
                          .at = a->at,
                          .grad = a->dx || a->dw};
    LS_TRY(cuda_product(c, (cu_product){.out = logits,
                                        .a = x,
                                        .b = a->w,
                                        .M = n,
                                        .N = V,
                                        .K = a->C,
                                        .ldo = ld,
                                        .tb = true,
                                        .dt = c->ops->dtype,
                                        .out_dt = c->ops->dtype}));
    if (a->n_part > 1) {
        CU_TRY(cu_softmax_parts(u->stream, c->ops->dtype, &s, parts + a->part * n * 3));
        LS_TRY(a->gather(a->gather_ctx, parts, n * 3));
        CU_TRY(cu_softmax_join(u->stream, c->ops->dtype, &s, parts, a->n_part));
    } else {
        CU_TRY(cu_softmax_loss(u->stream, c->ops->dtype, &s));
    }
    if (a->dx)
        LS_TRY(cuda_product(c, (cu_product){.out = ls_at(c, a->dx, r0 * a->C),
                                            .a = logits,
                                            .b = a->w,
                                            .M = n,
                                            .N = a->C,
                                            .K = V,
                                            .lda = ld,
                                            .dt = c->ops->dtype,
                                            .out_dt = c->ops->dtype}));
    if (a->dw) LS_TRY(add_to_dw(c, a, logits, x, n, ld, a->acc || r0 > 0));
    return LS_OK;
}

static ls_status classifier(ls_compute *c, const ls_classifier *a)
{
    const cuda *u = cuda_of(c);
    const int64_t most = most_rows(c->ops->dtype, a->R, a->V, a->n_part), rows = chunk_rows(a->R, most);
    void *logits = cuda_room(c);
    double *parts = (double *)(void *)((char *)logits +
                                       cu_bytes_up((size_t)(most * up(a->V, PAD)) * ls_dtype_nbytes(c->ops->dtype)));
    if (a->R == 0 && a->dw && !a->acc) CU_TRY(cu_zero(u->stream, a->dw, (size_t)(a->V * a->C) * sizeof(float)));
    for (int64_t r0 = 0; r0 < a->R; r0 += rows) LS_TRY(chunk(c, a, r0, LS_MIN(rows, a->R - r0), logits, parts));
    return LS_OK;
}

/* Products, norms, embeddings and sums add what they made to the old value (gemm_tune.c and column_sums.cu see to it); chunks of logits, one after the
 * other, do so only where there is one. */
static bool adds_alike(const ls_compute *c, const ls_compute_shapes *s)
{
    return most_rows(c->ops->dtype, s->B * s->T, s->V, s->n_part) >= s->B * s->T;
}

void cuda_fill_classifier(ls_compute_ops *ops)
{
    ops->adds_alike = adds_alike;
    ops->classifier = classifier;
}
