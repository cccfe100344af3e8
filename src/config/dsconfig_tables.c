/* dsconfig_tables.c - every key of DeepSpeed 0.18, what kind of value it takes and what it does here; then the blocks whose keys
 * depend on a type (optimizer, scheduler) and the rules between keys.
 *
 * A new key is a row. A feature that arrives in Lockstep removes DS_REFUSE or DS_INERT from its row. */
#include "config/dsconfig_impl.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* clang-format off */
#define COUNT(a)  (sizeof(a) / sizeof((a)[0]))
#define HUGE_INT  9.2e18

#define ROW(k, kind_)        {.key = k, .kind = kind_}
#define BOOL(k)              ROW(k, DS_BOOL)
#define INT(k, lo_, hi_)     {.key = k, .kind = DS_INT, .lo = lo_, .hi = hi_}
#define SIZE(k)              INT(k, 0, HUGE_INT)
#define REAL(k, lo_, hi_)    {.key = k, .kind = DS_REAL, .lo = lo_, .hi = hi_}
#define INERT(k, kind_)      {.key = k, .kind = kind_, .effect = DS_INERT}
#define REFUSE(k, kind_)     {.key = k, .kind = kind_, .effect = DS_REFUSE}
#define BLOCK(k, rows)       {.key = k, .kind = DS_BLOCK, .sub = rows, .n_sub = COUNT(rows)}
#define CALL(k, f)           {.key = k, .kind = DS_CALL, .call = f}

static ls_status read_optimizer(ds_reader *r, const char *place, const json_t *v);
static ls_status read_scheduler(ds_reader *r, const char *place, const json_t *v);
static ls_status read_drop_last(ds_reader *r, const char *place, const json_t *v);
static ls_status read_stages(ds_reader *r, const char *place, const json_t *v);
static ls_status read_refused(ds_reader *r, const char *place, const json_t *v);

static const ds_row fp16_rows[] = {
    BOOL("enabled"),
    INERT("auto_cast", DS_BOOL), /* inputs are ids */
    REAL("loss_scale", 0, 1e300),
    INT("initial_scale_power", 0, 1000),
    INT("loss_scale_window", 1, HUGE_INT),
    INT("hysteresis", 1, HUGE_INT),
    BOOL("consecutive_hysteresis"),
    REAL("min_loss_scale", 1e-300, 1e300),
    BOOL("fp16_master_weights_and_grads"),
};

static const ds_row bf16_rows[] = {
    BOOL("enabled"),
    INERT("immediate_grad_update", DS_BOOL),
    BOOL("check_grad_overflow"),
    BOOL("bf16_master_weights_and_grads"),
    BOOL("bf16_optimizer_states"),
};

/* TransformerEngine's DelayedScaling, under DeepSpeed's usual name for a block of a precision. */
static const ds_row fp8_rows[] = {
    BOOL("enabled"),
    {.key = "format", .kind = DS_TEXT, .words = "hybrid|e4m3"},
    {.key = "fp8_format", .kind = DS_TEXT, .words = "hybrid|e4m3"},
    INT("margin", 0, 16),
    INT("amax_history_len", 1, 1024),
    {.key = "amax_compute_algo", .kind = DS_TEXT, .words = "max|most_recent"},
    BOOL("reduce_amax"),
};

static const ds_row offload_rows[] = {
    {.key = "device", .kind = DS_TEXT, .words = "none|cpu|nvme"},
    INERT("nvme_path", DS_TEXT), BOOL("pin_memory"), INERT("buffer_count", DS_INT), INERT("buffer_size", DS_INT),
    INERT("max_in_cpu", DS_INT), INERT("pipeline_read", DS_BOOL), INERT("pipeline_write", DS_BOOL), INERT("fast_init", DS_BOOL),
    INERT("cpuadam_cores_perc", DS_REAL), REFUSE("super_offload", DS_BOOL),
    REAL("ratio", 0, 1),
};

