/* loop.c - a run from its first step to its final files.
 *
 *   epoch   steps → validation → checkpoint epoch-N        every save_every steps: step-N, every eval_every: validation
 *   end     the files of the run (run_files.c)
 *
 * Lines, metrics and measurements are made by observers of the events that are emitted here (observe.h).
 *
 * The wall time of an epoch is that of its steps, without validation, without checkpoints, and without the part of a step that waited for
 * a checkpoint. */
#include "train/train_impl.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/stop.h"

#include <math.h>
#include <stdio.h>

static bool reached_limit(const ls_trainer *t)
{
    return t->state.step >= t->cfg->total_steps;
}

/* Posts the checkpoint epoch-N or step-N. */
static ls_status save(ls_trainer *t, bool at_epoch)
{
    char name[32];
    snprintf(name, sizeof name, "%s-%lld", at_epoch ? "epoch" : "step",
             (long long)(at_epoch ? t->state.epoch : t->state.step));
    ls_event e = {.kind = LS_ON_CHECKPOINT_BEGIN, .text = name, .at_epoch = at_epoch};
    LS_TRY(ls_observe(t, &e));
    LS_TRY(ls_trainer_save(t, name));
    e.kind = LS_ON_CHECKPOINT_END;
    return ls_observe(t, &e);
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

/* Warns about a value far above the recent ones. */
static void watch(ls_trainer *t, ls_spread *s, const char *what, double x)
{
    const ls_spread past = *s;
    if (!ls_spread_add(s, x)) return;
    t->state.n_spike++;
    ls_warn("train", "step %lld: %s %.4g is a spike (recent mean %.4g, deviation %.3g)", (long long)t->state.step, what,
            x, past.mean, sqrt(past.var));
}

/* What the state keeps of a step besides its position. */
static void account(ls_trainer *t, const ls_step_result *r)
{
    ls_run_state *s = &t->state;
    s->epoch_time += r->t_total - r->t_wait;
    if (r->skipped) return;
    s->norm_last = r->grad_norm;
    s->norm_max = fmax(s->norm_max, r->grad_norm);
    if (ls_comm_rank(t->comm)) return;
    watch(t, &s->loss_spread, "the loss", r->loss);
    watch(t, &s->norm_spread, "the gradient norm", r->grad_norm);
}

/* One step with the validation and the checkpoint that are due after it. */
static ls_status one_step(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    const ls_run_state *s = &t->state;
    ls_step_result r;
    ls_event e = {.kind = LS_ON_STEP_LOG, .step = &r};
    LS_TRY(ls_trainer_step(t, &r));
    ls_comm_expect(t->comm, r.t_total);
    ls_debug(
        "train",
        "step %lld: loss %.4f, %.4f s (input %.4f, forward %.4f, backward %.4f, exposed communication %.4f, optimizer %.4f)",
        (long long)s->step, r.loss, r.t_total, r.split.input, r.split.forward, r.split.backward, r.split.comm_exposed,
        r.split.optimizer);
    account(t, &r);
    const bool ends = s->epoch_step == c->steps_per_epoch || reached_limit(t);
    if (c->eval_every > 0 && s->step % c->eval_every == 0 && !ends && t->val.n_seq)
        LS_TRY(ls_trainer_validate(t, &e.val_loss, &e.n_val));
    LS_TRY(ls_observe(t, &e));
    e.kind = LS_ON_VALIDATED;
    if (e.n_val) LS_TRY(ls_observe(t, &e));
    return c->save_every > 0 && s->step % c->save_every == 0 && !ends ? save(t, false) : LS_OK;
}

static ls_status epoch_steps(ls_trainer *t)
{
    ls_run_state *s = &t->state;
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_EPOCH_BEGIN}));
    while (s->epoch_step < t->cfg->steps_per_epoch && !reached_limit(t)) LS_TRY(one_step(t));
    const double begin = ls_now(); /* a device may still execute the last update */
    LS_TRY(ls_compute_sync(&t->compute));
    s->epoch_time += ls_now() - begin;
    return ls_observe(t, &(ls_event){.kind = LS_ON_EPOCH_TRAINED});
}

/* The largest value over all workers; with more workers than fit into a small message, the own value. */
static ls_status max_over_workers(ls_trainer *t, double mine, double *largest)
{
    double all[LS_COMM_SMALL / sizeof(double)];
    const int W = ls_comm_size(t->comm);
    *largest = mine;
    if (!t->compute.device || W == 1 || W > (int)(sizeof all / sizeof *all)) return LS_OK;
    LS_TRY(ls_all_gather(t->comm, (ls_view){all, W, LS_F64}, (ls_view){&mine, 1, LS_F64}, LS_SITE, NULL));
    for (int r = 0; r < W; r++) *largest = fmax(*largest, all[r]);
    return LS_OK;
}

