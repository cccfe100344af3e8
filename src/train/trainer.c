/* trainer.c - sets up a run: data, tables, one plan, one allocation, weights. */
#include "train/trainer.h"

#include "comm/start.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "data/meta.h"
#include "parallel/stages.h"
#include "parallel/tensor.h"
#include "ckpt/hf.h"
#include "train/plan_run.h"
#include "train/train_impl.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void train_tell(const ls_trainer *t, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    if (!t->io.note) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    t->io.note(t->io.ctx, text);
}

double ls_flops_per_token(const ls_model_config *c, int64_t T)
{
    double L = c->n_layer, C = c->n_embd, V = c->vocab_size;
    return 6 * (12 * L * C * C + V * C) + 12 * L * C * (double)T;
}

/* Tables, strategy and activations, as rows of one plan. */
static ls_status plan_memory(ls_trainer *t, ls_run_rows *r)
{
    const ls_run_groups g = {t->at, t->dp, t->tp, t->pp, t->pp_acts, t->pp_grads};
    ls_run_parts p = {.stages = &t->stages, .schedule = t->schedule};
    ls_status st = ls_run_plan(t->cfg, &t->compute, &g, t->val.n_seq, &p);
    t->schedule = p.schedule; /* the trainer owns what was created, also after a failure */
    t->model = p.model;
    t->strategy = p.strategy;
    t->acts = p.acts;
    t->pipe = p.pipe;
    t->plan = p.plan;
    t->input = p.input;
    *r = p.row;
    LS_TRY(st);
    if (t->tp) ls_tensor_join(t->model, t->tp);
    return ls_plan_layout(&t->plan);
}

static ls_status bind_memory(ls_trainer *t, const ls_run_rows *r)
{
    const ls_plan *p = &t->plan;
    LS_TRY(ls_strategy_bind(t->strategy, p));
    if (t->pipe) ls_pipe_bind(t->pipe, p);
    else ls_acts_bind(t->acts, t->model, p);
    ls_input_bind(&t->input, p);
    t->norm_block = ls_plan_at(p, r->norm);
    t->micro_loss = ls_plan_at(p, r->micro_loss);
    t->val_loss = ls_plan_at(p, r->val_loss);
    if (t->model->fp8) {
        ls_fp8_bind(t->model, p);
        t->fp8_amax = ls_plan_at(p, r->fp8);
    }
    t->saving.room = r->copy >= 0 ? ls_plan_at(p, r->copy) : NULL;
    t->saving.n_room = r->n_copy;
    return ls_input_open(&t->input, 0, &t->ids, &t->target);
}

int64_t ls_trainer_comm_bytes(const ls_trainer *t)
{
    return (int64_t)(ls_comm_device_nbytes(t->dp) + (t->tp ? ls_comm_device_nbytes(t->tp) : 0));
}

int64_t ls_trainer_held_bytes(const ls_trainer *t)
{
    return t->plan.total + ls_trainer_comm_bytes(t);
}

static ls_status take_shared(ls_trainer *t)
{
    void *memory = ls_comm_alloc(t->comm, (size_t)ls_plan_host_bytes(&t->plan));
    if (!memory) return ls_nomem(ls_plan_host_bytes(&t->plan), "the memory plan");
    LS_TRY(ls_plan_take(&t->plan, memory));
    LS_TRY(ls_comm_reserve(t->dp));
    return t->tp ? ls_comm_reserve(t->tp) : LS_OK;
}

/* Parameters, gradients and optimizer state of the model on one worker: what this worker has, times the shards of each part. */
static int64_t whole_state(const ls_trainer *t)
{
    static const struct {
        ls_part part;
        unsigned sharded;
    } all[] = {{LS_PART_PARAM, LS_SHARD_PARAM}, {LS_PART_GRAD, LS_SHARD_GRAD}, {LS_PART_OPT, LS_SHARD_OPT}};
    const ls_mesh *m = &t->cfg->mesh;
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        const bool sharded = t->strategy->ops->parts & all[i].sharded;
        sum += ls_plan_part_bytes(&t->plan, all[i].part) * (sharded ? m->n[LS_AXIS_DP] : 1);
    }
    return sum * m->n[LS_AXIS_PP] * m->n[LS_AXIS_TP];
}

