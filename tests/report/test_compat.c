/* Formats of other tools: nsys, R3's work folders, R1's verifier (docs/REFERENCES.md). */
#include "report_checks.h"
#include "report/compat/profile_summary.h"
#include "report/compat/tools.h"

#include <stdlib.h>

static void nsys(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nsys),
        cmocka_unit_test(workdirs),
        cmocka_unit_test(verifier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
