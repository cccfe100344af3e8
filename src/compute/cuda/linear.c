/* linear.c - products with weights, and what is fused to them, as cu_gemm_run wants them.
 *
 *   y  (R,N) = x w + b            a = x, b = w
 *   dx (R,K) = dy w^T             a = dy, b = w transposed
 *   dw (K,N) = x^T dy             a = x transposed, b = dy;  db: the sums of b over K, which is R here */
#include "compute/cuda/cuda_impl.h"

#include "compute/cuda/kernels/norm.h"
#include "compute/cuda/kernels/point.h"

ls_status cuda_product(ls_compute *c, const cu_product *p)
{
    return cu_gemm_run(cuda_of(c)->gemm, p, cuda_workspace(c));
}

static cu_product forward(const ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R,
                          int64_t K, int64_t N)
{
    const ls_dtype dt = c->ops->dtype;
    return (cu_product){.out = y, .a = x, .b = w, .bias = b, .M = R, .N = N, .K = K, .dt = dt, .out_dt = dt};
}

static cu_product back_to_input(const ls_compute *c, void *dx, const void *dy, const void *w, int64_t R, int64_t K,
                                int64_t N)
{
    const ls_dtype dt = c->ops->dtype;
    return (cu_product){.out = dx, .a = dy, .b = w, .tb = true, .M = R, .N = K, .K = N, .dt = dt, .out_dt = dt};
}

static ls_status linear_fwd(ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R, int64_t K,
                            int64_t N)
{
    const cu_product p = forward(c, y, x, w, b, R, K, N);
    return cuda_product(c, &p);
}

static ls_status linear_bwd(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *x, const void *w,
                            int64_t R, int64_t K, int64_t N, bool acc)
{
    const ls_dtype dt = c->ops->dtype;
    if (dx) {
        const cu_product p = back_to_input(c, dx, dy, w, R, K, N);
        LS_TRY(cuda_product(c, &p));
    }
    if (dw) {
        const cu_product p = {.out = dw,
                              .a = x,
                              .b = dy,
                              .ta = true,
                              .M = K,
                              .N = N,
                              .K = R,
                              .dt = dt,
                              .out_dt = LS_F32,
                              .add = acc ? dw : NULL,
                              .b_sums = db,
                              .b_sums_add = acc};
        return cuda_product(c, &p);
    }
    if (db) CU_TRY(cu_column_sums(cuda_of(c)->stream, dt, db, dy, R, N, acc, cuda_room(c)));
    return LS_OK;
}

static ls_status linear_gelu_fwd(ls_compute *c, void *y, void *pre, const void *x, const void *w, const void *b,
                                 int64_t R, int64_t K, int64_t N, ls_gelu kind)
{
    cu_product p = forward(c, y, x, w, b, R, K, N);
    if (kind == LS_GELU_TANH) {
        p.epilogue = CU_GELU;
        p.aux = pre;
        return cuda_product(c, &p);
    }
    p.out = pre;
    LS_TRY(cuda_product(c, &p));
    return c->ops->gelu_fwd(c, y, pre, R * N, kind);
}

static ls_status linear_add_fwd(ls_compute *c, void *y, const void *res, const void *x, const void *w, const void *b,
                                int64_t R, int64_t K, int64_t N)
{
    cu_product p = forward(c, y, x, w, b, R, K, N);
    p.add = res;
    return cuda_product(c, &p);
}

static ls_status linear_gelu_bwd(ls_compute *c, void *dpre, const void *dy, const void *w, const void *pre, int64_t R,
                                 int64_t K, int64_t N, ls_gelu kind)
{
    cu_product p = back_to_input(c, dpre, dy, w, R, K, N);
    if (kind == LS_GELU_TANH) {
        p.epilogue = CU_DGELU;
        p.aux = (void *)(uintptr_t)pre; /* read only */
        return cuda_product(c, &p);
    }
    LS_TRY(cuda_product(c, &p));
    return c->ops->gelu_bwd(c, dpre, dpre, pre, R * K, kind);
}

static ls_status logits(ls_compute *c, void *y, const void *x, const void *w, int64_t R, int64_t C, int64_t V)
{
    const ls_dtype dt = c->ops->dtype;
    const cu_product p = {.out = y, .a = x, .b = w, .tb = true, .M = R, .N = V, .K = C, .dt = dt, .out_dt = dt};
    return cuda_product(c, &p);
}

void cuda_fill_linear(ls_compute_ops *ops)
{
    ops->linear_fwd = linear_fwd;
    ops->linear_bwd = linear_bwd;
    ops->linear_gelu_fwd = linear_gelu_fwd;
    ops->linear_add_fwd = linear_add_fwd;
    ops->linear_gelu_bwd = linear_gelu_bwd;
    ops->logits = logits;
}

size_t cuda_linear_scratch(const cuda *x, const ls_compute_shapes *s)
{
    (void)x;
    const int64_t widest = s->ffn > 3 * s->C ? s->ffn : 3 * s->C;
    return s->backward ? cu_column_sums_scratch(s->B * s->T, widest) : 0;
}
