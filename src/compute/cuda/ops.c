/* ops.c - the operations, as the table wants them: kernels of ours, and products with weights and what is fused to them.
 *
 *   y  (R,N) = x w + b            a = x, b = w
 *   dx (R,K) = dy w^T             a = dy, b = w transposed
 *   dw (K,N) = x^T dy             a = x transposed, b = dy;  db: the sums of b over K, which is R here */
#include "compute/cuda/cuda_impl.h"

#include "compute/cuda/kernels/kernels.h"
#include "core/minmax.h"

static void *stream_of(const ls_compute *c)
{
    return cuda_of(c)->stream;
}

/* ---- embedding ---- */

static ls_status embed_fwd(ls_compute *c, void *y, const int32_t *ids, int64_t first, int64_t V, const void *wte,
                           const void *wpe, int64_t B, int64_t T, int64_t C, ls_drop drop)
{
    return CU_STATUS(cu_embed_fwd(stream_of(c), c->ops->dtype, y, ids, first, V, wte, wpe, B, T, C, drop));
}

static ls_status embed_bwd(ls_compute *c, void *dwte, void *dwpe, const void *dy, const int32_t *ids, int64_t first,
                           int64_t B, int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop, bool acc)
{
    return CU_STATUS(
        cu_embed_bwd(stream_of(c), c->ops->dtype, dwte, dwpe, dy, ids, first, B, T, C, V, P, drop, acc, cuda_room(c)));
}

/* ---- norms ---- */

static ls_status layernorm_fwd(ls_compute *c, void *y, void *mean, void *rstd, const void *in, const void *w,
                               const void *b, int64_t R, int64_t C, double eps)
{
    return CU_STATUS(
        cu_layernorm_fwd(stream_of(c), c->ops->dtype, NULL, y, mean, rstd, in, NULL, w, b, R, C, eps, (ls_drop){0}));
}

static ls_status add_layernorm_fwd(ls_compute *c, void *res, void *y, void *mean, void *rstd, const void *in,
                                   const void *delta, const void *w, const void *b, int64_t R, int64_t C, double eps,
                                   ls_drop drop)
{
    return CU_STATUS(
        cu_layernorm_fwd(stream_of(c), c->ops->dtype, res, y, mean, rstd, in, delta, w, b, R, C, eps, drop));
}

static ls_status layernorm_bwd(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *dres,
                               const void *in, const void *w, const void *mean, const void *rstd, int64_t R, int64_t C,
                               bool acc)
{
    return CU_STATUS(cu_layernorm_bwd(stream_of(c), c->ops->dtype, dx, dw, db, dy, dres, in, w, mean, rstd, R, C, acc,
                                      cuda_room(c)));
}

static ls_status layernorm_again(ls_compute *c, void *y, const void *in, const void *mean, const void *rstd,
                                 const void *w, const void *b, int64_t R, int64_t C)
{
    return CU_STATUS(cu_layernorm_again(stream_of(c), c->ops->dtype, y, in, mean, rstd, w, b, R, C));
}

/* ---- single elements ---- */

static ls_status gelu_fwd(ls_compute *c, void *y, const void *in, int64_t n, ls_gelu kind)
{
    return CU_STATUS(cu_gelu_fwd(stream_of(c), c->ops->dtype, y, in, n, kind));
}

static ls_status gelu_bwd(ls_compute *c, void *dx, const void *dy, const void *in, int64_t n, ls_gelu kind)
{
    return CU_STATUS(cu_gelu_bwd(stream_of(c), c->ops->dtype, dx, dy, in, n, kind));
}

static ls_status add_fwd(ls_compute *c, void *y, const void *in, const void *delta, int64_t n, ls_drop drop)
{
    return CU_STATUS(cu_add_fwd(stream_of(c), c->ops->dtype, y, in, delta, n, drop));
}

static ls_status drop_bwd(ls_compute *c, void *dx, const void *dy, int64_t n, ls_drop drop)
{
    return CU_STATUS(cu_drop_bwd(stream_of(c), c->ops->dtype, dx, dy, n, drop));
}

static ls_status add(ls_compute *c, void *y, const void *a, const void *b, int64_t n)
{
    return CU_STATUS(cu_add(stream_of(c), c->ops->wide, y, a, b, n));
}

static ls_status zero(ls_compute *c, void *y, size_t nbytes)
{
    return CU_STATUS(cu_zero(stream_of(c), y, nbytes));
}

static ls_status copy(ls_compute *c, void *y, const void *in, size_t nbytes)
{
    return CU_STATUS(cu_copy(stream_of(c), y, in, nbytes));
}

/* ---- attention ---- */

