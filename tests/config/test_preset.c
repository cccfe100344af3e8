/* Command lines of the trainers of the strategy comparison and of the translation study as flags of ours. test_r3.c has
 * the flags of the latter. */
#include "assert_text.h"
#include "config/options.h"
#include "config/preset.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* The arguments of a blank-separated command line, joined by blanks; parsed as options of train, too. */
static ls_status words_of(const char *line, bool bench, char out[1024], ls_train_options *o, ls_str *notes)
{
    static ls_argv words; /* the options borrow from it */
    static char *moved[256];
    ls_argv in = {0};
    ls_argv_fini(&words);
    assert_int_equal(ls_argv_split(&in, line), LS_OK);
    ls_train_preset p;
    const ls_status st = ls_train_preset_words(in.n, in.word, bench, &words, &p, notes);
    ls_argv_fini(&in);
    *out = '\0';
    for (int i = 0; i < words.n && st == LS_OK; i++) {
        strcat(out, words.word[i]);
        strcat(out, " ");
        moved[i] = words.word[i];
    }
    if (st == LS_OK && words.n && ls_train_options_parse_preset(&p, words.n, moved, o) != LS_OK)
        fail_msg("%s: %s", out, ls_err_words());
    return st;
}

static void must(const char *line, bool bench, ls_train_options *o)
{
    char out[1024];
    ls_str notes = {0};
    if (words_of(line, bench, out, o, &notes) != LS_OK) fail_msg("%s: %s", line, ls_err_words());
    assert_null(notes.data);
}

static void must_fail(const char *line, bool bench, ls_status st, const char *part)
{
    char out[1024];
    ls_train_options o;
    ls_str notes = {0};
    assert_int_equal(words_of(line, bench, out, &o, &notes), st);
    if (!strstr(ls_err_words(), part)) fail_msg("%s: '%s' does not contain '%s'", line, ls_err_words(), part);
    ls_str_fini(&notes);
}

static void frameworks_of_r2_are_strategies(void **state)
{
    (void)state;
    ls_train_options o;
    must("--preset r2 --data d", false, &o);
    assert_string_equal(o.strategy, "single");
    assert_true(o.n == 1 && o.micro_batch_size_per_gpu == 8 && o.grad_accum_steps == 1 && o.max_steps == 30);
    assert_true(o.seq_length == 1024 && o.lr == 1.5e-4 && o.clip == 1 && o.weight_decay == 0.01 && o.seed == 42);
    assert_true(o.max_val_steps == 10 && o.eval_every == 15 && o.save_every == 15 && o.steps_per_print == 15);
    assert_string_equal(o.lr_schedule, "cosine");
    assert_true(o.warmup_steps == 3 && o.min_lr_ratio == 0);
    assert_string_equal(o.tensorboard, "tb_logs");
    assert_string_equal(o.checkpoint_path, "checkpoints");
    assert_string_equal(o.precision, "fp32");
    assert_string_equal(o.betas.word[0], "0.9,0.95");
    must("--preset r2 --train-iters 19990", false, &o); /* a warm-up over a tenth of the steps, at most 2000 */
    assert_int_equal(o.warmup_steps, 1999);
    must("--preset r2 --train-iters 50000", false, &o);
    assert_int_equal(o.warmup_steps, 2000);

    must("--preset=r2 --framework ddp --num-gpus 2", false, &o);
    assert_string_equal(o.strategy, "ddp");
    assert_true(o.n == 2 && o.micro_batch_size_per_gpu == 8 && o.max_steps == 20);
    must("--framework dp --num-gpus 2 --preset r2", false, &o);
    assert_string_equal(o.strategy, "dp");
    assert_true(o.n == 2 && o.micro_batch_size_per_gpu == 4); /* the batch is split */
    must("--preset r2 --framework deepspeed --num_gpus 2 --global-batch-size 64 --use-fp16", false, &o);
    assert_string_equal(o.strategy, "zero2");
    assert_string_equal(o.lr_schedule, "WarmupCosineLR");
    assert_string_equal(o.precision, "fp16");
    assert_true(o.n == 2 && o.grad_accum_steps == 4 && o.max_steps == 31 && o.min_lr_ratio == 0.001);
    must("--preset r2 --framework deepspeed --strategy zero3", false, &o); /* other words override */
    assert_string_equal(o.strategy, "zero3");
    must(
        "--preset r2 --framework ddp --train-iters 100 --adam-beta1 0.8 --adam_beta2=0.9 --clip-grad 2 --model-path m "
        "--hidden-size 64 --num-attention-heads 4 --tensorboard-logs-path t --checkpoint-path c --lr 1e-3 --eval-iters 7",
        false, &o);
    assert_true(o.max_steps == 100 && o.warmup_steps == 10 && o.clip == 2 && o.embedding_size == 64 &&
                o.num_heads == 4);
    assert_true(o.lr == 1e-3 && o.max_val_steps == 7 && o.betas.n == 1);
    assert_string_equal(o.betas.word[0], "0.8,0.9");
    assert_string_equal(o.init_from, "m");
    assert_string_equal(o.tensorboard, "t");
    assert_string_equal(o.checkpoint_path, "c");
}

