/* start_cores.c - which cores a worker computes on: the ones its launcher gave to it alone, else its part of what it shares with workers of
 * the host. */
#include "comm/local_impl.h"
#include "comm/start.h"

#include "core/cores.h"
#include "core/log.h"

int comm_take_cores(int r, int n, const int *share, bool pin)
{
    const int total = ls_cores_usable();
    LS_ASSERT(n > 0);
    int first = total * r / n, last = total * (r + 1) / n;
    if (total < n) return 1;
    if (share) {
        first = 0;
        for (int k = 0; k < r; k++) first += share[k];
        last = first + share[r];
    }
    if (pin) ls_cores_own(first, last);
    ls_debug("comm", "worker %d of %d uses cores %d to %d of %d%s", r, n, first, last - 1, total,
             pin ? ", pinned" : "");
    return last - first;
}

int ls_comm_take_cores(ls_comm *c)
{
    const ls_local_world *w = c->world;
    int r = 0, n = 0; /* this worker among those with the same cores */
    if (!w) return comm_take_cores(0, 1, NULL, false);
    for (int p = 0; p < w->size; p++) {
        if (!CPU_EQUAL(&w->cpus[p], &w->cpus[c->world_rank])) continue;
        if (p < c->world_rank) r++;
        n++;
    }
    return comm_take_cores(r, n, NULL, true);
}
