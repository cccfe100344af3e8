#include "parallel/pipe_exec.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/nvtx.h"
#include "core/trace.h"
#include "model/input.h"

#include <math.h>

#define MOST_AHEAD (LS_COMM_PENDING / 2) /* receives that are posted before their position in the list */

typedef struct buffer { /* memory that is received into and sent from */
    bool busy;
    ls_ticket sent; /* of the message that leaves from it */
} buffer;

typedef struct act_slot { /* one set of activations of a chunk */
    ls_acts *acts;
    ls_micro mb;
    buffer buf;
} act_slot;

typedef struct grad_slot {
    int row;
    void *d;
    buffer buf;
} grad_slot;

typedef struct chunk {
    int first, last; /* units */
    bool head;       /* the last unit of the model is in it */
    int n_act, n_grad;
    act_slot *act;
    grad_slot *grad;
    ls_input input; /* for every set of activations, where ids or targets are read */
} chunk;

struct ls_pipe {
    ls_pipe_setup o;
    const ls_rank_list *list;
    int rank, n_chunk;
    chunk *chunk;
    ls_ticket *ticket; /* by action: of a posted receive */
    bool *posted;      /* by action                      */
    ls_pipe_span *span;
    int n_span;
    ls_mark (*mark)[2];  /* on a device, around the actions of `span`          */
    ls_mark first, last; /* and around the step                                */
    double begin;        /* of the step                                        */
    ls_pipe_stats stats;
};

static bool splits(const ls_rank_list *l)
{
    for (int i = 0; i < l->n_action; i++)
        if (l->action[i].kind == LS_PIPE_BWD_W) return true;
    return false;
}

/* Its units read ids or targets. */
static bool reads(const chunk *k)
{
    return k->first == 0 || k->head;
}

static ls_status plan_chunk(ls_pipe *p, int c, const ls_acts **share, ls_plan *plan)
{
    const ls_pipe_setup *o = &p->o;
    const ls_stages *st = o->stages;
    const int part = ls_pipe_part(o->schedule, p->rank, c);
    const int64_t R = o->B * o->T, esize = (int64_t)ls_dtype_nbytes(o->model->compute->ops->dtype);
    chunk *k = &p->chunk[c];
    *k = (chunk){.first = st->first[part],
                 .last = st->first[part + 1],
                 .n_act = p->list->peak[c],
                 .n_grad = p->list->grad_peak[c]};
    k->head = k->last == o->model->n_unit;
    ls_debug("pipeline", "stage %d, part %d: units %d to %d, at most %d micro-batches in flight", p->rank, c, k->first,
             k->last - 1, k->n_act);
    k->act = ls_alloc((size_t)k->n_act * sizeof *k->act);
    k->grad = ls_alloc((size_t)k->n_grad * sizeof *k->grad);
    if (!k->act || !k->grad) return ls_nomem((size_t)k->n_act * sizeof *k->act, "a pipeline's buffers");
    for (int i = 0; i < k->n_act; i++) {
        act_slot *s = &k->act[i];
        const ls_acts_opts ao = {.B = o->B,
                                 .T = o->T,
                                 .train = true,
                                 .recompute = o->recompute,
                                 .keep_gelu = o->keep_gelu,
                                 .pipe = true,
                                 .first = k->first,
                                 .last = k->last,
                                 .split = splits(p->list),
                                 .share = *share};
        LS_TRY(ls_acts_plan(&s->acts, o->model, &ao, plan));
        if (!*share || k->head) *share = s->acts; /* the one with head has the classifier's scratch, too */
    }
    LS_TRY(ls_input_plan(&k->input, o->model->compute, reads(k) ? R : 0, k->n_act, plan));
    for (int i = 0; i < k->n_grad; i++)
        k->grad[i].row = ls_plan_add(plan, LS_PART_ACT, ls_model_stream(o->model, R) * esize, LS_PLAN_ALWAYS,
                                     "chunk %d d x %d", c, i);
    return LS_OK;
}

