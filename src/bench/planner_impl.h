/* planner_impl.h - one worker's two lanes, between the walk of a step and the seconds of its units. */
#ifndef LS_BENCH_PLANNER_IMPL_H
#define LS_BENCH_PLANNER_IMPL_H

#include "bench/planner.h"
#include "parallel/strategy.h"

typedef enum planner_way { SINGLE, DP, DDP, ZERO1, ZERO2, ZERO3, N_WAY } planner_way;

typedef struct planner_flight {
    int unit, micro;
    int64_t n;
    double at; /* arrival */
} planner_flight;

typedef struct planner_worker {
    const ls_cluster *cl;
    const ls_train_config *c;
    const ls_model *m;
    const unsigned char *role; /* NULL: all units are here */
    planner_way way;
    int D; /* replicas */
    bool between;
    ls_cluster_passes pass;
    int threads;                     /* of this worker; 0: as measured with so many workers */
    double fwd[3], bwd[3];           /* seconds by ls_unit_kind */
    double seam_fwd[3], seam_bwd[3]; /* of sums between shards of a layer */
    double now, lane;                /* of the two lanes        */
    double busy;                     /* of the collectives      */
    ls_prediction p;

    double *gather; /* by unit: arrival of its parameters; 0: here      */
    bool *held;     /* zero3: gathered, or on its way                   */
    int waiting;
    int64_t n_waiting, capacity, in_flight;
    double last; /* arrival of the newest gradient bucket            */
    planner_flight flight[LS_WINDOW_MAX];
    int n_flight;
} planner_worker;

static inline bool planner_here(const planner_worker *w, int u)
{
    return !w->role || w->role[u] == LS_ROLE_HERE;
}

/* One step after one before it: fills w->p, of which tokens_per_sec is left. */
ls_status planner_walk(planner_worker *w);

#endif
