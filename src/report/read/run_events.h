/* run_events.h - the interruptions of a run: failures, restarts, changes of the number of workers, and audits, from events.jsonl.
 *
 *   attempt 1  steps that are kept | steps that are lost | ↯  waiting  | attempt 2  the lost steps again, further steps ...
 *
 *   wall      from the first `start` to the last event or step. The time before a `start` that follows no failure and no resize is left out:
 *             somebody resumed the run
 *   useful    the times of the steps in metrics.jsonl: a step that was computed twice counts once
 *   repeated  the times of steps that a failure lost, and that were computed again
 *   waiting   from the last finished step before a failure, or the stop before a resize, to the first step of the next attempt; to the failure if there
 *             was none
 *   goodput   useful / wall. The rest of wall is start, checkpoints and validation
 *
 * A `start` at step 0 that follows no failure begins another run in the same folder: what was read before is forgotten. */
#ifndef LS_REPORT_RUN_EVENTS_H
#define LS_REPORT_RUN_EVENTS_H

#include "run/events.h"

enum { LS_CAUSE_OTHER = 10, LS_CAUSE_RESIZE, LS_N_CAUSE };
extern const char *const ls_cause_name[LS_N_CAUSE]; /* of key `cause`; the last: stopped on purpose, for a resize */

typedef struct ls_cause_loss {
    int64_t count, lost_steps;
    double repeated, waiting; /* seconds */
} ls_cause_loss;

typedef struct ls_attempt {
    char label[12];            /* its number, from 1 */
    int64_t workers, from, to; /* to: the last step that it finished; -1: unknown */
    double begin, end;         /* seconds since the first attempt began */
    char how[256]; /* how it ended: "killed (rank 2 on host a): killed by signal 9", "complete"; "": it has not */
} ls_attempt;

typedef struct ls_audit_failure {
    int64_t step, rank; /* rank: blamed; -1: none */
    char what[32], unit[64];
} ls_audit_failure;

typedef struct ls_interruptions {
    ls_run_history seen;
    ls_cause_loss cause[LS_N_CAUSE];
    ls_attempt *attempt;
    int n_attempt, cap_attempt;
    ls_audit_failure *audit;
    int n_audit, cap_audit;
    double wall, useful, repeated, waiting; /* seconds; NaN: not known */
    double goodput;                         /* NaN: not known, also if the clock was changed during the run */
    /* with three or more failures of training, the same by the formula of core/goodput.h from measured values; NaN: one of them is not known */
    double predicted, mtbf, checkpoint, restart, step; /* seconds */
    int64_t interval, best_interval;                   /* steps between checkpoints, as it was, and the best */
    double best;                                       /* goodput with it */
} ls_interruptions;

enum { LS_ENOUGH_FAILURES = 3 }; /* to compare goodput with the formula */

static inline bool ls_was_interrupted(const ls_interruptions *e)
{
    return e->seen.failures || e->seen.restarts || e->seen.resizes;
}

/* Also if it was killed together with its supervisor, or without one, and repeated steps after that. */
static inline bool ls_has_lost_time(const ls_interruptions *e)
{
    return ls_was_interrupted(e) || e->cause[LS_CAUSE_OTHER].lost_steps;
}

#endif
