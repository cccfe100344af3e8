/* Comparing runs: intervals, the statistics of the ZeRO scaling study (docs/REFERENCES.md), groups, runs that are not
 * comparable, the waterfall, and the steps that are used. */
#include "report_checks.h"

static void intervals_use_the_t_distribution(void **state)
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

/* Three repeats at about 100, 180 and 320 tokens/s: the numbers of the scaling study and our own. */
static void speedups_match_those_of_r1(void **state)
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
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 3);
    assert_int_equal(a.n_mismatch, 0);
    assert_true(a.comparable);
    near(a.group[1].recorded.mean, 181.66666666666666, 0); /* that of the ZeRO scaling study; ours is geometric */
    near(a.group[1].recorded.stdev, 7.637626158259733, 1e-14);
    near(a.group[1].tokens.mean, cbrt(180. * 190 * 175), 1e-10);
    near(a.group[1].speedup_r1, 1.8166666666666667, 1e-15);
    near(a.group[2].speedup.mean, cbrt(320. * 330 * 310 / (100. * 95 * 105)), 1e-12);
    near(a.group[2].efficiency.mean, a.group[2].speedup.mean / 4, 1e-15);
    assert_true(a.group[2].speedup.half > 0);
    assert_int_equal(a.top[0].best, 2);
    assert_int_equal(a.top[0].second, 1);
    ls_str text = {0};
    json_t *root = NULL;
    ls_scaling_text(&a, NULL, NULL, NULL, &text);
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

static void runs_that_differ_are_not_compared(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 100, .epoch_time = 1, .precision = "fp16_torch_amp"}, NULL);
    add(&s, "two",
        (made_run){
            .world = 2, .tokens_per_sec = 190, .epoch_time = 1, .precision = "fp16_deepspeed", .global_batch = 32},
        NULL);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_mismatch, 2); /* in the order of docs/FORMATS.md#comparable-runs */
    assert_string_equal(a.mismatch[0].field, "global_batch_size");
    assert_string_equal(a.mismatch[1].field, "precision");
    assert_false(a.comparable);
    assert_true(isnan(a.group[1].speedup.mean));
    ls_str text = {0}, html = {0}, md = {0};
    ls_scaling_text(&a, NULL, NULL, NULL, &text);
    has(text.data, "\"status\": \"invalid_comparison\"");
    has(text.data,
        "\"field\": \"precision\",\n      \"baseline\": \"fp16_torch_amp\",\n      \"mismatch\": \"fp16_deepspeed\"");
    assert_null(strstr(text.data, "runs"));
    report_page(&a, &html, &md);
    has(html.data, "invalid_comparison");
    assert_null(strstr(html.data, "is the fastest"));
    ls_analysis_fini(&a);
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&text);
    /* precisions that are what is compared are no mismatch; the batch still is one */
    assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.precisions = true}, &a), LS_OK);
    assert_true(a.n_mismatch == 1 && a.other_precision && !a.comparable);
    assert_string_equal(a.mismatch[0].field, "global_batch_size");
    ls_analysis_fini(&a);
    /* if allowed, they are compared and marked */
    assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.allow_mismatch = true}, &a), LS_OK);
    assert_true(a.comparable);
    near(a.group[1].speedup.mean, 1.9, 1e-15);
    ls_winner_words(&a, &text);
    has(text.data, "mismatch_allowed: the runs are not comparable, so differences include different work. No winner");
    ls_str_fini(&text);
    report_page(&a, &html, &md);
    has(html.data, "mismatch_allowed");
    has(md.data, "mismatch_allowed");
    ls_scaling_text(&a, NULL, NULL, NULL, &text);
    has(text.data, "\"status\": \"mismatch_allowed\"");
    ls_analysis_fini(&a);
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&text);
    ls_run_set_fini(&s);
}

/* A step of one worker takes 6 + 12 + 2 ms, one of two workers 3.5 + 7 + 1.5 (exposed) + 2 ms. The shares were computed by hand. */
static void the_waterfall_adds_up_to_the_step(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str one = {0}, two = {0};
    made_steps(20, 0.006, 0.012, 0, 0.002, &one);
    made_steps(20, 0.0035, 0.007, 0.0015, 0.002, &two);
    double tokens = 16 * 64; /* per step */
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = tokens / 0.020, .epoch_time = 1, .strategy = "single"},
        &one);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = tokens / 0.015, .epoch_time = 1, .strategy = "ddp"}, &two);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    const ls_waterfall *w = &a.group[1].waterfall;
    assert_true(w->known && w->split && !a.group[0].waterfall.known);
    near(w->useful, 0.010 / 0.015, 1e-12);
    near(w->lost[LS_SPLIT_FORWARD], (0.0005 + 0.001) / 0.015, 1e-12); /* both passes */
    near(w->lost[LS_SPLIT_EXPOSED], 0.0015 / 0.015, 1e-12);
    near(w->lost[LS_SPLIT_OPTIMIZER], 0.001 / 0.015, 1e-12);
    near(w->lost[LS_SPLIT_OTHER], 0.001 / 0.015, 1e-12); /* the parts sum to 14 of 15 ms */
    double sum = w->useful;
    for (int k = 0; k < LS_N_SPLIT; k++) sum += w->lost[k];
    near(sum, 1, 1e-12);
    assert_true(a.same_loss); /* both made the same losses */
    ls_str html = {0}, md = {0};
    report_page(&a, &html, &md);
    has(html.data, "same loss at every step, bit for bit");
    has(md.data, "| ddp × 2 | 66.7 | 10.0 | 6.7 | 10.0 | 6.7 | 100.0 |");
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&one), ls_str_fini(&two);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* Two settings of one strategy are labelled with the value that differs. */
static void settings_are_named_by_what_differs(void **state)
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
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 2);
    assert_string_equal(a.group[1].label, "ddp (bucket 7) × 2"); /* the fastest is first */
    assert_string_equal(a.group[0].short_name, "ddp (bucket 9)");
    assert_int_equal(a.group[0].n_run, 2);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* The interval of a single run uses all steps after the warm-up: here 18, of which the last 8 take three times as long. */
