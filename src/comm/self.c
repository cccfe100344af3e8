/* self.c - a world of one, and dry: a world of any size in which nothing moves.
 *
 * dry counts what each worker would move, by the same rules as the real backends:
 *   all_reduce       2 (W-1) s,  s = this rank's slice of the n elements, n/W where W divides n
 *   reduce_scatter, all_gather   (W-1)/W n
 *   broadcast        n at every rank but the root
 *   reduce           (W-1) s, and s more at every rank but the root
 * Its results are this worker's own data, so that a strategy can run over it. */
#include "comm/comm_impl.h"

#include "core/mem.h"

#include <string.h>

typedef struct blocks {
    void **p;
    int n;
    size_t cap;
} blocks;

static void *keep(ls_comm *c, size_t nbytes)
{
    blocks *b = c->impl;
    if (ls_reserve(&b->p, &b->cap, (size_t)b->n + 1, sizeof *b->p, "a communicator") != LS_OK) return NULL;
    void *p = ls_alloc(nbytes);
    if (p) b->p[b->n++] = p;
    return p;
}

static void drop_blocks(ls_comm *c)
{
    blocks *b = c->impl;
    for (int i = 0; i < b->n; i++) ls_free(b->p[i]);
    ls_free(b->p);
}

size_t comm_own_part(const ls_comm *c, const comm_req *r, char **to, const char **from)
{
    const int64_t e = (int64_t)ls_dtype_nbytes(r->in.dt), mine = r->stride * c->rank * e;
    const bool scatter = r->kind == LS_COLL_REDUCE_SCATTER, gather = r->kind == LS_COLL_ALL_GATHER;
    *from = (const char *)r->in.data + (scatter ? mine : 0);
    *to = (char *)r->out.data + (gather ? mine : 0);
    return (scatter || gather) && *to != *from ? (size_t)((scatter ? r->out.n : r->in.n) * e) : 0;
}

static ls_status alone(ls_comm *c, comm_req *r)
{
    const char *from;
    char *to;
    const size_t nbytes = comm_own_part(c, r, &to, &from);
    if (nbytes) memcpy(to, from, nbytes);
    return LS_OK;
}

static ls_status self_run(ls_comm *c, comm_req *r)
{
    if (r->kind == LS_COLL_SEND || r->kind == LS_COLL_RECV)
        return ls_fail(LS_E_COMM, "%s at %s: point-to-point calls need 2 or more workers; this run has one",
                       ls_coll_word(r->kind), r->site);
    return alone(c, r);
}

int64_t comm_formula_bytes(const ls_comm *c, const comm_req *r)
{
    const int64_t W = c->size, n = r->in.n > r->out.n ? r->in.n : r->out.n,
                  e = (int64_t)ls_dtype_nbytes(r->in.n ? r->in.dt : r->out.dt);
    const int64_t slice = n * (c->rank + 1) / W - n * c->rank / W;
    switch (r->kind) {
    case LS_COLL_ALL_REDUCE: return 2 * (W - 1) * slice * e;
    case LS_COLL_REDUCE_SCATTER:
    case LS_COLL_ALL_GATHER: return (W - 1) * (n / W) * e;
    case LS_COLL_BROADCAST: return c->rank == r->peer ? 0 : n * e;
    case LS_COLL_REDUCE: return ((W - 1) + (c->rank != r->peer)) * slice * e;
    case LS_COLL_SEND:
    case LS_COLL_RECV: return n * e;
    default: return 0;
    }
}

static ls_status dry_run(ls_comm *c, comm_req *r)
{
    r->moved = comm_formula_bytes(c, r);
    return alone(c, r);
}

static ls_status self_split(ls_comm *c, int color, int key, ls_comm **out)
{
    (void)color, (void)key;
    return comm_create(c->ops, 0, 1, sizeof(blocks), out);
}

static ls_status dry_split(ls_comm *c, int color, int key, ls_comm **out)
{
    (void)color, (void)key, (void)out;
    return ls_fail(
        LS_E_UNSUPPORTED,
        "dry: rank %d of %d cannot split without the colors of the other ranks; create the group with ls_comm_dry",
        c->rank, c->size);
}

static const comm_ops self_ops = {
    .name = "self", .inline_run = true, .run = self_run, .split = self_split, .alloc = keep, .destroy = drop_blocks};
static const comm_ops dry_ops = {
    .name = "dry", .inline_run = true, .run = dry_run, .split = dry_split, .alloc = keep, .destroy = drop_blocks};

ls_status ls_comm_self(ls_comm **out)
{
    return comm_create(&self_ops, 0, 1, sizeof(blocks), out);
}

ls_status ls_comm_dry(int rank, int size, ls_comm **out)
{
    return comm_create(&dry_ops, rank, size, sizeof(blocks), out);
}

/* ---- dry communicators with a clock ----
 *
 *   now       ──post a──post b──────wait a──►─────wait b──►        the caller's time, moved by computing and by waits
 *   lane            |── a ──────────────|── b ──────|              seconds of each, from its post or the end of the one before
 *
 * A lane remembers the ends of its newest LANE_RING requests. As in a run, no more than that are in flight: a post beyond them waits. */

static double *end_of(const comm_lane *l, uint64_t seq)
{
    return &l->end[seq % LANE_RING];
}

static void wait_until(ls_dry_clock *k, double end)
{
    if (end <= k->now) return;
    k->waited += end - k->now;
    k->now = end;
}

void comm_clock_post(ls_comm *c, comm_lane *l, const comm_req *r)
{
    ls_dry_clock *k = c->told;
    const int64_t n = r->in.n > r->out.n ? r->in.n : r->out.n;
    const double sec = c->size > 1 ? k->seconds(k->ctx, c, r->kind, n, r->in.n ? r->in.dt : r->out.dt) : 0;
    ls_comm_stat *s = &c->stat[r->kind][r->label];
    if (r->seq >= LANE_RING) wait_until(k, *end_of(l, r->seq + 1)); /* the oldest one's, whose place b takes next */
    const double before = *end_of(l, r->seq - 1);
    *end_of(l, r->seq) = (before > k->now ? before : k->now) + sec;
    k->busy += sec;
    s->calls++;
    s->elements += n;
    s->bytes += comm_formula_bytes(c, r);
    s->busy += sec;
}

/* Of requests older than the ring everyone knows that they have ended. */
void comm_clock_wait(ls_comm *c, comm_lane *l, uint64_t seq)
{
    if (seq + LANE_RING > l->posted) wait_until(c->told, *end_of(l, seq));
}

bool comm_clock_test(const ls_comm *c, const comm_lane *l, uint64_t seq)
{
    return seq + LANE_RING <= l->posted || *end_of(l, seq) <= c->told->now;
}

ls_status ls_comm_dry_clocked(int rank, int size, ls_dry_clock *clock, ls_comm **out)
{
    LS_TRY(ls_comm_dry(rank, size, out));
    double *end = ls_alloc(N_LANE * LANE_RING * sizeof *end);
    if (!end) {
        ls_comm_destroy(out);
        return ls_nomem(N_LANE * LANE_RING * sizeof *end, "a communicator's clock");
    }
    for (int i = 0; i < N_LANE; i++) (*out)->lane[i].end = end + (size_t)i * LANE_RING;
    (*out)->told = clock;
    return LS_OK;
}
