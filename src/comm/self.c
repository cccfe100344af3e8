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
    int n, cap;
} blocks;

static void *keep(ls_comm *c, size_t nbytes)
{
    blocks *b = c->impl;
    if (b->n == b->cap) {
        void **p = ls_realloc(b->p, (size_t)(b->cap + 8) * sizeof *p);
        if (!p) return NULL;
        b->p = p;
        b->cap += 8;
    }
    void *p = ls_alloc(nbytes);
    if (p) b->p[b->n++] = p;
    return p;
}

static void drop_blocks(ls_comm *c)
{
    blocks *b = c->impl;
    for (int i = 0; i < b->n; i++) ls_free(b->p[i]);
    ls_free(b->p);
    ls_free(b);
}

static ls_status alone(ls_comm *c, comm_req *r)
{
    const size_t e = ls_dtype_nbytes(r->in.dt);
    if (r->kind == LS_COLL_REDUCE_SCATTER) {
        const char *mine = (const char *)r->in.data + (size_t)(r->stride * c->rank) * e;
        if (mine != r->out.data) memcpy(r->out.data, mine, (size_t)r->out.n * e);
    } else if (r->kind == LS_COLL_ALL_GATHER) {
        char *mine = (char *)r->out.data + (size_t)(r->stride * c->rank) * e;
        if (mine != r->in.data) memcpy(mine, r->in.data, (size_t)r->in.n * e);
    }
    return LS_OK;
}

static ls_status self_run(ls_comm *c, comm_req *r)
{
    if (r->kind == LS_COLL_SEND || r->kind == LS_COLL_RECV)
        return ls_fail(LS_E_COMM, "%s at %s: point-to-point calls need 2 or more workers; this run has one",
                       ls_coll_word(r->kind), r->site);
    return alone(c, r);
}

int64_t comm_law_bytes(const ls_comm *c, const comm_req *r)
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
    r->moved = comm_law_bytes(c, r);
    return alone(c, r);
}

static ls_status make(const comm_ops *ops, int rank, int size, ls_comm **out)
{
    blocks *b = ls_alloc(sizeof *b);
    if (!b) return ls_nomem(sizeof *b, "a communicator");
    ls_status st = comm_create(ops, rank, size, b, out);
    if (st != LS_OK) ls_free(b);
    return st;
}

static ls_status self_split(ls_comm *c, int color, int key, ls_comm **out)
{
    (void)color, (void)key;
    return make(c->ops, 0, 1, out);
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
    return make(&self_ops, 0, 1, out);
}

ls_status ls_comm_dry(int rank, int size, ls_comm **out)
{
    return make(&dry_ops, rank, size, out);
}
