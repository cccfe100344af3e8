/* classifier.c - logits, cross-entropy and its gradient, for a chunk of rows at a time (compute.h, ls_classifier).
 *
 *   logits (n, ld) = x w^T        softmax over them in place: losses, dlogits        dx = dlogits w        dw (+)= dlogits^T x, in float
 *
 * Logits are in scratch with rows padded to 64 elements, so that all three products have aligned strides whatever V is. Where w may be read
 * after its last row (V_room), the products take the padded width, too: what comes out after V is not looked at by the softmax, which
 * writes zeros there, and zeros times finite rows add nothing to dx.
 *
 * Chunks     one more reads and writes dw once more (8VC bytes: 0.07 ms of an H200 for GPT-2), a row takes 2V bytes of scratch and its products
 *            0.33 us. At B64 T1024 (bf16) 11008 rows are 1.11 GB, 6 chunks and 0.4 ms of 21.7 spent on dw; 65536 rows would be 6.6 GB and
 *            nothing. The limit is 1.11 GB (LS_CLASSIFIER_MIB sets another); chunks are of equal size as far as 128 divides them. R and V
 *            alone decide, so that equal batches give equal bits in every strategy.
 *
 * A vocabulary that is cut (n_part > 1): between the softmax's two halves the parts of every row meet in `gather`, once per chunk; so
 * chunks must not depend on V, which differs between parts: they are of CU_LOGITS_CUT_ROWS rows. The callback waits for the device, hence
 * such a call must not be inside a recorded region (region_begin). */
#include "compute/cuda/cuda_impl.h"
#include "compute/cuda/kernels/kernels.h"
#include "core/minmax.h"
#include "core/str.h"

#include <stdlib.h>

#define ROUND CU_LOGITS_ROUND

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
    const int64_t n = cu_pieces(R, most);
    return ROUND * cu_pieces(cu_pieces(R, n), ROUND);
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
    const int64_t even = a->V % 8 ? a->V - a->V % CU_LOGITS_PAD : a->V;
    for (int64_t from = 0, to = even ? even : a->V; from < a->V; from = to, to = a->V) {
        void *dw = (float *)a->dw + from * a->C;
        cu_product p = {.out = dw, .a = ls_at(c, dlogits, from), .b = x, .add = acc ? dw : NULL};
        p.M = to - from, p.N = a->C, p.K = n, p.lda = ld, p.ta = true;
        p.dt = c->ops->dtype, p.out_dt = LS_F32;
        LS_TRY(cuda_product(c, p));
    }
    return LS_OK;
}

/* Rows r0 … r0+n-1 of a; logits and parts are in scratch. */
static ls_status chunk(ls_compute *c, const ls_classifier *a, int64_t r0, int64_t n, void *logits, double *parts)
{
    const ls_dtype dt = c->ops->dtype;
    void *stream = cuda_of(c)->stream;
    const int64_t ld = cu_logits_ld(a->V), V = a->V_room >= ld ? ld : a->V; /* columns that products take */
    const void *x = ls_at(c, a->x, r0 * a->C);
    cu_softmax s = {
        .logits = logits, .rows = n, .V = a->V, .ld = ld, .first = a->first, .dloss = a->dloss, .at = a->at};
    s.row_loss = a->row_loss + r0, s.target = a->target + r0, s.grad = a->dx || a->dw;
    cu_product p = {.out = logits, .a = x, .b = a->w, .tb = true, .M = n, .N = V, .K = a->C, .dt = dt, .out_dt = dt};
    p.ldo = ld;
    if (a->packed) {
        const cu_packed q = {
            .y = logits, .x = x, .w = a->packed, .form = a->form, .R = n, .K = a->C, .N = a->V, .ldy = ld};
        CU_TRY(cu_linear_packed(stream, dt, &q));
    } else {
        LS_TRY(cuda_product(c, p));
    }
    if (a->n_part > 1) {
        CU_TRY(cu_softmax_parts(stream, dt, &s, parts + a->part * n * 3));
        LS_TRY(a->gather(a->gather_ctx, parts, n * 3));
        CU_TRY(cu_softmax_join(stream, dt, &s, parts, a->n_part));
    } else {
        CU_TRY(cu_softmax_loss(stream, dt, &s));
    }
    p = (cu_product){.a = logits, .lda = ld, .b = a->w, .M = n, .N = a->C, .K = V, .dt = dt, .out_dt = dt};
    if (a->dx) {
        p.out = ls_at(c, a->dx, r0 * a->C);
        LS_TRY(cuda_product(c, p));
    }
    if (a->dw) LS_TRY(add_to_dw(c, a, logits, x, n, ld, a->acc || r0 > 0));
    return LS_OK;
}

ls_status cuda_classifier(ls_compute *c, const ls_classifier *a)
{
    const ls_dtype dt = c->ops->dtype;
    const int64_t most = most_rows(dt, a->R, a->V, a->n_part), rows = chunk_rows(a->R, most);
    char *logits = cuda_room(c);
    double *parts = (double *)(void *)(logits + cu_bytes_up((size_t)(most * cu_logits_ld(a->V)) * ls_dtype_nbytes(dt)));
    if (a->R == 0 && a->dw && !a->acc) LS_TRY(c->ops->zero(c, a->dw, (size_t)(a->V * a->C) * sizeof(float)));
    for (int64_t r0 = 0; r0 < a->R; r0 += rows) LS_TRY(chunk(c, a, r0, LS_MIN(rows, a->R - r0), logits, parts));
    return LS_OK;
}

/* Products, norms, embeddings and sums add what they made to the old value (gemm_tune.c and column_sums.cu see to it); chunks of logits, one after the
 * other, do so only where there is one. */
bool cuda_adds_alike(const ls_compute *c, const ls_compute_shapes *s)
{
    return most_rows(c->ops->dtype, s->B * s->T, s->V, s->n_part) >= s->B * s->T;
}
