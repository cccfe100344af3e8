/* walk.c - the only loop over units. A strategy's hooks stand around each step of it. */
#include "model/model_impl.h"

#include "core/hash.h"
#include "core/trace.h"

static ls_status hook(ls_status (*f)(void *, int, ls_pass), void *ctx, int u, ls_pass pass)
{
    return f ? f(ctx, u, pass) : LS_OK;
}

static ls_trace_span span_of(const ls_unit *u, ls_span_kind kind)
{
    static const char *const word[] = {[LS_UNIT_EMBED] = "embed", [LS_UNIT_BLOCK] = "h", [LS_UNIT_HEAD] = "head"};
    return (ls_trace_span){
        .kind = (uint8_t)kind, .name = word[u->kind], .index = u->kind == LS_UNIT_BLOCK ? u->layer + 1 : 0};
}

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
    if (a->recompute && pass == LS_BWD)
        LS_TRY(model_block_fwd(m, a, mb, u)); /* its output lands on the input of u+1, unchanged */
    return model_block_bwd(m, a, mb, u, pass == LS_BWD_IN);
}

/* Everything that two passes over a unit may differ in. */
static uint64_t name_of(const ls_model *m, const ls_acts *a, const ls_micro *mb, int u, ls_pass pass)
{
    const struct {
        const void *param, *grad, *table, *acts, *d, *ids, *at, *loss;
        int64_t B, T, unit, pass, train, acc;
    } all = {m->unit[u].param, m->unit[u].grad, m->unit[0].param, a, a->da, mb->ids, mb->at, mb->loss, mb->B, mb->T, u,
             (int64_t)pass,    mb->train,       m->unit[u].acc};
    return ls_xxh64(&all, sizeof all);
}

/* A unit's part of a pass comes again with the next step: a backend may record it. */
static ls_status run(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int u, ls_pass pass)
{
    const ls_compute_ops *ops = m->compute->ops;
    bool queued = false;
    if (h && h->unit) return h->unit(h->ctx, u, pass);
    if (!ops->region_begin || m->shard.size > 1 || a->cache_len) return issue(m, a, mb, u, pass);
    LS_TRY(ops->region_begin(m->compute, name_of(m, a, mb, u, pass), &queued));
    if (queued) return LS_OK;
    const ls_status st = issue(m, a, mb, u, pass), end = ops->region_end(m->compute);
    return st != LS_OK ? st : end;
}

ls_status ls_walk_fwd(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int first, int last)
{
    LS_ASSERT(mb->B * mb->T <= a->B * a->T);
    LS_ASSERT(!mb->draft || (mb->B * mb->T == 1 && a->cache_len));
    for (int u = first; u < last; u++) {
        if (h) LS_TRY(hook(h->acquire, h->ctx, u, LS_FWD));
        const ls_trace_span span = span_of(&m->unit[u], LS_SPAN_FWD);
        const int64_t begin = ls_unit_begin(u, &span);
        LS_TRY(run(m, a, mb, h, u, LS_FWD));
        ls_unit_end(begin, &span);
        if (h) LS_TRY(hook(h->release, h->ctx, u, LS_FWD));
    }
    return LS_OK;
}

static ls_status zero(ls_model *m, const ls_unit *u, int64_t from, int64_t to)
{
    if (from == to) return LS_OK;
    return m->compute->ops->zero(m->compute, ls_at_wide(m->compute, u->grad, from),
                                 (size_t)(to - from) * ls_dtype_nbytes(m->compute->ops->wide));
}

/* The padding behind a unit's tensors belongs to the flat buffer: it must be 0 in every gradient. */
static ls_status zero_padding(ls_model *m, const ls_unit *u)
{
    LS_TRY(zero(m, u, u->n, u->n_pad));
    if (u->n_grad == u->n_pad) return LS_OK;
    return zero(m, u, u->n_pad + m->unit[0].tensor[EMBED_WTE].n, u->n_grad); /* the tied part is as long as embed */
}

static ls_status written(ls_model *m, const ls_hooks *h, int u)
{
    if (!h || !h->unit) LS_TRY(zero_padding(m, &m->unit[u]));
    return h && h->grad_ready ? h->grad_ready(h->ctx, u) : LS_OK;
}

ls_status ls_walk_bwd(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int first, int last)
{
    for (int u = last - 1; u >= first; u--) {
        if (h) LS_TRY(hook(h->acquire, h->ctx, u, LS_BWD));
        const ls_trace_span span = span_of(&m->unit[u], LS_SPAN_BWD);
        const int64_t begin = ls_unit_begin(u, &span);
        LS_TRY(run(m, a, mb, h, u, LS_BWD));
        ls_unit_end(begin, &span);
        LS_TRY(written(m, h, u));
        if (h) LS_TRY(hook(h->release, h->ctx, u, LS_BWD));
    }
    return LS_OK;
}

ls_status ls_walk_bwd_in(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int first, int last)
{
    for (int u = last - 1; u >= first; u--) {
        const bool head = m->unit[u].kind == LS_UNIT_HEAD;
        if (m->unit[u].kind == LS_UNIT_EMBED) break; /* it has no d x */
        if (h) LS_TRY(hook(h->acquire, h->ctx, u, LS_BWD_IN));
        const ls_trace_span span = span_of(&m->unit[u], LS_SPAN_BWD_IN);
        const int64_t begin = ls_unit_begin(u, &span);
        LS_TRY(run(m, a, mb, h, u, LS_BWD_IN));
        ls_unit_end(begin, &span);
        if (head) LS_TRY(written(m, h, u));
        if (h) LS_TRY(hook(h->release, h->ctx, u, LS_BWD_IN));
    }
    return LS_OK;
}

ls_status ls_walk_bwd_w(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int first, int last)
{
    for (int u = last - 1; u >= first; u--) {
        if (m->unit[u].kind == LS_UNIT_HEAD) continue;
        if (h) LS_TRY(hook(h->acquire, h->ctx, u, LS_BWD_W));
        const ls_trace_span span = span_of(&m->unit[u], LS_SPAN_BWD_W);
        const int64_t begin = ls_unit_begin(u, &span);
        LS_TRY(run(m, a, mb, h, u, LS_BWD_W));
        ls_unit_end(begin, &span);
        LS_TRY(written(m, h, u));
        if (h) LS_TRY(hook(h->release, h->ctx, u, LS_BWD_W));
    }
    return LS_OK;
}
