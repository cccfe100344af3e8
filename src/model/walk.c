/* walk.c - the loop over units, for every pass. Strategies attach hooks to it (ls_hooks). */
#include "model/layers_fp8.h"

#include "core/hash.h"
#include "core/inject.h"
#include "core/trace.h"

static ls_status hook(ls_status (*f)(void *, int, ls_pass), void *ctx, int u, ls_pass pass)
{
    return f ? f(ctx, u, pass) : LS_OK;
}

static ls_trace_span span_of(const ls_unit *u, ls_pass pass)
{
    static const ls_span_kind kind[] = {
        [LS_FWD] = LS_SPAN_FWD, [LS_BWD] = LS_SPAN_BWD, [LS_BWD_IN] = LS_SPAN_BWD_IN, [LS_BWD_W] = LS_SPAN_BWD_W};
    static const char *const word[] = {[LS_UNIT_EMBED] = "embed", [LS_UNIT_BLOCK] = "h", [LS_UNIT_HEAD] = "head"};
    return (ls_trace_span){
        .kind = (uint8_t)kind[pass], .name = word[u->kind], .index = u->kind == LS_UNIT_BLOCK ? u->layer + 1 : 0};
}

/* Queues the operations of one unit. */
static ls_status issue(ls_model *m, ls_acts *a, ls_micro *mb, int u, ls_pass pass)
{
    const ls_unit_kind kind = m->unit[u].kind;
    if (pass == LS_FWD) {
        if (kind == LS_UNIT_EMBED) return model_embed_fwd(m, a, mb);
        return kind == LS_UNIT_HEAD ? model_head_fwd(m, a, mb) : model_block_fwd(m, a, mb, u);
    }
    if (kind == LS_UNIT_EMBED) return model_embed_bwd(m, a, mb);
    if (kind == LS_UNIT_HEAD) return model_head_bwd(m, a, mb);
    if (pass == LS_BWD_W) return model_block_bwd_w(m, a, mb, u);
    if (a->recompute && pass == LS_BWD) LS_TRY(model_block_fwd(m, a, mb, u)); /* writes the same input of u+1 again */
    return model_block_bwd(m, a, mb, u, pass == LS_BWD_IN);
}

/* Identifies a recording: everything in which two passes over a unit can differ. */
static uint64_t region_key(const ls_model *m, const ls_acts *a, const ls_micro *mb, int u, ls_pass pass)
{
    const struct {
        const void *param, *grad, *table, *acts, *d, *ids, *at, *loss;
        int64_t B, T, unit, pass, train, acc, fp8;
    } all = {m->unit[u].param,
             m->unit[u].grad,
             m->unit[0].param,
             a,
             a->da,
             mb->ids,
             mb->at,
             mb->loss,
             mb->B,
             mb->T,
             u,
             (int64_t)pass,
             mb->train,
             m->unit[u].acc,
             m->fp8 && m->fp8->history.used};
    return ls_xxh64(&all, sizeof all);
}

/* Computes one unit. The same operations come again with the next step, so a backend may record and replay them. */
static ls_status run_unit(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int u, ls_pass pass)
{
    const ls_compute_ops *ops = m->compute->ops;
    bool queued = false;
    if (h->unit) return h->unit(h->ctx, u, pass);
    if (!ops->region_begin || m->shard.size > 1 || a->cache_len) return issue(m, a, mb, u, pass);
    LS_TRY(ops->region_begin(m->compute, region_key(m, a, mb, u, pass), &queued));
    if (queued) return LS_OK;
    const ls_status st = issue(m, a, mb, u, pass), end = ops->region_end(m->compute);
    return st != LS_OK ? st : end;
}

static ls_status zero(ls_model *m, const ls_unit *u, int64_t from, int64_t to)
{
    if (from == to) return LS_OK;
    return m->compute->ops->zero(m->compute, ls_at_wide(m->compute, u->grad, from),
                                 (size_t)(to - from) * ls_dtype_nbytes(m->compute->ops->wide));
}

/* The padding after a unit's tensors is part of the flat buffer and must be 0 in every gradient. */
static ls_status zero_padding(ls_model *m, const ls_unit *u)
{
    LS_TRY(zero(m, u, u->n, u->n_pad));
    if (u->n_grad == u->n_pad) return LS_OK;
    return zero(m, u, u->n_pad + m->unit[0].tensor[EMBED_WTE].n, u->n_grad); /* the tied part is as long as embed */
}

static ls_status finish_grad(ls_model *m, const ls_hooks *h, int u)
{
    if (!h->unit) LS_TRY(zero_padding(m, &m->unit[u]));
    return h->grad_ready ? h->grad_ready(h->ctx, u) : LS_OK;
}

/* Of a split backward, embed has no dx, and head computes everything in the first half. */
static bool takes_part(ls_unit_kind kind, ls_pass pass)
{
    return !(pass == LS_BWD_IN && kind == LS_UNIT_EMBED) && !(pass == LS_BWD_W && kind == LS_UNIT_HEAD);
}

static bool completes_grad(ls_unit_kind kind, ls_pass pass)
{
    return pass == LS_BWD || pass == LS_BWD_W || (pass == LS_BWD_IN && kind == LS_UNIT_HEAD);
}

ls_status ls_walk(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, ls_pass pass, int first, int last)
{
    static const ls_hooks none;
    LS_ASSERT(mb->B * mb->T <= a->B * a->T);
    LS_ASSERT(!mb->packed || (!mb->train && m->shard.size == 1));
    if (!h) h = &none;
    for (int i = first; i < last; i++) {
        const int u = pass == LS_FWD ? i : first + last - 1 - i;
        const ls_unit_kind kind = m->unit[u].kind;
        if (!takes_part(kind, pass)) continue;
        LS_TRY(hook(h->acquire, h->ctx, u, pass));
        const ls_trace_span span = span_of(&m->unit[u], pass);
        const int64_t begin = ls_unit_begin(u, &span);
        if (ls_inject_on && pass == LS_FWD && mb->train && !h->repeats && !h->unit && !m->compute->device)
            ls_inject_flip(LS_FLIP_ACT, u, a->slot[u].x, u ? ls_model_stream(m, mb->B * mb->T) : 0,
                           ls_dtype_nbytes(m->compute->ops->dtype));
        if (m->fp8 && mb->train && pass != LS_BWD_W && !h->unit)
            LS_TRY(model_fp8_weights(m, u, pass == LS_FWD || a->recompute));
        LS_TRY(run_unit(m, a, mb, h, u, pass));
        ls_unit_end(begin, &span);
        if (h->computed) LS_TRY(h->computed(h->ctx, u, pass, a));
        if (completes_grad(kind, pass)) LS_TRY(finish_grad(m, h, u));
        LS_TRY(hook(h->release, h->ctx, u, pass));
    }
    return LS_OK;
}
