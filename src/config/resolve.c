#include "model/model.h"
#include "parallel/schedule.h"
#include "config/resolve.h"
#include "config/resolve_impl.h"
#include "core/fs.h"
#include "core/mem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- data paths --- */

void ls_train_paths_fini(ls_train_paths *p)
{
    ls_free(p->train);
    ls_free(p->val);
    ls_free(p->tokenizer);
    *p = (ls_train_paths){0};
}

static char *folder_of(const char *path)
{
    size_t n = (size_t)(ls_path_base(path) - path);
    return n ? ls_strndup(path, n) : ls_strdup(".");
}

/* <dir>/<name> when it exists, else NULL. */
static ls_status beside(const char *dir, const char *name, char **out)
{
    char *p = ls_path_join(dir, name);
    if (!p) return ls_nomem(strlen(dir), "a path");
    if (!ls_fs_exists(p)) {
        ls_free(p);
        p = NULL;
    }
    *out = p;
    return LS_OK;
}

ls_status ls_train_find_paths(const ls_train_options *o, ls_train_paths *out)
{
    ls_train_paths p = {0};
    char *dir = NULL;
    ls_status st = LS_OK;
    if (o->data && o->train_data_path)
        return ls_fail(LS_E_ARG, "--data and --train_data_path cannot be combined; leave one out");
    if (!o->data && !o->train_data_path)
        return ls_fail(LS_E_ARG,
                       "no training data; give --data DIR (written by `lockstep prepare`) or --train_data_path FILE");
    if (o->data && !ls_fs_is_dir(o->data)) return ls_fail(LS_E_IO, "--data %s: not a folder", o->data);
    dir = o->data ? ls_strdup(o->data) : folder_of(o->train_data_path);
    if (!dir) return ls_nomem(256, "a path");
    if (o->data) {
        LS_TRY_GOTO(st, done, beside(dir, "train.bin", &p.train));
        if (!p.train) {
            st = ls_fail(LS_E_IO, "%s has no train.bin; create it with `lockstep prepare --input TEXT --out %s`",
                         o->data, o->data);
            goto done;
        }
        if (!o->val_data_path) LS_TRY_GOTO(st, done, beside(dir, "val.bin", &p.val));
    } else {
        LS_TRY_GOTO(st, done, train_copy(&p.train, o->train_data_path));
    }
    if (o->val_data_path) LS_TRY_GOTO(st, done, train_copy(&p.val, o->val_data_path));
    LS_TRY_GOTO(st, done, beside(dir, "tokenizer.json", &p.tokenizer));
    if (!ls_fs_exists(p.train)) st = ls_fail(LS_E_IO, "training data %s does not exist", p.train);
    else if (p.val && !ls_fs_exists(p.val)) st = ls_fail(LS_E_IO, "validation data %s does not exist", p.val);
done:
    ls_free(dir);
    if (st != LS_OK) ls_train_paths_fini(&p);
    else *out = p;
    return st;
}

/* --- environment --- */

static ls_status env_int(const char *name, int lo, int *out, bool *set)
{
    const char *text = getenv(name);
    int64_t v;
    *set = text && *text;
    if (!*set) return LS_OK;
    if (!ls_parse_i64(text, &v) || v < lo || v > INT_MAX)
        return ls_fail(LS_E_CONFIG, "environment variable %s is '%.40s', but must be a whole number of at least %d",
                       name, text, lo);
    *out = (int)v;
    return LS_OK;
}

