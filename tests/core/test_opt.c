/* Options: every kind, both spellings, other names, lists, refusals with the nearest names, help pages. */
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

/* clang-format off */
#define ROW(name_, kind_, field, arg_, def_, ...) {.name = name_, .kind = kind_, .offset = offsetof(target, field), .arg = arg_, .def = def_, .help = __VA_ARGS__}
static const ls_opt table[] = {
    ROW("verbose", LS_OPT_SWITCH, on, NULL, NULL, "print more", .section = "General"),
    ROW("seq_length", LS_OPT_INT, n, "N", "1024", "positions of a sample", .lo = 1, .hi = 512, .common = true),
    ROW("learning_rate", LS_OPT_REAL, lr, "X", "6e-4", "peak rate", .section = "Training", .lo = -1, .hi = 1e12, .common = true),
    ROW("name", LS_OPT_STR, name, "TEXT", NULL,
     "the name of the run, with a description that is long enough to need a second line of the help page, or even a third one [none]"),
    ROW("device", LS_OPT_CHOICE, device, "cpu|cuda", "cpu", "where to compute"),
    ROW("input", LS_OPT_LIST, in, "PATH...", NULL, "files"),
    {.name = "block_size", .of = "seq_length"},
    {.name = "on_gpu", .of = "device", .value = "cuda"},
    {.name = "talk", .of = "verbose"},
    {.name = "label", .of = "name"},
};
/* clang-format on */
#define N_ROW N_OF(table)

static ls_status parse(target *t, unsigned char *given, ls_opt_list *rest, ls_opt_page *help, int argc,
                       const char **argv)
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
    assert_memory_equal(given, "\1\1\1\1\1\0\0\0\0\0", N_ROW);
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--verbose=false"), LS_OK);
    assert_false(t.on);
    assert_int_equal(t.n, 1024); /* the default */
    assert_null(t.name);
}

static void both_spellings_are_accepted_and_names_are_never_abbreviated(void **state)
{
    (void)state;
    target t;
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--learning-rate", "0.5", "--seq_length=5", "--seq-length", "6"),
                     LS_OK);
    assert_true(t.lr == 0.5);
    assert_int_equal(t.n, 6); /* the last one wins */
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--learning_rate", "-1"), LS_OK);
    assert_true(t.lr == -1); /* a value may start with a minus sign */
    static const char *const part[] = {"--seq", "--s", "--learn", "--learning_rat", "-s", "--seq_lengths"};
    for (size_t i = 0; i < N_OF(part); i++) {
        const char *argv[] = {part[i], "6"};
        assert_int_equal(parse(&t, NULL, NULL, NULL, 2, argv), LS_E_ARG);
        assert_non_null(strstr(ls_err_words(), "unknown option"));
    }
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--learning_rate", "inf"), LS_E_ARG);
    assert_string_equal(ls_err_words(), "--learning_rate inf: must be a finite number");
}

static void another_name_sets_the_same_value(void **state)
{
    (void)state;
    target t;
    unsigned char given[N_ROW] = {0};
    assert_int_equal(PARSE(&t, given, NULL, NULL, "--block-size", "7", "--on_gpu", "--talk", "True", "--label=x"),
                     LS_OK);
    assert_int_equal(t.n, 7);
    assert_string_equal(t.device, "cuda");
    assert_string_equal(t.name, "x");
    assert_true(t.on);
    assert_memory_equal(given, "\1\1\0\1\1\0\1\1\1\1", N_ROW);
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--verbose", "false"), LS_OK);
    assert_false(t.on);
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--block_size", "0"), LS_E_ARG); /* the range of the row */
    assert_string_equal(ls_err_words(), "--block_size 0: must be 1 to 512");
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--on_gpu=maybe"), LS_E_ARG);
    assert_string_equal(ls_err_words(),
                        "--on_gpu maybe: this switch takes true, 1, yes, false, 0 or no; it stands for --device cuda");
}

