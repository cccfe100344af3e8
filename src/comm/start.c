/* start.c - workers that a launcher started: what the environment tells about this one, its cores, and the plugin `mpi`. */
#include "comm/start.h"
#include "comm/nccl_plugin.h"
#include "comm/net_impl.h"

#include "core/cores.h"
#include "core/log.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the environment ---- */

static ls_status number(const char *name, int lo, int *out, bool *set)
{
    const char *text = name ? getenv(name) : NULL;
    int64_t v = 0;
    *set = text && *text;
    if (!*set) return LS_OK;
    if (!ls_parse_i64(text, &v) || v < lo || v > INT_MAX)
        return ls_fail(LS_E_CONFIG, "environment variable %s is '%.40s'; it must be a whole number >= %d", name, text,
                       lo);
    *out = (int)v;
    return LS_OK;
}

typedef struct source {
    ls_started_by by;
    const char *words, *must; /* must: a variable that must be set, too; NULL: none */
    const char *rank, *size, *local_rank, *local_size;
} source;

/* The first whose rank and size are both set and whose size is more than one. A batch script of Slurm has SLURM_PROCID and
 * SLURM_NTASKS as well, but no SLURM_STEP_NUM_TASKS of more than one. The first three may run inside a task of srun or mpirun. */
static const source sources[] = {
    {LS_STARTED_TORCH, "torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {LS_STARTED_TORCH, "lockstep launch", "LOCKSTEP_LAUNCH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {LS_STARTED_TORCH, "RANK and WORLD_SIZE", "LOCKSTEP_TOKEN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {LS_STARTED_MPI, "mpirun (Open MPI)", NULL, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {LS_STARTED_MPI, "mpirun (MVAPICH)", NULL, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {LS_STARTED_MPI, "mpirun (MPICH)", NULL, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {LS_STARTED_MPI, "srun with PMIx", "PMIX_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
    {LS_STARTED_SRUN, "srun", NULL, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
    {LS_STARTED_TORCH, "RANK and WORLD_SIZE", NULL, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
};

ls_status ls_start_env_read(ls_start_env *out)
{
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        const source *s = &sources[i];
        ls_start_env e = {.by = s->by, .words = s->words, .local_rank = -1};
        bool rank, size, ignored;
        if (s->must && !getenv(s->must)) continue;
        LS_TRY(number(s->rank, 0, &e.rank, &rank));
        LS_TRY(number(s->size, 1, &e.size, &size));
        if (s->by == LS_STARTED_TORCH && size && e.size > 1 && !rank)
            return ls_fail(LS_E_CONFIG,
                           "WORLD_SIZE is %d but RANK is not set; a launcher sets both for each worker; or use -n %d",
                           e.size, e.size);
        if (!rank || !size || e.size < 2) continue;
        LS_TRY(number(s->local_rank, 0, &e.local_rank, &ignored));
        LS_TRY(number(s->local_size, 1, &e.local_size, &ignored));
        if (e.local_size > e.size || (e.local_size && e.local_rank >= e.local_size))
            return ls_fail(
                LS_E_CONFIG,
                "%s is %d and %s is %d in a run of %d workers; a local rank is below the number of workers of its host",
                s->local_rank, e.local_rank, s->local_size, e.local_size, e.size);
        if (e.rank >= e.size)
            return ls_fail(LS_E_CONFIG, "%s is %d, but must be below the number of workers, %d (%s)", s->rank, e.rank,
                           e.size, s->size);
        ls_log_init(e.rank);
        ls_debug("comm", "started by %s: rank %d of %d, local rank %d", e.words, e.rank, e.size, e.local_rank);
        *out = e;
        return LS_OK;
    }
    *out = (ls_start_env){.by = LS_STARTED_ALONE, .words = "none", .size = 1, .local_rank = -1};
    return LS_OK;
}

/* ---- cores ---- */

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

/* ---- plugins ---- */

bool ls_comm_look(const char *name, char *path, size_t n_path, char *words, size_t n_words)
{
    const ls_plugin_head *h = NULL;
    ls_plugin p = {0};
    const bool nccl = !strcmp(name, "nccl");
    const bool found = ls_plugin_table(name, nccl ? LS_NCCL_SYMBOL : LS_TRANSPORT_SYMBOL,
                                       nccl ? LS_NCCL_ABI : LS_TRANSPORT_ABI, &p, &h) == LS_OK;
    snprintf(path, n_path, "%s", p.path);
    if (found) h->version(words, n_words);
    else snprintf(words, n_words, "%s", ls_err_words());
    if (!found) ls_err_clear();
    return found;
}

ls_status ls_comm_mpi(ls_comm **out)
{
    const ls_plugin_head *h = NULL;
    ls_plugin p = {0};
    LS_TRY(ls_plugin_table("mpi", LS_TRANSPORT_SYMBOL, LS_TRANSPORT_ABI, &p, &h));
    /* ranks may outnumber cores: Open MPI should not spin where it waits by itself (at its start and end) */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    return net_world_open((const ls_transport *)(const void *)h, local_machine_nbytes(), out);
}
