#include "core/deadline.h"

#include "core/clock.h"
#include "core/stack.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define N_SLOT    16
#define N_WATCH   16
#define LOOK      0.1 /* seconds between looks while something is armed */
#define LONGEST   0.5 /* a look that comes later than this: the process did not run */
#define WORDS_MAX 300

typedef struct slot {
    bool armed;
    double seconds, left, seen; /* seen: the last look, or the arming */
    int code;
    char words[WORDS_MAX];
} slot;

typedef struct watch {
    const _Atomic int *flag;
    const char *words;
    double seconds, left, seen;
    int code;
    bool raised;
} watch;

/* A watchdog of the process can only be process-wide state. `lock` is taken for a few instructions, and never by a signal handler. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot slots[N_SLOT];
static watch watches[N_WATCH];
static char who[64];
static _Atomic int owner; /* pid whose thread runs: a forked child has none */
static _Atomic uint32_t bell;
static _Atomic double stall_seconds;
static _Atomic int stall_code, held;
static _Atomic(const char *) stall_text;

_Atomic uint64_t ls_deadline_ticks;

static void ring(void)
{
    atomic_fetch_add(&bell, 1);
    syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* ---- firing ---- */

static void say(const char *text)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    size_t n = strlen(text);
    while (n && poll(&p, 1, 500) == 1) { /* a reader that hangs must not keep this process */
        const ssize_t k = write(STDERR_FILENO, text, n < 512 ? n : 512);
        if (k <= 0) return;
        text += k;
        n -= (size_t)k;
    }
}

/* Appends decimal digits without the C library's formatting. */
static void add_number(char *text, size_t room, long v)
{
    char digits[24];
    size_t n = 0, at = strlen(text);
    do digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    while (n && at + 1 < room) text[at++] = digits[--n];
    text[at] = '\0';
}

static void add(char *text, size_t room, const char *more)
{
    const size_t at = strlen(text), n = strlen(more);
    const size_t k = n < room - at - 1 ? n : room - at - 1;
    memcpy(text + at, more, k);
    text[at + k] = '\0';
}

static void add_seconds(char *text, size_t room, double seconds)
{
    const long tenths = (long)(seconds * 10 + 0.5);
    add_number(text, room, tenths / 10);
    if (tenths % 10) add(text, room, "."), add_number(text, room, tenths % 10);
}

static _Noreturn void fire(const char *words, const char *about, double seconds, int code)
{
    char line[1200] = "lockstep: ";
    if (who[0]) add(line, sizeof line, who), add(line, sizeof line, " ");
    add(line, sizeof line, "(pid ");
    add_number(line, sizeof line, (long)getpid());
    add(line, sizeof line, "): ");
    add(line, sizeof line, words);
    add(line, sizeof line, " within ");
    add_seconds(line, sizeof line, seconds);
    add(line, sizeof line, " s");
    if (about && about[0]) add(line, sizeof line, " ("), add(line, sizeof line, about), add(line, sizeof line, ")");
    add(line, sizeof line, "; the process exits now with code ");
    add_number(line, sizeof line, code);
    add(line, sizeof line, "\n");
    say(line);
    ls_stack_all();
    _exit(code);
}

/* ---- the thread ---- */

static double passed(double *seen, double now)
{
    const double d = now - *seen;
    *seen = now;
    return d < LONGEST ? d : LONGEST;
}

/* With the lock held. The soonest end; a copy of what is over in *over. */
static double look_slots(double now, slot *over, bool *found)
{
    double next = LOOK;
    for (int i = 0; i < N_SLOT; i++) {
        slot *s = &slots[i];
        if (!s->armed) continue;
        s->left -= passed(&s->seen, now);
        if (s->left <= 0 && !*found) *over = *s, *found = true;
        if (s->left < next) next = s->left;
    }
    return next;
}

static void look_watches(double now, slot *over, bool *found)
{
    for (int i = 0; i < N_WATCH; i++) {
        watch *w = &watches[i];
        if (!w->flag || atomic_load(w->flag) <= 0) continue;
        if (!w->raised) w->raised = true, w->left = w->seconds, w->seen = now;
        w->left -= passed(&w->seen, now);
        if (w->left > 0 || *found) continue;
        *found = true;
        *over = (slot){.seconds = w->seconds, .code = w->code};
        if (w->words) add(over->words, sizeof over->words, w->words); /* the shared memory may go */
    }
}

static bool anything(void)
{
    for (int i = 0; i < N_SLOT; i++)
        if (slots[i].armed) return true;
    for (int i = 0; i < N_WATCH; i++)
        if (watches[i].flag) return true;
    return atomic_load(&stall_seconds) > 0;
}

