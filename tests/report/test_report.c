/* Reading runs, comparing them, and the page: intervals, R1's statistics (docs/REFERENCES.md), mismatches, the waterfall's sum, what is wrong
 * with foreign files, and that nothing in a file can break out of the page. */
#include "report/page/report.h"
#include "cmocka_all.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report/chart/chart.h"
#include "report/page/content.h"
#include "report/compat/nsys.h"
#include "report/compat/tools.h"
#include "report_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 40 };

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.17g, wanted %.17g within %g", got, want, tolerance);
}

static ls_run_set new_set(void)
{
    ls_run_set s = {.run = ls_alloc(MOST * sizeof(ls_run)), .cap = MOST};
    assert_non_null(s.run);
    return s;
}

static void add(ls_run_set *s, const char *dir, made_run r, const ls_str *steps)
{
    ls_str text = {0};
    made_metrics(&r, &text);
    assert_int_equal(add_made(s, dir, &text, steps), LS_OK);
    ls_str_fini(&text);
}

static void has(const char *text, const char *words)
{
    if (!text || !strstr(text, words)) fail_msg("'%s' is not in: %.600s", words, text ? text : "nothing");
}

static void has_note(const ls_notes *n, const char *words)
{
    for (int i = 0; i < n->n; i++)
        if (strstr(n->text[i], words)) return;
    fail_msg("no note has '%s'; the first of %d: %s", words, n->n, n->n ? n->text[0] : "none");
}

static void intervals(void **state)
{
    (void)state;
    const double x[] = {100, 95, NAN, 105};
    ls_estimate e = ls_estimate_of(x, 4);
    assert_int_equal(e.n, 3);
    near(e.mean, 100, 0);
    near(e.stdev, 5, 1e-12);
    near(e.half, 4.3027 * 5 / sqrt(3), 1e-3);
    e = ls_estimate_of(x, 1);
    near(e.stdev, 0, 0);
    assert_true(isnan(e.half));
    assert_true(isnan(ls_estimate_of(x, 0).mean));
    near(ls_t95(1), 12.706, 1e-3);
    near(ls_t95(30), 2.0423, 3e-4); /* published quantiles */
    near(ls_t95(100), 1.9840, 2e-4);
}

/* 100/180/320 tokens/s, three repeats each with other means: R1's numbers, and ours beside them. */
static void scaling(void **state)
{
    (void)state;
    static const double rate[3][3] = {{100, 95, 105}, {180, 190, 175}, {320, 330, 310}};
    static const int world[3] = {1, 2, 4};
    ls_run_set s = new_set();
    char dir[32];
    for (int k = 2; k >= 0; k--) /* any order of paths */
        for (int i = 0; i < 3; i++) {
            snprintf(dir, sizeof dir, "%dgpu/run_%d", world[k], i + 1);
            add(&s, dir,
                (made_run){.world = world[k],
                           .tokens_per_sec = rate[k][i],
                           .epoch_time = 1000 / rate[k][i],
                           .strategy = "ddp"},
                NULL);
        }
    ls_run_set_sort(&s);
    ls_analysis a;
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    assert_int_equal(a.n_group, 3);
    assert_int_equal(a.n_mismatch, 0);
    assert_true(a.comparable);
    near(a.group[1].tokens.mean, 181.66666666666666, 0);
    near(a.group[1].tokens.stdev, 7.637626158259733, 1e-14);
    near(a.group[1].speedup_r1, 1.8166666666666667, 1e-15);
    near(a.group[2].speedup.mean, 3.2, 1e-15);
    near(a.group[2].efficiency.mean, 0.8, 1e-15);
    assert_true(a.group[2].speedup.half > 0);
    assert_int_equal(a.best, 2);
    assert_int_equal(a.second, 1);
    ls_str text = {0};
    json_t *root = NULL;
    ls_scaling_text(&a, NULL, &text);
    assert_int_equal(ls_json_parse(text.data, text.len, "scaling", &root), LS_OK);
    assert_string_equal(json_string_value(json_object_get(root, "status")), "ok");
    const json_t *runs = json_object_get(root, "runs"), *two = json_object_get(runs, "2");
    assert_int_equal(json_object_size(runs), 3);
    near(json_number_value(json_object_get(two, "scaling_efficiency")), 0.9083333333333333, 1e-15);
    assert_int_equal(json_array_size(json_object_get(two, "metrics_paths")), 3);
    assert_null(json_object_get(root, "mismatches"));
    json_decref(root);
    ls_str_fini(&text);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void unlike(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 100, .epoch_time = 1, .precision = "fp16_torch_amp"}, NULL);
    add(&s, "two",
        (made_run){
            .world = 2, .tokens_per_sec = 190, .epoch_time = 1, .precision = "fp16_deepspeed", .global_batch = 32},
        NULL);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    assert_int_equal(a.n_mismatch, 2); /* in the order of docs/FORMATS.md#comparable-runs */
    assert_string_equal(a.mismatch[0].field, "global_batch_size");
    assert_string_equal(a.mismatch[1].field, "precision");
    assert_false(a.comparable);
    assert_true(isnan(a.group[1].speedup.mean));
    ls_str text = {0}, html = {0}, md = {0};
    ls_scaling_text(&a, NULL, &text);
    has(text.data, "\"status\": \"invalid_comparison\"");
    has(text.data,
        "\"field\": \"precision\",\n      \"baseline\": \"fp16_torch_amp\",\n      \"mismatch\": \"fp16_deepspeed\"");
    assert_null(strstr(text.data, "runs"));
    ls_report_page(&a, &html, &md);
    has(html.data, "invalid_comparison");
    assert_null(strstr(html.data, "is the fastest"));
    ls_analysis_fini(&a);
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&text);
    assert_int_equal(ls_analyse(&s, true, &a), LS_OK); /* allowed: compared, and marked */
    assert_true(a.comparable);
    near(a.group[1].speedup.mean, 1.9, 1e-15);
    ls_report_page(&a, &html, &md);
    has(html.data, "mismatch_allowed");
    has(md.data, "mismatch_allowed");
    ls_scaling_text(&a, NULL, &text);
    has(text.data, "\"status\": \"mismatch_allowed\"");
    ls_analysis_fini(&a);
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&text);
    ls_run_set_fini(&s);
}

