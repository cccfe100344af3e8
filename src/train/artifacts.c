/* artifacts.c - text of the run's files, and their writing. Identity (commit, host) is in identity.c, metrics.jsonl in
 * metrics_log.c. */
#include "train/pipe_report.h"
#include "train/train_impl.h"
#include "comm/start.h"
#include "config/run_options.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/stat.h"
#include "data/sources.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

#define N_OF(array) (sizeof(array) / sizeof *(array))

static const char *env_text(const char *name) /* NULL when unset or empty */
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* --- writing pairs --- */

static void put_real_or_null(ls_jsonw *w, const char *key, bool there, double v)
{
    ls_jsonw_put_real(w, key, there ? v : (double)NAN);
}

static void put_int_or_null(ls_jsonw *w, const char *key, bool there, int64_t v)
{
    if (there) ls_jsonw_put_int(w, key, v);
    else ls_jsonw_put_str(w, key, NULL);
}

static void put_bool_or_null(ls_jsonw *w, const char *key, bool there, bool v)
{
    if (there) ls_jsonw_put_bool(w, key, v);
    else ls_jsonw_put_str(w, key, NULL);
}

/* --- training_metrics.json --- */

/* "CUDA 13.0" -> "13.0" */
static const char *version_of(const char *words)
{
    if (!*words) return "unknown";
    return strncmp(words, "CUDA ", 5) ? words : words + 5;
}

static const char *cuda_version(const ls_trainer *t)
{
    return t->compute.device ? version_of(t->device.api) : "none";
}

static void write_hardware(ls_jsonw *w, const ls_trainer *t)
{
    const char *slurm = env_text("SLURM_JOB_ID"), *instance = env_text("EC2_INSTANCE_TYPE");
    ls_jsonw_put_open(w, "hardware", '{');
    ls_jsonw_members(w,
                     LS_KV("gpu_name", !t->compute.device ? "none"
                                       : *t->device.name  ? t->device.name
                                                          : "unknown"),
                     LS_KV("gpu_count_visible", t->compute.device ? t->device.count : 0),
                     LS_KV("world_size", t->cfg->world_size), LS_KV("cuda_version", cuda_version(t)));
    if (instance && !slurm) ls_jsonw_put_str(w, "instance_type", instance);
    if (t->cfg->cluster) ls_jsonw_put_str(w, "cluster", t->cfg->cluster);
    ls_jsonw_close(w);
}

static void write_config(ls_jsonw *w, const ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    char size[96], name[256]; /* "data/train_small.bin" -> "train_small" */
    ls_sources_name(c->train_path, name, sizeof name);
    ls_jsonw_put_open(w, "training_config", '{');
    ls_jsonw_members(w, LS_KV("model_name", "gpt2"), LS_KV("model_size", ls_model_size_words(&c->model, size)),
                     LS_KV("seq_len", c->seq_len), LS_KV("epochs", c->epochs),
                     LS_KV("micro_batch_size_per_gpu", c->micro_batch), LS_KV("grad_accum_steps", c->grad_accum),
                     LS_KV("global_batch_size", c->global_batch), LS_KV("lr", c->lr.base),
                     LS_KV("optimizer", c->optimizer), LS_KV("precision", c->precision_label),
                     LS_KV("deepspeed_enabled", c->engine));
    put_int_or_null(w, "zero_stage", !c->engine || c->zero_given, c->engine ? c->zero_stage : 0);
    ls_jsonw_put_str(w, "dataset_name", name);
    ls_jsonw_put_open(w, "dataset_subset_sizes", '{');
    ls_jsonw_members(w, LS_KV("train", c->train_seqs), LS_KV("val", c->val_seqs));
    ls_jsonw_close(w);
    ls_jsonw_close(w);

    ls_jsonw_put_open(w, "deepspeed_config", '{');
    ls_jsonw_members(w, LS_KV("path", c->deepspeed_path ? c->deepspeed_path : "none"),
                     LS_KV("sha256", c->deepspeed_path ? c->deepspeed_sha256 : "unknown"));
    ls_jsonw_put_open(w, "selected", '{');
    put_bool_or_null(w, "fp16_enabled", c->fp16_given, c->fp16_enabled);
    put_bool_or_null(w, "wall_clock_breakdown", c->wall_clock_given, c->wall_clock_breakdown);
    if (c->engine) put_int_or_null(w, "zero_stage", c->zero_given, c->zero_stage);
    ls_jsonw_close(w);
    ls_jsonw_close(w);
}

