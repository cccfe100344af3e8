/* launch_command.c - one command of another launcher, and the question whether a host answers. */
#include "comm/launch.h"
#include "comm/launch_impl.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/stop.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAVE_TIME (LS_STOP_SAVE + 25.0) /* seconds for workers to save after a stop */

ls_status ls_launch_command(const ls_argv *argv, bool (*tick)(void *ctx), void *ctx, ls_launch_end *end)
{
    proc p = {0};
    double asked_at = 0;
    *end = (ls_launch_end){.rank = -1};
    ls_stop_install();
    const ls_stop_mode before = ls_stop_set_mode(LS_STOP_PARENT);
    const ls_status st = proc_start(&p, argv, &(ls_argv){0}, NULL);
    while (st == LS_OK && !proc_ended(&p)) {
        (void)proc_relay(&p, 1, -1, 50);
        const bool wanted = tick && tick(ctx);
        if (ls_stop_at_once() || (asked_at > 0 && ls_now() - asked_at > SAVE_TIME)) proc_signal(&p, SIGKILL);
        if (asked_at > 0 || (!ls_stop_requested() && !wanted)) continue;
        asked_at = ls_now();
        (void)kill(p.pid, ls_stop_signal() == SIGINT ? SIGINT : SIGTERM); /* the launcher passes it on */
    }
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
    if (code) snprintf(end->detail, sizeof end->detail, "%.200s exited with code %d", argv->word[0], code);
    ls_stop_ended_with(code);
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
    const bool ended = proc_ended(p), late = !ended && ls_now() - (*q)->since > limit;
    if (!ended && !late) return -1;
    if (late) {
        proc_signal(p, SIGKILL);
        (void)waitpid(p->pid, &p->status, 0);
        p->gone = true;
    }
    const int answers = ended && proc_code(p) == 0;
    close(p->out.fd);
    close(p->err.fd);
    ls_free(*q);
    *q = NULL;
    return answers;
}