static cu_attention_job job(const ls_compute *c, const void *qkv, void *y, void *lse, int64_t B, int64_t T, int64_t H,
                            int64_t D, ls_drop drop)
{
    cu_attention_job j = {.B = B, .T = T, .H = H, .D = D, .drop = drop, .scratch = cuda_room(c)};
    j.qkv = qkv, j.y = y, j.lse = lse;
    return j;
}

static ls_status attention_fwd(ls_compute *c, void *y, void *lse, const void *qkv, int64_t B, int64_t T, int64_t H,
                               int64_t D, ls_drop drop)
{
    const cu_attention_job j = job(c, qkv, y, lse, B, T, H, D, drop);
    return cu_attention_run(cuda_of(c)->attention, false, &j);
}

static ls_status attention_bwd(ls_compute *c, void *dqkv, const void *dy, const void *y, const void *lse,
                               const void *qkv, int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop)
{
    cu_attention_job j = job(c, qkv, (void *)(uintptr_t)y, (void *)(uintptr_t)lse, B, T, H, D, drop);
    j.dqkv = dqkv, j.dy = dy;
    return cu_attention_run(cuda_of(c)->attention, true, &j);
}

static ls_status attention_cached(ls_compute *c, void *y, void *kcache, void *vcache, const void *qkv, int64_t B,
                                  int64_t Tq, int64_t pos, const ls_pass_head *at, int64_t Tmax, int64_t H, int64_t D,
                                  bool alike)
{
    return CU_STATUS(cu_attention_cached(stream_of(c), c->ops->dtype, y, kcache, vcache, qkv, B, Tq, pos, at, Tmax, H,
                                         D, alike, cuda_of(c)->tf32));
}

/* ---- optimizer ---- */

static ls_status adamw(ls_compute *c, void *p, void *master, const void *g, void *m, void *v, int64_t n,
                       const ls_adamw *h)
{
    return CU_STATUS(
        cu_adamw(stream_of(c), c->ops->dtype, p, master, g, m, v, n, h, cuda_of(c)->stochastic ? &h->round : NULL));
}

static ls_status adamw_many(ls_compute *c, const ls_adamw_job *a, int n_job)
{
    return CU_STATUS(cu_adamw_many(stream_of(c), c->ops->dtype, a, n_job, cuda_of(c)->stochastic));
}

static ls_status narrow(ls_compute *c, void *p, const void *in, int64_t n, const ls_gains *gains,
                        const ls_rounding *round)
{
    return CU_STATUS(cu_narrow(stream_of(c), c->ops->dtype, p, in, n, gains, cuda_of(c)->stochastic ? round : NULL));
}

static ls_status sumsq(ls_compute *c, double *block_sum, const void *in, int64_t n, int64_t block)
{
    return CU_STATUS(cu_sumsq(stream_of(c), block_sum, in, n, block));
}

static ls_status sumsq_many(ls_compute *c, double *block_sum, const void *const *in, const int64_t *n, int n_range,
                            int64_t block)
{
    return CU_STATUS(cu_sumsq_many(stream_of(c), block_sum, in, n, n_range, block));
}

/* The sums of units are in the products' workspace: as of hash. */
static ls_status decide(ls_compute *c, const ls_decide *a)
{
    return CU_STATUS(cu_decide(stream_of(c), a, cuda_workspace(c)));
}

static ls_status sum(ls_compute *c, double *out, const double *in, int64_t n)
{
    return CU_STATUS(cu_sum(stream_of(c), out, in, n));
}

/* The sums of its blocks are in the products' workspace: no shape decides its size. */
static ls_status hash(ls_compute *c, uint64_t *out, const void *in, size_t nbytes, bool more)
{
    return CU_STATUS(cu_hash(stream_of(c), out, in, nbytes, more, cuda_workspace(c)));
}

/* ---- packed weights are packed by the CPU's backend, and read here as they are ---- */

static ls_status no_packed(void)
{
    return ls_fail(LS_E_UNSUPPORTED, "matrices are packed on the CPU and copied to the device");
}

static ls_status pack(ls_compute *c, ls_pack form, void *to, const void *w, int64_t K, int64_t N, bool by_column)
{
    (void)c, (void)form, (void)to, (void)w, (void)K, (void)N, (void)by_column;
    return no_packed();
}

static ls_status unpack(ls_compute *c, ls_pack form, void *w, const void *from, int64_t K, int64_t N, bool by_column)
{
    (void)c, (void)form, (void)w, (void)from, (void)K, (void)N, (void)by_column;
    return no_packed();
}

