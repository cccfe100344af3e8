/* Charts: numbers as text, lines that differ in color or mark, and pictures of pipelines. */
#include "report_checks.h"

static void numbers_are_printed_with_separators(void **state)
{
    (void)state;
    char b[40];
    assert_string_equal(ls_number_text(b, 1234567.891, 1), "1,234,567.9");
    assert_string_equal(ls_number_text(b, -1234.0, 0), "-1,234");
    assert_string_equal(ls_number_text(b, -0.01, 1), "0.0");
    assert_string_equal(ls_number_text(b, 999, 0), "999");
    assert_string_equal(ls_number_text(b, 3e20, 2), "3e+20");
    near(ls_nice_step(0, 4730, 5), 1000, 1e-9);
    near(ls_nice_step(0, 0, 5), 1, 0);
}

/* Lines differ in color or mark. Beyond the maximum number of lines, the page lists those that are not shown. */
static void chart_lines_are_distinct_and_limited(void **state)
{
    (void)state;
    bool seen[8][4] = {{false}};
    for (int i = 0; i < LS_CHART_MAX_LINE; i++) {
        assert_false(seen[i % 8][ls_chart_mark(i)]);
        seen[i % 8][ls_chart_mark(i)] = true;
    }
    for (int n = 13; n <= 26; n += 13) {
        ls_run_set s = new_set();
        ls_analysis a;
        ls_chart c;
        ls_str html = {0}, md = {0};
        add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 100, .epoch_time = 1, .strategy = "single"}, NULL);
        for (int i = 0; i < n; i++) {
            char name[16];
            snprintf(name, sizeof name, "way%d", i);
            add(&s, name, (made_run){.world = 2, .tokens_per_sec = 100 + i, .epoch_time = 1, .strategy = name}, NULL);
        }
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
        chart_speedup(&a, &c);
        assert_int_equal(c.n_series, n == 13 ? 14 : LS_CHART_MAX_LINE); /* including the ideal line */
        assert_int_equal(c.n_left_out, n == 13 ? 0 : 3);
        ls_chart_fini(&c);
        report_page(&a, &html, &md);
        if (n == 13) assert_null(strstr(md.data, "Not shown"));
        else has(md.data, "twice the speed. Not shown, to keep the chart readable: way23, way24, way25.");
        has(html.data, n == 13 ? ">way12</text>" : ">way22</text>");
        ls_str_fini(&html), ls_str_fini(&md);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* Up to 16 pipelines are drawn; the page lists the others. */
static void at_most_16_pipelines_are_drawn(void **state)
{
    (void)state;
    static const char rows[] = "[{\"lane\": 0, \"begin\": 0, \"end\": 1, \"kind\": \"forward\", \"label\": \"0\"}]";
    for (int n = 11; n <= 18; n += 7) {
        ls_run_set s = new_set();
        ls_analysis a;
        ls_str html = {0}, md = {0};
        for (int i = 0; i < n; i++) {
            char name[16];
            ls_str text = {0};
            snprintf(name, sizeof name, "way%d", i);
            made_metrics(&(made_run){.world = 2, .tokens_per_sec = 9, .epoch_time = 1, .strategy = name}, &text);
            const ls_run_texts t = {.file[LS_RUN_METRICS] = {text.data, text.len},
                                    .file[LS_RUN_PIPELINE] = {rows, sizeof rows - 1}};
            assert_int_equal(ls_run_read_texts(&t, name, &s.notes, &s.run[s.n++]), LS_OK);
            ls_str_fini(&text);
        }
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
        report_page(&a, &html, &md);
        has(md.data, n == 11 ? "charts/pipeline_11.svg" : "charts/pipeline_16.svg");
        if (n == 11) assert_null(strstr(md.data, "left out"));
        else has(md.data, "Only the first 16 pipelines are drawn; left out: way16 × 2 (way16), way17 × 2 (way17).");
        ls_str_fini(&html), ls_str_fini(&md);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_printed_with_separators),
        cmocka_unit_test(chart_lines_are_distinct_and_limited),
        cmocka_unit_test(at_most_16_pipelines_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
