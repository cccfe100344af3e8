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
 * Where the operations add to a gradient with the bits of an addition behind them (compute.h, adds_alike), leaves come in pairs: the second of
 * a pair is added to the first where it lies, and the tree is that of the pairs. A pair that carries lies in the lowest level.
 *
 *   memory   bit_length(G-1) gradients (one when G is 1 or 2), and one largest unit when G > 1 and leaves are not paired
 *
 * A leaf may also lie elsewhere (the part of a reduced gradient that this worker keeps): then there is no scratch buffer.
 *
 * Invariants
 *   1. the leaves of a unit come in order; after the last one ls_gradtree_sum is the sum of all, in the tree's order;
 *   2. nothing is cleared and nothing is allocated between leaves. */
#ifndef LS_PARALLEL_GRADTREE_H
#define LS_PARALLEL_GRADTREE_H

#include "model/model.h"

typedef struct ls_gradtree {
    ls_model *model;
    int64_t *n; /* elements of a leaf, by unit       */
    int n_leaf, n_level;
    bool paired;
    int leaf;     /* the one under way, for begin and ready */
    int *row;     /* plan rows: level-major, then units; the last one is the carry buffer */
    void **level; /* [n_level * n_unit]                */
    void *carry;
} ls_gradtree;

/* Plans the sums of all units. n: elements of a leaf of each unit, 0 for a unit that is not here; NULL: whole gradients. elsewhere: leaves
 * are handed to ls_gradtree_add wherever they lie. paired: leaves are added to in place (not with elsewhere). With one leaf a gradient lives
 * only from its backward to the step, so that it can share memory with activations that are gone by then. */
ls_status ls_gradtree_plan(ls_gradtree **out, ls_model *m, int n_leaf, const int64_t *n, bool elsewhere, bool paired,
                           ls_plan *plan);
void ls_gradtree_bind(ls_gradtree *t, const ls_plan *plan);
void ls_gradtree_destroy(ls_gradtree **t);

/* Where this leaf of unit u is to be written, or added to what is there. */
void *ls_gradtree_place(const ls_gradtree *t, int u, int leaf);
bool ls_gradtree_adds(const ls_gradtree *t, int leaf);
/* The leaf of u lies at x (its place, or elsewhere; may be overwritten): carries. */
ls_status ls_gradtree_add(ls_gradtree *t, int u, int leaf, void *x);
void *ls_gradtree_sum(const ls_gradtree *t, int u);

/* One worker's short forms. Before a leaf's forward: points every unit's grad at its place, and says whether it is added to. */
void ls_gradtree_begin(ls_gradtree *t, int leaf);
/* When unit u's gradient of this leaf is written (the grad_ready hook): carries; the last leaf points grad at the sum. */
ls_status ls_gradtree_ready(ls_gradtree *t, int u);

#endif
