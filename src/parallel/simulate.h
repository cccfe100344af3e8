/* simulate.h - simulates the duration of a schedule.
 *
 *   a computing action   takes the cost of its part
 *   a send               takes no time; its message leaves when the link (source, destination, direction) is free, and arrives
 *                        latency + transfer later. With mailboxes of k slots it waits until the receiver has taken all but k-1 of the
 *                        messages before it
 *   a receive            waits until its message has arrived
 *
 * bubble = 1 - work / (ranks * makespan): the step waits for all ranks, so the idle time of every rank counts from 0 to the end.
 * inner  = idle time between each rank's own first and last action, over the sum of these spans: what would be lost if no rank waited for
 *          another at the step (the measure of the zero-bubble papers). */
#ifndef LS_PARALLEL_SIMULATE_H
#define LS_PARALLEL_SIMULATE_H

#include "parallel/schedule.h"

typedef struct ls_span {
    int rank, action; /* its index in the rank's list */
    double begin, end;
} ls_span;

typedef struct ls_sim_rank {
    double first, last; /* begin of the first, end of the last computing action */
    double busy;
    double peak; /* of live activations, in units of ls_part_cost.act */
} ls_sim_rank;

typedef struct ls_sim {
    double makespan, bubble, inner;
    ls_sim_rank *rank; /* [n_stage]                                             */
    ls_span *span;     /* all actions, rank by rank, in the order of their list */
    int n_span;
} ls_sim;

/* s: a built-in or checked schedule. mailbox: slots per (source, destination, direction); 0 = unbounded. costs NULL = ls_pipe_equal. LS_E_CONFIG on a deadlock,
 * with the position of each rank. */
ls_status ls_simulate(ls_sim *out, const ls_schedule *s, const ls_pipe_costs *costs, int mailbox);
void ls_sim_fini(ls_sim *r);

/* The failure of a deadlock: what each rank waits for at its action at[rank]. mailbox: 0, or slots as above. buffer (may be NULL): ranks
 * that wait for the memory of a gradient, not for a message. */
ls_status ls_sim_deadlock(const ls_schedule *s, const int *at, int mailbox, const bool *buffer);

/* The average share of idle ranks while a rank computes. */
ls_status ls_sim_waiting(const ls_sim *r, const ls_schedule *s, double *share);

#endif
