/* The command line of train: the flags of the ZeRO scaling study (docs/REFERENCES.md) with their defaults, its obsolete
 * flags, our own flags, and the command lines that the scaling study published. */
#include "config/options.h"
#include "core/mem.h"
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>

static ls_status parse(ls_train_options *o, int argc, const char *const *words)
{
    static char *argv[64]; /* options point into it */
    assert_true(argc < 64);
    for (int i = 0; i < argc; i++) argv[i] = (char *)(uintptr_t)words[i];
    return ls_train_options_parse(argc, argv, o);
}
#define PARSE(o, ...) parse(o, (int)N_OF(((const char *[]){__VA_ARGS__})), (const char *[]){__VA_ARGS__})

static void no_flags_give_the_defaults(void **state)
{
    (void)state;
    ls_train_options o;
    assert_int_equal(parse(&o, 0, NULL), LS_OK);
    assert_string_equal(o.checkpoint_path, "checkpoint/optimized");
    assert_string_equal(o.device, "auto");
    assert_true(o.epochs == 1 && o.seq_length == 512 && o.train_micro_batch_size_per_gpu == 4 &&
                o.steps_per_print == 10);
    assert_true(o.local_rank == -1 && o.timing_warmup_steps == 5 && o.timing_sample_every == 50);
    assert_true(!o.resume && !o.profile && !o.profile_mode && !o.quiet_nccl_monitor && !o.help);
    assert_true(!o.run_type && !o.deepspeed_config && !o.train_data_path && !o.precision && o.n == 1 && o.pp == 1 &&
                o.tp == 1);
    for (size_t i = 0; i < ls_train_n_opts; i++) assert_false(ls_train_given(&o, ls_train_opts[i].name));
}

/* The command line that the published two-node run recorded, without its program. */
static void published_command_lines_are_understood(void **state)
{
    (void)state;
    ls_train_options o;
    assert_int_equal(PARSE(&o, "--run_type", "optimized", "--train_data_path", "train_small.bin", "--val_data_path",
                           "val_small.bin", "--checkpoint_path", "/runs/8gpu 2node", "--epochs", "1", "--seq_length",
                           "512", "--micro_batch_size_per_gpu", "2", "--grad_accum_steps", "2", "--deepspeed_config",
                           "src/deepspeed_config.json", "--profile_mode", "--max_train_steps", "80", "--max_val_steps",
                           "0"),
                     LS_OK);
    assert_string_equal(o.run_type, "optimized");
    assert_string_equal(o.checkpoint_path, "/runs/8gpu 2node");
    assert_true(o.micro_batch_size_per_gpu == 2 && o.grad_accum_steps == 2 && o.max_train_steps == 80 &&
                o.max_val_steps == 0);
    assert_true(o.profile_mode && ls_train_given(&o, "max_val_steps") && !ls_train_given(&o, "dropout"));
    assert_int_equal(
        PARSE(&o, "--local_rank=0", "--run_type", "baseline", "--enforce_global_batch_size", "16", "--local-rank", "3"),
        LS_OK);
    assert_int_equal(o.local_rank, 3); /* the last one wins */
    assert_int_equal(o.enforce_global_batch_size, 16);
    assert_int_equal(PARSE(&o, "--vocab_size", "9", "--embedding_size", "8", "--num_layers", "7", "--num_heads", "2",
                           "--dropout", "0", "--max_position_embeddings", "6", "--global_batch_size", "5",
                           "--num_workers", "4", "--quiet_nccl_monitor", "--resume", "--profile",
                           "--train_micro_batch_size_per_gpu", "3", "--timing_warmup_steps", "1",
                           "--timing_sample_every", "2"),
                     LS_OK);
    assert_true(o.vocab_size == 9 && o.embedding_size == 8 && o.num_layers == 7 && o.num_heads == 2 && o.dropout == 0);
    assert_true(o.max_position_embeddings == 6 && o.global_batch_size == 5 && o.num_workers == 4 && o.resume &&
                o.profile);
    assert_true(o.train_micro_batch_size_per_gpu == 3 && o.timing_warmup_steps == 1 && o.timing_sample_every == 2);
}

