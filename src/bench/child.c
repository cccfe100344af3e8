#include "bench/child.h"
#include "core/fs.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

ls_status ls_program_path(char buf[4096])
{
    const ssize_t n = readlink("/proc/self/exe", buf, 4095);
    if (n <= 0) return ls_fail(LS_E_IO, "cannot read /proc/self/exe to find this program: %s", strerror(errno));
    buf[n] = '\0';
    return LS_OK;
}

/* In the child; only calls that are safe between fork and exec. */
static _Noreturn void become(const ls_child *c, char **argv, int in, int out, int err, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent && dup2(in, 0) >= 0 && dup2(out, 1) >= 0 && dup2(err, 2) >= 0) execv(c->program, argv);
    _exit(127);
}

static void nap(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

static ls_status watch(const ls_child *c, pid_t pid, int *code)
{
    const double begin = ls_now();
    double asked = INFINITY, tick = begin; /* times of the stop request and of the last tick */
    for (int status;;) {
        const pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) {
            *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            break;
        }
        if (got < 0 && errno != EINTR) return ls_fail(LS_E_IO, "waitpid: %s", strerror(errno));
        const double now = ls_now();
        if (ls_stop_requested() && isinf(asked)) {
            kill(-pid, SIGTERM);
            asked = now;
        }
        if (now - asked > c->grace) kill(-pid, SIGKILL);
        if (c->tick && now - tick > 0.25) c->tick(c->ctx, now - begin), tick = now;
        nap(now - begin < 1 ? 0.002 : 0.02); /* short runs are not rounded up */
    }
    return ls_stop_requested() ? ls_fail(LS_E_STOPPED, "stopped") : LS_OK;
}

ls_status ls_child_run(const ls_child *c, int *code)
{
    char **argv = ls_alloc((size_t)(c->words->n + 2) * sizeof *argv);
    if (!argv) return ls_nomem((size_t)c->words->n * sizeof *argv, "a command line");
    argv[0] = (char *)(uintptr_t)c->program;
    for (int i = 0; i < c->words->n; i++) argv[i + 1] = c->words->word[i];
    const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int out = ls_fs_open(c->out_path, O_WRONLY | O_CREAT | O_TRUNC);
    const int err = ls_fs_open(c->err_path, O_WRONLY | O_CREAT | O_TRUNC);
    ls_status st = LS_OK;
    if (in < 0 || out < 0 || err < 0) {
        st = ls_fail(LS_E_IO, "open %s, %s: %s", c->out_path, c->err_path, ls_fs_why(errno));
    } else {
        const pid_t parent = getpid(), pid = fork();
        if (pid < 0) st = ls_fail(LS_E_IO, "fork: %s", strerror(errno));
        if (!pid) become(c, argv, in, out, err, parent);
        if (pid > 0) {
            setpgid(pid, pid); /* whichever of us is first */
            st = watch(c, pid, code);
        }
    }
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    if (err >= 0) close(err);
    ls_free(argv);
    return st;
}
