/* fast_attention_bf16.c - causal attention of one head with products in bf16: the panels and blocks of the matrix-product kernels (gemm_impl.h),
 * on one thread. Softmax, its gradient and all sums are fp32.
 *
 *   rows of queries in blocks of ROWS; a block sees n keys, up to its last row
 *
 *   forward    S (ROWS,n) = q k^T,  P = exp(S - top) and 0 right of the diagonal,  y = P v / sum
 *   backward   S again, P = exp(S - lse);  dP = dy v^T;  dS = P (dP - dy . y);  dv += P^T dy;  dk += dS^T q;  dq = dS k
 *
 * q is scaled by 1/sqrt(D) before it is rounded; dq is scaled after it is summed. P is rounded before it is divided by its sum. Operands are
 * packed once: those of the whole head (keys, values) at the start, those of a block of rows with it.
 * The order of every sum depends on T and D alone. */
#include "compute/cpu/fast_impl.h"
#include "compute/cpu/gemm_impl.h"
#include "compute/cpu/simd.h"

#include <math.h>
#include <string.h>

enum { ROWS = 64 };

/* Panels of one operand. A kernel may load up to 64 bytes beyond the last one. */
typedef struct operand {
    char *at;
    size_t panel;
} operand;

/* The working space of one head. */
typedef struct space {
    int64_t ld;            /* of s, ds: T in whole cache lines                     */
    operand keys, values;  /* columns of B: keys along D; values along T (forward), along D (backward) */
    operand keys_t;        /* backward: keys along T                               */
    operand rows, weights; /* rows of A: queries (dy) along D; P (dS) along keys   */
    operand turned;        /* backward: P^T (dS^T), rows are keys                  */
    operand queries_t;     /* backward: queries (dy) as columns of B, along rows   */
    float *q, *s, *ds, *tmp;
    int64_t n_float;
} space;

/* What has been taken from the working space; base NULL: only counted. */
typedef struct arena {
    char *base;
    size_t used;
} arena;

static void *take(arena *at, size_t nbytes)
{
    char *p = at->base ? at->base + at->used : NULL;
    at->used += (nbytes + 63) & ~(size_t)63;
    return p;
}

static operand take_operand(arena *at, const gemm_kernel *g, int width, int64_t w, int64_t k)
{
    char *panels = take(at, gemm_packed_nbytes(g, gemm_round_up(w, width), k) + 64);
    return (operand){panels, gemm_packed_nbytes(g, width, k)};
}

static space cut_space(const gemm_kernel *g, float *work, int64_t T, int64_t D, bool backward)
{
    arena at = {.base = (char *)work};
    space x = {.ld = gemm_round_up(T, 16)};
    x.keys = take_operand(&at, g, g->nr, T, D);
    x.values = backward ? take_operand(&at, g, g->nr, T, D) : take_operand(&at, g, g->nr, D, T);
    x.rows = take_operand(&at, g, g->mr, ROWS, D);
    x.weights = take_operand(&at, g, g->mr, ROWS, T);
    x.q = take(&at, (size_t)(ROWS * D) * sizeof *x.q);
    x.s = take(&at, (size_t)(ROWS * x.ld) * sizeof *x.s);
    x.tmp = take(&at, g->tmp_nbytes);
    if (backward) {
        x.keys_t = take_operand(&at, g, g->nr, D, T);
        x.turned = take_operand(&at, g, g->mr, T, ROWS);
        x.queries_t = take_operand(&at, g, g->nr, D, ROWS);
        x.ds = take(&at, (size_t)(ROWS * x.ld) * sizeof *x.ds);
    }
    x.n_float = (int64_t)(at.used / sizeof(float));
    return x;
}

int64_t fast_attn_bf16_floats(const gemm_kernel *g, int64_t T, int64_t D, bool backward)
{
    return cut_space(g, NULL, T, D, backward).n_float;
}

/* c (m,n) = [c +] a b over k */
static void product(const gemm_kernel *g, const space *x, float *c, int64_t ldc, operand a, operand b, int64_t m,
                    int64_t n, int64_t k, bool add)
{
    g->block(&(gemm_block){.pa = a.at,
                           .pb = b.at,
                           .a_panel = a.panel,
                           .b_panel = b.panel,
                           .m = m,
                           .n = n,
                           .kb = k,
                           .c = c,
                           .ldc = ldc,
                           .add = add,
                           .tmp = x->tmp});
}

/* q (nq,D) times 1/sqrt(D), dense */
static void scale_queries(float *q, const simd_attn *a, int64_t q0, int64_t nq)
{
    const float scale = 1.0f / sqrtf((float)a->D);
    for (int64_t i = 0; i < nq; i++)
        for (int64_t d = 0; d < a->D; d++) q[i * a->D + d] = a->q[(q0 + i) * a->ld + d] * scale;
}

/* Index of (row, first key) for dropout. */
static uint32_t drop_index(const simd_attn *a, int64_t row)
{
    return (a->row0 + (uint32_t)row) * (uint32_t)a->T;
}

