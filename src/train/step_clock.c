#include "train/step_clock.h"

#include "core/clock.h"
#include "core/mem.h"
#include "train/train_impl.h"

#include <math.h>
#include <time.h>

enum { LAST_MARKS = 8 }; /* kept free by micro-batches for the rest of the step */

ls_status ls_step_clock_init(ls_step_clock *k, const ls_train_config *c)
{
    const int64_t n_sample = c->steps_per_epoch * c->grad_accum / c->timing_sample_every + 1;
    k->sample_step = ls_alloc((size_t)n_sample * sizeof(double));
    k->sample_data = ls_alloc((size_t)n_sample * sizeof(double));
    k->update_time = ls_alloc((size_t)c->steps_per_epoch * sizeof(double));
    if (!k->sample_step || !k->sample_data || !k->update_time)
        return ls_nomem((size_t)c->steps_per_epoch * 8, "step times");
    return LS_OK;
}

void ls_step_clock_fini(ls_step_clock *k)
{
    ls_free(k->sample_step);
    ls_free(k->sample_data);
    ls_free(k->update_time);
}

static double cpu_seconds(void)
{
    struct timespec x;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &x);
    return (double)x.tv_sec + 1e-9 * (double)x.tv_nsec;
}

static double utilisation(const ls_trainer *t, double cpu, double wall)
{
    const double used = cpu_seconds() - cpu, passed = ls_now() - wall;
    return passed > 0 ? used / passed / t->compute.n_thread : 0;
}

double ls_step_clock_cpu(const ls_trainer *t)
{
    const ls_step_clock *k = &t->clock;
    return k->n_step ? utilisation(t, k->cpu_begin, k->wall_begin) : 0;
}

ls_step_split ls_step_clock_mean(const ls_step_clock *k)
{
    const double n = (double)(k->n_step - k->n_untimed);
    const ls_step_split s = k->sum;
    return (ls_step_split){s.input / n,        s.forward / n,   s.backward / n,
                           s.comm_exposed / n, s.optimizer / n, s.other / n};
}

/* ---- marks ---- */

/* The time since the last mark belongs to this part, except what was spent waiting for other workers. A device gets a mark, which is
 * read later. */
static ls_status mark(ls_trainer *t, double *part, bool micro)
{
    ls_step_clock *k = &t->clock;
    const ls_device *d = t->compute.device;
    const double now = ls_now(), exposed = ls_trainer_exposed(t, d != NULL), waited = exposed - k->exposed;
    k->r->split.comm_exposed += waited;
    k->exposed = exposed;
    if (!d) {
        *part += now - k->at - waited;
        k->at = now;
        return LS_OK;
    }
    if (k->n_mark >= LS_STEP_MAX_MARK - (micro ? LAST_MARKS : 0)) return LS_OK;
    LS_TRY(d->mark(d->ctx, &k->mark[k->n_mark].mark));
    k->mark[k->n_mark].part = part;
    k->mark[k->n_mark++].waited = waited;
    return LS_OK;
}

static double column(const ls_pipe_stats *s, int n_chunk, int from, int to)
{
    double sum = 0;
    for (int c = 0; c < n_chunk; c++)
        for (int k = from; k <= to; k++) sum += s->time[c][k];
    return sum;
}

/* A pipeline's part of the step: forward, backward, and the rest. */
static ls_status settle_pipeline(ls_trainer *t)
{
    ls_step_clock *k = &t->clock;
    const int n = t->schedule->n_chunk;
    const ls_pipe_stats *s = ls_pipe_measured(t->pipe);
    const int64_t untimed = s->untimed;
    LS_TRY(ls_pipe_settle(t->pipe, t->strategy));
    const double fwd = column(s, n, 0, 0) - k->pipe_forward, bwd = column(s, n, 1, 3) - k->pipe_backward;
    k->r->split.forward += s->untimed > untimed ? (double)NAN : fwd;
    k->r->split.backward += bwd;
    k->r->split.other += k->pipe - (fwd + bwd);
    return LS_OK;
}

/* Adds the device's time from a mark to the next to a part of the step, without the time that its queue waited for other workers. */
static ls_status settle_one(ls_trainer *t, double *last, ls_mark to, double *part)
{
    ls_step_clock *k = &t->clock;
    const ls_device *d = t->compute.device;
    double at;
    LS_TRY(d->seconds(d->ctx, to, &at));
    if (part && !isnan(at - *last)) {
        const double stood = ls_trainer_exposed_between(t, *last, at);
        k->r->split.comm_exposed += stood;
        *part += at - *last - stood;
    } else if (part) k->lost = true;
    *last = at;
    return LS_OK;
}

/* Reads the device's marks: it has passed those up to the norm, and the update of the step before. */
static ls_status settle(ls_trainer *t)
{
    ls_step_clock *k = &t->clock;
    double last = 0;
    if (!t->compute.device) return LS_OK;
    for (int i = 0; i < k->n_mark; i++) {
        LS_TRY(settle_one(t, &last, k->mark[i].mark, i ? k->mark[i].part : NULL));
        if (i) *k->mark[i].part -= k->mark[i].waited;
    }
    if (t->pipe) LS_TRY(settle_pipeline(t));
    k->lost = k->lost || isnan(k->r->split.forward);
    if (!k->last_update[1]) return LS_OK;
    LS_TRY(settle_one(t, &last, k->last_update[0], NULL));
    return settle_one(t, &last, k->last_update[1], &k->r->split.optimizer);
}

