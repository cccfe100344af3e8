/* schedule_check.h - checks that lists of actions are a training step. One checker for built-in schedules and files.
 *
 *   1. on every rank, every (micro-batch, chunk) is forward once and backward once, whole (B) or in two parts (I, then W)
 *   2. forward before backward; what comes from another rank is received before it is used, what another rank needs is sent after it is
 *      made; peers are the neighbours
 *   3. the weight gradients of a chunk come in the order of micro-batches (they are summed in the tree's order); then its REDUCE, once
 *   4. STEP is the last action, once
 *   5. between two ranks, messages are received in the order in which they are sent
 *   6. every rank reaches the end, with the buffers that the executor has (schedule_progress.c) */
#ifndef LS_PARALLEL_SCHEDULE_CHECK_H
#define LS_PARALLEL_SCHEDULE_CHECK_H

#include "parallel/schedule.h"

/* LS_E_CONFIG names rank, action (its line, if it was read from a file) and why. */
ls_status ls_schedule_check(const ls_schedule *s);

/* Point 6 alone, of a schedule that has passed 1 to 5. */
ls_status ls_schedule_progress(const ls_schedule *s);

/* The smallest mailbox with which it completes (at least 1). For a checked schedule. */
ls_status ls_schedule_mailbox(const ls_schedule *s, int *least);

#endif
