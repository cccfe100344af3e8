/* Options: every kind, both spellings, prefixes, lists, refusals with the nearest name, help and printing. */
#include "core/opt.h"
#include "core/mem.h"
#include "cmocka_all.h"

#include <string.h>

typedef struct target {
    bool on;
    int64_t n;
    double lr;
    const char *name, *device;
    ls_opt_list in;
} target;

static const ls_opt table[] = {
    {"verbose", LS_OPT_SWITCH, offsetof(target, on), NULL, NULL, "print more", "General", 0, 0},
    {"seq_length", LS_OPT_INT, offsetof(target, n), "N", "1024", "positions of a sample", NULL, 1, 512},
    {"learning_rate", LS_OPT_REAL, offsetof(target, lr), "X", "6e-4", "peak rate", "Training", -1, 1e12},
    {"name", LS_OPT_STR, offsetof(target, name), "TEXT", NULL,
     "the name of the run, with a description that is long enough to need a second line of the help page, or even a third one",
     NULL, 0, 0},
    {"device", LS_OPT_CHOICE, offsetof(target, device), "cpu|cuda", "cpu", "where to compute", NULL, 0, 0},
    {"input", LS_OPT_LIST, offsetof(target, in), "PATH...", NULL, "files", NULL, 0, 0},
    {"seq_len_old", LS_OPT_INT, offsetof(target, n), "N", NULL, NULL, NULL, 0, 0},
};
#define N_ROW N_OF(table)

static ls_status parse(target *t, unsigned char *given, ls_opt_list *rest, bool *help, int argc, const char **argv)
{
    *t = (target){0};
    assert_int_equal(ls_opt_defaults(table, N_ROW, t), LS_OK);
    return ls_opt_parse(table, N_ROW, t, given, argc, (char **)(uintptr_t)argv, rest, help);
}

#define PARSE(t, given, rest, help, ...) \
    parse(t, given, rest, help, (int)N_OF(((const char *[]){__VA_ARGS__})), (const char *[]){__VA_ARGS__})

static void every_kind_of_option_is_parsed(void **state)
{
    (void)state;
    target t;
    unsigned char given[N_ROW] = {0};
    assert_int_equal(PARSE(&t, given, NULL, NULL, "--verbose", "--seq-length", "512", "--learning_rate=1e-3", "--name",
                           "a b", "--device", "cuda"),
                     LS_OK);
    assert_true(t.on);
    assert_int_equal(t.n, 512);
    assert_true(t.lr == 1e-3);
    assert_string_equal(t.name, "a b");
    assert_string_equal(t.device, "cuda");
    assert_memory_equal(given, "\1\1\1\1\1\0\0", N_ROW);
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--verbose=false"), LS_OK);
    assert_false(t.on);
    assert_int_equal(t.n, 1024); /* the default */
    assert_null(t.name);
}

static void prefixes_and_both_spellings_are_accepted(void **state)
{
    (void)state;
    target t;
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--learn", "0.5", "--seq_length=5", "--seq-length", "6"), LS_OK);
    assert_true(t.lr == 0.5);
    assert_int_equal(t.n, 6); /* the last one wins */
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--learning_rate", "-1"), LS_OK);
    assert_true(t.lr == -1); /* a value may start with a minus sign */
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--seq", "6"), LS_E_ARG);
    assert_string_equal(ls_err_words(), "ambiguous option --seq: it could be --seq_length or --seq_len_old");
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "-s", "6"), LS_E_ARG);
    assert_string_equal(ls_err_words(), "ambiguous option -s: it could be --seq_length or --seq_len_old");
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--rate", "6"), LS_E_ARG);
    assert_string_equal(ls_err_words(),
                        "unknown option --rate; did you mean --learning_rate? (--help lists the options)");
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--learning_rate", "inf"), LS_E_ARG);
    assert_string_equal(ls_err_words(), "--learning_rate inf: must be a finite number");
}

static void values_outside_the_range_are_refused(void **state)
{
    (void)state;
    target t;
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--learning_rate=1"), LS_OK);
    assert_int_equal(t.n, 1024); /* a default may be outside of the range */
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--seq_length", "0"), LS_E_ARG);
    assert_string_equal(ls_err_words(), "--seq_length 0: must be 1 to 512");
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--learning_rate", "-2"), LS_E_ARG);
    assert_string_equal(ls_err_words(), "--learning_rate -2: must be at least -1");
}

