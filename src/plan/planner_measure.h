/* planner_measure.h - a cluster file for this machine: units, passes over memory and collectives, timed with the library's own code.
 *
 * For every number of workers W that is asked for, W workers start as `lockstep train -n W` starts them (forked, each with its part of the
 * cores, its memory where peers can read it) and do the same things at the same time, so that what they take from each other is in the
 * times:
 *
 *   units        a few blocks between embed and head, forward, backward, and backward in two halves; of them every second worker's while
 *                the others wait; and the units of two shards
 *   rates        of a GPU: large products, attention, bytes/s of the update, for shapes that were not measured
 *   passes       AdamW, the norm, sums of gradients, over the parameters of that model
 *   collectives  each kind over sizes, from a barrier, in memory that was not just used
 *   overlap      forward and backward alone, all_reduces alone, both at once
 *   step         of a GPU: how long it has nothing to do between steps, while the host reads the norm and queues the update
 *
 * A GPU is opened by each worker through its plugin, as train does it; its times are read from its own clock, of passes that are recorded and
 * replayed as the trainer's are.
 *
 * Every figure is a mean over repetitions, without those that took more than twice the median, or of the fastest tenth (a machine that others
 * use, too). Means, because they add up: a step of many parts holds the small disturbances that the median of a part leaves out. */
#ifndef LS_PLAN_PLANNER_MEASURE_H
#define LS_PLAN_PLANNER_MEASURE_H

#include "plan/cluster_file.h"

#define LS_MEASURE_MICRO 4

typedef struct ls_measure_opts {
    ls_model_config model; /* its width, heads, vocabulary, dropout                 */
    int seq_len;
    int micro[LS_MEASURE_MICRO], n_micro; /* micro-batch sizes; 0: 1 and 4            */
    int workers[8], n_workers;            /* 0: 1, 2, 4 … up to the cores, the GPUs   */
    double seconds;                       /* about; 0: 20                             */
    int64_t bucket;                       /* elements of the all_reduces of `overlap` */
    bool fastest;
    bool cuda;  /* GPUs; else cores */
    int device; /* its index; -1: by the local rank */
    ls_dtype dtype;
    bool no_deterministic;
    void *ctx;
    void (*say)(void *ctx, const char *text); /* progress; may be NULL */
} ls_measure_opts;

/* Forks: call it before anything of this process has computed with threads. */
ls_status ls_planner_measure(const ls_measure_opts *given, ls_cluster *out);

/* Rows of n_column numbers, ordered by their first, at x: how many of them count, from the first on. */
int ls_measure_rows(const double *x, int n_column, int n, bool fastest);

#endif
