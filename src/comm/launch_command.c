/* launch_command.c - one command of another launcher, and the question whether a host answers. */
#include "comm/launch.h"
#include "comm/launch_impl.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/stop.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SAVE_TIME (LS_STOP_SAVE + 25.0) /* seconds for workers to save after a stop */
#define END_TIME  10.0                  /* seconds for killed processes to end */

/* ---- what a command leaves behind ----
 * Workers of a launcher that was killed go on training and saving, often in sessions of their own. While a command runs this process is the
 * subreaper of its descendants: what loses its parent becomes a child of this process. */

/* The parent of a process, and when it started in clock ticks since boot. False: it is gone. */
static bool parent_of(long pid, long *parent, unsigned long long *started)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strrchr(text, ')'); /* the name before it may have any characters */
    return at && sscanf(at + 1, " %*c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", parent,
                        started) == 2;
}

/* Kills the children that started at `since` or later: older ones are not of the command. Their number. */
static int kill_children(unsigned long long since)
{
    int n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        long parent;
        unsigned long long started;
        const long pid = strtol(e->d_name, NULL, 10);
        if (pid <= 0 || !parent_of(pid, &parent, &started) || parent != getpid() || started < since) continue;
        n++;
        (void)kill((pid_t)pid, SIGKILL);
        (void)waitpid((pid_t)pid, NULL, WNOHANG);
    }
    if (d) closedir(d);
    return n;
}

/* After the command: again and again, because the children of a killed one become children of this process. */
static void end_left_behind(unsigned long long since)
{
    int n;
    for (const double until = ls_now() + END_TIME; (n = kill_children(since)) && ls_now() < until;)
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    if (n) ls_warn("comm", "%d processes of the command do not end after SIGKILL", n);
}

/* Processes that the command left behind and that have ended since. */
static void reap_others(pid_t command)
{
    for (siginfo_t i = {0}; !waitid(P_ALL, 0, &i, WEXITED | WNOHANG | WNOWAIT) && i.si_pid && i.si_pid != command;
         i.si_pid = 0)
        (void)waitpid(i.si_pid, NULL, WNOHANG);
}

/* ---- the command ---- */

ls_status ls_launch_command(const ls_argv *argv, bool (*tick)(void *ctx), void *ctx, ls_launch_end *end)
{
    proc p = {0};
    double asked_at = 0;
    long parent;
    unsigned long long since = 0;
    *end = (ls_launch_end){.rank = -1};
    ls_stop_install();
    const ls_stop_mode before = ls_stop_set_mode(LS_STOP_PARENT);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    const ls_status st = proc_start(&p, argv, &(ls_argv){0}, NULL);
    const bool known = st == LS_OK && parent_of(p.pid, &parent, &since);
    while (st == LS_OK && !proc_ended(&p)) {
        (void)proc_relay(&p, 1, -1, 50);
        reap_others(p.pid);
        const bool wanted = tick && tick(ctx);
        if (ls_stop_at_once() || (asked_at > 0 && ls_now() - asked_at > SAVE_TIME)) proc_signal(&p, SIGKILL);
        if (asked_at > 0 || (!ls_stop_requested() && !wanted)) continue;
        asked_at = ls_now();
        (void)kill(p.pid, ls_stop_signal() == SIGINT ? SIGINT : SIGTERM); /* the launcher passes it on */
    }
    if (known) end_left_behind(since);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 0);
    if (p.pid) proc_finish(&p, 1);
    (void)ls_stop_set_mode(before);
    LS_TRY(st);
    if (WIFSIGNALED(p.status)) {
        end->signal = WTERMSIG(p.status);
        snprintf(end->detail, sizeof end->detail, "%.200s was killed by signal %d (%s)", argv->word[0], end->signal,
                 strsignal(end->signal));
        return ls_stop_at_once() ? LS_E_STOPPED : ls_fail(LS_E_COMM, "%s", end->detail);
    }
    const int code = WEXITSTATUS(p.status);
    if (code) snprintf(end->detail, sizeof end->detail, "%.200s ended with code %d", argv->word[0], code);
    if (code > 128) end->signal = code - 128; /* of a worker, as shells and launchers report it */
    end->status = true;
    ls_stop_ended_with(code);
    if (asked_at > 0 && code == 1) return LS_E_STOPPED; /* mpirun, whatever its workers exit with after SIGTERM */
    return code == 126 || code == 127 ? LS_E_ARG : ls_launch_status(code); /* 126, 127: there is no such command */
}

struct ls_launch_probe {
    proc p;
    double since;
};

ls_status ls_launch_probe_start(const ls_launch_plan *l, int host, ls_launch_probe **out)
{
    ls_argv words = {0};
    ls_launch_probe *q = ls_alloc(sizeof *q);
    if (!q) return ls_nomem(sizeof *q, "a probe of a host");
    ls_status st = launch_compose(l, host, "--version", &words);
    if (st == LS_OK) st = proc_start(&q->p, &words, &(ls_argv){0}, NULL);
    ls_argv_fini(&words);
    if (st != LS_OK) {
        ls_free(q);
        return st;
    }
    q->since = ls_now();
    *out = q;
    return LS_OK;
}

int ls_launch_probe_poll(ls_launch_probe **q, double limit)
{
    proc *p = &(*q)->p;
    const bool over = proc_ended(p), late = !over && ls_now() - (*q)->since > limit;
    if (!over && !late) return -1;
    if (late) {
        proc_signal(p, SIGKILL);
        (void)waitpid(p->pid, &p->status, 0);
        p->gone = true;
    }
    const int answers = over && proc_code(p) == 0;
    close(p->out.fd);
    close(p->err.fd);
    ls_free(*q);
    *q = NULL;
    return answers;
}
