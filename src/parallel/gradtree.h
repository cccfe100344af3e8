/* gradtree.h - the gradients of a step's micro-batches, summed in one fixed binary tree.
 *
 * The gradients of micro-batches 0 … G-1 are summed as a binary tree: the list is split at the largest power of two below G, the left part
 * is a full tree, and the right part is split the same way. For five micro-batches:
 *
 *            (((0+1)+(2+3))+4)
 *
 * With a running sum, the result would depend on the number of workers; with the tree it does not.
 * The tree is built like a binary counter: level k holds the sum of 2^k consecutive micro-batch gradients, and a new one carries. One that
 * carries is written to one scratch buffer, as large as the largest unit, and added unit by unit when it is ready.
 *
 * If accumulating into a gradient gives the bits of a separate addition (adds_alike in compute.h), they are paired: the second one of a
 * pair is accumulated into the first, and the tree is built over the pairs. A pair that carries is in the lowest level.
 *
 * Where the order of a sum is free (--no_deterministic), gradients are added one after the other into one buffer: a running sum.
 *
 *   memory   bit_length(G-1) gradients (one when G is 1 or 2), and one largest unit when G > 1 and gradients are not paired;
 *            a running sum: one gradient
 *
 * A gradient may also be in another buffer (this worker's shard of a reduced gradient): then no scratch buffer is used.
 *
 * In an audited step the tree is sealed: what it keeps in a level is hashed when it is complete, and again before it is read. Each level of a
 * unit has two chains of hashes, which are equal unless memory has changed in between.
 *
 * Invariants
 *   1. the gradients of a unit are added in order; after the last one ls_gradtree_sum is the sum of all, in tree order;
 *   2. no memory is cleared or allocated between micro-batches. */
#ifndef LS_PARALLEL_GRADTREE_H
#define LS_PARALLEL_GRADTREE_H

#include "model/model.h"

typedef enum ls_gradtree_how { LS_GRADTREE_PLAIN, LS_GRADTREE_PAIRED, LS_GRADTREE_RUNNING } ls_gradtree_how;

/* Hashes of what is kept: level-major, then units; after the levels, of what waits for other workers. Both chains begin with 0. */
typedef struct ls_seals {
    uint64_t *kept, *read; /* when it was complete; before it was read */
    bool waits;            /* also of what waits for other workers     */
} ls_seals;

typedef struct ls_gradtree {
    ls_model *model;
    int64_t *n;           /* elements of a gradient, by unit   */
    int n_micro, n_level; /* micro-batches, levels    */
    ls_gradtree_how how;
    bool elsewhere;
    int micro;    /* the current one, set by begin */
    int *row;     /* plan rows: level-major, then units; the last one is the carry buffer */
    void **level; /* [n_level * n_unit]                */
    void *carry;
    ls_seals seals; /* of the current step; NULL: it is not audited */
    bool taken;     /* what the last ls_gradtree_add leaves is read at once: it is not kept */
} ls_gradtree;

/* Plans the sums of all units over n_micro micro-batches. n: elements of the gradient of each unit, 0 for a unit of another worker; NULL:
 * whole gradients. elsewhere: gradients are passed to ls_gradtree_add in any buffer; not with LS_GRADTREE_PAIRED. With one micro-batch a gradient lives only from its backward to the step, so that it can share memory with activations that are gone by then. */
ls_status ls_gradtree_plan(ls_gradtree **out, ls_model *m, int n_micro, const int64_t *n, bool elsewhere,
                           ls_gradtree_how how, ls_plan *plan);
void ls_gradtree_bind(ls_gradtree *t, const ls_plan *plan);
void ls_gradtree_destroy(ls_gradtree **t);

/* The buffer for the gradient of unit u in a micro-batch, and whether it is added to the content. */
void *ls_gradtree_place(const ls_gradtree *t, int u, int micro);
bool ls_gradtree_adds(const ls_gradtree *t, int micro);
/* The gradient of u in this micro-batch is at x (its place, or elsewhere; may be overwritten): carries. */
ls_status ls_gradtree_add(ls_gradtree *t, int u, int micro, void *x);
void *ls_gradtree_sum(const ls_gradtree *t, int u);

/* Seals, which a running sum does not have. Their number; whether the current step has them. */
int ls_gradtree_n_seal(const ls_gradtree *t);
static inline bool ls_gradtree_seals(const ls_gradtree *t)
{
    return t->seals.kept != NULL;
}
/* Before a gradient is added in place: what it is added to is read. */
ls_status ls_gradtree_read(ls_gradtree *t, int u, int micro);
/* n elements of ls_gradtree_sum from `first` on are kept, or are read (or overwritten). After the last ls_gradtree_add all n[u] are kept, unless
 * it is taken. */
ls_status ls_gradtree_sum_kept(ls_gradtree *t, int u, int64_t first, int64_t n);
ls_status ls_gradtree_sum_read(ls_gradtree *t, int u, int64_t first, int64_t n);
/* n elements of unit u at x, which are to be reduced, begin to wait for the other workers, or have waited. */
ls_status ls_gradtree_waits(ls_gradtree *t, int u, const void *x, int64_t n, bool over);

/* For one worker, before the forward pass of a micro-batch: sets grad and acc of every unit. */
void ls_gradtree_begin(ls_gradtree *t, int micro);

#endif
