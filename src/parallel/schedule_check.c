#include "parallel/schedule_check.h"

#include "core/mem.h"
#include "parallel/schedule_text.h"
#include "parallel/simulate.h"

#include <string.h>

typedef struct checker {
    const ls_schedule *s;
    int rank, i;           /* the action looked at                                        */
    int *done[LS_N_PIPE];  /* [n_chunk * n_micro] each: action number + 1, 0 when not yet */
    int *n_weight, *n_red; /* [n_chunk]: weight gradients and reduces so far              */
} checker;

/* "rank 2, line 14 (B3): why" */
#define wrong(c, ...) wrong_at(c, ls_asprintf(__VA_ARGS__))
static ls_status wrong_at(const checker *c, char *why)
{
    char where[LS_WHERE];
    ls_status st = ls_fail(LS_E_CONFIG, "schedule %s: %s: %s", c->s->name, ls_action_where(c->s, c->rank, c->i, where),
                           why ? why : "wrong");
    ls_free(why);
    return st;
}

static ls_status before(const checker *c, ls_pipe_kind kind, int cell)
{
    return c->done[kind][cell] ? LS_OK : wrong(c, "its %s is missing before this", ls_pipe_names[kind].words);
}

static ls_status peer_is(const checker *c, const ls_action *a, int peer)
{
    if (peer < 0) return wrong(c, "this stage has no neighbor on that side");
    return a->peer == peer ? LS_OK : wrong(c, "its peer must be rank %d", peer);
}

static ls_status weight_in_order(checker *c, const ls_action *a)
{
    const int next = c->n_weight[a->chunk]++;
    return a->micro == next
               ? LS_OK
               : wrong(c, "weight gradients are summed in micro-batch order; micro-batch %d is next", next);
}

static ls_status duplicate(const checker *c, int first)
{
    char where[LS_WHERE];
    return wrong(c, "it is a duplicate of %s", ls_action_where(c->s, c->rank, first, where));
}

/* What must have come before a computing action or a message. */
static ls_status check_cell_action(checker *c, const ls_action *a)
{
    const ls_schedule *s = c->s;
    const int cell = a->chunk * s->n_micro + a->micro;
    const int next = ls_pipe_next(s, c->rank, a->chunk), prev = ls_pipe_prev(s, c->rank, a->chunk);
    if (c->done[a->kind][cell]) return duplicate(c, c->done[a->kind][cell] - 1);
    const bool whole = c->done[LS_PIPE_BWD][cell], parts = c->done[LS_PIPE_BWD_IN][cell];
    switch (a->kind) {
    case LS_PIPE_FWD:
        if (prev >= 0) LS_TRY(before(c, LS_PIPE_RECV_ACT, cell));
        break;
    case LS_PIPE_BWD:
    case LS_PIPE_BWD_IN:
        if (whole || parts) return wrong(c, "its backward pass was done before");
        LS_TRY(before(c, LS_PIPE_FWD, cell));
        if (next >= 0) LS_TRY(before(c, LS_PIPE_RECV_GRAD, cell));
        if (a->kind == LS_PIPE_BWD) LS_TRY(weight_in_order(c, a));
        break;
    case LS_PIPE_BWD_W:
        LS_TRY(before(c, LS_PIPE_BWD_IN, cell));
        LS_TRY(weight_in_order(c, a));
        break;
    case LS_PIPE_RECV_ACT: LS_TRY(peer_is(c, a, prev)); break;
    case LS_PIPE_RECV_GRAD: LS_TRY(peer_is(c, a, next)); break;
    case LS_PIPE_SEND_ACT:
        LS_TRY(peer_is(c, a, next));
        LS_TRY(before(c, LS_PIPE_FWD, cell));
        break;
    case LS_PIPE_SEND_GRAD:
        LS_TRY(peer_is(c, a, prev));
        if (!parts) LS_TRY(before(c, LS_PIPE_BWD, cell));
        break;
    default: break;
    }
    c->done[a->kind][cell] = c->i + 1;
    return LS_OK;
}

static ls_status check_action(checker *c, const ls_action *a)
{
    const ls_schedule *s = c->s;
    if ((int)a->kind < 0 || a->kind >= LS_N_PIPE) return wrong(c, "unknown action");
    if (a->kind == LS_PIPE_STEP)
        return c->i == s->rank[c->rank].n_action - 1 ? LS_OK
                                                     : wrong(c, "the step must be the last action, and appear once");
    if (a->chunk < 0 || a->chunk >= s->n_chunk) return wrong(c, "chunks are 0 to %d", s->n_chunk - 1);
    if (a->kind == LS_PIPE_REDUCE) {
        if (c->n_red[a->chunk]++) return wrong(c, "it is a duplicate");
        return c->n_weight[a->chunk] == s->n_micro ? LS_OK
                                                   : wrong(c, "only %d of %d weight gradients are computed before it",
                                                           c->n_weight[a->chunk], s->n_micro);
    }
    if (a->micro < 0 || a->micro >= s->n_micro) return wrong(c, "micro-batches are 0 to %d", s->n_micro - 1);
    return check_cell_action(c, a);
}

