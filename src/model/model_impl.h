/* model_impl.h - what the files of src/model share: tensor places inside a unit, and the units' own passes. */
#ifndef LS_MODEL_MODEL_IMPL_H
#define LS_MODEL_MODEL_IMPL_H

#include "core/rng.h"
#include "model/draft.h"
#include "model/model.h"

/* Order of the tensors in each kind of unit. */
enum { EMBED_WTE, EMBED_WPE };
enum {
    BLOCK_LN1_W,
    BLOCK_LN1_B,
    BLOCK_QKV_W,
    BLOCK_QKV_B,
    BLOCK_PROJ_W,
    BLOCK_PROJ_B,
    BLOCK_LN2_W,
    BLOCK_LN2_B,
    BLOCK_FC_W,
    BLOCK_FC_B,
    BLOCK_OUT_W,
    BLOCK_OUT_B
};
enum { HEAD_LN_W, HEAD_LN_B, HEAD_W };

/* Where dropout falls inside a unit: the second half of a mask's name. */
enum { DROP_EMBED, DROP_ATTENTION, DROP_PROJ, DROP_OUT };

/* A block's matrices in ls_draft. */
enum { MODEL_DRAFT_QKV, MODEL_DRAFT_PROJ, MODEL_DRAFT_FC, MODEL_DRAFT_OUT, MODEL_DRAFT_MATRICES };

/* What is here of a shard: heads, their channels, MLP columns, ids. */
static inline int64_t model_heads(const ls_model *m)
{
    return m->cfg.n_head / m->shard.size;
}
static inline int64_t model_width(const ls_model *m)
{
    return m->cfg.n_embd / m->shard.size;
}
static inline int64_t model_ffn(const ls_model *m)
{
    return 4 * model_width(m);
}
static inline int64_t model_vocab(const ls_model *m)
{
    return m->unit[0].tensor[EMBED_WTE].dim[0];
}
static inline int64_t model_first_id(const ls_model *m)
{
    return m->unit[0].tensor[EMBED_WTE].first / m->cfg.n_embd;
}

/* Rows of what lies between the sums that are here, and the first of them. */
static inline int64_t model_rows(const ls_model *m, int64_t R)
{
    return m->shard.rows ? R / m->shard.size : R;
}
static inline int64_t model_first_row(const ls_model *m, int64_t R)
{
    return m->shard.rows ? m->shard.rank * model_rows(m, R) : 0;
}
/* Those of an (R,C) array. */
static inline void *model_mine(const ls_model *m, void *x, int64_t R)
{
    return ls_at(m->compute, x, model_first_row(m, R) * m->cfg.n_embd);
}

/* Products end: an (R,C) array becomes the sum over the shards (of its own rows alone where those are cut) … */
static inline ls_status model_meet(const ls_model *m, void *x, int64_t R, uint64_t *ticket)
{
    const ls_view all = {x, R * m->cfg.n_embd, m->compute->ops->dtype};
    if (m->shard.size == 1) return LS_OK;
    return m->shard.rows ? m->seam.sum_part(m->seam.ctx, all, ticket) : m->seam.sum(m->seam.ctx, all, ticket);
}
/* … and products begin: everyone's rows of it come together. */
static inline ls_status model_spread(const ls_model *m, void *x, int64_t R, uint64_t *ticket)
{
    const ls_view all = {x, R * m->cfg.n_embd, m->compute->ops->dtype};
    return m->shard.rows ? m->seam.share(m->seam.ctx, all, ticket) : LS_OK;
}
static inline ls_status model_wait(const ls_model *m, uint64_t ticket)
{
    return ticket ? m->seam.wait(m->seam.ctx, ticket) : LS_OK;
}

/* The gradients of a norm (weight, then bias) that saw a part of the rows. */
static inline ls_status model_norm_grads(const ls_model *m, void *dw)
{
    const ls_view both = {dw, 2 * m->cfg.n_embd, m->compute->ops->wide};
    return m->shard.rows ? m->seam.sum(m->seam.ctx, both, NULL) : LS_OK;
}

static inline void *model_param(const ls_model *m, const ls_unit *u, int tensor)
{
    return ls_at(m->compute, u->param, u->tensor[tensor].offset);
}

static inline void *model_grad(const ls_model *m, const ls_unit *u, int tensor)
{
    return ls_at_wide(m->compute, u->grad, u->tensor[tensor].offset);
}

/* Of an (R,C) array, or of the rows that are here. */
static inline ls_drop model_drop(const ls_model *m, const ls_micro *mb, int unit, int site, double p)
{
    if (!mb->train || p == 0) return (ls_drop){0};
    return (ls_drop){.p = (float)p,
                     .at = mb->at,
                     .unit = (uint32_t)unit,
                     .site = (uint32_t)site,
                     .first = model_first_row(m, mb->B * mb->T) * m->cfg.n_embd,
                     .key = ls_rng_key(mb->drop_key, LS_RNG_DROPOUT, (uint64_t)unit, (uint64_t)site)};
}

/* Attention's mask is that of the head's number in the whole model. */
static inline ls_drop model_attention_drop(const ls_model *m, const ls_micro *mb, int unit)
{
    ls_drop d = model_drop(m, mb, unit, DROP_ATTENTION, m->cfg.attn_pdrop);
    d.first = 0;
    d.head = m->shard.rank * model_heads(m);
    d.n_head = m->cfg.n_head;
    return d;
}

/* Head's part of the gradient of a tied token embedding: behind its own tensors. */
static inline void *model_tied_grad(const ls_model *m)
{
    const ls_unit *head = &m->unit[m->n_unit - 1];
    return ls_at_wide(m->compute, head->grad, head->n_pad);
}

/* The matrix of the classifier, (V,C): head's own, or the token embedding. */
static inline const void *model_head_weight(const ls_model *m)
{
    return m->cfg.tied ? model_param(m, &m->unit[0], EMBED_WTE) : model_param(m, &m->unit[m->n_unit - 1], HEAD_W);
}

/* Rows that can be read there: what lies behind the token embedding (the positions) and its padding are numbers, too. */
static inline int64_t model_head_room(const ls_model *m)
{
    const int64_t V = model_vocab(m), C = m->cfg.n_embd;
    const ls_unit *u = m->cfg.tied ? &m->unit[0] : &m->unit[m->n_unit - 1];
    const ls_tensor *t = &u->tensor[m->cfg.tied ? (int)EMBED_WTE : (int)HEAD_W];
    return V + (u->n_pad - t->offset - t->n) / C;
}

ls_status model_embed_fwd(ls_model *m, ls_acts *a, const ls_micro *mb);
ls_status model_embed_bwd(ls_model *m, ls_acts *a, const ls_micro *mb);
ls_status model_block_fwd(ls_model *m, ls_acts *a, const ls_micro *mb, int u);
/* split: d x alone, and what model_block_bwd_w needs is left in the slot. */
ls_status model_block_bwd(ls_model *m, ls_acts *a, const ls_micro *mb, int u, bool split);
ls_status model_block_bwd_w(ls_model *m, ls_acts *a, const ls_micro *mb, int u);
ls_status model_head_fwd(ls_model *m, ls_acts *a, ls_micro *mb);
ls_status model_head_bwd(ls_model *m, ls_acts *a, const ls_micro *mb);

#endif
