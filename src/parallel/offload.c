/* offload.c - the update of an optimizer whose state is in host memory: --offload_optimizer cpu.
 *
 *   P parameters, N workers; GPU memory: 12P/N bytes less in bf16 and fp16, 8P/N in fp32. Host memory of a worker: 12P/N, pinned,
 *   room for two units' parameters, and for the gradient (4P/N), or with opts.overlap for those of two units.
 *
 * This is the update after the backward pass; what happens during it is in offload_early.c.
 *
 * Both processors work at the same time. The CPU takes units from the front: the gradient is on the host, or is copied while the unit before
 * it is updated, AdamW writes the rounded parameters, and these are copied back while the next one is updated. The GPU takes units from the back,
 * and reads and writes their state over the bus. They meet where both are done at the same time: between two slices of its unit, the CPU
 * gives the GPU its next one.
 *
 *   CPU      | copy g0 | update 0 | update 1 | update 2 | …
 *   down, up           | copy g1  | p0, g2   | p1, g3   | …
 *   GPU      | update U-1         | update U-2          | …
 *
 * Invariants
 *   1. both compute the same bits, so it does not matter where a unit is updated; a CPU without FMA instructions would not, and
 *      leaves all units to the GPU;
 *   2. when the update returns, the state in host memory is that of the finished step, and operations that are queued later see the new
 *      parameters;
 *   3. the next use of the state by the GPU is in the next update: a checkpoint may read it from the host at any other time. */
#include "parallel/parallel_impl.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/minmax.h"

enum {
    SLOTS = LS_OFFLOAD_SLOTS, /* units of the CPU whose gradients are copied or being copied; units queued on the GPU */
    SLICE = 2 << 20           /* elements that the CPU updates before it looks at the GPU */
};

typedef struct job {
    ls_strategy *s;
    const ls_device *d;
    ls_hyper_fn *hyper;
    void *ctx;
    int front, back;      /* the units that nobody has taken: [front, back] */
    int unit[SLOTS];      /* of the CPU, oldest first */
    float *grad[SLOTS];   /* in host memory */
    ls_mark ready[SLOTS]; /* from here on */
    int n_cpu, slot;      /* slot of the oldest */
    ls_mark gpu[SLOTS];
    int n_gpu;
    ls_mark start; /* gradients are complete */
    int done[2];   /* units of the CPU, of the GPU */
} job;

void parallel_offload_plan(ls_strategy *s, int64_t n_largest, ls_plan *plan)
{
    const ls_compute *c = s->model->compute;
    const int64_t esize = (int64_t)ls_dtype_nbytes(c->ops->dtype), wsize = (int64_t)ls_dtype_nbytes(c->ops->wide);
    for (int i = 0; i < SLOTS; i++) {
        s->off.grad_row[i] = s->off.param_row[i] = -1;
        if (s->opts.overlap)
            s->off.grad_row[i] =
                ls_plan_add_host(plan, LS_PART_BUCKET, n_largest * wsize, "gradient of a unit that the CPU updates");
        if (ls_compute_mixed(c))
            s->off.param_row[i] =
                ls_plan_add_host(plan, LS_PART_BUCKET, n_largest * esize, "parameters of a unit that the CPU updated");
    }
}

void parallel_offload_bind(ls_strategy *s, const ls_plan *plan)
{
    for (int u = 0; u < s->model->n_unit; u++)
        if (s->unit[u].host_row >= 0) s->unit[u].host = ls_plan_at(plan, s->unit[u].host_row);
    for (int i = 0; i < SLOTS && s->opts.offload; i++) {
        s->off.grad[i] = s->off.grad_row[i] < 0 ? NULL : ls_plan_at(plan, s->off.grad_row[i]);
        s->off.param[i] = s->off.param_row[i] < 0 ? NULL : ls_plan_at(plan, s->off.param_row[i]);
    }
}

ls_status parallel_offload_lanes(ls_strategy *s)
{
    const ls_device *d = s->model->compute->device;
    if (s->off.down) return LS_OK;
    LS_TRY(d->lane_open(d->ctx, &s->off.down));
    return d->lane_open(d->ctx, &s->off.up);
}

void parallel_offload_close(ls_strategy *s)
{
    const ls_device *d = s->model->compute->device;
    if (s->off.down) d->lane_close(d->ctx, s->off.down);
    if (s->off.up) d->lane_close(d->ctx, s->off.up);
}

/* Skips units of which this worker updates nothing. */
static void trim(job *j)
{
    while (j->front <= j->back && !ls_strategy_own(j->s, j->front).n) j->front++;
    while (j->front <= j->back && !ls_strategy_own(j->s, j->back).n) j->back--;
}

ls_status parallel_offload_on_gpu(ls_strategy *s, const ls_own *o, const ls_adamw *h)
{
    ls_compute *c = s->model->compute;
    LS_TRY(c->ops->adamw(c, o->param, o->master, o->grad, o->m, o->v, o->n, h));
    if (ls_compute_mixed(c)) return LS_OK;
    return c->ops->copy(c, o->param, o->master, (size_t)o->n * ls_dtype_nbytes(c->ops->dtype));
}

static ls_status give_gpu(job *j)
{
    const ls_own o = ls_strategy_own(j->s, j->back);
    ls_adamw h;
    j->hyper(j->ctx, j->back--, &o, &h);
    j->done[1]++;
    LS_TRY(parallel_offload_on_gpu(j->s, &o, &h));
    return j->d->mark(j->d->ctx, &j->gpu[j->n_gpu++]);
}

