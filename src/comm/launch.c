#include "comm/ended_impl.h"
#include "comm/launch.h"
#include "comm/local_impl.h"
#include "comm/relay_impl.h"

#include "core/clock.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/stack.h"
#include "core/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE     (ABORT_GRACE + 2.0) /* seconds between the abort and SIGKILL: a worker ends itself before */
#define KILL_TIME 10.0                /* seconds for SIGKILL to work */
#define END_GRACE 2.0                 /* seconds after the first worker has ended, for those that are stopped */

typedef struct child {
    pid_t pid;
    relay err; /* of its stderr */
    relay out; /* of its stdout, if the parent shows a status line on that terminal; else it is the parent's own */
    bool gone;
    int status;      /* of waitpid                       */
    double ended_at; /* when it was noticed              */
    bool named;      /* its stop was printed              */
    bool killed;     /* by this parent                    */
} child;

static void child_main(const ls_launch *l, ls_local_world *world, int rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(4); /* the parent ended before the line above */
    ls_comm *c = NULL;
    char label[32];
    ls_log_init(rank);
    snprintf(label, sizeof label, "rank %d", rank);
    ls_stack_install(label);
    ls_deadline_name(label);
    ls_stop_note(&world->early[rank]);
    ls_stop_set_mode(LS_STOP_ASK);
    ls_local_world_join(world, rank);
    const int n_core = l->alone ? 0 : comm_take_cores(rank, l->n, l->share, l->pin);
    ls_status st = l->alone ? LS_OK : ls_comm_local(world, rank, &c);
    if (st == LS_OK) st = l->body(l->ctx, c, n_core);
    atomic_store(&world->ended[rank], (int)st + 1);
    const bool failed = st != LS_OK && st != LS_E_STOPPED;
    const bool speaks = !failed || !c || ls_comm_should_tell(c) ||
                        st != LS_E_COMM; /* a failure that all workers report is printed once */
    if (failed && !ls_err_is_peers()) {  /* the worker whose failure it is gives the reason */
        char words[400];
        snprintf(words, sizeof words, "rank %d failed: %.300s", rank, ls_err_words());
        ls_local_world_abort(world, rank, words);
    }
    if (l->report && speaks) l->report(l->ctx, rank, st);
    if (c) ls_comm_close(&c, st);
    ls_local_world_leave(world, rank);
    (void)ls_deadline_arm(LS_COMM_CLOSE_TIME, ls_status_exit_code(st), "writing the last lines");
    fflush(NULL);
    _exit(ls_status_exit_code(st));
}

/* Passes on what the workers print, for at most ms milliseconds; whether something came. */
static bool relay_all(child *ch, int n, int ms)
{
    struct pollfd p[2 * LS_LAUNCH_MOST];
    bool some = false;
    for (int r = 0; r < n; r++) {
        p[2 * r] = (struct pollfd){ch[r].err.fd, POLLIN, 0};
        p[2 * r + 1] = (struct pollfd){ch[r].out.fd, POLLIN, 0};
    }
    if (poll(p, 2 * (nfds_t)n, ms) <= 0) return false;
    for (int i = 0; i < 2 * n; i++) {
        relay *from = i % 2 ? &ch[i / 2].out : &ch[i / 2].err;
        char buf[4096];
        size_t got;
        if (from->fd < 0 || !(p[i].revents & (POLLIN | POLLHUP))) continue;
        if (relay_read(from, buf, sizeof buf, &got)) some = true;
    }
    return some;
}

ls_status ls_launch_status(int code)
{
    switch (code) {
    case 0: return LS_OK;
    case 2: return LS_E_CONFIG;
    case 3: return LS_E_FORMAT;
    case 5: return LS_E_NOMEM;
    case 1: return LS_E_NUMERIC;
    case 130:
    case 143: return LS_E_STOPPED;
    default: return LS_E_COMM;
    }
}

static ls_status status_of(const child *c, const ls_local_world *world, int rank)
{
    const int code = WEXITSTATUS(c->status), noted = atomic_load(&world->ended[rank]) - 1;
    return noted >= 0 && ls_status_exit_code((ls_status)noted) == code ? (ls_status)noted : ls_launch_status(code);
}

static void close_both(const int fd[2])
{
    for (int i = 0; i < 2; i++)
        if (fd[i] >= 0) close(fd[i]);
}

/* In the child: its stderr and stdout become the pipes; those of its siblings are closed. */
static void take_pipes(const child *ch, int r, const int err[2], const int out[2])
{
    dup2(err[1], STDERR_FILENO);
    if (out[1] >= 0) dup2(out[1], STDOUT_FILENO);
    ls_progress_become_worker();
    for (int k = 0; k < r; k++) close_both((const int[]){ch[k].err.fd, ch[k].out.fd});
    close_both((const int[]){err[0], out[0]});
}

