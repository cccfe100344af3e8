/* The flags of the translation study's scripts, translated to those of train. */
#include "cmocka_all.h"
#include "config/r3.h"

#include <stdlib.h>
#include <string.h>

/* The translated command line; caller frees. NULL: refused. */
static char *words(const char *line)
{
    ls_argv in = {0}, out = {0};
    ls_str s = {0};
    assert_int_equal(ls_argv_split(&in, line), LS_OK);
    ls_train_preset p;
    const ls_status st = ls_train_r3_words(in.n, in.word, false, &out, &p);
    if (st == LS_OK) ls_argv_show(&out, &s);
    char *text = st == LS_OK ? strdup(s.data ? s.data : "") : NULL;
    ls_str_fini(&s);
    ls_argv_fini(&in);
    ls_argv_fini(&out);
    return text;
}

static void assert_words(const char *line, const char *want)
{
    char *got = words(line);
    assert_non_null(got);
    assert_string_equal(got, want);
    free(got);
}

static void assert_refused(const char *line, const char *why)
{
    char *got = words(line);
    assert_null(got);
    if (!strstr(ls_err_words(), why)) fail_msg("%s, expected %s", ls_err_words(), why);
}

#define ADAMW "--lr_schedule=constant --betas=0.9,0.999 --eps=1e-8 --weight_decay=0.01 --clip=0"

static void other_command_lines_are_unchanged(void **state)
{
    (void)state;
    assert_words("--task translate --data d -n 2 --lr 1e-3", "--task translate --data d -n 2 --lr 1e-3");
    assert_words("", "");
}

static void data_parallel_flags_set_workers_and_batch(void **state)
{
    (void)state;
    assert_words(
        "--task translate --dataset d --world-size 4 --batch_size=256 --n_epochs 3 --learning_rate 2e-4 --model_max_length 64",
        "--grad_accum_steps=1 " ADAMW " --n=4 --micro_batch_size_per_gpu=64 --epochs=3 --lr=2e-4 --seq_length=64 "
        "--data=d --task translate");
    /* first the defaults of the script; words that are not the translation study's come last and override */
    assert_words("--n_epochs 1 --lr 1",
                 "--n=2 --micro_batch_size_per_gpu=64 --grad_accum_steps=1 --lr=1e-4 --seq_length=128 " ADAMW
                 " --epochs=1 --lr 1");
    assert_words("--batch_size 9 --world_size 2", /* rounded down, as the script does */
                 "--grad_accum_steps=1 --epochs=10 --lr=1e-4 --seq_length=128 " ADAMW
                 " --n=2 --micro_batch_size_per_gpu=4");
}

static void pipeline_flags_set_stages_and_chunks(void **state)
{
    (void)state;
    assert_words("--model_parallel_mode pipeline_parallel",
                 "--n=2 --micro_batch_size_per_gpu=8 --grad_accum_steps=4 --epochs=2 --lr=1e-4 "
                 "--seq_length=128 " ADAMW " --pp=2 --schedule=gpipe");
    assert_words("--model-parallel-mode=model_parallel --n_chunk 8 --batch_size 64 --world_size 4",
                 "--epochs=2 --lr=1e-4 --seq_length=128 " ADAMW
                 " --n=4 --pp=4 --schedule=naive --micro_batch_size_per_gpu=64 --grad_accum_steps=1");
}

static void wrong_values_are_refused(void **state)
{
    (void)state;
    assert_refused("--world_size two", "--world_size 'two'");
    assert_refused("--n_epochs", "--n_epochs needs a value");
    assert_refused("--batch_size 2 --world_size 4", "no sequence for each of 4 workers");
    assert_refused("--model_parallel_mode fast", "must be model_parallel or pipeline_parallel");
    assert_refused("--model_parallel_mode pipeline_parallel --batch_size 30", "does not divide by --n_chunk 4");
    assert_refused("--pytest 1", "verify --task translate");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_command_lines_are_unchanged),
        cmocka_unit_test(data_parallel_flags_set_workers_and_batch),
        cmocka_unit_test(pipeline_flags_set_stages_and_chunks),
        cmocka_unit_test(wrong_values_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
