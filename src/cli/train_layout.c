#include "cli/train_layout.h"

#include "core/cores.h"
#include "core/progress.h"
#include "plan/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

ls_status train_layout_open(train_layout *l, const ls_train_options *o, train_configure *configure, void *ctx)
{
    ls_train_config c = {0};
    *l = (train_layout){.configure = configure, .ctx = ctx, .o = *o};
    LS_TRY(configure(ctx, o, &c));
    l->micro_batch = c.micro_batch;
    l->global_batch = c.global_batch;
    l->pp = c.mesh.n[LS_AXIS_PP];
    l->tp = c.mesh.n[LS_AXIS_TP];
    const int64_t per_worker = c.max_train_steps;
    ls_train_config_fini(&c);
    if (per_worker >= 0)
        return ls_fail(LS_E_CONFIG,
                       "--elastic: --max_train_steps counts micro-batches of one worker, so with another number of "
                       "workers the epochs would have other lengths; use --max_steps");
    return LS_OK;
}

bool train_layout_resume(train_layout *l, const ls_train_options *o)
{
    static const char *const layout[] = {"pp", "tp", "stages"};
    static const char *const batch[] = {"micro_batch_size_per_gpu", "global_batch_size"};
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
        if (ls_train_given(o, layout[i]) && !ls_train_by_preset(o, layout[i])) return false;
    for (size_t i = 0; i < sizeof batch / sizeof *batch; i++)
        if (!ls_train_by_preset(o, batch[i])) return false;
    l->micro_batch = (int)o->micro_batch_size_per_gpu;
    l->global_batch = o->global_batch_size;
    l->pp = (int)o->pp;
    l->tp = (int)o->tp;
    return o->resume && l->pp > 0 && l->tp > 0;
}

static ls_train_options with(const train_layout *l, int n, int pp)
{
    ls_train_options o = l->o;
    ls_train_put(&o, "n", n);
    if (pp != l->pp) {
        ls_train_put(&o, "pp", pp);
        ls_train_forget(&o, "stages");
    }
    if (pp == 1) { /* a schedule without a pipeline is refused */
        ls_train_forget(&o, "schedule");
        ls_train_forget(&o, "interleave");
    }
    ls_train_put(&o, "micro_batch_size_per_gpu", l->micro_batch);
    ls_train_put(&o, "global_batch_size", l->global_batch);
    ls_train_forget(&o, "grad_accum_steps");
    ls_train_forget(&o, "train_micro_batch_size_per_gpu");
    return o;
}

/* Seconds of a step as the planner predicts it for a machine of this kind, for comparing layouts of one model; NaN: not known. */
static double predict(const ls_train_config *c)
{
    ls_cluster cl = {0};
    ls_prediction p;
    ls_err_kept before;
    double seconds = NAN;
    ls_err_keep(&before);
    if (!strcmp(c->device, "cpu")) ls_cluster_cpu(ls_cores_usable(), &cl);
    else (void)ls_cluster_preset("h100", &cl);
    if (ls_planner_predict(&cl, c, &p) == LS_OK) seconds = p.step;
    ls_cluster_fini(&cl);
    ls_err_restore(&before);
    return seconds;
}

/* A pipeline of another length: the fastest of those that are possible. */
static ls_status other_pipeline(const train_layout *l, int n, ls_train_options *out)
{
    double best = INFINITY;
    bool found = false;
    for (int pp = 1; pp <= n / l->tp; pp++) {
        ls_train_config c = {0};
        const ls_train_options o = with(l, n, pp);
        if (pp == l->pp || n % (pp * l->tp) || l->configure(l->ctx, &o, &c) != LS_OK) continue;
        const double seconds = predict(&c);
        if (!found || seconds < best) *out = o, best = isnan(seconds) ? INFINITY : seconds;
        found = true;
        ls_train_config_fini(&c);
    }
    return found ? LS_OK : LS_E_CONFIG;
}

ls_status train_layout_fit(const train_layout *l, int n, ls_train_options *out)
{
    ls_train_config c = {0};
    ls_err_kept why;
    const ls_train_options o = with(l, n, l->pp);
    const ls_status st = l->configure(l->ctx, &o, &c);
    if (st == LS_OK) {
        ls_train_config_fini(&c);
        *out = o;
        return LS_OK;
    }
    ls_err_keep(&why);
    if (n >= l->tp && n % l->tp == 0 && other_pipeline(l, n, out) == LS_OK) {
        ls_err_clear();
        return LS_OK;
    }
    const int64_t replicas = n / (l->pp * l->tp);
    if (replicas > 0 && n % (l->pp * l->tp) == 0 &&
        l->global_batch % (l->micro_batch * replicas)) /* no advice to change the batch */
        return ls_fail(LS_E_CONFIG,
                       "%d worker%s cannot share the global batch evenly: %lld sequences in micro-batches of %d", n,
                       n == 1 ? "" : "s", (long long)l->global_batch, l->micro_batch);
    ls_err_restore(&why);
    return st;
}

ls_status train_layout_most(const train_layout *l, int most, int least, ls_train_options *out)
{
    for (int n = most; n >= least; n--)
        if (train_layout_fit(l, n, out) == LS_OK) return LS_OK;
    if (most < least)
        return ls_fail(LS_E_COMM, "%d worker%s left; --elastic needs at least %d", most, most == 1 ? " is" : "s are",
                       least);
    char number[32] = "";
    if (most > least) snprintf(number, sizeof number, "%d to ", least);
    return ls_fail(LS_E_COMM, "no layout of %s%d worker%s gives the same bits: %s", number, most, most == 1 ? "" : "s",
                   ls_err_words());
}

bool train_layout_without(const train_layout *l, int now, int most, int least, ls_train_options *out)
{
    ls_train_options fewer;
    ls_err_kept before;
    ls_err_keep(&before);
    const bool found = train_layout_most(l, most, least, &fewer) == LS_OK;
    if (found) *out = fewer;
    else
        ls_progress_say("lockstep: the run starts again with %d worker%s: %s\n", now, now == 1 ? "" : "s",
                        ls_err_words());
    ls_err_restore(&before);
    return found;
}
