/* ended_impl.h - how workers ended, and which of them failed first: one rule for -n (launch.c), for the workers of a host (launch_agent.c) and
 * for several hosts (launch_hosts.c).
 *
 * A worker that dies makes the others fail a moment later. Who is noticed first depends on the load of the machines, so the choice is made when
 * all reports have come, by what an end reveals:
 *
 *   a host that did not start its workers > a worker stopped by SIGSTOP > a failure of its own (first the one that aborted the run) > a signal that
 *   this program did not send, or exit() of a library > SIGKILL > a stop before the first step > LS_E_COMM: heard of a failure > a stop (after
 *   a request: before LS_E_COMM) > killed by this program
 *
 * Among equal causes the earliest counts; among workers that only heard of a failure, the lowest rank. */
#ifndef LS_COMM_ENDED_IMPL_H
#define LS_COMM_ENDED_IMPL_H

#include "core/err.h"
#include "core/str.h"

#include <stdbool.h>

#define ENDED_CAUSE 5 /* from this weight on: not the consequence of another failure */

typedef struct ended {
    int rank; /* -1: a host whose agent reported no worker */
    int host; /* number in the plan */
    int pid;
    int code;          /* exit code, if there was no signal */
    ls_status st;      /* of that code */
    int signal;        /* that killed it; 0: none */
    bool killed;       /* by this program */
    bool was_stopped;  /* by SIGSTOP, before it was killed */
    bool early;        /* stopped by SIGTERM or SIGINT before the first step */
    bool silent;       /* it exited without reporting a status */
    bool aborted;      /* its failure is the one that ended the run */
    double at;         /* when, in seconds of ls_now of this process */
    char message[240]; /* that it has printed; "": none, as a worker that only heard of a failure */
} ended;

/* How much it reveals about the cause; 0: it was successful. asked: the workers were asked to stop. */
int ended_weight(const ended *e, bool asked);
/* Whether the remote shell of a host did not run the agent. */
bool ended_no_start(const ended *e);
/* The one that failed first; -1: none. *sure (may be NULL): it is a cause, and if it exited by itself, no other worker ended in the same way, as
 * they do when they agree on the failure of one. */
int ended_first(const ended *e, int n, bool asked, bool *sure);

/* Finds the message in the lines that it has printed after "lockstep: ": "[rank 2 on b: ]STATUS: MESSAGE", with a status of its exit code. */
void ended_find_message(ended *e, const char *lines);

/* A report as a line of the agent, and back. The age of the end travels, not the time: hosts have different clocks. False: not a report. */
void ended_write(const ended *e, double now, ls_str *out);
bool ended_read(const char *line, double now, ended *out);

#endif
