/* sizes.h - between compute.c and sizes.c: a backend of sizes alone (ls_compute_open_sizes). */
#ifndef LS_COMPUTE_SIZES_H
#define LS_COMPUTE_SIZES_H

#include "compute/compute.h"

bool compute_sizes_only(const ls_compute *c);
size_t compute_sizes_scratch(const ls_compute *c, const ls_compute_shapes *s);
void compute_sizes_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS]);

#endif
