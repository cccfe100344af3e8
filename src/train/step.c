/* step.c - one optimizer step.
 *
 *   for each micro-batch   input → forward (loss and the classifier's gradient) → backward; gradients are summed in the tree
 *   reduce over workers → loss, norm over fixed blocks → clip → AdamW on every unit
 *
 * One worker queues all of it: the decision about the update is made where the gradients are (compute/decide.h), and the host reads loss and
 * norm while AdamW runs. Several workers gather the norm, and their hosts decide.
 *
 * A step has G micro-batches over all workers; the samples of micro-batch g of step s are positions (s*G + g)*B … of the epoch. Losses
 * are added in the order of micro-batches, so a run reports the same numbers on any number of workers.
 *
 * Nothing here measures time: each phase is announced, and observers measure it (observe.h). */
#include "train/train_impl.h"

#include "compute/decide.h"
#include "config/auto.h"
#include "core/deadline.h"
#include "core/inject.h"
#include "core/rng.h"
#include "core/stop.h"

#include <limits.h>
#include <math.h>

/* One worker looks for itself, as long as no parameter has changed. */
static bool may_stop(const ls_trainer *t)
{
    return ls_comm_size(t->comm) == 1 && !t->updating;
}

ls_status train_acquire(void *ctx, int u, ls_pass pass)
{
    const ls_trainer *t = ctx;
    ls_deadline_tick();
    if (may_stop(t) && ls_stop_requested()) return ls_fail(LS_E_STOPPED, "nothing was saved");
    return ls_strategy_acquire(t->strategy, u, pass);
}

ls_status train_release(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_release(((ls_trainer *)ctx)->strategy, u, pass);
}

ls_status train_agree_to_stop(ls_trainer *t, int mine, int *most)
{
    int all = t->cfg->check && t->cfg->check->measured > 0 ? INT_MAX : mine;
    if (ls_comm_size(t->comm) > 1) LS_TRY(ls_agree(t->comm, ls_stop_requested() ? INT_MAX : all, LS_SITE, &all));
    if (most) *most = all;
    return all == INT_MAX ? ls_fail(LS_E_STOPPED, "a worker was asked to stop") : LS_OK;
}

static ls_status grad_ready(void *ctx, int u)
{
    const ls_trainer *t = ctx;
    if (ls_inject_on) LS_TRY(train_grad_faults(ctx, u));
    if (t->audit) LS_TRY(ls_audit_grad(t->audit, u));
    LS_TRY(ls_strategy_grad_ready(t->strategy, u));
    return ls_inject_on ? train_tree_faults(ctx, u) : LS_OK;
}

ls_status train_sum_losses(ls_trainer *t, double *pairs, int64_t n_each, int64_t n, bool strided, double sum[2])
{
    const int64_t W = ls_comm_size(t->dp), r = ls_comm_rank(t->dp);
    LS_TRY(ls_all_gather(t->dp, (ls_view){pairs, 2 * n_each * W, LS_F64},
                         (ls_view){pairs + 2 * n_each * r, 2 * n_each, LS_F64}, LS_SITE, NULL));
    sum[0] = sum[1] = 0;
    for (int64_t i = 0; i < n; i++) {
        const double *pair = pairs + 2 * (strided ? i % W * n_each + i / W : i);
        sum[0] += pair[0];
        sum[1] += pair[1];
    }
    if (!t->pp) return LS_OK; /* in a pipeline the last stage has the losses */
    return ls_broadcast(t->pp, (ls_view){sum, 2, LS_F64}, ls_comm_size(t->pp) - 1, LS_SITE, NULL);
}

static ls_status walk_to_loss(ls_trainer *t, ls_micro *mb, const ls_hooks *hooks, int m)
{
    const int head = t->model->n_unit - 1;
    TRAIN_PHASE(t, LS_PHASE_FORWARD, m, ls_walk(t->model, t->acts, mb, hooks, LS_FWD, 0, head));
    TRAIN_PHASE(t, LS_PHASE_LOSS, m, ls_walk(t->model, t->acts, mb, hooks, LS_FWD, head, head + 1));
    return LS_OK;
}

/* The pass of a single worker is the same sequence of operations in every step, so a device may record it as a whole, if the strategy's
 * hooks do nothing on the host (ls_strategy_records). Otherwise the passes of single units are recorded (model/walk.c). */
