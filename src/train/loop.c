/* loop.c - a run from its first step to its final files.
 *
 *   epoch   steps → validation → checkpoint epoch-N        every save_every steps: step-N (save.c), every eval_every: validation
 *   end     the files of the run (run_files.c)
 *
 * Lines, metrics and measurements are made by observers of the events that are emitted here (observe.h). */
#include "train/train_impl.h"

#include "config/auto.h"
#include "config/run_options.h"
#include "core/argv.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/stop.h"

#include <stdio.h>
#include <stdlib.h>

static bool reached_limit(const ls_trainer *t)
{
    return t->state.step >= t->cfg->total_steps;
}

static bool is_over(const ls_trainer *t)
{
    return t->state.epoch >= t->cfg->epochs || (reached_limit(t) && t->state.epoch_step == 0);
}

/* One step with the validation and the checkpoint that are due after it. */
static ls_status one_step(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    const ls_run_state *s = &t->state;
    ls_step_result r;
    ls_event e = {.kind = LS_ON_STEP_LOG, .step = &r};
    LS_TRY(ls_trainer_step(t, &r));
    const bool ends = s->epoch_step == c->steps_per_epoch || reached_limit(t);
    ls_status validated = LS_OK;
    if (c->eval_every > 0 && s->step % c->eval_every == 0 && !ends && t->val.n_seq)
        validated = ls_trainer_validate(t, &e.val_loss, &e.n_val);
    if (validated != LS_E_STOPPED) LS_TRY(validated);
    LS_TRY(ls_observe(t, &e)); /* also if the validation was stopped: the step is complete, and saved with the stop */
    LS_TRY(validated);
    e.kind = LS_ON_VALIDATED;
    if (e.n_val) LS_TRY(ls_observe(t, &e));
    if (ends) return LS_OK;
    LS_TRY(train_save_due(t));
    if (c->check && !ls_comm_rank(t->comm) && t->saving.began <= 0) /* a run with a checkpoint goes on as it is */
        ls_auto_watch(c->check, s->step, r.t_total, ls_now());
    return LS_OK;
}

/* --eval_on_start: the loss of the initial weights. */
static ls_status first_validation(ls_trainer *t)
{
    ls_event e = {.kind = LS_ON_VALIDATED};
    if (!t->cfg->eval_on_start || t->state.step || !t->val.n_seq) return LS_OK;
    LS_TRY(ls_trainer_validate(t, &e.val_loss, &e.n_val));
    return e.n_val ? ls_observe(t, &e) : LS_OK;
}

static ls_status epoch_steps(ls_trainer *t)
{
    ls_run_state *s = &t->state;
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_EPOCH_BEGIN}));
    while (s->epoch_step < t->cfg->steps_per_epoch && !reached_limit(t)) LS_TRY(one_step(t));
    return ls_observe(t, &(ls_event){.kind = LS_ON_EPOCH_TRAINED});
}

static ls_status finish_epoch(ls_trainer *t)
{
    ls_run_state *s = &t->state;
    ls_epoch_metrics *e = &s->done[s->epoch];
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_EPOCH_END, .epoch = e}));
    if (t->val.n_seq) {
        ls_event v = {.kind = LS_ON_VALIDATED, .at_epoch = true};
        LS_TRY(ls_trainer_validate(t, &e->val_loss, &v.n_val));
        v.val_loss = e->val_loss;
        e->has_val = true;
        LS_TRY(ls_observe(t, &v));
    }
    s->epoch++;
    s->epoch_step = s->epoch_skipped = s->tokens = s->targets = 0;
    s->loss_sum = s->epoch_time = s->norm_max = 0;
    return LS_OK;
}

/* Rank 0 says what the run continues from when its last state could not be saved. Keeps the failure. */
static void tell_newest(const ls_trainer *t, const char *advice)
{
    char *path = NULL;
    ls_err_kept why;
    if (ls_comm_rank(t->comm)) return;
    ls_err_keep(&why);
    if (ls_ckpt_latest(t->cfg->run_dir, &path) == LS_OK)
        train_tell(t, "lockstep: step %lld could not be saved before the stop; %s%s%s\n", (long long)t->state.step,
                   path ? "the newest checkpoint is " : "there is no checkpoint", path ? path : "", path ? advice : "");
    ls_free(path);
    ls_err_restore(&why);
}

