/* step_trace.c - steps and their phases as spans of the trace (core/trace.h) and as NVTX ranges (core/nvtx.h). */
#include "train/trainer.h"
#include "train/train_impl.h"

#include "core/nvtx.h"
#include "core/trace.h"

#include <math.h>

static void phase_begin(ls_trainer *t, ls_phase p)
{
    const char *name = ls_phase_name(p);
    if (!name) return;
    ls_nvtx_push(name);
    t->span.phase[p] = ls_span_begin();
}

static void phase_end(ls_trainer *t, ls_phase p, int micro)
{
    const char *name = ls_phase_name(p);
    if (!name) return;
    ls_span_end(t->span.phase[p], (ls_trace_span){.kind = LS_SPAN_PHASE, .name = name, .micro = micro + 1});
    ls_nvtx_pop();
}

static void step_end(ls_trainer *t, const ls_step_result *r)
{
    const int64_t step = t->state.step;
    ls_span_end(
        t->span.step,
        (ls_trace_span){.kind = LS_SPAN_STEP, .name = "step", .index = (int32_t)step + 1, .seq = (uint64_t)step});
    ls_trace_count("loss", r->loss);
    if (!isnan(r->split.comm_exposed)) ls_trace_count("exposed communication (ms)", 1e3 * r->split.comm_exposed);
}

ls_status train_see_trace(void *ctx, ls_trainer *t, const ls_event *e)
{
    (void)ctx;
    switch (e->kind) {
    case LS_ON_STEP_BEGIN: t->span.step = ls_span_begin(); break;
    case LS_ON_STEP_END: step_end(t, e->step); break;
    case LS_ON_PHASE_BEGIN: phase_begin(t, e->phase); break;
    case LS_ON_PHASE_END: phase_end(t, e->phase, e->micro); break;
    default: break;
    }
    return LS_OK;
}
