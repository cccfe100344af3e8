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

/* One worker, and n settings on each number of workers. */
static ls_run_set many_settings(int n, const int *world, int n_world)
{
    ls_run_set s = new_set();
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 100, .epoch_time = 1, .strategy = "single"}, NULL);
    for (int w = 0; w < n_world; w++)
        for (int i = 0; i < n; i++) {
            char name[16], dir[32];
            snprintf(name, sizeof name, "way%d", i);
            snprintf(dir, sizeof dir, "%s/%d", name, world[w]);
            add(&s, dir,
                (made_run){
                    .world = world[w], .tokens_per_sec = (100 + i) * world[w], .epoch_time = 1, .strategy = name},
                NULL);
        }
    return s;
}

static void few_lines_differ_in_color_or_mark(void **state)
{
    (void)state;
    bool seen[8][4] = {{false}};
    for (int i = 0; i < LS_CHART_MAX_LINE; i++) {
        assert_false(seen[i % 8][ls_chart_mark(i)]);
        seen[i % 8][ls_chart_mark(i)] = true;
    }
}

/* The boxes of the texts of an SVG picture do not overlap: 7.9 units per letter at most, 13 high. */
static void texts_do_not_overlap(const char *svg)
{
    struct box {
        double x0, x1, y;
    } box[200];
    int n = 0;
    for (const char *p = svg; (p = strstr(p, "<text x=")) && n < 200; n++) {
        double x, y;
        char anchor[8];
        assert_int_equal(sscanf(p, "<text x=\"%lf\" y=\"%lf\" text-anchor=\"%7[a-z]", &x, &y, anchor), 3);
        p = strchr(p, '>') + 1;
        const double wide = 6.4 * (double)strcspn(p, "<");
        const double left = !strcmp(anchor, "end") ? x - wide : !strcmp(anchor, "middle") ? x - wide / 2 : x;
        box[n] = (struct box){left, left + wide, y};
    }
    assert_true(n > 4);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (box[i].x0 < box[k].x1 && box[k].x0 < box[i].x1 && fabs(box[i].y - box[k].y) < 12)
                fail_msg("texts %d and %d overlap at %.0f,%.0f", k, i, box[i].x0, box[i].y);
}

/* rsvg-convert, where it is installed, makes a PNG. */
static void png_is_made(const ls_chart *c)
{
    report_pen pen = {.there = true};
    char *dir = test_dir();
    assert_int_equal(report_write_chart(c, dir, &pen), LS_OK);
    assert_int_equal(pen.n_failed, 0);
    if (pen.there) assert_int_equal(pen.n_png, 1);
    test_dir_close(dir);
}

