/* pipe_exec.h - carries out any schedule on a worker: one executor for every list of actions (schedule.h).
 *
 *   list     ra0 F0 sa0  ra1 F1 sa1 …  rg0 B0 sg0 …            in order
 *   receives are posted ahead, as soon as their buffer is free    sends are posted and left
 *
 * Activations and gradients have two communicators of the stages, so that the two directions do not block each other: on each,
 * a worker sends to one neighbour and receives from the other, in the order of the lists.
 *
 * The classifier computes loss and gradient together, so that logits are never held whole. Head's forward therefore belongs to the
 * backward of its part: F of the last part stops before head, B begins with it.
 *
 *   memory   for each chunk, peak[c] sets of activations (schedule.h numbers them), grad_peak[c] buffers of (R,C)
 *   sent     M (R,C) activations over every boundary between parts, and as many gradients back
 *
 * Invariants
 *   1. the units of a part see micro-batches in order, so that gradients are summed in the tree's order: the bits of one worker;
 *   2. a buffer is received into, or computed into, only after what was sent from it has arrived. */
#ifndef LS_PARALLEL_PIPE_EXEC_H
#define LS_PARALLEL_PIPE_EXEC_H

#include "comm/comm.h"
#include "model/model.h"
#include "parallel/schedule.h"
#include "parallel/stages.h"
#include "parallel/strategy.h"

/* Fills what part 0 (ids) and the last part (target) need of a micro-batch, and mb's dropout key and factor. ids or target may be NULL. */
typedef ls_status (*ls_pipe_load)(void *ctx, int micro, int32_t *ids, int32_t *target, ls_micro *mb);

typedef struct ls_pipe_setup {
    ls_model *model;
    const ls_schedule *schedule; /* must outlive the pipe */
    const ls_stages *stages;
    ls_comm *acts, *grads; /* the stages of this replica, once for each direction */
    int64_t B, T;
    bool recompute, keep_gelu; /* as ls_acts_opts has them */
} ls_pipe_setup;

/* What a worker did when, in seconds from the beginning of the step, on its device's clock if it has one. */
typedef struct ls_pipe_span {
    ls_pipe_kind kind;
    int micro, chunk;
    double begin, end;
} ls_pipe_span;

/* Of this worker, over all steps. */
typedef struct ls_pipe_stats {
    int64_t steps;                     /* whose times are known                           */
    int64_t untimed;                   /* whose times are not (a device only)             */
    double busy;                       /* seconds of computing                            */
    double span;                       /* from a step's begin to the end of its last action */
    double time[LS_PIPE_MAX_CHUNK][4]; /* F, B, I, W of each chunk           */
    int64_t calls[LS_PIPE_MAX_CHUNK][4];
} ls_pipe_stats;

typedef struct ls_pipe ls_pipe;

/* LS_E_CONFIG where schedule and options do not fit. */
ls_status ls_pipe_check(const ls_schedule *s, bool recompute);

/* Adds its rows to the plan. */
ls_status ls_pipe_create(ls_pipe **out, const ls_pipe_setup *o, ls_plan *plan);
void ls_pipe_bind(ls_pipe *p, const ls_plan *plan);
void ls_pipe_destroy(ls_pipe **p);

/* LS_ROLE_* of every unit on stage `stage`, for the strategy. role has room for n_unit. */
void ls_pipe_roles(const ls_stages *stages, bool tied, int stage, unsigned char *role);

/* One step's list: forward and backward of all micro-batches, gradients handed to the strategy as they are ready. pair (last part's
 * worker; else untouched): loss sum and counted rows of each micro-batch. */
ls_status ls_pipe_step(ls_pipe *p, ls_strategy *s, const ls_hooks *hooks, ls_pipe_load load, void *ctx,
                       double (*pair)[2]);
/* On a device, which has passed the step's actions: reads when each of them ran. Without it the step is in no statistic. Elsewhere it
 * does nothing. The waits of s's hooks for other workers do not count as computing. */
ls_status ls_pipe_settle(ls_pipe *p, const ls_strategy *s);
/* Forward pass only, of n batches. */
ls_status ls_pipe_forward(ls_pipe *p, ls_strategy *s, const ls_hooks *hooks, int n, ls_pipe_load load, void *ctx,
                          double (*pair)[2]);

/* Forward and backward pass of one micro-batch through all stages, between two steps; its gradients are not used. pair as above. */
ls_status ls_pipe_replay(ls_pipe *p, const ls_hooks *hooks, int micro, ls_pipe_load load, void *ctx, double pair[2]);

const ls_pipe_stats *ls_pipe_measured(const ls_pipe *p);
const ls_pipe_span *ls_pipe_spans(const ls_pipe *p, int *n); /* of the last step */

#endif
