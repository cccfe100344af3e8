/* strategy.h - how workers share the work of a step: hooks around the walk over units.
 *
 *            before forward/backward   gradient of u ready          step due             step done
 *   single                             carry in the tree
 *   dp                                 carry                        reduce all to 0      broadcast parameters from 0
 *   ddp                                carry, post full buckets     wait
 *
 * Micro-batches are the leaves of one tree (parallel/gradtree.h). These strategies accumulate locally and reduce once, so worker
 * r of W has the leaves rM … rM+M-1: the tree's lower levels are local, its upper ones are the collective. With more than one
 * worker M must be a power of two for the two to make the same tree as one worker; other numbers are refused.
 *
 * A strategy says which elements of a unit this worker updates (own); what it holds and sends stands at the head of its file. */
#ifndef LS_PARALLEL_STRATEGY_H
#define LS_PARALLEL_STRATEGY_H

#include "comm/comm.h"
#include "model/model.h"
#include "parallel/gradtree.h"

typedef struct ls_strategy ls_strategy;

typedef struct ls_strategy_ops {
    const char *name;
    bool (*holds_moments)(const ls_strategy *s);
    ls_status (*grad_ready)(ls_strategy *s, int u); /* (optional) of the last micro-batch, after the tree's carry */
    ls_status (*step_due)(ls_strategy *s);          /* (optional) returns with every ticket waited for            */
    ls_status (*step_done)(ls_strategy *s);         /* (optional) leaves equal parameters everywhere, bit for bit */
} ls_strategy_ops;

extern const ls_strategy_ops ls_strategy_single, ls_strategy_dp, ls_strategy_ddp;

typedef struct ls_strategy_opts {
    int n_micro;    /* M, of each worker                                */
    int64_t bucket; /* elements of a gradient bucket                    */
    bool deterministic;
} ls_strategy_opts;

struct ls_strategy {
    const ls_strategy_ops *ops;
    ls_model *model;
    ls_comm *comm;
    ls_strategy_opts opts;
    ls_gradtree *tree;
    int micro;         /* the one under way                                */
    int *row[3];       /* plan rows of parameters and the two moments      */
    int waiting;       /* ddp: units that are ready and not posted         */
    int64_t n_waiting; /* their elements                                   */
    ls_ticket *ticket;
    int n_ticket, cap_ticket;
};

/* The strategy of this name; LS_E_CONFIG for a layout that cannot work (with the arithmetic), LS_E_UNSUPPORTED for a name that is not
 * offered. Adds the rows of parameters, gradients and moments to the plan. Collective over c. */
ls_status ls_strategy_create(ls_strategy **out, const char *name, ls_model *m, ls_comm *c, const ls_strategy_opts *o,
                             ls_plan *plan);
void ls_strategy_bind(ls_strategy *s, const ls_plan *plan);
void ls_strategy_destroy(ls_strategy **s);

/* Place of this worker's micro-batch m among the step's leaves. */
int64_t ls_strategy_leaf(const ls_strategy *s, int m);

void ls_strategy_begin(ls_strategy *s, int micro);       /* before a micro-batch            */
ls_status ls_strategy_grad_ready(ls_strategy *s, int u); /* the walk's hook                 */
ls_status ls_strategy_step_due(ls_strategy *s);          /* gradients whole, tied ones folded */
ls_status ls_strategy_step_done(ls_strategy *s);
bool ls_strategy_updates(const ls_strategy *s); /* this worker runs the optimizer  */

#endif
