/* local.c - workers of one host over shared memory: processes that were forked from one parent, or threads of one process.
 *
 * A collective, on rank r:
 *   1. write the slot, then posted[r] = s                    3. work on the peers' buffers in place
 *   2. wait for posted[p] >= s of every p                    4. done[r] = s, wait for done[p] >= s of every p
 * all_reduce: rank r sums slice r of every buffer in the tree and writes it into every buffer. Nobody copies, each byte is read
 * once and written once for each peer, and no two ranks write the same place.
 *
 * Invariants
 *   1. slot s & 1 is written again (request s+2) only after everyone was done with s, which step 4 of s+1 shows;
 *   2. a large buffer is named by its offset in the arenas; up to LS_COMM_SMALL bytes travel inside the slot. */
#include "comm/local_impl.h"

#include "core/clock.h"

#include <stdio.h>
#include <string.h>

/* Offset of a buffer in the arenas of all (a common one is in that of another rank); -1 when it is small and is elsewhere. */
static ls_status locate(ls_comm *c, const comm_req *r, ls_view v, int64_t *at)
{
    local *l = c->impl;
    const char *base = local_arena(l->world, 0);
    const int64_t part = r->in.n < r->out.n ? r->in.n : r->out.n, off = (const char *)v.data - base;
    const int64_t extent = r->stride && part && v.n > part ? (v.n / part - 1) * r->stride + part : v.n,
                  nbytes = extent * (int64_t)ls_dtype_nbytes(v.dt);
    *at = -1;
    if (!v.data) return LS_OK;
    if (off >= 0 && off + nbytes <= (int64_t)l->world->arena_nbytes * l->world->size) {
        *at = off;
        return LS_OK;
    }
    if (nbytes <= LS_COMM_SMALL && extent == v.n) return LS_OK;
    return ls_fail(LS_E_COMM,
                   "%s at %s: a buffer of %lld bytes is not in shared memory; allocate it with ls_comm_alloc",
                   ls_coll_word(r->kind), r->site, (long long)nbytes);
}

void local_describe(const comm_req *r, local_head *out)
{
    *out = (local_head){.seq = r->seq,
                        .n_in = r->in.n,
                        .n_out = r->out.n,
                        .kind = (int32_t)r->kind,
                        .dt = (int32_t)r->in.dt,
                        .peer = r->peer,
                        .value = r->value};
    snprintf(out->site, sizeof out->site, "%s", r->site);
}

bool local_same(const local_head *a, const local_head *b)
{
    return a->seq == b->seq && a->kind == b->kind && a->n_in == b->n_in && a->n_out == b->n_out && a->dt == b->dt &&
           a->peer == b->peer;
}

ls_status local_mismatch(const local_head *mine, int rank, const local_head *theirs, int peer)
{
    return ls_fail(
        LS_E_COMM,
        "collective mismatch: rank %d calls #%llu %s of %lld elements at %.*s, rank %d calls #%llu %s of %lld elements at %.*s",
        rank, (unsigned long long)mine->seq, ls_coll_word((ls_coll)mine->kind), (long long)mine->n_in, SITE_MAX,
        mine->site, peer, (unsigned long long)theirs->seq, ls_coll_word((ls_coll)theirs->kind), (long long)theirs->n_in,
        SITE_MAX, theirs->site);
}

ls_status local_check_message(const comm_req *r, int rank, int peer, const local_head *sent)
{
    if (sent->n_in == r->out.n && sent->dt == (int32_t)r->out.dt) return LS_OK;
    return ls_fail(LS_E_COMM, "message size mismatch: rank %d expects %lld elements at %s, rank %d sent %lld at %.*s",
                   rank, (long long)r->out.n, r->site, peer, (long long)sent->n_in, SITE_MAX, sent->site);
}

void local_note(ls_comm *c, const comm_req *r, bool done)
{
    local *l = c->impl;
    place *me = &l->ctl->at[c->rank];
    if (done) {
        atomic_store(&me->done, r->seq);
        return;
    }
    local_describe(r, &me->slot[r->seq & 1].head);
    atomic_store(&me->since, ls_now());
    atomic_store(&me->posted, r->seq);
}

