/* step.c - one optimizer step, and validation.
 *
 *   for each micro-batch   data → forward (loss and the classifier's gradient) → backward, gradients summed in the tree
 *   fold the tied embedding → norm over fixed blocks → clip → AdamW on every unit
 *
 * The leaves of a step are the micro-batches of all workers; the samples of leaf g of step s are positions (s*G + g)*B … of the
 * epoch. Losses are added in the order of leaves, so a run reports the same numbers on any number of workers. */
#include "train/trainer.h"

#include "core/clock.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/nvtx.h"
#include "core/rng.h"
#include "core/stop.h"
#include "core/trace.h"

#include <math.h>
#include <time.h>

/* Phases have the names of R1's ranges (docs/REFERENCES.md) (--profile_mode), and its engine's for the reduction of gradients. They go
 * to the trace and to a profiler that watches. */
typedef struct phase {
    const char *name;
    int64_t begin;
} phase;

static phase phase_begin(const char *name)
{
    ls_nvtx_push(name);
    return (phase){name, ls_span_begin()};
}

static void phase_end(phase p, int64_t micro)
{
    ls_span_end(p.begin, (ls_trace_span){.kind = LS_SPAN_PHASE, .name = p.name, .micro = (int32_t)micro + 1});
    ls_nvtx_pop();
}

/* One worker can stop before any unit; several stop where all of them look (agree_to_stop). */
static ls_status acquire(void *ctx, int u, ls_pass pass)
{
    const ls_trainer *t = ctx;
    ls_deadline_tick();
    if (ls_comm_size(t->comm) == 1 && ls_stop_requested()) return ls_fail(LS_E_STOPPED, "signal %d", ls_stop_signal());
    return ls_strategy_acquire(t->strategy, u, pass);
}

static ls_status release(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_release(((ls_trainer *)ctx)->strategy, u, pass);
}

static ls_status agree_to_stop(ls_trainer *t)
{
    int stop = 0;
    if (ls_comm_size(t->comm) == 1) return LS_OK;
    LS_TRY(ls_agree(t->comm, ls_stop_requested(), LS_SITE, &stop));
    return stop ? ls_fail(LS_E_STOPPED, "a worker was asked to stop") : LS_OK;
}

static ls_status grad_ready(void *ctx, int u)
{
    return ls_strategy_grad_ready(((ls_trainer *)ctx)->strategy, u);
}

/* In a pipeline the last stage has the losses. */
static ls_status share_loss(ls_trainer *t, double *loss, double *counted)
{
    double both[2] = {*loss, *counted};
    if (!t->pp) return LS_OK;
    LS_TRY(ls_broadcast(t->pp, (ls_view){both, 2, LS_F64}, ls_comm_size(t->pp) - 1, LS_SITE, NULL));
    *loss = both[0];
    *counted = both[1];
    return LS_OK;
}

/* Everyone gets everyone's (loss, rows) pairs, n of each worker, and adds them in the order of leaves: one sum on any layout. */
static ls_status sum_losses(ls_trainer *t, double *pairs, int64_t n, double *loss, double *counted)
{
    const int64_t W = ls_comm_size(t->dp), r = ls_comm_rank(t->dp);
    /* micro-batch m of rank p is leaf pM + m, or mW + p */
    const bool strided = n > 1 && ls_strategy_leaf(t->strategy, 1) != ls_strategy_leaf(t->strategy, 0) + 1;
    LS_TRY(ls_all_gather(t->dp, (ls_view){pairs, 2 * n * W, LS_F64}, (ls_view){pairs + 2 * n * r, 2 * n, LS_F64},
                         LS_SITE, NULL));
    *loss = *counted = 0;
    for (int64_t i = 0; i < n * W; i++) {
        const double *pair = pairs + 2 * (strided ? i % W * n + i / W : i);
        *loss += pair[0];
        *counted += pair[1];
    }
    return share_loss(t, loss, counted);
}