/* DeepSpeed takes the keys of stage 3 with and without their prefix. */
static const ds_row zero_rows[] = {
    INT("stage", 0, 3),
    BOOL("contiguous_gradients"), BOOL("reduce_scatter"), BOOL("use_multi_rank_bucket_allreduce"),
    INT("reduce_bucket_size", 1, HUGE_INT),
    BOOL("allgather_partitions"),
    INT("allgather_bucket_size", 1, HUGE_INT),
    BOOL("overlap_comm"), BOOL("round_robin_gradients"), BOOL("ignore_unused_parameters"),
    BOOL("load_from_fp32_weights"), INERT("elastic_checkpoint", DS_BOOL), REFUSE("legacy_stage1", DS_BOOL),
    BLOCK("offload_optimizer", offload_rows), BLOCK("offload_param", offload_rows),
    BOOL("cpu_offload"), REFUSE("cpu_offload_param", DS_BOOL), INERT("cpu_offload_use_pin_memory", DS_BOOL),
    SIZE("sub_group_size"),
    INT("stage3_prefetch_bucket_size", 0, HUGE_INT),
    INT("prefetch_bucket_size", 0, HUGE_INT),
    SIZE("stage3_param_persistence_threshold"), SIZE("param_persistence_threshold"),
    SIZE("stage3_model_persistence_threshold"), SIZE("model_persistence_threshold"),
    SIZE("stage3_max_live_parameters"), SIZE("max_live_parameters"),
    SIZE("stage3_max_reuse_distance"), SIZE("max_reuse_distance"),
    BOOL("stage3_gather_16bit_weights_on_model_save"), BOOL("stage3_gather_fp16_weights_on_model_save"),
    BOOL("gather_16bit_weights_on_model_save"),
    SIZE("stage3_module_granularity_threshold"), SIZE("module_granularity_threshold"),
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
    REAL("lr", 0, 1e6),
    ROW("betas", DS_ANY), /* read_optimizer looks at it */
    REAL("eps", 0, 1e6),
    REAL("weight_decay", 0, 1e6),
    BOOL("bias_correction"),
    BOOL("adam_w_mode"),
    INERT("torch_adam", DS_BOOL), /* another implementation of the same update */
    INERT("set_grad_none", DS_BOOL),
    REFUSE("amsgrad", DS_BOOL),
};
static const ds_row optimizer_rows[] = {ROW("type", DS_TEXT), ROW("params", DS_ANY), INERT("legacy_fusion", DS_BOOL)};

/* WarmupDecayLR; WarmupLR has all but the first. */
static const ds_row warmup_rows[] = {
    INT("total_num_steps", 1, HUGE_INT),
    REAL("warmup_min_lr", 0, 1e6),
    REAL("warmup_max_lr", 0, 1e6),
    INT("warmup_num_steps", 1, HUGE_INT),
    ROW("warmup_type", DS_ANY), /* read_scheduler looks at it */
    INT("last_batch_iteration", -1, HUGE_INT),
};
static const ds_row warmup_cosine_rows[] = {
    INT("total_num_steps", 1, HUGE_INT),
    REAL("warmup_min_ratio", 0, 1),
    INT("warmup_num_steps", 1, HUGE_INT),
    REAL("cos_min_ratio", 0, 1),
    ROW("warmup_type", DS_ANY),
    INT("last_batch_iteration", -1, HUGE_INT),
};
static const ds_row range_test_rows[] = {
    REAL("lr_range_test_min_lr", 0, 1e6),
    REAL("lr_range_test_step_size", 1, 1e18),
    REAL("lr_range_test_step_rate", -1e6, 1e6),
    BOOL("lr_range_test_staircase"),
    INT("last_batch_iteration", -1, HUGE_INT),
};
static const ds_row scheduler_rows[] = {ROW("type", DS_TEXT), ROW("params", DS_ANY)};

