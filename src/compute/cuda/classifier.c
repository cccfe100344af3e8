/* classifier.c - logits, loss and their gradient, some rows at a time.
 *
 *   for rows [r, r+n):   L (n,V) = x w^T     loss, L := dloss (softmax(L) - target)     dx = L w     dw += L^T x
 *
 * Only L of one chunk exists: as many rows as fit into LS_CLASSIFIER_MIB (1024), in equal parts. Its rows are ld apart, the vocabulary rounded
 * up to 64, so that the products are aligned; the columns behind V are products with rows that V_room allows to read (or are not
 * made), and 0 in the gradient. dw is read and written once a chunk: that is what small chunks cost. */
#include "compute/cuda/cuda_impl.h"

#include "compute/cuda/kernels/softmax.h"

#include <stdlib.h>

#define ROW_N 3 /* doubles that a part of the vocabulary tells of a row */

static int64_t ld_of(int64_t V)
{
    return (V + 63) / 64 * 64;
}

/* Rows of a chunk: a function of the shapes alone, so that sums have one order. */
static int64_t rows_of(int64_t R, int64_t V, ls_dtype dt)
{
    const char *text = getenv("LS_CLASSIFIER_MIB");
    const long mib = text ? strtol(text, NULL, 10) : 0;
    const int64_t room = (int64_t)(mib > 0 ? mib : 1024) << 20, row = ld_of(V) * (int64_t)ls_dtype_nbytes(dt);
    int64_t most = room / row / 128 * 128;
    if (most < 128) most = 128;
    if (R <= most) return R > 0 ? R : 1;
    const int64_t n_chunk = (R + most - 1) / most;
    return ((R + n_chunk - 1) / n_chunk + 127) / 128 * 128;
}

static size_t logits_nbytes(int64_t rows, int64_t V, ls_dtype dt)
{
    return cuda_up((size_t)(rows * ld_of(V)) * ls_dtype_nbytes(dt));
}

typedef struct chunk {
    const ls_classifier *a;
    int64_t from, rows, ld, columns; /* columns: of L that are made */
    void *logits;
    double *parts; /* (n_part, rows, ROW_N) */
} chunk;

static ls_status make_logits(ls_compute *c, const chunk *k)
{
    const ls_dtype dt = c->ops->dtype;
    const cu_product p = {.out = k->logits,
                          .a = ls_at(c, k->a->x, k->from * k->a->C),
                          .b = k->a->w,
                          .tb = true,
                          .M = k->rows,
                          .N = k->columns,
                          .K = k->a->C,
                          .ldo = k->ld,
                          .dt = dt,
                          .out_dt = dt};
    return cuda_product(c, &p);
}

static ls_status losses(ls_compute *c, const chunk *k)
{
    const ls_classifier *a = k->a;
    const cuda *x = cuda_of(c);
    const cu_softmax s = {.logits = k->logits,
                          .row_loss = a->row_loss + k->from,
                          .target = a->target + k->from,
                          .rows = k->rows,
                          .V = a->V,
                          .ld = k->ld,
                          .first = a->first,
                          .dloss = a->dloss,
                          .at = a->at,
                          .grad = a->dx != NULL};
    if (a->n_part <= 1) {
        CU_TRY(cu_softmax_loss(x->stream, x->dt, &s));
        return LS_OK;
    }
    const int64_t n = k->rows * ROW_N;
    CU_TRY(cu_softmax_parts(x->stream, x->dt, &s, k->parts + a->part * n));
    LS_TRY(a->gather(a->gather_ctx, k->parts, n));
    CU_TRY(cu_softmax_join(x->stream, x->dt, &s, k->parts, a->n_part));
    return LS_OK;
}

static ls_status gradients(ls_compute *c, const chunk *k)
{
    const ls_classifier *a = k->a;
    const ls_dtype dt = c->ops->dtype;
    const cu_product dx = {.out = ls_at(c, a->dx, k->from * a->C),
                           .a = k->logits,
                           .b = a->w,
                           .M = k->rows,
                           .N = a->C,
                           .K = k->columns,
                           .lda = k->ld,
                           .dt = dt,
                           .out_dt = dt};
    const cu_product dw = {.out = a->dw,
                           .a = k->logits,
                           .b = ls_at(c, a->x, k->from * a->C),
                           .ta = true,
                           .M = a->V,
                           .N = a->C,
                           .K = k->rows,
                           .lda = k->ld,
                           .dt = dt,
                           .out_dt = LS_F32,
                           .add = a->acc || k->from ? a->dw : NULL};
    LS_TRY(cuda_product(c, &dx));
    return cuda_product(c, &dw);
}

static ls_status classifier(ls_compute *c, const ls_classifier *a)
{
    const int64_t step = rows_of(a->R, a->V, c->ops->dtype), ld = ld_of(a->V);
    chunk k = {.a = a, .ld = ld, .columns = a->V_room >= ld ? ld : a->V, .logits = cuda_room(c)};
    k.parts = (double *)(void *)((char *)k.logits + logits_nbytes(step, a->V, c->ops->dtype));
    for (k.from = 0; k.from < a->R; k.from += step) {
        k.rows = a->R - k.from < step ? a->R - k.from : step;
        LS_TRY(make_logits(c, &k));
        LS_TRY(losses(c, &k));
        if (a->dx) LS_TRY(gradients(c, &k));
    }
    return LS_OK;
}

void cuda_fill_classifier(ls_compute_ops *ops)
{
    ops->classifier = classifier;
}

size_t cuda_classifier_scratch(const cuda *x, const ls_compute_shapes *s)
{
    if (!s->V) return 0;
    const int64_t rows = rows_of(s->B * s->T, s->V, x->dt), n_part = s->n_part > 1 ? s->n_part : 0;
    return logits_nbytes(rows, s->V, x->dt) + cuda_up((size_t)(n_part * rows * ROW_N) * sizeof(double));
}
