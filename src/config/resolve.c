/* resolve.c - workers, batch, mesh and plain settings; ls_train_resolve runs all parts in order. */
#include "ckpt/checkpoint.h"
#include "model/model.h"
#include "parallel/schedule.h"
#include "comm/launch.h"
#include "config/resolve.h"
#include "config/resolve_impl.h"
#include "config/run_options.h"
#include "core/env.h"
#include "core/fs.h"
#include "core/mem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool train_by_run(const ls_train_options *o, const char *name)
{
    return ls_train_by_preset(o, name) && (!o->preset || !strcmp(o->preset, "run"));
}

const char *train_whose(const ls_train_options *o, const char *name)
{
    return !ls_train_by_preset(o, name) ? "" : train_by_run(o, name) ? " of the earlier run" : " of the preset";
}

bool train_leaves_out(ls_train_options *o, const char *name, const char *needs, ls_train_config *c)
{
    if (!ls_train_by_preset(o, name)) return false;
    ls_str_addf(&c->notes, "--%s%s needs %s: left out\n", name, train_whose(o, name), needs);
    ls_train_forget(o, name);
    return true;
}

/* --- environment --- */

static bool env_on(const char *name)
{
    const char *text = getenv(name);
    return text && !strcmp(text, "1");
}

static ls_status resolve_world(const ls_train_options *o, const ls_train_facts *facts, ls_train_config *c)
{
    bool has_world, has_rank, has_local;
    int world = 1;
    c->local_rank = (int)o->local_rank;
    LS_TRY(ls_env_int("WORLD_SIZE", 1, &world, &has_world));
    LS_TRY(ls_env_int("RANK", 0, &c->rank, &has_rank));
    LS_TRY(ls_env_int("LOCAL_RANK", 0, &c->local_rank, &has_local));
    const bool given = ls_train_given(o, "n");
    if (given && has_world && o->n != world)
        return ls_fail(LS_E_CONFIG, "-n %lld: WORLD_SIZE is %d; leave -n out under a launcher", (long long)o->n, world);
    c->world_size = facts->world_size > 0 ? facts->world_size : has_world ? world : (int)o->n;
    if (has_rank && !has_world && c->rank > 0 && facts->world_size <= 1)
        return ls_fail(LS_E_CONFIG, "RANK is %d but WORLD_SIZE is not set; set both for each worker, or neither",
                       c->rank);
    if (c->rank >= c->world_size)
        return ls_fail(LS_E_CONFIG, "RANK is %d, but must be less than WORLD_SIZE, which is %d", c->rank,
                       c->world_size);
    c->run_type = o->run_type;
    c->engine = (o->run_type && !strcmp(o->run_type, "optimized")) || c->world_size > 1 || has_rank || has_local;
    train_origin from = {LS_FROM_DEFAULT, ""};
    if (has_world) from = (train_origin){LS_FROM_ENV, "WORLD_SIZE"};
    else if (given) from = (train_origin){LS_FROM_CLI, "-n"};
    else if (c->world_size > 1) from = (train_origin){LS_FROM_ENV, "mpirun or srun"};
    train_put_int(c, "world_size", c->world_size, from);
    train_put_text(c, "run_type", c->run_type, train_from(o, "--run_type", NULL));
    return LS_OK;
}

/* --- batch --- */

/* Sizes of a batch, of a type that is printed without casts. */
typedef struct batch {
    long long B, A, G; /* sequences per micro-batch, micro-batches per step, replicas */
    train_origin b_from, a_from;
} batch;

/* A run that is resumed keeps its batch and its micro-batches; the numbers of workers that can share them. */
static ls_status refuse_workers(const batch *b, long long asked)
{
    const long long m = asked / b->B;
    ls_str list = {0};
    for (long long d = 1; d <= m && d <= 64; d++)
        if (m % d == 0) ls_str_addf(&list, "%s%lld", list.len ? ", " : "", d);
    const ls_status st = ls_fail(
        LS_E_CONFIG,
        "--resume: the batch of this run, %lld sequences in %lld micro-batch%s of %lld, cannot be shared by %lld data-parallel "
        "workers; use a number that divides %lld: %s%s",
        asked, m, m == 1 ? "" : "es", b->B, b->G, m, list.data ? list.data : "1", m > 64 ? " ..." : "");
    ls_str_fini(&list);
    return st;
}

/* A default of another program, which an option that is typed overrides; a resumed run keeps what it has. */
static bool preset_gives(const ls_train_options *o, const char *name)
{
    return !o->resume && ls_train_by_preset(o, name);
}

/* B and A: command line, then JSON (a train_batch_size completes the missing ones as DeepSpeed does), then
 * --train_micro_batch_size_per_gpu and 1. */