ls_status ls_pipe_check(const ls_schedule *s, bool recompute)
{
    for (int r = 0; r < s->n_stage && recompute; r++)
        if (splits(&s->rank[r]))
            return ls_fail(
                LS_E_CONFIG,
                "--recompute does not work with a split backward pass (--schedule %s): activations would be recomputed twice; use 1f1b or interleaved, or remove --recompute",
                s->name);
    return LS_OK;
}

ls_status ls_pipe_create(ls_pipe **out, const ls_pipe_setup *o, ls_plan *plan)
{
    const int rank = ls_comm_rank(o->acts);
    const ls_rank_list *list = &o->schedule->rank[rank];
    LS_ASSERT(ls_comm_size(o->acts) == o->schedule->n_stage && o->stages->n_stage == o->schedule->n_stage);
    LS_TRY(ls_pipe_check(o->schedule, o->recompute));
    ls_pipe *p = ls_alloc(sizeof *p);
    if (!p) return ls_nomem(sizeof *p, "a pipeline");
    *p = (ls_pipe){.o = *o, .list = list, .rank = rank, .n_chunk = o->schedule->n_chunk};
    const size_t n = (size_t)list->n_action;
    p->chunk = ls_alloc((size_t)p->n_chunk * sizeof *p->chunk);
    p->ticket = ls_alloc(n * sizeof *p->ticket);
    p->posted = ls_alloc(n * sizeof *p->posted);
    p->span = ls_alloc(n * sizeof *p->span);
    p->mark = ls_alloc(n * sizeof *p->mark);
    ls_status st = p->chunk && p->ticket && p->posted && p->span && p->mark ? LS_OK : ls_nomem(n * 64, "a pipeline");
    const ls_acts *share = NULL;
    /* the chunk with head last in the list of parts is planned first, so that the others can share its scratch */
    for (int c = p->n_chunk - 1; c >= 0 && st == LS_OK; c--) st = plan_chunk(p, c, &share, plan);
    if (st != LS_OK) {
        ls_pipe_destroy(&p);
        return st;
    }
    ls_debug("pipeline", "stage %d runs %d actions per step", rank, list->n_action);
    *out = p;
    return LS_OK;
}

void ls_pipe_bind(ls_pipe *p, const ls_plan *plan)
{
    for (int c = 0; c < p->n_chunk; c++) {
        chunk *k = &p->chunk[c];
        for (int i = 0; i < k->n_act; i++) ls_acts_bind(k->act[i].acts, p->o.model, plan);
        ls_input_bind(&k->input, plan);
        for (int i = 0; i < k->n_grad; i++) k->grad[i].d = ls_plan_at(plan, k->grad[i].row);
    }
}

void ls_pipe_destroy(ls_pipe **pp)
{
    ls_pipe *p = *pp;
    if (!p) return;
    for (int c = 0; p->chunk && c < p->n_chunk; c++) {
        for (int i = 0; p->chunk[c].act && i < p->chunk[c].n_act; i++) ls_acts_destroy(&p->chunk[c].act[i].acts);
        ls_input_fini(&p->chunk[c].input);
        ls_free(p->chunk[c].act);
        ls_free(p->chunk[c].grad);
    }
    ls_free(p->chunk);
    ls_free(p->ticket);
    ls_free(p->posted);
    ls_free(p->span);
    ls_free(p->mark);
    ls_free(p);
    *pp = NULL;
}

void ls_pipe_roles(const ls_stages *stages, bool tied, int stage, unsigned char *role)
{
    const int n_part = stages->n_stage * stages->n_chunk;
    for (int g = 0; g < n_part; g++)
        for (int u = stages->first[g]; u < stages->first[g + 1]; u++)
            role[u] = g % stages->n_stage == stage ? LS_ROLE_HERE : LS_ROLE_AWAY;
    if (tied && role[stages->n_unit - 1] == LS_ROLE_HERE && role[0] == LS_ROLE_AWAY) role[0] = LS_ROLE_COPY;
}

const ls_pipe_stats *ls_pipe_measured(const ls_pipe *p)
{
    return &p->stats;
}

