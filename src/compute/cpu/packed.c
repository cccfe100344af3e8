/* packed.c - packed matrices on the fast backend: packing and unpacking, and the product, whose panels are shared between the threads.
 *
 * A product takes PACKED_ROWS rows at a time. Their numbers are first put into the order in which the kernels read them (scratch): tiles of
 * a few rows, (K,rows) each, or groups of int8. Then each thread takes panels, and for each panel all tiles, so that the matrix is read
 * once from memory for all these rows. One row for bf16 is read where it is.
 *
 * With --precision bf16 and AMX the panels of a bf16 copy are what the matrix-product kernel multiplies: nothing is packed for a product but the
 * rows, whatever their number. */
#include "compute/cpu/packed.h"

#include "compute/cpu/fast_impl.h"
#include "compute/cpu/simd.h"
#include "core/half.h"
#include "core/minmax.h"

#include <math.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

int64_t ls_packed_nbytes(ls_pack form, int64_t K, int64_t N)
{
    return packed_panels(N) * packed_panel_nbytes(form, K);
}

size_t packed_scratch(const ls_compute *c, int64_t K)
{
    const size_t gemm = gemm_takes_panels(fast_kernel(c)) ? fast_gemm_scratch(c) : 0;
    const size_t rows =
        PACKED_ROWS * LS_MAX((size_t)K * sizeof(float), (size_t)packed_groups(K) * sizeof(q8_row_group));
    return LS_MAX(gemm, (rows + 63) & ~(size_t)63);
}

static void q8_panel_plain(float *y, int64_t ldy, const q8_group *w, const q8_row_group *x, int64_t n_group, int rows)
{
    for (int r = 0; r < rows; r++, x++, y += ldy) {
        float sum[PACKED_PANEL] = {0};
        for (int64_t g = 0; g < n_group; g++) {
            int32_t s[PACKED_PANEL] = {0};
            for (int q = 0; q < PACKED_GROUP / 4; q++)
                for (int j = 0; j < PACKED_PANEL; j++)
                    for (int e = 0; e < 4; e++)
                        s[j] += x[g * rows].p[4 * q + e] * (int8_t)(w[g].w[q][j][e] ^ PACKED_FLIP);
            for (int j = 0; j < PACKED_PANEL; j++) sum[j] += (float)s[j] * (w[g].scale[j] * x[g * rows].scale);
        }
        memcpy(y, sum, sizeof sum);
    }
}

/* The kernel that goes with the vector table in use. */
static q8_kernel *q8_pick(void)
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

/* ---- rounding to int8 ---- */

/* x/scale to the nearest integer, ties to even, |x/scale| <= 127: what is added pushes the fraction out of the float. */
static int8_t nearest(float x, float per_scale)
{
    return (int8_t)(int32_t)(ls_bits_of(x * per_scale + 12582912.0f) - 0x4b400000u); /* 1.5 * 2^23 */
}

/* 64 numbers become to[0 .. 64); returns the scale. A group with a number that is not finite has a scale that is not finite either, and so
 * has every product with it; one that is too small for a scale becomes zero. */
static float q8_round(int8_t to[PACKED_GROUP], const float x[PACKED_GROUP])
{
    float top[16] = {0}, bad[16] = {0};
    for (int k = 0; k < PACKED_GROUP; k += 16)
        for (int l = 0; l < 16; l++) {
            const float a = fabsf(x[k + l]);
            top[l] = a > top[l] ? a : top[l];
            bad[l] += 0 * a;
        }
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; l++) {
            top[l] = top[l] > top[l + half] ? top[l] : top[l + half];
            bad[l] += bad[l + half];
        }
    const float scale = (top[0] + bad[0]) / 127.0f, inv = 1.0f / scale;
    if (scale > 0 && scale < INFINITY && inv < INFINITY)
        for (int k = 0; k < PACKED_GROUP; k++) to[k] = nearest(x[k], inv);
    else memset(to, 0, PACKED_GROUP);
    return scale;
}

/* Groups of a row, `rows` apart. */
static void q8_row(q8_row_group *to, const float *x, int64_t K, int64_t rows)
{
    for (int64_t k0 = 0; k0 < K; k0 += PACKED_GROUP, to += rows) {
        float part[PACKED_GROUP] = {0};
        const int64_t n = LS_MIN(K - k0, PACKED_GROUP);
        memcpy(part, x + k0, (size_t)n * sizeof *x);
        to->scale = q8_round(to->p, part);
        int32_t sum = 0;
        for (int k = 0; k < PACKED_GROUP; k++) sum += to->p[k];
        to->start = -PACKED_FLIP * sum;
    }
}

/* ---- packing ---- */

