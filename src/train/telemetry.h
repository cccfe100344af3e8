/* telemetry.h - utilisation, power, energy per token, clocks and memory of a worker's GPU during training (compute/gpu_watch.h).
 *
 *   ls_telemetry_begin(&g, &trainer->compute, note)      before the first step; without a GPU or NVML nothing is watched (one note)
 *   ls_telemetry_step(g)                                 after each step: counters in the trace, if the run is traced
 *   ls_telemetry_write(g, tokens, w)                     at the end: the member "gpu_watch" of an open object; null if nothing was watched
 *   ls_telemetry_end(&g)
 *
 * Energy is that of the whole GPU: workers that share a GPU all see the same value, so only rank 0 reports it. */
#ifndef LS_TRAIN_TELEMETRY_H
#define LS_TRAIN_TELEMETRY_H

#include "compute/compute.h"
#include "core/json.h"

typedef struct ls_telemetry ls_telemetry;

/* *out is NULL where nothing can be watched; every other function accepts NULL. why (may be NULL) gets one line with the reason. Never fails. */
void ls_telemetry_begin(ls_telemetry **out, const ls_compute *c, void (*why)(void *ctx, const char *text), void *ctx);
void ls_telemetry_step(ls_telemetry *g);
void ls_telemetry_write(ls_telemetry *g, int64_t tokens, ls_jsonw *w);
void ls_telemetry_end(ls_telemetry **g);

#endif