static void flags_of_r2_without_effect_are_noted(void **state)
{
    (void)state;
    char out[1024];
    ls_train_options o;
    ls_str notes = {0};
    assert_int_equal(words_of("--preset r2 --vocab-file v --swiglu --log-throughput false --split 9,1 --seed 7", false,
                              out, &o, &notes),
                     LS_OK);
    assert_string_equal(notes.data,
                        "flags of --preset r2 without effect: --vocab_file, --swiglu, --log_throughput, --split\n");
    assert_int_equal(o.seed, 7);
    ls_str_fini(&notes);
}

static void flags_of_r2_that_its_framework_does_not_use_are_noted(void **state)
{
    (void)state;
    char out[1024];
    ls_train_options o;
    ls_str notes = {0};
    assert_int_equal(words_of("--preset r2 --num-gpus 2 --global-batch-size 8", false, out, &o, &notes), LS_OK);
    assert_string_equal(notes.data,
                        "flags of --preset r2 without effect: --num_gpus (without --framework: one worker), "
                        "--global_batch_size (only with --framework deepspeed)\n");
    assert_int_equal(o.n, 1);
    ls_str_fini(&notes);
    must("--preset r2 --num-gpus 1", false, &o);
    must("--preset r2 --framework ddp --num-gpus 2", false, &o);
    must("--preset r2 --global-batch-size 8", true, &o); /* of all settings of the benchmark */
}

static void defaults_of_a_preset_are_known_from_what_was_typed(void **state)
{
    (void)state;
    static const char *const r2_default[] = {"lr", "model", "betas", "seed", "lr_schedule", "precision", "eval_every"},
                             *const r2_typed[] = {"n", "strategy", "max_steps", "clip", "weight_decay"},
                             *const r3_default[] = {"task", "lr", "lr_schedule", "seq_length", "grad_accum_steps"},
                             *const r3_typed[] = {"n", "micro_batch_size_per_gpu", "epochs", "eps"};
    ls_train_options o;
    must("--preset r2 --framework ddp --num-gpus 2 --train-iters 7 --clip-grad 2 --weight-decay 0", false, &o);
    assert_string_equal(o.preset, "r2");
    for (size_t i = 0; i < N_OF(r2_default); i++) assert_true(ls_train_by_preset(&o, r2_default[i]));
    for (size_t i = 0; i < N_OF(r2_typed); i++)
        assert_true(ls_train_given(&o, r2_typed[i]) && !ls_train_by_preset(&o, r2_typed[i]));
    must("--preset r3 --world_size 2 --batch_size 8 --n_epochs 1 --eps 1e-6", false, &o);
    assert_string_equal(o.preset, "r3");
    for (size_t i = 0; i < N_OF(r3_default); i++) assert_true(ls_train_by_preset(&o, r3_default[i]));
    for (size_t i = 0; i < N_OF(r3_typed); i++)
        assert_true(ls_train_given(&o, r3_typed[i]) && !ls_train_by_preset(&o, r3_typed[i]));
    must("--preset r3 --batch_size 8", true, &o); /* without the workers */
    assert_true(ls_train_by_preset(&o, "clip") && !ls_train_by_preset(&o, "micro_batch_size_per_gpu"));
    assert_false(ls_train_given(&o, "n"));
}

