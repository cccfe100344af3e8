#include "core/deadline.h"

#include "core/clock.h"
#include "core/stack.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define N_LIMIT   32
#define LOOK      0.1 /* seconds between looks while something is armed */
#define LONGEST   0.5 /* a look that comes later than this: the process did not run */
#define WORDS_MAX 300
#define ABOUT_MAX 2048 /* with a line for each rank */

typedef struct limit {
    bool armed, counts;         /* counts: the last look found it armed, and its flag up */
    const _Atomic int *flag;    /* time passes while it is positive; NULL: always */
    const char *about;          /* printed with the line; may be NULL. In shared memory: read with the lock held */
    double seconds, left, seen; /* seen: the last look, or the arming */
    int code;
    char words[WORDS_MAX];
} limit;

/* A watchdog of the process can only be process-wide state. `lock` is taken for a few instructions, and never by a signal handler. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static limit limits[N_LIMIT];
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

/* snprintf of text and short numbers neither allocates nor takes a lock. */
static _Noreturn void fire(const char *words, const char *about, double seconds, int code)
{
    char line[ABOUT_MAX + WORDS_MAX + 200];
    const bool more = about && about[0];
    snprintf(line, sizeof line, "lockstep: %s%s(pid %d): %s within %g s%s%s%s; the process exits now with code %d\n",
             who, who[0] ? " " : "", (int)getpid(), words, (double)(long)(seconds * 10 + 0.5) / 10, more ? " (" : "",
             more ? about : "", more ? ")" : "", code);
    ls_stack_say(line);
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

/* With the lock held: counts down. Whether anything is armed; the seconds to the next end; copies of the limit that ended first. */
static bool look(double now, double *next, limit *over, char about[ABOUT_MAX])
{
    bool any = atomic_load(&stall_seconds) > 0;
    *next = LOOK;
    for (int i = 0; i < N_LIMIT; i++) {
        limit *l = &limits[i];
        any = any || l->armed;
        if (!l->armed) continue;
        if (l->flag && atomic_load(l->flag) <= 0) {
            l->counts = false;
            continue;
        }
        if (l->flag && !l->counts)
            l->seen = now; /* when it went up between two looks is not known: no earlier than now */
        l->counts = true;
        l->left -= passed(&l->seen, now);
        if (l->left < *next) *next = l->left;
        if (l->left > 0 || (over->armed && over->left <= l->left)) continue;
        *over = *l;
        snprintf(about, ABOUT_MAX, "%s", l->about ? l->about : "");
    }
    return any;
}

static void look_stall(double now)
{
    static double left, seen; /* of the thread alone */
    static uint64_t ticks;
    static bool on;
    const double most = atomic_load(&stall_seconds);
    const uint64_t n = atomic_load_explicit(&ls_deadline_ticks, memory_order_relaxed);
    if (most <= 0) {
        on = false;
        return;
    }
    if (!on || n != ticks || atomic_load(&held) > 0) left = most, seen = now, ticks = n, on = true;
    if (left > most) left = most; /* the limit became shorter: a stop was requested */
    left -= passed(&seen, now);
    const char *text = atomic_load(&stall_text);
    if (left <= 0) fire(text ? text : "no progress", NULL, most, atomic_load(&stall_code));
}

static void *deadline_main(void *arg)
{
    (void)arg;
    for (;;) {
        const uint32_t heard = atomic_load(&bell);
        const double now = ls_now();
        limit over = {0};
        double next;
        char about[ABOUT_MAX];
        pthread_mutex_lock(&lock);
        const bool any = look(now, &next, &over, about);
        pthread_mutex_unlock(&lock);
        if (over.armed) fire(over.words, about, over.seconds, over.code);
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
        memset(limits, 0, sizeof limits);
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

static int arm(limit l)
{
    int id = -1;
    ls_deadline_start();
    if (atomic_load(&owner) != (int)getpid()) return -1;
    l.armed = true;
    l.left = l.seconds;
    l.seen = ls_now();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_LIMIT && id < 0; i++)
        if (!limits[i].armed) id = i;
    if (id >= 0) limits[id] = l;
    pthread_mutex_unlock(&lock);
    ring();
    return id;
}

int ls_deadline_arm(double seconds, int exit_code, const char *fmt, ...)
{
    limit l = {.seconds = seconds, .code = exit_code};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(l.words, sizeof l.words - 20, fmt, ap);
    va_end(ap);
    snprintf(l.words + strlen(l.words), 20, " did not return");
    return arm(l);
}

void ls_deadline_disarm(int id)
{
    if (id < 0 || id >= N_LIMIT) return;
    pthread_mutex_lock(&lock);
    limits[id].armed = false;
    pthread_mutex_unlock(&lock);
}

void ls_deadline_watch(const _Atomic int *flag, const char *words, double seconds, int exit_code)
{
    ls_deadline_unwatch(flag);
    (void)arm((limit){.flag = flag,
                      .about = words,
                      .seconds = seconds,
                      .code = exit_code,
                      .words = "the run was aborted, but this process did not exit"});
}

void ls_deadline_unwatch(const _Atomic int *flag)
{
    if (atomic_load(&owner) != (int)getpid())
        return; /* never watched here, or by the process this one was forked from */
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_LIMIT; i++)
        if (limits[i].flag == flag) limits[i] = (limit){0};
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
