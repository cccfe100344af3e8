#include "model/layers.h"

#include "model/layers_fp8.h"

#define OPS p->m->compute->ops
#define CTX p->m->compute

static const void *param(const model_pass *p, int tensor)
{
    return model_param(p->m, p->u, tensor);
}

/* Where the gradient of a matrix or bias goes; NULL: a split backward computes it later. */
static void *grad(const model_pass *p, int tensor)
{
    return p->split ? NULL : model_grad(p->m, p->u, tensor);
}

static int64_t n_in(const model_pass *p, int weight)
{
    return p->u->tensor[weight].dim[0];
}

static int64_t n_out(const model_pass *p, int weight)
{
    return p->u->tensor[weight].dim[1];
}

/* ---- norms ---- */

ls_status model_layernorm(const model_pass *p, void *y, model_norm n)
{
    if (model_fp8_norms(p)) return model_fp8_norm(p, n, n.x, (ls_quantize_norm){0}, y);
    return OPS->layernorm_fwd(CTX, local_rows(p->m, y, p->R), n.mean, n.rstd, n.x, param(p, n.weight),
                              param(p, n.weight + 1), p->S, p->C, p->m->cfg.ln_eps);
}

ls_status model_layernorm_again(const model_pass *p, model_norm n, uint64_t *ticket)
{
    if (model_fp8(p)) return LS_OK; /* the slot has it, transposed */
    LS_TRY(OPS->layernorm_again(CTX, local_rows(p->m, p->a->ln, p->R), n.x, n.mean, n.rstd, param(p, n.weight),
                                param(p, n.weight + 1), p->S, p->C));
    return tp_gather(p->m, p->a->ln, p->R, ticket);
}

/* A block's norm gradients in the slot of a split backward: weight and bias of the first norm, then of the second. */
static void *kept_norm_grad(const model_pass *p, int weight)
{
    return ls_at_wide(CTX, p->s->dnorm, weight == BLOCK_LN1_W ? 0 : 2 * p->C);
}

ls_status model_layernorm_bwd(const model_pass *p, model_norm n, void *dx, const void *dy, const void *dres)
{
    void *dw = p->split ? kept_norm_grad(p, n.weight) : model_grad(p->m, p->u, n.weight);
    void *db = ls_at_wide(CTX, dw, p->C); /* the bias follows the weight */
    LS_TRY(OPS->layernorm_bwd(CTX, dx, dw, db, dy, dres, n.x, param(p, n.weight), n.mean, n.rstd, p->S, p->C,
                              p->u->acc && !p->split));
    return tp_reduce_norm_grads(p->m, dw);
}

ls_status model_norm_grads_w(const model_pass *p)
{
    static const int norm[] = {BLOCK_LN1_W, BLOCK_LN2_W};
    for (int k = 0; k < 2; k++) {
        void *to = model_grad(p->m, p->u, norm[k]), *from = kept_norm_grad(p, norm[k]);
        const int64_t n = 2 * p->C; /* weight and bias */
        if (p->u->acc) LS_TRY(OPS->add(CTX, to, to, from, n));
        else LS_TRY(OPS->copy(CTX, to, from, (size_t)n * ls_dtype_nbytes(OPS->wide)));
    }
    return LS_OK;
}

/* ---- products ---- */

/* y = x W (+ b), with what this shard has of W. */
static ls_status linear(const model_pass *p, int weight, void *y, const void *x, bool bias)
{
    const int64_t K = n_in(p, weight), N = n_out(p, weight);
    const void *b = bias ? param(p, weight + 1) : NULL;
    const ls_packed *w = p->mb->packed;
    if (w) return OPS->linear_packed(CTX, w->form, y, x, model_packed_matrix(w, p->index, weight), b, p->R, K, N);
    if (model_fp8(p)) return model_fp8_linear(p, weight, y, x, b, NULL);
    LS_TRY(model_fp8_record(p, weight, LS_FP8_X, x, K));
    return OPS->linear_fwd(CTX, y, x, param(p, weight), b, p->R, K, N);
}

ls_status model_linear_bwd_w(const model_pass *p, int weight, const void *dy, const void *x)
{
    if (model_fp8(p)) {
        LS_TRY(model_fp8_dy(p, weight, dy, false, true));
        return model_fp8_dw(p, weight);
    }
    return OPS->linear_bwd(CTX, NULL, model_grad(p->m, p->u, weight), model_grad(p->m, p->u, weight + 1), dy, x, NULL,
                           p->R, n_in(p, weight), n_out(p, weight), p->u->acc);
}

ls_status model_linear_column(const model_pass *p, int weight, void *y, void *x)
{
    if (model_fp8_rows(p)) LS_TRY(model_fp8_gather(p, weight, x));
    else LS_TRY(tp_gather(p->m, x, p->R, NULL));
    return linear(p, weight, y, x, true);
}

