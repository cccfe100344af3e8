/* comm_bench.h - how fast collectives are, by size: nccl-tests' numbers.
 *
 *   time     of one call, the slowest worker's; rounds of several calls behind a barrier, mean and 95 % interval over rounds
 *   algbw    bytes / time; bytes: of the whole buffer (all_gather: of what is gathered, reduce_scatter: of what is summed)
 *   busbw    algbw x 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter and all_gather, 1 for the others: what the links carry
 *
 * Every result is compared with the value it must have, once for each size. */
#ifndef LS_BENCH_COMM_BENCH_H
#define LS_BENCH_COMM_BENCH_H

#include "comm/comm.h"
#include "core/stat.h"

typedef struct ls_comm_bench_row {
    ls_coll kind; /* LS_COLL_SEND: to the neighbour and back, half of it */
    int64_t nbytes;
    ls_estimate time;    /* seconds of a call */
    double algbw, busbw; /* bytes a second; 0 for the barrier */
    int64_t wrong;       /* elements, of those looked at, over all workers */
} ls_comm_bench_row;

typedef struct ls_comm_bench {
    int64_t min_bytes, max_bytes, factor;
    int rounds;
    unsigned kinds;                                     /* bit 1 << kind; 0: all */
    void (*row)(void *ctx, const ls_comm_bench_row *r); /* on rank 0 */
    void *ctx;
} ls_comm_bench;

/* Collective over c. LS_E_COMM when a result is wrong. */
ls_status ls_comm_bench_run(ls_comm *c, const ls_comm_bench *o);
/* "all_reduce,send" to bits. LS_E_ARG. */
ls_status ls_comm_bench_kinds(const char *list, unsigned *kinds);

#endif
