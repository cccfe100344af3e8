/* measure.h - measures the cost of the units of a model on this machine, to split a pipeline (stages.h).
 *
 * A model of one block, with the widths of the real one, runs forward and backward a few times; the cost of a unit is its fastest pass. It
 * allocates memory for embed, one block and head with their gradients, and frees it. */
#ifndef LS_PARALLEL_MEASURE_H
#define LS_PARALLEL_MEASURE_H

#include "compute/compute.h"
#include "parallel/schedule.h"
#include "model/config.h"

/* Seconds of each unit for B * T tokens; cost has room for n_layer + 2. act is from the cost model. */
ls_status ls_units_measure(const ls_model_config *c, ls_compute *compute, int64_t B, int64_t T, ls_part_cost *cost);

#endif
