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

static bool elsewhere(const net_world *w, int rank)
{
    return w->host[rank] != w->host[w->rank];
}

/* Asks every rank on another host, also those outside of the communicator: the one that is stopped may be any of them. */
static void ask(net_comm *m)
{
    net_world *w = m->w;
    net_msg q = {.type = QUESTION, .from = w->rank, .comm = m->id, .stack = 1};
    for (int p = 0; p < w->size; p++) {
        if (!elsewhere(w, p)) continue;
        atomic_store(&w->status[p].here, false);
        tell(w, p, &q);
    }
    for (const double end = ls_now() + ANSWER_TIME; ls_now() < end;) {
        int missing = 0;
        for (int p = 0; p < w->size; p++) missing += elsewhere(w, p) && !atomic_load(&w->status[p].here);
        if (!missing) return;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

enum { SILENT, LATE, OTHER };

/* What rank p of c is doing, as a line of the table. Ranks are those of the world. */
static int where(const net_comm *m, int p, const comm_req *r, ls_str *out)
{
    const net_world *w = m->w;
    const local *here = m->host->impl;
    const int rank = m->member[p];
    for (int q = 0; q < m->host->size; q++)
        if (here->label[q] == p) {
            const local_position at = local_position_of(&here->ctl->at[q]);
            const bool late = local_where(out, &at, rank, w->hostname, r);
            local_note_stopped(out, w->world, here->member[q]);
            return late ? LATE : OTHER;
        }
    const net_status *s = &w->status[rank];
    if (!atomic_load(&s->here)) {
        if (m->self->hosts) ls_str_addf(out, "\n  rank %d on %s does not answer", rank, m->self->hosts[p].name);
        else ls_str_addf(out, "\n  rank %d on host %d does not answer", rank, w->host[rank]);
        return SILENT;
    }
    if (s->msg.rank < 0) { /* it may have ended the same way, a moment ago */
        ls_str_addf(out, "\n  rank %d on %s no longer has this communicator", rank, s->msg.host);
        return OTHER;
    }
    return local_where(out, &s->msg.at, rank, s->msg.host, r) ? LATE : OTHER;
}

/* The cause of a hang: a stopped process of this host; a rank of another host whose transport does not answer, in the communicator or not; a
 * rank that is late. */
static void name_culprit(const net_world *w, int late, char *who, size_t room)
{
    if (local_name_culprit(who, room, w->world, late)) return;
    for (int p = 0; p < w->size; p++)
        if (elsewhere(w, p) && !atomic_load(&w->status[p].here)) {
            snprintf(who, room, "; rank %d does not answer: it is stopped, or its host is not reachable", p);
            return;
        }
}

ls_status net_hang(void *ctx, const comm_req *r, double waited)
{
    ls_comm *c = ctx;
    net_comm *m = c->impl;
    ls_str table = {0}, line = {0};
    int late = -1, n_left_out = 0;
    char who[128], more[64] = "";
    ask(m);
    if (comm_aborted(c, who, 1))
        return local_trouble(m->host, r, 0); /* another rank was faster, and may have ended since */
    local_ask_stacks(m->w->world);
    for (int group = SILENT; group <= OTHER; group++) /* those to look at first */
        for (int p = 0; p < c->size; p++) {
            line.len = 0;
            if (where(m, p, r, &line) != group) continue;
            if (group == LATE && late < 0) late = m->member[p];
            if (table.len + line.len < TABLE_MAX) ls_str_addn(&table, line.data, line.len);
            else n_left_out++;
        }
    name_culprit(m->w, late, who, sizeof who);
    if (n_left_out) snprintf(more, sizeof more, "\n  … and %d more", n_left_out);
    const ls_status st =
        ls_fail(LS_E_COMM, "no progress for %.1f s in %s #%llu at %s%s%s%s", waited, ls_coll_word(r->kind),
                (unsigned long long)r->seq, r->site, who, table.data ? table.data : "", more);
    ls_str_fini(&table);
    ls_str_fini(&line);
    return st;
}
