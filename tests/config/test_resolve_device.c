/* Resolution of settings: devices, precisions and loss scales, workers, and the environment of launchers. */
#include "resolve_checks.h"

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
    assert_source(&c, "precision", LS_FROM_DEFAULT, "the JSON enables none of fp16, bf16 and fp8");
    ls_train_config_fini(&c);
    static const char *const blocks[] = {"fp16", "bf16", "fp8"};
    for (size_t i = 0; i < N_OF(blocks); i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"%s\": {\"enabled\": \"auto\"}}", blocks[i]);
        must(text, "--device cuda", &c);
        assert_string_equal(c.precision, "bf16");
        assert_source(&c, "precision", LS_FROM_DEFAULT, "the JSON has \"auto\"");
        ls_train_config_fini(&c);
    }
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
        {"--precision fp16", "use --precision fp32 or --precision bf16; --device auto found no GPU: no driver"},
        {"--precision bf16 --stochastic_rounding",
         "needs --device cuda --precision bf16 or fp8, but this run uses bf16 on the CPU"},
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
    assert_string_equal(c.precision_why,
                        native ? "this CPU has bf16 instructions" : "this CPU has no bf16 instructions");
    assert_source(&c, "precision", LS_FROM_CLI,
                  native ? "--precision auto: this CPU has bf16 instructions"
                         : "--precision auto: this CPU has no bf16 instructions");
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(NULL, "--precision bf16", &off, &c), LS_OK);
    assert_null(c.precision_why);
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(NULL, "--precision auto --compute cpu-ref", &off, &c), LS_OK); /* it has only fp32 */
    assert_true(c.dtype == LS_F32);
    assert_string_equal(c.precision_why, "cpu-ref supports only fp32");
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(NULL, "--precision fp8 --stochastic_rounding", &on, &c), LS_OK);
    assert_true(c.fp8.on && c.stochastic);
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(fp16, "--precision auto", &on, &c), LS_OK);
    assert_true(c.dtype == LS_BF16 &&
                noted(&c, "fp16 of the DeepSpeed JSON is overridden by --precision auto, here bf16"));
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with("{\"fp8\": {\"enabled\": true}}", "--precision auto", &on, &c), LS_OK);
    assert_true(noted(&c, "fp8 of the DeepSpeed JSON is overridden by --precision auto, here bf16"));
    ls_train_config_fini(&c);
    const ls_device_choice env = {.asked = "cpu", .index = -1, .from = "LS_DEVICE", .words = "CPU (LS_DEVICE cpu)"};
    assert_int_equal(resolve_with(NULL, "", &(ls_train_facts){.data_eos_id = -1, .device = &env}, &c), LS_OK);
    assert_source(&c, "device", LS_FROM_ENV, "LS_DEVICE");
    ls_train_config_fini(&c);
    must(NULL, "", &c); /* no device was passed */
    assert_string_equal(c.device, "cpu");
    ls_train_config_fini(&c);
}

/* What the machine would decide anew: options and the JSON still change it. */
static void a_resumed_run_keeps_its_precision(void **state)
{
    (void)state;
    ls_train_config c;
    const ls_device_choice cpu = {.asked = "cpu", .index = -1, .words = "CPU", .from = ""},
                           gpu = {.cuda = true, .asked = "cuda", .index = -1, .words = "CUDA", .from = ""};
    const ls_run_computed bf16 = {.precision = "bf16", .device = "cuda"}, fp32 = {.precision = "fp32", .device = "cpu"},
                          fp8 = {.precision = "fp8",
                                 .device = "cuda",
                                 .fp8_format = "hybrid",
                                 .fp8_history = 7,
                                 .fp8_margin = 2};
    const struct {
        const char *json, *line;
        ls_device_choice device;
        ls_run_computed before;
        const char *precision;
    } cases[] = {
        {NULL, "", cpu, bf16, "bf16"},
        {NULL, "--precision auto", cpu, bf16, "bf16"},
        {NULL, "", gpu, fp32, "fp32"},
        {NULL, "--precision auto", gpu, fp32, "fp32"},
        {"{\"bf16\": {\"enabled\": \"auto\"}}", "", gpu, fp32, "fp32"},
        {"{\"fp8\": {\"enabled\": \"auto\"}}", "", gpu, fp32, "fp32"},
        {"{\"fp8\": {\"enabled\": \"auto\"}}", "", gpu, fp8, "fp8"},
        {"{\"bf16\": {\"enabled\": true}}", "", gpu, fp32, "bf16"},
        {"{\"bf16\": {\"enabled\": false}}", "", gpu, bf16, "fp32"},
        {"{}", "", gpu, bf16, "bf16"}, /* names none */
        {"{}", "", gpu, {0}, "fp32"},
        {NULL, "--precision fp32", cpu, bf16, "fp32"},
        {NULL, "", gpu, fp8, "fp8"},
        {NULL, "", gpu, {0}, "bf16"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        const ls_train_facts f = {.data_eos_id = -1, .device = &cases[i].device, .before = cases[i].before};
        if (resolve_with(cases[i].json, cases[i].line, &f, &c) != LS_OK) fail_msg("%zu: %s", i, ls_err_words());
        assert_string_equal(c.precision, cases[i].precision);
        char kept[96]; /* auto, if it is typed and would choose another one, is answered */
        snprintf(kept, sizeof kept, "--precision auto: the precision of the run, %s, is kept\n", c.precision);
        assert_int_equal(noted(&c, kept), !strcmp(cases[i].line, "--precision auto") &&
                                              strcmp(c.precision, ls_precision_of_backend("auto", c.compute, NULL)));
        ls_train_config_fini(&c);
    }
    const ls_train_facts on = {.data_eos_id = -1, .device = &gpu, .before = fp8},
                         off = {.data_eos_id = -1, .device = &cpu, .before = fp8};
    assert_int_equal(resolve_with(NULL, "", &on, &c), LS_OK); /* not the defaults of this version */
    assert_true(!c.fp8.e4m3 && c.fp8.history == 7 && c.fp8.margin == 2);
    assert_source(&c, "precision", LS_FROM_RUN, "--precision");
    assert_source(&c, "fp8_margin", LS_FROM_RUN, "--fp8_margin");
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with("{\"fp8\": {\"enabled\": true, \"margin\": 3}}", "--fp8_format e4m3", &on, &c),
                     LS_OK);
    assert_true(c.fp8.e4m3 && c.fp8.history == 7 && c.fp8.margin == 3);
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with("{\"fp8\": {\"enabled\": \"auto\"}}", "", &on, &c), LS_OK);
    assert_true(!c.fp8.e4m3 && c.fp8.history == 7 && c.fp8.margin == 2);
    ls_train_config_fini(&c);
    assert_int_equal(resolve_with(NULL, "", &off, &c), LS_E_UNSUPPORTED);
    assert_contains(ls_err_words(), "the steps of this run were computed in fp8, but the CPU supports only");
}