static void flags_of_our_own_are_read(void **state)
{
    (void)state;
    ls_train_options o;
    assert_int_equal(PARSE(&o, "--data", "d", "--model", "tiny", "--variant", "r1", "-n", "2", "--betas", "0.9", "0.95",
                           "--lr", "1e-3", "--lr-schedule", "cosine", "--warmup-steps", "10", "--max-steps", "1e3",
                           "--clip", "0", "--weight-decay", "0.1", "--save-every", "5", "--keep-last", "2", "--compute",
                           "cpu-ref", "--print-config", "--json"),
                     LS_OK);
    assert_true(o.n == 2 && o.lr == 1e-3 && o.warmup_steps == 10 && o.max_steps == 1000 && o.clip == 0 &&
                o.weight_decay == 0.1);
    assert_true(ls_train_given(&o, "clip") && o.save_every == 5 && o.keep_last == 2 && o.print_config && o.json);
    assert_int_equal(o.betas.n, 2);
    assert_string_equal(o.betas.word[1], "0.95");
    assert_string_equal(o.compute, "cpu-ref");
}

static void wrong_flags_and_values_are_refused(void **state)
{
    (void)state;
    ls_train_options o;
    assert_int_equal(PARSE(&o, "--seq_lenght", "3"), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "--seq_length"));
    assert_int_equal(PARSE(&o, "--run_type", "fast"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "--epochs", "many"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "--epochs"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "stray"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "--precision", "fp4"), LS_E_ARG);
    /* options of other trainers */
    assert_int_equal(PARSE(&o, "--steps", "3"), LS_E_ARG); /* no abbreviation of --steps_per_print */
    assert_non_null(strstr(ls_err_words(), "unknown option --steps; did you mean --max_steps"));
    assert_int_equal(PARSE(&o, "--framework=ddp"), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "--framework; only the command lines of --preset r2 have it "));
    assert_int_equal(PARSE(&o, "--n_chunk", "4"), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "--n_chunk; only the command lines of --preset r3 have it "));
    assert_int_equal(PARSE(&o, "--dtype", "bfloat16"), LS_E_ARG);
    assert_string_equal(ls_err_words(), "unknown option --dtype; use --precision bf16, fp16, fp8 or fp32");
    assert_int_equal(PARSE(&o, "--resume-from-checkpoint=x"), LS_E_ARG);
    assert_string_equal(ls_err_words(),
                        "unknown option --resume-from-checkpoint; use --resume RUN, with the folder of the run");
    assert_int_equal(PARSE(&o, "--help"), LS_OK);
    assert_int_equal(o.help, LS_OPT_FIRST_PAGE);
}

/* Names of nanoGPT, nanochat, llm.c, the Hugging Face Trainer, torchrun, DeepSpeed and Megatron-LM: each has its message, which names options that
 * exist. */
