/* planner_impl.h - a worker that takes time instead of computing, between the run of its step and the seconds of its units. */
#ifndef LS_PLAN_PLANNER_IMPL_H
#define LS_PLAN_PLANNER_IMPL_H

#include "plan/planner.h"
#include "train/plan_run.h"

typedef struct planner_worker {
    ls_compute compute; /* first: the backend's operations find their worker here */
    ls_compute_ops ops; /* its table: passes over memory take time                */
    const ls_cluster *cl;
    const ls_train_config *c;
    int D;                 /* replicas */
    ls_crowd crowd;        /* where workers lie, and how many share a core */
    bool by_parts, master; /* the strategy's: gradients held by parts, one worker updates */
    ls_cluster_passes pass;
    int threads;                     /* of this worker; 0: as measured with so many workers */
    double fwd[3], bwd[3];           /* seconds by ls_unit_kind */
    double alike;                    /* what of them counts: less than 1 where workers meet once a step */
    double seam_fwd[3], seam_bwd[3]; /* of sums between shards of a layer */

    ls_dry_clock clock;
    ls_run_groups g;
    ls_comm *world;
    ls_schedule *schedule; /* of a pipeline, with its stages; else NULL */
    ls_stages stages;
    ls_run_parts parts;
    double *part; /* of p: where passes over memory belong just now */
    ls_prediction p;
} planner_worker;

/* The backend that a plan asks for sizes: of cores, or of a GPU that need not be there. */
ls_status planner_sizes(const ls_train_config *c, int threads, ls_compute *out);

/* The groups of worker `rank`, dry; with a clock where there is one. To be closed, also after a failure. */
ls_status planner_groups(const ls_mesh *mesh, int rank, ls_dry_clock *clock, ls_run_groups *g);
void planner_groups_close(ls_run_groups *g);

/* Worker `rank` of the run, with its strategy bound to addresses without memory. To be closed, also after a failure. */
ls_status planner_open(planner_worker *w, int rank);
void planner_close(planner_worker *w);

/* Seconds of a collective of n workers whose ranks lie in rows of `span`: of this host, with its cores shared out, or of several. */
double planner_collective_sec(const planner_worker *w, ls_coll kind, int n, int span, double bytes);

/* One step after one before it: fills w->p, of which tokens_per_sec is left. */
ls_status planner_walk(planner_worker *w);

#endif