static ls_status run_pass(ls_trainer *t, ls_micro *mb, const ls_hooks *hooks, int m, ls_pass pass)
{
    ls_compute *c = &t->compute;
    const bool alone = ls_comm_size(t->comm) == 1;
    const bool region =
        c->ops->region_begin && alone && !t->pipe && !hooks->computed && ls_strategy_records(t->strategy);
    bool queued = false;
    if (may_stop(t) && ls_stop_requested()) return ls_fail(LS_E_STOPPED, "nothing was saved");
    const ls_fp8_state *fp8 = t->model->fp8;
    const uint64_t records = fp8 && !fp8->history.used; /* this step computes in bf16 (model/fp8.h) */
    if (region) LS_TRY(c->ops->region_begin(c, records << 32 | (2 * (uint64_t)m + (pass == LS_FWD)), &queued));
    if (queued) return LS_OK;
    const ls_status st = pass == LS_FWD ? walk_to_loss(t, mb, hooks, m)
                                        : ls_walk(t->model, t->acts, mb, hooks, LS_BWD, 0, t->model->n_unit);
    const ls_status end = region ? c->ops->region_end(c) : LS_OK;
    return st != LS_OK ? st : end;
}

/* Sets what depends on the number of a micro-batch in the step; returns the position of its first sample in the epoch. */
static int64_t place_micro(const ls_trainer *t, int64_t number, ls_micro *mb)
{
    const ls_train_config *c = t->cfg;
    const int64_t G = (int64_t)c->grad_accum * ls_comm_size(t->dp);
    mb->dloss = ls_loss_scale_now(&t->state.scale) / (double)(t->n_target ? t->n_target : 1);
    mb->drop_key = ls_rng_key(c->seed, LS_RNG_DROPOUT, (uint64_t)t->state.step, (uint64_t)number);
    return (t->state.epoch_step * G + number) * c->micro_batch;
}

ls_status train_load(ls_trainer *t, int64_t number, int m, int slot, ls_micro *mb)
{
    const ls_train_config *c = t->cfg;
    const int64_t first = place_micro(t, number, mb);
    int32_t *ids, *target;
    LS_TRY(ls_phase_begin(t, LS_PHASE_INPUT, m));
    LS_TRY(ls_phase_begin(t, LS_PHASE_READ, m));
    LS_TRY(ls_input_open(&t->input, slot, &ids, &target));
    LS_TRY(ls_tokens_batch(&t->train, c->seed, t->state.epoch, first, c->micro_batch, ids, target));
    LS_TRY(ls_phase_end(t, LS_PHASE_READ, m));
    LS_TRY(ls_input_send(&t->input, slot, mb));
    return ls_phase_end(t, LS_PHASE_INPUT, m);
}

/* The hooks of the passes of a step. */
static ls_hooks step_hooks(ls_trainer *t)
{
    const bool audited = ls_audit_runs(t->audit);
    return (ls_hooks){.ctx = t,
                      .acquire = train_acquire,
                      .release = train_release,
                      .grad_ready = grad_ready,
                      .computed = audited ? train_audit_computed : NULL,
                      .received = audited ? train_audit_received : NULL};
}

/* The checkpoint writer reads what an update changes. */
static ls_status wait_for_writer(ls_trainer *t)
{
    TRAIN_PHASE(t, LS_PHASE_WAIT, -1, train_save_release(t));
    return LS_OK;
}

/* Before the backward pass of the last micro-batch, which an offloaded optimizer may overlap. */
static ls_status begin_update(ls_trainer *t)
{
    if (!t->strategy->opts.overlap) return LS_OK;
    LS_TRY(wait_for_writer(t));
    t->updating = true;
    return LS_OK;
}

static ls_status micro_batch(ls_trainer *t, int m)
{
    const ls_hooks hooks = step_hooks(t);
    const int slot = m % t->input.n_slot;
    double *pair = t->micro_loss + 2 * ((int64_t)ls_comm_rank(t->dp) * t->cfg->grad_accum + m);
    ls_micro mb = {.B = t->cfg->micro_batch, .T = t->cfg->seq_len, .train = true, .loss = pair};
    LS_TRY(train_load(t, ls_strategy_micro_index(t->strategy, m), m, slot, &mb));
    pair[1] = (double)mb.n_counted;
    ls_strategy_begin(t->strategy, m);
    TRAIN_PHASE(t, LS_PHASE_PASS, m, run_pass(t, &mb, &hooks, m, LS_FWD));
    const bool known = !t->compute.device && !ls_audit_compares(t->audit); /* a device has not computed it yet */
    if (known && ls_comm_size(t->comm) == 1 && !isfinite(*pair))
        return train_numbers_failed(t, "the loss", *pair, false);
    if (m == t->cfg->grad_accum - 1) LS_TRY(begin_update(t));
    TRAIN_PHASE(t, LS_PHASE_BACKWARD, m, run_pass(t, &mb, &hooks, m, LS_BWD));
    return ls_input_used(&t->input, slot);
}