const ls_pipe_span *ls_pipe_spans(const ls_pipe *p, int *n)
{
    *n = p->n_span;
    return p->span;
}

/* ---- messages ---- */

static ls_view view_of(const ls_pipe *p, void *x)
{
    const ls_model *m = p->o.model;
    return (ls_view){x, ls_model_stream(m, p->o.B * p->o.T), m->compute->ops->dtype};
}

/* Takes a buffer after what was sent from it has left. */
static ls_status take(ls_comm *c, buffer *b)
{
    LS_ASSERT(!b->busy);
    LS_TRY(ls_wait(c, b->sent));
    *b = (buffer){.busy = true};
    return LS_OK;
}

/* Posts the receive at place i of the list when its buffer is free; `must`: waits until it is. */
static ls_status post_receive(ls_pipe *p, int i, bool must)
{
    const ls_action *a = &p->list->action[i];
    const bool grad = a->kind == LS_PIPE_RECV_GRAD;
    ls_comm *comm = grad ? p->o.grads : p->o.acts;
    chunk *k = &p->chunk[a->chunk];
    buffer *b = grad ? &k->grad[a->grad_slot].buf : &k->act[a->slot].buf;
    void *to = grad ? k->grad[a->grad_slot].d : k->act[a->slot].acts->slot[k->first].x;
    if (p->posted[i] || (!must && (b->busy || !ls_test(comm, b->sent)))) return LS_OK;
    LS_TRY(take(comm, b));
    LS_TRY(ls_recv(comm, view_of(p, to), a->peer, LS_SITE, &p->ticket[i]));
    p->posted[i] = true;
    return LS_OK;
}

/* The next receives of each direction that can be posted, in the order of the list; not so many that the post itself waits. */
static ls_status look_ahead(ls_pipe *p, int from)
{
    int left[2] = {MOST_AHEAD, MOST_AHEAD};
    for (int i = from; i < p->list->n_action && (left[0] || left[1]); i++) {
        const ls_action *a = &p->list->action[i];
        int *n = &left[a->kind == LS_PIPE_RECV_GRAD];
        if (!ls_pipe_receives(a->kind) || !*n) continue;
        LS_TRY(post_receive(p, i, false));
        *n = p->posted[i] ? *n - 1 : 0;
    }
    return LS_OK;
}

/* ---- computing ---- */

/* A chunk in the middle reads no ids, but its masks have keys. */
static ls_status load_slot(chunk *k, int i, int micro, ls_pipe_load load, void *ctx)
{
    act_slot *s = &k->act[i];
    int32_t *ids, *target;
    LS_TRY(ls_input_open(&k->input, i, &ids, &target));
    LS_TRY(load(ctx, micro, k->first == 0 ? ids : NULL, k->head ? target : NULL, &s->mb));
    LS_TRY(ls_input_send(&k->input, i, &s->mb));
    if (!k->head) s->mb.target = NULL;
    return LS_OK;
}

static ls_status take_slot(ls_pipe *p, chunk *k, const ls_action *a, ls_pipe_load load, void *ctx)
{
    act_slot *s = &k->act[a->slot];
    if (k->first == 0) LS_TRY(take(p->o.acts, &s->buf)); /* nothing was received into it */
    s->mb = (ls_micro){.B = p->o.B, .T = p->o.T, .train = true};
    return load_slot(k, a->slot, a->micro, load, ctx);
}

static ls_status received(const ls_hooks *h, int u, ls_pass pass, const ls_acts *a)
{
    return h->received ? h->received(h->ctx, u, pass, a) : LS_OK;
}

