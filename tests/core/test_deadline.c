/* test_deadline.c - a process that hangs ends in time, whatever its threads are doing; signals; a parent whose workers do not end. */
/* ls-test: long */
#include "comm/comm_impl.h"
#include "comm/launch.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/stack.h"
#include "core/stop.h"

#include "cmocka_all.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(double seconds)
{
    const double end = ls_now() + seconds;
    while (ls_now() < end) nanosleep(&(struct timespec){0, 5000000}, NULL);
}

/* A call that does not return and that no signal interrupts, as in a driver. */
static _Noreturn void stuck(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (;;) pause();
}

typedef struct ended {
    int code; /* exit code; -signal */
    double seconds;
    char text[4096]; /* stderr */
} ended;

/* Runs `body` in a child process; returns what it writes to stderr and its exit code. `after` (may be NULL) runs in the parent at the same time. */
static ended in_child(void (*body)(void), void (*after)(pid_t pid))
{
    int fd[2], status = 0;
    ended e = {0};
    size_t n = 0;
    assert_int_equal(pipe(fd), 0);
    const double begin = ls_now();
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        dup2(fd[1], STDERR_FILENO);
        close(fd[0]);
        close(fd[1]);
        alarm(30); /* the test fails instead of hanging when a limit does not work */
        body();
        _exit(0);
    }
    close(fd[1]);
    if (after) after(pid);
    for (ssize_t k; n < sizeof e.text - 1 && (k = read(fd[0], e.text + n, sizeof e.text - 1 - n)) > 0;) n += (size_t)k;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(fd[0]);
    e.seconds = ls_now() - begin;
    e.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return e;
}

static void check_end(ended e, int code, double least, double most, const char *part)
{
    if (e.code != code || e.seconds < least || e.seconds > most || !strstr(e.text, part))
        fail_msg("ended with %d (expected: %d) after %.2f s (expected: %.2f to %.2f); stderr does not contain '%s': %s",
                 e.code, code, e.seconds, least, most, part, e.text);
}

/* ---- limits ---- */

static void fires(void)
{
    ls_stack_install("the test");
    ls_deadline_name("rank 3");
    ls_deadline_arm(0.3, 7, "closing %s", "the device");
    stuck();
}

static void disarmed(void)
{
    ls_deadline_disarm(ls_deadline_arm(0.2, 7, "this"));
    nap(0.5);
}

static void inner_first(void)
{
    (void)ls_deadline_arm(20, 8, "the outer call");
    (void)ls_deadline_arm(0.2, 7, "the inner call");
    stuck();
}

static void outer_first(void)
{
    (void)ls_deadline_arm(0.2, 7, "the outer call");
    ls_deadline_disarm(ls_deadline_arm(20, 8, "the inner call")); /* leaves the outer limit as it is */
    stuck();
}