static ls_status size_batch(const ls_train_options *o, const ls_ds_config *ds, batch *b)
{
    const long long total = ls_ds_int(ds, "train_batch_size", 0), asked = o->global_batch_size;
    const bool cli_g = ls_train_given(o, "global_batch_size"), typed_g = cli_g && !preset_gives(o, "global_batch_size");
    const bool cli_a = ls_train_given(o, "grad_accum_steps") && !(typed_g && preset_gives(o, "grad_accum_steps"));
    const char *s = b->G == 1 ? "" : "s";
    bool derived = false;
    b->b_from = train_from(o, "--micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu");
    b->a_from = train_from(o, "--grad_accum_steps", "gradient_accumulation_steps");
    b->B = b->b_from.source == LS_FROM_CLI ? o->micro_batch_size_per_gpu
                                           : ls_ds_int(ds, "train_micro_batch_size_per_gpu", 0);
    b->A = cli_a ? o->grad_accum_steps : cli_g ? 0 : ls_ds_int(ds, "gradient_accumulation_steps", 0);
    if (!b->B && (!total || cli_g)) {
        b->B = o->train_micro_batch_size_per_gpu;
        b->b_from = train_from(o, "--train_micro_batch_size_per_gpu", NULL);
    }
    if (!b->A && cli_g) {
        const long long step = b->B * b->G, n = asked / step;
        if (o->resume && asked % step && asked % b->B == 0) return refuse_workers(b, asked);
        if (asked % step)
            return ls_fail(
                LS_E_CONFIG,
                "--global_batch_size %lld is not a multiple of micro-batch size %lld * %lld worker%s = %lld; use %lld or %lld",
                asked, b->B, b->G, s, step, (n ? n : 1) * step, (n ? n + 1 : 2) * step);
        b->A = n;
        b->a_from = train_rule("--global_batch_size / (micro-batch size * dp)");
    }
    if (!b->B || (!b->A && total)) { /* train_batch_size gives the rest */
        derived = true;
        if (!b->A)
            b->a_from =
                train_rule(b->B ? "train_batch_size / (micro-batch size * dp)" : "1, with train_batch_size alone");
        if (!b->A) b->A = b->B ? total / b->B / b->G : 1;
        if (!b->B) b->b_from = train_rule("train_batch_size / (grad_accum_steps * dp)"), b->B = total / b->G / b->A;
    } else if (!b->A) {
        b->A = 1;
        b->a_from = train_or_deepspeed((train_origin){LS_FROM_DEFAULT, ""}, ds);
    }
    if (b->B > INT_MAX || b->A > INT_MAX || (double)b->B * (double)b->A * (double)b->G > 1e15)
        return ls_fail(LS_E_CONFIG, "micro-batch size %lld * accumulation %lld * %lld workers is too large", b->B, b->A,
                       b->G);
    if (cli_a && cli_g && asked != b->B * b->A * b->G)
        return ls_fail(
            LS_E_CONFIG,
            "--global_batch_size %lld is not micro-batch size %lld * --grad_accum_steps %lld * %lld worker%s = %lld; leave one of the two options out",
            asked, b->B, b->A, b->G, s, b->B * b->A * b->G);
    if (total && total != b->B * b->A * b->G)
        return ls_fail(
            LS_E_CONFIG,
            "train_batch_size %lld%s is not micro-batch size %lld * accumulation %lld * %lld worker%s = %lld; change %s",
            total, derived ? "" : " of the DeepSpeed JSON", b->B, b->A, b->G, s, b->B * b->A * b->G,
            derived ? "one of them" : "or remove it");
    return LS_OK;
}

static ls_status resolve_batch(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    batch b = {.G =
                   c->engine ? c->mesh.n[LS_AXIS_DP] : 1}; /* workers of a pipeline or of a split layer share a batch */
    LS_TRY(size_batch(o, ds, &b));
    const long long all = b.B * b.A * b.G, asked = o->enforce_global_batch_size, R = b.B * c->seq_len,
                    T = c->mesh.n[LS_AXIS_TP];
    if (ls_train_given(o, "enforce_global_batch_size") && all != asked)
        return ls_fail(
            LS_E_CONFIG,
            "--enforce_global_batch_size %lld: the global batch is micro-batch size %lld * accumulation %lld * %lld worker%s = %lld; change it or the batch options",
            asked, b.B, b.A, b.G, b.G == 1 ? "" : "s", all);
    if (c->sequence_parallel && R % T)
        return ls_fail(
            LS_E_CONFIG,
            "--sequence_parallel: micro-batch size %lld * %d positions = %lld rows do not divide by tp %lld (remainder %lld); use a micro-batch size that is a multiple of %lld",
            b.B, c->seq_len, R, T, R % T, T);
    c->micro_batch = (int)b.B;
    c->grad_accum = (int)b.A;
    c->global_batch = all;
    train_put_int(c, "micro_batch_size_per_gpu", b.B, b.b_from);
    train_put_int(c, "grad_accum_steps", b.A, b.a_from);
    train_put_int(c, "global_batch_size", all, train_rule("micro-batch size * grad_accum_steps * dp"));
    return LS_OK;
}

static ls_status resolve_length(const ls_train_options *o, ls_train_config *c)
{
    const int64_t S = o->seq_length;
    const int most = c->model.n_ctx;
    train_origin from = train_from(o, "--seq_length", NULL);
    if (S > most && from.source == LS_FROM_CLI)
        return ls_fail(
            LS_E_CONFIG,
            "--seq_length %lld: the model has only %d positions; use --seq_length %d or --max_position_embeddings %lld",
            (long long)S, most, most, (long long)S);
    if (S > most) from = train_rule("the model's positions");
    c->seq_len = S > most ? most : (int)S;
    train_put_int(c, "seq_length", c->seq_len, from);
    return LS_OK;
}

/* --- plain settings --- */

static ls_status resolve_plain(const ls_train_options *o, ls_train_config *c)
{
    int64_t threads = 0, seed = 0;
    const struct {
        const char *flag;
        int64_t value, *field;
        int64_t unset; /* value when not given; -1: no limit */
    } rows[] = {
        {"--epochs", o->epochs, &c->epochs, 1},
        {"--max_steps", o->max_steps, &c->max_steps, -1},
        {"--max_train_steps", o->max_train_steps, &c->max_train_steps, -1},
        {"--max_val_steps", o->max_val_steps, &c->max_val_steps, -1},
        {"--eval_every", o->eval_every, &c->eval_every, 0},
        {"--save_every", o->save_every, &c->save_every, 0},
        {"--keep_last", o->keep_last, &c->keep_last, 0},
        {"--audit", o->audit, &c->audit, 0},
        {"--save_memory_every", o->save_memory_every, &c->save_memory_every, 0},
        {"--threads", o->threads, &threads, 0},
        {"--seed", o->seed, &seed, 1337},
        {"--steps_per_print", o->steps_per_print, &c->steps_per_print, 10},
        {"--timing_warmup_steps", o->timing_warmup_steps, &c->timing_warmup_steps, 5},
        {"--timing_sample_every", o->timing_sample_every, &c->timing_sample_every, 50},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const train_origin from = train_from(o, rows[i].flag, NULL);
        const bool given = from.source == LS_FROM_CLI;
        *rows[i].field = given ? rows[i].value : rows[i].unset;
        if (*rows[i].field >= 0) train_put_int(c, rows[i].flag + 2, *rows[i].field, from);
        else if (given) train_put_text(c, rows[i].flag + 2, "auto", from);
        else train_put_text(c, rows[i].flag + 2, NULL, (train_origin){LS_FROM_DEFAULT, "no limit"});
    }
    if (c->max_steps < 0) c->max_steps = 0;
    c->threads = c->threads_asked = (int)threads;
    c->seed = (uint64_t)seed;
    c->epochs_auto = c->max_steps && !ls_train_given(o, "epochs");
    return LS_OK;
}

