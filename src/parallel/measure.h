/* measure.h - what the units of a model cost on this machine, measured: for cutting a pipeline (stages.h).
 *
 * A model of one block, with the widths of the real one, goes forward and backward a few times; a unit's cost is its fastest pass. It needs
 * memory for embed, one block and head with their gradients, which is given back. */
#ifndef LS_PARALLEL_MEASURE_H
#define LS_PARALLEL_MEASURE_H

#include "compute/compute.h"
#include "parallel/schedule.h"
#include "model/config.h"

/* Seconds of each unit for B * T tokens; cost has room for n_layer + 2. act is the modelled one. */
ls_status ls_units_measure(const ls_model_config *c, ls_compute *compute, int64_t B, int64_t T, ls_part_cost *cost);

#endif
