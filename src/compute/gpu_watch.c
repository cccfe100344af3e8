#include "compute/gpu_watch.h"

#include "core/clock.h"
#include "core/cores.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

/* A mean over time: sum of value * seconds, seconds in which the value was known. */
typedef struct mean {
    double sum, time;
} mean;

struct ls_gpu_watch {
    ls_nvml *nvml;
    ls_gpu_facts facts;
    double every;
    pthread_t thread;
    bool started, stop;
    pthread_mutex_t lock; /* of all below, and of NVML's calls */
    pthread_cond_t wake;
    double begin, at;       /* moments of the first and the newest sample */
    ls_gpu_now first, last; /* … and these samples                       */
    mean busy, power, sm, mem;
    ls_gpu_window seen; /* extremes; the rest is made at the end */
};

/* The value that held between two samples: their middle, or the one that is known. */
static void add(mean *m, double a, double b, double seconds)
{
    const double x = isnan(a) ? b : isnan(b) ? a : 0.5 * (a + b);
    if (isnan(x)) return;
    m->sum += x * seconds;
    m->time += seconds;
}

static double value_of(const mean *m)
{
    return m->time > 0 ? m->sum / m->time : NAN;
}

/* The lock is held. */
static void sample(ls_gpu_watch *w)
{
    ls_gpu_window *s = &w->seen;
    ls_gpu_now now;
    ls_nvml_read(w->nvml, &now);
    const double at = ls_now(), dt = at - w->at;
    if (s->n_sample) {
        add(&w->busy, w->last.busy, now.busy, dt);
        add(&w->power, w->last.power, now.power, dt);
        add(&w->sm, w->last.sm_mhz, now.sm_mhz, dt);
        add(&w->mem, w->last.mem_mhz, now.mem_mhz, dt);
    } else {
        w->begin = at;
        w->first = now;
    }
    s->n_sample++;
    /* of a number and NAN (unknown), fmin and fmax return the number */
    s->busy_min = fmin(s->busy_min, now.busy);
    s->sm_mhz_min = fmin(s->sm_mhz_min, now.sm_mhz);
    s->power_max = fmax(s->power_max, now.power);
    s->used_max = fmax(s->used_max, now.used);
    s->heat_max = fmax(s->heat_max, now.celsius);
    s->slowed |= now.slowed;
    w->last = now;
    w->at = at;
}

static void *watch(void *arg)
{
    ls_gpu_watch *w = arg;
    ls_cores_roam();
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        const int64_t ns = until.tv_nsec + (int64_t)(w->every * 1e9);
        until.tv_sec += (time_t)(ns / 1000000000);
        until.tv_nsec = (long)(ns % 1000000000);
        if (pthread_cond_timedwait(&w->wake, &w->lock, &until) == ETIMEDOUT && !w->stop) sample(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static ls_status start(ls_gpu_watch *w)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&w->lock, NULL);
    const int rc = pthread_create(&w->thread, NULL, watch, w);
    if (rc) return ls_fail(LS_E_NOMEM, "cannot start the GPU monitor thread: %s", strerror(rc));
    w->started = true;
    return LS_OK;
}

ls_status ls_gpu_watch_begin(ls_gpu_watch **out, const char *which, double hz)
{
    ls_gpu_watch *w = ls_alloc(sizeof *w);
    if (!w) return ls_nomem(sizeof *w, "the GPU monitor");
    w->every = 1.0 / (hz > 0 ? hz : 10.0);
    w->seen = (ls_gpu_window){.busy_min = NAN, .sm_mhz_min = NAN, .power_max = NAN, .used_max = NAN, .heat_max = NAN};
    ls_status st = ls_nvml_open(&w->nvml, which);
    if (st != LS_OK) {
        ls_free(w);
        return st;
    }
    ls_nvml_facts(w->nvml, &w->facts);
    sample(w);
    ls_debug("gpu", "reading NVML every %.2f s", w->every);
    if (*ls_nvml_refused(w->nvml)) ls_warn("gpu", "NVML does not report these values: %s", ls_nvml_refused(w->nvml));
    st = start(w);
    *out = w;
    if (st != LS_OK) ls_gpu_watch_end(out);
    return st;
}

const ls_gpu_window *ls_gpu_watch_close(ls_gpu_watch *w)
{
    ls_gpu_window *s = &w->seen;
    if (!w->started) return s;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->started = false;
    sample(w);
    s->seconds = w->at - w->begin;
    s->busy = value_of(&w->busy);
    s->power = value_of(&w->power);
    s->sm_mhz = value_of(&w->sm);
    s->mem_mhz = value_of(&w->mem);
    s->energy_counted = w->last.energy >= w->first.energy; /* false for NAN */
    s->energy = s->energy_counted ? w->last.energy - w->first.energy : s->power * s->seconds;
    return s;
}

void ls_gpu_watch_end(ls_gpu_watch **wp)
{
    ls_gpu_watch *w = *wp;
    if (!w) return;
    (void)ls_gpu_watch_close(w);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    ls_nvml_close(&w->nvml);
    ls_free(w);
    *wp = NULL;
}

const ls_gpu_facts *ls_gpu_watch_facts(const ls_gpu_watch *w)
{
    return &w->facts;
}

void ls_gpu_watch_last(ls_gpu_watch *w, ls_gpu_now *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->last;
    pthread_mutex_unlock(&w->lock);
}

void ls_gpu_window_write(const ls_gpu_window *x, int64_t tokens, ls_jsonw *w)
{
    char words[160];
    ls_jsonw_members(w, LS_KV("seconds", x->seconds), LS_KV("samples", x->n_sample), LS_KV("utilization_mean", x->busy),
                     LS_KV("utilization_min", x->busy_min), LS_KV("power_mean_w", x->power),
                     LS_KV("power_max_w", x->power_max), LS_KV("energy_j", x->energy),
                     LS_KV("energy_from", isnan(x->energy)    ? NULL
                                          : x->energy_counted ? "counter"
                                                              : "power"),
                     LS_KV("energy_per_token_j", tokens > 0 ? x->energy / (double)tokens : NAN),
                     LS_KV("sm_clock_mean_mhz", x->sm_mhz), LS_KV("sm_clock_min_mhz", x->sm_mhz_min),
                     LS_KV("memory_clock_mean_mhz", x->mem_mhz), LS_KV("memory_used_max_bytes", x->used_max),
                     LS_KV("temperature_max_c", x->heat_max),
                     LS_KV("slowed_by", x->n_sample ? ls_gpu_slowed_words(x->slowed, words) : NULL));
}
