/* planner_measure_rates.c - measures FLOP/s of a GPU: large matrix products and attention, forward and backward.
 *
 * Shapes grow until a repetition is long enough to time, or to the largest shape, which fills a GPU. Repetitions follow each other, so that
 * the GPU runs at the clock rate of sustained work. */
#include "plan/planner_measure_impl.h"

#include "compute/random_fill.h"
#include "core/clock.h"

#define BLOCK  (1 << 16) /* random numbers, repeated        */
#define ENOUGH 2e-3      /* seconds of a repetition         */

/* Products: (R, n) x (n, n); attention: B sequences of T, H heads of 64. */
typedef struct rate_shape {
    int64_t R, n, B, T, H;
} rate_shape;

typedef struct rates_job {
    ls_compute c; /* copy of the backend of the worker, with its own scratch */
    rate_shape s;
    bool attention;
    ls_drop drop;                          /* of attention */
    void *x, *y, *w, *b, *dw, *lse, *wide; /* attention: x is d y, w and dw are qkv and its gradient */
} rates_job;

static ls_status take(rates_job *j, int64_t n, ls_dtype dt, void **p)
{
    return j->c.device->alloc(j->c.device->ctx, (size_t)n * ls_dtype_nbytes(dt), p);
}

static ls_status take_random(rates_job *j, int64_t n, void **p)
{
    return ls_random_buffer(&j->c, j->wide, BLOCK, n, p);
}

static void give(rates_job *j)
{
    void *all[] = {j->x, j->y, j->w, j->b, j->dw, j->lse, j->wide, j->c.scratch};
    const ls_device *d = j->c.device;
    (void)d->sync(d->ctx);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]) d->release(d->ctx, all[i]);
}

static ls_status take_all(rates_job *j)
{
    const rate_shape *s = &j->s;
    const int64_t C = 64 * s->H, rows = s->B * s->T, n_x = j->attention ? rows * C : s->R * s->n,
                  n_w = j->attention ? rows * 3 * C : s->n * s->n;
    const ls_compute_shapes products = {.B = 1, .T = s->R, .C = s->n, .ffn = s->n, .backward = true},
                            attention = {.B = s->B, .T = s->T, .C = C, .H = s->H, .backward = true};
    LS_TRY(ls_random_block(&j->c, BLOCK, &j->wide));
    LS_TRY(take_random(j, n_x, &j->x));
    LS_TRY(take(j, n_x, j->c.ops->dtype, &j->y));
    LS_TRY(take_random(j, n_w, &j->w));
    LS_TRY(take(j, n_w, j->attention ? j->c.ops->dtype : LS_F32, &j->dw));
    if (j->attention) LS_TRY(take(j, rows * s->H, LS_F32, &j->lse));
    else LS_TRY(take_random(j, s->n, &j->b));
    j->c.scratch_nbytes = ls_compute_scratch(&j->c, j->attention ? &attention : &products);
    return j->c.device->alloc(j->c.device->ctx, j->c.scratch_nbytes, &j->c.scratch);
}

static ls_status issue(rates_job *j)
{
    const rate_shape *s = &j->s;
    ls_compute *c = &j->c;
    if (j->attention) {
        LS_TRY(c->ops->attention_fwd(c, j->y, j->lse, j->w, s->B, s->T, s->H, 64, j->drop));
        return c->ops->attention_bwd(c, j->dw, j->x, j->y, j->lse, j->w, s->B, s->T, s->H, 64, j->drop);
    }
    LS_TRY(c->ops->linear_fwd(c, j->y, j->x, j->w, j->b, s->R, s->n, s->n));
    LS_TRY(c->ops->linear_bwd(c, NULL, j->dw, NULL, j->y, j->x, j->w, s->R, s->n, s->n, false));
    return c->ops->linear_bwd(c, j->y, NULL, NULL, j->x, j->x, j->w, s->R, s->n, s->n, false);
}

/* Floating-point operations of one call: causal attention has half of T x T, and its backward recomputes the scores. */
static double work(const rates_job *j)
{
    const rate_shape *s = &j->s;
    if (j->attention) return 3.5 * 2 * 64.0 * (double)s->H * (double)(s->B * s->T) * (double)s->T;
    return 3 * 2.0 * (double)s->R * (double)s->n * (double)s->n;
}

/* Mean seconds of one call by the clock of the device, measured for about `seconds`. */
static ls_status time_it(rates_job *j, double seconds, double *sec)
{
    const ls_device *d = j->c.device;
    double sum = 0;
    int n = 0;
    LS_TRY(issue(j)); /* warm-up: libraries choose kernels */
    LS_TRY(ls_compute_sync(&j->c));
    for (double begin = ls_now(); n < 1 || (ls_now() - begin < seconds && n < PLANNER_REPS); n++) {
        ls_mark from, to;
        double a, b;
        LS_TRY(d->mark(d->ctx, &from));
        LS_TRY(issue(j));
        LS_TRY(d->mark(d->ctx, &to));
        LS_TRY(ls_compute_sync(&j->c));
        LS_TRY(d->seconds(d->ctx, from, &a));
        LS_TRY(d->seconds(d->ctx, to, &b));
        sum += b - a;
    }
    *sec = sum / n;
    return LS_OK;
}

static ls_status rate_of(const ls_compute *compute, bool attention, double dropout, double seconds, double *rate)
{
    static const rate_shape grows[] = {{256, 64, 1, 32, 1},
                                       {1024, 256, 1, 128, 4},
                                       {4096, 1024, 2, 512, 12},
                                       {16384, 2048, 8, 1024, 12},
                                       {16384, 4096, 16, 1024, 12}};
    enum { N = sizeof grows / sizeof grows[0] };
    double sec = 0;
    for (int i = 0; i < N && sec < ENOUGH; i++) {
        rates_job j = {.c = *compute, .s = grows[i], .attention = attention, .drop = {.p = (float)dropout}};
        j.c.scratch = NULL;
        ls_status st = take_all(&j);
        if (st == LS_OK) st = time_it(&j, 0, &sec);
        if (st == LS_OK && (sec >= ENOUGH || i + 1 == N)) st = time_it(&j, seconds, &sec);
        if (st == LS_OK) *rate = work(&j) / sec;
        give(&j);
        LS_TRY(st);
    }
    return LS_OK;
}

ls_status planner_time_rates(ls_compute *compute, double seconds, ls_cluster_rates *out)
{
    LS_TRY(rate_of(compute, false, 0, seconds / 3, &out->matmul));
    LS_TRY(rate_of(compute, true, 0, seconds / 3, &out->attention));
    return rate_of(compute, true, 0.1, seconds / 3, &out->dropout);
}
