/* comm_bench.h - times of collectives by size, reported as nccl-tests does, in host or device memory.
 *
 *   time     of one call on the slowest worker; rounds of several calls after a barrier, mean and 95 % interval over rounds
 *   algbw    bytes / time; bytes: size of the whole buffer (all_gather: the result, reduce_scatter: the input)
 *   busbw    algbw x 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter and all_gather, 1 for the others: what the links carry
 *
 * Two variants, if the communicator supports them: out of place (result and input are different buffers) and in place. all_reduce, reduce and
 * broadcast of comm.h are in place, messages are out of place; reduce_scatter and all_gather support both. In host memory one variant is measured
 * (reduce_scatter and all_gather: out of place), on a device both.
 *
 * On a device the calls of a round are queued, and the clock is read when all are complete. Every element of every result is checked once
 * per size and variant. */
#ifndef LS_BENCH_COMM_BENCH_H
#define LS_BENCH_COMM_BENCH_H

#include "comm/comm.h"
#include "core/stat.h"

/* In addition to the kinds of comm.h: each worker sends to the next one and receives from the previous one at the same time. */
#define LS_BENCH_SENDRECV ((ls_coll)LS_N_COLL)
const char *ls_comm_bench_word(ls_coll kind);

enum { LS_BENCH_OUT_OF_PLACE, LS_BENCH_IN_PLACE, LS_BENCH_SIDES };

typedef struct ls_comm_bench_side {
    bool measured;
    ls_estimate time;    /* seconds of a call */
    double algbw, busbw; /* bytes per second; 0 for the barrier */
    int64_t wrong;       /* elements, over all workers */
} ls_comm_bench_side;

typedef struct ls_comm_bench_row {
    ls_coll kind; /* LS_COLL_SEND: half of the time to the neighbour and back */
    int64_t nbytes,
        count; /* bytes of the whole buffer; elements per worker in reduce_scatter and all_gather, else all elements */
    int root;  /* -1: no root */
    bool sums;
    ls_comm_bench_side side[LS_BENCH_SIDES];
} ls_comm_bench_row;

typedef struct ls_comm_bench {
    const ls_device *dev; /* use device memory (c must support it); NULL: host memory */
    int64_t min_bytes, max_bytes, factor;
    int rounds;
    unsigned kinds;                                     /* bit 1 << kind; 0: all kinds that this memory supports */
    void (*row)(void *ctx, const ls_comm_bench_row *r); /* on rank 0 */
    void *ctx;
} ls_comm_bench;

/* Collective over c. LS_E_COMM if a result is wrong; LS_E_ARG for a kind that is not supported in device memory. */
ls_status ls_comm_bench_run(ls_comm *c, const ls_comm_bench *o);
/* "all_reduce,send" to bits. LS_E_ARG. */
ls_status ls_comm_bench_kinds(const char *list, unsigned *kinds);

#endif
