/* gradtree.h - the gradients of a step's micro-batches, summed in one fixed binary tree.
 *
 * Micro-batches are leaves 0 … G-1. The tree splits G leaves at the largest power of two below G: its left part is a full
 * tree, its right part is built the same way. For five leaves:
 *
 *            (((0+1)+(2+3))+4)
 *
 * A running sum would give other bits than workers that each add their own leaves and then meet; the tree gives the same.
 * It is built as a binary counter: level k holds the finished sum of 2^k neighbours, and a new leaf carries. A leaf that
 * carries is written into one scratch buffer of the largest unit and added unit by unit as it is ready.
 *
 *   memory   bit_length(G-1) gradients (one when G is 1 or 2), and one largest unit when G > 1
 *
 * Invariants
 *   1. after the last leaf's backward of unit u, unit[u].grad is the sum of all leaves, in the tree's order;
 *   2. nothing is cleared and nothing is allocated between leaves. */
#ifndef LS_PARALLEL_GRADTREE_H
#define LS_PARALLEL_GRADTREE_H

#include "model/model.h"

typedef struct ls_gradtree {
    ls_model *model;
    int n_leaf, n_level;
    int leaf;     /* the one under way                 */
    int *row;     /* plan rows: level-major, then units; the last one is the carry buffer */
    void **level; /* [n_level * n_unit]                */
    void *carry;
} ls_gradtree;

/* Plans the gradient buffers of all units. With one leaf a gradient lives only from its backward to the step, so that it can
 * share memory with activations that are gone by then. */
ls_status ls_gradtree_plan(ls_gradtree **out, ls_model *m, int n_leaf, ls_plan *plan);
void ls_gradtree_bind(ls_gradtree *t, const ls_plan *plan);
void ls_gradtree_destroy(ls_gradtree **t);

/* Before a leaf's forward: points every unit's grad at where this leaf is to be written. */
void ls_gradtree_begin(ls_gradtree *t, int leaf);
/* When unit u's gradient of this leaf is written (the grad_ready hook): carries. */
ls_status ls_gradtree_ready(ls_gradtree *t, int u);

#endif
