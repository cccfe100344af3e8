/* Which of several workers failed first: the choice is the same in whatever order their reports come. */
#include "cmocka_all.h"

#include "comm/ended_impl.h"
#include "comm/launch.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define MOST 5

static ended exited(int rank, int code, double at)
{
    return (ended){.rank = rank, .code = code, .st = ls_launch_status(code), .at = at};
}

static ended signalled(int rank, int sig, double at)
{
    return (ended){.rank = rank, .code = 4, .st = LS_E_COMM, .signal = sig, .at = at};
}

static ended ended_by_us(int rank, bool stopped, double at)
{
    return (ended){.rank = rank, .code = 4, .st = LS_E_COMM, .killed = true, .was_stopped = stopped, .at = at};
}

static void swap(ended *a, ended *b)
{
    const ended t = *a;
    *a = *b;
    *b = t;
}

/* In every order of e[from] … e[n-1]. */
static void each_order(ended *e, int from, int n, int rank, bool sure)
{
    if (from == n) {
        bool known = !sure;
        const int at = ended_first(e, n, false, &known);
        assert_true(at >= 0);
        assert_int_equal(e[at].rank, rank);
        assert_int_equal(known, sure);
    }
    for (int i = from; i < n; i++) {
        swap(&e[from], &e[i]);
        each_order(e, from + 1, n, rank, sure);
        swap(&e[from], &e[i]);
    }
}

static void check(int rank, bool sure, int n, ended e0, ended e1, ended e2, ended e3)
{
    ended e[MOST] = {e0, e1, e2, e3};
    each_order(e, 0, n, rank, sure);
}

static void a_killed_worker_comes_before_those_that_lost_it(void **state)
{
    (void)state; /* its end is noticed last */
    check(1, true, 4, exited(0, 4, 2), signalled(1, SIGKILL, 9), exited(2, 4, 1), exited(3, 4, 1.5));
    check(3, true, 4, exited(0, 4, 2), exited(1, 4, 1), ended_by_us(2, false, 0.5), signalled(3, SIGSEGV, 9));
}

static void a_failure_of_its_own_comes_before_those_that_heard_of_it(void **state)
{
    (void)state;
    for (int code = 1; code <= 5; code++)
        if (code != 4) check(2, true, 4, exited(0, 4, 1), exited(1, 4, 1), exited(2, code, 9), exited(3, 143, 0));
}

static void among_equal_causes_the_earliest_counts(void **state)
{
    (void)state;
    check(3, true, 4, exited(0, 4, 0), signalled(1, SIGKILL, 3), signalled(2, SIGKILL, 2), signalled(3, SIGKILL, 1));
    /* several workers with one exit code have agreed on the failure of one: which one is not known from it */
    check(2, false, 4, exited(0, 3, 3), exited(1, 3, 2), exited(2, 3, 1), exited(3, 4, 0));
}

static void without_a_cause_the_lowest_rank_is_returned_and_not_sure(void **state)
{
    (void)state;
    check(0, false, 4, exited(0, 4, 4), exited(1, 4, 3), exited(2, 4, 2), exited(3, 4, 1));
    check(1, false, 4, exited(0, 0, 0), ended_by_us(1, false, 2), ended_by_us(2, false, 1), exited(3, 0, 0));
}

static void a_stopped_worker_comes_before_what_it_delays(void **state)
{
    (void)state;
    check(2, true, 4, exited(0, 4, 1), exited(1, 4, 2), ended_by_us(2, true, 9), ended_by_us(3, false, 8));
}

static void a_host_that_did_not_start_comes_before_all(void **state)
{
    (void)state;
    check(-1, false, 4, exited(-1, 255, 9), signalled(1, SIGKILL, 1), exited(2, 3, 1), exited(3, 4, 1));
    /* exit code 4 of a host without reports is a lost connection: a consequence, or as good as one */
    check(1, true, 3, exited(-1, 4, 1), signalled(1, SIGKILL, 2), exited(2, 4, 1), exited(3, 0, 0));
}

static void nobody_has_failed(void **state)
{
    (void)state;
    const ended e[2] = {exited(0, 0, 1), exited(1, 0, 2)};
    bool sure = true;
    assert_int_equal(ended_first(e, 2, false, &sure), -1);
    assert_false(sure);
    assert_int_equal(ended_first(e, 0, false, &sure), -1);
}

static void after_a_request_a_stop_comes_before_lost_peers(void **state)
{
    (void)state;
    const ended e[2] = {exited(0, 4, 1), exited(1, 143, 2)};
    assert_int_equal(ended_first(e, 2, true, NULL), 1);
    assert_int_equal(ended_first(e, 2, false, NULL), 0);
}

static void a_report_travels_as_a_line_with_its_age(void **state)
{
    (void)state;
    ls_str line = {0};
    ended got;
    const ended e = {.rank = 3,
                     .pid = 77,
                     .code = 4,
                     .st = LS_E_COMM,
                     .signal = 9,
                     .was_stopped = true,
                     .at = 12.5,
                     .message = "it broke"};
    ended_write(&e, 14.0, &line);
    assert_true(ended_read(line.data, 101.5, &got)); /* the clock of another host */
    assert_int_equal(got.rank, 3);
    assert_int_equal(got.pid, 77);
    assert_int_equal(got.code, 4);
    assert_int_equal(got.st, LS_E_COMM);
    assert_int_equal(got.signal, 9);
    assert_false(got.killed);
    assert_true(got.was_stopped);
    assert_true(got.at == 100.0);
    assert_string_equal(got.message, "it broke");
    ls_str_fini(&line);
    assert_false(ended_read("done\n", 0, &got));
    assert_false(ended_read("worker 3 77\n", 0, &got));
}

static void the_message_is_that_of_the_last_error_line(void **state)
{
    (void)state;
    ended e = exited(1, 4, 0);
    ended_find_message(&e, NULL);
    ended_find_message(&e, "step 3 was not saved\nI/O error: full\nstack trace of rank 1:\n"); /* not of code 4 */
    assert_string_equal(e.message, "");
    ended_find_message(
        &e, "rank 1: device failed: first\nrank 1 on b: a worker or a collective failed: rank 1 is lost\nbye\n");
    assert_string_equal(e.message, "rank 1 is lost");
    ls_str line = {0};
    ended got;
    e.message[0] = '\0';
    ended_write(&e, 0, &line);
    ended_write(&e, 0, &line);
    assert_true(ended_read(line.data, 0, &got)); /* not that of the next line */
    assert_string_equal(got.message, "");
    ls_str_fini(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker_comes_before_those_that_lost_it),
        cmocka_unit_test(a_failure_of_its_own_comes_before_those_that_heard_of_it),
        cmocka_unit_test(among_equal_causes_the_earliest_counts),
        cmocka_unit_test(without_a_cause_the_lowest_rank_is_returned_and_not_sure),
        cmocka_unit_test(a_stopped_worker_comes_before_what_it_delays),
        cmocka_unit_test(a_host_that_did_not_start_comes_before_all),
        cmocka_unit_test(nobody_has_failed),
        cmocka_unit_test(after_a_request_a_stop_comes_before_lost_peers),
        cmocka_unit_test(a_report_travels_as_a_line_with_its_age),
        cmocka_unit_test(the_message_is_that_of_the_last_error_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