static ls_status resolve_bucket(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const int64_t usual = c->one_state ? LS_BUCKET_SHARED : !strcmp(c->device, "cuda") ? LS_BUCKET_GPU : LS_BUCKET;
    const struct {
        const char *flag, *key;
        int64_t typed, lo, *field;
    } all[] = {
        {"--bucket", "zero_optimization.reduce_bucket_size", ls_train_given(o, "bucket") ? o->bucket : usual, 1,
         &c->bucket},
        {"--gather_bucket", "zero_optimization.allgather_bucket_size", o->gather_bucket, 1, &c->gather_bucket},
        {"--prefetch_bucket", "zero_optimization.stage3_prefetch_bucket_size", o->prefetch_bucket, 0,
         &c->prefetch_bucket},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const train_origin from = train_from_json(o, all[i].flag, ds, all[i].key);
        *all[i].field = from.source == LS_FROM_JSON ? ls_ds_int(ds, all[i].key, 0) : all[i].typed;
        if (*all[i].field < all[i].lo)
            return ls_fail(LS_E_CONFIG, "%s %lld: must be at least %lld",
                           from.source == LS_FROM_JSON ? all[i].key : all[i].flag, (long long)*all[i].field,
                           (long long)all[i].lo);
        train_put_int(c, all[i].flag + 2, *all[i].field, from);
    }
    return LS_OK;
}

/* --tp, else the larger one of the two sizes that DeepSpeed's block may have. */
static int64_t tensor_parallel(const ls_train_options *o, const ls_ds_config *ds, train_origin *from)
{
    static const char *const key[] = {"tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size"};
    const int64_t size[] = {ls_ds_int(ds, key[0], 1), ls_ds_int(ds, key[1], 1)};
    const int k = size[1] > size[0];
    *from = size[k] > 1 ? train_from_json(o, "--tp", ds, key[k]) : train_from(o, "--tp", NULL);
    return from->source == LS_FROM_JSON ? size[k] : o->tp;
}

/* Options of a pipeline or of split layers, where there are none. */
static ls_status check_mesh(ls_train_options *o, bool pipe, bool split, ls_train_config *c)
{
    static const char *const pipes[] = {"schedule", "stages", "interleave"};
    for (size_t i = 0; i < sizeof pipes / sizeof *pipes && !pipe; i++)
        if (ls_train_given(o, pipes[i]) && !train_leaves_out(o, pipes[i], "a pipeline", c))
            return ls_fail(LS_E_CONFIG, "--%s needs a pipeline; add --pp P, or leave it out", pipes[i]);
    if (o->sequence_parallel && !split && !train_leaves_out(o, "sequence_parallel", "tensor parallelism", c))
        return ls_fail(LS_E_CONFIG, "--sequence_parallel needs tensor parallelism; add --tp T, or leave it out");
    if (pipe && o->interleave > 1 && o->schedule && ls_schedule_is_builtin(o->schedule) &&
        strcmp(o->schedule, "interleaved") && !train_leaves_out(o, "interleave", "--schedule interleaved", c))
        return ls_fail(LS_E_CONFIG,
                       "--interleave %lld: --schedule %s supports one chunk per stage; use --schedule interleaved",
                       (long long)o->interleave, o->schedule);
    return LS_OK;
}

/* Whether --stages has as many parts as the pipeline; a file with a schedule has its own number. */
static bool stages_fit(const ls_train_options *o, const char *schedule, int64_t pp)
{
    int64_t parts = 1;
    for (const char *p = o->stages; *p; p++) parts += *p == ',';
    return parts == pp * o->interleave || !ls_schedule_is_builtin(schedule) || !strcmp(o->stages, "measured");
}

/* --pp, else that of the JSON. */
static int64_t pipeline(const ls_train_options *o, const ls_ds_config *ds, train_origin *from)
{
    *from = train_from_json(o, "--pp", ds, "pipeline.stages");
    return from->source == LS_FROM_JSON ? ls_ds_int(ds, "pipeline.stages", 1) : o->pp;
}

/* The same if the workers can have it: stages of the JSON of a run that is resumed on another number of workers are left out. */
static int64_t pipeline_that_fits(const ls_train_options *o, const ls_ds_config *ds, int64_t tp, ls_train_config *c,
                                  train_origin *from)
{
    const int64_t pp = pipeline(o, ds, from);
    const bool fits = c->world_size % tp || c->world_size % (pp * tp) == 0;
    if (fits || from->source != LS_FROM_JSON || !train_deepspeed_folder(o) || o->elastic) return pp;
    ls_str_addf(&c->notes, "pipeline.stages of the earlier run needs a multiple of %lld workers: left out\n",
                (long long)pp * tp);
    *from = (train_origin){LS_FROM_DEFAULT, ""};
    return 1;
}

/* A run that is resumed on a number of workers that its layout does not divide: the bits do not depend on its pipeline, but on its --tp. With
 * --elastic the supervisor chooses the pipeline. */
static ls_status fit_workers(ls_train_options *o, long long pp, long long tp, ls_train_config *c)
{
    const long long below = c->world_size / tp * tp;
    char needs[64];
    if (c->world_size % tp && ls_train_by_preset(o, "tp"))
        return ls_fail(
            LS_E_CONFIG,
            "--tp %lld of the run that is resumed needs a multiple of %lld workers, but there %s %d; use %lld "
            "workers, or add another --tp, with which the last bits differ",
            tp, tp, c->world_size == 1 ? "is" : "are", c->world_size, below ? below : tp);
    snprintf(needs, sizeof needs, "a multiple of %lld workers", pp * tp);
    if (c->world_size % tp == 0 && c->world_size % (pp * tp) && !o->elastic) (void)train_leaves_out(o, "pp", needs, c);
    return LS_OK;
}

