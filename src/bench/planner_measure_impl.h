/* planner_measure_impl.h - what the two halves of measuring share. */
#ifndef LS_BENCH_PLANNER_MEASURE_IMPL_H
#define LS_BENCH_PLANNER_MEASURE_IMPL_H

#include "bench/planner_measure.h"

#define PLANNER_REPS   400          /* of anything, at most               */
#define PLANNER_BUFFER (64LL << 20) /* bytes that collectives walk through */

enum { T_ADAMW = LS_N_UNIT_TIME, T_SUMSQ, T_ADD, T_ALONE, PLANNER_TIMED };

typedef struct planner_buffers {
    char *whole, *part;
    int64_t at; /* bytes: the next piece of `whole` */
} planner_buffers;

/* The mean of those that count (ls_measure_rows); sorts x. */
double planner_mean(double *x, int n, bool fastest);
/* x becomes its mean over all workers; n <= PLANNER_TIMED. Collective. */
ls_status planner_over_workers(ls_comm *c, double *x, int n);

ls_status planner_collective(ls_comm *c, ls_coll kind, planner_buffers *b, int64_t nbytes, ls_ticket *t);
ls_status planner_curve(ls_comm *c, ls_coll kind, planner_buffers *b, double seconds, bool fastest,
                        ls_cluster_curve *v);

#endif
