/* telemetry.h - utilisation, power, energy per token, clocks and memory of a worker's GPU during training (compute/gpu_watch.h).
 *
 * Energy is that of the whole GPU: workers that share a GPU all see the same value, so only rank 0 reports it. */
#ifndef LS_TRAIN_TELEMETRY_H
#define LS_TRAIN_TELEMETRY_H

#include "compute/compute.h"
#include "compute/gpu_watch.h"
#include "core/json.h"

typedef struct ls_telemetry {
    ls_gpu_watch *watch; /* NULL: nothing is watched, and the functions below do nothing */
} ls_telemetry;

/* Before the first step. Without a GPU or NVML nothing is watched, and why (may be NULL) gets one line with the reason. Never fails. */
void ls_telemetry_begin(ls_telemetry *g, const ls_compute *c, void (*why)(void *ctx, const char *text), void *ctx);
void ls_telemetry_step(const ls_telemetry *g); /* after each step: counters in the trace, if the run is traced */
/* Once, at the end: the member "gpu_watch" of an open object; null if nothing was watched. */
void ls_telemetry_write(const ls_telemetry *g, int64_t tokens, ls_jsonw *w);
void ls_telemetry_end(ls_telemetry *g);

#endif
