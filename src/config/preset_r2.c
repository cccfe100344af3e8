/* preset_r2.c - the flags of the strategy comparison's three trainers (docs/REFERENCES.md#the-strategy-comparison).
 *
 *   --framework               none: one worker; dp, ddp: these strategies; deepspeed: zero2 (there the stage is chosen in the code) with the
 *                             optimizer in host memory
 *   --num_gpus, --num_nodes   workers: their product, or --world_size                                              [4, 1]
 *   --micro_batch_size B      sequences per worker; dp splits B over its workers, as there                         [8]
 *   --global_batch_size G     with deepspeed, G / (B * workers) micro-batches are accumulated; else not used       [32]
 *   --train_iters N           --max_steps N                                          [30; ddp 20; deepspeed 31]
 *   --lr R                    after a warm-up over a tenth of the steps, cosine to 0; deepspeed: WarmupCosineLR to 0.001 R  [1.5e-4]
 *
 * and the flags of `same` under our names. */
#include "config/preset.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FRAMEWORK, GPUS, NODES, WORLD, MICRO, GLOBAL, ITERS, BETA1, BETA2, FP16, SIZED };

/* Taken one by one, then those of `same`, then those without effect. */
const preset_flag preset_r2_flags[] = {
    [FRAMEWORK] = {"framework", false},
    [GPUS] = {"num_gpus", false},
    [NODES] = {"num_nodes", false},
    [WORLD] = {"world_size", false},
    [MICRO] = {"micro_batch_size", false},
    [GLOBAL] = {"global_batch_size", false},
    [ITERS] = {"train_iters", false},
    [BETA1] = {"adam_beta1", false},
    [BETA2] = {"adam_beta2", false},
    [FP16] = {"use_fp16", true},
    [SIZED] = {"eval_iters", false},
    {"clip_grad", false},
    {"log_interval", false},
    {"eval_interval", false},
    {"save_interval", false},
    {"model_path", false},
    {"data_path", false},
    {"hidden_size", false},
    {"num_attention_heads", false},
    {"padded_vocab_size", false},
    {"tensorboard_logs_path", false},
    {"use_pytorch_profiler", true},
    {"vocab_file", false},
    {"merge_file", false},
    {"train_val_split", false},
    {"kv_channels", false},
    {"ffn_hidden_size", false},
    {"num_query_groups", false},
    {"group_query_attention", true},
    {"swiglu", true},
    {"num_experts", false},
    {"moe_router_topk", false},
    {"moe_shared_expert_intermediate_size", false},
    {"empty_unused_memory_level", false},
    {"clear_memory_interval", false},
    {"profile_ranks", false},
    {"log_throughput", true},
    {"log_timers_to_tensorboard", true},
    {"timing_log_level", false},
    {"timing_log_option", false},
    {"wandb_project", false},
    {"init_method_std", false},
    {"deepspeed", true},
    {"min_lr", false},
    {"lr_decay_style", false},
    {"warmup_num_steps", false},
    {"master_addr", false},
    {"master_port", false},
    {"data_impl", false},
    {"split", false},
    {"log_validation_ppl_to_tensorboard", true},
    {"cuda_max_connections", false},
};
enum { N_FLAG = sizeof preset_r2_flags / sizeof preset_r2_flags[0] };
const int preset_r2_n_flag = N_FLAG;

/* Our names of the flags from SIZED on, and the strategy comparison's defaults; NULL: none. alone: a switch. In a
 * benchmark `folder` ones have no default. */
static const struct {
    const char *ours, *missing;
    bool alone, folder;
} same[] = {
    {"max_val_steps", "10", false, false},
    {"clip", "1.0", false, false},
    {"steps_per_print", "15", false, false},
    {"eval_every", "15", false, false},
    {"save_every", "15", false, true},
    {"init_from", NULL, false, false},
    {"data", NULL, false, false},
    {"embedding_size", NULL, false, false},
    {"num_heads", NULL, false, false},
    {"vocab_size", NULL, false, false},
    {"tensorboard", "tb_logs", false, true},
    {"profile", NULL, true, false},
};
enum { N_SAME = sizeof same / sizeof same[0] };

