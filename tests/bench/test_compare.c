/* Comparison of benchmark runs: excluded warm-up steps, weak scaling, the pipeline bubble, the six metrics. */
#include "report_checks.h"

static const ls_compare_opts steady = {.steady = true};

/* Three slow steps, then ten of 20 ms (one worker) or 12.5 ms (two): the slow ones must not count. */
static void warm_up_steps_do_not_count(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    s.warm = 3;
    ls_analysis a;
    ls_str one = {0}, two = {0};
    const double tokens = 16 * 64;
    made_steps(3, 1, 1, 0, 0, &one);
    made_steps(10, 0.006, 0.012, 0, 0.002, &one);
    made_steps(3, 2, 2, 1, 1, &two);
    made_steps(10, 0.0035, 0.006, 0.002, 0.001, &two);
    const char *ours =
        ", \"step_split\": {\"forward\": 9.0, \"backward\": 9.0}, \"workers\": [{\"exposed_comm_sec\": 4.0}, "
        "{\"exposed_comm_sec\": 1.0}]";
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "single", .ours = ours},
        &one);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = 15, .epoch_time = 1, .strategy = "ddp", .ours = ours},
        &two);
    assert_int_equal(ls_analyse(&s, &steady, &a), LS_OK);
    assert_true(a.steady);
    near(a.group[0].tokens.mean, tokens / 0.020, 1e-6);
    near(a.group[1].tokens.mean, tokens / 0.0125, 1e-6);
    near(a.group[1].speedup.mean, 1.6, 1e-9);
    near(a.group[1].speedup_r1, 1.5,
         1e-12); /* as the scaling study computes it (docs/REFERENCES.md), from whole epochs */
    const ls_waterfall *w = &a.group[1].waterfall;
    near(w->useful, 0.8, 1e-9);
    near(w->lost[LS_SPLIT_FORWARD], (0.0095 - 0.009) / 0.0125, 1e-9); /* from the steps, not from the recorded 18 s */
    near(w->lost[LS_SPLIT_EXPOSED], 0.0005 / 0.0125, 1e-9); /* a quarter of 2 ms: the shortest wait of a worker */
    near(w->lost[LS_SPLIT_STRAGGLER], 0.0015 / 0.0125, 1e-9);
    near(w->lost[LS_SPLIT_OPTIMIZER], 0, 1e-9);
    ls_str text = {0};
    ls_scaling_text(&a, NULL, NULL, NULL, &text);
    assert_non_null(strstr(text.data, "\"warmup_steps_excluded\": 3"));
    assert_non_null(strstr(text.data, "\"waterfall\": {\n        \"useful\": 0."));
    ls_str_fini(&text);
    ls_analysis_fini(&a);
    add(&s, "four", (made_run){.world = 4, .tokens_per_sec = 30, .epoch_time = 1, .strategy = "ddp"}, NULL);
    assert_int_equal(ls_analyse(&s, &steady, &a), LS_OK);
    assert_false(a.steady); /* one run has no steps: then the recorded values of all runs are used */
    near(a.group[2].speedup.mean, 3, 1e-12);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&one), ls_str_fini(&two);
}

/* A run without steps after the warm-up is not compared, and does not change the basis of the others. */
static void a_short_run_does_not_change_the_basis(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    s.warm = 3;
    ls_analysis a;
    ls_str one = {0}, two = {0}, brief = {0}, words = {0};
    made_steps(13, 0.006, 0.012, 0, 0.002, &one);
    made_steps(13, 0.0035, 0.006, 0.002, 0.001, &two);
    made_steps(3, 1, 1, 0, 0, &brief);
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "single"}, &one);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = 15, .epoch_time = 1, .strategy = "ddp"}, &two);
    add(&s, "brief", (made_run){.world = 2, .tokens_per_sec = 99, .epoch_time = 1, .strategy = "zero2"}, &brief);
    s.run[2].n_update = 3;
    assert_int_equal(ls_analyse(&s, &steady, &a), LS_OK);
    assert_true(a.steady && a.comparable && !a.n_mismatch);
    near(a.group[1].speedup.mean, 1.6, 1e-9);
    assert_true(a.group[2].no_benchmark);
    ls_basis_words(&a, &words);
    has(words.data, "Not compared, since no step is left after the warm-up: brief (3 steps).");
    ls_str_fini(&words);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&one), ls_str_fini(&two), ls_str_fini(&brief);
}

