/* Resolution of settings: precedence of the sources, the batch rule, refused settings, the sources that --print-config shows, and the
 * number of steps from the size of the data. */
#include "resolve_checks.h"
#include "test_folder.h"

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
    must(json, "--run_type optimized", &c); /* the scaling study's model ignores the block */
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
    assert_int_equal(c.model.variant, LS_VARIANT_R1); /* the command line of the scaling study selects its model */
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
    must("{}", "", &c); /* no optimizer block: the scaling study's baseline (docs/REFERENCES.md) */
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

static void unsupported_or_contradictory_settings_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *line, *part;
    } all[] = {
        {"--precision fp16", "--precision fp32"},
        {"--precision fp16", "--device cuda chooses a GPU"},
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
    must_fail("{\"data_types\": {\"grad_accum_dtype\": \"bf16\"}}", "", LS_E_UNSUPPORTED,
              "the DeepSpeed JSON: 'data_types.grad_accum_dtype' is bf16");
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

static void keys_of_another_precision_are_noted(void **state)
{
    (void)state;
    static const struct {
        const char *json, *line, *note; /* NULL: none */
    } cases[] = {
        {"{\"fp8\": {\"margin\": 1}}", "--device cuda", "without effect: fp8.margin (only fp8 uses it)\n"},
        {"{\"dump_state\": true, \"fp8\": {\"enabled\": false, \"fp8_format\": \"e4m3\", \"reduce_amax\": true}}", "",
         "without effect: dump_state, fp8.fp8_format (only fp8 uses it), fp8.reduce_amax (only fp8 uses it)\n"},
        {"{\"fp8\": {\"enabled\": true, \"margin\": 1}}", "--device cuda --precision bf16", "effect: fp8.margin ("},
        {"{\"fp8\": {\"margin\": 1}}", "--device cuda --precision fp8", NULL},
        {"{\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 128, \"hysteresis\": 4}}", "",
         "without effect: fp16.loss_scale (only fp16 uses it), fp16.hysteresis (only fp16 uses it)\n"},
        {"{\"fp16\": {\"enabled\": false, \"initial_scale_power\": 16, \"loss_scale_window\": 1000, "
         "\"consecutive_hysteresis\": false, \"min_loss_scale\": 1}, \"fp8\": {\"margin\": 1}}",
         "",
         "without effect: fp16.initial_scale_power (only fp16 uses it), fp16.loss_scale_window (only fp16 uses it), "
         "fp16.consecutive_hysteresis (only fp16 uses it), fp16.min_loss_scale (only fp16 uses it), fp8.margin (only fp8 "
         "uses it)\n"},
        {"{\"fp16\": {\"enabled\": true, \"hysteresis\": 4}}", "--precision fp32", "effect: fp16.hysteresis ("},
        {"{\"fp16\": {\"enabled\": true, \"hysteresis\": 4}}", "--device cuda", NULL},
        {"{\"fp16\": {\"enabled\": \"auto\", \"hysteresis\": \"auto\"}}", "", NULL},
        {"{\"fp8\": {\"enabled\": true, \"margin\": 1}}", "--device cuda", NULL},
        {"{\"fp8\": {\"enabled\": false, \"margin\": \"auto\"}}", "", NULL},
        {"{\"fp8\": {\"enabled\": true}, \"bf16\": {\"enabled\": false, \"check_grad_overflow\": true}}",
         "--device cuda", "without effect: bf16.check_grad_overflow (bf16.enabled is not true)\n"},
        {"{\"bfloat16\": {\"enabled\": true, \"check_grad_overflow\": true}}", "--precision fp32",
         "without effect: bfloat16.check_grad_overflow (only bf16 and fp8 use it)\n"},
        {"{\"fp8\": {\"enabled\": true}, \"bf16\": {\"enabled\": true, \"check_grad_overflow\": true}}",
         "--device cuda", NULL},
        {"{\"bf16\": {\"enabled\": false, \"check_grad_overflow\": false}}", "", NULL},
        {"{\"bf16\": {\"enabled\": \"auto\", \"check_grad_overflow\": true}}", "--device cuda", NULL},
        {"{\"bf16\": {\"enabled\": \"auto\", \"check_grad_overflow\": true}}", "--precision fp32",
         "without effect: bf16.check_grad_overflow (only bf16 and fp8 use it)\n"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_train_config c;
        must(cases[i].json, cases[i].line, &c);
        if (noted(&c, cases[i].note ? cases[i].note : "without effect") != !!cases[i].note)
            fail_msg("%s with %s: %s", cases[i].json, cases[i].line, c.notes.data ? c.notes.data : "no note");
        ls_train_config_fini(&c);
    }
}

static void fp8_has_the_names_of_transformer_engine(void **state)
{
    (void)state;
    ls_train_config c;
    must(NULL, "--device cuda --precision fp8", &c);
    assert_true(c.fp8.on && c.fp8.e4m3 && c.fp8.history == 16 && c.fp8.margin == 0 && c.dtype == LS_BF16);
    assert_string_equal(c.precision, "fp8");
    assert_string_equal(c.precision_label, "fp8_mixed");
    ls_train_config_fini(&c);
    must(NULL, "--device cuda --fp8 --fp8_format hybrid --fp8_amax_history_len 5 --fp8_margin 2", &c);
    assert_true(c.fp8.on && !c.fp8.e4m3 && c.fp8.history == 5 && c.fp8.margin == 2);
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
    must("{\"fp8\": {\"enabled\": true, \"reduce_amax\": true}}", "--device cuda", &c);
    assert_true(c.fp8.on);
    ls_train_config_fini(&c);
    /* keys of fp8 are refused only where it is used */
    const char *const amax[] = {"{\"fp8\": {\"enabled\": true, \"reduce_amax\": false}}",
                                "{\"fp8\": {\"enabled\": false, \"reduce_amax\": false}}"};
    for (int i = 0; i < 2; i++) {
        must_fail(amax[i], i ? "--device cuda --precision fp8" : "--device cuda", LS_E_UNSUPPORTED,
                  "'fp8.reduce_amax' is false, but scales always follow from the magnitudes of all workers");
        must(amax[i], i ? "--device cuda" : "--device cuda --precision bf16", &c);
        assert_false(c.fp8.on);
        ls_train_config_fini(&c);
    }
    must_fail(amax[0], "--device cpu", LS_E_UNSUPPORTED, "'fp8.reduce_amax' is false"); /* before the missing GPU */
    must_fail(NULL, "--precision fp8", LS_E_UNSUPPORTED, "supports only fp32 and bf16; use --precision fp32");
    must_fail(NULL, "--precision fp8", LS_E_UNSUPPORTED, "--precision fp8 needs a GPU");
    must_fail("{\"fp8\": {\"enabled\": true}}", "--device cpu", LS_E_UNSUPPORTED, "enables fp8, which needs a GPU");
    must_fail(NULL, "--device cuda --fp8_margin 1", LS_E_CONFIG, "needs --precision fp8");
    must_fail("{\"fp8\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}}", "--device cuda", LS_E_CONFIG,
              "fp16 and fp8");
    const char *both = "{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}";
    must_fail(both, "--device cuda", LS_E_CONFIG,
              "the DeepSpeed JSON enables fp16 and bf16; enable one of them, or add --precision");
    must(both, "--device cuda --precision bf16", &c);
    assert_true(c.dtype == LS_BF16 && noted(&c, "fp16 of the DeepSpeed JSON is overridden by --precision bf16\n"));
    assert_false(noted(&c, "bf16 of the DeepSpeed JSON is"));
    ls_train_config_fini(&c);
    must(both, "--device cuda --fp16", &c);
    assert_true(c.dtype == LS_F16 && noted(&c, "bf16 of the DeepSpeed JSON is overridden by --precision fp16\n"));
    ls_train_config_fini(&c);
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
                                       "lines",
                                       "limit_docs",
                                       "dedup",
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
    must_fail(NULL, "--model tiny -n 2 --strategy zero3 --gather_bucket 10", LS_E_CONFIG,
              "--gather_bucket has no effect with strategy zero3; zero1 and zero2 use it; leave it out");
    must_fail(NULL, "--model tiny -n 2 --prefetch_bucket 10", LS_E_CONFIG, "with strategy ddp; zero3 uses it");
    must_fail(NULL, "--model tiny -n 2 --strategy dp --bucket 10", LS_E_CONFIG, "with strategy dp");
    must_fail(NULL, "--model tiny --profile_spans 10", LS_E_CONFIG, "--profile_spans needs --profile");
    must_fail(NULL, "--model tiny --keep_last 2", LS_E_CONFIG, "--keep_last needs --save_every");
    /* the same command line works for all numbers of workers */
    must(NULL, "--model tiny --bucket 10 --eval_every 3 --max_val_steps 0 --comm_timeout 9", &c);
    assert_true(noted(&c, "--bucket has no effect with one worker"));
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

/* ddp: who shares one optimizer state. */
static void cpu_workers_of_a_host_can_share_a_state(void **state)
{
    (void)state;
    const struct {
        const char *line;
        int workers;
        bool several_hosts, shared;
    } all[] = {{"--strategy ddp --share_optimizer", 2, false, true},
               {"--strategy ddp --share_optimizer --pp 2", 4, false, true},
               {"--strategy ddp --share_optimizer --bucket 5000", 2, false, true},
               {"--strategy ddp", 2, true, false},
               {"--strategy ddp", 2, false, false},
               {"--strategy ddp --audit 5", 2, false, false},
               {"--strategy ddp --device cuda", 2, false, false},
               {"--strategy ddp --share_optimizer --pp 2", 2, false, false},
               {"--strategy zero1", 2, false, false},
               {"--strategy ddp --share_optimizer", 1, false, false},
               {"", 1, false, false}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ls_train_config c = {0};
        const ls_train_facts f = {
            .world_size = all[i].workers, .several_hosts = all[i].several_hosts, .data_eos_id = -1};
        assert_int_equal(resolve_with(NULL, all[i].line, &f, &c), LS_OK);
        assert_true(c.one_state == all[i].shared);
        assert_int_equal(noted(&c, "--share_optimizer has no effect with one "),
                         strstr(all[i].line, "--share_optimizer") && !all[i].shared);
        ls_train_config_fini(&c);
    }
    ls_train_config c = {0};
    const ls_train_facts two = {.world_size = 2, .data_eos_id = -1}, far = {2, 0, -1, .several_hosts = true};
    assert_int_equal(resolve_with(NULL, "--strategy zero1 --share_optimizer", &two, &c), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "--share_optimizer has no effect with strategy zero1; ddp uses it"));
    assert_int_equal(resolve_with(NULL, "--strategy ddp --share_optimizer --gather_bucket 5000", &two, &c),
                     LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "--gather_bucket has no effect with strategy ddp; zero1 and zero2 use it"));
    assert_int_equal(resolve_with(NULL, "--pp 2 --share_optimizer", &two, &c),
                     LS_E_CONFIG); /* nobody typed a strategy */
    assert_non_null(strstr(ls_err_words(),
                           "--share_optimizer has no effect with one replica (2 workers, --pp 2 x --tp 1); "
                           "with several replicas (4 workers or more) ddp uses it; leave it out"));
    const struct {
        const char *line, *words;
        const ls_train_facts *facts;
    } bad[] = {{"--strategy ddp --share_optimizer", "needs all workers on one host", &far},
               {"--strategy ddp --share_optimizer --audit 5", "needs a run without --audit", &two},
               {"--strategy ddp --share_optimizer --device cuda", "needs CPU workers", &two}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(resolve_with(NULL, bad[i].line, bad[i].facts, &c), LS_E_CONFIG);
        assert_non_null(strstr(ls_err_words(), bad[i].words));
    }
    ls_err_clear();
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
        cmocka_unit_test(unsupported_or_contradictory_settings_are_refused),
        cmocka_unit_test(steps_follow_from_the_data_size),
        cmocka_unit_test(every_setting_is_printed_with_its_source),
        cmocka_unit_test(keys_of_another_precision_are_noted),
        cmocka_unit_test(fp8_has_the_names_of_transformer_engine),
        cmocka_unit_test(print_config_omits_no_setting),
        cmocka_unit_test(defaults_of_deepspeed_are_named),
        cmocka_unit_test(options_that_a_run_does_not_use_are_refused),
        cmocka_unit_test(data_files_are_found_or_reported),
        cmocka_unit_test(a_failed_allocation_leaks_nothing),
        cmocka_unit_test(cpu_workers_of_a_host_can_share_a_state),
    };
    return cmocka_run_group_tests(tests, clean_environment, NULL);
}
