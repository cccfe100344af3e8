/* dsconfig_tables.c - every key of DeepSpeed 0.18, what kind of value it takes and what it does here; then the blocks whose keys
 * depend on a type (optimizer, scheduler) and the rules between keys.
 *
 * A new key is a row. A feature that arrives in Lockstep changes its row from DS_REFUSE or DS_INERT to DS_USED. */
#include "config/dsconfig_impl.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* clang-format off */
#define AT(field) offsetof(ls_ds_config, field)
#define COUNT(a)  (sizeof(a) / sizeof((a)[0]))
#define HUGE_INT  9.2e18

#define BOOL(k, f)           {.key = k, .kind = DS_BOOL, .at = AT(f)}
#define INT(k, f, lo_, hi_)  {.key = k, .kind = DS_INT, .at = AT(f), .lo = lo_, .hi = hi_}
#define REAL(k, f, lo_, hi_) {.key = k, .kind = DS_REAL, .at = AT(f), .lo = lo_, .hi = hi_}
#define INT_G(k, f, g, lo_)  {.key = k, .kind = DS_INT, .at = AT(f), .given = AT(g), .lo = lo_, .hi = HUGE_INT}
#define REAL_G(k, f, g, hi_) {.key = k, .kind = DS_REAL, .at = AT(f), .given = AT(g), .lo = 0, .hi = hi_}
#define TAKEN(k, kind_)      {.key = k, .kind = kind_} /* its type is checked; every value gives the same run */
#define TAKEN_SIZE(k)        {.key = k, .kind = DS_INT, .lo = 0, .hi = HUGE_INT}
#define INERT(k, kind_)      {.key = k, .kind = kind_, .effect = DS_INERT}
#define REFUSE(k, kind_)     {.key = k, .kind = kind_, .effect = DS_REFUSE}
#define BLOCK(k, rows)       {.key = k, .kind = DS_BLOCK, .sub = rows, .n_sub = COUNT(rows)}
#define STRICT(k, rows)      {.key = k, .kind = DS_BLOCK, .strict = true, .sub = rows, .n_sub = COUNT(rows)}
#define STRICT_G(k, rows, g) {.key = k, .kind = DS_BLOCK, .strict = true, .given = AT(g), .sub = rows, .n_sub = COUNT(rows)}
#define CALL(k, f)           {.key = k, .kind = DS_CALL, .call = f}

static ls_status read_optimizer(ds_reader *r, const char *place, const json_t *v);
static ls_status read_scheduler(ds_reader *r, const char *place, const json_t *v);
static ls_status read_zero(ds_reader *r, const char *place, const json_t *v);
static ls_status read_offload(ds_reader *r, const char *place, const json_t *v);
static ls_status read_drop_last(ds_reader *r, const char *place, const json_t *v);
static ls_status read_must_be_true(ds_reader *r, const char *place, const json_t *v);
static ls_status read_reduce_op(ds_reader *r, const char *place, const json_t *v);
static ls_status read_stages(ds_reader *r, const char *place, const json_t *v);
static ls_status read_refused(ds_reader *r, const char *place, const json_t *v);
static ls_status read_tensor_parallel(ds_reader *r, const char *place, const json_t *v);

static const ds_row fp16_rows[] = {
    BOOL("enabled", fp16.enabled),
    INERT("auto_cast", DS_BOOL), /* inputs are ids */
    REAL("loss_scale", fp16.loss_scale, 0, 1e300),
    INT("initial_scale_power", fp16.initial_scale_power, 0, 1000),
    INT("loss_scale_window", fp16.loss_scale_window, 1, HUGE_INT),
    INT("hysteresis", fp16.hysteresis, 1, HUGE_INT),
    BOOL("consecutive_hysteresis", fp16.consecutive_hysteresis),
    REAL("min_loss_scale", fp16.min_loss_scale, 1e-300, 1e300),
    BOOL("fp16_master_weights_and_grads", fp16.master_weights_and_grads),
};

