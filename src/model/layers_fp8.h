/* layers_fp8.h - linear layers with operands in 8 bits (fp8.h), for layers.c.
 *
 * GELU is part of the operand: the input of the last product of a block is made from GELU's argument (s->fc), and the gradient of that
 * argument from the gradient of GELU's output. So GELU's output does not exist in memory, and neither does its gradient.
 *
 * The output of a block's norm is read by one product alone. It is rounded where it is computed, so it does not exist in bf16 either, unless the
 * rows of a sequence are sharded (--sequence_parallel): then each shard rounds its rows, and the shards gather codes. */
#ifndef LS_MODEL_LAYERS_FP8_H
#define LS_MODEL_LAYERS_FP8_H

#include "model/fp8.h"
#include "model/layers.h"

/* The weight of a block's linear layer, and the layer of a weight. */
static inline int model_fp8_weight(int layer)
{
    static const int weight[LS_FP8_LAYERS] = {BLOCK_QKV_W, BLOCK_PROJ_W, BLOCK_FC_W, BLOCK_OUT_W};
    return weight[layer];
}
static inline int model_fp8_layer(int weight)
{
    return weight == BLOCK_QKV_W ? 0 : weight == BLOCK_PROJ_W ? 1 : weight == BLOCK_FC_W ? 2 : 3;
}

static inline ls_fp8 model_fp8_form(const ls_fp8_state *f, ls_fp8_operand operand)
{
    return operand == LS_FP8_DY && !f->opts.e4m3 ? LS_E5M2 : LS_E4M3;
}

/* Whether this pass computes in fp8; whether it computes in bf16 and records the magnitudes. */
static inline bool model_fp8(const model_pass *p)
{
    return p->m->fp8 && p->mb->train && p->m->fp8->history.used;
}
static inline bool model_fp8_records(const model_pass *p)
{
    return p->m->fp8 && p->mb->train && !p->m->fp8->history.used;
}

/* Makes the copies of a block's weights that a pass needs, if they are stale. forward: the pass computes the block's output. */
ls_status model_fp8_weights(ls_model *m, int unit, bool forward);
/* The codes of n elements of a block's weight. */
ls_status model_fp8_code(const ls_model *m, int unit, int weight, void *to, const void *x, int64_t n);

/* Records the magnitudes of an operand with n columns, if model_fp8_records. */
ls_status model_fp8_record(const model_pass *p, int weight, ls_fp8_operand operand, const void *x, int64_t n);

/* Whether a block's norms write the operands of the next product. */
static inline bool model_fp8_norms(const model_pass *p)
{
    return model_fp8(p) && p->u->kind == LS_UNIT_BLOCK && p->S == p->R;
}
/* With model_fp8_norms: the operand of the product after norm n (its input is sum.x if there is a sum), and its statistics. sum: res and delta
 * with their dropout, of a residual sum before the norm, or zeros. room: of the norm's output in bf16. */
ls_status model_fp8_norm(const model_pass *p, model_norm n, const void *x, ls_quantize_norm sum, void *room);

/* Whether the operand of a product after a norm is gathered in 8 bits: each shard has some rows of the norm, whole tiles of 16. */
static inline bool model_fp8_rows(const model_pass *p)
{
    return model_fp8(p) && p->u->kind == LS_UNIT_BLOCK && p->m->shard.rows && p->S % 16 == 0;
}
/* With model_fp8_rows: that operand, from this shard's rows of x (R,C). */
ls_status model_fp8_gather(const model_pass *p, int weight, void *x);

/* y = x W + bias + res; bias and res may be NULL. x of the last layer is not read (see above), nor is that of a layer after a norm with
 * model_fp8_norms or model_fp8_rows. Keeps the transposed x in the slot. */
ls_status model_fp8_linear(const model_pass *p, int weight, void *y, const void *x, const void *bias, const void *res);
/* Rounds dy for the two functions below: plain for dx, transposed (with the gradient of the bias) for dw. */
ls_status model_fp8_dy(const model_pass *p, int weight, const void *dy, bool for_dx, bool for_dw);
/* dx = dy W^T; of the last layer: the gradient of GELU's output. */
ls_status model_fp8_dx(const model_pass *p, int weight, void *dx);
ls_status model_fp8_dw(const model_pass *p, int weight);

#endif
