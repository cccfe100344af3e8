/* strategy.h - how workers share the work of a step: hooks around the walk over units.
 *
 *            held by parts       parameters            gradient of u ready                   unit updated
 *   single                                             carry in the tree
 *   dp       (moments: rank 0)                         carry; all reduced to 0 at the step   broadcast from 0
 *   ddp                                                carry; last: all_reduce by buckets
 *   zero1    moments                                   carry; last: reduce_scatter           all_gather
 *   zero2    moments, gradients                        reduce_scatter, carry the part        all_gather
 *   zero3    all three           all_gather, drop      reduce_scatter, carry the part
 *
 * Micro-batches are the leaves of one tree (parallel/gradtree.h). A strategy that accumulates locally and reduces once gives worker r of
 * W the leaves rM … rM+M-1: the tree's lower levels are local, its upper ones are the collective; with W > 1, M must be a power of two
 * for the two to make the same tree as one worker. One that reduces every micro-batch (zero2, zero3) gives it the leaves mW+r: the lower
 * levels are the collective, and with M > 1, W must be a power of two. Other numbers are refused.
 *
 * Two types (compute.h): gradients, moments and master weights are wide, parameters as the operations read them; where these differ, the
 * worker that has the moments of an element also has its master weight, and what is sent of parameters are the rounded ones. In bf16
 * with P parameters that is 2P + 4G + 12P bytes where fp32 has 4P + 4G + 8P, and parameters travel at half the bytes.
 *
 * Parts: a unit's flat buffers are cut into W equal parts of whole norm blocks (its padding sees to that), and worker r has part r.
 * What a strategy holds and sends stands at the head of its file.
 *
 * Order of a step
 *   begin(m)  { acquire(u, FWD) … release(u, FWD) } …  { acquire(u, BWD) … grad_ready(u), release(u, BWD) } …   for each micro-batch
 *   step_due  →  own(u): this worker's elements, summed  →  unit_done(u) …  →  step_done */
#ifndef LS_PARALLEL_STRATEGY_H
#define LS_PARALLEL_STRATEGY_H

#include "comm/comm.h"
#include "model/model.h"
#include "parallel/gradtree.h"
#include "parallel/window.h"

#define LS_NORM_BLOCK 1024 /* elements a partial sum of the gradient norm covers, whoever holds them */

typedef struct ls_strategy ls_strategy;

enum { LS_SHARD_OPT = 1, LS_SHARD_GRAD = 2, LS_SHARD_PARAM = 4 };

typedef struct ls_strategy_ops {
    const char *name;
    unsigned parts;                                            /* what is held by parts: LS_SHARD_*            */
    bool master;                                               /* rank 0 alone has moments and updates         */
    ls_status (*acquire)(ls_strategy *s, int u, ls_pass pass); /* (optional) unit[u].param is whole after it   */
    ls_status (*release)(ls_strategy *s, int u, ls_pass pass); /* (optional)                                   */
    /* gradients are summed locally first: u's sum is whole, post its reduction; called by buckets, in reverse order of use */
    ls_status (*post)(ls_strategy *s, int u); /* (optional)                                   */
    /* gradients are reduced at once: unit[u].grad can be written after begin, and is written at ready */
    ls_status (*grad_begin)(ls_strategy *s, int u); /* (optional)                                   */
    ls_status (*grad_ready)(ls_strategy *s, int u); /* (optional)                                   */
    ls_status (*step_due)(ls_strategy *s);          /* (optional) returns with every sum whole      */
    ls_status (*unit_done)(ls_strategy *s, int u);  /* (optional) own elements of u are updated     */
    ls_status (*step_done)(ls_strategy *s);         /* (optional)                                   */
} ls_strategy_ops;

extern const ls_strategy_ops ls_strategy_single, ls_strategy_dp, ls_strategy_ddp, ls_strategy_zero1, ls_strategy_zero2,
    ls_strategy_zero3;

/* In a pipeline a worker has the units of its stage. The tied embedding is updated where embed is, and head's stage has a copy of it. */
enum { LS_ROLE_HERE, LS_ROLE_AWAY, LS_ROLE_COPY };

typedef struct ls_strategy_opts {
    int n_micro;             /* M, of each worker                                         */
    int64_t bucket;          /* elements of a gradient bucket                             */
    int64_t gather_bucket;   /* elements of a parameter bucket (zero1, zero2)             */
    int64_t prefetch_bucket; /* elements gathered ahead of use (zero3); 0: none           */
    bool deterministic;
    bool adds_alike;           /* of compute.h, for the shapes of this run                  */
    const unsigned char *role; /* LS_ROLE_* of each unit; NULL: all here. Copied.           */
    ls_comm *pipe;             /* the stages of this replica, first to last; NULL: one      */
    ls_comm *tensor;           /* the other shards of its layers (parallel/tensor.h); NULL: whole */
} ls_strategy_opts;

