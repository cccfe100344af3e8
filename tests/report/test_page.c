/* The page: the contents of its tables, text from files that must not become markup, and failed allocations. */
#include "report_checks.h"

/* Names from files cannot become markup of the page. */
static void names_cannot_inject_html_or_tables(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0};
    add(&s, "<script>alert(1)</script>/a|b",
        (made_run){.world = 1, .tokens_per_sec = 1e300, .epoch_time = 1, .strategy = "<b>\\u0001&\\\""}, NULL);
    add(&s, "two", (made_run){.world = 2, .tokens_per_sec = 1e-300, .epoch_time = 1, .strategy = "<i>"}, NULL);
    add(&s, "host-\xe2\x80\xaegpj.exe\xe2\x81\xa9\x1b", (made_run){.world = 2, .strategy = "zero1"}, NULL);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    assert_false(html.failed);
    assert_null(strstr(html.data, "<script"));
    assert_null(strstr(html.data, "<b>"));
    assert_null(strstr(html.data, "<i>"));
    has(html.data, "&lt;script&gt;alert(1)&lt;/script&gt;");
    has(md.data, "a\\|b");
    const char *const both[] = {html.data, md.data};
    for (int i = 0; i < 2; i++) { /* text of another direction would show another name */
        has(both[i], "host-[U+202E]gpj.exe[U+2069][U+001B]");
        assert_null(strstr(both[i], "\xe2\x80\xae"));
    }
    assert_null(strstr(html.data, "http:")); /* no external addresses, not even an XML namespace */
    assert_null(strstr(html.data, "https:"));
    assert_null(strstr(html.data, "nan\""));
    assert_null(strstr(html.data, "nan "));
    assert_null(strstr(html.data, "inf\""));
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* How the device was chosen does not separate settings. The backend of any communicator does, and the page shows it. */
static void runs_are_grouped_by_communication_backend(void **state)
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
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 3);
    assert_int_equal(a.group[0].n_run, 2);
    report_page(&a, &html, &md);
    int n = 0;
    for (const char *p = md.data; (p = strstr(p, "| 2 over nccl |")); p++) n++;
    assert_int_equal(n, 3);
    has(md.data, "| 2 over local |");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* Planned and peak memory in one row belong to rank 0; the highest peak of all ranks has its own column. */
static void rank_0_and_the_maximum_have_columns(void **state)
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
        "%.*s\"max_cuda_mem_allocated_bytes_rank0\": 74448896, \"max_cuda_mem_allocated_bytes_global\": 147849216, \"peak_rss_bytes_rank0\": 999999999, %s",
        (int)(at - text.data), text.data, at);
    assert_int_equal(add_made(&s, "r", &all, NULL), LS_OK);
    near(s.run[0].peak_bytes, 74448896, 0);
    near(s.run[0].peak_most, 147849216, 0);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data, "| setting | rank 0: planned, MiB | rank 0: peak, MiB |");
    has(md.data, "| 70.0 | 71.0 | 70.0 | 140.0 | 141.0 |");
    ls_str_fini(&text), ls_str_fini(&all), ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* A wait is charged to the collective that was waited for, so a kind of collective may wait longer than it runs. Therefore hidden time is
 * reported per communicator. */
static void hidden_time_is_reported_per_communicator(void **state)
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
                       "\"exposed_sec\": 0.01}, \"all_reduce\": {\"busy_sec\": 0.02, \"exposed_sec\": 0.05}, "
                       "\"broadcast\": {\"calls\": 3, \"bytes_moved\": 0, \"busy_sec\": 0, \"exposed_sec\": 0, "
                       "\"busbw_bytes_per_sec\": 6.33e9}}, "
                       "\"tensor_comm\": {\"backend\": \"nccl\", \"steps\": 10, \"all_reduce\": {\"busy_sec\": 0.01, "
                       "\"exposed_sec\": 0.03}}, \"gradients_comm\": {\"backend\": \"nccl\", \"steps\": 10, \"send\": "
                       "{\"busy_sec\": null, \"exposed_sec\": null}}"},
        NULL);
    assert_true(ls_run_comm_time_of(&s.run[0], LS_RUN_COMM_REPLICAS, &t));
    near(t.busy, 0.010, 1e-12);
    near(t.exposed, 0.006, 1e-12);
    near(t.hidden, 0.004, 1e-12); /* summed over kinds it would be 7 ms, and exposed + hidden would exceed busy */
    assert_true(ls_run_comm_time_of(&s.run[0], LS_RUN_COMM_TENSOR, &t));
    near(t.hidden, 0, 0);
    assert_true(ls_run_comm_time_of(&s.run[0], LS_RUN_COMM_GRADS, &t));
    assert_true(isnan(t.hidden)); /* not measured */
    assert_false(ls_run_comm_time_of(&s.run[0], LS_RUN_COMM_ACTS, &t));
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data, "A wait is charged to the collective that was waited for");
    has(md.data, "| replicas | 10.000 | 6.000 | 4.000 | 40 |");
    has(md.data, "| broadcast | 3 | 0.00 | 0.000 | 0.000 | \xe2\x80\x93 |"); /* no bytes, no rate */
    has(md.data, "| tensor parallel | 1.000 | 3.000 | 0.000 | 0 |");
    has(md.data, "zero1 × 2: collectives are those of the last attempt, 10 of 20 steps, as the run was restarted");
    has(md.data, "r: collectives are those of the last attempt, 10 of 20 steps"); /* between GPUs */
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* Files that an earlier run with NCCL left in the folder are not shown for a run without NCCL. A run of the scaling
 * study does not record a backend. */