static double tokens_per_sec(const ls_epoch_metrics *e)
{
    return e->wall_time > 0 ? (double)e->tokens / e->wall_time : 0.0;
}

static void write_epoch(ls_jsonw *w, const ls_trainer *t, const ls_epoch_metrics *e)
{
    int64_t a = e->grad_accum > 0 ? e->grad_accum : 1;
    bool timed = e->n_sample > 0, updates = e->n_update > 0;
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("epoch_idx", e->epoch_idx), LS_KV("epoch_wall_time_sec", e->wall_time),
                     LS_KV("steps", e->micro_steps), LS_KV("micro_steps", e->micro_steps),
                     LS_KV("optimizer_steps", (e->micro_steps + a - 1) / a),
                     LS_KV("tokens_processed_global", e->tokens), LS_KV("tokens_per_sec_global", tokens_per_sec(e)),
                     LS_KV("train_loss_avg_global", e->tokens > 0 ? e->train_loss : 0.0));
    put_real_or_null(w, "val_loss_avg_global", e->has_val, e->val_loss);
    ls_jsonw_members(w, LS_KV("max_cuda_mem_allocated_bytes_rank0", e->cuda_bytes),
                     LS_KV("max_cuda_mem_reserved_bytes_rank0", e->cuda_bytes));
    put_real_or_null(w, "step_time_mean_sec", timed, e->step.mean);
    put_real_or_null(w, "step_time_p50_sec", timed, e->step.p50);
    put_real_or_null(w, "step_time_p95_sec", timed, e->step.p95);
    put_real_or_null(w, "dataload_time_mean_sec", timed, e->dataload.mean);
    if (t->compute.device && t->cfg->world_size > 1) {
        ls_jsonw_members(w, LS_KV("max_cuda_mem_allocated_bytes_global", e->cuda_bytes_global),
                         LS_KV("max_cuda_mem_reserved_bytes_global", e->cuda_bytes_global));
    }
    /* ours */
    ls_jsonw_members(w, LS_KV("updates_applied", e->updates_applied), LS_KV("updates_skipped", e->updates_skipped),
                     LS_KV("sequences_dropped", e->sequences_dropped));
    put_real_or_null(w, "update_time_mean_sec", updates, e->update.mean);
    put_real_or_null(w, "update_time_p50_sec", updates, e->update.p50);
    put_real_or_null(w, "update_time_p95_sec", updates, e->update.p95);
    ls_jsonw_members(w, LS_KV("grad_norm_max", e->grad_norm_max), LS_KV("grad_norm_last", e->grad_norm_last),
                     LS_KV("peak_rss_bytes_rank0", e->peak_rss_bytes));
    ls_jsonw_close(w);
}

/* Unweighted over epochs; not a number when there was none. */
static double mean_throughput(const ls_trainer *t)
{
    double sum = 0;
    for (int64_t i = 0; i < t->state.epoch; i++) sum += tokens_per_sec(&t->state.done[i]);
    return t->state.epoch ? sum / (double)t->state.epoch : (double)NAN;
}

static double best_val(const ls_trainer *t)
{
    double best = (double)NAN;
    for (int64_t i = 0; i < t->state.epoch; i++)
        if (t->state.done[i].has_val) best = fmin(best, t->state.done[i].val_loss);
    return best;
}

static void put_env_rows(ls_jsonw *w, const char *const row[][2], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *v = env_text(row[i][1]);
        if (v) ls_jsonw_put_str(w, row[i][0], v);
    }
}

