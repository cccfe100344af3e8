/* net_status.c - what the transports' threads tell each other while workers compute, wait or hang: where each worker is, and that one is
 * gone.
 *
 *   worker that waits too long ── question ─► every worker on another host: its transport's thread answers, whatever the worker does
 *   worker that sees a death   ── gone ─────► every worker on another host: their waits end
 *   worker that ends after it  ── gone ─────► the same: the message arrives before the end of its connection, which is then no cause
 *
 * On its own host it reads and writes the shared memory. */
#include "comm/net_impl.h"

#include "core/clock.h"
#include "core/mem.h"

#include <stdio.h>
#include <time.h>

#define ANSWER_TIME 2.0 /* seconds */

enum { QUESTION = 1, ANSWER, GONE };

struct net_status {
    _Atomic bool here;
    net_msg msg;
};

static void sent(ls_net_op *op)
{
    ls_free(op->buf);
    ls_free(op);
}

/* Sends and forgets. */
static void tell(net_world *w, int to, const net_msg *m)
{
    ls_net_op *op = ls_alloc(sizeof *op);
    net_msg *copy = ls_alloc(sizeof *copy);
    if (!op || !copy) {
        ls_free(op);
        ls_free(copy);
        return;
    }
    *copy = *m;
    *op =
        (ls_net_op){.buf = copy, .nbytes = sizeof *copy, .peer = to, .tag = TAG_SERVICE, .send = true, .on_done = sent};
    w->t->post(w->net, op);
}

static void answer(net_world *w, const net_msg *q)
{
    net_msg a = {.type = ANSWER, .from = w->rank, .comm = q->comm, .rank = -1};
    snprintf(a.host, sizeof a.host, "%s", w->hostname);
    pthread_mutex_lock(&w->lock);
    for (ls_comm *c = w->first; c; c = ((net_comm *)c->impl)->next) {
        const net_comm *m = c->impl;
        if (m->id != q->comm) continue;
        a.rank = c->rank;
        a.at = local_position_of(&((local *)m->host->impl)->ctl->at[m->host->rank]);
        comm_note *note = atomic_load(&c->note);
        if (note) a.device = comm_note_read(note);
    }
    pthread_mutex_unlock(&w->lock);
    tell(w, q->from, &a);
    if (q->stack) local_ask_stacks(w->world);
}

static void came(ls_net_op *op)
{
    net_world *w = op->ctx;
    const net_msg *m = w->inbox;
    if (op->failed && op->from >= 0) {
        char words[NET_MSG_WORDS];
        w->t->trouble(w->net, words, sizeof words);
        net_abort(w, words);
    } else if (op->failed || op->got != (int)sizeof *m) return; /* the transport is ending */
    else if (m->type == QUESTION) answer(w, m);
    else if (m->type == GONE) ls_local_world_abort(w->world, w->local_rank, m->words);
    else if (m->type == ANSWER && m->from >= 0 && m->from < w->size && m->comm == atomic_load(&w->asked) &&
             !atomic_load(&w->status[m->from].here)) { /* else to an earlier question */
        w->status[m->from].msg = *m;
        atomic_store(&w->status[m->from].here, true);
    }
    op->got = 0;
    op->from = -1;
    op->failed = false;
    w->t->post(w->net, op);
}

ls_status net_service_open(net_world *w)
{
    w->inbox = ls_alloc(sizeof *w->inbox);
    w->status = ls_alloc((size_t)w->size * sizeof *w->status);
    if (!w->inbox || !w->status) return ls_nomem((size_t)w->size * sizeof *w->status, "messages between hosts");
    w->service = (ls_net_op){.buf = w->inbox,
                             .nbytes = sizeof *w->inbox,
                             .peer = -1,
                             .tag = TAG_SERVICE,
                             .from = -1,
                             .on_done = came,
                             .ctx = w};
    w->t->post(w->net, &w->service);
    return LS_OK;
}

void net_tell_abort(net_world *w, const char *words)
{
    net_msg m = {.type = GONE, .from = w->rank};
    snprintf(m.words, sizeof m.words, "%s", words);
    for (int p = 0; p < w->size; p++)
        if (w->host[p] != w->host[w->rank]) tell(w, p, &m);
}

void net_abort(net_world *w, const char *words)
{
    if (ls_local_world_abort(w->world, w->local_rank, words)) net_tell_abort(w, words);
}

/* ---- questions ---- */

static bool elsewhere(const net_world *w, int rank)
{
    return w->host[rank] != w->host[w->rank];
}

/* Asks every rank on another host, also those outside of the communicator: the one that is stopped may be any of them. Returns one that
 * does not answer; -1: none. With `asking` held. */
