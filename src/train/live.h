/* live.h - what a run shows of itself while it trains, for `lockstep serve` and `lockstep watch` (src/serve), besides metrics.jsonl.
 *
 *   events.jsonl   rank 0 appends one line per event: start, validation, checkpoint, end. Nothing is removed: a run that is resumed, or
 *                  started again in the same folder, appends another start.
 *   ranks.jsonl    line r is the state of rank r: step, phase, time, memory. A line has LS_RANK_LINE bytes and is overwritten in place, at
 *                  most every LS_RANK_PERIOD seconds. A reader that sees a line that is no JSON reads it again later.
 *
 * Keys: docs/FORMATS.md. A file that cannot be written gives one warning and never ends the run. After the first step nothing is
 * allocated. */
#ifndef LS_TRAIN_LIVE_H
#define LS_TRAIN_LIVE_H

#include "run/events.h"

enum { LS_RANK_LINE = 512 };
#define LS_RANK_PERIOD 0.5

typedef struct ls_live {
    bool open;                      /* between RUN_READY and SHUTDOWN_BEGIN                  */
    bool complete;                  /* the final files are written                           */
    bool stopped;                   /* by a signal to any worker, and what is to save is saved */
    ls_event_log events;            /* rank 0's; its line is also that of ranks.jsonl        */
    int ranks;                      /* descriptor; -1: not open                              */
    const char *phase;              /* the last that began, or what comes between two steps  */
    double written;                 /* when the line of this rank was, by ls_now             */
    double cpu, exposed, step_time; /* of the last step                         */
} ls_live;

#endif