void fast_attn_bf16_fwd(const gemm_kernel *g, const simd_attn *a)
{
    const simd_ops *v = simd_pick();
    const int64_t T = a->T, D = a->D;
    LS_ASSERT(a->work);
    const space x = cut_space(g, a->work, T, D, false);
    float by[ROWS];
    g->pack_b(x.keys.at, x.keys.panel, a->k, a->ld, true, T, D);
    g->pack_b(x.values.at, x.values.panel, a->v, a->ld, false, D, T);
    for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
        const int64_t nq = LS_MIN(ROWS, T - q0), nk = q0 + nq;
        scale_queries(x.q, a, q0, nq);
        g->pack_a(x.rows.at, x.rows.panel, x.q, D, true, nq, D);
        product(g, &x, x.s, x.ld, x.rows, x.keys, nq, nk, D, false);
        for (int64_t i = 0; i < nq; i++) {
            float *row = x.s + i * x.ld, top;
            const int64_t n = q0 + i + 1;
            const double sum = v->exp_row(row, n, &top);
            memset(row + n, 0, (size_t)(nk - n) * sizeof *row);
            if (a->drop.on) v->drop(row, row, n, &a->drop, drop_index(a, q0 + i));
            a->lse[q0 + i] = (float)((double)top + log(sum));
            by[i] = (float)(1.0 / sum);
        }
        const operand p = {x.weights.at, gemm_packed_nbytes(g, g->mr, nk)};
        g->pack_a(p.at, p.panel, x.s, x.ld, true, nq, nk);
        float *y = a->out + q0 * a->ldy;
        product(g, &x, y, a->ldy, p, x.values, nq, D, nk, false);
        for (int64_t i = 0; i < nq; i++) v->scale(y + i * a->ldy, D, by[i]);
    }
}

/* P and dS of a block of rows, from S and dP. */
static void softmax_rows(const simd_ops *v, const simd_attn *a, const space *x, int64_t q0, int64_t nq)
{
    const int64_t filled = gemm_round_up(q0 + nq, 16);
    for (int64_t i = 0; i < nq; i++) {
        float *p = x->s + i * x->ld, *ds = x->ds + i * x->ld, delta;
        const int64_t row = q0 + i, n = row + 1;
        v->dots_few(&delta, 1, a->dy + row * a->ldy, a->y + row * a->ldy, 1, a->D, 0, 1);
        if (a->drop.on) v->drop(ds, ds, n, &a->drop, drop_index(a, row));
        v->softmax_bwd_row(p, ds, n, filled, a->lse[row], delta);
        if (a->drop.on) v->drop(p, p, n, &a->drop, drop_index(a, row));
    }
}

void fast_attn_bf16_bwd(const gemm_kernel *g, const simd_attn *a)
{
    const simd_ops *v = simd_pick();
    const int64_t T = a->T, D = a->D;
    LS_ASSERT(a->work);
    const space x = cut_space(g, a->work, T, D, true);
    const float scale = 1.0f / sqrtf((float)D);
    g->pack_b(x.keys.at, x.keys.panel, a->k, a->ld, true, T, D);
    g->pack_b(x.values.at, x.values.panel, a->v, a->ld, true, T, D);
    g->pack_b(x.keys_t.at, x.keys_t.panel, a->k, a->ld, false, D, T);
    for (int64_t j = 0; j < T; j++) {
        memset(a->dk + j * a->ld, 0, (size_t)D * sizeof *a->dk);
        memset(a->dv + j * a->ld, 0, (size_t)D * sizeof *a->dv);
    }
    for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
        const int64_t nq = LS_MIN(ROWS, T - q0), nk = q0 + nq;
        const float *dy = a->dy + q0 * a->ldy;
        scale_queries(x.q, a, q0, nq);
        g->pack_a(x.rows.at, x.rows.panel, x.q, D, true, nq, D);
        product(g, &x, x.s, x.ld, x.rows, x.keys, nq, nk, D, false);
        g->pack_a(x.rows.at, x.rows.panel, dy, a->ldy, true, nq, D);
        product(g, &x, x.ds, x.ld, x.rows, x.values, nq, nk, D, false);
        softmax_rows(v, a, &x, q0, nq);

        const operand turned = {x.turned.at, gemm_packed_nbytes(g, g->mr, nq)},
                      columns = {x.queries_t.at, gemm_packed_nbytes(g, g->nr, nq)},
                      ds = {x.weights.at, gemm_packed_nbytes(g, g->mr, nk)};
        g->pack_a(turned.at, turned.panel, x.s, x.ld, false, nk, nq);
        g->pack_b(columns.at, columns.panel, dy, a->ldy, false, D, nq);
        product(g, &x, a->dv, a->ld, turned, columns, nk, D, nq, true);
        g->pack_a(turned.at, turned.panel, x.ds, x.ld, false, nk, nq);
        g->pack_b(columns.at, columns.panel, x.q, D, false, D, nq);
        product(g, &x, a->dk, a->ld, turned, columns, nk, D, nq, true);
        g->pack_a(ds.at, ds.panel, x.ds, x.ld, true, nq, nk);
        float *dq = a->dq + q0 * a->ld;
        product(g, &x, dq, a->ld, ds, x.keys_t, nq, D, nk, false);
        for (int64_t i = 0; i < nq; i++) v->scale(dq + i * a->ld, D, scale);
    }
}