static int ask(net_comm *m, bool stack)
{
    net_world *w = m->w;
    net_msg q = {.type = QUESTION, .from = w->rank, .comm = m->id, .stack = stack};
    int silent = -1;
    atomic_store(&w->asked, m->id);
    for (int p = 0; p < w->size; p++) {
        if (!elsewhere(w, p)) continue;
        atomic_store(&w->status[p].here, false);
        tell(w, p, &q);
    }
    for (const double end = ls_now() + ANSWER_TIME;;) {
        silent = -1;
        for (int p = w->size - 1; p >= 0; p--)
            if (elsewhere(w, p) && !atomic_load(&w->status[p].here)) silent = p;
        if (silent < 0 || ls_now() >= end) return silent;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

int net_ask(ls_comm *c, comm_answer *out)
{
    const net_comm *m = c->impl;
    net_world *w = m->w;
    pthread_mutex_lock(&w->asking);
    const int silent = ask(c->impl, false);
    for (int p = 0; p < c->size; p++) {
        const net_status *s = &w->status[m->member[p]];
        out[p] = (comm_answer){.how = COMM_NOT_ASKED};
        if (!elsewhere(w, m->member[p])) continue;
        if (!atomic_load(&s->here)) out[p].how = COMM_SILENT;
        else if (s->msg.rank < 0) out[p].how = COMM_LEFT;
        else out[p] = (comm_answer){COMM_ANSWERED, s->msg.device};
    }
    pthread_mutex_unlock(&w->asking);
    return silent;
}

/* ---- the table ---- */

typedef struct scene {
    const net_comm *m;
    const comm_req *r;
    bool message; /* numbers of collectives tell nothing about it */
} scene;

/* What rank p is doing, as a line of the table. Ranks are those of the world. */
static local_state line_of(void *ctx, int p, ls_str *out)
{
    const scene *sc = ctx;
    const net_comm *m = sc->m;
    const net_world *w = m->w;
    const local *here = m->host->impl;
    const int rank = m->member[p];
    const net_status *s = &w->status[rank];
    if (elsewhere(w, rank) && !atomic_load(&s->here)) {
        if (m->self->hosts) ls_str_addf(out, "\n  rank %d on %s does not answer", rank, m->self->hosts[p].name);
        else ls_str_addf(out, "\n  rank %d on host %d does not answer", rank, w->host[rank]);
        return LOCAL_SILENT;
    }
    if (sc->message) return LOCAL_NO_LINE;
    for (int q = 0; q < m->host->size; q++)
        if (here->label[q] == p) {
            const local_position at = local_position_of(&here->ctl->at[q]);
            const bool late = local_where(out, &at, rank, w->hostname, sc->r);
            local_note_stopped(out, w->world, here->member[q]);
            return late ? LOCAL_LATE : LOCAL_OTHER;
        }
    if (s->msg.rank < 0) { /* it may have ended the same way, a moment ago */
        ls_str_addf(out, "\n  rank %d on %s no longer has this communicator", rank, s->msg.host);
        return LOCAL_OTHER;
    }
    return local_where(out, &s->msg.at, rank, s->msg.host, sc->r) ? LOCAL_LATE : LOCAL_OTHER;
}

/* With `asking` held. */
static ls_status report(ls_comm *c, const comm_req *r, int peer, double waited)
{
    net_comm *m = c->impl;
    scene s = {m, r, peer >= 0};
    ls_str table = {0};
    char who[128];
    const int silent = ask(m, true);
    if (comm_aborted(c, who, 1))
        return local_trouble(m->host, r, 0); /* another rank was faster, and may have ended since */
    local_ask_stacks(m->w->world);
    const int late = local_table(&table, c->size, line_of, &s), suspect = peer >= 0 ? peer : late;
    local_name_culprit(who, sizeof who, m->w->world, silent, suspect < 0 ? -1 : m->member[suspect]);
    const ls_status st =
        ls_fail(LS_E_COMM, "no progress for %.1f s in %s #%llu at %s%s%s", waited, ls_coll_word(r->kind),
                (unsigned long long)r->seq, r->site, who, table.data ? table.data : "");
    ls_str_fini(&table);
    return st;
}

ls_status net_hang(void *ctx, const comm_req *r, int peer, double waited)
{
    ls_comm *c = ctx;
    net_world *w = ((net_comm *)c->impl)->w;
    pthread_mutex_lock(&w->asking);
    const ls_status st = report(c, r, peer, waited);
    pthread_mutex_unlock(&w->asking);
    return st;
}
