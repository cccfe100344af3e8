/* named_ops.h - wraps a backend's table to record which operation is about to be queued: for profiles. Without it nothing is paid. */
#ifndef LS_COMPUTE_NAMED_OPS_H
#define LS_COMPUTE_NAMED_OPS_H

#include "compute/compute.h"

typedef struct compute_named {
    ls_compute_ops ops; /* first: c->ops points here */
    const ls_compute_ops *inner;
    void *ctx;
    uint32_t (*enter)(void *ctx, int op);      /* before operation `op` is queued; what leave wants back */
    void (*leave)(void *ctx, uint32_t before); /* after it, or NULL */
    bool no_regions; /* nothing is recorded to run again: every operation is queued by a call */
} compute_named;

/* From now on operations of c go through n, whose ctx, enter and leave are set. */
void compute_named_begin(compute_named *n, ls_compute *c);
void compute_named_end(compute_named *n, ls_compute *c);

/* "linear_fwd"; op from 1 on. */
const char *compute_named_word(int op);

#endif