ls_status train_load_stage(ls_trainer *t, int64_t number, int m, int32_t *ids, int32_t *target, ls_micro *mb)
{
    const ls_train_config *c = t->cfg;
    const int64_t first = place_micro(t, number, mb);
    if (!ids && !target) return LS_OK;
    TRAIN_PHASE(t, LS_PHASE_STAGE_INPUT, m,
                ls_tokens_batch(&t->train, c->seed, t->state.epoch, first, c->micro_batch, ids ? ids : t->ids,
                                target ? target : t->target));
    return LS_OK;
}

/* What a stage of a pipeline needs of micro-batch m of this replica. */
static ls_status load_micro(void *ctx, int m, int32_t *ids, int32_t *target, ls_micro *mb)
{
    ls_trainer *t = ctx;
    return train_load_stage(t, ls_strategy_micro_index(t->strategy, m), m, ids, target, mb);
}

static ls_status pipeline(ls_trainer *t)
{
    const ls_hooks hooks = step_hooks(t);
    double *pairs = t->micro_loss + 2 * (int64_t)ls_comm_rank(t->dp) * t->cfg->grad_accum;
    LS_TRY(begin_update(t));
    TRAIN_PHASE(t, LS_PHASE_PIPELINE, -1,
                ls_pipe_step(t->pipe, t->strategy, &hooks, load_micro, t, (double(*)[2])pairs));
    return LS_OK;
}

/* One worker's device decides about the update itself, and the host reads the numbers while the update runs. The host decides if it has to do
 * something with them before the update: a state in host memory, an audit that compares. */
static bool device_decides(const ls_trainer *t)
{
    return ls_strategy_alone(t->strategy) && !t->strategy->opts.offload && !ls_audit_compares(t->audit);
}

static double unscale_now(const ls_trainer *t)
{
    return 1 / ls_loss_scale_now(&t->state.scale);
}

/* One worker: queues the norm and the decision about the update, and a mark after them. */
static ls_status queue_decision(ls_trainer *t)
{
    const ls_fp8_state *fp8 = t->model->fp8;
    const ls_device *d = t->compute.device;
    LS_TRY(ls_strategy_decide(t->strategy, (ls_decide){.clip = t->cfg->clip,
                                                       .unscale = unscale_now(t),
                                                       .loss = t->micro_loss,
                                                       .n_loss = t->cfg->grad_accum,
                                                       .amax = fp8 ? fp8->amax : NULL,
                                                       .n_amax = fp8 ? fp8->history.n : 0}));
    return d ? d->mark(d->ctx, &t->decided) : LS_OK;
}

/* The host waits for a device at this one point of a step. */
static ls_status read_norm(ls_trainer *t, ls_step_result *r)
{
    const ls_device *d = t->compute.device;
    double squares;
    if (ls_strategy_alone(t->strategy)) {
        if (d) LS_TRY(d->wait(d->ctx, t->decided));
        squares = t->strategy->decided->squares;
    } else {
        LS_TRY(ls_strategy_sum_squares(t->strategy, &squares));
        LS_TRY(ls_compute_sync(&t->compute)); /* a worker that does not update has losses, too */
    }
    r->grad_norm = ls_norm_of(squares, unscale_now(t));
    return LS_OK;
}

/* loss_sum: over the counted tokens of the step. */
static ls_status read_loss(ls_trainer *t, ls_step_result *r, double *loss_sum)
{
    const int64_t M = t->cfg->grad_accum;
    double sum[2];
    /* micro-batch m of rank p is number pM + m of the step, or mW + p */
    const bool strided =
        M > 1 && ls_strategy_micro_index(t->strategy, 1) != ls_strategy_micro_index(t->strategy, 0) + 1;
    LS_TRY(train_sum_losses(t, t->micro_loss, M, M * ls_comm_size(t->dp), strided, sum));
    *loss_sum = sum[0];
    r->loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
    return LS_OK;
}

/* ahead: the numbers are read after the update was queued. */
static ls_status norm_and_loss(ls_trainer *t, bool ahead, ls_step_result *r, double *loss_sum)
{
    LS_TRY(ls_phase_begin(t, LS_PHASE_NORM, -1));
    LS_TRY(ls_phase_begin(t, LS_PHASE_SQUARES, -1));
    if (ls_strategy_alone(t->strategy)) LS_TRY(queue_decision(t));
    if (!ahead) LS_TRY(read_norm(t, r));
    LS_TRY(ls_phase_end(t, LS_PHASE_SQUARES, -1));
    if (!ahead) LS_TRY(read_loss(t, r, loss_sum));
    return ls_phase_end(t, LS_PHASE_NORM, -1);
}