static void write_scheduler(ls_jsonw *w)
{
    static const char *const row[][2] = {
        {"job_id", "SLURM_JOB_ID"},           {"nodelist", "SLURM_NODELIST"}, {"nnodes", "SLURM_NNODES"},
        {"procid", "SLURM_PROCID"},           {"localid", "SLURM_LOCALID"},   {"gpus", "SLURM_GPUS"},
        {"partition", "SLURM_JOB_PARTITION"},
    };
    if (!env_text("SLURM_JOB_ID")) return;
    ls_jsonw_put_open(w, "scheduler", '{');
    ls_jsonw_put_str(w, "type", "slurm");
    put_env_rows(w, row, N_OF(row));
    ls_jsonw_close(w);
}

static void write_stat(ls_jsonw *w, ls_coll kind, int size, const ls_comm_stat *s)
{
    ls_jsonw_members(w, LS_KV("calls", s->calls), LS_KV("elements", s->elements), LS_KV("buffer_bytes", s->payload),
                     LS_KV("bytes_moved", s->bytes), LS_KV("bytes_to_other_hosts", s->wire), LS_KV("busy_sec", s->busy),
                     LS_KV("exposed_sec", s->exposed));
    const bool timed = s->busy > 0 && s->timed > 0;
    put_real_or_null(w, "busbw_bytes_per_sec", timed, ls_comm_busbw(kind, size, (double)s->timed, s->busy));
}

/* What rank 0's collectives did in steps, by kind and by bucket: elements of the buffers, bytes it read from and wrote to others, seconds of work
 * and of waiting. Bus bandwidth is nccl-tests'. `other` is what belongs to no bucket: losses, norms, agreement. */
