/* schedule.h - a pipeline schedule: for every rank, the ordered list of its actions in a step.
 *
 * A model is split into n_stage * n_chunk consecutive parts (stages.h). Part g is on rank g mod n_stage as its chunk g / n_stage: with one
 * chunk a rank is a stage; with more, micro-batches pass every rank more than once.
 *
 *   1f1b, 3 stages, 3 micro-batches            interleaved, 2 stages x 2 chunks, 2 micro-batches
 *     0  F0 F1 F2 .. .. B0 .. B1 .. B2           0  F0.0 F1.0 F0.1 F1.1 .... B0.1 .... B1.1 B0.0 B1.0
 *     1  .. F0 F1 .. B0 F2 B1 .. B2 ..           1  .... F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0 ....
 *     2  .. .. F0 B0 F1 B1 F2 B2 .. ..
 *
 * A generator is a pure function that returns the order in which ranks compute (pipe_*.c). ls_schedule_finish adds the rest by one rule: a
 * receive directly before the action that needs it, a send directly after the action that made the data, REDUCE after a chunk's last
 * gradient, STEP at the end; then it numbers buffers. One checker (schedule_check.h), one simulator (simulate.h) and one executor take any
 * list.
 *
 * For an executor
 *   1. Actions run in order. A send may be asynchronous; a receive is waited for at its position in the list and may be posted earlier.
 *      Messages of one (source, destination, direction) arrive in the order of the list on both sides.
 *   2. slot names the activations of (micro, chunk) on this rank: in use from RECV_ACT (or FWD) to BWD (or BWD_W). At no time do two
 *      micro-batches of a chunk share one; slots of chunk c are 0 … peak[c]-1, no more than are in use at once. The activation that
 *      SEND_ACT sends is in it, too: the receiver takes it before the slot is free again.
 *   3. grad_slot names the gradient of the chunk's output, and of its input once made: in use from RECV_GRAD (or the backward) to SEND_GRAD
 *      and BWD (or BWD_W). A posted SEND_GRAD must be waited for before its slot is used again. schedule_progress.c checks that this does
 *      not end in a deadlock; lists of a file that would, get more slots (ls_schedule_read).
 *   4. The weight gradients of a chunk (BWD or BWD_W) are computed in micro-batch order, as parallel/gradtree.h requires.
 *   5. REDUCE(chunk): the rank's gradients of this chunk are final; a strategy may sum them over replicas, and the first and last part
 *      exchange the tied embedding's. */
#ifndef LS_PARALLEL_SCHEDULE_H
#define LS_PARALLEL_SCHEDULE_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>

/* clang-format off */
/*        kind               token  words */
#define LS_PIPE_LIST(X)                                                  \
    X(LS_PIPE_FWD,       "F",  "forward")                                \
    X(LS_PIPE_BWD,       "B",  "backward")                               \
    X(LS_PIPE_BWD_IN,    "I",  "backward of the input")                  \
    X(LS_PIPE_BWD_W,     "W",  "backward of the weights")                \
    X(LS_PIPE_RECV_ACT,  "ra", "receive activation")                     \
    X(LS_PIPE_SEND_ACT,  "sa", "send activation")                        \
    X(LS_PIPE_RECV_GRAD, "rg", "receive gradient")                       \
    X(LS_PIPE_SEND_GRAD, "sg", "send gradient")                          \
    X(LS_PIPE_REDUCE,    "R",  "reduce gradients")                       \
    X(LS_PIPE_STEP,      "step", "step")
/* clang-format on */

typedef enum ls_pipe_kind {
#define X(kind, token, words) kind,
    LS_PIPE_LIST(X)
#undef X
        LS_N_PIPE
} ls_pipe_kind;

typedef struct ls_action {
    ls_pipe_kind kind;
    int micro;           /* -1 for REDUCE and STEP                    */
    int chunk;           /* -1 for STEP                               */
    int peer;            /* rank of a send or receive, else -1        */
    int slot, grad_slot; /* -1 if the action does not use one         */
    int frees;           /* LS_FREES_*: slots that it is the last to use */
    int line;            /* of the file it was read from; 0: none. That of F B I W for a message added to it */
} ls_action;
enum { LS_FREES_SLOT = 1, LS_FREES_GRAD = 2 };

typedef struct ls_rank_list {
    ls_action *action;
    int n_action;
    size_t cap;
    int *peak, *grad_peak; /* [n_chunk]: slots                              */
    int peak_all;          /* activations alive at once, over all chunks    */
} ls_rank_list;

