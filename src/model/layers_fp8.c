#include "model/layers_fp8.h"

#define OPS p->m->compute->ops
#define CTX p->m->compute

static int number(int layer_of_model, int weight, ls_fp8_operand operand)
{
    return (layer_of_model * LS_FP8_LAYERS + model_fp8_layer(weight)) * LS_N_FP8_OPERAND + (int)operand;
}

static const ls_tensor *matrix(const model_pass *p, int weight)
{
    return &p->u->tensor[weight];
}

/* The 8-bit copies of a weight. */
typedef struct copies {
    char *w, *wt; /* (K,N), (N,K) */
} copies;

static copies copies_of(const ls_model *m, int unit, int weight)
{
    const ls_unit *u = &m->unit[unit];
    char *at = m->fp8->weights[unit];
    int64_t before = 0; /* elements of the layers before it */
    for (int k = 0; k < model_fp8_layer(weight); k++) before += u->tensor[model_fp8_weight(k)].n;
    if (ls_fp8_coded(m, unit)) return (copies){(char *)u->param + u->tensor[weight].offset, at + before};
    return (copies){at + 2 * before, at + 2 * before + u->tensor[weight].n};
}

/* The transposed input of a layer, kept for backward. */
static void *kept_input(const model_pass *p, int weight)
{
    const ls_slot *s = p->s;
    void *const kept[LS_FP8_LAYERS] = {s->ln1_t, s->atty_t, s->ln2_t, s->gelu_t};
    return kept[model_fp8_layer(weight)];
}

/* What is rounded, with its scale and the place of its magnitude; the results are filled in by the caller. */
static ls_quantize operand_of(const model_pass *p, int weight, ls_fp8_operand operand, const void *x, int64_t n)
{
    const ls_fp8_state *f = p->m->fp8;
    const int at = number(p->u->layer, weight, operand);
    ls_quantize q = {.x = x, .scale = f->scale + at, .amax = f->amax + at, .R = p->R, .N = n};
    q.form = model_fp8_form(f, operand);
    q.kind = p->m->cfg.gelu;
    return q;
}

/* What is rounded: a weight, or a range of it, whose shape the caller fills in. */
static ls_quantize weight_of(const ls_model *m, int unit, int weight, const void *x)
{
    const ls_fp8_state *f = m->fp8;
    const int at = number(m->unit[unit].layer, weight, LS_FP8_W);
    return (ls_quantize){.x = x, .scale = f->scale + at, .amax = f->amax + at, .form = model_fp8_form(f, LS_FP8_W)};
}

ls_status model_fp8_code(const ls_model *m, int unit, int weight, void *to, const void *x, int64_t n)
{
    ls_quantize q = weight_of(m, unit, weight, x);
    q.q = to;
    q.R = 1, q.N = n;
    return m->compute->ops->quantize(m->compute, &q);
}

/* W is what was gathered; only a forward pass reads W^T. */
static ls_status turn_weights(const ls_model *m, int unit)
{
    for (int k = 0; k < LS_FP8_LAYERS; k++) {
        const int weight = model_fp8_weight(k);
        const int64_t *dim = m->unit[unit].tensor[weight].dim;
        const copies of = copies_of(m, unit, weight);
        LS_TRY(m->compute->ops->turn8(m->compute, of.wt, of.w, dim[0], dim[1]));
    }
    return LS_OK;
}

ls_status model_fp8_weights(ls_model *m, int unit, bool forward)
{
    const ls_fp8_state *f = m->fp8;
    const ls_unit *u = &m->unit[unit];
    if (u->kind != LS_UNIT_BLOCK) return LS_OK;
    if (ls_fp8_coded(m, unit)) return forward ? turn_weights(m, unit) : LS_OK;
    if (!f->stale[unit]) return LS_OK;
    for (int k = 0; k < LS_FP8_LAYERS; k++) {
        const int weight = model_fp8_weight(k);
        ls_quantize q = weight_of(m, unit, weight, model_param(m, u, weight));
        q.R = u->tensor[weight].dim[0], q.N = u->tensor[weight].dim[1];
        if (f->history.used) {
            const copies to = copies_of(m, unit, weight);
            q.q = to.w, q.qt = to.wt;
        }
        LS_TRY(m->compute->ops->quantize(m->compute, &q));
    }
    f->stale[unit] = false;
    return LS_OK;
}

ls_status model_fp8_record(const model_pass *p, int weight, ls_fp8_operand operand, const void *x, int64_t n)
{
    if (!model_fp8_records(p)) return LS_OK;
    const ls_quantize q = operand_of(p, weight, operand, x, n);
    return OPS->quantize(CTX, &q);
}

