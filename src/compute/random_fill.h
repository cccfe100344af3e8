/* random_fill.h - device buffers with random numbers, for benchmarks: a device that multiplies zeros draws less power and runs faster. */
#ifndef LS_COMPUTE_RANDOM_FILL_H
#define LS_COMPUTE_RANDOM_FILL_H

#include "compute/compute.h"

/* n normal fp32 numbers in device memory. The caller releases *out. */
ls_status ls_random_block(ls_compute *c, int64_t n, void **out);

/* A device buffer of n elements in the type of the operations, filled with repetitions of the block. The caller releases *out. */
ls_status ls_random_buffer(ls_compute *c, const void *block, int64_t n_block, int64_t n, void **out);

#endif
