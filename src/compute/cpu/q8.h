/* q8.h - matrices in int8, for passes that may be a little wrong (drafts): a quarter of the bytes of float to read.
 *
 * y = x w + b for one row x. Both sides are cut in groups of 64 along k, each group with its own scale:
 *
 *   w[k][n] ~ scale[g][n] q[k][n],   x[k] ~ xs[g] p[k],   q and p in -127 … 127, rounded to nearest
 *   y[n] = b[n] + sum over g of  xs[g] scale[g][n] * (sum over the group of p[k] q[k][n])
 *
 * The inner sum is exact in int32 (at most 64 * 127 * 127). Memory: panels of 16 columns; inside a panel the groups in order;
 * a group is 16 scales, then 16 quads of k, each 16 columns of 4 neighbours in k, which is what the CPUs' dot products of
 * four bytes eat. Columns and rows beyond N and K are zero.
 *
 *   panel 0: |group 0: scale[16] w[quad 0][col 0..15][4] w[quad 1] ... |group 1 ...|   panel 1: ... */
#ifndef LS_COMPUTE_CPU_Q8_H
#define LS_COMPUTE_CPU_Q8_H

#include "compute/compute.h"

#include <stdint.h>

#define Q8_GROUP 64 /* along k */
#define Q8_PANEL 16 /* columns */

typedef struct q8_group {
    float scale[Q8_PANEL];
    int8_t w[Q8_GROUP / 4][Q8_PANEL][4];
} q8_group;

static inline int64_t q8_groups(int64_t K)
{
    return (K + Q8_GROUP - 1) / Q8_GROUP;
}

static inline int64_t q8_panels(int64_t N)
{
    return (N + Q8_PANEL - 1) / Q8_PANEL;
}

/* y[16] = one panel times a quantised row: x holds n_group * 64 bytes, xs n_group scales. */
typedef void (*q8_kernel)(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group);

/* The kernel that goes with the vector table in use (simd_pick). */
q8_kernel q8_pick(void);

void q8_panel_plain(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group);
#if defined(__aarch64__)
void q8_panel_neon(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group);
#elif defined(__x86_64__)
void q8_panel_avx2(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group);
void q8_panel_avx512(float *y, const q8_group *w, const int8_t *x, const float *xs, int64_t n_group);
#endif

#endif
