/* gemm_device.c - the matrix products of a training step with the operations of a device, timed by its clock.
 *
 * Two sides: "alone" is the product only, the upper bound for the utilization of a step; "step" is the operation in a training step (with bias,
 * GELU or its derivative, residual, bias gradient), fused where the backend fuses. The vocabulary is padded to 64 rows, as in the memory of the
 * classifier; the flop count is without padding. */
#include "bench/gemm_bench.h"
#include "compute/compute.h"
#include "compute/cpu/gemm.h"
#include "compute/random_fill.h"

#include <string.h>

#define PAD   64
#define BLOCK (1 << 18)

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

static ls_status take_all(job *j)
{
    const ls_gemm_bench *o = j->o;
    const ls_device *d = j->c.device;
    const int64_t R = o->rows, C = o->width, n = o->chunk < R ? o->chunk : R;
    const int64_t tall = most(R * 4 * C, n * j->V), weights = most(4 * C * C, j->V * C);
    LS_TRY(ls_random_block(&j->c, BLOCK, &j->wide));
    const struct {
        void **at;
        int64_t n;
    } random[] = {{&j->x, tall},
                  {&j->w, most(weights, R * 4 * C)}, /* the right operand of dw has as many rows as the input */
                  {&j->more, R * 4 * C},
                  {&j->b, most(4 * C, j->V)}};
    for (int i = 0; i < 4; i++) LS_TRY(ls_random_buffer(&j->c, j->wide, BLOCK, random[i].n, random[i].at));
    LS_TRY(d->alloc(d->ctx, (size_t)tall * ls_dtype_nbytes(j->c.ops->dtype), &j->y));
    LS_TRY(d->alloc(d->ctx, (size_t)weights * sizeof(float), &j->dw));
    LS_TRY(d->alloc(d->ctx, (size_t)most(4 * C, j->V) * sizeof(float), &j->db));
    const ls_compute_shapes shapes = {.B = 1, .T = R, .C = C, .ffn = 4 * C, .backward = true};
    j->c.scratch_nbytes = ls_compute_scratch(&j->c, &shapes);
    return d->alloc(d->ctx, j->c.scratch_nbytes, &j->c.scratch);
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

/* The product alone, or the operation of a training step for it. */
static ls_status issue(job *j, const gemm_shape *q, bool step)
{
    const ls_compute_ops *ops = j->c.ops;
    ls_compute *c = &j->c;
    const bool bias = step && !strstr(q->what, "logits");
    if (q->ta)
        return ops->linear_bwd(c, NULL, j->dw, bias ? j->db : NULL, j->w, j->x, NULL, q->K, q->M, q->N, step && q->acc);
    if (step && !strcmp(q->what, "fc fwd") && ops->linear_gelu_fwd)
        return ops->linear_gelu_fwd(c, j->y, j->more, j->x, j->w, j->b, q->M, q->K, q->N, LS_GELU_TANH);
    if (step && !strcmp(q->what, "fc2 dx") && ops->linear_gelu_bwd)
        return ops->linear_gelu_bwd(c, j->y, j->x, j->w, j->more, q->M, q->N, q->K, LS_GELU_TANH);
    if (step && (!strcmp(q->what, "proj fwd") || !strcmp(q->what, "fc2 fwd")) && ops->linear_add_fwd)
        return ops->linear_add_fwd(c, j->y, j->more, j->x, j->w, j->b, q->M, q->K, q->N);
    if (!strcmp(q->what, "logits")) return ops->logits(c, j->y, j->x, j->w, q->M, q->K, q->N);
    if (q->tb) return ops->linear_bwd(c, j->y, NULL, NULL, j->x, NULL, j->w, q->M, q->N, q->K, false);
    return ops->linear_fwd(c, j->y, j->x, j->w, bias ? j->b : NULL, q->M, q->K, q->N);
}

static ls_status time_once(void *ctx, const gemm_shape *q, int side, double *seconds)
{
    job *j = ctx;
    const ls_device *d = j->c.device;
    ls_mark from, to;
    double begin, end;
    LS_TRY(d->mark(d->ctx, &from));
    LS_TRY(issue(j, q, side == 1));
    LS_TRY(d->mark(d->ctx, &to));
    LS_TRY(d->seconds(d->ctx, to, &end));
    LS_TRY(d->seconds(d->ctx, from, &begin));
    *seconds = end - begin > 1e-9 ? end - begin : 1e-9;
    return LS_OK;
}

ls_status gemm_bench_device(const ls_gemm_bench *o)
{
    job j = {.o = o, .V = up(o->vocab)};
    LS_TRY(ls_compute_open(&j.c, o->device,
                           &(ls_compute_open_opts){.dtype = o->dtype, .device = o->index, .tf32 = o->tf32}, 0));
    ls_status st = j.c.device ? take_all(&j) : ls_fail(LS_E_ARG, "%s is not a device", o->device);
    if (st == LS_OK) {
        const char *type = o->tf32 ? "tf32" : o->dtype == LS_BF16 ? "bf16" : o->dtype == LS_F16 ? "fp16" : "fp32";
        char words[LS_COMPUTE_WORDS];
        o->where(o->ctx, ls_compute_describe(&j.c, words));
        st = gemm_bench_rows(o, &(gemm_timer){.n_side = 2,
                                              .warm = 2, /* the first call of a shape selects a kernel */
                                              .side = {"alone", "step"},
                                              .type = {type, type},
                                              .vocab = j.V,
                                              .once = time_once,
                                              .ctx = &j});
    }
    give_all(&j);
    return st;
}