static const ds_row bf16_rows[] = {
    BOOL("enabled", bf16.enabled),
    INERT("immediate_grad_update", DS_BOOL),
    BOOL("check_grad_overflow", bf16.check_grad_overflow),
    BOOL("bf16_master_weights_and_grads", bf16.master_weights_and_grads),
    BOOL("bf16_optimizer_states", bf16.optimizer_states),
};

static const ds_row offload_rows[] = {
    {.key = "device", .kind = DS_TEXT, .words = "none|cpu|nvme"},
    INERT("nvme_path", DS_TEXT), INERT("pin_memory", DS_BOOL), INERT("buffer_count", DS_INT), INERT("buffer_size", DS_INT),
    INERT("max_in_cpu", DS_INT), INERT("pipeline_read", DS_BOOL), INERT("pipeline_write", DS_BOOL), INERT("fast_init", DS_BOOL),
    INERT("ratio", DS_REAL),
};

/* DeepSpeed takes the keys of stage 3 with and without their prefix. */
static const ds_row zero_rows[] = {
    INT("stage", zero.stage, 0, 3),
    TAKEN("contiguous_gradients", DS_BOOL), TAKEN("reduce_scatter", DS_BOOL), TAKEN("use_multi_rank_bucket_allreduce", DS_BOOL),
    INT_G("reduce_bucket_size", zero.reduce_bucket_size, zero.reduce_bucket_given, 1),
    TAKEN("allgather_partitions", DS_BOOL),
    INT_G("allgather_bucket_size", zero.allgather_bucket_size, zero.allgather_bucket_given, 1),
    TAKEN("overlap_comm", DS_BOOL), TAKEN("round_robin_gradients", DS_BOOL), TAKEN("ignore_unused_parameters", DS_BOOL),
    TAKEN("load_from_fp32_weights", DS_BOOL), INERT("elastic_checkpoint", DS_BOOL), REFUSE("legacy_stage1", DS_BOOL),
    CALL("offload_optimizer", read_offload), CALL("offload_param", read_offload),
    REFUSE("cpu_offload", DS_BOOL), REFUSE("cpu_offload_param", DS_BOOL), INERT("cpu_offload_use_pin_memory", DS_BOOL),
    TAKEN_SIZE("sub_group_size"),
    INT_G("stage3_prefetch_bucket_size", zero.prefetch_bucket_size, zero.prefetch_bucket_given, 0),
    INT_G("prefetch_bucket_size", zero.prefetch_bucket_size, zero.prefetch_bucket_given, 0),
    TAKEN_SIZE("stage3_param_persistence_threshold"), TAKEN_SIZE("param_persistence_threshold"),
    TAKEN_SIZE("stage3_model_persistence_threshold"), TAKEN_SIZE("model_persistence_threshold"),
    TAKEN_SIZE("stage3_max_live_parameters"), TAKEN_SIZE("max_live_parameters"),
    TAKEN_SIZE("stage3_max_reuse_distance"), TAKEN_SIZE("max_reuse_distance"),
    TAKEN("stage3_gather_16bit_weights_on_model_save", DS_BOOL), TAKEN("stage3_gather_fp16_weights_on_model_save", DS_BOOL),
    TAKEN("gather_16bit_weights_on_model_save", DS_BOOL),
    TAKEN_SIZE("stage3_module_granularity_threshold"), TAKEN_SIZE("module_granularity_threshold"),
    INERT("stage3_use_all_reduce_for_fetch_params", DS_BOOL), INERT("use_all_reduce_for_fetch_params", DS_BOOL),
    INERT("memory_efficient_linear", DS_BOOL), INERT("override_module_apply", DS_BOOL),
    {.key = "zero_hpz_partition_size", .kind = DS_INT, .effect = DS_REFUSE, .lo = 0, .hi = 1},
    REFUSE("zero_quantized_weights", DS_BOOL), REFUSE("zero_quantized_nontrainable_weights", DS_BOOL),
    REFUSE("zero_quantized_gradients", DS_BOOL), REFUSE("zeropp_loco_param", DS_ANY),
    {.key = "mics_shard_size", .kind = DS_INT, .effect = DS_REFUSE, .lo = -1, .hi = 0},
    REFUSE("mics_hierarchical_params_gather", DS_BOOL), REFUSE("zenflow", DS_ANY), INERT("leaf_module", DS_ANY),
    INERT("pipeline_loading_checkpoint", DS_BOOL), INERT("log_trace_cache_warnings", DS_BOOL), INERT("enable_sanity_checks", DS_BOOL),
};

