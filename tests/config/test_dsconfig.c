/* The DeepSpeed JSON: values and defaults, unknown keys with the nearest known one, unsupported features, and keys without effect. */
#include "config/dsconfig.h"
#include "core/fs.h"
#include "core/mem.h"
#include "test_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ls_status parse(const char *text, ls_ds_config *c)
{
    return ls_ds_config_parse(text, strlen(text), "ds.json", c);
}

static void must_parse(const char *text, ls_ds_config *c)
{
    if (parse(text, c) != LS_OK) fail_msg("%s: %s", text, ls_err_words());
}

static void must_fail(const char *text, ls_status st, const char *part)
{
    ls_ds_config c;
    int64_t live = ls_mem_live();
    if (parse(text, &c) != st) fail_msg("%s gave '%s'", text, ls_err_words());
    if (!strstr(ls_err_words(), part)) fail_msg("%s: '%s' does not contain '%s'", text, ls_err_words(), part);
    if (!strstr(ls_err_words(), "ds.json")) fail_msg("'%s' does not name the file", ls_err_words());
    assert_int_equal(ls_mem_live(), live);
}

/* Whether a key is in the list of those without effect ("key, block.key (reason), ..."). */
static bool listed(const ls_ds_config *c, const char *name)
{
    const char *p = c->no_effect.data ? strstr(c->no_effect.data, name) : NULL;
    return p && (p == c->no_effect.data || p[-1] == ' ');
}

static int n_listed(const ls_ds_config *c)
{
    int n = c->no_effect.len > 0;
    for (const char *p = c->no_effect.data; p && *p; p++) n += *p == ',';
    return n;
}

static double num(const ls_ds_config *c, const char *key)
{
    return ls_ds_real(c, key, -1);
}

/* As hjson, which DeepSpeed reads its files with. */
static void comments_and_trailing_commas_are_accepted(void **state)
{
    (void)state;
    ls_ds_config c;
    must_parse(
        "# first\n{ // no\n  \"train_batch_size\": /* 7, */ 8, # rest }\n  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": "
        "[0.9, 0.95, ], /**/ }, },\n  \"_note\": \"http://a # b, /* c */\",\n}\n//",
        &c);
    assert_true(num(&c, "train_batch_size") == 8);
    assert_int_equal(json_array_size(ls_ds_get(&c, "optimizer.params.betas")), 2);
    assert_string_equal(ls_ds_text(&c, "_note", ""), "http://a # b, /* c */");
    ls_ds_config_fini(&c);
}

static void missing_keys_give_the_default(void **state)
{
    (void)state;
    ls_ds_config c;
    must_parse("{\"fp16\": {\"enabled\": \"auto\", \"hysteresis\": null}}", &c);
    assert_null(ls_ds_get(&c, "optimizer.params.lr"));
    assert_null(ls_ds_get(&c, "fp16.enabled"));
    assert_null(ls_ds_get(&c, "fp16.hysteresis"));
    assert_null(ls_ds_get(NULL, "fp16"));
    assert_non_null(ls_ds_get(&c, "fp16"));
    assert_true(ls_ds_bool(&c, "fp16.enabled", true) && ls_ds_int(&c, "fp16.hysteresis", 2) == 2);
    assert_true(ls_ds_real(&c, "gradient_clipping", 0.5) == 0.5);
    assert_string_equal(ls_ds_text(&c, "optimizer.type", "none"), "none");
    assert_int_equal(n_listed(&c), 0);
    ls_ds_config_fini(&c);
}