static ls_status start(const ls_launch *l, ls_local_world *world, child *ch)
{
    const pid_t parent = getpid();
    const bool shared_terminal = ls_progress_live() && isatty(STDOUT_FILENO);
    fflush(NULL);
    for (int r = 0; r < l->n; r++)
        ch[r] = (child){.pid = -1, .err = {.fd = -1, .to = stderr}, .out = {.fd = -1, .to = stdout}};
    for (int r = 0; r < l->n; r++) {
        int err[2] = {-1, -1}, out[2] = {-1, -1};
        if (pipe2(err, O_CLOEXEC) || (shared_terminal && pipe2(out, O_CLOEXEC))) {
            close_both(err);
            return ls_fail(LS_E_COMM, "cannot create a pipe for worker %d: %s", r, strerror(errno));
        }
        const pid_t pid = fork();
        if (pid < 0) {
            close_both(err);
            close_both(out);
            return ls_fail(LS_E_COMM, "cannot start worker %d of %d: %s", r, l->n, strerror(errno));
        }
        if (pid == 0) {
            take_pipes(ch, r, err, out);
            child_main(l, world, r, parent);
        }
        close_both((const int[]){err[1], out[1]});
        ch[r].pid = pid;
        ls_debug("comm", "worker %d has pid %d", r, (int)pid);
        ch[r].err.fd = err[0];
        ch[r].out.fd = out[0];
    }
    return LS_OK;
}

static bool may_end(const child *c)
{
    return c->pid > 0 && !c->gone;
}

static void kill_all(child *ch, int n, int sig)
{
    for (int r = 0; r < n; r++)
        if (may_end(&ch[r])) kill(ch[r].pid, sig);
}

/* The message for a worker that did not report its own end. */
static void died(const child *c, const ls_local_world *world, int rank, char words[512])
{
    const int early = atomic_load(&world->early[rank]);
    char host[64] = "?";
    gethostname(host, sizeof host - 1);
    if (early)
        snprintf(words, 512, "rank %d was stopped by %s before the first step", rank,
                 early == SIGINT ? "SIGINT" : "SIGTERM");
    else if (WIFSIGNALED(c->status))
        snprintf(words, 512, "rank %d on %s (pid %d) was killed by signal %d (%s)", rank, host, (int)c->pid,
                 WTERMSIG(c->status), strsignal(WTERMSIG(c->status)));
    else snprintf(words, 512, "rank %d (pid %d) exited with code %d", rank, (int)c->pid, WEXITSTATUS(c->status));
}

/* ---- watching ---- */

typedef struct family {
    const ls_launch *l;
    child *ch;
    int n, left;
    ls_local_world *world;
    bool asked;        /* SIGTERM was passed on                      */
    double asked_at;   /* when                                       */
    double trouble_at; /* when the run was known to have failed, or 0 */
    double killed_at;  /* when SIGKILL was sent to those left, or 0   */
    double looked_at;  /* for workers that are stopped                */
    double stopped;    /* seconds in which all workers were stopped, and this process was not */
    double stop_seen;  /* when that was counted */
    bool given_up;     /* SIGKILL did not end them, either            */
    double ended_at;   /* when the first worker had ended well, or 0  */
    bool late;         /* the others did not end and were killed: the run was complete */
} family;

/* Ends those that are left. `why` (may be NULL) names them. */
static void finish(family *f, const char *why)
{
    if (f->killed_at > 0) return;
    f->killed_at = ls_now();
    for (int r = 0; r < f->n; r++) {
        child *c = &f->ch[r];
        if (!may_end(c)) continue;
        if (why)
            ls_progress_say("lockstep: rank %d (pid %d) %s; killing it\n", r, (int)c->pid,
                            c->named ? "is stopped" : why);
        c->killed = true;
        kill(c->pid, SIGKILL);
    }
}

/* Names workers that are stopped, once each; their number. */
static int name_stopped(family *f)
{
    int n = 0;
    for (int r = 0; r < f->n; r++) {
        child *c = &f->ch[r];
        if (!may_end(c) || !local_is_stopped((int)c->pid)) continue;
        n++;
        if (c->named) continue;
        c->named = true;
        ls_progress_say("lockstep: rank %d (pid %d) is stopped (SIGSTOP)\n", r, (int)c->pid);
    }
    return n;
}

