/* q8_avx2.c - int8 products in 16 bits: bytes are widened and multiplied in pairs (madd), which cannot saturate. */
#include "compute/cpu/packed.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define ROWS   2 /* rows whose sums fit the registers */

INLINE __m256i four(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_cvtepi8_epi16(_mm_set1_epi32(v));
}

/* hadd works inside halves: columns 0 1 4 5 | 2 3 6 7; the quarters are put in order. */
INLINE __m256 eight(__m256i a, __m256i b, int32_t start)
{
    const __m256i s = _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8);
    return _mm256_cvtepi32_ps(_mm256_add_epi32(s, _mm256_set1_epi32(start)));
}

/* `rows` of the `all` rows that x has. */
INLINE void tile(float *y, int64_t ldy, const q8_group *w, const q8_row_group *x, int64_t n_group, const int rows,
                 int all)
{
    __m256 f[ROWS][2];
    UNROLL
    for (int r = 0; r < rows; r++) f[r][0] = f[r][1] = _mm256_setzero_ps();
    for (int64_t g = 0; g < n_group; g++, w++, x += all) {
        __m256i s[ROWS][4]; /* s[r][i]: columns 4i … 4i+3, two sums of pairs each */
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int i = 0; i < 4; i++) s[r][i] = _mm256_setzero_si256();
        }
        for (int q = 0; q < PACKED_GROUP / 4; q++) {
            __m256i xv[ROWS];
            UNROLL
            for (int r = 0; r < rows; r++) xv[r] = four(x[r].p + 4 * q);
            UNROLL
            for (int i = 0; i < 4; i++) {
                const __m256i wv = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)&w->w[q][4 * i][0]));
                UNROLL
                for (int r = 0; r < rows; r++) s[r][i] = _mm256_add_epi32(s[r][i], _mm256_madd_epi16(wv, xv[r]));
            }
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const q8_row_group *xr = x + r;
            const __m256 by = _mm256_set1_ps(xr->scale);
            f[r][0] = _mm256_fmadd_ps(eight(s[r][0], s[r][1], xr->start), _mm256_mul_ps(_mm256_loadu_ps(w->scale), by),
                                      f[r][0]);
            f[r][1] = _mm256_fmadd_ps(eight(s[r][2], s[r][3], xr->start),
                                      _mm256_mul_ps(_mm256_loadu_ps(w->scale + 8), by), f[r][1]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        _mm256_storeu_ps(y + r * ldy, f[r][0]);
        _mm256_storeu_ps(y + r * ldy + 8, f[r][1]);
    }
}

void q8_panel_avx2(float *y, int64_t ldy, const q8_group *w, const q8_row_group *x, int64_t n_group, int rows)
{
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS) tile(y + r * ldy, ldy, w, x + r, n_group, ROWS, rows);
    if (r < rows) tile(y + r * ldy, ldy, w, x + r, n_group, 1, rows);
}
