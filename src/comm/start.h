/* start.h - workers that an external launcher started: reads rank and size from the environment and connects to the others.
 *
 *   mpirun, srun --mpi=pmix     OMPI_*, PMI_*, MV2_*, PMIX_* with SLURM_*       the plugin `mpi`
 *   torchrun, lockstep launch   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   srun without PMIx           SLURM_* with MASTER_ADDR
 *                               one host: shared memory, found over a local socket; several: TCP (tcp.c) between them
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
    int local_rank, local_size; /* -1, 0: not known */
} ls_start_env;

/* How this process was started; from here on its log lines have that rank. LS_E_CONFIG when a variable is no number or the variables
 * contradict each other. */
ls_status ls_start_env_read(ls_start_env *out);

/* Becomes a worker of the job that mpirun or srun started; LS_E_UNSUPPORTED with the reason where the plugin does not load.
 * Collective over the job. */
ls_status ls_comm_mpi(ls_comm **out);
/* Whether the plugin `name` ("mpi", "nccl") loads, and which library it found (or why not); `path` is the file. */
bool ls_comm_look(const char *name, char *path, size_t n_path, char *words, size_t n_words);

/* Device memory that a communicator of so many workers takes for sums in a fixed order, beside NCCL's own. */
size_t ls_comm_nccl_nbytes(int size);

/* The communicator for a run's workers, who have met in boot, by --comm (auto, local, mpi, nccl): boot itself without a device, else one that
 * takes device memory. nccl: device memory between GPUs over NCCL (the plugin `nccl`), host memory over boot; deterministic: sums in the tree
 * of every other backend, else in NCCL's own order. auto: nccl when every worker has a GPU of its own and NCCL starts, else staged; `said` then
 * has the reason, in one line for a person (rank 0's; else empty). Owns boot when it succeeds. LS_E_CONFIG: asked for what cannot be.
 * LS_E_UNSUPPORTED: the plugin does not load, or workers share a GPU; LS_E_COMM: NCCL does not start. Collective over boot. */
ls_status ls_comm_for_device(ls_comm *boot, const ls_device *dev, const char *asked, bool deterministic, ls_comm **out,
                             ls_str *said);

/* Meets the other workers of torchrun-style variables: through shared memory on one host, over TCP between hosts. Workers that do not
 * know LOCKSTEP_TOKEN are refused. limit: seconds of the start-up, then those that are missing are named (LS_E_COMM); 0: none, negative: 120.
 * Collective. */
ls_status ls_comm_meet(const ls_start_env *e, double limit, ls_comm **out);
/* Whether these variables describe workers of several hosts, or may: then they meet over TCP. */
bool ls_start_several_hosts(const ls_start_env *e);

/* Cores for this worker's threads: the ones a launcher gave it alone, else its part of those that the workers of its host share.
 * Pins this thread (and those it starts) to them and returns their number. */
int ls_comm_take_cores(ls_comm *c);

#endif
