/* nccl_proof.h - evidence about a run over NCCL, kept in its folder.
 *
 *   nccl/nccl_rank_<host>_<pid>.log   the log of NCCL, one per worker (NCCL_DEBUG=INFO of INIT,GRAPH,ENV,NET: no line per collective)
 *   nccl/summary.json                 rank 0, after a run with at least one step: the logs in numbers (core/nccl_log.h), results of the tools
 *   topo.txt, ibstat.txt              `nvidia-smi topo -m`, `ibstat` of rank 0's host; other hosts: nccl/topo_<host>.txt, nccl/ibstat_<host>.txt
 *   nccl/gpus_<host>.csv              `nvidia-smi --query-gpu=...` of each host
 *   nccl_topo.xml                     mode "full": the machine as NCCL sees it (NCCL_TOPO_DUMP_FILE)
 *
 * Variables that the user has set are not changed. If NCCL_DEBUG is set, the summary is made from the user's NCCL_DEBUG_FILE.
 * NCCL_TOPO_DUMP_FILE is set on all workers or on none, because NCCL then synchronises all workers of a host.
 *
 * A start that fails before the first step leaves the folder as it was, except for the log of an NCCL that failed. With the first step the
 * files of an earlier run move to earlier-<k>/, also if this run does not use NCCL. A resumed run keeps the earlier logs and moves the
 * other files to nccl/session-<k>/. Only a failure to move earlier files fails the run. */
#ifndef LS_TRAIN_NCCL_PROOF_H
#define LS_TRAIN_NCCL_PROOF_H

#include "core/json.h"
#include "core/nccl_log.h"

#include <limits.h>
#include <stdbool.h>

typedef struct ls_nccl_proof ls_nccl_proof; /* every function takes NULL: nothing is collected */

typedef struct ls_nccl_proof_opts {
    const char *run_dir;
    const char *mode; /* "off", "log", "full" */
    int rank, local_rank;
    double tool_seconds; /* for all tools of a host together; 0: 8 */
} ls_nccl_proof_opts;

/* On every worker, before NCCL is loaded: creates the folder and sets the environment. */
void ls_nccl_proof_begin(ls_nccl_proof **out, const ls_nccl_proof_opts *o);
/* Call after the communicator is created. n: workers that communicate over NCCL, 0: it is not in use, and the environment is restored.
 * worker: all of them (core/nccl_log.h), whose lines alone count in the summary; version: that of NCCL, NULL: not known. */
void ls_nccl_proof_joined(ls_nccl_proof *p, const ls_nccl_writer *worker, int n, const char *version);
/* Rank 0, before the first step and before ls_nccl_proof_started of any worker: moves the files of an earlier run, if nccl/ has any. p NULL:
 * this run collects nothing. where: the folder earlier-<k> of this start; "": it is created when it is needed. */
ls_status ls_nccl_proof_set_aside(const ls_nccl_proof *p, const char *run_dir, bool resume, char where[PATH_MAX]);
/* Every worker, after that: starts the tools. */
void ls_nccl_proof_started(ls_nccl_proof *p);
/* After the last collective of all workers: rank 0 writes the summary. */
void ls_nccl_proof_end(ls_nccl_proof *p);
/* If the run ends early: the same without waiting for the tools. Keeps this thread's error message. No effect after end. */
void ls_nccl_proof_cut(ls_nccl_proof *p);
/* The member "nccl" of an open object; nothing without a summary. */
void ls_nccl_proof_write(const ls_nccl_proof *p, ls_jsonw *w);
void ls_nccl_proof_destroy(ls_nccl_proof **p);

#endif