ls_status model_fp8_norm(const model_pass *p, model_norm n, const void *x, ls_quantize_norm sum, void *room)
{
    const int weight = n.weight == BLOCK_LN1_W ? BLOCK_QKV_W : BLOCK_FC_W;
    ls_quantize q = operand_of(p, weight, LS_FP8_X, x, p->C);
    q.q = p->a->x8, q.qt = kept_input(p, weight);
    sum.mean = n.mean, sum.rstd = n.rstd;
    sum.w = model_param(p->m, p->u, n.weight), sum.b = model_param(p->m, p->u, n.weight + 1);
    sum.eps = p->m->cfg.ln_eps;
    sum.y = room;
    q.norm = &sum;
    return OPS->quantize(CTX, &q);
}

ls_status model_fp8_gather(const model_pass *p, int weight, void *x)
{
    ls_quantize q = operand_of(p, weight, LS_FP8_X, local_rows(p->m, x, p->R), p->C);
    const ls_view all = {p->a->x8, p->R * p->C, LS_U8};
    q.R = p->S;
    q.q = (char *)p->a->x8 + model_first_row(p->m, p->R) * p->C;
    LS_TRY(OPS->quantize(CTX, &q));
    LS_TRY(p->m->tp.all_gather(p->m->tp.ctx, all, NULL));
    return OPS->turn8(CTX, kept_input(p, weight), p->a->x8, p->R, p->C);
}

/* a (M,K) times b (N,K), operands of the layer. */
static ls_product8 product(const model_pass *p, int weight, ls_fp8_operand a, ls_fp8_operand b)
{
    const ls_fp8_state *f = p->m->fp8;
    ls_product8 r = {.a_form = model_fp8_form(f, a), .b_form = model_fp8_form(f, b)};
    r.a_factor = f->factor + LS_FP8_APART * number(p->u->layer, weight, a);
    r.b_factor = f->factor + LS_FP8_APART * number(p->u->layer, weight, b);
    return r;
}

static bool is_after_norm(int weight)
{
    return weight == BLOCK_QKV_W || weight == BLOCK_FC_W;
}

ls_status model_fp8_linear(const model_pass *p, int weight, void *y, const void *x, const void *bias, const void *res)
{
    const int64_t K = matrix(p, weight)->dim[0], N = matrix(p, weight)->dim[1];
    ls_quantize q = operand_of(p, weight, LS_FP8_X, x, K);
    if (weight == BLOCK_OUT_W) q.x = NULL, q.pre = p->s->fc;
    q.q = p->a->x8, q.qt = kept_input(p, weight);
    const bool made = is_after_norm(weight) && (model_fp8_norms(p) || model_fp8_rows(p));
    if (!made) LS_TRY(OPS->quantize(CTX, &q));
    ls_product8 r = product(p, weight, LS_FP8_X, LS_FP8_W);
    r.y = y, r.a = q.q, r.b = copies_of(p->m, p->index, weight).wt;
    r.bias = bias, r.add = res;
    r.M = p->R, r.N = N, r.K = K;
    r.fast =
        true; /* K is a few thousand at most; gradients, whose sums are long and whose terms differ in size, are exact */
    return OPS->product8(CTX, &r);
}

ls_status model_fp8_dy(const model_pass *p, int weight, const void *dy, bool for_dx, bool for_dw)
{
    ls_quantize q = operand_of(p, weight, LS_FP8_DY, dy, matrix(p, weight)->dim[1]);
    if (weight == BLOCK_FC_W) q.pre = p->s->fc;
    if (for_dx) q.q = p->a->dy8;
    if (for_dw) {
        q.qt = p->a->dy8_t;
        q.sums = model_grad(p->m, p->u, weight + 1);
        q.acc = p->u->acc;
    }
    return OPS->quantize(CTX, &q);
}

ls_status model_fp8_dx(const model_pass *p, int weight, void *dx)
{
    ls_product8 r = product(p, weight, LS_FP8_DY, LS_FP8_W);
    r.y = dx, r.a = p->a->dy8, r.b = copies_of(p->m, p->index, weight).w;
    r.M = p->R, r.N = matrix(p, weight)->dim[0], r.K = matrix(p, weight)->dim[1];
    return OPS->product8(CTX, &r);
}

ls_status model_fp8_dw(const model_pass *p, int weight)
{
    ls_product8 r = product(p, weight, LS_FP8_X, LS_FP8_DY);
    r.y = model_grad(p->m, p->u, weight), r.a = kept_input(p, weight), r.b = p->a->dy8_t;
    r.wide = true, r.acc = p->u->acc;
    r.M = matrix(p, weight)->dim[0], r.N = matrix(p, weight)->dim[1], r.K = p->R;
    return OPS->product8(CTX, &r);
}