/* What reduces the memory of this run; what it uses already is left out. */
static void advise_memory(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    t->plan.whole = whole_state(t);
    const bool zero3 = !strcmp(c->strategy, "zero3"), gpu = t->compute.device;
    const bool may_offload = gpu && !c->offload, sharded = strcmp(c->strategy, "dp") && strcmp(c->strategy, "ddp");
    const char *copy = c->save_async ? "no --save_async, " : "";
    snprintf(t->plan.less_state, sizeof t->plan.less_state, "%s%s%s--pp or --tp%s, or a smaller model", gpu ? "" : copy,
             !may_offload ? ""
             : sharded    ? "--offload_optimizer cpu, "
                          : "--strategy zero1 --offload_optimizer cpu, ",
             zero3 ? "" : "--strategy zero3, ",
             gpu                                   ? " on more GPUs"
             : zero3 || ls_comm_size(t->comm) == 1 ? " on more hosts"
                                                   : "");
    snprintf(t->plan.less_act, sizeof t->plan.less_act, "%s%sa smaller --seq_length or a smaller model",
             c->recompute ? "" : "--recompute, ", c->micro_batch > 1 ? "a smaller micro-batch, " : "");
    snprintf(t->plan.less_host, sizeof t->plan.less_host, "%s%smore hosts, or a smaller model", copy,
             c->offload ? "--offload_optimizer none, " : "");
}

/* A single worker allocates private memory; several use memory that their peers can read. When one has not enough, all fail. */
static ls_status take_memory(ls_trainer *t)
{
    t->plan.n_copy = ls_comm_where(t->comm).local_size;
    if (t->strategy->ops->common) t->plan.n_param = LS_MAX(t->plan.n_copy / ls_comm_size(t->dp), 1);
    t->plan.beside = ls_trainer_comm_bytes(t);
    advise_memory(t);
    if (ls_comm_size(t->comm) == 1) return ls_plan_alloc(&t->plan, false);
    LS_TRY(ls_comm_agree(t->comm, ls_plan_alloc(&t->plan, true), LS_SITE));
    return ls_comm_agree(t->comm, take_shared(t), LS_SITE);
}

static ls_status split(ls_trainer *t, ls_axis axis, ls_comm **out)
{
    int color, key;
    ls_mesh_split(&t->cfg->mesh, axis, ls_comm_rank(t->comm), &color, &key);
    LS_TRY(ls_comm_split(t->comm, color, key, out));
    t->each[t->n_each++] = *out;
    return LS_OK;
}

/* The groups that this worker belongs to. */
static ls_status set_up_groups(ls_trainer *t)
{
    const ls_mesh *mesh = &t->cfg->mesh;
    t->at = ls_mesh_coord(mesh, ls_comm_rank(t->comm));
    ls_debug("parallel", "rank %d has dp %d, pp %d, tp %d", ls_comm_rank(t->comm), t->at.at[LS_AXIS_DP],
             t->at.at[LS_AXIS_PP], t->at.at[LS_AXIS_TP]);
    if (mesh->n[LS_AXIS_DP] == mesh->world) {
        t->dp = t->comm;
        return LS_OK;
    }
    LS_TRY(split(t, LS_AXIS_DP, &t->dp));
    if (mesh->n[LS_AXIS_TP] > 1) LS_TRY(split(t, LS_AXIS_TP, &t->tp));
    if (mesh->n[LS_AXIS_PP] == 1) return LS_OK;
    LS_TRY(split(t, LS_AXIS_PP, &t->pp));
    LS_TRY(split(t, LS_AXIS_PP, &t->pp_acts));
    return split(t, LS_AXIS_PP, &t->pp_grads);
}

void ls_trainer_count(ls_trainer *t, bool on)
{
    for (int i = 0; i < t->n_each; i++) ls_comm_hold_stats(t->each[i], !on);
}

double ls_trainer_exposed(const ls_trainer *t, bool host_alone)
{
    double sum = 0;
    for (int i = 0; i < t->n_each; i++)
        sum += host_alone ? ls_comm_exposed_host(t->each[i]) : ls_comm_exposed(t->each[i]);
    return sum;
}

double ls_trainer_exposed_between(const ls_trainer *t, double from, double to)
{
    double sum = 0;
    for (int i = 0; i < t->n_each; i++) sum += ls_comm_exposed_between(t->each[i], from, to);
    return sum;
}

bool ls_train_share_cores(ls_train_config *c, int n_core, int *share)
{
    const int P = c->mesh.n[LS_AXIS_PP], world = c->mesh.world, U = c->model.n_layer + 2, each = n_core / (world / P);
    if (P == 1 || P > LS_MAX_STAGE_THREAD || c->threads || c->stages || each <= P) return false;
    ls_part_cost *cost = ls_alloc((size_t)U * sizeof *cost);
    ls_stages stages;
    if (!cost) return false;
    ls_stages_model(&c->model, c->micro_batch, c->seq_len, cost);
    const bool well = ls_stages_share(&stages, c->stage_thread, cost, U, P, c->interleave, each) == LS_OK;
    ls_free(cost);
    if (!well) c->stage_thread[0] = 0;
    for (int r = 0; r < world && well; r++) share[r] = c->stage_thread[ls_mesh_coord(&c->mesh, r).at[LS_AXIS_PP]];
    return well;
}

