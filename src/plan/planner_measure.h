/* planner_measure.h - measures this machine for a cluster file: units, passes over memory and collectives, with the code of training.
 *
 * For each requested number of workers W, W workers start as with `lockstep train -n W` (forked, each with its share of the cores, with
 * memory that peers can read) and run the same work at the same time, so that the times include their
 * interference:
 *
 *   units        a few blocks between embed and head: forward, backward, and backward in two halves; the same on every second worker
 *                while the others wait; and the units of two shards
 *   rates        GPU only: large matrix products, attention, bytes/s of the update, for shapes that were not measured
 *   passes       AdamW, gradient norm and gradient sums over the parameters of that model
 *   collectives  each kind for several sizes, after a barrier, in memory that is not in the cache
 *   overlap      forward and backward alone, all_reduces alone, and both together
 *   step         GPU only: idle time between steps, while the host reads the norm and queues the update
 *
 * Each worker opens its GPU through the plugin, as train does. Times come from the clock of the GPU; passes are recorded and replayed as in
 * training.
 *
 * Each number is a mean over repetitions without those above twice the median, or over the fastest 10 % (shared machine). Means are used
 * because they add up: a step of many parts includes the small disturbances that a median ignores. */
#ifndef LS_PLAN_PLANNER_MEASURE_H
#define LS_PLAN_PLANNER_MEASURE_H

#include "plan/cluster_file.h"

#define LS_MEASURE_MICRO 4

typedef struct ls_measure_opts {
    ls_model_config model; /* width, heads, vocabulary and dropout are used*/
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

/* Forks; call it before this process starts compute threads. */
ls_status ls_planner_measure(const ls_measure_opts *given, ls_cluster *out);

/* x has n rows of n_column numbers, sorted by the first column. Returns how many rows, from the first, are used. */
int ls_measure_rows(const double *x, int n_column, int n, bool fastest);

#endif
