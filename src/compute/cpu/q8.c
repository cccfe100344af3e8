/* q8.c - int8 matrices on the fast backend: which kernel, quantising, and the product shared between threads by panels. */
#include "compute/cpu/q8.h"

#include "compute/cpu/fast_impl.h"
#include "compute/cpu/simd.h"

#include <math.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

int64_t ls_q8_nbytes(int64_t K, int64_t N)
{
    return q8_panels(N) * q8_groups(K) * (int64_t)sizeof(q8_group);
}

q8_kernel q8_pick(void)
{
    const simd_ops *table = simd_pick();
    if (table == &simd_generic) return q8_panel_plain;
#if defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? q8_panel_neon : q8_panel_plain;
#elif defined(__x86_64__)
    return table == &simd_avx512 && __builtin_cpu_supports("avx512vnni") ? q8_panel_avx512 : q8_panel_avx2;
#else
    return q8_panel_plain;
#endif
}

void q8_panel_plain(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group)
{
    float sum[Q8_PANEL] = {0};
    for (int64_t g = 0; g < n_group; g++, x += Q8_GROUP) {
        int32_t s[Q8_PANEL] = {0};
        for (int q = 0; q < Q8_GROUP / 4; q++)
            for (int j = 0; j < Q8_PANEL; j++)
                for (int e = 0; e < 4; e++) s[j] += x[4 * q + e] * w[g].w[q][j][e];
        for (int j = 0; j < Q8_PANEL; j++) sum[j] += (float)s[j] * (w[g].scale[j] * xs[g]);
    }
    memcpy(y, sum, sizeof sum);
}

/* x/scale to the nearest integer, ties to even, |x/scale| <= 127: what is added pushes the fraction out of the float. */
static int8_t nearest(float x, float per_scale)
{
    const float push = 12582912.0f; /* 1.5 * 2^23 */
    float sum = x * per_scale + push;
    int32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return (int8_t)(bits - 0x4b400000);
}

/* A group that is zero, or not finite, has scale 0: a draft from such weights is wrong, never undefined. */
static float scale_of(float top)
{
    return top > 0 && top < INFINITY ? top / 127.0f : 0;
}

static float per(float scale)
{
    const float x = 1.0f / scale;
    return scale > 0 && x < INFINITY ? x : 0;
}

/* n (<= 64) numbers, `step` apart, become to[0 .. 64); returns the scale. */
static float group_of(int8_t to[Q8_GROUP], const float *x, int64_t step, int64_t n)
{
    float top = 0;
    for (int64_t k = 0; k < n; k++) {
        float a = fabsf(x[k * step]);
        if (!(a <= top)) top = a;
    }
    const float scale = scale_of(top), inv = per(scale);
    memset(to, 0, Q8_GROUP);
    for (int64_t k = 0; inv > 0 && k < n; k++) to[k] = nearest(x[k * step], inv);
    return scale;
}

ls_status fast_quantise(ls_compute *c, void *q, const void *w_, int64_t K, int64_t N, bool by_column)
{
    const float *w = w_;
    const int64_t n_group = q8_groups(K), n_panel = q8_panels(N);
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (K * N > FAST_SERIAL)
    for (int64_t p = 0; p < n_panel; p++) {
        const int64_t n0 = p * Q8_PANEL, n_col = N - n0 < Q8_PANEL ? N - n0 : Q8_PANEL;
        for (int64_t g = 0; g < n_group; g++) {
            const int64_t k0 = g * Q8_GROUP, n_k = K - k0 < Q8_GROUP ? K - k0 : Q8_GROUP;
            q8_group *to = (q8_group *)q + p * n_group + g;
            const float *from = by_column ? w + n0 * K + k0 : w + k0 * N + n0;
            memset(to, 0, sizeof *to);
            for (int64_t j = 0; j < n_col; j++) {
                int8_t v[Q8_GROUP];
                to->scale[j] = by_column ? group_of(v, from + j * K, 1, n_k) : group_of(v, from + j, N, n_k);
                for (int k = 0; k < Q8_GROUP / 4; k++) memcpy(to->w[k][j], v + 4 * k, 4);
            }
        }
    }
    return LS_OK;
}

ls_status fast_linear_q8(ls_compute *c, void *y_, const void *x_, const void *q, const void *b_, int64_t K, int64_t N)
{
    const q8_kernel panel = q8_pick();
    const q8_group *w = q;
    const float *x = x_, *b = b_;
    const int64_t n_group = q8_groups(K);
    float *y = y_, *xs = c->scratch;
    int8_t *x8 = (int8_t *)(xs + (n_group + 15) / 16 * 16);
    for (int64_t g = 0; g < n_group; g++) {
        const int64_t k0 = g * Q8_GROUP;
        xs[g] = group_of(x8 + k0, x + k0, 1, K - k0 < Q8_GROUP ? K - k0 : Q8_GROUP);
    }
#pragma omp parallel num_threads(c->n_thread) if (K * N > FAST_SERIAL)
    {
        const fast_range s = fast_share(N, Q8_PANEL);
        for (int64_t n0 = s.lo; n0 < s.hi; n0 += Q8_PANEL) {
            float out[Q8_PANEL];
            panel(out, w + n0 / Q8_PANEL * n_group, x8, xs, n_group);
            const int64_t n = N - n0 < Q8_PANEL ? N - n0 : Q8_PANEL;
            for (int64_t j = 0; j < n; j++) y[n0 + j] = out[j] + (b ? b[n0 + j] : 0);
        }
    }
    return LS_OK;
}
