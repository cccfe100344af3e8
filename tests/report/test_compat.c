/* Formats of other tools: nsys, the work folders of the translation study, and the verifier of the ZeRO scaling study
 * (docs/REFERENCES.md). */
#include "report_checks.h"
#include "report/compat/profile_summary.h"
#include "report/compat/tools.h"

#include <stdlib.h>

static void nsys_rows_are_ranked_by_time(void **state)
{
    (void)state;
    static const char text[] =
        "Processing [a.sqlite] with [nvtx_sum.py]...\n\n ** NVTX Range Summary (nvtx_sum):\n\n"
        " Time (%)  Total Time (ns)  Instances  Range\n --------  ---------------  ---------  -----\n"
        "     20.5%  1,23,456   3  PushPop  :train/a  \r\n     30.0  1.5 ms   3  PushPop  NCCL:b c\n     30.0  n/a   3  PushPop  later\n"
        "   few  fields\n     10.0  one\n\n"
        " ** OS Runtime Summary (osrt_sum):\n     99.0  12   1  poll\n"
        " ** NVTX Range Summary (again):\n     21.0  5   1  x.ALLREDUCE_gradients\nProcessing [b]\n     98.0  5   1  outside\n";
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

static void rows_of_one_name_are_summed_over_files(void **state)
{
    (void)state;
    char *root = test_dir();
    ls_str out = {0};
    size_t n = 0;
    test_write(root, "profiles/nsys_stats_a.txt",
               " ** NVTX Range Summary (nvtx_sum):\n  60.0  600  3  PushPop  :x\n  40.0  400  1  PushPop  :y\n");
    assert_int_equal(ls_nsys_summary_text(root, &out, &n), LS_OK);
    assert_non_null(
        strstr(out.data, "\"time_percent\": 60.0,\n      \"total_time\": \"600 ns\"")); /* one file: as it is */
    ls_str_fini(&out);
    test_write(
        root, "profiles/nsys_stats_b.txt",
        " ** NVTX Range Summary (nvtx_sum):\n  80.0  2.4 us  3  PushPop  :y\n  20.0  6,00  1  PushPop  z.allreduce_gradients\n"
        "Processing [second capture]\n ** NVTX Range Summary (nvtx_sum):\n  100.0  2000  1  PushPop  z.allreduce_gradients\n");
    out = (ls_str){0};
    assert_int_equal(ls_nsys_summary_text(root, &out, &n), LS_OK);
    assert_int_equal(n, 2);
    json_t *o = NULL;
    assert_int_equal(ls_json_parse(out.data, out.len, "summary", &o), LS_OK);
    const json_t *top = json_object_get(o, "nvtx_top5");
    static const struct {
        const char *name, *total;
        double percent;
    } want[] = {{":y", "2800 ns", 46.7}, {"z.allreduce_gradients", "2600 ns", 43.3}, {":x", "600 ns", 10.0}};
    assert_int_equal(json_array_size(top), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(top, i);
        assert_string_equal(json_string_value(json_object_get(row, "name")), want[i].name);
        assert_string_equal(json_string_value(json_object_get(row, "total_time")), want[i].total);
        assert_true(json_number_value(json_object_get(row, "time_percent")) == want[i].percent);
    }
    assert_non_null(strchr(json_string_value(json_object_get(json_array_get(top, 0), "raw")), '\n'));
    const json_t *matched = json_object_get(json_object_get(o, "likely_bottleneck"), "matched");
    assert_string_equal(json_string_value(json_object_get(matched, "total_time")), "2600 ns");
    json_decref(o);
    ls_str_fini(&out);
    const int64_t live = ls_mem_live(); /* out of memory at any point leaks nothing */
    for (int64_t k = 0;; k++) {
        ls_str s = {0};
        ls_mem_fail_at(k);
        const ls_status st = ls_nsys_summary_text(root, &s, &n);
        ls_mem_fail_at(-1);
        ls_str_fini(&s);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
    }
    test_dir_close(root);
}

/* The scripts of the translation study (docs/REFERENCES.md) write one file per rank and epoch. */
/* Equal rows of two files of one host are one report; of two hosts they are added. */
static void equal_rows_of_one_host_count_once(void **state)
{
    (void)state;
    static const char text[] =
        " ** NVTX Range Summary (nvtx_sum):\n  60.0  600  3  PushPop  :x\n  40.0  400  1  PushPop  :y\n";
    static const struct {
        const char *name, *total;
        bool once;
    } c[] = {{"profiles/nsys_stats_7_node1.txt", "600 ns", false},
             {"profiles/nsys_stats_9_node1.txt", "600 ns", true},
             {"profiles/nsys_stats_9_node2.txt", "1200 ns", true}};
    char *root = test_dir();
    for (size_t i = 0; i < N_OF(c); i++) {
        ls_str out = {0};
        size_t n = 0;
        test_write(root, c[i].name, text);
        assert_int_equal(ls_nsys_summary_text(root, &out, &n), LS_OK);
        json_t *o = NULL;
        assert_int_equal(ls_json_parse(out.data, out.len, "summary", &o), LS_OK);
        const json_t *row = json_array_get(json_object_get(o, "nvtx_top5"), 0);
        assert_string_equal(json_string_value(json_object_get(row, "total_time")), c[i].total);
        assert_int_equal(json_integer_value(json_object_get(o, "rows_counted_once")), c[i].once ? 2 : 0);
        json_decref(o);
        ls_str_fini(&out);
    }
    test_dir_close(root);
}

static void result_files_of_r3_become_runs(void **state)
{
    (void)state;
    char *root = test_dir();
    char *dp = ls_path_join(root, "dp/workdir"), *pp = ls_path_join(root, "pp/workdir");
    assert_int_equal(ls_fs_mkdirs(dp), LS_OK);
    assert_int_equal(ls_fs_mkdirs(pp), LS_OK);
    test_write(dp, "config.json", "{}");
    for (int e = 0; e < 3; e++)
        for (int r = 0; r < 2; r++) {
            char name[64], text[200];
            snprintf(name, sizeof name, "rank%d_results_epoch%d.json", r, e);
            snprintf(text, sizeof text,
                     "{\"validation_loss\": %g, \"bleu\": 1.5, \"training_time\": %d, \"tokens_per_sec\": %d}",
                     5.0 - e + r, e ? 10 + r : 99, e ? 100 * e + r : 7);
            test_write(dp, name, text);
        }
    test_write(dp, "rank0_gen_epoch0.json", "[]");
    test_write(pp, "eval_results_epoch0.json", "{\"validation_loss\": 4, \"bleu\": 2}");
    test_write(pp, "eval_results_epoch1.json", "{\"validation_loss\": \"x\"}");
    ls_run_set s = {0};
    assert_int_equal(ls_run_set_add(&s, root), LS_OK);
    assert_int_equal(s.n, 2);
    const ls_run *a = &s.run[0], *b = &s.run[1];
    assert_int_equal(a->world, 2);
    near(a->tokens_per_sec, 150 + 151, 1e-9); /* mean of epochs 1 and 2, summed over ranks */
    near(a->epoch_time, 10.5, 1e-9);
    near(a->val_loss, 3.5, 1e-9);
    near(a->bleu, 1.5, 1e-9);
    near(a->train_time.mean, 10.5, 1e-9); /* of epochs 1 and 2 */
    near(a->rates.mean, (201 + 401) / 2.0, 1e-9);
    near(a->rates.half, 12.706 * 100 * sqrt(2) / sqrt(2), 0.1);
    assert_true(isnan(b->bleu)); /* the last epoch has none */
    assert_int_equal(a->n_epoch, 3);
    near(a->epoch_val[0], 5.5, 1e-9);
    assert_string_equal(a->strategy, "translation, data parallel");
    assert_int_equal(b->world, 0);
    assert_true(isnan(b->tokens_per_sec));
    near(b->val_loss, 4, 1e-9);
    ls_analysis all;
    ls_str html = {0}, md = {0};
    assert_int_equal(ls_analyse(&s, NULL, &all), LS_OK);
    report_page(&all, &html, &md);
    has(md.data,
        "| dp/workdir | translation, data parallel | 2 | 3 | 10.50 ± 0.00 | 301.0 ± 1,270.6 | 3.5000 | 1.50 |");
    has(md.data, "| pp/workdir | translation, pipeline | – | 2 | – | – | 4.0000 | – |");
    has(md.data, "Speeds are of the epochs after the first of each run, as it recorded them: the first is warm-up.");
    assert_null(strstr(md.data, "warm-up included"));
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&all);
    has_note(&s.notes, "do not contain the number of workers");
    has_note(&s.notes, "eval_results_epoch1.json: key validation_loss");
    assert_int_equal(s.notes.n, 2);
    ls_run_set_fini(&s);
    test_write(dp, "rank3_results_epoch1.json", "{\"validation_loss\": 4}"); /* rank 2 is missing */
    assert_int_equal(ls_run_set_add(&s, dp), LS_OK);
    assert_true(s.n == 1 && isnan(s.run[0].tokens_per_sec));
    has_note(&s.notes, "not of every rank");
    ls_run_set_fini(&s);
    ls_free(dp), ls_free(pp);
    test_dir_close(root);
}