typedef struct ls_schedule {
    char name[32];
    int n_stage, n_micro, n_chunk;
    bool added;         /* messages were added by ls_schedule_finish   */
    ls_rank_list *rank; /* [n_stage]                                   */
    bool failed;        /* memory ran out while emitting               */
} ls_schedule;

#define LS_PIPE_MAX_STAGE 1024
#define LS_PIPE_MAX_CHUNK 64
#define LS_PIPE_MAX_CELL  (1 << 20) /* n_stage * n_chunk * n_micro */

/* The cost of a part, in any unit of time; act in any unit of memory. BWD is bwd_in + bwd_w. */
typedef struct ls_part_cost {
    double fwd, bwd_in, bwd_w, act;
} ls_part_cost;

typedef struct ls_pipe_costs {
    const ls_part_cost *part; /* [n_stage * n_chunk], by part g; NULL: every part costs `each` */
    ls_part_cost each;
    double latency,
        transfer; /* a message arrives latency + transfer after it could start; a link carries one at a time */
    double reduce, step;
    const double *const *action; /* [rank][index in its list]: measured times that replace the part's; or NULL */
} ls_pipe_costs;

/* fwd 1, bwd 2 (1 and 1 when split), one activation per part, messages free */
extern const ls_pipe_costs ls_pipe_equal;

typedef struct ls_pipe_opts {
    int n_stage, n_micro, n_chunk;
    int live;                   /* zb: maximum of live activations per rank; 0 = n_stage, as in 1f1b   */
    const ls_pipe_costs *costs; /* zb: the costs to optimize for; NULL = ls_pipe_equal. Must be equal on all ranks. */
} ls_pipe_opts;

/* The built-in schedule of this name, finished. LS_E_ARG lists the built-in names; LS_E_CONFIG for an unsupported shape, with
 * the arithmetic. A pure function of its arguments: every rank gets the same lists. */
ls_status ls_schedule_create(ls_schedule **out, const char *name, const ls_pipe_opts *o);
void ls_schedule_destroy(ls_schedule **s);
bool ls_schedule_is_builtin(const char *name);
/* LS_E_ARG: the name is neither a schedule nor a file. */
ls_status ls_schedule_unknown(const char *name);
extern const char ls_schedule_names[]; /* "naive, gpipe, …" */

/* ---- for generators and readers ---- */
ls_status ls_schedule_empty(ls_schedule **out, const char *name, int n_stage, int n_micro, int n_chunk);
void ls_schedule_emit(ls_schedule *s, int rank, ls_pipe_kind kind, int micro, int chunk);
void ls_schedule_put(ls_schedule *s, int rank, ls_action a);
ls_status ls_schedule_finish(ls_schedule *s); /* adds messages, REDUCE and STEP around F B I W; numbers slots */
/* Numbers slots and counts peaks of complete lists. apart: a gradient that is sent shares its slot with no other one of the step. */
ls_status ls_schedule_slots(ls_schedule *s, bool apart);

ls_status ls_pipe_naive(ls_schedule *s, const ls_pipe_opts *o);
ls_status ls_pipe_gpipe(ls_schedule *s, const ls_pipe_opts *o);
ls_status ls_pipe_1f1b(ls_schedule *s, const ls_pipe_opts *o);
ls_status ls_pipe_interleaved(ls_schedule *s, const ls_pipe_opts *o);
ls_status ls_pipe_zb(ls_schedule *s, const ls_pipe_opts *o);

/* ---- helpers ---- */
typedef struct ls_pipe_name {
    const char *token, *words;
} ls_pipe_name;
extern const ls_pipe_name ls_pipe_names[LS_N_PIPE + 1]; /* by kind; the last one is "?" */
static inline int ls_pipe_part(const ls_schedule *s, int rank, int chunk)
{
    return chunk * s->n_stage + rank;
}
static inline const ls_part_cost *ls_pipe_cost(const ls_pipe_costs *c, int part)
{
    return c->part ? &c->part[part] : &c->each;
}
static inline bool ls_pipe_computes(ls_pipe_kind k)
{
    return k <= LS_PIPE_BWD_W;
}
static inline bool ls_pipe_sends(ls_pipe_kind k)
{
    return k == LS_PIPE_SEND_ACT || k == LS_PIPE_SEND_GRAD;
}
static inline bool ls_pipe_receives(ls_pipe_kind k)
{
    return k == LS_PIPE_RECV_ACT || k == LS_PIPE_RECV_GRAD;
}
/* The rank that an activation of a part is sent to (a gradient comes from there), and the previous one; -1 at the ends. */
int ls_pipe_next(const ls_schedule *s, int rank, int chunk);
int ls_pipe_prev(const ls_schedule *s, int rank, int chunk);

#endif
