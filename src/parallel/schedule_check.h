/* schedule_check.h - checks that lists of actions are a training step. One checker for built-in schedules and files.
 *
 *   1. on every rank, every (micro-batch, chunk) is forward once and backward once, whole (B) or in two parts (I, then W)
 *   2. forward before backward; what comes from another rank is received before it is used, what another rank needs is sent after it is
 *      made; peers are the neighbours
 *   3. the weight gradients of a chunk come in the order of micro-batches (they are summed in the tree's order); then its REDUCE, once
 *   4. STEP is the last action, once
 *   5. between two ranks, messages are received in the order in which they are sent
 *   6. with mailboxes of that many slots, every rank reaches the end */
#ifndef LS_PARALLEL_SCHEDULE_CHECK_H
#define LS_PARALLEL_SCHEDULE_CHECK_H

#include "parallel/schedule.h"

/* mailbox as in ls_simulate: 0 = a send never waits. LS_E_CONFIG names rank, action and why. */
ls_status ls_schedule_check(const ls_schedule *s, int mailbox);

/* The smallest mailbox with which it completes (at least 1). For a checked schedule. */
ls_status ls_schedule_mailbox(const ls_schedule *s, int *least);

#endif