static void names_of_other_programs_are_explained(void **state)
{
    (void)state;
    static const struct {
        const char *word, *says;
    } other[] = {
        {"--always_save_checkpoint", "use --save_every"},
        {"--backend", "use --comm"},
        {"--bias", "leave it out: layers of GPT-2 have biases"},
        {"--ckpt_path", "use --resume"},
        {"--compile", "leave it out: kernels are compiled before the run"},
        {"--torch_compile", "leave it out: kernels are compiled before the run"},
        {"--dataset", "use --data"},
        {"--dataset_name", "use --data"},
        {"--decay_lr", "leave it out: the learning rate falls as --lr_schedule says"},
        {"--dtype", "use --precision"},
        {"--eval_only", "use `lockstep eval"},
        {"--log_interval", "use --steps_per_print"},
        {"--lr_decay_iters", "use --max_steps"},
        {"--lr_decay_steps", "use --max_steps"},
        {"--start", "use `lockstep generate"},
        {"--num_samples", "use `lockstep generate"},
        {"--max_new_tokens", "use `lockstep generate"},
        {"--wandb", "use --tensorboard"},
        {"--wandb_log", "use --tensorboard"},
        {"--wandb_project", "leave it out; --tensorboard DIR writes curves, --serve shows them on a web page"},
        {"--top_k", "use `lockstep generate"},
        {"--run", "leave it out: it names a run of wandb; --checkpoint_path DIR names the folder"},
        {"--context_length", "use --seq_length"},
        {"--depth", "use --num_layers"},
        {"--aspect_ratio", "use --embedding_size"},
        {"--matrix_lr", "use --lr"},
        {"--device_type", "use --device"},
        {"--total_batch_size", "use --global_batch_size"},
        {"-i", "use --train_data_path"},
        {"-j", "use --val_data_path"},
        {"-e", "use --init_from"},
        {"-o", "use --checkpoint_path"},
        {"-b", "use --micro_batch_size_per_gpu"},
        {"-t", "use --seq_length"},
        {"-d", "use --global_batch_size"},
        {"-x", "use --max_steps"},
        {"-k", "use --lr_schedule"},
        {"-l", "use --lr"},
        {"-u", "use --warmup_steps"},
        {"-q", "use --min_lr_ratio"},
        {"-c", "use --weight_decay"},
        {"-v", "use --eval_every"},
        {"-m", "use --max_val_steps"},
        {"-s", "use --summary"},
        {"-g", "use `lockstep generate"},
        {"-a", "leave it out: use a text of one batch to overfit it"},
        {"-f", "use --tf32"},
        {"-w", "leave it out: fp32 master weights are always kept"},
        {"-z", "use --strategy"},
        {"-r", "use --recompute"},
        {"-y", "use --resume"},
        {"-nk", "use --keep_last"},
        {"-sl", "leave it out: no step is skipped because of its loss"},
        {"-sg", "leave it out: no step is skipped because of its gradient; --clip limits the norm"},
        {"-ge", "leave it out: the kernels decide what they fuse"},
        {"-pi", "use --comm"},
        {"-pn", "use -n"},
        {"--fsdp", "use --strategy"},
        {"--push_to_hub", "leave it out: upload the folder of a checkpoint, RUN/epoch-N"},
        {"--per_device_eval_batch_size", "use --micro_batch_size_per_gpu"},
        {"--bf16_full_eval", "use --precision"},
        {"--fp16_full_eval", "use --precision"},
        {"--torch_dtype", "use --precision"},
        {"--mixed_precision", "use --precision"},
        {"--fp8_amax_compute_algo", "use --fp8_amax_history_len"},
        {"--logging_steps", "use --steps_per_print"},
        {"--logging_dir", "use --tensorboard"},
        {"--report_to", "use --tensorboard"},
        {"--resume_from_checkpoint", "use --resume"},
        {"--warmup_ratio", "use --warmup_steps"},
        {"--do_train", "use `lockstep eval"},
        {"--do_eval", "leave it out: validation is at the end of each epoch; --max_val_steps 0"},
        {"--eval_strategy", "leave it out: validation is at the end of each epoch; --eval_every N"},
        {"--evaluation_strategy", "leave it out: validation is at the end of each epoch; --eval_every N"},
        {"--save_strategy", "leave it out: a checkpoint is saved at the end of each epoch; --save_every N"},
        {"--overwrite_output_dir", "leave it out: give a new --checkpoint_path"},
        {"--dataloader_num_workers", "leave it out: data is memory-mapped"},
        {"--optim", "leave it out: the optimizer is AdamW"},
        {"--train_file", "use --data"},
        {"--validation_file", "use `lockstep prepare"},
        {"--tokenizer_name", "use `lockstep prepare"},
        {"--nproc_per_node", "use -n"},
        {"--num_processes", "use -n"},
        {"--num_gpus", "use -n"},
        {"--nnodes", "use `lockstep launch"},
        {"--num_nodes", "use `lockstep launch"},
        {"--node_rank", "use `lockstep launch"},
        {"--master_addr", "use `lockstep launch"},
        {"--master_port", "use `lockstep launch"},
        {"--rdzv_backend", "use `lockstep launch"},
        {"--standalone", "use -n"},
        {"--hostfile", "use `lockstep launch"},
        {"--include", "use `lockstep launch"},
        {"--exclude", "use `lockstep launch"},
        {"--zero_stage", "use --strategy"},
        {"--n_epochs", "use --epochs"},
        {"--model_max_length", "use --seq_length"},
        {"--ffn_hidden_size", "leave it out: the hidden layer of GPT-2 is 4 times as wide as the embedding"},
        {"--use_fp16", "use --precision"},
        {"--data_path", "use --data"},
        {"--model_path", "use --init_from"},
        {"--padded_vocab_size", "use --vocab_size"},
        {"--tensorboard_dir", "use --tensorboard"},
        {"--tensorboard_logs_path", "use --tensorboard"},
        {"--vocab_file", "use `lockstep prepare"},
        {"--merge_file", "use `lockstep prepare"},
        {"--lr_decay_style", "use --lr_schedule"},
        {"--init_method_std", "leave it out: weights are drawn with 0.02"},
    };
    ls_train_options o;
    size_t n_row = 0;
    for (size_t i = 0; i < ls_train_n_opts; i++) n_row += ls_train_opts[i].instead != NULL;
    assert_int_equal(n_row, N_OF(other));
    for (size_t i = 0; i < N_OF(other); i++) {
        char start[96], given[64];
        snprintf(given, sizeof given, "%s=x", other[i].word);
        snprintf(start, sizeof start, "unknown option %s; %s", other[i].word, other[i].says);
        assert_int_equal(PARSE(&o, given), LS_E_ARG);
        if (strncmp(ls_err_words(), start, strlen(start)) != 0) fail_msg("%s: %s", other[i].word, ls_err_words());
        if (strstr(ls_err_words(), "lockstep ")) continue; /* options of another command */
        for (const char *p = ls_err_words() + strlen("unknown option --x"); (p = strstr(p, " --")); p += 3) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strspn(p + 3, "abcdefghijklmnopqrstuvwxyz_0123456789"), p + 3);
            const size_t k = ls_opt_row(ls_train_opts, ls_train_n_opts, name);
            if (k == ls_train_n_opts || !ls_train_opts[k].help) fail_msg("%s: no option --%s", ls_err_words(), name);
        }
    }
    /* names whose meaning is the same */
    assert_int_equal(PARSE(&o, "--num_iterations", "7", "--device_batch_size=3", "--max-seq-len", "64"), LS_OK);
    assert_true(o.max_steps == 7 && o.micro_batch_size_per_gpu == 3 && o.seq_length == 64);
    assert_int_equal(PARSE(&o, "--per_device_train_batch_size", "2", "--num_train_epochs", "3", "--output_dir", "d"),
                     LS_OK);
    assert_true(o.micro_batch_size_per_gpu == 2 && o.epochs == 3 && !strcmp(o.checkpoint_path, "d"));
    /* values that are what happens anyway */
    assert_int_equal(
        PARSE(&o, "--compile", "False", "--bias", "--wandb_log=0", "--bias=True", "--eval-only", "false", "--lr", "1"),
        LS_OK);
    assert_true(o.lr == 1);
    assert_int_equal(PARSE(&o, "--run=dummy", "-sl", "0", "-sg", "0", "--push_to_hub", "False", "--lr", "1"), LS_OK);
    assert_true(o.lr == 1);
    assert_int_equal(PARSE(&o, "--lr", "1", "--bias"), LS_OK);
    assert_int_equal(PARSE(&o, "--bias", "False"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "--compile"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "--init_from", "scratch", "--lr=1"), LS_OK);
    assert_true(!o.init_from && !ls_train_given(&o, "init_from"));
    assert_int_equal(PARSE(&o, "--init_from", "resume"), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "use --resume RUN"));
    /* DeepSpeed's two options */
    assert_int_equal(PARSE(&o, "--deepspeed", "--deepspeed_config", "a.json", "--lr", "1"), LS_OK);
    assert_string_equal(o.deepspeed_config, "a.json");
    assert_int_equal(PARSE(&o, "--lr", "1", "--deepspeed_config=a.json", "--deepspeed"), LS_OK);
    assert_true(!strcmp(o.deepspeed_config, "a.json") && o.lr == 1);
    assert_int_equal(PARSE(&o, "--deepspeed", "a.json"), LS_OK);
    assert_string_equal(o.deepspeed_config, "a.json");
    assert_int_equal(PARSE(&o, "--deepspeed", "--lr", "1"), LS_E_ARG);
}

