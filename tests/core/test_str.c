/* Strings that grow, parsing of numbers, the nearest word, readable sizes and times. */
#include "core/str.h"
#include "core/clock.h"
#include "core/env.h"
#include "core/mem.h"
#include "cmocka_all.h"

#include <stdlib.h>
#include <string.h>

static void a_string_grows_as_text_is_added(void **state)
{
    (void)state;
    ls_str s = {0};
    char want[4001] = {0};
    for (int i = 0; i < 1000; i++) {
        ls_str_addf(&s, "%02d", i % 100);
        ls_str_addc(&s, ',');
        ls_str_add(&s, ".");
        memcpy(want + 4 * i, (char[]){(char)('0' + i % 100 / 10), (char)('0' + i % 10), ',', '.'}, 4);
    }
    assert_int_equal(s.len, 4000);
    assert_string_equal(s.data, want);
    ls_str_addn(&s, "a\0b", 3);
    assert_int_equal(s.len, 4003);
    assert_memory_equal(s.data + 4000, "a\0b", 4);
    assert_false(s.failed);
    ls_str_fini(&s);
    assert_null(s.data);
}

static void a_failed_string_stays_failed(void **state)
{
    (void)state;
    int64_t live = ls_mem_live();
    ls_str s = {0};
    ls_str_add(&s, "kept");
    ls_mem_fail_at(0);
    for (int i = 0; i < 300; i++) ls_str_addc(&s, 'x');
    ls_mem_fail_at(-1);
    assert_true(s.failed);
    size_t len = s.len;
    ls_str_add(&s, "more");
    ls_str_addf(&s, "%d", 1);
    assert_int_equal(s.len, len);
    assert_int_equal(strlen(s.data), len);
    ls_str_fini(&s);
    assert_int_equal(ls_mem_live(), live);
}

static void whole_numbers_are_read_completely(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        int64_t v;
    } row[] = {{"0", true, 0},
               {"-17", true, -17},
               {"+5", true, 5},
               {"5e8", true, 500000000},
               {"1.5e1", true, 15},
               {"2.0", true, 2},
               {"9223372036854775807", true, INT64_MAX},
               {"-9223372036854775808", true, INT64_MIN},
               {"9223372036854775808", false, 0},
               {"1e30", false, 0},
               {"1.5", false, 0},
               {"0x10", false, 0},
               {"", false, 0},
               {" 1", false, 0},
               {"\t1", false, 0},
               {"1 ", false, 0},
               {"1k", false, 0},
               {"nan", false, 0},
               {"inf", false, 0}};
    for (size_t i = 0; i < N_OF(row); i++) {
        int64_t v = 0;
        if (ls_parse_i64(row[i].text, &v) != row[i].ok || v != row[i].v)
            fail_msg("'%s' gave %lld", row[i].text, (long long)v);
    }
    assert_false(ls_parse_i64(NULL, &(int64_t){0}));
}

static void real_numbers_are_read_completely(void **state)
{
    (void)state;
    double v = 0;
    assert_true(ls_parse_f64("3e-4", &v) && v == 3e-4);
    assert_true(ls_parse_f64("-.5", &v) && v == -.5);
    assert_true(ls_parse_f64("1e-320", &v) && v > 0); /* below the normal range, still a number */
    static const char *const bad[] = {"", " 1", "\n1", "1x", "nan", "inf", "-inf", "1e999", "--1"};
    for (size_t i = 0; i < N_OF(bad); i++)
        if (ls_parse_f64(bad[i], &v)) fail_msg("'%s' was read", bad[i]);
}

static void the_nearest_word_is_suggested(void **state)
{
    (void)state;
    static const char *const words[] = {"seq_length", "learning_rate", "lr", "epochs", "steps_per_epoch"};
    assert_string_equal(ls_nearest_word("seq_lenght", words, 5), "seq_length");
    assert_string_equal(ls_nearest_word("learnin_rate", words, 5), "learning_rate");
    assert_string_equal(ls_nearest_word("epoch", words, 5), "epochs");
    assert_string_equal(ls_nearest_word("lr", words, 5), "lr");
    assert_null(ls_nearest_word("zzzzzzzz", words, 5));
    assert_null(ls_nearest_word("x", words, 0));
    char big[300];
    memset(big, 'q', 299);
    big[299] = '\0';
    assert_null(ls_nearest_word(big, words, 5));
}

