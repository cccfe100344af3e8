/* reference_log.c - the stdout lines of the reference trainer R1 (docs/REFERENCES.md) and, with DIST_DEBUG=1, its log of collectives.
 *
 * R1 synchronises its workers at fixed points of an epoch and sums the epoch's numbers there. Lockstep does not need these collectives; they
 * run only for the log (coll_log.h). */
#include "train/train_impl.h"

#include <stdarg.h>
#include <stdio.h>

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

/* One line per steps_per_print micro-batches. */
static void show_step(ls_trainer *t, const ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    if (c->profile_mode || c->steps_per_print <= 0) return;
    const int64_t end = t->state.epoch_step * c->grad_accum, begin = end - c->grad_accum;
    const double held = (double)t->plan.total; /* on a device this is its only allocation, which never grows */
    const double peak = t->compute.device ? held : (double)train_peak_rss();
    for (int64_t s = begin; s < end; s++)
        if (s % c->steps_per_print == 0)
            line(t, "[Rank 0] Step %lld, Loss: %.4f, Mem Curr: %.2fMB, Mem Peak: %.2fMB\n", (long long)s, r->loss,
                 held / 1048576.0, peak / 1048576.0);
}

static void show_run(ls_trainer *t)
{
    line(t,
         "[Rank 0] Run config: micro_batch_size_per_gpu=%d, grad_accum_steps=%d, visible_gpus=%d, "
         "global_batch_size=%lld\n",
         t->cfg->micro_batch, t->cfg->grad_accum, t->device.count, (long long)t->cfg->global_batch);
}

static void show_epoch(ls_trainer *t, const ls_epoch_metrics *e)
{
    line(t, "[Rank 0] Epoch %lld finished. Avg Loss: %.4f, Time: %.2fs, Throughput: %.2f tokens/sec\n",
         (long long)e->epoch_idx, e->train_loss, e->wall_time,
         e->wall_time > 0 ? (double)e->tokens / e->wall_time : 0.0);
}

static ls_status log_ready(ls_trainer *t)
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

/* R1 sums and compares these numbers over its workers here; Lockstep has them after each step. */
static ls_status log_trained(ls_trainer *t)
{
    const ls_run_state *s = &t->state;
    const double device_bytes = t->compute.device ? (double)t->plan.total : 0;
    const double loss[2] = {s->loss_sum, (double)s->tokens}, steps = (double)(s->epoch_step * t->cfg->grad_accum);
    LS_TRY(ls_coll_log_barrier(&t->coll, s->epoch + 1, "train_loop_end"));
    LS_TRY(ls_coll_log_reduce(&t->coll, s->epoch + 1, "train_loss_tokens_sum", loss, 2));
    LS_TRY(ls_coll_log_reduce(&t->coll, s->epoch + 1, "train_steps_max", &steps, 1));
    return ls_coll_log_reduce(&t->coll, s->epoch + 1, "mem_max", &device_bytes, 1);
}

static ls_status validated(ls_trainer *t, const ls_event *e)
{
    const int64_t epoch = t->state.epoch + 1;
    if (!e->at_epoch) {
        line(t, "[Rank 0] Validation at step %lld. Average Loss: %.4f\n", (long long)t->state.step, e->val_loss);
        return LS_OK;
    }
    LS_TRY(ls_coll_log_reduce(&t->coll, epoch, "val_loss_tokens_sum", (double[]){e->val_loss, (double)e->n_val}, 2));
    if (e->n_val > 0)
        line(t, "[Rank 0] Validation Finished Epoch %lld. Average Loss: %.4f\n", (long long)epoch, e->val_loss);
    return LS_OK;
}

static ls_status epoch_begin(ls_trainer *t)
{
    LS_TRY(ls_coll_log_barrier(&t->coll, t->state.epoch + 1, "start"));
    return ls_coll_log_barrier(&t->coll, t->state.epoch + 1, "loop_start");
}

/* R1 saves at the end of an epoch only; the state counts that epoch already. */
static ls_status checkpoint(ls_trainer *t, const ls_event *e, const char *what)
{
    return e->at_epoch ? ls_coll_log_barrier(&t->coll, t->state.epoch, what) : LS_OK;
}

ls_status train_see_reference(void *ctx, ls_trainer *t, const ls_event *e)
{
    (void)ctx;
    switch (e->kind) {
    case LS_ON_RUN_BEGIN: show_run(t); break;
    case LS_ON_RUN_READY: return log_ready(t);
    case LS_ON_EPOCH_BEGIN: return epoch_begin(t);
    case LS_ON_STEP_LOG: show_step(t, e->step); break;
    case LS_ON_EPOCH_TRAINED: return log_trained(t);
    case LS_ON_EPOCH_END:
        show_epoch(t, e->epoch);
        return ls_coll_log_barrier(&t->coll, e->epoch->epoch_idx, "pre_validation");
    case LS_ON_VALIDATED: return validated(t, e);
    case LS_ON_CHECKPOINT_BEGIN: return checkpoint(t, e, "pre_checkpoint");
    case LS_ON_CHECKPOINT_END: return checkpoint(t, e, "end");
    case LS_ON_RUN_END: line(t, "%s", e->text); break;
    case LS_ON_SHUTDOWN_BEGIN: ls_coll_log_say(&t->coll, "SHUTDOWN_ENTER"); break;
    case LS_ON_SHUTDOWN_END:
        ls_coll_log_say(&t->coll, "SHUTDOWN_EXIT");
        ls_coll_log_close(&t->coll);
        break;
    default: break;
    }
    return LS_OK;
}
