/* Resolution of settings: precedence of the sources, the batch rule, refused settings, the sources that --print-config shows, and the
 * number of steps from the size of the data. */
#include "config/resolve.h"
#include "core/mem.h"
#include "assert_text.h"
#include "test_argv.h"
#include "test_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ls_train_paths paths = {.train = (char *)(uintptr_t) "d/train_small.bin",
                                     .val = (char *)(uintptr_t) "d/val.bin"};

/* Resolves a DeepSpeed JSON (NULL: none) with a command line of blank-separated words. */
static ls_status resolve_with(const char *json, const char *line, const ls_train_facts *facts, ls_train_config *c)
{
    static char words[1024];
    static char *argv[TEST_ARGV_MAX];
    ls_train_options o;
    ls_ds_config ds;
    snprintf(words, sizeof words, "%s", line);
    const int argc = test_argv(words, argv);
    LS_TRY(ls_train_options_parse(argc, argv, &o));
    if (json && ls_ds_config_parse(json, strlen(json), "ds.json", &ds) != LS_OK)
        fail_msg("%s: %s", json, ls_err_words());
    ls_status st = ls_train_resolve(&o, json ? &ds : NULL, &paths, facts, c);
    if (json) ls_ds_config_fini(&ds);
    return st;
}

static void must(const char *json, const char *line, ls_train_config *c)
{
    if (resolve_with(json, line, NULL, c) != LS_OK)
        fail_msg("%s with %s: %s", line, json ? json : "no JSON", ls_err_words());
}

static void must_fail(const char *json, const char *line, ls_status st, const char *part)
{
    ls_train_config c;
    int64_t live = ls_mem_live();
    if (resolve_with(json, line, NULL, &c) != st) fail_msg("%s: '%s'", line, ls_err_words());
    if (!strstr(ls_err_words(), part)) fail_msg("%s: '%s' does not contain '%s'", line, ls_err_words(), part);
    assert_int_equal(ls_mem_live(), live);
}

static const ls_setting *setting(const ls_train_config *c, const char *name)
{
    for (int i = 0; i < c->n_setting; i++)
        if (!strcmp(c->setting[i].name, name)) return &c->setting[i];
    fail_msg("there is no setting %s", name);
    return NULL;
}

static void assert_source(const ls_train_config *c, const char *name, ls_source source, const char *detail)
{
    const ls_setting *s = setting(c, name);
    if (s->source != source || strcmp(s->detail, detail))
        fail_msg("%s is from source %d (%s)", name, (int)s->source, s->detail);
}

static bool noted(const ls_train_config *c, const char *part)
{
    return c->notes.data && strstr(c->notes.data, part);
}

static int clean_environment(void **state)
{
    (void)state;
    const char *const names[] = {"RANK",         "LOCAL_RANK",   "WORLD_SIZE",
                                 "PROFILE_MODE", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME"};
    for (size_t i = 0; i < N_OF(names); i++) unsetenv(names[i]);
    return 0;
}

/* The form of Hugging Face's trainer, which fills in its own arguments. */
static void auto_in_a_json_leaves_the_key_to_the_command_line(void **state)
{
    (void)state;
    static const char json[] =
        "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": \"auto\","
        "\"gradient_clipping\": \"auto\", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\","
        "\"eps\": \"auto\", \"weight_decay\": \"auto\"}}, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\","
        "\"warmup_min_lr\": \"auto\", \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\", \"warmup_type\": \"auto\"}},"
        "\"fp16\": {\"enabled\": \"auto\"}, \"bf16\": {\"enabled\": \"auto\"}, \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": \"auto\"}}";
    ls_train_config c;
    must(
        json,
        "--train_data_path t.bin --device cpu --micro_batch_size_per_gpu 3 --grad_accum_steps 2 --clip 0.5 --lr 3e-4 --weight_decay 0.2 --warmup_steps 7",
        &c);
    assert_true(c.micro_batch == 3 && c.grad_accum == 2 && c.clip == 0.5 && c.lr.max == 3e-4 && c.lr.warmup == 7);
    assert_source(&c, "micro_batch_size_per_gpu", LS_FROM_CLI, "--micro_batch_size_per_gpu");
    assert_int_equal(ls_train_config_fit(&c, 600, 0), LS_OK);
    assert_true(c.lr.total == c.total_steps && c.total_steps > 0);
    ls_train_config_fini(&c);
    ls_train_config without; /* and without them, the defaults of a JSON that has none of these keys */
    must(json, "--train_data_path t.bin --device cpu", &c);
    must("{\"zero_optimization\": {\"stage\": 2}}", "--train_data_path t.bin --device cpu", &without);
    assert_true(c.micro_batch == without.micro_batch && c.grad_accum == 1 && c.clip == without.clip);
    assert_true(c.clip == 0 && c.bucket == without.bucket);
    ls_train_config_fini(&c);
    ls_train_config_fini(&without);
}

static void without_a_json_our_defaults_apply(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "--model tiny", &c);
    assert_true(c.micro_batch == 4 && c.grad_accum == 1 && c.global_batch == 4 && c.epochs == 1 && c.world_size == 1);
    assert_int_equal(c.seq_len, 256); /* the model's positions limit the default of 512 */
    assert_source(&c, "seq_length", LS_FROM_RULE, "the model's positions");
    assert_string_equal(c.optimizer, "AdamW");
    assert_true(c.lr.base == 3e-4 && c.beta1 == 0.9 && c.beta2 == 0.95 && c.weight_decay == 0.1 && c.clip == 1.0 &&
                c.bias_correction);
    assert_true(c.lr.kind == LS_LR_COSINE && c.warmup_auto && c.lr.floor_ratio == 0.1 && !c.coupled);
    assert_true(c.max_train_steps == -1 && c.max_val_steps == -1 && c.max_steps == 0 && !c.epochs_auto && !c.engine);
    assert_string_equal(c.precision_label, "fp32");
    assert_string_equal(c.model_from, "tiny");
    assert_int_equal(c.model.vocab_size, 257);
    assert_int_equal(c.model.variant, LS_VARIANT_HF);
    assert_int_equal(c.seed, 1337);
    assert_source(&c, "lr", LS_FROM_DEFAULT, "");
    ls_train_config_fini(&c);
}

