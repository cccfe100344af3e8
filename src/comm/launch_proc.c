#include "comm/launch_impl.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/str.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- processes ---- */

static void become(const ls_argv *argv, const ls_argv *env, int in, int out, int err, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(4); /* the parent ended before the line above */
    setsid();
    signal(SIGPIPE, SIG_DFL);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    for (int i = 0; i < env->n; i++) putenv(env->word[i]);
    execvp(argv->word[0], argv->word);
    fprintf(stderr, "lockstep: cannot run %s: %s\n", argv->word[0], strerror(errno));
    _exit(127);
}

ls_status proc_start(proc *p, const ls_argv *argv, const ls_argv *env, int *in)
{
    int end[3][2]; /* stdin, stdout, stderr */
    const pid_t parent = getpid();
    for (int i = 0; i < 3; i++) end[i][0] = end[i][1] = -1;
    bool ok = !pipe2(end[1], O_CLOEXEC) && !pipe2(end[2], O_CLOEXEC);
    if (in) ok = ok && !pipe2(end[0], O_CLOEXEC);
    else ok = ok && (end[0][0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
    fflush(NULL);
    const pid_t pid = ok ? fork() : -1;
    if (pid == 0) become(argv, env, end[0][0], end[1][1], end[2][1], parent);
    const int why = errno;
    if (end[0][0] >= 0) close(end[0][0]);
    for (int i = 1; i < 3; i++)
        if (end[i][1] >= 0) close(end[i][1]);
    if (pid < 0) {
        for (int i = 1; i < 3; i++)
            if (end[i][0] >= 0) close(end[i][0]);
        if (end[0][1] >= 0) close(end[0][1]);
        return ls_fail(LS_E_COMM, "cannot start %s: %s", argv->word[0], strerror(why));
    }
    p->pid = pid;
    p->out = (relay){.fd = end[1][0], .to = stdout};
    p->err = (relay){.fd = end[2][0], .to = stderr};
    if (in) *in = end[0][1];
    return LS_OK;
}

bool proc_relay(proc *p, int n, int fd, int ms)
{
    struct pollfd *f = ls_alloc((size_t)(2 * n + 1) * sizeof *f);
    if (!f) return false;
    for (int i = 0; i < n; i++) {
        f[2 * i] = (struct pollfd){p[i].pid ? p[i].out.fd : -1, POLLIN, 0};
        f[2 * i + 1] = (struct pollfd){p[i].pid ? p[i].err.fd : -1, POLLIN, 0};
    }
    f[2 * n] = (struct pollfd){fd, POLLIN, 0};
    const bool some = poll(f, 2 * (nfds_t)n + 1, ms) > 0;
    for (int i = 0; i < 2 * n && some; i++) {
        char buf[8192];
        size_t got;
        if (f[i].fd >= 0 && f[i].revents && relay_read(i % 2 ? &p[i / 2].err : &p[i / 2].out, buf, sizeof buf, &got))
            p[i / 2].heard = true;
    }
    const bool ready = some && f[2 * n].revents;
    ls_free(f);
    return ready;
}

void proc_finish(proc *p, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 2 && p[i].pid; k++) {
            relay *r = k ? &p[i].err : &p[i].out;
            char buf[8192];
            size_t got = 1;
            if (r->fd >= 0) fcntl(r->fd, F_SETFL, O_NONBLOCK); /* a process that was left behind may hold it open */
            while (r->fd >= 0 && relay_read(r, buf, sizeof buf, &got)) {}
            relay_end(r);
        }
}

bool proc_ended(proc *p)
{
    if (!p->pid || p->gone || waitpid(p->pid, &p->status, WNOHANG) != p->pid) return false;
    p->gone = true;
    p->ended_at = ls_now();
    (void)kill(-p->pid, SIGKILL); /* what it started and left behind */
    return true;
}

void proc_signal(const proc *p, int sig)
{
    if (!p->pid || p->gone) return;
    if (kill(-p->pid, sig)) (void)kill(p->pid, sig); /* before its setsid */
}

int proc_code(const proc *p)
{
    return WIFEXITED(p->status) ? WEXITSTATUS(p->status) : 4;
}

ended proc_end(const proc *p, int rank)
{
    const int signal = WIFSIGNALED(p->status) && !p->killed ? WTERMSIG(p->status) : 0;
    const bool stop = signal == SIGTERM || signal == SIGINT; /* before it could handle it */
    const int code = stop ? 128 + signal : proc_code(p);
    return (ended){.rank = rank,
                   .pid = (int)p->pid,
                   .code = code,
                   .st = ls_launch_status(code),
                   .signal = stop ? 0 : signal,
                   .killed = p->killed,
                   .was_stopped = p->was_stopped,
                   .at = p->ended_at};
}

/* ---- jobs: strings that end with '\0', so that any byte can be part of a path ---- */

static void add(ls_str *out, const char *text)
{
    ls_str_addn(out, text, strlen(text) + 1);
}

ls_status launch_job_write(const launch_job *j, ls_str *out)
{
    ls_str body = {0};
    char number[80];
    add(&body, LS_VERSION);
    snprintf(number, sizeof number, "%d %d %d %d %d %d", j->first, j->n, j->size, (int)j->prefix, j->port, j->env.n);
    add(&body, number);
    add(&body, j->folder);
    add(&body, j->address);
    add(&body, j->token);
    for (int i = 0; i < j->env.n; i++) add(&body, j->env.word[i]);
    for (int i = 0; i < j->argv.n; i++) add(&body, j->argv.word[i]);
    ls_str_addf(out, "lockstep job %zu\n", body.len);
    ls_str_addn(out, body.data, body.len);
    const bool failed = body.failed || out->failed;
    ls_str_fini(&body);
    if (failed) return ls_nomem(out->len, "a job");
    return out->len <= JOB_MAX
               ? LS_OK
               : ls_fail(LS_E_ARG, "the command and its environment are %zu bytes long; at most %d", out->len, JOB_MAX);
}

ls_status launch_job_read(char *text, size_t n, launch_job *out)
{
    const char *word[5] = {NULL};
    int prefix = 0, n_env = 0, k = 0;
    *out = (launch_job){0};
    if (!n || text[n - 1]) return ls_fail(LS_E_FORMAT, "the job from the launcher is cut");
    for (size_t at = 0; at < n; at += strlen(text + at) + 1, k++) {
        if (k < 5) word[k] = text + at;
        if (k == 4) {
            if (strcmp(word[0], LS_VERSION) != 0)
                return ls_fail(LS_E_CONFIG,
                               "this host has lockstep %s, the launcher is %.40s; install one version on all hosts",
                               LS_VERSION, word[0]);
            if (sscanf(word[1], "%d %d %d %d %d %d", &out->first, &out->n, &out->size, &prefix, &out->port, &n_env) !=
                6)
                return ls_fail(LS_E_FORMAT, "the job from the launcher is cut");
        }
        if (k > 4) LS_TRY(ls_argv_add(k - 5 < n_env ? &out->env : &out->argv, text + at));
    }
    if (k < 6 + n_env || out->n < 1 || out->n > LS_LAUNCH_MOST || out->first < 0 || out->first + out->n > out->size)
        return ls_fail(LS_E_FORMAT, "the job from the launcher is cut");
    out->prefix = prefix;
    out->folder = word[2];
    out->address = word[3];
    out->token = word[4];
    return LS_OK;
}