static void every_block_of_deepspeed_is_read(void **state)
{
    (void)state;
    ls_ds_config c;
    must_parse(
        "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2e0,"
        "\"optimizer\": {\"type\": \"ADAM\", \"params\": {\"lr\": 2e-4, \"betas\": [0.8, 0.95], \"eps\": 1e-7, "
        "\"weight_decay\": 0.1,\"adam_w_mode\": false, \"bias_correction\": false}},\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 1e4, \"warmup_num_steps\": 100,"
        "\"warmup_type\": \"linear\", \"warmup_min_lr\": 1e-6}},\"fp16\": {\"enabled\": true, \"loss_scale\": 128, \"hysteresis\": \"auto\", \"initial_scale_power\": 12},"
        "\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 2e8, \"allgather_bucket_size\": \"auto\","
        "\"stage3_max_live_parameters\": 7, \"prefetch_bucket_size\": 9, \"offload_optimizer\": {\"device\": "
        "\"none\"}},\"gradient_clipping\": 0.5, \"communication_data_type\": \"FP32\", \"data_types\": {\"grad_accum_dtype\": "
        "\"fp32\"}}",
        &c);
    assert_true(num(&c, "train_batch_size") == 64 && num(&c, "train_micro_batch_size_per_gpu") == 4);
    assert_int_equal(ls_ds_int(&c, "gradient_accumulation_steps", 0), 2); /* written as 2e0 */
    assert_string_equal(ls_ds_text(&c, "optimizer.type", ""), "ADAM");
    assert_true(num(&c, "optimizer.params.lr") == 2e-4 && num(&c, "optimizer.params.weight_decay") == 0.1);
    assert_false(ls_ds_bool(&c, "optimizer.params.bias_correction", true));
    assert_true(num(&c, "scheduler.params.total_num_steps") == 10000 && num(&c, "fp16.loss_scale") == 128);
    assert_int_equal(ls_ds_int(&c, "zero_optimization.reduce_bucket_size", 0), 200000000);
    assert_null(ls_ds_get(&c, "zero_optimization.allgather_bucket_size"));
    assert_true(num(&c, "zero_optimization.stage3_prefetch_bucket_size") == 9); /* given without the prefix stage3_ */
    ls_ds_config_fini(&c);
    must_parse(
        "{\"zero_optimization\": true, \"bfloat16\": {\"enabled\": true}, \"scheduler\": {\"type\": \"LRRangeTest\"}}",
        &c);
    assert_true(num(&c, "zero_optimization.stage") == 1 && ls_ds_bool(&c, "bf16.enabled", false));
    ls_ds_config_fini(&c);
    must_parse("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}}", &c);
    assert_true(listed(&c, "optimizer.params.adam_w_mode"));
    ls_ds_config_fini(&c);
}

static void keys_without_effect_are_listed(void **state)
{
    (void)state;
    ls_ds_config c;
    must_parse(
        "{\"steps_per_print\": 100, \"wall_clock_breakdown\": true, \"memory_breakdown\": false, \"comment\": 1,"
        "\"dump_state\": true, \"activation_checkpointing\": {\"profile\": true, \"cpu_checkpointing\": true},"
        "\"tensorboard\": {\"enabled\": true, \"output_path\": \"\", \"_why\": {}}, \"wandb\": {\"enabled\": true},"
        "\"comms_logger\": {\"enabled\": false},"
        "\"timers\": {\"throughput\": {\"enabled\": \"auto\"}}, \"dataloader_drop_last\": false,"
        "\"pipeline\": {\"enabled\": true, \"num_stages\": 2}, \"elasticity\": {\"enabled\": false}, \"aio\": "
        "{\"block_size\": 1},"
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"cubic\"}}}",
        &c);
    assert_true(listed(&c, "dump_state") && listed(&c, "wandb.enabled"));
    assert_true(listed(&c, "activation_checkpointing.profile") && listed(&c, "pipeline.enabled") && listed(&c, "aio"));
    assert_true(listed(&c, "pipeline.num_stages") && listed(&c, "dataloader_drop_last") &&
                listed(&c, "scheduler.params.warmup_type"));
    assert_false(listed(&c, "memory_breakdown")); /* false asks for nothing */
    assert_false(listed(&c, "activation_checkpointing.cpu_checkpointing"));
    assert_false(listed(&c, "comms_logger") || listed(&c, "timers") || listed(&c, "elasticity"));
    assert_false(listed(&c, "steps_per_print") || listed(&c, "wall_clock_breakdown") || listed(&c, "tensorboard"));
    assert_false(listed(&c, "comment") || listed(&c, "tensorboard._why")); /* no note is needed */
    assert_int_equal(n_listed(&c), 8);
    assert_true(ls_ds_bool(&c, "wall_clock_breakdown", false));
    ls_ds_config_fini(&c);
}