static void one_run_has_an_interval_over_steps(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str steps = {0};
    made_steps(13, 0.5, 0.5, 0, 0, &steps);
    made_steps(8, 1.5, 1.5, 0, 0, &steps);
    add(&s, "r", (made_run){.world = 1, .tokens_per_sec = 100, .epoch_time = 1, .strategy = "single"}, &steps);
    assert_int_equal(s.run[0].n_warm, 3);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_true(a.group[0].tokens.within);
    /* blocks of 1, 2, 2, 2, 2, 1, 2, 2, 2, 2 steps: the steps per second of each; the first ten steps alone would all be 1 */
    const double block[] = {1, 1, 1, 1, 1, 1, 1.0 / 3, 1.0 / 3, 1.0 / 3, 1.0 / 3};
    const ls_estimate e = ls_estimate_of(block, 10);
    near(a.group[0].tokens.half, 100 * e.half / e.mean, 1e-9);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&steps);
}

/* The page states the steps that its numbers are taken from, and text and chart show the same time of a step. */
static void the_page_names_the_steps_it_uses(void **state)
{
    (void)state;
    static const char recorded[] = ", \"step_split\": {\"forward\": 0.7, \"backward\": 0.1}";
    const ls_compare_opts steady = {.steady = true};
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str one = {0}, two = {0}, html = {0}, md = {0};
    s.warm = 4;
    for (int i = 0; i < 2; i++) {
        ls_str *text = i ? &two : &one;
        made_steps(4, 5, 5, 0, 0, text);
        made_steps(12, i ? 0.003 : 0.006, i ? 0.005 : 0.010, i ? 0.001 : 0, 0.0001, text);
        for (int k = 0; k < 4; k++) /* fewer equal pairs have no interval */
            add(&s, i ? "two" : "one",
                (made_run){.world = i + 1,
                           .tokens_per_sec = 10,
                           .epoch_time = 1,
                           .strategy = i ? "ddp" : "single",
                           .ours = recorded},
                text);
    }
    assert_int_equal(ls_analyse(&s, &steady, &a), LS_OK);
    assert_true(a.steady && a.group[1].split_of_steps);
    report_page(&a, &html, &md);
    has(md.data, "Speeds are of the steps after the warm-up: the first 4 of each run are left out.");
    has(html.data, "Speeds are of the steps after the warm-up: the first 4 of each run are left out.");
    has(md.data, "a step of ddp × 2 takes 9.1 ms, one of single × 1 16.1 ms");
    has(md.data, "Mean over the steps after the warm-up (the first 4 are left out). Times are those of rank 0.");
    has(html.data, ">9.1</text>"); /* the sum above the bar */
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);

    s = new_set(); /* no warm-up is given: a tenth of the run; parts from the steps replace the recorded ones */
    add(&s, "one",
        (made_run){.world = 1, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "single", .ours = recorded}, &one);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "ddp", .ours = recorded},
        NULL); /* no metrics.jsonl: the recorded parts */
    near(s.run[1].split[LS_SPLIT_FORWARD], 0.7, 0);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data,
        "Speeds are of whole epochs as the runs recorded them, warm-up included: not every run has a metrics.jsonl with times of steps.");
    has(md.data,
        "Mean over the steps after the warm-up (the first 2 are left out); for ddp × 2 over all steps of a run, warm-up included, as it recorded them. Times are those of rank 0.");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&one), ls_str_fini(&two);
}

