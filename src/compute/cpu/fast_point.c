/* fast_point.c - operations on single elements: GELU, sums, dropout, embedding, AdamW. Bound by memory, so each makes one
 * pass and the threads share the elements in chunks of whole cache lines. */
#include "compute/cpu/cpu_impl.h"
#include "compute/cpu/fast_impl.h"
#include "compute/cpu/simd.h"
#include "core/half.h"
#include "core/minmax.h"
#include "core/rng.h"

#include <string.h>

#define LINE  64   /* elements: four cache lines, so that two threads never write the same one */
#define CHUNK 1024 /* elements of one call of a kernel */

enum { UPDATE_CHUNK = 4096 }; /* elements that are still in the cache when they are rounded */

ls_status fast_gelu_fwd(ls_compute *c, void *y_, const void *x_, int64_t n, ls_gelu kind)
{
    const simd_ops *k = simd_pick();
    float *y = y_;
    const float *x = x_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n > FAST_SERIAL)
    for (int64_t i = 0; i < n; i += CHUNK) k->gelu_fwd(y + i, x + i, LS_MIN(CHUNK, n - i), kind);
    return LS_OK;
}

ls_status fast_gelu_bwd(ls_compute *c, void *dx_, const void *dy_, const void *x_, int64_t n, ls_gelu kind)
{
    const simd_ops *k = simd_pick();
    float *dx = dx_;
    const float *dy = dy_, *x = x_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n > FAST_SERIAL)
    for (int64_t i = 0; i < n; i += CHUNK) k->gelu_bwd(dx + i, dy + i, x + i, LS_MIN(CHUNK, n - i), kind);
    return LS_OK;
}

ls_status fast_add_fwd(ls_compute *c, void *y_, const void *x_, const void *delta_, int64_t n, ls_drop drop)
{
    const simd_ops *k = simd_pick();
    const simd_drop d = simd_drop_of(drop);
    float *y = y_;
    const float *x = x_, *delta = delta_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n > FAST_SERIAL)
    for (int64_t i = 0; i < n; i += CHUNK)
        k->add_drop(y + i, x + i, delta + i, LS_MIN(CHUNK, n - i), &d, (uint32_t)(drop.first + i));
    return LS_OK;
}

ls_status fast_drop_bwd(ls_compute *c, void *dx_, const void *dy_, int64_t n, ls_drop drop)
{
    const simd_ops *k = simd_pick();
    const simd_drop d = simd_drop_of(drop);
    float *dx = dx_;
    const float *dy = dy_;
    if (!d.on && dx == dy) return LS_OK;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n > FAST_SERIAL)
    for (int64_t i = 0; i < n; i += CHUNK)
        k->drop(dx + i, dy + i, LS_MIN(CHUNK, n - i), &d, (uint32_t)(drop.first + i));
    return LS_OK;
}

ls_status fast_add(ls_compute *c, void *y_, const void *a_, const void *b_, int64_t n)
{
    const simd_ops *k = simd_pick();
    float *y = y_;
    const float *a = a_, *b = b_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n > FAST_SERIAL)
    for (int64_t i = 0; i < n; i += CHUNK) k->add(y + i, a + i, b + i, LS_MIN(CHUNK, n - i));
    return LS_OK;
}

ls_status fast_copy(ls_compute *c, void *y_, const void *x_, size_t nbytes)
{
    char *y = y_;
    const char *x = x_;
#pragma omp parallel num_threads(c->n_thread) if (nbytes > FAST_SERIAL * sizeof(float))
    {
        fast_range r = fast_share((int64_t)nbytes, LINE * (int64_t)sizeof(float));
        if (r.hi > r.lo) memcpy(y + r.lo, x + r.lo, (size_t)(r.hi - r.lo));
    }
    return LS_OK;
}