/* Where element (k, n) of a (K,N) matrix is, in rows of w or in columns. */
static int64_t place(int64_t k, int64_t n, int64_t K, int64_t N, bool by_column)
{
    return by_column ? n * K + k : k * N + n;
}

static void pack_bf16(uint32_t *to, const float *w, int64_t K, int64_t N, int64_t n0, bool by_column)
{
    const int64_t n = LS_MIN(N - n0, PACKED_PANEL);
    memset(to, 0, (size_t)packed_panel_nbytes(LS_PACK_BF16, K));
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = 0; j < n; j++)
            to[k / 2 * PACKED_PANEL + j] |= (uint32_t)packed_bf16(w[place(k, n0 + j, K, N, by_column)]) << (k % 2 * 16);
}

static void pack_q8(q8_group *to, const float *w, int64_t K, int64_t N, int64_t n0, bool by_column)
{
    const int64_t n = LS_MIN(N - n0, PACKED_PANEL);
    for (int64_t k0 = 0; k0 < K; k0 += PACKED_GROUP, to++) {
        const int64_t n_k = LS_MIN(K - k0, PACKED_GROUP);
        memset(to->scale, 0, sizeof to->scale);
        memset(to->w, PACKED_FLIP, sizeof to->w);
        for (int64_t j = 0; j < n; j++) {
            float part[PACKED_GROUP] = {0};
            int8_t q[PACKED_GROUP];
            for (int64_t k = 0; k < n_k; k++) part[k] = w[place(k0 + k, n0 + j, K, N, by_column)];
            to->scale[j] = q8_round(q, part);
            for (int k = 0; k < PACKED_GROUP; k++) to->w[k / 4][j][k % 4] = (uint8_t)q[k] ^ PACKED_FLIP;
        }
    }
}

ls_status fast_pack(ls_compute *c, ls_pack form, void *to, const void *w, int64_t K, int64_t N, bool by_column)
{
    const int64_t n_panel = packed_panels(N), step = packed_panel_nbytes(form, K);
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (K * N > FAST_SERIAL)
    for (int64_t p = 0; p < n_panel; p++) {
        void *at = (char *)to + p * step;
        if (form == LS_PACK_INT8) pack_q8(at, w, K, N, p * PACKED_PANEL, by_column);
        else pack_bf16(at, w, K, N, p * PACKED_PANEL, by_column);
    }
    return LS_OK;
}

/* Element (k, j) of a panel. */
static float unpacked(ls_pack form, const void *panel, int64_t k, int64_t j)
{
    if (form == LS_PACK_INT8) {
        const q8_group *g = (const q8_group *)panel + k / PACKED_GROUP;
        return (float)(int8_t)(g->w[k % PACKED_GROUP / 4][j][k % 4] ^ PACKED_FLIP) * g->scale[j];
    }
    return ls_from_bf16((uint16_t)(((const uint32_t *)panel)[k / 2 * PACKED_PANEL + j] >> (k % 2 * 16)));
}

ls_status fast_unpack(ls_compute *c, ls_pack form, void *w_, const void *from, int64_t K, int64_t N, bool by_column)
{
    const int64_t step = packed_panel_nbytes(form, K);
    float *w = w_;
#pragma omp parallel for num_threads(c->n_thread) schedule(static) if (K * N > FAST_SERIAL)
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++)
            w[place(k, n, K, N, by_column)] =
                unpacked(form, (const char *)from + n / PACKED_PANEL * step, k, n % PACKED_PANEL);
    return LS_OK;
}

/* ---- the product ---- */

typedef struct job {
    ls_pack form;
    float *y;
    int64_t ldy;
    const char *w;
    const float *b;
    int64_t R, K, N, step; /* step: bytes of a panel */
    int64_t n_tile;
    const void *x; /* tiles, or groups */
    const simd_ops *simd;
    q8_kernel *q8;
} job;

static int64_t tile_begin(const job *a, int64_t t)
{
    return a->R * t / a->n_tile;
}

/* Rows of a tile as the kernels read them. */
static void prepare(const job *a, void *to, const float *x, int64_t t)
{
    const int64_t K = a->K, r0 = tile_begin(a, t), rows = tile_begin(a, t + 1) - r0;
    if (a->form == LS_PACK_INT8) {
        q8_row_group *tile = (q8_row_group *)to + r0 * packed_groups(K);
        for (int64_t r = 0; r < rows; r++) q8_row(tile + r, x + (r0 + r) * K, K, rows);
        return;
    }
    float *tile = (float *)to + r0 * K;
    for (int64_t k0 = 0; k0 < K; k0 += 16) /* a cache line of each row */
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = k0; k < K && k < k0 + 16; k++) tile[k * rows + r] = x[(r0 + r) * K + k];
}

