/* strategy.h - data-parallel strategies: hooks around the walk over the units of a model.
 *
 *            sharded             parameters            gradient of u ready                   unit updated
 *   single                                             carry in the tree
 *   dp       (moments: rank 0)                         carry; reduce to rank 0 at the step   broadcast from 0
 *   ddp                                                carry; last: all_reduce in buckets
 *   ddp, one state   moments                           as zero1 (opts.one_state)
 *   zero1    moments                                   carry; last: reduce_scatter           all_gather
 *   zero2    moments, gradients                        reduce_scatter, carry the shard       all_gather
 *   zero3    all three           all_gather, free      reduce_scatter, carry the shard
 *
 * The gradients of the WM micro-batches of a step (W workers, M micro-batches each) are summed in one tree (parallel/gradtree.h). A
 * strategy that accumulates locally and reduces once (dp, ddp, zero1) gives worker r the micro-batches rM … rM+M-1: the lower levels of the
 * tree are local, the upper ones are the collective. A strategy that reduces every micro-batch (zero2, zero3) gives it the micro-batches
 * mW+r: the lower levels are the collective. So that the tree is that of one worker, deterministic mode with W > 1 and M > 1 needs a power
 * of two: M for dp, ddp and zero1, W for zero2 and zero3. Other numbers are refused; --no_deterministic allows them.
 *
 * Element types (compute.h): gradients, moments and master weights have type `wide`, parameters type `dtype`. If these differ, the worker
 * with the moments of an element also has its master weight, and the rounded parameters are communicated. For P parameters and G gradient
 * copies, bf16 takes 2P + 4G + 12P bytes (fp32: 4P + 4G + 8P), and communication of parameters takes half the bytes (zero3.c: in fp8 a quarter).
 *
 * Shards: the flat buffers of a unit are split into W equal parts of whole norm blocks (the padding ensures this); worker r has part r.
 * The head of each strategy's file states the memory and communication volume.
 *
 * Order of a step
 *   step_begin
 *   begin(m)  { acquire(u, FWD) … release(u, FWD) } …  { acquire(u, BWD) … grad_ready(u), release(u, BWD) } …   for each micro-batch
 *   step_due  →  own(u): this worker's elements, summed  →  update, unit_done(u) …  →  step_done
 *
 * With opts.offload, moments and master weights (of fp32, too) are in pinned host memory, and offload.c updates them; offload_early.c does
 * what can be done during the backward pass. */
#ifndef LS_PARALLEL_STRATEGY_H
#define LS_PARALLEL_STRATEGY_H

#include "comm/comm.h"
#include "comm/lend.h"
#include "model/model.h"
#include "parallel/gradtree.h"

#define LS_NORM_BLOCK 1024 /* elements per partial sum of the gradient norm, on any number of workers */

typedef struct ls_strategy ls_strategy;

enum { LS_SHARD_OPT = 1, LS_SHARD_GRAD = 2, LS_SHARD_PARAM = 4 };

typedef struct ls_strategy_ops {
    const char *name;
    unsigned parts;                                            /* what is sharded: LS_SHARD_*                  */
    bool master;                                               /* only rank 0 has moments and updates          */
    ls_status (*bound)(ls_strategy *s);                        /* (optional) the end of ls_strategy_bind       */
    ls_status (*acquire)(ls_strategy *s, int u, ls_pass pass); /* (optional) makes unit[u].param complete      */
    ls_status (*release)(ls_strategy *s, int u, ls_pass pass); /* (optional)                                   */
    /* gradients are accumulated locally first: u's sum is complete, post its reduction; called in buckets, in backward order */
    ls_status (*post)(ls_strategy *s, int u); /* (optional)                                   */
    /* gradients are reduced immediately: unit[u].grad is writable after begin, and complete at ready */
    ls_status (*grad_begin)(ls_strategy *s, int u); /* (optional)                                   */
    ls_status (*grad_ready)(ls_strategy *s, int u); /* (optional)                                   */
    ls_status (*step_due)(ls_strategy *s);          /* (optional) completes all sums                */
    ls_status (*unit_done)(ls_strategy *s, int u);  /* (optional) own elements of u were updated    */
    ls_status (*step_done)(ls_strategy *s);         /* (optional)                                   */
    bool common; /* all workers compute with one copy of the parameters: that of rank 0 (ls_comm_common) */
} ls_strategy_ops;

