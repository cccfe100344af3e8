/* stages.h - which units lie on which stage: consecutive runs, as equal in cost as can be.
 *
 * Units are embed, block 0 … L-1, head: numbers 0 … L+1. They are cut into n_stage * n_chunk parts; part g has the
 * units first[g] … first[g+1]-1 and lies on stage g mod n_stage (schedule.h). Every part has at least one unit.
 *
 *   automatic   the largest part costs as little as possible; among such cuts, the one with the smallest sum of
 *               squares (exact, by dynamic programming: units^2 * parts)
 *   by hand     "0-3,4-9,10-13": first and last unit of each part
 */
#ifndef LS_PARALLEL_STAGES_H
#define LS_PARALLEL_STAGES_H

#include "core/err.h"
#include "core/str.h"
#include "model/config.h"
#include "parallel/schedule.h"

#define LS_STAGES_MAX_PART 1024

typedef struct ls_stages {
    int n_unit, n_stage, n_chunk;
    int first[LS_STAGES_MAX_PART + 1];
} ls_stages;

/* Floating-point operations of each unit for rows = B * T tokens; act: elements it keeps for backward. cost has room
 * for L + 2. Loss and gradient of the classifier are made together (the logits are never held whole), in the backward of head's part
 * (pipe_exec.h), so all of head is counted there. */
void ls_stages_model(const ls_model_config *c, int64_t B, int64_t T, ls_part_cost *cost);

/* LS_E_CONFIG with the arithmetic when there are fewer units than parts. */
ls_status ls_stages_balance(ls_stages *out, const ls_part_cost *unit, int n_unit, int n_stage, int n_chunk);
/* The same where n_thread threads can be shared out among the stages: thread[k] of stage k, and the cut that goes with them, so that the
 * slowest stage takes as little time as a walk from equal shares finds. The classifier alone may cost more than a stage's part. */
ls_status ls_stages_balance_on(ls_stages *out, const ls_part_cost *unit, int n_unit, int n_stage, int n_chunk,
                               const int *thread); /* the cut for given threads of each stage */
ls_status ls_stages_share(ls_stages *out, int *thread, const ls_part_cost *unit, int n_unit, int n_stage, int n_chunk,
                          int n_thread);
/* LS_E_ARG names the gap, the overlap or what is left over. */
ls_status ls_stages_parse(ls_stages *out, const char *text, int n_unit, int n_stage, int n_chunk);

/* Sums of the parts; part has room for n_stage * n_chunk. */
void ls_stages_costs(const ls_stages *s, const ls_part_cost *unit, ls_part_cost *part);
/* A line a part: rank, units, share of the cost. */
void ls_stages_print(const ls_stages *s, const ls_part_cost *unit, ls_str *out);

/* ---- R3's rules (docs/REFERENCES.md), for comparison ---- */

/* L blocks over D devices in runs of ceil(L / D): count[d] blocks each; returns the devices used. */
int ls_partition_blocks(int n_block, int n_device, int *count);

/* Where a module lies: the device it was wrapped with, else that of its parameters, else the CPU. */
#define LS_DEVICE_CPU  (-1)
#define LS_DEVICE_NONE (-2)
typedef struct ls_module_place {
    int declared;            /* LS_DEVICE_NONE when not wrapped */
    const int *param_device; /* of each of its parameters       */
    int n_param;
} ls_module_place;
/* A new partition wherever the device changes. first[k] is a partition's first module, device[k] its device; both
 * have room for n. LS_E_CONFIG when parameters of one module lie on several devices. */
ls_status ls_partition_modules(const ls_module_place *module, int n, int *first, int *device, int *n_part);

#endif