static void unknown_keys_name_the_nearest_one(void **state)
{
    (void)state;
    must_fail("{\"train_batch_sise\": 4}", LS_E_CONFIG, "nearest one is 'train_batch_size'");
    must_fail("{\"fp16\": {\"enable\": true}}", LS_E_CONFIG,
              "'fp16.enable' is not a DeepSpeed key; the nearest one is 'fp16.enabled'");
    must_fail("{\"zero_optimization\": {\"stag\": 1}}", LS_E_CONFIG, "zero_optimization.stage");
    must_fail("{\"zero_optimization\": {\"offload_optimizer\": {\"devise\": \"none\"}}}", LS_E_CONFIG,
              "zero_optimization.offload_optimizer.device");
    must_fail("{\"zero_optimization\": {\"grad_hooks\": true}}", LS_E_CONFIG,
              "grad_hooks"); /* DeepSpeed documents this key but rejects it */
    must_fail("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"learning_rate\": 1}}}", LS_E_CONFIG,
              "optimizer.params.learning_rate");
    must_fail("{\"optimizer\": {\"type\": \"Adam\", \"parms\": {}}}", LS_E_CONFIG, "optimizer.params");
    must_fail("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_step\": 3}}}", LS_E_CONFIG,
              "scheduler.params.warmup_num_steps");
    must_fail("{\"activation_checkpointing\": {\"profil\": true}}", LS_E_CONFIG, "activation_checkpointing.profile");
    must_fail("{\"timers\": {\"throughput\": {\"synchronised\": true}}}", LS_E_CONFIG,
              "timers.throughput.synchronized");
    must_fail("{\"checkpoint\": {\"parallel_write\": {\"x\": 1}}}", LS_E_CONFIG, "checkpoint.parallel_write.x");
    /* keys of another block */
    must_fail("{\"fp16\": {\"foo\": 1}}", LS_E_CONFIG, "'fp16.foo' is not a DeepSpeed key");
    assert_null(strstr(ls_err_words(), "nearest")); /* no key of the block is similar */
    must_fail("{\"fp8\": {\"enabled\": true, \"interval\": 1}}", LS_E_CONFIG,
              "'fp8.interval' is not a known key; the keys of the block fp8 are enabled, format, fp8_format, margin, "
              "amax_history_len, amax_compute_algo, reduce_amax");
    must_fail("{\"fp8\": {\"Margin\": 1}}", LS_E_CONFIG, "is not a known key; the nearest one is 'fp8.margin'");
    must_fail("{\"amax_history_len\": 1}", LS_E_CONFIG,
              "is not a known key; the nearest one is 'fp8.amax_history_len', inside that block");
    must_fail("{\"fp8\": {\"loss_scale\": 1}}", LS_E_CONFIG, "'fp16.loss_scale', inside that block");
    must_fail("{\"stage\": 2}", LS_E_CONFIG, "'zero_optimization.stage', inside that block");
    must_fail("{\"fp16\": {\"gradient_clipping\": 1}}", LS_E_CONFIG, "'gradient_clipping' at the top level");
    must_fail("{\"qqqqqqqqqqqq\": 2}", LS_E_CONFIG, "is not a DeepSpeed key");
}