static const char r1_json[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"steps_per_print\": 100,"
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.0001, \"betas\": [0.9, 0.999], \"eps\": 1e-8, "
    "\"weight_decay\": 0.01}},\"fp16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1}, \"gradient_clipping\": 1.0,"
    "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 0.0001, "
    "\"warmup_num_steps\": 1000}},\"wall_clock_breakdown\": true}";

static void blocks_of_the_json_set_the_layout_and_recompute(void **state)
{
    (void)state;
    const char *json =
        "{\"pipeline\": {\"stages\": 2, \"activation_checkpoint_interval\": 1}, \"tensor_parallel\": {\"autotp_size\": 2}}";
    ls_train_config c;
    must(json, "-n 8 --model gpt2", &c);
    assert_true(c.mesh.n[LS_AXIS_PP] == 2 && c.mesh.n[LS_AXIS_TP] == 2 && c.mesh.n[LS_AXIS_DP] == 2 && c.recompute);
    assert_source(&c, "pp", LS_FROM_JSON, "pipeline.stages");
    assert_source(&c, "tp", LS_FROM_JSON, "tensor_parallel.autotp_size");
    assert_source(&c, "recompute", LS_FROM_JSON, "pipeline.activation_checkpoint_interval");
    ls_train_config_fini(&c);
    must(json, "-n 8 --model gpt2 --pp 4 --tp 1", &c);
    assert_true(c.mesh.n[LS_AXIS_PP] == 4 && c.mesh.n[LS_AXIS_TP] == 1 && c.mesh.n[LS_AXIS_DP] == 2);
    ls_train_config_fini(&c);
    must_fail(json, "-n 2 --model gpt2", LS_E_CONFIG, "");
    must("{\"tensor_parallel\": {\"autotp_size\": 1, \"tp\": {\"tp_size\": 4}}, \"pipeline\": {\"stages\": \"auto\"}}",
         "-n 4 --model gpt2", &c);
    assert_true(c.mesh.n[LS_AXIS_TP] == 4 && c.mesh.n[LS_AXIS_PP] == 1 && !c.recompute);
    assert_source(&c, "tp", LS_FROM_JSON, "tensor_parallel.tp.tp_size");
    ls_train_config_fini(&c);

    json = "{\"activation_checkpointing\": {\"partition_activations\": true}}";
    must(json, "--model gpt2", &c);
    assert_true(c.recompute &&
                noted(&c, "partition_activations of the DeepSpeed JSON: the activations of each block are recomputed"));
    ls_train_config_fini(&c);
    must(json, "--run_type optimized", &c); /* R1's model ignores the block */
    assert_true(!c.recompute && noted(&c, "no effect with --run_type"));
    ls_train_config_fini(&c);
    must("{\"activation_checkpointing\": {\"partition_activations\": false, \"number_checkpoints\": null}}",
         "--model gpt2", &c);
    assert_false(c.recompute);
    ls_train_config_fini(&c);
}

static void monitors_of_the_json_name_their_folders(void **state)
{
    (void)state;
    const char *json = "{\"tensorboard\": {\"enabled\": true, \"output_path\": \"logs/\", \"job_name\": \"a\"},"
                       "\"csv_monitor\": {\"enabled\": true}, \"steps_per_print\": 5}";
    ls_train_config c;
    must(json, "--model gpt2", &c);
    assert_string_equal(c.csv_monitor, "DeepSpeedJobName");
    assert_non_null(strstr(c.tensorboard, "logs/"));
    assert_string_equal(strrchr(c.tensorboard, '/'), "/a");
    assert_true(c.ds_steps_per_print == 5);
    assert_source(&c, "tensorboard", LS_FROM_JSON, "tensorboard.output_path");
    ls_train_config_fini(&c);
    must(json, "--model gpt2 --tensorboard mine", &c);
    assert_string_equal(c.tensorboard, "mine");
    ls_train_config_fini(&c);
    must("{\"tensorboard\": {\"enabled\": false, \"output_path\": \"logs\"}}", "--model gpt2", &c);
    assert_true(!c.tensorboard && !c.csv_monitor && !c.ds_steps_per_print);
    ls_train_config_fini(&c);
    must_fail("{\"csv_monitor\": {\"enabled\": true, \"job_name\": \"\"}}", "--model gpt2", LS_E_CONFIG, "both empty");
}

static void flags_override_the_reference_json(void **state)
{
    (void)state;
    ls_train_config c;
    must_fail(r1_json, "--run_type baseline", LS_E_UNSUPPORTED, "add --precision fp32");
    must(r1_json, "--run_type baseline --precision fp32", &c);
    assert_true(c.micro_batch == 2 && c.grad_accum == 2 && c.global_batch == 4 && c.seq_len == 512 && !c.engine);
    assert_true(c.lr.kind == LS_LR_WARMUP && c.lr.base == 1e-4 && c.lr.max == 1e-4 && c.lr.warmup == 1000 &&
                c.clip == 1.0);
    assert_true(c.beta2 == 0.999 && c.weight_decay == 0.01 && c.fp16_enabled && c.zero_stage == 1 &&
                c.wall_clock_breakdown);
    assert_int_equal(c.model.variant, LS_VARIANT_R1); /* the command line of R1 selects the model of R1 */
    assert_int_equal(ls_model_n_param(&c.model), 163037184);
    assert_source(&c, "variant", LS_FROM_RULE, "--run_type without --model");
    assert_source(&c, "lr", LS_FROM_JSON, "optimizer.params.lr");
    assert_source(&c, "gradient_clipping", LS_FROM_JSON, "gradient_clipping");
    assert_source(&c, "precision", LS_FROM_CLI, "--precision");
    assert_true(noted(&c, "ZeRO stage 1 has no effect with one worker") &&
                noted(&c, "fp16 of the DeepSpeed JSON is overridden"));
    assert_false(noted(&c, "without effect"));
    assert_true(noted(&c, "baseline of the reference trainer ignores it") && c.ds_steps_per_print == 100);
    assert_false(noted(&c, "validation"));
    ls_train_config_fini(&c);
    must(r1_json,
         "--run_type optimized --precision fp32 --lr 1e-3 --clip 0 --warmup-steps 7 --betas 0.5,0.6 --model gpt2", &c);
    assert_true(c.engine && c.lr.base == 1e-3 && c.lr.max == 1e-3 && c.lr.warmup == 7 && c.clip == 0 &&
                c.beta1 == 0.5 && c.beta2 == 0.6);
    assert_int_equal(c.model.variant, LS_VARIANT_HF);
    assert_source(&c, "lr_max", LS_FROM_CLI, "--lr");
    assert_source(&c, "warmup_steps", LS_FROM_CLI, "--warmup_steps");
    ls_train_config_fini(&c);
    must(r1_json, "--precision fp32 --lr-schedule constant", &c);
    assert_true(c.lr.kind == LS_LR_CONSTANT && c.lr.warmup == 0 && !c.warmup_auto &&
                noted(&c, "overridden by --lr_schedule"));
    ls_train_config_fini(&c);
}

static void a_json_gets_the_defaults_of_deepspeed(void **state)
{
    (void)state;
    ls_train_config c;
    must("{\"optimizer\": {\"type\": \"Adam\"}}", "", &c);
    assert_true(c.lr.base == 1e-3 && c.weight_decay == 0 && c.clip == 0 && c.beta2 == 0.999);
    assert_true(c.lr.kind == LS_LR_CONSTANT && c.lr.warmup == 0 && !c.warmup_auto); /* no scheduler */
    ls_train_config_fini(&c);
    must("{}", "", &c); /* no optimizer block: R1's baseline (docs/REFERENCES.md) */
    assert_true(c.lr.base == 1e-4 && c.weight_decay == 0.01 && c.clip == 0);
    ls_train_config_fini(&c);
    must("{\"scheduler\": {\"type\": \"WarmupLR\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.5}}}",
         "", &c);
    assert_true(c.lr.max == 0.5); /* no warmup_max_lr: the lr of the optimizer */
    assert_source(&c, "lr_max", LS_FROM_RULE, "the optimizer's lr");
    ls_train_config_fini(&c);
}

static void batch_sizes_agree_or_are_refused(void **state)
{
    (void)state;
    ls_train_config c;
    const struct {
        const char *json, *line;
        int b, a;
    } good[] = {
        {NULL, "", 4, 1},
        {NULL, "--train_micro_batch_size_per_gpu 3", 3, 1},
        {"{\"train_micro_batch_size_per_gpu\": 5}", "--train_micro_batch_size_per_gpu 3", 5, 1},
        {"{\"train_micro_batch_size_per_gpu\": 5}", "--micro_batch_size_per_gpu 3", 3, 1},
        {"{\"gradient_accumulation_steps\": 6}", "", 4, 6},
        {"{\"gradient_accumulation_steps\": 6}", "--global_batch_size 8", 4, 2},
        {"{\"gradient_accumulation_steps\": 6}", "--grad_accum_steps 3 --global_batch_size 12", 4, 3},
        {"{\"train_batch_size\": 32}", "", 32, 1},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}", "", 4, 8},
        {"{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 4}", "", 8, 4},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}", "--micro_batch_size_per_gpu 16", 16, 2},
        {NULL, "--micro_batch_size_per_gpu 2 --global_batch_size 12 --enforce_global_batch_size 12", 2, 6},
    };
    for (size_t i = 0; i < N_OF(good); i++) {
        must(good[i].json, good[i].line, &c);
        if (c.micro_batch != good[i].b || c.grad_accum != good[i].a || c.global_batch != (int64_t)good[i].a * good[i].b)
            fail_msg("%s, %s: B %d A %d", good[i].json, good[i].line, c.micro_batch, c.grad_accum);
        ls_train_config_fini(&c);
    }
    must_fail(NULL, "--global_batch_size 10", LS_E_CONFIG,
              "10 is not a multiple of micro-batch size 4 * 1 worker = 4; use 8 or 12");
    must_fail(NULL, "--global_batch_size 8 --grad_accum_steps 4", LS_E_CONFIG,
              "--global_batch_size 8 is not micro-batch size 4 * --grad_accum_steps 4 * 1 worker = 16");
    must_fail(NULL, "--enforce_global_batch_size 5", LS_E_CONFIG, "micro-batch size 4 * accumulation 1 * 1 worker = 4");
    must_fail("{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 3}",
              "", LS_E_CONFIG, "32 of the DeepSpeed JSON is not micro-batch size 2 * accumulation 3 * 1 worker = 6");
    must_fail("{\"train_batch_size\": 30, \"train_micro_batch_size_per_gpu\": 4}", "", LS_E_CONFIG,
              "30 is not micro-batch size 4");
    must_fail("{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 3}", "-n 8", LS_E_CONFIG,
              "32 is not micro-batch size 3 * accumulation 1 * 8 workers = 24; change one of them");
    must_fail("{\"train_batch_size\": 4}", "-n 8", LS_E_CONFIG, "4 is not micro-batch size 0");
    must_fail("{\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 8}", "-n 4", LS_E_CONFIG, "16 is not");
    must_fail(NULL, "--micro_batch_size_per_gpu 0", LS_E_ARG, "micro_batch_size_per_gpu 0: must be at least 1");
    must_fail(NULL, "--grad_accum_steps -2", LS_E_ARG, "-2");
}

