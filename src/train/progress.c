/* progress.c - what a run shows while it trains (core/progress.h): the status of the newest step, and lines for events: validations,
 * checkpoints, epochs. With reference output (reference_log.c) events, and steps outside a terminal, have the lines of the scaling study instead. */
#include "core/cores.h"
#include "train/train_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool train_shows_events(const ls_trainer *t)
{
    return t->io.event && !t->cfg->reference_output;
}

void train_event(ls_trainer *t, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    if (!train_shows_events(t)) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    t->io.event(t->io.ctx, text);
}

static void add_step(const ls_trainer *t, ls_progress_line *l)
{
    ls_progress_add(l, 0, "step %lld/%lld", (long long)t->state.step, (long long)t->cfg->total_steps);
}

/* The first steps are slower and count less. */
static void keep_pace(ls_pace *p, double seconds)
{
    p->n++;
    p->seconds += p->n <= 2 ? seconds - p->seconds : fmax(0.05, 1.0 / (double)(p->n - 1)) * (seconds - p->seconds);
}

#define SKIPPED "update skipped: the gradient is not finite"

static void show_step(ls_trainer *t, const ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    const double rate = (double)(c->global_batch * c->seq_len) / t->pace.seconds;
    const double bytes = t->compute.device ? (double)ls_trainer_held_bytes(t) : (double)train_peak_rss();
    char text[32];
    ls_progress_line l = {0};
    add_step(t, &l);
    ls_progress_add(&l, 1, "loss %.4f", r->loss);
    if (ls_progress_live()) ls_progress_add(&l, 4, "mean %.4f", t->state.loss_spread.mean);
    ls_progress_add(&l, 6, "lr %.3g", r->lr);
    if (r->skipped) ls_progress_add(&l, 1, SKIPPED);
    else ls_progress_add(&l, 7, "norm %.3g", r->grad_norm);
    ls_progress_add(&l, 3, "%.0f tokens/s", rate);
    ls_progress_add(&l, 8, "%.3f TFLOP/s", rate * ls_flops_per_token(&c->model, c->seq_len) / 1e12);
    ls_progress_add(&l, 2, "eta %s", ls_human_time(text, (double)(c->total_steps - t->state.step) * t->pace.seconds));
    ls_progress_add(&l, 5, "mem %s%s", ls_human_bytes(text, bytes), ls_comm_size(t->comm) > 1 ? " (rank 0)" : "");
    t->status = l;
    t->io.progress(t->io.ctx, &l);
}

/* --steps_per_print N: whether one of the micro-batches of this step is the N-th. */
static bool is_asked_for(const ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    const int64_t end = t->state.step * c->grad_accum, n = c->print_every;
    return n > 0 && end / n != (end - c->grad_accum) / n;
}

/* Cores that were not used are those of steps alone; waiting for a core is counted from the first step on. Threads that sleep, or are stopped, do
 * not wait. Decided once: after some seconds of steps, or at the end of a run that is shorter. */
static void note_busy_cores(ls_trainer *t, const ls_step_result *r, bool last)
{
    enum { SECONDS = 10, LEAST = 1 };
    const int n = t->compute.n_own;
    if (t->busy.decided) return;
    t->busy.seconds += r->t_total;
    t->busy.used += r->cpu * r->t_total;
    if (t->busy.seconds < (last ? LEAST : SECONDS)) return;
    t->busy.decided = true;
    const double used = t->busy.used / t->busy.seconds,
                 waited = (ls_cores_waited() - t->busy.waited) / (n * t->busy.seconds);
    if (used > 0.75 || waited < 0.5 * (1 - used) || t->busy.waited < 0 || n < 2 || n > ls_cores_usable() ||
        ls_comm_size(t->comm) > 1 || strcmp(t->cfg->compute, "cpu") != 0)
        return;
    train_tell(
        t,
        "the machine is busy: in %.0f s of steps this run had %.0f %% of the time of %d cores; other programs, or "
        "a container's CPU limit, had the rest, so it is slower than on an idle machine\n",
        t->busy.seconds, 100 * used, n);
}

static void see_step(ls_trainer *t, const ls_step_result *r)
{
    const bool last = t->state.step >= t->cfg->total_steps;
    keep_pace(&t->pace, r->t_total);
    note_busy_cores(t, r, last);
    if (!t->io.progress || t->cfg->profile_mode) return;
    const bool asked = is_asked_for(t);
    const bool due = t->cfg->print_every && !ls_progress_live() ? asked : ls_progress_due(t->state.step);
    const bool other_line = t->cfg->reference_output && t->cfg->steps_per_print > 0 && !ls_progress_live();
    if ((last || due) && !other_line) show_step(t, r);
    if (!asked || !ls_progress_live()) return;
    char norm[64] = SKIPPED;
    if (!r->skipped) snprintf(norm, sizeof norm, "norm %.3g", r->grad_norm);
    train_event(t, "step %lld  loss %.4f  lr %.3g  %s\n", (long long)t->state.step, r->loss, r->lr, norm);
}

void train_show_validation(ls_trainer *t, int64_t done, int64_t n)
{
    ls_progress_line l = {0};
    if (!t->io.progress || t->cfg->profile_mode || !done || !ls_progress_live() || !ls_progress_due(0)) return;
    add_step(t, &l);
    ls_progress_add(&l, 1, "validation %lld/%lld", (long long)done, (long long)n);
    t->io.progress(t->io.ctx, &l);
}

static void see_epoch(ls_trainer *t, const ls_epoch_metrics *e)
{
    char time[32];
    if (t->cfg->epochs == 1) return; /* its end is the end of the run */
    train_event(t, "epoch %lld/%lld  mean loss %.4f  %s\n", (long long)e->epoch_idx, (long long)t->cfg->epochs,
                e->train_loss, ls_human_time(time, e->wall_time));
}

ls_status train_see_progress(ls_trainer *t, const ls_event *e)
{
    const long long step = (long long)t->state.step;
    switch (e->kind) {
    case LS_ON_RUN_READY: t->busy.waited = ls_cores_waited(); break;
    case LS_ON_STEP_LOG: see_step(t, e->step); break;
    case LS_ON_EPOCH_END: see_epoch(t, e->epoch); break;
    case LS_ON_VALIDATED:
        if (t->status.n && ls_progress_live()) t->io.progress(t->io.ctx, &t->status); /* again that of the step */
        if (e->n_val) train_event(t, "step %lld  validation loss %.4f\n", step, e->val_loss);
        break;
    case LS_ON_CHECKPOINT_END: train_event(t, "step %lld  saving %s\n", step, e->text); break;
    default: break;
    }
    return LS_OK;
}