/* A step of one worker: 6 + 12 + 2 ms; of two: 3.5 + 7 + 1.5 exposed + 2. Every share can be worked out by hand. */
static void waterfall(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str one = {0}, two = {0};
    made_steps(20, 0.006, 0.012, 0, 0.002, &one);
    made_steps(20, 0.0035, 0.007, 0.0015, 0.002, &two);
    double tokens = 16 * 64; /* a step */
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = tokens / 0.020, .epoch_time = 1, .strategy = "single"},
        &one);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = tokens / 0.015, .epoch_time = 1, .strategy = "ddp"}, &two);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    const ls_waterfall *w = &a.group[1].waterfall;
    assert_true(w->known && w->split && !a.group[0].waterfall.known);
    near(w->useful, 0.010 / 0.015, 1e-12);
    near(w->lost[LS_SPLIT_FORWARD], (0.0005 + 0.001) / 0.015, 1e-12); /* both passes */
    near(w->lost[LS_SPLIT_EXPOSED], 0.0015 / 0.015, 1e-12);
    near(w->lost[LS_SPLIT_OPTIMIZER], 0.001 / 0.015, 1e-12);
    near(w->lost[LS_SPLIT_OTHER], 0.001 / 0.015, 1e-12); /* 15 ms, of which the parts explain 14 */
    double sum = w->useful;
    for (int k = 0; k < LS_N_SPLIT; k++) sum += w->lost[k];
    near(sum, 1, 1e-12);
    assert_true(a.same_loss); /* both made the same losses */
    ls_str html = {0}, md = {0};
    ls_report_page(&a, &html, &md);
    has(html.data, "same loss at every step, bit for bit");
    has(md.data, "| ddp × 2 | 66.7 | 10.0 | 6.7 | 10.0 | 6.7 | 100.0 |");
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&one), ls_str_fini(&two);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* Our own keys: step_split wins over metrics.jsonl, memory by part and rank, utilisation, communication. */
static void own_keys(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_str steps = {0};
    made_steps(12, 1, 1, 1, 1, &steps);
    add(&s, "r",
        (made_run){.world = 2,
                   .tokens_per_sec = 5,
                   .epoch_time = 1,
                   .strategy = "zero2",
                   .ours =
                       ", \"step_split\": {\"input\": 0.1, \"forward\": 0.2, \"backward\": 0.3, \"exposed_comm\": "
                       "0.4, \"optimizer\": 0.5, \"other\": 0.6}"
                       ", \"memory\": {\"weights\": 100, \"optimizer\": 50, \"total\": 150, \"ranks\": [150, "
                       "{\"rank\": 1, \"weights\": 100, \"optimizer\": 45, \"planned\": 145}]}"
                       ", \"workers\": [{\"rank\": 0, \"exposed_comm_sec\": 8}, {\"rank\": 1, \"exposed_comm_sec\": 2}]"
                       ", \"cpu_utilisation\": [0.5, 0.75], \"bucket\": 7, \"seed\": 3, \"planned_bytes\": 150"
                       ", \"comm\": {\"backend\": \"local\", \"workers\": 2, \"all_reduce\": {\"calls\": 3, "
                       "\"busy_sec\": 2.0, \"exposed_sec\": 0.5}}"},
        &steps);
    add(&s, "q",
        (made_run){
            .world = 2,
            .tokens_per_sec = 5,
            .epoch_time = 1,
            .strategy = "zero2",
            .ours = ", \"step_split\": {\"input\": 0.1, \"forward\": 0.2, \"other\": 0.6}"
                    ", \"gpu_watch\": {\"utilization_mean\": 0.875}, \"tensor_comm\": {\"workers\": 2, \"steps\": 5, "
                    "\"all_reduce\": {\"calls\": 4, \"busy_sec\": 1.0, \"exposed_sec\": 0.5}}, \"gradients_comm\": "
                    "{\"workers\": 2, \"steps\": 5, \"recv\": {\"calls\": 8, \"busy_sec\": 1.0}}"},
        NULL);
    const ls_run *r = &s.run[1];
    near(r->split[LS_SPLIT_OTHER], 0.6, 0); /* no steps: as recorded */
    near(r->gpu_utilisation, 0.875, 0);
    near(r->n_comm_step, 5, 0); /* a resumed run counts from there on */
    assert_int_equal(r->n_coll, 2);
    assert_string_equal(r->coll[0].kind, "tensor all_reduce");
    assert_string_equal(r->coll[1].kind, "gradients recv");
    r = &s.run[0];
    near(r->split[LS_SPLIT_EXPOSED], 0.25, 1e-15); /* of the steps; the slowest waited a quarter of rank 0's time */
    near(r->split[LS_SPLIT_STRAGGLER], 0.75, 1e-15);
    near(r->split[LS_SPLIT_OTHER], 0, 0);
    near(r->step_time, 4, 1e-12);
    near(r->n_comm_step, r->n_update, 0);
    assert_int_equal(r->n_part, 2);
    assert_int_equal(r->n_rank, 2);
    near(r->rank_bytes[1], 145, 0);
    near(r->cpu_utilisation, 0.625, 0);
    assert_int_equal(r->n_coll, 1);
    near(r->coll[0].busy, 2, 0);
    has(r->setting, "bucket 7\n");
    has(r->setting, "comm local\n");
    assert_null(strstr(r->setting, "seed"));
    assert_null(strstr(r->setting, "planned"));
    assert_int_equal(s.notes.n, 0);
    ls_str_fini(&steps);
    ls_run_set_fini(&s);
}

/* Two settings of one strategy are told apart by what differs. */
static void settings(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    add(&s, "a",
        (made_run){.world = 2, .tokens_per_sec = 5, .epoch_time = 1, .strategy = "ddp", .ours = ", \"bucket\": 7"},
        NULL);
    add(&s, "b",
        (made_run){.world = 2, .tokens_per_sec = 6, .epoch_time = 1, .strategy = "ddp", .ours = ", \"bucket\": 9"},
        NULL);
    add(&s, "c",
        (made_run){.world = 2, .tokens_per_sec = 6, .epoch_time = 1, .strategy = "ddp", .ours = ", \"bucket\": 9"},
        NULL);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    assert_int_equal(a.n_group, 2);
    assert_string_equal(a.group[0].label, "ddp (bucket 7) × 2");
    assert_string_equal(a.group[1].short_name, "ddp (bucket 9)");
    assert_int_equal(a.group[1].n_run, 2);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* One run's interval is of all steps behind the warm-up: 18 here, of which the last 8 are three times as slow. */
static void interval_of_one(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str steps = {0};
    made_steps(13, 0.5, 0.5, 0, 0, &steps);
    made_steps(8, 1.5, 1.5, 0, 0, &steps);
    add(&s, "r", (made_run){.world = 1, .tokens_per_sec = 100, .epoch_time = 1, .strategy = "single"}, &steps);
    assert_int_equal(s.run[0].n_warm, 3);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    assert_true(a.group[0].tokens.within);
    /* blocks of 1, 2, 2, 2, 2 steps and again: steps a second of each, of which the first ten steps alone know one */
    const double block[] = {1, 1, 1, 1, 1, 1, 1.0 / 3, 1.0 / 3, 1.0 / 3, 1.0 / 3};
    const ls_estimate e = ls_estimate_of(block, 10);
    near(a.group[0].tokens.half, 100 * e.half / e.mean, 1e-9);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&steps);
}

