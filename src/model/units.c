/* units.c - forward and backward of embed, block and head.
 *
 *   embed   x = drop(wte[ids] + wpe[t])
 *   block   r = x + drop(Attn(LN1(x)));   y = r + drop(W2 gelu(W1 LN2(r) + b1) + b2)
 *   head    loss = cross-entropy(LNf(x) Wte^T, target)
 *
 * A block is a list of calls into layers.c, in the order of the equations; backward has the same calls in reverse
 * order. A unit writes its output into the next unit's slot. What backward can recompute cheaply (norms, GELU) is
 * not kept: a block keeps 10 C numbers per token (x, qkv 3C, attention C, r, fc 4C) instead of 16. */
#include "model/layers.h"

#define OPS m->compute->ops
#define CTX m->compute

ls_status model_embed_fwd(ls_model *m, ls_acts *a, const ls_micro *mb)
{
    const ls_unit *u = &m->unit[0];
    const int64_t R = mb->B * mb->T, C = m->cfg.n_embd, first = model_first_id(m), V = model_vocab(m);
    ls_drop drop = model_drop(m, mb, 0, DROP_EMBED, m->cfg.embd_pdrop);
    if (a->cache_len) drop.at = mb->at; /* for the position */
    const void *wte = model_param(m, u, EMBED_WTE), *wpe = model_param(m, u, EMBED_WPE);
    if (!drop.at) wpe = ls_at(CTX, wpe, mb->pos * C);
    void *x = a->slot[1].x;
    if (m->shard.size == 1) return OPS->embed_fwd(CTX, x, mb->ids, first, V, wte, wpe, mb->B, mb->T, C, drop);
    if (m->shard.rank) wpe = NULL; /* rank 0 contributes the positions */
    LS_TRY(OPS->embed_fwd(CTX, a->tmp, mb->ids, first, V, wte, wpe, mb->B, mb->T, C, (ls_drop){0}));
    LS_TRY(tp_reduce(m, a->tmp, R, NULL));
    /* drop_bwd applies the mask, as forward does */
    return OPS->drop_bwd(CTX, x, local_rows(m, a->tmp, R), model_rows(m, R) * C, drop);
}

ls_status model_embed_bwd(ls_model *m, ls_acts *a, const ls_micro *mb)
{
    const ls_unit *u = &m->unit[0];
    const int64_t R = mb->B * mb->T, C = m->cfg.n_embd;
    ls_drop drop = model_drop(m, mb, 0, DROP_EMBED, m->cfg.embd_pdrop);
    const void *dx = a->da;
    if (m->shard.rows) {
        LS_TRY(model_copy(m, local_rows(m, a->tmp, R), a->da, model_rows(m, R) * C));
        LS_TRY(tp_gather(m, a->tmp, R, NULL));
        dx = a->tmp;
    }
    drop.first = 0; /* dx has all rows */
    return OPS->embed_bwd(CTX, model_grad(m, u, EMBED_WTE), model_grad(m, u, EMBED_WPE), dx, mb->ids, model_first_id(m),
                          mb->B, mb->T, C, model_vocab(m), m->cfg.n_ctx, drop, u->acc);
}

static model_norm first_norm(const ls_slot *s)
{
    return (model_norm){BLOCK_LN1_W, s->x, s->mean1, s->rstd1};
}

static model_norm second_norm(const ls_slot *s)
{
    return (model_norm){BLOCK_LN2_W, s->res, s->mean2, s->rstd2};
}

/* The r1 model has no dropout after the attention's projection. */
static ls_drop proj_drop(const model_pass *p)
{
    const double rate = p->m->cfg.variant == LS_VARIANT_R1 ? 0 : p->m->cfg.resid_pdrop;
    return model_drop(p->m, p->mb, p->index, DROP_PROJ, rate);
}

static ls_drop out_drop(const model_pass *p)
{
    return model_drop(p->m, p->mb, p->index, DROP_OUT, p->m->cfg.resid_pdrop);
}

