/* gemm_device.c - the matrix products of a training step with the operations of a device, timed by its clock.
 *
 * Two sides: "alone" is the product only, the upper bound for the utilization of a step; "step" is the operation in a training step (with bias,
 * GELU or its derivative, residual, bias gradient), fused where the backend fuses. The vocabulary is padded to 64 rows, as in the memory of the
 * classifier; the flop count is without padding. */
#include "bench/gemm_bench.h"
#include "compute/compute.h"
#include "compute/cpu/gemm.h"
#include "compute/random_fill.h"
#include "core/stat.h"

#include <stdlib.h>
#include <string.h>

#define PAD   64
#define BLOCK (1 << 18)

enum { ALONE, STEP, SIDES };

typedef struct job {
    ls_compute c;
    const ls_gemm_bench *o;
    void *x, *y, *w, *more; /* left, result, right; GELU's argument or the residual */
    void *b, *dw, *db;
    void *wide; /* BLOCK floats */
    int64_t V;  /* rounded up   */
} job;

static int64_t up(int64_t n)
{
    return (n + PAD - 1) / PAD * PAD;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static ls_status take(job *j, void **p, int64_t n, ls_dtype dt)
{
    const ls_device *d = j->c.device;
    return d->alloc(d->ctx, (size_t)n * ls_dtype_nbytes(dt), p);
}

static ls_status take_random(job *j, void **p, int64_t n)
{
    return ls_random_buffer(&j->c, j->wide, BLOCK, n, p);
}

static ls_status take_all(job *j)
{
    const ls_gemm_bench *o = j->o;
    const int64_t R = o->rows, C = o->width, n = o->chunk < R ? o->chunk : R;
    const int64_t tall = most(R * 4 * C, n * j->V), weights = most(4 * C * C, j->V * C);
    LS_TRY(ls_random_block(&j->c, BLOCK, &j->wide));
    LS_TRY(take_random(j, &j->x, tall));
    LS_TRY(take_random(j, &j->w, most(weights, R * 4 * C))); /* the right operand of dw has as many rows as the input */
    LS_TRY(take_random(j, &j->more, R * 4 * C));
    LS_TRY(take_random(j, &j->b, most(4 * C, j->V)));
    LS_TRY(take(j, &j->y, tall, j->c.ops->dtype));
    LS_TRY(take(j, &j->dw, weights, LS_F32));
    LS_TRY(take(j, &j->db, most(4 * C, j->V), LS_F32));
    const ls_compute_shapes shapes = {.B = 1, .T = R, .C = C, .ffn = 4 * C, .backward = true};
    j->c.scratch_nbytes = ls_compute_scratch(&j->c, &shapes);
    return j->c.device->alloc(j->c.device->ctx, j->c.scratch_nbytes, &j->c.scratch);
}

static void give_all(job *j)
{
    const ls_device *d = j->c.device;
    void *all[] = {j->x, j->y, j->w, j->more, j->b, j->dw, j->db, j->wide, j->c.scratch};
    if (d) (void)d->sync(d->ctx);
    for (size_t i = 0; d && i < sizeof all / sizeof all[0]; i++)
        if (all[i]) d->release(d->ctx, all[i]);
    ls_compute_close(&j->c);
}

/* The operation of a training step for this product. */
static ls_status issue_step(job *j, const gemm_shape *q)
{
    const ls_compute_ops *ops = j->c.ops;
    ls_compute *c = &j->c;
    if (q->ta)
        return ops->linear_bwd(c, NULL, j->dw, strstr(q->what, "logits") ? NULL : j->db, j->w, j->x, NULL, q->K, q->M,
                               q->N, q->acc);
    if (!strcmp(q->what, "fc fwd") && ops->linear_gelu_fwd)
        return ops->linear_gelu_fwd(c, j->y, j->more, j->x, j->w, j->b, q->M, q->K, q->N, LS_GELU_TANH);
    if (!strcmp(q->what, "fc2 dx") && ops->linear_gelu_bwd)
        return ops->linear_gelu_bwd(c, j->y, j->x, j->w, j->more, q->M, q->N, q->K, LS_GELU_TANH);
    if ((!strcmp(q->what, "proj fwd") || !strcmp(q->what, "fc2 fwd")) && ops->linear_add_fwd)
        return ops->linear_add_fwd(c, j->y, j->more, j->x, j->w, j->b, q->M, q->K, q->N);
    if (!strcmp(q->what, "logits")) return ops->logits(c, j->y, j->x, j->w, q->M, q->K, q->N);
    if (q->tb) return ops->linear_bwd(c, j->y, NULL, NULL, j->x, NULL, j->w, q->M, q->N, q->K, false);
    return ops->linear_fwd(c, j->y, j->x, j->w, strstr(q->what, "logits") ? NULL : j->b, q->M, q->K, q->N);
}

static ls_status issue(job *j, const gemm_shape *q, int side)
{
    ls_compute *c = &j->c;
    if (side == STEP) return issue_step(j, q);
    if (q->ta) return c->ops->linear_bwd(c, NULL, j->dw, NULL, j->w, j->x, NULL, q->K, q->M, q->N, false);
    if (!strcmp(q->what, "logits")) return c->ops->logits(c, j->y, j->x, j->w, q->M, q->K, q->N);
    if (q->tb) return c->ops->linear_bwd(c, j->y, NULL, NULL, j->x, NULL, j->w, q->M, q->N, q->K, false);
    return c->ops->linear_fwd(c, j->y, j->x, j->w, NULL, q->M, q->K, q->N);
}

static ls_status time_once(job *j, const gemm_shape *q, int side, double *seconds)
{
    const ls_device *d = j->c.device;
    ls_mark from, to;
    double begin, end;
    LS_TRY(d->mark(d->ctx, &from));
    LS_TRY(issue(j, q, side));
    LS_TRY(d->mark(d->ctx, &to));
    LS_TRY(d->seconds(d->ctx, to, &end));
    LS_TRY(d->seconds(d->ctx, from, &begin));
    *seconds = end - begin > 1e-9 ? end - begin : 1e-9;
    return LS_OK;
}

static ls_status time_row(job *j, const gemm_shape *q, ls_gemm_row *r)
{
    double time[SIDES][LS_GEMM_MAX_TURN], unused;
    for (int warm = 0; warm < 2; warm++) /* the first call of a shape selects a kernel */
        for (int s = 0; s < SIDES; s++) LS_TRY(time_once(j, q, s, &unused));
    for (int t = 0; t < j->o->turns; t++)
        for (int s = 0; s < SIDES; s++) LS_TRY(time_once(j, q, s, &time[s][t]));
    for (int s = 0; s < SIDES; s++) {
        qsort(time[s], (size_t)j->o->turns, sizeof(double), ls_by_value);
        r->best[s] = time[s][0];
        r->median[s] = ls_median(time[s], j->o->turns);
    }
    return LS_OK;
}

static ls_status run_rows(job *j)
{
    static const char *const op[2][2] = {{"NN", "NT"}, {"TN", "TT"}};
    const ls_gemm_bench *o = j->o;
    gemm_shape shapes[GEMM_STEP_SHAPES];
    ls_gemm_row step = {.what = "step", .op = "", .n_side = SIDES, .side = {"alone", "step"}};
    gemm_step_shapes(shapes, o->rows, o->width, o->layers, j->V, o->chunk);
    for (int i = 0; i < GEMM_STEP_SHAPES; i++) {
        const gemm_shape *q = &shapes[i];
        const double real = strstr(q->what, "logits") ? (double)o->vocab / (double)j->V : 1;
        ls_gemm_row r = {.what = q->what,
                         .op = op[q->ta != 0][q->tb != 0],
                         .M = q->M,
                         .N = q->N,
                         .K = q->K,
                         .count = q->count,
                         .n_side = SIDES,
                         .side = {"alone", "step"},
                         .flop = 2.0 * (double)q->M * (double)q->N * (double)q->K * real};
        LS_TRY(time_row(j, q, &r));
        for (int s = 0; s < SIDES; s++) {
            step.best[s] += r.best[s] * (double)r.count;
            step.median[s] += r.median[s] * (double)r.count;
        }
        step.flop += r.flop * (double)r.count;
        step.count += r.count;
        o->row(o->ctx, &r);
    }
    o->row(o->ctx, &step);
    return LS_OK;
}

ls_status ls_gemm_bench_device(const ls_gemm_bench *o)
{
    job j = {.o = o, .V = up(o->vocab)};
    LS_TRY(ls_compute_open(&j.c, o->device,
                           &(ls_compute_open_opts){.dtype = o->dtype, .device = o->index, .tf32 = o->tf32}, 0));
    ls_status st = j.c.device ? take_all(&j) : ls_fail(LS_E_ARG, "%s is not a device", o->device);
    if (st == LS_OK) {
        char words[LS_COMPUTE_WORDS];
        o->where(o->ctx, ls_compute_describe(&j.c, words));
        st = run_rows(&j);
    }
    give_all(&j);
    return st;
}
