/* planner_impl.h - a simulated worker: it runs the code of a training step, but operations advance a clock by predicted times. */
#ifndef LS_PLAN_PLANNER_IMPL_H
#define LS_PLAN_PLANNER_IMPL_H

#include "plan/planner.h"
#include "train/plan_run.h"

typedef struct planner_worker {
    ls_compute compute; /* must be first: operations find the worker through it */
    ls_compute_ops ops; /* its table: passes over memory advance the clock*/
    const ls_cluster *cl;
    const ls_train_config *c;
    int D;                 /* replicas */
    ls_crowd crowd;        /* placement of workers, and how many share a core */
    bool by_parts, master; /* strategy: gradients are sharded; one worker updates */
    ls_cluster_passes pass;
    int threads;                 /* of this worker; 0: as measured */
    double fwd[3], bwd[3];       /* seconds by ls_unit_kind */
    double alike;                /* factor on them; below 1 if workers synchronize once per step */
    double tp_fwd[3], tp_bwd[3]; /* all-reduces of tensor parallelism */

    ls_dry_clock clock;
    ls_run_groups g;
    ls_comm *world;
    ls_schedule *schedule; /* of a pipeline, with its stages; else NULL */
    ls_stages stages;
    ls_run_parts parts;
    double *part; /* member of p to which passes over memory are added now */
    ls_prediction p;
} planner_worker;

/* ls_planner_memory with stages and schedule that were made before (ls_run_stages), which are the caller's. Without a pipeline schedule is NULL. */
ls_status planner_memory_in(const ls_train_config *c, ls_compute *gpu, ls_worker_cpu cpu, int rank, int64_t val_seqs,
                            ls_stages *stages, ls_schedule *schedule, ls_plan_memory *out);

/* Worker `rank` of the run; its strategy is bound to addresses without memory. Close it even after a failure. */
ls_status planner_open(planner_worker *w, int rank);
void planner_close(planner_worker *w);

/* Seconds of a collective of n workers with stride `span` between ranks, on one host (with shared cores) or on several. */
double planner_collective_sec(const planner_worker *w, ls_coll kind, int n, int span, double bytes);

/* Sets the buckets of gradients and parameters so large that their transfer takes as long as their latency; at least the defaults. */
void planner_buckets(const ls_cluster *cl, ls_train_config *c);

/* Lower bound of the predicted seconds of a step, without a simulation. For GPUs. */
double planner_least(const ls_cluster *cl, const ls_train_config *c);

/* Memory of the worst worker of a layout, and whether it fits: worst, worst_rank, comm_bytes, host_bytes, fits, why. */
ls_status planner_fit(const ls_cluster *cl, const ls_planner_query *q, ls_planned *l);

/* Device memory of the worst worker, sums over NCCL included. */
int64_t planner_need(const ls_planned *l);
/* "143,700": tokens/s with four digits. */
char *planner_rate_words(char buf[40], double tokens_per_sec);

/* Simulates a step after a first one; fills w->p except tokens_per_sec. */
ls_status planner_walk(planner_worker *w);

#endif