/* --stages measured: rank 0 measures for all workers, so that all use the same stages. */
static ls_status set_up_stages(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    const int64_t U = c->model.n_layer + 2, n = U * (int64_t)(sizeof(ls_part_cost) / sizeof(double));
    if (!ls_run_measures_stages(c)) return ls_run_stages(c, NULL, &t->stages, &t->schedule);
    ls_part_cost *cost = ls_comm_alloc(t->comm, (size_t)U * sizeof *cost);
    if (!cost) return ls_nomem((size_t)U * sizeof *cost, "the stages");
    ls_status st = LS_OK;
    if (ls_comm_rank(t->comm) == 0) st = ls_units_measure(&c->model, &t->compute, c->micro_batch, c->seq_len, cost);
    LS_TRY(ls_comm_agree(t->comm, st, LS_SITE));
    LS_TRY(ls_broadcast(t->comm, (ls_view){cost, n, LS_F64}, 0, LS_SITE, NULL));
    return ls_run_stages(c, cost, &t->stages, &t->schedule);
}

ls_status ls_train_check_layout(const ls_train_config *c)
{
    ls_stages stages;
    ls_schedule *schedule = NULL;
    LS_TRY(ls_strategy_check(c->strategy, c->mesh.n[LS_AXIS_DP], c->grad_accum, c->deterministic));
    ls_status st = ls_run_stages(c, NULL, &stages, &schedule);
    ls_schedule_destroy(&schedule);
    return st;
}

static void say_stages(const ls_trainer *t, ls_str *s)
{
    const ls_train_config *c = t->cfg;
    ls_part_cost *cost = ls_alloc((size_t)t->model->n_unit * sizeof *cost);
    if (!cost) return; /* the table is optional */
    ls_stages_model(&c->model, c->micro_batch, c->seq_len, cost);
    ls_mesh_print(&c->mesh, s);
    ls_str_addf(s, "schedule %s, %d micro-batches\n", t->schedule->name, t->schedule->n_micro);
    ls_stages_print(&t->stages, cost, s);
    ls_free(cost);
}

/* What this worker holds and saves, as pieces of the whole model. */
static ls_status list_whole(ls_trainer *t)
{
    const int64_t n_load = ls_tensor_pieces(t->model, t->hold, t->n_hold, false, NULL),
                  n_save = ls_tensor_pieces(t->model, t->save, t->n_save, true, NULL);
    if (n_load + n_save > INT_MAX)
        return ls_fail(LS_E_UNSUPPORTED, "a shard of this model is %lld pieces of the whole",
                       (long long)(n_load + n_save));
    t->whole = NULL;
    LS_TRY(ls_model_create(&t->whole, &t->cfg->model, &t->compute, 1));
    t->load = ls_alloc((size_t)(n_load + n_save) * sizeof *t->load);
    if (!t->load) return ls_nomem((size_t)(n_load + n_save) * sizeof *t->load, "the parts of the model");
    t->n_load = (int)ls_tensor_pieces(t->model, t->hold, t->n_hold, false, t->load);
    t->n_save = (int)ls_tensor_pieces(t->model, t->save, t->n_save, true, t->load + n_load);
    t->save = t->load + n_load;
    return LS_OK;
}

static ls_status list_pieces(ls_trainer *t)
{
    const size_t n = 3 * (size_t)t->model->n_unit;
    t->hold = ls_alloc(2 * n * sizeof *t->hold);
    if (!t->hold) return ls_nomem(2 * n * sizeof *t->hold, "the parts of the model");
    t->save = t->hold + n;
    t->n_hold = ls_strategy_pieces(t->strategy, false, t->hold);
    t->n_save = ls_strategy_pieces(t->strategy, true, t->save);
    t->whole = t->model;
    t->load = t->hold;
    t->n_load = t->n_hold;
    return t->tp ? list_whole(t) : LS_OK;
}

/* The strategy and the sizes that it uses: single and dp have no buckets. */
static void log_strategy(const ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    const int n = ls_comm_size(t->dp);
    char more[64] = "";
    const bool gathers = !strcmp(c->strategy, "zero1") || !strcmp(c->strategy, "zero2");
    if (gathers) snprintf(more, sizeof more, ", gather buckets of %lld", (long long)c->gather_bucket);
    if (!strcmp(c->strategy, "zero3")) snprintf(more, sizeof more, ", prefetch of %lld", (long long)c->prefetch_bucket);
    if (!strcmp(c->strategy, "single") || !strcmp(c->strategy, "dp"))
        ls_info("parallel", "strategy %s over %d data-parallel worker%s", c->strategy, n, n == 1 ? "" : "s");
    else
        ls_info("parallel", "strategy %s over %d data-parallel worker%s: buckets of %lld elements%s", c->strategy, n,
                n == 1 ? "" : "s", (long long)c->bucket, more);
}

