#include "train/evidence.h"

#include "core/clock.h"
#include "core/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Runs in the child of vfork: replaces it by the program, which is killed when the thread that started it ends. Returns only on failure. */
static int become(char *const argv[], const char *file)
{
    sigset_t none;
    struct sigaction usual = {.sa_handler = SIG_DFL};
    const int in = open("/dev/null", O_RDONLY | O_CLOEXEC), err = open("/dev/null", O_WRONLY | O_CLOEXEC),
              out = ls_fs_open_new(file);
    if (in < 0 || err < 0 || out < 0) return errno;
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) return errno;
    (void)setpgid(0, 0);
    (void)sigaction(SIGPIPE, &usual, NULL);
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(argv[0], argv);
    return errno;
}

/* A program with its output in a file, in a process group of its own; vfork, because a fork of a process with a GPU's mappings takes
 * long. 0, or the error. */
static int start(const ls_evidence_row *r, const char *file, pid_t *pid)
{
    char *argv[LS_EVIDENCE_WORD + 1] = {0};
    volatile int code = 0; /* the child shares this memory until it has become the program */
    for (int i = 0; i < LS_EVIDENCE_WORD && r->word[i]; i++) argv[i] = (char *)(uintptr_t)r->word[i];
    const pid_t child = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */
    if (child == 0) {
        code = become(argv, file); /* NOLINT(clang-analyzer-unix.Vfork): Linux allows it */
        _exit(127);
    }
    if (child < 0) return errno;
    if (code) (void)waitpid(child, NULL, 0);
    else *pid = child;
    return code;
}

/* Whether it has ended by itself, and how. After the limit it is killed; one that even then does not end is left. */
static bool ended(const ls_evidence *e, pid_t pid, int *status)
{
    for (bool killed = false;;) {
        const pid_t got = waitpid(pid, status, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR)) return got == pid && !killed;
        const double over = ls_now() - e->end;
        if (over > 1) return false;
        if (over > 0 && !killed) {
            kill(-pid, SIGKILL);
            killed = true;
        }
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
}

/* Why a program that was started is not "ok", or "ok" and its file has its name. */
static void judge(ls_evidence_row *r, const char *file, int status)
{
    struct stat s;
    if (!WIFEXITED(status)) snprintf(r->result, sizeof r->result, "ended by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status)) snprintf(r->result, sizeof r->result, "exit code %d", WEXITSTATUS(status));
    else if (stat(file, &s) || !s.st_size) snprintf(r->result, sizeof r->result, "printed nothing");
    else if (ls_fs_move(file, r->path, 0))
        snprintf(r->result, sizeof r->result, "cannot write its file: %.60s", ls_fs_why(errno));
    else snprintf(r->result, sizeof r->result, "ok");
}

static void run(ls_evidence *e, ls_evidence_row *r)
{
    char file[sizeof r->path + 8];
    pid_t pid = 0;
    int status = 0;
    snprintf(file, sizeof file, "%s.tmp", r->path);
    const int code = ls_now() < e->end ? start(r, file, &pid) : ETIMEDOUT;
    if (code == ENOENT) snprintf(r->result, sizeof r->result, "not installed");
    else if (code == ETIMEDOUT && e->cut) snprintf(r->result, sizeof r->result, "not run: the run ended");
    else if (code == ETIMEDOUT) snprintf(r->result, sizeof r->result, "not run: no time left of %g s", e->limit);
    else if (code) snprintf(r->result, sizeof r->result, "does not start: %.60s", strerror(code));
    else if (ended(e, pid, &status)) judge(r, file, status);
    else if (e->cut) snprintf(r->result, sizeof r->result, "no answer before the run ended");
    else snprintf(r->result, sizeof r->result, "no answer in %g s", e->limit);
    if (strcmp(r->result, "ok")) (void)ls_fs_unlink(file, false);
}

static void *run_all(void *arg)
{
    ls_evidence *e = arg;
    for (int i = 0; i < e->n; i++) run(e, &e->row[i]);
    return NULL;
}

void ls_evidence_begin(ls_evidence *e, double seconds)
{
    e->limit = seconds;
    e->end = ls_now() + seconds;
    sigset_t all, was; /* signals are for the threads that know them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    e->running = !pthread_create(&e->thread, NULL, run_all, e);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (!e->running) e->n = 0;
}

void ls_evidence_end(ls_evidence *e)
{
    if (e->running) pthread_join(e->thread, NULL);
    e->running = false;
}

void ls_evidence_stop(ls_evidence *e)
{
    if (!e->running) return;
    e->cut = true;
    e->end = ls_now();
}