static const ds_row adam_rows[] = {
    REAL_G("lr", optimizer.lr, optimizer.lr_given, 1e6),
    TAKEN("betas", DS_ANY), /* read_optimizer looks at it */
    REAL_G("eps", optimizer.eps, optimizer.eps_given, 1e6),
    REAL_G("weight_decay", optimizer.weight_decay, optimizer.weight_decay_given, 1e6),
    BOOL("bias_correction", optimizer.bias_correction),
    BOOL("adam_w_mode", optimizer.adam_w_mode),
    INERT("torch_adam", DS_BOOL), /* another implementation of the same update */
    INERT("set_grad_none", DS_BOOL),
    REFUSE("amsgrad", DS_BOOL),
};
static const ds_row optimizer_rows[] = {TAKEN("type", DS_TEXT), TAKEN("params", DS_ANY), INERT("legacy_fusion", DS_BOOL)};

/* WarmupDecayLR; WarmupLR has all but the first. */
static const ds_row warmup_rows[] = {
    INT("total_num_steps", scheduler.total, 1, HUGE_INT),
    REAL("warmup_min_lr", scheduler.min, 0, 1e6),
    REAL_G("warmup_max_lr", scheduler.max, scheduler_max_given, 1e6),
    INT("warmup_num_steps", scheduler.warmup, 1, HUGE_INT),
    TAKEN("warmup_type", DS_ANY), /* read_scheduler looks at it */
    INT("last_batch_iteration", scheduler.last_batch_iteration, -1, HUGE_INT),
};
static const ds_row warmup_cosine_rows[] = {
    INT("total_num_steps", scheduler.total, 1, HUGE_INT),
    REAL("warmup_min_ratio", scheduler.warmup_min_ratio, 0, 1),
    INT("warmup_num_steps", scheduler.warmup, 1, HUGE_INT),
    REAL("cos_min_ratio", scheduler.floor_ratio, 0, 1),
    TAKEN("warmup_type", DS_ANY),
    INT("last_batch_iteration", scheduler.last_batch_iteration, -1, HUGE_INT),
};
static const ds_row range_test_rows[] = {
    REAL("lr_range_test_min_lr", scheduler.min, 0, 1e6),
    REAL("lr_range_test_step_size", scheduler.range_size, 1, 1e18),
    REAL("lr_range_test_step_rate", scheduler.range_rate, -1e6, 1e6),
    BOOL("lr_range_test_staircase", scheduler.range_staircase),
    INT("last_batch_iteration", scheduler.last_batch_iteration, -1, HUGE_INT),
};
static const ds_row scheduler_rows[] = {TAKEN("type", DS_TEXT), TAKEN("params", DS_ANY)};