static void model_flags_and_data_shape_the_model(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL,
         "--num_layers 2 --num_heads 4 --embedding_size 64 --vocab_size 1000 --max_position_embeddings 32 --dropout 0",
         &c);
    assert_true(c.model.n_layer == 2 && c.model.n_head == 4 && c.model.n_embd == 64 && c.model.vocab_size == 1000 &&
                c.model.n_ctx == 32);
    assert_true(c.model.attn_pdrop == 0 && c.model.embd_pdrop == 0 && c.model.resid_pdrop == 0 && c.seq_len == 32);
    assert_source(&c, "n_layer", LS_FROM_CLI, "--num_layers");
    assert_source(&c, "vocab_size", LS_FROM_CLI, "--vocab_size");
    assert_source(&c, "attn_pdrop", LS_FROM_CLI, "--dropout");
    ls_train_config_fini(&c);
    must_fail(NULL, "--num_heads 5", LS_E_CONFIG, "768 is not a multiple of n_head 5");
    must_fail(NULL, "--num_layers 0", LS_E_ARG, "--num_layers 0: must be at least 1");
    must_fail(NULL, "--model gpt5", LS_E_ARG, "gpt2-xl");
    must_fail(NULL, "--model tiny --seq_length 512", LS_E_CONFIG, "--seq_length 512: the model has only 256 positions");
    must_fail(NULL, "--seq_length 0", LS_E_ARG, "seq_length");
    must_fail(NULL, "--dropout 1", LS_E_ARG, "--dropout 1: must be");
    must_fail(NULL, "--init-from /nonexistent", LS_E_IO, "/nonexistent");

    const ls_train_facts bpe = {.data_vocab_size = 4096, .data_eos_id = 0};
    assert_int_equal(resolve_with(NULL, "--model tiny", &bpe, &c),
                     LS_OK); /* tiny takes the vocabulary size of the data */
    assert_true(c.model.vocab_size == 4096 && c.model.eos_id == 0);
    assert_source(&c, "vocab_size", LS_FROM_DATA, "tokenizer.json");
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(NULL, "--model gpt2", &bpe, &c), LS_OK); /* gpt2 keeps its own */
    assert_true(c.model.vocab_size == 50257 && c.model.eos_id == 0);
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(NULL, "--model tiny --vocab_size 300", &bpe, &c), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "4096 tokens, but the vocabulary of the model 300"));
}