static void write_comm(ls_jsonw *w, const ls_trainer *t, const char *key, const ls_comm *comm)
{
    if (!comm) return;
    const int size = ls_comm_size(comm);
    ls_jsonw_put_open(w, key, '{');
    ls_jsonw_members(w, LS_KV("backend", ls_comm_name(comm)), LS_KV("workers", size), LS_KV("steps", t->clock.n_step));
    if (ls_comm_untimed(comm)) ls_jsonw_put_int(w, "requests_without_times", ls_comm_untimed(comm));
    for (int k = 0; k < LS_N_COLL; k++) {
        const ls_comm_stat s = ls_comm_stats(comm, (ls_coll)k);
        if (!s.calls) continue;
        ls_jsonw_put_open(w, ls_coll_word((ls_coll)k), '{');
        write_stat(w, (ls_coll)k, size, &s);
        ls_jsonw_put_open(w, "buckets", '[');
        for (int b = 1; b < LS_COMM_LABELS; b++) {
            const ls_comm_stat one = ls_comm_label_stats(comm, (ls_coll)k, b);
            if (!one.calls) continue;
            ls_jsonw_open(w, '{');
            ls_jsonw_put_int(w, "bucket", b);
            write_stat(w, (ls_coll)k, size, &one);
            ls_jsonw_close(w);
        }
        ls_jsonw_close(w);
        const ls_comm_stat rest = ls_comm_label_stats(comm, (ls_coll)k, 0);
        ls_jsonw_put_open(w, "other", '{');
        write_stat(w, (ls_coll)k, size, &rest);
        ls_jsonw_close(w);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_split(ls_jsonw *w, const ls_step_clock *k)
{
    static const char *const key[LS_N_STEP_SPLIT] = {"input",        "forward",   "backward",
                                                     "exposed_comm", "optimizer", "other"};
    const ls_step_split mean = ls_step_clock_mean(k);
    ls_jsonw_put_open(w, "step_split", '{');
    for (int i = 0; i < LS_N_STEP_SPLIT; i++) ls_jsonw_put_real(w, key[i], mean.part[i]);
    if (k->n_untimed) ls_jsonw_put_int(w, "steps_without_times", k->n_untimed);
    ls_jsonw_close(w);
}

static void write_parts(ls_jsonw *w, const ls_worker_facts *f)
{
    for (int p = 0; p < LS_N_PART; p++) ls_jsonw_put_int(w, ls_part_word((ls_part)p), (int64_t)f->part_bytes[p]);
    ls_jsonw_put_int(w, "planned", (int64_t)f->plan_bytes);
    if (f->device_bytes > 0) ls_jsonw_put_int(w, "device", (int64_t)f->device_bytes);
    if (f->host_bytes > 0) ls_jsonw_put_int(w, "host", (int64_t)f->host_bytes);
    if (f->comm_bytes > 0) ls_jsonw_put_int(w, "comm", (int64_t)f->comm_bytes);
    ls_jsonw_put_int(w, "peak_rss", (int64_t)f->peak_rss_bytes);
}

/* Rank 0's memory by part (parts may share places: planned is the sum after that), then that of all workers. */
static void write_workers(ls_jsonw *w, const ls_plan *plan, const ls_worker_facts *worker, int n)
{
    double cpu = 0;
    ls_jsonw_put_open(w, "memory", '{');
    write_parts(w, &worker[0]);
    ls_jsonw_put_open(w, "at_most", '{');
    for (int p = 0; p < LS_N_PART; p++)
        ls_jsonw_put_int(w, ls_part_word((ls_part)p), ls_plan_part_at_most(plan, (ls_part)p));
    ls_jsonw_close(w);
    ls_jsonw_put_open(w, "per_rank", '[');
    for (int r = 0; r < n; r++) {
        ls_jsonw_open(w, '{');
        ls_jsonw_put_int(w, "rank", r);
        write_parts(w, &worker[r]);
        ls_jsonw_close(w);
        cpu += worker[r].cpu_utilisation;
    }
    ls_jsonw_close(w);
    ls_jsonw_close(w);
    ls_jsonw_put_real(w, "cpu_utilisation", cpu / n);
    ls_jsonw_put_open(w, "workers", '[');
    for (int r = 0; r < n; r++) {
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("rank", r), LS_KV("cpu_utilisation", worker[r].cpu_utilisation),
                         LS_KV("exposed_comm_sec", worker[r].exposed));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_device(ls_jsonw *w, const ls_trainer *t, const ls_run_end *m)
{
    const ls_device_info *d = &t->device;
    char capability[24];
    snprintf(capability, sizeof capability, "%d.%d", d->capability / 10, d->capability % 10);
    ls_jsonw_put_open(w, "gpu", '{');
    ls_jsonw_members(w, LS_KV("name", d->name), LS_KV("index", d->index), LS_KV("capability", capability),
                     LS_KV("multiprocessors", d->multiprocessors), LS_KV("memory_bytes", d->total),
                     LS_KV("shared", t->gpu_shared), LS_KV("driver_version", version_of(d->driver)),
                     LS_KV("cudnn_version", *d->cudnn ? d->cudnn : NULL), LS_KV("nccl_version", m->nccl));
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("tf32", t->cfg->tf32), LS_KV("stochastic_rounding", t->cfg->stochastic),
                     LS_KV("offload_optimizer", t->cfg->offload));
}

static void write_scale(ls_jsonw *w, const ls_trainer *t)
{
    const ls_loss_scale *scale = &t->state.scale;
    int64_t skipped = 0;
    if (!ls_loss_scale_skips(scale) || scale->cfg.rule == LS_SCALE_NONE) return;
    for (int64_t i = 0; i < t->state.epoch; i++) skipped += t->state.done[i].updates_skipped;
    ls_jsonw_put_open(w, "loss_scale", '{');
    ls_jsonw_members(w, LS_KV("rule", ls_scale_rule_word(scale->cfg.rule)), LS_KV("initial", scale->cfg.initial),
                     LS_KV("last", scale->scale), LS_KV("updates_skipped", skipped));
    ls_jsonw_close(w);
}

/* What the ZeRO scaling study (docs/REFERENCES.md) has no key for. */
static void write_ours(ls_jsonw *w, const ls_trainer *t, const ls_run_end *m)
{
    const ls_train_config *c = t->cfg;
    ls_jsonw_put_open(w, "lockstep", '{');
    ls_jsonw_members(w, LS_KV("version", LS_VERSION), LS_KV("commit", m->id->built ? m->id->built : "unknown"));
    if (*t->train_sum) ls_jsonw_put_str(w, "train_data", t->train_sum);
    if (*t->val_sum) ls_jsonw_put_str(w, "val_data", t->val_sum);
    if (m->id->environment) ls_jsonw_put_str(w, "environment", m->id->environment);
    ls_jsonw_members(w, LS_KV("model", c->model_from), LS_KV("variant", ls_variant_word(c->model.variant)),
                     LS_KV("parameters", ls_model_n_param(&c->model)), LS_KV("vocab_size", c->model.vocab_size),
                     LS_KV("device", c->device));
    if (*c->device_words) ls_jsonw_put_str(w, "device_choice", c->device_words);
    ls_jsonw_members(w, LS_KV("compute", m->compute_words), LS_KV("backend", c->compute));
    if (c->threads_asked) ls_jsonw_put_int(w, "threads", c->threads_asked);
    ls_jsonw_put_str(w, "strategy", c->strategy);
    if (c->one_state) ls_jsonw_put_bool(w, "shared_optimizer", true);
    if (c->mesh.world > 1) {
        ls_jsonw_members(w, LS_KV("dp", c->mesh.n[LS_AXIS_DP]), LS_KV("pp", c->mesh.n[LS_AXIS_PP]),
                         LS_KV("tp", c->mesh.n[LS_AXIS_TP]));
        if (c->schedule) ls_jsonw_put_str(w, "schedule", c->schedule);
        if (c->interleave > 1) ls_jsonw_put_int(w, "interleave", c->interleave);
        if (c->stages) ls_jsonw_put_str(w, "stages", c->stages);
        if (c->mesh.n[LS_AXIS_TP] > 1) ls_jsonw_put_bool(w, "sequence_parallel", c->sequence_parallel);
    }
    ls_jsonw_put_str(w, "precision", c->precision);
    ls_train_fp8_write(&c->fp8, w);
    if (t->compute.device) write_device(w, t, m);
    write_scale(w, t);
    ls_jsonw_members(w, LS_KV("deterministic", c->deterministic), LS_KV("recompute", c->recompute),
                     LS_KV("seed", (int64_t)c->seed), LS_KV("total_steps", c->total_steps),
                     LS_KV("lr_schedule", ls_lr_word(c->lr.kind)), LS_KV("planned_bytes", t->plan.total),
                     LS_KV("resumed_from_step", t->resumed_from), LS_KV("bucket", c->bucket),
                     LS_KV("gather_bucket", c->gather_bucket), LS_KV("prefetch_bucket", c->prefetch_bucket));
    if (t->clock.n_step) write_split(w, &t->clock);
    if (m->worker) write_workers(w, &t->plan, m->worker, c->world_size);
    if (m->pipe) ls_pipe_report_write(m->pipe, t, w);
    if (t->compute.device) ls_telemetry_write(&t->gpu, t->watched_tokens, w);
    ls_nccl_proof_write(t->proof, w);
    if (t->dp && ls_comm_size(t->dp) > 1) write_comm(w, t, "comm", t->dp);
    write_comm(w, t, "tensor_comm", t->tp);
    write_comm(w, t, "activations_comm", t->pp_acts);
    write_comm(w, t, "gradients_comm", t->pp_grads);
    ls_jsonw_close(w);
}

void ls_training_metrics_text(const ls_trainer *t, const ls_run_end *m, ls_str *out)
{
    static const char *const versions[] = {"python_version", "torch_version", "transformers_version",
                                           "deepspeed_version"};
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("schema_version", "2.0"), LS_KV("run_id", m->id->run_id),
                     LS_KV("timestamp_utc", m->id->timestamp_utc), LS_KV("git_commit", m->id->git_commit),
                     LS_KV("command_line", m->id->command_line));
    ls_jsonw_put_open(&w, "env", '{');
    for (size_t i = 0; i < N_OF(versions); i++) ls_jsonw_put_str(&w, versions[i], "none");
    ls_jsonw_put_str(&w, "cuda_version", cuda_version(t));
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "host", '{');
    ls_jsonw_members(&w, LS_KV("hostname", m->id->hostname), LS_KV("os", m->id->os));
    ls_jsonw_close(&w);
    write_hardware(&w, t);
    write_config(&w, t);
    ls_jsonw_put_open(&w, "schema_notes", '{');
    ls_jsonw_put_str(&w, "steps", "Deprecated: the same number as micro_steps.");
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "epochs", '[');
    for (int64_t i = 0; i < t->state.epoch; i++) write_epoch(&w, t, &t->state.done[i]);
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "summary", '{');
    ls_jsonw_members(&w, LS_KV("total_wall_time_sec", m->total_wall_time), LS_KV("best_val_loss", best_val(t)),
                     LS_KV("mean_tokens_per_sec_global", mean_throughput(t)));
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "shutdown", '{');
    ls_jsonw_members(&w, LS_KV("destroy_process_group_called", (bool)(t->cfg->world_size > 1)),
                     LS_KV("quiet_nccl_monitor", t->cfg->quiet_nccl_monitor));
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "completion", '{');
    ls_jsonw_members(&w, LS_KV("run_complete_file", "RUN_COMPLETE.txt"), LS_KV("printed_marker", (bool)(true)),
                     LS_KV("timestamp_utc", m->utc));
    ls_jsonw_close(&w);
    write_scheduler(&w);
    write_ours(&w, t, m);
    ls_jsonw_close(&w);
}