static const ds_row activation_rows[] = {
    INERT("partition_activations", DS_BOOL), INERT("cpu_checkpointing", DS_BOOL),
    INERT("contiguous_memory_optimization", DS_BOOL), INERT("number_checkpoints", DS_INT),
    INERT("synchronize_checkpoint_boundary", DS_BOOL), INERT("profile", DS_BOOL),
};
static const ds_row flops_rows[] = {
    INERT("enabled", DS_BOOL), INERT("profile_step", DS_INT), INERT("module_depth", DS_INT), INERT("top_modules", DS_INT),
    INERT("detailed", DS_BOOL), INERT("output_file", DS_TEXT), INERT("recompute_fwd_factor", DS_REAL),
};
static const ds_row comms_rows[] = {
    INERT("enabled", DS_BOOL), INERT("verbose", DS_BOOL), INERT("prof_all", DS_BOOL), INERT("debug", DS_BOOL),
    INERT("prof_ops", DS_ANY),
};
static const ds_row monitor_rows[] = {
    INERT("enabled", DS_BOOL), INERT("output_path", DS_TEXT), INERT("job_name", DS_TEXT), INERT("group", DS_TEXT),
    INERT("team", DS_TEXT), INERT("project", DS_TEXT),
};
static const ds_row throughput_rows[] = {INERT("enabled", DS_BOOL), INERT("synchronized", DS_BOOL)};
static const ds_row timers_rows[] = {BLOCK("throughput", throughput_rows)};
static const ds_row parallel_write_rows[] = {INERT("pipeline_stage", DS_BOOL)};
static const ds_row checkpoint_rows[] = {
    {.key = "tag_validation", .kind = DS_TEXT, .effect = DS_INERT, .words = "Ignore|Warn|Fail"},
    INERT("load_universal", DS_BOOL), INERT("use_node_local_storage", DS_BOOL), BLOCK("parallel_write", parallel_write_rows),
};
static const ds_row data_types_rows[] = {
    {.key = "grad_accum_dtype", .kind = DS_TEXT, .at = AT(grad_accum_dtype), .words = "fp32|fp16|bf16"},
};
/* The last four are those of R1's own old block (docs/REFERENCES.md), which had no effect there either. */
static const ds_row pipeline_rows[] = {
    CALL("stages", read_stages), INERT("partition", DS_TEXT), INERT("seed_layers", DS_BOOL),
    INERT("activation_checkpoint_interval", DS_INT), INERT("pipe_partitioned", DS_BOOL), INERT("grad_partitioned", DS_BOOL),
    INERT("enabled", DS_BOOL), INERT("micro_batch_size", DS_INT), INERT("num_stages", DS_INT), INERT("balance", DS_ANY),
};
static const ds_row autocast_rows[] = {
    TAKEN("enabled", DS_BOOL), INERT("dtype", DS_TEXT), INERT("lower_precision_safe_modules", DS_ANY),
};