static void wrong_values_name_their_key(void **state)
{
    (void)state;
    must_fail("{\"a\": 1, }", LS_E_CONFIG, "line 1");
    must_fail("{} x", LS_E_CONFIG, "line 1");
    must_fail("{\"fp16\": {}, \"fp16\": {}}", LS_E_CONFIG, "a key may occur once");
    must_fail("{ /* never ends", LS_E_CONFIG, "line 1, ");
    must_fail("{\n# one\n \"steps_per_print\": 1,, }", LS_E_CONFIG, "line 3, ");
    must_fail("{\n/* two\n lines */ train_batch_size: 1}", LS_E_CONFIG, "line 3, ");
    must_fail("{,}", LS_E_CONFIG, "keys and texts need double quotes");
    /* the line of a key, that of its block where the key is not in the text, and where another block has the same key */
    must_fail("{\n\"fp16\": {\"enabled\": false},\n// \"bf16\": {\n\"bf16\": {\n\"enabled\": 3}}", LS_E_CONFIG,
              "ds.json: line 5: 'bf16.enabled' is 3");
    must_fail("{\"comment\": \"{ \\\" // [\",\n\"amp\": [\"amp\",\n{\"enabled\": true}]}", LS_E_UNSUPPORTED,
              "ds.json: line 2: 'amp'");
    must_fail("[]", LS_E_CONFIG, "object");
    must_fail("{\"train_batch_size\": 0}", LS_E_CONFIG, "train_batch_size");
    must_fail("{\"train_batch_size\": 1.5}", LS_E_CONFIG, "whole");
    must_fail("{\"train_batch_size\": true}", LS_E_CONFIG, "whole");
    must_fail("{\"train_batch_size\": \"automatic\"}", LS_E_CONFIG, "whole");
    must_fail("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"high\"}}}", LS_E_CONFIG, "a number");
    must_fail("{\"gradient_clipping\": -1}", LS_E_CONFIG, "gradient_clipping");
    must_fail("{\"fp16\": {\"loss_scale\": -2}}", LS_E_CONFIG, "loss_scale");
    must_fail("{\"fp16\": {\"loss_scale\": true}}", LS_E_CONFIG, "loss_scale");
    must_fail("{\"fp16\": {\"loss_scale_window\": 0}}", LS_E_CONFIG, "loss_scale_window");
    must_fail("{\"fp16\": {\"min_loss_scale\": 0}}", LS_E_CONFIG, "min_loss_scale");
    must_fail("{\"fp16\": {\"enabled\": 1}}", LS_E_CONFIG, "true or false");
    must_fail("{\"fp16\": true}", LS_E_CONFIG, "object");
    must_fail("{\"bf16\": {}, \"bfloat16\": {}}", LS_E_CONFIG, "'bf16' and 'bfloat16' are two names");
    must_fail("{\"fp8\": {\"format\": \"e4m3\", \"fp8_format\": \"hybrid\"}}", LS_E_CONFIG,
              "'fp8.format' and 'fp8.fp8_format' are two names of the same setting; give one of them");
    must_fail("{\"zero_optimization\": {\"stage3_prefetch_bucket_size\": 1, \"prefetch_bucket_size\": 2}}", LS_E_CONFIG,
              "'zero_optimization.prefetch_bucket_size' are two names");
    must_fail("{\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}}", LS_E_UNSUPPORTED, "always fp32");
    must_fail("{\"bf16\": {\"bf16_master_weights_and_grads\": true}}", LS_E_UNSUPPORTED,
              "bf16_master_weights_and_grads");
    must_fail("{\"zero_optimization\": {\"stage\": 4}}", LS_E_CONFIG, "is 4, but must be 0 to 3");
    must_fail("{\"zero_optimization\": {\"allgather_bucket_size\": 7}}", LS_E_CONFIG, "even");
    must_fail("{\"zero_optimization\": {\"stage\": 2}, \"prescale_gradients\": true}", LS_E_CONFIG, "stage 2");
    must_fail("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}}", LS_E_CONFIG, "betas");
    must_fail("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9, 1]}}}", LS_E_CONFIG, "betas");
    must_fail("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 1}}}", LS_E_CONFIG,
              "gradient_clipping");
    must_fail("{\"optimizer\": {}}", LS_E_CONFIG, "optimizer.type");
    must_fail("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 0}}}", LS_E_CONFIG,
              "warmup_num_steps");
    must_fail("{\"scheduler\": {\"type\": \"WarmupCosineLR\"}}", LS_E_CONFIG, "total_num_steps");
    must_fail("{\"communication_data_type\": \"fp8\"}", LS_E_CONFIG, "fp16|bf16|fp32");
    must_fail("{\"data_types\": {\"grad_accum_dtype\": \"int8\"}}", LS_E_CONFIG, "fp32|fp16|bf16");
}