/* Ours: how workers were started, how they talk, where each of them was. */
static void write_places(ls_jsonw *w, const ls_comm *comm)
{
    ls_start_env e = {0};
    ls_jsonw_put_open(w, "lockstep", '{');
    ls_jsonw_put_str(w, "backend", ls_comm_name(comm));
    if (ls_start_env_read(&e) == LS_OK && e.by != LS_STARTED_ALONE) ls_jsonw_put_str(w, "started_by", e.words);
    else ls_jsonw_put_str(w, "started_by", ls_comm_size(comm) > 1 ? "-n" : "none");
    ls_jsonw_put_int(w, "hosts", ls_comm_where(comm).n_host);
    ls_jsonw_put_open(w, "workers", '[');
    for (int r = 0; r < ls_comm_size(comm); r++) {
        int local_rank = 0;
        const char *host = ls_comm_host(comm, r, &local_rank);
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("rank", r), LS_KV("local_rank", local_rank), LS_KV("host", host));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    ls_jsonw_close(w);
}

void ls_launcher_metadata_text(const ls_trainer *t, const ls_run_end *m, ls_str *out)
{
    const char *commit = env_text("GIT_COMMIT");
    const char *const slurm[][2] = {
        {"job_id", "SLURM_JOB_ID"},
        {"nodelist", env_text("SLURM_NODELIST") ? "SLURM_NODELIST" : "SLURM_JOB_NODELIST"},
        {"hosts", "SLURM_HOSTS"},
    };
    static const char *const started[][2] = {{"CUDA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"},
                                             {"MASTER_ADDR", "MASTER_ADDR"},
                                             {"MASTER_PORT", "MASTER_PORT"}};
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("checkpoint_path", t->cfg->run_dir), LS_KV("rank0_host", m->id->hostname),
                     LS_KV("world_size", t->cfg->world_size), LS_KV("git_commit", commit ? commit : m->id->git_commit));
    ls_jsonw_put_open(&w, "slurm", '{');
    put_env_rows(&w, slurm, N_OF(slurm));
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "env", '{');
    put_env_rows(&w, started, N_OF(started));
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "nccl_env", '{');
    for (char **e = environ; e && *e; e++) {
        char name[128];
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "NCCL_", 5) && strncmp(*e, "TORCH_NCCL_", 11)) continue;
        if (n >= sizeof name || (*e)[n] != '=') continue;
        snprintf(name, sizeof name, "%.*s", (int)n, *e);
        ls_jsonw_put_str(&w, name, *e + n + 1);
    }
    ls_jsonw_close(&w);
    if (t->comm) write_places(&w, t->comm);
    ls_jsonw_close(&w);
}