ls_status fast_zero(ls_compute *c, void *y_, size_t nbytes)
{
    char *y = y_;
#pragma omp parallel num_threads(c->n_thread) if (nbytes > FAST_SERIAL * sizeof(float))
    {
        fast_range r = fast_share((int64_t)nbytes, LINE * (int64_t)sizeof(float));
        if (r.hi > r.lo) memset(y + r.lo, 0, (size_t)(r.hi - r.lo));
    }
    return LS_OK;
}

ls_status fast_hash(ls_compute *c, uint64_t *out, const void *x, size_t nbytes, bool more)
{
    return cpu_hash(c, out, x, nbytes, more);
}

ls_status fast_narrow(ls_compute *c, void *p, const void *x, int64_t n, const ls_gains *gains, const ls_rounding *round)
{
    (void)gains, (void)round; /* for 16-bit types */
    return p == x ? LS_OK : fast_copy(c, p, x, (size_t)n * sizeof(float));
}

/* y = drop(a + b), where either may be missing. */
static void embed_row(const simd_ops *k, float *y, const float *a, const float *b, int64_t n, const simd_drop *d,
                      uint32_t first)
{
    if (a && b) k->add_then_drop(y, a, b, n, d, first);
    else if (a || b) k->drop(y, a ? a : b, n, d, first);
    else memset(y, 0, (size_t)n * sizeof *y);
}

ls_status fast_embed_fwd(ls_compute *c, void *y_, const int32_t *ids, int64_t first, int64_t V, const void *wte_,
                         const void *wpe_, int64_t B, int64_t T, int64_t C, ls_drop drop)
{
    const simd_ops *k = simd_pick();
    const simd_drop d = simd_drop_of(drop);
    float *y = y_;
    const float *wte = wte_, *wpe = wpe_;
    if (wpe && drop.at) wpe += drop.at->pos * C;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (B * T * C > FAST_SERIAL)
    for (int64_t r = 0; r < B * T; r++) {
        const int64_t id = cpu_id(ids[r], first, V);
        embed_row(k, y + r * C, id < 0 ? NULL : wte + id * C, wpe ? wpe + r % T * C : NULL, C, &d, (uint32_t)(r * C));
    }
    return LS_OK;
}

/* Threads own columns, so that each element of a table is a sum over rows in ascending order, on one thread. */
ls_status fast_embed_bwd(ls_compute *c, void *dwte_, void *dwpe_, const void *dy_, const int32_t *ids, int64_t first,
                         int64_t B, int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop, bool acc)
{
    const simd_ops *k = simd_pick();
    const simd_drop d = simd_drop_of(drop);
    float *dwte = dwte_, *dwpe = dwpe_;
    const float *dy = dy_;
    if (!acc) {
        LS_TRY(fast_zero(c, dwte, (size_t)(V * C) * sizeof(float)));
        LS_TRY(fast_zero(c, dwpe, (size_t)(P * C) * sizeof(float)));
    }
#pragma omp parallel num_threads(c->n_thread) if (B * T * C > FAST_SERIAL)
    {
        fast_range s = fast_share(C, 16);
        for (int64_t r = 0; r < B * T && s.hi > s.lo; r++) {
            const int64_t at = r * C + s.lo, n = s.hi - s.lo, id = cpu_id(ids[r], first, V);
            float *wpe_row = dwpe + r % T * C + s.lo;
            k->add_drop(wpe_row, wpe_row, dy + at, n, &d, (uint32_t)at);
            if (id < 0) continue;
            float *wte_row = dwte + id * C + s.lo;
            k->add_drop(wte_row, wte_row, dy + at, n, &d, (uint32_t)at);
        }
    }
    return LS_OK;
}

