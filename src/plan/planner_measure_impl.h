/* planner_measure_impl.h - shared by the files of plan --measure.
 *
 *   planner_measure.c         starts the workers; statistics; collectives and their overlap with compute
 *   planner_measure_units.c   times of units and memory passes of a small model
 *   planner_measure_rates.c   a GPU's rates
 *   planner_measure_offload.c the update of an optimizer in host memory */
#ifndef LS_PLAN_PLANNER_MEASURE_IMPL_H
#define LS_PLAN_PLANNER_MEASURE_IMPL_H

#include "plan/planner_measure.h"
#include "train/plan_run.h"

#define PLANNER_REPS    400 /* of anything, at most        */
#define PLANNER_WORKERS 64  /* at most                     */
#define PLANNER_LAYERS  4   /* of the small model, at most */

enum { T_ADAMW = LS_N_UNIT_TIME, T_SUMSQ, T_ADD, T_ALONE, PLANNER_TIMED };

/* ---- statistics ---- */

/* *enough is true for all workers if one has measured enough. LS_E_STOPPED if one received a stop request. Collective. */
ls_status planner_enough(ls_comm *c, bool mine, bool *enough);
/* The value of each worker. Collective. */
ls_status planner_gather(ls_comm *c, double mine, double all[PLANNER_WORKERS]);
/* Each of n numbers becomes its mean over all workers. Collective. */
ls_status planner_over_workers(ls_comm *c, double *x, int n);

/* ---- units ---- */

/* The small model of a worker: a few blocks, or the shard of this worker. */
typedef struct planner_bench {
    ls_comm *comm, *self, *tensor; /* all workers; this worker; the workers with the other shards, or NULL */
    bool fastest;
    ls_train_config cfg;
    ls_compute compute; /* the worker's, with scratch of this model */
    uint64_t serial;    /* unique key of its recorded passes */
    ls_stages stages;
    ls_run_parts parts;
    ls_acts *split; /* with a backward in two halves */
    int d_row;
    ls_micro mb;
    ls_hooks hooks;
} planner_bench;

typedef struct planner_times {
    double sec[LS_N_UNIT_TIME];
    double shard[LS_N_UNIT_TIME]; /* including the all-reduces         */
    ls_cluster_passes pass;       /* overlap 1: it is measured later   */
    double repetition;            /* seconds of one, all of it         */
} planner_times;

/* shards: number of workers that share a layer; 1: whole layers. Collective. Close it even after a failure. */
ls_status planner_bench_open(planner_bench *b, const ls_measure_opts *o, int micro, int shards, ls_comm *comm,
                             const ls_compute *compute);
void planner_bench_close(planner_bench *b);

/* Fills sec (LS_N_UNIT_TIME) except the two halves of the block backward. */
ls_status planner_fwd_and_bwd(planner_bench *b, double *sec);
/* Runs for about `seconds`; shard: the same model sharded, or NULL. All workers get the same times. */
ls_status planner_time_units(planner_bench *b, planner_bench *shard, double seconds, planner_times *out);

/* ---- rates of a GPU ---- */

/* FLOP/s of matrix products and attention, measured for about `seconds`. The caller derives bytes/s and ramp. */
ls_status planner_time_rates(ls_compute *compute, double seconds, ls_cluster_rates *out);
/* Seconds per element of AdamW in host memory, for about `seconds`: sets offload and on_host. Collective. */
ls_status planner_time_offload(ls_compute *compute, ls_comm *comm, double seconds, ls_cluster_passes *out);

#endif
