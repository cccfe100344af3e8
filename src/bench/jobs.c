#include "bench/jobs.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/stop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAP_NS   2000000
#define LAST_SEC 10.0 /* until killed processes have ended: a driver frees their memory first */

typedef struct slot {
    pid_t pid; /* and its process group; 0: free */
    int k;
    double since;
} slot;

typedef struct pool {
    const ls_jobs *j;
    slot at[LS_JOBS_MOST];
    unsigned char *started; /* by task */
    int n_ended;
} pool;

static void nap(void)
{
    nanosleep(&(struct timespec){0, NAP_NS}, NULL);
}

static void child_main(const ls_jobs *j, int k, int s, pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(4); /* the parent ended before prctl */
    j->body(j->ctx, k, s);
    fflush(NULL);
    _exit(0);
}

static ls_status start(pool *p, int k, int s)
{
    const pid_t parent = getpid();
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) return ls_fail(LS_E_COMM, "cannot start a process for task %d: %s", k, strerror(errno));
    if (pid == 0) child_main(p->j, k, s, parent);
    setpgid(pid, pid); /* parent and child both set it */
    p->at[s] = (slot){pid, k, ls_now()};
    p->started[k] = 1;
    return LS_OK;
}

static ls_status start_ready(pool *p)
{
    const ls_jobs *j = p->j;
    int k = 0;
    for (int s = 0; s < j->at_once; s++) {
        if (p->at[s].pid) continue;
        while (k < j->n && (p->started[k] || (j->ready && !j->ready(j->ctx, k)))) k++;
        if (k == j->n) return LS_OK;
        LS_TRY(start(p, k, s));
    }
    return LS_OK;
}

/* Kills a task and its processes and waits for them; returns the waitpid status of the task. */
static int end_group(pid_t pid)
{
    int status = 0, any;
    const double until = ls_now() + LAST_SEC;
    bool reaped = false;
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    while (ls_now() < until) {
        if (!reaped && waitpid(pid, &status, WNOHANG) == pid) reaped = true;
        else if (waitpid(-pid, &any, WNOHANG) < 0 && errno == ECHILD && reaped) break;
        else nap();
    }
    return status;
}

static ls_status end_task(pool *p, int s, ls_job_end e)
{
    slot *t = &p->at[s];
    const int k = t->k;
    e.seconds = ls_now() - t->since;
    const int killed = end_group(t->pid); /* including its remaining processes */
    if (!e.in_time) e.status = killed;
    t->pid = 0;
    p->n_ended++;
    return p->j->ended(p->j->ctx, k, s, &e);
}

static ls_status look(pool *p, bool *moved)
{
    for (int s = 0; s < p->j->at_once; s++) {
        slot *t = &p->at[s];
        siginfo_t info = {0};
        if (!t->pid) continue;
        /* not reaped yet: its process id is not reused while its group is killed */
        const bool gone = !waitid(P_PID, (id_t)t->pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid == t->pid;
        if (!gone && ls_now() - t->since < p->j->limit) continue;
        *moved = true;
        ls_job_end e = {.in_time = gone};
        if (gone) e.status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
        LS_TRY(end_task(p, s, e));
    }
    return LS_OK;
}

static ls_status run(pool *p)
{
    while (p->n_ended < p->j->n) {
        bool moved = false;
        if (ls_stop_requested()) return ls_fail(LS_E_STOPPED, "stopped by signal %d", ls_stop_signal());
        LS_TRY(start_ready(p));
        LS_TRY(look(p, &moved));
        if (!moved) nap();
    }
    return LS_OK;
}

ls_status ls_jobs_run(const ls_jobs *j)
{
    pool p = {.j = j, .started = ls_alloc((size_t)j->n + 1)};
    LS_ASSERT(j->at_once >= 1 && j->at_once <= LS_JOBS_MOST);
    if (!p.started) return ls_nomem((size_t)j->n, "a list of tasks");
    memset(p.started, 0, (size_t)j->n + 1);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ls_stop_install();
    const ls_status st = run(&p);
    for (int s = 0; s < j->at_once; s++)
        if (p.at[s].pid) kill(-p.at[s].pid, SIGKILL);
    for (int s = 0; s < j->at_once; s++)
        if (p.at[s].pid) (void)end_group(p.at[s].pid);
    ls_free(p.started);
    return st;
}