/* As the kernel of the GPU: up with the probability of the bits that are dropped. */
static uint16_t stochastic_bf16(float x, const ls_rounding *round, int64_t i)
{
    const uint32_t u = ls_bits_of(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return ls_to_bf16(x); /* infinities, NaNs */
    return (uint16_t)((u + (ls_rng_u32(round->key, (uint32_t)(round->first + i)) & 0xffffu)) >> 16);
}

/* From element i on: how many are decayed alike, and whether they are. */
static int64_t alike(const ls_adamw *h, int64_t i, int64_t end, bool *plain)
{
    *plain = false;
    for (int k = 0; k < h->n_plain; k++) {
        if (i >= h->plain[k][1]) continue;
        *plain = i >= h->plain[k][0];
        const int64_t turn = *plain ? h->plain[k][1] : h->plain[k][0];
        return (turn < end ? turn : end) - i;
    }
    return end - i;
}

ls_status fast_adamw(ls_compute *c, void *p_, void *master, const void *g_, void *m_, void *v_, int64_t n,
                     const ls_adamw *h)
{
    const simd_ops *k = simd_pick();
    LS_ASSERT(p_ == master);
    float *p = p_, *m = m_, *v = v_;
    const float *g = g_;
    ls_adamw now = *h;
    if (h->at) now.grad_scale = h->at->factor;
    if (h->at && !h->at->update) return LS_OK;
#pragma omp parallel num_threads(c->n_thread) if (n > FAST_SERIAL)
    {
        fast_range r = fast_share(n, LINE);
        for (int64_t i = r.lo, len; i < r.hi; i += len) {
            bool plain;
            len = alike(&now, i, r.hi, &plain);
            k->adamw(p + i, g + i, m + i, v + i, len, &now, plain);
        }
    }
    return LS_OK;
}

/* Elements [i, i + n) of a range, rounded to a 16-bit type as the device rounds them. */
static void round_some(const simd_ops *k, ls_dtype dtype, uint16_t *p, const float *w, int64_t i, int64_t n,
                       const ls_gains *gains, const ls_rounding *round)
{
    if (dtype == LS_BF16 && !round) k->to_bf16(p + i, w + i, n);
    for (int64_t j = i; j < i + n && (dtype == LS_F16 || round); j++)
        p[j] = dtype == LS_F16 ? ls_to_f16(w[j]) : stochastic_bf16(w[j], round, j);
    for (int r = 0; r < gains->n; r++)
        for (int64_t j = LS_MAX(i, gains->at[r][0]); j < LS_MIN(i + n, gains->at[r][1]); j++) {
            const float x = w[j] - 1.0f;
            p[j] = dtype == LS_F16 ? ls_to_f16(x) : round ? stochastic_bf16(x, round, j) : ls_to_bf16(x);
        }
}

bool ls_compute_adamw_host_same(void)
{
    return simd_pick() != &simd_generic;
}

ls_status ls_compute_adamw_host(const ls_compute *c, void *p, float *master, const float *g, float *m, float *v,
                                int64_t n, const ls_adamw *h, const ls_rounding *round)
{
    const simd_ops *k = simd_pick();
#pragma omp parallel num_threads(c->n_thread) if (n > FAST_SERIAL)
    {
        fast_range r = fast_share(n, LINE);
        for (int64_t i = r.lo, len; i < r.hi; i += len) {
            bool plain;
            len = alike(h, i, LS_MIN(r.hi, i + UPDATE_CHUNK), &plain);
            k->adamw(master + i, g + i, m + i, v + i, len, h, plain);
            if (p) round_some(k, c->ops->dtype, p, master, i, len, &h->gains, round);
        }
    }
    return LS_OK;
}

ls_status fast_sumsq(ls_compute *c, double *block_sum, const void *x_, int64_t n, int64_t block)
{
    const simd_ops *k = simd_pick();
    const float *x = x_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (n > FAST_SERIAL)
    for (int64_t i = 0; i < (n + block - 1) / block; i++)
        block_sum[i] = k->sumsq(x + i * block, n - i * block < block ? n - i * block : block);
    return LS_OK;
}

ls_status fast_decide(ls_compute *c, const ls_decide *a)
{
    (void)c;
    return cpu_decide(a);
}

ls_status fast_sum(ls_compute *c, double *out, const double *x, int64_t n)
{
    (void)c;
    *out = 0;
    for (int64_t i = 0; i < n; i++) *out += x[i];
    return LS_OK;
}