static void forked(void)
{
    int status = 0;
    (void)ls_deadline_arm(20, 8, "the parent");
    const pid_t pid = fork();
    if (!pid) { /* the child has no limit until it arms its own */
        (void)ls_deadline_arm(0.2, 7, "the child");
        stuck();
    }
    waitpid(pid, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static void *second_thread(void *arg)
{
    (void)arg;
    for (;;) pause();
    return NULL;
}

static void with_stacks(void)
{
    pthread_t t;
    ls_stack_install("the test");
    pthread_create(&t, NULL, second_thread, NULL);
    (void)ls_deadline_arm(0.2, 7, "this");
    for (;;) pause();
}

static void a_stuck_call_ends_at_its_limit(void **state)
{
    (void)state;
    const ended e = in_child(fires, NULL);
    check_end(e, 7, 0.25, 10, "rank 3 (pid ");
    check_end(e, 7, 0.25, 10, "closing the device did not return within 0.3 s; the process exits now with code 7");
    check_end(in_child(disarmed, NULL), 0, 0.4, 10, "");
    check_end(in_child(inner_first, NULL), 7, 0.15, 10, "the inner call");
    check_end(in_child(outer_first, NULL), 7, 0.15, 10, "the outer call");
    check_end(in_child(forked, NULL), 7, 0.15, 10, "the child did not return");
}

static void the_stacks_of_all_threads_are_printed(void **state)
{
    (void)state;
    const ended e = in_child(with_stacks, NULL);
    int n = 0;
    for (const char *p = e.text; (p = strstr(p, "lockstep: thread ")); p++) n++;
    check_end(e, 7, 0.15, 10, "lockstep: thread ");
    assert_int_equal(n, 2);
}

static void pausing(void)
{
    const int d = ls_deadline_arm(2.0, 7, "this");
    nap(0.2);
    raise(SIGSTOP);
    ls_deadline_disarm(d);
}

static void continues(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    nap(2.5);
    kill(pid, SIGCONT);
}

static void stopped_time_does_not_count(void **state)
{
    (void)state;
    check_end(in_child(pausing, continues), 0, 2.5, 20, "");
}

static _Atomic int flag;

static void watched(void)
{
    (void)ls_deadline_watch(&flag, "rank 1 died", 0.3, 4);
    nap(0.5); /* not raised: no effect */
    atomic_store(&flag, 1);
    stuck();
}

static void unwatched(void)
{
    (void)ls_deadline_watch(&flag, "rank 1 died", 1.5, 4);
    atomic_store(&flag, 1);
    nap(0.1);
    ls_deadline_unwatch(&flag);
    nap(2);
}

static void a_raised_flag_limits_the_time_left(void **state)
{
    (void)state;
    check_end(in_child(watched, NULL), 4, 0.75, 10,
              "the run was aborted, but this process did not exit within 0.3 s (rank 1 died)");
    check_end(in_child(unwatched, NULL), 0, 2, 20, "");
}

static void getting_on(void)
{
    ls_deadline_start();
    ls_deadline_stall(1.5, 4, "no progress");
    for (int i = 0; i < 20; i++)
        ls_deadline_tick(), nap(0.1); /* longer than the limit in total, but never silent for that long */
    ls_deadline_hold(true);
    nap(2.0); /* a slow disk */
    ls_deadline_hold(false);
    stuck();
}

static void stopped_while_stuck(void)
{
    ls_deadline_start();
    ls_deadline_stall(600, 4, "no progress");
    nap(1.2);                                 /* a look */
    ls_deadline_stall(1.5, 4, "no progress"); /* as a signal does */
    stuck();
}

static void a_run_without_progress_is_ended(void **state)
{
    (void)state;
    check_end(in_child(stopped_while_stuck, NULL), 4, 2.5, 20, "no progress within 1.5 s");
    check_end(in_child(getting_on, NULL), 4, 5.3, 20, "no progress within 1.5 s");
}

/* ---- signals ---- */

static void twice(int sig)
{
    ls_stop_install();
    raise(sig);
    raise(sig); /* the same request: a launcher sent it to the process and to its group */
    if (!ls_stop_requested() || ls_stop_at_once()) _exit(1);
    nap(0.6);
    raise(sig);
    _exit(2);
}

static void two_terms(void)
{
    twice(SIGTERM);
}
static void two_ints(void)
{
    twice(SIGINT);
}

static void nothing_to_save(void)
{
    ls_stop_install();
    ls_stop_set_mode(LS_STOP_NOW);
    raise(SIGTERM);
}

static void came_before(void)
{
    ls_stop_install();
    raise(SIGTERM);
    ls_stop_set_mode(LS_STOP_NOW_QUIET);
}

static void a_second_signal_ends_at_once(void **state)
{
    (void)state;
    check_end(in_child(two_terms, NULL), 143, 0.5, 10, "saving nothing more");
    check_end(in_child(two_ints, NULL), 130, 0.5, 10, "SIGINT");
    check_end(in_child(nothing_to_save, NULL), 143, 0, 10, "before the first step");
    const ended e = in_child(came_before, NULL);
    check_end(e, 143, 0, 10, "");
    assert_string_equal(e.text, "");
}

/* How long a run may be silent before and after a signal. */
static void bounds(void)
{
    ls_stop_install();
    ls_stop_set_bound(LS_BOUND_STOP);
    if (ls_deadline_stall_seconds() != 0) _exit(1);
    ls_stop_set_bound(LS_BOUND_RUN);
    if (ls_deadline_stall_seconds() != LS_RUN_LIMIT + 10) _exit(2);
    ls_stop_expect(5);
    if (ls_deadline_stall_seconds() != LS_STOP_LEAST + 10) _exit(3);
    ls_stop_expect(0); /* no limit was requested */
    if (ls_deadline_stall_seconds() != 0) _exit(4);
    ls_stop_expect(50);
    if (ls_deadline_stall_seconds() != 60) _exit(5);
    raise(SIGTERM);
    if (ls_deadline_stall_seconds() != 50) _exit(6);
    ls_stop_saving();
    if (ls_deadline_stall_seconds() != LS_STOP_SAVE) _exit(7);
    ls_stop_set_bound(LS_BOUND_OFF);
    if (ls_deadline_stall_seconds() != 0) _exit(8);
}

static void the_time_limit_follows_the_state(void **state)
{
    (void)state;
    check_end(in_child(bounds, NULL), 0, 0, 10, "");
}

/* ---- workers ---- */

/* When rank 1 fails, rank 0 hangs in a call and rank 2 is stopped: neither can end by itself. */
static ls_status fail_and_hang(void *ctx, ls_comm *c, int n_core)
{
    (void)ctx;
    (void)n_core;
    if (ls_comm_rank(c) == 1) {
        nap(0.2);
        return ls_fail(LS_E_DEVICE, "the device was lost");
    }
    if (ls_comm_rank(c) == 2) raise(SIGSTOP);
    stuck();
}

static void print_report(void *ctx, int rank, ls_status st)
{
    (void)ctx;
    fprintf(stderr, "report of rank %d: %s\n", rank, ls_status_words(st));
}

static void family(void)
{
    const ls_status st = ls_launch_local(
        &(ls_launch){.n = 3, .arena_nbytes = (size_t)1 << 20, .body = fail_and_hang, .report = print_report});
    fprintf(stderr, "status: %s\n", ls_status_words(st));
    _exit(ls_status_exit_code(st));
}

static void a_parent_ends_workers_that_hang(void **state)
{
    (void)state;
    const ended e = in_child(family, NULL);
    check_end(e, 4, 7, 25, "report of rank 1: device failed");
    check_end(e, 4, 7, 25, "rank 0 (pid ");
    check_end(e, 4, 7, 25,
              "the run was aborted, but this process did not exit within 8 s (rank 1 failed: the device was lost)");
    check_end(e, 4, 7, 25, ") is stopped (SIGSTOP)");
    check_end(e, 4, 7, 25, "status: device failed"); /* the status of rank 1, not that of the other ranks */
}

static ls_status endless(void *ctx, ls_comm *c, int n_core)
{
    (void)ctx;
    (void)c;
    (void)n_core;
    nap(60);
    return LS_OK;
}

static void endless_family(void)
{
    const ls_status st =
        ls_launch_local(&(ls_launch){.n = 2, .arena_nbytes = (size_t)1 << 20, .body = endless, .report = print_report});
    fprintf(stderr, "%s\n", ls_err_words());
    _exit(st == LS_E_STOPPED && ls_stop_at_once() ? 128 + ls_stop_signal() : 1);
}

static void signal_twice(pid_t pid)
{
    nap(0.5);
    kill(pid, SIGTERM);
    nap(1.0);
    kill(pid, SIGTERM);
}

static void a_second_signal_ends_all_workers(void **state)
{
    (void)state;
    check_end(in_child(endless_family, signal_twice), 143, 1.4, 10,
              "the workers were killed, and nothing more was saved");
}

/* ---- closing ---- */

static void hanging_destroy(ls_comm *c)
{
    (void)c;
    stuck();
}

static void closes(void)
{
    static const comm_ops ops = {.name = "hangs", .destroy = hanging_destroy};
    ls_comm *c = NULL;
    if (comm_create(&ops, 0, 1, 0, &c) != LS_OK) _exit(1);
    comm_close_within(&c, LS_OK, 0.3);
    _exit(2);
}

static void a_stuck_close_exits_with_success(void **state)
{
    (void)state;
    check_end(in_child(closes, NULL), 0, 0.25, 10,
              "the work is complete, but closing the communicator did not return within 0.3 s");
}

/* The run is complete and rank 0 has ended; rank 1 was stopped before its end. */
static ls_status stopped_at_the_end(void *ctx, ls_comm *c, int n_core)
{
    (void)ctx;
    (void)n_core;
    if (ls_comm_rank(c) == 1) raise(SIGSTOP);
    return LS_OK;
}

static void complete_family(void)
{
    const ls_status st =
        ls_launch_local(&(ls_launch){.n = 2, .arena_nbytes = (size_t)1 << 20, .body = stopped_at_the_end});
    _exit(ls_status_exit_code(st));
}

static void a_stopped_worker_does_not_fail_the_run(void **state)
{
    (void)state;
    const ended e = in_child(complete_family, NULL);
    check_end(e, 0, 1.5, 15, "rank 1 (pid ");
    check_end(e, 0, 1.5, 15, ") is stopped (SIGSTOP)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stuck_call_ends_at_its_limit),
                                       cmocka_unit_test(the_stacks_of_all_threads_are_printed),
                                       cmocka_unit_test(stopped_time_does_not_count),
                                       cmocka_unit_test(a_raised_flag_limits_the_time_left),
                                       cmocka_unit_test(a_run_without_progress_is_ended),
                                       cmocka_unit_test(a_second_signal_ends_at_once),
                                       cmocka_unit_test(the_time_limit_follows_the_state),
                                       cmocka_unit_test(a_parent_ends_workers_that_hang),
                                       cmocka_unit_test(a_second_signal_ends_all_workers),
                                       cmocka_unit_test(a_stuck_close_exits_with_success),
                                       cmocka_unit_test(a_stopped_worker_does_not_fail_the_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