static ls_status find_bad(ls_trainer *t, const ls_piece *p, const ls_tensor **bad)
{
    const ls_unit *unit = &t->model->unit[p->unit];
    for (int k = 0; k < unit->n_tensor; k++) {
        const ls_tensor *x = &unit->tensor[k];
        const ls_tensor_range r = ls_tensor_within(x, p->first, p->n);
        double sum = 0;
        if (r.from >= r.to) continue;
        LS_TRY(t->compute.ops->sumsq(&t->compute, t->norm_block, ls_at_wide(&t->compute, p->data, r.from - p->first),
                                     r.to - r.from, LS_NORM_BLOCK));
        LS_TRY(ls_compute_sync(&t->compute));
        for (int64_t i = 0; i < (r.to - r.from + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK; i++) sum += t->norm_block[i];
        if (isfinite(sum)) continue;
        *bad = x;
        return LS_OK;
    }
    return LS_OK;
}

/* Names the first tensor with a NaN or infinity among the elements this worker updates, parameters before gradients. */
static ls_status numbers_failed(ls_trainer *t, const char *what, double value, bool gradients)
{
    for (int pass = 0; pass < (gradients ? 2 : 1); pass++) {
        for (int u = 0; u < t->model->n_unit; u++) {
            const ls_own o = ls_strategy_own(t->strategy, u);
            const ls_piece p = {LS_FLAT_PARAM, u, o.first, o.n, pass ? o.grad : o.master};
            const ls_tensor *bad = NULL;
            LS_TRY(find_bad(t, &p, &bad));
            if (!bad) continue;
            return ls_fail(
                LS_E_NUMERIC,
                "step %lld: %s is %g; %s %s holds a NaN or an infinity (a lower --lr, warm-up or --clip may help)",
                (long long)t->state.step + 1, what, value, pass ? "the gradient of" : "the parameter", bad->name);
        }
    }
    return ls_fail(LS_E_NUMERIC,
                   "step %lld: %s is %g, while every parameter%s %s finite (a lower --lr, warm-up or --clip may help)",
                   (long long)t->state.step + 1, what, value, gradients ? " and gradient" : "",
                   ls_comm_size(t->comm) > 1 ? "that this worker updates is" : "is");
}

/* The tensors among elements [o.first, o.first + o.n) that are not decayed. */
static void plain_ranges(const ls_unit *unit, const ls_own *o, ls_adamw *h)
{
    h->n_plain = 0;
    for (int i = 0; i < unit->n_tensor; i++) {
        const ls_tensor *x = &unit->tensor[i];
        const ls_tensor_range r = ls_tensor_within(x, o->first, o->n);
        if (r.from >= r.to || x->matrix) continue;
        h->plain[h->n_plain][0] = r.from - o->first;
        h->plain[h->n_plain++][1] = r.to - o->first;
    }
}
/* NOLINTNEXTLINE(misc-redundant-expression): today they are the same number */
_Static_assert((int)LS_ADAMW_PLAIN >= (int)LS_UNIT_MAX_TENSOR, "a unit's tensors may all be plain");

static ls_status optimizer_pass(ls_trainer *t, double lr, double grad_scale)
{
    const ls_train_config *c = t->cfg;
    const double k = (double)ls_next_update(&t->state);
    ls_adamw h = {.lr = lr,
                  .beta1 = c->beta1,
                  .beta2 = c->beta2,
                  .eps = c->eps,
                  .weight_decay = c->weight_decay,
                  .bias1 = 1,
                  .bias2 = 1,
                  .grad_scale = grad_scale,
                  .coupled = c->coupled};
    if (c->bias_correction) {
        h.bias1 = 1 - pow(c->beta1, k);
        h.bias2 = 1 - pow(c->beta2, k);
    }
    for (int u = 0; u < t->model->n_unit; u++) {
        const ls_own o = ls_strategy_own(t->strategy, u);
        if (!ls_strategy_here(t->strategy, u)) continue;
        if (c->decay_matrices_only) plain_ranges(&t->model->unit[u], &o, &h);
        h.gains = ls_unit_gains(&t->model->unit[u], o.first, o.n);
        h.round_key = ls_rng_key(c->seed, LS_RNG_ROUND, (uint64_t)t->state.step, (uint64_t)u);
        h.round_first = o.first;
        if (o.n) LS_TRY(t->compute.ops->adamw(&t->compute, o.param, o.master, o.grad, o.m, o.v, o.n, &h));
        LS_TRY(ls_strategy_unit_done(t->strategy, u));
    }
    return LS_OK;
}

/* A part of the step: seconds since the last mark, without those that were spent waiting for other workers. A device works later than
 * the calls are made: there, marks lie in its queue and are read when it has passed them. A step's update is still under way when the step
 * returns, so its time is told with the next one. */
enum { MAX_MARK = 128, LAST_MARKS = 8 }; /* a step of very many micro-batches: the rest of them counts as backward */

typedef struct pipe_times { /* of all steps before this one */
    double forward, backward;
} pipe_times;

typedef struct marks {
    ls_trainer *t;
    double at, exposed;
    double rest;       /* of a step: all that a pipeline took */
    pipe_times before; /* of a pipeline                       */
    ls_step_split *split;
    bool lost; /* a time of the device is not known: the step has no split */
    int n;
    struct {
        ls_mark mark;
        double *part, waited;
    } on_device[MAX_MARK];
} marks;

static ls_status queue_mark(marks *m, double *part, double waited, bool micro)
{
    const ls_device *d = m->t->compute.device;
    if (m->n >= MAX_MARK - (micro ? LAST_MARKS : 0)) return LS_OK;
    LS_TRY(d->mark(d->ctx, &m->on_device[m->n].mark));
    m->on_device[m->n].part = part;
    m->on_device[m->n++].waited = waited;
    return LS_OK;
}

static ls_status mark_at(marks *m, double *part, bool micro)
{
    const bool device = m->t->compute.device != NULL; /* its queue's waits are read later, by its clock */
    const double now = ls_now(), exposed = device ? ls_trainer_exposed_host(m->t) : ls_trainer_exposed(m->t),
                 waited = exposed - m->exposed;
    m->split->comm_exposed += waited;
    m->exposed = exposed;
    if (device) return queue_mark(m, part, waited, micro);
    *part += now - m->at - waited;
    m->at = now;
    return LS_OK;
}

static ls_status mark(marks *m, double *part)
{
    return mark_at(m, part, false);
}

static double column(const ls_pipe_stats *s, int n_chunk, int from, int to)
{
    double sum = 0;
    for (int c = 0; c < n_chunk; c++)
        for (int k = from; k <= to; k++) sum += s->time[c][k];
    return sum;
}

/* A pipeline's part of the step: forward, backward, and what is neither. */
static ls_status settle_pipeline(marks *m)
{
    ls_trainer *t = m->t;
    const int n = t->schedule->n_chunk;
    const ls_pipe_stats *s = ls_pipe_measured(t->pipe);
    const int64_t untimed = s->untimed;
    LS_TRY(ls_pipe_settle(t->pipe, t->strategy));
    const double fwd = column(s, n, 0, 0) - m->before.forward, bwd = column(s, n, 1, 3) - m->before.backward;
    m->split->forward += s->untimed > untimed ? (double)NAN : fwd;
    m->split->backward += bwd;
    m->split->other += m->rest - (fwd + bwd);
    return LS_OK;
}

/* Adds the device's time from a mark to the next to a part of the step, without what its queue stood still for other workers. */
static ls_status settle_one(marks *m, double *last, ls_mark to, double *part)
{
    const ls_device *d = m->t->compute.device;
    double at;
    LS_TRY(d->seconds(d->ctx, to, &at));
    if (part && !isnan(at - *last)) {
        const double stood = ls_trainer_exposed_between(m->t, *last, at);
        m->split->comm_exposed += stood;
        *part += at - *last - stood;
    } else if (part) m->lost = true;
    *last = at;
    return LS_OK;
}

/* On a device, which has passed the marks up to the norm; update: those around the update before this one. */
static ls_status settle(marks *m, const ls_mark update[2])
{
    double last = 0;
    if (!m->t->compute.device) return LS_OK;
    for (int i = 0; i < m->n; i++) {
        LS_TRY(settle_one(m, &last, m->on_device[i].mark, i ? m->on_device[i].part : NULL));
        if (i) *m->on_device[i].part -= m->on_device[i].waited;
    }
    if (m->t->pipe) LS_TRY(settle_pipeline(m));
    m->lost = m->lost || isnan(m->split->forward);
    if (!update[1]) return LS_OK;
    LS_TRY(settle_one(m, &last, update[0], NULL));
    return settle_one(m, &last, update[1], &m->split->optimizer);
}

/* What is left of the time that passed belongs to no part. A step with a time that is not known has no parts at all. */
static void close_marks(marks *m, double begin)
{
    const double none = (double)NAN;
    ls_step_split *s = m->split;
    if (!m->t->compute.device) return;
    m->at = ls_now();
    if (m->lost) {
        *s = (ls_step_split){none, none, none, none, none, none};
        return;
    }
    const double rest =
        m->at - begin - (s->input + s->forward + s->backward + s->comm_exposed + s->optimizer + s->other);
    s->other += rest;
    if (s->other < 0) { /* the update that was read is that of the step before, which took longer */
        s->optimizer = fmax(0, s->optimizer + s->other);
        s->other = 0;
    }
}

/* One worker's pass is the same row of operations in every step, so a device may record it whole, if the strategy's hooks leave nothing
 * behind on the host (ls_strategy_records). Elsewhere the passes of single units are recorded (model/walk.c). */
static ls_status begin_whole(ls_trainer *t, int m, ls_pass pass, bool *region, bool *queued)
{
    ls_compute *c = &t->compute;
    *region = c->ops->region_begin && ls_comm_size(t->comm) == 1 && !t->pipe && ls_strategy_records(t->strategy);
    *queued = false;
    if (ls_comm_size(t->comm) == 1 && ls_stop_requested()) return ls_fail(LS_E_STOPPED, "signal %d", ls_stop_signal());
    return *region ? c->ops->region_begin(c, 2 * (uint64_t)m + (pass == LS_FWD), queued) : LS_OK;
}

static ls_status end_whole(ls_trainer *t, bool region, ls_status st)
{
    const ls_status end = region ? t->compute.ops->region_end(&t->compute) : LS_OK;
    return st != LS_OK ? st : end;
}

static ls_status walk_to_loss(ls_trainer *t, ls_micro *mb, const ls_hooks *hooks, int m)
{
    const int head = t->model->n_unit - 1;
    phase p = phase_begin("train/forward");
    LS_TRY(ls_walk_fwd(t->model, t->acts, mb, hooks, 0, head));
    phase_end(p, m);
    p = phase_begin("train/loss");
    LS_TRY(ls_walk_fwd(t->model, t->acts, mb, hooks, head, head + 1));
    phase_end(p, m);
    return LS_OK;
}

static ls_status forward(ls_trainer *t, ls_micro *mb, const ls_hooks *hooks, int m)
{
    bool region, queued;
    LS_TRY(begin_whole(t, m, LS_FWD, &region, &queued));
    return queued ? LS_OK : end_whole(t, region, walk_to_loss(t, mb, hooks, m));
}

static ls_status backward(ls_trainer *t, ls_micro *mb, const ls_hooks *hooks, int m)
{
    bool region, queued;
    LS_TRY(begin_whole(t, m, LS_BWD, &region, &queued));
    return queued ? LS_OK : end_whole(t, region, ls_walk_bwd(t->model, t->acts, mb, hooks, 0, t->model->n_unit));
}

static ls_status micro_batch(ls_trainer *t, int m, marks *k)
{
    const ls_train_config *c = t->cfg;
    const ls_run_state *s = &t->state;
    const ls_hooks hooks = {.ctx = t, .acquire = acquire, .release = release, .grad_ready = grad_ready};
    const int64_t B = c->micro_batch, T = c->seq_len, M = c->grad_accum, G = M * ls_comm_size(t->dp);
    const int64_t leaf = ls_strategy_leaf(t->strategy, m);
    const int slot = m % t->input.n_slot;
    double *pair = t->leaf_loss + 2 * (ls_comm_rank(t->dp) * M + m);
    int32_t *ids, *target;
    phase p = phase_begin("train/dataload");
    const double t0 = ls_now();
    LS_TRY(ls_input_open(&t->input, slot, &ids, &target));
    LS_TRY(ls_tokens_batch(&t->train, c->seed, s->epoch, (s->epoch_step * G + leaf) * B, B, ids, target));
    const double t1 = ls_now();
    ls_micro mb = {.B = B,
                   .T = T,
                   .train = true,
                   .loss = pair,
                   .dloss = ls_loss_scale_now(&s->scale) / (double)(B * T * G),
                   .drop_key = ls_rng_key(c->seed, LS_RNG_DROPOUT, (uint64_t)s->step, (uint64_t)leaf)};
    LS_TRY(ls_input_send(&t->input, slot, &mb));
    pair[1] = (double)mb.n_counted;
    LS_TRY(mark_at(k, &k->split->input, true));
    phase_end(p, m);
    ls_strategy_begin(t->strategy, m);
    LS_TRY(forward(t, &mb, &hooks, m));
    LS_TRY(mark_at(k, &k->split->forward, true));
    const bool known = !t->compute.device; /* a device has not got there yet */
    if (known && ls_comm_size(t->comm) == 1 && !isfinite(*pair)) return numbers_failed(t, "the loss", *pair, false);
    p = phase_begin("train/backward");
    LS_TRY(backward(t, &mb, &hooks, m));
    LS_TRY(mark_at(k, &k->split->backward, true));
    LS_TRY(ls_input_used(&t->input, slot));
    phase_end(p, m);
    if (ls_step_sampled(s->epoch_step * M + m, c->timing_warmup_steps, c->timing_sample_every)) {
        t->sample_data[t->n_sample] = t1 - t0;
        t->sample_step[t->n_sample++] = ls_now() - t1;
    }
    return LS_OK;
}

/* What a stage of a pipeline needs of micro-batch m of this replica. */
static ls_status load_micro(void *ctx, int m, int32_t *ids, int32_t *target, ls_micro *mb)
{
    ls_trainer *t = ctx;
    const ls_train_config *c = t->cfg;
    const ls_run_state *s = &t->state;
    const int64_t B = c->micro_batch, T = c->seq_len, G = (int64_t)c->grad_accum * ls_comm_size(t->dp);
    const int64_t leaf = ls_strategy_leaf(t->strategy, m);
    mb->dloss = ls_loss_scale_now(&s->scale) / (double)(B * T * G);
    mb->drop_key = ls_rng_key(c->seed, LS_RNG_DROPOUT, (uint64_t)s->step, (uint64_t)leaf);
    if (!ids && !target) return LS_OK;
    const phase p = phase_begin("train/dataload");
    LS_TRY(ls_tokens_batch(&t->train, c->seed, s->epoch, (s->epoch_step * G + leaf) * B, B, ids ? ids : t->ids,
                           target ? target : t->target));
    phase_end(p, m);
    return LS_OK;
}

static ls_status pipeline(ls_trainer *t, marks *k)
{
    const ls_hooks hooks = {.ctx = t, .acquire = acquire, .release = release, .grad_ready = grad_ready};
    const int n = t->schedule->n_chunk, M = t->cfg->grad_accum;
    const ls_pipe_stats *s = ls_pipe_measured(t->pipe);
    const double begin = ls_now();
    k->before = (pipe_times){column(s, n, 0, 0), column(s, n, 1, 3)};
    LS_TRY(ls_pipe_step(t->pipe, t->strategy, &hooks, load_micro, t,
                        (double(*)[2])(t->leaf_loss + 2 * (int64_t)ls_comm_rank(t->dp) * M)));
    k->rest = 0;
    LS_TRY(mark(k, &k->rest));
    if (!t->compute.device) LS_TRY(settle_pipeline(k));
    for (int m = 0; m < M; m++) /* a micro-batch has no time of its own here */
        if (ls_step_sampled(t->state.epoch_step * M + m, t->cfg->timing_warmup_steps, t->cfg->timing_sample_every)) {
            t->sample_data[t->n_sample] = 0;
            t->sample_step[t->n_sample++] = (ls_now() - begin) / M;
        }
    return LS_OK;
}

static double cpu_seconds(void)
{
    struct timespec x;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &x);
    return (double)x.tv_sec + 1e-9 * (double)x.tv_nsec;
}