typedef struct layout {
    const char *strategy;
    int64_t workers, micro, accumulate, iters;
    bool deepspeed;
} layout;

static bool on(const char *text)
{
    return text && strcasecmp(text, "false") != 0;
}

static ls_status read_layout(const char *const value[N_FLAG], bool bench, layout *l)
{
    const char *name = value[FRAMEWORK] ? value[FRAMEWORK] : "none", *started = getenv("WORLD_SIZE");
    const bool dp = !strcmp(name, "dp"), ddp = !strcmp(name, "ddp"), one = !strcmp(name, "none");
    int64_t gpus, nodes, global;
    l->deepspeed = !strcmp(name, "deepspeed");
    if (!dp && !ddp && !one && !l->deepspeed)
        return ls_fail(LS_E_ARG, "--framework '%.40s': must be dp, ddp or deepspeed, or left out for one worker", name);
    l->strategy = dp ? "dp" : ddp ? "ddp" : one ? "single" : "zero2";
    LS_TRY(preset_number("num_gpus", value[GPUS], 1, 4, &gpus));
    LS_TRY(preset_number("num_nodes", value[NODES], 1, 1, &nodes));
    LS_TRY(preset_number("world_size", value[WORLD], 1, gpus * nodes, &l->workers));
    LS_TRY(preset_number("micro_batch_size", value[MICRO], 1, 8, &l->micro));
    LS_TRY(preset_number("global_batch_size", value[GLOBAL], 1, 32, &global));
    LS_TRY(preset_number("train_iters", value[ITERS], 1, l->deepspeed ? 31 : ddp ? 20 : 30, &l->iters));
    l->accumulate = 1;
    if (one) l->workers = 1;
    if (nodes > 1 && !(started && *started) && !one && !bench)
        return ls_fail(
            LS_E_CONFIG,
            "--num_nodes %lld: the workers of several hosts are started by torchrun, mpirun or srun; -n starts them on one",
            (long long)nodes);
    if (dp && !bench && l->micro % l->workers)
        return ls_fail(LS_E_CONFIG,
                       "--framework dp splits --micro_batch_size %lld over the workers, and it does not divide by %lld",
                       (long long)l->micro, (long long)l->workers);
    if (dp && !bench) l->micro /= l->workers;
    if (l->deepspeed) l->accumulate = global / (l->micro * l->workers);
    if (l->accumulate < 1)
        return ls_fail(LS_E_CONFIG, "--global_batch_size %lld is less than --micro_batch_size %lld * %lld workers",
                       (long long)global, (long long)l->micro, (long long)l->workers);
    return LS_OK;
}

/* The strategy comparison's defaults go to *out, what follows from flags to *typed. */
static ls_status add_layout(const char *const value[N_FLAG], bool bench, ls_argv *out, ls_argv *typed)
{
    layout l;
    const char *started = getenv("WORLD_SIZE");
    LS_TRY(read_layout(value, bench, &l));
    LS_TRY(ls_argv_addf(value[ITERS] ? typed : out, "--max_steps=%lld", (long long)l.iters));
    LS_TRY(ls_argv_addf(out, "--warmup_steps=%lld", (long long)(l.iters / 10 < 2000 ? l.iters / 10 : 2000)));
    LS_TRY(ls_argv_addf(out, "--lr_schedule=%s", l.deepspeed ? "WarmupCosineLR" : "cosine"));
    LS_TRY(ls_argv_addf(out, "--min_lr_ratio=%s", l.deepspeed ? "0.001" : "0"));
    LS_TRY(ls_argv_addf(value[MICRO] ? typed : out, "--micro_batch_size_per_gpu=%lld", (long long)l.micro));
    if (bench) { /* the same batch in all settings */
        LS_TRY(ls_argv_addf(out, "--global_batch_size=%s", value[GLOBAL] ? value[GLOBAL] : "32"));
        return value[FRAMEWORK] ? ls_argv_addf(out, "--strategy=%s", l.strategy) : LS_OK;
    }
    LS_TRY(
        ls_argv_addf(value[GLOBAL] && l.deepspeed ? typed : out, "--grad_accum_steps=%lld", (long long)l.accumulate));
    LS_TRY(ls_argv_addf(value[FRAMEWORK] ? typed : out, "--strategy=%s", l.strategy));
    if (l.deepspeed) LS_TRY(ls_argv_addf(out, "--offload_optimizer=cpu"));
    if (started && *started) return LS_OK;
    const bool sized = value[FRAMEWORK] && (value[GPUS] || value[NODES] || value[WORLD]);
    return ls_argv_addf(sized ? typed : out, "--n=%lld", (long long)l.workers);
}

