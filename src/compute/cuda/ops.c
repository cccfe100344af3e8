/* ops.c - the operations that are kernels of ours, as the table wants them. */
#include "compute/cuda/cuda_impl.h"

#include "compute/cuda/kernels/attention_cached.h"
#include "compute/cuda/kernels/embed.h"
#include "compute/cuda/kernels/norm.h"
#include "compute/cuda/kernels/optim.h"
#include "compute/cuda/kernels/point.h"
#include "core/minmax.h"

/* ---- embedding ---- */

static ls_status embed_fwd(ls_compute *c, void *y, const int32_t *ids, int64_t first, int64_t V, const void *wte,
                           const void *wpe, int64_t B, int64_t T, int64_t C, ls_drop drop)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_embed_fwd(x->stream, x->dt, y, ids, first, V, wte, wpe, B, T, C, drop));
    return LS_OK;
}

static ls_status embed_bwd(ls_compute *c, void *dwte, void *dwpe, const void *dy, const int32_t *ids, int64_t first,
                           int64_t B, int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop, bool acc)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_embed_bwd(x->stream, x->dt, dwte, dwpe, dy, ids, first, B, T, C, V, P, drop, acc, cuda_room(c)));
    return LS_OK;
}

/* ---- norms ---- */

static ls_status layernorm_fwd(ls_compute *c, void *y, void *mean, void *rstd, const void *in, const void *w,
                               const void *b, int64_t R, int64_t C, double eps)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_layernorm_fwd(x->stream, x->dt, y, mean, rstd, in, w, b, R, C, eps));
    return LS_OK;
}

static ls_status add_layernorm_fwd(ls_compute *c, void *res, void *y, void *mean, void *rstd, const void *in,
                                   const void *delta, const void *w, const void *b, int64_t R, int64_t C, double eps,
                                   ls_drop drop)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_add_layernorm_fwd(x->stream, x->dt, res, y, mean, rstd, in, delta, w, b, R, C, eps, drop));
    return LS_OK;
}

static ls_status layernorm_bwd(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *dres,
                               const void *in, const void *w, const void *mean, const void *rstd, int64_t R, int64_t C,
                               bool acc)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_layernorm_bwd(x->stream, x->dt, dx, dw, db, dy, dres, in, w, mean, rstd, R, C, acc, cuda_room(c)));
    return LS_OK;
}

static ls_status layernorm_again(ls_compute *c, void *y, const void *in, const void *mean, const void *rstd,
                                 const void *w, const void *b, int64_t R, int64_t C)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_layernorm_again(x->stream, x->dt, y, in, mean, rstd, w, b, R, C));
    return LS_OK;
}

/* ---- single elements ---- */

static ls_status gelu_fwd(ls_compute *c, void *y, const void *in, int64_t n, ls_gelu kind)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_gelu_fwd(x->stream, x->dt, y, in, n, kind));
    return LS_OK;
}

static ls_status gelu_bwd(ls_compute *c, void *dx, const void *dy, const void *in, int64_t n, ls_gelu kind)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_gelu_bwd(x->stream, x->dt, dx, dy, in, n, kind));
    return LS_OK;
}

static ls_status add_fwd(ls_compute *c, void *y, const void *in, const void *delta, int64_t n, ls_drop drop)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_add_fwd(x->stream, x->dt, y, in, delta, n, drop));
    return LS_OK;
}

static ls_status drop_bwd(ls_compute *c, void *dx, const void *dy, int64_t n, ls_drop drop)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_drop_bwd(x->stream, x->dt, dx, dy, n, drop));
    return LS_OK;
}

static ls_status add(ls_compute *c, void *y, const void *a, const void *b, int64_t n)
{
    CU_TRY(cu_add(cuda_of(c)->stream, c->ops->wide, y, a, b, n));
    return LS_OK;
}

static ls_status zero(ls_compute *c, void *y, size_t nbytes)
{
    CU_TRY(cu_zero(cuda_of(c)->stream, y, nbytes));
    return LS_OK;
}

static ls_status copy(ls_compute *c, void *y, const void *in, size_t nbytes)
{
    CU_TRY(cu_copy(cuda_of(c)->stream, y, in, nbytes));
    return LS_OK;
}

/* ---- attention ---- */

static cu_attention_job job(const ls_compute *c, const void *qkv, void *y, void *lse, int64_t B, int64_t T, int64_t H,
                            int64_t D, ls_drop drop)
{
    return (cu_attention_job){.y = y,
                              .lse = lse,
                              .qkv = qkv,
                              .B = B,
                              .T = T,
                              .H = H,
                              .D = D,
                              .drop = drop,
                              .dt = c->ops->dtype,
                              .scratch = cuda_room(c)};
}