void ls_run_complete_text(const ls_trainer *t, const ls_run_end *m, bool stamped, ls_str *out)
{
    char rate[32] = "None", time[32] = "None";
    if (t->state.epoch) {
        ls_json_real(rate, mean_throughput(t));
        ls_json_real(time, m->total_wall_time);
    }
    ls_str_addf(out, "[Rank 0] RUN_COMPLETE checkpoint_path=%s world_size=%d tokens_per_sec=%s total_wall_time_sec=%s",
                t->cfg->run_dir, t->cfg->world_size, rate, time);
    if (stamped) ls_str_addf(out, " timestamp_utc=%s", m->utc);
}

void ls_exit_marker(int rank, ls_str *out)
{
    ls_str_addf(out, "[Rank %d] EXITING cleanly\n", rank);
}

/* Writes a file of the run folder, frees its text, and appends a marker with its path. */
static ls_status write_file(const char *path, ls_str *text, const char *marker, ls_str *markers)
{
    ls_status st = text->failed ? ls_nomem(text->cap, ls_path_base(path)) : ls_fs_write(path, text->data, text->len);
    ls_str_fini(text);
    if (st == LS_OK && marker) ls_str_addf(markers, "[Rank 0] %s path=%s\n", marker, path);
    return st;
}

ls_status ls_artifacts_write(const ls_trainer *t, const ls_run_end *m, ls_str *markers)
{
    char launcher[PATH_MAX], metrics[PATH_MAX], done[PATH_MAX];
    ls_str text = {0};
    LS_TRY(ls_path_in(launcher, t->cfg->run_dir, "launcher_metadata.json"));
    LS_TRY(ls_path_in(metrics, t->cfg->run_dir, "training_metrics.json"));
    LS_TRY(ls_path_in(done, t->cfg->run_dir, "RUN_COMPLETE.txt"));
    ls_launcher_metadata_text(t, m, &text);
    LS_TRY(write_file(launcher, &text, "LAUNCHER_METADATA_WRITE_DONE", markers));
    ls_training_metrics_text(t, m, &text);
    LS_TRY(write_file(metrics, &text, "METRICS_WRITE_DONE", markers));
    ls_run_complete_text(t, m, true, &text);
    ls_str_addc(&text, '\n');
    LS_TRY(write_file(done, &text, NULL, markers));
    ls_run_complete_text(t, m, false, markers);
    ls_str_addc(markers, '\n');
    return markers->failed ? ls_nomem(markers->cap, "markers") : LS_OK;
}