static void look_stall(double now)
{
    static double left, seen; /* of the thread alone */
    static uint64_t ticks;
    static bool on;
    const double limit = atomic_load(&stall_seconds);
    const uint64_t n = atomic_load_explicit(&ls_deadline_ticks, memory_order_relaxed);
    if (limit <= 0) {
        on = false;
        return;
    }
    if (!on || n != ticks || atomic_load(&held) > 0) left = limit, seen = now, ticks = n, on = true;
    left -= passed(&seen, now);
    const char *text = atomic_load(&stall_text);
    if (left <= 0) fire(text ? text : "no progress", NULL, limit, atomic_load(&stall_code));
}

static void *deadline_main(void *arg)
{
    (void)arg;
    for (;;) {
        const uint32_t heard = atomic_load(&bell);
        const double now = ls_now();
        slot over = {0};
        bool slot_over = false, watch_over = false;
        pthread_mutex_lock(&lock);
        double next = look_slots(now, &over, &slot_over);
        if (!slot_over) look_watches(now, &over, &watch_over);
        const bool any = anything();
        pthread_mutex_unlock(&lock);
        if (slot_over) fire(over.words, NULL, over.seconds, over.code);
        if (watch_over) fire("the run was aborted, but this process did not exit", over.words, over.seconds, over.code);
        look_stall(now);
        if (next < 0.001) next = 0.001;
        const struct timespec t = {(time_t)next, (long)((next - (double)(time_t)next) * 1e9)};
        syscall(SYS_futex, &bell, FUTEX_WAIT_PRIVATE, heard, any ? &t : NULL, NULL, 0);
    }
    return NULL;
}

void ls_deadline_start(void)
{
    int had = atomic_load(&owner);
    const int me = (int)getpid();
    if (had == me || !atomic_compare_exchange_strong(&owner, &had, me)) return;
    if (had) { /* a forked child: what the parent had armed is the parent's */
        pthread_mutex_init(&lock, NULL);
        memset(slots, 0, sizeof slots);
        memset(watches, 0, sizeof watches);
        atomic_store(&stall_seconds, 0);
        atomic_store(&held, 0);
    }
    pthread_t thread;
    pthread_attr_t a;
    sigset_t all, old;
    sigfillset(&all);
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, &a, deadline_main, NULL)) atomic_store(&owner, 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&a);
}

/* ---- arming ---- */

void ls_deadline_name(const char *name)
{
    snprintf(who, sizeof who, "%s", name);
}

int ls_deadline_arm(double seconds, int exit_code, const char *fmt, ...)
{
    char words[WORDS_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words - 20, fmt, ap);
    va_end(ap);
    add(words, sizeof words, " did not return");
    ls_deadline_start();
    if (atomic_load(&owner) != (int)getpid()) return -1;
    int id = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_SLOT && id < 0; i++)
        if (!slots[i].armed) id = i;
    if (id >= 0) {
        slots[id] = (slot){.armed = true, .seconds = seconds, .left = seconds, .seen = ls_now(), .code = exit_code};
        memcpy(slots[id].words, words, sizeof words);
    }
    pthread_mutex_unlock(&lock);
    ring();
    return id;
}

void ls_deadline_disarm(int id)
{
    if (id < 0 || id >= N_SLOT) return;
    pthread_mutex_lock(&lock);
    slots[id].armed = false;
    pthread_mutex_unlock(&lock);
}

int ls_deadline_watch(const _Atomic int *flag, const char *words, double seconds, int exit_code)
{
    int id = -1;
    ls_deadline_start();
    if (atomic_load(&owner) != (int)getpid()) return -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_WATCH; i++) {
        if (watches[i].flag == flag) id = i;
        if (!watches[i].flag && id < 0) id = i;
    }
    if (id >= 0) watches[id] = (watch){.flag = flag, .words = words, .seconds = seconds, .code = exit_code};
    pthread_mutex_unlock(&lock);
    ring();
    return id;
}

void ls_deadline_unwatch(const _Atomic int *flag)
{
    if (atomic_load(&owner) != (int)getpid())
        return; /* never watched here, or by the process this one was forked from */
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_WATCH; i++)
        if (watches[i].flag == flag) watches[i] = (watch){0};
    pthread_mutex_unlock(&lock);
}

void ls_deadline_stall(double seconds, int exit_code, const char *text)
{
    atomic_store(&stall_code, exit_code);
    atomic_store(&stall_text, text);
    if (atomic_exchange(&stall_seconds, seconds) <= 0 && seconds > 0) ring(); /* else the thread looks often enough */
}

double ls_deadline_stall_seconds(void)
{
    return atomic_load(&stall_seconds);
}

void ls_deadline_hold(bool on)
{
    atomic_fetch_add(&held, on ? 1 : -1);
}
