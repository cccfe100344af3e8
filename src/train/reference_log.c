/* reference_log.c - with --run_type or --reference_output the stdout lines of the trainer of the ZeRO scaling study
 * (docs/REFERENCES.md), and with DIST_DEBUG=1 its log of collectives.
 *
 * The scaling study synchronises its workers at fixed points of an epoch and sums the epoch's numbers there. Lockstep
 * does not need these collectives: they run only for the log, between steps, and their results are not used. The log
 * goes to stdout and is appended to <run>/rank_logs/rank<r>.log:
 *
 *   [Rank 0] COLL_ENTER seq=7 op=all_reduce tag=epoch_1_train_steps_max dtype=float64 shape=(1,)
 *   [Rank 0] COLL_EXIT  seq=7 op=all_reduce tag=epoch_1_train_steps_max
 *
 * A worker whose last line is an ENTER waits there for workers with a lower seq. */
#include "train/train_impl.h"

#include "core/fs.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 2 }; /* values of a reduction */

/* ---- the log of collectives ---- */

static ls_status open_log(ls_trainer *t)
{
    const size_t nbytes = (size_t)ls_comm_size(t->comm) * MOST * sizeof(double);
    ls_coll_log log = {.on = true, .rank = ls_comm_rank(t->comm), .room = ls_comm_alloc(t->comm, nbytes)};
    char dir[PATH_MAX], path[PATH_MAX];
    if (!log.room) return ls_nomem(nbytes, "the log of collectives");
    LS_TRY(ls_path_in(dir, t->cfg->run_dir, "rank_logs"));
    LS_TRY(ls_path_in(path, dir, "rank%d.log", log.rank));
    LS_TRY(ls_fs_mkdirs(dir));
    log.fd = ls_fs_open_lines(path);
    if (log.fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", path, strerror(errno));
    t->coll = log;
    return LS_OK;
}

static void log_line(ls_trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Writes "[Rank r] " and the text. When the file cannot be written, it is closed with a warning and the run continues. */
static void log_line(ls_trainer *t, const char *fmt, ...)
{
    ls_coll_log *l = &t->coll;
    char words[400], text[432];
    ls_err_kept error;
    va_list ap;
    if (!l->on) return;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    snprintf(text, sizeof text, "[Rank %d] %s\n", l->rank, words);
    if (t->io.debug) t->io.debug(t->io.ctx, text);
    if (l->fd < 0) return;
    ls_err_keep(&error); /* a run that failed has one to report */
    if (ls_fs_append(l->fd, "its file", text, strlen(text)) == LS_OK) return;
    ls_warn("train", "rank_logs/rank%d.log ends here: %s", l->rank, ls_err_words());
    ls_err_restore(&error);
    close(l->fd);
    l->fd = -1;
}

/* The tag is "epoch_<epoch>_<what>", or `what` alone with epoch 0. n: values to reduce; 0: a barrier. Collective. */
static ls_status log_reduce(ls_trainer *t, int64_t epoch, const char *what, const double *value, int n)
{
    const ls_view all = {t->coll.room, (int64_t)ls_comm_size(t->comm) * n, LS_F64};
    double mine[MOST] = {0};
    char tag[64], shape[40] = "";
    if (!t->coll.on) return LS_OK;
    const long long seq = (long long)++t->coll.seq;
    const char *op = n ? "all_reduce" : "barrier";
    if (epoch) snprintf(tag, sizeof tag, "epoch_%lld_%s", (long long)epoch, what);
    else snprintf(tag, sizeof tag, "%s", what);
    if (n) snprintf(shape, sizeof shape, " dtype=float64 shape=(%d,)", n);
    log_line(t, "COLL_ENTER seq=%lld op=%s tag=%s%s", seq, op, tag, shape);
    if (n) memcpy(mine, value, (size_t)n * sizeof *mine);
    /* a gather has what a sum and a largest need, and takes host memory under every communicator */
    LS_TRY(n ? ls_all_gather(t->comm, all, (ls_view){mine, n, LS_F64}, LS_SITE, NULL) : ls_barrier(t->comm, LS_SITE));
    log_line(t, "COLL_EXIT  seq=%lld op=%s tag=%s", seq, op, tag);
    return LS_OK;
}

static ls_status log_barrier(ls_trainer *t, int64_t epoch, const char *what)
{
    return log_reduce(t, epoch, what, NULL, 0);
}

/* ---- lines on stdout ---- */

static void line(ls_trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void line(ls_trainer *t, const char *fmt, ...)
{
    if (!t->io.line || !t->cfg->reference_output) return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    t->io.line(t->io.ctx, text);
}

/* One line per steps_per_print micro-batches. */
static void show_step(ls_trainer *t, const ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    if (c->profile_mode || c->steps_per_print <= 0) return;
    const int64_t end = t->state.epoch_step * c->grad_accum, begin = end - c->grad_accum;
    const double held = (double)ls_trainer_held_bytes(t);
    const double peak = t->compute.device ? held : (double)train_peak_rss();
    for (int64_t s = begin; s < end; s++)
        if (s % c->steps_per_print == 0)
            line(t, "[Rank 0] Step %lld, Loss: %.4f, Mem Curr: %.2fMB, Mem Peak: %.2fMB\n", (long long)s, r->loss,
                 held / 1048576.0, peak / 1048576.0);
}

static ls_status log_ready(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    if (!c->dist_debug) return LS_OK;
    const int64_t W = ls_comm_size(t->dp), train = t->train.n_seq / c->micro_batch,
                  val = ls_train_val_batches(c, t->val.n_seq);
    LS_TRY(open_log(t));
    LS_TRY(log_barrier(t, 0, "post_deepspeed_init"));
    log_line(t, "DATA_INFO train_dataloader_len=%lld val_dataloader_len=%lld", (long long)(train / W),
             (long long)((val + W - 1) / W));
    return log_barrier(t, 0, "pre_training_loop");
}

/* The scaling study sums and compares these numbers over its workers here; Lockstep has them after each step. */
static ls_status log_trained(ls_trainer *t)
{
    const ls_run_state *s = &t->state;
    const double device_bytes = t->compute.device ? (double)ls_trainer_held_bytes(t) : 0;
    const double loss[2] = {s->loss_sum, (double)s->targets}, steps = (double)(s->epoch_step * t->cfg->grad_accum);
    LS_TRY(log_barrier(t, s->epoch + 1, "train_loop_end"));
    LS_TRY(log_reduce(t, s->epoch + 1, "train_loss_tokens_sum", loss, 2));
    LS_TRY(log_reduce(t, s->epoch + 1, "train_steps_max", &steps, 1));
    return log_reduce(t, s->epoch + 1, "mem_max", &device_bytes, 1);
}

static ls_status validated(ls_trainer *t, const ls_event *e)
{
    const int64_t epoch = t->state.epoch + 1;
    if (!e->at_epoch) {
        line(t, "[Rank 0] Validation at step %lld. Average Loss: %.4f\n", (long long)t->state.step, e->val_loss);
        return LS_OK;
    }
    LS_TRY(log_reduce(t, epoch, "val_loss_tokens_sum", (double[]){e->val_loss, (double)e->n_val}, 2));
    if (e->n_val > 0)
        line(t, "[Rank 0] Validation Finished Epoch %lld. Average Loss: %.4f\n", (long long)epoch, e->val_loss);
    return LS_OK;
}

/* The scaling study saves at the end of an epoch only; the state counts that epoch already. */
static ls_status checkpoint(ls_trainer *t, const ls_event *e, const char *what)
{
    return e->at_epoch ? log_barrier(t, t->state.epoch, what) : LS_OK;
}

ls_status train_see_reference(ls_trainer *t, const ls_event *e)
{
    const ls_epoch_metrics *done = e->epoch;
    switch (e->kind) {
    case LS_ON_RUN_BEGIN:
        line(
            t,
            "[Rank 0] Run config: micro_batch_size_per_gpu=%d, grad_accum_steps=%d, visible_gpus=%d, global_batch_size=%lld\n",
            t->cfg->micro_batch, t->cfg->grad_accum, t->device.count, (long long)t->cfg->global_batch);
        break;
    case LS_ON_RUN_READY: return log_ready(t);
    case LS_ON_EPOCH_BEGIN:
        LS_TRY(log_barrier(t, t->state.epoch + 1, "start"));
        return log_barrier(t, t->state.epoch + 1, "loop_start");
    case LS_ON_STEP_LOG: show_step(t, e->step); break;
    case LS_ON_EPOCH_TRAINED: return log_trained(t);
    case LS_ON_EPOCH_END:
        line(t, "[Rank 0] Epoch %lld finished. Avg Loss: %.4f, Time: %.2fs, Throughput: %.2f tokens/sec\n",
             (long long)done->epoch_idx, done->train_loss, done->wall_time,
             done->wall_time > 0 ? (double)done->tokens / done->wall_time : 0.0);
        return log_barrier(t, done->epoch_idx, "pre_validation");
    case LS_ON_VALIDATED: return validated(t, e);
    case LS_ON_CHECKPOINT_BEGIN: return checkpoint(t, e, "pre_checkpoint");
    case LS_ON_CHECKPOINT_END: return checkpoint(t, e, "end");
    case LS_ON_RUN_END: line(t, "%s", e->text); break;
    case LS_ON_SHUTDOWN_BEGIN: log_line(t, "SHUTDOWN_ENTER"); break;
    case LS_ON_SHUTDOWN_END:
        log_line(t, "SHUTDOWN_EXIT");
        if (t->coll.on && t->coll.fd >= 0) close(t->coll.fd);
        t->coll = (ls_coll_log){0};
        break;
    default: break;
    }
    return LS_OK;
}