static ls_status resolve_world(const ls_train_options *o, const ls_train_facts *facts, ls_train_config *c)
{
    bool has_world, has_rank, has_local;
    int world = 1;
    c->local_rank = (int)o->local_rank;
    LS_TRY(env_int("WORLD_SIZE", 1, &world, &has_world));
    LS_TRY(env_int("RANK", 0, &c->rank, &has_rank));
    LS_TRY(env_int("LOCAL_RANK", 0, &c->local_rank, &has_local));
    if (o->n < 1 || o->n > 65536) return ls_fail(LS_E_CONFIG, "-n %lld: must be 1 to 65536", (long long)o->n);
    if (ls_train_given(o, "n") && has_world && o->n != world)
        return ls_fail(LS_E_CONFIG, "-n %lld: WORLD_SIZE is %d; leave -n out under a launcher", (long long)o->n, world);
    c->world_size = facts->world_size > 0 ? facts->world_size : has_world ? world : (int)o->n;
    if (c->rank >= c->world_size)
        return ls_fail(LS_E_CONFIG, "RANK is %d, but must be less than WORLD_SIZE, which is %d", c->rank,
                       c->world_size);
    c->run_type = o->run_type;
    c->engine = (o->run_type && !strcmp(o->run_type, "optimized")) || c->world_size > 1 || has_rank || has_local;
    const bool given = ls_train_given(o, "n"), launcher = !has_world && !given && c->world_size > 1;
    train_put_int(c, "world_size", c->world_size,
                  has_world || launcher ? LS_FROM_ENV
                  : given               ? LS_FROM_CLI
                                        : LS_FROM_DEFAULT,
                  has_world  ? "WORLD_SIZE"
                  : launcher ? "mpirun or srun"
                  : given    ? "-n"
                             : "");
    train_put_text(c, "run_type", c->run_type, c->run_type ? LS_FROM_CLI : LS_FROM_DEFAULT,
                   c->run_type ? "--run_type" : "");
    return LS_OK;
}

/* --- batch --- */

static ls_status positive(const ls_train_options *o, const char *name, int64_t value)
{
    if (ls_train_given(o, name) && (value < 1 || value > INT_MAX))
        return ls_fail(LS_E_CONFIG, "--%s %lld: must be 1 to %d", name, (long long)value, INT_MAX);
    return LS_OK;
}

/* B, A and the global batch: command line, then JSON (a train_batch_size completes the missing ones as DeepSpeed does), then
 * --train_micro_batch_size_per_gpu and 1. */
