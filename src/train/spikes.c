/* spikes.c - reports steps whose loss or gradient norm lies far above the recent ones. */
#include "train/train_impl.h"

#include "core/log.h"

#include <math.h>

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

void train_watch_spikes(ls_trainer *t, const ls_step_result *r)
{
    if (ls_comm_rank(t->comm) != 0 || r->skipped) return;
    watch(t, &t->state.loss_spread, "the loss", r->loss);
    watch(t, &t->state.norm_spread, "the gradient norm", r->grad_norm);
}