static void impossible_command_lines_are_refused(void **state)
{
    (void)state;
    must_fail("--preset r4", false, LS_E_ARG, "must be r2 or r3");
    must_fail("--preset", false, LS_E_ARG, "needs a value");
    must_fail("--preset r2 --framework fsdp", false, LS_E_ARG, "dp, ddp or deepspeed");
    must_fail("--preset r2 --framework dp --num-gpus 3", false, LS_E_CONFIG, "does not divide by 3");
    must_fail("--preset r2 --framework deepspeed --num-gpus 8", false, LS_E_CONFIG, "less than");
    must_fail("--preset r2 --framework ddp --num-nodes 2", false, LS_E_CONFIG, "torchrun");
    must_fail("--preset r2 --train-iters none", false, LS_E_ARG, "--train_iters 'none'");
    must_fail("--preset r2 --framework ddp --num-gpus 2", true, LS_E_ARG, "give -n to bench");
    must_fail("--preset r3 --world_size 2", true, LS_E_ARG, "give -n to bench");
    must_fail("--preset r3 --pytest True", false, LS_E_ARG, "--pytest");
}

static void r3_is_the_translation_task(void **state)
{
    (void)state;
    ls_train_options o;
    must("--preset r3 --data d", false, &o); /* its defaults, without any of its flags */
    assert_string_equal(o.task, "translate");
    assert_true(o.n == 2 && o.micro_batch_size_per_gpu == 64 && o.epochs == 10 && o.lr == 1e-4 && o.seq_length == 128);
    must("--preset r3 --model-parallel-mode pipeline_parallel --n_chunk 2 --batch_size 8 --model_max_length 32", false,
         &o);
    assert_true(o.pp == 2 && o.micro_batch_size_per_gpu == 4 && o.grad_accum_steps == 2 && o.seq_length == 32 &&
                o.epochs == 2);
    assert_string_equal(o.schedule, "gpipe");
    must("--preset r3 --batch_size 8", true, &o);
    assert_false(ls_train_given(&o, "n"));
}

static void a_benchmark_chooses_workers_and_folders(void **state)
{
    (void)state;
    ls_train_options o;
    must("--preset r2", true, &o);
    assert_false(ls_train_given(&o, "n") || ls_train_given(&o, "checkpoint_path") || o.tensorboard || o.strategy);
    assert_true(o.global_batch_size == 32 && o.micro_batch_size_per_gpu == 8 && !ls_train_given(&o, "save_every"));
    must("--preset r2 --framework deepspeed", true, &o);
    assert_string_equal(o.strategy, "zero2");
}

static void other_command_lines_stay_as_they_are(void **state)
{
    (void)state;
    char out[1024];
    ls_train_options o;
    ls_str notes = {0};
    const int64_t live = ls_mem_live();
    assert_int_equal(words_of("--data d --lr 1 --batch_size 3", false, out, &o, &notes), LS_OK);
    assert_string_equal(out, "");
    assert_true(ls_mem_live() <= live);
}

int main(void)
{
    unsetenv("WORLD_SIZE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frameworks_of_r2_are_strategies),
        cmocka_unit_test(flags_of_r2_without_effect_are_noted),
        cmocka_unit_test(flags_of_r2_that_its_framework_does_not_use_are_noted),
        cmocka_unit_test(defaults_of_a_preset_are_known_from_what_was_typed),
        cmocka_unit_test(impossible_command_lines_are_refused),
        cmocka_unit_test(r3_is_the_translation_task),
        cmocka_unit_test(a_benchmark_chooses_workers_and_folders),
        cmocka_unit_test(other_command_lines_stay_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