/* "rank 2: what" */
#define lacks(c, format, ...) \
    ls_fail(LS_E_CONFIG, "schedule %s: rank %d: " format, (c)->s->name, (c)->rank, __VA_ARGS__)

/* After the last action. */
static ls_status check_complete(const checker *c)
{
    const ls_schedule *s = c->s;
    for (int ch = 0; ch < s->n_chunk; ch++) {
        const bool next = ls_pipe_next(s, c->rank, ch) >= 0, prev = ls_pipe_prev(s, c->rank, ch) >= 0;
        for (int m = 0; m < s->n_micro; m++) {
            const int cell = ch * s->n_micro + m;
            const ls_pipe_kind needed[] = {LS_PIPE_FWD, next ? LS_PIPE_SEND_ACT : LS_PIPE_FWD,
                                           c->done[LS_PIPE_BWD_IN][cell] ? LS_PIPE_BWD_W : LS_PIPE_BWD,
                                           prev ? LS_PIPE_SEND_GRAD : LS_PIPE_FWD};
            for (int k = 0; k < 4; k++)
                if (!c->done[needed[k]][cell])
                    return lacks(c, "the %s of micro-batch %d, chunk %d is missing", ls_pipe_names[needed[k]].words, m,
                                 ch);
        }
        if (!c->n_red[ch]) return lacks(c, "chunk %d is never reduced", ch);
    }
    if (!c->i || s->rank[c->rank].action[c->i - 1].kind != LS_PIPE_STEP)
        return lacks(c, "the %s is missing", ls_pipe_names[LS_PIPE_STEP].words);
    return LS_OK;
}

static ls_status check_rank(checker *c)
{
    const ls_schedule *s = c->s;
    const size_t n = (size_t)s->n_chunk * (size_t)s->n_micro;
    memset(c->done[0], 0, n * LS_N_PIPE * sizeof(int));
    memset(c->n_weight, 0, (size_t)s->n_chunk * sizeof(int));
    memset(c->n_red, 0, (size_t)s->n_chunk * sizeof(int));
    for (c->i = 0; c->i < s->rank[c->rank].n_action; c->i++) LS_TRY(check_action(c, &s->rank[c->rank].action[c->i]));
    return check_complete(c);
}

/* The next action of this kind at or after i, or n_action. */
static int find_kind(const ls_rank_list *l, ls_pipe_kind kind, int i)
{
    while (i < l->n_action && l->action[i].kind != kind) i++;
    return i;
}

/* Rank r's sends and their receives, one by one. Both lists are complete, so they have as many. */
static ls_status check_order(checker *c, int r, bool grads)
{
    const ls_schedule *s = c->s;
    const int p = s->n_stage, to = grads ? (r + p - 1) % p : (r + 1) % p;
    const ls_rank_list *src = &s->rank[r], *dst = &s->rank[to];
    const ls_pipe_kind send = grads ? LS_PIPE_SEND_GRAD : LS_PIPE_SEND_ACT;
    const ls_pipe_kind recv = grads ? LS_PIPE_RECV_GRAD : LS_PIPE_RECV_ACT;
    for (int i = find_kind(src, send, 0), j = find_kind(dst, recv, 0); i < src->n_action;
         i = find_kind(src, send, i + 1), j = find_kind(dst, recv, j + 1)) {
        const ls_action *a = &src->action[i], *b = &dst->action[j];
        LS_ASSERT(j < dst->n_action);
        const int part = ls_pipe_part(s, r, a->chunk) + (grads ? -1 : 1);
        if (a->micro == b->micro && ls_pipe_part(s, to, b->chunk) == part) continue;
        char where[LS_WHERE];
        c->rank = to;
        c->i = j;
        return wrong(c, "messages arrive in the order in which they are sent, and the next one is that of %s",
                     ls_action_where(s, r, i, where));
    }
    return LS_OK;
}

ls_status ls_schedule_check(const ls_schedule *s)
{
    checker c = {.s = s};
    const size_t n = (size_t)s->n_chunk * (size_t)s->n_micro, n_int = n * LS_N_PIPE + 2 * (size_t)s->n_chunk;
    int *table = ls_alloc(n_int * sizeof *table);
    if (!table) return ls_nomem(n_int * sizeof *table, "the check of a schedule");
    for (int k = 0; k < LS_N_PIPE; k++) c.done[k] = table + (size_t)k * n;
    c.n_weight = table + n * LS_N_PIPE;
    c.n_red = c.n_weight + s->n_chunk;
    ls_status st = LS_OK;
    for (c.rank = 0; st == LS_OK && c.rank < s->n_stage; c.rank++) st = check_rank(&c);
    for (int k = 0; st == LS_OK && k < 2 * s->n_stage; k++) st = check_order(&c, k / 2, k % 2);
    ls_free(table);
    LS_TRY(st);
    return ls_schedule_progress(s);
}

ls_status ls_schedule_mailbox(const ls_schedule *s, int *least)
{
    for (int k = 1;; k++) {
        ls_sim sim = {0};
        const ls_status st = ls_simulate(&sim, s, NULL, k);
        ls_sim_fini(&sim);
        if (st == LS_E_CONFIG && k < s->n_micro * s->n_chunk) continue;
        LS_TRY(st);
        ls_err_clear();
        *least = k;
        return LS_OK;
    }
}