/* Sizes, device, and the precision that --precision auto chose. */
static void say_model(const ls_trainer *t, ls_str *s)
{
    const ls_train_config *c = t->cfg;
    char words[LS_COMPUTE_WORDS];
    ls_str_addf(s, "model %s (%s): %s, %.1f M parameters; %s%s", c->model.name, ls_variant_word(c->model.variant),
                ls_model_size_words(&c->model, (char[96]){0}), (double)ls_model_n_param(&c->model) / 1e6,
                ls_compute_describe(&t->compute, words), c->fp8.on ? "; fp8 in the linear layers of blocks" : "");
    if (c->precision_why) ls_str_addf(s, "; precision %s (auto: %s)", c->precision, c->precision_why);
    ls_str_addc(s, '\n');
}

static void say_plan(ls_trainer *t)
{
    if (!t->io.note) return;
    ls_str s = {0};
    ls_str_addf(&s, "data %.200s: %lld tokens, %lld %s", t->cfg->train_path, (long long)t->train.n_token,
                (long long)t->train.n_seq, ls_tokens_paired(&t->train) ? "pairs" : "sequences");
    if (!ls_tokens_paired(&t->train)) ls_str_addf(&s, " of %d", t->cfg->seq_len);
    if (t->val.n_seq) ls_str_addf(&s, "; validation %lld tokens", (long long)t->val.n_token);
    ls_str_addc(&s, '\n');
    say_model(t, &s);
    if (t->schedule) say_stages(t, &s);
    const int64_t sums = ls_trainer_comm_bytes(t);
    if (t->cfg->verbose) ls_plan_print(&t->plan, &s);
    else ls_plan_print_line(&t->plan, sums, &s);
    if (sums && t->cfg->verbose)
        ls_str_addf(&s,
                    "  %-12s %10.1f   buffers for sums in a fixed order; NCCL's own buffers are not counted\n"
                    "  %-12s %10.1f   of this program on the GPU\n",
                    "NCCL", (double)sums / 1048576.0, "with NCCL", (double)ls_trainer_held_bytes(t) / 1048576.0);
    if (s.data) t->io.note(t->io.ctx, s.data);
    ls_str_fini(&s);
}

/* Other trainers set this variable to 1; messages of several groups would then wait for each other. */
static void note_few_queues(const ls_trainer *t, const ls_train_config *cfg)
{
    const char *set = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (!strcmp(cfg->device, "cuda") && set && strtol(set, NULL, 10) < 8)
        train_tell(t, "CUDA_DEVICE_MAX_CONNECTIONS=%.20s is too small for messages that overlap: 16 is used\n", set);
}

static ls_status open_compute(ls_trainer *t, const ls_train_config *cfg)
{
    note_few_queues(t, cfg);
    ls_compute_open_opts o = ls_train_compute_opts(cfg);
    o.local_rank = ls_comm_where(t->comm).local_rank;
    LS_TRY(ls_compute_open(&t->compute, cfg->compute, &o, cfg->threads));
    const ls_device *d = t->compute.device;
    if (d) LS_TRY(d->info(d->ctx, &t->device));
    if (cfg->fp8.on && !t->compute.ops->quantize)
        return ls_fail(
            LS_E_UNSUPPORTED,
            "--precision fp8 needs a GPU of compute capability 8.9 or later, but %s has %d.%d; use --precision "
            "bf16",
            t->device.name, t->device.capability / 10, t->device.capability % 10);
    return LS_OK;
}

/* Collective: by machine and bus address, whatever numbers the ranks have for their GPUs. */
static ls_status find_shared_gpus(ls_trainer *t)
{
    const int W = ls_comm_size(t->comm);
    struct {
        int64_t machine;
        char bus[sizeof t->device.bus];
    } mine = {.machine = ls_comm_machine()}, *all = NULL;
    if (!t->compute.device || W == 1) return LS_OK;
    if (t->device.bus[0]) memcpy(mine.bus, t->device.bus, sizeof t->device.bus);
    else snprintf(mine.bus, sizeof mine.bus, "%d", t->device.index);
    LS_TRY(ls_comm_gather(t->comm, &mine, sizeof mine, LS_SITE, &all));
    for (int p = 1; p < W; p++)
        for (int q = 0; q < p && !t->gpu_shared; q++)
            t->gpu_shared = all[p].machine == all[q].machine && !strcmp(all[p].bus, all[q].bus);
    return LS_OK;
}