static void unsupported_features_are_refused_if_enabled(void **state)
{
    (void)state;
    must_fail("{\"optimizer\": {\"type\": \"Lamb\"}}", LS_E_UNSUPPORTED, "Lamb");
    must_fail("{\"optimizer\": {\"type\": \"sgd\"}}", LS_E_UNSUPPORTED, "'sgd'");
    must_fail("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"amsgrad\": true}}}", LS_E_UNSUPPORTED, "amsgrad");
    must_fail("{\"scheduler\": {\"type\": \"OneCycle\"}}", LS_E_UNSUPPORTED, "OneCycle");
    must_fail("{\"scheduler\": {\"type\": \"warmuplr\"}}", LS_E_UNSUPPORTED, "'WarmupLR'? case matters");
    must_fail("{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}}", LS_E_CONFIG,
              "needs 'zero_optimization.stage'");
    must_fail("{\"zero_optimization\": {\"cpu_offload\": true}}", LS_E_CONFIG, "needs 'zero_optimization.stage'");
    must_fail("{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\"}}}",
              LS_E_UNSUPPORTED, "nvme");
    must_fail("{\"zero_optimization\": {\"legacy_stage1\": true}}", LS_E_UNSUPPORTED, "legacy_stage1");
    must_fail("{\"zero_optimization\": {\"mics_shard_size\": 4}}", LS_E_UNSUPPORTED, "mics_shard_size");
    must_fail("{\"zero_optimization\": {\"zero_quantized_weights\": true}}", LS_E_UNSUPPORTED,
              "zero_quantized_weights");
    must_fail("{\"amp\": {\"enabled\": true}}", LS_E_UNSUPPORTED, "amp");
    must_fail("{\"torch_autocast\": {\"enabled\": true}}", LS_E_UNSUPPORTED, "torch_autocast");
    must_fail("{\"compression_training\": {\"weight_quantization\": {\"shared_parameters\": {\"enabled\": true}}}}",
              LS_E_UNSUPPORTED, "compression_training");
    must_fail("{\"sparse_attention\": {\"mode\": \"fixed\"}}", LS_E_UNSUPPORTED, "sparse_attention");
    must_fail("{\"sparse_gradients\": true}", LS_E_UNSUPPORTED, "sparse_gradients");
    must_fail("{\"gradient_allreduce_op\": \"sum\"}", LS_E_UNSUPPORTED, "mean");
    ls_ds_config c; /* the same features, disabled */
    must_parse(
        "{\"amp\": {\"enabled\": false}, \"zero_optimization\": {\"mics_shard_size\": -1, \"zero_hpz_partition_size\": "
        "1,\"cpu_offload\": false}, \"torch_autocast\": {\"enabled\": false}, \"tensor_parallel\": {\"autotp_size\": 1},"
        "\"sparse_attention\": null, \"gradient_allreduce_op\": \"mean\", \"compile\": {\"enabled\": false}}",
        &c);
    ls_ds_config_fini(&c);
    must_parse("{\"fp8\": {\"format\": \"auto\", \"fp8_format\": \"hybrid\"}}", &c); /* one name has a value */
    assert_string_equal(ls_ds_text(&c, "fp8.format", ""), "hybrid");
    ls_ds_config_fini(&c);
    must_parse(
        "{\"fp8\": {\"format\": \"e4m3\", \"fp8_format\": \"auto\"}, \"bfloat16\": null, \"bf16\": {\"enabled\": true}}",
        &c);
    assert_string_equal(ls_ds_text(&c, "fp8.format", ""), "e4m3");
    assert_true(ls_ds_bool(&c, "bf16.enabled", false));
    ls_ds_config_fini(&c);
}

static void a_failed_allocation_leaks_nothing(void **state)
{
    (void)state;
    const char *text = "{\"dump_state\": true, \"memory_breakdown\": true}";
    int64_t live = ls_mem_live();
    for (int64_t k = 0;; k++) {
        ls_ds_config c;
        ls_mem_fail_at(k);
        ls_status st = parse(text, &c);
        ls_mem_fail_at(-1);
        if (st == LS_OK) {
            assert_int_equal(k, 3); /* the text without comments, the bytes, the list */
            ls_ds_config_fini(&c);
            break;
        }
        assert_int_equal(st, LS_E_NOMEM);
        assert_int_equal(ls_mem_live(), live);
    }
    assert_int_equal(ls_mem_live(), live);
}

