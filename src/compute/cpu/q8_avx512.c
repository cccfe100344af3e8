/* q8_avx512.c - int8 products with VNNI, whose first factor is unsigned: the weights are stored as q + 128 (packed.h). */
#include "compute/cpu/packed.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

INLINE __m512i four(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

/* One row waits for its own sums, so it has two. */
INLINE __m512i group_of_one(const q8_group *w, const q8_row_group *x)
{
    __m512i s0 = _mm512_set1_epi32(x->start), s1 = _mm512_setzero_si512();
    UNROLL
    for (int q = 0; q < PACKED_GROUP / 4; q += 2) {
        s0 = _mm512_dpbusd_epi32(s0, _mm512_loadu_si512(&w->w[q]), four(x->p + 4 * q));
        s1 = _mm512_dpbusd_epi32(s1, _mm512_loadu_si512(&w->w[q + 1]), four(x->p + 4 * q + 4));
    }
    return _mm512_add_epi32(s0, s1);
}

INLINE void tile(float *y, int64_t ldy, const q8_group *w, const q8_row_group *x, int64_t n_group, const int rows)
{
    __m512 f[Q8_ROWS];
    UNROLL
    for (int r = 0; r < rows; r++) f[r] = _mm512_setzero_ps();
    for (int64_t g = 0; g < n_group; g++, w++, x += rows) {
        __m512i s[Q8_ROWS];
        if (rows == 1) s[0] = group_of_one(w, x);
        else {
            UNROLL
            for (int r = 0; r < rows; r++) s[r] = _mm512_set1_epi32(x[r].start);
            for (int q = 0; q < PACKED_GROUP / 4; q++) {
                const __m512i wv = _mm512_loadu_si512(&w->w[q]);
                UNROLL
                for (int r = 0; r < rows; r++) s[r] = _mm512_dpbusd_epi32(s[r], wv, four(x[r].p + 4 * q));
            }
        }
        const __m512 scale = _mm512_loadu_ps(w->scale);
        UNROLL
        for (int r = 0; r < rows; r++)
            f[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[r]), _mm512_mul_ps(scale, _mm512_set1_ps(x[r].scale)), f[r]);
    }
    UNROLL
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(y + r * ldy, f[r]);
}

void q8_panel_avx512(float *y, int64_t ldy, const q8_group *w, const q8_row_group *x, int64_t n_group, int rows)
{
#define TILE(n) tile(y, ldy, w, x, n_group, n)
    Q8_EACH_ROWS(rows, TILE)
}