/* A run of ours has its times in training_metrics.json and its BLEU in workdir/, where files of an earlier run may be left. */
static void our_translation_runs_have_a_bleu(void **state)
{
    (void)state;
    static const char epoch[] = "{\"epoch_idx\": 1,",
                      more[] = "{\"epoch_wall_time_sec\": 99, \"tokens_per_sec_global\": 1}, ";
    char *root = test_dir(), *dir = ls_path_join(root, "workdir");
    ls_str made = {0}, text = {0};
    made_metrics(&(made_run){.world = 2, .tokens_per_sec = 40, .epoch_time = 8, .strategy = "ddp"}, &made);
    const char *at = strstr(made.data, epoch);
    ls_str_addf(&text, "%.*s%s%s", (int)(at - made.data), made.data, more, at); /* two epochs; the second counts */
    assert_int_equal(ls_fs_mkdirs(dir), LS_OK);
    test_write(root, "training_metrics.json", text.data);
    test_write(dir, "rank0_results_epoch0.json", "{\"validation_loss\": 9, \"bleu\": 1}");
    test_write(dir, "rank0_results_epoch1.json", "{\"validation_loss\": 2.25, \"bleu\": 30}");
    test_write(dir, "rank1_results_epoch1.json", "{\"validation_loss\": 2.25, \"bleu\": 32}");
    test_write(dir, "rank2_results_epoch1.json", "{\"validation_loss\": 2.25, \"bleu\": 99}"); /* there is no rank 2 */
    test_write(dir, "eval_results_epoch1.json", "{\"validation_loss\": 7, \"bleu\": 99}");     /* another run's */
    ls_run_set s = {0};
    assert_int_equal(ls_run_set_add(&s, root), LS_OK);
    assert_int_equal(s.n, 1);
    assert_true(s.run[0].translation && !s.run[0].later_epochs);
    near(s.run[0].bleu, 31, 1e-9);
    near(s.run[0].train_time.mean, 8, 1e-9);
    near(s.run[0].rates.mean, 40, 1e-9);
    ls_analysis a;
    ls_str html = {0}, md = {0};
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data, "| ddp | 2 | 2 | 8.00 | 40.0 | 2.2500 | 31.00 |");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    test_write(dir, "rank0_results_epoch1.json", "{\"validation_loss\": 3, \"bleu\": 30}");
    test_write(dir, "rank1_results_epoch1.json", "{\"validation_loss\": 3, \"bleu\": 32}");
    assert_int_equal(ls_run_set_add(&s, root), LS_OK);
    assert_true(s.n == 1 && !s.run[0].translation && isnan(s.run[0].bleu));
    has_note(&s.notes, "no results of the last epoch of training_metrics.json (epoch 1,");
    ls_run_set_fini(&s);
    ls_str_fini(&made), ls_str_fini(&text);
    ls_free(dir);
    test_dir_close(root);
}

