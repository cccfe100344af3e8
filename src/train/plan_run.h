/* plan_run.h - what one worker of a run will hold, before anything is allocated.
 *
 *   config, this worker's groups  ->  stages and schedule  ->  model tables  ->  strategy, activations or pipeline: rows of one plan
 *
 * The trainer allocates this plan; `lockstep plan` makes it over dry communicators for any worker of any layout. Both come through here,
 * so that the planner's bytes are the run's bytes. */
#ifndef LS_TRAIN_PLAN_RUN_H
#define LS_TRAIN_PLAN_RUN_H

#include "core/plan.h"
#include "model/model.h"
#include "model/input.h"
#include "parallel/pipe_exec.h"
#include "parallel/strategy.h"
#include "config/resolve.h"

/* The groups a worker belongs to. Of dry ones only rank and size are looked at. */
typedef struct ls_run_groups {
    ls_coord at;                      /* this worker's place in the mesh                                 */
    ls_comm *dp;                      /* the replicas of its part of the model                           */
    ls_comm *tp;                      /* those that have the other shards of its layers, or NULL         */
    ls_comm *pp, *pp_acts, *pp_grads; /* the stages of its replica: step, activations, gradients; or NULL */
} ls_run_groups;

typedef struct ls_run_rows { /* of the plan */
    int norm, micro_loss, val_loss;
    int fp8;  /* magnitudes of all workers; -1: none */
    int copy; /* of what the worker writes to checkpoints, n_copy bytes; -1: none */
    int64_t n_copy;
} ls_run_rows;

typedef struct ls_run_parts {
    ls_stages *stages;     /* in: room for them; filled with pp > 1    */
    ls_schedule *schedule; /* of a pipeline, or NULL; in: made before, with stages */
    ls_model *model;
    ls_strategy *strategy;
    ls_acts *acts; /* without a pipeline                    */
    ls_pipe *pipe;
    ls_input input;
    ls_plan plan; /* rows; not laid out                    */
    ls_run_rows row;
} ls_run_parts;

/* LS_E_CONFIG, with the arithmetic, for a layout that cannot work. val_seqs: validation sequences. Everything in out is the caller's,
 * also after a failure (ls_run_parts_fini, or taken over). */
ls_status ls_run_plan(const ls_train_config *c, ls_compute *compute, const ls_run_groups *g, int64_t val_seqs,
                      ls_run_parts *out);
/* Of it the model and its strategy alone. */
ls_status ls_run_plan_strategy(const ls_train_config *c, ls_compute *compute, const ls_run_groups *g,
                               ls_run_parts *out);
void ls_run_parts_fini(ls_run_parts *p);

/* Which units each stage has, and in which order the stages work. Nothing without a pipeline. measured: costs of the units in place of
 * the model's operations, or NULL. */
ls_status ls_run_stages(const ls_train_config *c, const ls_part_cost *measured, ls_stages *stages,
                        ls_schedule **schedule);
bool ls_run_measures_stages(const ls_train_config *c); /* --stages measured */

#endif
