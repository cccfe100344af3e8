/* launch.h - `-n N`: workers of one host as child processes that share memory.
 *
 * The parent reserves the shared world, forks N workers, gives each its part of the cores, passes their stderr on and watches
 * them. A worker that dies takes the others down within seconds; nothing outlives the parent (children die with it, the shared
 * memory has no name). */
#ifndef LS_COMM_LAUNCH_H
#define LS_COMM_LAUNCH_H

#include "comm/comm.h"

#define LS_LAUNCH_MOST    64   /* workers */
#define LS_LAUNCH_STOPPED 30.0 /* seconds */

/* How workers ended, for who starts them again. */
typedef struct ls_launch_end {
    int rank;         /* the worker that failed first; -1: none, or not known */
    bool sure;        /* several hosts: it is; the others only heard of it */
    int host;         /* several hosts: the number of its host in the plan; -1: none */
    int signal;       /* that killed it; 0: it ended by itself            */
    bool stopped;     /* by SIGSTOP                                       */
    bool silent;      /* it exited without reporting a status             */
    bool status;      /* a launcher was not killed: the signal is that of its exit code */
    char detail[400]; /* one line for a person; may be empty             */
} ls_launch_end;

typedef struct ls_launch {
    int n;
    size_t arena_nbytes; /* address space of each worker; 0 = the machine's memory */
    bool pin;            /* give worker r its part of the cores                    */
    const int *share;    /* cores of each worker; NULL: equal parts                */
    bool alone;          /* n is 1 and the worker is no member of a group: body gets no communicator and 0 cores */
    bool
        end_stopped; /* workers that are all stopped (SIGSTOP) for LS_LAUNCH_STOPPED seconds are killed: nobody else notices it */
    /* In the child: its communicator, cores it was given. The status becomes its exit code; the error message is printed by `report`. */
    ls_status (*body)(void *ctx, ls_comm *c, int n_core);
    void (*report)(void *ctx, int rank,
                   ls_status st); /* in the child, after body, unless it only heard of a failure; may be NULL */
    /* In the parent, about 20 times per second; may be NULL. True: the workers are asked to stop, as by SIGTERM. */
    bool (*tick)(void *ctx);
    ls_launch_end *end; /* out; may be NULL */
    void *ctx;
} ls_launch;

/* Returns when every worker is gone. A worker's own failure is returned as the status that it had, silently: the worker has printed why.
 * A worker that was killed is LS_E_COMM: rank, signal and its last lines.
 *
 *   the run fails      each worker has 8 s to end, then ends itself with exit code 4; 2 s later those left (a worker that is stopped by
 *                      SIGSTOP) are named and killed
 *   SIGTERM, SIGINT    passed on; LS_E_STOPPED when the workers stopped (ls_stop_exit_code). A second signal kills them at once. One that
 *                      a worker gets by itself ends the run the same way; before the first step the rank is named
 *   the end            closing the communicator may take LS_COMM_CLOSE_TIME; then the worker ends with the exit code of its status */
ls_status ls_launch_local(const ls_launch *l);

/* The status of a worker that left nothing but its exit code. */
ls_status ls_launch_status(int exit_code);

#endif
