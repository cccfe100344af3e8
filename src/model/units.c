/* units.c - forward and backward of embed, block and head, each a page.
 *
 *   embed   x = drop(wte[ids] + wpe[t])
 *   block   r = x + drop(Attn(LN1(x)));   y = r + drop(W2 gelu(W1 LN2(r) + b1) + b2)
 *   head    loss = cross-entropy(LNf(x) Wte^T, target)
 *
 * A shard of a model (ls_shard) has some heads, MLP columns and ids. What a product with a matrix cut by rows gives is its share of a
 * sum (forward: the projections, the embedding; backward: what flows into a norm): model_meet adds the shares of all, and only rank 0's
 * share has the bias and the positions in it. Everything behind a sum is the same on all shards, or each has its rows of it
 * (model_mine) until model_spread brings them together before the next product.
 *
 * A unit writes its output into the next unit's slot. What backward can make again cheaply (norms, GELU) is not kept:
 * a block keeps 10 C numbers a token (x, qkv 3C, attention C, r, fc 4C) instead of 16. */
#include "model/model_impl.h"

#define OPS m->compute->ops
#define CTX m->compute

static int64_t rows(const ls_micro *mb)
{
    return mb->B * mb->T;
}

/* n elements of activations. */
static ls_status copy(const ls_model *m, void *to, const void *from, int64_t n)
{
    return OPS->copy(CTX, to, from, (size_t)n * ls_dtype_nbytes(OPS->dtype));
}

ls_status model_embed_fwd(ls_model *m, ls_acts *a, const ls_micro *mb)
{
    const ls_unit *u = &m->unit[0];
    const int64_t R = rows(mb), C = m->cfg.n_embd, n = model_rows(m, R) * C;
    const ls_drop drop = model_drop(m, mb, 0, DROP_EMBED, m->cfg.embd_pdrop);
    const void *wte = model_param(m, u, EMBED_WTE), *wpe = ls_at(CTX, model_param(m, u, EMBED_WPE), mb->pos * C);
    void *x = a->slot[1].x;
    const int64_t first = model_first_id(m), V = model_vocab(m);
    if (m->shard.size == 1) return OPS->embed_fwd(CTX, x, mb->ids, first, V, wte, wpe, mb->B, mb->T, C, drop);
    LS_TRY(
        OPS->embed_fwd(CTX, a->tmp, mb->ids, first, V, wte, m->shard.rank ? NULL : wpe, mb->B, mb->T, C, (ls_drop){0}));
    LS_TRY(model_meet(m, a->tmp, R, NULL));
    return OPS->drop_bwd(CTX, x, model_mine(m, a->tmp, R), n, drop); /* the mask is its own derivative */
}

ls_status model_embed_bwd(ls_model *m, ls_acts *a, const ls_micro *mb)
{
    const ls_unit *u = &m->unit[0];
    const int64_t R = rows(mb);
    ls_drop drop = model_drop(m, mb, 0, DROP_EMBED, m->cfg.embd_pdrop);
    const void *dx = a->da;
    if (m->shard.rows) {
        LS_TRY(copy(m, model_mine(m, a->tmp, R), a->da, model_rows(m, R) * m->cfg.n_embd));
        LS_TRY(model_spread(m, a->tmp, R, NULL));
        dx = a->tmp;
    }
    drop.first = 0; /* of all rows */
    return OPS->embed_bwd(CTX, model_grad(m, u, EMBED_WTE), model_grad(m, u, EMBED_WPE), dx, mb->ids, model_first_id(m),
                          mb->B, mb->T, m->cfg.n_embd, model_vocab(m), m->cfg.n_ctx, drop, u->acc);
}

/* The r1 model has no dropout behind the attention's output. */
static ls_drop proj_drop(const ls_model *m, const ls_micro *mb, int u)
{
    return model_drop(m, mb, u, DROP_PROJ, m->cfg.variant == LS_VARIANT_R1 ? 0 : m->cfg.resid_pdrop);
}

/* y = x w + b with the matrix at `tensor` of block ui and the bias behind it; a draft has its own copy, numbered `copy`. */
static ls_status linear(ls_model *m, const ls_micro *mb, int ui, int tensor, int copy, void *y, const void *x,
                        int64_t K, int64_t N)
{
    const ls_unit *u = &m->unit[ui];
    const void *b = model_param(m, u, tensor + 1);
    if (mb->draft) return OPS->linear_q8(CTX, y, x, mb->draft->q[(ui - 1) * MODEL_DRAFT_MATRICES + copy], b, K, N);
    return OPS->linear_fwd(CTX, y, x, model_param(m, u, tensor), b, rows(mb), K, N);
}