static ls_status resolve_batch(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const int64_t G =
        c->engine ? c->mesh.n[LS_AXIS_DP] : 1; /* workers of a pipeline or of a split layer share a batch */
    const bool cli_b = ls_train_given(o, "micro_batch_size_per_gpu"), cli_a = ls_train_given(o, "grad_accum_steps");
    const bool cli_g = ls_train_given(o, "global_batch_size");
    LS_TRY(positive(o, "micro_batch_size_per_gpu", o->micro_batch_size_per_gpu));
    LS_TRY(positive(o, "train_micro_batch_size_per_gpu", o->train_micro_batch_size_per_gpu));
    LS_TRY(positive(o, "grad_accum_steps", o->grad_accum_steps));
    LS_TRY(positive(o, "global_batch_size", o->global_batch_size));
    LS_TRY(positive(o, "enforce_global_batch_size", o->enforce_global_batch_size));

    int64_t json_t_ = ds ? ds->train_batch_size : 0, json_b = ds ? ds->train_micro_batch_size_per_gpu : 0;
    int64_t json_a = ds ? ds->gradient_accumulation_steps : 0;
    int64_t B = cli_b ? o->micro_batch_size_per_gpu : json_b, A = cli_a ? o->grad_accum_steps : 0;
    ls_source b_from = cli_b ? LS_FROM_CLI : LS_FROM_JSON, a_from = cli_a ? LS_FROM_CLI : LS_FROM_JSON;
    const char *b_detail = cli_b ? "--micro_batch_size_per_gpu" : "train_micro_batch_size_per_gpu";
    const char *a_detail = cli_a ? "--grad_accum_steps" : "gradient_accumulation_steps";
    if (!B && (!json_t_ || cli_g)) {
        B = o->train_micro_batch_size_per_gpu;
        bool given = ls_train_given(o, "train_micro_batch_size_per_gpu");
        b_from = given ? LS_FROM_CLI : LS_FROM_DEFAULT;
        b_detail = given ? "--train_micro_batch_size_per_gpu" : "";
    }
    if (!A && cli_g) {
        if (o->global_batch_size % (B * G))
            return ls_fail(
                LS_E_CONFIG,
                "--global_batch_size %lld is not a multiple of micro-batch size %lld * %lld worker%s = %lld; %lld and "
                "%lld are",
                (long long)o->global_batch_size, (long long)B, (long long)G, G == 1 ? "" : "s", (long long)(B * G),
                (long long)(o->global_batch_size / (B * G) * B * G),
                (long long)((o->global_batch_size / (B * G) + 1) * B * G));
        A = o->global_batch_size / (B * G);
        a_from = LS_FROM_RULE, a_detail = "--global_batch_size / (B*W)";
    } else if (!A && json_a) {
        A = json_a;
    }
    if (cli_a && cli_g)
        LS_TRY(train_note(c, "--global_batch_size %lld is ignored because --grad_accum_steps is given",
                          (long long)o->global_batch_size));
    int64_t total = json_t_;
    if (!B || (!A && total)) { /* the JSON's train_batch_size says the rest */
        if (!B) b_from = LS_FROM_RULE, b_detail = "train_batch_size / (A*W)";
        if (!A) a_from = LS_FROM_RULE, a_detail = B ? "train_batch_size / (B*W)" : "1, with train_batch_size alone";
        LS_TRY(ls_ds_batch_triple(&total, &B, &A, G));
    } else if (!A) {
        A = 1;
        a_from = LS_FROM_DEFAULT, a_detail = "";
    }
    if (B > INT_MAX || A > INT_MAX || (double)B * (double)A * (double)G > 1e15)
        return ls_fail(LS_E_CONFIG, "micro-batch size %lld * accumulation %lld * %lld workers is too large",
                       (long long)B, (long long)A, (long long)G);
    if (total && total != B * A * G)
        return ls_fail(LS_E_CONFIG,
                       "train_batch_size %lld of the DeepSpeed JSON is not micro-batch size %lld * accumulation %lld * "
                       "%lld worker%s = %lld; change or remove it",
                       (long long)total, (long long)B, (long long)A, (long long)G, G == 1 ? "" : "s",
                       (long long)(B * A * G));
    c->micro_batch = (int)B;
    c->grad_accum = (int)A;
    c->global_batch = B * A * G;
    if (ls_train_given(o, "enforce_global_batch_size") && c->global_batch != o->enforce_global_batch_size)
        return ls_fail(LS_E_CONFIG,
                       "--enforce_global_batch_size %lld: the global batch is micro-batch size %lld * accumulation "
                       "%lld * %lld worker%s = %lld",
                       (long long)o->enforce_global_batch_size, (long long)B, (long long)A, (long long)G,
                       G == 1 ? "" : "s", (long long)c->global_batch);
    train_put_int(c, "micro_batch_size_per_gpu", B, b_from, b_detail);
    train_put_int(c, "grad_accum_steps", A, a_from, a_detail);
    const int64_t R = B * c->seq_len, T = c->mesh.n[LS_AXIS_TP];
    if (c->sequence_parallel && R % T)
        return ls_fail(LS_E_CONFIG,
                       "--sequence_parallel: micro-batch size %lld * %d positions = %lld rows do not divide by tp %lld "
                       "(remainder %lld); use a micro-batch size that is a multiple of %lld",
                       (long long)B, c->seq_len, (long long)R, (long long)T, (long long)(R % T), (long long)T);
    train_put_int(c, "global_batch_size", c->global_batch, LS_FROM_RULE, "B*A*W sequences");
    return LS_OK;
}

static ls_status resolve_length(const ls_train_options *o, ls_train_config *c)
{
    bool given = ls_train_given(o, "seq_length");
    int64_t S = o->seq_length;
    if (S < 1) return ls_fail(LS_E_CONFIG, "--seq_length %lld: must be at least 1", (long long)S);
    if (given && S > c->model.n_ctx)
        return ls_fail(LS_E_CONFIG,
                       "--seq_length %lld: the model has only %d positions; use --seq_length %d or "
                       "--max_position_embeddings %lld",
                       (long long)S, c->model.n_ctx, c->model.n_ctx, (long long)S);
    bool cut = S > c->model.n_ctx;
    c->seq_len = cut ? c->model.n_ctx : (int)S;
    train_put_int(c, "seq_length", c->seq_len,
                  given ? LS_FROM_CLI
                  : cut ? LS_FROM_RULE
                        : LS_FROM_DEFAULT,
                  given ? "--seq_length"
                  : cut ? "the model's positions"
                        : "");
    return LS_OK;
}

/* --- plain settings: a value, a lower bound --- */

typedef struct plain {
    const char *name;
    int64_t value, lo;
    int64_t *field;
    int64_t unset; /* value when not given; ignored for options with a default */
} plain;

