/* q8_neon.c - int8 products with SDOT; compiled for, and run only on, CPUs that have it. */
#include "compute/cpu/packed.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define ROWS   4 /* rows whose sums, four vectors each, fit the registers */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The quad of k that is lane i of the vectors of x. */
#define QUAD(i)                                                                                \
    do {                                                                                       \
        const int8_t *at = (const int8_t *)&w->w[4 * v + (i)][0][0];                           \
        int8x16_t wv[4];                                                                       \
        UNROLL                                                                                 \
        for (int e = 0; e < 4; e++) wv[e] = vld1q_s8(at + 16 * e);                             \
        UNROLL                                                                                 \
        for (int r = 0; r < rows; r++) {                                                       \
            UNROLL                                                                             \
            for (int e = 0; e < 4; e++) s[r][e] = vdotq_laneq_s32(s[r][e], wv[e], xv[r], (i)); \
        }                                                                                      \
    } while (0)

/* `rows` of the `all` rows that x has. */
INLINE void tile(float *y, int64_t ldy, const q8_group *w, const q8_row_group *x, int64_t n_group, const int rows,
                 int all)
{
    float32x4_t f[ROWS][4];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int e = 0; e < 4; e++) f[r][e] = vdupq_n_f32(0);
    }
    for (int64_t g = 0; g < n_group; g++, w++, x += all) {
        int32x4_t s[ROWS][4];
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int e = 0; e < 4; e++) s[r][e] = vdupq_n_s32(x[r].start);
        }
        for (int v = 0; v < PACKED_GROUP / 16; v++) {
            int8x16_t xv[ROWS];
            UNROLL
            for (int r = 0; r < rows; r++) xv[r] = vld1q_s8(x[r].p + 16 * v);
            QUAD(0);
            QUAD(1);
            QUAD(2);
            QUAD(3);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int e = 0; e < 4; e++)
                f[r][e] =
                    vfmaq_f32(f[r][e], vcvtq_f32_s32(s[r][e]), vmulq_n_f32(vld1q_f32(w->scale + 4 * e), x[r].scale));
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int e = 0; e < 4; e++) vst1q_f32(y + r * ldy + 4 * e, f[r][e]);
    }
}

void q8_panel_neon(float *y, int64_t ldy, const q8_group *w, const q8_row_group *x, int64_t n_group, int rows)
{
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS) tile(y + r * ldy, ldy, w, x + r, n_group, ROWS, rows);
    for (; r + 2 <= rows; r += 2) tile(y + r * ldy, ldy, w, x + r, n_group, 2, rows);
    if (r < rows) tile(y + r * ldy, ldy, w, x + r, n_group, 1, rows);
}
