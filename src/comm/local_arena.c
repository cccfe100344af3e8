/* local_arena.c - a worker's part of the shared memory: a stack of blocks, each of the communicator that took it. A block is given back
 * when its communicator has ended and nothing is above it any more; its pages return to the machine and are zero when they come again. */
#include "comm/local_impl.h"

#include "core/mem.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *local_arena_take(local_use *u, char *base, size_t room, size_t nbytes, const void *owner)
{
    /* whole pages: a block may be pinned for a device, and a page can be pinned once */
    const size_t huge = (size_t)2 << 20, to = nbytes >= huge ? huge : (size_t)sysconf(_SC_PAGESIZE), at = u->used,
                 need = ((nbytes ? nbytes : 1) + to - 1) / to * to;
    if (need > room - at) return NULL;
    if (u->n == u->cap) {
        local_block *b = ls_realloc(u->block, (size_t)(u->cap + 16) * sizeof *b);
        if (!b) return NULL;
        u->block = b;
        u->cap += 16;
    }
    u->block[u->n++] = (local_block){at, owner};
    u->used = at + need;
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