static const ds_row top_rows[] = {
    INT("train_batch_size", train_batch_size, 1, 9e15),
    INT("train_micro_batch_size_per_gpu", train_micro_batch_size_per_gpu, 1, 9e15),
    INT("gradient_accumulation_steps", gradient_accumulation_steps, 1, 9e15),
    CALL("optimizer", read_optimizer),
    CALL("scheduler", read_scheduler),
    STRICT_G("fp16", fp16_rows, fp16.given),
    STRICT("bf16", bf16_rows),
    STRICT("bfloat16", bf16_rows),
    CALL("zero_optimization", read_zero),
    REAL_G("gradient_clipping", gradient_clipping, gradient_clipping_given, 1e300),
    {.key = "communication_data_type", .kind = DS_TEXT, .at = AT(communication_data_type), .words = "fp16|bf16|fp32"},
    INERT("seq_parallel_communication_data_type", DS_TEXT),
    BOOL("prescale_gradients", prescale_gradients),
    REAL("gradient_predivide_factor", gradient_predivide_factor, 1e-300, 1e300),
    CALL("gradient_allreduce_op", read_reduce_op),
    REFUSE("sparse_gradients", DS_BOOL),
    INERT("disable_allgather", DS_BOOL),
    CALL("managed_gradient_accumulation", read_must_be_true),
    {.key = "steps_per_print", .kind = DS_INT, .effect = DS_INERT, .lo = 0, .hi = HUGE_INT},
    {.key = "wall_clock_breakdown", .kind = DS_BOOL, .effect = DS_INERT, .at = AT(wall_clock_breakdown),
     .given = AT(wall_clock_breakdown_given)},
    INERT("memory_breakdown", DS_BOOL), INERT("dump_state", DS_BOOL),
    BLOCK("activation_checkpointing", activation_rows), BLOCK("flops_profiler", flops_rows),
    STRICT("comms_logger", comms_rows), STRICT("tensorboard", monitor_rows), STRICT("csv_monitor", monitor_rows),
    STRICT("wandb", monitor_rows), REFUSE("comet", DS_ANY),
    STRICT("timers", timers_rows),
    CALL("dataloader_drop_last", read_drop_last),
    BLOCK("checkpoint", checkpoint_rows), BLOCK("data_types", data_types_rows), BLOCK("pipeline", pipeline_rows),
    {.key = "torch_autocast", .kind = DS_BLOCK, .effect = DS_REFUSE, .sub = autocast_rows, .n_sub = COUNT(autocast_rows)},
    INERT("zero_allow_untested_optimizer", DS_BOOL), INERT("zero_force_ds_cpu_optimizer", DS_BOOL),
    INERT("vocabulary_size", DS_INT), INERT("aio", DS_ANY), INERT("log_level", DS_TEXT),
    INERT("load_universal_checkpoint", DS_BOOL), INERT("use_data_before_expert_parallelism", DS_BOOL),
    REFUSE("amp", DS_ANY), REFUSE("elasticity", DS_ANY), REFUSE("autotuning", DS_ANY), CALL("tensor_parallel", read_tensor_parallel),
    CALL("expert_parallel", read_refused), REFUSE("compile", DS_ANY), REFUSE("compression_training", DS_ANY),
    REFUSE("data_efficiency", DS_ANY), REFUSE("curriculum_learning", DS_ANY), REFUSE("progressive_layer_drop", DS_ANY),
    REFUSE("eigenvalue", DS_ANY), CALL("sparse_attention", read_refused), REFUSE("hybrid_engine", DS_ANY),
    REFUSE("weight_quantization", DS_ANY), REFUSE("quantize_training", DS_ANY), REFUSE("nebula", DS_ANY),
    REFUSE("graph_harvesting", DS_BOOL),
    {.key = "sequence_parallel_size", .kind = DS_INT, .effect = DS_REFUSE, .lo = 0, .hi = 1},
};

const ds_table train_ds_tables[] = {
    {"", top_rows, COUNT(top_rows)},
    {"optimizer", optimizer_rows, COUNT(optimizer_rows)},
    {"optimizer.params", adam_rows, COUNT(adam_rows)},
    {"scheduler.params", warmup_rows + 1, COUNT(warmup_rows) - 1},
    {"scheduler.params", warmup_cosine_rows, COUNT(warmup_cosine_rows)},
    {"fp16", fp16_rows, COUNT(fp16_rows)},
    {"bf16", bf16_rows, COUNT(bf16_rows)},
    {"zero_optimization", zero_rows, COUNT(zero_rows)},
    {"activation_checkpointing", activation_rows, COUNT(activation_rows)},
    {"data_types", data_types_rows, COUNT(data_types_rows)},
    {"checkpoint", checkpoint_rows, COUNT(checkpoint_rows)},
    {"pipeline", pipeline_rows, COUNT(pipeline_rows)},
};
const size_t train_ds_n_tables = COUNT(train_ds_tables);
/* clang-format on */

void train_ds_defaults(ls_ds_config *c)
{
    *c = (ls_ds_config){
        .optimizer =
            {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .bias_correction = true, .adam_w_mode = true},
        .fp16 = {.initial_scale_power = 16, .loss_scale_window = 1000, .hysteresis = 2, .min_loss_scale = 1},
        .scheduler = {.last_batch_iteration = -1},
        .gradient_predivide_factor = 1.0,
    };
}

static ls_status need_object(ds_reader *r, const char *place, const json_t *v)
{
    if (json_is_object(v)) return LS_OK;
    return ls_fail(LS_E_CONFIG, "%s: '%s' must be an object", r->what, place);
}