/* Which steps the numbers are of is said, on the page and in the file; words and chart have the same time of a step. */
static void basis(void **state)
{
    (void)state;
    static const char recorded[] = ", \"step_split\": {\"forward\": 0.7, \"backward\": 0.1}";
    const ls_compare_opts steady = {.steady = true};
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str one = {0}, two = {0}, html = {0}, md = {0};
    s.warm = 4;
    for (int i = 0; i < 2; i++) {
        ls_str *text = i ? &two : &one, metrics = {0};
        made_steps(4, 5, 5, 0, 0, text);
        made_steps(8, i ? 0.003 : 0.006, i ? 0.005 : 0.010, i ? 0.001 : 0, 0.0001, text);
        made_metrics(&(made_run){.world = i + 1,
                                 .tokens_per_sec = 10,
                                 .epoch_time = 1,
                                 .strategy = i ? "ddp" : "single",
                                 .ours = recorded},
                     &metrics);
        const ls_run_texts t = {
            .metrics = metrics.data, .n_metrics = metrics.len, .steps = text->data, .n_steps = text->len, .warm = 4};
        assert_int_equal(ls_run_read_texts(&t, i ? "two" : "one", &s.notes, &s.run[s.n++]), LS_OK);
        ls_str_fini(&metrics);
    }
    assert_int_equal(ls_analyse_with(&s, &steady, &a), LS_OK);
    assert_true(a.steady && a.group[1].split_of_steps);
    ls_report_page(&a, &html, &md);
    has(md.data, "Speeds are of the steps after the warm-up: the first 4 of each run are left out.");
    has(html.data, "Speeds are of the steps after the warm-up: the first 4 of each run are left out.");
    has(md.data, "a step of ddp × 2 takes 9.1 ms, one of single × 1 16.1 ms");
    has(md.data, "Mean over the steps after the warm-up (the first 4 are left out). Times are those of rank 0.");
    has(html.data, ">9.1</text>"); /* the bar's sum */
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);

    s = new_set(); /* no warm-up is asked for: a tenth of a short run, and its recorded parts of all steps give way */
    add(&s, "one",
        (made_run){.world = 1, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "single", .ours = recorded}, &one);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "ddp", .ours = recorded},
        NULL); /* no metrics.jsonl: as recorded */
    near(s.run[1].split[LS_SPLIT_FORWARD], 0.7, 0);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    ls_report_page(&a, &html, &md);
    has(md.data, "Speeds are of whole epochs as the runs recorded them, warm-up included");
    has(md.data,
        "Mean over the steps after the warm-up (the first 2 are left out); for ddp × 2 over all steps of a run, "
        "warm-up included, as it recorded them. Times are those of rank 0.");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&one), ls_str_fini(&two);
}

/* Every line is drawn and can be told from the others; beyond what can be read the page names what is left out. */
static void many_settings(void **state)
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
        assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
        chart_speedup(&a, &c);
        assert_int_equal(c.n_series, n == 13 ? 14 : LS_CHART_MAX_LINE); /* with the ideal one */
        assert_int_equal(c.n_left_out, n == 13 ? 0 : 3);
        ls_chart_fini(&c);
        ls_report_page(&a, &html, &md);
        if (n == 13) assert_null(strstr(md.data, "Not shown"));
        else
            has(md.data, "twice the speed. Not shown, to keep the chart readable: way23, "
                         "way24, way25.");
        has(html.data, n == 13 ? ">way12</text>" : ">way22</text>");
        ls_str_fini(&html), ls_str_fini(&md);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* A picture of every pipeline, up to 16; the others are named. */
static void many_pipelines(void **state)
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
            const ls_run_texts t = {
                .metrics = text.data, .n_metrics = text.len, .pipeline = rows, .n_pipeline = sizeof rows - 1};
            assert_int_equal(ls_run_read_texts(&t, name, &s.notes, &s.run[s.n++]), LS_OK);
            ls_str_fini(&text);
        }
        assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
        ls_report_page(&a, &html, &md);
        has(md.data, n == 11 ? "charts/pipeline_11.svg" : "charts/pipeline_16.svg");
        if (n == 11) assert_null(strstr(md.data, "left out"));
        else has(md.data, "Only the first 16 pipelines are drawn; left out: way16 × 2 (way16), way17 × 2 (way17).");
        ls_str_fini(&html), ls_str_fini(&md);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* A layout over all workers is one setting on any number of them; a hybrid is not. */
