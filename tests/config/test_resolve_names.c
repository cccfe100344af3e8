/* Resolution of settings: names, rates and schedules of other trainers, and numbers at and beyond the limits of every option. */
#include "resolve_checks.h"

#include <math.h>

/* The settings of --print_config. */
static char *printed(const char *line)
{
    ls_train_config c;
    ls_str s = {0};
    must(NULL, line, &c);
    assert_int_equal(ls_train_config_fit(&c, 100000, 1000), LS_OK);
    ls_train_config_table(&c, &s);
    ls_train_config_fini(&c);
    return s.data;
}

static void names_of_other_trainers_give_the_same_settings(void **state)
{
    (void)state;
    static const char *const same[][2] = {
        {"--learning_rate 6e-4", "--lr 6e-4"},
        {"--batch_size 3", "--micro_batch_size_per_gpu 3"},
        {"--micro_batch_size 3", "--micro_batch_size_per_gpu 3"},
        {"--per_device_train_batch_size 3", "--micro_batch_size_per_gpu 3"},
        {"--gradient_accumulation_steps 5", "--grad_accum_steps 5"},
        {"--batch_size 2 --train_batch_size 8", "--micro_batch_size_per_gpu 2 --global_batch_size 8"},
        {"--block_size 64", "--seq_length 64"},
        {"--seq_len 64", "--seq_length 64"},
        {"--max_seq_length 64", "--seq_length 64"},
        {"--output_dir r", "--checkpoint_path r"},
        {"--out_dir r", "--checkpoint_path r"},
        {"--gradient_checkpointing", "--recompute"},
        {"--gradient_checkpointing True", "--recompute"},
        {"--activation_checkpointing", "--recompute"},
        {"--save_steps 7", "--save_every 7"},
        {"--save_interval 7", "--save_every 7"},
        {"--save_steps 7 --save_total_limit 2", "--save_every 7 --keep_last 2"},
        {"--eval_steps 7", "--eval_every 7"},
        {"--eval_interval 7", "--eval_every 7"},
        {"--eval_iters 7", "--max_val_steps 7"},
        {"--max_iters 7", "--max_steps 7"},
        {"--train_iters 7", "--max_steps 7"},
        {"--num_train_epochs 2", "--epochs 2"},
        {"--warmup_iters 7", "--warmup_steps 7"},
        {"--adam_epsilon 1e-6", "--eps 1e-6"},
        {"--beta1 0.8 --beta2 0.98", "--adam_beta1 0.8 --adam_beta2 0.98"},
        {"--grad_clip 0.5", "--clip 0.5"},
        {"--clip_grad 0.5", "--clip 0.5"},
        {"--max_grad_norm 0.5", "--clip 0.5"},
        {"--gradient_clipping 0.5", "--clip 0.5"},
        {"--world_size 2", "-n 2"},
        {"--n_layer 3 --n_head 2 --n_embd 32", "--num_layers 3 --num_heads 2 --embedding_size 32"},
        {"--num_hidden_layers 3 --num_attention_heads 2 --hidden_size 32",
         "--num_layers 3 --num_heads 2 --embedding_size 32"},
        {"--n_positions 64", "--max_position_embeddings 64"},
        {"-n 2 --pipeline_model_parallel_size 2", "-n 2 --pp 2"},
        {"-n 2 --tensor_model_parallel_size 2", "-n 2 --tp 2"}};
    for (size_t i = 0; i < N_OF(same); i++) {
        char line[2][256];
        for (int k = 0; k < 2; k++) snprintf(line[k], sizeof line[k], "--model tiny %s", same[i][k]);
        char *theirs = printed(line[0]), *ours = printed(line[1]);
        if (strcmp(theirs, ours) != 0) fail_msg("%s:\n%s\nbut %s:\n%s", same[i][0], theirs, same[i][1], ours);
        ls_free(theirs);
        ls_free(ours);
    }
    ls_train_config c;
    must(NULL, "--device cpu --bf16", &c);
    assert_true(c.dtype == LS_BF16);
    ls_train_config_fini(&c);
    must_fail(NULL, "--device cpu --fp16 true", LS_E_UNSUPPORTED, "fp16");
    must_fail(NULL, "--fp16=maybe", LS_E_ARG,
              "--fp16 maybe: this switch takes true, 1, yes, false, 0 or no; it stands for --precision fp16");
    must(NULL, "--device cpu --fp16 False --bf16 True", &c);
    assert_true(c.dtype == LS_BF16);
    ls_train_config_fini(&c);
}

static void betas_can_be_given_one_by_one(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "--adam_beta2 0.98", &c);
    assert_true(c.beta1 == 0.9 && c.beta2 == 0.98);
    assert_source(&c, "beta1", LS_FROM_DEFAULT, "");
    assert_source(&c, "beta2", LS_FROM_CLI, "--adam_beta2");
    ls_train_config_fini(&c);
    must_fail(NULL, "--betas 0.9,0.95 --beta1 0.8", LS_E_ARG, "--betas and --adam_beta1 cannot be combined");
    must_fail(NULL, "--beta1 1", LS_E_ARG, "--adam_beta1 1: must be at least 0 and less than 1");
}

