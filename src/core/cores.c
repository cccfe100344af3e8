#include "core/cores.h"

#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static cpu_set_t own;
static int n_own;

static cpu_set_t usable(void)
{
    cpu_set_t have;
    int id[CPU_SETSIZE];
    CPU_ZERO(&have);
    (void)sched_getaffinity(0, sizeof have, &have);
    /* OMP_PROC_BIND ties the first thread to one place before main: the places say what there was */
    for (int p = 0; p < omp_get_num_places(); p++) {
        const int n = omp_get_place_num_procs(p);
        if (n < 1 || n > CPU_SETSIZE) continue;
        omp_get_place_proc_ids(p, id);
        for (int i = 0; i < n; i++)
            if (id[i] >= 0 && id[i] < CPU_SETSIZE) CPU_SET(id[i], &have);
    }
    return have;
}

int ls_cores_usable(void)
{
    if (n_own) return n_own;
    const cpu_set_t have = usable();
    const int n = CPU_COUNT(&have);
    return n ? n : 1;
}

void ls_cores_own(int first, int last)
{
    const cpu_set_t have = usable();
    CPU_ZERO(&own);
    for (int cpu = 0, k = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &have)) continue;
        if (k >= first && k < last) CPU_SET(cpu, &own);
        k++;
    }
    n_own = CPU_COUNT(&own);
    ls_cores_roam();
}

bool ls_cores_owned(void)
{
    return n_own > 0;
}

void ls_cores_keep(int i)
{
    cpu_set_t one;
    if (i >= n_own) {
        ls_cores_roam();
        return;
    }
    CPU_ZERO(&one);
    for (int cpu = 0, k = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &own) && k++ == i) CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

void ls_cores_roam(void)
{
    if (n_own) (void)sched_setaffinity(0, sizeof own, &own);
}

void ls_cores_prompt(void)
{
    struct { /* the kernel's sched_attr, its first version: 48 bytes */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t turn, deadline, period; /* ns; turn: 0.1 to 100 ms */
    } a = {.size = 48};
    if (syscall(SYS_sched_getattr, 0, &a, 48U, 0U)) return;
    if (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH) return; /* the user chose a policy */
    a.turn = 100000;
    (void)syscall(SYS_sched_setattr, 0, &a, 0U);
}