/* Runs of 10 and 40 ms against runs of 10 ms, of one work, with steps of unequal times: every figure of the page has the ratio of the tokens/s, 2. */
static void all_means_of_a_page_have_one_ratio(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_chart rate;
    ls_str html = {0}, md = {0};
    s.warm = 2;
    for (int i = 0; i < 4; i++) {
        const double ms = i == 1 ? 0.040 : 0.010;
        ls_str steps = {0};
        for (int k = 0; k < 12; k++) { /* 0.4 and 1.6 of the mean: the mean of the rates is not the rate of the mean */
            const double t = ms * (k % 2 ? 1.6 : 0.4);
            ls_str_addf(
                &steps,
                "{\"step\": %d, \"loss\": 2.0, \"step_time_sec\": %.17g, \"forward_sec\": %.17g, \"backward_sec\": %.17g, ",
                k + 1, t, t / 4, t / 2);
            ls_str_addf(&steps, "\"tokens_per_sec\": %.17g, \"tflops\": %.17g}\n", 1024 / t, 1024 / t * 3e-6);
        }
        add(&s, i < 2 ? "a" : "b",
            (made_run){
                .world = i < 2 ? 1 : 2, .tokens_per_sec = 10, .epoch_time = 1, .strategy = i < 2 ? "single" : "ddp"},
            &steps);
        ls_str_fini(&steps);
    }
    assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.steady = true}, &a), LS_OK);
    near(a.group[0].tokens.mean, 1024 / 0.020, 1e-6);
    near(a.group[0].step_time, 0.020, 1e-12);
    near(a.group[1].step_time, 0.010, 1e-12);
    double sum = 0;
    for (int k = 0; k < LS_N_SPLIT; k++) sum += a.group[0].split[k] > 0 ? a.group[0].split[k] : 0;
    near(sum, 0.020, 1e-12);
    near(a.group[0].split[LS_SPLIT_BACKWARD], 0.010, 1e-12);
    chart_tflops(&a, &rate);
    for (int i = 0; i < 2; i++) near(rate.series[0].point[i].y, a.group[i].tokens.mean * 3e-6, 1e-9);
    report_page(&a, &html, &md);
    has(md.data, "| single × 1 | 20.000 | 32.000 | 1.60 |");
    has(md.data, "| ddp × 2 | 10.000 | 16.000 | 1.60 |");
    has(md.data, "A bar is as long as the geometric mean over the runs, as for tokens/s; its parts are scaled to it.");
    ls_chart_fini(&rate);
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* A run that is shorter than the warm-up: the reason is stated, and other steps are not called those after the warm-up. */
static void a_run_without_steps_after_the_warm_up_is_named(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str steps = {0}, html = {0}, md = {0};
    made_steps(3, 0.006, 0.010, 0, 0.001, &steps);
    add(&s, "short", (made_run){.world = 1, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "single"}, &steps);
    assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.short_of = 5}, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data,
        "Speeds are of whole epochs as the runs recorded them, warm-up included: short has 3 steps, none after a warm-up of 5.");
    has(md.data, "| steps after the first 1 |");
    has(md.data, "Mean over the later steps (the first 1 is left out).");
    assert_null(strstr(md.data, "after the warm-up"));
    ls_str_fini(&steps), ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* The translation study's protocol: data parallelism has the same batch per worker, so fewer steps on more workers;
 * pipelines have a batch of their own. */
static void pipelines_are_compared_apart(void **state)
{
    (void)state;
    static const struct {
        int world, batch, steps;
        const char *strategy, *ours;
        double rate;
    } row[] = {{1, 8, 41, "single", "", 100},
               {2, 16, 20, "ddp", "", 180},
               {2, 32, 10, "single", ", \"pp\": 2, \"schedule\": \"naive\"", 90},
               {2, 32, 10, "single", ", \"pp\": 2, \"schedule\": \"gpipe\"", 150}};
    const ls_compare_opts r3 = {.weak = true, .apart = true};
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0}, words = {0}, text = {0};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++) {
            add(&s, "r",
                (made_run){.world = row[i].world,
                           .tokens_per_sec = row[i].rate + k,
                           .epoch_time = 1,
                           .strategy = row[i].strategy,
                           .ours = row[i].ours,
                           .global_batch = row[i].batch},
                NULL);
            ls_run *r = &s.run[s.n - 1];
            r->n_update = row[i].steps;
            json_integer_set(r->n_update_json, row[i].steps);
        }
    assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.weak = true}, &a), LS_OK);
    assert_false(a.comparable); /* the batches of pipelines are not those of one worker */
    ls_analysis_fini(&a);
    assert_int_equal(ls_analyse(&s, &r3, &a), LS_OK);
    assert_int_equal(a.n_mismatch, 0);
    near(a.group[1].speedup.mean, cbrt(180. * 181 * 182 / (100. * 101 * 102)), 1e-12);
    assert_true(isnan(a.group[2].speedup.mean) && a.group[2].base < 0);
    ls_winner_words(&a, &words);
    has(words.data, "Data parallel: Fastest: ddp × 2 (181");
    has(words.data, " Pipelines: Fastest: pp (gpipe) × 2 (151");
    report_page(&a, &html, &md);
    has(md.data, "| pp (gpipe) × 2 | pp (naive) × 2 | 3, not in turns |");
    assert_null(strstr(md.data, "| pp (gpipe) × 2 | ddp"));
    assert_null(strstr(md.data, "| ddp × 2 | pp"));
    ls_scaling_text(&a, "pp (gpipe)", NULL, NULL, &text);
    has(text.data, "\"scaling\": \"strong\"");
    has(text.data, "\"global_batch_size\": 32");
    assert_null(strstr(text.data, "\"1\": {"));
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&words), ls_str_fini(&text);
    ls_analysis_fini(&a);
    s.run[3].n_update = 30; /* other data than one worker had */
    assert_int_equal(ls_analyse(&s, &r3, &a), LS_OK);
    assert_int_equal(a.n_mismatch, 1);
    assert_string_equal(a.mismatch[0].field, "optimizer_steps");
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* A layout that uses all workers for one axis is one setting for any number of workers; a hybrid layout is not. */
static void one_layout_is_one_setting_everywhere(void **state)
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
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 6);
    assert_string_equal(a.group[1].label, "pp (1f1b) × 2");
    assert_string_equal(a.group[2].label, "tp × 2");
    assert_string_equal(a.group[3].short_name, "pp (1f1b)");
    assert_string_equal(a.group[4].short_name, "ddp pp2 1f1b");
    assert_string_equal(a.group[5].short_name, "tp");
    ls_scaling_text(&a, "pp (1f1b)", NULL, NULL, &text);
    assert_int_equal(ls_json_parse(text.data, text.len, "scaling", &root), LS_OK);
    const json_t *runs = json_object_get(root, "runs");
    assert_int_equal(json_object_size(runs), 3);
    assert_string_equal(json_string_value(json_object_get(json_object_get(runs, "4"), "setting")), "pp (1f1b)");
    assert_null(json_object_get(root, "left_out"));
    json_decref(root), root = NULL;
    ls_str_fini(&text);
    ls_scaling_text(&a, NULL, NULL, NULL,
                    &text); /* without a setting: one run per number of workers, and a list of the others */
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

