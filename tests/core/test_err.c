/* A failure keeps its message, its place and its trail, separately in each thread. */
#include "core/err.h"
#include "cmocka_all.h"

#include <pthread.h>
#include <string.h>

static ls_status deep(int n)
{
    if (!n) return ls_fail(LS_E_IO, "open %s: %s", "x.bin", "no such thing");
    LS_TRY(deep(n - 1));
    return LS_OK;
}

static void a_failure_keeps_its_message_and_trail(void **state)
{
    (void)state;
    ls_err_clear();
    assert_string_equal(ls_err_words(), "");
    assert_string_equal(ls_err_trail(), "");
    assert_int_equal(deep(2), LS_E_IO);
    assert_string_equal(ls_err_words(), "open x.bin: no such thing");
    const char *t = ls_err_trail();
    assert_true(!strncmp(t, "  at ", 5));
    int via = 0;
    for (const char *p = t; (p = strstr(p, "  via ")); p++) via++;
    assert_int_equal(via, 2);
    assert_non_null(strstr(t, "deep(n - 1)"));
    assert_non_null(strstr(t, "test_err.c:"));
}

static void a_new_failure_starts_a_new_trail(void **state)
{
    (void)state;
    assert_int_equal(deep(3), LS_E_IO);
    assert_int_equal(ls_fail(LS_E_CONFIG, "again: %s", ls_err_words()),
                     LS_E_CONFIG); /* the previous message as argument */
    assert_string_equal(ls_err_words(), "again: open x.bin: no such thing");
    assert_null(strstr(ls_err_trail(), "via"));
}

static void long_messages_and_deep_trails_are_cut(void **state)
{
    (void)state;
    char big[5000];
    memset(big, 'w', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    (void)ls_fail(LS_E_FORMAT, "%s", big);
    assert_true(strlen(ls_err_words()) >= 2000 && strlen(ls_err_words()) < 2100);
    assert_int_equal(deep(400), LS_E_IO); /* far more frames than the trail holds */
    assert_true(strlen(ls_err_trail()) < 4096);
    assert_string_equal(ls_err_words(), "open x.bin: no such thing");
}

static ls_status with_goto(int *released)
{
    ls_status st;
    LS_TRY_GOTO(st, done, deep(0));
done:
    *released = 1;
    return st;
}

static void the_goto_form_reaches_the_cleanup(void **state)
{
    (void)state;
    int released = 0;
    assert_int_equal(with_goto(&released), LS_E_IO);
    assert_int_equal(released, 1);
    assert_non_null(strstr(ls_err_trail(), "via"));
}

static void *other_thread(void *arg)
{
    *(int *)arg = ls_err_words()[0] == '\0';
    (void)ls_fail(LS_E_COMM, "of the other thread");
    return NULL;
}

static void each_thread_has_its_own_failure(void **state)
{
    (void)state;
    (void)ls_fail(LS_E_IO, "mine");
    pthread_t t;
    int was_empty = 0;
    assert_int_equal(pthread_create(&t, NULL, other_thread, &was_empty), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(was_empty, 1);
    assert_string_equal(ls_err_words(), "mine");
}

static void exit_codes_match_the_documentation(void **state)
{
    (void)state;
    static const struct {
        ls_status st;
        int code;
    } want[] = {{LS_OK, 0},       {LS_E_ARG, 2},  {LS_E_CONFIG, 2}, {LS_E_IO, 3},
                {LS_E_FORMAT, 3}, {LS_E_COMM, 4}, {LS_E_NOMEM, 5},  {LS_E_STOPPED, 143}};
    for (size_t i = 0; i < N_OF(want); i++) assert_int_equal(ls_status_exit_code(want[i].st), want[i].code);
    assert_int_equal(ls_status_exit_code((ls_status)999), 1);
    assert_string_equal(ls_status_words(LS_E_CONFIG), "invalid configuration");
    assert_string_equal(ls_status_words((ls_status)999), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_keeps_its_message_and_trail), cmocka_unit_test(a_new_failure_starts_a_new_trail),
        cmocka_unit_test(long_messages_and_deep_trails_are_cut), cmocka_unit_test(the_goto_form_reaches_the_cleanup),
        cmocka_unit_test(each_thread_has_its_own_failure),       cmocka_unit_test(exit_codes_match_the_documentation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