double ls_trainer_cpu(const ls_trainer *t, double *cpu, double *wall)
{
    const double now_cpu = cpu_seconds(), now = ls_now(), used = now_cpu - *cpu, passed = now - *wall;
    *cpu = now_cpu;
    *wall = now;
    return passed > 0 ? used / passed / t->compute.n_thread : 0;
}

static void add_split(ls_trainer *t, const ls_step_split *x)
{
    ls_step_split *sum = &t->split_sum;
    t->n_split++;
    if (isnan(x->other)) {
        t->n_untimed++;
        return;
    }
    sum->input += x->input;
    sum->forward += x->forward;
    sum->backward += x->backward;
    sum->comm_exposed += x->comm_exposed;
    sum->optimizer += x->optimizer;
    sum->other += x->other;
}

/* Every worker comes to the same end. Where the loss is scaled, a step that overflowed is skipped. */
static ls_status check_numbers(ls_trainer *t, ls_step_result *r)
{
    if (ls_loss_scale_skips(&t->state.scale)) {
        int skipped = !isfinite(r->grad_norm) || !isfinite(r->loss);
        r->loss_scale = ls_loss_scale_now(&t->state.scale);
        if (ls_comm_size(t->comm) > 1) LS_TRY(ls_agree(t->comm, skipped, LS_SITE, &skipped)); /* dp: rank 0 knows */
        r->skipped = skipped;
        return LS_OK;
    }
    if (!isfinite(r->loss)) return numbers_failed(t, "the loss", r->loss, false);
    if (!isfinite(r->grad_norm)) return numbers_failed(t, "the gradient norm", r->grad_norm, true);
    return LS_OK;
}