/* dp x pp x tp, and what only pipelines have. */
static ls_status resolve_mesh(ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    train_origin pp_from, tp_from;
    int64_t pp = pipeline(o, ds, &pp_from);
    const int64_t tp = tensor_parallel(o, ds, &tp_from);
    if (pp < 1 || tp < 1 || pp > 65536 || tp > 65536)
        return ls_fail(LS_E_ARG, "--pp %lld --tp %lld: both must be 1 to 65536", (long long)pp, (long long)tp);
    LS_TRY(fit_workers(o, pp, tp, c));
    pp = pipeline_that_fits(o, ds, tp, c, &pp_from);
    const bool pipe = pp > 1;
    LS_TRY(ls_mesh_build(&c->mesh, c->world_size, 0, (int)pp, (int)tp));
    if (tp > 1) LS_TRY(ls_shard_check(&c->model, (int)tp));
    LS_TRY(check_mesh(o, pipe, tp > 1, c));
    c->schedule = !pipe ? NULL : o->schedule ? o->schedule : o->interleave > 1 ? "interleaved" : "1f1b";
    c->interleave = (int)o->interleave;
    if (pipe && o->stages && !stages_fit(o, c->schedule, pp))
        (void)train_leaves_out(o, "stages", "another number of stages", c); /* one that is typed is refused later */
    c->stages = o->stages;
    c->sequence_parallel = o->sequence_parallel;
    const train_origin by_default = {LS_FROM_DEFAULT, ""};
    train_put_int(c, "dp", c->mesh.n[LS_AXIS_DP], train_rule("workers / (pp * tp)"));
    train_put_int(c, "pp", pp, pipe ? pp_from : by_default);
    train_put_int(c, "tp", tp, tp > 1 ? tp_from : by_default);
    train_put_bool(c, "sequence_parallel", c->sequence_parallel, train_from(o, "--sequence_parallel", NULL));
    train_put_text(c, "schedule", c->schedule, train_from(o, "--schedule", NULL));
    train_put_int(c, "interleave", c->interleave, train_from(o, "--interleave", NULL));
    train_put_text(c, "stages", c->stages,
                   c->stages ? train_from(o, "--stages", NULL)
                             : (train_origin){LS_FROM_DEFAULT, pipe ? "balanced by cost" : "no pipeline"});
    return LS_OK;
}

/* --strategy, else the JSON's ZeRO stage, else ddp when there are several workers. */
static void resolve_strategy(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    static const char *const stage[] = {"ddp", "zero1", "zero2", "zero3"};
    const int n = c->mesh.n[LS_AXIS_DP];
    const bool json = n > 1 && ls_ds_get(ds, "zero_optimization");
    const char *by_stage = stage[ls_ds_int(ds, "zero_optimization.stage", 0)];
    c->strategy = o->strategy ? o->strategy : json ? by_stage : n > 1 ? "ddp" : "single";
    train_put_text(c, "strategy", c->strategy, train_from(o, "--strategy", json ? "zero_optimization.stage" : NULL));
}

/* --offload_optimizer, else the JSON's. On the CPU the state is in host memory already. */
static ls_status resolve_offload(ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    static const char key[] = "zero_optimization.offload_optimizer.device", old[] = "zero_optimization.cpu_offload";
    const bool replicas = !strcmp(c->strategy, "dp") || !strcmp(c->strategy, "ddp");
    if (replicas && o->offload_optimizer && !strcmp(o->offload_optimizer, "cpu"))
        (void)train_leaves_out(o, "offload_optimizer", "--strategy zero1, zero2 or zero3", c);
    const bool legacy = !ls_ds_get(ds, key) && ls_ds_bool(ds, old, false);
    const char *json = legacy ? old : key;
    const char *asked = o->offload_optimizer ? o->offload_optimizer : legacy ? "cpu" : ls_ds_text(ds, key, "none");
    const bool cpu = !strcasecmp(asked, "cpu"), gpu = !strcmp(c->device, "cuda");
    train_put_text(c, "offload_optimizer", cpu ? "cpu" : "none",
                   train_from(o, "--offload_optimizer", legacy || ls_ds_get(ds, key) ? json : NULL));
    if (cpu && replicas)
        return ls_fail(LS_E_CONFIG, "%s cpu needs --strategy zero1, zero2 or zero3 (this run has %s)",
                       o->offload_optimizer ? "--offload_optimizer" : json, c->strategy);
    if (cpu && !gpu)
        ls_str_add(&c->notes,
                   "offload_optimizer cpu has no effect on the CPU: the optimizer's state is in host memory\n");
    c->offload = cpu && gpu;
    return LS_OK;
}

/* An audit that nobody typed: a check of the run is turned off by --audit 0 alone, not by options that exclude it. */
static bool audit_of_run(const ls_train_options *o, const ls_train_config *c)
{
    return c->audit && ls_train_by_preset(o, "audit");
}

/* CPU workers of one host can share one optimizer state under ddp: the memory that they have in common bounds the speed of the update
 * (parallel/ddp.c). An audit compares the states of replicas, which checks the update: it needs one for each. Only --audit 0 turns off the audit
 * of the run that is resumed. */
static ls_status resolve_state(ls_train_options *o, const ls_train_facts *facts, ls_train_config *c)
{
    const bool ddp = !strcmp(c->strategy, "ddp") && c->mesh.n[LS_AXIS_DP] > 1;
    const char *why = strcmp(c->device, "cpu") ? "CPU workers"
                      : facts->several_hosts   ? "all workers on one host"
                      : c->audit               ? "a run without --audit, which compares the states of replicas"
                                               : NULL;
    if (o->share_optimizer && ddp && why && !train_leaves_out(o, "share_optimizer", why, c))
        return ls_fail(LS_E_CONFIG, "--share_optimizer needs %s; leave it out%s", why,
                       audit_of_run(o, c) ? ", or add --audit 0: the run has --audit" : "");
    c->one_state = o->share_optimizer && ddp;
    const bool unused = o->share_optimizer && !c->one_state;
    train_put_bool(c, "share_optimizer", c->one_state,
                   unused ? train_rule("it has no effect in this run") : train_from(o, "--share_optimizer", NULL));
    return LS_OK;
}

/* Why options of a strategy have no effect. True: there is one replica, and nobody chose its strategy, which is "single". */
static bool strategy_words(const ls_train_options *o, const ls_train_config *c, char buf[96])
{
    const bool chosen = o->strategy || strcmp(c->strategy, "single"); /* a JSON chooses none for one replica */
    if (chosen) snprintf(buf, 96, "with strategy %s", c->strategy);
    else if (c->world_size == 1) snprintf(buf, 96, "with one worker");
    else
        snprintf(buf, 96, "with one replica (%d workers, --pp %d x --tp %d)", c->world_size, c->mesh.n[LS_AXIS_PP],
                 c->mesh.n[LS_AXIS_TP]);
    return !chosen;
}