/* The run ends here on every worker: a checkpoint that is being written is completed first. */
static ls_status end_run(ls_trainer *t, const char *what, double value, bool at_gradient)
{
    train_save_finish(t);
    return train_numbers_failed(t, what, value, at_gradient);
}

/* All workers reach the same result. With loss scaling, a step whose gradients overflowed is skipped. */
static ls_status check_numbers(ls_trainer *t, ls_step_result *r)
{
    if (ls_loss_scale_skips(&t->state.scale)) {
        int skipped = !isfinite(r->grad_norm) || !isfinite(r->loss);
        r->loss_scale = ls_loss_scale_now(&t->state.scale);
        if (ls_comm_size(t->comm) > 1) LS_TRY(ls_agree(t->comm, skipped, LS_SITE, &skipped)); /* dp: rank 0 knows */
        r->skipped = skipped;
        return LS_OK;
    }
    if (!isfinite(r->loss)) return end_run(t, "the loss", r->loss, false);
    int wrong = !isfinite(r->grad_norm);
    if (t->strategy->ops->master && ls_comm_size(t->comm) > 1 && ls_ckpt_in_flight(t->writer))
        LS_TRY(ls_agree(t->comm, wrong, LS_SITE, &wrong)); /* dp: rank 0 knows; without a checkpoint it ends alone */
    if (wrong) train_save_finish(t);
    return isfinite(r->grad_norm) ? LS_OK : train_numbers_failed(t, "the gradient norm", r->grad_norm, true);
}

/* Memory that has changed, or replicas that differ, explain numbers that are not finite, which end the run. */
static ls_status explain_numbers(ls_trainer *t, const ls_step_result *r)
{
    int wrong = !isfinite(r->grad_norm) || !isfinite(r->loss);
    if (!ls_audit_compares(t->audit)) /* every worker has the same numbers, except with dp: no agreement in each step */
        return wrong && !t->strategy->ops->master ? ls_audit_replicas(t->audit) : LS_OK;
    if (ls_comm_size(t->comm) > 1) LS_TRY(ls_agree(t->comm, wrong, LS_SITE, &wrong)); /* dp: rank 0 knows */
    if (!wrong) return LS_OK;
    LS_TRY(wait_for_writer(t));
    return ls_audit_before_update(t->audit);
}

/* The scales of the next step. A maximum is exact, so they do not depend on the number of workers. Collective. */
static ls_status set_fp8_scales(ls_trainer *t, const ls_step_result *r)
{
    ls_fp8_history *h = &t->model->fp8->history;
    const int W = ls_comm_size(t->comm);
    float *mine = t->fp8_amax + (int64_t)ls_comm_rank(t->comm) * h->n, *all = t->fp8_amax;
    LS_TRY(ls_fp8_read(t->model, mine));
    LS_TRY(ls_all_gather(t->comm, (ls_view){all, (int64_t)h->n * W, LS_F32}, (ls_view){mine, h->n, LS_F32}, LS_SITE,
                         NULL));
    if (r->skipped) return ls_fp8_set(t->model);
    for (int i = 0; i < h->n; i++) {
        float most = all[i];
        for (int w = 1; w < W && isfinite(most); w++) /* the first that is not finite wins */
            if (!(all[w * h->n + i] <= most)) most = all[w * h->n + i];
        if (!isfinite(most)) return end_run(t, "an operand of a product in fp8", most, true);
        all[i] = most;
    }
    const int zero = ls_fp8_push(h, all);
    if (zero >= 0 && !t->fp8_zero) {
        char name[80];
        ls_fp8_name(zero, name, sizeof name);
        train_tell(
            t, "step %lld: %s was always 0, so it has no scale in fp8; steps are computed in bf16 until it is not 0\n",
            (long long)t->state.step + 1, name);
    }
    t->fp8_zero |= zero >= 0;
    return ls_fp8_set(t->model);
}

/* What follows from the numbers of a step, once they are known. */
static ls_status judge_numbers(ls_trainer *t, ls_step_result *r)
{
    if (t->audit) LS_TRY(explain_numbers(t, r));
    LS_TRY(check_numbers(t, r));
    return t->model->fp8 ? set_fp8_scales(t, r) : LS_OK;
}