ls_status model_linear_column_gelu(const model_pass *p, int weight, void *y, void *pre, void *x)
{
    const int64_t K = n_in(p, weight), N = n_out(p, weight);
    if (model_fp8(p)) return model_linear_column(p, weight, pre, x); /* y is not needed (layers_fp8.h) */
    /* without a kept GELU, a pass that records for fp8 computes it as model_gelu_again does */
    const ls_packed *w = p->mb->packed;
    if (w && OPS->linear_packed_gelu) /* pre is for the backward pass */
        return OPS->linear_packed_gelu(CTX, w->form, y, x, model_packed_matrix(w, p->index, weight),
                                       param(p, weight + 1), p->R, K, N, p->m->cfg.gelu);
    if (!OPS->linear_gelu_fwd || w || model_fp8_records(p)) {
        LS_TRY(model_linear_column(p, weight, pre, x));
        return OPS->gelu_fwd(CTX, y, pre, p->R * N, p->m->cfg.gelu);
    }
    LS_TRY(tp_gather(p->m, x, p->R, NULL));
    return OPS->linear_gelu_fwd(CTX, y, pre, x, param(p, weight), param(p, weight + 1), p->R, K, N, p->m->cfg.gelu);
}

static ls_status column_bwd_fp8(const model_pass *p, int weight, const void *dy)
{
    uint64_t dx = 0;
    LS_TRY(model_fp8_dy(p, weight, dy, true, !p->split));
    LS_TRY(model_fp8_dx(p, weight, p->a->tmp));
    LS_TRY(tp_reduce(p->m, p->a->tmp, p->R, &dx));
    if (!p->split) LS_TRY(model_fp8_dw(p, weight));
    return tp_wait(p->m, dx);
}

ls_status model_linear_column_bwd(const model_pass *p, int weight, model_norm input, const void *dy)
{
    uint64_t ln = 0, dx = 0; /* collectives in flight */
    if (model_fp8(p)) return column_bwd_fp8(p, weight, dy);
    LS_TRY(model_fp8_record(p, weight, LS_FP8_DY, dy, n_out(p, weight)));
    if (!p->split) LS_TRY(model_layernorm_again(p, input, &ln));
    LS_TRY(OPS->linear_bwd(CTX, p->a->tmp, NULL, NULL, dy, NULL, param(p, weight), p->R, n_in(p, weight),
                           n_out(p, weight), false));
    LS_TRY(tp_reduce(p->m, p->a->tmp, p->R, &dx));
    LS_TRY(tp_wait(p->m, ln));
    if (!p->split) LS_TRY(model_linear_bwd_w(p, weight, dy, p->a->ln));
    return tp_wait(p->m, dx);
}

/* a->tmp = x W + b, summed over the shards. */
static ls_status linear_row(const model_pass *p, int weight, const void *x)
{
    LS_TRY(linear(p, weight, p->a->tmp, x, p->m->shard.rank == 0));
    return tp_reduce(p->m, p->a->tmp, p->R, NULL);
}

/* One operation can compute the product and the residual sum: no dropout in between, and no other shard adds to
 * the product. */
static bool can_fuse_residual(const model_pass *p, ls_drop drop)
{
    const bool has = p->mb->packed ? OPS->linear_packed_add != NULL : OPS->linear_add_fwd != NULL;
    return has && drop.p <= 0 && p->m->shard.size == 1;
}

static ls_status fused_residual(const model_pass *p, int weight, void *y, const void *res, const void *x)
{
    const ls_packed *w = p->mb->packed;
    if (w)
        return OPS->linear_packed_add(CTX, w->form, y, res, x, model_packed_matrix(w, p->index, weight),
                                      param(p, weight + 1), p->R, n_in(p, weight), n_out(p, weight));
    if (model_fp8(p)) return model_fp8_linear(p, weight, y, x, param(p, weight + 1), res);
    LS_TRY(model_fp8_record(p, weight, LS_FP8_X, x, n_in(p, weight)));
    return OPS->linear_add_fwd(CTX, y, res, x, param(p, weight), param(p, weight + 1), p->R, n_in(p, weight),
                               n_out(p, weight));
}

ls_status model_linear_row_add(const model_pass *p, int weight, void *y, const void *res, const void *x, ls_drop drop)
{
    if (can_fuse_residual(p, drop)) return fused_residual(p, weight, y, res, x);
    LS_TRY(linear_row(p, weight, x));
    return OPS->add_fwd(CTX, y, res, local_rows(p->m, p->a->tmp, p->R), p->S * p->C, drop);
}