/* A value that was left out is not taken from the next option. */
static void names_of_options_are_no_values(void **state)
{
    (void)state;
    ls_train_options o;
    static const char *const word[] = {"--checkpoint_path", "--checkpoint-path=x", "-n", "--bf16"};
    for (size_t i = 0; i < N_OF(word); i++) {
        assert_int_equal(PARSE(&o, "--tensorboard", word[i], "x"), LS_E_ARG);
        if (!strstr(ls_err_words(), "--tensorboard needs a value (DIR); ")) fail_msg("%s", ls_err_words());
    }
    assert_int_equal(PARSE(&o, "--tensorboard=--checkpoint_path", "--lr", "-1"), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "--lr -1: must be"));
    assert_int_equal(PARSE(&o, "--tensorboard", "--checkpoints", "--data", "-"), LS_OK);
    assert_string_equal(o.tensorboard, "--checkpoints");
}

static void other_spellings_set_the_same_options(void **state)
{
    (void)state;
    ls_train_options o;
    assert_int_equal(PARSE(&o, "--gradient_accumulation_steps", "4", "--learning_rate", "1e-4", "--gradient_clipping",
                           "0.5", "--pipeline_stages", "2"),
                     LS_OK);
    assert_true(o.grad_accum_steps == 4 && o.lr == 1e-4 && o.clip == 0.5 && o.pp == 2);
    assert_true(ls_train_given(&o, "grad_accum_steps") && ls_train_given(&o, "lr") && ls_train_given(&o, "clip") &&
                ls_train_given(&o, "pp"));
    assert_int_equal(PARSE(&o, "--pipeline_stages", "2", "--pp", "4"), LS_OK);
    assert_int_equal(o.pp, 4);
    assert_int_equal(PARSE(&o, "--lr", "1e-4", "--lr", "2e-4"), LS_OK);
    assert_true(o.lr == 2e-4); /* the last one wins */
    assert_int_equal(PARSE(&o, "--learning_rate", "1e-4", "--lr", "2e-4"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "--bf16", "--precision", "fp32"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "--batch_size", "16", "--per_device_train_batch_size", "8"), LS_E_ARG);
    assert_int_equal(PARSE(&o, "--fp16", "False", "--bf16", "True"), LS_OK);
    assert_string_equal(o.precision, "bf16");
    const ls_train_preset from_run = {"run", 1}; /* typed options override those of a run under any name */
    char *words[] = {(char[]){"--lr=1e-4"}, (char[]){"--learning_rate=2e-4"}};
    assert_int_equal(ls_train_options_parse_preset(&from_run, 2, words, &o), LS_OK);
    assert_true(o.lr == 2e-4);
}

