/* simulate.h - what a schedule takes: every rank works through its list; who waits, waits.
 *
 *   a computing action   lasts what its part costs
 *   a send               lasts nothing; its message leaves when the link (source, destination, direction) is free,
 *                        and arrives latency + transfer later. With mailboxes of k places it waits until the receiver
 *                        has taken all but k-1 of those before it
 *   a receive            lasts until its message is there
 *
 * bubble = 1 - work / (ranks * makespan): the step waits for all, so everybody's idle time counts from 0 to the end.
 * inner  = idle time between each rank's own first and last action, over the sum of these spans: what would be lost if
 *          no rank waited for another at the step (the measure of the zero-bubble papers). */
#ifndef LS_PARALLEL_SIMULATE_H
#define LS_PARALLEL_SIMULATE_H

#include "parallel/schedule.h"

typedef struct ls_span {
    int rank, action; /* its place in the rank's list */
    double begin, end;
} ls_span;

typedef struct ls_sim_rank {
    double first, last; /* begin of the first, end of the last computing action */
    double busy;
    double peak; /* of held activations, in units of ls_part_cost.act */
} ls_sim_rank;

typedef struct ls_sim {
    double makespan, bubble, inner;
    ls_sim_rank *rank; /* [n_stage]                                             */
    ls_span *span;     /* all actions, rank by rank, in the order of their list */
    int n_span;
    int depth; /* places of a mailbox that were needed at most (unbounded mailboxes) */
} ls_sim;

/* mailbox: places of each (source, destination, direction); 0 = as many as there are messages. costs NULL =
 * ls_pipe_equal. LS_E_CONFIG when ranks wait for each other: the words say where each stands. */
ls_status ls_simulate(ls_sim *out, const ls_schedule *s, const ls_pipe_costs *costs, int mailbox);
void ls_sim_fini(ls_sim *r);

/* While a rank computes: the share of ranks that do not, on average. */
ls_status ls_sim_waiting(const ls_sim *r, const ls_schedule *s, double *share);

#endif
