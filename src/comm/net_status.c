/* net_status.c - what the transports' threads tell each other while workers compute, wait or hang: where each worker is, and that one is
 * gone.
 *
 *   worker that waits too long ── question ─► every worker on another host: its transport's thread answers, whatever the worker does
 *   worker that sees a death   ── gone ─────► every worker on another host: their waits end
 *
 * On its own host it reads and writes the shared memory. */
#include "comm/net_impl.h"

#include "core/clock.h"
#include "core/mem.h"

#include <stdio.h>
#include <time.h>

#define ANSWER_TIME 2.0  /* seconds */
#define TABLE_MAX   1500 /* bytes: an error message is cut at 2000 */

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
    else if (m->type == ANSWER && m->from >= 0 && m->from < w->size) {
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

void net_abort(net_world *w, const char *words)
{
    if (!ls_local_world_abort(w->world, w->local_rank, words)) return; /* the first one notifies the others */
    net_msg m = {.type = GONE, .from = w->rank};
    snprintf(m.words, sizeof m.words, "%s", words);
    for (int p = 0; p < w->size; p++)
        if (w->host[p] != w->host[w->rank]) tell(w, p, &m);
}

/* ---- the table ---- */

static void ask(net_comm *m)
{
    net_world *w = m->w;
    net_msg q = {.type = QUESTION, .from = w->rank, .comm = m->id, .stack = 1};
    for (int p = 0; p < m->self->size; p++) {
        if (w->host[m->member[p]] == w->host[w->rank]) continue;
        atomic_store(&w->status[m->member[p]].here, false);
        tell(w, m->member[p], &q);
    }
    for (const double end = ls_now() + ANSWER_TIME; ls_now() < end;) {
        int missing = 0;
        for (int p = 0; p < m->self->size; p++)
            missing += w->host[m->member[p]] != w->host[w->rank] && !atomic_load(&w->status[m->member[p]].here);
        if (!missing) return;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

enum { LATE, SILENT, THERE };

/* What rank p of c is doing, as a line of the table. */
static int where(const net_comm *m, int p, const comm_req *r, ls_str *out)
{
    const net_world *w = m->w;
    const local *here = m->host->impl;
    for (int q = 0; q < m->host->size; q++)
        if (here->label[q] == p) {
            const local_position at = local_position_of(&here->ctl->at[q]);
            const bool late = local_where(out, &at, p, w->hostname, r);
            const size_t before = out->len;
            local_note_stopped(out, w->world, here->member[q]);
            return late || out->len > before ? LATE : THERE;
        }
    const net_status *s = &w->status[m->member[p]];
    if (!atomic_load(&s->here)) {
        if (m->self->hosts) ls_str_addf(out, "\n  rank %d on %s does not answer", p, m->self->hosts[p].name);
        else ls_str_addf(out, "\n  rank %d on host %d does not answer", p, w->host[m->member[p]]);
        return SILENT;
    }
    if (s->msg.rank < 0) { /* it may have ended the same way, a moment ago */
        ls_str_addf(out, "\n  rank %d on %s no longer has this communicator", p, s->msg.host);
        return SILENT;
    }
    return local_where(out, &s->msg.at, p, s->msg.host, r) ? LATE : THERE;
}

ls_status net_hang(void *ctx, const comm_req *r, double waited)
{
    ls_comm *c = ctx;
    net_comm *m = c->impl;
    ls_str table = {0}, line = {0};
    int culprit = -1, n_left_out = 0;
    char who[64] = "", more[64] = "";
    ask(m);
    local_ask_stacks(m->w->world);
    for (int group = LATE; group <= THERE; group++) /* those to look at first */
        for (int p = 0; p < c->size; p++) {
            line.len = 0;
            if (where(m, p, r, &line) != group) continue;
            if (group != THERE && culprit < 0) culprit = p;
            if (table.len + line.len < TABLE_MAX) ls_str_addn(&table, line.data, line.len);
            else n_left_out++;
        }
    if (culprit >= 0) snprintf(who, sizeof who, "; look at rank %d", culprit);
    if (n_left_out) snprintf(more, sizeof more, "\n  … and %d more", n_left_out);
    const ls_status st =
        ls_fail(LS_E_COMM, "no progress for %.1f s in %s #%llu at %s%s%s%s", waited, ls_coll_word(r->kind),
                (unsigned long long)r->seq, r->site, who, table.data ? table.data : "", more);
    ls_str_fini(&table);
    ls_str_fini(&line);
    return st;
}