static void over_all_workers(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str text = {0};
    json_t *root = NULL;
    const made_run pp2 = {.world = 2,
                          .tokens_per_sec = 18,
                          .epoch_time = 1,
                          .strategy = "single",
                          .ours = ", \"pp\": 2, \"schedule\": \"1f1b\""};
    made_run pp4 = pp2, hybrid = pp2, tp2 = pp2, tp4 = pp2;
    pp4.world = hybrid.world = tp4.world = 4;
    pp4.ours = ", \"pp\": 4, \"schedule\": \"1f1b\"";
    hybrid.strategy = "ddp";
    tp2.ours = ", \"tp\": 2", tp4.ours = ", \"tp\": 4";
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "single"}, NULL);
    add(&s, "pp2", pp2, NULL), add(&s, "pp4", pp4, NULL), add(&s, "hybrid", hybrid, NULL);
    add(&s, "tp2", tp2, NULL), add(&s, "tp4", tp4, NULL);
    ls_run_set_sort(&s);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    assert_int_equal(a.n_group, 6);
    assert_string_equal(a.group[1].label, "pp (1f1b) × 2");
    assert_string_equal(a.group[2].label, "tp × 2");
    assert_string_equal(a.group[3].short_name, "pp (1f1b)");
    assert_string_equal(a.group[4].short_name, "ddp pp2 1f1b");
    assert_string_equal(a.group[5].short_name, "tp");
    ls_scaling_text(&a, "pp (1f1b)", &text);
    assert_int_equal(ls_json_parse(text.data, text.len, "scaling", &root), LS_OK);
    const json_t *runs = json_object_get(root, "runs");
    assert_int_equal(json_object_size(runs), 3);
    assert_string_equal(json_string_value(json_object_get(json_object_get(runs, "4"), "setting")), "pp (1f1b)");
    assert_null(json_object_get(root, "left_out"));
    json_decref(root), root = NULL;
    ls_str_fini(&text);
    ls_scaling_text(&a, NULL, &text); /* of all: one a number of workers, and what that leaves out */
    assert_int_equal(ls_json_parse(text.data, text.len, "scaling", &root), LS_OK);
    const json_t *left = json_object_get(root, "left_out");
    assert_int_equal(json_object_size(json_object_get(root, "runs")), 3);
    assert_int_equal(json_array_size(left), 3);
    assert_string_equal(json_string_value(json_object_get(json_array_get(left, 1), "setting")), "ddp pp2 1f1b");
    json_decref(root);
    ls_str_fini(&text);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void problems(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    static const char *const bad[] = {
        "{\"schema_version\": \"2.0\"",                                                    /* cut */
        "[1, 2]",                                                                          /* no object */
        "{\"schema_version\": \"3.1\", \"hardware\": 5, \"epochs\": {}, \"summary\": []}", /* wrong kinds */
        "{\"schema_version\": \"2.0\", \"hardware\": {\"world_size\": -3}, \"epochs\": [7], \"summary\": "
        "{\"mean_tokens_per_sec_global\": \"fast\"}}",
        "{\"train_time_per_epoch\": [10.5, 9.5], \"train_throughput\": [100, 110], \"train_loss_per_epoch\": [3, 2], "
        "\"val_loss_per_epoch\": [3, 2.5]}",
    };
    for (int i = 0; i < 5; i++) {
        ls_str text = {0};
        char dir[8];
        snprintf(dir, sizeof dir, "bad%d", i);
        ls_str_add(&text, bad[i]);
        assert_int_equal(add_made(&s, dir, &text, NULL), LS_OK);
        ls_str_fini(&text);
    }
    has_note(&s.notes, "bad0/training_metrics.json: line 1");
    has_note(&s.notes, "bad1/training_metrics.json: an object was expected");
    has_note(&s.notes, "bad2/training_metrics.json: key hardware: an object was expected, not a number");
    has_note(&s.notes, "bad2/training_metrics.json: key epochs: a list was expected, not an object");
    has_note(&s.notes, "\"3.1\" is not known");
    has_note(&s.notes,
             "bad3/training_metrics.json: key hardware.world_size: a whole number from 0 was expected, not -3");
    has_note(&s.notes,
             "bad3/training_metrics.json: key summary.mean_tokens_per_sec_global: a number was expected, not text");
    has_note(&s.notes, "bad3/training_metrics.json: key epochs[0]: an object was expected");
    for (int i = 0; i < s.notes.n; i++) assert_null(strstr(s.notes.text[i], "key :")); /* each names its key */
    assert_true(s.run[4].legacy);
    near(s.run[4].tokens_per_sec, 105, 0);
    near(s.run[4].val_loss, 2.5, 0);
    add(&s, "good", (made_run){.world = 1, .tokens_per_sec = 100, .epoch_time = 1}, NULL); /* and is still reported */
    ls_analysis a;
    ls_str html = {0}, md = {0};
    ls_run_set_sort(&s);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    assert_int_equal(a.n_group, 1);
    ls_report_page(&a, &html, &md);
    has(html.data, "What could not be read");
    has(html.data, "baseline on 1 worker: 100 tokens per second");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void other_files(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_str text = {0};
    made_metrics(&(made_run){.world = 2, .tokens_per_sec = 150.5, .epoch_time = 1}, &text);
    static const char steps[] =
        "{\"step\": 1, \"loss\": 3}\nnonsense\n{\"step\": 2, \"loss\": null}\n{\"step\": 3, \"lo";
    static const char complete[] =
        "[Rank 0] RUN_COMPLETE checkpoint_path=a world_size=9 b world_size=2 tokens_per_sec=150.5 "
        "total_wall_time_sec=3.0 timestamp_utc=2026-01-01T00:00:00Z\n";
    static const char pipe[] =
        "[{\"lane\": 0, \"begin\": 0, \"end\": 1, \"kind\": \"forward\", \"label\": \"0\"}, {\"lane\": \"x\"}]";
    static const char launcher[] = "{\"world_size\": 3}";
    ls_run_texts t = {.metrics = text.data,
                      .n_metrics = text.len,
                      .steps = steps,
                      .n_steps = sizeof steps - 1,
                      .complete = complete,
                      .n_complete = sizeof complete - 1,
                      .pipeline = pipe,
                      .n_pipeline = sizeof pipe - 1,
                      .launcher = launcher,
                      .n_launcher = sizeof launcher - 1};
    assert_int_equal(ls_run_read_texts(&t, "dir", &s.notes, &s.run[0]), LS_OK);
    s.n = 1;
    assert_int_equal(s.run[0].n_step, 2); /* the torn last line is no problem */
    assert_int_equal(s.run[0].n_span, 1);
    assert_true(s.run[0].complete);
    assert_int_equal(s.notes.n, 4);
    has_note(&s.notes, "dir/metrics.jsonl: line 2");
    has_note(&s.notes, "dir/RUN_COMPLETE.txt: total_wall_time_sec=3.0, but training_metrics.json has 2");
    has_note(&s.notes, "dir/pipeline.json: row 1");
    has_note(&s.notes, "dir/launcher_metadata.json: key world_size: 3, but training_metrics.json has 2");
    ls_str_fini(&text);
    ls_run_set_fini(&s);
}

/* Names out of files cannot become marks of the page. */
static void hostile_names(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0};
    add(&s, "<script>alert(1)</script>/a|b",
        (made_run){.world = 1, .tokens_per_sec = 1e300, .epoch_time = 1, .strategy = "<b>\\u0001&\\\""}, NULL);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = 1e-300, .epoch_time = 1, .strategy = "<i>"}, NULL);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    ls_report_page(&a, &html, &md);
    assert_false(html.failed);
    assert_null(strstr(html.data, "<script"));
    assert_null(strstr(html.data, "<b>"));
    assert_null(strstr(html.data, "<i>"));
    has(html.data, "&lt;script&gt;alert(1)&lt;/script&gt;");
    has(md.data, "a\\|b");
    assert_null(strstr(html.data, "http:")); /* nothing to fetch: not even a name space */
    assert_null(strstr(html.data, "https:"));
    assert_null(strstr(html.data, "nan\""));
    assert_null(strstr(html.data, "nan "));
    assert_null(strstr(html.data, "inf\""));
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void nsys(void **state)
{
    (void)state;
    static const char text[] =
        "Processing [a.sqlite] with [nvtx_sum.py]...\n\n ** NVTX Range Summary (nvtx_sum):\n\n"
        " Time (%)  Total Time (ns)  Instances  Range\n --------  ---------------  ---------  -----\n"
        "     20.5%  1,23,456   3  PushPop  :train/a  \r\n     30.0  1.5 ms   3  PushPop  NCCL:b c\n     30.0  n/a   3 "
        " PushPop  later\n"
        "   few  fields\n     10.0  one\n\n"
        " ** OS Runtime Summary (osrt_sum):\n     99.0  12   1  poll\n"
        " ** NVTX Range Summary (again):\n     21.0  5   1  x.ALLREDUCE_gradients\nProcessing [b]\n     98.0  5   1  "
        "outside\n";
    ls_nsys_rows rows = {0};
    assert_int_equal(ls_nsys_parse(text, sizeof text - 1, "NVTX Range Summary", &rows), LS_OK);
    assert_int_equal(rows.n, 4);
    ls_nsys_rank(&rows);
    assert_string_equal(rows.row[0].name, "NCCL:b c");
    assert_string_equal(rows.row[0].total, "1.5 ms");
    assert_string_equal(rows.row[1].name, "later"); /* ties keep their order */
    assert_null(rows.row[1].total);
    assert_string_equal(rows.row[2].name, "x.ALLREDUCE_gradients");
    assert_string_equal(rows.row[3].total, "123456 ns");
    assert_string_equal(rows.row[3].raw, "     20.5%  1,23,456   3  PushPop  :train/a  ");
    ls_nsys_rows_fini(&rows);
    assert_int_equal(ls_nsys_parse(text, sizeof text - 1, "OS Runtime Summary", &rows), LS_OK);
    assert_int_equal(rows.n, 1);
    ls_nsys_rows_fini(&rows);
}