static ls_status attention_fwd(ls_compute *c, void *y, void *lse, const void *qkv, int64_t B, int64_t T, int64_t H,
                               int64_t D, ls_drop drop)
{
    const cu_attention_job j = job(c, qkv, y, lse, B, T, H, D, drop);
    return cu_attention_fwd(cuda_of(c)->attention, &j);
}

static ls_status attention_bwd(ls_compute *c, void *dqkv, const void *dy, const void *y, const void *lse,
                               const void *qkv, int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop)
{
    cu_attention_job j = job(c, qkv, (void *)(uintptr_t)y, (void *)(uintptr_t)lse, B, T, H, D, drop);
    j.dqkv = dqkv;
    j.dy = dy;
    return cu_attention_bwd(cuda_of(c)->attention, &j);
}

static ls_status attention_cached(ls_compute *c, void *y, void *kcache, void *vcache, const void *qkv, int64_t B,
                                  int64_t Tq, int64_t pos, int64_t Tmax, int64_t H, int64_t D)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_attention_cached(x->stream, x->dt, y, kcache, vcache, qkv, B, Tq, pos, Tmax, H, D));
    return LS_OK;
}

/* ---- optimizer ---- */

static ls_status adamw(ls_compute *c, void *p, void *master, const void *g, void *m, void *v, int64_t n,
                       const ls_adamw *h)
{
    const cuda *x = cuda_of(c);
    const cu_rounding round = {.on = x->stochastic, .key = h->round_key, .first = h->round_first};
    CU_TRY(cu_adamw(x->stream, x->dt, p, master, g, m, v, n, h, &round));
    return LS_OK;
}

static ls_status narrow(ls_compute *c, void *p, const void *in, int64_t n, const ls_gains *gains)
{
    const cuda *x = cuda_of(c);
    CU_TRY(cu_narrow(x->stream, x->dt, p, in, n, gains, NULL));
    return LS_OK;
}

static ls_status sumsq(ls_compute *c, double *block_sum, const void *in, int64_t n, int64_t block)
{
    CU_TRY(cu_sumsq(cuda_of(c)->stream, block_sum, in, n, block));
    return LS_OK;
}

static ls_status sum(ls_compute *c, double *out, const double *in, int64_t n)
{
    CU_TRY(cu_sum(cuda_of(c)->stream, out, in, n));
    return LS_OK;
}

/* ---- int8 copies are the CPU's ---- */

static ls_status quantise(ls_compute *c, void *q, const void *w, int64_t K, int64_t N, bool by_column)
{
    (void)c, (void)q, (void)w, (void)K, (void)N, (void)by_column;
    return ls_fail(LS_E_UNSUPPORTED, "int8 copies of weights (drafts) are supported on the CPU only");
}

static ls_status linear_q8(ls_compute *c, void *y, const void *in, const void *q, const void *b, int64_t K, int64_t N)
{
    (void)c, (void)y, (void)in, (void)q, (void)b, (void)K, (void)N;
    return ls_fail(LS_E_UNSUPPORTED, "int8 matrix products (drafts) are supported on the CPU only");
}

/* ---- regions ---- */

static ls_status region_begin(ls_compute *c, uint64_t name, bool *queued)
{
    return cu_region_begin(cuda_of(c)->device->regions, name, queued);
}

static ls_status region_end(ls_compute *c)
{
    return cu_region_end(cuda_of(c)->device->regions);
}

void cuda_fill_ops(ls_compute_ops *ops)
{
    ops->embed_fwd = embed_fwd;
    ops->embed_bwd = embed_bwd;
    ops->layernorm_fwd = layernorm_fwd;
    ops->add_layernorm_fwd = add_layernorm_fwd;
    ops->layernorm_bwd = layernorm_bwd;
    ops->layernorm_again = layernorm_again;
    ops->gelu_fwd = gelu_fwd;
    ops->gelu_bwd = gelu_bwd;
    ops->add_fwd = add_fwd;
    ops->drop_bwd = drop_bwd;
    ops->add = add;
    ops->zero = zero;
    ops->copy = copy;
    ops->attention_fwd = attention_fwd;
    ops->attention_bwd = attention_bwd;
    ops->attention_cached = attention_cached;
    ops->adamw = adamw;
    ops->narrow = narrow;
    ops->sumsq = sumsq;
    ops->sum = sum;
    ops->quantise = quantise;
    ops->linear_q8 = linear_q8;
    ops->region_begin = region_begin;
    ops->region_end = region_end;
}

size_t cuda_ops_scratch(const cuda *x, const ls_compute_shapes *s)
{
    const int64_t R = s->B * s->T;
    size_t n = 0;
    if (s->H) n = cu_attention_scratch(x->attention, s->B, s->T, s->H, s->C / s->H, s->backward);
    if (!s->backward) return n;
    n = LS_MAX(n, cu_embed_bwd_scratch(R, s->C));
    return LS_MAX(n, cu_layernorm_bwd_scratch(R, s->C));
}
