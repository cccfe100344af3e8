/* q8_neon.c - int8 products with SDOT; compiled for, and run only on, CPUs that have it. */
#include "compute/cpu/q8.h"

#include <arm_neon.h>

/* Four quads of k: one vector of x, a lane for each quad. */
#define QUAD(i)                                               \
    do {                                                      \
        const int8_t *at = &w[g].w[4 * v + (i)][0][0];        \
        s0 = vdotq_laneq_s32(s0, vld1q_s8(at), xv, (i));      \
        s1 = vdotq_laneq_s32(s1, vld1q_s8(at + 16), xv, (i)); \
        s2 = vdotq_laneq_s32(s2, vld1q_s8(at + 32), xv, (i)); \
        s3 = vdotq_laneq_s32(s3, vld1q_s8(at + 48), xv, (i)); \
    } while (0)

void q8_panel_neon(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group)
{
    float32x4_t f0 = vdupq_n_f32(0), f1 = f0, f2 = f0, f3 = f0;
    for (int64_t g = 0; g < n_group; g++, x += Q8_GROUP) {
        int32x4_t s0 = vdupq_n_s32(0), s1 = s0, s2 = s0, s3 = s0;
        for (int v = 0; v < Q8_GROUP / 16; v++) {
            const int8x16_t xv = vld1q_s8(x + 16 * v);
            QUAD(0);
            QUAD(1);
            QUAD(2);
            QUAD(3);
        }
        const float *scale = w[g].scale;
        f0 = vfmaq_f32(f0, vcvtq_f32_s32(s0), vmulq_n_f32(vld1q_f32(scale), xs[g]));
        f1 = vfmaq_f32(f1, vcvtq_f32_s32(s1), vmulq_n_f32(vld1q_f32(scale + 4), xs[g]));
        f2 = vfmaq_f32(f2, vcvtq_f32_s32(s2), vmulq_n_f32(vld1q_f32(scale + 8), xs[g]));
        f3 = vfmaq_f32(f3, vcvtq_f32_s32(s3), vmulq_n_f32(vld1q_f32(scale + 12), xs[g]));
    }
    vst1q_f32(y, f0);
    vst1q_f32(y + 4, f1);
    vst1q_f32(y + 8, f2);
    vst1q_f32(y + 12, f3);
}