static void all_problems_are_listed_in_three_groups(void **state)
{
    (void)state;
    const char *text =
        "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, \"beta\": 1}}, \"gradient_clipping\": -1,"
        "\"zero_optimization\": {\"stage\": 1, \"offload_param\": {\"device\": \"cpu\"}}, \"dump_state\": true,"
        "\"comment\": \"x\", \"_note\": [], \"pipeline\": {\"stages\": 2}, \"scheduler\": {\"type\": 5},"
        "\"dataloader_drop_last\": false}";
    static const char *const wanted[] = {
        "  honoured\n    optimizer.type ",
        "    optimizer.params.lr  ",
        " --lr\n",
        "    pipeline.stages  ",
        " --pp\n",
        "    zero_optimization.stage  ",
        " --strategy\n",
        "  ignored\n    dump_state ",
        " no effect\n",
        "    comment  ",
        " a comment\n",
        "    _note  ",
        " the last partial batch of an epoch is always dropped\n",
        "  refused\n    line 1: 'optimizer.params.beta' is not a DeepSpeed key; the nearest one is 'optimizer.params.betas'\n",
        "    line 1: 'gradient_clipping' is -1, but must be at least 0 (flag: --clip)\n",
        "    line 1: 'scheduler.type' is 5, but must be text (flag: --lr_schedule)\n",
        "    line 1: 'zero_optimization.offload_param.device' is 'cpu', which is not supported; use none "};
    char *dir = test_dir();
    const char *path = test_path(dir, "ds.json", NULL);
    ls_str s = {0};
    const int64_t live = ls_mem_live();
    assert_int_equal(ls_fs_write(path, text, strlen(text)), LS_OK);
    assert_int_equal(ls_ds_config_explain(path, NULL, false, NULL, &s), LS_OK);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(s.data, wanted[i])) fail_msg("'%s' is not in\n%s", wanted[i], s.data);
    const char *honoured = strstr(s.data, "honoured"), *ignored = strstr(s.data, "  ignored");
    const char *device = strstr(s.data, "offload_param.device");
    assert_true(honoured < ignored && device > ignored); /* a key is in one group */
    ls_str_fini(&s);
    assert_int_equal(ls_mem_live(), live);
    must_fail(text, LS_E_CONFIG, "'optimizer.params.beta'");
    must_fail(text, LS_E_CONFIG, "(and 3 more problems)");
    must_fail("{\"stag\": 1, \"amp\": {\"enabled\": true}}", LS_E_CONFIG, "(and 1 more problem)");
    test_dir_close(dir);
}

/* The lines of the groups that a text has. */
static void groups_in(const char *text, const char *precision, ls_str *out)
{
    char *dir = test_dir();
    const char *path = test_path(dir, "ds.json", NULL);
    assert_int_equal(ls_fs_write(path, text, strlen(text)), LS_OK);
    assert_int_equal(ls_ds_config_explain(path, precision, true, NULL, out), LS_OK);
    test_dir_close(dir);
}

/* Keys that are accepted and change nothing are not listed as honoured. */
static void keys_without_effect_are_not_honoured(void **state)
{
    (void)state;
    static const char *const none[] = {"zero_optimization.overlap_comm",
                                       "zero_optimization.contiguous_gradients",
                                       "zero_optimization.offload_optimizer.pin_memory",
                                       "compression_training",
                                       "fp16.loss_scale",
                                       "zero_optimization.offload_optimizer.device"};
    ls_str s = {0};
    groups_in(
        "{\"zero_optimization\": {\"stage\": 2, \"overlap_comm\": true, \"contiguous_gradients\": true, \"offload_optimizer\": "
        "{\"device\": \"cpu\", \"pin_memory\": true}, \"zero_quantized_weights\": false}, \"compression_training\": {}, "
        "\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0}}",
        "fp32", &s);
    const char *ignored = strstr(s.data, "  ignored"), *refused = strstr(s.data, "  refused");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        const char *at = strstr(s.data, none[i]);
        if (!at || at < ignored || at > refused) fail_msg("%s in:\n%s", none[i], s.data);
    }
    assert_true(strstr(s.data, "zero_optimization.stage") < ignored &&
                strstr(s.data, "zero_quantized_weights") < ignored);
    ls_str_fini(&s);
}

static void groups_of(const char *text, ls_str *out)
{
    groups_in(text, NULL, out);
}

