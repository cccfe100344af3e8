#include "comm/launch.h"
#include "comm/comm_impl.h"

#include "core/clock.h"
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

#define TAIL  600 /* bytes of a worker's last words     */
#define GRACE 5.0 /* seconds between the abort and kill */

typedef struct child {
    pid_t pid;
    int err; /* read end of its stderr, -1 when closed */
    bool gone;
    int status; /* of waitpid */
    char tail[TAIL];
    size_t n_tail;
} child;

static void child_main(const ls_launch *l, ls_local_world *world, int rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(4); /* the parent went before the line above */
    ls_comm *c = NULL;
    char label[32];
    snprintf(label, sizeof label, "rank %d", rank);
    ls_stack_install(label);
    ls_local_world_join(world, rank);
    const int n_core = comm_take_cores(rank, l->n, l->share, l->pin);
    ls_status st = ls_comm_local(world, rank, &c);
    if (st == LS_OK) st = l->body(l->ctx, c, n_core);
    bool first = false;
    if (st != LS_OK && st != LS_E_STOPPED) {
        char words[400];
        snprintf(words, sizeof words, "rank %d failed: %.300s", rank, ls_err_words());
        first = ls_local_world_abort(world, rank, words);
    }
    if (l->report && (st != LS_E_COMM || first)) l->report(l->ctx, rank, st); /* what everyone hears is told once */
    ls_comm_destroy(&c);
    ls_local_world_leave(world, rank);
    fflush(NULL);
    _exit(ls_status_exit_code(st));
}

static void keep_tail(child *c, const char *data, size_t n)
{
    if (n > TAIL) data += n - TAIL, n = TAIL;
    if (c->n_tail + n > TAIL) {
        const size_t drop = c->n_tail + n - TAIL;
        memmove(c->tail, c->tail + drop, c->n_tail - drop);
        c->n_tail -= drop;
    }
    memcpy(c->tail + c->n_tail, data, n);
    c->n_tail += n;
}

/* Passes on what the workers say, for at most ms milliseconds. */
static void relay(child *ch, int n, int ms)
{
    struct pollfd p[LS_LAUNCH_MOST];
    for (int r = 0; r < n; r++) p[r] = (struct pollfd){ch[r].err, POLLIN, 0};
    if (poll(p, (nfds_t)n, ms) <= 0) return;
    for (int r = 0; r < n; r++) {
        if (ch[r].err < 0 || !(p[r].revents & (POLLIN | POLLHUP))) continue;
        char buf[4096];
        ssize_t k = read(ch[r].err, buf, sizeof buf);
        if (k > 0) {
            keep_tail(&ch[r], buf, (size_t)k);
            fwrite(buf, 1, (size_t)k, stderr);
        } else if (k == 0 || (errno != EINTR && errno != EAGAIN)) {
            close(ch[r].err);
            ch[r].err = -1;
        }
    }
}

static ls_status status_of_exit(int code)
{
    switch (code) {
    case 0: return LS_OK;
    case 2: return LS_E_CONFIG;
    case 3: return LS_E_FORMAT;
    case 5: return LS_E_NOMEM;
    case 1: return LS_E_NUMERIC;
    case 143: return LS_E_STOPPED;
    default: return LS_E_COMM;
    }
}

static ls_status start(const ls_launch *l, ls_local_world *world, child *ch)
{
    const pid_t parent = getpid();
    fflush(NULL);
    for (int r = 0; r < l->n; r++) {
        int pipe_fd[2];
        ch[r] = (child){.pid = -1, .err = -1};
        if (pipe2(pipe_fd, O_CLOEXEC))
            return ls_fail(LS_E_COMM, "cannot make a pipe for worker %d: %s", r, strerror(errno));
        const pid_t pid = fork();
        if (pid < 0) {
            close(pipe_fd[0]);
            close(pipe_fd[1]);
            return ls_fail(LS_E_COMM, "cannot start worker %d of %d: %s", r, l->n, strerror(errno));
        }
        if (pid == 0) {
            dup2(pipe_fd[1], STDERR_FILENO);
            for (int k = 0; k < r; k++) close(ch[k].err);
            close(pipe_fd[0]);
            child_main(l, world, r, parent);
        }
        close(pipe_fd[1]);
        ch[r].pid = pid;
        ch[r].err = pipe_fd[0];
    }
    return LS_OK;
}