/* Options of the command line that this run would ignore are refused. With one worker those of communication are only noted, so
 * that one command line works for all numbers of workers; --max_val_steps 0 turns --eval_every off. */
static ls_status check_unused(const ls_train_options *o, ls_train_config *c)
{
    const char *s = c->strategy;
    const bool zero3 = !strcmp(s, "zero3"), gathers = !strcmp(s, "zero1") || !strcmp(s, "zero2"),
               reduces = strcmp(s, "single") && strcmp(s, "dp"), ddp = !strcmp(s, "ddp");
    char with[96];
    const bool alone = strategy_words(o, c, with);
    const struct {
        const char *name, *users;
        bool used;
    } row[] = {{"bucket", "ddp and zero1 to zero3 use it", reduces},
               {"gather_bucket", "zero1 and zero2 use it", gathers},
               {"prefetch_bucket", "zero3 uses it", zero3},
               {"share_optimizer", "ddp uses it", ddp || !o->share_optimizer}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (row[i].used || !ls_train_given(o, row[i].name)) continue;
        const bool typed =
            !ls_train_by_preset(o, row[i].name); /* else of the run that is resumed: nobody can leave it out */
        if (c->world_size > 1 && typed && alone)
            return ls_fail(LS_E_CONFIG,
                           "--%s has no effect %s; with several replicas (%d workers or more) %s; leave it out",
                           row[i].name, with, 2 * c->world_size, row[i].users);
        if (c->world_size > 1 && typed)
            return ls_fail(LS_E_CONFIG, "--%s has no effect %s; %s; leave it out", row[i].name, with, row[i].users);
        ls_str_addf(&c->notes, "--%s%s has no effect %s\n", row[i].name, train_whose(o, row[i].name), with);
    }
    if (ls_train_given(o, "comm_timeout") && c->world_size == 1)
        ls_str_addf(&c->notes, "--comm_timeout%s has no effect with one worker\n", train_whose(o, "comm_timeout"));
    if (o->share_optimizer && ddp && !c->one_state)
        ls_str_addf(&c->notes, "--share_optimizer%s has no effect with one %s\n", train_whose(o, "share_optimizer"),
                    c->world_size == 1 ? "worker" : "replica");
    if (ls_train_given(o, "eval_every") && c->eval_every && !c->max_val_steps)
        ls_str_addf(&c->notes, "--eval_every%s has no effect with --max_val_steps 0%s\n", train_whose(o, "eval_every"),
                    train_whose(o, "max_val_steps"));
    if (ls_train_given(o, "profile_spans") && !c->profile)
        return ls_fail(LS_E_CONFIG, "--profile_spans needs --profile; add it, or leave --profile_spans out");
    return LS_OK;
}

/* What print_config lists of the machine beside its switches. */
static void put_machine(const ls_train_options *o, ls_train_config *c)
{
    const bool limit = ls_train_given(o, "comm_timeout");
    train_put_text(c, "nccl_proof", c->nccl_proof, train_from(o, "--nccl_proof", NULL));
    if (limit) train_put_real(c, "comm_timeout", c->comm_timeout, train_from(o, "--comm_timeout", NULL));
    else train_put_text(c, "comm_timeout", NULL, train_rule("follows the time of steps"));
    train_put_text(c, "audit_depth", o->audit_depth, train_from(o, "--audit_depth", NULL));
    train_put_int(c, "profile_spans", c->profile_spans, train_from(o, "--profile_spans", NULL));
    train_put_text(c, "cluster", c->cluster,
                   c->cluster && !o->cluster ? (train_origin){LS_FROM_ENV, "SLURM_CLUSTER_NAME"}
                                             : train_from(o, "--cluster", NULL));
    train_put_bool(c, "json", c->json, train_from(o, "--json", NULL));
}

/* --recompute, or a block of the JSON that configures checkpoints of activations. The scaling study has such a block,
 * but its model makes none. */
static void resolve_recompute(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    static const char *const key[] = {
        "activation_checkpointing.partition_activations", "activation_checkpointing.cpu_checkpointing",
        "activation_checkpointing.contiguous_memory_optimization", "activation_checkpointing.number_checkpoints",
        "pipeline.activation_checkpoint_interval"};
    const char *asked = NULL;
    for (size_t i = 0; i < sizeof key / sizeof *key && !asked; i++)
        if (ls_ds_bool(ds, key[i], false) || ls_ds_int(ds, key[i], 0) > 0) asked = key[i];
    const bool r1 = asked && o->run_type;
    c->recompute = o->recompute || (asked && !r1);
    if (r1 && !o->recompute)
        ls_str_addf(&c->notes,
                    "%s of the DeepSpeed JSON has no effect with --run_type: that model makes no checkpoints of "
                    "activations (use --recompute)\n",
                    asked);
    else if (asked && !o->recompute)
        ls_str_addf(&c->notes, "%s of the DeepSpeed JSON: the activations of each block are recomputed (--recompute)\n",
                    asked);
    train_put_bool(c, "recompute", c->recompute,
                   o->recompute || !c->recompute ? train_from(o, "--recompute", NULL)
                                                 : (train_origin){LS_FROM_JSON, asked});
}

/* Options of checkpoints and audits that need another one. */
static ls_status check_dependents(ls_train_options *o, ls_train_config *c)
{
    if (c->keep_last && !c->save_every) {
        if (!train_leaves_out(o, "keep_last", "--save_every", c))
            return ls_fail(
                LS_E_CONFIG,
                "--keep_last needs --save_every: checkpoints of epochs are all kept; add it, or leave --keep_last out");
        c->keep_last = 0;
        train_put_int(c, "keep_last", 0, train_from(o, "--keep_last", NULL));
    }
    if (o->keep_hours > 0 && !c->keep_last && !train_leaves_out(o, "keep_hours", "--keep_last", c))
        return ls_fail(
            LS_E_CONFIG,
            "--keep_hours needs --keep_last: without it all checkpoints are kept; add it, or leave --keep_hours out");
    if (ls_train_given(o, "mtbf") && c->save_every != -1 && !train_leaves_out(o, "mtbf", "--save_every auto", c))
        return ls_fail(LS_E_CONFIG, "--mtbf needs --save_every auto; use it, or leave --mtbf out");
    if (ls_train_given(o, "audit_depth") && !c->audit && !train_leaves_out(o, "audit_depth", "--audit K", c))
        return ls_fail(LS_E_CONFIG, "--audit_depth needs --audit K; add it, or leave --audit_depth out");
    return LS_OK;
}

