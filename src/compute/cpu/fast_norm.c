/* fast_norm.c - layer normalisation, row by row; the residual sum before it is fused, its parameters' gradients are summed in
 * blocks of rows (fast_impl.h). */
#include "compute/cpu/fast_impl.h"
#include "compute/cpu/simd.h"

#include <string.h>

ls_status fast_layernorm_fwd(ls_compute *c, void *y_, void *mean_, void *rstd_, const void *x_, const void *w,
                             const void *b, int64_t R, int64_t C, double eps)
{
    const simd_ops *k = simd_pick();
    float *y = y_, *mean = mean_, *rstd = rstd_;
    const float *x = x_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (R * C > FAST_SERIAL)
    for (int64_t r = 0; r < R; r++) k->norm_row(y + r * C, mean + r, rstd + r, x + r * C, w, b, C, (float)eps);
    return LS_OK;
}

ls_status fast_add_layernorm_fwd(ls_compute *c, void *res_, void *y_, void *mean_, void *rstd_, const void *x_,
                                 const void *delta_, const void *w, const void *b, int64_t R, int64_t C, double eps,
                                 ls_drop drop)
{
    const simd_ops *k = simd_pick();
    const simd_drop d = simd_drop_of(drop);
    float *res = res_, *y = y_, *mean = mean_, *rstd = rstd_;
    const float *x = x_, *delta = delta_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (R * C > FAST_SERIAL)
    for (int64_t r = 0; r < R; r++) {
        k->add_drop(res + r * C, x + r * C, delta + r * C, C, &d, (uint32_t)(drop.first + r * C));
        k->norm_row(y + r * C, mean + r, rstd + r, res + r * C, w, b, C, (float)eps);
    }
    return LS_OK;
}

ls_status fast_layernorm_again(ls_compute *c, void *y_, const void *x_, const void *mean_, const void *rstd_,
                               const void *w, const void *b, int64_t R, int64_t C)
{
    const simd_ops *k = simd_pick();
    float *y = y_;
    const float *x = x_, *mean = mean_, *rstd = rstd_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (R * C > FAST_SERIAL)
    for (int64_t r = 0; r < R; r++) k->norm_again(y + r * C, x + r * C, mean[r], rstd[r], w, b, C);
    return LS_OK;
}

void fast_add_blocks(const ls_compute *c, float *out, const float *part, int64_t n_block, int64_t ld, int64_t n,
                     bool acc)
{
    const simd_ops *k = simd_pick();
#pragma omp parallel num_threads(c->n_thread) if (n * n_block > FAST_SERIAL)
    {
        fast_range s = fast_share(n, 16);
        if (s.hi > s.lo) {
            if (!acc) memset(out + s.lo, 0, (size_t)(s.hi - s.lo) * sizeof *out);
            for (int64_t i = 0; i < n_block; i++) k->add(out + s.lo, out + s.lo, part + i * ld + s.lo, s.hi - s.lo);
        }
    }
}

ls_status fast_layernorm_bwd(ls_compute *c, void *dx_, void *dw, void *db, const void *dy_, const void *dres_,
                             const void *x_, const void *w, const void *mean_, const void *rstd_, int64_t R, int64_t C,
                             bool acc)
{
    const simd_ops *k = simd_pick();
    float *dx = dx_, *part = c->scratch; /* (blocks, 2C): dw and db of each block of rows */
    const float *dy = dy_, *dres = dres_, *x = x_, *mean = mean_, *rstd = rstd_;
    int64_t rows = fast_block_rows(R), n_block = fast_blocks(R);
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (R * C > FAST_SERIAL)
    for (int64_t i = 0; i < n_block; i++) {
        float *pw = part + i * 2 * C, *pb = pw + C;
        memset(pw, 0, (size_t)(2 * C) * sizeof *pw);
        for (int64_t r = i * rows; r < R && r < (i + 1) * rows; r++)
            k->norm_bwd_row(dx + r * C, pw, pb, dy + r * C, dres ? dres + r * C : NULL, x + r * C, w, mean[r], rstd[r],
                            C);
    }
    fast_add_blocks(c, dw, part, n_block, 2 * C, C, acc);
    fast_add_blocks(c, db, part + C, n_block, 2 * C, C, acc);
    return LS_OK;
}