static ls_status add_same(const char *const value[N_FLAG], bool bench, ls_argv *out, ls_argv *typed)
{
    for (int i = 0; i < N_SAME; i++) {
        const char *v = value[SIZED + i];
        ls_argv *to = v ? typed : out;
        if (!v && !(bench && same[i].folder)) v = same[i].missing;
        if (!v || (same[i].alone && !on(v))) continue;
        LS_TRY(same[i].alone ? ls_argv_addf(to, "--%s", same[i].ours) : ls_argv_addf(to, "--%s=%s", same[i].ours, v));
    }
    return LS_OK;
}

static void note_unused(const char *const value[N_FLAG], bool bench, ls_str *notes)
{
    const char *name = value[FRAMEWORK] ? value[FRAMEWORK] : "none";
    const bool one = !strcmp(name, "none"), deepspeed = !strcmp(name, "deepspeed");
    ls_str list = {0};
    for (int i = 0; i < N_FLAG; i++) {
        const char *why = "";
        if (!value[i] || (i >= SIZED && i < SIZED + N_SAME)) continue;
        if (i == GPUS || i == NODES || i == WORLD)
            why = one && strcmp(value[i], "1") ? " (without --framework: one worker)" : NULL;
        else if (i == GLOBAL) why = deepspeed || bench ? NULL : " (only with --framework deepspeed)";
        else if (i < SIZED) why = NULL;
        if (why) ls_str_addf(&list, "%s--%s%s", list.len ? ", " : "", preset_r2_flags[i].name, why);
    }
    if (list.len) ls_str_addf(notes, "flags of --preset r2 without effect: %s\n", list.data);
    ls_str_fini(&list);
}

ls_status preset_r2(int argc, char **argv, bool bench, ls_argv *out, ls_train_preset *p, ls_str *notes)
{
    static const char *const defaults[] = {"--model=gpt2", "--seq_length=1024", "--lr=1.5e-4", "--weight_decay=0.01",
                                           "--seed=42"};
    const char *value[N_FLAG] = {0};
    ls_argv typed = {0}, rest = {0};
    ls_status st;
    LS_TRY_GOTO(st, done, preset_take(argc, argv, preset_r2_flags, N_FLAG, value, &rest));
    if (bench && (value[GPUS] || value[NODES] || value[WORLD])) {
        st = ls_fail(LS_E_ARG, "--%s is not allowed in the train options of a benchmark; give -n to bench instead",
                     value[GPUS]    ? "num_gpus"
                     : value[NODES] ? "num_nodes"
                                    : "world_size");
        goto done;
    }
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        LS_TRY_GOTO(st, done, ls_argv_add(out, defaults[i]));
    LS_TRY_GOTO(st, done,
                ls_argv_addf(value[BETA1] || value[BETA2] ? &typed : out, "--betas=%s,%s",
                             value[BETA1] ? value[BETA1] : "0.9", value[BETA2] ? value[BETA2] : "0.95"));
    LS_TRY_GOTO(st, done,
                ls_argv_addf(value[FP16] ? &typed : out, "--precision=%s", on(value[FP16]) ? "fp16" : "fp32"));
    if (!bench) LS_TRY_GOTO(st, done, ls_argv_add(out, "--checkpoint_path=checkpoints"));
    LS_TRY_GOTO(st, done, add_same(value, bench, out, &typed));
    LS_TRY_GOTO(st, done, add_layout(value, bench, out, &typed));
    note_unused(value, bench, notes);
    st = preset_join("r2", out, &typed, &rest, p);
done:
    ls_argv_fini(&typed);
    ls_argv_fini(&rest);
    return st;
}
