/* loop.c - a run from its first step to its artifacts.
 *
 *   epoch   steps → validation → checkpoint epoch-N        every save_every steps: step-N, every eval_every: validation
 *   end     launcher_metadata.json → training_metrics.json → RUN_COMPLETE.txt
 *
 * Before the first step of a run without --resume, checkpoints and NCCL's evidence that lie in its folder go to earlier-<k>: a later --resume
 * takes only those of the run that was started last, and none is lost.
 *
 * An epoch's wall time is that of its steps; validation and checkpoints are left out, also the part of a step that waited
 * for a checkpoint. */
#include "train/pipe_report.h"
#include "train/trainer.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/stop.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static int64_t peak_rss_bytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}

static void line(ls_trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void line(ls_trainer *t, const char *fmt, ...)
{
    if (!t->io.line) return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    t->io.line(t->io.ctx, text);
}

bool ls_spread_add(ls_spread *s, double x)
{
    const double far = s->mean + fmax(6 * sqrt(s->var), 0.25 * fabs(s->mean));
    const bool spike = s->n >= 50 && x > far;
    const double w = s->n < 20 ? 1.0 / (double)(s->n + 1) : 0.05, d = x - s->mean;
    s->mean += w * d;
    s->var = (1 - w) * (s->var + w * d * d);
    s->n++;
    return spike;
}

static void watch(ls_trainer *t, ls_spread *s, const char *what, double x)
{
    const ls_spread past = *s;
    if (!ls_spread_add(s, x)) return;
    t->state.n_spike++;
    ls_warn("train", "step %lld: %s %.4g is a spike (recent mean %.4g, deviation %.3g)", (long long)t->state.step, what,
            x, past.mean, sqrt(past.var));
}

static void show_progress(ls_trainer *t, const ls_step_result *r, bool last)
{
    const ls_train_config *c = t->cfg;
    const double now = ls_now();
    if (!t->io.progress || c->profile_mode) return;
    if (!last && !t->io.frequent && now - t->tick < 10 && t->state.step > 1) return;
    t->tick = now;
    char text[200], eta[32];
    const double tokens = (double)(c->global_batch * c->seq_len), tps = tokens / r->t_total;
    snprintf(text, sizeof text, "step %lld/%lld  loss %.4f  lr %.3g  norm %.3g  %.0f tokens/s  %.3f TFLOP/s  eta %s",
             (long long)t->state.step, (long long)c->total_steps, r->loss, r->lr, r->grad_norm, tps,
             tps * ls_flops_per_token(&c->model, c->seq_len) / 1e12,
             ls_human_time(eta, (double)(c->total_steps - t->state.step) * r->t_total));
    t->io.progress(t->io.ctx, text, last);
}

/* R1's line (docs/REFERENCES.md), every steps_per_print micro steps. */
static void show_step(ls_trainer *t, const ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    if (c->profile_mode || c->steps_per_print <= 0) return;
    const int64_t end = t->state.epoch_step * c->grad_accum, begin = end - c->grad_accum;
    const double held = (double)t->plan.total; /* of a device it is the one allocation, which never grows */
    const double peak = t->compute.device ? held : (double)peak_rss_bytes();
    for (int64_t s = begin; s < end; s++)
        if (s % c->steps_per_print == 0)
            line(t, "[Rank 0] Step %lld, Loss: %.4f, Mem Curr: %.2fMB, Mem Peak: %.2fMB\n", (long long)s, r->loss,
                 held / 1048576.0, peak / 1048576.0);
}

static ls_status log_step(ls_trainer *t, const ls_step_result *r, bool has_val, double val_loss)
{
    if (ls_comm_rank(t->comm) != 0) return LS_OK;
    const ls_train_config *c = t->cfg;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t tokens = c->global_batch * c->seq_len;
    const ls_step_metrics m = {.step = t->state.step,
                               .epoch = t->state.epoch + 1,
                               .tokens = tokens,
                               .loss = r->loss,
                               .lr = r->lr,
                               .grad_norm = r->grad_norm,
                               .loss_scale = r->loss_scale,
                               .skipped = r->skipped,
                               .step_time = r->t_total,
                               .split = r->split,
                               .cpu = r->cpu,
                               .tokens_per_sec = (double)tokens / r->t_total,
                               .tflops = (double)tokens / r->t_total * ls_flops_per_token(&c->model, c->seq_len) / 1e12,
                               .has_val = has_val,
                               .val_loss = val_loss,
                               .time_unix_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000};
    return ls_metrics_log_add(&t->log, &m);
}

static bool reached_limit(const ls_trainer *t)
{
    return t->state.step >= t->cfg->total_steps;
}

/* The steps of the epoch under way. */
static ls_status epoch_steps(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    ls_run_state *s = &t->state;
    LS_TRY(ls_coll_log_barrier(&t->coll, s->epoch + 1, "start"));
    LS_TRY(ls_coll_log_barrier(&t->coll, s->epoch + 1, "loop_start"));
    while (s->epoch_step < c->steps_per_epoch && !reached_limit(t)) {
        ls_step_result r;
        LS_TRY(ls_trainer_step(t, &r));
        ls_comm_expect(t->comm, r.t_total);
        ls_debug("train",
                 "step %lld: loss %.4f, %.4f s (input %.4f, forward %.4f, backward %.4f, exposed communication %.4f, "
                 "optimizer %.4f)",
                 (long long)s->step, r.loss, r.t_total, r.split.input, r.split.forward, r.split.backward,
                 r.split.comm_exposed, r.split.optimizer);
        ls_telemetry_step(t->gpu);
        t->watched_tokens += c->global_batch * c->seq_len;
        const double step_time = r.t_total - r.t_wait;
        s->epoch_time += step_time;
        if (!r.skipped) {
            s->norm_last = r.grad_norm;
            s->norm_max = fmax(s->norm_max, r.grad_norm);
        }
        t->update_time[t->n_update++] = step_time;
        if (ls_comm_rank(t->comm) == 0 && !r.skipped) {
            watch(t, &s->loss_spread, "the loss", r.loss);
            watch(t, &s->norm_spread, "the gradient norm", r.grad_norm);
        }

        double val_loss = 0;
        int64_t n_val = 0;
        const bool ends = s->epoch_step == c->steps_per_epoch || reached_limit(t);
        if (c->eval_every > 0 && s->step % c->eval_every == 0 && !ends && t->val.n_seq)
            LS_TRY(ls_trainer_validate(t, &val_loss, &n_val));
        LS_TRY(log_step(t, &r, n_val > 0, val_loss));
        show_step(t, &r);
        show_progress(t, &r, reached_limit(t));
        if (n_val) line(t, "[Rank 0] Validation at step %lld. Average Loss: %.4f\n", (long long)s->step, val_loss);
        if (c->save_every > 0 && s->step % c->save_every == 0 && !ends) {
            char name[32];
            snprintf(name, sizeof name, "step-%lld", (long long)s->step);
            LS_TRY(ls_trainer_save(t, name));
        }
    }
    const double begin = ls_now(); /* the last update may still be under way */
    LS_TRY(ls_compute_sync(&t->compute));
    s->epoch_time += ls_now() - begin;
    return ls_coll_log_barrier(&t->coll, s->epoch + 1, "train_loop_end");
}

/* The epoch's numbers that R1 sums and compares over its workers here; ours travel with each step. */
static ls_status log_epoch(ls_trainer *t, double device_bytes)
{
    const ls_run_state *s = &t->state;
    const double loss[2] = {s->loss_sum, (double)s->tokens}, steps = (double)(s->epoch_step * t->cfg->grad_accum);
    LS_TRY(ls_coll_log_reduce(&t->coll, s->epoch + 1, "train_loss_tokens_sum", loss, 2));
    LS_TRY(ls_coll_log_reduce(&t->coll, s->epoch + 1, "train_steps_max", &steps, 1));
    return ls_coll_log_reduce(&t->coll, s->epoch + 1, "mem_max", &device_bytes, 1);
}

/* The largest of all workers' values; of more workers than fit, this one's. */
static ls_status most(ls_trainer *t, double mine, double *largest)
{
    double all[LS_COMM_SMALL / sizeof(double)];
    const int W = ls_comm_size(t->comm);
    *largest = mine;
    if (!t->compute.device || W == 1 || W > (int)(sizeof all / sizeof *all)) return LS_OK;
    LS_TRY(ls_all_gather(t->comm, (ls_view){all, W, LS_F64}, (ls_view){&mine, 1, LS_F64}, LS_SITE, NULL));
    for (int r = 0; r < W; r++) *largest = fmax(*largest, all[r]);
    return LS_OK;
}

static ls_status finish_epoch(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    ls_run_state *s = &t->state;
    const int64_t n = s->epoch + 1;
    ls_epoch_metrics *e = &s->done[s->epoch];
    double device_bytes = t->compute.device ? (double)t->plan.total : 0, most_bytes;
    LS_TRY(log_epoch(t, device_bytes));
    LS_TRY(most(t, device_bytes, &most_bytes));
    const ls_stats step = ls_stats_of(t->sample_step, t->n_sample), data = ls_stats_of(t->sample_data, t->n_sample),
                   update = ls_stats_of(t->update_time, t->n_update);
    *e = (ls_epoch_metrics){.epoch_idx = n,
                            .wall_time = s->epoch_time,
                            .train_loss = s->tokens ? s->loss_sum / (double)s->tokens : 0,
                            .micro_steps = s->epoch_step * c->grad_accum,
                            .grad_accum = c->grad_accum,
                            .tokens = s->tokens,
                            .n_sample = t->n_sample,
                            .step_mean = step.mean,
                            .step_p50 = step.p50,
                            .step_p95 = step.p95,
                            .dataload_mean = data.mean,
                            .updates_applied = s->epoch_step - s->epoch_skipped,
                            .updates_skipped = s->epoch_skipped,
                            .sequences_dropped = c->dropped_seqs,
                            .n_update = t->n_update,
                            .update_mean = update.mean,
                            .update_p50 = update.p50,
                            .update_p95 = update.p95,
                            .grad_norm_max = s->norm_max,
                            .grad_norm_last = s->norm_last,
                            .cuda_allocated = (int64_t)device_bytes, /* the plan is the one allocation */
                            .cuda_reserved = (int64_t)device_bytes,
                            .cuda_allocated_global = (int64_t)most_bytes,
                            .cuda_reserved_global = (int64_t)most_bytes,
                            .peak_rss_bytes = peak_rss_bytes()};
    line(t, "[Rank 0] Epoch %lld finished. Avg Loss: %.4f, Time: %.2fs, Throughput: %.2f tokens/sec\n", (long long)n,
         e->train_loss, e->wall_time, e->wall_time > 0 ? (double)e->tokens / e->wall_time : 0.0);
    LS_TRY(ls_coll_log_barrier(&t->coll, n, "pre_validation"));
    if (t->val.n_seq) {
        int64_t n_batch = 0;
        LS_TRY(ls_trainer_validate(t, &e->val_loss, &n_batch));
        LS_TRY(ls_coll_log_reduce(&t->coll, n, "val_loss_tokens_sum", (double[]){e->val_loss, (double)n_batch}, 2));
        e->has_val = n_batch > 0;
        if (e->has_val)
            line(t, "[Rank 0] Validation Finished Epoch %lld. Average Loss: %.4f\n", (long long)n, e->val_loss);
    }
    s->epoch++;
    s->epoch_step = s->epoch_skipped = s->tokens = 0;
    s->loss_sum = s->epoch_time = s->norm_max = 0;
    t->n_sample = t->n_update = 0;
    return LS_OK;
}

/* The state of the last finished step, as step-N: parameters were not touched since. */
static ls_status save_and_stop(ls_trainer *t, double total_time)
{
    char name[32];
    const int sig = ls_stop_signal();
    t->state.total_time = total_time;
    snprintf(name, sizeof name, "step-%lld", (long long)t->state.step);
    ls_stop_saving();
    LS_TRY(ls_trainer_save(t, name));
    LS_TRY(ls_ckpt_wait(t->writer));
    char who[40] = "a worker was asked to stop";
    if (sig) snprintf(who, sizeof who, "signal %d", sig);
    return ls_fail(LS_E_STOPPED, "%s after step %lld: saved %s/%s, --resume goes on from there", who,
                   (long long)t->state.step, t->cfg->run_dir, name);
}

/* Everyone's facts reach everyone; rank 0 writes them. */
static ls_status gather_facts(ls_trainer *t, ls_worker_facts **out)
{
    enum { N = sizeof(ls_worker_facts) / sizeof(double) };
    const int W = ls_comm_size(t->comm);
    ls_worker_facts mine = {.plan_bytes = (double)t->plan.total,
                            .peak_rss_bytes = (double)peak_rss_bytes(),
                            .device_bytes = t->compute.device ? (double)t->plan.total : 0,
                            .exposed = ls_trainer_exposed(t)};
    for (int p = 0; p < LS_N_PART; p++) mine.part_bytes[p] = (double)ls_plan_part_bytes(&t->plan, (ls_part)p);
    double cpu = t->cpu_begin, wall = t->wall_begin;
    mine.cpu_utilisation = t->n_split ? ls_trainer_cpu(t, &cpu, &wall) : 0;
    ls_worker_facts *all = ls_comm_alloc(t->comm, (size_t)W * sizeof *all);
    if (!all) return ls_nomem((size_t)W * sizeof *all, "the workers' facts");
    LS_TRY(ls_all_gather(t->comm, (ls_view){all, (int64_t)W * N, LS_F64}, (ls_view){&mine, N, LS_F64}, LS_SITE, NULL));
    *out = all;
    return LS_OK;
}

static ls_step_split mean_split(const ls_trainer *t)
{
    const double n = (double)(t->n_split - t->n_untimed); /* none: not a number, null in files */
    const ls_step_split s = t->split_sum;
    return (ls_step_split){s.input / n,        s.forward / n,   s.backward / n,
                           s.comm_exposed / n, s.optimizer / n, s.other / n};
}

typedef struct more {
    const ls_trainer *t;
    const ls_pipe_report *pipe;
} more;

static void write_more(const void *ctx, ls_jsonw *w)
{
    const more *m = ctx;
    ls_pipe_report_write(m->pipe, m->t, w);
    if (m->t->compute.device) ls_telemetry_write(m->t->gpu, m->t->watched_tokens, w);
    ls_nccl_proof_write(m->t->proof, w);
}

static void say_pipeline(ls_trainer *t, const ls_pipe_report *r)
{
    if (!r->n_stage || !t->io.note) return;
    char text[256];
    snprintf(text, sizeof text,
             "pipeline %s: bubble %.1f %% measured, %.1f %% predicted for mean costs (a step %.3f s, predicted %.3f "
             "s); last step "
             "%.1f %% measured, %.1f %% simulated from its own actions\n",
             t->schedule->name, 100 * r->measured, 100 * r->predicted, r->makespan, r->predicted_makespan,
             100 * r->last, 100 * r->replayed);
    t->io.note(t->io.ctx, text);
}

static ls_status set_earlier_aside(ls_trainer *t)
{
    char *where = NULL, upto[40] = "", text[1280];
    int64_t step;
    if (t->cfg->resume) return ls_nccl_proof_set_aside(t->proof, t->cfg->run_dir, true, &where);
    LS_TRY(ls_ckpt_set_aside(t->cfg->run_dir, &where, &step));
    const bool saved = where;
    ls_status st = ls_nccl_proof_set_aside(t->proof, t->cfg->run_dir, false, &where);
    if (where && !saved && t->io.note) {
        snprintf(text, sizeof text, "%.400s holds files of an earlier run over NCCL: moved to %.400s\n",
                 t->cfg->run_dir, where);
        t->io.note(t->io.ctx, text);
    } else if (where && t->io.note) {
        if (step >= 0) snprintf(upto, sizeof upto, " up to step %lld", (long long)step);
        snprintf(
            text, sizeof text,
            "%.400s holds checkpoints of an earlier run%s: moved to %.400s, since --resume would go on from them\n",
            t->cfg->run_dir, upto, where);
        t->io.note(t->io.ctx, text);
    }
    ls_free(where);
    return st;
}

/* Rank 0's files, then everyone's: no worker writes under a name that rank 0 is about to move. */
static ls_status begin_files(ls_trainer *t)
{
    ls_status st = LS_OK;
    char path[1024];
    if (ls_comm_rank(t->comm) == 0) {
        LS_TRY_GOTO(st, done, set_earlier_aside(t));
        LS_TRY_GOTO(st, done, ls_artifacts_begin(t->cfg->run_dir));
        snprintf(path, sizeof path, "%s/metrics.jsonl", t->cfg->run_dir);
        LS_TRY_GOTO(st, done, ls_metrics_log_open(&t->log, path, t->state.step));
    }
done:
    if (ls_comm_size(t->comm) > 1) st = ls_comm_agree(t->comm, st, LS_SITE);
    if (st == LS_OK) ls_nccl_proof_started(t->proof);
    return st;
}

static ls_status log_begin(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    if (!c->dist_debug) return LS_OK;
    const int64_t W = ls_comm_size(t->dp), train = t->train.n_seq / c->micro_batch, val = t->val.n_seq / c->micro_batch;
    LS_TRY(ls_coll_log_open(&t->coll, c->run_dir, t->comm, t->io.debug, t->io.ctx));
    LS_TRY(ls_coll_log_barrier(&t->coll, 0, "post_deepspeed_init"));
    ls_coll_log_say(&t->coll, "DATA_INFO train_dataloader_len=%lld val_dataloader_len=%lld", (long long)(train / W),
                    (long long)((val + W - 1) / W));
    return ls_coll_log_barrier(&t->coll, 0, "pre_training_loop");
}

ls_status ls_trainer_run(ls_trainer *t, const ls_run_identity *id)
{
    const ls_train_config *c = t->cfg;
    ls_run_state *s = &t->state;
    const double begin = ls_now() - s->total_time;
    char words[LS_COMPUTE_WORDS], path[1024];
    line(t,
         "[Rank 0] Run config: micro_batch_size_per_gpu=%d, grad_accum_steps=%d, visible_gpus=%d, "
         "global_batch_size=%lld\n",
         c->micro_batch, c->grad_accum, t->device.count, (long long)c->global_batch);
    const bool writes = ls_comm_rank(t->comm) == 0;
    ls_info("train", "%lld epochs of %lld steps, from step %lld to %lld", (long long)c->epochs,
            (long long)c->steps_per_epoch, (long long)s->step, (long long)c->total_steps);
    LS_TRY(begin_files(t));
    LS_TRY(log_begin(t));
    if (writes) ls_telemetry_begin(&t->gpu, &t->compute, t->io.note, t->io.ctx);
    while (s->epoch < c->epochs && !(reached_limit(t) && s->epoch_step == 0)) {
        ls_status st = epoch_steps(t);
        if (st == LS_OK) st = finish_epoch(t);
        if (st == LS_E_STOPPED) return save_and_stop(t, ls_now() - begin);
        LS_TRY(st);
        char name[32];
        snprintf(name, sizeof name, "epoch-%lld", (long long)s->epoch);
        s->total_time = ls_now() - begin;
        LS_TRY(ls_coll_log_barrier(&t->coll, s->epoch, "pre_checkpoint"));
        LS_TRY(ls_trainer_save(t, name));
        LS_TRY(ls_coll_log_barrier(&t->coll, s->epoch, "end"));
    }
    ls_stop_saving();
    LS_TRY(ls_ckpt_wait(t->writer));
    ls_worker_facts *facts = NULL;
    ls_pipe_report pipe = {0};
    LS_TRY(gather_facts(t, &facts)); /* also: nobody leaves before the last step is everyone's */
    ls_status st = ls_pipe_report_gather(t, &pipe);
    if (st == LS_OK && pipe.rows.data) {
        snprintf(path, sizeof path, "%s/pipeline.json", c->run_dir);
        st = ls_fs_write(path, pipe.rows.data, pipe.rows.len);
    }
    if (st != LS_OK) {
        ls_pipe_report_fini(&pipe);
        return st;
    }
    if (!writes) return LS_OK;
    st = ls_metrics_log_close(&t->log);
    if (st != LS_OK) {
        ls_pipe_report_fini(&pipe);
        return st;
    }

    ls_nccl_proof_end(t->proof);
    ls_run_metrics m = {.id = id,
                        .cfg = c,
                        .epoch = s->done,
                        .n_epoch = (int)s->epoch,
                        .total_wall_time = ls_now() - begin,
                        .compute_words = ls_compute_describe(&t->compute, words),
                        .plan_bytes = t->plan.total,
                        .device = t->compute.device ? &t->device : NULL,
                        .n_device = t->device.count,
                        .nccl = ls_comm_library(t->comm),
                        .scale = ls_loss_scale_skips(&s->scale) ? &s->scale : NULL,
                        .resumed_from_step = t->resumed_from,
                        .process_group = ls_comm_size(t->comm) > 1,
                        .comm = t->dp,
                        .tensor = t->tp,
                        .acts = t->pp_acts,
                        .grads = t->pp_grads,
                        .split = mean_split(t),
                        .n_split = t->n_split,
                        .n_untimed = t->n_untimed,
                        .worker = facts,
                        .n_worker = ls_comm_size(t->comm),
                        .more = write_more,
                        .more_ctx = &(more){t, &pipe}};
    ls_utc_stamp(m.end_utc);
    ls_str markers = {0};
    st = ls_artifacts_write(&m, &markers);
    if (markers.data) line(t, "%s", markers.data);
    ls_str_fini(&markers);
    say_pipeline(t, &pipe);
    ls_pipe_report_fini(&pipe);
    return st;
}