static ls_status begin_update(ls_trainer *t, marks *k)
{
    const ls_device *d = t->compute.device;
    return d ? d->mark(d->ctx, &t->update[0]) : mark(k, &k->split->other);
}

static ls_status end_update(ls_trainer *t, marks *k)
{
    const ls_device *d = t->compute.device;
    return d ? d->mark(d->ctx, &t->update[1]) : mark(k, &k->split->optimizer);
}

static ls_status step(ls_trainer *t, ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    ls_run_state *s = &t->state;
    const int64_t B = c->micro_batch, T = c->seq_len, M = c->grad_accum, G = M * ls_comm_size(t->dp);
    const int64_t whole = ls_span_begin();
    const double begin = ls_now();
    double cpu = cpu_seconds(), wall = begin;
    *r = (ls_step_result){0};
    ls_trainer_count(t, true);
    if (!t->n_split) t->cpu_begin = cpu, t->wall_begin = wall;
    marks k = {.t = t,
               .at = begin,
               .exposed = t->compute.device ? ls_trainer_exposed_host(t) : ls_trainer_exposed(t),
               .split = &r->split};
    LS_TRY(agree_to_stop(t));
    LS_TRY(mark(&k, &r->split.other));

    if (t->pipe) LS_TRY(pipeline(t, &k));
    for (int m = 0; m < M && !t->pipe; m++) LS_TRY(micro_batch(t, m, &k));
    const double t4 = ls_now();
    phase p = phase_begin("train/allreduce_gradients"); /* and the losses, which come behind them in one queue */
    double loss_sum = 0, counted = 0, squares = 0;
    LS_TRY(ls_strategy_step_due(t->strategy));
    phase_end(p, -1);
    p = phase_begin("train/gradient_norm");
    LS_TRY(ls_strategy_sum_squares(t->strategy, &squares));
    const double unscale = 1 / ls_loss_scale_now(&s->scale);
    r->grad_norm = sqrt(squares) * unscale;
    /* The one point of a step where the host waits for a device, which has nothing to do from here until the update is queued. */
    LS_TRY(ls_compute_sync(&t->compute));
    LS_TRY(mark(&k, &r->split.optimizer));
    LS_TRY(sum_losses(t, t->leaf_loss, M, &loss_sum, &counted));
    r->loss = counted > 0 ? loss_sum / counted : 0;
    phase_end(p, -1);
    LS_TRY(check_numbers(t, r));

    const double t5 = ls_now();
    LS_TRY(ls_ckpt_wait(t->writer)); /* it reads the parameters that we are about to change */
    r->t_wait = ls_now() - t5;
    const ls_mark last[2] = {t->update[0], t->update[1]};
    LS_TRY(begin_update(t, &k));
    r->lr = ls_lr_at(&c->lr, ls_next_update(s));
    const double scale = c->clip > 0 ? fmin(1.0, c->clip / (r->grad_norm + 1e-6)) : 1.0;
    p = phase_begin("train/optimizer_step");
    if (!r->skipped) LS_TRY(optimizer_pass(t, r->lr, scale * unscale));
    LS_TRY(ls_strategy_step_done(t->strategy));
    LS_TRY(end_update(t, &k));
    phase_end(p, -1);
    LS_TRY(settle(&k, last));
    /* a sampled micro step that ends an update includes it */
    if (ls_step_sampled(s->epoch_step * M + M - 1, c->timing_warmup_steps, c->timing_sample_every))
        t->sample_step[t->n_sample - 1] += ls_now() - t4 - r->t_wait;

    if (ls_loss_scale_skips(&s->scale)) LS_TRY(ls_loss_scale_update(&s->scale, r->skipped));
    s->skipped += r->skipped;
    s->epoch_skipped += r->skipped;
    s->step++;
    s->epoch_step++;
    if (isfinite(loss_sum)) s->loss_sum += loss_sum; /* a step that overflowed may have none */
    s->tokens += B * T * G;
    r->cpu = ls_trainer_cpu(t, &cpu, &wall);
    close_marks(&k, begin);
    r->t_total = k.at - begin;
    ls_trainer_count(t, false);
    add_split(t, &r->split);
    ls_span_end(
        whole,
        (ls_trace_span){.kind = LS_SPAN_STEP, .name = "step", .index = (int32_t)s->step + 1, .seq = (uint64_t)s->step});
    ls_trace_count("loss", r->loss);
    if (!k.lost) ls_trace_count("exposed communication (ms)", 1e3 * r->split.comm_exposed);
    return LS_OK;
}