static void keys_of_fp8_are_honoured_in_fp8(void **state)
{
    (void)state;
    static const struct {
        const char *text, *precision;
        bool ignored;
    } row[] = {
        {"{\"fp8\": {\"margin\": 1}}", NULL, true},
        {"{\"fp8\": {\"margin\": 1}}", "fp8", false},
        {"{\"fp8\": {\"enabled\": true, \"margin\": 1}}", NULL, false},
        {"{\"fp8\": {\"enabled\": true, \"margin\": 1}}", "bf16", true},
        {"{\"fp8\": {\"margin\": 99}}", NULL, false}, /* refused */
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ls_str s = {0};
        groups_in(row[i].text, row[i].precision, &s);
        if (!strstr(s.data, "only fp8 uses it") == row[i].ignored) fail_msg("%zu:\n%s", i, s.data);
        ls_str_fini(&s);
    }
}

static void a_precision_that_is_overridden_is_ignored(void **state)
{
    (void)state;
    static const struct {
        const char *text, *precision, *key;
        bool ignored;
    } row[] = {
        {"{\"fp8\": {\"enabled\": true}}", "bf16", "fp8.enabled", true},
        {"{\"fp8\": {\"enabled\": true}}", "fp8", "fp8.enabled", false},
        {"{\"fp8\": {\"enabled\": true}}", NULL, "fp8.enabled", false},
        {"{\"fp8\": {\"enabled\": \"auto\"}}", "bf16", "fp8.enabled", false},
        {"{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", "bf16", "fp16.enabled", true},
        {"{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", "bf16", "bf16.enabled", false},
        {"{\"fp16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": true}}", "fp16", "bfloat16.enabled", true},
        {"{\"fp8\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", "fp8", "bf16.enabled", false},
        {"{\"bf16\": {\"enabled\": false}}", "bf16", "bf16.enabled", true},
        {"{\"bf16\": {\"enabled\": false}}", "fp32", "bf16.enabled", false},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ls_str s = {0};
        char line[80];
        groups_in(row[i].text, row[i].precision, &s);
        snprintf(line, sizeof line, "\n    %s ", row[i].key);
        const char *at = strstr(s.data, line), *ignored = strstr(s.data, "\n  ignored\n");
        assert_true(at && ignored);
        if ((at > ignored) != row[i].ignored || strstr(at + 1, line)) fail_msg("%zu:\n%s", i, s.data);
        ls_str_fini(&s);
    }
}

/* The largest of a history needs no option; the most recent is a history of one step. */
static void the_option_of_a_key_follows_its_value(void **state)
{
    (void)state;
    for (int recent = 0; recent < 2; recent++) {
        char text[128];
        ls_str s = {0};
        snprintf(text, sizeof text,
                 "{\"fp8\": {\"enabled\": true, \"amax_history_len\": 4, \"amax_compute_algo\": \"%s\"}}",
                 recent ? "Most_Recent" : "max");
        groups_of(text, &s);
        const bool one_step = strstr(s.data, "--fp8_amax_history_len 1\n");
        if (!strstr(s.data, "    fp8.amax_compute_algo ") || one_step != recent) fail_msg("%s:\n%s", text, s.data);
        if (!!strstr(s.data, "not used beside amax_compute_algo most_recent") != recent)
            fail_msg("%s:\n%s", text, s.data);
        ls_str_fini(&s);
    }
}