static void give_up(family *f, int rank, const char *words)
{
    int nobody = 0;
    (void)atomic_compare_exchange_strong(&f->world->reporter, &nobody, -1); /* the parent prints it at the end */
    ls_local_world_abort(f->world, rank, words);
}

/* Whether a worker has ended by itself without a message, with whatever code, as a library does that calls exit(). */
static bool is_silent(const family *f, int r)
{
    const child *c = &f->ch[r];
    return c->gone && WIFEXITED(c->status) && !atomic_load(&f->world->ended[r]) && !atomic_load(&f->world->early[r]);
}

static void reap(family *f)
{
    for (int r = 0; r < f->n; r++) {
        child *c = &f->ch[r];
        if (c->gone || waitpid(c->pid, &c->status, WNOHANG) != c->pid) continue;
        c->gone = true;
        c->ended_at = ls_now();
        f->left--;
        if (WIFEXITED(c->status) && WEXITSTATUS(c->status) == 0 && !is_silent(f, r)) {
            if (f->ended_at == 0) f->ended_at = ls_now();
            continue;
        }
        if (!c->killed && (WIFSIGNALED(c->status) || !atomic_load(&f->world->ended[r]))) { /* it reported nothing */
            char words[512];
            died(c, f->world, r, words);
            give_up(f, r, words);
            if (atomic_load(&f->world->early[r]) && !ls_stop_requested())
                finish(f, NULL); /* nobody has anything to save */
        }
        if (f->trouble_at == 0) f->trouble_at = ls_now();
    }
}

static void pass_on_stop(family *f)
{
    if (ls_stop_at_once()) finish(f, NULL);
    const bool wanted = f->l->tick && f->l->tick(f->l->ctx);
    if (f->asked || (!ls_stop_requested() && !wanted)) return;
    f->asked = true;
    f->asked_at = ls_now();
    kill_all(f->ch, f->n, ls_stop_signal() == SIGINT ? SIGINT : SIGTERM);
}

/* Workers end by themselves (core/deadline.h); this is for those that cannot: stopped ones, and whatever else is left. */
static void enforce(family *f)
{
    const double now = ls_now();
    const char *why = NULL;
    if (f->trouble_at == 0 && atomic_load(&f->world->aborted) > 0) f->trouble_at = now;
    if (f->killed_at > 0) {
        f->given_up = f->left && now - f->killed_at > KILL_TIME;
        return;
    }
    if (!f->left || (f->trouble_at == 0 && !f->asked && f->ended_at == 0) || now - f->looked_at < 0.2) return;
    f->looked_at = now;
    if (f->trouble_at > 0) {
        if (name_stopped(f) == f->left) why = "is stopped"; /* nobody else to wait for */
        else if (now - f->trouble_at > GRACE) why = "did not exit after the run failed";
    } else if (f->ended_at > 0) { /* the run is complete: all of them agree before they close */
        if (now - f->ended_at > END_GRACE && name_stopped(f) == f->left) why = "is stopped";
        else if (now - f->ended_at > LS_COMM_CLOSE_TIME + GRACE) why = "did not exit after the other workers";
        f->late = why != NULL;
    } else if (now - f->asked_at > GRACE && name_stopped(f)) {
        give_up(f, 0, "a worker is stopped (SIGSTOP) and cannot handle SIGTERM");
    }
    if (why) finish(f, why);
}

static bool all_stopped(const family *f)
{
    bool all = true;
    for (int r = 0; r < f->n && all; r++) all = !may_end(&f->ch[r]) || local_is_stopped((int)f->ch[r].pid);
    return all;
}

/* Nobody waits for workers that are all stopped, or for one that is alone. */
static void see_stopped(family *f)
{
    const double now = ls_now(), since = now - f->stop_seen;
    if (!f->l->end_stopped || !f->left || f->killed_at > 0 || since < 0.2) return;
    f->stop_seen = now;
    f->stopped = all_stopped(f) ? f->stopped + (since < 1 ? since : 0) : 0;
    if (f->stopped < LS_LAUNCH_STOPPED) return;
    (void)name_stopped(f);
    give_up(f, 0, f->n > 1 ? "all workers are stopped (SIGSTOP)" : "the worker is stopped (SIGSTOP)");
    finish(f, "is stopped");
}

static void watch(family *f)
{
    while (f->left && !f->given_up) { /* pipes that a grandchild may hold open are not waited for */
        relay_all(f->ch, f->n, 50);
        pass_on_stop(f);
        reap(f);
        see_stopped(f);
        enforce(f);
    }
    for (int i = 0; i < 1000 && relay_all(f->ch, f->n, 0);) i++;
    for (int r = 0; r < f->n; r++) relay_end(&f->ch[r].err), relay_end(&f->ch[r].out);
}

