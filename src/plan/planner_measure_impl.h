/* planner_measure_impl.h - what the parts of measuring share.
 *
 *   planner_measure.c         starts the workers; overlap; statistics
 *   planner_measure_units.c   a worker's small model: its units and passes over memory
 *   planner_measure_model.c   that model: its plan, memory, parameters
 *   planner_measure_rates.c   a GPU's rates
 *   planner_measure_comm.c    collectives over sizes */
#ifndef LS_PLAN_PLANNER_MEASURE_IMPL_H
#define LS_PLAN_PLANNER_MEASURE_IMPL_H

#include "plan/planner_measure.h"
#include "train/plan_run.h"

#define PLANNER_REPS   400          /* of anything, at most               */
#define PLANNER_BUFFER (64LL << 20) /* bytes that collectives walk through */
#define PLANNER_SHARDS 2            /* of a layer: what is measured        */

#define PLANNER_LAYERS 4 /* of the small model, at most */

enum { T_ADAMW = LS_N_UNIT_TIME, T_SUMSQ, T_ADD, T_ALONE, PLANNER_TIMED };

/* ---- statistics ---- */

/* The mean of those that count (ls_measure_rows); sorts x. */
double planner_mean(double *x, int n, bool fastest);
/* Whether all have enough: one that has is enough. LS_E_STOPPED when one was asked to stop. Collective. */
ls_status planner_enough(ls_comm *c, bool mine, bool *enough);
/* x becomes its mean over all workers; n <= PLANNER_TIMED. Collective. */
ls_status planner_over_workers(ls_comm *c, double *x, int n);

/* ---- units ---- */

/* One worker's small model: a few blocks, whole or this worker's shard of them. */
typedef struct planner_bench {
    ls_comm *comm, *self, *tensor; /* all workers; itself; those with the other shards, or NULL */
    bool fastest;
    ls_train_config cfg;
    ls_compute compute; /* the worker's, with scratch of this model */
    uint64_t serial;    /* names of its recorded passes: no other model has had it */
    ls_stages stages;
    ls_run_parts parts;
    ls_acts *split; /* with a backward in two halves */
    int d_row;
    ls_micro mb;
    ls_hooks hooks;
} planner_bench;

typedef struct planner_times {
    double sec[PLANNER_TIMED];
    double shard[LS_N_UNIT_TIME]; /* with the sums between shards */
    double apart, beside, step;   /* ls_cluster_passes'           */
    double repetition;            /* seconds of one, all of it    */
} planner_times;

/* shards: of each layer, over as many neighbours; 1: whole layers. Collective. To be closed, also after a failure. */
ls_status planner_bench_open(planner_bench *b, const ls_measure_opts *o, int micro, int shards, ls_comm *comm,
                             const ls_compute *compute);
void planner_bench_close(planner_bench *b);

/* sec (LS_N_UNIT_TIME) but for the two halves of a block's backward. */
ls_status planner_fwd_and_bwd(planner_bench *b, double *sec);
/* For about so long; shard: the same model cut, or NULL. Everybody gets the same times. */
ls_status planner_time_units(planner_bench *b, planner_bench *shard, double seconds, planner_times *out);
/* About what the small model takes once. */
double planner_whole_pass(const double *sec);

/* ---- rates of a GPU ---- */

/* FLOP/s of products and attention; bytes/s and ramp are the caller's to derive. For about so long. */
ls_status planner_time_rates(ls_compute *compute, double seconds, ls_cluster_rates *out);

/* ---- collectives ---- */

typedef struct planner_buffers {
    const ls_compute *compute;
    char *whole, *part;
    int64_t at; /* bytes: the next piece of `whole` */
} planner_buffers;

ls_status planner_collective(ls_comm *c, ls_coll kind, planner_buffers *b, int64_t nbytes, ls_ticket *t);
ls_status planner_curve(ls_comm *c, ls_coll kind, planner_buffers *b, double seconds, bool fastest,
                        ls_cluster_curve *v);

#endif