static ls_status run_packed(ls_compute *c, const cu_packed *p)
{
    const ls_dtype dt = c->ops->dtype;
    if (dt == LS_F32 || (dt == LS_F16 && p->form != LS_PACK_INT8))
        return ls_fail(LS_E_UNSUPPORTED, "packed weights on a GPU: int8 with bf16 or fp16, bf16 with bf16");
    return CU_STATUS(cu_linear_packed(stream_of(c), dt, p));
}

static ls_status linear_packed(ls_compute *c, ls_pack form, void *y, const void *in, const void *w, const void *b,
                               int64_t R, int64_t K, int64_t N)
{
    return run_packed(c, &(cu_packed){.y = y, .x = in, .w = w, .b = b, .form = form, .R = R, .K = K, .N = N});
}

static ls_status linear_packed_gelu(ls_compute *c, ls_pack form, void *y, const void *in, const void *w, const void *b,
                                    int64_t R, int64_t K, int64_t N, ls_gelu kind)
{
    cu_packed p = {.y = y, .x = in, .w = w, .b = b, .form = form, .R = R, .K = K, .N = N};
    p.gelu = true, p.kind = kind;
    return run_packed(c, &p);
}

static ls_status linear_packed_add(ls_compute *c, ls_pack form, void *y, const void *res, const void *in, const void *w,
                                   const void *b, int64_t R, int64_t K, int64_t N)
{
    return run_packed(c,
                      &(cu_packed){.y = y, .x = in, .w = w, .b = b, .add = res, .form = form, .R = R, .K = K, .N = N});
}

/* ---- regions ---- */

static ls_status region_begin(ls_compute *c, uint64_t name, bool *queued)
{
    return cu_region_begin(&cuda_of(c)->device->regions, name, queued);
}

static ls_status region_end(ls_compute *c)
{
    return cu_region_end(&cuda_of(c)->device->regions);
}

/* ---- products ---- */

ls_status cuda_product(ls_compute *c, cu_product p)
{
    return cu_gemm_run(cuda_of(c)->gemm, &p, cuda_workspace(c));
}

static cu_product forward(const ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R,
                          int64_t K, int64_t N)
{
    const ls_dtype dt = c->ops->dtype;
    return (cu_product){.out = y, .a = x, .b = w, .bias = b, .M = R, .N = N, .K = K, .dt = dt, .out_dt = dt};
}

/* dx (R,K) = dy (R,N) w^T */
static cu_product transposed(const ls_compute *c, void *dx, const void *dy, const void *w, int64_t R, int64_t K,
                             int64_t N)
{
    const ls_dtype dt = c->ops->dtype;
    return (cu_product){.out = dx, .a = dy, .b = w, .tb = true, .M = R, .N = K, .K = N, .dt = dt, .out_dt = dt};
}

static ls_status linear_fwd(ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R, int64_t K,
                            int64_t N)
{
    return cuda_product(c, forward(c, y, x, w, b, R, K, N));
}

static ls_status linear_bwd(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *x, const void *w,
                            int64_t R, int64_t K, int64_t N, bool acc)
{
    const ls_dtype dt = c->ops->dtype;
    if (dx) LS_TRY(cuda_product(c, transposed(c, dx, dy, w, R, K, N)));
    if (!dw && db) return CU_STATUS(cu_column_sums(stream_of(c), dt, db, dy, R, N, acc, cuda_room(c)));
    if (!dw) return LS_OK;
    cu_product p = {.out = dw, .a = x, .b = dy, .ta = true, .M = K, .N = N, .K = R, .dt = dt, .out_dt = LS_F32};
    if (acc) p.add = dw;
    p.b_sums = db, p.b_sums_add = acc;
    return cuda_product(c, p);
}

static ls_status linear_gelu_fwd(ls_compute *c, void *y, void *pre, const void *x, const void *w, const void *b,
                                 int64_t R, int64_t K, int64_t N, ls_gelu kind)
{
    cu_product p = forward(c, y, x, w, b, R, K, N);
    if (kind == LS_GELU_TANH) {
        p.epilogue = CU_GELU;
        p.aux = pre;
        return cuda_product(c, p);
    }
    p.out = pre;
    LS_TRY(cuda_product(c, p));
    return c->ops->gelu_fwd(c, y, pre, R * N, kind);
}

static ls_status linear_add_fwd(ls_compute *c, void *y, const void *res, const void *x, const void *w, const void *b,
                                int64_t R, int64_t K, int64_t N)
{
    cu_product p = forward(c, y, x, w, b, R, K, N);
    p.add = res;
    return cuda_product(c, p);
}

