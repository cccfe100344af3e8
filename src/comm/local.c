/* local.c - workers of one host over shared memory: processes that were forked from one parent, or threads of one process.
 *
 *   world     │ control blocks (one a communicator) │ arena of rank 0 │ arena of rank 1 │ …
 *   control   │ per rank: posted, done, two slots (request s lives in slot s & 1)       │ mailboxes │
 *
 * A collective, on rank r:
 *   1. write the slot, then posted[r] = s                    3. work on the peers' buffers in place
 *   2. wait for posted[p] >= s of every p                    4. done[r] = s, wait for done[p] >= s of every p
 * all_reduce: rank r sums slice r of every buffer in the tree and writes it into every buffer. Nobody copies, each byte is read
 * once and written once for each peer, and no two ranks write the same place.
 *
 * Invariants
 *   1. slot s & 1 is written again (request s+2) only after everyone was done with s: step 4 of s+1 says so;
 *   2. a large buffer is named by its offset in its rank's arena; up to LS_COMM_SMALL bytes travel inside the slot;
 *   3. a waiter looks at the abort flag and at its limit at least every 20 ms. */
#include "comm/comm_impl.h"

#include "core/clock.h"
#include "core/mem.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANK  64
#define N_CONTROL 64
#define SITE_MAX  56

typedef struct slot {
    int32_t kind, dt, peer, value;
    int64_t in, out; /* offsets in the arena, -1: `small` */
    int64_t n_in, n_out;
    double since;
    char site[SITE_MAX];
    _Alignas(64) unsigned char small[LS_COMM_SMALL];
} slot;

typedef struct mailbox { /* from one rank to another */
    _Alignas(64) _Atomic uint64_t sent, taken;
    int64_t at, n;
    int32_t dt;
    char site[SITE_MAX];
    _Alignas(64) unsigned char small[LS_COMM_SMALL];
} mailbox;

typedef struct place {
    _Alignas(64) _Atomic uint64_t posted, done;
    _Atomic double since; /* of the newest post */
    slot slot[2];
} place;

typedef struct control {
    _Alignas(64) _Atomic uint32_t event, waiters;
    place at[MAX_RANK];
} control;

struct ls_local_world {
    int size;
    size_t arena_nbytes, map_nbytes;
    _Atomic int next_control;
    _Atomic int aborted; /* rank + 1 */
    char abort_words[512];
    size_t control_off, mailbox_off, arena_off;
};

typedef struct local {
    ls_local_world *world;
    control *ctl;
    int member[MAX_RANK]; /* world ranks */
    size_t *used;         /* of this worker's arena, shared by its communicators */
    bool owns_used;
    uint64_t n_sent[MAX_RANK], n_taken[MAX_RANK];
    int id; /* of the control block: mailboxes are per block */
} local;

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static control *control_of(ls_local_world *w, int id)
{
    return (control *)(void *)((char *)w + w->control_off + (size_t)id * round_up(sizeof(control), 4096));
}

static mailbox *mailbox_of(ls_local_world *w, int id, int from, int to)
{
    mailbox *m = (mailbox *)(void *)((char *)w + w->mailbox_off);
    return &m[((size_t)id * (size_t)w->size + (size_t)from) * (size_t)w->size + (size_t)to];
}

static char *arena_of(ls_local_world *w, int rank)
{
    return (char *)w + w->arena_off + (size_t)rank * w->arena_nbytes;
}