static void flags_without_effect_are_warned_about(void **state)
{
    (void)state;
    ls_train_options o;
    ls_str s = {0};
    assert_int_equal(PARSE(&o, "--use_flash_attention", "--weight_decay", "0.01"), LS_OK);
    ls_train_options_warnings(&o, &s);
    assert_string_equal(
        s.data,
        "--use_flash_attention has no effect; attention is always computed without storing the whole score matrix\n");
    ls_str_fini(&s);
    assert_true(o.weight_decay == 0.01 && ls_train_given(&o, "weight_decay")); /* this flag has an effect here */
    assert_int_equal(parse(&o, 0, NULL), LS_OK);
    ls_train_options_warnings(&o, &s);
    assert_int_equal(s.len, 0);
    /* an old command line of the scaling study */
    assert_int_equal(PARSE(&o, "--pipeline_stages", "2", "--run_type", "optimized", "--learning_rate", "1e-4"), LS_OK);
    assert_true(o.pp == 1 && !ls_train_given(&o, "pp") && o.lr == 1e-4);
    ls_train_options_warnings(&o, &s);
    assert_string_equal(
        s.data, "--pipeline_stages has no effect; the ZeRO scaling study ignores it, too (use --pp for a pipeline)\n"
                "--learning_rate is an old flag of the ZeRO scaling study; it is used as --lr\n");
    ls_str_fini(&s);
    assert_int_equal(PARSE(&o, "--pipeline_stages", "2"), LS_OK);
    ls_train_options_warnings(&o, &s);
    assert_int_equal(s.len, 0);
}