static void resolve_saves(const ls_train_options *o, ls_train_config *c)
{
    c->save_async = o->save_async;
    const bool restarts = o->max_restarts > 0 || o->elastic || o->hot_spare || ls_train_given(o, "attempt");
    c->save_warn = o->save_failures ? !strcmp(o->save_failures, "warn") : restarts;
    c->mtbf = o->mtbf;
    c->keep_hours = o->keep_hours;
    c->save_verify = !o->no_save_verify;
    train_put_bool(c, "save_async", c->save_async, train_from(o, "--save_async", NULL));
    train_put_text(c, "save_failures", c->save_warn ? "warn" : "stop", train_from(o, "--save_failures", NULL));
    train_put_real(c, "mtbf", c->mtbf, train_from(o, "--mtbf", NULL));
    train_put_real(c, "keep_hours", c->keep_hours, train_from(o, "--keep_hours", NULL));
    train_put_bool(c, "save_verify", c->save_verify, train_from(o, "--no_save_verify", NULL));
}

static ls_status resolve_machine(ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const bool cpu = !strcmp(c->device, "cpu");
    LS_TRY(check_dependents(o, c));
    resolve_recompute(o, ds, c);
    resolve_saves(o, c);
    c->comm_timeout = ls_train_given(o, "comm_timeout") ? o->comm_timeout : -1;
    c->restart = o->attempt > 1;
    c->resume = o->resume || c->restart;
    c->audit_step = !strcmp(o->audit_depth, "step");
    c->quiet_nccl_monitor = o->quiet_nccl_monitor;
    c->verify_data = o->verify_data;
    c->json = o->json;
    c->eval_on_start = o->eval_on_start;
    c->print_config = o->print_config;
    if (o->deterministic && o->no_deterministic)
        return ls_fail(LS_E_ARG, "--deterministic and --no_deterministic cannot be combined; leave one out");
    c->deterministic = !o->no_deterministic || (cpu && c->world_size == 1);
    if (c->audit && !c->deterministic && train_leaves_out(o, "no_deterministic", "a run without --audit", c))
        c->deterministic = true;
    if (c->audit && !c->deterministic)
        return ls_fail(LS_E_CONFIG, "--audit compares bits, which vary with --no_deterministic; %s",
                       audit_of_run(o, c) ? "add --audit 0 (the run has --audit), or leave --no_deterministic out"
                                          : "leave one of them out");
    if (o->no_deterministic)
        ls_str_addf(&c->notes, "--no_deterministic%s%s\n", train_whose(o, "no_deterministic"),
                    c->deterministic ? " has no effect: one worker is always deterministic"
                    : cpu            ? ": results may differ between numbers of workers"
                                     : ": results may differ between runs");
    c->profile_mode = o->profile_mode || env_on("PROFILE_MODE");
    c->dist_debug = env_on("DIST_DEBUG");
    c->reference_output = o->reference_output || o->run_type;
    c->verbose = o->verbose;
    c->print_every = ls_train_given(o, "steps_per_print") ? c->steps_per_print : 0;
    c->profile = o->profile;
    c->profile_spans = o->profile_spans;
    const char *slurm = getenv("SLURM_JOB_ID"), *cluster = getenv("SLURM_CLUSTER_NAME");
    c->cluster = o->cluster ? o->cluster : slurm && *slurm && cluster && *cluster ? cluster : NULL;

    train_origin mode = train_from(o, "--profile_mode", NULL), debug = {LS_FROM_DEFAULT, ""};
    if (c->profile_mode && !o->profile_mode) mode = (train_origin){LS_FROM_ENV, "PROFILE_MODE"};
    if (c->dist_debug) debug = (train_origin){LS_FROM_ENV, "DIST_DEBUG"};
    train_put_bool(c, "deterministic", c->deterministic,
                   train_from(o, o->no_deterministic ? "--no_deterministic" : "--deterministic", NULL));
    train_put_bool(c, "resume", c->resume, train_from(o, "--resume", NULL));
    train_put_int(c, "max_restarts", o->max_restarts, train_from(o, "--max_restarts", NULL));
    train_put_text(c, "elastic", o->elastic, train_from(o, "--elastic", NULL));
    train_put_int(c, "hot_spare", o->hot_spare, train_from(o, "--hot_spare", NULL));
    train_put_bool(c, "profile_mode", c->profile_mode, mode);
    train_put_bool(c, "dist_debug", c->dist_debug, debug);
    train_put_bool(c, "eval_on_start", c->eval_on_start, train_from(o, "--eval_on_start", NULL));
    train_put_bool(c, "reference_output", c->reference_output,
                   train_from(o, o->reference_output ? "--reference_output" : "--run_type", NULL));
    train_put_bool(c, "verbose", c->verbose, train_from(o, "--verbose", NULL));
    train_put_bool(c, "profile", c->profile, train_from(o, "--profile", NULL));
    train_put_bool(c, "verify_data", c->verify_data, train_from(o, "--verify_data", NULL));
    train_put_bool(c, "quiet_nccl_monitor", c->quiet_nccl_monitor, train_from(o, "--quiet_nccl_monitor", NULL));
    put_machine(o, c);
    return LS_OK;
}