static void weak_scaling_compares_equal_batches_per_worker(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    s.warm = 1;
    ls_analysis a;
    ls_str one = {0}, two = {0};
    made_steps(11, 0.006, 0.012, 0, 0.002, &one);
    made_steps(11, 0.006, 0.013, 0.004, 0.002, &two); /* twice the tokens in 25 ms, not 20 */
    add(&s, "one",
        (made_run){.world = 1, .tokens_per_sec = 1, .epoch_time = 1, .strategy = "single", .global_batch = 16}, &one);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = 1, .epoch_time = 1, .strategy = "ddp", .global_batch = 32},
        &two);
    assert_int_equal(ls_analyse(&s, &steady, &a), LS_OK);
    assert_int_equal(a.n_mismatch, 1); /* not comparable, except for weak scaling */
    assert_string_equal(a.mismatch[0].field, "global_batch_size");
    ls_analysis_fini(&a);
    const ls_compare_opts o = {.weak = true, .steady = true};
    assert_int_equal(ls_analyse(&s, &o, &a), LS_OK);
    assert_int_equal(a.n_mismatch, 0);
    const ls_waterfall *w = &a.group[1].waterfall;
    near(a.group[1].efficiency.mean, 0.8, 1e-9);
    near(w->useful, 0.8, 1e-9);
    near(w->lost[LS_SPLIT_FORWARD], 0.001 / 0.025, 1e-9);
    near(w->lost[LS_SPLIT_EXPOSED], 0.004 / 0.025, 1e-9);
    near(w->lost[LS_SPLIT_OTHER], 0, 1e-9);
    ls_analysis_fini(&a);
    add(&s, "four", (made_run){.world = 4, .tokens_per_sec = 1, .epoch_time = 1, .strategy = "ddp", .global_batch = 32},
        NULL);
    assert_int_equal(ls_analyse(&s, &o, &a), LS_OK);
    assert_int_equal(a.n_mismatch, 1); /* half of the batch per worker */
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&one), ls_str_fini(&two);
}

/* Two stages, busy 8 and 12 ms of 20; the schedule accounts for 6 ms of waiting, so 4 ms are communication. */
static void a_pipeline_bubble_is_not_communication(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    s.warm = 1;
    ls_analysis a;
    ls_str one = {0}, two = {0}, table = {0};
    made_steps(11, 0.006, 0.012, 0, 0.002, &one);
    made_steps(11, 0.003, 0.005, 0.012, 0.001, &two); /* rank 0: the first stage */
    const char *ours =
        ", \"step_split\": {\"forward\": 0.003, \"backward\": 0.005, \"exposed_comm\": 0.012, \"optimizer\": 0.001}, "
        "\"workers\": [{\"exposed_comm_sec\": 4.0}, {\"exposed_comm_sec\": 1.0}], \"pipeline\": {\"schedule\": "
        "\"1f1b\", \"stages\": 2, \"bubble_measured\": 0.5, \"bubble_predicted\": 0.375, \"makespan_sec\": 0.020, \"makespan_predicted_sec\": 0.016, \"per_stage\": [{\"busy_sec\": 0.008}, {\"busy_sec\": 0.012}]}";
    add(&s, "one", (made_run){.world = 1, .tokens_per_sec = 1, .epoch_time = 1, .strategy = "single"}, &one);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = 1, .epoch_time = 1, .strategy = "single", .ours = ours},
        &two);
    assert_int_equal(ls_analyse(&s, &steady, &a), LS_OK);
    assert_string_equal(a.group[1].short_name, "pp (1f1b)");
    const double T = 0.021;
    const ls_waterfall *w = &a.group[1].waterfall;
    near(w->lost[LS_SPLIT_FORWARD], (0.010 - 0.009) / T, 1e-9); /* the mean stage compared with half of one worker */
    near(w->lost[LS_SPLIT_BUBBLE], 0.006 / T, 1e-9);
    near(w->lost[LS_SPLIT_EXPOSED], 0.004 / T, 1e-9);
    near(w->lost[LS_SPLIT_STRAGGLER], 0, 0); /* stages wait for each other by design */
    near(w->useful, 0.010 / T, 1e-9);
    near(w->lost[LS_SPLIT_OTHER], 0, 1e-9);
    ls_estimate six[LS_N_METRIC];
    assert_int_equal(ls_metrics_of(&a, &a.group[1], six), LS_OK);
    near(six[LS_METRIC_BUBBLE].mean, 0.006 / T, 1e-9);
    near(six[LS_METRIC_COMMUNICATION].mean, 0.004 / T, 1e-9);
    near(six[LS_METRIC_SPEEDUP].mean, 0.020 / T, 1e-9);
    assert_true(isnan(six[LS_METRIC_MEMORY].mean) && isnan(six[LS_METRIC_UTILISATION].mean));
    assert_int_equal(ls_strategies_table(&a, &table), LS_OK);
    assert_non_null(strstr(table.data, "pp (1f1b)"));
    ls_str_fini(&table);
    assert_int_equal(ls_strategies_text(&a, NULL, NULL, NULL, &table), LS_OK);
    json_t *root = NULL;
    assert_int_equal(ls_json_parse(table.data, table.len, "six", &root), LS_OK);
    assert_int_equal(json_array_size(json_object_get(root, "settings")), 2);
    json_decref(root);
    ls_str_fini(&table);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&one), ls_str_fini(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(warm_up_steps_do_not_count),
                                       cmocka_unit_test(a_short_run_does_not_change_the_basis),
                                       cmocka_unit_test(weak_scaling_compares_equal_batches_per_worker),
                                       cmocka_unit_test(a_pipeline_bubble_is_not_communication)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
