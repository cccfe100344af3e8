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

typedef struct window {
    bool open;
    double begin, last; /* moments of its first and its newest sample */
    ls_gpu_now first, prev;
    mean busy, power, sm, mem;
    ls_gpu_window seen; /* extremes; the rest is made at the end */
} window;

struct ls_gpu_watch {
    ls_nvml *nvml;
    ls_gpu_facts facts;
    double every;
    pthread_t thread;
    bool started, stop;
    pthread_mutex_t lock; /* of all below, and of NVML's calls */
    pthread_cond_t wake;
    ls_gpu_now last;
    window window[LS_GPU_WINDOWS];
};

static double larger(double a, double b) /* NAN: unknown */
{
    return isnan(a) || b > a ? b : a;
}

static double smaller(double a, double b)
{
    return isnan(a) || b < a ? b : a;
}

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

static void look(window *w, const ls_gpu_now *now, double at)
{
    ls_gpu_window *s = &w->seen;
    if (s->n_sample) {
        const double dt = at - w->last;
        add(&w->busy, w->prev.busy, now->busy, dt);
        add(&w->power, w->prev.power, now->power, dt);
        add(&w->sm, w->prev.sm_mhz, now->sm_mhz, dt);
        add(&w->mem, w->prev.mem_mhz, now->mem_mhz, dt);
    }
    s->n_sample++;
    s->busy_min = smaller(s->busy_min, now->busy);
    s->sm_mhz_min = smaller(s->sm_mhz_min, now->sm_mhz);
    s->power_max = larger(s->power_max, now->power);
    s->used_max = larger(s->used_max, now->used);
    s->heat_max = larger(s->heat_max, now->celsius);
    s->slowed |= now->slowed;
    w->prev = *now;
    w->last = at;
}

/* One sample into every open window; the lock is held. */
static void sample(ls_gpu_watch *w)
{
    ls_gpu_now now;
    ls_nvml_read(w->nvml, &now);
    w->last = now;
    const double at = ls_now();
    for (int k = 0; k < LS_GPU_WINDOWS; k++)
        if (w->window[k].open) look(&w->window[k], &now, at);
}

static bool any_open(const ls_gpu_watch *w)
{
    for (int k = 0; k < LS_GPU_WINDOWS; k++)
        if (w->window[k].open) return true;
    return false;
}

static void *watch(void *arg)
{
    ls_gpu_watch *w = arg;
    ls_cores_roam();
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (!any_open(w)) { /* nobody wants to know */
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
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
    ls_gpu_now now;
    if (!w) return ls_nomem(sizeof *w, "the GPU monitor");
    w->every = 1.0 / (hz > 0 ? hz : 10.0);
    ls_status st = ls_nvml_open(&w->nvml, which);
    if (st != LS_OK) {
        ls_free(w);
        return st;
    }
    ls_nvml_facts(w->nvml, &w->facts);
    ls_nvml_read(w->nvml, &now);
    w->last = now;
    ls_debug("gpu", "reading NVML every %.2f s", w->every);
    if (*ls_nvml_refused(w->nvml)) ls_warn("gpu", "NVML does not report these values: %s", ls_nvml_refused(w->nvml));
    st = start(w);
    *out = w;
    if (st != LS_OK) ls_gpu_watch_end(out);
    return st;
}

void ls_gpu_watch_end(ls_gpu_watch **wp)
{
    ls_gpu_watch *w = *wp;
    if (!w) return;
    if (w->started) {
        pthread_mutex_lock(&w->lock);
        w->stop = true;
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
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

int ls_gpu_window_open(ls_gpu_watch *w)
{
    int k = 0;
    pthread_mutex_lock(&w->lock);
    while (k < LS_GPU_WINDOWS && w->window[k].open) k++;
    if (k < LS_GPU_WINDOWS) {
        window *x = &w->window[k];
        const ls_gpu_window none = {
            .busy_min = NAN, .sm_mhz_min = NAN, .power_max = NAN, .used_max = NAN, .heat_max = NAN};
        *x = (window){.open = true, .seen = none};
        ls_nvml_read(w->nvml, &x->first);
        x->begin = ls_now();
        look(x, &x->first, x->begin);
        pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    return k < LS_GPU_WINDOWS ? k : -1;
}

/* Of a window that was not observed: every value is unknown. */
static const ls_gpu_window unknown = {.seconds = NAN,
                                      .busy = NAN,
                                      .power = NAN,
                                      .sm_mhz = NAN,
                                      .mem_mhz = NAN,
                                      .busy_min = NAN,
                                      .sm_mhz_min = NAN,
                                      .power_max = NAN,
                                      .used_max = NAN,
                                      .heat_max = NAN,
                                      .energy = NAN};

void ls_gpu_window_close(ls_gpu_watch *w, int k, ls_gpu_window *out)
{
    if (k < 0) {
        *out = unknown;
        out->seconds = 0;
        return;
    }
    pthread_mutex_lock(&w->lock);
    sample(w);
    window *x = &w->window[k];
    x->open = false;
    ls_gpu_window *s = &x->seen;
    s->seconds = x->last - x->begin;
    s->busy = value_of(&x->busy);
    s->power = value_of(&x->power);
    s->sm_mhz = value_of(&x->sm);
    s->mem_mhz = value_of(&x->mem);
    s->energy_counted = x->prev.energy >= x->first.energy; /* false for NAN */
    s->energy = s->energy_counted ? x->prev.energy - x->first.energy : s->power * s->seconds;
    *out = *s;
    pthread_mutex_unlock(&w->lock);
}

void ls_gpu_window_write(const ls_gpu_window *x, int64_t tokens, ls_jsonw *w)
{
    char words[160];
    if (!x) x = &unknown;
    ls_jsonw_put_real(w, "seconds", x->seconds);
    ls_jsonw_put_int(w, "samples", x->n_sample);
    ls_jsonw_put_real(w, "utilization_mean", x->busy);
    ls_jsonw_put_real(w, "utilization_min", x->busy_min);
    ls_jsonw_put_real(w, "power_mean_w", x->power);
    ls_jsonw_put_real(w, "power_max_w", x->power_max);
    ls_jsonw_put_real(w, "energy_j", x->energy);
    ls_jsonw_put_str(w, "energy_from", isnan(x->energy) ? NULL : x->energy_counted ? "counter" : "power");
    ls_jsonw_put_real(w, "energy_per_token_j", tokens > 0 ? x->energy / (double)tokens : NAN);
    ls_jsonw_put_real(w, "sm_clock_mean_mhz", x->sm_mhz);
    ls_jsonw_put_real(w, "sm_clock_min_mhz", x->sm_mhz_min);
    ls_jsonw_put_real(w, "memory_clock_mean_mhz", x->mem_mhz);
    ls_jsonw_put_real(w, "memory_used_max_bytes", x->used_max);
    ls_jsonw_put_real(w, "temperature_max_c", x->heat_max);
    ls_jsonw_put_str(w, "slowed_by", x->n_sample ? ls_gpu_slowed_words(x->slowed, words) : NULL);
}