static ls_status linear_gelu_bwd(ls_compute *c, void *dpre, const void *dy, const void *w, const void *pre, int64_t R,
                                 int64_t K, int64_t N, ls_gelu kind)
{
    cu_product p = transposed(c, dpre, dy, w, R, K, N);
    if (kind == LS_GELU_TANH) {
        p.epilogue = CU_DGELU;
        p.aux = (void *)(uintptr_t)pre; /* read only */
        return cuda_product(c, p);
    }
    LS_TRY(cuda_product(c, p));
    return c->ops->gelu_bwd(c, dpre, dpre, pre, R * K, kind);
}

static ls_status logits(ls_compute *c, void *y, const void *x, const void *w, int64_t R, int64_t C, int64_t V)
{
    return cuda_product(c, transposed(c, y, x, w, R, V, C));
}

static ls_status best(ls_compute *c, ls_best *out, float *log_sum, const void *y, int64_t R, int64_t V, int64_t n,
                      int64_t k)
{
    return CU_STATUS(cu_best(stream_of(c), c->ops->dtype, out, log_sum, y, R, V, n, k));
}

static ls_status quantize(ls_compute *c, const ls_quantize *a)
{
    return CU_STATUS(cu_quantize(stream_of(c), a, cuda_room(c)));
}

static ls_status turn8(ls_compute *c, void *to, const void *from, int64_t R, int64_t N)
{
    return CU_STATUS(cu_turn8(stream_of(c), to, from, R, N));
}

static ls_status product8(ls_compute *c, const ls_product8 *a)
{
    const ls_dtype dt = c->ops->dtype;
    const cu_fp8 fp8 = {.on = true,
                        .a_form = a->a_form,
                        .b_form = a->b_form,
                        .a_factor = a->a_factor,
                        .b_factor = a->b_factor,
                        .fast = a->fast};
    cu_product p = {.out = a->y, .a = a->a, .b = a->b, .tb = true, .M = a->M, .N = a->N, .K = a->K, .dt = dt};
    p.fp8 = fp8;
    p.out_dt = a->wide ? LS_F32 : dt;
    p.bias = a->bias;
    p.add = a->acc ? a->y : a->add;
    return cuda_product(c, p);
}

const ls_compute_ops cuda_ops = {
    .name = "cuda",
    .wide = LS_F32,
    .embed_fwd = embed_fwd,
    .embed_bwd = embed_bwd,
    .layernorm_fwd = layernorm_fwd,
    .add_layernorm_fwd = add_layernorm_fwd,
    .layernorm_bwd = layernorm_bwd,
    .layernorm_again = layernorm_again,
    .gelu_fwd = gelu_fwd,
    .gelu_bwd = gelu_bwd,
    .add_fwd = add_fwd,
    .drop_bwd = drop_bwd,
    .add = add,
    .zero = zero,
    .copy = copy,
    .attention_fwd = attention_fwd,
    .attention_bwd = attention_bwd,
    .attention_cached = attention_cached,
    .adamw = adamw,
    .narrow = narrow,
    .sumsq = sumsq,
    .decide = decide,
    .adamw_many = adamw_many,
    .sumsq_many = sumsq_many,
    .sum = sum,
    .hash = hash,
    .pack = pack,
    .unpack = unpack,
    .linear_packed = linear_packed,
    .linear_packed_gelu = linear_packed_gelu,
    .linear_packed_add = linear_packed_add,
    .region_begin = region_begin,
    .region_end = region_end,
    .linear_fwd = linear_fwd,
    .linear_bwd = linear_bwd,
    .linear_gelu_fwd = linear_gelu_fwd,
    .linear_add_fwd = linear_add_fwd,
    .linear_gelu_bwd = linear_gelu_bwd,
    .logits = logits,
    .best = best,
    .quantize = quantize,
    .turn8 = turn8,
    .product8 = product8,
    .classifier = cuda_classifier,
    .adds_alike = cuda_adds_alike,
};

size_t cuda_ops_scratch(const cuda *x, const ls_compute_shapes *s)
{
    const int64_t R = s->B * s->T;
    size_t n = 0;
    if (s->H) n = cu_attention_scratch(x->attention, s->B, s->T, s->H, s->C / s->H, s->backward);
    if (!s->backward) return n;
    n = LS_MAX(n, cu_embed_bwd_nbytes(R, s->C));
    n = LS_MAX(n, cu_norm_bwd_nbytes(R, s->C));
    if (s->fp8) n = LS_MAX(n, cu_quantize_nbytes(R, LS_MAX(s->ffn, 3 * s->C)));
    return LS_MAX(n, cu_sums_nbytes(R, LS_MAX(s->ffn, 3 * s->C))); /* gradients of a bias */
}