static ls_status resolve_plain(const ls_train_options *o, ls_train_config *c)
{
    int64_t threads = 0, seed = 0;
    const plain rows[] = {
        {"epochs", o->epochs, 1, &c->epochs, 1},
        {"max_steps", o->max_steps, 1, &c->max_steps, 0},
        {"max_train_steps", o->max_train_steps, 1, &c->max_train_steps, -1},
        {"max_val_steps", o->max_val_steps, 0, &c->max_val_steps, -1},
        {"eval_every", o->eval_every, 0, &c->eval_every, 0},
        {"save_every", o->save_every, 0, &c->save_every, 0},
        {"keep_last", o->keep_last, 0, &c->keep_last, 0},
        {"threads", o->threads, 0, &threads, 0},
        {"seed", o->seed, 0, &seed, 1337},
        {"steps_per_print", o->steps_per_print, 1, &c->steps_per_print, 10},
        {"timing_warmup_steps", o->timing_warmup_steps, 0, &c->timing_warmup_steps, 5},
        {"timing_sample_every", o->timing_sample_every, 1, &c->timing_sample_every, 50},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const plain *p = &rows[i];
        bool given = ls_train_given(o, p->name);
        char flag[40];
        snprintf(flag, sizeof flag, "--%s", p->name);
        *p->field = given ? p->value : p->unset;
        if (given && p->value < p->lo)
            return ls_fail(LS_E_CONFIG, "%s %lld: must be at least %lld", flag, (long long)p->value, (long long)p->lo);
        bool none = !given && (p->unset == -1 || p->field == &c->max_steps);
        if (none) train_put_text(c, p->name, NULL, LS_FROM_DEFAULT, "no limit");
        else train_put_int(c, p->name, *p->field, given ? LS_FROM_CLI : LS_FROM_DEFAULT, given ? flag : "");
    }
    if (threads > 4096) return ls_fail(LS_E_CONFIG, "--threads %lld: too many", (long long)threads);
    if (c->keep_last > INT_MAX) return ls_fail(LS_E_CONFIG, "--keep_last %lld: too large", (long long)c->keep_last);
    c->threads = c->threads_asked = (int)threads;
    c->seed = (uint64_t)seed;
    c->epochs_auto = c->max_steps && !ls_train_given(o, "epochs");
    return LS_OK;
}

static void put_switch(ls_train_config *c, const ls_train_options *o, const char *name, bool value)
{
    char flag[40];
    snprintf(flag, sizeof flag, "--%s", name);
    bool given = ls_train_given(o, name);
    train_put_bool(c, name, value, given ? LS_FROM_CLI : LS_FROM_DEFAULT, given ? flag : "");
}

static void put_choice(ls_train_config *c, const ls_train_options *o, const char *name, const char *value)
{
    char flag[40];
    snprintf(flag, sizeof flag, "--%s", name);
    bool given = ls_train_given(o, name);
    train_put_text(c, name, value, given ? LS_FROM_CLI : LS_FROM_DEFAULT, given ? flag : "");
}

static ls_status resolve_bucket(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const struct {
        const char *name, *key, *what;
        int64_t typed, json;
        bool in_json;
        int64_t lo, *field;
    } all[] = {
        {"bucket", "zero_optimization.reduce_bucket_size", "a gradient bucket",
         ls_train_given(o, "bucket")  ? o->bucket
         : !strcmp(c->device, "cuda") ? LS_BUCKET_GPU
                                      : LS_BUCKET,
         ds ? ds->zero.reduce_bucket_size : 0, ds && ds->zero.reduce_bucket_given, 1, &c->bucket},
        {"gather_bucket", "zero_optimization.allgather_bucket_size", "a parameter bucket", o->gather_bucket,
         ds ? ds->zero.allgather_bucket_size : 0, ds && ds->zero.allgather_bucket_given, 1, &c->gather_bucket},
        {"prefetch_bucket", "zero_optimization.stage3_prefetch_bucket_size", "a prefetch", o->prefetch_bucket,
         ds ? ds->zero.prefetch_bucket_size : 0, ds && ds->zero.prefetch_bucket_given, 0, &c->prefetch_bucket},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const bool given = ls_train_given(o, all[i].name), json = !given && all[i].in_json;
        char flag[40];
        snprintf(flag, sizeof flag, "--%s", all[i].name);
        *all[i].field = json ? all[i].json : all[i].typed;
        if (*all[i].field < all[i].lo)
            return ls_fail(LS_E_CONFIG, "%s of %lld elements: must be at least %lld", all[i].what,
                           (long long)*all[i].field, (long long)all[i].lo);
        train_put_int(c, all[i].name, *all[i].field,
                      given  ? LS_FROM_CLI
                      : json ? LS_FROM_JSON
                             : LS_FROM_DEFAULT,
                      given  ? flag
                      : json ? all[i].key
                             : "");
    }
    return LS_OK;
}