/* The same where the shards have rows of the matrix: their shares are added. */
static ls_status linear_sum(ls_model *m, const ls_micro *mb, int ui, int tensor, int copy, void *y, const void *x,
                            int64_t K, int64_t N)
{
    const ls_unit *u = &m->unit[ui];
    if (m->shard.rank == 0) LS_TRY(linear(m, mb, ui, tensor, copy, y, x, K, N));
    else LS_TRY(OPS->linear_fwd(CTX, y, x, model_param(m, u, tensor), NULL, rows(mb), K, N));
    return model_meet(m, y, rows(mb), NULL);
}

/* The sum behind a projection can be made with it: nothing falls in between, and all of it is here. */
static bool adds(const ls_model *m, const ls_micro *mb, ls_drop behind)
{
    return OPS->linear_add_fwd && behind.p <= 0 && m->shard.size == 1 && !mb->draft;
}

ls_status model_block_fwd(ls_model *m, ls_acts *a, const ls_micro *mb, int ui)
{
    const ls_unit *u = &m->unit[ui];
    const ls_slot *s = &a->slot[ui];
    const int64_t R = rows(mb), S = model_rows(m, R), C = m->cfg.n_embd, D = C / m->cfg.n_head;
    const int64_t H = model_heads(m), A = model_width(m), F = model_ffn(m);
    const double eps = m->cfg.ln_eps;
    void *ln = model_mine(m, a->ln, R), *tmp = model_mine(m, a->tmp, R);

    LS_TRY(OPS->layernorm_fwd(CTX, ln, s->mean1, s->rstd1, s->x, model_param(m, u, BLOCK_LN1_W),
                              model_param(m, u, BLOCK_LN1_B), S, C, eps));
    LS_TRY(model_spread(m, a->ln, R, NULL));
    LS_TRY(linear(m, mb, ui, BLOCK_QKV_W, MODEL_DRAFT_QKV, s->qkv, a->ln, C, 3 * A));
    if (s->kcache)
        LS_TRY(OPS->attention_cached(CTX, s->atty, s->kcache, s->vcache, s->qkv, mb->B, mb->T, mb->pos, a->cache_len, H,
                                     D));
    else LS_TRY(OPS->attention_fwd(CTX, s->atty, s->lse, s->qkv, mb->B, mb->T, H, D, model_attention_drop(m, mb, ui)));
    const ls_drop behind_proj = proj_drop(m, mb, ui), behind_out = model_drop(m, mb, ui, DROP_OUT, m->cfg.resid_pdrop);
    void *wide = s->gelu ? s->gelu : a->wide;
    if (adds(m, mb, behind_proj)) {
        LS_TRY(OPS->linear_add_fwd(CTX, s->res, s->x, s->atty, model_param(m, u, BLOCK_PROJ_W),
                                   model_param(m, u, BLOCK_PROJ_B), R, A, C));
        LS_TRY(OPS->layernorm_fwd(CTX, ln, s->mean2, s->rstd2, s->res, model_param(m, u, BLOCK_LN2_W),
                                  model_param(m, u, BLOCK_LN2_B), S, C, eps));
    } else {
        LS_TRY(linear_sum(m, mb, ui, BLOCK_PROJ_W, MODEL_DRAFT_PROJ, a->tmp, s->atty, A, C));
        LS_TRY(OPS->add_layernorm_fwd(CTX, s->res, ln, s->mean2, s->rstd2, s->x, tmp, model_param(m, u, BLOCK_LN2_W),
                                      model_param(m, u, BLOCK_LN2_B), S, C, eps, behind_proj));
    }
    LS_TRY(model_spread(m, a->ln, R, NULL));
    if (OPS->linear_gelu_fwd && !mb->draft)
        LS_TRY(OPS->linear_gelu_fwd(CTX, wide, s->fc, a->ln, model_param(m, u, BLOCK_FC_W),
                                    model_param(m, u, BLOCK_FC_B), R, C, F, m->cfg.gelu));
    else {
        LS_TRY(linear(m, mb, ui, BLOCK_FC_W, MODEL_DRAFT_FC, s->fc, a->ln, C, F));
        LS_TRY(OPS->gelu_fwd(CTX, wide, s->fc, R * F, m->cfg.gelu));
    }
    if (adds(m, mb, behind_out))
        return OPS->linear_add_fwd(CTX, a->slot[ui + 1].x, s->res, wide, model_param(m, u, BLOCK_OUT_W),
                                   model_param(m, u, BLOCK_OUT_B), R, F, C);
    LS_TRY(linear_sum(m, mb, ui, BLOCK_OUT_W, MODEL_DRAFT_OUT, a->tmp, wide, F, C));
    return OPS->add_fwd(CTX, a->slot[ui + 1].x, s->res, tmp, S * C, behind_out);
}

