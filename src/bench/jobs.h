/* jobs.h - runs tasks as processes, several at a time, each with a time limit.
 *
 * A task writes its results to memory shared with the parent. A task above the limit is killed with all processes that it started; on a
 * stop request all tasks are. No task outlives the parent. Orphaned processes of the tasks become children of this process
 * (PR_SET_CHILD_SUBREAPER) and are reaped. */
#ifndef LS_BENCH_JOBS_H
#define LS_BENCH_JOBS_H

#include "core/err.h"

#include <stdbool.h>

#define LS_JOBS_MOST 64

typedef struct ls_job_end {
    bool in_time;   /* false: killed at the time limit*/
    int status;     /* of waitpid                         */
    double seconds; /* that it ran                        */
} ls_job_end;

typedef struct ls_jobs {
    int n;                                    /* tasks                                        */
    int at_once;                              /* 1 to LS_JOBS_MOST                            */
    double limit;                             /* seconds of one task                          */
    bool (*ready)(void *ctx, int k);          /* true if task k can start; NULL: always. Ready tasks start in order */
    void (*body)(void *ctx, int k, int slot); /* in the child; slot: 0 to at_once - 1, of one running task at a time */
    ls_status (*ended)(void *ctx, int k, int slot, const ls_job_end *e); /* in the parent; a failure ends the others */
    void *ctx;
} ls_jobs;

/* Returns when every task has ended. LS_E_STOPPED: SIGTERM or SIGINT came, and no task is left running. */
ls_status ls_jobs_run(const ls_jobs *j);

#endif