static void sizes_and_times_are_readable(void **state)
{
    (void)state;
    char b[32];
    assert_string_equal(ls_human_bytes(b, 1234567), "1.2 MiB");
    assert_string_equal(ls_human_bytes(b, 512), "512 B");
    assert_string_equal(ls_human_bytes(b, 3.0 * 1024 * 1024 * 1024), "3.0 GiB");
    assert_string_equal(ls_human_time(b, 86399), "23h59m");
    assert_string_equal(ls_human_time(b, 59.4), "59s");
    assert_string_equal(ls_human_time(b, 61), "1m01s");
    assert_string_equal(ls_human_time(b, -3), "0s");
}

static void clocks_advance_and_stamps_are_utc(void **state)
{
    (void)state;
    double t = ls_now(), c = ls_cpu_seconds();
    volatile double x = 1;
    while (ls_now() - t < 0.02) x = x * 1.0000001;
    assert_true(ls_cpu_seconds() >= c);
    char a[24], b[24];
    ls_utc_stamp(a);
    ls_utc_compact(b);
    assert_int_equal(strlen(a), 20);
    assert_int_equal(strlen(b), 16);
    assert_true(a[4] == '-' && a[10] == 'T' && a[19] == 'Z' && b[8] == 'T' && b[15] == 'Z');
}

static void a_word_is_one_of_the_choices_or_not(void **state)
{
    (void)state;
    assert_true(ls_one_of("a|bc|d", "a", false) && ls_one_of("a|bc|d", "bc", false) && ls_one_of("a|bc|d", "d", false));
    assert_false(ls_one_of("a|bc|d", "b", false) || ls_one_of("a|bc|d", "bcd", false) || ls_one_of("a|bc", "", false));
    assert_false(ls_one_of("Adam|AdamW", "adamw", false));
    assert_true(ls_one_of("Adam|AdamW", "adamw", true));
}

static void numbers_in_the_environment_are_read_completely(void **state)
{
    (void)state;
    static const char *const wrong[] = {"3x", "-1", "2147483648", "1.5"};
    bool set = true;
    int x = 7;
    unsetenv("LS_TEST_NUMBER");
    assert_int_equal(ls_env_int("LS_TEST_NUMBER", 0, &x, &set), LS_OK);
    assert_true(!set && x == 7);
    setenv("LS_TEST_NUMBER", "", 1);
    assert_int_equal(ls_env_int("LS_TEST_NUMBER", 0, &x, &set), LS_OK);
    assert_true(!set && x == 7);
    assert_int_equal(ls_env_int(NULL, 0, &x, &set), LS_OK);
    assert_false(set);
    setenv("LS_TEST_NUMBER", "12", 1);
    assert_int_equal(ls_env_int("LS_TEST_NUMBER", 0, &x, &set), LS_OK);
    assert_true(set && x == 12);
    for (size_t i = 0; i < N_OF(wrong); i++) {
        setenv("LS_TEST_NUMBER", wrong[i], 1);
        assert_int_equal(ls_env_int("LS_TEST_NUMBER", 0, &x, &set), LS_E_CONFIG);
        assert_non_null(strstr(ls_err_words(), "LS_TEST_NUMBER"));
    }
    assert_int_equal(x, 12);
    unsetenv("LS_TEST_NUMBER");
}

static void control_characters_do_not_reach_a_terminal(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } row[] = {{"plain\ttext\n", "plain\ttext\n"},
               {"run\033[31m\a\177", "run?[31m??"},
               {"\xc3\xa9t\xc3\xa9", "\xc3\xa9t\xc3\xa9"},
               {"\xc2\x9b"
                "31m",
                "??31m"}, /* U+009B begins a sequence, too */
               {"\xff\xc3", "??"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ls_str s = {0};
        ls_str_add(&s, row[i].text);
        ls_str_printable(&s);
        assert_string_equal(s.data, row[i].want);
        ls_str_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_string_grows_as_text_is_added),
        cmocka_unit_test(a_failed_string_stays_failed),
        cmocka_unit_test(whole_numbers_are_read_completely),
        cmocka_unit_test(real_numbers_are_read_completely),
        cmocka_unit_test(the_nearest_word_is_suggested),
        cmocka_unit_test(sizes_and_times_are_readable),
        cmocka_unit_test(clocks_advance_and_stamps_are_utc),
        cmocka_unit_test(a_word_is_one_of_the_choices_or_not),
        cmocka_unit_test(numbers_in_the_environment_are_read_completely),
        cmocka_unit_test(control_characters_do_not_reach_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