/* Up to 5 lines share a plot; more have a panel each. Beyond the maximum number of lines, the page lists those that are not shown. */
static void many_lines_are_panels_that_do_not_overlap(void **state)
{
    (void)state;
    static const int world[] = {2, 4};
    static const struct {
        int n, panels, left_out;
    } row[] = {{5, 0, 0}, {12, 12, 0}, {20, 20, 0}, {26, 23, 3}};
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        ls_run_set s = many_settings(row[r].n, world, 2);
        ls_analysis a;
        ls_chart c;
        ls_str svg = {0}, narrow = {0};
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
        chart_speedup(&a, &c);
        assert_int_equal(ls_chart_panels(&c), row[r].panels);
        assert_int_equal(c.n_left_out, row[r].left_out);
        ls_svg_draw(&c, 760, LS_SVG_FILE, &svg);
        ls_svg_draw(&c, 360, LS_SVG_FILE, &narrow);
        texts_do_not_overlap(svg.data);
        for (int i = 0; i < row[r].n - row[r].left_out && row[r].panels; i++) {
            char name[24];
            snprintf(name, sizeof name, ">way%d</text>", row[r].n - 1 - i); /* the fastest */
            has(svg.data, name);
            has(narrow.data, name);
        }
        if (row[r].panels) texts_do_not_overlap(narrow.data);
        if (row[r].panels == 12) png_is_made(&c);
        ls_str_fini(&svg), ls_str_fini(&narrow);
        ls_chart_fini(&c);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* Two points make no curve: many settings on one number of workers are bars. The 30 fastest have bars in all charts, tables have all. */
static void many_settings_on_one_number_of_workers_are_bars(void **state)
{
    (void)state;
    static const int world[] = {2};
    for (int n = 12; n <= 40; n += 28) {
        ls_run_set s = many_settings(n, world, 1);
        ls_analysis a;
        ls_chart c;
        ls_str html = {0}, md = {0};
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
        chart_speedup(&a, &c);
        assert_int_equal(c.kind, LS_CHART_BARS);
        assert_string_equal(c.category[0], "ideal");
        assert_int_equal(c.n_category, n == 12 ? 13 : 31);
        assert_int_equal(c.n_left_out, n == 12 ? 0 : 10);
        ls_chart_fini(&c);
        chart_throughput(&a, &c);
        assert_int_equal(c.n_category, n == 12 ? 13 : 31); /* one worker is always shown */
        assert_string_equal(c.category[0], "single \xc3\x97 1");
        ls_chart_fini(&c);
        report_page(&a, &html, &md);
        if (n == 12) assert_null(strstr(md.data, "Not shown"));
        else has(md.data, "Not shown, to keep the chart readable: way9 \xc3\x97 2, way8 \xc3\x97 2");
        has(md.data, "| way0 | 2 |");
        assert_null(strstr(md.data, "workers by framework")); /* as rows they would repeat the table of settings */
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

/* How often a text occurs. */
static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
    return n;
}

/* The pipelines of a page have one axis of time from 0, the schedule in the title, idle time, and the measured step above the simulated one. */
static void pipelines_can_be_compared_by_eye(void **state)
{
    (void)state;
    static const char form[] =
        "{\"schedule\": \"%s\", \"rows\": [{\"lane\": 0, \"begin\": 0.25, \"end\": %d, \"kind\": \"backward (weights)\", "
        "\"label\": \"0\"}], \"simulated\": [{\"lane\": 0, \"begin\": 0, \"end\": 0.5, \"kind\": \"backward (weights)\", "
        "\"label\": \"0\"}]}";
    ls_run_set s = new_set();
    ls_analysis a;
    ls_chart c;
    ls_str html = {0}, md = {0};
    for (int i = 0; i < 2; i++) {
        ls_str text = {0}, rows = {0};
        ls_str_addf(&rows, form, i ? "zb" : "gpipe", 1 + 3 * i);
        made_metrics(&(made_run){.world = 2, .tokens_per_sec = 9, .epoch_time = 1, .strategy = i ? "b" : "a"}, &text);
        const ls_run_texts t = {.file[LS_RUN_METRICS] = {text.data, text.len},
                                .file[LS_RUN_PIPELINE] = {rows.data, rows.len}};
        assert_int_equal(ls_run_read_texts(&t, i ? "b" : "a", &s.notes, &s.run[s.n++]), LS_OK);
        ls_str_fini(&text), ls_str_fini(&rows);
    }
    chart_gantt(&s.run[0], 4, &c);
    assert_string_equal(c.title, "One step of the pipeline: gpipe");
    assert_string_equal(c.category[0], "stage 0");
    assert_string_equal(c.category[1], "simulated 0");
    assert_true(c.series[0].idle);
    near(c.series[0].point[0].y, 1, 0);
    near(c.series[0].point[1].y, 0.5, 0); /* a step is idle until it ends, not until the axis does */
    assert_string_equal(c.series[1].name, "backward (weights)");
    assert_int_equal(c.series[1].n, 2);
    png_is_made(&c);
    ls_chart_fini(&c);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(html.data, "One step of the pipeline: zb");
    assert_int_equal(count(html.data, ">4,000</text>"), 4); /* both, wide and narrow */
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_printed_with_separators),
        cmocka_unit_test(few_lines_differ_in_color_or_mark),
        cmocka_unit_test(many_lines_are_panels_that_do_not_overlap),
        cmocka_unit_test(many_settings_on_one_number_of_workers_are_bars),
        cmocka_unit_test(at_most_16_pipelines_are_drawn),
        cmocka_unit_test(pipelines_can_be_compared_by_eye),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