/* d of what a dropout let through, all rows of it; `keep` (or NULL) is where a split backward leaves it. */
static ls_status behind_drop(ls_model *m, ls_acts *a, void *d, int64_t R, ls_drop drop, void *keep, const void **out)
{
    const int64_t n = model_rows(m, R) * m->cfg.n_embd;
    void *to = keep ? keep : a->tmp;
    *out = to;
    if (drop.p > 0) LS_TRY(OPS->drop_bwd(CTX, model_mine(m, to, R), d, n, drop));
    else if (keep || m->shard.rows) LS_TRY(copy(m, model_mine(m, to, R), d, n));
    else *out = d;
    return model_spread(m, to, R, NULL);
}

/* A norm's output once more, all rows of it, in a->ln; its bias lies behind its weight. */
static ls_status norm_again(ls_model *m, ls_acts *a, const ls_micro *mb, const void *x, const void *mean,
                            const void *rstd, const ls_unit *u, int weight, uint64_t *ticket)
{
    const int64_t R = rows(mb);
    LS_TRY(OPS->layernorm_again(CTX, model_mine(m, a->ln, R), x, mean, rstd, model_param(m, u, weight),
                                model_param(m, u, weight + 1), model_rows(m, R), m->cfg.n_embd));
    return model_spread(m, a->ln, R, ticket);
}

/* d of a product that follows a norm: a->tmp becomes d of the norm's output, which lies in a->ln once `ln` is there. The sum over the
 * shards travels while the gradients of the weights are made (dw NULL: not wanted). */
static ls_status behind_norm(ls_model *m, ls_acts *a, const ls_micro *mb, const void *dy, const ls_unit *u, int weight,
                             int64_t N, void *dw, void *db, uint64_t ln)
{
    const int64_t R = rows(mb), C = m->cfg.n_embd;
    uint64_t dx = 0;
    LS_TRY(OPS->linear_bwd(CTX, a->tmp, NULL, NULL, dy, NULL, model_param(m, u, weight), R, C, N, false));
    LS_TRY(model_meet(m, a->tmp, R, &dx));
    LS_TRY(model_wait(m, ln));
    if (dw) LS_TRY(OPS->linear_bwd(CTX, NULL, dw, db, dy, a->ln, NULL, R, C, N, u->acc));
    return model_wait(m, dx);
}

/* GELU's output: kept, or made again. */
static ls_status gelu_again(ls_model *m, ls_acts *a, const ls_slot *s, int64_t n, const void **wide)
{
    *wide = s->gelu ? s->gelu : a->wide_again;
    return s->gelu ? LS_OK : OPS->gelu_fwd(CTX, a->wide_again, s->fc, n, m->cfg.gelu);
}