/* With a device the workers use a communicator that accepts device memory, over a group of their own. */
static ls_status join_device(ls_trainer *t)
{
    ls_comm *boot = t->owns_comm ? t->comm : NULL, *with = NULL;
    ls_str said = {0};
    if (!t->compute.device) return LS_OK;
    if (!boot) LS_TRY(ls_comm_split(t->comm, 0, ls_comm_rank(t->comm), &boot));
    ls_status st = ls_comm_for_device(boot, t->compute.device, t->cfg->comm, t->cfg->deterministic, &with, &said);
    if (said.data && *said.data) train_tell(t, "%s\n", said.data);
    ls_str_fini(&said);
    if (st != LS_OK) {
        if (!t->owns_comm) ls_comm_destroy(&boot);
        return st;
    }
    t->comm = t->each[0] = with;
    t->owns_comm = true;
    return LS_OK;
}

/* Before a thread of the device can read the environment, and before NCCL is loaded. */
static void expect_nccl(ls_trainer *t, const ls_train_config *c)
{
    const bool may = c->comm && (!strcmp(c->comm, "auto") || !strcmp(c->comm, "nccl"));
    if (!c->nccl_proof || !c->run_dir || !may || strcmp(c->device, "cuda") || ls_comm_size(t->comm) == 1) return;
    ls_nccl_proof_begin(&t->proof, &(ls_nccl_proof_opts){.run_dir = c->run_dir,
                                                         .mode = c->nccl_proof,
                                                         .rank = ls_comm_rank(t->comm),
                                                         .local_rank = ls_comm_where(t->comm).local_rank});
}

/* Collective. */
static ls_status nccl_joined(ls_trainer *t)
{
    ls_nccl_writer mine, *all = NULL;
    const bool in_use = !strcmp(ls_comm_name(t->comm), "nccl");
    ls_nccl_writer_self(&mine);
    if (in_use) LS_TRY(ls_comm_gather(t->comm, &mine, sizeof mine, LS_SITE, &all));
    ls_nccl_proof_joined(t->proof, all, in_use ? ls_comm_size(t->comm) : 0, ls_comm_library(t->comm));
    return LS_OK;
}

/* Validation takes whole batches: prints how many sequences it leaves out, if that is at least one in 50. */
static void tell_validation(ls_trainer *t)
{
    const int64_t B = t->cfg->micro_batch, n = t->val.n_seq, limit = t->cfg->max_val_steps;
    if (n < B || n % B == 0 || n % B * 50 < n || (limit >= 0 && n / B >= limit * t->cfg->mesh.n[LS_AXIS_DP])) return;
    train_tell(t, "validation uses %lld of %lld sequences: whole batches of %lld\n", (long long)(n - n % B),
               (long long)n, (long long)B);
}

/* Compares the token files with their meta.json, once per host. Collective. */
static ls_status check_data(ls_trainer *t, const ls_train_config *c)
{
    const bool several = ls_comm_size(t->comm) > 1;
    ls_status st = LS_OK;
    if (!several || !ls_comm_where(t->comm).local_rank) {
        st = ls_data_check(c->train_path, c->verify_data);
        if (st == LS_OK && c->val_path) st = ls_data_check(c->val_path, c->verify_data);
    }
    return several ? ls_comm_agree(t->comm, st, LS_SITE) : st;
}

/* What the files of the run say of their data: the SHA-256 that prepare wrote, else the hash of the ids; and the weights of a blend. */
static ls_status sum_data(const char *path, const ls_tokens *d, char sum[64])
{
    char sha[65];
    LS_TRY(ls_data_sum(path, sha));
    int n = *sha ? snprintf(sum, 64, "sha256:%.16s", sha) : snprintf(sum, 64, "xxh3:%016" PRIx64, ls_tokens_hash(d));
    if (ls_tokens_blend_id(d)) snprintf(sum + n, 64 - (size_t)n, " blend:%013" PRIx64, (uint64_t)ls_tokens_blend_id(d));
    return LS_OK;
}

/* Collective: when one worker cannot read its files, all fail. */
static ls_status open_data(ls_trainer *t, const ls_train_config *c)
{
    LS_TRY(check_data(t, c));
    ls_status st = ls_tokens_open(&t->train, c->train_path, c->seq_len, c->model.vocab_size);
    if (st == LS_OK && c->val_path) st = ls_tokens_open(&t->val, c->val_path, c->seq_len, c->model.vocab_size);
    if (st == LS_OK) t->train_hash = ls_tokens_hash(&t->train);
    if (st == LS_OK && !c->rank) st = sum_data(c->train_path, &t->train, t->train_sum);
    if (st == LS_OK && !c->rank && c->val_path) st = sum_data(c->val_path, &t->val, t->val_sum);
    if (ls_comm_size(t->comm) > 1) st = ls_comm_agree(t->comm, st, LS_SITE);
    return st == LS_OK ? train_compare_data(t) : st;
}