/* Columns n0 … n0 + 16 n_panel - 1 of a tile; y and b have room for them. */
static void tile_panels(const job *a, float *y, int64_t ldy, const float *b, int64_t n0, int64_t n_panel, int64_t t)
{
    const int64_t r0 = tile_begin(a, t);
    const int rows = (int)(tile_begin(a, t + 1) - r0);
    const char *w = a->w + n0 / PACKED_PANEL * a->step;
    if (a->form != LS_PACK_INT8) {
        a->simd->panels_bf16(y, ldy, (const float *)a->x + r0 * a->K, w, b, a->K, n_panel, rows);
        return;
    }
    const int64_t n_group = packed_groups(a->K);
    for (int64_t p = 0; p < n_panel; p++) {
        float *out = y + p * PACKED_PANEL;
        a->q8(out, ldy, (const q8_group *)(const void *)(w + p * a->step), (const q8_row_group *)a->x + r0 * n_group,
              n_group, rows);
        for (int64_t r = 0; b && r < rows; r++)
            a->simd->add(out + r * ldy, out + r * ldy, b + p * PACKED_PANEL, PACKED_PANEL);
    }
}

/* The last columns, fewer than a panel: through a buffer. */
static void tile_rest(const job *a, int64_t n0, int64_t t)
{
    const int64_t n = a->N - n0, r0 = tile_begin(a, t), rows = tile_begin(a, t + 1) - r0;
    float y[Q8_ROWS][PACKED_PANEL], b[PACKED_PANEL] = {0};
    if (a->b) memcpy(b, a->b + n0, (size_t)n * sizeof *b);
    tile_panels(a, y[0], PACKED_PANEL, a->b ? b : NULL, n0, 1, t);
    for (int64_t r = 0; r < rows; r++) memcpy(a->y + (r0 + r) * a->ldy + n0, y[r], (size_t)n * sizeof **y);
}

/* Panels that are read for all tiles before the next ones: those that one row takes at a time. */
#define AT_ONCE 4

static void columns(const job *a, fast_range s)
{
    const int64_t whole = LS_MIN(s.hi, a->N / PACKED_PANEL * PACKED_PANEL);
    for (int64_t n0 = s.lo; n0 < whole; n0 += AT_ONCE * PACKED_PANEL)
        for (int64_t t = 0; t < a->n_tile; t++)
            tile_panels(a, a->y + tile_begin(a, t) * a->ldy + n0, a->ldy, a->b ? a->b + n0 : NULL, n0,
                        LS_MIN(AT_ONCE, (whole - n0) / PACKED_PANEL), t);
    for (int64_t t = 0; whole < s.hi && t < a->n_tile; t++) tile_rest(a, whole, t);
}

void packed_product(ls_compute *c, ls_pack form, float *y, int64_t ldy, const float *x, const void *w, const float *b,
                    int64_t R, int64_t K, int64_t N)
{
    if (form == LS_PACK_BF16 && gemm_takes_panels(fast_kernel(c))) {
        const gemm_args a = {.M = R, .N = N, .K = K, .A = x, .lda = K, .B_panels = w, .C = y, .ldc = ldy, .bias = b};
        gemm_run(fast_kernel(c), &a, c->n_thread, c->scratch);
        return;
    }
    const simd_ops *simd = simd_pick();
    const int64_t most = form == LS_PACK_INT8 ? Q8_ROWS : simd->panel_rows;
    for (int64_t r0 = 0; r0 < R; r0 += PACKED_ROWS) {
        const int64_t rows = LS_MIN(R - r0, PACKED_ROWS);
        const float *from = x + r0 * K;
        const bool in_place = rows == 1 && form != LS_PACK_INT8;
        const job a = {.form = form,
                       .y = y + r0 * ldy,
                       .ldy = ldy,
                       .w = w,
                       .b = b,
                       .R = rows,
                       .K = K,
                       .N = N,
                       .step = packed_panel_nbytes(form, K),
                       .n_tile = (rows + most - 1) / most,
                       .x = in_place ? (const void *)from : c->scratch,
                       .simd = simd,
                       .q8 = q8_pick()};
        if (a.n_tile == 1 && !in_place) prepare(&a, c->scratch, from, 0);
#pragma omp parallel num_threads(c->n_thread) if (a.R * K * N > FAST_SERIAL)
        {
            if (a.n_tile > 1) {
#pragma omp for schedule(static)
                for (int64_t t = 0; t < a.n_tile; t++) prepare(&a, c->scratch, from, t);
            }
            columns(&a, fast_share(N, PACKED_PANEL));
        }
    }
}

ls_status fast_linear_packed(ls_compute *c, ls_pack form, void *y, const void *x, const void *w, const void *b,
                             int64_t R, int64_t K, int64_t N)
{
    packed_product(c, form, y, N, x, w, b, R, K, N);
    return LS_OK;
}
