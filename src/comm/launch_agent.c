/* launch_agent.c - the workers of one host, for `lockstep launch` on another one. */
#include "comm/launch.h"
#include "comm/launch_impl.h"
#include "comm/local_impl.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOB_TIME 60.0                /* seconds for the job to come */
#define GRACE    (ABORT_GRACE + 4.0) /* seconds for the other workers after one has failed */
#define LOST     30.0                /* seconds for workers to save when the launcher is gone */

typedef struct agent {
    launch_job job;
    proc *worker;
    char host[64];
    int left;
    double trouble_at, lost_at; /* 0: not */
    bool asked, deaf;           /* deaf: stdin has ended */
} agent;

/* ---- the job ---- */

static ls_status read_some(char *buf, size_t n, double until)
{
    for (size_t at = 0; at < n;) {
        struct pollfd p = {STDIN_FILENO, POLLIN, 0};
        if (ls_now() > until)
            return ls_fail(LS_E_COMM, "no job came from the launcher; this command is for lockstep launch");
        if (poll(&p, 1, 100) <= 0) continue;
        const ssize_t k = read(STDIN_FILENO, buf + at, n - at);
        if (k == 0) return ls_fail(LS_E_COMM, "the launcher closed the connection before it sent a job");
        if (k > 0) at += (size_t)k;
        else if (errno != EINTR && errno != EAGAIN) return ls_fail(LS_E_IO, "cannot read the job: %s", strerror(errno));
    }
    return LS_OK;
}

static ls_status read_job(char **text, launch_job *out)
{
    const double until = ls_now() + JOB_TIME;
    char head[40] = "";
    int n = 0;
    for (size_t k = 0; k < sizeof head - 1 && (!k || head[k - 1] != '\n'); k++) LS_TRY(read_some(head + k, 1, until));
    if (sscanf(head, "lockstep job %d\n", &n) != 1 || n < 1 || n > JOB_MAX)
        return ls_fail(LS_E_FORMAT, "stdin has no job; this command is for lockstep launch");
    *text = ls_alloc((size_t)n);
    if (!*text) return ls_nomem((size_t)n, "a job");
    LS_TRY(read_some(*text, (size_t)n, until));
    return launch_job_read(*text, (size_t)n, out);
}

/* ---- workers ---- */

static ls_status start_worker(agent *a, int k)
{
    const launch_job *j = &a->job;
    ls_argv env = {0};
    ls_status st = ls_argv_add_all(&env, &j->env);
    if (st == LS_OK) st = ls_argv_addf(&env, "RANK=%d", j->first + k);
    if (st == LS_OK) st = ls_argv_addf(&env, "WORLD_SIZE=%d", j->size);
    if (st == LS_OK) st = ls_argv_addf(&env, "LOCAL_RANK=%d", k);
    if (st == LS_OK) st = ls_argv_addf(&env, "LOCAL_WORLD_SIZE=%d", j->n);
    if (st == LS_OK) st = ls_argv_addf(&env, "MASTER_ADDR=%s", j->address);
    if (st == LS_OK) st = ls_argv_addf(&env, "MASTER_PORT=%d", j->port);
    if (st == LS_OK) st = ls_argv_addf(&env, "LOCKSTEP_TOKEN=%s", j->token);
    if (st == LS_OK) st = ls_argv_add(&env, "LOCKSTEP_LAUNCH=1");
    if (st == LS_OK) st = proc_start(&a->worker[k], &j->argv, &env, NULL);
    ls_argv_fini(&env);
    a->worker[k].out.closes = a->worker[k].err.closes = true;
    a->worker[k].err.mark = "lockstep: "; /* its error message */
    a->worker[k].err.shows_marked = true;
    if (st != LS_OK || !j->prefix) return st;
    snprintf(a->worker[k].out.prefix, sizeof a->worker[k].out.prefix, "[rank %d] ", j->first + k);
    snprintf(a->worker[k].err.prefix, sizeof a->worker[k].err.prefix, "[rank %d] ", j->first + k);
    return LS_OK;
}

static void signal_all(agent *a, int sig)
{
    for (int k = 0; k < a->job.n; k++) proc_signal(&a->worker[k], sig);
}

static void kill_all(agent *a, const char *why)
{
    for (int k = 0; k < a->job.n; k++) {
        proc *p = &a->worker[k];
        if (!p->pid || p->gone || p->killed) continue;
        p->killed = true;
        p->was_stopped = local_is_stopped((int)p->pid);
        fprintf(stderr, "lockstep: rank %d on %s (pid %d) %s; killing it\n", a->job.first + k, a->host, (int)p->pid,
                p->was_stopped ? "is stopped (SIGSTOP)" : why);
        proc_signal(p, SIGKILL);
    }
}

