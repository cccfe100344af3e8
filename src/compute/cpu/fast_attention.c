/* fast_attention.c - attention: the heads of all sequences are shared between the threads; one head is one thread's work from
 * end to end (simd_attention.inc, fast_attention_bf16.c), so its sums do not know how many threads there are. */
#include "compute/cpu/fast_impl.h"
#include "compute/cpu/gemm_impl.h"
#include "compute/cpu/simd.h"

#include <stdatomic.h>
#include <string.h>

/* Every thread's working space starts on a cache line. */
static float *own_work(const ls_compute *c, int64_t n_float)
{
    return (float *)c->scratch + omp_get_thread_num() * n_float;
}

static void one_head(const gemm_kernel *g, const simd_attn *a)
{
    const simd_ops *k = simd_pick();
    if (gemm_is_bf16(g)) (a->dq ? fast_attn_bf16_bwd : fast_attn_bf16_fwd)(g, a);
    else (a->dq ? k->attn_bwd : k->attn_fwd)(a);
}

/* Every head of every sequence, forward or (with dqkv) backward. */
static void each_head(ls_compute *c, simd_attn all, int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop)
{
    const gemm_kernel *g = fast_kernel(c);
    const bool backward = all.dq != NULL, bf16 = gemm_is_bf16(g);
    const int64_t C = H * D,
                  n_work = bf16 ? fast_attn_bf16_floats(g, T, D, backward) : simd_attn_floats(T, D, backward);
    all.ld = 3 * C;
    all.ldy = C;
    all.T = T;
    all.D = D;
    all.drop = simd_drop_of(drop);
    fast_look(c);
    atomic_int_fast64_t next = 0;
#pragma omp parallel num_threads(c->n_thread) if (B * H * T * T > 256)
    {
        if (bf16 && g->enter) g->enter();
        for (int64_t bh; (bh = atomic_fetch_add(&next, 1)) < B * H;) {
            const int64_t b = bh / H, h = bh % H, at = b * T * C + h * D, at_qkv = b * T * 3 * C + h * D;
            const int64_t first = drop.n_head ? b * drop.n_head + drop.head : b * H; /* head of the sequence */
            simd_attn a = all;
            a.q += at_qkv;
            a.k = a.q + C;
            a.v = a.q + 2 * C;
            a.lse += bh * T;
            a.row0 = (uint32_t)((first + h) * T);
            a.work = own_work(c, n_work);
            if (backward) {
                a.dq += at_qkv;
                a.dk = a.dq + C;
                a.dv = a.dq + 2 * C;
                a.dy += at;
                a.y += at;
            } else {
                a.out += at;
            }
            one_head(g, &a);
        }
        if (bf16 && g->leave) g->leave();
    }
}

ls_status fast_attention_fwd(ls_compute *c, void *y, void *lse, const void *qkv, int64_t B, int64_t T, int64_t H,
                             int64_t D, ls_drop drop)
{
    each_head(c, (simd_attn){.out = y, .lse = lse, .q = qkv}, B, T, H, D, drop);
    return LS_OK;
}

ls_status fast_attention_bwd(ls_compute *c, void *dqkv, const void *dy, const void *y, const void *lse, const void *qkv,
                             int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop)
{
    float *read_only = (float *)(uintptr_t)lse; /* the kernel's struct serves both directions */
    each_head(c, (simd_attn){.dq = dqkv, .dy = dy, .y = y, .lse = read_only, .q = qkv}, B, T, H, D, drop);
    return LS_OK;
}

ls_status fast_attention_cached(ls_compute *c, void *y_, void *kcache_, void *vcache_, const void *qkv_, int64_t B,
                                int64_t Tq, int64_t pos, const ls_pass_head *at, int64_t Tmax, int64_t H, int64_t D,
                                bool alike)
{
    (void)alike; /* they always are */
    const simd_ops *s = simd_pick();
    float *y = y_, *kcache = kcache_, *vcache = vcache_;
    const float *qkv = qkv_;
    if (at) pos = at->pos;
    int64_t C = H * D, n_work = (Tmax + 15) / 16 * 16;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (B * Tq * (pos + Tq) * C > FAST_SERIAL)
    for (int64_t bh = 0; bh < B * H; bh++) {
        int64_t b = bh / H, h = bh % H;
        float *k = kcache + bh * Tmax * D, *v = vcache + bh * Tmax * D, *p = own_work(c, n_work);
        for (int64_t i = 0; i < Tq; i++) {
            const float *q = qkv + (b * Tq + i) * 3 * C + h * D;
            memcpy(k + (pos + i) * D, q + C, (size_t)D * sizeof *k);
            memcpy(v + (pos + i) * D, q + 2 * C, (size_t)D * sizeof *v);
            s->attn_row(y + (b * Tq + i) * C + h * D, q, k, v, pos + i + 1, D, p);
        }
    }
    return LS_OK;
}
