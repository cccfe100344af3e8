/* schedule_progress.c - whether every rank reaches the end of its list when the executor (pipe_exec.c) runs it.
 *
 * A send is posted and left, so a rank does not wait there, unless LS_COMM_PENDING sends are in flight. It waits later: the memory that a
 * gradient is sent from is used again only after the receiver has posted the receive, and the receiver posts it only when a buffer of its
 * own is free. The rules here are those of the executor in the worst case of its timing:
 *
 *   a receive is posted    when the rank reaches it; before that only into a buffer that is free and that nothing was sent from in this step
 *   a buffer is taken      by a receive or by the backward of the last part; it waits for what was sent from it
 *
 * Activations need no rule: when their buffer is free, the gradient has come back, so the next stage has received them. */
#include "parallel/schedule_check.h"

#include "comm/comm.h"
#include "core/mem.h"
#include "parallel/simulate.h"

enum { ACTS, GRADS, N_WAY };

typedef struct buffer {
    bool busy;
    int sent; /* number of the message that leaves from it, from 1; 0: none */
} buffer;

typedef struct stage {
    const ls_rank_list *list;
    int at;                                     /* the next action                                    */
    int ahead;                                  /* the first action that look_ahead has not passed    */
    int sent[N_WAY], posted[N_WAY], got[N_WAY]; /* messages sent; receives posted; messages received  */
    buffer *grad;                               /* [n_chunk * widest]                                 */
} stage;

typedef struct world {
    const ls_schedule *s;
    stage *stage;
    int *at;      /* of every stage, for the report        */
    bool *buffer; /* it waits for memory, not for a message */
    int widest;   /* gradient buffers of a chunk, at most  */
} world;

static buffer *grad_of(const world *w, stage *g, const ls_action *a)
{
    return a->grad_slot < 0 ? NULL : &g->grad[a->chunk * w->widest + a->grad_slot];
}

static stage *neighbour(const world *w, int r, int step)
{
    return &w->stage[(r + step + w->s->n_stage) % w->s->n_stage];
}

/* What was sent from the buffer has been received. */
static bool has_left(const world *w, int r, const buffer *b)
{
    return b->sent <= neighbour(w, r, -1)->posted[GRADS];
}

static void look_ahead(const world *w, stage *g)
{
    for (int i = g->ahead > g->at ? g->ahead : g->at; i < g->list->n_action; i++) {
        const ls_action *a = &g->list->action[i];
        buffer *b = a->kind == LS_PIPE_RECV_GRAD ? grad_of(w, g, a) : NULL;
        if (b && (b->busy || b->sent)) return;
        g->ahead = i + 1;
        if (!b) continue;
        b->busy = true;
        g->posted[GRADS]++;
    }
}

/* Takes the buffer of action a, or false: what was sent from it has not been received. */
static bool take(const world *w, int r, stage *g, const ls_action *a)
{
    buffer *b = grad_of(w, g, a);
    w->buffer[r] = b && !has_left(w, r, b);
    if (w->buffer[r]) return false;
    if (b) *b = (buffer){.busy = true};
    return true;
}

static bool receive(const world *w, int r, stage *g, const ls_action *a)
{
    const int way = a->kind == LS_PIPE_RECV_GRAD;
    if (g->posted[way] == g->got[way]) { /* look_ahead has not posted it */
        if (way == GRADS && !take(w, r, g, a)) return false;
        g->posted[way]++;
        g->ahead = g->at + 1;
    }
    if (g->got[way] == neighbour(w, r, way == GRADS ? 1 : -1)->sent[way]) return false;
    g->got[way]++;
    return true;
}

/* Whether the next action of rank r can be completed now. */
static bool carry_out(const world *w, int r, stage *g)
{
    const ls_action *a = &g->list->action[g->at];
    buffer *b = grad_of(w, g, a);
    w->buffer[r] = false;
    look_ahead(w, g);
    if (ls_pipe_receives(a->kind)) {
        if (!receive(w, r, g, a)) return false;
    } else if (ls_pipe_sends(a->kind)) {
        const int way = a->kind == LS_PIPE_SEND_GRAD;
        if (g->sent[way] - neighbour(w, r, way == GRADS ? -1 : 1)->posted[way] >= LS_COMM_PENDING) return false;
        g->sent[way]++;
        if (b) b->sent = g->sent[way];
    } else if (a->kind == LS_PIPE_BWD || a->kind == LS_PIPE_BWD_IN) {
        if (ls_pipe_next(w->s, r, a->chunk) < 0 && !take(w, r, g, a)) return false; /* nothing is received into it */
    }
    if (b && a->frees & LS_FREES_GRAD) b->busy = false;
    return true;
}

static ls_status walk(const world *w)
{
    bool moved = true, complete = false;
    while (moved && !complete) {
        moved = false;
        complete = true;
        for (int r = 0; r < w->s->n_stage; r++) {
            stage *g = &w->stage[r];
            for (; g->at < g->list->n_action && carry_out(w, r, g); g->at++) moved = true;
            w->at[r] = g->at;
            complete = complete && g->at == g->list->n_action;
        }
    }
    return complete ? LS_OK : ls_sim_deadlock(w->s, w->at, 0, w->buffer);
}

ls_status ls_schedule_progress(const ls_schedule *s)
{
    const size_t p = (size_t)s->n_stage;
    world w = {.s = s};
    for (int r = 0; r < s->n_stage; r++)
        for (int c = 0; c < s->n_chunk; c++)
            w.widest = s->rank[r].grad_peak[c] > w.widest ? s->rank[r].grad_peak[c] : w.widest;
    const size_t n_buffer = (size_t)s->n_chunk * (size_t)w.widest;
    buffer *buffers = ls_alloc(p * n_buffer * sizeof *buffers);
    w.stage = ls_alloc(p * sizeof *w.stage);
    w.at = ls_alloc(p * sizeof *w.at);
    w.buffer = ls_alloc(p * sizeof *w.buffer);
    ls_status st = LS_OK;
    if (!buffers || !w.stage || !w.at || !w.buffer) {
        st = ls_nomem(p * n_buffer * sizeof *buffers, "the check of a schedule");
        goto done;
    }
    for (size_t r = 0; r < p; r++) w.stage[r] = (stage){.list = &s->rank[r], .grad = buffers + r * n_buffer};
    st = walk(&w);
done:
    ls_free(buffers);
    ls_free(w.stage);
    ls_free(w.at);
    ls_free(w.buffer);
    return st;
}
