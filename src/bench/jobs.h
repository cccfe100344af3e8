/* jobs.h - tasks as processes of their own, several at the same time, each with a time limit.
 *
 * A task leaves its results in memory that its parent shares. A task that takes too long is killed with every process that it has started,
 * and so are all when this process is asked to stop; nothing outlives the parent. Processes that the tasks leave behind become children of
 * this one (PR_SET_CHILD_SUBREAPER) and are waited for. */
#ifndef LS_BENCH_JOBS_H
#define LS_BENCH_JOBS_H

#include "core/err.h"

#include <stdbool.h>

#define LS_JOBS_MOST 64

typedef struct ls_job_end {
    bool in_time;   /* false: it was killed at the limit  */
    int status;     /* of waitpid                         */
    double seconds; /* that it ran                        */
} ls_job_end;

typedef struct ls_jobs {
    int n;        /* tasks                                        */
    int at_once;  /* 1 to LS_JOBS_MOST                            */
    double limit; /* seconds of one task                          */
    bool (*ready)(void *ctx,
                  int k); /* what task k needs is done; NULL: always. Tasks start in order, ready ones first */
    void (*body)(void *ctx, int k, int slot); /* in the child; slot: 0 to at_once - 1, of one running task at a time */
    ls_status (*ended)(void *ctx, int k, int slot, const ls_job_end *e); /* in the parent; a failure ends the others */
    void *ctx;
} ls_jobs;

/* Returns when every task has ended. LS_E_STOPPED: SIGTERM or SIGINT came, and no task is left running. */
ls_status ls_jobs_run(const ls_jobs *j);

#endif
