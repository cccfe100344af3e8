/* fast_attention.c - attention: the heads of all sequences are shared between the threads; one head is one thread's work from
 * end to end (simd_attention.inc), so its sums do not know how many threads there are. */
#include "compute/cpu/fast_impl.h"
#include "compute/cpu/simd.h"

#include <string.h>

/* Every thread's working space starts on a cache line. */
static float *own_work(const ls_compute *c, int64_t n_float)
{
    return (float *)c->scratch + omp_get_thread_num() * n_float;
}

/* Head h of sequence b; the caller adds outputs and gradients. */
static simd_attn head_of(const float *qkv, int64_t b, int64_t h, int64_t T, int64_t H, int64_t D, const simd_drop *d,
                         ls_drop drop)
{
    const int64_t C = H * D, first = drop.n_head ? b * drop.n_head + drop.head : b * H; /* of the sequence */
    const float *q = qkv + b * T * 3 * C + h * D;
    return (simd_attn){.q = q,
                       .k = q + C,
                       .v = q + 2 * C,
                       .ld = 3 * C,
                       .ldy = C,
                       .T = T,
                       .D = D,
                       .drop = *d,
                       .row0 = (uint32_t)((first + h) * T)};
}

ls_status fast_attention_fwd(ls_compute *c, void *y_, void *lse_, const void *qkv, int64_t B, int64_t T, int64_t H,
                             int64_t D, ls_drop drop)
{
    const simd_ops *k = simd_pick();
    const simd_drop d = simd_drop_of(drop);
    float *y = y_, *lse = lse_;
    int64_t n_work = simd_attn_floats(T, D, false);
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (B * H * T * T > 256)
    for (int64_t bh = 0; bh < B * H; bh++) {
        int64_t b = bh / H, h = bh % H;
        simd_attn a = head_of(qkv, b, h, T, H, D, &d, drop);
        a.out = y + b * T * H * D + h * D;
        a.lse = lse + bh * T;
        a.work = own_work(c, n_work);
        k->attn_fwd(&a);
    }
    return LS_OK;
}

ls_status fast_attention_bwd(ls_compute *c, void *dqkv_, const void *dy_, const void *y_, const void *lse_,
                             const void *qkv, int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop)
{
    const simd_ops *k = simd_pick();
    const simd_drop d = simd_drop_of(drop);
    float *dqkv = dqkv_;
    const float *dy = dy_, *y = y_;
    float *lse = (float *)(uintptr_t)lse_; /* read only: the kernel's struct serves both directions */
    int64_t C = H * D, n_work = simd_attn_floats(T, D, true);
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (B * H * T * T > 256)
    for (int64_t bh = 0; bh < B * H; bh++) {
        int64_t b = bh / H, h = bh % H;
        simd_attn a = head_of(qkv, b, h, T, H, D, &d, drop);
        a.dq = dqkv + b * T * 3 * C + h * D;
        a.dk = a.dq + C;
        a.dv = a.dq + 2 * C;
        a.dy = dy + b * T * C + h * D;
        a.y = y + b * T * C + h * D;
        a.lse = lse + bh * T;
        a.work = own_work(c, n_work);
        k->attn_bwd(&a);
    }
    return LS_OK;
}

ls_status fast_attention_cached(ls_compute *c, void *y_, void *kcache_, void *vcache_, const void *qkv_, int64_t B,
                                int64_t Tq, int64_t pos, int64_t Tmax, int64_t H, int64_t D)
{
    const simd_ops *s = simd_pick();
    float *y = y_, *kcache = kcache_, *vcache = vcache_;
    const float *qkv = qkv_;
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
