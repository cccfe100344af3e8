/* audit.h - compares what the workers of a run have computed, and finds the one that is wrong.
 *
 * The workers give 64-bit hashes, never tensors. What is compared:
 *
 *   at rest     parameters and optimizer state do not change between an update and the next one: two hashes of one worker
 *   sums        sums of gradients wait in memory until they are read: a hash when one is complete, and one before it is read
 *   replicas    parameters, and optimizer state where it is not sharded, have the same bits on every replica
 *   copies      tensors that tensor-parallel shards do not cut have the same bits on every shard
 *   passes      a micro-batch gives the same bits on every replica. Vote 0 is the pass of the replica p that owns it; in vote k it is
 *               computed again by the replica p - shift[k]
 *
 * The hashes of a pass are in the order of its computation: the first one that differs is where the error is. In it, the worker that the
 * majority contradicts is wrong. Without a majority, or if all tensor-parallel shards of a layer differ at once, nobody is blamed.
 *
 * A stage of a pipeline has, in the place of the sender's hash, that of what it received; if only this differs, nobody is blamed.
 *
 *   hashes of a pass   (input, heads, residual, MLP, output) of unit 0 … U-1 forward, then (gradient, gradient of the input) of unit U-1 … 0;
 *                      the input of a block only with sequence parallelism: its heads are computed from the rows of all shards. The last unit
 *                      has its input in the place of its heads, and the loss in that of its output
 *
 * These functions only compare arrays that all workers have gathered, so that all come to the same result. */
#ifndef LS_PARALLEL_AUDIT_H
#define LS_PARALLEL_AUDIT_H

#include "parallel/mesh.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ls_audit_what { LS_AUDIT_PARAM, LS_AUDIT_OPT, LS_AUDIT_ACT, LS_AUDIT_GRAD } ls_audit_what;
const char *ls_audit_word(ls_audit_what what); /* "parameters", "optimizer", "activation", "gradient" */

typedef struct ls_audit_fault {
    ls_audit_what what;
    int unit;
    int rank;          /* that is wrong; -1: not known                                      */
    int replica, with; /* of passes: whose micro-batch it is, and who computed it again; else -1 */
    bool at_rest;      /* memory of the rank changed while nothing wrote it                 */
    int first, last;   /* if rank is not known: one of these ranks is wrong; first -1: nor is that */
} ls_audit_fault;

/* Hashes of one unit's state: parameters that every tensor-parallel shard has, all parameters, optimizer state (with master weights). 0: this worker
 * has none. */
enum { LS_AUDIT_COPIES, LS_AUDIT_PARAMS, LS_AUDIT_OPTIMIZER, LS_AUDIT_N_STATE };
/* Hashes of one micro-batch, and where those of a unit begin. */
enum { LS_AUDIT_IN, LS_AUDIT_HEADS, LS_AUDIT_RESIDUAL, LS_AUDIT_MLP, LS_AUDIT_OUT, LS_AUDIT_N_FWD };
enum { LS_AUDIT_DW, LS_AUDIT_DX, LS_AUDIT_N_BWD };
static inline int ls_audit_n_pass(int n_unit)
{
    return (LS_AUDIT_N_FWD + LS_AUDIT_N_BWD) * n_unit;
}
static inline int ls_audit_fwd(int u, int which)
{
    return LS_AUDIT_N_FWD * u + which;
}
static inline int ls_audit_bwd(int n_unit, int u, int which)
{
    return LS_AUDIT_N_FWD * n_unit + LS_AUDIT_N_BWD * (n_unit - 1 - u) + which;
}

/* now and then: LS_AUDIT_N_STATE hashes of n_unit units for every rank, rank-major; then NULL: replicas only. replicated[k]: whether hash
 * k must be the same on all replicas; copies are the same on all shards in any case. True: something differs, described in f. */
bool ls_audit_state(const ls_mesh *m, int n_unit, const uint64_t *then, const uint64_t *now,
                    const bool replicated[LS_AUDIT_N_STATE], ls_audit_fault *f);

/* hash: of every rank, rank-major, n of sums that were complete, then n of the same before they were read; n is a multiple of n_unit, and the units of a
 * level are together. True: some differ, described in f. */
bool ls_audit_sums(const ls_mesh *m, int n_unit, int n, const uint64_t *hash, ls_audit_fault *f);

#define LS_AUDIT_VOTES 4
typedef struct ls_audit_votes {
    int n, n_unit, n_micro;
    int shift[LS_AUDIT_VOTES]; /* shift[0] is 0 */
    /* ls_audit_n_pass hashes of n_micro micro-batches for every rank, rank-major: of the micro-batches of replica (its own + shift) */
    const uint64_t *hash[LS_AUDIT_VOTES];
} ls_audit_votes;

/* Compares the votes on the micro-batches of all replicas. True: some differ, described in f. */
bool ls_audit_passes(const ls_mesh *m, const ls_audit_votes *v, ls_audit_fault *f);

/* The votes that decide once votes 0 and 1 differ: sets their shifts from shift[1], and n. */
void ls_audit_more_votes(const ls_mesh *m, ls_audit_votes *v);

#endif