static void a_false_name_of_a_value_sets_nothing(void **state)
{
    (void)state;
    target t;
    unsigned char given[N_ROW] = {0};
    assert_int_equal(PARSE(&t, given, NULL, NULL, "--on_gpu", "False"), LS_OK);
    assert_string_equal(t.device, "cpu");
    assert_memory_equal(given, "\0\0\0\0\0\0\0\1\0\0", N_ROW); /* the name was typed, the option was not */
    memset(given, 0, sizeof given);
    assert_int_equal(PARSE(&t, given, NULL, NULL, "--device", "cuda", "--on_gpu=0"), LS_E_ARG);
    assert_string_equal(ls_err_words(), "--on_gpu False contradicts --device cuda; leave one out");
    memset(given, 0, sizeof given);
    assert_int_equal(PARSE(&t, given, NULL, NULL, "--on_gpu", "false", "--device", "cuda"), LS_E_ARG);
    memset(given, 0, sizeof given);
    assert_int_equal(PARSE(&t, given, NULL, NULL, "--on_gpu", "false", "--device", "cpu"), LS_OK);
    memset(given, 0, sizeof given);
    assert_int_equal(PARSE(&t, given, NULL, NULL, "--on_gpu", "false", "--on_gpu", "true"), LS_OK); /* the last wins */
    assert_string_equal(t.device, "cuda");
    memset(given, 0, sizeof given);
    assert_int_equal(PARSE(&t, given, NULL, NULL, "--on_gpu", "--on_gpu", "false"), LS_E_ARG);
}

static void two_names_with_different_values_are_refused(void **state)
{
    (void)state;
    target t;
    unsigned char given[N_ROW] = {0};
#define FRESH (memset(given, 0, sizeof given), given)
    assert_int_equal(PARSE(&t, FRESH, NULL, NULL, "--seq_length", "7", "--block_size", "8"), LS_E_ARG);
    assert_string_equal(ls_err_words(),
                        "--seq_length and --block_size are one option and have different values; leave one out");
    assert_int_equal(PARSE(&t, FRESH, NULL, NULL, "--block_size", "7", "--seq_length", "8"), LS_E_ARG);
    assert_int_equal(PARSE(&t, FRESH, NULL, NULL, "--on_gpu", "--device", "cpu"), LS_E_ARG);
    assert_int_equal(PARSE(&t, FRESH, NULL, NULL, "--verbose", "--talk", "false"), LS_E_ARG);
    assert_int_equal(PARSE(&t, FRESH, NULL, NULL, "--name", "x", "--label", "y"), LS_E_ARG);
    assert_int_equal(PARSE(&t, FRESH, NULL, NULL, "--name", "x", "--label", "x", "--device", "cuda", "--on_gpu"),
                     LS_OK);
    assert_int_equal(PARSE(&t, FRESH, NULL, NULL, "--block_size", "7", "--block_size", "8"), LS_OK); /* the last wins */
    assert_int_equal(t.n, 8);
#undef FRESH
}

static void only_whole_words_ask_for_help(void **state)
{
    (void)state;
    ls_opt_page page = LS_OPT_NO_PAGE;
    assert_true(ls_opt_asks_page("-h", NULL) && ls_opt_asks_page("--help", NULL) &&
                ls_opt_asks_page("--help=json", NULL));
    assert_true(ls_opt_asks_page("--help-all", &page) && page == LS_OPT_ALL_PAGES);
    assert_false(ls_opt_asks_page("--helpfoo", NULL) || ls_opt_asks_page("--hel", NULL) ||
                 ls_opt_asks_page("help", NULL));
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
    assert_string_equal(ls_err_words(),
                        "unknown option --seq_lenth; did you mean --seq_length? (--help_all lists the options)");
    static const char *const near[][2] = {{"--rate", "did you mean --learning_rate?"}, /* a part of it */
                                          {"--lenght", "did you mean --seq_length?"},  /* a part with a swap */
                                          {"--seq", "did you mean --seq_length?"},     /* its beginning */
                                          {"--blok-size", "did you mean --block_size?"},
                                          {"--cuda", "did you mean --device cuda?"}}; /* a value of a choice */
    for (size_t i = 0; i < N_OF(near); i++) {
        const char *argv[] = {near[i][0], "3"};
        assert_int_equal(parse(&t, NULL, NULL, NULL, 2, argv), LS_E_ARG);
        if (!strstr(ls_err_words(), near[i][1])) fail_msg("%s: %s", near[i][0], ls_err_words());
    }
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

static void check_columns(const char *text)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        assert_true(n <= LS_OPT_COLUMNS);
        assert_true(!n || p[n - 1] != ' ');
        p += n + 1;
    }
}

