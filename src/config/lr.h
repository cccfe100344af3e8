/* lr.h - the learning rate of the k-th applied update (k = 1, 2, ...), as a function of k alone.
 *
 * DeepSpeed's schedules count an index i that starts at last_batch_iteration (-1) and advances after each applied update, so
 * update k is evaluated at i = k - 1 + last_batch_iteration, that is i = k - 2. N = max(2, warmup), T = total, base = the
 * optimizer's rate; f(i) = ln(i+1)/ln(N) or i/N (linear) is the warm-up factor for i < N.
 *
 *   WarmupLR        i < 0: min;  min + (max-min)*f(i), max from i = N on
 *   WarmupDecayLR   the same, then min + (max-min)*max(0, (T-i)/max(1, T-N))
 *   WarmupCosineLR  base * r;  i < 0: r = 0;  i < N: r0 + (1-r0)*f(i);  then c + (1-c)*(1+cos(pi*x))/2,
 *                   x = min(1, (i-N+1)/max(1, T-N))  (DeepSpeed before 0.19 did not clamp x: past T the rate rose again)
 *   LRRangeTest     min * (1 + rate*g), g = (i+1)/size, floored when a staircase
 *
 * Ours, with w = warmup and floor ratio c; there is no update at rate 0:
 *   cosine          k <= w: base*k/w;  then base*(c + (1-c)*(1+cos(pi*x))/2), x = min(1, (k-w)/max(1, T-w))
 *   linear          the same with 1-x instead of (1+cos(pi*x))/2
 *   constant        k <= w: base*k/w;  then base
 * min_is_floor: min + (base-min)*..., as nanoGPT computes it. from_zero: k-1 instead of k, as the Hugging Face Trainer counts; a warm-up
 * then begins with an update at rate 0. */
#ifndef LS_CONFIG_LR_H
#define LS_CONFIG_LR_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ls_lr_kind {
    LS_LR_CONSTANT,
    LS_LR_COSINE,
    LS_LR_WARMUP,
    LS_LR_WARMUP_DECAY,
    LS_LR_WARMUP_COSINE,
    LS_LR_LINEAR,
    LS_LR_RANGE_TEST,
} ls_lr_kind;

typedef struct ls_lr_schedule {
    ls_lr_kind kind;
    double base;             /* the optimizer's rate                                                     */
    double min, max;         /* WarmupLR, WarmupDecayLR; LRRangeTest uses min                            */
    int64_t warmup, total;   /* updates; total 0 = not known yet (cosine: ls_train_config_fit fills it)  */
    bool linear;             /* warmup_type                                                              */
    double warmup_min_ratio; /* r0 of WarmupCosineLR                                                     */
    double floor_ratio;      /* c of WarmupCosineLR, cosine and linear                                   */
    bool min_is_floor;       /* cosine, linear: min instead of floor_ratio * base                        */
    bool from_zero;          /* constant, cosine, linear                                                 */
    double range_size, range_rate;
    bool range_staircase;
    int64_t last_batch_iteration;
} ls_lr_schedule;

const char *ls_lr_word(ls_lr_kind kind); /* "WarmupLR", "cosine", ... */

double ls_lr_at(const ls_lr_schedule *s, int64_t k);

#endif