ls_status ls_local_world_create(int size, size_t arena_nbytes, ls_local_world **out)
{
    if (size < 1 || size > MAX_RANK)
        return ls_fail(LS_E_CONFIG, "%d workers on one host: 1 to %d are possible", size, MAX_RANK);
    ls_local_world head = {.size = size, .arena_nbytes = round_up(arena_nbytes, (size_t)2 << 20)};
    head.control_off = round_up(sizeof head, 4096);
    head.mailbox_off = head.control_off + N_CONTROL * round_up(sizeof(control), 4096);
    head.arena_off =
        round_up(head.mailbox_off + (size_t)N_CONTROL * (size_t)(size * size) * sizeof(mailbox), (size_t)2 << 20);
    head.map_nbytes = head.arena_off + (size_t)size * head.arena_nbytes;
    void *p = mmap(NULL, head.map_nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return ls_fail(LS_E_NOMEM, "cannot reserve %zu bytes of shared memory: %s", head.map_nbytes, strerror(errno));
    ls_local_world *w = p;
    *w = head;
    atomic_store(&w->next_control, 1); /* 0 is the world's */
    *out = w;
    return LS_OK;
}

void ls_local_world_destroy(ls_local_world **w)
{
    if (!*w) return;
    munmap(*w, (*w)->map_nbytes);
    *w = NULL;
}

static void wake(control *c)
{
    atomic_fetch_add(&c->event, 1);
    if (atomic_load(&c->waiters)) syscall(SYS_futex, &c->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void ls_local_world_abort(ls_local_world *w, int rank, const char *words)
{
    int none = 0;
    snprintf(w->abort_words, sizeof w->abort_words, "%s", words);
    if (!atomic_compare_exchange_strong(&w->aborted, &none, rank + 1)) return;
    for (int i = 0; i < atomic_load(&w->next_control); i++) wake(control_of(w, i));
}

/* Who is where, in words: the ranks that have not come are the ones to look at. */
static ls_status hang(ls_comm *c, const comm_req *r, double waited)
{
    local *l = c->impl;
    const double now = ls_now();
    char table[1600];
    size_t n = 0;
    int culprit = -1;
    for (int p = 0; p < c->size && n < sizeof table - 200; p++) {
        place *at = &l->ctl->at[p];
        const uint64_t posted = atomic_load(&at->posted);
        const slot *s = &at->slot[posted & 1];
        const bool behind = posted < r->seq || atomic_load(&at->done) < r->seq - 1;
        if (behind && culprit < 0) culprit = p;
        if (!posted) n += (size_t)snprintf(table + n, sizeof table - n, "\n  rank %d has not posted anything", p);
        else
            n += (size_t)snprintf(table + n, sizeof table - n, "\n  rank %d %s #%llu %s at %s, %.1f s ago", p,
                                  behind ? "is late: its newest is" : "is in", (unsigned long long)posted,
                                  ls_coll_word((ls_coll)s->kind), s->site, now - atomic_load(&at->since));
    }
    char who[40] = "";
    if (culprit >= 0) snprintf(who, sizeof who, "; look at rank %d", culprit);
    return ls_fail(LS_E_COMM, "no progress for %.1f s in %s #%llu at %s%s%s", waited, ls_coll_word(r->kind),
                   (unsigned long long)r->seq, r->site, who, table);
}

/* Until *word >= target. */
static ls_status wait_for(ls_comm *c, const comm_req *r, _Atomic uint64_t *word, uint64_t target)
{
    local *l = c->impl;
    for (int i = 0; i < 200; i++)
        if (atomic_load_explicit(word, memory_order_acquire) >= target) return LS_OK;
    for (int i = 0; i < 20; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) >= target) return LS_OK;
        sched_yield();
    }
    const double begin = ls_now();
    for (;;) {
        const uint32_t seen = atomic_load(&l->ctl->event);
        if (atomic_load_explicit(word, memory_order_acquire) >= target) return LS_OK;
        const int gone = atomic_load(&l->world->aborted);
        if (gone)
            return ls_fail(LS_E_COMM, "%s",
                           l->world->abort_words[0] ? l->world->abort_words : "another worker is gone");
        const double waited = ls_now() - begin;
        if (c->limit > 0 && waited > c->limit) return hang(c, r, waited);
        atomic_fetch_add(&l->ctl->waiters, 1);
        const struct timespec slice = {0, 20000000};
        syscall(SYS_futex, &l->ctl->event, FUTEX_WAIT, seen, &slice, NULL, 0);
        atomic_fetch_sub(&l->ctl->waiters, 1);
    }
}

/* Offset of a buffer in this worker's arena; -1 when it is small and lies elsewhere. */
static ls_status locate(ls_comm *c, const comm_req *r, ls_view v, int64_t *at)
{
    local *l = c->impl;
    const char *base = arena_of(l->world, l->member[c->rank]);
    const int64_t part = r->in.n < r->out.n ? r->in.n : r->out.n, off = (const char *)v.data - base;
    const int64_t extent = r->stride && v.n > part ? (c->size - 1) * r->stride + part : v.n,
                  nbytes = extent * (int64_t)ls_dtype_nbytes(v.dt);
    *at = -1;
    if (!v.data) return LS_OK;
    if (off >= 0 && off + nbytes <= (int64_t)l->world->arena_nbytes) {
        *at = off;
        return LS_OK;
    }
    if (nbytes <= LS_COMM_SMALL && extent == v.n) return LS_OK;
    return ls_fail(LS_E_COMM, "%s at %s: %lld bytes outside the shared memory (ls_comm_alloc)", ls_coll_word(r->kind),
                   r->site, (long long)nbytes);
}

static const char *short_site(const char *site)
{
    const char *s = strstr(site, "src/"), *next;
    while (s && (next = strstr(s + 4, "src/"))) s = next;
    return s ? s + 4 : site;
}

static ls_status publish(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    place *me = &l->ctl->at[c->rank];
    slot *s = &me->slot[r->seq & 1];
    r->site = short_site(r->site);
    s->kind = (int32_t)r->kind;
    s->dt = (int32_t)r->in.dt;
    s->peer = r->peer;
    s->value = r->value;
    s->n_in = r->in.n;
    s->n_out = r->out.n;
    s->since = ls_now();
    snprintf(s->site, sizeof s->site, "%s", r->site);
    LS_TRY(locate(c, r, r->in, &s->in));
    LS_TRY(locate(c, r, r->out, &s->out));
    if (s->in < 0 && r->in.data) memcpy(s->small, r->in.data, (size_t)r->in.n * ls_dtype_nbytes(r->in.dt));
    atomic_store(&me->since, s->since);
    atomic_store_explicit(&me->posted, r->seq, memory_order_release);
    wake(l->ctl);
    for (int p = 0; p < c->size; p++) {
        LS_TRY(wait_for(c, r, &l->ctl->at[p].posted, r->seq));
        const slot *o = &l->ctl->at[p].slot[r->seq & 1];
        if (o->kind != s->kind || o->n_in != s->n_in || o->n_out != s->n_out || o->dt != s->dt || o->peer != s->peer)
            return ls_fail(LS_E_COMM,
                           "workers disagree at #%llu: rank %d is in %s of %lld at %s, rank %d in %s of %lld at %s",
                           (unsigned long long)r->seq, c->rank, ls_coll_word(r->kind), (long long)r->in.n, r->site, p,
                           ls_coll_word((ls_coll)o->kind), (long long)o->n_in, o->site);
    }
    return LS_OK;
}

static ls_status finish(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    atomic_store_explicit(&l->ctl->at[c->rank].done, r->seq, memory_order_release);
    wake(l->ctl);
    for (int p = 0; p < c->size; p++) LS_TRY(wait_for(c, r, &l->ctl->at[p].done, r->seq));
    return LS_OK;
}

/* The input of rank p, wherever it lies; its output likewise (arena only). */
static const char *in_of(ls_comm *c, const comm_req *r, int p)
{
    local *l = c->impl;
    const slot *s = &l->ctl->at[p].slot[r->seq & 1];
    return s->in < 0 ? (const char *)s->small : arena_of(l->world, l->member[p]) + s->in;
}

static char *out_of(ls_comm *c, const comm_req *r, int p)
{
    local *l = c->impl;
    const slot *s = &l->ctl->at[p].slot[r->seq & 1];
    return s->out < 0 ? NULL : arena_of(l->world, l->member[p]) + s->out;
}

static void all_reduce(ls_comm *c, comm_req *r)
{
    const int64_t n = r->in.n, e = (int64_t)ls_dtype_nbytes(r->in.dt), W = c->size;
    const void *src[MAX_RANK];
    bool shared = true;
    for (int p = 0; p < c->size; p++) shared = shared && out_of(c, r, p);
    if (!shared) { /* small, anywhere: everyone sums for itself */
        for (int p = 0; p < c->size; p++) src[p] = in_of(c, r, p);
        comm_tree_sum(r->out.data, src, c->size, n, r->in.dt);
        r->moved = (W - 1) * n * e;
        return;
    }
    const int64_t first = n * c->rank / W, len = n * (c->rank + 1) / W - first,
                  piece = 16384; /* elements, so that copies stay in cache */
    for (int64_t at = first; at < first + len; at += piece) {
        const int64_t k = first + len - at < piece ? first + len - at : piece;
        for (int p = 0; p < c->size; p++) src[p] = in_of(c, r, p) + at * e;
        char *mine = out_of(c, r, c->rank) + at * e;
        comm_tree_sum(mine, src, c->size, k, r->in.dt);
        for (int p = 0; p < c->size; p++)
            if (p != c->rank) memcpy(out_of(c, r, p) + at * e, mine, (size_t)(k * e));
    }
    r->moved = 2 * (W - 1) * len * e;
}

static void reduce_scatter(ls_comm *c, comm_req *r)
{
    const int64_t n = r->out.n, e = (int64_t)ls_dtype_nbytes(r->in.dt);
    const void *src[MAX_RANK];
    for (int p = 0; p < c->size; p++) src[p] = in_of(c, r, p) + r->stride * c->rank * e;
    comm_tree_sum(r->out.data, src, c->size, n, r->in.dt);
    r->moved = (c->size - 1) * n * e;
}

static void all_gather(ls_comm *c, comm_req *r)
{
    const int64_t e = (int64_t)ls_dtype_nbytes(r->in.dt), nbytes = r->in.n * e;
    for (int i = 0; i < c->size; i++) { /* begin with the next rank, so that not all read the same one */
        const int p = (c->rank + i) % c->size;
        char *to = (char *)r->out.data + p * r->stride * e;
        const char *from = in_of(c, r, p);
        if (to != from) memcpy(to, from, (size_t)nbytes);
    }
    r->moved = (c->size - 1) * nbytes;
}

static void reduce(ls_comm *c, comm_req *r)
{
    const int64_t n = r->in.n, e = (int64_t)ls_dtype_nbytes(r->in.dt), W = c->size;
    const void *src[MAX_RANK];
    char *root = out_of(c, r, r->peer);
    int64_t first = 0, len = n;
    if (root) { /* every rank sums its slice into the root's buffer */
        first = n * c->rank / W;
        len = n * (c->rank + 1) / W - first;
    } else if (c->rank != r->peer) return;
    for (int p = 0; p < c->size; p++) src[p] = in_of(c, r, p) + first * e;
    comm_tree_sum(root ? root + first * e : r->out.data, src, c->size, len, r->in.dt);
    r->moved = (W - 1) * len * e + (root && c->rank != r->peer ? len * e : 0);
}

static void broadcast(ls_comm *c, comm_req *r)
{
    const size_t nbytes = (size_t)r->in.n * ls_dtype_nbytes(r->in.dt);
    if (c->rank == r->peer) return;
    memcpy(r->out.data, in_of(c, r, r->peer), nbytes);
    r->moved = (int64_t)nbytes;
}

static void agree(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    for (int p = 0; p < c->size; p++) {
        const int v = l->ctl->at[p].slot[r->seq & 1].value;
        if (v > r->value) r->value = v;
    }
}

static ls_status send_one(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    mailbox *m = mailbox_of(l->world, l->id, c->rank, r->peer);
    const uint64_t k = ++l->n_sent[r->peer];
    r->site = short_site(r->site);
    LS_TRY(locate(c, r, r->in, &m->at));
    m->n = r->in.n;
    m->dt = (int32_t)r->in.dt;
    snprintf(m->site, sizeof m->site, "%s", r->site);
    if (m->at < 0) memcpy(m->small, r->in.data, (size_t)r->in.n * ls_dtype_nbytes(r->in.dt));
    atomic_store_explicit(&m->sent, k, memory_order_release);
    wake(l->ctl);
    r->moved = r->in.n * (int64_t)ls_dtype_nbytes(r->in.dt);
    return wait_for(c, r, &m->taken, k);
}

static ls_status recv_one(ls_comm *c, comm_req *r)
{
    local *l = c->impl;
    mailbox *m = mailbox_of(l->world, l->id, r->peer, c->rank);
    const uint64_t k = ++l->n_taken[r->peer];
    const size_t nbytes = (size_t)r->out.n * ls_dtype_nbytes(r->out.dt);
    r->site = short_site(r->site);
    LS_TRY(wait_for(c, r, &m->sent, k));
    if (m->n != r->out.n || m->dt != (int32_t)r->out.dt)
        return ls_fail(LS_E_COMM, "rank %d receives %lld elements at %s, rank %d sent %lld at %s", c->rank,
                       (long long)r->out.n, r->site, r->peer, (long long)m->n, m->site);
    memcpy(r->out.data, m->at < 0 ? (const char *)m->small : arena_of(l->world, l->member[r->peer]) + m->at, nbytes);
    r->moved = (int64_t)nbytes;
    atomic_store_explicit(&m->taken, k, memory_order_release);
    wake(l->ctl);
    return LS_OK;
}

static ls_status local_run(ls_comm *c, comm_req *r)
{
    if (r->kind == LS_COLL_SEND) return send_one(c, r);
    if (r->kind == LS_COLL_RECV) return recv_one(c, r);
    LS_TRY(publish(c, r));
    switch (r->kind) {
    case LS_COLL_ALL_REDUCE: all_reduce(c, r); break;
    case LS_COLL_REDUCE_SCATTER: reduce_scatter(c, r); break;
    case LS_COLL_ALL_GATHER: all_gather(c, r); break;
    case LS_COLL_REDUCE: reduce(c, r); break;
    case LS_COLL_BROADCAST: broadcast(c, r); break;
    case LS_COLL_AGREE: agree(c, r); break;
    default: break;
    }
    return finish(c, r);
}

static void *local_alloc(ls_comm *c, size_t nbytes)
{
    local *l = c->impl;
    const size_t at = *l->used, need = round_up(nbytes ? nbytes : 1, nbytes >= (size_t)2 << 20 ? (size_t)2 << 20 : 64);
    if (need > l->world->arena_nbytes - at) return NULL;
    *l->used = at + need;
    return arena_of(l->world, l->member[c->rank]) + at;
}

static void local_destroy(ls_comm *c)
{
    local *l = c->impl;
    if (l->owns_used) {
        madvise(arena_of(l->world, l->member[c->rank]), l->world->arena_nbytes, MADV_REMOVE);
        ls_free(l->used);
    }
    ls_free(l);
}

static ls_status local_split(ls_comm *c, int color, int key, ls_comm **out);

static const comm_ops local_ops = {
    .name = "local", .run = local_run, .split = local_split, .alloc = local_alloc, .destroy = local_destroy};

static ls_status local_split(ls_comm *c, int color, int key, ls_comm **out)
{
    local *parent = c->impl;
    int64_t mine[2] = {color, key}, all[2 * MAX_RANK], id[MAX_RANK], my_id = -1;
    LS_TRY(ls_all_gather(c, (ls_view){all, 2 * c->size, LS_I64}, (ls_view){mine, 2, LS_I64}, LS_SITE, NULL));
    local *l = ls_alloc(sizeof *l);
    if (!l) return ls_nomem(sizeof *l, "a communicator");
    *l = (local){.world = parent->world, .used = parent->used};
    int order[MAX_RANK], n = 0, rank = -1;
    for (int p = 0; p < c->size; p++) {
        if (all[2 * p] != color) continue;
        int k = n++;
        for (; k && all[2 * order[k - 1] + 1] > all[2 * p + 1]; k--) order[k] = order[k - 1];
        order[k] = p;
    }
    for (int k = 0; k < n; k++) {
        l->member[k] = parent->member[order[k]];
        if (order[k] == c->rank) rank = k;
    }
    LS_ASSERT(n > 0 && rank >= 0); /* this worker gave its own color */
    if (rank == 0) my_id = atomic_fetch_add(&l->world->next_control, 1);
    ls_status st = ls_all_gather(c, (ls_view){id, c->size, LS_I64}, (ls_view){&my_id, 1, LS_I64}, LS_SITE, NULL);
    l->id = (int)id[order[0]];
    if (st == LS_OK && l->id >= N_CONTROL) st = ls_fail(LS_E_COMM, "more than %d communicators on one host", N_CONTROL);
    if (st == LS_OK) {
        l->ctl = control_of(l->world, l->id);
        st = comm_create(&local_ops, rank, n, l, out);
    }
    if (st != LS_OK) {
        ls_free(l);
        return st;
    }
    (*out)->limit = c->limit;
    return LS_OK;
}

ls_status ls_comm_local(ls_local_world *w, int rank, ls_comm **out)
{
    local *l = ls_alloc(sizeof *l);
    size_t *used = ls_alloc(sizeof *used);
    if (!l || !used) {
        ls_free(l);
        ls_free(used);
        return ls_nomem(sizeof *l, "a communicator");
    }
    *l = (local){.world = w, .ctl = control_of(w, 0), .used = used, .owns_used = true};
    for (int p = 0; p < w->size; p++) l->member[p] = p;
    ls_status st = comm_create(&local_ops, rank, w->size, l, out);
    if (st != LS_OK) {
        ls_free(used);
        ls_free(l);
    }
    return st;
}