/* dp x pp x tp, and what only pipelines have. */
static ls_status resolve_mesh(const ls_train_options *o, ls_train_config *c)
{
    const bool pipe = o->pp > 1, given = ls_train_given(o, "interleave");
    if (o->pp < 1 || o->tp < 1 || o->pp > 65536 || o->tp > 65536)
        return ls_fail(LS_E_CONFIG, "--pp %lld --tp %lld: both must be 1 to 65536", (long long)o->pp, (long long)o->tp);
    LS_TRY(ls_mesh_build(&c->mesh, c->world_size, 0, (int)o->pp, (int)o->tp));
    if (o->tp > 1) LS_TRY(ls_shard_check(&c->model, (int)o->tp));
    if (!pipe && (o->schedule || o->stages || given))
        return ls_fail(LS_E_CONFIG, "--%s needs a pipeline; add --pp P, or leave it out",
                       o->schedule ? "schedule"
                       : o->stages ? "stages"
                                   : "interleave");
    c->schedule = !pipe ? NULL : o->schedule ? o->schedule : given && o->interleave > 1 ? "interleaved" : "1f1b";
    c->interleave = (int)o->interleave;
    c->stages = o->stages;
    if (o->interleave < 1 || o->interleave > 64)
        return ls_fail(LS_E_CONFIG, "--interleave %lld: must be 1 to 64 chunks per stage", (long long)o->interleave);
    if (pipe && o->interleave > 1 && ls_schedule_is_builtin(c->schedule) && strcmp(c->schedule, "interleaved"))
        return ls_fail(LS_E_CONFIG,
                       "--interleave %lld: --schedule %s supports one chunk per stage; use --schedule interleaved",
                       (long long)o->interleave, c->schedule);
    c->sequence_parallel = o->sequence_parallel;
    if (c->sequence_parallel && o->tp == 1)
        return ls_fail(LS_E_CONFIG, "--sequence_parallel needs tensor parallelism; add --tp T, or leave it out");
    train_put_int(c, "dp", c->mesh.n[LS_AXIS_DP], LS_FROM_RULE, "workers / (pp * tp)");
    train_put_int(c, "pp", o->pp, pipe ? LS_FROM_CLI : LS_FROM_DEFAULT, pipe ? "--pp" : "");
    train_put_int(c, "tp", o->tp, o->tp > 1 ? LS_FROM_CLI : LS_FROM_DEFAULT, o->tp > 1 ? "--tp" : "");
    train_put_bool(c, "sequence_parallel", c->sequence_parallel, o->sequence_parallel ? LS_FROM_CLI : LS_FROM_DEFAULT,
                   o->sequence_parallel ? "--sequence_parallel" : "");
    train_put_text(c, "schedule", c->schedule, o->schedule ? LS_FROM_CLI : LS_FROM_DEFAULT,
                   o->schedule ? "--schedule" : "");
    return LS_OK;
}

/* --strategy, else the JSON's ZeRO stage, else ddp when there are several workers. */
static void resolve_strategy(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    static const char *const stage[] = {"ddp", "zero1", "zero2", "zero3"};
    const int n = c->mesh.n[LS_AXIS_DP];
    const bool json = !o->strategy && n > 1 && ds && ds->zero.given;
    c->strategy = o->strategy ? o->strategy : json ? stage[ds->zero.stage] : n > 1 ? "ddp" : "single";
    train_put_text(c, "strategy", c->strategy,
                   o->strategy ? LS_FROM_CLI
                   : json      ? LS_FROM_JSON
                               : LS_FROM_DEFAULT,
                   o->strategy ? "--strategy"
                   : json      ? "zero_optimization.stage"
                               : "");
}