ls_status model_linear_row_add_norm(const model_pass *p, int weight, void *y, const void *res, const void *x,
                                    ls_drop drop, void *normed, model_norm next)
{
    if (can_fuse_residual(p, drop)) {
        LS_TRY(fused_residual(p, weight, y, res, x));
        return model_layernorm(p, normed, next);
    }
    LS_TRY(linear_row(p, weight, x));
    if (model_fp8_norms(p))
        return model_fp8_norm(p, next, res, (ls_quantize_norm){.delta = p->a->tmp, .res = y, .drop = drop}, normed);
    return OPS->add_layernorm_fwd(CTX, y, local_rows(p->m, normed, p->R), next.mean, next.rstd, res,
                                  local_rows(p->m, p->a->tmp, p->R), param(p, next.weight), param(p, next.weight + 1),
                                  p->S, p->C, p->m->cfg.ln_eps, drop);
}

ls_status model_dropout_bwd(const model_pass *p, void *d, ls_drop drop, void *keep, const void **out)
{
    const int64_t n = p->S * p->C;
    void *all = p->split ? keep : p->a->tmp, *local = local_rows(p->m, all, p->R);
    *out = all;
    if (drop.p > 0) LS_TRY(OPS->drop_bwd(CTX, local, d, n, drop));
    else if (p->split || p->m->shard.rows) LS_TRY(model_copy(p->m, local, d, n));
    else *out = d;
    return tp_gather(p->m, all, p->R, NULL);
}

static ls_status row_bwd_fp8(const model_pass *p, int weight, void *dx, const void *dy)
{
    LS_TRY(model_fp8_dy(p, weight, dy, true, !p->split));
    LS_TRY(model_fp8_dx(p, weight, dx));
    return p->split ? LS_OK : model_fp8_dw(p, weight);
}

ls_status model_linear_row_bwd(const model_pass *p, int weight, void *dx, const void *dy, const void *x)
{
    if (model_fp8(p)) return row_bwd_fp8(p, weight, dx, dy);
    LS_TRY(model_fp8_record(p, weight, LS_FP8_DY, dy, n_out(p, weight)));
    return OPS->linear_bwd(CTX, dx, grad(p, weight), grad(p, weight + 1), dy, x, param(p, weight), p->R,
                           n_in(p, weight), n_out(p, weight), p->u->acc);
}

ls_status model_gelu_again(const model_pass *p, const void **y)
{
    *y = p->s->gelu ? p->s->gelu : p->a->ffn_again;
    if (model_fp8(p)) return LS_OK; /* the slot has it, transposed */
    /* with recompute the block's forward has just written it there; a product fused with GELU may round differently from gelu_fwd */
    if (p->s->gelu || p->a->recompute) return LS_OK;
    return OPS->gelu_fwd(CTX, p->a->ffn_again, p->s->fc, p->R * model_ffn(p->m), p->m->cfg.gelu);
}

ls_status model_linear_row_gelu_bwd(const model_pass *p, int weight, void *dpre, const void *dy)
{
    const int64_t K = n_in(p, weight), N = n_out(p, weight);
    const void *x = NULL;                                      /* a split backward does not need it yet */
    if (model_fp8(p)) return row_bwd_fp8(p, weight, dpre, dy); /* GELU's slope follows with the next layer's dy */
    if (!p->split) LS_TRY(model_gelu_again(p, &x));
    if (!OPS->linear_gelu_bwd) {
        LS_TRY(model_linear_row_bwd(p, weight, dpre, dy, x));
        return OPS->gelu_bwd(CTX, dpre, dpre, p->s->fc, p->R * K, p->m->cfg.gelu);
    }
    LS_TRY(model_fp8_record(p, weight, LS_FP8_DY, dy, N));
    if (!p->split) LS_TRY(model_linear_bwd_w(p, weight, dy, x));
    return OPS->linear_gelu_bwd(CTX, dpre, dy, param(p, weight), p->s->fc, p->R, K, N, p->m->cfg.gelu);
}

/* ---- attention ---- */

ls_status model_attention(const model_pass *p)
{
    const ls_slot *s = p->s;
    const int64_t H = model_heads(p->m), D = p->C / p->m->cfg.n_head;
    if (s->kcache)
        return OPS->attention_cached(CTX, s->atty, s->kcache, s->vcache, s->qkv, p->mb->B, p->mb->T, p->mb->pos,
                                     p->mb->at, p->a->cache_len, H, D, p->mb->packed != NULL);
    return OPS->attention_fwd(CTX, s->atty, s->lse, s->qkv, p->mb->B, p->mb->T, H, D,
                              model_attention_drop(p->m, p->mb, p->index));
}

ls_status model_attention_bwd(const model_pass *p, void *dqkv, const void *datty)
{
    const ls_slot *s = p->s;
    return OPS->attention_bwd(CTX, dqkv, datty, s->atty, s->lse, s->qkv, p->mb->B, p->mb->T, model_heads(p->m),
                              p->C / p->m->cfg.n_head, model_attention_drop(p->m, p->mb, p->index));
}