/* a->da comes in as d y and leaves as d x; a->db holds d r in between. */
ls_status model_block_bwd(ls_model *m, ls_acts *a, const ls_micro *mb, int ui, bool split)
{
    const ls_unit *u = &m->unit[ui];
    const ls_slot *s = &a->slot[ui];
    const int64_t R = rows(mb), S = model_rows(m, R), C = m->cfg.n_embd, D = C / m->cfg.n_head;
    const int64_t H = model_heads(m), A = model_width(m), F = model_ffn(m);
    void *dfc = split ? s->dfc : a->dwide, *dqkv = split ? s->dqkv : a->dwide;
    void *tmp = model_mine(m, a->tmp, R);
    void *grad[LS_UNIT_MAX_TENSOR] = {0};
    for (int k = 0; k < u->n_tensor; k++) grad[k] = split ? NULL : model_grad(m, u, k);
    if (split) {
        const int norm[] = {BLOCK_LN1_W, BLOCK_LN1_B, BLOCK_LN2_W, BLOCK_LN2_B};
        for (int k = 0; k < 4; k++) grad[norm[k]] = ls_at_wide(CTX, s->dnorm, k * C);
    }

    /* y = r + drop(out(gelu(fc(LN2 r)))) */
    const void *dout, *dproj;
    uint64_t ln = 0; /* on its way */
    LS_TRY(behind_drop(m, a, a->da, R, model_drop(m, mb, ui, DROP_OUT, m->cfg.resid_pdrop), split ? s->dout : NULL,
                       &dout));
    const void *wide = NULL;
    if (!split) LS_TRY(gelu_again(m, a, s, R * F, &wide));
    if (OPS->linear_gelu_bwd) {
        if (!split)
            LS_TRY(OPS->linear_bwd(CTX, NULL, grad[BLOCK_OUT_W], grad[BLOCK_OUT_B], dout, wide, NULL, R, F, C, u->acc));
        LS_TRY(OPS->linear_gelu_bwd(CTX, dfc, dout, model_param(m, u, BLOCK_OUT_W), s->fc, R, F, C, m->cfg.gelu));
    } else {
        LS_TRY(OPS->linear_bwd(CTX, dfc, grad[BLOCK_OUT_W], grad[BLOCK_OUT_B], dout, wide,
                               model_param(m, u, BLOCK_OUT_W), R, F, C, u->acc));
        LS_TRY(OPS->gelu_bwd(CTX, dfc, dfc, s->fc, R * F, m->cfg.gelu));
    }
    if (!split) LS_TRY(norm_again(m, a, mb, s->res, s->mean2, s->rstd2, u, BLOCK_LN2_W, &ln));
    LS_TRY(behind_norm(m, a, mb, dfc, u, BLOCK_FC_W, F, grad[BLOCK_FC_W], grad[BLOCK_FC_B], ln));
    LS_TRY(OPS->layernorm_bwd(CTX, a->db, grad[BLOCK_LN2_W], grad[BLOCK_LN2_B], tmp, a->da, s->res,
                              model_param(m, u, BLOCK_LN2_W), s->mean2, s->rstd2, S, C, u->acc && !split));
    LS_TRY(model_norm_grads(m, grad[BLOCK_LN2_W]));

    /* r = x + drop(proj(attention(qkv(LN1 x)))) */
    LS_TRY(behind_drop(m, a, a->db, R, proj_drop(m, mb, ui), split ? s->dproj : NULL, &dproj));
    LS_TRY(OPS->linear_bwd(CTX, a->ln, grad[BLOCK_PROJ_W], grad[BLOCK_PROJ_B], dproj, s->atty,
                           model_param(m, u, BLOCK_PROJ_W), R, A, C, u->acc));
    LS_TRY(OPS->attention_bwd(CTX, dqkv, a->ln, s->atty, s->lse, s->qkv, mb->B, mb->T, H, D,
                              model_attention_drop(m, mb, ui)));
    ln = 0;
    if (!split) LS_TRY(norm_again(m, a, mb, s->x, s->mean1, s->rstd1, u, BLOCK_LN1_W, &ln));
    LS_TRY(behind_norm(m, a, mb, dqkv, u, BLOCK_QKV_W, 3 * A, grad[BLOCK_QKV_W], grad[BLOCK_QKV_B], ln));
    LS_TRY(OPS->layernorm_bwd(CTX, a->da, grad[BLOCK_LN1_W], grad[BLOCK_LN1_B], tmp, a->db, s->x,
                              model_param(m, u, BLOCK_LN1_W), s->mean1, s->rstd1, S, C, u->acc && !split));
    return model_norm_grads(m, grad[BLOCK_LN1_W]);
}

ls_status model_block_bwd_w(ls_model *m, ls_acts *a, const ls_micro *mb, int ui)
{
    const ls_unit *u = &m->unit[ui];
    const ls_slot *s = &a->slot[ui];
    const int64_t R = rows(mb), C = m->cfg.n_embd, A = model_width(m), F = model_ffn(m);
    const int norm[] = {BLOCK_LN1_W, BLOCK_LN1_B, BLOCK_LN2_W, BLOCK_LN2_B};
    const void *wide;
    for (int k = 0; k < 4; k++) {
        void *to = model_grad(m, u, norm[k]), *x = ls_at_wide(CTX, s->dnorm, k * C);
        if (u->acc) LS_TRY(OPS->add(CTX, to, to, x, C));
        else LS_TRY(OPS->copy(CTX, to, x, (size_t)C * ls_dtype_nbytes(OPS->wide)));
    }
    LS_TRY(gelu_again(m, a, s, R * F, &wide));
    LS_TRY(OPS->linear_bwd(CTX, NULL, model_grad(m, u, BLOCK_OUT_W), model_grad(m, u, BLOCK_OUT_B), s->dout, wide, NULL,
                           R, F, C, u->acc));
    LS_TRY(norm_again(m, a, mb, s->res, s->mean2, s->rstd2, u, BLOCK_LN2_W, NULL));
    LS_TRY(OPS->linear_bwd(CTX, NULL, model_grad(m, u, BLOCK_FC_W), model_grad(m, u, BLOCK_FC_B), s->dfc, a->ln, NULL,
                           R, C, F, u->acc));
    LS_TRY(OPS->linear_bwd(CTX, NULL, model_grad(m, u, BLOCK_PROJ_W), model_grad(m, u, BLOCK_PROJ_B), s->dproj, s->atty,
                           NULL, R, A, C, u->acc));
    LS_TRY(norm_again(m, a, mb, s->x, s->mean1, s->rstd1, u, BLOCK_LN1_W, NULL));
    return OPS->linear_bwd(CTX, NULL, model_grad(m, u, BLOCK_QKV_W), model_grad(m, u, BLOCK_QKV_B), s->dqkv, a->ln,
                           NULL, R, C, 3 * A, u->acc);
}