static void initial_weights_determine_the_model(void **state)
{
    (void)state;
    char *dir = test_dir(), line[256];
    ls_model_config m;
    ls_train_config c;
    ls_str s = {0};
    assert_int_equal(ls_model_config_preset("tiny", &m), LS_OK);
    m.n_layer = 3;
    ls_model_config_write(&m, &s);
    test_write(dir, "config.json", s.data);
    test_write(dir, "model.safetensors", ""); /* no size to compare the parameters with */
    ls_str_fini(&s);
    snprintf(line, sizeof line, "--init-from %s --run_type baseline", dir);
    must(NULL, line, &c);
    assert_true(c.model.n_layer == 3 && c.model.variant == LS_VARIANT_HF);
    assert_string_equal(c.init_from, dir);
    assert_source(&c, "n_layer", LS_FROM_MODEL, "config.json of --init_from");
    ls_train_config_fini(&c);
    snprintf(line, sizeof line, "--init-from %s --num_layers 4", dir);
    must_fail(NULL, line, LS_E_CONFIG, "n_layer 3, but the command line has 4");
    snprintf(line, sizeof line, "--init-from %s --model tiny", dir);
    must_fail(NULL, line, LS_E_CONFIG, "n_layer 3");
    snprintf(line, sizeof line, "--init-from %s --variant r1", dir);
    must_fail(NULL, line, LS_E_CONFIG, "variant");
    /* --vocab_size cannot change the vocabulary of weights: no advice to use it */
    snprintf(line, sizeof line, "--init-from %s", dir);
    assert_int_equal(resolve_with(NULL, line, &(ls_train_facts){.data_vocab_size = 60000}, &c), LS_E_CONFIG);
    snprintf(line, sizeof line, "`lockstep prepare TEXT --tokenizer %s --out DIR`", dir);
    assert_non_null(strstr(ls_err_words(), line));
    assert_null(strstr(ls_err_words(), "--vocab_size"));
    test_dir_close(dir);
}

static void a_gpu_run_defaults_to_bf16(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "", &c);
    assert_true(c.dtype == LS_F32 && c.loss_scale.rule == LS_SCALE_NONE && !c.tf32 && !c.stochastic);
    assert_string_equal(c.compute, "cpu");
    assert_string_equal(c.comm, "auto");
    ls_train_config_fini(&c);

    must(NULL, "--device cuda", &c);
    assert_true(c.dtype == LS_BF16 && c.device_index == -1 && c.loss_scale.rule == LS_SCALE_NONE && c.deterministic);
    assert_string_equal(c.device, "cuda");
    assert_string_equal(c.compute, "cuda");
    assert_string_equal(c.precision, "bf16");
    assert_string_equal(c.precision_label, "bf16_mixed");
    assert_source(&c, "precision", LS_FROM_DEFAULT, "");
    ls_train_config_fini(&c);

    must(NULL, "-n 2 --device cuda:3 --precision fp32 --tf32 --comm nccl --no_deterministic", &c);
    c.local_rank = 1;
    const ls_compute_open_opts o = ls_train_compute_opts(&c);
    assert_true(o.dtype == LS_F32 && o.device == 3 && o.local_rank == 1 && o.tf32 && !o.stochastic && !o.deterministic);
    assert_string_equal(c.precision_label, "tf32");
    assert_string_equal(c.comm, "nccl");
    assert_string_equal(setting(&c, "device")->text, "cuda:3");
    ls_train_config_fini(&c);

    /* also with one GPU: some kernels are not deterministic */
    must(NULL, "--device cuda --no_deterministic --stochastic_rounding", &c);
    assert_true(!c.deterministic && c.stochastic && ls_train_compute_opts(&c).stochastic);
    ls_train_config_fini(&c);
    must("{}", "--device cuda", &c); /* as DeepSpeed: no fp16 or bf16 block means fp32 */
    assert_true(c.dtype == LS_F32);
    ls_train_config_fini(&c);
    must("{\"bf16\": {\"enabled\": true}}", "--device cuda", &c);
    assert_true(c.dtype == LS_BF16 && c.loss_scale.rule == LS_SCALE_NONE);
    assert_source(&c, "precision", LS_FROM_JSON, "bf16.enabled");
    ls_train_config_fini(&c);
    must("{\"bf16\": {\"enabled\": true, \"check_grad_overflow\": true}}", "--device cuda", &c);
    assert_true(c.loss_scale.rule == LS_SCALE_FIXED && c.loss_scale.initial == 1);
    ls_train_config_fini(&c);
    must("{\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"bf16\"}", "--device cuda --precision fp16",
         &c);
    assert_true(c.dtype == LS_F16 && noted(&c, "bf16 of the DeepSpeed JSON is overridden by --precision fp16") &&
                noted(&c, "summed in fp32"));
    ls_train_config_fini(&c);
}

/* The commands pass the device that auto chose. */
static void automatic_devices_resolve_as_if_named(void **state)
{
    (void)state;
    ls_train_config c;
    ls_str s = {0};
    const ls_device_choice gpu = {.cuda = true,
                                  .automatic = true,
                                  .index = -1,
                                  .asked = "auto",
                                  .from = "",
                                  .words = "CUDA, NVIDIA H200 (1 of 1 visible)",
                                  .visible = 1};
    const ls_device_choice none = {.automatic = true,
                                   .index = -1,
                                   .asked = "auto",
                                   .from = "--device",
                                   .why = "no driver",
                                   .words = "CPU (no driver)"};
    const ls_train_facts on = {.data_eos_id = -1, .device = &gpu}, off = {.data_eos_id = -1, .device = &none};
    const char *bf16 = "{\"bf16\": {\"enabled\": true}}", *fp16 = "{\"fp16\": {\"enabled\": true}}";

    assert_int_equal(resolve_with(NULL, "", &on, &c), LS_OK); /* as --device cuda */
    assert_true(c.dtype == LS_BF16 && c.device_index == -1);
    assert_string_equal(c.device, "cuda");
    assert_string_equal(c.compute, "cuda");
    assert_string_equal(c.device_words, "CUDA, NVIDIA H200 (1 of 1 visible)");
    assert_string_equal(setting(&c, "device")->text, "cuda");
    assert_source(&c, "device", LS_FROM_DEFAULT, "auto: CUDA, NVIDIA H200 (1 of 1 visible)");
    ls_train_config_table(&c, &s);
    assert_non_null(strstr(s.data, "default (auto: CUDA, NVIDIA H200 (1 of 1 visible))"));
    ls_str_fini(&s);
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(bf16, "", &on, &c), LS_OK); /* a JSON with a 16-bit type needs no flag */
    assert_true(c.dtype == LS_BF16);
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(fp16, "", &on, &c), LS_OK);
    assert_true(c.dtype == LS_F16);
    ls_train_config_fini(&c);

    assert_int_equal(resolve_with(NULL, "--device auto", &off, &c), LS_OK);
    assert_true(c.dtype == LS_F32);
    assert_string_equal(c.device, "cpu");
    assert_string_equal(c.compute, "cpu");
    assert_string_equal(setting(&c, "device")->text, "cpu");
    assert_source(&c, "device", LS_FROM_CLI, "--device auto: CPU (no driver)");
    ls_train_config_fini(&c);
    const char *const cases[][2] = {
        {"", "add --precision fp32 or --precision bf16; --device auto found no GPU: no driver"},
        {"--precision fp16", "(--precision fp32); --device auto found no GPU: no driver"},
        {"--precision bf16 --stochastic_rounding",
         "needs --device cuda --precision bf16, but this run uses bf16 on the CPU"},
        {"--precision bf16 --compute cpu-ref", "--compute cpu-ref: it supports only fp32"},
        {"-n 2 --precision fp32 --comm nccl", "--device auto found none: no driver"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        assert_int_not_equal(resolve_with(fp16, cases[i][0], &off, &c), LS_OK);
        assert_contains(ls_err_words(), cases[i][1]);
    }
    const bool native = ls_compute_cpu_bf16().native;
    assert_int_equal(resolve_with(bf16, "", &off, &c), LS_OK); /* the CPU has bf16, if need be emulated */
    assert_true(c.dtype == LS_BF16 && noted(&c, "bf16 is emulated") == !native);
    assert_string_equal(c.precision_label, "bf16_mixed");
    assert_source(&c, "precision", LS_FROM_JSON, "bf16.enabled");
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(NULL, "--precision auto", &off, &c), LS_OK); /* never emulated */
    assert_true(c.dtype == (native ? LS_BF16 : LS_F32));
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(fp16, "--precision auto", &on, &c), LS_OK);
    assert_true(c.dtype == LS_BF16);
    ls_train_config_fini(&c);
    const ls_device_choice env = {.asked = "cpu", .index = -1, .from = "LS_DEVICE", .words = "CPU (LS_DEVICE cpu)"};
    assert_int_equal(resolve_with(NULL, "", &(ls_train_facts){.data_eos_id = -1, .device = &env}, &c), LS_OK);
    assert_source(&c, "device", LS_FROM_ENV, "LS_DEVICE");
    ls_train_config_fini(&c);
    must(NULL, "", &c); /* no device was passed */
    assert_string_equal(c.device, "cpu");
    ls_train_config_fini(&c);
}