/* A block of optimizer or scheduler: its "type", and its "params" or NULL. */
static ls_status read_type(ds_reader *r, const char *place, const json_t *v, const ds_row *row, size_t n,
                           const char **type, const json_t **params)
{
    LS_TRY(need_object(r, place, v));
    LS_TRY(train_ds_block(r, place, v, row, n, false));
    *type = json_string_value(json_object_get(v, "type"));
    *params = json_object_get(v, "params");
    if (!*type || !**type) return ls_fail(LS_E_CONFIG, "%s: '%s.type' must be a name", r->what, place);
    if (json_is_null(*params)) *params = NULL;
    if (*params && !json_is_object(*params))
        return ls_fail(LS_E_CONFIG, "%s: '%s.params' must be an object", r->what, place);
    return LS_OK;
}

static ls_status read_betas(ds_reader *r, const json_t *v)
{
    if (!v || json_is_null(v)) return LS_OK;
    double b[2] = {-1, -1};
    for (size_t i = 0; i < 2; i++)
        if (json_is_number(json_array_get(v, i))) b[i] = json_number_value(json_array_get(v, i));
    if (json_array_size(v) != 2 || !(b[0] >= 0 && b[0] < 1 && b[1] >= 0 && b[1] < 1))
        return ls_fail(LS_E_CONFIG, "%s: 'optimizer.params.betas' must be two numbers, at least 0 and less than 1",
                       r->what);
    r->c->optimizer.beta1 = b[0];
    r->c->optimizer.beta2 = b[1];
    r->c->optimizer.betas_given = true;
    return LS_OK;
}

static ls_status read_optimizer(ds_reader *r, const char *place, const json_t *v)
{
    static const char *const known[] = {"Adam",       "AdamW",       "Adagrad", "Lamb",   "Lion",    "OneBitAdam",
                                        "OneBitLamb", "ZeroOneAdam", "Muon",    "MuAdam", "MuAdamW", "MuSGD"};
    ls_ds_optimizer *o = &r->c->optimizer;
    const char *type;
    const json_t *params;
    LS_TRY(read_type(r, place, v, optimizer_rows, COUNT(optimizer_rows), &type, &params));
    size_t i = 0;
    while (i < COUNT(known) && strcasecmp(type, known[i])) i++;
    if (i == COUNT(known))
        return ls_fail(LS_E_UNSUPPORTED, "%s: unknown optimizer '%.60s'; use Adam or AdamW", r->what, type);
    if (i > 1)
        return ls_fail(LS_E_UNSUPPORTED, "%s: optimizer %s of DeepSpeed is not supported; use Adam or AdamW", r->what,
                       known[i]);
    snprintf(o->type, sizeof o->type, "%s", known[i]);
    o->given = true;
    if (params) {
        if (json_object_get(params, "max_grad_norm"))
            return ls_fail(
                LS_E_CONFIG,
                "%s: 'optimizer.params.max_grad_norm' is not supported; use the top-level key 'gradient_clipping'",
                r->what);
        LS_TRY(train_ds_block(r, "optimizer.params", params, adam_rows, COUNT(adam_rows), false));
        LS_TRY(read_betas(r, json_object_get(params, "betas")));
    }
    const bool is_adamw = i == 1;
    if (is_adamw && !o->adam_w_mode)
        train_ds_note(r, "optimizer.params.adam_w_mode (AdamW always decouples weight decay)");
    o->coupled = !is_adamw && !o->adam_w_mode;
    return LS_OK;
}

