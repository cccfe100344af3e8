/* stages.h - assigns consecutive units to pipeline stages, balanced by cost.
 *
 * Units are embed, block 0 … L-1, head: numbers 0 … L+1. They are split into n_stage * n_chunk parts; part g has the units
 * first[g] … first[g+1]-1 and belongs to stage g mod n_stage (schedule.h). Every part has at least one unit.
 *
 *   automatic   minimizes the cost of the largest part; among such splits, the sum of squares (exact, by dynamic programming)
 *   manual      "0-3,4-9,10-13": first and last unit of each part */
#ifndef LS_PARALLEL_STAGES_H
#define LS_PARALLEL_STAGES_H

#include "compute/compute.h"
#include "core/str.h"
#include "model/config.h"
#include "parallel/schedule.h"

#define LS_STAGES_MAX_PART 1024

typedef struct ls_stages {
    int n_unit, n_stage, n_chunk;
    int first[LS_STAGES_MAX_PART + 1];
} ls_stages;

/* Floating-point operations of each unit for B * T tokens; act: elements kept for the backward pass. cost has room for L + 2. Loss and
 * gradient of the classifier are computed together (the logits are never stored whole), in the backward pass of head's part
 * (pipe_exec.h), so all of head is counted there. */
void ls_stages_model(const ls_model_config *c, int64_t B, int64_t T, ls_part_cost *cost);

/* Measures the seconds of each unit for B * T tokens on this machine, as cost has them above; act is from the cost model. A model of one
 * block, with the widths of the real one, runs forward and backward a few times; the cost of a unit is its fastest pass. It allocates memory
 * for embed, one block and head with their gradients, and frees it. */
ls_status ls_units_measure(const ls_model_config *c, ls_compute *compute, int64_t B, int64_t T, ls_part_cost *cost);

/* thread: the threads of each stage; NULL: equal. LS_E_CONFIG, with the arithmetic, if there are fewer units than parts. */
ls_status ls_stages_balance(ls_stages *out, const ls_part_cost *unit, int n_unit, int n_stage, int n_chunk,
                            const int *thread);
/* The same with n_thread threads to distribute over the stages: thread[k] for stage k, and the matching split. A local search from equal
 * shares minimizes the time of the slowest stage. The classifier alone may cost more than an equal share of the work. */
ls_status ls_stages_share(ls_stages *out, int *thread, const ls_part_cost *unit, int n_unit, int n_stage, int n_chunk,
                          int n_thread);
/* LS_E_ARG names the units on no stage or on two stages, or the wrong number of parts. */
ls_status ls_stages_parse(ls_stages *out, const char *text, int n_unit, int n_stage, int n_chunk);

/* The cost of each part; part has room for n_stage * n_chunk. */
void ls_stages_costs(const ls_stages *s, const ls_part_cost *unit, ls_part_cost *part);
/* One line per part: rank, units, share of the cost. */
void ls_stages_print(const ls_stages *s, const ls_part_cost *unit, ls_str *out);

#endif