static ls_status resolve_machine(const ls_train_options *o, ls_train_config *c)
{
    const bool cpu = !strcmp(c->device, "cpu");
    c->recompute = o->recompute;
    c->comm_timeout = ls_train_given(o, "comm_timeout") ? o->comm_timeout : -1;
    if (ls_train_given(o, "comm_timeout") && !(o->comm_timeout >= 0))
        return ls_fail(LS_E_CONFIG, "--comm_timeout %g: must be a number of seconds, or 0 for no limit",
                       o->comm_timeout);
    c->resume = o->resume;
    c->quiet_nccl_monitor = o->quiet_nccl_monitor;
    c->json = o->json;
    c->print_config = o->print_config;
    if (o->deterministic && o->no_deterministic)
        return ls_fail(LS_E_ARG, "--deterministic and --no_deterministic cannot be combined; leave one out");
    c->deterministic = !o->no_deterministic || (cpu && c->world_size == 1);
    if (o->no_deterministic && c->deterministic)
        LS_TRY(train_note(c, "--no_deterministic has no effect: one worker is always deterministic"));
    else if (o->no_deterministic)
        LS_TRY(train_note(c, cpu ? "--no_deterministic: results may differ between numbers of workers"
                                 : "--no_deterministic: results may differ between runs"));
    const char *env = getenv("PROFILE_MODE");
    bool env_on = env && !strcmp(env, "1");
    c->profile_mode = o->profile_mode || env_on;
    const char *debug = getenv("DIST_DEBUG");
    c->dist_debug = debug && !strcmp(debug, "1");
    c->profile = o->profile;
    c->profile_spans = o->profile_spans;
    if (c->profile_spans < 1 || c->profile_spans > 1 << 24)
        return ls_fail(LS_E_CONFIG, "--profile_spans %lld: must be 1 to %d", (long long)o->profile_spans, 1 << 24);
    const char *slurm = getenv("SLURM_JOB_ID"), *cluster = getenv("SLURM_CLUSTER_NAME");
    c->cluster = o->cluster ? o->cluster : slurm && *slurm && cluster && *cluster ? cluster : NULL;

    put_switch(c, o, "recompute", c->recompute);
    const char *flag = o->deterministic ? "--deterministic" : o->no_deterministic ? "--no_deterministic" : "";
    train_put_bool(c, "deterministic", c->deterministic, *flag ? LS_FROM_CLI : LS_FROM_DEFAULT, flag);
    put_switch(c, o, "resume", c->resume);
    train_put_bool(c, "profile_mode", c->profile_mode,
                   o->profile_mode ? LS_FROM_CLI
                   : env_on        ? LS_FROM_ENV
                                   : LS_FROM_DEFAULT,
                   o->profile_mode ? "--profile_mode"
                   : env_on        ? "PROFILE_MODE"
                                   : "");
    train_put_bool(c, "dist_debug", c->dist_debug, c->dist_debug ? LS_FROM_ENV : LS_FROM_DEFAULT,
                   c->dist_debug ? "DIST_DEBUG" : "");
    put_switch(c, o, "profile", c->profile);
    put_switch(c, o, "quiet_nccl_monitor", c->quiet_nccl_monitor);
    return LS_OK;
}

static ls_status resolve_paths(const ls_train_options *o, const ls_ds_config *ds, const ls_train_paths *p,
                               ls_train_config *c)
{
    LS_TRY(train_copy(&c->train_path, p->train));
    LS_TRY(train_copy(&c->val_path, p->val));
    LS_TRY(train_copy(&c->tokenizer_path, p->tokenizer));
    LS_TRY(train_copy(&c->run_dir, o->checkpoint_path));
    if (ds) {
        LS_TRY(train_copy(&c->deepspeed_path, ds->path ? ds->path : o->deepspeed_config));
        snprintf(c->deepspeed_sha256, sizeof c->deepspeed_sha256, "%s", ds->sha256);
    }
    if (!*c->run_dir) return ls_fail(LS_E_CONFIG, "--checkpoint_path is empty");
    train_put_text(c, "train_data_path", c->train_path, LS_FROM_CLI, o->data ? "--data" : "--train_data_path");
    ls_source from = c->val_path ? LS_FROM_CLI : LS_FROM_DEFAULT;
    train_put_text(c, "val_data_path", c->val_path, from,
                   !c->val_path       ? "no validation"
                   : o->val_data_path ? "--val_data_path"
                                      : "--data");
    train_put_text(c, "tokenizer", c->tokenizer_path, LS_FROM_DATA,
                   c->tokenizer_path ? "beside the training data" : "none there");
    put_choice(c, o, "checkpoint_path", c->run_dir);
    put_choice(c, o, "deepspeed_config", c->deepspeed_path);
    return LS_OK;
}