static void numbers(void **state)
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

static void make(const char *root, const char *path, const char *text)
{
    char *p = ls_asprintf("%s/%s", root, path);
    assert_int_equal(ls_fs_write(p, text, strlen(text)), LS_OK);
    ls_free(p);
}

/* A run counts once, by whatever name it is given. */
static void given_twice(void **state)
{
    (void)state;
    char root[] = "/tmp/ls_report_XXXXXX";
    assert_non_null(mkdtemp(root));
    ls_str text = {0};
    made_metrics(&(made_run){.world = 1, .tokens_per_sec = 5, .epoch_time = 1, .strategy = "single"}, &text);
    make(root, "training_metrics.json", text.data);
    char *file = ls_path_join(root, "training_metrics.json"), *again = ls_path_join(root, "../");
    char *other = ls_asprintf("%s%s", again, root + strlen("/tmp/"));
    const char *const all[] = {root, file, root, other};
    ls_run_set s = {0};
    for (size_t i = 0; i < N_OF(all); i++) assert_int_equal(ls_run_set_add(&s, all[i]), LS_OK);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.notes.n, 3);
    has_note(&s.notes, "training_metrics.json: the same run as");
    ls_run_set_fini(&s);
    ls_str_fini(&text);
    ls_free(file);
    ls_free(again);
    ls_free(other);
    assert_int_equal(ls_fs_remove_tree(root), LS_OK);
}

/* R3's translation scripts (docs/REFERENCES.md): a file a rank and epoch. */
static void workdirs(void **state)
{
    (void)state;
    char root[] = "/tmp/ls_report_XXXXXX";
    assert_non_null(mkdtemp(root));
    char *dp = ls_path_join(root, "dp/workdir"), *pp = ls_path_join(root, "pp/workdir");
    assert_int_equal(ls_fs_mkdirs(dp), LS_OK);
    assert_int_equal(ls_fs_mkdirs(pp), LS_OK);
    make(dp, "config.json", "{}");
    for (int e = 0; e < 3; e++)
        for (int r = 0; r < 2; r++) {
            char name[64], text[200];
            snprintf(name, sizeof name, "rank%d_results_epoch%d.json", r, e);
            snprintf(text, sizeof text,
                     "{\"validation_loss\": %g, \"bleu\": 1.5, \"training_time\": %d, \"tokens_per_sec\": %d}",
                     5.0 - e + r, e ? 10 + r : 99, e ? 100 * e + r : 7);
            make(dp, name, text);
        }
    make(dp, "rank0_gen_epoch0.json", "[]");
    make(pp, "eval_results_epoch0.json", "{\"validation_loss\": 4, \"bleu\": 2}");
    make(pp, "eval_results_epoch1.json", "{\"validation_loss\": \"x\"}");
    ls_run_set s = {0};
    assert_int_equal(ls_run_set_add(&s, root), LS_OK);
    assert_int_equal(s.n, 2);
    const ls_run *a = &s.run[0], *b = &s.run[1];
    assert_int_equal(a->world, 2);
    near(a->tokens_per_sec, 150 + 151, 1e-9); /* of epochs 1 and 2, ranks added */
    near(a->epoch_time, 10.5, 1e-9);
    near(a->val_loss, 3.5, 1e-9);
    assert_int_equal(a->n_epoch, 3);
    near(a->epoch_val[0], 5.5, 1e-9);
    assert_string_equal(a->strategy, "translation, data parallel");
    assert_int_equal(b->world, 0);
    assert_true(isnan(b->tokens_per_sec));
    near(b->val_loss, 4, 1e-9);
    has_note(&s.notes, "do not contain the number of workers");
    has_note(&s.notes, "eval_results_epoch1.json: key validation_loss");
    assert_int_equal(s.notes.n, 2);
    ls_run_set_fini(&s);
    make(dp, "rank3_results_epoch1.json", "{\"validation_loss\": 4}"); /* rank 2 is missing */
    assert_int_equal(ls_run_set_add(&s, dp), LS_OK);
    assert_true(s.n == 1 && isnan(s.run[0].tokens_per_sec));
    has_note(&s.notes, "not of every rank");
    ls_run_set_fini(&s);
    ls_free(dp), ls_free(pp);
    assert_int_equal(ls_fs_remove_tree(root), LS_OK);
}

