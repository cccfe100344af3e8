/* start.h - workers that somebody else started: who this process is by its environment, and how it finds the others.
 *
 *   mpirun, srun --mpi=pmix     OMPI_*, PMI_*, MV2_*, PMIX_* with SLURM_*       the plugin `mpi`
 *   torchrun and its like       RANK, WORLD_SIZE, LOCAL_RANK, MASTER_PORT …     one host: shared memory, found over a local socket
 *
 * (launch.h starts workers itself.) */
#ifndef LS_COMM_START_H
#define LS_COMM_START_H

#include "comm/comm.h"

typedef enum ls_started_by { LS_STARTED_ALONE, LS_STARTED_MPI, LS_STARTED_SRUN, LS_STARTED_TORCH } ls_started_by;

typedef struct ls_start_env {
    ls_started_by by;
    const char *words; /* "mpirun", "srun", … */
    int rank, size;
    int local_rank, local_size; /* -1, 0: not said */
} ls_start_env;

/* LS_E_CONFIG when a variable is no number or the variables contradict each other. */
ls_status ls_start_env_read(ls_start_env *e);

/* Becomes a worker of the job that mpirun or srun started; LS_E_UNSUPPORTED with the reason where the plugin does not load.
 * Collective over the job. */
ls_status ls_comm_mpi(ls_comm **out);
/* Whether the plugin loads, and which MPI it found (or why not); `path` is the file. */
bool ls_comm_mpi_look(char *path, size_t n_path, char *words, size_t n_words);

/* Meets the other workers of torchrun-style variables on this host. LS_E_UNSUPPORTED when they are on several. Collective. */
ls_status ls_comm_meet(const ls_start_env *e, ls_comm **out);

/* Cores for this worker's threads: the ones a launcher gave it alone, else its part of those that the workers of its host share.
 * Pins this thread (and those it starts) to them and returns their number. */
int ls_comm_take_cores(ls_comm *c);

#endif