static void the_loss_scale_rule_follows_the_run(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "--device cuda --precision fp16", &c); /* DeepSpeed's defaults */
    const ls_loss_scale_config *s = &c.loss_scale;
    assert_true(s->rule == LS_SCALE_ZERO && s->initial == 65536 && s->min == 1 && s->window == 1000 &&
                s->hysteresis == 2 && !s->consecutive);
    assert_string_equal(c.precision_label, "fp16_deepspeed");
    assert_string_equal(setting(&c, "loss_scale_rule")->text, "zero");
    ls_train_config_fini(&c);

    must(r1_json, "--run_type optimized --device cuda", &c);
    assert_true(c.dtype == LS_F16 && s->rule == LS_SCALE_ZERO);
    assert_string_equal(c.precision_label, "fp16_deepspeed");
    assert_source(&c, "precision", LS_FROM_JSON, "fp16.enabled");
    ls_train_config_fini(&c);
    must(r1_json, "--run_type baseline --device cuda", &c); /* the training loop of R1 uses torch's scaler */
    assert_true(s->rule == LS_SCALE_AMP && s->initial == 65536 && s->window == 2000);
    assert_string_equal(c.precision_label, "fp16_torch_amp");
    ls_train_config_fini(&c);
    must(r1_json, "--run_type baseline --device cuda -n 2", &c); /* with two workers R1 uses the DeepSpeed engine */
    assert_true(s->rule == LS_SCALE_ZERO);
    ls_train_config_fini(&c);

    const char *json = "{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8, \"loss_scale_window\": 50, "
                       "\"hysteresis\": 4, \"consecutive_hysteresis\": true, \"min_loss_scale\": 0.5}%s}";
    char text[512];
    snprintf(text, sizeof text, json, ", \"zero_optimization\": {\"stage\": 2}");
    must(text, "--device cuda", &c);
    assert_true(s->rule == LS_SCALE_ZERO && s->initial == 256 && s->min == 0.5 && s->window == 50 &&
                s->hysteresis == 4 && s->consecutive);
    assert_source(&c, "hysteresis", LS_FROM_JSON, "fp16.hysteresis");
    ls_train_config_fini(&c);
    snprintf(text, sizeof text, json, "");
    must(text, "--device cuda -n 2 --strategy zero1", &c); /* the JSON's ZeRO stage selects the rule, not --strategy */
    assert_true(s->rule == LS_SCALE_STAGE0 && s->initial == 256 && s->window == 50);
    ls_train_config_fini(&c);
    must("{\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}", "--device cuda", &c);
    assert_true(s->rule == LS_SCALE_FIXED && s->initial == 128);
    assert_source(&c, "loss_scale", LS_FROM_JSON, "fp16.loss_scale");
    ls_train_config_fini(&c);
    must(r1_json, "--device cuda --precision bf16", &c); /* bf16 has the range of a float */
    assert_true(s->rule == LS_SCALE_NONE);
    ls_train_config_fini(&c);
}

static void unsupported_or_contradictory_settings_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *line, *part;
    } all[] = {
        {"--precision fp16", "--precision fp32"},
        {"--precision fp16", "a GPU is needed (--device cuda)"},
        {"--device cpu --precision fp16", "fp16"},
        {"-n 2 --comm nccl", "add --device cuda"},
        {"--comm mpi", "mpi"},
    };
    for (size_t i = 0; i < N_OF(all); i++) {
        must_fail(NULL, all[i].line, LS_E_UNSUPPORTED, all[i].part);
        assert_null(strchr(ls_err_words(), '\n'));
    }
    must_fail("{\"fp16\": {\"enabled\": true}}", "", LS_E_UNSUPPORTED, "enables fp16");
    must_fail("{\"fp16\": {\"enabled\": true}}", "--device cpu", LS_E_UNSUPPORTED, "or --device cuda");
    must_fail(NULL, "--device tpu", LS_E_ARG, "cpu, cuda, or cuda:N");
    must_fail(NULL, "--device cuda:", LS_E_ARG, "cuda:N");
    must_fail(NULL, "--device cuda:x", LS_E_ARG, "cuda:N");
    must_fail(NULL, "--device cuda:-1", LS_E_ARG, "cuda:N");
    must_fail(NULL, "--device cuda1", LS_E_ARG, "cuda:N");
    must_fail(NULL, "--device cpu:1", LS_E_ARG, "cuda:N");
    must_fail(NULL, "--device cuda --compute cpu", LS_E_CONFIG, "only for the CPU");
    must_fail(NULL, "--device cuda --comm nccl", LS_E_UNSUPPORTED, "a single worker does not communicate");
    must_fail(NULL, "--tf32", LS_E_CONFIG, "fp32 on the CPU");
    must_fail(NULL, "--device cuda --tf32", LS_E_CONFIG, "bf16 on the GPU");
    must_fail(NULL, "--stochastic_rounding", LS_E_CONFIG, "this run uses fp32");
    must_fail(NULL, "--device cuda --precision fp16 --stochastic_rounding", LS_E_CONFIG, "this run uses fp16");
    must_fail("{\"data_types\": {\"grad_accum_dtype\": \"bf16\"}}", "", LS_E_UNSUPPORTED, "grad_accum_dtype");
    must_fail(NULL, "-n 0", LS_E_ARG, "-n 0: must be 1 to 65536");
    must_fail(NULL, "--profile --profile_spans 0", LS_E_ARG, "profile_spans");
    must_fail(NULL, "--pp 2", LS_E_CONFIG, "--pp 2 x --tp 1");
    must_fail(NULL, "-n 4 --pp 3", LS_E_CONFIG, "--pp 3");
    must_fail(NULL, "--tp 2", LS_E_CONFIG, "--tp 2");
    must_fail(NULL, "-n 5 --tp 5", LS_E_CONFIG, "12 heads over tp 5");
    must_fail(NULL, "-n 2 --sequence_parallel", LS_E_CONFIG, "add --tp");
    must_fail(NULL, "-n 2 --tp 2 --sequence_parallel --seq_length 7 --micro_batch_size_per_gpu 1", LS_E_CONFIG,
              "remainder 1");
    must_fail(NULL, "--schedule 1f1b", LS_E_CONFIG, "add --pp");
    must_fail(NULL, "-n 2 --pp 2 --schedule gpipe --interleave 2", LS_E_CONFIG, "interleaved");
    must_fail(NULL, "--epochs 0", LS_E_ARG, "--epochs 0: must be 1 to 1000000");
    must_fail(NULL, "--timing_sample_every 0", LS_E_ARG, "timing_sample_every");
    must_fail(NULL, "--lr -1", LS_E_ARG, "--lr -1: must be 0 to 1000000");
    must_fail(NULL, "--clip -1", LS_E_ARG, "--clip -1: must be at least 0");
    must_fail(NULL, "--betas 0.9 2", LS_E_ARG, "--betas 0.9 2: must be");
    must_fail(NULL, "--epochs 99999999999", LS_E_ARG, "must be 1 to 1000000");
    must_fail(NULL, "--betas 0.9", LS_E_ARG, "betas");
    must_fail(NULL, "--betas 0.9 1.5", LS_E_ARG, "betas");
    must_fail(NULL, "--lr-schedule constant --min-lr-ratio 0.2", LS_E_CONFIG, "constant");
    must_fail(NULL, "--deterministic --no-deterministic", LS_E_ARG, "cannot be combined");
    must_fail("{\"scheduler\": {\"type\": \"LRRangeTest\"}}", "--lr 1", LS_E_CONFIG, "LRRangeTest");
}