/* --checkpoint_path names a checkpoint: the run folder is the one that contains it. */
static ls_status not_a_run(const char *checkpoint, bool resume)
{
    size_t n = strlen(checkpoint);
    while (n > 1 && checkpoint[n - 1] == '/') n--;
    while (n && checkpoint[n - 1] != '/') n--;
    while (n > 1 && checkpoint[n - 1] == '/') n--;
    return ls_fail(LS_E_CONFIG, "--checkpoint_path %s is a checkpoint, not a run folder; use --checkpoint_path %.*s%s",
                   checkpoint, n ? (int)n : 1, n ? checkpoint : ".",
                   resume ? " --resume" : " --resume, or --init_from for a new run with its weights");
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
        ls_str_addn(&c->deepspeed_text, ds->text.data, ds->text.len);
        if (c->deepspeed_text.failed) return ls_nomem(ds->text.len, "a DeepSpeed configuration");
    }
    if (!*c->run_dir) return ls_fail(LS_E_CONFIG, "--checkpoint_path is empty");
    if (ls_ckpt_is(c->run_dir)) return not_a_run(c->run_dir, o->resume);
    train_origin val = {LS_FROM_CLI, o->val_data_path ? "--val_data_path" : "--data"};
    if (!c->val_path) val = (train_origin){LS_FROM_DEFAULT, "no validation"};
    train_put_text(c, "train_data_path", c->train_path,
                   (train_origin){LS_FROM_CLI, o->data ? "--data" : "--train_data_path"});
    train_put_text(c, "val_data_path", c->val_path, val);
    train_put_text(c, "tokenizer", c->tokenizer_path,
                   (train_origin){LS_FROM_DATA, !c->tokenizer_path ? "none there"
                                                : o->init_from     ? "of the training data, else of --init_from"
                                                                   : "beside the training data"});
    train_put_text(c, "checkpoint_path", c->run_dir, train_from(o, "--checkpoint_path", NULL));
    train_put_text(c, "deepspeed_config", c->deepspeed_path, train_from(o, "--deepspeed_config", NULL));
    return LS_OK;
}

/* Keys that have no effect in any run, and those that have none in this precision. */
static void note_no_effect(const ls_ds_config *ds, ls_train_config *c)
{
    ls_ds_idle idle[LS_DS_IDLE_MAX];
    const int n = ls_ds_idle_keys(ds, c->precision, idle);
    if (!ds->no_effect.len && !n) return;
    ls_str_addf(&c->notes, "keys of the DeepSpeed JSON without effect: %s",
                ds->no_effect.len ? ds->no_effect.data : "");
    for (int i = 0; i < n; i++)
        ls_str_addf(&c->notes, "%s%s (%s)", i || ds->no_effect.len ? ", " : "", idle[i].key, idle[i].why);
    ls_str_add(&c->notes, "\n");
}

/* Notes about the JSON, each printed once. */
static void note_json(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    c->zero_given = ls_ds_get(ds, "zero_optimization");
    c->zero_stage = (int)ls_ds_int(ds, "zero_optimization.stage", 0);
    c->fp16_given = ls_ds_get(ds, "fp16");
    c->fp16_enabled = ls_ds_bool(ds, "fp16.enabled", false);
    c->wall_clock_given = ls_ds_get(ds, "wall_clock_breakdown");
    c->wall_clock_breakdown = ls_ds_bool(ds, "wall_clock_breakdown", false);
    train_put_int(c, "zero_stage", c->zero_stage,
                  c->zero_given ? (train_origin){LS_FROM_JSON, "zero_optimization.stage"}
                                : (train_origin){LS_FROM_DEFAULT, ""});
    if (c->zero_stage > 0 && c->world_size == 1 && !o->strategy)
        ls_str_addf(&c->notes, "ZeRO stage %d has no effect with one worker: nothing is sharded\n", c->zero_stage);
    static const char *const block[] = {"fp8", "fp16", "bf16"};
    const char *sent = ls_ds_text(ds, "communication_data_type", "fp32");
    const bool scheduler = ls_ds_get(ds, "scheduler");
    for (size_t i = 0; i < sizeof block / sizeof *block && o->precision; i++)
        if (strcmp(block[i], c->precision) && ls_ds_overridden(ds, block[i], c->precision))
            ls_str_addf(&c->notes, "%s of the DeepSpeed JSON is overridden by --precision %s%s%s\n", block[i],
                        strcmp(o->precision, "auto") ? ""
                        : c->before.precision        ? "auto, which keeps that of the run: "
                                                     : "auto, here ",
                        c->precision, strcmp(o->precision, "auto") ? train_whose(o, "precision") : "");
    if (!ls_ds_precision(ds) && o->precision && ls_ds_disables(ds, c->precision))
        ls_str_addf(&c->notes, "the DeepSpeed JSON disables %s, but --precision %s%s %s it\n", c->precision,
                    o->precision, train_whose(o, "precision"),
                    c->before.precision && !strcmp(o->precision, "auto") ? "keeps" : "chooses");
    if (strcasecmp(sent, "fp32"))
        ls_str_addf(&c->notes,
                    "communication_data_type %s of the DeepSpeed JSON has no effect: gradients are summed in fp32\n",
                    sent);
    if (scheduler && (o->lr_schedule || o->lr_scheduler_type))
        ls_str_addf(&c->notes, "the scheduler of the DeepSpeed JSON is overridden by --lr_schedule %s%s\n",
                    ls_lr_word(c->lr.kind), train_whose(o, o->lr_schedule ? "lr_schedule" : "lr_scheduler_type"));
    else if (scheduler && o->run_type && !c->engine)
        ls_str_add(
            &c->notes,
            "the scheduler of the DeepSpeed JSON is used; the baseline of the reference trainer ignores it (use --lr_schedule constant for the same result)\n");
    note_no_effect(ds, c);
}

/* Whether the JSON names another precision than the --precision of the run: it enables one, or disables that one. */
static bool names_precision(const ls_ds_config *ds, const char *of_run)
{
    return ls_ds_precision(ds) || ls_ds_disables(ds, !strcmp(of_run, "auto") ? "bf16" : of_run);
}

bool train_json_typed(const ls_train_options *o, const ls_ds_config *ds)
{
    return ds && ls_train_given(o, "deepspeed_config") && !ls_train_by_preset(o, "deepspeed_config");
}

/* A JSON that is typed when a run is resumed overrides what the options of the run, which nobody typed, say of the precision. */
static void forget_precision(const ls_ds_config *ds, ls_train_options *o)
{
    static const char *const fp8[][2] = {{"fp8_format", "fp8.format"},
                                         {"fp8_amax_history_len", "fp8.amax_history_len"},
                                         {"fp8_amax_history_len", "fp8.amax_compute_algo"},
                                         {"fp8_margin", "fp8.margin"}};
    if (!train_json_typed(o, ds)) return;
    if (train_by_run(o, "precision") && names_precision(ds, o->precision)) ls_train_forget(o, "precision");
    for (size_t i = 0; i < sizeof fp8 / sizeof *fp8; i++)
        if (ls_ds_get(ds, fp8[i][1]) && train_by_run(o, fp8[i][0])) ls_train_forget(o, fp8[i][0]);
}