/* Notes about the JSON, each printed once. */
static ls_status note_json(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    c->zero_given = ds->zero.given;
    c->zero_stage = (int)ds->zero.stage;
    c->fp16_given = ds->fp16.given;
    c->fp16_enabled = ds->fp16.enabled;
    c->wall_clock_given = ds->wall_clock_breakdown_given;
    c->wall_clock_breakdown = ds->wall_clock_breakdown;
    train_put_int(c, "zero_stage", c->zero_stage, c->zero_given ? LS_FROM_JSON : LS_FROM_DEFAULT,
                  c->zero_given ? "zero_optimization.stage" : "");
    if (c->zero_stage > 0 && c->world_size == 1 && !o->strategy)
        LS_TRY(train_note(c, "ZeRO stage %d has no effect with one worker: nothing is sharded", c->zero_stage));
    const char *bits = ds->fp16.enabled ? "fp16" : ds->bf16.enabled ? "bf16" : NULL;
    if (bits && strcmp(bits, c->precision))
        LS_TRY(train_note(c, "%s of the DeepSpeed JSON is overridden by --precision %s", bits, c->precision));
    if (*ds->communication_data_type && strcmp(ds->communication_data_type, "fp32"))
        LS_TRY(train_note(
            c, "communication_data_type %s of the DeepSpeed JSON has no effect: gradients are summed in fp32",
            ds->communication_data_type));
    if (ds->scheduler_given && o->lr_schedule)
        LS_TRY(train_note(c, "the scheduler of the DeepSpeed JSON is overridden by --lr_schedule %s", o->lr_schedule));
    else if (ds->scheduler_given && o->run_type && !c->engine)
        LS_TRY(train_note(c, "the scheduler of the DeepSpeed JSON is used; the baseline of the reference trainer "
                             "ignores it (use --lr_schedule constant for the same result)"));
    if (!ds->n_no_effect) return LS_OK;
    ls_str s = {0};
    for (int i = 0; i < ds->n_no_effect; i++) ls_str_addf(&s, "%s%s", i ? ", " : "", ds->no_effect[i]);
    ls_status st =
        s.failed ? ls_nomem(s.cap, "a note") : train_note(c, "keys of the DeepSpeed JSON without effect: %s", s.data);
    ls_str_fini(&s);
    return st;
}

ls_status ls_train_resolve(const ls_train_options *o, const ls_ds_config *ds, const ls_train_paths *paths,
                           const ls_train_facts *facts, ls_train_config *out)
{
    const ls_train_facts nothing = {0};
    ls_train_config c = {0};
    ls_status st;
    if (!facts) facts = &nothing;
    LS_TRY_GOTO(st, done, resolve_world(o, facts, &c));
    LS_TRY_GOTO(st, done, train_resolve_device(o, ds, facts ? facts->device : NULL, &c));
    LS_TRY_GOTO(st, done, resolve_paths(o, ds, paths, &c));
    LS_TRY_GOTO(st, done, train_resolve_model(o, facts, &c));
    LS_TRY_GOTO(st, done, resolve_length(o, &c));
    LS_TRY_GOTO(st, done, resolve_mesh(o, &c));
    LS_TRY_GOTO(st, done, resolve_batch(o, ds, &c));
    LS_TRY_GOTO(st, done, resolve_plain(o, &c));
    LS_TRY_GOTO(st, done, train_resolve_optimizer(o, ds, &c));
    LS_TRY_GOTO(st, done, resolve_machine(o, &c));
    LS_TRY_GOTO(st, done, resolve_bucket(o, ds, &c));
    resolve_strategy(o, ds, &c);
    if (ds) LS_TRY_GOTO(st, done, note_json(o, ds, &c));
    if (!c.val_path) LS_TRY_GOTO(st, done, train_note(&c, "no validation data; only the training loss is reported"));
    LS_TRY_GOTO(st, done, train_settings_check(&c));
done:
    if (st != LS_OK) ls_train_config_fini(&c);
    else *out = c;
    return st;
}