static void the_help_lists_every_documented_flag(void **state)
{
    (void)state;
    ls_str s = {0};
    ls_train_options_help(LS_OPT_ALL_PAGES, &s);
    for (size_t i = 0; i < ls_train_n_opts; i++) { /* every flag that has a help text */
        ls_str row = {0};
        ls_str_addf(&row, "\n  --%s ", ls_train_opts[i].name); /* not within the text of another flag */
        bool there = strstr(s.data, row.data) != NULL;
        row.data[row.len - 1] = '\n';
        there = there || strstr(s.data, row.data);
        if (there != (ls_train_opts[i].help != NULL)) fail_msg("--%s in the help: %d", ls_train_opts[i].name, there);
        ls_str_fini(&row);
    }
    assert_non_null(strstr(s.data, "usage: lockstep train"));
    ls_str_fini(&s);
}

static void the_first_help_page_is_short_and_names_the_other_one(void **state)
{
    (void)state;
    ls_str s = {0};
    int n = 0;
    ls_train_options_help(LS_OPT_FIRST_PAGE, &s);
    for (const char *p = s.data; (p = strstr(p, "\n  --")); p++) n++;
    assert_in_range(n, 15, 30);
    assert_non_null(strstr(s.data, "\n--help_all lists all "));
    assert_null(strstr(s.data, "Signals:"));
    ls_str_fini(&s);
}

/* Options have one spelling in the help: with underscores. */
static void every_row_is_spelt_with_underscores_and_has_a_range(void **state)
{
    (void)state;
    for (size_t i = 0; i < ls_train_n_opts; i++) {
        const ls_opt *o = &ls_train_opts[i];
        if (strchr(o->name, '-')) fail_msg("--%s: write it with _", o->name);
        if (o->of && ls_opt_row(ls_train_opts, ls_train_n_opts, o->of) == ls_train_n_opts)
            fail_msg("--%s: no row --%s", o->name, o->of);
        if (!o->of && (o->kind == LS_OPT_INT || o->kind == LS_OPT_REAL) && !(o->lo < o->hi))
            fail_msg("--%s has no range", o->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_flags_give_the_defaults),
        cmocka_unit_test(published_command_lines_are_understood),
        cmocka_unit_test(flags_of_our_own_are_read),
        cmocka_unit_test(wrong_flags_and_values_are_refused),
        cmocka_unit_test(names_of_other_programs_are_explained),
        cmocka_unit_test(names_of_options_are_no_values),
        cmocka_unit_test(other_spellings_set_the_same_options),
        cmocka_unit_test(flags_without_effect_are_warned_about),
        cmocka_unit_test(the_help_lists_every_documented_flag),
        cmocka_unit_test(the_first_help_page_is_short_and_names_the_other_one),
        cmocka_unit_test(every_row_is_spelt_with_underscores_and_has_a_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