/* Appends a run of ddp on two workers, with one text of its metrics replaced by another. */
static void add_changed(ls_run_set *s, const char *dir, double rate, const char *from, const char *to)
{
    static const char ours[] =
        ", \"seed\": 1, \"lr_schedule\": \"cosine\", \"device\": \"cpu\", \"compute\": \"cpu: avx2, 2 threads\"";
    ls_str text = {0}, changed = {0};
    made_metrics(&(made_run){.world = 2, .tokens_per_sec = rate, .epoch_time = 1, .strategy = "ddp", .ours = ours},
                 &text);
    const char *at = strstr(text.data, from);
    assert_non_null(at);
    ls_str_addf(&changed, "%.*s%s%s", (int)(at - text.data), text.data, to, at + strlen(from));
    assert_int_equal(add_made(s, dir, &changed, NULL), LS_OK);
    ls_str_fini(&text), ls_str_fini(&changed);
}

/* A run that differs in anything but its seed is in a setting of its own, which is named by it. */
static void only_the_seed_may_differ_between_repeats(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *name;
    } change[] = {
        {"\"epochs\": 1,", "\"epochs\": 1, \"lr\": 0.001,", "ddp (lr 0.001)"},
        {"\"command_line\": \"train\"", "\"command_line\": \"lockstep train --dropout 0.2\"", "ddp (dropout 0.2)"},
        {"\"command_line\": \"train\"", "\"command_line\": \"train --max-val-steps=7\"", "ddp (max_val_steps 7)"},
        {"\"command_line\": \"train\"", "\"command_line\": \"train --betas 0.9 0.99 --tf32\"",
         "ddp (betas 0.9 0.99, tf32)"},
        {"\"command_line\": \"train\"", "\"command_line\": \"train --save_every 5\"", "ddp (save_every 5)"},
        {"\"command_line\": \"train\"", "\"command_line\": \"train --save_memory_every 5\"",
         "ddp (save_memory_every 5)"},
        {"\"command_line\": \"train\"", "\"command_line\": \"lockstep train /b/data --seed 2\"", "ddp (data /b/data)"},
        {"\"cosine\"", "\"constant\"", "ddp (lr_schedule constant)"},
        {"\"seed\": 1", "\"seed\": 1, \"resumed_from_step\": 12", "ddp (resumed_from_step 12)"},
        {"\"optimizer_steps\": 20", "\"optimizer_steps\": 300", "ddp (steps 300)"},
        {"\"dataset_name\": \"t\"", "\"dataset_name\": \"u\"", "ddp (dataset u)"},
        {"\"train\": 10", "\"train\": 11", "ddp (sequences 11 and 2)"},
        {"\"precision\": \"fp32\"", "\"precision\": \"bf16\"", "ddp (precision bf16)"},
        {"\"device\": \"cpu\"", "\"device\": \"cpu\", \"fp8_format\": \"hybrid\", \"fp8_margin\": 1",
         "ddp (fp8_format hybrid, fp8_margin 1)"},
        {"\"gpu_name\": \"none\"", "\"gpu_name\": \"V100\"", "ddp (gpu V100)"},
        {"\"device\": \"cpu\"", "\"device\": \"cuda\"", "ddp (device cuda)"},
        {"\"hostname\": \"h\"", "\"hostname\": \"i\"", "ddp (host i)"},
        {"2 threads", "16 threads", "ddp (threads 16)"},
        {"\"git_commit\": \"unknown\"", "\"git_commit\": \"0123456789abcdef\"", "ddp (commit 0123456789ab)"},
        {"\"device\": \"cpu\"", "\"device\": \"cpu\", \"commit\": \"fedcba98765432100-dirty\"",
         "ddp (commit fedcba987654-dirty)"},
        {"\"device\": \"cpu\"", "\"device\": \"cpu\", \"train_data\": \"sha256:00\"", "ddp (train_data sha256:00)"},
        {"\"device\": \"cpu\"", "\"device\": \"cpu\", \"environment\": \"LS_GEMM=blas NCCL_ALGO=Ring\"",
         "ddp (environment LS_GEMM=blas NCCL_ALGO=Ring)"},
    };
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        ls_run_set s = new_set();
        ls_analysis a;
        add_changed(&s, "a", 100, "\"seed\": 1", "\"seed\": 1");
        add_changed(&s, "b", 99, change[i].from, change[i].to);
        assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.allow_mismatch = true}, &a), LS_OK);
        assert_int_equal(a.n_group, 2);
        assert_string_equal(a.group[1].short_name, change[i].name);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
    /* the order and the spelling of options do not matter, nor the folder */
    ls_run_set s = new_set();
    ls_analysis a;
    add_changed(&s, "a", 100, "\"train\"", "\"train --clip 1 --tf32 --checkpoint_path a\"");
    add_changed(&s, "b", 101, "\"train\"", "\"train --checkpoint-path b --tf32 --clip=2 --clip=1\"");
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 1);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* The base of a speed-up is the nearest setting, in whatever order the runs are given: one that has all of a run's lines and more is not. */
static void the_base_has_no_other_options(void **state)
{
    (void)state;
    static const char other[] = "\"command_line\": \"train --dropout 0.3\"", two[] = "\"world_size\": 2",
                      one[] = "\"world_size\": 1";
    for (int first = 0; first < 2; first++) {
        ls_run_set s = new_set();
        ls_analysis a;
        for (int i = 0; i < 2; i++) {
            char both[400];
            ls_str text = {0}, changed = {0};
            made_metrics(
                &(made_run){.world = 2, .tokens_per_sec = i == first ? 50 : 80, .epoch_time = 1, .strategy = "ddp"},
                &text);
            const char *at = strstr(text.data, two), *line = strstr(text.data, "\"command_line\": \"train\"");
            snprintf(both, sizeof both, "%s", i == first ? "\"command_line\": \"train\"" : other);
            ls_str_addf(&changed, "%.*s%s%.*s%s%s", (int)(line - text.data), text.data, both, (int)(at - line - 23),
                        line + 23, one, at + strlen(two));
            assert_int_equal(add_made(&s, i ? "b" : "a", &changed, NULL), LS_OK);
            ls_str_fini(&text), ls_str_fini(&changed);
        }
        ls_str text = {0};
        made_metrics(&(made_run){.world = 2, .tokens_per_sec = 100, .epoch_time = 1, .strategy = "ddp"}, &text);
        assert_int_equal(add_made(&s, "c", &text, NULL), LS_OK);
        assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.allow_mismatch = true}, &a), LS_OK);
        assert_int_equal(a.n_group, 3);
        for (int i = 0; i < 3; i++) assert_near(a.group[i].speedup.mean, a.group[i].world == 2 ? 2 : 1, 1e-9);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
        ls_str_fini(&text);
    }
    for (int first = 0; first < 2; first++) { /* two bases are as near as one another */
        ls_run_set s = new_set();
        ls_analysis a;
        for (int i = 0; i < 2; i++)
            add(&s, "one",
                (made_run){.world = 1,
                           .tokens_per_sec = i == first ? 50 : 80,
                           .epoch_time = 1,
                           .strategy = "ddp",
                           .ours = i == first ? ", \"bucket\": 7" : ", \"bucket\": 9"},
                NULL);
        add(&s, "two",
            (made_run){
                .world = 2, .tokens_per_sec = 100, .epoch_time = 1, .strategy = "ddp", .ours = ", \"bucket\": 8"},
            NULL);
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
        assert_int_equal(a.n_group, 3);
        assert_near(a.group[2].speedup.mean, 2, 1e-9);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* Losses of repeats are shown by seed; runs of one seed that differ, as a range. Every setting has its own curve. */
static void losses_are_shown_by_seed(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_chart c;
    ls_str html = {0}, md = {0}, steps[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        char ours[80];
        ls_str text = {0}, changed = {0};
        snprintf(ours, sizeof ours, ", \"seed\": %d, \"bucket\": %d", i == 1 ? 2 : 1, i < 2 ? 5 : 6);
        made_metrics(&(made_run){.world = 2, .tokens_per_sec = 9, .epoch_time = 1, .strategy = "ddp", .ours = ours},
                     &text);
        const char *at = strstr(text.data, "2.5,");
        ls_str_addf(&changed, "%.*s%g%s", (int)(at - text.data), text.data, 2.5 + 0.25 * i, at + 3);
        ls_str_addf(&steps[i], "{\"step\": 1, \"loss\": %d}\n{\"step\": 2, \"loss\": 1}\n", 3 + i);
        assert_int_equal(add_made(&s, "r", &changed, &steps[i]), LS_OK);
        ls_str_fini(&text), ls_str_fini(&changed);
    }
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 2);
    report_page(&a, &html, &md);
    has(md.data, "| 2.5000 to 2.7500 | 2.2500 |");
    has(md.data,
        "| ddp (bucket 5) × 2 | 1 | r | 2.5000 | 2.2500 |\n| ddp (bucket 5) × 2 | 2 | r | 2.7500 | 2.2500 |\n\n");
    ls_str words = {0};
    ls_loss_words(&a, &a.group[0], false, true, &words);
    assert_string_equal(words.data, "seed 1: 2.5000, seed 2: 2.7500");
    ls_str_fini(&words);
    has(md.data, "| 3.0000 | 2.2500 |");
    chart_loss(&a, &c);
    assert_int_equal(c.n_series, 3);
    assert_string_equal(c.series[0].name, "ddp (bucket 5) × 2, seed 1");
    assert_string_equal(c.series[1].name, "ddp (bucket 5) × 2, seed 2");
    assert_string_equal(c.series[2].name, "ddp (bucket 6) × 2");
    ls_chart_fini(&c);
    s.run[1].seed = 1; /* the same seed, another loss: not deterministic */
    ls_loss_words(&a, &a.group[0], false, true, &words);
    assert_string_equal(words.data, "2.5000 to 2.7500");
    ls_str_fini(&words);
    for (int i = 0; i < 3; i++) ls_str_fini(&steps[i]);
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* A run with a profiler is shown, but it is no repeat, no winner and no part of a scaling report, and its steps are not compared. */
static void profiled_runs_are_not_benchmarks(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0}, text = {0};
    add_changed(&s, "a", 100, "\"seed\": 1", "\"seed\": 1");
    add_changed(&s, "b", 102, "\"seed\": 1", "\"seed\": 1");
    add_changed(&s, "p", 900, "\"command_line\": \"train\"",
                "\"command_line\": \"train --profile --max_train_steps 8\"");
    assert_true(s.run[2].profiled && !s.run[0].profiled);
    s.run[2].n_update = 4;
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 2);
    assert_int_equal(a.n_mismatch, 0);
    near(a.group[0].tokens.mean, sqrt(100. * 102), 1e-12);
    assert_int_equal(a.top[0].best, 0);
    assert_string_equal(a.group[1].short_name, "ddp (profiled)");
    report_page(&a, &html, &md);
    has(md.data, "Profiled: p. A profiler slows a run down");
    assert_null(strstr(md.data, "fastest"));
    ls_scaling_text(&a, NULL, NULL, NULL, &text);
    assert_null(strstr(text.data, "\"p/training_metrics.json\""));
    has(text.data, "a profiled run is no benchmark");
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&text);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    s = new_set(); /* a profiled run alone has its recorded speed */
    add_changed(&s, "p", 900, "\"command_line\": \"train\"", "\"command_line\": \"train --profile\"");
    assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.steady = true}, &a), LS_OK);
    near(a.group[0].tokens.mean, 900, 0);
    assert_true(a.top[0].best < 0 && !a.comparable);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    /* the summary of a profile tells it, too, unless it belongs to an earlier run of the folder */
    for (int stale = 0; stale < 2; stale++) {
        ls_notes notes = {0};
        ls_run r;
        char profile[64];
        snprintf(profile, sizeof profile, "{\"tokens_per_sec\": %d, \"nvtx_top5\": []}", stale ? 99 : 100);
        made_metrics(&(made_run){.world = 2, .tokens_per_sec = 100, .epoch_time = 1}, &text);
        const ls_run_texts t = {.file[LS_RUN_METRICS] = {text.data, text.len},
                                .file[LS_RUN_PROFILE] = {profile, strlen(profile)}};
        assert_int_equal(ls_run_read_texts(&t, "r", &notes, &r), LS_OK);
        assert_int_equal(r.profiled, !stale);
        ls_run_fini(&r);
        ls_str_fini(&text);
    }
}