static ls_status read_scheduler(ds_reader *r, const char *place, const json_t *v)
{
    enum { ONE_CYCLE = 4 };
    static const char *const names[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"};
    static const ls_lr_kind kinds[] = {LS_LR_WARMUP, LS_LR_WARMUP_DECAY, LS_LR_WARMUP_COSINE, LS_LR_RANGE_TEST};
    static const ds_row *const rows[] = {warmup_rows + 1, warmup_rows, warmup_cosine_rows, range_test_rows};
    static const size_t n_row[] = {COUNT(warmup_rows) - 1, COUNT(warmup_rows), COUNT(warmup_cosine_rows),
                                   COUNT(range_test_rows)};
    ls_lr_schedule *s = &r->c->scheduler;
    const char *type;
    const json_t *params;
    LS_TRY(read_type(r, place, v, scheduler_rows, COUNT(scheduler_rows), &type, &params));
    size_t t = 0;
    while (t < COUNT(names) && strcmp(names[t], type)) t++;
    if (t == ONE_CYCLE)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s: scheduler OneCycle is not supported (it also changes the momentum); use WarmupDecayLR "
                       "or WarmupCosineLR",
                       r->what);
    if (t == COUNT(names)) {
        const char *near = ls_nearest_word(type, names, COUNT(names));
        for (size_t i = 0; i < COUNT(names); i++)
            if (!strcasecmp(type, names[i])) near = names[i];
        return ls_fail(
            LS_E_UNSUPPORTED,
            "%s: unknown scheduler '%.60s'%s%s%s; use WarmupLR, WarmupDecayLR, WarmupCosineLR or LRRangeTest", r->what,
            type, near ? " (did you mean '" : "", near ? near : "", near ? "'? case matters)" : "");
    }
    *s = (ls_lr_schedule){.kind = kinds[t],
                          .max = 0.001,
                          .warmup = 1000,
                          .floor_ratio = 0.0001,
                          .range_size = 2000,
                          .range_rate = 1.0,
                          .last_batch_iteration = -1};
    if (s->kind == LS_LR_RANGE_TEST) s->min = 1e-3;
    if (params) LS_TRY(train_ds_block(r, "scheduler.params", params, rows[t], n_row[t], false));
    if ((s->kind == LS_LR_WARMUP_DECAY || s->kind == LS_LR_WARMUP_COSINE) && !s->total)
        return ls_fail(LS_E_CONFIG, "%s: scheduler %s needs 'scheduler.params.total_num_steps'", r->what, type);
    const json_t *warm = json_object_get(params, "warmup_type");
    if (warm && !json_is_null(warm)) {
        const char *word = json_string_value(warm);
        if (!word)
            return ls_fail(LS_E_CONFIG, "%s: 'scheduler.params.warmup_type' must be \"log\" or \"linear\"", r->what);
        s->linear = !strcmp(word, "linear");
        if (!s->linear && strcmp(word, "log")) /* as DeepSpeed does, and says */
            train_ds_note(r, "scheduler.params.warmup_type ('%.40s' is not log or linear; log is used)", word);
    }
    r->c->scheduler_given = true;
    return LS_OK;
}

static ls_status read_zero(ds_reader *r, const char *place, const json_t *v)
{
    r->c->zero.given = true;
    if (json_is_boolean(v)) { /* the old form */
        r->c->zero.stage = json_is_true(v);
        return LS_OK;
    }
    LS_TRY(need_object(r, place, v));
    return train_ds_block(r, place, v, zero_rows, COUNT(zero_rows), true);
}

static ls_status read_offload(ds_reader *r, const char *place, const json_t *v)
{
    LS_TRY(need_object(r, place, v));
    LS_TRY(train_ds_block(r, place, v, offload_rows, COUNT(offload_rows), true));
    const char *device = json_string_value(json_object_get(v, "device"));
    if (device && strcasecmp(device, "none") && strcmp(device, "auto"))
        return ls_fail(LS_E_UNSUPPORTED, "%s: '%s.device' is '%s'; offloading is not supported; use none", r->what,
                       place, device);
    return LS_OK;
}

/* The last partial batch is always dropped here; asking for the opposite has no effect. */
static ls_status read_drop_last(ds_reader *r, const char *place, const json_t *v)
{
    if (!json_is_boolean(v)) return ls_fail(LS_E_CONFIG, "%s: '%s' must be true or false", r->what, place);
    if (json_is_false(v)) train_ds_note(r, "%s (the last partial batch of an epoch is always dropped)", place);
    return LS_OK;
}