static ls_status backward(ls_pipe *p, chunk *k, const ls_action *a, const ls_hooks *h, double (*pair)[2])
{
    ls_model *m = p->o.model;
    act_slot *s = &k->act[a->slot];
    grad_slot *g = &k->grad[a->grad_slot];
    s->acts->da = g->d;
    if (a->kind == LS_PIPE_BWD_W) return ls_walk(m, s->acts, &s->mb, h, LS_BWD_W, k->first, k->last);
    if (k->head) {
        LS_TRY(take(p->o.grads, &g->buf)); /* nothing is received into it here */
        s->mb.loss = &pair[a->micro][0];
        LS_TRY(ls_walk(m, s->acts, &s->mb, h, LS_FWD, k->last - 1, k->last));
        pair[a->micro][1] = (double)s->mb.n_counted;
    } else {
        LS_TRY(received(h, k->last - 1, LS_BWD, s->acts));
    }
    if (a->kind == LS_PIPE_BWD_IN) return ls_walk(m, s->acts, &s->mb, h, LS_BWD_IN, k->first, k->last);
    return ls_walk(m, s->acts, &s->mb, h, LS_BWD, k->first, k->last);
}

/* Buffers that action a was the last to use; what was sent from them is still waited for. */
static ls_status free_buffers(ls_pipe *p, const ls_action *a)
{
    if (a->frees & LS_FREES_GRAD) p->chunk[a->chunk].grad[a->grad_slot].buf.busy = false;
    if (!(a->frees & LS_FREES_SLOT)) return LS_OK;
    p->chunk[a->chunk].act[a->slot].buf.busy = false;
    return ls_input_used(&p->chunk[a->chunk].input, a->slot);
}

/* Counts a step whose times are known. */
static void book_step(ls_pipe *p, double seconds)
{
    for (const ls_pipe_span *s = p->span; s < p->span + p->n_span; s++) {
        const int column = (int)s->kind - (int)LS_PIPE_FWD;
        p->stats.busy += s->end - s->begin;
        p->stats.time[s->chunk][column] += s->end - s->begin;
        p->stats.calls[s->chunk][column]++;
    }
    p->stats.steps++;
    p->stats.span += seconds;
}

/* A device works later than the calls are made: there, an action is between two marks, which ls_pipe_settle reads. */
static ls_status put_mark(ls_pipe *p, ls_mark *m)
{
    const ls_device *d = p->o.model->compute->device;
    return d ? d->mark(d->ctx, m) : LS_OK;
}

/* What hooks waited inside the actions: for replicas, and for the other shards of a layer. */
static double waited_on_host(const ls_strategy *s)
{
    return ls_comm_exposed(s->comm) + (s->opts.tensor ? ls_comm_exposed(s->opts.tensor) : 0);
}

static double waited_between(const ls_strategy *s, double from, double to)
{
    return ls_comm_exposed_between(s->comm, from, to) +
           (s->opts.tensor ? ls_comm_exposed_between(s->opts.tensor, from, to) : 0);
}

ls_status ls_pipe_settle(ls_pipe *p, const ls_strategy *strategy)
{
    const ls_device *d = p->o.model->compute->device;
    double first = 0, last = 0;
    if (!d) return LS_OK;
    LS_TRY(d->seconds(d->ctx, p->first, &first));
    LS_TRY(d->seconds(d->ctx, p->last, &last));
    bool known = !isnan(last - first);
    for (int i = 0; i < p->n_span; i++) {
        ls_pipe_span *s = &p->span[i];
        LS_TRY(d->seconds(d->ctx, p->mark[i][0], &s->begin));
        LS_TRY(d->seconds(d->ctx, p->mark[i][1], &s->end));
        s->end -= waited_between(strategy, s->begin, s->end) + first;
        s->begin -= first;
        known = known && !isnan(s->end - s->begin);
    }
    if (!known) { /* all of a step or nothing: its parts are compared with each other */
        p->n_span = 0;
        p->stats.untimed++;
        return LS_OK;
    }
    book_step(p, last - first);
    return LS_OK;
}