static ls_status measure_epoch(ls_trainer *t, ls_epoch_metrics *e)
{
    const ls_train_config *c = t->cfg;
    const ls_run_state *s = &t->state;
    const ls_step_clock *k = &t->clock;
    const double bytes = t->compute.device ? (double)t->plan.total : 0; /* the plan is the only allocation */
    double most_bytes;
    LS_TRY(max_over_workers(t, bytes, &most_bytes));
    *e = (ls_epoch_metrics){.epoch_idx = s->epoch + 1,
                            .wall_time = s->epoch_time,
                            .train_loss = s->targets ? s->loss_sum / (double)s->targets : 0,
                            .micro_steps = s->epoch_step * c->grad_accum,
                            .grad_accum = c->grad_accum,
                            .tokens = s->tokens,
                            .n_sample = k->n_sample,
                            .step = ls_stats_of(k->sample_step, k->n_sample),
                            .dataload = ls_stats_of(k->sample_data, k->n_sample),
                            .updates_applied = s->epoch_step - s->epoch_skipped,
                            .updates_skipped = s->epoch_skipped,
                            .sequences_dropped = c->dropped_seqs,
                            .n_update = k->n_update,
                            .update = ls_stats_of(k->update_time, k->n_update),
                            .grad_norm_max = s->norm_max,
                            .grad_norm_last = s->norm_last,
                            .cuda_bytes = (int64_t)bytes,
                            .cuda_bytes_global = (int64_t)most_bytes,
                            .peak_rss_bytes = train_peak_rss()};
    return LS_OK;
}

static ls_status finish_epoch(ls_trainer *t)
{
    ls_run_state *s = &t->state;
    ls_epoch_metrics *e = &s->done[s->epoch];
    LS_TRY(measure_epoch(t, e));
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_EPOCH_END, .epoch = e}));
    if (t->val.n_seq) {
        ls_event v = {.kind = LS_ON_VALIDATED, .at_epoch = true};
        LS_TRY(ls_trainer_validate(t, &e->val_loss, &v.n_val));
        v.val_loss = e->val_loss;
        e->has_val = v.n_val > 0;
        LS_TRY(ls_observe(t, &v));
    }
    s->epoch++;
    s->epoch_step = s->epoch_skipped = s->tokens = s->targets = 0;
    s->loss_sum = s->epoch_time = s->norm_max = 0;
    return LS_OK;
}

/* Saves the state of the last finished step, as step-N: no parameter has changed since. */
static ls_status save_and_stop(ls_trainer *t, double total_time)
{
    t->state.total_time = total_time;
    ls_stop_saving();
    LS_TRY(save(t, false));
    LS_TRY(ls_ckpt_wait(t->writer));
    return ls_fail(LS_E_STOPPED, "%ssaved %s/step-%lld; continue with --resume",
                   ls_stop_signal() ? "" : "a worker was asked to stop; ", t->cfg->run_dir, (long long)t->state.step);
}

ls_status ls_trainer_run(ls_trainer *t, const ls_run_identity *id)
{
    ls_run_state *s = &t->state;
    const double begin = ls_now() - s->total_time;
    ls_info("train", "%lld epoch%s of %lld step%s, from step %lld to %lld", (long long)t->cfg->epochs,
            t->cfg->epochs == 1 ? "" : "s", (long long)t->cfg->steps_per_epoch, t->cfg->steps_per_epoch == 1 ? "" : "s",
            (long long)s->step, (long long)t->cfg->total_steps);
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_RUN_BEGIN}));
    LS_TRY(train_begin_files(t));
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_RUN_READY}));
    while (s->epoch < t->cfg->epochs && !(reached_limit(t) && s->epoch_step == 0)) {
        ls_status st = epoch_steps(t);
        if (st == LS_OK) st = finish_epoch(t);
        if (st == LS_E_STOPPED) return save_and_stop(t, ls_now() - begin);
        LS_TRY(st);
        s->total_time = ls_now() - begin;
        LS_TRY(save(t, true));
    }
    ls_stop_saving();
    LS_TRY(ls_ckpt_wait(t->writer));
    return train_end_files(t, id, begin);
}