/* Any of the first four asks for checkpoints: --recompute. */
static const ds_row activation_rows[] = {
    BOOL("partition_activations"), BOOL("cpu_checkpointing"), BOOL("contiguous_memory_optimization"), SIZE("number_checkpoints"),
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
static const ds_row monitor_rows[] = {BOOL("enabled"), ROW("output_path", DS_TEXT), ROW("job_name", DS_TEXT)};
static const ds_row wandb_rows[] = {
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
    {.key = "grad_accum_dtype", .kind = DS_TEXT, .words = "fp32|fp16|bf16"},
};
/* The last four are those of the scaling study's own old block, which had no effect there either. */
static const ds_row pipeline_rows[] = {
    CALL("stages", read_stages), INERT("partition", DS_TEXT), INERT("seed_layers", DS_BOOL),
    SIZE("activation_checkpoint_interval"), INERT("pipe_partitioned", DS_BOOL), INERT("grad_partitioned", DS_BOOL),
    INERT("enabled", DS_BOOL), INERT("micro_batch_size", DS_INT), INERT("num_stages", DS_INT), INERT("balance", DS_ANY),
};
static const ds_row tp_rows[] = {
    INT("tp_size", 1, 65536), INERT("tp_grain_size", DS_INT), INERT("mpu", DS_ANY), INERT("tp_group", DS_ANY),
};
static const ds_row tensor_parallel_rows[] = {
    INT("autotp_size", 0, 65536), BLOCK("tp", tp_rows), INERT("enabled", DS_BOOL), INERT("dtype", DS_TEXT), INERT("tp_overlap_comm", DS_BOOL),
    INERT("injection_policy_tuple", DS_ANY), INERT("keep_module_on_host", DS_BOOL), INERT("replace_with_kernel_inject", DS_BOOL),
};
static const ds_row autocast_rows[] = {
    BOOL("enabled"), INERT("dtype", DS_TEXT), INERT("lower_precision_safe_modules", DS_ANY),
};

static const ds_row top_rows[] = {
    INT("train_batch_size", 1, 9e15),
    INT("train_micro_batch_size_per_gpu", 1, 9e15),
    INT("gradient_accumulation_steps", 1, 9e15),
    CALL("optimizer", read_optimizer),
    CALL("scheduler", read_scheduler),
    BLOCK("fp16", fp16_rows),
    BLOCK("bf16", bf16_rows),
    BLOCK("bfloat16", bf16_rows),
    BLOCK("fp8", fp8_rows),
    BLOCK("zero_optimization", zero_rows),
    REAL("gradient_clipping", 0, 1e300),
    {.key = "communication_data_type", .kind = DS_TEXT, .words = "fp16|bf16|fp32"},
    INERT("seq_parallel_communication_data_type", DS_TEXT),
    BOOL("prescale_gradients"),
    REAL("gradient_predivide_factor", 1e-300, 1e300),
    {.key = "gradient_allreduce_op", .kind = DS_TEXT, .words = "mean|sum"},
    REFUSE("sparse_gradients", DS_BOOL),
    INERT("disable_allgather", DS_BOOL),
    BOOL("managed_gradient_accumulation"),
    SIZE("steps_per_print"), BOOL("wall_clock_breakdown"),
    INERT("memory_breakdown", DS_BOOL), INERT("dump_state", DS_BOOL),
    BLOCK("activation_checkpointing", activation_rows), BLOCK("flops_profiler", flops_rows),
    BLOCK("comms_logger", comms_rows), BLOCK("tensorboard", monitor_rows), BLOCK("csv_monitor", monitor_rows),
    BLOCK("wandb", wandb_rows), REFUSE("comet", DS_ANY),
    BLOCK("timers", timers_rows),
    CALL("dataloader_drop_last", read_drop_last),
    BLOCK("checkpoint", checkpoint_rows), BLOCK("data_types", data_types_rows), BLOCK("pipeline", pipeline_rows),
    {.key = "torch_autocast", .kind = DS_BLOCK, .effect = DS_REFUSE, .sub = autocast_rows, .n_sub = COUNT(autocast_rows)},
    INERT("zero_allow_untested_optimizer", DS_BOOL), INERT("zero_force_ds_cpu_optimizer", DS_BOOL),
    INERT("vocabulary_size", DS_INT), INERT("aio", DS_ANY), INERT("log_level", DS_TEXT),
    INERT("load_universal_checkpoint", DS_BOOL), INERT("use_data_before_expert_parallelism", DS_BOOL),
    REFUSE("amp", DS_ANY), REFUSE("elasticity", DS_ANY), REFUSE("autotuning", DS_ANY), BLOCK("tensor_parallel", tensor_parallel_rows),
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
    {"fp8", fp8_rows, COUNT(fp8_rows)},
    {"zero_optimization", zero_rows, COUNT(zero_rows)},
    {"activation_checkpointing", activation_rows, COUNT(activation_rows)},
    {"data_types", data_types_rows, COUNT(data_types_rows)},
    {"checkpoint", checkpoint_rows, COUNT(checkpoint_rows)},
    {"pipeline", pipeline_rows, COUNT(pipeline_rows)},
    {"tensor_parallel", tensor_parallel_rows, COUNT(tensor_parallel_rows)},
};
const size_t train_ds_n_tables = COUNT(train_ds_tables);

const char *const train_ds_names[][2] = {
    {"bf16", "bfloat16"},
    {"fp8.format", "fp8.fp8_format"},
    {"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.prefetch_bucket_size"},
};
const size_t train_ds_n_names = COUNT(train_ds_names);

const ds_flag train_ds_flags[] = {
    {"train_batch_size", "--global_batch_size"},
    {"train_micro_batch_size_per_gpu", "--micro_batch_size_per_gpu"},
    {"gradient_accumulation_steps", "--grad_accum_steps"},
    {"optimizer.params.lr", "--lr"},
    {"optimizer.params.betas", "--betas"},
    {"optimizer.params.eps", "--eps"},
    {"optimizer.params.weight_decay", "--weight_decay"},
    {"scheduler.type", "--lr_schedule"},
    {"scheduler.params.warmup_max_lr", "--lr"},
    {"scheduler.params.warmup_num_steps", "--warmup_steps"},
    {"scheduler.params.cos_min_ratio", "--min_lr_ratio"},
    {"gradient_clipping", "--clip"},
    {"fp16.enabled", "--precision fp16"},
    {"bf16.enabled", "--precision bf16"},
    {"bfloat16.enabled", "--precision bf16"},
    {"fp8.enabled", "--precision fp8"},
    {"fp8.format", "--fp8_format"},
    {"fp8.fp8_format", "--fp8_format"},
    {"fp8.amax_history_len", "--fp8_amax_history_len"},
    {"fp8.amax_compute_algo", "--fp8_amax_history_len 1"}, /* most_recent */
    {"fp8.margin", "--fp8_margin"},
    {"zero_optimization.stage", "--strategy"},
    {"zero_optimization.reduce_bucket_size", "--bucket"},
    {"zero_optimization.allgather_bucket_size", "--gather_bucket"},
    {"zero_optimization.stage3_prefetch_bucket_size", "--prefetch_bucket"},
    {"zero_optimization.prefetch_bucket_size", "--prefetch_bucket"},
    {"zero_optimization.offload_optimizer.device", "--offload_optimizer"},
    {"zero_optimization.cpu_offload", "--offload_optimizer"},
    {"activation_checkpointing.partition_activations", "--recompute"},
    {"activation_checkpointing.cpu_checkpointing", "--recompute"},
    {"activation_checkpointing.contiguous_memory_optimization", "--recompute"},
    {"activation_checkpointing.number_checkpoints", "--recompute"},
    {"pipeline.activation_checkpoint_interval", "--recompute"},
    {"pipeline.stages", "--pp"},
    {"tensor_parallel.autotp_size", "--tp"},
    {"tensor_parallel.tp.tp_size", "--tp"},
    {"tensorboard.enabled", "--tensorboard"},
    {"tensorboard.output_path", "--tensorboard"},
    {"tensorboard.job_name", "--tensorboard"},
};
const size_t train_ds_n_flags = COUNT(train_ds_flags);
/* clang-format on */

static ls_status need_object(ds_reader *r, const char *place, const json_t *v)
{
    if (json_is_object(v)) return LS_OK;
    return ls_fail(LS_E_CONFIG, "%s: '%s' must be an object", r->what, place);
}

/* A block of optimizer or scheduler: its "type", or NULL where a key of the block was refused, and its "params" or NULL. */
static ls_status read_type(ds_reader *r, const char *place, const json_t *v, const ds_row *row, size_t n,
                           const char **type, const json_t **params)
{
    const int before = r->n_refused;
    *type = NULL;
    *params = NULL;
    LS_TRY(need_object(r, place, v));
    LS_TRY(train_ds_block(r, place, v, row, n));
    if (r->n_refused != before) return LS_OK; /* the type may be what is wrong */
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
    if (!v || json_is_null(v) || train_ds_auto(v)) return LS_OK;
    double b[2] = {-1, -1};
    for (size_t i = 0; i < 2; i++)
        if (json_is_number(json_array_get(v, i))) b[i] = json_number_value(json_array_get(v, i));
    if (json_array_size(v) != 2 || !(b[0] >= 0 && b[0] < 1 && b[1] >= 0 && b[1] < 1))
        return ls_fail(LS_E_CONFIG, "%s: 'optimizer.params.betas' must be two numbers, at least 0 and less than 1",
                       r->what);
    return LS_OK;
}

static ls_status read_optimizer(ds_reader *r, const char *place, const json_t *v)
{
    static const char *const known[] = {"Adam",       "AdamW",       "Adagrad", "Lamb",   "Lion",    "OneBitAdam",
                                        "OneBitLamb", "ZeroOneAdam", "Muon",    "MuAdam", "MuAdamW", "MuSGD"};
    const char *type;
    const json_t *params;
    LS_TRY(read_type(r, place, v, optimizer_rows, COUNT(optimizer_rows), &type, &params));
    if (!type) return LS_OK;
    size_t i = 0;
    while (i < COUNT(known) && strcasecmp(type, known[i])) i++;
    if (i == COUNT(known))
        return ls_fail(LS_E_UNSUPPORTED, "%s: unknown optimizer '%.60s'; use Adam or AdamW", r->what, type);
    if (i > 1)
        return ls_fail(LS_E_UNSUPPORTED, "%s: optimizer %s of DeepSpeed is not supported; use Adam or AdamW", r->what,
                       known[i]);
    if (params) {
        if (json_object_get(params, "max_grad_norm"))
            return ls_fail(
                LS_E_CONFIG,
                "%s: 'optimizer.params.max_grad_norm' is not supported; use the top-level key 'gradient_clipping'",
                r->what);
        LS_TRY(train_ds_block(r, "optimizer.params", params, adam_rows, COUNT(adam_rows)));
        LS_TRY(train_ds_refuse(r, "optimizer.params.betas", read_betas(r, json_object_get(params, "betas"))));
    }
    if (i == 1 && json_is_false(json_object_get(params, "adam_w_mode")))
        train_ds_note(r, "optimizer.params.adam_w_mode (AdamW always decouples weight decay)");
    return LS_OK;
}

static ls_status read_scheduler(ds_reader *r, const char *place, const json_t *v)
{
    enum { ONE_CYCLE = 4 };
    static const char *const names[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"};
    static const ds_row *const rows[] = {warmup_rows + 1, warmup_rows, warmup_cosine_rows, range_test_rows};
    static const size_t n_row[] = {COUNT(warmup_rows) - 1, COUNT(warmup_rows), COUNT(warmup_cosine_rows),
                                   COUNT(range_test_rows)};
    const char *type;
    const json_t *params;
    LS_TRY(read_type(r, place, v, scheduler_rows, COUNT(scheduler_rows), &type, &params));
    if (!type) return LS_OK;
    size_t t = 0;
    while (t < COUNT(names) && strcmp(names[t], type)) t++;
    if (t == ONE_CYCLE)
        return ls_fail(
            LS_E_UNSUPPORTED,
            "%s: scheduler OneCycle is not supported (it also changes the momentum); use WarmupDecayLR or WarmupCosineLR",
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
    if (params) LS_TRY(train_ds_block(r, "scheduler.params", params, rows[t], n_row[t]));
    if ((rows[t] == warmup_rows || rows[t] == warmup_cosine_rows) &&
        !ls_ds_get(r->c, "scheduler.params.total_num_steps") &&
        !train_ds_auto(json_object_get(params, "total_num_steps"))) /* then it is the length of the run */
        return ls_fail(LS_E_CONFIG, "%s: scheduler %s needs 'scheduler.params.total_num_steps'", r->what, type);
    const json_t *warm = json_object_get(params, "warmup_type");
    if (warm && !json_is_null(warm) && !train_ds_auto(warm)) {
        const char *word = json_string_value(warm);
        if (!word)
            return train_ds_refuse(
                r, "scheduler.params.warmup_type",
                ls_fail(LS_E_CONFIG, "%s: 'scheduler.params.warmup_type' must be \"log\" or \"linear\"", r->what));
        if (strcmp(word, "linear") && strcmp(word, "log")) /* as DeepSpeed does, and says */
            train_ds_note(r, "scheduler.params.warmup_type ('%.40s' is not log or linear; log is used)", word);
    }
    return LS_OK;
}

/* The last partial batch is always dropped here; asking for the opposite has no effect. */
static ls_status read_drop_last(ds_reader *r, const char *place, const json_t *v)
{
    if (!json_is_boolean(v)) return ls_fail(LS_E_CONFIG, "%s: '%s' must be true or false", r->what, place);
    if (json_is_false(v)) train_ds_note(r, "%s (the last partial batch of an epoch is always dropped)", place);
    else train_ds_used(r, place);
    return LS_OK;
}

/* "auto", one stage, or a number. */
static ls_status read_stages(ds_reader *r, const char *place, const json_t *v)
{
    if (!train_ds_auto(v) && (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 65536))
        return ls_fail(LS_E_CONFIG, "%s: '%s' must be \"auto\" or a whole number of 1 to 65536", r->what, place);
    train_ds_used(r, place);
    return LS_OK;
}

/* Blocks that are switched on by being there. */
static ls_status read_refused(ds_reader *r, const char *place, const json_t *v)
{
    if (json_is_object(v) && json_object_size(v) == 0) {
        train_ds_used(r, place);
        return LS_OK;
    }
    return ls_fail(LS_E_UNSUPPORTED, "%s: '%s' is not supported; remove the block", r->what, place);
}

/* The state of the optimizer can be in host memory, all of it; parameters and disks are not supported. */
static ls_status check_offload(ds_reader *r)
{
    static const char state[] = "zero_optimization.offload_optimizer.device",
                      param[] = "zero_optimization.offload_param.device",
                      ratio[] = "zero_optimization.offload_optimizer.ratio", old[] = "zero_optimization.cpu_offload";
    const char *to = ls_ds_text(r->c, state, "none"), *param_to = ls_ds_text(r->c, param, "none");
    if (!strcasecmp(to, "nvme"))
        LS_TRY(train_ds_refuse(
            r, state,
            ls_fail(LS_E_UNSUPPORTED, "%s: '%s' is 'nvme', which is not supported; use cpu", r->what, state)));
    if (strcasecmp(param_to, "none"))
        LS_TRY(train_ds_refuse(
            r, param,
            ls_fail(LS_E_UNSUPPORTED,
                    "%s: '%s' is '%s', which is not supported; use none (and zero3, which shards parameters)", r->what,
                    param, param_to)));
    if (!strcasecmp(to, "cpu") && ls_ds_real(r->c, ratio, 1) != 1)
        LS_TRY(train_ds_refuse(r, ratio,
                               ls_fail(LS_E_UNSUPPORTED,
                                       "%s: '%s' is %g, but the whole state is offloaded; use 1.0 or leave it out",
                                       r->what, ratio, ls_ds_real(r->c, ratio, 1))));
    const bool legacy = ls_ds_bool(r->c, old, false);
    if (legacy && ls_ds_get(r->c, state) && strcasecmp(to, "cpu"))
        LS_TRY(train_ds_refuse(
            r, old,
            ls_fail(LS_E_CONFIG, "%s: '%s' is true, but '%s' is '%s'; remove one of them", r->what, old, state, to)));
    if ((!strcasecmp(to, "cpu") || legacy) && !ls_ds_int(r->c, "zero_optimization.stage", 0))
        LS_TRY(train_ds_refuse(
            r, legacy ? old : state,
            ls_fail(LS_E_CONFIG, "%s: '%s' needs 'zero_optimization.stage' 1, 2 or 3", r->what, legacy ? old : state)));
    return LS_OK;
}

/* Every block is computed again from its input, which stays where it is: of these keys only that there are checkpoints is honoured. */
static void note_recompute(ds_reader *r)
{
    static const struct {
        const char *place, *words;
    } part[] = {
        {"activation_checkpointing.cpu_checkpointing", "--recompute, in part: the inputs of blocks stay on the device"},
        {"activation_checkpointing.contiguous_memory_optimization",
         "--recompute, in part: memory is always planned as one piece"},
        {"activation_checkpointing.number_checkpoints", "--recompute, in part: one checkpoint per block"},
    };
    for (size_t i = 0; i < COUNT(part); i++) {
        const json_t *v = ls_ds_get(r->c, part[i].place);
        if (json_is_true(v) || json_integer_value(v) > 0) train_ds_in_part(r, part[i].place, part[i].words);
    }
}

/* Keys about the scaling and the type of the sums of gradients, which are always in fp32, divided afterwards. */
static void note_sums(ds_reader *r)
{
    if (strcasecmp(ls_ds_text(r->c, "communication_data_type", "fp32"), "fp32"))
        train_ds_ignored(r, "communication_data_type", "gradients are summed in fp32"); /* a run prints it, too */
    if (ls_ds_int(r->c, "zero_optimization.stage", 0) == 2) return;                     /* refused */
    if (ls_ds_bool(r->c, "prescale_gradients", false))
        train_ds_note(r, "prescale_gradients (gradients are summed in fp32 and then divided: the mean is the same)");
    if (ls_ds_real(r->c, "gradient_predivide_factor", 1) != 1)
        train_ds_note(
            r, "gradient_predivide_factor (gradients are summed in fp32 and then divided: the mean is the same)");
}

const char *ls_ds_precision(const ls_ds_config *ds)
{
    return ls_ds_bool(ds, "fp8.enabled", false)    ? "fp8"
           : ls_ds_bool(ds, "fp16.enabled", false) ? "fp16"
           : ls_ds_bool(ds, "bf16.enabled", false) ? "bf16"
                                                   : NULL;
}

const char *ls_ds_name_given(const ls_ds_config *ds, const char *key)
{
    for (size_t i = 0; i < COUNT(train_ds_names); i++)
        if (!strcmp(train_ds_names[i][0], key) && ls_ds_get(ds, train_ds_names[i][1])) return train_ds_names[i][1];
    return key;
}

bool ls_ds_auto(const ls_ds_config *ds, const char *key)
{
    const char *text = ds ? json_string_value(ls_json_at(ds->root, key)) : NULL;
    return text && !strcmp(text, "auto");
}

const char *ls_ds_precision_open(const ls_ds_config *ds)
{
    return ls_ds_auto(ds, "fp8.enabled")    ? "fp8.enabled"
           : ls_ds_auto(ds, "fp16.enabled") ? "fp16.enabled"
           : ls_ds_auto(ds, "bf16.enabled") ? "bf16.enabled"
                                            : NULL;
}

bool ls_ds_disables(const ls_ds_config *ds, const char *precision)
{
    char key[32];
    snprintf(key, sizeof key, "%s.enabled", precision);
    return ls_ds_get(ds, key) && !ls_ds_bool(ds, key, true); /* "auto" has the default */
}

bool ls_ds_overridden(const ls_ds_config *ds, const char *block, const char *precision)
{
    char key[32];
    snprintf(key, sizeof key, "%s.enabled", block);
    if (!strcmp(block, precision)) return ls_ds_disables(ds, block);
    const bool beside = !strcmp(block, "bf16") && !strcmp(precision, "fp8"); /* fp8 computes the rest in bf16 */
    return ls_ds_bool(ds, key, false) && !beside;
}

bool ls_ds_checks_overflow(const ls_ds_config *ds)
{
    return ls_ds_bool(ds, "bf16.check_grad_overflow", false) &&
           (ls_ds_bool(ds, "bf16.enabled", false) || ls_ds_auto(ds, "bf16.enabled"));
}

int ls_ds_idle_keys(const ls_ds_config *ds, const char *precision, ls_ds_idle out[LS_DS_IDLE_MAX])
{
    static const struct {
        const char *precision, *why, *key[6];
    } block[] = {{"fp16",
                  "only fp16 uses it",
                  {"fp16.loss_scale", "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis",
                   "fp16.consecutive_hysteresis", "fp16.min_loss_scale"}},
                 {"fp8",
                  "only fp8 uses it",
                  {"fp8.format", "fp8.margin", "fp8.amax_history_len", "fp8.amax_compute_algo", "fp8.reduce_amax"}}};
    const bool in_fp8 = !strcmp(precision, "fp8"), in_bf16 = in_fp8 || !strcmp(precision, "bf16");
    int n = 0;
    for (size_t b = 0; b < COUNT(block); b++) {
        if (!strcmp(precision, block[b].precision)) continue;
        for (size_t i = 0; i < COUNT(block[b].key) && block[b].key[i]; i++)
            if (ls_ds_get(ds, block[b].key[i]))
                out[n++] = (ls_ds_idle){ls_ds_name_given(ds, block[b].key[i]), block[b].why};
    }
    if (in_fp8 && !strcasecmp(ls_ds_text(ds, "fp8.amax_compute_algo", "max"), "most_recent") &&
        ls_ds_int(ds, "fp8.amax_history_len", 1) != 1)
        out[n++] = (ls_ds_idle){"fp8.amax_history_len", "not used beside amax_compute_algo most_recent"};
    if (ls_ds_bool(ds, "bf16.check_grad_overflow", false) && !(in_bf16 && ls_ds_checks_overflow(ds)))
        out[n++] = (ls_ds_idle){ls_ds_get(ds, "bfloat16") ? "bfloat16.check_grad_overflow" : "bf16.check_grad_overflow",
                                in_bf16 ? "bf16.enabled is not true" : "only bf16 and fp8 use it"};
    return n;
}

ls_status train_ds_check(ds_reader *r)
{
    const ls_ds_config *c = r->c;
    const int64_t bucket = ls_ds_int(c, "zero_optimization.allgather_bucket_size", 0);
    const bool states = ls_ds_bool(c, "bf16.bf16_optimizer_states", false);
    if (bucket % 2)
        LS_TRY(train_ds_refuse(r, "zero_optimization.allgather_bucket_size",
                               ls_fail(LS_E_CONFIG,
                                       "%s: 'zero_optimization.allgather_bucket_size' is %lld, but must be even",
                                       r->what, (long long)bucket)));
    if (!ls_ds_bool(c, "managed_gradient_accumulation", true))
        LS_TRY(train_ds_refuse(r, "managed_gradient_accumulation",
                               ls_fail(LS_E_UNSUPPORTED,
                                       "%s: 'managed_gradient_accumulation' false is not supported; leave the key out",
                                       r->what)));
    if (!strcasecmp(ls_ds_text(c, "gradient_allreduce_op", "mean"), "sum"))
        LS_TRY(
            train_ds_refuse(r, "gradient_allreduce_op",
                            ls_fail(LS_E_UNSUPPORTED,
                                    "%s: 'gradient_allreduce_op' is sum, which is not supported; use mean", r->what)));
    LS_TRY(check_offload(r));
    note_recompute(r);
    note_sums(r);
    if (ls_ds_bool(c, "fp16.fp16_master_weights_and_grads", false))
        LS_TRY(train_ds_refuse(
            r, "fp16.fp16_master_weights_and_grads",
            ls_fail(
                LS_E_UNSUPPORTED,
                "%s: 'fp16.fp16_master_weights_and_grads' is true, but master weights and gradients are always fp32; set it to false",
                r->what)));
    if (states || ls_ds_bool(c, "bf16.bf16_master_weights_and_grads", false))
        LS_TRY(train_ds_refuse(
            r, states ? "bf16.bf16_optimizer_states" : "bf16.bf16_master_weights_and_grads",
            ls_fail(LS_E_UNSUPPORTED,
                    "%s: '%s' is true, but master weights, gradients and moments are always fp32; set it to false",
                    r->what, states ? "bf16.bf16_optimizer_states" : "bf16.bf16_master_weights_and_grads")));
    if (ls_ds_int(c, "zero_optimization.stage", 0) == 2 &&
        (ls_ds_bool(c, "prescale_gradients", false) || ls_ds_real(c, "gradient_predivide_factor", 1) != 1))
        LS_TRY(train_ds_refuse(
            r, "prescale_gradients",
            ls_fail(
                LS_E_CONFIG,
                "%s: ZeRO stage 2 does not support 'prescale_gradients' and 'gradient_predivide_factor'; remove them",
                r->what)));
    return LS_OK;
}