extern const ls_strategy_ops ls_strategy_single, ls_strategy_dp, ls_strategy_ddp, ls_strategy_ddp_one_state,
    ls_strategy_zero1, ls_strategy_zero2, ls_strategy_zero3;

/* In a pipeline a worker has the units of its stage. The stage of embed updates the tied embedding; the stage of head has a copy. */
enum { LS_ROLE_HERE, LS_ROLE_AWAY, LS_ROLE_COPY };

typedef struct ls_strategy_opts {
    int n_micro;             /* M, of each worker                                         */
    int64_t bucket;          /* elements of a gradient bucket                             */
    int64_t gather_bucket;   /* elements of a parameter bucket (zero1, zero2)             */
    int64_t prefetch_bucket; /* elements gathered ahead of use (zero3); 0: none           */
    bool deterministic;
    bool offload;    /* the optimizer's state is in host memory (offload.c); with a device only */
    bool overlap;    /* with offload: nothing that backward computes decides about the update (no clipping, no loss
                                * scale), so units may be updated while it goes on */
    bool stochastic; /* ls_compute_open_opts has it, too                          */
    bool one_state;  /* ddp: the workers share one optimizer state, each updates a part of it; others ignore it */
    bool adds_alike; /* see compute.h, for the shapes of this run                 */
    const unsigned char *role; /* LS_ROLE_* of each unit; NULL: all LS_ROLE_HERE. Read by ls_strategy_create only */
    ls_comm *pipe;             /* the stages of this replica, first to last; NULL: one      */
    ls_comm *tensor;           /* the tensor-parallel group (parallel/tensor.h); NULL: layers are whole */
} ls_strategy_opts;

/* Buffers in flight: a region of fixed capacity for a few buffers at a time. Offsets are first fit from the low end (or the high end, for
 * buffers that stay longer). Buffers are taken and given back in the same order on every worker, so the offsets are the same, too. */
#define LS_WINDOW_MAX 64
typedef struct ls_window {
    int64_t capacity; /* elements */
    int n;
    struct {
        int64_t at, n;
    } live[LS_WINDOW_MAX]; /* by offset */
} ls_window;
int64_t ls_window_take(ls_window *w, int64_t n, bool high); /* offset of n free elements, or -1 if there is no room */
void ls_window_give(ls_window *w, int64_t at);

/* A unit's gradient whose reduce_scatter is pending (zero2, zero3). */
typedef struct ls_flight {
    int unit, micro;
    int64_t at;       /* in the window                                               */
    void *part;       /* where this worker's part arrives                            */
    ls_ticket ticket; /* of its last bucket; 0 while backward still writes it        */
    bool posted;
    bool summed; /* its part was added to the tree before its place is needed    */
} ls_flight;

/* What a strategy keeps of a unit. */
typedef struct ls_strategy_unit {
    unsigned char role; /* LS_ROLE_*                                                     */
    int row[4];         /* plan rows of parameters, the two moments and master weights   */
    ls_ticket gather;   /* the pending gather of its parameters                          */
    void *part;         /* zero3: this worker's part of the parameters                   */
    int64_t held;       /* zero3: offset in the window if it is gathered, -1: it is not  */
    ls_ticket reduced;  /* ddp, zero1: of the reduction of its gradient                  */
    int host_row;       /* offload with clipping: its gradient in host memory, -1: none  */
    void *host;
    ls_mark copied; /* in this step; 0: not yet                                      */
} ls_strategy_unit;

/* What the update of a state in host memory needs (offload.c, offload_early.c). */
#define LS_OFFLOAD_SLOTS 2
struct ls_early;
typedef struct ls_offload {
    int grad_row[LS_OFFLOAD_SLOTS], param_row[LS_OFFLOAD_SLOTS];
    void *grad[LS_OFFLOAD_SLOTS], *param[LS_OFFLOAD_SLOTS];
    int down, up;                   /* lanes; 0: not open */
    ls_mark sent[LS_OFFLOAD_SLOTS]; /* param[i] has been copied */
    bool begun;                     /* ls_strategy_step_begin was called for this step */
    int posted, ready; /* units from `posted` on are being summed, from `ready` on they are summed (not zero2, zero3) */
    ls_mark last;      /* of the copies of gradients during the backward pass */
    struct ls_early *early; /* overlap: the thread that updates; NULL: not started */
} ls_offload;

