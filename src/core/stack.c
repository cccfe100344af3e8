#include "core/stack.h"

#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 48

/* A signal handler can only reach process-wide state. */
static char head[96];
static _Atomic long last_answer;

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return; /* nobody listens: nothing to do about it */
}

static void on_signal(int sig)
{
    if (syscall(SYS_gettid) != getpid()) { /* some thread got it: the main thread is the one that tells where work is */
        syscall(SYS_tgkill, getpid(), getpid(), sig);
        return;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (atomic_load(&last_answer) && (long)now.tv_sec < atomic_load(&last_answer) + 10) return;
    atomic_store(&last_answer, (long)now.tv_sec + 1);
    void *frame[DEPTH];
    const int n = backtrace(frame, DEPTH);
    say(head);
    backtrace_symbols_fd(frame + 2, n > 2 ? n - 2 : 0, STDERR_FILENO); /* without this handler and the kernel's frame */
}

void ls_stack_install(const char *label)
{
    void *frame[2];
    snprintf(head, sizeof head, "lockstep: the stack of %s (pid %d):\n", label, (int)getpid());
    (void)backtrace(frame, 2); /* loads what it needs now: a handler must not */
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    a.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &a, NULL);
}

void ls_stack_ask(int pid)
{
    kill(pid, SIGUSR2);
}