static void nccl_files_of_other_runs_are_ignored(void **state)
{
    (void)state;
    static const char nccl[] = "{\"version\": \"2.30.7\", \"warnings\": 3}", topo[] = "GPU0\t X \n";
    static const char *const ours[] = {
        ", \"device\": \"cpu\", \"comm\": {\"backend\": \"local\"}",
        ", \"device\": \"cuda\", \"activations_comm\": {\"backend\": \"local\"}",
        ", \"device\": \"cuda\", \"deterministic\": true, \"activations_comm\": {\"backend\": \"nccl\"}", NULL};
    for (int i = 0; i < 4; i++) {
        const bool shown = i >= 2;
        ls_run_set s = new_set();
        ls_analysis a;
        ls_str metrics = {0}, html = {0}, md = {0};
        made_metrics(
            &(made_run){
                .world = 2, .tokens_per_sec = 10, .epoch_time = 1, .strategy = ours[i] ? "ddp" : NULL, .ours = ours[i]},
            &metrics);
        const ls_run_texts t = {.file[LS_RUN_METRICS] = {metrics.data, metrics.len},
                                .file[LS_RUN_NCCL] = {nccl, sizeof nccl - 1},
                                .file[LS_RUN_TOPO] = {topo, sizeof topo - 1}};
        assert_int_equal(ls_run_read_texts(&t, "r", &s.notes, &s.run[s.n++]), LS_OK);
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
        report_page(&a, &html, &md);
        assert_int_equal(strstr(md.data, "## Communication between GPUs") != NULL, shown);
        assert_int_equal(strstr(md.data, "Deterministic runs do not use the rings for sums") != NULL, i == 2);
        assert_int_equal(strstr(md.data, "NCCL printed 3 warnings") != NULL, shown);
        assert_int_equal(s.notes.n, !shown);
        if (!shown) has_note(&s.notes, "r: the run did not communicate over NCCL (local)");
        ls_str_fini(&metrics), ls_str_fini(&html), ls_str_fini(&md);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* Each allocation fails once: the status is LS_E_NOMEM or the report is complete, and nothing leaks. */
static ls_status read_and_report(const ls_str *metrics, const ls_str *steps)
{
    ls_run_set s = {.run = ls_alloc(2 * sizeof(ls_run)), .cap = 2};
    ls_analysis a = {0};
    ls_str html = {0}, md = {0};
    ls_status st = s.run ? LS_OK : ls_nomem(1, "runs");
    if (st == LS_OK) st = add_made(&s, "a", metrics, steps);
    if (st == LS_OK) st = ls_analyse(&s, NULL, &a);
    if (st == LS_OK) {
        report_page(&a, &html, &md);
        if (html.failed) st = ls_nomem(1, "page");
        ls_analysis_fini(&a);
    }
    ls_str_fini(&html), ls_str_fini(&md);
    ls_run_set_fini(&s);
    return st;
}

static void a_failed_allocation_leaks_nothing(void **state)
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

/* The part of a page from one heading to the next. */
static void section(const ls_str *md, const char *heading, ls_str *out)
{
    const char *at = strstr(md->data, heading), *end = at ? strstr(at + 3, "\n## ") : NULL;
    assert_non_null(at);
    ls_str_addn(out, at, end ? (size_t)(end - at) : strlen(at));
}

/* Every comparison has its ratio, interval and p. */
static void findings_are_backed_by_intervals(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        int world;
        double rate;
    } row[] = {{"ddp", 1, 100}, {"zero2", 1, 98}, {"ddp", 2, 190}, {"zero2", 2, 150}, {"zero3", 2, 189}};
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0}, part = {0};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int k = -1; k <= 1; k++) {
            char ours[120];
            snprintf(ours, sizeof ours, ", \"memory\": {\"per_rank\": [{\"peak_rss\": %d}]}",
                     (int)(100 - i) * 1048576 + k);
            add(&s, "r",
                (made_run){.world = row[i].world,
                           .tokens_per_sec = row[i].rate + k,
                           .epoch_time = 1,
                           .strategy = row[i].strategy,
                           .ours = ours},
                NULL);
        }
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 5);
    report_page(&a, &html, &md);
    section(&md, "## Findings and recommendation", &part);
    has(part.data, "| ddp × 2 | ddp × 1 | 3, not in turns | 1.900 | 1.861 to 1.940 | 2.1e-06 | 2e-05 | faster |");
    has(part.data, "| zero2 × 2 | zero2 × 1 | 3, not in turns | 1.531 |");
    has(part.data, "| ddp × 2 | zero2 × 2 | 3, not in turns | 1.267 |");
    has(part.data,
        "| ddp × 2 | zero3 × 2 | 3, not in turns | 1.005 | 0.993 to 1.017 | 0.29 | 1 | no difference shown |");
    has(part.data,
        "- On 2 workers, the peak memory of a worker is lower with zero3 (96.0 ± 0.0 MiB) than with ddp (98.0 ± 0.0 MiB).");
    has(part.data, "- For speed, use one of: ddp × 2, zero3 × 2; memory and waits may decide between them.");
    assert_null(strstr(part.data, "Waiting")); /* no share of waits was recorded */
    /* workers by framework */
    has(md.data,
        "| workers | ddp | zero2 | zero3 |\n| --- | --- | --- | --- |\n| 1 | 100.00 ± 2.48 | 98.00 ± 2.48 | – |\n| 2 | 190.0 ± 2.5 | 150.0 ± 2.5 | 189.0 ± 2.5 |");
    has(md.data, "| 2 | 1.90 ± 0.04 | 1.53 ± 0.03 | 1.89 ± 0.04 |");
    has(md.data, "![Training time](charts/training_time.svg)");
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&part);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void a_winner_is_recommended(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str html = {0}, md = {0};
    for (int k = 0; k < 2; k++) {
        add(&s, "a", (made_run){.world = 2, .tokens_per_sec = 300 + k, .epoch_time = 1, .strategy = "ddp"}, NULL);
        add(&s, "b", (made_run){.world = 2, .tokens_per_sec = 200 + k, .epoch_time = 1, .strategy = "zero3"}, NULL);
    }
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data, "- For speed, use: ddp × 2.");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* Times of different work are not drawn beside each other; a caption states what the times are of. */
static void training_times_are_of_comparable_runs(void **state)
{
    (void)state;
    for (int allowed = 0; allowed < 2; allowed++) {
        ls_run_set s = new_set();
        ls_analysis a;
        ls_str html = {0}, md = {0};
        add(&s, "a", (made_run){.world = 1, .tokens_per_sec = 10, .epoch_time = 1, .strategy = "ddp"}, NULL);
        add(&s, "b",
            (made_run){.world = 1, .tokens_per_sec = 9, .epoch_time = 1, .strategy = "ddp", .global_batch = 32}, NULL);
        assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.allow_mismatch = allowed}, &a), LS_OK);
        report_page(&a, &html, &md);
        assert_int_equal(strstr(md.data, "charts/training_time.svg") != NULL, allowed);
        if (allowed) has(md.data, "without the start of the program; mismatch_allowed");
        ls_str_fini(&html), ls_str_fini(&md);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
    }
}