/* nanoGPT: min_lr + (lr - min_lr) * (1 + cos(pi * x)) / 2. */
static void the_lowest_rate_can_be_a_rate(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "--lr 6e-4 --min_lr 6e-5 --warmup_iters 10 --max_iters 100", &c);
    assert_int_equal(ls_train_config_fit(&c, 100000, 1000), LS_OK);
    assert_true(ls_lr_at(&c.lr, 100) == 6e-5);
    assert_true(ls_lr_at(&c.lr, 55) == 6e-5 + (6e-4 - 6e-5) * (1 + cos(3.14159265358979323846 * 45 / 90)) / 2);
    assert_source(&c, "min_lr", LS_FROM_CLI, "--min_lr");
    ls_train_config_fini(&c);
    must_fail(NULL, "--lr 1e-4 --min_lr 6e-4", LS_E_CONFIG,
              "--min_lr 0.0006: must be at most the learning rate 0.0001");
    must_fail(NULL, "--min_lr 1e-5 --min_lr_ratio 0.1", LS_E_ARG, "cannot be combined");
    must_fail(NULL, "--min_lr 1e-5 --lr_schedule constant", LS_E_CONFIG, "--min_lr is only for");
}

/* The multipliers of transformers' get_linear_schedule_with_warmup and others: s = 0, 1, ... is the number of earlier updates. */
static void schedules_of_the_hugging_face_trainer_are_its_own(void **state)
{
    (void)state;
    ls_train_config c;
    const double T = 50, pi = 3.14159265358979323846;
    static const char *const name[] = {"linear", "cosine", "constant", "constant_with_warmup"};
    for (int k = 0; k < 4; k++)
        for (int W = 0; W <= 10 && (W == 0 || k != 2); W += 10) {
            char line[128];
            snprintf(line, sizeof line, "--lr 1e-3 --max_steps 50 --lr_scheduler_type %s%s", name[k],
                     W ? " --warmup_steps 10" : "");
            must(NULL, line, &c);
            assert_int_equal(ls_train_config_fit(&c, 100000, 1000), LS_OK);
            for (int s = 0; s < 50; s++) {
                double want = k == 0 ? (T - s) / (T - W) : k == 1 ? 0.5 * (1 + cos(pi * (s - W) / (T - W))) : 1;
                if (s < W) want = (double)s / W;
                if (fabs(ls_lr_at(&c.lr, s + 1) - 1e-3 * want) > 1e-18)
                    fail_msg("%s, update %d: %g, not %g", line, s + 1, ls_lr_at(&c.lr, s + 1), 1e-3 * want);
            }
            ls_train_config_fini(&c);
        }
    must_fail(NULL, "--lr_scheduler_type constant --warmup_steps 3", LS_E_CONFIG, "use constant_with_warmup");
    must_fail(NULL, "--lr_scheduler_type cosine --lr_schedule cosine", LS_E_ARG, "cannot be combined");
    must_fail(NULL, "--lr_scheduler_type polynomial", LS_E_ARG, "not one of linear|cosine|");
}

/* Each numeric option with values at and beyond its limits: refused in words, or a configuration. */
static void no_number_crashes_the_resolution(void **state)
{
    (void)state;
    static const char *const value[] = {"0",    "-1",   "1",  "nan", "inf", "1e308", "99999999999999999999",
                                        "1e15", "0x10", "1.5"};
    int n_refused = 0, n_fine = 0;
    for (size_t i = 0; i < ls_train_n_opts; i++) {
        const ls_opt *row = &ls_train_opts[i];
        if (row->of || (row->kind != LS_OPT_INT && row->kind != LS_OPT_REAL)) continue;
        for (size_t k = 0; k < N_OF(value); k++) {
            char line[128];
            ls_train_config c;
            snprintf(line, sizeof line, "--model tiny --%s %s", row->name, value[k]);
            const ls_status st = resolve_with(NULL, line, NULL, &c);
            if (st == LS_OK) {
                n_fine++;
                (void)ls_train_config_fit(&c, 100000, 1000);
                ls_train_config_fini(&c);
            } else {
                n_refused++;
                if (ls_status_exit_code(st) != 2) fail_msg("%s: exit code %d", line, ls_status_exit_code(st));
            }
        }
        char word[64], empty[] = "", *argv[] = {word, empty};
        ls_train_options o;
        snprintf(word, sizeof word, "--%s", row->name);
        assert_int_equal(ls_train_options_parse(2, argv, &o), LS_E_ARG);
    }
    assert_true(n_refused > 100 && n_fine > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_other_trainers_give_the_same_settings),
        cmocka_unit_test(betas_can_be_given_one_by_one),
        cmocka_unit_test(the_lowest_rate_can_be_a_rate),
        cmocka_unit_test(schedules_of_the_hugging_face_trainer_are_its_own),
        cmocka_unit_test(no_number_crashes_the_resolution),
    };
    return cmocka_run_group_tests(tests, clean_environment, NULL);
}