/* Runs in turns A B C D | D C B A: the folders and the times of their starts are those of a benchmark. rate[k][turn]; 0: no such run. */
static void add_turns(ls_run_set *s, int n, const double (*rate)[4], bool in_turns)
{
    static const char *const name[] = {"single", "ddp", "zero2", "pp"};
    for (int k = 0; k < n; k++)
        for (int turn = 0; turn < 4; turn++) {
            char dir[64], at[64];
            const int place = in_turns ? turn * n + (turn % 2 ? n - 1 - k : k) : k * 4 + turn;
            if (!(rate[k][turn] > 0)) continue;
            snprintf(dir, sizeof dir, "out/%dcpu_%s/run_%d", k ? 2 : 1, name[k], turn + 1);
            snprintf(at, sizeof at, "2026-01-28T01:%02d:44Z", place);
            add(s, dir,
                (made_run){.world = k ? 2 : 1, .tokens_per_sec = rate[k][turn], .epoch_time = 1, .strategy = name[k]},
                NULL);
            json_object_set_new(s->run[s->n - 1].metrics, "timestamp_utc", json_string(at));
        }
}

static const struct {
    double rate[4][4];
    int winner, n_lead;
    const char *words;
} leading_cases[] = {
    /* the machine is twice as fast in some turns: pairs show what the intervals of means, which overlap, do not */
    {{{100, 50, 90, 60}, {176, 87, 158, 106}, {174, 88, 157, 104}, {101, 51, 88, 61}},
     -1,
     2,
     "ddp × 2 and zero2 × 2 are faster than one worker, 1.74 to 1.76 times; among them no difference is shown."},
    {{{100, 50, 90, 60}, {176, 87, 158, 106}, {140, 70, 126, 84}, {101, 51, 88, 61}},
     1,
     1,
     "Fastest: ddp × 2 (127 tokens/s, 1.76 times one worker, 95 %: 1.74 to 1.77). Next is zero2 × 2 (101 tokens/s): ddp × 2 is 1.25 times as fast (95 %: 1.24 to 1.27). Also faster than one worker: zero2 × 2, 1.40 times"},
    {{{100, 50, 90, 60}, {176, 40, 158, 50}, {90, 90, 110, 70}, {101, 51, 88, 61}},
     -1,
     0,
     "Fastest on average: zero2 × 2, 1.23 times single × 1 (95 %: 0.78 to 1.94, p = 0.24, 4 turns). No setting is shown to be faster: this ratio varies by 33 % from turn to turn."},
    {{{100, 50, 90, 60}, {176, 87, 158, 106}, {174, 0, 0, 0}, {40, 20, 36.1, 24.1}},
     -1,
     1,
     "zero2 × 2 has one run; repeat it to compare."},
    {{{100, 50, 90, 60}, {81, 40, 74, 48}, {60, 31, 55, 36}, {40, 20, 36.1, 24.1}}, 0, 1, "Fastest: single × 1 ("},
};

