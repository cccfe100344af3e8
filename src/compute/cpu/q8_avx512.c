/* q8_avx512.c - int8 products with VNNI, whose first factor is unsigned: x + 128 is multiplied, and 128 times the sum of the
 * weights taken away again. */
#include "compute/cpu/q8.h"

#include <immintrin.h>
#include <string.h>

void q8_panel_avx512(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group)
{
    const __m512i shift = _mm512_set1_epi8((char)0x80);
    __m512 f = _mm512_setzero_ps();
    for (int64_t g = 0; g < n_group; g++, x += Q8_GROUP) {
        __m512i s0 = _mm512_setzero_si512(), s1 = s0, o0 = s0, o1 = s0;
        for (int q = 0; q < Q8_GROUP / 4; q += 2) {
            int32_t four[2];
            memcpy(four, x + 4 * q, sizeof four);
            const __m512i w0 = _mm512_loadu_si512(&w[g].w[q]), w1 = _mm512_loadu_si512(&w[g].w[q + 1]);
            s0 = _mm512_dpbusd_epi32(s0, _mm512_xor_si512(_mm512_set1_epi32(four[0]), shift), w0);
            s1 = _mm512_dpbusd_epi32(s1, _mm512_xor_si512(_mm512_set1_epi32(four[1]), shift), w1);
            o0 = _mm512_dpbusd_epi32(o0, shift, w0);
            o1 = _mm512_dpbusd_epi32(o1, shift, w1);
        }
        const __m512i s = _mm512_sub_epi32(_mm512_add_epi32(s0, s1), _mm512_add_epi32(o0, o1));
        const __m512 by = _mm512_mul_ps(_mm512_loadu_ps(w[g].scale), _mm512_set1_ps(xs[g]));
        f = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), by, f);
    }
    _mm512_storeu_ps(y, f);
}