static ls_status give_cpu(job *j)
{
    const ls_own o = ls_strategy_own(j->s, j->front);
    const int k = (j->slot + j->n_cpu) % SLOTS;
    const ls_strategy_unit *u = &j->s->unit[j->front];
    j->unit[k] = j->front++;
    j->n_cpu++;
    j->grad[k] = u->host ? u->host : j->s->off.grad[k];
    j->ready[k] = u->copied;
    if (u->copied) return LS_OK;
    return j->d->copy(j->d->ctx, j->s->off.down, j->grad[k], o.grad, (size_t)o.n * sizeof(float), j->start,
                      &j->ready[k]);
}

/* Forgets what the GPU has done. */
static ls_status retire(job *j, bool wait)
{
    while (j->n_gpu && (wait || j->d->test(j->d->ctx, j->gpu[0]))) {
        LS_TRY(j->d->wait(j->d->ctx, j->gpu[0]));
        for (int i = 1; i < j->n_gpu; i++) j->gpu[i - 1] = j->gpu[i];
        j->n_gpu--;
    }
    return LS_OK;
}

static ls_status feed_gpu(void *ctx)
{
    job *j = ctx;
    LS_TRY(retire(j, false));
    trim(j);
    while (j->n_gpu < SLOTS && j->front <= j->back) {
        LS_TRY(give_gpu(j));
        trim(j);
    }
    return LS_OK;
}

/* Elements [at, at + n) of a unit's hyperparameters. */
static ls_adamw slice_of(const ls_adamw *whole, int64_t at, int64_t n)
{
    ls_adamw h = *whole;
    h.n_plain = h.gains.n = 0;
    for (int i = 0; i < whole->n_plain; i++) {
        const int64_t from = LS_MAX(whole->plain[i][0], at), to = LS_MIN(whole->plain[i][1], at + n);
        if (from >= to) continue;
        h.plain[h.n_plain][0] = from - at;
        h.plain[h.n_plain++][1] = to - at;
    }
    for (int i = 0; i < whole->gains.n; i++) {
        const int64_t from = LS_MAX(whole->gains.at[i][0], at), to = LS_MIN(whole->gains.at[i][1], at + n);
        if (from >= to) continue;
        h.gains.at[h.gains.n][0] = from - at;
        h.gains.at[h.gains.n++][1] = to - at;
    }
    h.round.first += at;
    return h;
}

ls_status parallel_offload_on_cpu(ls_strategy *s, const ls_own *o, const ls_adamw *whole, const float *g, int k,
                                  ls_status (*between)(void *ctx), void *ctx)
{
    const ls_compute *c = s->model->compute;
    const ls_device *d = c->device;
    ls_offload *off = &s->off;
    float *const master = o->master, *const m = o->m, *const v = o->v;
    LS_TRY(d->wait(d->ctx, off->sent[k])); /* the buffer is free again */
    for (int64_t at = 0; at < o->n; at += SLICE) {
        const int64_t n = LS_MIN(SLICE, o->n - at);
        const ls_adamw h = slice_of(whole, at, n);
        void *p = off->param[k] ? ls_at(c, off->param[k], at) : NULL;
        LS_TRY(ls_compute_adamw_host(c, p, master + at, g + at, m + at, v + at, n, &h,
                                     s->opts.stochastic ? &h.round : NULL));
        LS_TRY(between(ctx));
    }
    return d->copy(d->ctx, off->up, o->param, off->param[k] ? off->param[k] : o->master,
                   (size_t)o->n * ls_dtype_nbytes(c->ops->dtype), 0, &off->sent[k]);
}

static ls_status update_on_cpu(job *j)
{
    const int k = j->slot, u = j->unit[k];
    const ls_own o = ls_strategy_own(j->s, u);
    ls_adamw h;
    j->hyper(j->ctx, u, &o, &h);
    LS_TRY(j->d->wait(j->d->ctx, j->ready[k]));
    LS_TRY(parallel_offload_on_cpu(j->s, &o, &h, j->grad[k], k, feed_gpu, j));
    j->slot = (k + 1) % SLOTS;
    j->n_cpu--;
    j->done[0]++;
    return LS_OK;
}

static ls_status share_units(job *j)
{
    const bool cpu = ls_compute_adamw_host_same();
    do {
        trim(j);
        while (cpu && j->n_cpu < SLOTS && j->front <= j->back) {
            LS_TRY(give_cpu(j));
            trim(j);
            if (!j->n_gpu) LS_TRY(feed_gpu(j)); /* both begin at once */
        }
        if (!cpu) {
            LS_TRY(feed_gpu(j));
            LS_TRY(retire(j, true));
        }
        if (j->n_cpu) LS_TRY(update_on_cpu(j));
    } while (j->n_cpu || j->front <= j->back);
    return retire(j, true);
}

ls_status parallel_offload_update(ls_strategy *s, ls_hyper_fn *hyper, void *ctx)
{
    const ls_device *d = s->model->compute->device;
    job j = {.s = s, .d = d, .hyper = hyper, .ctx = ctx, .back = s->model->n_unit - 1};
    LS_TRY(parallel_offload_lanes(s));
    LS_TRY(d->mark(d->ctx, &j.start));
    const double begin = ls_now();
    LS_TRY(share_units(&j));
    ls_debug("parallel", "optimizer in host memory: %d units updated by the CPU, %d by the GPU, in %.1f ms", j.done[0],
             j.done[1], 1e3 * (ls_now() - begin));
    for (int k = 0; k < SLOTS; k++) LS_TRY(d->hold(d->ctx, s->off.sent[k]));
    return LS_OK;
}