static void kill_all(child *ch, int n, int sig)
{
    for (int r = 0; r < n; r++)
        if (ch[r].pid > 0 && !ch[r].gone) kill(ch[r].pid, sig);
}

/* The words for a worker that did not end by itself. */
static void died(const child *c, int rank, char words[512])
{
    char host[64] = "?";
    gethostname(host, sizeof host - 1);
    const int sig = WIFSIGNALED(c->status) ? WTERMSIG(c->status) : 0;
    snprintf(words, 512, "rank %d on %s (pid %d) died by signal %d (%s)", rank, host, (int)c->pid, sig, strsignal(sig));
}

ls_status ls_launch_local(const ls_launch *l)
{
    ls_local_world *world = NULL;
    child ch[LS_LAUNCH_MOST];
    if (l->n > LS_LAUNCH_MOST)
        return ls_fail(LS_E_CONFIG, "-n %d: at most %d workers on one host", l->n, LS_LAUNCH_MOST);
    const size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    LS_TRY(ls_local_world_create(l->n, l->arena_nbytes ? l->arena_nbytes : memory, &world));
    ls_stop_install(); /* before the fork: workers inherit it, and a signal in between is not lost */
    ls_status st = start(l, world, ch);
    if (st != LS_OK) {
        int started = 0;
        while (started < l->n && ch[started].pid > 0) started++;
        kill_all(ch, started, SIGKILL);
        for (int r = 0; r < started; r++) waitpid(ch[r].pid, NULL, 0), close(ch[r].err);
        ls_local_world_destroy(&world);
        return st;
    }
    int left = l->n, first_bad = -1;
    bool told = false, open = true;
    double deadline = 0;
    while (left || open) {
        relay(ch, l->n, 50);
        open = false;
        for (int r = 0; r < l->n; r++) open = open || ch[r].err >= 0;
        if (ls_stop_requested() && !told) {
            told = true;
            kill_all(ch, l->n, SIGTERM);
        }
        for (int r = 0; r < l->n; r++) {
            if (ch[r].gone || waitpid(ch[r].pid, &ch[r].status, WNOHANG) != ch[r].pid) continue;
            ch[r].gone = true;
            left--;
            if (WIFEXITED(ch[r].status) && WEXITSTATUS(ch[r].status) == 0) continue;
            if (first_bad < 0 ||
                (WIFSIGNALED(ch[r].status) && !WIFSIGNALED(ch[first_bad].status) && WTERMSIG(ch[r].status) != SIGKILL))
                first_bad = r;
            if (WIFSIGNALED(ch[r].status)) {
                char words[512];
                died(&ch[r], r, words);
                ls_local_world_abort(world, r, words);
            }
            if (deadline == 0) deadline = ls_now() + GRACE;
        }
        if (deadline > 0 && left && ls_now() > deadline) kill_all(ch, l->n, SIGKILL);
        if (!left) { /* pipes that a grandchild may hold open are not waited for */
            relay(ch, l->n, 0);
            for (int r = 0; r < l->n; r++)
                if (ch[r].err >= 0) close(ch[r].err), ch[r].err = -1;
            break;
        }
    }
    ls_local_world_destroy(&world);
    if (first_bad < 0) return LS_OK;
    const child *b = &ch[first_bad];
    if (WIFSIGNALED(b->status)) {
        char words[512];
        died(b, first_bad, words);
        return ls_fail(LS_E_COMM, "%s%s%.*s", words, b->n_tail ? "; its last lines:\n" : "", (int)b->n_tail, b->tail);
    }
    st = status_of_exit(WEXITSTATUS(b->status));
    ls_err_clear(); /* the worker has spoken */
    return st;
}