/* Saves the state of the last finished step, as step-N: no parameter has changed since. */
static ls_status save_and_stop(ls_trainer *t)
{
    char advice[sizeof(ls_quoted_word) + 4096];
    ls_str s = {0};
    if (!getenv("LOCKSTEP_ATTEMPT")) /* a supervisor may continue the run itself */
        ls_str_addf(&s, "; to continue: lockstep train --resume %s", ls_quoted(t->cfg->run_dir).text);
    if (s.len) ls_run_options_typed(t->cfg->run_dir, "again", &s);
    snprintf(advice, sizeof advice, "%s", s.data ? s.data : "");
    ls_str_fini(&s);
    ls_stop_saving();
    const ls_status saved = train_save_stop(t);
    if (saved != LS_OK) tell_newest(t, advice);
    LS_TRY(saved);
    train_save_forget(t);
    t->live.stopped = true;
    return ls_fail(LS_E_STOPPED, "%ssaved %s/step-%lld%s", ls_stop_signal() ? "" : "a worker was asked to stop; ",
                   t->cfg->run_dir, (long long)t->state.step, advice);
}

/* The files of a complete run stay as they are. */
static ls_status nothing_left(const ls_trainer *t)
{
    char text[800];
    const ls_train_config *c = t->cfg;
    const ls_run_state *s = &t->state;
    char limit[80] = "--max_steps or --epochs";
    if (c->max_steps > 0 && s->step >= c->max_steps)
        snprintf(limit, sizeof limit, "--max_steps (it is %lld) above %lld", (long long)c->max_steps,
                 (long long)s->step);
    const bool limited = c->max_train_steps >= 0 || s->step < c->total_steps;
    snprintf(text, sizeof text,
             "nothing is left to do: the run in %.400s is complete after %lld step%s and %lld epoch%s; "
             "to continue it, raise %s%s\n",
             c->run_dir, (long long)s->step, s->step == 1 ? "" : "s", (long long)s->epoch, s->epoch == 1 ? "" : "s",
             limit, limited ? " (a higher --max_train_steps does not continue epochs that are complete)" : "");
    if (t->io.line) t->io.line(t->io.ctx, text);
    return LS_OK;
}

/* A run whose updates are all skipped has the weights that it began with, and ends without an error. */
static void warn_skipped(const ls_trainer *t)
{
    const ls_run_state *s = &t->state;
    if (s->skipped)
        train_tell(
            t,
            "warning: %lld of %lld updates were skipped, because their gradients were not finite (\"skipped\" in "
            "metrics.jsonl)\n",
            (long long)s->skipped, (long long)s->step);
}

ls_status ls_trainer_run(ls_trainer *t, const ls_run_identity *id)
{
    if (t->complete) return nothing_left(t);
    ls_run_state *s = &t->state;
    ls_info("train", "%lld epoch%s of %lld step%s, from step %lld to %lld", (long long)t->cfg->epochs,
            t->cfg->epochs == 1 ? "" : "s", (long long)t->cfg->steps_per_epoch, t->cfg->steps_per_epoch == 1 ? "" : "s",
            (long long)s->step, (long long)t->cfg->total_steps);
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_RUN_BEGIN}));
    LS_TRY(train_begin_files(t));
    LS_TRY(train_save_begin(t));
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_RUN_READY}));
    const ls_status first = first_validation(t);
    t->live.stopped = first == LS_E_STOPPED; /* nothing to save */
    LS_TRY(first);
    while (!is_over(t)) {
        ls_status st = epoch_steps(t);
        if (st == LS_OK) st = finish_epoch(t);
        if (st == LS_E_STOPPED && t->cfg->check && t->cfg->check->measured > 0) {
            t->live.stopped = true; /* its files are removed */
            return st;
        }
        if (st == LS_E_STOPPED) return save_and_stop(t);
        LS_TRY(st);
        if (!is_over(t)) LS_TRY(train_save_epoch(t));
    }
    ls_stop_saving();
    LS_TRY(train_save_last(t));
    train_save_forget(t);
    warn_skipped(t);
    return train_end_files(t, id);
}