/* On a device, time that belongs to no part is `other`. A step with an unknown time has no split at all. */
static void close_split(ls_trainer *t)
{
    const double none = (double)NAN;
    ls_step_clock *k = &t->clock;
    ls_step_split *s = &k->r->split;
    if (!t->compute.device) return;
    k->at = ls_now();
    if (k->lost) {
        *s = (ls_step_split){none, none, none, none, none, none};
        return;
    }
    const double rest =
        k->at - k->begin - (s->input + s->forward + s->backward + s->comm_exposed + s->optimizer + s->other);
    s->other += rest;
    if (s->other < 0) { /* the update that was read is that of the step before, which took longer */
        s->optimizer = fmax(0, s->optimizer + s->other);
        s->other = 0;
    }
}

static void add_split(ls_step_clock *k, const ls_step_split *x)
{
    ls_step_split *sum = &k->sum;
    k->n_step++;
    if (isnan(x->other)) {
        k->n_untimed++;
        return;
    }
    sum->input += x->input;
    sum->forward += x->forward;
    sum->backward += x->backward;
    sum->comm_exposed += x->comm_exposed;
    sum->optimizer += x->optimizer;
    sum->other += x->other;
}

/* ---- samples ---- */

/* micro_step: counted from the beginning of the epoch. */
static bool sampled(const ls_trainer *t, int64_t micro_step)
{
    return ls_step_sampled(micro_step, t->cfg->timing_warmup_steps, t->cfg->timing_sample_every);
}

static void sample(ls_trainer *t, int micro, double data, double step)
{
    ls_step_clock *k = &t->clock;
    if (!sampled(t, t->state.epoch_step * t->cfg->grad_accum + micro)) return;
    k->sample_data[k->n_sample] = data;
    k->sample_step[k->n_sample++] = step;
}

/* ---- events ---- */

static void step_begin(ls_trainer *t, ls_step_result *r)
{
    ls_step_clock *k = &t->clock;
    k->r = r;
    k->begin = k->at = ls_now();
    k->cpu = cpu_seconds();
    ls_trainer_count(t, true);
    if (!k->n_step) k->cpu_begin = k->cpu, k->wall_begin = k->begin;
    k->lost = false;
    k->n_mark = 0;
    k->exposed = ls_trainer_exposed(t, t->compute.device != NULL);
}

static ls_status step_end(ls_trainer *t, ls_step_result *r)
{
    ls_step_clock *k = &t->clock;
    LS_TRY(settle(t));
    /* a sampled micro-batch that ends an update includes it; the state already counts this step */
    if (sampled(t, t->state.epoch_step * t->cfg->grad_accum - 1))
        k->sample_step[k->n_sample - 1] += ls_now() - k->began[LS_PHASE_REDUCE] - r->t_wait;
    r->cpu = utilisation(t, k->cpu, k->begin);
    close_split(t);
    r->t_total = k->at - k->begin;
    ls_trainer_count(t, false);
    add_split(k, &r->split);
    return LS_OK;
}

static ls_status phase_begin(ls_trainer *t, ls_phase p)
{
    ls_step_clock *k = &t->clock;
    const ls_device *d = t->compute.device;
    k->began[p] = ls_now();
    if (p == LS_PHASE_PIPELINE) {
        const ls_pipe_stats *s = ls_pipe_measured(t->pipe);
        k->pipe = 0;
        k->pipe_forward = column(s, t->schedule->n_chunk, 0, 0);
        k->pipe_backward = column(s, t->schedule->n_chunk, 1, 3);
    }
    if (p != LS_PHASE_UPDATE) return LS_OK;
    k->last_update[0] = k->update[0];
    k->last_update[1] = k->update[1];
    return d ? d->mark(d->ctx, &k->update[0]) : mark(t, &k->r->split.other, false);
}

static ls_status phase_end(ls_trainer *t, ls_phase p, int micro)
{
    ls_step_clock *k = &t->clock;
    const int M = t->cfg->grad_accum;
    const ls_device *d = t->compute.device;
    switch (p) {
    case LS_PHASE_START: return mark(t, &k->r->split.other, false);
    case LS_PHASE_READ: k->read_end = ls_now(); break;
    case LS_PHASE_INPUT: return mark(t, &k->r->split.input, true);
    case LS_PHASE_PASS: return mark(t, &k->r->split.forward, true);
    case LS_PHASE_BACKWARD:
        LS_TRY(mark(t, &k->r->split.backward, true));
        sample(t, micro, k->read_end - k->began[LS_PHASE_READ], ls_now() - k->read_end);
        break;
    case LS_PHASE_PIPELINE:
        LS_TRY(mark(t, &k->pipe, false));
        if (!d) LS_TRY(settle_pipeline(t));
        for (int m = 0; m < M; m++) sample(t, m, 0, (ls_now() - k->began[p]) / M); /* each has an equal share */
        break;
    case LS_PHASE_SQUARES: return mark(t, &k->r->split.optimizer, false);
    case LS_PHASE_WAIT: k->r->t_wait = ls_now() - k->began[LS_PHASE_WAIT]; break;
    case LS_PHASE_UPDATE: return d ? d->mark(d->ctx, &k->update[1]) : mark(t, &k->r->split.optimizer, false);
    default: break;
    }
    return LS_OK;
}

ls_status train_see_clock(ls_trainer *t, const ls_event *e)
{
    ls_step_clock *k = &t->clock;
    switch (e->kind) {
    case LS_ON_STEP_BEGIN: step_begin(t, e->step); break;
    case LS_ON_STEP_END: return step_end(t, e->step);
    case LS_ON_STEP_LOG: k->update_time[k->n_update++] = e->step->t_total - e->step->t_wait; break;
    case LS_ON_PHASE_BEGIN: return phase_begin(t, e->phase);
    case LS_ON_PHASE_END: return phase_end(t, e->phase, e->micro);
    case LS_ON_EPOCH_END: k->n_sample = k->n_update = 0; break;
    default: break;
    }
    return LS_OK;
}
