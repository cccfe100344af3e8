/* launch_impl.h - processes that `lockstep launch` starts: the remote shell of each host (launch_hosts.c) and, there, each worker
 * (launch_agent.c). Both sides share how they start a process, pass on its output and end it.
 *
 *   lockstep launch ── ssh HOST ── lockstep launch --agent ─┬─ worker
 *        │  stdin: job, then "term", "int", "failed", "kill" ► └─ worker
 *        ◄── stdout, stderr: lines of the workers, with their ranks; at the end AGENT_MARK lines: a report (ended_impl.h), with its error message, for
 *            each worker that did not end with 0, or AGENT_DONE
 *
 * Invariants
 *   1. the end of the agent's stdin ends its workers: nothing outlives the connection, whatever became of the other side;
 *   2. workers die with their agent (PR_SET_PDEATHSIG), and each worker is a session of its own, ended with all its processes;
 *   3. the token is part of the job, never of a command line;
 *   4. only AGENT_DONE tells that workers were successful: srun ends with 0 when the node of its task fails. */
#ifndef LS_COMM_LAUNCH_IMPL_H
#define LS_COMM_LAUNCH_IMPL_H

#include "comm/ended_impl.h"
#include "comm/launch_hosts.h"
#include "comm/relay_impl.h"

#include "core/argv.h"

#include <sys/types.h>

#define JOB_MAX    (60 << 10) /* bytes: a pipe takes it without waiting */
#define AGENT_MARK "\036lockstep agent: "
#define AGENT_DONE "done\n" /* all workers have ended with 0 */

typedef struct proc {
    pid_t pid; /* 0: not started */
    relay out, err;
    bool gone, killed;
    bool heard; /* it has printed something */
    int status; /* of waitpid */
    double ended_at;
    bool was_stopped; /* by SIGSTOP, when it was killed */
} proc;

/* argv in a session of its own, with env (NAME=VALUE) added to the environment; in: the write end of its stdin, NULL: /dev/null. */
ls_status proc_start(proc *p, const ls_argv *argv, const ls_argv *env, int *in);
/* Passes on output for at most ms milliseconds, or until fd (-1: none) can be read: true then. */
bool proc_relay(proc *p, int n, int fd, int ms);
void proc_finish(proc *p, int n); /* what is left of the output */
bool proc_ended(proc *p);         /* once: it has ended since the last call */
/* To the process and all of its session. */
void proc_signal(const proc *p, int sig);
int proc_code(const proc *p); /* its exit code; 4 after a signal */
ended proc_end(const proc *p, int rank);

/* The command line that runs `program WORDS` on host i: by its remote shell, or directly where it is this one. */
ls_status launch_compose(const ls_launch_plan *l, int i, const char *words, ls_argv *out);

/* The job of one host, as it travels. */
typedef struct launch_job {
    int first, n, size; /* ranks first … first+n-1 of size */
    bool prefix;
    const char *folder, *address, *token;
    int port;
    ls_argv env, argv; /* NAME=VALUE; the program and its arguments */
} launch_job;
ls_status launch_job_write(const launch_job *j, ls_str *out);
/* Reads a job; its strings are in `text`. LS_E_FORMAT. */
ls_status launch_job_read(char *text, size_t n, launch_job *out);

#endif