static void worker_settings_come_from_flags_and_json(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "-n 4 --micro_batch_size_per_gpu 2 --grad_accum_steps 3", &c);
    assert_int_equal(c.world_size, 4);
    assert_int_equal(c.global_batch, 24);
    assert_string_equal(c.strategy, "ddp");
    assert_int_equal(c.bucket, 1048576);
    ls_train_config_fini(&c);
    must("{\"zero_optimization\": {\"stage\": 0, \"reduce_bucket_size\": 5e6}}", "-n 2 --strategy dp", &c);
    assert_string_equal(c.strategy, "dp");
    assert_int_equal(c.bucket, 5000000);
    assert_source(&c, "bucket", LS_FROM_JSON, "zero_optimization.reduce_bucket_size");
    ls_train_config_fini(&c);
    must(
        "{\"zero_optimization\": {\"stage\": 3, \"allgather_bucket_size\": 2e6, \"stage3_prefetch_bucket_size\": 3e6}}",
        "-n 2", &c);
    assert_string_equal(c.strategy, "zero3");
    assert_source(&c, "strategy", LS_FROM_JSON, "zero_optimization.stage");
    assert_int_equal(c.gather_bucket, 2000000);
    assert_int_equal(c.prefetch_bucket, 3000000);
    assert_source(&c, "prefetch_bucket", LS_FROM_JSON, "zero_optimization.stage3_prefetch_bucket_size");
    ls_train_config_fini(&c);
    must("{\"zero_optimization\": {\"stage\": 2}}", "-n 2 --strategy zero1 --gather_bucket 5", &c);
    assert_string_equal(c.strategy, "zero1");
    assert_int_equal(c.gather_bucket, 5);
    ls_train_config_fini(&c);
    must_fail(NULL, "-n 2 --gather_bucket 0", LS_E_ARG, "--gather_bucket 0: must be at least 1");
    must_fail(NULL, "-n 2 --bucket 0", LS_E_ARG, "bucket");
    must(NULL, "-n 2 --no-deterministic", &c);
    assert_false(c.deterministic);
    ls_train_config_fini(&c);
    must(NULL, "--no-deterministic", &c); /* one worker always sums in one order */
    assert_true(c.deterministic);
    ls_train_config_fini(&c);
}

static void the_launchers_environment_is_read_and_checked(void **state)
{
    (void)state;
    ls_train_config c;
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("PROFILE_MODE", "1", 1);
    must(NULL, "--local_rank 2", &c);
    assert_true(c.engine && c.profile_mode && c.local_rank == 2);
    assert_source(&c, "profile_mode", LS_FROM_ENV, "PROFILE_MODE");
    assert_source(&c, "world_size", LS_FROM_ENV, "WORLD_SIZE");
    ls_train_config_fini(&c);
    setenv("LOCAL_RANK", "1", 1);
    must(NULL, "--local_rank 2", &c);
    assert_int_equal(c.local_rank, 1);
    ls_train_config_fini(&c);
    setenv("WORLD_SIZE", "2", 1);
    must(NULL, "", &c);
    assert_int_equal(c.world_size, 2);
    ls_train_config_fini(&c);
    must_fail(NULL, "-n 3", LS_E_CONFIG, "WORLD_SIZE is 2");
    setenv("WORLD_SIZE", "many", 1);
    must_fail(NULL, "", LS_E_CONFIG, "WORLD_SIZE");
    setenv("WORLD_SIZE", "1", 1);
    setenv("RANK", "1", 1);
    must_fail(NULL, "", LS_E_CONFIG, "RANK is 1, but must be less than WORLD_SIZE, which is 1");
    clean_environment(NULL);
}

static void steps_follow_from_the_data_size(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "--grad_accum_steps 2 --epochs 3", &c);
    assert_int_equal(ls_train_config_fit(&c, 85, 7), LS_OK); /* 10 steps of 8 sequences, 5 are dropped */
    assert_true(c.steps_per_epoch == 10 && c.total_steps == 30 && c.dropped_seqs == 5 && c.train_seqs == 85 &&
                c.val_seqs == 7);
    assert_true(c.lr.total == 30 && c.lr.warmup == 3);
    assert_source(&c, "total_steps", LS_FROM_RULE, "optimizer steps of the run");
    ls_train_config_fini(&c);
    must(NULL, "--grad_accum_steps 2 --max_train_steps 7 --max-steps 10", &c);
    assert_int_equal(ls_train_config_fit(&c, 85, 0),
                     LS_OK); /* 7 micro-batches give 3 updates; 10 updates need 4 epochs */
    assert_true(c.steps_per_epoch == 3 && c.epochs == 4 && c.total_steps == 10);
    assert_source(&c, "epochs", LS_FROM_RULE, "as many as --max_steps takes");
    ls_train_config_fini(&c);
    must(NULL, "--epochs 2 --max-steps 100", &c); /* both given: the smaller one ends the run */
    assert_int_equal(ls_train_config_fit(&c, 40, 0), LS_OK);
    assert_true(c.epochs == 2 && c.total_steps == 20);
    assert_int_equal(ls_train_config_fit(&c, 3, 0), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "needs 4 sequences"));
    assert_int_equal(ls_train_config_fit(&c, 0, 0), LS_E_CONFIG);
    ls_train_config_fini(&c);
    must(NULL, "--grad_accum_steps 4 --max_train_steps 3", &c);
    assert_int_equal(ls_train_config_fit(&c, 400, 0), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "--max_train_steps 3 is less than one optimizer step"));
    ls_train_config_fini(&c);
    must("{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 77, \"warmup_num_steps\": "
         "5}}}",
         "", &c);
    assert_int_equal(ls_train_config_fit(&c, 400, 0), LS_OK);
    assert_true(c.lr.total == 77 && c.lr.warmup == 5); /* the values of the JSON stay */
    ls_train_config_fini(&c);
}