ls_status model_block_fwd(ls_model *m, ls_acts *a, const ls_micro *mb, int ui)
{
    const model_pass p = model_pass_of(m, a, mb, ui);
    const ls_slot *s = p.s;
    const model_norm ln1 = first_norm(s), ln2 = second_norm(s);
    void *ffn = s->gelu ? s->gelu : a->ffn, *y = a->slot[ui + 1].x;

    /* r = x + drop(proj(attention(qkv(LN1 x)))) */
    LS_TRY(model_layernorm(&p, a->ln, ln1));
    LS_TRY(model_linear_column(&p, BLOCK_QKV_W, s->qkv, a->ln));
    LS_TRY(model_attention(&p)); /* s->qkv → s->atty */
    LS_TRY(model_linear_row_add_norm(&p, BLOCK_PROJ_W, s->res, s->x, s->atty, proj_drop(&p), a->ln,
                                     ln2)); /* r, and LN2 r */
    /* y = r + drop(out(gelu(fc(LN2 r)))); LN2 r is computed by the call above, which may fuse it with the addition */
    LS_TRY(model_linear_column_gelu(&p, BLOCK_FC_W, ffn, s->fc, a->ln));
    return model_linear_row_add(&p, BLOCK_OUT_W, y, s->res, ffn, out_drop(&p));
}

/* a->da is dy on entry and dx on return; a->db is dr in between. */
ls_status model_block_bwd(ls_model *m, ls_acts *a, const ls_micro *mb, int ui, bool split)
{
    model_pass p = model_pass_of(m, a, mb, ui);
    p.split = split;
    const ls_slot *s = p.s;
    const model_norm ln1 = first_norm(s), ln2 = second_norm(s);
    void *dfc = split ? s->dfc : a->dffn, *dqkv = split ? s->dqkv : a->dffn;
    void *dln = local_rows(m, a->tmp, p.R);
    const void *dout, *dproj;

    /* y = r + drop(out(gelu(fc(LN2 r)))) */
    LS_TRY(model_dropout_bwd(&p, a->da, out_drop(&p), s->dout, &dout));
    LS_TRY(model_linear_row_gelu_bwd(&p, BLOCK_OUT_W, dfc, dout));
    LS_TRY(model_linear_column_bwd(&p, BLOCK_FC_W, ln2, dfc));
    LS_TRY(model_layernorm_bwd(&p, ln2, a->db, dln, a->da));
    /* r = x + drop(proj(attention(qkv(LN1 x)))) */
    LS_TRY(model_dropout_bwd(&p, a->db, proj_drop(&p), s->dproj, &dproj));
    LS_TRY(model_linear_row_bwd(&p, BLOCK_PROJ_W, a->ln, dproj, s->atty));
    LS_TRY(model_attention_bwd(&p, dqkv, a->ln));
    LS_TRY(model_linear_column_bwd(&p, BLOCK_QKV_W, ln1, dqkv));
    return model_layernorm_bwd(&p, ln1, a->da, dln, a->db);
}

ls_status model_block_bwd_w(ls_model *m, ls_acts *a, const ls_micro *mb, int ui)
{
    const model_pass p = model_pass_of(m, a, mb, ui);
    const ls_slot *s = p.s;
    const void *ffn;
    LS_TRY(model_norm_grads_w(&p));
    LS_TRY(model_gelu_again(&p, &ffn));
    LS_TRY(model_linear_bwd_w(&p, BLOCK_OUT_W, s->dout, ffn));
    LS_TRY(model_layernorm_again(&p, second_norm(s), NULL));
    LS_TRY(model_linear_bwd_w(&p, BLOCK_FC_W, s->dfc, a->ln));
    LS_TRY(model_linear_bwd_w(&p, BLOCK_PROJ_W, s->dproj, s->atty));
    LS_TRY(model_layernorm_again(&p, first_norm(s), NULL));
    return model_linear_bwd_w(&p, BLOCK_QKV_W, s->dqkv, a->ln);
}

static model_norm final_norm(const ls_slot *s)
{
    return (model_norm){HEAD_LN_W, s->x, s->mean1, s->rstd1};
}

