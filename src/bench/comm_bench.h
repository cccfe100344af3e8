/* comm_bench.h - how fast collectives are, by size: nccl-tests' numbers, of host memory or of a device's.
 *
 *   time     of one call, the slowest worker's; rounds of several calls after a barrier, mean and 95 % interval over rounds
 *   algbw    bytes / time; bytes: of the whole buffer (all_gather: of what is gathered, reduce_scatter: of what is summed)
 *   busbw    algbw x 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter and all_gather, 1 for the others: what the links carry
 *
 * Two sides, as far as the communicator has them: out of place (result and input are different buffers) and in place. all_reduce, reduce and
 * broadcast of comm.h are in place, messages are out of place; reduce_scatter and all_gather are both. On host memory one side is measured
 * (reduce_scatter and all_gather: out of place), on a device both.
 *
 * On a device the calls of a round are queued one after the other, and the clock is read when the device has done all of them.
 * Every element of every result is compared with the value it must have, once for each size and side. */
#ifndef LS_BENCH_COMM_BENCH_H
#define LS_BENCH_COMM_BENCH_H

#include "comm/comm.h"
#include "core/stat.h"

/* Beside the kinds of comm.h: every worker sends to the next one and receives from the one before it, at the same time. */
#define LS_BENCH_SENDRECV ((ls_coll)LS_N_COLL)
const char *ls_comm_bench_word(ls_coll kind);

enum { LS_BENCH_OUT_OF_PLACE, LS_BENCH_IN_PLACE, LS_BENCH_SIDES };

typedef struct ls_comm_bench_side {
    bool measured;
    ls_estimate time;    /* seconds of a call */
    double algbw, busbw; /* bytes a second; 0 for the barrier */
    int64_t wrong;       /* elements, over all workers */
} ls_comm_bench_side;

typedef struct ls_comm_bench_row {
    ls_coll kind; /* LS_COLL_SEND: to the neighbour and back, half of it */
    int64_t nbytes,
        count; /* of the whole buffer; elements that a worker has of it in reduce_scatter and all_gather, else all */
    int root;  /* -1: it has none */
    bool sums;
    ls_comm_bench_side side[LS_BENCH_SIDES];
} ls_comm_bench_row;

typedef struct ls_comm_bench {
    const ls_device *dev; /* buffers are its memory, and c takes that; NULL: host memory */
    int64_t min_bytes, max_bytes, factor;
    int rounds;
    unsigned kinds;                                     /* bit 1 << kind; 0: all that this memory has */
    void (*row)(void *ctx, const ls_comm_bench_row *r); /* on rank 0 */
    void *ctx;
} ls_comm_bench;

/* Collective over c. LS_E_COMM when a result is wrong. LS_E_ARG: a kind that a device's memory does not have. */
ls_status ls_comm_bench_run(ls_comm *c, const ls_comm_bench *o);
/* "all_reduce,send" to bits. LS_E_ARG. */
ls_status ls_comm_bench_kinds(const char *list, unsigned *kinds);

#endif