ls_status local_publish(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    place *me = &l->ctl->at[c->rank];
    slot *s = &me->slot[r->seq & 1];
    local_describe(r, &s->head);
    LS_TRY(locate(c, r, r->in, &s->in));
    if (r->copy) s->in = -1;
    LS_TRY(locate(c, r, r->out, &s->out));
    if (s->in < 0 && r->in.data) memcpy(s->small, r->in.data, (size_t)r->in.n * ls_dtype_nbytes(r->in.dt));
    atomic_store(&me->since, ls_now());
    atomic_store_explicit(&me->posted, r->seq, memory_order_release);
    local_wake(l->ctl);
    for (int p = 0; p < c->size; p++) {
        LS_TRY(local_wait_for(c, r, &l->ctl->at[p].posted, r->seq));
        const local_head *o = &l->ctl->at[p].slot[r->seq & 1].head;
        if (!local_same(&s->head, o)) return local_mismatch(&s->head, l->label[c->rank], o, l->label[p]);
    }
    return LS_OK;
}

ls_status local_finish(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    atomic_store_explicit(&l->ctl->at[c->rank].done, r->seq, memory_order_release);
    local_wake(l->ctl);
    for (int p = 0; p < c->size; p++) LS_TRY(local_wait_for(c, r, &l->ctl->at[p].done, r->seq));
    return LS_OK;
}

const char *local_in(ls_comm *c, const comm_req *r, int p)
{
    local *l = c->impl;
    const slot *s = &l->ctl->at[p].slot[r->seq & 1];
    return s->in < 0 ? (const char *)s->small : local_arena(l->world, 0) + s->in;
}

char *local_out(ls_comm *c, const comm_req *r, int p)
{
    local *l = c->impl;
    const slot *s = &l->ctl->at[p].slot[r->seq & 1];
    return s->out < 0 ? NULL : local_arena(l->world, 0) + s->out;
}

static void all_reduce(ls_comm *c, comm_req *r)
{
    const int64_t n = r->in.n, e = (int64_t)ls_dtype_nbytes(r->in.dt), W = c->size;
    const void *src[MAX_RANK];
    if (r->copy) { /* small, anywhere: everyone sums copies for itself */
        for (int p = 0; p < c->size; p++) src[p] = local_in(c, r, p);
        comm_tree_sum(r->out.data, r->in.dt, src, c->size, n, r->in.dt);
        r->moved = comm_formula_bytes(c, r);
        return;
    }
    const int64_t first = n * c->rank / W, len = n * (c->rank + 1) / W - first,
                  piece = 16384; /* elements, so that copies stay in cache */
    for (int64_t at = first; at < first + len; at += piece) {
        const int64_t k = first + len - at < piece ? first + len - at : piece;
        for (int p = 0; p < c->size; p++) src[p] = local_in(c, r, p) + at * e;
        char *mine = local_out(c, r, c->rank) + at * e;
        comm_tree_sum(mine, r->in.dt, src, c->size, k, r->in.dt);
        for (int p = 0; p < c->size; p++)
            if (p != c->rank) memcpy(local_out(c, r, p) + at * e, mine, (size_t)(k * e));
    }
    r->moved = 2 * (W - 1) * len * e;
}

static void reduce_scatter(ls_comm *c, comm_req *r)
{
    const int64_t n = r->out.n, e = (int64_t)ls_dtype_nbytes(r->in.dt), piece = 16384;
#pragma omp parallel for num_threads(n > 4 * piece && r->team > 1 ? r->team : 1) schedule(static)
    for (int64_t at = 0; at < n; at += piece) {
        const int64_t k = n - at < piece ? n - at : piece;
        const void *src[MAX_RANK];
        for (int p = 0; p < c->size; p++) src[p] = local_in(c, r, p) + (r->stride * c->rank + at) * e;
        comm_tree_sum((char *)r->out.data + at * e, r->in.dt, src, c->size, k, r->in.dt);
    }
    r->moved = (c->size - 1) * n * e;
}

