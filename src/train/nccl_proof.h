/* nccl_proof.h - what NCCL, the driver and the network cards state about a run over NCCL, kept in its folder.
 *
 *   nccl/nccl_rank_<host>_<pid>.log   NCCL's own log, one per worker: NCCL_DEBUG=INFO of INIT,GRAPH,ENV,NET (nothing per collective)
 *   nccl/summary.json                 rank 0, at the end of a run that has begun, however it ends: the logs in numbers (core/nccl_log.h), and how the tools ended
 *   topo.txt, ibstat.txt              `nvidia-smi topo -m`, `ibstat` of rank 0's host; of other hosts nccl/topo_<host>.txt, nccl/ibstat_<host>.txt
 *   nccl/gpus_<host>.csv              `nvidia-smi --query-gpu=...` of each host
 *   nccl_topo.xml                     mode "full": the machine as NCCL sees it (NCCL_TOPO_DUMP_FILE)
 *
 * Names and places of topo.txt, ibstat.txt and nccl_topo.xml are R1's (docs/REFERENCES.md). What the user has set stays: where NCCL_DEBUG is
 * set, none of NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE is touched, and a NCCL_DEBUG_FILE of the user's is what the summary is
 * made from. NCCL_TOPO_DUMP_FILE is set on every worker or on none: with it NCCL meets once more, on all workers of a host.
 *
 * Until the first step nothing of an earlier run in the same folder is touched, and a start that ends before it takes its own files away;
 * only where NCCL itself failed, its log stays. With the first step, what an earlier run has left goes to earlier-<k>/, beside its
 * checkpoints (also when this run is not one over NCCL). A resumed run keeps its logs; the output of its tools and its summary move to
 * nccl/session-<k>/, so that no file of an earlier session is taken for one of this session.
 *
 * Nothing here fails a run, save that earlier files cannot be moved. */
#ifndef LS_TRAIN_NCCL_PROOF_H
#define LS_TRAIN_NCCL_PROOF_H

#include "core/json.h"

#include <limits.h>
#include <stdbool.h>

typedef struct ls_nccl_proof ls_nccl_proof; /* every function takes NULL: nothing is collected */

typedef struct ls_nccl_proof_opts {
    const char *run_dir;
    const char *mode; /* "off", "log", "full" */
    int rank, local_rank;
    double tool_seconds; /* for all tools of a host together; 0: 8 */
} ls_nccl_proof_opts;

/* Before NCCL is loaded, on every worker: the folder and the environment. */
void ls_nccl_proof_begin(ls_nccl_proof **out, const ls_nccl_proof_opts *o);
/* When workers have their communicator. in_use false: it is another one, and everything is taken back. */
void ls_nccl_proof_joined(ls_nccl_proof *p, bool in_use);
/* Rank 0, when the first step is next and before anyone's ls_nccl_proof_started: what an earlier run has left moves. p NULL: this run
 * collects nothing. where: the folder earlier-<k> of this start, or "" when there is none yet; it is created where it is needed. A folder
 * without files in nccl/ has no evidence of an earlier run: a topo.txt there is a launcher's. */
ls_status ls_nccl_proof_set_aside(const ls_nccl_proof *p, const char *run_dir, bool resume, char where[PATH_MAX]);
/* Everyone, after that: the tools begin. */
void ls_nccl_proof_started(ls_nccl_proof *p);
/* After the last collective of all workers: rank 0 writes the summary. */
void ls_nccl_proof_end(ls_nccl_proof *p);
/* When the run ends early: writes the summary from what exists, without waiting for tools. Keeps this thread's error message. No effect after end. */
void ls_nccl_proof_cut(ls_nccl_proof *p);
/* The member "nccl" of an open object; nothing when there is no summary. */
void ls_nccl_proof_write(const ls_nccl_proof *p, ls_jsonw *w);
void ls_nccl_proof_destroy(ls_nccl_proof **p);

#endif