static void every_setting_is_printed_with_its_source(void **state)
{
    (void)state;
    ls_train_config c;
    ls_str s = {0};
    json_t *j = NULL;
    must(NULL, "--model tiny --lr 1e-5 --checkpoint_path run/a", &c);
    assert_int_equal(ls_train_config_fit(&c, 400, 4), LS_OK);
    ls_train_config_table(&c, &s);
    assert_int_equal(strncmp(s.data, "setting", 7), 0);
    assert_non_null(strstr(s.data, "1e-05"));
    assert_non_null(strstr(s.data, "command line (--lr)"));
    assert_non_null(strstr(s.data, "command line (--checkpoint_path)"));
    int lines = 0;
    for (const char *p = s.data; *p; p++) lines += *p == '\n';
    assert_int_equal(lines, c.n_setting + 1);
    ls_str_fini(&s);
    ls_train_config_json(&c, &s);
    assert_int_equal(ls_json_parse(s.data, s.len, "json", &j), LS_OK);
    assert_int_equal(json_object_size(j), c.n_setting); /* no name occurs twice: the parser refuses duplicates */
    const json_t *lr = json_object_get(j, "lr");
    assert_true(json_real_value(json_object_get(lr, "value")) == 1e-5);
    assert_string_equal(json_string_value(json_object_get(lr, "source")), "command line");
    assert_string_equal(json_string_value(json_object_get(lr, "from")), "--lr");
    assert_true(json_is_null(json_object_get(json_object_get(j, "max_steps"), "value")));
    json_decref(j);
    ls_str_fini(&s);
    ls_train_config_fini(&c);
}

static void fp8_has_the_names_of_transformer_engine(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "--device cuda --precision fp8", &c);
    assert_true(c.fp8.on && !c.fp8.e4m3 && c.fp8.history == 16 && c.fp8.margin == 0 && c.dtype == LS_BF16);
    assert_string_equal(c.precision, "fp8");
    assert_string_equal(c.precision_label, "fp8_mixed");
    ls_train_config_fini(&c);
    must(NULL, "--device cuda --fp8 --fp8_format e4m3 --fp8_amax_history_len 5 --fp8_margin 2", &c);
    assert_true(c.fp8.on && c.fp8.e4m3 && c.fp8.history == 5 && c.fp8.margin == 2);
    ls_train_config_fini(&c);
    const char *json =
        "{\"bf16\": {\"enabled\": true}, \"fp8\": {\"enabled\": true, \"fp8_format\": \"E4M3\", \"margin\": 1, "
        "\"amax_history_len\": 64, \"amax_compute_algo\": \"max\"}}";
    must(json, "--device cuda", &c);
    assert_true(c.fp8.on && c.fp8.e4m3 && c.fp8.history == 64 && c.fp8.margin == 1);
    assert_source(&c, "precision", LS_FROM_JSON, "fp8.enabled");
    assert_source(&c, "fp8_format", LS_FROM_JSON, "fp8.fp8_format");
    assert_source(&c, "fp8_amax_history_len", LS_FROM_JSON, "fp8.amax_history_len");
    ls_train_config_fini(&c);
    must(json, "--device cuda --precision bf16", &c);
    assert_true(!c.fp8.on);
    ls_train_config_fini(&c);
    must("{\"fp8\": {\"enabled\": true, \"amax_compute_algo\": \"most_recent\", \"format\": \"hybrid\"}}",
         "--device cuda", &c);
    assert_true(c.fp8.on && !c.fp8.e4m3 && c.fp8.history == 1);
    ls_train_config_fini(&c);
    must_fail(NULL, "--precision fp8", LS_E_UNSUPPORTED, "the CPU supports fp32 and bf16");
    must_fail(NULL, "--device cuda --fp8_margin 1", LS_E_CONFIG, "needs --precision fp8");
    must_fail("{\"fp8\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}}", "--device cuda", LS_E_CONFIG,
              "fp16 and fp8");
}

static void print_config_omits_no_setting(void **state)
{
    (void)state;
    static const char *const renamed[][2] = {{"embedding_size", "n_embd"},
                                             {"num_layers", "n_layer"},
                                             {"num_heads", "n_head"},
                                             {"max_position_embeddings", "n_positions"},
                                             {"dropout", "resid_pdrop"},
                                             {"betas", "beta2"},
                                             {"adam_beta1", "beta1"},
                                             {"adam_beta2", "beta2"},
                                             {"min_lr", "min_lr_ratio"},
                                             {"lr_scheduler_type", "lr_schedule"},
                                             {"clip", "gradient_clipping"},
                                             {"n", "world_size"},
                                             {"no_deterministic", "deterministic"},
                                             {"no_save_verify", "save_verify"},
                                             {"data", "train_data_path"},
                                             {"train_micro_batch_size_per_gpu", "micro_batch_size_per_gpu"}};
    /* these only check, select what is printed here, or have no effect */
    static const char *const none[] = {"enforce_global_batch_size",
                                       "print_config",
                                       "local_rank",
                                       "num_workers",
                                       "preset",
                                       "task",
                                       "workdir",
                                       "minutes",
                                       "summary",
                                       "serve",
                                       "serve_address"};
    ls_train_config c;
    must(NULL, "--model tiny", &c);
    for (size_t i = 0; i < ls_train_n_opts; i++) {
        const char *name = ls_train_opts[i].name;
        bool skip = !ls_train_opts[i].help;
        for (size_t k = 0; k < N_OF(none); k++) skip = skip || !strcmp(name, none[k]);
        for (size_t k = 0; k < N_OF(renamed); k++)
            if (!strcmp(name, renamed[k][0])) name = renamed[k][1];
        if (!skip) (void)setting(&c, name);
    }
    ls_train_config_fini(&c);
}

