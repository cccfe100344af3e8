/* telemetry.h - what the GPU of a worker says while it trains: utilisation, power, energy a token, clocks, memory (compute/gpu_watch.h).
 *
 *   ls_telemetry_begin(&g, &trainer->compute, note)      before the first step; not a GPU, or no NVML: nothing is watched, said once
 *   ls_telemetry_step(g)                                 after each step: counters in a trace, when there is one
 *   ls_telemetry_write(g, tokens, w)                     at the end: the member "gpu_watch" of an open object; null where nothing was watched
 *   ls_telemetry_end(&g)
 *
 * Energy is that of the whole GPU: where several workers share one, each of them sees all of it, and the first one's is to be told. */
#ifndef LS_TRAIN_TELEMETRY_H
#define LS_TRAIN_TELEMETRY_H

#include "compute/compute.h"
#include "core/json.h"

typedef struct ls_telemetry ls_telemetry;

/* *out is NULL where nothing can be watched; every other function takes that. why (NULL: nobody asks): said once, a line. Never fails. */
void ls_telemetry_begin(ls_telemetry **out, const ls_compute *c, void (*why)(void *ctx, const char *text), void *ctx);
void ls_telemetry_step(ls_telemetry *g);
void ls_telemetry_write(ls_telemetry *g, int64_t tokens, ls_jsonw *w);
void ls_telemetry_end(ls_telemetry **g);

#endif