struct ls_strategy {
    const ls_strategy_ops *ops;
    ls_model *model;
    ls_comm *comm;
    ls_strategy_opts opts;
    ls_gradtree *tree;
    ls_strategy_unit *unit;
    int micro;         /* the current one; -1: no gradients                        */
    int rehearsed;     /* with micro == -1: the micro-batch of a rehearsal; -1: none */
    double *norm;      /* sums of squares of blocks; alone: memory of the operations */
    double *unit_sum;  /* of squares, of every unit and stage                      */
    void *tie;         /* embed's stage: head's contribution to its gradient       */
    int waiting;       /* ddp, zero1: units that are ready but not posted          */
    int64_t n_waiting; /* their elements                                           */
    int n_bucket;      /* posted in this step                                      */
    ls_ticket last;    /* of the latest gradient bucket                            */
    ls_lend *lend;     /* ddp with one state: cores of workers that wait; NULL: none */
    ls_window params;  /* zero3: gathered units                                    */
    void *params_at;
    ls_window grads; /* zero2, zero3: gradients in flight                        */
    void *grads_at;
    ls_flight flight[LS_WINDOW_MAX]; /* a queue, oldest first                    */
    int n_flight;
    ls_offload off;
    struct {
        int64_t *n, *n_block; /* of each unit: elements, blocks of the norm                     */
        const void **grad;
        ls_adamw_job *job;
    } many;                          /* alone: the arguments of operations on all units                */
    ls_decision *decision, *decided; /* alone: in memory of the operations; a copy for the host */
    int norm_row, unit_sum_row, decision_row, decided_row, tie_row, params_row, grads_row;
};

/* Elements that a unit's buffers must be a multiple of under this strategy. one_state: as in ls_strategy_opts. */
int64_t ls_strategy_pad(const char *name, bool one_state, int n_worker);

/* LS_E_CONFIG, with the arithmetic, if n_worker replicas of n_micro micro-batches cannot keep the summation order. */
ls_status ls_strategy_check(const char *name, int n_worker, int n_micro, bool deterministic);

/* Creates the strategy of this name and adds the rows of parameters, gradients and moments to the plan. LS_E_CONFIG, with the arithmetic,
 * for an invalid layout; LS_E_UNSUPPORTED for an unknown name. Collective over c. */
ls_status ls_strategy_create(ls_strategy **out, const char *name, ls_model *m, ls_comm *c, const ls_strategy_opts *o,
                             ls_plan *plan);
/* Collective over its communicator where parameters are common. */
ls_status ls_strategy_bind(ls_strategy *s, const ls_plan *plan);
void ls_strategy_destroy(ls_strategy **s);

/* Index of this worker's micro-batch m among all micro-batches of the step; of that of another replica. */
int64_t ls_strategy_micro_index(const ls_strategy *s, int m);
int64_t ls_strategy_micro_of(const ls_strategy *s, int replica, int m);

/* (optional) With opts.offload, before the micro-batches of a step: gradients are copied to the host as soon as they are summed, and with
 * opts.overlap their units are updated then: the step must be completed once the backward pass of its last micro-batch has begun. hyper
 * is as in ls_strategy_update, and is called by another thread until that returns. */
typedef struct ls_own ls_own;
typedef void ls_hyper_fn(void *ctx, int u, const ls_own *o, ls_adamw *h);
ls_status ls_strategy_step_begin(ls_strategy *s, ls_hyper_fn *hyper, void *ctx);