/* Row losses, and in training the gradients of the classifier and of its input (a->db). */
static ls_status classifier(const model_pass *p)
{
    ls_model *m = p->m;
    ls_acts *a = p->a;
    ls_classifier cl = {.row_loss = a->row_loss,
                        .x = a->ln,
                        .w = model_head_weight(m),
                        .target = p->mb->target,
                        .dloss = p->mb->dloss,
                        .at = p->mb->at,
                        .V_room = model_head_room(m),
                        .R = p->R,
                        .C = p->C,
                        .V = model_vocab(m),
                        .first = model_first_id(m),
                        .part = m->shard.rank,
                        .n_part = m->shard.size,
                        .gather = m->tp.gather,
                        .gather_ctx = m->tp.ctx};
    if (p->mb->packed) {
        cl.packed = p->mb->packed->q[p->mb->packed->n - 1];
        cl.form = p->mb->packed->form;
    }
    if (p->mb->train) {
        cl.dx = m->shard.rows ? a->tmp : a->db;
        cl.dw = m->cfg.tied ? model_tied_grad(m) : model_grad(m, p->u, HEAD_W);
        cl.acc = p->u->acc;
    }
    CTX->scratch = a->head_work;
    const ls_status st = OPS->classifier(CTX, &cl);
    CTX->scratch = a->work;
    LS_TRY(st);
    if (!p->mb->train) return LS_OK;
    LS_TRY(tp_reduce(m, cl.dx, p->R, NULL));
    return m->shard.rows ? model_copy(m, a->db, local_rows(m, a->tmp, p->R), p->S * p->C) : LS_OK;
}

ls_status model_head_fwd(ls_model *m, ls_acts *a, ls_micro *mb)
{
    const model_pass p = model_pass_of(m, a, mb, m->n_unit - 1);
    LS_TRY(model_layernorm(&p, a->ln, final_norm(p.s)));
    LS_TRY(tp_gather(m, a->ln, p.R, NULL));
    if (!mb->target) return LS_OK;
    LS_TRY(classifier(&p));
    if (!CTX->device) mb->n_counted = ls_count_targets(mb->target, p.R);
    LS_ASSERT(mb->loss || !CTX->device);
    return OPS->sum(CTX, mb->loss ? mb->loss : &mb->loss_sum, a->row_loss, p.R);
}

ls_status model_head_bwd(ls_model *m, ls_acts *a, const ls_micro *mb)
{
    const model_pass p = model_pass_of(m, a, mb, m->n_unit - 1);
    return model_layernorm_bwd(&p, final_norm(p.s), a->da, a->db, NULL);
}

/* y (R,V) = x (R,C) times the classifier */
static ls_status logits(ls_model *m, const ls_micro *mb, void *y, const void *x, int64_t R)
{
    const int64_t C = m->cfg.n_embd, V = m->cfg.vocab_size;
    const ls_packed *w = mb->packed;
    if (w) return OPS->linear_packed(CTX, w->form, y, x, w->q[w->n - 1], NULL, R, C, V);
    return OPS->logits(CTX, y, x, model_head_weight(m), R, C, V);
}

ls_status ls_model_logits(ls_model *m, ls_acts *a, const ls_micro *mb, bool last_only, void *out)
{
    const int64_t C = m->cfg.n_embd, V = m->cfg.vocab_size, B = mb->B, T = mb->T;
    LS_ASSERT(m->shard.size == 1);
    if (!last_only || T == 1) return logits(m, mb, out, a->ln, B * T);
    /* the rows side by side; on a CPU, without packed weights, so few at a time that each has the bits of a call alone */
    const int64_t most = mb->packed || CTX->device ? B : LS_FEW_ROWS;
    for (int64_t b = 0; b < B; b++)
        LS_TRY(model_copy(m, ls_at(CTX, a->tmp, b * C), ls_at(CTX, a->ln, (b * T + T - 1) * C), C));
    for (int64_t b = 0; b < B; b += most)
        LS_TRY(logits(m, mb, ls_at(CTX, out, b * V), ls_at(CTX, a->tmp, b * C), B - b < most ? B - b : most));
    return LS_OK;
}
