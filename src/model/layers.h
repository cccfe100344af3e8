/* layers.h - the layers of a unit, forward and backward. units.c calls them in the order of the equations.
 *
 * What a layer does besides its equation is hidden here:
 *   tensor parallelism   a product with a matrix split by columns first gathers the rows of its input (tp_gather);
 *                        one with a matrix split by rows gives partial sums, which are added over the shards
 *                        (tp_reduce), and only rank 0 contributes the bias
 *   fp8                  operands in 8 bits (layers_fp8.h)
 *   fused operations     a product together with GELU or with the residual sum, where the backend has them (compute.h)
 *   generation           packed matrices (ls_packed) and cached keys and values
 *   recomputation        norm outputs, and GELU outputs that were not kept, are computed again in backward
 *   split backward       with `split`, backward computes only dx and keeps in the slot what the weight gradients need
 *
 * A layer is named by the index of its weight in the unit's table of tensors; the bias is the next tensor. */
#ifndef LS_MODEL_LAYERS_H
#define LS_MODEL_LAYERS_H

#include "model/model_impl.h"

/* One unit in one pass over one micro-batch. */
typedef struct model_pass {
    ls_model *m;
    ls_acts *a;
    const ls_micro *mb;
    int index; /* of the unit */
    const ls_unit *u;
    const ls_slot *s;
    int64_t R, S, C; /* rows of the micro-batch; rows on this shard outside the products; channels */
    bool split;
} model_pass;

/* A layer norm: its weight, its input and the statistics that forward writes. */
typedef struct model_norm {
    int weight;
    const void *x;
    void *mean, *rstd;
} model_norm;

static inline model_pass model_pass_of(ls_model *m, ls_acts *a, const ls_micro *mb, int unit)
{
    const int64_t R = mb->B * mb->T;
    return (model_pass){.m = m,
                        .a = a,
                        .mb = mb,
                        .index = unit,
                        .u = &m->unit[unit],
                        .s = &a->slot[unit],
                        .R = R,
                        .S = model_rows(m, R),
                        .C = m->cfg.n_embd};
}

/* ---- norms ---- */

/* This shard's rows of y = norm(x). In fp8 the next product's operand instead (model_fp8_norms). */
ls_status model_layernorm(const model_pass *p, void *y, model_norm n);
/* a->ln again from the stored statistics, all rows of it; ticket: as in tp_gather. */
ls_status model_layernorm_again(const model_pass *p, model_norm n, uint64_t *ticket);
/* dx = d norm(x) of dy, plus dres (or NULL); the gradients of weight and bias. */
ls_status model_layernorm_bwd(const model_pass *p, model_norm n, void *dx, const void *dy, const void *dres);

/* ---- column-parallel products: every shard needs all rows of x and computes its columns of y ---- */

/* y = x W + b; x has this shard's rows, and all rows after the call (not with model_fp8_rows, which gathers codes). */
ls_status model_linear_column(const model_pass *p, int weight, void *y, void *x);
/* pre = x W + b, y = gelu(pre). */
ls_status model_linear_column_gelu(const model_pass *p, int weight, void *y, void *pre, void *x);
/* For y = norm(x) W + b: a->tmp = gradient of the norm's output, and the gradients of W and b unless split. The
 * sum over the shards is in flight while the weight gradients are computed. */
ls_status model_linear_column_bwd(const model_pass *p, int weight, model_norm input, const void *dy);

/* ---- row-parallel products with the residual connection: every shard has a partial sum of x W ---- */

/* y = res + drop(x W + b) */
ls_status model_linear_row_add(const model_pass *p, int weight, void *y, const void *res, const void *x, ls_drop drop);
/* y = res + drop(x W + b), then normed = norm(y), as in model_layernorm; next.x is y. */
ls_status model_linear_row_add_norm(const model_pass *p, int weight, void *y, const void *res, const void *x,
                                    ls_drop drop, void *normed, model_norm next);
/* *out = gradient of what entered the dropout, all rows of it. A split backward stores it in `keep`. */
ls_status model_dropout_bwd(const model_pass *p, void *d, ls_drop drop, void *keep, const void **out);
/* dx = dy W^T, and the gradients of W and b unless split. */
ls_status model_linear_row_bwd(const model_pass *p, int weight, void *dx, const void *dy, const void *x);
/* The same for x = gelu(s->fc): dpre is the gradient of s->fc. */
ls_status model_linear_row_gelu_bwd(const model_pass *p, int weight, void *dpre, const void *dy);

/* ---- attention over this shard's heads ---- */

/* s->atty = attention(s->qkv), over the cached positions too when there is a cache. */
ls_status model_attention(const model_pass *p);
/* dqkv, for datty = gradient of s->atty. */
ls_status model_attention_bwd(const model_pass *p, void *dqkv, const void *datty);

/* ---- the second half of a split backward ---- */

/* The gradients of W and b alone. */
ls_status model_linear_bwd_w(const model_pass *p, int weight, const void *dy, const void *x);
/* GELU's output: the one that was kept, or computed again. */
ls_status model_gelu_again(const model_pass *p, const void **y);
/* Moves the norms' gradients, which the first half left in the slot, to the unit's gradient buffer. */
ls_status model_norm_grads_w(const model_pass *p);

#endif
