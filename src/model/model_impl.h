/* model_impl.h - shared by the files of src/model: tensors of a unit, tensor parallelism, passes of units. */
#ifndef LS_MODEL_MODEL_IMPL_H
#define LS_MODEL_MODEL_IMPL_H

#include "core/rng.h"
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

/* The dropouts of a unit. Unit and site together name a mask. */
enum { DROP_EMBED, DROP_ATTENTION, DROP_PROJ, DROP_OUT };

/* What this shard has: heads, their channels, columns of the MLP, ids of the vocabulary. */
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

/* Rows of an (R,C) array outside the products (residual stream, norms) that this shard has, and the first of them. */
static inline int64_t model_rows(const ls_model *m, int64_t R)
{
    return m->shard.rows ? R / m->shard.size : R;
}
static inline int64_t model_first_row(const ls_model *m, int64_t R)
{
    return m->shard.rows ? m->shard.rank * model_rows(m, R) : 0;
}
/* Those rows of x. */
static inline void *local_rows(const ls_model *m, void *x, int64_t R)
{
    return ls_at(m->compute, x, model_first_row(m, R) * m->cfg.n_embd);
}

/* After a row-parallel product: x (R,C) becomes the sum over the shards; where rows are split, this shard's rows of it
 * (reduce-scatter). Without tensor parallelism these functions do nothing. ticket: as in ls_tp_ops. */
static inline ls_status tp_reduce(const ls_model *m, void *x, int64_t R, uint64_t *ticket)
{
    const ls_view all = {x, R * m->cfg.n_embd, m->compute->ops->dtype};
    if (m->shard.size == 1) return LS_OK;
    return m->shard.rows ? m->tp.reduce_scatter(m->tp.ctx, all, ticket) : m->tp.all_reduce(m->tp.ctx, all, ticket);
}
/* Before a column-parallel product: where rows are split, x (R,C) gets the rows of all shards. */
static inline ls_status tp_gather(const ls_model *m, void *x, int64_t R, uint64_t *ticket)
{
    const ls_view all = {x, R * m->cfg.n_embd, m->compute->ops->dtype};
    return m->shard.rows ? m->tp.all_gather(m->tp.ctx, all, ticket) : LS_OK;
}
static inline ls_status tp_wait(const ls_model *m, uint64_t ticket)
{
    return ticket ? m->tp.wait(m->tp.ctx, ticket) : LS_OK;
}
/* The gradients of a norm (weight, then bias), each shard's computed from its own rows. */
static inline ls_status tp_reduce_norm_grads(const ls_model *m, void *dw)
{
    const ls_view both = {dw, 2 * m->cfg.n_embd, m->compute->ops->wide};
    return m->shard.rows ? m->tp.all_reduce(m->tp.ctx, both, NULL) : LS_OK;
}

/* Copies n elements of activations. */
static inline ls_status model_copy(const ls_model *m, void *to, const void *from, int64_t n)
{
    return m->compute->ops->copy(m->compute, to, from, (size_t)n * ls_dtype_nbytes(m->compute->ops->dtype));
}

/* The packed copy of the matrix at `weight` of a block. */
const void *model_packed_matrix(const ls_packed *d, int unit, int weight);

static inline void *model_param(const ls_model *m, const ls_unit *u, int tensor)
{
    int64_t at = u->tensor[tensor].offset;
    if (!u->vector) return ls_at(m->compute, u->param, at);
    LS_ASSERT(!u->tensor[tensor].matrix);
    for (int i = 0; i < tensor; i++)
        if (u->tensor[i].matrix) at -= u->tensor[i].n;
    return ls_at(m->compute, u->vector, at);
}

static inline void *model_grad(const ls_model *m, const ls_unit *u, int tensor)
{
    return ls_at_wide(m->compute, u->grad, u->tensor[tensor].offset);
}

/* Dropout of an (R,C) array, or of this shard's rows of it. */
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

/* The mask of a head depends on its number in the whole model, not on the shard. */
static inline ls_drop model_attention_drop(const ls_model *m, const ls_micro *mb, int unit)
{
    ls_drop d = model_drop(m, mb, unit, DROP_ATTENTION, m->cfg.attn_pdrop);
    d.first = 0;
    d.head = m->shard.rank * model_heads(m);
    d.n_head = m->cfg.n_head;
    return d;
}

/* Head's part of the gradient of a tied token embedding; it follows head's own tensors. */
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

/* Rows that may be read from that matrix: the positions and the padding that follow it are valid numbers, too. */
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
/* split: computes dx only, and keeps in the slot what model_block_bwd_w needs. */
ls_status model_block_bwd(ls_model *m, ls_acts *a, const ls_micro *mb, int u, bool split);
ls_status model_block_bwd_w(ls_model *m, ls_acts *a, const ls_micro *mb, int u);
ls_status model_head_fwd(ls_model *m, ls_acts *a, ls_micro *mb);
ls_status model_head_bwd(ls_model *m, ls_acts *a, const ls_micro *mb);

#endif
