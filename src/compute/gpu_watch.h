/* gpu_watch.h - a thread that reads a GPU's values a few times per second, and what it saw between begin and close.
 *
 * Means are over time. Energy is the difference of the GPU's own counter between the two ends, where it has one, else power integrated over
 * the samples; both count the whole GPU, with every program on it. NAN: the GPU does not report the value. */
#ifndef LS_COMPUTE_GPU_WATCH_H
#define LS_COMPUTE_GPU_WATCH_H

#include "compute/nvml.h"

typedef struct ls_gpu_watch ls_gpu_watch;

typedef struct ls_gpu_window {
    double seconds;
    int64_t n_sample;
    double busy, power, sm_mhz, mem_mhz;  /* means                     */
    double busy_min, sm_mhz_min;          /* lowest seen               */
    double power_max, used_max, heat_max; /* W, bytes, degrees         */
    double energy;                        /* J                         */
    bool energy_counted;                  /* by the GPU's own counter  */
    uint64_t slowed;                      /* reasons seen in any sample */
} ls_gpu_window;

/* hz 0: 10. Says once (ls_warn) which values the GPU refuses. LS_E_UNSUPPORTED without NVML or without that GPU, LS_E_NOMEM. */
ls_status ls_gpu_watch_begin(ls_gpu_watch **out, const char *which, double hz);
void ls_gpu_watch_end(ls_gpu_watch **w);

const ls_gpu_facts *ls_gpu_watch_facts(const ls_gpu_watch *w);
void ls_gpu_watch_last(ls_gpu_watch *w, ls_gpu_now *out); /* the newest sample, without asking the GPU */

/* Takes the last sample and ends the thread; later calls return the same values. */
const ls_gpu_window *ls_gpu_watch_close(ls_gpu_watch *w);

/* The members of an object: means, peaks, energy, joules per token (tokens 0: null). */
void ls_gpu_window_write(const ls_gpu_window *x, int64_t tokens, ls_jsonw *w);

#endif