ls_status ls_artifacts_begin(const char *run_dir)
{
    static const char *const names[] = {"RUN_COMPLETE.txt", "training_metrics.json"};
    char path[PATH_MAX];
    LS_TRY(ls_fs_mkdirs(run_dir));
    for (size_t i = 0; i < N_OF(names); i++) {
        LS_TRY(ls_path_in(path, run_dir, "%s", names[i]));
        LS_TRY(ls_fs_remove_tree(path));
    }
    return LS_OK;
}

/* --- sampling and statistics --- */

bool ls_step_sampled(int64_t s, int64_t warmup, int64_t every)
{
    return s >= warmup && s % every == 0;
}

double ls_percentile(const double *sorted, int64_t n, double q)
{
    double at = q * (double)(n - 1);
    int64_t lo = (int64_t)floor(at);
    if (lo >= n - 1) return sorted[n - 1];
    return sorted[lo] + (at - (double)lo) * (sorted[lo + 1] - sorted[lo]);
}

ls_stats ls_stats_of(double *x, int64_t n)
{
    double sum = 0;
    if (n <= 0) return (ls_stats){0};
    qsort(x, (size_t)n, sizeof *x, ls_by_value);
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return (ls_stats){sum / (double)n, ls_percentile(x, n, 0.5), ls_percentile(x, n, 0.95)};
}
