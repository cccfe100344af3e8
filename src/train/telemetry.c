#include "train/telemetry.h"

#include "core/trace.h"
#include "train/train_impl.h"

#include <math.h>
#include <stdio.h>

#define HZ 10

void ls_telemetry_begin(ls_telemetry *g, const ls_compute *c, void (*why)(void *ctx, const char *text), void *ctx)
{
    char which[16], text[512];
    ls_device_info info = {0};
    *g = (ls_telemetry){.watch = NULL};
    if (!c->device) return;
    ls_status st = c->device->info(c->device->ctx, &info);
    snprintf(which, sizeof which, "%d", info.index);
    if (st == LS_OK) {
        /* the bus address identifies the GPU, whatever CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER do to indices */
        st = info.bus[0] ? ls_gpu_watch_begin(&g->watch, info.bus, HZ) : LS_E_UNSUPPORTED;
        if (st == LS_E_UNSUPPORTED) {
            ls_err_clear();
            st = ls_gpu_watch_begin(&g->watch, which, HZ);
        }
    }
    if (st == LS_OK) return;
    snprintf(text, sizeof text, "no utilisation, power and energy of the GPU: %.400s\n", ls_err_words());
    if (why) why(ctx, text);
    ls_err_clear();
    g->watch = NULL;
}

static void count(const char *name, double value)
{
    if (!isnan(value)) ls_trace_count(name, value);
}

void ls_telemetry_step(const ls_telemetry *g)
{
    ls_gpu_now now;
    if (!g->watch || !ls_trace_here_) return;
    ls_gpu_watch_last(g->watch, &now);
    count("gpu power W", now.power);
    count("gpu utilisation", now.busy);
    count("gpu SM clock MHz", now.sm_mhz);
}

void ls_telemetry_write(const ls_telemetry *g, int64_t tokens, ls_jsonw *w)
{
    ls_jsonw_key(w, "gpu_watch");
    if (!g->watch) {
        ls_jsonw_null(w);
        return;
    }
    const ls_gpu_facts *f = ls_gpu_watch_facts(g->watch);
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("name", f->name[0] ? f->name : NULL), LS_KV("uuid", f->uuid[0] ? f->uuid : NULL),
                     LS_KV("driver", f->driver[0] ? f->driver : NULL), LS_KV("memory_total_bytes", f->total),
                     LS_KV("power_limit_w", f->power_limit), LS_KV("sm_clock_max_mhz", f->sm_mhz_max));
    ls_gpu_window_write(ls_gpu_watch_close(g->watch), tokens, w);
    ls_jsonw_close(w);
}

void ls_telemetry_end(ls_telemetry *g)
{
    if (g->watch) ls_gpu_watch_end(&g->watch);
}

ls_status train_see_telemetry(ls_trainer *t, const ls_event *e)
{
    switch (e->kind) {
    case LS_ON_RUN_READY:
        if (ls_comm_rank(t->comm) == 0) ls_telemetry_begin(&t->gpu, &t->compute, t->io.note, t->io.ctx);
        break;
    case LS_ON_STEP_END:
        ls_telemetry_step(&t->gpu);
        t->watched_tokens += t->cfg->global_batch * t->cfg->seq_len;
        break;
    default: break;
    }
    return LS_OK;
}