/* The least p counts for all pairs. A comparison of the fastest with its base, or as the base, has one p in both columns, and counts once. */
static void tested_once(const ls_analysis *a)
{
    const ls_ranking *r = &a->top[0];
    const ls_group *best = &a->group[r->best];
    const bool is_base = best->base == r->best;
    double least = 1, corrected = 1;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const ls_ratio *x[] = {&g->over_base, &g->of_best};
        for (int k = 0; k < 2; k++)
            if (x[k]->p < least) least = x[k]->p, corrected = x[k]->holm;
        if (!is_base || g == best || g->n_run < 2) continue;
        near(g->of_best.holm, g->over_base.holm, 0);
        near(g->of_best.p, g->over_base.p, 1e-12);
        assert_int_equal(g->of_best.shown, -g->over_base.shown);
    }
    near(corrected, fmin(1, least * r->n_repeated * (r->n_repeated - 1) / 2), 1e-12);
    if (!is_base) {
        near(a->group[best->base].of_best.holm, best->over_base.holm, 0);
        assert_int_equal(a->group[best->base].of_best.shown, best->over_base.shown);
    }
    assert_int_equal(r->n_tested, is_base ? r->n_repeated - 1 : 2 * r->n_repeated - 3);
}

static void the_settings_that_lead_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof leading_cases / sizeof *leading_cases; i++) {
        ls_run_set s = new_set();
        ls_analysis a;
        ls_str html = {0}, md = {0}, words = {0}, table = {0};
        int n_lead = 0;
        add_turns(&s, 4, leading_cases[i].rate, true);
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
        ls_winner_words(&a, &words);
        for (int k = 0; k < a.n_group; k++) n_lead += ls_leads(&a, k);
        assert_int_equal(n_lead, leading_cases[i].n_lead);
        assert_int_equal(a.top[0].winner, leading_cases[i].winner);
        has(words.data, leading_cases[i].words);
        report_page(&a, &html, &md);
        has(md.data, leading_cases[i].words);
        has(md.data, i != 3 ? "corrected by Holm for all pairs of settings, below 5 % (4 settings, 6 pairs)"
                            : "corrected by Holm for all pairs of settings, below 5 % (3 settings, 3 pairs)");
        tested_once(&a);
        assert_int_equal(strstr(md.data, "For speed, use") != NULL, n_lead > 0);
        assert_int_equal(strstr(html.data, "<title>in the lead:") != NULL, n_lead > 0);
        assert_int_equal(ls_strategies_table(&a, &table), LS_OK);
        has(table.data, words.data);
        int rows = 0;
        for (const char *p = table.data; p < strstr(table.data, words.data); p += strcspn(p, "\n") + 1, rows++)
            assert_true(strcspn(p, "\n") <= 80 + 16); /* 80 columns: a ± has two bytes */
        assert_true(rows > 5);                        /* the metrics that do not fit go on below */
        ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&words), ls_str_fini(&table);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* The steps of one run do not show how runs differ: with one run of each setting nothing is faster, and nothing is recommended. */