static void all_gather(ls_comm *c, comm_req *r)
{
    const int64_t e = (int64_t)ls_dtype_nbytes(r->in.dt), nbytes = r->in.n * e;
    for (int i = 0; i < c->size; i++) { /* begin with the next rank, so that not all read the same one */
        const int p = (c->rank + i) % c->size;
        char *to = (char *)r->out.data + p * r->stride * e;
        const char *from = local_in(c, r, p);
        if (to != from) memcpy(to, from, (size_t)nbytes);
    }
    r->moved = (c->size - 1) * nbytes;
}

static void reduce(ls_comm *c, comm_req *r)
{
    const int64_t n = r->in.n, e = (int64_t)ls_dtype_nbytes(r->in.dt), W = c->size;
    const void *src[MAX_RANK];
    char *root = local_out(c, r, r->peer);
    int64_t first = 0, len = n;
    if (root) { /* every rank sums its slice into the root's buffer */
        first = n * c->rank / W;
        len = n * (c->rank + 1) / W - first;
    } else if (c->rank != r->peer) return;
    for (int p = 0; p < c->size; p++) src[p] = local_in(c, r, p) + first * e;
    comm_tree_sum(root ? root + first * e : r->out.data, r->in.dt, src, c->size, len, r->in.dt);
    r->moved = (W - 1) * len * e + (root && c->rank != r->peer ? len * e : 0);
}

static void broadcast(ls_comm *c, comm_req *r)
{
    const size_t nbytes = (size_t)r->in.n * ls_dtype_nbytes(r->in.dt);
    if (c->rank == r->peer) return;
    memcpy(r->out.data, local_in(c, r, r->peer), nbytes);
    r->moved = (int64_t)nbytes;
}

void local_agree(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    for (int p = 0; p < c->size; p++) {
        const int v = l->ctl->at[p].slot[r->seq & 1].head.value;
        if (v > r->value) r->value = v;
    }
}

static ls_status send_one(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    mailbox *m = local_mailbox(l->world, l->id, c->rank, r->peer);
    const uint64_t k = ++l->n_sent[r->peer];
    LS_TRY(locate(c, r, r->in, &m->at));
    local_describe(r, &m->head);
    if (m->at < 0) memcpy(m->small, r->in.data, (size_t)r->in.n * ls_dtype_nbytes(r->in.dt));
    atomic_store_explicit(&m->sent, k, memory_order_release);
    local_wake(l->ctl);
    r->moved = r->in.n * (int64_t)ls_dtype_nbytes(r->in.dt);
    return local_wait_for(c, r, &m->taken, k);
}

static ls_status recv_one(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    mailbox *m = local_mailbox(l->world, l->id, r->peer, c->rank);
    const uint64_t k = ++l->n_taken[r->peer];
    const size_t nbytes = (size_t)r->out.n * ls_dtype_nbytes(r->out.dt);
    LS_TRY(local_wait_for(c, r, &m->sent, k));
    LS_TRY(local_check_message(r, l->label[c->rank], l->label[r->peer], &m->head));
    memcpy(r->out.data, m->at < 0 ? (const char *)m->small : local_arena(l->world, 0) + m->at, nbytes);
    r->moved = (int64_t)nbytes;
    atomic_store_explicit(&m->taken, k, memory_order_release);
    local_wake(l->ctl);
    return LS_OK;
}

ls_status local_run(ls_comm *c, comm_req *r)
{
    if (r->kind == LS_COLL_SEND) return send_one(c, r);
    if (r->kind == LS_COLL_RECV) return recv_one(c, r);
    r->copy = r->kind == LS_COLL_ALL_REDUCE && r->in.n * (int64_t)ls_dtype_nbytes(r->in.dt) <= LS_COMM_SMALL;
    LS_TRY(local_publish(c, r));
    switch (r->kind) {
    case LS_COLL_ALL_REDUCE: all_reduce(c, r); break;
    case LS_COLL_REDUCE_SCATTER: reduce_scatter(c, r); break;
    case LS_COLL_ALL_GATHER: all_gather(c, r); break;
    case LS_COLL_REDUCE: reduce(c, r); break;
    case LS_COLL_BROADCAST: broadcast(c, r); break;
    case LS_COLL_AGREE: local_agree(c, r); break;
    default: break;
    }
    return local_finish(c, r);
}