static ls_status act(ls_pipe *p, int i, ls_strategy *strategy, const ls_hooks *h, ls_pipe_load load, void *ctx,
                     double (*pair)[2])
{
    const ls_action *a = &p->list->action[i];
    if (a->kind == LS_PIPE_REDUCE || a->kind == LS_PIPE_STEP) return LS_OK; /* gradients left as they were ready */
    chunk *k = &p->chunk[a->chunk];
    switch (a->kind) {
    case LS_PIPE_RECV_ACT:
    case LS_PIPE_RECV_GRAD:
        LS_TRY(post_receive(p, i, true));
        return ls_wait(a->kind == LS_PIPE_RECV_ACT ? p->o.acts : p->o.grads, p->ticket[i]);
    case LS_PIPE_SEND_ACT: {
        act_slot *s = &k->act[a->slot];
        return ls_send(p->o.acts, view_of(p, s->acts->slot[k->last].x), a->peer, LS_SITE, &s->buf.sent);
    }
    case LS_PIPE_SEND_GRAD: {
        grad_slot *g = &k->grad[a->grad_slot];
        return ls_send(p->o.grads, view_of(p, g->d), a->peer, LS_SITE, &g->buf.sent);
    }
    default: break;
    }
    if (a->kind == LS_PIPE_FWD) LS_TRY(take_slot(p, k, a, load, ctx));
    static const char *const word[] = {"F", "B", "I", "W"};
    ls_nvtx_push(a->kind == LS_PIPE_FWD ? "train/forward" : "train/backward");
    const int64_t traced = ls_span_begin();
    const double begin = ls_now(), waited = waited_on_host(strategy);
    ls_pipe_span *span = &p->span[p->n_span];
    LS_TRY(put_mark(p, &p->mark[p->n_span][0]));
    ls_strategy_begin(strategy, a->micro);
    if (a->kind == LS_PIPE_FWD && k->first) LS_TRY(received(h, k->first, LS_FWD, k->act[a->slot].acts));
    if (a->kind == LS_PIPE_FWD)
        LS_TRY(ls_walk(p->o.model, k->act[a->slot].acts, &k->act[a->slot].mb, h, LS_FWD, k->first, k->last - k->head));
    else LS_TRY(backward(p, k, a, h, pair));
    LS_TRY(put_mark(p, &p->mark[p->n_span++][1]));
    *span = (ls_pipe_span){a->kind, a->micro, a->chunk, begin - p->begin,
                           ls_now() - p->begin - (waited_on_host(strategy) - waited)};
    ls_nvtx_pop();
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_PIPE,
                                        .name = word[(int)a->kind - (int)LS_PIPE_FWD],
                                        .index = a->micro + 1,
                                        .micro = a->micro + 1,
                                        .label = (uint16_t)(p->n_chunk > 1 ? a->chunk + 1 : 0)});
    return LS_OK;
}

ls_status ls_pipe_step(ls_pipe *p, ls_strategy *s, const ls_hooks *hooks, ls_pipe_load load, void *ctx,
                       double (*pair)[2])
{
    const ls_rank_list *l = p->list;
    p->n_span = 0;
    p->begin = ls_now();
    LS_TRY(put_mark(p, &p->first));
    for (int i = 0; i < l->n_action; i++) p->posted[i] = false;
    for (int c = 0; c < p->n_chunk; c++) { /* a step that was given up left its buffers taken */
        for (int k = 0; k < p->chunk[c].n_act; k++) p->chunk[c].act[k].buf.busy = false;
        for (int k = 0; k < p->chunk[c].n_grad; k++) p->chunk[c].grad[k].buf.busy = false;
    }
    for (int i = 0; i < l->n_action; i++) {
        LS_TRY(look_ahead(p, i));
        LS_TRY(act(p, i, s, hooks, load, ctx, pair));
        LS_TRY(free_buffers(p, &l->action[i]));
    }
    if (p->o.model->compute->device) return put_mark(p, &p->last);
    book_step(p, ls_now() - p->begin);
    return LS_OK;
}