/* A unit's gradient on its way to the workers that keep its parts (zero2, zero3). */
typedef struct ls_flight {
    int unit, micro;
    int64_t at;       /* in the window                                               */
    void *part;       /* where this worker's part arrives                            */
    ls_ticket ticket; /* of its last piece; 0 while backward still writes it         */
    bool posted;
} ls_flight;

struct ls_strategy {
    const ls_strategy_ops *ops;
    ls_model *model;
    ls_comm *comm;
    ls_strategy_opts opts;
    ls_gradtree *tree;
    unsigned char *role;
    double *unit_sum; /* of squares, of every unit and stage                      */
    int tie_row, unit_sum_row;
    void *tie;   /* embed's stage: head's part of its gradient               */
    int micro;   /* the one under way; -1: no gradients wanted               */
    int *row[4]; /* plan rows of parameters, the two moments and master weights */
    int norm_row;
    double *norm;      /* sums of squares of blocks                                */
    int waiting;       /* ddp, zero1: units that are ready and not posted          */
    int64_t n_waiting; /* their elements                                           */
    int n_bucket;      /* posted in this step                                      */
    ls_ticket last;    /* of the newest gradient bucket                            */

    ls_ticket *gather; /* by unit: the gather of its parameters under way          */
    void **part;       /* zero3: this worker's part of the parameters, by unit     */
    int64_t *held;     /* zero3: place in the window of a gathered unit, -1: none  */
    ls_window params;  /* zero3: gathered units                                    */
    int params_row;
    void *params_at;

    ls_window grads; /* zero2, zero3: gradients on their way                     */
    int grads_row;
    void *grads_at;
    ls_flight *flight; /* a queue, oldest first                                    */
    int n_flight;
};

/* Elements that a unit's buffers must be a multiple of under this strategy. */
int64_t ls_strategy_pad(const char *name, int n_worker);

/* LS_E_CONFIG with the arithmetic when n_worker replicas of n_micro micro-batches each cannot keep the order of sums. */
ls_status ls_strategy_check(const char *name, int n_worker, int n_micro, bool deterministic);

/* The strategy of this name; LS_E_CONFIG for a layout that cannot work (with the arithmetic), LS_E_UNSUPPORTED for a name that is not
 * offered. Adds the rows of parameters, gradients and moments to the plan. Collective over c. */
ls_status ls_strategy_create(ls_strategy **out, const char *name, ls_model *m, ls_comm *c, const ls_strategy_opts *o,
                             ls_plan *plan);
void ls_strategy_bind(ls_strategy *s, const ls_plan *plan);
void ls_strategy_destroy(ls_strategy **s);

/* Place of this worker's micro-batch m among the step's leaves. */
int64_t ls_strategy_leaf(const ls_strategy *s, int m);

void ls_strategy_begin(ls_strategy *s, int micro); /* before a micro-batch; -1: forward alone */
/* The hooks around the walk only queue operations: a recorded pass over all units can be replayed without calling them. */
bool ls_strategy_records(const ls_strategy *s);
ls_status ls_strategy_acquire(ls_strategy *s, int u, ls_pass pass);
ls_status ls_strategy_release(ls_strategy *s, int u, ls_pass pass);
ls_status ls_strategy_grad_ready(ls_strategy *s, int u);
ls_status ls_strategy_step_due(ls_strategy *s); /* own gradients whole, tied ones folded */
ls_status ls_strategy_unit_done(ls_strategy *s, int u);
ls_status ls_strategy_step_done(ls_strategy *s);

/* Parameters become what the master weights say, everywhere: after these were loaded. Nothing to do where the two types are one.
 * Collective. */
ls_status ls_strategy_publish(ls_strategy *s);

bool ls_strategy_here(const ls_strategy *s, int u); /* this worker's stage computes and updates unit u */

/* Elements [first, first + n) of unit u: those that this worker updates, between step_due and unit_done. n = 0: none. */
typedef struct ls_own {
    int64_t first, n;
    void *param, *grad, *m, *v;
    void *master; /* param itself where the two types are one */
} ls_own;
ls_own ls_strategy_own(const ls_strategy *s, int u);

/* Sum of squares of the whole gradient, the same bits on every worker that updates: blocks in a fixed order within a unit, then units in order
 * (shards: parallel/tensor.h). Not finite when an element is not. Collective. */
ls_status ls_strategy_sum_squares(ls_strategy *s, double *sum);

/* Parameters or summed gradients of a unit that is here, whole, on every worker that updates (gradients: between step_due and the next begin). scratch:
 * n_pad elements from ls_comm_alloc. Collective; for tests and exports. */
ls_status ls_strategy_whole(ls_strategy *s, int u, bool gradient, void *scratch, const void **whole);

/* The parts of the flat buffers that this worker holds, or (save) that it writes to a checkpoint: over all workers these cover everything
 * once. Returns how many; at most 3 * n_unit. */
int ls_strategy_pieces(const ls_strategy *s, bool save, ls_piece *piece);

#endif