ls_status ls_train_config_fit(ls_train_config *c, int64_t train_seqs, int64_t val_seqs)
{
    if (train_seqs < 1)
        return ls_fail(LS_E_CONFIG,
                       "%s is shorter than one sequence (%d tokens); use more text or a smaller --seq_length",
                       c->train_path, c->seq_len);
    int64_t full = train_seqs / c->global_batch;
    if (!full)
        return ls_fail(LS_E_CONFIG,
                       "a step needs %lld sequences (micro-batch size %d * accumulation %d * %d worker%s), but the "
                       "training data has only %lld (of %d tokens); use a smaller batch or --seq_length",
                       (long long)c->global_batch, c->micro_batch, c->grad_accum, c->mesh.n[LS_AXIS_DP],
                       c->mesh.n[LS_AXIS_DP] == 1 ? "" : "s", (long long)train_seqs, c->seq_len);
    int64_t steps = full;
    if (c->max_train_steps >= 0 && c->max_train_steps / c->grad_accum < steps)
        steps = c->max_train_steps / c->grad_accum;
    if (!steps)
        return ls_fail(LS_E_CONFIG,
                       "--max_train_steps %lld is less than one optimizer step of %d micro-batches (grad_accum_steps)",
                       (long long)c->max_train_steps, c->grad_accum);
    if (c->epochs_auto) c->epochs = (c->max_steps + steps - 1) / steps;
    if ((double)c->epochs * (double)steps > 9.0e15)
        return ls_fail(LS_E_CONFIG, "%lld epochs of %lld steps overflow the step counter (limit 9e15)",
                       (long long)c->epochs, (long long)steps);
    c->train_seqs = train_seqs;
    c->val_seqs = val_seqs;
    c->steps_per_epoch = steps;
    c->dropped_seqs = train_seqs - full * c->global_batch;
    c->total_steps = c->epochs * steps;
    if (c->max_steps && c->max_steps < c->total_steps) c->total_steps = c->max_steps;

    bool needs_total =
        c->lr.kind == LS_LR_COSINE || c->lr.kind == LS_LR_WARMUP_DECAY || c->lr.kind == LS_LR_WARMUP_COSINE;
    if (needs_total && !c->lr.total) {
        c->lr.total = c->total_steps;
        train_put_int(c, "lr_total_steps", c->lr.total, LS_FROM_RULE, "steps of the run");
    }
    if (c->warmup_auto) {
        int64_t w = c->total_steps / 10;
        c->lr.warmup = w < 1 ? 1 : w > 1000 ? 1000 : w;
        train_put_int(c, "warmup_steps", c->lr.warmup, LS_FROM_RULE, "a tenth of the run, at most 1000");
    }
    if (c->epochs_auto) train_put_int(c, "epochs", c->epochs, LS_FROM_RULE, "as many as --max_steps takes");
    train_put_int(c, "train_sequences", train_seqs, LS_FROM_DATA, "train");
    train_put_int(c, "val_sequences", val_seqs, LS_FROM_DATA, "val");
    train_put_int(c, "steps_per_epoch", steps, LS_FROM_RULE, "optimizer steps");
    train_put_int(c, "dropped_sequences", c->dropped_seqs, LS_FROM_RULE, "last partial batch of an epoch");
    train_put_int(c, "total_steps", c->total_steps, LS_FROM_RULE, "optimizer steps of the run");
    LS_TRY(train_settings_check(c));
    return LS_OK;
}

void ls_train_config_fini(ls_train_config *c)
{
    char *owned[] = {c->model_from, c->train_path, c->val_path,      c->tokenizer_path,
                     c->run_dir,    c->init_from,  c->deepspeed_path};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) ls_free(owned[i]);
    for (int i = 0; i < c->n_note; i++) ls_free(c->note[i]);
    for (int i = 0; i < c->n_setting; i++) ls_free(c->setting[i].text);
    ls_free(c->note);
    ls_free(c->setting);
    *c = (ls_train_config){0};
}
