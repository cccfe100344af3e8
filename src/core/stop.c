#include "core/stop.h"

#include "core/clock.h"
#include "core/deadline.h"
#include "core/stack.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define SAME     0.5 /* seconds in which a second signal is the first one again */
#define LAST_END 5.0 /* seconds that a parent has to end its children */

/* A signal handler can only reach process-wide state. */
static volatile sig_atomic_t stop_signal, again;
static _Atomic int mode;
static _Atomic double first_at;
static _Atomic int bound;
static _Atomic double expected = -1; /* seconds; -1: not set */
static _Atomic int *note;            /* set before signals come */
static int workers_code;

static bool at_first(int m)
{
    return m == LS_STOP_NOW || m == LS_STOP_NOW_QUIET;
}

static _Noreturn void end_now(int signal, const char *why)
{
    if (atomic_load(&mode) == LS_STOP_NOW_QUIET) _exit(128 + signal);
    ls_stack_say(signal == SIGINT ? "lockstep: stopped by SIGINT " : "lockstep: stopped by SIGTERM ");
    ls_stack_say(why);
    _exit(128 + signal);
}

static _Noreturn void end_early(int signal)
{
    if (note) atomic_store(note, signal);
    end_now(signal, "before the first step; nothing to save\n");
}

static void arm(bool stopping)
{
    const double e = atomic_load(&expected), least = e > LS_STOP_LEAST ? e : LS_STOP_LEAST;
    const int b = atomic_load(&bound);
    if (stopping && b != LS_BOUND_OFF)
        ls_deadline_stall(e > 0 ? least : LS_STOP_LIMIT, 4,
                          "stopping after SIGTERM or SIGINT: the run made no progress");
    else if (!stopping && b == LS_BOUND_RUN)
        ls_deadline_stall(e == 0 ? 0 : (e > 0 ? least : LS_RUN_LIMIT) + 10, 4, "the run made no progress");
    else ls_deadline_stall(0, 0, NULL);
}

static void first(int signal)
{
    stop_signal = signal;
    atomic_store(&first_at, ls_now());
    if (at_first(atomic_load(&mode))) end_early(signal);
    if (atomic_load(&bound) != LS_BOUND_OFF) arm(true);
}

static void second(int signal)
{
    stop_signal = signal;
    again = 1;
    if (atomic_load(&mode) == LS_STOP_PARENT)
        ls_deadline_stall(LAST_END, 128 + signal, "ending the workers after a second signal");
    else end_now(signal, "a second time: the process exits now, saving nothing more\n");
}

static void on_signal(int signal)
{
    if (!stop_signal) first(signal);
    else if (ls_now() - atomic_load(&first_at) >= SAME) second(signal);
}

void ls_stop_install(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    a.sa_flags = SA_RESTART;
    sigemptyset(&a.sa_mask);
    sigaddset(&a.sa_mask, SIGTERM); /* one at a time */
    sigaddset(&a.sa_mask, SIGINT);
    atomic_store(&mode, LS_STOP_ASK);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
}

ls_stop_mode ls_stop_set_mode(ls_stop_mode to)
{
    const ls_stop_mode before = (ls_stop_mode)atomic_exchange(&mode, (int)to);
    if (at_first((int)to) && stop_signal) end_early(stop_signal);
    return before;
}

void ls_stop_note(_Atomic int *at)
{
    note = at;
}

bool ls_stop_requested(void)
{
    return stop_signal != 0;
}
bool ls_stop_at_once(void)
{
    return again != 0;
}
int ls_stop_signal(void)
{
    return stop_signal;
}
int ls_stop_exit_code(void)
{
    return again ? 128 + stop_signal : workers_code == 128 + SIGINT ? workers_code : 128 + SIGTERM;
}
void ls_stop_ended_with(int code)
{
    workers_code = code;
}
void ls_stop_raise(int signal)
{
    stop_signal = signal;
    again = 0;
    atomic_store(&first_at, ls_now());
}

void ls_stop_set_bound(ls_stop_bound b)
{
    if (b != LS_BOUND_OFF) ls_deadline_start();
    atomic_store(&bound, (int)b);
    arm(stop_signal != 0);
}

void ls_stop_expect(double seconds)
{
    atomic_store(&expected, seconds);
    if (atomic_load(&bound) != LS_BOUND_OFF) arm(stop_signal != 0);
}

void ls_stop_saving(void)
{
    if (atomic_load(&bound) == LS_BOUND_OFF) return;
    ls_deadline_tick(); /* the new time begins now */
    ls_stop_expect(LS_STOP_SAVE);
}
