#include "train/step_clock.h"

#include "core/clock.h"
#include "core/log.h"
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
    return passed > 0 ? used / passed / t->compute.n_own : 0;
}

double ls_step_clock_cpu(const ls_trainer *t)
{
    const ls_step_clock *k = &t->clock;
    return k->n_step ? utilisation(t, k->cpu_begin, k->wall_begin) : 0;
}

ls_step_split ls_step_clock_mean(const ls_step_clock *k)
{
    ls_step_split mean = k->sum;
    for (int i = 0; i < LS_N_STEP_SPLIT; i++) mean.part[i] /= (double)(k->n_step - k->n_untimed);
    return mean;
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
    ls_step_clock *k = &t->clock;
    ls_step_split *s = &k->r->split;
    double known = 0;
    if (!t->compute.device) return;
    k->at = ls_now();
    for (int i = 0; i < LS_N_STEP_SPLIT; i++) known += s->part[i];
    s->other += k->at - k->begin - known;
    if (s->other < 0) { /* the update that was read is that of the step before, which took longer */
        s->optimizer = fmax(0, s->optimizer + s->other);
        s->other = 0;
    }
    for (int i = 0; i < LS_N_STEP_SPLIT && k->lost; i++) s->part[i] = (double)NAN;
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
    k->n_step++;
    k->n_untimed += isnan(r->split.other);
    for (int i = 0; i < LS_N_STEP_SPLIT && !isnan(r->split.other); i++) k->sum.part[i] += r->split.part[i];
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
    case LS_PHASE_WAIT:
        k->r->t_wait = ls_now() - k->began[LS_PHASE_WAIT];
        return t->strategy->opts.overlap ? mark(t, &k->r->split.other, false) : LS_OK;
    case LS_PHASE_UPDATE: return d ? d->mark(d->ctx, &k->update[1]) : mark(t, &k->r->split.optimizer, false);
    default: break;
    }
    return LS_OK;
}

/* The largest value over all workers; with more workers than fit into a small message, the own value. */
static ls_status max_over_workers(ls_trainer *t, double mine, double *largest)
{
    double all[LS_COMM_SMALL / sizeof(double)];
    const int W = ls_comm_size(t->comm);
    *largest = mine;
    if (!t->compute.device || W == 1 || W > (int)(sizeof all / sizeof *all)) return LS_OK;
    LS_TRY(ls_all_gather(t->comm, (ls_view){all, W, LS_F64}, (ls_view){&mine, 1, LS_F64}, LS_SITE, NULL));
    for (int r = 0; r < W; r++) *largest = fmax(*largest, all[r]);
    return LS_OK;
}

/* At its end, before validation. */
static ls_status measure_epoch(ls_trainer *t, ls_epoch_metrics *e)
{
    const ls_train_config *c = t->cfg;
    const ls_run_state *s = &t->state;
    const ls_step_clock *k = &t->clock;
    const double bytes = t->compute.device ? (double)ls_trainer_held_bytes(t) : 0;
    double most_bytes;
    LS_TRY(max_over_workers(t, bytes, &most_bytes));
    *e = (ls_epoch_metrics){.epoch_idx = s->epoch + 1,
                            .wall_time = s->epoch_time,
                            .train_loss = s->targets ? s->loss_sum / (double)s->targets : 0,
                            .loss_sum = s->loss_sum,
                            .targets = s->targets,
                            .cut = s->epoch_step < c->steps_per_epoch,
                            .micro_steps = s->epoch_step * c->grad_accum,
                            .grad_accum = c->grad_accum,
                            .tokens = s->tokens,
                            .n_sample = k->n_sample,
                            .step = ls_stats_of(k->sample_step, k->n_sample),
                            .dataload = ls_stats_of(k->sample_data, k->n_sample),
                            .updates_applied = s->epoch_step - s->epoch_skipped,
                            .updates_skipped = s->epoch_skipped,
                            .sequences_dropped = c->dropped_seqs,
                            .n_update = k->n_update,
                            .update = ls_stats_of(k->update_time, k->n_update),
                            .grad_norm_max = s->norm_max,
                            .grad_norm_last = s->norm_last,
                            .cuda_bytes = (int64_t)bytes,
                            .cuda_bytes_global = (int64_t)most_bytes,
                            .peak_rss_bytes = train_peak_rss()};
    return LS_OK;
}

static ls_status step_logged(ls_trainer *t, const ls_step_result *r)
{
    ls_step_clock *k = &t->clock;
    const double seconds = r->t_total - r->t_wait;
    k->update_time[k->n_update++] = seconds;
    t->state.epoch_time += seconds;
    ls_comm_expect(t->comm, r->t_total);
    ls_debug(
        "train",
        "step %lld: loss %.4f, %.4f s (input %.4f, forward %.4f, backward %.4f, exposed communication %.4f, optimizer %.4f)",
        (long long)t->state.step, r->loss, r->t_total, r->split.input, r->split.forward, r->split.backward,
        r->split.comm_exposed, r->split.optimizer);
    return LS_OK;
}

/* A device may still execute the last update. */
static ls_status epoch_trained(ls_trainer *t)
{
    const double begin = ls_now();
    LS_TRY(ls_compute_sync(&t->compute));
    t->state.epoch_time += ls_now() - begin;
    return LS_OK;
}

static ls_status epoch_end(ls_trainer *t, ls_epoch_metrics *e)
{
    LS_TRY(measure_epoch(t, e));
    t->clock.n_sample = t->clock.n_update = 0;
    return LS_OK;
}

double ls_step_clock_run(const ls_trainer *t)
{
    return ls_now() - t->clock.run_begin;
}

ls_status train_see_clock(ls_trainer *t, const ls_event *e)
{
    ls_step_clock *k = &t->clock;
    switch (e->kind) {
    case LS_ON_RUN_BEGIN: k->run_begin = ls_now() - t->state.total_time; break;
    case LS_ON_STEP_BEGIN: step_begin(t, e->step); break;
    case LS_ON_STEP_END: return step_end(t, e->step);
    case LS_ON_STEP_LOG: return step_logged(t, e->step);
    case LS_ON_PHASE_BEGIN: return phase_begin(t, e->phase);
    case LS_ON_PHASE_END: return phase_end(t, e->phase, e->micro);
    case LS_ON_EPOCH_TRAINED: return epoch_trained(t);
    case LS_ON_EPOCH_END: return epoch_end(t, e->epoch);
    case LS_ON_CHECKPOINT_BEGIN: t->state.total_time = ls_step_clock_run(t); break;
    default: break;
    }
    return LS_OK;
}