ls_status model_head_fwd(ls_model *m, ls_acts *a, ls_micro *mb)
{
    const int ui = m->n_unit - 1;
    const ls_unit *u = &m->unit[ui];
    const ls_slot *s = &a->slot[ui];
    const int64_t R = rows(mb), C = m->cfg.n_embd;

    LS_TRY(OPS->layernorm_fwd(CTX, model_mine(m, a->ln, R), s->mean1, s->rstd1, s->x, model_param(m, u, HEAD_LN_W),
                              model_param(m, u, HEAD_LN_B), model_rows(m, R), C, m->cfg.ln_eps));
    LS_TRY(model_spread(m, a->ln, R, NULL));
    if (!mb->target) return LS_OK;
    ls_classifier cl = {.row_loss = a->row_loss,
                        .x = a->ln,
                        .w = model_head_weight(m),
                        .target = mb->target,
                        .dloss = mb->dloss,
                        .at = mb->at,
                        .V_room = model_head_room(m),
                        .R = R,
                        .C = C,
                        .V = model_vocab(m),
                        .first = model_first_id(m),
                        .part = m->shard.rank,
                        .n_part = m->shard.size,
                        .gather = m->seam.gather,
                        .gather_ctx = m->seam.ctx};
    if (mb->train) {
        cl.dx = m->shard.rows ? a->tmp : a->db;
        cl.dw = m->cfg.tied ? model_tied_grad(m) : model_grad(m, u, HEAD_W);
        cl.acc = u->acc;
    }
    CTX->scratch = a->head_work;
    ls_status st = OPS->classifier(CTX, &cl);
    CTX->scratch = a->work;
    LS_TRY(st);
    if (mb->train) LS_TRY(model_meet(m, cl.dx, R, NULL));
    if (mb->train && m->shard.rows) LS_TRY(copy(m, a->db, model_mine(m, a->tmp, R), model_rows(m, R) * C));
    if (!CTX->device) mb->n_counted = ls_count_targets(mb->target, R);
    LS_ASSERT(mb->loss || !CTX->device);
    return OPS->sum(CTX, mb->loss ? mb->loss : &mb->loss_sum, a->row_loss, R);
}

ls_status model_head_bwd(ls_model *m, ls_acts *a, const ls_micro *mb)
{
    const int ui = m->n_unit - 1;
    const ls_unit *u = &m->unit[ui];
    const ls_slot *s = &a->slot[ui];
    LS_TRY(OPS->layernorm_bwd(CTX, a->da, model_grad(m, u, HEAD_LN_W), model_grad(m, u, HEAD_LN_B), a->db, NULL, s->x,
                              model_param(m, u, HEAD_LN_W), s->mean1, s->rstd1, model_rows(m, rows(mb)), m->cfg.n_embd,
                              u->acc));
    return model_norm_grads(m, model_grad(m, u, HEAD_LN_W));
}

ls_status ls_model_logits(ls_model *m, ls_acts *a, const ls_micro *mb, bool last_only, void *out)
{
    const int64_t C = m->cfg.n_embd, V = m->cfg.vocab_size;
    LS_ASSERT(m->shard.size == 1);
    if (mb->draft) return OPS->linear_q8(CTX, out, a->ln, mb->draft->q[mb->draft->n - 1], NULL, C, V);
    if (!last_only) return OPS->logits(CTX, out, a->ln, model_head_weight(m), rows(mb), C, V);
    for (int64_t b = 0; b < mb->B; b++)
        LS_TRY(OPS->logits(CTX, ls_at(CTX, out, b * V), ls_at(CTX, a->ln, (b * mb->T + mb->T - 1) * C),
                           model_head_weight(m), 1, C, V));
    return LS_OK;
}