ls_status ls_pipe_forward(ls_pipe *p, ls_strategy *s, const ls_hooks *hooks, int n, ls_pipe_load load, void *ctx,
                          double (*pair)[2])
{
    const ls_schedule *sch = p->o.schedule;
    ls_strategy_begin(s, -1);
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < p->n_chunk; c++) {
            chunk *k = &p->chunk[c];
            act_slot *q = &k->act[0];
            LS_TRY(ls_wait(p->o.acts, q->buf.sent));
            q->buf.sent = 0;
            if (k->first)
                LS_TRY(ls_recv(p->o.acts, view_of(p, q->acts->slot[k->first].x), ls_pipe_prev(sch, p->rank, c), LS_SITE,
                               NULL));
            q->mb = (ls_micro){.B = p->o.B, .T = p->o.T, .loss = &pair[i][0]};
            LS_TRY(load_slot(k, 0, i, load, ctx));
            LS_TRY(ls_walk(p->o.model, q->acts, &q->mb, hooks, LS_FWD, k->first, k->last));
            LS_TRY(ls_input_used(&k->input, 0));
            if (k->head) pair[i][1] = (double)q->mb.n_counted;
            else
                LS_TRY(ls_send(p->o.acts, view_of(p, q->acts->slot[k->last].x), ls_pipe_next(sch, p->rank, c), LS_SITE,
                               &q->buf.sent));
        }
    }
    return LS_OK;
}

/* ---- one micro-batch alone ---- */

static ls_status replay_forward(ls_pipe *p, int c, const ls_hooks *h, int micro, ls_pipe_load load, void *ctx)
{
    chunk *k = &p->chunk[c];
    act_slot *q = &k->act[0];
    LS_TRY(ls_wait(p->o.acts, q->buf.sent));
    q->buf.sent = 0;
    if (k->first)
        LS_TRY(ls_recv(p->o.acts, view_of(p, q->acts->slot[k->first].x), ls_pipe_prev(p->o.schedule, p->rank, c),
                       LS_SITE, NULL));
    q->mb = (ls_micro){.B = p->o.B, .T = p->o.T, .train = true};
    LS_TRY(load_slot(k, 0, micro, load, ctx));
    if (k->first) LS_TRY(received(h, k->first, LS_FWD, q->acts));
    LS_TRY(ls_walk(p->o.model, q->acts, &q->mb, h, LS_FWD, k->first, k->last - k->head));
    if (k->head) return LS_OK;
    return ls_send(p->o.acts, view_of(p, q->acts->slot[k->last].x), ls_pipe_next(p->o.schedule, p->rank, c), LS_SITE,
                   &q->buf.sent);
}

static ls_status replay_backward(ls_pipe *p, int c, const ls_hooks *h, double pair[2])
{
    ls_model *m = p->o.model;
    chunk *k = &p->chunk[c];
    act_slot *q = &k->act[0];
    grad_slot *g = &k->grad[0];
    LS_TRY(ls_wait(p->o.grads, g->buf.sent));
    g->buf.sent = 0;
    q->acts->da = g->d;
    if (k->head) {
        q->mb.loss = &pair[0];
        LS_TRY(ls_walk(m, q->acts, &q->mb, h, LS_FWD, k->last - 1, k->last));
        pair[1] = (double)q->mb.n_counted;
    } else {
        LS_TRY(ls_recv(p->o.grads, view_of(p, g->d), ls_pipe_next(p->o.schedule, p->rank, c), LS_SITE, NULL));
        LS_TRY(received(h, k->last - 1, LS_BWD, q->acts));
    }
    const bool split = splits(p->list);
    LS_TRY(ls_walk(m, q->acts, &q->mb, h, split ? LS_BWD_IN : LS_BWD, k->first, k->last));
    if (split) LS_TRY(ls_walk(m, q->acts, &q->mb, h, LS_BWD_W, k->first, k->last));
    LS_TRY(ls_input_used(&k->input, 0));
    if (!k->first) return LS_OK;
    return ls_send(p->o.grads, view_of(p, g->d), ls_pipe_prev(p->o.schedule, p->rank, c), LS_SITE, &g->buf.sent);
}

ls_status ls_pipe_replay(ls_pipe *p, const ls_hooks *hooks, int micro, ls_pipe_load load, void *ctx, double pair[2])
{
    for (int c = 0; c < p->n_chunk; c++) LS_TRY(replay_forward(p, c, hooks, micro, load, ctx));
    for (int c = p->n_chunk - 1; c >= 0; c--) LS_TRY(replay_backward(p, c, hooks, pair));
    return LS_OK;
}
