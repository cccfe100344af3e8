/* burn.h - repeats the arithmetic of training on one worker and counts the results that differ (`lockstep doctor --burn`).
 *
 * A round starts from the same weights every time and does STEPS steps of training with the kernels of the run: forward, backward, AdamW.
 * Its hash covers losses, weights and moments. On a machine that computes right, every round on every worker gives the same hash. */
#ifndef LS_TRAIN_BURN_H
#define LS_TRAIN_BURN_H

#include "compute/compute.h"

enum { LS_BURN_STEPS = 3 };

typedef struct ls_burn_opts {
    const char *compute; /* "cpu", "cpu-ref", "cuda" */
    ls_compute_open_opts open;
    int threads;
    bool large;     /* a model that keeps a GPU busy, not a core; on a device with few multiprocessors the small one */
    double seconds; /* a round that began before ends; there are two at least, or one if this is 0 */
    void (*tick)(void *ctx, int64_t n_round, double seconds); /* after each round; may be NULL */
    void *ctx;
} ls_burn_opts;

typedef struct ls_burn_result {
    int64_t n_round;
    int64_t n_wrong,
        first_wrong;            /* rounds whose hash is not the one that most rounds have; the first of them, from 1 */
    uint64_t hash;              /* that most rounds have         */
    double loss[LS_BURN_STEPS]; /* of the newest round with it   */
} ls_burn_result;

/* LS_E_STOPPED: a signal came. */
ls_status ls_burn(const ls_burn_opts *o, ls_burn_result *r);

#endif