/* Pairs whose sources fill the sequence have nothing to learn or to measure. */
static ls_status check_targets(ls_trainer *t, const ls_tokens *d, const char *path)
{
    const int64_t none = ls_tokens_paired(d) ? ls_tokens_without_target(d) : 0;
    if (!none) return LS_OK;
    if (none == d->n_seq)
        return ls_fail(LS_E_FORMAT,
                       "%s: no pair has a target within %d tokens: the sources alone are as long; use a longer "
                       "--seq_length, or other data",
                       path, t->cfg->seq_len + 1);
    train_tell(t, "%s: %lld of %lld pairs have no target within %d tokens and count in no loss\n", path,
               (long long)none, (long long)d->n_seq, t->cfg->seq_len + 1);
    return LS_OK;
}

static ls_status set_up(ls_trainer *t, ls_train_config *cfg)
{
    LS_TRY(train_compare_settings(t));
    expect_nccl(t, cfg);
    ls_status st = open_compute(t, cfg); /* when one worker has no device, all fail */
    if (ls_comm_size(t->comm) > 1) st = ls_comm_agree(t->comm, st, LS_SITE);
    LS_TRY(st);
    LS_TRY(train_compare_kernels(t));
    if (t->io.opened) t->io.opened(t->io.ctx, t);
    LS_TRY(join_device(t));
    LS_TRY(find_shared_gpus(t));
    LS_TRY(nccl_joined(t));
    LS_TRY(open_data(t, cfg));
    LS_TRY(check_targets(t, &t->train, cfg->train_path));
    LS_TRY(check_targets(t, &t->val, cfg->val_path));
    if (ls_tokens_paired(&t->train))
        train_tell(t, "%s: %lld pair%s, the loss counts the targets; %lld longer than %d tokens, which are cut\n",
                   cfg->train_path, (long long)t->train.n_seq, t->train.n_seq == 1 ? "" : "s",
                   (long long)ls_tokens_cut(&t->train), cfg->seq_len + 1);
    tell_validation(t);
    LS_TRY(ls_train_config_fit(cfg, t->train.n_seq, t->val.n_seq));
    LS_TRY(set_up_stages(t));
    if (t->schedule)
        ls_info("pipeline", "schedule %s: %d stages, %d part%s per stage, %d micro-batch%s", t->schedule->name,
                t->schedule->n_stage, t->schedule->n_chunk, t->schedule->n_chunk == 1 ? "" : "s", t->schedule->n_micro,
                t->schedule->n_micro == 1 ? "" : "es");
    LS_TRY(set_up_groups(t));
    log_strategy(t);
    ls_comm_stats_reset(t->comm);
    ls_trainer_count(t, false);
    ls_run_rows r;
    LS_TRY(plan_memory(t, &r));
    ls_debug("memory",
             "MiB: parameters %.1f, gradients %.1f, optimizer %.1f, activations %.1f, buckets %.1f, workspace %.1f",
             (double)ls_plan_part_bytes(&t->plan, LS_PART_PARAM) / 1048576.0,
             (double)ls_plan_part_bytes(&t->plan, LS_PART_GRAD) / 1048576.0,
             (double)ls_plan_part_bytes(&t->plan, LS_PART_OPT) / 1048576.0,
             (double)ls_plan_part_bytes(&t->plan, LS_PART_ACT) / 1048576.0,
             (double)ls_plan_part_bytes(&t->plan, LS_PART_BUCKET) / 1048576.0,
             (double)ls_plan_part_bytes(&t->plan, LS_PART_WORK) / 1048576.0);
    say_plan(t); /* before it is taken: if it does not fit, the reader sees why */
    LS_TRY(take_memory(t));
    if (!t->compute.device) ls_comm_team(t->dp, t->compute.n_thread);
    LS_TRY(bind_memory(t, &r));

    LS_TRY(ls_step_clock_init(&t->clock, cfg));
    t->state.done = ls_alloc((size_t)(cfg->epochs + 1) * sizeof *t->state.done);
    if (!t->state.done) return ls_nomem((size_t)(cfg->epochs + 1) * sizeof *t->state.done, "the metrics of epochs");
    LS_TRY(list_pieces(t));
    LS_TRY(ls_ckpt_writer_create(&t->writer, t->whole, t->comm));
    if (cfg->save_async) ls_ckpt_writer_room(t->writer, t->saving.room, t->saving.n_room);
    LS_TRY(ls_trainer_load(t));
    if (!cfg->audit) return LS_OK;
    LS_TRY(ls_audit_create(&t->audit, t));
    return ls_audit_after_update(t->audit);
}