static void verifier(void **state)
{
    (void)state;
    char root[] = "/tmp/lockstep-verify.XXXXXX";
    assert_non_null(mkdtemp(root));
    ls_str good = {0}, out = {0};
    int n_run, n_bad;
    made_metrics(&(made_run){.world = 2, .tokens_per_sec = 1, .epoch_time = 1}, &good);
    assert_int_equal(ls_report_verify(root, &out, &n_run, &n_bad), LS_OK);
    assert_int_equal(n_run, 0);
    make(root, "2gpu_a/run_1/training_metrics.json", good.data);
    make(root, "2gpu_a/run_1/train.log", "x");
    make(root, "1gpu_b/run_1/training_metrics.json", good.data);
    make(root, "1gpu_b/run_1/train.log", "x");
    make(root, "2gpu_a/run_2/training_metrics.json", good.data);
    make(root, "2gpu_a/run_2/train.log", "");
    make(root, "run_3/train.log", "x");
    make(root, "run_4/train.log", "x");
    make(root, "run_4/training_metrics.json", "{}");
    make(root, "run_5/train.log", "x");
    make(root, "run_5/training_metrics.json", good.data);
    assert_int_equal(ls_report_verify(root, &out, &n_run, &n_bad), LS_OK);
    assert_int_equal(n_run, 6);
    assert_int_equal(n_bad, 4);
    has(out.data, "run_dir\tstatus\tworld_size\texpected_world_size\n");
    has(out.data, "/2gpu_a/run_1\tok\t2\t2\n");
    has(out.data, "/1gpu_b/run_1\tworld_size_mismatch\t2\t1\n");
    has(out.data, "/2gpu_a/run_2\tmissing_log\t2\t2\n");
    has(out.data, "/run_3\tmissing_metrics\tNone\tNone\n");
    has(out.data, "/run_4\tinvalid_schema\tNone\tNone\n");
    has(out.data, "/run_5\tok\t2\tNone\n");
    has(out.data, "Verification failed: 4 run(s) invalid.\n");
    ls_str_fini(&out), ls_str_fini(&good);
    ls_fs_remove_tree(root);
}

/* Every allocation fails once: the words are "out of memory", or the report is whole; nothing leaks. */
static ls_status read_and_report(const ls_str *metrics, const ls_str *steps)
{
    ls_run_set s = {.run = ls_alloc(2 * sizeof(ls_run)), .cap = 2};
    ls_analysis a = {0};
    ls_str html = {0}, md = {0};
    ls_status st = s.run ? LS_OK : ls_nomem(1, "runs");
    if (st == LS_OK) st = add_made(&s, "a", metrics, steps);
    if (st == LS_OK) st = ls_analyse(&s, false, &a);
    if (st == LS_OK) {
        ls_report_page(&a, &html, &md);
        if (html.failed) st = ls_nomem(1, "page");
        ls_analysis_fini(&a);
    }
    ls_str_fini(&html), ls_str_fini(&md);
    ls_run_set_fini(&s);
    return st;
}

static void out_of_memory(void **state)
{
    (void)state;
    ls_str metrics = {0}, steps = {0};
    made_metrics(&(made_run){.world = 1, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "single"}, &metrics);
    made_steps(12, 1, 1, 0, 1, &steps);
    int64_t live = ls_mem_live(), begin = ls_mem_count();
    assert_int_equal(read_and_report(&metrics, &steps), LS_OK);
    int64_t n = ls_mem_count() - begin, n_failed = 0;
    for (int64_t k = 0; k < n; k++) {
        ls_mem_fail_at(k);
        ls_status st = read_and_report(&metrics, &steps);
        ls_mem_fail_at(-1);
        assert_true(st == LS_OK || st == LS_E_NOMEM);
        assert_int_equal(ls_mem_live(), live);
        n_failed += st == LS_E_NOMEM;
    }
    assert_true(n_failed > n / 2);
    ls_str_fini(&metrics), ls_str_fini(&steps);
}

/* What NCCL and tools left beside a run; a part of a step that is null in some steps is the mean of the others. */
static void evidence(void **state)
{
    (void)state;
    static const char nccl
        [] = "{\"version\": \"2.30.7\", \"transports\": {\"SHM\": 4}, \"nvlink\": false, \"infiniband\": null}",
    topo[] = "\t\033[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\033[0m\nGPU0\t X \tNV4\tSYS\tSYS\t0\n"
             "GPU1\tNV4\t X \tSYS\tSYS\t0\nGPU2\tSYS\tSYS\t X \tNV4\t1\nGPU3\tSYS\tSYS\tNV4\t X \t1\n",
    ibstat[] = "CA 'mlx5_9'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 200\n\t\tLink "
               "layer: InfiniBand\n\tPort 2:\n",
    xml[] =
        "<system><nic><net name=\"a\" dev=\"0\" speed=\"25000\"/><net speed=\"9\"/><net name=\"b\" speed=\"7\"></nic>"
        "<net name=\"cut\" speed=\"1";
    ls_str metrics = {0}, steps = {0}, html = {0}, md = {0};
    made_metrics(&(made_run){.world = 2,
                             .tokens_per_sec = 10,
                             .epoch_time = 1,
                             .strategy = "ddp",
                             .ours =
                                 ", \"device\": \"cuda\", \"comm\": {\"backend\": \"nccl\"}, \"nccl\": {\"version\": "
                                 "\"of the metrics\"}"},
                 &metrics);
    for (int i = 1; i <= 10; i++)
        ls_str_addf(&steps, "{\"step\": %d, \"step_time_sec\": 1.0, \"forward_sec\": %s, \"backward_sec\": 0.5}\n", i,
                    i == 8 ? "null" : "0.25");
    ls_run_set s = new_set();
    ls_run_texts t = {
        .metrics = metrics.data, .n_metrics = metrics.len, .steps = steps.data, .n_steps = steps.len, .warm = 5};
    assert_int_equal(ls_run_read_texts(&t, "alone", &s.notes, &s.run[s.n++]), LS_OK);
    t.nccl = nccl, t.n_nccl = sizeof nccl - 1;
    t.topo = topo, t.n_topo = sizeof topo - 1;
    t.ibstat = ibstat, t.n_ibstat = sizeof ibstat - 1;
    t.topology = xml, t.n_topology = sizeof xml - 1;
    assert_int_equal(ls_run_read_texts(&t, "whole", &s.notes, &s.run[s.n++]), LS_OK);
    const ls_run_proof *p = &s.run[0].proof, *q = &s.run[1].proof;
    assert_string_equal(json_string_value(json_object_get(p->nccl, "version")), "of the metrics");
    assert_null(p->topo);
    assert_string_equal(json_string_value(json_object_get(q->nccl, "version")), "2.30.7");
    assert_string_equal(q->links, "NV4 x 2, SYS x 4");
    assert_string_equal(q->ports, "mlx5_9 port 1: Active, 200 Gb/s, InfiniBand, mlx5_9 port 2: state not stated");
    assert_string_equal(q->nets, "a 25000 Mb/s, b 7 Mb/s");
    assert_null(strchr(q->topo, 27));
    near(s.run[0].split[LS_SPLIT_FORWARD], 0.25, 1e-15);
    near(s.run[0].split[LS_SPLIT_BACKWARD], 0.5, 1e-15);
    ls_analysis a;
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    ls_report_page(&a, &html, &md);
    has(md.data, "## Communication between GPUs");
    has(md.data, "SHM x 4");
    has(html.data, "NV4 x 2, SYS x 4");
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&metrics), ls_str_fini(&steps), ls_str_fini(&html), ls_str_fini(&md);

    const int64_t live = ls_mem_live(); /* every allocation fails once */
    for (int64_t k = 0;; k++) {
        ls_notes notes = {0};
        ls_run r;
        ls_mem_fail_at(k);
        t.metrics = t.steps = NULL;
        const ls_status st = ls_run_read_texts(&t, "whole", &notes, &r);
        ls_mem_fail_at(-1);
        if (st == LS_OK) ls_run_fini(&r);
        ls_notes_fini(&notes);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
        assert_true(k < 1000);
    }
}

