/* inject.h - faults on request, for drills and tests (docs/DRILL.md).
 *
 *   LOCKSTEP_FAULT="kind=kill,rank=1,step=5,phase=backward;kind=enospc,rank=0,path=model.safetensors"
 *
 * The variable is read once, by main. Without it ls_inject_on is false, and that is all that the hooks look at:
 *
 *   if (ls_inject_on) ls_inject_phase(LS_FAULT_UPDATE);
 *
 * A fault happens on one rank, in one attempt of a supervised run (LOCKSTEP_ATTEMPT, from 1), `count` times. Before it happens, one line goes to the file
 * LOCKSTEP_FAULT_LOG, if that is set: time (ls_now), number of the fault, rank, step. */
#ifndef LS_CORE_INJECT_H
#define LS_CORE_INJECT_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a process fault (kill, stop, exit, abort, term, slow, clock, oom) happens. VALIDATE: at the begin of a validation, in the step before it.
 * SAVE: at a write to a file of a checkpoint. */
typedef enum ls_fault_phase {
    LS_FAULT_FORWARD,
    LS_FAULT_BACKWARD,
    LS_FAULT_UPDATE,
    LS_FAULT_VALIDATE,
    LS_FAULT_SAVE
} ls_fault_phase;
/* SUM: a sum of gradients, LS_FLIP_TREE: of some micro-batches (phase=backward). */
typedef enum ls_flip_of {
    LS_FLIP_PARAM,
    LS_FLIP_GRAD,
    LS_FLIP_MOMENT,
    LS_FLIP_ACT,
    LS_FLIP_SUM,
    LS_FLIP_TREE
} ls_flip_of;

extern bool ls_inject_on;

/* Reads a fault plan; NULL or "" is none. LS_E_ARG where it is malformed. */
ls_status ls_inject_open(const char *text);

/* Until this call a process has rank -1, a supervisor always: only faults of files happen in it, if they are of that rank. Reads the number of the attempt. LS_E_CONFIG. */
ls_status ls_inject_worker(int rank);

/* The worker begins step `step` (from 1). Process faults without a step happen in step 1. */
void ls_inject_step(int64_t step);
void ls_inject_phase(ls_fault_phase p);

/* Whether the plan has a flip in such a tensor. */
bool ls_inject_flips(ls_flip_of what);
/* Flips a bit of data[0 … n-1], elements of `size` bytes in host memory, if a flip is due in this tensor of unit `unit`. */
void ls_inject_flip(ls_flip_of what, int unit, void *data, int64_t n, size_t size);

#endif