/* Completes a refusal of an option that nobody typed, because it is of the run that is resumed. Some refusals name the run themselves. */
static ls_status name_run(const ls_train_options *o, ls_status st)
{
    ls_err_kept why;
    ls_err_keep(&why);
    if (!o->resume || st == LS_E_NOMEM || strncmp(why.words, "--", 2)) return st;
    if (strstr(why.words, " run that is resumed") || strstr(why.words, "the run has")) return st;
    const size_t n = strcspn(why.words + 2, " :,;");
    for (size_t i = 0; i < ls_train_n_opts; i++) {
        const char *name = ls_train_opts[i].name;
        if (strlen(name) != n || strncmp(name, why.words + 2, n) || !train_by_run(o, name)) continue;
        return ls_fail(st, "%s (--%s is an option of the earlier run; a typed one overrides it)", why.words, name);
    }
    return st;
}

ls_status ls_train_resolve(const ls_train_options *given, const ls_ds_config *ds, const ls_train_paths *paths,
                           const ls_train_facts *facts, ls_train_config *out)
{
    const ls_train_facts nothing = {0};
    ls_train_options all = *given;
    forget_precision(ds, &all);
    ls_train_options mine = all, *o = &mine; /* without what is left out */
    ls_train_config c = {0};
    ls_status st;
    if (!facts) facts = &nothing;
    LS_TRY_GOTO(st, done, resolve_world(o, facts, &c));
    LS_TRY_GOTO(st, done, train_resolve_device(o, ds, facts, &c));
    LS_TRY_GOTO(st, done, resolve_paths(o, ds, paths, &c));
    LS_TRY_GOTO(st, done, train_resolve_model(o, facts, &c));
    LS_TRY_GOTO(st, done, resolve_length(o, &c));
    LS_TRY_GOTO(st, done, resolve_mesh(o, ds, &c));
    LS_TRY_GOTO(st, done, resolve_batch(o, ds, &c));
    LS_TRY_GOTO(st, done, resolve_plain(o, &c));
    LS_TRY_GOTO(st, done, train_resolve_optimizer(o, ds, &c));
    LS_TRY_GOTO(st, done, resolve_machine(o, ds, &c));
    LS_TRY_GOTO(st, done, train_resolve_monitor(o, ds, &c));
    resolve_strategy(o, ds, &c);
    LS_TRY_GOTO(st, done, resolve_offload(o, ds, &c));
    LS_TRY_GOTO(st, done, resolve_state(o, facts, &c));
    LS_TRY_GOTO(st, done, resolve_bucket(o, ds, &c));
    LS_TRY_GOTO(st, done, check_unused(o, &c));
    if (ds) note_json(o, ds, &c);
    if (!c.val_path) ls_str_add(&c.notes, "no validation data; only the training loss is reported\n");
    train_settings_preset(o, &c);
    ls_run_options_write(&all, &c, &c.options); /* also what this machine or this layout leaves out */
    LS_TRY_GOTO(st, done, train_settings_check(&c));
done:
    if (st == LS_OK) {
        *out = c;
        return LS_OK;
    }
    ls_train_config_fini(&c);
    return name_run(&all, st);
}

ls_status ls_train_check_device(const ls_train_options *given, const ls_ds_config *ds, const ls_train_facts *facts)
{
    ls_train_options mine = *given;
    ls_train_config c = {0};
    ls_status st = resolve_world(&mine, facts, &c);
    if (st == LS_OK) st = train_resolve_device(&mine, ds, facts, &c);
    ls_train_config_fini(&c);
    return st;
}

ls_status ls_train_config_fit(ls_train_config *c, int64_t train_seqs, int64_t val_seqs)
{
    if (train_seqs < 1)
        return ls_fail(LS_E_CONFIG,
                       "%s is shorter than one sequence (%d tokens); use more text or a smaller --seq_length",
                       c->train_path, c->seq_len);
    const int64_t full = train_seqs / c->global_batch;
    if (!full)
        return ls_fail(
            LS_E_CONFIG,
            "a step needs %lld sequences (micro-batch size %d * accumulation %d * %d worker%s), but the training data has only %lld (of %d tokens); use a smaller batch or --seq_length",
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

    const bool needs_total = c->lr.kind == LS_LR_COSINE || c->lr.kind == LS_LR_LINEAR ||
                             c->lr.kind == LS_LR_WARMUP_DECAY || c->lr.kind == LS_LR_WARMUP_COSINE;
    c->lr_by_length = (needs_total && !c->lr.total) || c->warmup_auto;
    if (needs_total && !c->lr.total) {
        c->lr.total = c->total_steps;
        train_put_int(c, "lr_total_steps", c->lr.total, train_rule("steps of the run"));
    }
    if (c->warmup_auto) {
        const int64_t w = c->total_steps / 10;
        c->lr.warmup = w < 1 ? 1 : w > 1000 ? 1000 : w;
        train_put_int(c, "warmup_steps", c->lr.warmup, train_rule(TRAIN_WARMUP_RULE));
    }
    if (c->epochs_auto) train_put_int(c, "epochs", c->epochs, train_rule("as many as --max_steps takes"));
    train_put_int(c, "train_sequences", train_seqs, (train_origin){LS_FROM_DATA, "train"});
    train_put_int(c, "val_sequences", val_seqs, (train_origin){LS_FROM_DATA, "val"});
    train_put_int(c, "steps_per_epoch", steps, train_rule("optimizer steps"));
    train_put_int(c, "dropped_sequences", c->dropped_seqs, train_rule("last partial batch of an epoch"));
    train_put_int(c, "total_steps", c->total_steps, train_rule("optimizer steps of the run"));
    return train_settings_check(c);
}

void ls_train_config_fini(ls_train_config *c)
{
    char *owned[] = {c->model_from, c->train_path,     c->val_path,    c->tokenizer_path, c->run_dir,
                     c->init_from,  c->deepspeed_path, c->tensorboard, c->csv_monitor};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) ls_free(owned[i]);
    for (int i = 0; i < c->n_setting; i++) ls_free(c->setting[i].text);
    ls_str_fini(&c->notes);
    ls_str_fini(&c->options);
    ls_str_fini(&c->deepspeed_text);
    ls_free(c->setting);
    *c = (ls_train_config){0};
}