static void a_list_ends_at_the_next_option(void **state)
{
    (void)state;
    target t;
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--input", "a", "-", "b", "--verbose"), LS_OK);
    assert_int_equal(t.in.n, 3);
    assert_string_equal(t.in.word[1], "-"); /* stdin */
    assert_string_equal(t.in.word[2], "b");
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--input=x"), LS_OK);
    assert_int_equal(t.in.n, 1);
    assert_string_equal(t.in.word[0], "x");
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--input"), LS_E_ARG);
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--input", "--verbose"), LS_E_ARG);
}

static void positional_words_stay_out_of_lists(void **state)
{
    (void)state;
    target t;
    ls_opt_list rest = {0};
    const char *argv[] = {"r0", "--input", "a", "b", "--verbose", "r1", "--name", "n", "r2", "--", "--r3", "r4"};
    assert_int_equal(parse(&t, NULL, &rest, NULL, (int)N_OF(argv), argv), LS_OK);
    assert_int_equal(t.in.n, 2);
    assert_string_equal(t.in.word[0], "a");
    assert_string_equal(t.in.word[1], "b");
    assert_string_equal(t.name, "n");
    static const char *const want[] = {"r0", "r1", "r2", "--r3", "r4"};
    assert_int_equal(rest.n, N_OF(want));
    for (int i = 0; i < rest.n; i++) assert_string_equal(rest.word[i], want[i]);
}

static void a_bad_option_names_the_nearest(void **state)
{
    (void)state;
    target t;
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--seq_lenth", "3"), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "did you mean --seq_length?"));
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--qqqqqqqq"), LS_E_ARG);
    assert_null(strstr(ls_err_words(), "did you mean"));
    static const char *const bad[][3] = {
        {"--seq_length", "12x", "whole number"}, {"--learning_rate", "fast", "a number"},
        {"--device", "tpu", "cpu|cuda"},         {"--verbose=maybe", "", "switch"},
        {"word", "", "not an option"},           {"-verbose", "", "two dashes"}};
    for (size_t i = 0; i < N_OF(bad); i++) {
        const char *argv[] = {bad[i][0], bad[i][1]};
        assert_int_equal(parse(&t, NULL, NULL, NULL, bad[i][1][0] ? 2 : 1, argv), LS_E_ARG);
        if (!strstr(ls_err_words(), bad[i][2])) fail_msg("%s: %s", bad[i][0], ls_err_words());
    }
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--name"), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "--name needs a value"));
}

static void words_are_collected_from_every_occurrence(void **state)
{
    (void)state;
    static const ls_opt row = {.name = "stop", .kind = LS_OPT_WORDS, .arg = "TEXT", .help = "end here"};
    ls_opt_words w = {0};
    const char *argv[] = {"--stop", "a", "--stop=b c", "--stop", "--x"};
    assert_int_equal(ls_opt_parse(&row, 1, &w, NULL, 5, (char **)(uintptr_t)argv, NULL, NULL), LS_OK);
    assert_int_equal(w.n, 3);
    assert_string_equal(w.word[0], "a");
    assert_string_equal(w.word[1], "b c");
    assert_string_equal(w.word[2], "--x");
    for (int i = w.n; i < LS_OPT_MAX_WORDS; i++)
        assert_int_equal(ls_opt_parse(&row, 1, &w, NULL, 2, (char **)(uintptr_t)argv, NULL, NULL), LS_OK);
    assert_int_equal(ls_opt_parse(&row, 1, &w, NULL, 2, (char **)(uintptr_t)argv, NULL, NULL), LS_E_ARG);
}

static void the_help_page_fits_its_columns(void **state)
{
    (void)state;
    target t;
    bool help = false;
    assert_int_equal(PARSE(&t, NULL, NULL, &help, "--help"), LS_OK);
    assert_true(help);
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--help"), LS_E_ARG);
    ls_str s = {0};
    ls_opt_help(table, N_ROW, &s);
    assert_non_null(strstr(s.data, "General:\n  --verbose "));
    assert_non_null(strstr(s.data, "\nTraining:\n"));
    assert_non_null(strstr(s.data, "[6e-4]"));
    assert_null(strstr(s.data, "seq_len_old")); /* hidden */
    for (const char *p = s.data; *p;) {
        size_t n = strcspn(p, "\n");
        assert_true(n <= LS_OPT_COLUMNS);
        assert_true(!n || p[n - 1] != ' ');
        p += n + 1;
    }
    ls_str_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_option_is_parsed),
        cmocka_unit_test(prefixes_and_both_spellings_are_accepted),
        cmocka_unit_test(values_outside_the_range_are_refused),
        cmocka_unit_test(a_list_ends_at_the_next_option),
        cmocka_unit_test(positional_words_stay_out_of_lists),
        cmocka_unit_test(a_bad_option_names_the_nearest),
        cmocka_unit_test(words_are_collected_from_every_occurrence),
        cmocka_unit_test(the_help_page_fits_its_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
