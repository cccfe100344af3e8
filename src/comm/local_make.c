/* local_make.c - communicators over one host's shared memory: a worker's arena; making, splitting and ending them.
 *
 * An arena is a stack of blocks, each of the communicator that took it. A block is given back when its communicator has ended and nothing is
 * above it any more; its pages return to the machine and are zero when they come again.
 *
 * A large block is all that a worker computes with, so it gets huge pages, as the private memory of a single worker does (core/mem.c). Faults do not
 * bring them: for shared memory that takes shmem_enabled, which is `never` on most systems. MADV_COLLAPSE (Linux 6.1) does not ask it. */
#include "comm/net_impl.h"

#include "core/mem.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* older headers */
#endif

/* Whole huge pages that nobody uses yet. One that has no page at all cannot be collapsed, so each is touched. Without room for them, or on an older
 * kernel, the block has small pages. */
static void take_huge_pages(char *p, size_t nbytes)
{
    (void)madvise(p, nbytes, MADV_HUGEPAGE); /* shmem_enabled = advise */
    for (size_t i = 0; i < nbytes; i += LOCAL_HUGE_PAGE) ((volatile char *)p)[i] = 0;
    (void)madvise(p, nbytes, MADV_COLLAPSE);
}

void *local_arena_take(local_use *u, char *base, size_t room, size_t nbytes, const void *owner)
{
    /* whole pages: a block may be pinned for a device, and a page can be pinned once */
    const bool large = nbytes >= LOCAL_HUGE_PAGE;
    const size_t to = large ? LOCAL_HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE), at = (u->used + to - 1) / to * to,
                 need = ((nbytes ? nbytes : 1) + to - 1) / to * to;
    if (nbytes > room || at > room || need > room - at) return NULL;
    if (ls_reserve(&u->block, &u->cap, (size_t)u->n + 1, sizeof *u->block, "shared memory") != LS_OK) return NULL;
    u->block[u->n++] = (local_block){u->used, owner}; /* with what is before it, up to `at` */
    u->used = at + need;
    if (large) take_huge_pages(base + at, need);
    return base + at;
}

static void clear(char *base, size_t from, size_t to)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), first = (from + page - 1) / page * page, end = to / page * page;
    if (first >= end || madvise(base + first, end - first, MADV_REMOVE)) {
        memset(base + from, 0, to - from);
        return;
    }
    memset(base + from, 0, first - from);
    memset(base + end, 0, to - end);
}

void local_arena_drop(local_use *u, char *base, const void *owner)
{
    const size_t top = u->used;
    for (int i = 0; i < u->n; i++)
        if (u->block[i].owner == owner) u->block[i].owner = NULL;
    while (u->n && !u->block[u->n - 1].owner) u->used = u->block[--u->n].at;
    if (u->used < top) clear(base, u->used, top);
}

void local_arena_fini(local_use *u)
{
    ls_free(u->block);
    *u = (local_use){0};
}

void *local_alloc(ls_comm *c, size_t nbytes)
{
    local *l = c->impl;
    return local_arena_take(l->used, local_arena(l->world, l->member[c->rank]), l->world->arena_nbytes, nbytes, l);
}

static void local_destroy(ls_comm *c)
{
    local *l = c->impl;
    local_arena_drop(l->used, local_arena(l->world, l->member[c->rank]), l);
    if (l->id > 0) local_drop_control(l->world, l->id, c->size);
    else if (l->id < 0) ls_free(l->ctl);
    if (l->owns_used) {
        local_arena_fini(l->used);
        ls_free(l->used);
    }
    if (l->watch) {
        if (!atomic_load(&l->world->aborted)) ls_local_world_leave(l->world, c->rank);
        net_watch_stop(&l->watch);
        ls_local_world_destroy(&l->world);
    }
}

static ls_status make(const local *from, int rank, int n, ls_comm **out)
{
    LS_TRY(comm_create(&local_ops, rank, n, sizeof *from, out));
    local *l = (*out)->impl;
    *l = *from;
    (*out)->world = l->world;
    (*out)->world_rank = l->member[rank];
    if (!l->outer) l->outer = *out;
    return LS_OK;
}

int local_order(const local_wish *all, int n, int color, int *order)
{
    int n_same = 0;
    for (int p = 0; p < n; p++) {
        if (all[p].color != color) continue;
        int k = n_same++;
        for (; k && all[order[k - 1]].key > all[p].key; k--) order[k] = order[k - 1];
        order[k] = p;
    }
    return n_same;
}

static ls_status local_split(ls_comm *c, int color, int key, ls_comm **out)
{
    local *parent = c->impl, l = {.world = parent->world, .used = parent->used};
    local_wish mine = {.color = color, .key = key}, all[MAX_RANK];
    int64_t id[MAX_RANK], my_id = -1;
    LS_TRY(ls_all_gather(c, (ls_view){all, 3 * c->size, LS_I64}, (ls_view){&mine, 3, LS_I64}, LS_SITE, NULL));
    int order[MAX_RANK], rank = -1;
    const int n = local_order(all, c->size, color, order);
    for (int k = 0; k < n; k++) {
        l.member[k] = parent->member[order[k]];
        l.label[k] = parent->label[order[k]];
        if (order[k] == c->rank) rank = k;
    }
    LS_ASSERT(n > 0 && rank >= 0); /* this worker gave its own color */
    if (rank == 0) my_id = local_take_control(l.world);
    LS_TRY(ls_all_gather(c, (ls_view){id, c->size, LS_I64}, (ls_view){&my_id, 1, LS_I64}, LS_SITE, NULL));
    l.id = (int)id[order[0]];
    if (l.id < 0) return ls_fail(LS_E_COMM, "too many communicators on one host; the limit is %d", N_CONTROL);
    l.ctl = local_control(l.world, l.id);
    LS_TRY(make(&l, rank, n, out));
    (*out)->limit = c->limit;
    return LS_OK;
}

static void local_abort(ls_comm *c, const char *words)
{
    local *l = c->impl;
    ls_local_world_abort(l->world, l->member[c->rank], words);
}

const comm_ops local_ops = {.name = "local",
                            .run = local_run,
                            .here = true,
                            .split = local_split,
                            .alloc = local_alloc,
                            .abort = local_abort,
                            .destroy = local_destroy};

ls_status local_group(ls_local_world *w, int id, const int *member, const int *label, int n, int rank, local_use *used,
                      ls_comm *outer, ls_comm **out)
{
    local l = {.world = w, .id = id, .used = used, .outer = outer};
    for (int p = 0; p < n; p++) l.member[p] = member[p], l.label[p] = label[p];
    l.ctl = id < 0 ? ls_alloc(sizeof *l.ctl) : local_control(w, id);
    if (!l.ctl) return ls_nomem(sizeof *l.ctl, "a communicator");
    ls_status st = make(&l, rank, n, out);
    if (st != LS_OK && id < 0) ls_free(l.ctl);
    return st;
}

ls_status ls_comm_local(ls_local_world *w, int rank, ls_comm **out)
{
    local_use *used = ls_alloc(sizeof *used);
    if (!used) return ls_nomem(sizeof *used, "a communicator");
    local l = {.world = w, .ctl = local_control(w, 0), .used = used, .owns_used = true};
    for (int p = 0; p < w->size; p++) l.member[p] = l.label[p] = p;
    ls_status st = make(&l, rank, w->size, out);
    if (st != LS_OK) ls_free(used);
    return st;
}