/* A step of 25 ms of which 12 are rank 0's actions, 1 is the optimizer, and 12 are waits and the rest: whatever the report of the pipeline
 * says, the parts add up to it. */
static void pipeline_parts(void **state)
{
    (void)state;
    static const struct {
        const char *pipeline;
        double compute, bubble, exposed, other; /* ms */
    } c[] = {
        /* the schedule has 5 ms of bubble: 3 of them were waits for messages */
        {"\"bubble_predicted\": 0.25, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": "
         "[{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.003}, {\"busy_sec\": 0.012}]",
         12, 5, 0, 7},
        /* 2 of the 3 ms exposed were for other workers than neighbours: no bubble */
        {"\"bubble_predicted\": 0.25, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": "
         "[{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.001}, {\"busy_sec\": 0.012}]",
         12, 5, 2, 5},
        /* waits longer than the bubble are communication */
        {"\"bubble_predicted\": 0.1, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": "
         "[{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.003}, {\"busy_sec\": 0.012}]",
         12, 2, 1, 9},
        /* a bubble of 25 ms is more than there is */
        {"\"bubble_predicted\": 0.5, \"makespan_predicted_sec\": 0.050, \"makespan_sec\": 0.040, \"per_stage\": "
         "[{\"busy_sec\": 0.012}, {\"busy_sec\": 0.012}]",
         12, 12, 0, 0},
        /* rank 0 computes 2 ms longer than the mean stage, which has 1 of bubble in them */
        {"\"bubble_predicted\": 0.05, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": "
         "[{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.003}, {\"busy_sec\": 0.008}]",
         10, 1, 4, 9},
        /* and 2 ms shorter: as much of its waits is computing elsewhere */
        {"\"bubble_predicted\": 0.1, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": "
         "[{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.003}, {\"busy_sec\": 0.016}]",
         14, 2, 0, 8},
    };
    ls_str steps = {0};
    for (int i = 1; i <= 10; i++)
        ls_str_addf(&steps,
                    "{\"step\": %d, \"step_time_sec\": 0.025, \"forward_sec\": 0.004, \"backward_sec\": 0.008, "
                    "\"comm_exposed_sec\": 0.003, \"optimizer_sec\": 0.001, \"data_sec\": 0, \"other_sec\": 0.009}\n",
                    i);
    for (size_t i = 0; i < N_OF(c); i++) {
        ls_run_set s = new_set();
        char *ours = ls_asprintf(", \"step_split\": {\"input\": 0, \"forward\": 0.004, \"backward\": 0.008, "
                                 "\"exposed_comm\": 0.003, \"optimizer\": 0.001, \"other\": 0.009}, \"pipeline\": {%s}",
                                 c[i].pipeline);
        const made_run made = {.world = 2, .tokens_per_sec = 1, .epoch_time = 1, .strategy = "single", .ours = ours};
        add(&s, "recorded", made, NULL);
        add(&s, "of steps", made, &steps);
        for (int k = 0; k < 2; k++) {
            const double *part = s.run[k].split;
            double sum = 0;
            for (int j = 0; j < LS_N_SPLIT; j++) sum += isnan(part[j]) ? 0 : part[j];
            near(sum, 0.025, 1e-12);
            near(1000 * (part[LS_SPLIT_FORWARD] + part[LS_SPLIT_BACKWARD]), c[i].compute, 1e-9);
            near(1000 * part[LS_SPLIT_BUBBLE], c[i].bubble, 1e-9);
            near(1000 * part[LS_SPLIT_EXPOSED], c[i].exposed, 1e-9);
            near(1000 * part[LS_SPLIT_OTHER], c[i].other, 1e-9);
            near(1000 * part[LS_SPLIT_OPTIMIZER], 1, 1e-9);
        }
        ls_free(ours);
        ls_run_set_fini(&s);
    }
    ls_str_fini(&steps);
}

/* How a device was chosen is no setting; the backend of communicators is one, and is stated, whichever communicators a run has. */
static void backends(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0};
    made_run r = {.world = 2,
                  .tokens_per_sec = 5,
                  .epoch_time = 1,
                  .strategy = "single",
                  .ours =
                      ", \"pp\": 2, \"activations_comm\": {\"backend\": \"nccl\"}, \"device_choice\": \"auto: cuda\""};
    add(&s, "a", r, NULL);
    r.ours = ", \"pp\": 2, \"activations_comm\": {\"backend\": \"nccl\"}, \"device_choice\": \"--device cuda\"";
    add(&s, "b", r, NULL);
    r.ours = ", \"pp\": 2, \"activations_comm\": {\"backend\": \"local\"}";
    add(&s, "c", r, NULL);
    r.ours = ", \"tp\": 2, \"tensor_comm\": {\"backend\": \"nccl\"}";
    add(&s, "d", r, NULL);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    assert_int_equal(a.n_group, 3);
    assert_int_equal(a.group[0].n_run, 2);
    ls_report_page(&a, &html, &md);
    int n = 0;
    for (const char *p = md.data; (p = strstr(p, "| 2 over nccl |")); p++) n++;
    assert_int_equal(n, 3);
    has(md.data, "| 2 over local |");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* Planned and peak in one row are of one rank; the highest peak of all ranks has its own column. */