void ls_strategy_begin(ls_strategy *s, int micro); /* before a micro-batch; -1: forward only */
/* Whether the hooks only queue operations, so that a recorded pass over all units can be replayed without calling them. */
bool ls_strategy_records(const ls_strategy *s);
ls_status ls_strategy_acquire(ls_strategy *s, int u, ls_pass pass);
ls_status ls_strategy_release(ls_strategy *s, int u, ls_pass pass);
ls_status ls_strategy_grad_ready(ls_strategy *s, int u);
ls_status ls_strategy_step_due(ls_strategy *s); /* completes own gradients, with tied ones added */
ls_status ls_strategy_unit_done(ls_strategy *s, int u);
ls_status ls_strategy_step_done(ls_strategy *s);

/* For a pass whose gradients are not used, before the first micro-batch of a step (train/audit.h). Settle: waits until all parameters
 * have arrived. Begin: micro-batch `micro`, whose gradients go where those of the step go later. Adds: whether they are added there to
 * those of the micro-batches before it. */
ls_status ls_strategy_settle(ls_strategy *s);
void ls_strategy_rehearse(ls_strategy *s, int micro);
bool ls_strategy_adds(const ls_strategy *s, int micro);

/* In an audited step (train/audit.h), where sums of gradients are sealed (parallel/gradtree.h), a unit is reduced as soon as its local sum is complete, and waited for: a sum that
 * arrives while nobody waits for it has no hash. seals: until the next call, which must come before a step or after step_due; {0}: none.
 * sums_read: before the update, what this worker's sums are now. */
void ls_strategy_seal(ls_strategy *s, ls_seals seals);
ls_status ls_strategy_sums_read(ls_strategy *s);
/* Waits until gradients that are being reduced (zero2, zero3) are in the tree. */
ls_status ls_strategy_sums_arrive(ls_strategy *s);

/* How parameters are rounded stochastically in update `number` (from 1) of the elements of unit u from `first` on. */
ls_rounding ls_strategy_rounding(uint64_t seed, int64_t number, int u, int64_t first);

/* Sets the parameters of all workers from the master weights, after these were loaded, as update n_update rounded them (0: no update yet,
 * to the nearest). Does nothing if dtype == wide. Collective. */
ls_status ls_strategy_publish(ls_strategy *s, uint64_t seed, int64_t n_update);

/* This worker's stage computes and updates unit u. */
static inline bool ls_strategy_here(const ls_strategy *s, int u)
{
    return s->unit[u].role == LS_ROLE_HERE;
}

/* Elements [first, first + n) of unit u: those that this worker updates, between step_due and unit_done. n = 0: none. */
struct ls_own {
    int64_t first, n;
    void *param, *grad, *m, *v;
    void *master; /* param itself if dtype == wide and the state is not in host memory */
};
ls_own ls_strategy_own(const ls_strategy *s, int u);

/* AdamW on all elements that this worker updates (those that were not updated early), then unit_done of every unit. hyper fills in what
 * the update of unit u needs. */
ls_status ls_strategy_update(ls_strategy *s, ls_hyper_fn *hyper, void *ctx);

/* Whether one worker has the whole gradient, so that its device can decide about the update without the host. */
bool ls_strategy_alone(const ls_strategy *s);
/* Alone: queues the sums of squares and the decision (compute/decide.h), with the same bits as ls_strategy_sum_squares and the arithmetic on the
 * host. `a` has clip, unscale and the other numbers that must be finite. s->decision may be used by operations that are queued later
 * (ls_adamw.at), s->decided by the host once the device has passed a mark that is put after this. */
ls_status ls_strategy_decide(ls_strategy *s, ls_decide a);

/* Sum of squares of the whole gradient, with the same bits on every worker that updates: blocks in a fixed order within a unit, then units
 * in order (tensor parallelism: parallel/tensor.h). Not finite if an element is not. Collective. */
ls_status ls_strategy_sum_squares(ls_strategy *s, double *sum);

/* The complete parameters or summed gradients of a local unit, on every worker that updates (gradients: between step_due and the next
 * begin). scratch: n_pad elements from ls_comm_alloc. Collective; for tests and exports. */
ls_status ls_strategy_whole(ls_strategy *s, int u, bool gradient, void *scratch, const void **whole);

/* The ranges of the flat buffers that this worker holds, or (save) that it writes to a checkpoint: over all workers, the latter cover
 * every element once. Returns their number, at most 3 * n_unit. */
int ls_strategy_pieces(const ls_strategy *s, bool save, ls_piece *piece);

#endif