/* ---- how it went ---- */

static ended end_of(const family *f, int r)
{
    const child *c = &f->ch[r];
    ended e = {.rank = r, .pid = (int)c->pid, .killed = !c->gone || c->killed, .at = c->ended_at};
    if (e.killed) return e;
    if (WIFSIGNALED(c->status)) e.signal = WTERMSIG(c->status);
    else e.st = status_of(c, f->world, r), e.code = WEXITSTATUS(c->status);
    e.early = atomic_load(&f->world->early[r]);
    e.silent = is_silent(f, r);
    e.aborted = r + 1 == atomic_load(&f->world->aborted);
    return e;
}

/* The worker that failed first; -1: none. stopped: one that was stopped by SIGSTOP comes before all others. */
static int first_failed(const family *f, bool stopped)
{
    ended e[LS_LAUNCH_MOST];
    for (int r = 0; r < f->n; r++) {
        e[r] = end_of(f, r);
        e[r].was_stopped = stopped && f->ch[r].named;
    }
    return ended_first(e, f->n, f->asked, NULL);
}

static void describe(const family *f, ls_launch_end *end)
{
    const int at = first_failed(f, true), first = atomic_load(&f->world->aborted) - 1;
    *end = (ls_launch_end){.rank = at};
    if (at < 0) return;
    const child *c = &f->ch[at];
    end->stopped = c->named;
    end->signal = !c->named && c->gone && WIFSIGNALED(c->status) ? WTERMSIG(c->status) : 0;
    end->silent = is_silent(f, at);
    if (first >= 0) snprintf(end->detail, sizeof end->detail, "%.399s", f->world->abort_words);
}

static ls_status outcome(const family *f)
{
    if (f->given_up) {
        int r = 0;
        while (!may_end(&f->ch[r])) r++;
        return ls_fail(
            LS_E_COMM,
            "rank %d (pid %d) does not exit after SIGKILL: it is blocked in the kernel, waiting for a device or a file",
            r, (int)f->ch[r].pid);
    }
    if (ls_stop_at_once())
        return ls_fail(LS_E_STOPPED, "stopped by a second signal: the workers were killed, and nothing more was saved");
    if (f->late) return LS_OK; /* what was left is named */
    const int at = first_failed(f, false);
    if (at < 0) return LS_OK;
    const child *c = &f->ch[at];
    if (WIFSIGNALED(c->status)) {
        char words[512];
        died(c, f->world, at, words);
        return ls_fail(LS_E_COMM, "%s%s", words, c->killed ? ": it did not exit after the run failed" : "");
    }
    if (is_silent(f, at)) {
        char words[512];
        died(c, f->world, at, words);
        return ls_fail(LS_E_COMM, "%s before its work was done", words);
    }
    if (at > 0 && atomic_load(&f->world->early[at])) { /* rank 0 prints that itself */
        char words[512];
        died(c, f->world, at, words);
        ls_progress_say("lockstep: %s; nothing to save\n", words);
    }
    ls_err_clear(); /* the worker has printed its error */
    ls_stop_ended_with(WEXITSTATUS(c->status));
    return status_of(c, f->world, at);
}

ls_status ls_launch_local(const ls_launch *l)
{
    ls_local_world *world = NULL;
    child ch[LS_LAUNCH_MOST] = {0};
    if (l->n > LS_LAUNCH_MOST)
        return ls_fail(LS_E_CONFIG, "-n %d: too many workers; one host runs at most %d", l->n, LS_LAUNCH_MOST);
    LS_TRY(ls_local_world_create(l->n, l->arena_nbytes ? l->arena_nbytes : local_machine_nbytes(), &world));
    ls_stop_install(); /* before the fork: workers inherit it, and a signal in between is not lost */
    const ls_stop_mode before = ls_stop_set_mode(LS_STOP_PARENT);
    ls_status st = start(l, world, ch);
    if (st == LS_OK) {
        family f = {.l = l, .ch = ch, .n = l->n, .left = l->n, .world = world};
        ls_info("comm", "started %d workers on this host; they communicate through shared memory", l->n);
        ls_deadline_start(); /* after the fork */
        watch(&f);
        if (l->end) describe(&f, l->end);
        st = outcome(&f);
    } else {
        kill_all(ch, l->n, SIGKILL);
        for (int r = 0; r < l->n && ch[r].pid > 0; r++)
            waitpid(ch[r].pid, NULL, 0), relay_end(&ch[r].err), relay_end(&ch[r].out);
    }
    ls_stop_set_mode(before);
    ls_local_world_destroy(&world);
    return st;
}