static void peak_of_rank0(void **state)
{
    (void)state;
    static const char key[] = "\"optimizer_steps\": 20";
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str text = {0}, all = {0}, html = {0}, md = {0};
    made_metrics(
        &(made_run){.world = 2,
                    .tokens_per_sec = 5,
                    .epoch_time = 1,
                    .strategy = "single",
                    .ours = ", \"planned_bytes\": 73400320, \"memory\": {\"per_rank\": [{\"rank\": 0, \"planned\": "
                            "73400320}, {\"rank\": 1, \"planned\": 146800640}]}"},
        &text);
    const char *at = strstr(text.data, key);
    assert_non_null(at);
    ls_str_addf(
        &all,
        "%.*s\"max_cuda_mem_allocated_bytes_rank0\": 74448896, \"max_cuda_mem_allocated_bytes_global\": 147849216, "
        "\"peak_rss_bytes_rank0\": 999999999, %s",
        (int)(at - text.data), text.data, at);
    assert_int_equal(add_made(&s, "r", &all, NULL), LS_OK);
    near(s.run[0].peak_bytes, 74448896, 0);
    near(s.run[0].peak_most, 147849216, 0);
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    ls_report_page(&a, &html, &md);
    has(md.data, "| setting | rank 0: planned, MiB | rank 0: peak, MiB |");
    has(md.data, "| 70.0 | 71.0 | 70.0 | 140.0 | 141.0 |");
    ls_str_fini(&text), ls_str_fini(&all), ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* A wait is charged to what was waited for, so one kind may have waited longer than it worked: hidden time is reported per communicator. */
static void hidden_time(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_run_comm_time t;
    ls_str html = {0}, md = {0};
    ls_analysis a;
    add(&s, "r",
        (made_run){.world = 2,
                   .tokens_per_sec = 5,
                   .epoch_time = 1,
                   .strategy = "zero1",
                   .ours =
                       ", \"comm\": {\"backend\": \"nccl\", \"steps\": 10, \"reduce_scatter\": {\"busy_sec\": 0.08, "
                       "\"exposed_sec\": 0.01}, \"all_reduce\": {\"busy_sec\": 0.02, \"exposed_sec\": 0.05}}, "
                       "\"tensor_comm\": {\"backend\": \"nccl\", \"steps\": 10, \"all_reduce\": {\"busy_sec\": 0.01, "
                       "\"exposed_sec\": 0.03}}, \"gradients_comm\": {\"backend\": \"nccl\", \"steps\": 10, \"send\": "
                       "{\"busy_sec\": null, \"exposed_sec\": null}}"},
        NULL);
    assert_true(ls_run_comm_time_of(&s.run[0], LS_RUN_COMM_REPLICAS, &t));
    near(t.busy, 0.010, 1e-12);
    near(t.exposed, 0.006, 1e-12);
    near(t.hidden, 0.004, 1e-12); /* by kind it would be 7 ms, and busy less than exposed and hidden */
    assert_true(ls_run_comm_time_of(&s.run[0], LS_RUN_COMM_TENSOR, &t));
    near(t.hidden, 0, 0);
    assert_true(ls_run_comm_time_of(&s.run[0], LS_RUN_COMM_GRADS, &t));
    assert_true(isnan(t.hidden)); /* not measured */
    assert_false(ls_run_comm_time_of(&s.run[0], LS_RUN_COMM_ACTS, &t));
    assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
    ls_report_page(&a, &html, &md);
    has(md.data, "A wait is charged to the collective that was waited for");
    has(md.data, "| replicas | 10.000 | 6.000 | 4.000 | 40 |");
    has(md.data, "| tensor parallel | 1.000 | 3.000 | 0.000 | 0 |");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* What an earlier run over NCCL left in the folder is not said of a run that did not use it; R1's run states no backend. */
static void leftover_evidence(void **state)
{
    (void)state;
    static const char nccl[] = "{\"version\": \"2.30.7\", \"warnings\": 3}", topo[] = "GPU0\t X \n";
    static const char *const ours[] = {", \"device\": \"cpu\", \"comm\": {\"backend\": \"local\"}",
                                       ", \"device\": \"cuda\", \"activations_comm\": {\"backend\": \"local\"}",
                                       ", \"device\": \"cuda\", \"activations_comm\": {\"backend\": \"nccl\"}", NULL};
    for (int i = 0; i < 4; i++) {
        const bool shown = i >= 2;
        ls_run_set s = new_set();
        ls_analysis a;
        ls_str metrics = {0}, html = {0}, md = {0};
        made_metrics(
            &(made_run){
                .world = 2, .tokens_per_sec = 10, .epoch_time = 1, .strategy = ours[i] ? "ddp" : NULL, .ours = ours[i]},
            &metrics);
        const ls_run_texts t = {.metrics = metrics.data,
                                .n_metrics = metrics.len,
                                .nccl = nccl,
                                .n_nccl = sizeof nccl - 1,
                                .topo = topo,
                                .n_topo = sizeof topo - 1};
        assert_int_equal(ls_run_read_texts(&t, "r", &s.notes, &s.run[s.n++]), LS_OK);
        assert_int_equal(ls_analyse(&s, false, &a), LS_OK);
        ls_report_page(&a, &html, &md);
        assert_int_equal(strstr(md.data, "## Communication between GPUs") != NULL, shown);
        assert_int_equal(strstr(md.data, "NCCL printed 3 warnings") != NULL, shown);
        assert_int_equal(s.notes.n, !shown);
        if (!shown) has_note(&s.notes, "r: the run did not communicate over NCCL (local)");
        ls_str_fini(&metrics), ls_str_fini(&html), ls_str_fini(&md);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intervals),      cmocka_unit_test(scaling),           cmocka_unit_test(unlike),
        cmocka_unit_test(waterfall),      cmocka_unit_test(own_keys),          cmocka_unit_test(settings),
        cmocka_unit_test(problems),       cmocka_unit_test(other_files),       cmocka_unit_test(hostile_names),
        cmocka_unit_test(nsys),           cmocka_unit_test(numbers),           cmocka_unit_test(verifier),
        cmocka_unit_test(workdirs),       cmocka_unit_test(out_of_memory),     cmocka_unit_test(interval_of_one),
        cmocka_unit_test(basis),          cmocka_unit_test(many_settings),     cmocka_unit_test(over_all_workers),
        cmocka_unit_test(many_pipelines), cmocka_unit_test(given_twice),       cmocka_unit_test(evidence),
        cmocka_unit_test(pipeline_parts), cmocka_unit_test(backends),          cmocka_unit_test(peak_of_rank0),
        cmocka_unit_test(hidden_time),    cmocka_unit_test(leftover_evidence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