static void defaults_of_deepspeed_are_named(void **state)
{
    (void)state;
    ls_train_config c;
    must("{\"optimizer\": {\"type\": \"AdamW\"}}", "--model tiny --eps 1e-6", &c);
    assert_source(&c, "lr", LS_FROM_DEEPSPEED, "");
    assert_source(&c, "weight_decay", LS_FROM_DEEPSPEED, "");
    assert_source(&c, "lr_schedule", LS_FROM_DEEPSPEED, "");
    assert_source(&c, "gradient_clipping", LS_FROM_DEEPSPEED, "");
    assert_source(&c, "eps", LS_FROM_CLI, "--eps");
    ls_train_config_fini(&c);
    must("{\"gradient_clipping\": 1}", "--model tiny", &c);
    assert_source(&c, "lr", LS_FROM_DEFAULT, "the JSON has no optimizer");
    ls_train_config_fini(&c);
}

static void options_that_a_run_does_not_use_are_refused(void **state)
{
    (void)state;
    ls_train_config c;
    must_fail(NULL, "--model tiny -n 2 --gather_bucket 10", LS_E_CONFIG,
              "--gather_bucket has no effect with strategy ddp; zero1 and zero2 use it; leave it out");
    must_fail(NULL, "--model tiny -n 2 --prefetch_bucket 10", LS_E_CONFIG, "with strategy ddp; zero3 uses it");
    must_fail(NULL, "--model tiny -n 2 --strategy dp --bucket 10", LS_E_CONFIG, "with strategy dp");
    must_fail(NULL, "--model tiny --profile_spans 10", LS_E_CONFIG, "--profile_spans needs --profile");
    must_fail(NULL, "--model tiny --keep_last 2", LS_E_CONFIG, "--keep_last needs --save_every");
    /* the same command line works for all numbers of workers */
    must(NULL, "--model tiny --bucket 10 --eval_every 3 --max_val_steps 0 --comm_timeout 9", &c);
    assert_true(noted(&c, "--bucket has no effect with strategy single"));
    assert_true(noted(&c, "--eval_every has no effect with --max_val_steps 0"));
    assert_true(noted(&c, "--comm_timeout has no effect with one worker"));
    ls_train_config_fini(&c);
    must(NULL,
         "--model tiny -n 2 --strategy zero3 --prefetch_bucket 10 --bucket 10 --save_every 5 --keep_last 2 "
         "--eval_every 3 --comm_timeout 9",
         &c);
    assert_false(noted(&c, "has no effect"));
    ls_train_config_fini(&c);
}

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
    must_fail(NULL, "--fp16=no", LS_E_ARG, "it stands for --precision fp16; use --precision with another value");
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

static void data_files_are_found_or_reported(void **state)
{
    (void)state;
    char *dir = test_dir();
    const char *file = test_path(dir, "train.bin", NULL), *tok = test_path(dir, "tokenizer.json", NULL);
    ls_train_paths p = {0};
    ls_train_options o = {0};
    assert_int_equal(ls_train_find_paths(&o, &p), LS_E_ARG);
    o.data = dir;
    assert_int_equal(ls_train_find_paths(&o, &p), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "lockstep prepare"));
    test_write(dir, "train.bin", "ab");
    assert_int_equal(ls_train_find_paths(&o, &p), LS_OK);
    assert_string_equal(p.train, file);
    assert_true(!p.val && !p.tokenizer);
    ls_train_paths_fini(&p);
    test_write(dir, "tokenizer.json", "{}");
    o.train_data_path = file;
    assert_int_equal(ls_train_find_paths(&o, &p), LS_E_ARG); /* --data and --train_data_path together */
    o.data = NULL;
    assert_int_equal(ls_train_find_paths(&o, &p), LS_OK);
    assert_string_equal(p.tokenizer, tok);
    ls_train_paths_fini(&p);
    o.val_data_path = "/nonexistent/val.bin";
    assert_int_equal(ls_train_find_paths(&o, &p), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "/nonexistent/val.bin"));
    test_dir_close(dir);
}

static void a_failed_allocation_leaks_nothing(void **state)
{
    (void)state;
    int64_t live = ls_mem_live();
    for (int64_t k = 0;; k++) {
        ls_train_config c;
        ls_ds_config ds = {0};
        assert_int_equal(ls_ds_config_parse(r1_json, strlen(r1_json), "x", &ds), LS_OK);
        char *argv[] = {(char *)(uintptr_t) "--precision", (char *)(uintptr_t) "fp32"};
        ls_train_options o;
        assert_int_equal(ls_train_options_parse(2, argv, &o), LS_OK);
        ls_mem_fail_at(k);
        ls_status st = ls_train_resolve(&o, &ds, &paths, NULL, &c);
        ls_mem_fail_at(-1);
        ls_ds_config_fini(&ds);
        if (st == LS_OK) {
            assert_true(k > 20);
            ls_train_config_fini(&c);
            break;
        }
        assert_int_equal(st, LS_E_NOMEM);
        assert_int_equal(ls_mem_live(), live);
    }
    assert_int_equal(ls_mem_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_in_a_json_leaves_the_key_to_the_command_line),
        cmocka_unit_test(without_a_json_our_defaults_apply),
        cmocka_unit_test(flags_override_the_reference_json),
        cmocka_unit_test(blocks_of_the_json_set_the_layout_and_recompute),
        cmocka_unit_test(monitors_of_the_json_name_their_folders),
        cmocka_unit_test(a_json_gets_the_defaults_of_deepspeed),
        cmocka_unit_test(batch_sizes_agree_or_are_refused),
        cmocka_unit_test(model_flags_and_data_shape_the_model),
        cmocka_unit_test(initial_weights_determine_the_model),
        cmocka_unit_test(a_gpu_run_defaults_to_bf16),
        cmocka_unit_test(automatic_devices_resolve_as_if_named),
        cmocka_unit_test(the_loss_scale_rule_follows_the_run),
        cmocka_unit_test(unsupported_or_contradictory_settings_are_refused),
        cmocka_unit_test(worker_settings_come_from_flags_and_json),
        cmocka_unit_test(the_launchers_environment_is_read_and_checked),
        cmocka_unit_test(steps_follow_from_the_data_size),
        cmocka_unit_test(every_setting_is_printed_with_its_source),
        cmocka_unit_test(fp8_has_the_names_of_transformer_engine),
        cmocka_unit_test(print_config_omits_no_setting),
        cmocka_unit_test(defaults_of_deepspeed_are_named),
        cmocka_unit_test(options_that_a_run_does_not_use_are_refused),
        cmocka_unit_test(names_of_other_trainers_give_the_same_settings),
        cmocka_unit_test(betas_can_be_given_one_by_one),
        cmocka_unit_test(the_lowest_rate_can_be_a_rate),
        cmocka_unit_test(schedules_of_the_hugging_face_trainer_are_its_own),
        cmocka_unit_test(no_number_crashes_the_resolution),
        cmocka_unit_test(data_files_are_found_or_reported),
        cmocka_unit_test(a_failed_allocation_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, clean_environment, NULL);
}