/* A stop is everyone's, and a failed collective has been reported to all. */
static ls_status own_failure(ls_trainer *t, ls_status st)
{
    t->broken = t->broken || (st != LS_OK && st != LS_E_STOPPED && st != LS_E_COMM);
    return st;
}

ls_status ls_trainer_step(ls_trainer *t, ls_step_result *r)
{
    return own_failure(t, step(t, r));
}

/* Validation batch of this replica's turn k: file order, replica r takes the batches r, r + W, …; in the last turn some have none
 * and walk the last batch once more, uncounted, as parameters may have to be gathered from everyone. */
typedef struct val_turn {
    ls_trainer *t;
    int64_t n; /* batches in all */
} val_turn;

static ls_status load_val(void *ctx, int k, int32_t *ids, int32_t *target, ls_micro *mb)
{
    const val_turn *v = ctx;
    ls_trainer *t = v->t;
    const int64_t B = t->cfg->micro_batch, T = t->cfg->seq_len;
    const int64_t i = (int64_t)k * ls_comm_size(t->dp) + ls_comm_rank(t->dp), batch = i < v->n ? i : v->n - 1;
    (void)mb;
    if (!ids && !target) return LS_OK;
    for (int64_t b = 0; b < B; b++)
        LS_TRY(ls_tokens_sequence(&t->val, batch * B + b, (ids ? ids : t->ids) + b * T,
                                  (target ? target : t->target) + b * T));
    return LS_OK;
}

