#include "core/cores.h"

#include <ctype.h>
#include <dirent.h>
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static cpu_set_t own;
static int n_own, own_cpu[CPU_SETSIZE]; /* own_cpu: where computing threads go */

/* ---- the machine ---- */

/* A list of the kernel, as "0-3,8,10-11". False: there is no such file, or it has something else. */
static bool read_list(const char *path, cpu_set_t *out)
{
    char text[4096], *at = text;
    FILE *f = fopen(path, "r");
    CPU_ZERO(out);
    if (!f) return false;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = 0;
    while (isdigit((unsigned char)*at)) {
        const long first = strtol(at, &at, 10), last = *at == '-' ? strtol(at + 1, &at, 10) : first;
        for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET((int)cpu, out);
        if (*at == ',') at++;
    }
    return CPU_COUNT(out) > 0;
}

typedef struct place {
    int cpu, node;
    int core;   /* the first hardware thread of the physical core */
    int thread; /* how many of the list are before it on the same core */
} place;

static int by_core(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    return (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

static int by_thread(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->thread != y->thread) return x->thread < y->thread ? -1 : 1;
    return by_core(a, b);
}

/* at: n places, of which cpu is set. */
static void find_nodes(const char *root, int n, place *at)
{
    char path[512];
    cpu_set_t nodes, here;
    snprintf(path, sizeof path, "%s/devices/system/node/online", root);
    if (!read_list(path, &nodes)) return;
    for (int k = 0; k < CPU_SETSIZE; k++) {
        if (!CPU_ISSET(k, &nodes)) continue;
        snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", root, k);
        if (!read_list(path, &here)) continue; /* memory without CPUs */
        for (int i = 0; i < n; i++)
            if (CPU_ISSET(at[i].cpu, &here)) at[i].node = k;
    }
}

static void find_cores(const char *root, int n, place *at)
{
    char path[512];
    cpu_set_t siblings;
    for (int i = 0; i < n; i++) {
        at[i].core = at[i].cpu;
        snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, at[i].cpu);
        if (!read_list(path, &siblings)) continue;
        for (int cpu = at[i].cpu; cpu >= 0; cpu--)
            if (CPU_ISSET(cpu, &siblings)) at[i].core = cpu;
    }
}

static void order(const char *root, int n, int *cpu, bool apart)
{
    place at[CPU_SETSIZE];
    if (n < 1 || n > CPU_SETSIZE) return;
    for (int i = 0; i < n; i++) at[i] = (place){.cpu = cpu[i]};
    find_nodes(root, n, at);
    find_cores(root, n, at);
    qsort(at, (size_t)n, sizeof *at, by_core);
    for (int i = 1; i < n; i++)
        if (at[i].node == at[i - 1].node && at[i].core == at[i - 1].core) at[i].thread = at[i - 1].thread + 1;
    if (apart) qsort(at, (size_t)n, sizeof *at, by_thread);
    for (int i = 0; i < n; i++) cpu[i] = at[i].cpu;
}

void ls_cores_order(const char *root, int n, int *cpu)
{
    order(root, n, cpu, false);
}

void ls_cores_apart(const char *root, int n, int *cpu)
{
    order(root, n, cpu, true);
}

/* ---- this process ---- */

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
    int all[CPU_SETSIZE], n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &have)) all[n++] = cpu;
    ls_cores_order("/sys", n, all);
    CPU_ZERO(&own);
    n_own = 0;
    for (int k = first < 0 ? 0 : first; k < last && k < n; k++) {
        CPU_SET(all[k], &own);
        own_cpu[n_own++] = all[k];
    }
    ls_cores_apart("/sys", n_own, own_cpu);
    ls_cores_roam();
}

bool ls_cores_owned(void)
{
    return n_own > 0;
}

int ls_cores_list(int *cpu)
{
    for (int i = 0; i < n_own; i++) cpu[i] = own_cpu[i];
    return n_own;
}

void ls_cores_stay(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

bool ls_cores_may_use(int cpu)
{
    cpu_set_t before, one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_getaffinity(0, sizeof before, &before)) return false;
    const bool may = !sched_setaffinity(0, sizeof one, &one);
    return !sched_setaffinity(0, sizeof before, &before) && may;
}

void ls_cores_keep(int i)
{
    if (i < n_own) ls_cores_stay(own_cpu[i]);
    else ls_cores_roam();
}

void ls_cores_roam(void)
{
    if (n_own) (void)sched_setaffinity(0, sizeof own, &own);
}

double ls_cores_waited(void)
{
    DIR *all = opendir("/proc/self/task");
    double sum = 0;
    int found = 0;
    if (!all) return -1;
    for (const struct dirent *task; (task = readdir(all));) {
        char path[64 + sizeof task->d_name];
        long long ran = 0, waited = 0; /* ns */
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task->d_name);
        FILE *f = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!f) continue;
        if (fscanf(f, "%lld %lld", &ran, &waited) == 2) sum += 1e-9 * (double)waited, found++;
        (void)fclose(f);
    }
    (void)closedir(all);
    return found ? sum : -1;
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