ls_status ls_trainer_create(ls_trainer **out, ls_train_config *cfg, ls_comm *comm, const ls_train_io *io)
{
    ls_trainer *t = ls_alloc(sizeof *t);
    if (!t) return ls_nomem(sizeof *t, "the trainer");
    t->cfg = cfg;
    t->io = *io;
    t->state.scale = ls_loss_scale_init(&cfg->loss_scale);
    t->saving.step = -1;
    t->comm = comm;
    t->owns_comm = !comm;
    ls_status st = comm ? LS_OK : ls_comm_self(&t->comm);
    if (st == LS_OK) {
        t->each[t->n_each++] = t->comm;
        st = set_up(t, cfg);
    }
    if (st != LS_OK) {
        for (int i = 0; i < t->n_each; i++) ls_comm_failed(t->each[i]); /* its peers wait for its status elsewhere */
        ls_trainer_destroy(&t);
        return st;
    }
    *out = t;
    return LS_OK;
}

/* A failed step may leave pending requests that read and write the memory that is freed next. Peers that wait for this worker get its
 * error message. */
static void end_requests(ls_trainer *t)
{
    if (t->broken && t->comm) {
        ls_str words = {0};
        ls_str_addf(&words, "rank %d failed: %.300s", ls_comm_rank(t->comm), ls_err_words());
        ls_comm_abort(t->comm, words.data ? words.data : "a worker failed");
        ls_str_fini(&words);
    }
    for (int i = 0; i < t->n_each; i++) ls_comm_quiet(t->each[i]);
}

void ls_trainer_destroy(ls_trainer **tp)
{
    ls_trainer *t = *tp;
    if (!t) return;
    (void)ls_observe(t, &(ls_event){.kind = LS_ON_SHUTDOWN_BEGIN});
    ls_nccl_proof_cut(t->proof); /* first: the calls below may wait for a device until the process is killed */
    end_requests(t);
    ls_telemetry_end(&t->gpu);
    ls_nccl_proof_destroy(&t->proof);
    ls_audit_destroy(&t->audit);
    ls_ckpt_writer_destroy(&t->writer);
    ls_ckpt_memory_close(&t->saving.memory);
    (void)ls_metrics_log_close(&t->log);
    ls_lock_release(&t->lock);
    ls_tokens_close(&t->train);
    ls_tokens_close(&t->val);
    ls_strategy_destroy(&t->strategy);
    ls_acts_destroy(&t->acts);
    ls_pipe_destroy(&t->pipe);
    ls_schedule_destroy(&t->schedule);
    if (t->whole != t->model) ls_model_destroy(&t->whole);
    ls_model_destroy(&t->model);
    ls_input_fini(&t->input);
    ls_plan_fini(&t->plan);
    for (int i = t->n_each - 1; i >= (t->owns_comm ? 0 : 1); i--) ls_comm_destroy(&t->each[i]);
    ls_step_clock_fini(&t->clock);
    ls_free(t->state.done);
    if (t->load != t->hold) ls_free(t->load);
    ls_free(t->hold);
    ls_compute_close(&t->compute);
    (void)ls_observe(t, &(ls_event){.kind = LS_ON_SHUTDOWN_END});
    ls_free(t);
    *tp = NULL;
}

ls_status ls_trainer_whole(ls_trainer *t, int u, bool gradient, void *scratch, const void **whole)
{
    const ls_unit *unit = &t->model->unit[u];
    *whole = NULL;
    if (ls_strategy_here(t->strategy, u)) LS_TRY(ls_strategy_whole(t->strategy, u, gradient, scratch, whole));
    if (!t->pp) return LS_OK;
    int owner = 0; /* the stage that holds it */
    for (int g = 0; g < t->stages.n_stage * t->stages.n_chunk; g++)
        if (t->stages.first[g] <= u) owner = g % t->stages.n_stage;
    const ls_dtype wide = t->compute.ops->wide;
    if (*whole && *whole != scratch) memcpy(scratch, *whole, (size_t)unit->n_pad * ls_dtype_nbytes(wide));
    *whole = scratch;
    return ls_broadcast(t->pp, (ls_view){scratch, unit->n_pad, wide}, owner, LS_SITE, NULL);
}

static ls_status zero_moments(ls_trainer *t)
{
    const size_t size = ls_dtype_nbytes(t->compute.ops->wide);
    for (int u = 0; u < t->model->n_unit; u++) {
        const ls_own o = ls_strategy_own(t->strategy, u);
        if (!o.n) continue;
        LS_TRY(t->compute.ops->zero(&t->compute, o.m, (size_t)o.n * size));
        LS_TRY(t->compute.ops->zero(&t->compute, o.v, (size_t)o.n * size));
    }
    return LS_OK;
}

