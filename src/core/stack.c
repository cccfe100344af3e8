#include "core/stack.h"

#include "core/progress.h"

#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 48

/* A signal handler can only reach process-wide state. */
static char head[96];
static _Atomic long last_answer;
static _Atomic int asked; /* the thread that ls_stack_all waits for */
static _Atomic bool installed;

void ls_stack_say(const char *text)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    size_t n = strlen(text);
    ls_progress_erase_now();
    while (n && poll(&p, 1, 500) == 1) {
        const ssize_t k = write(STDERR_FILENO, text, n < 512 ? n : 512);
        if (k <= 0) return;
        text += k;
        n -= (size_t)k;
    }
}

/* Without the first `skip` frames: the handler's and the kernel's. */
static __attribute__((noinline)) void write_stack(int skip)
{
    void *frame[DEPTH];
    const int n = backtrace(frame, DEPTH);
    backtrace_symbols_fd(frame + skip, n > skip ? n - skip : 0, STDERR_FILENO);
}

/* One thread among all of them. */
static __attribute__((noinline)) void answer_all(void)
{
    char name[20] = "", line[64];
    prctl(PR_GET_NAME, name);
    snprintf(line, sizeof line, "lockstep: thread %d (%s):\n", (int)syscall(SYS_gettid), name);
    ls_stack_say(line);
    write_stack(4);
    atomic_store(&asked, 0);
}

static void on_signal(int sig)
{
    if (atomic_load(&asked) == (int)syscall(SYS_gettid)) {
        answer_all();
        return;
    }
    if (syscall(SYS_gettid) != getpid()) { /* forward it to the main thread, whose stack shows the work */
        syscall(SYS_tgkill, getpid(), getpid(), sig);
        return;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (atomic_load(&last_answer) && (long)now.tv_sec < atomic_load(&last_answer) + 10) return;
    atomic_store(&last_answer, (long)now.tv_sec + 1);
    ls_stack_say(head);
    write_stack(3);
}

void ls_stack_install(const char *label)
{
    void *frame[2];
    snprintf(head, sizeof head, "lockstep: stack trace of %s (pid %d):\n", label, (int)getpid());
    (void)backtrace(frame, 2); /* loads what it needs now: a handler must not */
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    a.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &a, NULL);
    atomic_store(&installed, true);
}

void ls_stack_ask(int pid)
{
    kill(pid, SIGUSR2);
}

/* A directory entry of the system call: opendir allocates. */
typedef struct entry {
    uint64_t inode;
    int64_t next;
    unsigned short nbytes;
    unsigned char type;
    char name[];
} entry;

static int number(const char *text)
{
    int v = 0;
    while (*text >= '0' && *text <= '9') v = 10 * v + (*text++ - '0');
    return v;
}

static void ask_thread(int tid)
{
    atomic_store(&asked, tid);
    if (syscall(SYS_tgkill, getpid(), tid, SIGUSR2)) return;
    for (int i = 0; i < 40 && atomic_load(&asked); i++) nanosleep(&(struct timespec){0, 5000000}, NULL);
}

void ls_stack_all(void)
{
    _Alignas(entry) char buf[2048];
    int n_thread = 0;
    if (!atomic_load(&installed)) return;
    const int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (long n; fd >= 0 && (n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0;)
        for (long at = 0; at < n && n_thread < 16;) {
            const entry *e = (const entry *)(const void *)(buf + at);
            const int tid = number(e->name);
            if (tid && tid != (int)syscall(SYS_gettid)) ask_thread(tid), n_thread++;
            at += e->nbytes;
        }
    if (fd >= 0) close(fd);
    atomic_store(&asked, 0);
}