static void a_key_is_in_one_group(void **state)
{
    (void)state;
    static const struct {
        const char *text, *gone; /* not honoured, though right by itself */
        const char *kept;        /* honoured; NULL: nothing is */
    } row[] = {
        {"{\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": 1}}, \"gradient_clipping\": 1}", "optimizer",
         "gradient_clipping"},
        {"{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {}}}", "scheduler", NULL},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1, \"betas\": [1, 2]}}}", "optimizer.params.betas",
         "optimizer.params.lr"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": 3}}}", "scheduler.params.warmup_type",
         "scheduler.type"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"x\"}}}",
         "scheduler.params.warmup_type", "scheduler.type"},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}}", "optimizer.params.adam_w_mode",
         "optimizer.type"},
        {"{\"fp16\": {\"enabled\": true, \"hysteresis\": 2}, \"bf16\": {\"enabled\": true}}", "fp16.enabled",
         "fp16.hysteresis"},
        {"{\"fp16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": true}}", "bfloat16", NULL},
        {"{\"bf16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": true}}", "bfloat16", "bf16.enabled"},
        {"{\"fp8\": {\"format\": \"e4m3\", \"fp8_format\": \"e4m3\"}}", "fp8.fp8_format", "fp8.format"},
        {"{\"fp8\": {\"enabled\": false, \"margin\": 1}}", "fp8.margin", "fp8.enabled"},
        {"{\"fp8\": {\"fp8_format\": \"e4m3\", \"margin\": 99}}", "fp8", NULL},
        {"{\"fp16\": {\"enabled\": false, \"loss_scale\": 0, \"min_loss_scale\": 1}}", "fp16.loss_scale",
         "fp16.enabled"},
        {"{\"fp16\": {\"enabled\": true}, \"fp8\": {\"enabled\": true}}", "fp16.enabled", NULL},
        {"{\"fp8\": {\"enabled\": true}, \"bf16\": {\"enabled\": false, \"check_grad_overflow\": true}}",
         "bf16.check_grad_overflow", "bf16.enabled"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ls_str s = {0};
        char line[80];
        groups_of(row[i].text, &s);
        char *end = strstr(s.data, "\n  ignored\n");
        assert_non_null(end);
        *end = '\0'; /* what is honoured */
        snprintf(line, sizeof line, "\n    %s", row[i].gone);
        if (strstr(s.data, line)) fail_msg("%s: %s is honoured in\n%s", row[i].text, row[i].gone, s.data);
        snprintf(line, sizeof line, "\n    %s ", row[i].kept ? row[i].kept : "");
        if (row[i].kept && !strstr(s.data, line)) fail_msg("%s: %s is not in\n%s", row[i].text, row[i].kept, s.data);
        if (!row[i].kept && !strstr(s.data, "  honoured\n    none")) fail_msg("%s: not empty\n%s", row[i].text, s.data);
        ls_str_fini(&s);
    }
}

/* A complete file as used for training with DeepSpeed: all blocks, integers with exponents, and the hash of its bytes. */
static void a_real_configuration_file_loads(void **state)
{
    (void)state;
    const char *path = LS_SOURCE_DIR "/tests/data/reference/deepspeed_config.json";
    ls_ds_config c;
    assert_int_equal(ls_ds_config_load(path, &c), LS_OK);
    assert_string_equal(c.sha256, "88b9348f2b679cea5ba0653fe4db195f587164ed6208b54cb1b70e94323d3a8f");
    assert_string_equal(c.path, path);
    assert_true(num(&c, "train_micro_batch_size_per_gpu") == 4 && num(&c, "gradient_accumulation_steps") == 8);
    assert_null(ls_ds_get(&c, "train_batch_size"));
    assert_string_equal(ls_ds_text(&c, "optimizer.type", ""), "AdamW");
    assert_true(num(&c, "optimizer.params.lr") == 3e-4 && num(&c, "optimizer.params.weight_decay") == 0.1);
    assert_true(ls_ds_bool(&c, "fp16.enabled", false) && num(&c, "zero_optimization.stage") == 1);
    assert_true(num(&c, "zero_optimization.reduce_bucket_size") == 100000000 && num(&c, "gradient_clipping") == 1);
    assert_true(num(&c, "scheduler.params.warmup_max_lr") == 3e-4 &&
                num(&c, "scheduler.params.warmup_num_steps") == 400);
    assert_int_equal(n_listed(&c), 0);
    ls_ds_config_fini(&c);
    assert_int_equal(ls_ds_config_load("/nonexistent.json", &c), LS_E_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comments_and_trailing_commas_are_accepted),
        cmocka_unit_test(keys_without_effect_are_not_honoured),
        cmocka_unit_test(missing_keys_give_the_default),
        cmocka_unit_test(every_block_of_deepspeed_is_read),
        cmocka_unit_test(keys_without_effect_are_listed),
        cmocka_unit_test(unknown_keys_name_the_nearest_one),
        cmocka_unit_test(wrong_values_name_their_key),
        cmocka_unit_test(unsupported_features_are_refused_if_enabled),
        cmocka_unit_test(a_failed_allocation_leaks_nothing),
        cmocka_unit_test(all_problems_are_listed_in_three_groups),
        cmocka_unit_test(a_key_is_in_one_group),
        cmocka_unit_test(keys_of_fp8_are_honoured_in_fp8),
        cmocka_unit_test(a_precision_that_is_overridden_is_ignored),
        cmocka_unit_test(the_option_of_a_key_follows_its_value),
        cmocka_unit_test(a_real_configuration_file_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