static void reap(agent *a)
{
    for (int k = 0; k < a->job.n; k++) {
        proc *p = &a->worker[k];
        if (!proc_ended(p)) continue;
        a->left--;
        if (WIFSIGNALED(p->status) && !p->killed)
            fprintf(stderr, "lockstep: rank %d on %s (pid %d) was killed by signal %d (%s)\n", a->job.first + k,
                    a->host, (int)p->pid, WTERMSIG(p->status), strsignal(WTERMSIG(p->status)));
        if (proc_code(p) && a->trouble_at == 0) a->trouble_at = ls_now();
    }
}

/* Once: a second signal would end workers that are saving. The launcher and the scheduler may both pass on the same stop. */
static void ask(agent *a, int sig)
{
    if (a->asked) return;
    a->asked = true;
    signal_all(a, sig);
}

/* Orders of the launcher, a word per line ("failed": workers of another host have); the end of stdin: it is gone, or the connection is. */
static void obey(agent *a)
{
    char text[256];
    const ssize_t n = read(STDIN_FILENO, text, sizeof text - 1);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
        a->deaf = true;
        a->lost_at = ls_now();
        if (a->left && !a->asked) fprintf(stderr, "lockstep: %s lost its launcher: stopping the workers\n", a->host);
        ask(a, SIGTERM);
        return;
    }
    text[n] = '\0';
    if (strstr(text, "failed") && a->trouble_at == 0) a->trouble_at = ls_now();
    if (strstr(text, "kill")) kill_all(a, "is ended by a second signal or by the launcher");
    else if (strstr(text, "int")) ask(a, SIGINT);
    else if (strstr(text, "term")) ask(a, SIGTERM);
}

/* Whether nobody is left who could end by himself. */
static bool all_stopped(const agent *a)
{
    for (int k = 0; k < a->job.n; k++)
        if (a->worker[k].pid && !a->worker[k].gone && !local_is_stopped((int)a->worker[k].pid)) return false;
    return true;
}

static void watch(agent *a)
{
    while (a->left) {
        if (proc_relay(a->worker, a->job.n, a->deaf ? -1 : STDIN_FILENO, 50)) obey(a);
        reap(a);
        const double now = ls_now();
        if (ls_stop_at_once()) kill_all(a, "is ended by a second signal or by the launcher");
        else if (ls_stop_requested() && !a->asked) ask(a, SIGTERM);
        if (a->trouble_at > 0 && !a->asked && (now - a->trouble_at > GRACE || all_stopped(a)))
            kill_all(a, "did not exit after the run failed");
        if (a->lost_at > 0 && now - a->lost_at > LOST) kill_all(a, "did not exit after its launcher was lost");
    }
    proc_finish(a->worker, a->job.n);
}

/* How the workers ended, for the launcher. The status is that of the worker that failed first; it has printed why. */
static ls_status report(const agent *a)
{
    ended e[LS_LAUNCH_MOST];
    ls_str lines = {0};
    const double now = ls_now();
    for (int k = 0; k < a->job.n; k++) {
        e[k] = proc_end(&a->worker[k], a->job.first + k);
        if (!e[k].code) continue;
        ended_find_message(&e[k], a->worker[k].err.noted.data);
        ls_str_add(&lines, AGENT_MARK);
        ended_write(&e[k], now, &lines);
    }
    const int at = ended_first(e, a->job.n, false, NULL);
    if (at < 0) ls_str_add(&lines, AGENT_MARK AGENT_DONE);
    if (lines.data && !lines.failed) fputs(lines.data, stdout);
    fflush(stdout);
    ls_str_fini(&lines);
    if (at < 0) return LS_OK;
    ls_err_clear();
    ls_stop_ended_with(e[at].code);
    return e[at].st;
}

ls_status ls_launch_agent(void)
{
    agent a = {0};
    char *text = NULL;
    gethostname(a.host, sizeof a.host - 1);
    ls_stop_install();
    (void)ls_stop_set_mode(LS_STOP_PARENT);
    ls_status st = read_job(&text, &a.job);
    if (st == LS_OK && chdir(a.job.folder))
        st = ls_fail(LS_E_IO, "%s: cannot enter the folder %s: %s", a.host, a.job.folder, strerror(errno));
    a.worker = ls_alloc((size_t)(a.job.n > 0 ? a.job.n : 1) * sizeof *a.worker);
    if (st == LS_OK && !a.worker) st = ls_nomem(sizeof *a.worker, "workers");
    for (int k = 0; k < a.job.n && st == LS_OK; k++) {
        st = start_worker(&a, k);
        a.left += st == LS_OK;
    }
    if (st != LS_OK && a.left) signal_all(&a, SIGKILL);
    if (a.left) watch(&a);
    if (st == LS_OK) st = report(&a);
    for (int k = 0; a.worker && k < a.job.n; k++) ls_str_fini(&a.worker[k].err.noted);
    ls_argv_fini(&a.job.env);
    ls_argv_fini(&a.job.argv);
    ls_free(a.worker);
    ls_free(text);
    return st;
}