static ls_status read_must_be_true(ds_reader *r, const char *place, const json_t *v)
{
    if (json_is_true(v)) return LS_OK;
    if (json_is_false(v))
        return ls_fail(LS_E_UNSUPPORTED, "%s: '%s' false is not supported; leave the key out", r->what, place);
    return ls_fail(LS_E_CONFIG, "%s: '%s' must be true or false", r->what, place);
}

static ls_status read_reduce_op(ds_reader *r, const char *place, const json_t *v)
{
    const char *op = json_string_value(v);
    if (op && !strcmp(op, "mean")) return LS_OK;
    if (op && !strcmp(op, "sum"))
        return ls_fail(LS_E_UNSUPPORTED, "%s: '%s' is sum, which is not supported; use mean", r->what, place);
    return ls_fail(LS_E_CONFIG, "%s: '%s' must be \"mean\" or \"sum\"", r->what, place);
}

/* "auto" or a number; a pipeline is asked for with --pp, so this has no effect. */
static ls_status read_stages(ds_reader *r, const char *place, const json_t *v)
{
    if (json_is_string(v) && !strcmp(json_string_value(v), "auto")) return LS_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 1)
        return ls_fail(LS_E_CONFIG, "%s: '%s' must be \"auto\" or a whole number of at least 1", r->what, place);
    train_ds_note(r, "%s", place);
    return LS_OK;
}

/* Blocks that are switched on by being there. */
static ls_status read_refused(ds_reader *r, const char *place, const json_t *v)
{
    if (json_is_object(v) && json_object_size(v) == 0) return LS_OK;
    return ls_fail(LS_E_UNSUPPORTED, "%s: '%s' is not supported; remove the block", r->what, place);
}

static ls_status read_tensor_parallel(ds_reader *r, const char *place, const json_t *v)
{
    LS_TRY(need_object(r, place, v));
    double size = json_number_value(json_object_get(v, "autotp_size"));
    double tp = json_number_value(json_object_get(json_object_get(v, "tp"), "tp_size"));
    if (size > 1 || tp > 1)
        return ls_fail(
            LS_E_UNSUPPORTED,
            "%s: '%s' requests %g tensor-parallel workers, which is not supported; use 1, and --tp on the command line",
            r->what, place, size > tp ? size : tp);
    if (json_object_size(v)) train_ds_note(r, "%s", place);
    return LS_OK;
}

static bool has(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(root, key);
    return v && !json_is_null(v);
}

ls_status train_ds_check(ds_reader *r, const json_t *root)
{
    const ls_ds_config *c = r->c;
    if (has(root, "bf16") && has(root, "bfloat16"))
        return ls_fail(LS_E_CONFIG, "%s: 'bf16' and 'bfloat16' are the same block; give one of them", r->what);
    if (c->zero.allgather_bucket_size % 2)
        return ls_fail(LS_E_CONFIG, "%s: 'zero_optimization.allgather_bucket_size' is %lld, but must be even", r->what,
                       (long long)c->zero.allgather_bucket_size);
    if (c->fp16.enabled && c->bf16.enabled)
        return ls_fail(LS_E_CONFIG, "%s: fp16 and bf16 are both enabled; enable one", r->what);
    if (c->fp16.master_weights_and_grads)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s: 'fp16.fp16_master_weights_and_grads' needs an optimizer that is offloaded to the CPU, "
                       "which is not supported",
                       r->what);
    if (c->bf16.master_weights_and_grads || c->bf16.optimizer_states)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s: '%s' is true, but master weights, gradients and moments are always fp32; set it to false",
                       r->what,
                       c->bf16.optimizer_states ? "bf16.bf16_optimizer_states" : "bf16.bf16_master_weights_and_grads");
    if (c->zero.stage == 2 && (c->prescale_gradients || c->gradient_predivide_factor != 1.0))
        return ls_fail(
            LS_E_CONFIG,
            "%s: ZeRO stage 2 does not support 'prescale_gradients' and 'gradient_predivide_factor'; remove them",
            r->what);
    return LS_OK;
}
