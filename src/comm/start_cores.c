/* start_cores.c - which cores a worker computes on: the ones its launcher gave to it alone, else its part of what the workers of the host
 * share. */
#include "comm/local_impl.h"
#include "comm/start.h"

int comm_take_cores(int r, int n, const int *share, bool pin)
{
    cpu_set_t have, mine;
    CPU_ZERO(&have);
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof have, &have)) return 1;
    const int total = CPU_COUNT(&have);
    int first = total * r / n, last = total * (r + 1) / n;
    if (total < n) return 1;
    if (share) {
        first = 0;
        for (int k = 0; k < r; k++) first += share[k];
        last = first + share[r];
    }
    for (int cpu = 0, k = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &have)) continue;
        if (k >= first && k < last) CPU_SET(cpu, &mine);
        k++;
    }
    if (pin) (void)sched_setaffinity(0, sizeof mine, &mine);
    return last - first;
}

int ls_comm_take_cores(ls_comm *c)
{
    const ls_local_world *w = c->world;
    if (!w) return comm_take_cores(0, 1, NULL, false);
    bool shared = true;
    for (int p = 0; p < w->size; p++) shared = shared && CPU_EQUAL(&w->cpus[p], &w->cpus[0]);
    return shared ? comm_take_cores(c->world_rank, w->size, NULL, true) : comm_take_cores(0, 1, NULL, false);
}