/* Whether a resumed run is over and has its files, the same on every worker: rank 0 looks. */
static ls_status look_if_complete(ls_trainer *t)
{
    const ls_run_state *s = &t->state;
    char path[PATH_MAX];
    double *found = ls_comm_alloc(t->comm, sizeof *found);
    if (!found) return ls_nomem(sizeof *found, "a flag");
    LS_TRY(ls_path_in(path, t->cfg->run_dir, "RUN_COMPLETE.txt"));
    *found = ls_comm_rank(t->comm) == 0 && ls_fs_exists(path);
    LS_TRY(ls_broadcast(t->comm, (ls_view){found, 1, LS_F64}, 0, LS_SITE, NULL));
    t->complete = *found > 0 && !s->epoch_step && (s->step >= t->cfg->total_steps || s->epoch >= t->cfg->epochs);
    return LS_OK;
}

/* A run that is not complete does not become so because a later --resume asks for fewer steps. */
static ls_status check_limit(const ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    const long long at = (long long)t->state.step, last = (long long)c->total_steps;
    if (t->complete || at <= last) return LS_OK;
    if (c->max_steps == last)
        return ls_fail(LS_E_CONFIG,
                       "the run in %s is at step %lld; --max_steps %lld is below it; use %lld or more, or leave it out",
                       c->run_dir, at, last, at);
    return ls_fail(LS_E_CONFIG,
                   "the run in %s is at step %lld; %lld epoch%s of %lld step%s are below it; raise --epochs%s",
                   c->run_dir, at, (long long)c->epochs, c->epochs == 1 ? "" : "s", (long long)c->steps_per_epoch,
                   c->steps_per_epoch == 1 ? "" : "s", c->max_train_steps >= 0 ? " or --max_train_steps" : "");
}

/* Before a checkpoint is chosen: a run that still ends in this folder may save a newer one, or complete the run. Without one the lock is taken
 * later: if nothing is left to do, the folder stays as it is, and it may be read-only. */
static ls_status wait_for_folder(ls_trainer *t)
{
    const char *dir = t->cfg->run_dir;
    ls_status st = LS_OK;
    if (ls_comm_rank(t->comm) == 0) {
        if (ls_fs_exists(ls_path_of(dir, LS_RUN_LOCK).text)) st = train_lock_folder(t);
        if (st == LS_OK) st = ls_ckpt_clean(dir);
    }
    return ls_comm_size(t->comm) > 1 ? ls_comm_agree(t->comm, st, LS_SITE) : st;
}

static ls_status load_weights(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    LS_TRY(zero_moments(t));
    if (c->resume) {
        char *path = NULL, *json = NULL, *timings = NULL;
        int64_t step = -1;
        LS_TRY(wait_for_folder(t));
        ls_status st = ls_ckpt_latest_any(t->comm, c->run_dir, &t->saving.memory, &path);
        if (st == LS_OK) st = train_compare_checkpoint(t, path ? ls_path_base(path) : NULL);
        if (path && st == LS_OK) {
            st = ls_ckpt_load(t->whole, path, true, t->load, t->n_load, t->comm, &json, &step);
            if (st == LS_OK) timings = ls_ckpt_timings(path);
            if (st == LS_OK) st = ls_run_state_read(t, json, timings, step, path);
            if (st == LS_OK) train_tell(t, "resumed from %s\n", path);
            t->resumed_from = t->state.step;
            ls_free(json);
            ls_free(timings);
            if (st == LS_OK) st = look_if_complete(t);
            if (st == LS_OK) st = check_limit(t);
        }
        const bool resumed = path;
        ls_free(path);
        if (resumed || st != LS_OK) return st;
        train_tell(t, "%sno checkpoint found; this run starts from step 0 in %s\n",
                   c->restart ? "" : "--resume: ", c->run_dir);
    }
    if (c->init_from) {
        LS_TRY(ls_hf_load(t->whole, c->init_from, t->load, t->n_load, t->comm));
        train_tell(t, "weights from %s\n", c->init_from);
        return LS_OK;
    }
    ls_info("model", "random initial weights, seed %lld", (long long)c->seed);
    for (int i = 0; i < t->n_hold; i++)
        if (t->hold[i].what == LS_FLAT_PARAM) LS_TRY(ls_model_init_piece(t->model, c->seed, &t->hold[i]));
    return LS_OK;
}

ls_status ls_trainer_load(ls_trainer *t)
{
    ls_fp8_state *fp8 = t->model->fp8;
    if (fp8) fp8->history.used = 0;
    LS_TRY(load_weights(t));
    if (fp8) LS_TRY(ls_fp8_set(t->model));
    return ls_strategy_publish(t->strategy, t->cfg->seed, ls_next_update(&t->state) - 1);
}