static ls_status validate(ls_trainer *t, double *loss, int64_t *n_batch)
{
    const ls_train_config *c = t->cfg;
    const int64_t B = c->micro_batch, W = ls_comm_size(t->dp), rank = ls_comm_rank(t->dp);
    const ls_hooks hooks = {.ctx = t, .acquire = acquire, .release = release};
    int64_t n = t->val.n_seq / B;
    if (c->max_val_steps >= 0 && n > c->max_val_steps * W) n = c->max_val_steps * W;
    const int64_t turns = (n + W - 1) / W;
    double(*pair)[2] = (double(*)[2])(t->val_loss + 2 * rank * turns);
    val_turn v = {t, n};
    LS_TRY(agree_to_stop(t));
    phase p = phase_begin("val/forward");
    ls_strategy_begin(t->strategy, -1);
    if (t->pipe) LS_TRY(ls_pipe_forward(t->pipe, t->strategy, &hooks, (int)turns, load_val, &v, pair));
    for (int64_t k = 0; k < turns && !t->pipe; k++) {
        const int slot = (int)(k % t->input.n_slot);
        ls_micro mb = {.B = B, .T = c->seq_len, .loss = &pair[k][0]};
        int32_t *ids, *target;
        LS_TRY(ls_input_open(&t->input, slot, &ids, &target));
        LS_TRY(load_val(&v, (int)k, ids, target, &mb));
        LS_TRY(ls_input_send(&t->input, slot, &mb));
        LS_TRY(ls_walk_fwd(t->model, t->acts, &mb, &hooks, 0, t->model->n_unit));
        LS_TRY(ls_input_used(&t->input, slot));
        pair[k][1] = (double)mb.n_counted;
    }
    LS_TRY(ls_compute_sync(&t->compute));
    phase_end(p, -1);
    *n_batch = n;
    *loss = 0;
    if (!turns) return LS_OK;
    p = phase_begin("val/loss");
    LS_TRY(ls_all_gather(t->dp, (ls_view){t->val_loss, 2 * turns * W, LS_F64},
                         (ls_view){t->val_loss + 2 * rank * turns, 2 * turns, LS_F64}, LS_SITE, NULL));
    double sum = 0, counted = 0; /* in the order of batches, as one worker adds them */
    for (int64_t i = 0; i < n; i++) {
        const double *one = t->val_loss + 2 * (i % W * turns + i / W);
        sum += one[0];
        counted += one[1];
    }
    LS_TRY(share_loss(t, &sum, &counted));
    *loss = counted > 0 ? sum / counted : 0;
    ls_debug("train", "validation: loss %.4f over %lld batches", *loss, (long long)n);
    phase_end(p, -1);
    return LS_OK;
}

ls_status ls_trainer_validate(ls_trainer *t, double *loss, int64_t *n_batch)
{
    return own_failure(t, validate(t, loss, n_batch));
}
