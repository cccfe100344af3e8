/* observe.c - calls the observers of a run; two small ones: spikes and the trace. */
#include "train/train_impl.h"

#include "core/inject.h"
#include "core/log.h"
#include "core/nvtx.h"
#include "core/trace.h"

#include <math.h>

/* NULL: not shown in the trace. */
static const char *phase_name(ls_phase p)
{
    static const char *const names[LS_N_PHASE] = {
#define X(phase, name) [phase] = name,
        LS_PHASE_LIST(X)
#undef X
    };
    return names[p];
}

/* ---- spikes: the norm, and warnings about a loss or a norm far above the recent ones ---- */

bool ls_spread_add(ls_spread *s, double margin, double x)
{
    const double far = s->mean + fmax(6 * sqrt(s->var), margin * fabs(s->mean));
    const bool spike = s->n >= 50 && x > far;
    const double w = s->n < 20 ? 1.0 / (double)(s->n + 1) : 0.05, d = x - s->mean;
    s->mean += w * d;
    s->var = (1 - w) * (s->var + w * d * d);
    s->n++;
    return spike;
}

static void watch(ls_trainer *t, ls_spread *s, double margin, const char *what, double x)
{
    const ls_spread past = *s;
    const long long step = (long long)t->state.step;
    if (!ls_spread_add(s, margin, x)) return;
    t->state.n_spike++;
    if (train_shows_events(t))
        train_event(t, "step %lld  warning: %s %.4g (recent mean %.4g)\n", step, what, x, past.mean);
    else ls_warn("train", "step %lld: %s %.4g (recent mean %.4g)", step, what, x, past.mean);
}

static ls_status see_spikes(ls_trainer *t, const ls_event *e)
{
    ls_run_state *s = &t->state;
    const ls_step_result *r = e->step;
    if (e->kind != LS_ON_STEP_LOG || r->skipped) return LS_OK;
    s->norm_last = r->grad_norm;
    s->norm_max = fmax(s->norm_max, r->grad_norm);
    if (ls_comm_rank(t->comm)) return LS_OK;
    watch(t, &s->loss_spread, LS_LOSS_MARGIN, "loss", r->loss);
    watch(t, &s->norm_spread, LS_NORM_MARGIN, "gradient norm", r->grad_norm);
    return LS_OK;
}

/* ---- trace: steps and their phases as spans (core/trace.h) and as NVTX ranges (core/nvtx.h) ---- */

static ls_status see_trace(ls_trainer *t, const ls_event *e)
{
    const bool phase = e->kind == LS_ON_PHASE_BEGIN || e->kind == LS_ON_PHASE_END;
    const char *name = phase ? phase_name(e->phase) : NULL;
    const int64_t step = t->state.step;
    if (phase && !name) return LS_OK;
    switch (e->kind) {
    case LS_ON_STEP_BEGIN: t->span.step = ls_span_begin(); break;
    case LS_ON_STEP_END:
        ls_span_end(
            t->span.step,
            (ls_trace_span){.kind = LS_SPAN_STEP, .name = "step", .index = (int32_t)step + 1, .seq = (uint64_t)step});
        ls_trace_count("loss", e->step->loss);
        if (!isnan(e->step->split.comm_exposed))
            ls_trace_count("exposed communication (ms)", 1e3 * e->step->split.comm_exposed);
        break;
    case LS_ON_PHASE_BEGIN:
        ls_nvtx_push(name);
        t->span.phase[e->phase] = ls_span_begin();
        break;
    case LS_ON_PHASE_END:
        ls_span_end(t->span.phase[e->phase],
                    (ls_trace_span){.kind = LS_SPAN_PHASE, .name = name, .micro = e->micro + 1});
        ls_nvtx_pop();
        break;
    default: break;
    }
    return LS_OK;
}

/* ---- all, in the order of observe.h ---- */

ls_status ls_observe(ls_trainer *t, const ls_event *e)
{
    static ls_status (*const builtin[])(ls_trainer *, const ls_event *) = {
        train_see_clock,   see_spikes,          see_trace,          train_see_metrics,  train_see_live,
        train_see_monitor, train_see_reference, train_see_progress, train_see_telemetry};
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++) LS_TRY(builtin[i](t, e));
    if (ls_inject_on) LS_TRY(train_faults(t, e));
    return t->observer.see ? t->observer.see(t->observer.ctx, t, e) : LS_OK;
}
