/* progress.c - the progress line on stderr: every step on a terminal, else every 10 seconds. */
#include "train/train_impl.h"

#include "core/clock.h"

#include <stdio.h>

static void show(ls_trainer *t, const ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    const double now = ls_now();
    const bool last = t->state.step >= c->total_steps;
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

ls_status train_see_progress(void *ctx, ls_trainer *t, const ls_event *e)
{
    (void)ctx;
    if (e->kind == LS_ON_STEP_LOG) show(t, e->step);
    return LS_OK;
}