static void the_verifier_reports_every_invalid_run(void **state)
{
    (void)state;
    char *root = test_dir();
    ls_str good = {0}, out = {0};
    int n_run, n_bad;
    made_metrics(&(made_run){.world = 2, .tokens_per_sec = 1, .epoch_time = 1}, &good);
    assert_int_equal(ls_report_verify(root, &out, &n_run, &n_bad), LS_OK);
    assert_int_equal(n_run, 0);
    test_write(root, "2gpu_a/run_1/training_metrics.json", good.data);
    test_write(root, "2gpu_a/run_1/train.log", "x");
    test_write(root, "1gpu_b/run_1/training_metrics.json", good.data);
    test_write(root, "1gpu_b/run_1/train.log", "x");
    test_write(root, "2gpu_a/run_2/training_metrics.json", good.data);
    test_write(root, "2gpu_a/run_2/train.log", "");
    test_write(root, "run_3/train.log", "x");
    test_write(root, "run_4/train.log", "x");
    test_write(root, "run_4/training_metrics.json", "{}");
    test_write(root, "run_5/train.log", "x");
    test_write(root, "run_5/training_metrics.json", good.data);
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
    test_dir_close(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nsys_rows_are_ranked_by_time),      cmocka_unit_test(rows_of_one_name_are_summed_over_files),
        cmocka_unit_test(equal_rows_of_one_host_count_once), cmocka_unit_test(result_files_of_r3_become_runs),
        cmocka_unit_test(our_translation_runs_have_a_bleu),  cmocka_unit_test(the_verifier_reports_every_invalid_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
