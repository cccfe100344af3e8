/* q8_avx2.c - int8 products in 16 bits: bytes are widened and multiplied in pairs (madd), which cannot saturate. */
#include "compute/cpu/q8.h"

#include <immintrin.h>
#include <string.h>

void q8_panel_avx2(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group)
{
    __m256 f0 = _mm256_setzero_ps(), f1 = f0;
    for (int64_t g = 0; g < n_group; g++, x += Q8_GROUP) {
        /* s[i]: columns 4i … 4i+3, two sums of pairs each */
        __m256i s[4];
        for (int i = 0; i < 4; i++) s[i] = _mm256_setzero_si256();
        for (int q = 0; q < Q8_GROUP / 4; q++) {
            int32_t four;
            memcpy(&four, x + 4 * q, sizeof four);
            const __m256i xv = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
            for (int i = 0; i < 4; i++) {
                const __m256i wv = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)&w[g].w[q][4 * i][0]));
                s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(wv, xv));
            }
        }
        /* hadd works inside halves: columns 0 1 4 5 | 2 3 6 7; the quarters are put in order */
        const __m256i lo = _mm256_permute4x64_epi64(_mm256_hadd_epi32(s[0], s[1]), 0xd8);
        const __m256i hi = _mm256_permute4x64_epi64(_mm256_hadd_epi32(s[2], s[3]), 0xd8);
        const __m256 by = _mm256_set1_ps(xs[g]);
        f0 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(lo), _mm256_mul_ps(_mm256_loadu_ps(w[g].scale), by), f0);
        f1 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(hi), _mm256_mul_ps(_mm256_loadu_ps(w[g].scale + 8), by), f1);
    }
    _mm256_storeu_ps(y, f0);
    _mm256_storeu_ps(y + 8, f1);
}