static void the_first_help_page_has_common_options_and_the_other_one_all(void **state)
{
    (void)state;
    target t;
    ls_opt_page page = LS_OPT_NO_PAGE;
    assert_int_equal(PARSE(&t, NULL, NULL, &page, "--help"), LS_OK);
    assert_int_equal(page, LS_OPT_FIRST_PAGE);
    static const char *const all[] = {"--help_all", "--help-all", "--help=all"};
    for (size_t i = 0; i < N_OF(all); i++) {
        const char *argv[] = {all[i]};
        page = LS_OPT_NO_PAGE;
        assert_int_equal(parse(&t, NULL, NULL, &page, 1, argv), LS_OK);
        assert_int_equal(page, LS_OPT_ALL_PAGES);
    }
    assert_int_equal(PARSE(&t, NULL, NULL, NULL, "--help"), LS_E_ARG);
    ls_str s = {0};
    ls_opt_help(table, N_ROW, LS_OPT_ALL_PAGES, &s);
    assert_non_null(strstr(s.data, "General:\n  --verbose "));
    assert_non_null(strstr(s.data, "\nTraining:\n"));
    assert_non_null(strstr(s.data, "[6e-4]"));
    assert_non_null(strstr(s.data, "positions of a sample (also --block_size) [1024]"));
    assert_non_null(
        strstr(s.data, "where to compute (also --on_gpu [true|false] for\n                            cuda) [cpu]"));
    assert_non_null(strstr(s.data, "(also --label) [none]")); /* a default in the text stays at its end */
    assert_null(strstr(s.data, "\n  --block_size"));
    check_columns(s.data);
    ls_str_fini(&s);
    ls_opt_help(table, N_ROW, LS_OPT_FIRST_PAGE, &s);
    assert_string_equal(s.data, "General:\n  --seq_length N            positions of a sample [1024]\n\nTraining:\n"
                                "  --learning_rate X         peak rate [6e-4]\n\n--help_all lists all 6 options.\n");
    ls_str_fini(&s);
    ls_opt_help(table + 3, 3, LS_OPT_FIRST_PAGE, &s); /* none is common: one page */
    assert_non_null(strstr(s.data, "--input"));
    assert_null(strstr(s.data, "--help_all"));
    ls_str_fini(&s);
}

static void the_rows_are_written_as_json(void **state)
{
    (void)state;
    ls_str s = {0};
    ls_jsonw w;
    json_t *rows = NULL;
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '[');
    ls_opt_json(table, N_ROW, &w);
    ls_jsonw_close(&w);
    assert_int_equal(ls_json_parse(s.data, s.len, "rows", &rows), LS_OK);
    assert_int_equal(json_array_size(rows), N_ROW);
    const json_t *alias = json_array_get(rows, 6);
    assert_string_equal(json_string_value(json_object_get(alias, "alias_of")), "seq_length");
    assert_true(json_number_value(json_object_get(alias, "max")) == 512);
    static const char *const of_value[][2] = {{"kind", "switch"}, {"arg", "[true|false]"}, {"section", "Training"}};
    for (size_t i = 0; i < N_OF(of_value); i++) /* of --on_gpu */
        assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 7), of_value[i][0])),
                            of_value[i][1]);
    assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 8), "section")), "General");
    json_decref(rows);
    ls_str_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_option_is_parsed),
        cmocka_unit_test(both_spellings_are_accepted_and_names_are_never_abbreviated),
        cmocka_unit_test(a_false_name_of_a_value_sets_nothing),
        cmocka_unit_test(two_names_with_different_values_are_refused),
        cmocka_unit_test(only_whole_words_ask_for_help),
        cmocka_unit_test(another_name_sets_the_same_value),
        cmocka_unit_test(values_outside_the_range_are_refused),
        cmocka_unit_test(a_list_ends_at_the_next_option),
        cmocka_unit_test(positional_words_stay_out_of_lists),
        cmocka_unit_test(a_bad_option_names_the_nearest),
        cmocka_unit_test(words_are_collected_from_every_occurrence),
        cmocka_unit_test(the_first_help_page_has_common_options_and_the_other_one_all),
        cmocka_unit_test(the_rows_are_written_as_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
