/* net_talk.c - small messages of a request to all counterparts: who is there, whether everyone means the same, and payloads that fit
 * beside that. */
#include "comm/net_impl.h"

#include "core/clock.h"

#include <stdio.h>
#include <string.h>

#define SLICE 0.02 /* seconds between looks at the abort flag */

typedef struct head {
    uint64_t seq;
    int64_t n_in, n_out;
    int32_t kind, dt, peer, value;
    char site[SITE_MAX];
} head;
#define STRIDE (sizeof(head) + LS_COMM_SMALL)
_Static_assert(sizeof(head) <= 128, "net.c allots 128 bytes");

void net_post(net_comm *m, ls_net_op *op, bool send, void *buf, int64_t nbytes, int rank, int tag)
{
    LS_ASSERT(nbytes <= INT32_MAX);
    *op = (ls_net_op){.buf = buf, .nbytes = (int)nbytes, .peer = m->member[rank], .tag = m->tag + tag, .send = send};
    m->w->t->post(m->w->net, op);
}

ls_status net_wait(ls_comm *c, const comm_req *r, ls_net_op *const *op, int n)
{
    net_comm *m = c->impl;
    const double begin = ls_now();
    while (!m->w->t->wait(m->w->net, op, n, SLICE)) LS_TRY(local_trouble(m->host, r, ls_now() - begin));
    for (int i = 0; i < n; i++) {
        char words[400];
        if (op[i]->failed) {
            m->w->t->trouble(m->w->net, words, sizeof words);
            return ls_fail(LS_E_COMM, "%s #%llu at %s: %s", ls_coll_word(r->kind), (unsigned long long)r->seq, r->site,
                           words);
        }
        if (!op[i]->send && op[i]->got != op[i]->nbytes && op[i]->tag != m->tag + TAG_TALK)
            return ls_fail(LS_E_COMM, "%s #%llu at %s: received %d bytes, expected %d", ls_coll_word(r->kind),
                           (unsigned long long)r->seq, r->site, op[i]->got, op[i]->nbytes);
    }
    return LS_OK;
}

const char *net_heard(const net_comm *m, int team, int *value)
{
    const char *p = m->talk_in + (size_t)team * STRIDE;
    if (value) {
        head h;
        memcpy(&h, p, sizeof h);
        *value = h.value;
    }
    return p + sizeof(head);
}

static ls_status check(ls_comm *c, const comm_req *r, int team, const head *mine, int got, size_t nbytes)
{
    net_comm *m = c->impl;
    head h;
    memcpy(&h, m->talk_in + (size_t)team * STRIDE, sizeof h);
    if (h.seq == mine->seq && h.kind == mine->kind && h.n_in == mine->n_in && h.n_out == mine->n_out &&
        h.dt == mine->dt && h.peer == mine->peer && (r->kind == LS_COLL_BROADCAST || got == (int)(sizeof h + nbytes)))
        return LS_OK;
    return ls_fail(LS_E_COMM,
                   "collective mismatch: rank %d calls #%llu %s of %lld elements at %s, rank %d calls #%llu %s of %lld "
                   "elements at %.*s",
                   c->rank, (unsigned long long)r->seq, ls_coll_word(r->kind), (long long)r->in.n, r->site,
                   team * m->L + m->l, (unsigned long long)h.seq, ls_coll_word((ls_coll)h.kind), (long long)h.n_in,
                   SITE_MAX, h.site);
}

ls_status net_talk(ls_comm *c, comm_req *r, const void *payload, size_t nbytes, int value)
{
    net_comm *m = c->impl;
    head h = {.seq = r->seq,
              .n_in = r->in.n,
              .n_out = r->out.n,
              .kind = (int32_t)r->kind,
              .dt = (int32_t)r->in.dt,
              .peer = r->peer,
              .value = value};
    LS_ASSERT(nbytes <= LS_COMM_SMALL);
    snprintf(h.site, sizeof h.site, "%s", r->site);
    memcpy(m->talk_out, &h, sizeof h);
    if (nbytes) memcpy(m->talk_out + sizeof h, payload, nbytes);
    int n = 0;
    for (int i = 1; i < m->H; i++) {
        const int j = (m->h + i) % m->H;
        ls_net_op *in = &m->op[2 * j], *out = &m->op[2 * j + 1];
        net_post(m, in, false, m->talk_in + (size_t)j * STRIDE, (int64_t)STRIDE, j * m->L + m->l, TAG_TALK);
        net_post(m, out, true, m->talk_out, (int64_t)(sizeof h + nbytes), j * m->L + m->l, TAG_TALK);
        m->list[n++] = in;
        m->list[n++] = out;
        r->wire += (int64_t)nbytes;
    }
    LS_TRY(net_wait(c, r, m->list, n));
    for (int j = 0; j < m->H; j++)
        if (j != m->h) LS_TRY(check(c, r, j, &h, m->op[2 * j].got, nbytes));
    return LS_OK;
}