/* options.json of a run that is resumed cannot be read: that matters where it would decide. */
static void lost_settings_are_refused_where_they_decide(void **state)
{
    (void)state;
    static const char all[] = "--fp8_format hybrid --fp8_amax_history_len 3 --fp8_margin 1";
    char line[200];
    ls_train_config c;
    const ls_device_choice gpu = {.cuda = true, .asked = "cuda", .index = -1, .words = "CUDA", .from = ""};
    const ls_train_facts damaged = {.data_eos_id = -1,
                                    .device = &gpu,
                                    .before = {.lost = "FILE: bad", .damaged = true}},
                         deleted = {.data_eos_id = -1, .device = &gpu, .before = {.lost = "FILE: no such file"}};
    const struct {
        const char *json, *line, *precision; /* NULL: refused */
    } cases[] = {
        {NULL, "", NULL},
        {NULL, "--precision auto", NULL},
        {"{}", "", NULL},
        {NULL, "--precision bf16", "bf16"},
        {"{\"bf16\": {\"enabled\": true}}", "", "bf16"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        const ls_status st = resolve_with(cases[i].json, cases[i].line, &damaged, &c);
        assert_int_equal(st, cases[i].precision ? LS_OK : LS_E_FORMAT);
        if (st != LS_OK) assert_string_equal(ls_err_words(), "FILE: bad; add --precision");
        else assert_string_equal(c.precision, cases[i].precision);
        if (st == LS_OK) ls_train_config_fini(&c);
    }
    assert_int_equal(resolve_with(NULL, "", &deleted, &c), LS_OK); /* of an earlier version: decided again */
    assert_string_equal(c.precision, "bf16");
    ls_train_config_fini(&c);
    for (size_t i = 0; i < N_OF(cases); i++) { /* compared with the checkpoint when it is read */
        assert_int_equal(resolve_with(cases[i].json, cases[i].line, &deleted, &c), LS_OK);
        assert_int_equal(c.precision_open, !cases[i].precision);
        ls_train_config_fini(&c);
    }
    assert_int_equal(resolve_with("{\"fp16\": {\"enabled\": false}}", "", &deleted, &c), LS_OK);
    assert_true(c.precision_open);
    ls_train_config_fini(&c);
    for (int i = 0; i < 2; i++) {
        const ls_train_facts *f = i ? &deleted : &damaged;
        assert_int_equal(resolve_with(NULL, "--precision fp8 --fp8_format hybrid --fp8_margin 1", f, &c), LS_E_FORMAT);
        assert_contains(ls_err_words(),
                        "; the settings of fp8 are not known: add --fp8_format, --fp8_amax_history_len");
        snprintf(line, sizeof line, "--precision fp8 %s", all);
        assert_int_equal(resolve_with(NULL, line, f, &c), LS_OK);
        assert_true(!c.fp8.e4m3 && c.fp8.history == 3 && c.fp8.margin == 1);
        ls_train_config_fini(&c);
    }
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
    must(r1_json, "--run_type baseline --device cuda",
         &c); /* the training loop of the scaling study uses torch's scaler */
    assert_true(s->rule == LS_SCALE_AMP && s->initial == 65536 && s->window == 2000);
    assert_string_equal(c.precision_label, "fp16_torch_amp");
    ls_train_config_fini(&c);
    must(r1_json, "--run_type baseline --device cuda -n 2",
         &c); /* with two workers the scaling study uses the DeepSpeed engine */
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

/* All of --precision without auto. */
static void files_have_the_precisions_of_the_option(void **state)
{
    (void)state;
    static const char *const known[] = {"fp32", "bf16", "fp16", "fp8"};
    char word[8];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        snprintf(word, sizeof word, "%s", known[i]);
        const char *own = ls_precision_named(word);
        assert_true(own && own != word && !strcmp(own, word));
    }
    assert_true(!ls_precision_named("fp33") && !ls_precision_named("auto") && !ls_precision_named(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_have_the_precisions_of_the_option),
        cmocka_unit_test(a_gpu_run_defaults_to_bf16),
        cmocka_unit_test(automatic_devices_resolve_as_if_named),
        cmocka_unit_test(a_resumed_run_keeps_its_precision),
        cmocka_unit_test(lost_settings_are_refused_where_they_decide),
        cmocka_unit_test(the_loss_scale_rule_follows_the_run),
        cmocka_unit_test(worker_settings_come_from_flags_and_json),
        cmocka_unit_test(the_launchers_environment_is_read_and_checked),
    };
    return cmocka_run_group_tests(tests, clean_environment, NULL);
}