static void single_runs_have_no_winner(void **state)
{
    (void)state;
    static const double rate[4][4] = {{1000}, {3000}, {1500}};
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0}, words = {0};
    add_turns(&s, 3, rate, true);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.top[0].winner, -1);
    ls_winner_words(&a, &words);
    has(words.data,
        "No winner is shown: ddp × 2 was 3.00 times as fast as single × 1, in too few runs for an interval. All settings have one run each; repeat them to compare. "
        "Efficiency above 100 %: ddp × 2 (150 % of ideal over single × 1). Single runs do not show that: the runs may have met different conditions; repeat them.");
    report_page(&a, &html, &md);
    has(md.data, "For speed, no setting is recommended");
    assert_null(strstr(md.data, "| faster |"));
    assert_null(strstr(html.data, "<title>in the lead:"));
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&words);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* Pairs are runs of one turn, by the names of their folders, if the starts of the runs say that they were made in turns. */
static void ratios_are_those_of_turns(void **state)
{
    (void)state;
    const double(*rate)[4] = leading_cases[0].rate;
    for (int in_turns = 0; in_turns < 2; in_turns++) {
        ls_run_set s = new_set();
        ls_analysis a;
        add_turns(&s, 2, rate, in_turns);
        ls_run kept = s.run[0]; /* the order of the folders does not matter */
        s.run[0] = s.run[3], s.run[3] = kept;
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
        const ls_ratio want = ls_ratio_of(rate[0], 4, rate[1], 4, in_turns), *got = &a.group[1].over_base;
        assert_true(got->paired == in_turns && got->n == 4 && got->shown == in_turns);
        near(got->ratio, want.ratio, 1e-12);
        near(got->low, want.low, 1e-12);
        near(got->p, want.p, 1e-12);
        near(a.group[1].speedup.mean, a.group[1].tokens.mean / a.group[0].tokens.mean, 1e-12); /* one mean */
        near(1 / a.group[0].of_best.ratio, 1 / got->ratio, 1e-12);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* One worker in two of four turns at half its speed. */
static void a_disturbed_baseline_is_named(void **state)
{
    (void)state;
    static const double rate[2][4] = {{100, 50, 100, 45}, {171, 170, 172, 171}};
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str words = {0};
    add_turns(&s, 2, rate, true);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    ls_winner_words(&a, &words);
    has(words.data, "Efficiency above 100 %: ddp × 2 (");
    has(words.data, "The baseline was disturbed: the runs of single × 1 vary by 4");
    has(words.data, ", those of the others by 0.5 % (median).");
    has(words.data, "corrected by Holm for all pairs of settings, below 5 % (2 settings, 1 pair)");
    ls_str_fini(&words);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* What else differs from the runs that a speed-up is measured against is listed. */
static void other_differences_of_a_speedup_are_listed(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0};
    add_changed(&s, "one", 60,
                "\"hostname\": \"h\", \"os\": \"Linux\"},\"hardware\": {\"gpu_name\": \"none\", \"world_size\": 2",
                "\"hostname\": \"slow\", \"os\": \"Linux\"},\"hardware\": {\"gpu_name\": \"none\", \"world_size\": 1");
    add_changed(&s, "two", 100, "\"seed\": 1", "\"seed\": 1");
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data, "The speed-up of ddp × 2 over ddp × 1 is not of the workers alone. It has: host h (there: slow).");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void unequal_numbers_of_steps_are_not_compared(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str text = {0};
    add_changed(&s, "a", 100, "\"optimizer_steps\": 20", "\"optimizer_steps\": 10");
    add_changed(&s, "b", 101, "\"seed\": 1", "\"seed\": 1");
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_false(a.comparable);
    ls_scaling_text(&a, NULL, NULL, NULL, &text);
    has(text.data, "\"field\": \"optimizer_steps\",\n      \"baseline\": 10,\n      \"mismatch\": 20");
    ls_str_fini(&text);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* Eight digits and more stay whole, in tables, charts and on a terminal. */
static void long_names_are_wrapped_and_never_cut(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0}, table = {0};
    for (int i = 0; i < 2; i++) {
        char ours[200];
        snprintf(ours, sizeof ours, ", \"bucket\": %d, \"gather_bucket\": %d, \"prefetch_bucket\": %d", 300000000 + i,
                 200000000 + i, 100000000 + i);
        add(&s, "r", (made_run){.world = 2, .tokens_per_sec = 5, .epoch_time = 1, .strategy = "zero1", .ours = ours},
            NULL);
    }
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 3, .epoch_time = 1, .strategy = "single"}, NULL);
    ls_run_set_sort(&s);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_string_equal(a.group[1].label,
                        "zero1 (bucket 300000000, gather_bucket 200000000, prefetch_bucket 100000000) × 2");
    report_page(&a, &html, &md);
    assert_null(strstr(html.data, "\xe2\x80\xa6")); /* no ellipsis */
    for (int i = 1; i < 4; i++) {
        char words[16];
        int n = 0, whole = 0;
        snprintf(words, sizeof words, "%d0000000", i);
        for (const char *p = html.data; (p = strstr(p, words)); p += strlen(words))
            n++, whole += strchr("01", p[8]) != NULL;
        assert_true(n > 8);
        assert_int_equal(n, whole);
    }
    assert_int_equal(ls_strategies_table(&a, &table), LS_OK);
    has(table.data, "zero1 (bucket 300000001, gather_bucket   ");
    has(table.data, "\n  200000001, prefetch_bucket 100000001)");
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&table);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_seed_may_differ_between_repeats),
        cmocka_unit_test(the_base_has_no_other_options),
        cmocka_unit_test(losses_are_shown_by_seed),
        cmocka_unit_test(profiled_runs_are_not_benchmarks),
        cmocka_unit_test(the_settings_that_lead_are_named),
        cmocka_unit_test(ratios_are_those_of_turns),
        cmocka_unit_test(a_disturbed_baseline_is_named),
        cmocka_unit_test(single_runs_have_no_winner),
        cmocka_unit_test(other_differences_of_a_speedup_are_listed),
        cmocka_unit_test(unequal_numbers_of_steps_are_not_compared),
        cmocka_unit_test(long_names_are_wrapped_and_never_cut),
        cmocka_unit_test(intervals_use_the_t_distribution),
        cmocka_unit_test(speedups_match_those_of_r1),
        cmocka_unit_test(runs_that_differ_are_not_compared),
        cmocka_unit_test(the_waterfall_adds_up_to_the_step),
        cmocka_unit_test(settings_are_named_by_what_differs),
        cmocka_unit_test(one_run_has_an_interval_over_steps),
        cmocka_unit_test(the_page_names_the_steps_it_uses),
        cmocka_unit_test(all_means_of_a_page_have_one_ratio),
        cmocka_unit_test(one_layout_is_one_setting_everywhere),
        cmocka_unit_test(a_run_without_steps_after_the_warm_up_is_named),
        cmocka_unit_test(pipelines_are_compared_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