/* The 95th percentile is that of the steps after the warm-up; for a run of the scaling study, that of its sampled
 * micro-batches. */
static void step_times_have_a_95th_percentile(void **state)
{
    (void)state;
    static const char sampled[] =
        "\"optimizer_steps\": 20, \"step_time_mean_sec\": 0.05, \"step_time_p50_sec\": 0.04, \"step_time_p95_sec\": 0.08";
    ls_run_set s = new_set();
    s.warm = 2;
    ls_analysis a;
    ls_str html = {0}, md = {0}, steps = {0}, text = {0}, theirs = {0};
    made_steps(2, 9, 0, 0, 0, &steps);
    for (int i = 1; i <= 21; i++) made_steps(1, 0.001 * i, 0, 0, 0, &steps); /* position 0.95 x 20 = 19: the 20th */
    add(&s, "ours", (made_run){.world = 1, .tokens_per_sec = 5, .epoch_time = 1, .strategy = "single"}, &steps);
    near(s.run[0].step_p95, 0.020, 1e-12);
    made_metrics(&(made_run){.world = 2, .tokens_per_sec = 5, .epoch_time = 1}, &text);
    const char *at = strstr(text.data, "\"optimizer_steps\": 20");
    ls_str_addf(&theirs, "%.*s%s%s", (int)(at - text.data), text.data, sampled, at + strlen("\"optimizer_steps\": 20"));
    assert_int_equal(add_made(&s, "theirs", &theirs, NULL), LS_OK);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data, "| single × 1 | 11.000 | 20.000 | 1.82 | steps after the warm-up |");
    has(md.data, "| zero1 × 2 | 50.000 | 80.000 | 1.60 | sampled micro-batches of rank 0 |");
    has(md.data, "none of them has an update");
    ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&steps), ls_str_fini(&text), ls_str_fini(&theirs);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(findings_are_backed_by_intervals),
        cmocka_unit_test(a_winner_is_recommended),
        cmocka_unit_test(training_times_are_of_comparable_runs),
        cmocka_unit_test(step_times_have_a_95th_percentile),
        cmocka_unit_test(names_cannot_inject_html_or_tables),
        cmocka_unit_test(runs_are_grouped_by_communication_backend),
        cmocka_unit_test(rank_0_and_the_maximum_have_columns),
        cmocka_unit_test(hidden_time_is_reported_per_communicator),
        cmocka_unit_test(nccl_files_of_other_runs_are_ignored),
        cmocka_unit_test(a_failed_allocation_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