/* ahead: r does not have the norm yet, the device does. */
static ls_status clip_and_update(ls_trainer *t, bool ahead, ls_step_result *r)
{
    const double factor = ahead ? 1 : ls_grad_factor(r->grad_norm, t->cfg->clip, unscale_now(t));
    LS_TRY(ls_phase_begin(t, LS_PHASE_UPDATE, -1));
    if (t->audit) LS_TRY(ls_audit_before_update(t->audit));
    if (!r->skipped) LS_TRY(train_optimizer_pass(t, r->lr, factor, ahead ? t->strategy->decision : NULL));
    LS_TRY(ls_strategy_step_done(t->strategy));
    return ls_phase_end(t, LS_PHASE_UPDATE, -1);
}

/* The update is queued, and did nothing if a number is not finite. */
static ls_status read_numbers(ls_trainer *t, ls_step_result *r, double *loss_sum)
{
    LS_TRY(read_norm(t, r));
    LS_TRY(read_loss(t, r, loss_sum));
    return judge_numbers(t, r);
}

static ls_status count_step(ls_trainer *t, const ls_step_result *r, double loss_sum)
{
    const ls_train_config *c = t->cfg;
    ls_run_state *s = &t->state;
    if (ls_loss_scale_skips(&s->scale)) LS_TRY(ls_loss_scale_update(&s->scale, r->skipped));
    s->skipped += r->skipped;
    s->epoch_skipped += r->skipped;
    s->step++;
    s->epoch_step++;
    if (isfinite(loss_sum)) s->loss_sum += loss_sum; /* a step that overflowed may have none */
    s->tokens += (int64_t)c->micro_batch * c->seq_len * c->grad_accum * ls_comm_size(t->dp);
    s->targets += t->n_target;
    return LS_OK;
}

/* The counted targets of the step on all workers: every worker computes them from the order of the samples, so that the factor of the
 * gradients, and with it every bit, does not depend on the layout. */
static int64_t count_targets(const ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    const int64_t n = (int64_t)c->grad_accum * ls_comm_size(t->dp) * c->micro_batch;
    return ls_tokens_counted(&t->train, c->seed, t->state.epoch, t->state.epoch_step * n, n);
}

static ls_status step(ls_trainer *t, ls_step_result *r)
{
    double loss_sum = 0;
    *r = (ls_step_result){0};
    t->n_target = count_targets(t);
    t->updating = false;
    r->lr = ls_lr_at(&t->cfg->lr, ls_next_update(&t->state));
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_STEP_BEGIN, .step = r}));

    int busy = 0;
    TRAIN_PHASE(t, LS_PHASE_START, -1, train_agree_to_stop(t, train_save_busy(t), &busy));
    if (t->cfg->save_async) LS_TRY(train_save_advance(t, busy));
    if (t->model->fp8) ls_fp8_begin_step(t->model); /* before any pass, also those of an audit */
    if (t->audit) LS_TRY(ls_audit_before_passes(t->audit));
    if (t->audit && t->model->fp8) ls_fp8_begin_step(t->model); /* a wrong bit of the copies is not in both passes */
    LS_TRY(train_optimizer_begin(t, r->lr));
    if (t->pipe) LS_TRY(pipeline(t));
    for (int m = 0; m < t->cfg->grad_accum && !t->pipe; m++) LS_TRY(micro_batch(t, m));
    TRAIN_PHASE(t, LS_PHASE_REDUCE, -1, ls_strategy_step_due(t->strategy));
    if (t->audit) LS_TRY(ls_audit_after_passes(t->audit)); /* before a NaN that a wrong bit has made ends the run */
    const bool ahead = device_decides(t);
    LS_TRY(norm_and_loss(t, ahead, r, &loss_sum));
    if (!ahead) LS_TRY(judge_numbers(t, r));
    if (!t->updating) LS_TRY(wait_for_writer(t));
    LS_TRY(clip_and_update(t, ahead, r));
    if (ahead) TRAIN_PHASE(t, LS_PHASE_NUMBERS, -1, read_numbers(t, r, &loss_sum));
    t->updating = false; /* a validation may be stopped */
    LS_TRY(count_step(t, r, loss_sum));
    if (t->audit) LS_TRY(ls_audit_after_update(t->audit));
    return ls_observe(t, &(ls_event){.kind = LS_ON_STEP_END, .step = r});
}

ls_status ls_trainer_step(ls_trainer *t, ls_step_result *r)
{
    return train_own_failure(t, step(t, r));
}

ls_status train_own_failure(ls_trainer *t, ls_status st)
{
    t->broken = t->broken || (st != LS_OK && st != LS_E_STOPPED && st != LS_E_COMM);
    return st;
}
