/* loss_scale.h - the factor that keeps 16-bit gradients in range: raised while steps go well, lowered when one overflows.
 *
 * The gradient of the loss is multiplied by the scale before it flows back and by 1/scale before the optimizer sees it. An overflow
 * (an infinity or NaN in any gradient of any worker) skips the update. At every boundary (end of an accumulation), it = 0, 1, …:
 *
 *   zero     DeepSpeed with ZeRO 1-3. State: scale s, h = hysteresis, last = -1.
 *            overflow   h or hysteresis is 1: s = max(s/2, min), an error when s is min already; else h - 1.  last = it
 *            good       consecutive: h = hysteresis.  n = it - last - 1; n > 0 and n % window = 0: h = hysteresis, s = 2s
 *            So the first overflow only uses up hysteresis, and s grows after window + 1 good boundaries, then every window.
 *   stage0   DeepSpeed without ZeRO: no hysteresis, no error at the minimum, the same growth.
 *   amp      torch's GradScaler, of the scaling study's baseline: s/2 at every overflow, without end; 2s after every window good ones.
 *   fixed    never changes; an overflow still skips the update.
 *   none     no scale, and no overflow either: a NaN in a gradient ends the run.
 *
 * Gradients are divided by the scale that they were made with, also at a boundary where it grows (DeepSpeed divides by the new one
 * there: half the update once in a window). Skipped updates advance neither the schedule of the rate nor Adam's t. */
#ifndef LS_CONFIG_LOSS_SCALE_H
#define LS_CONFIG_LOSS_SCALE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ls_scale_rule {
    LS_SCALE_NONE,
    LS_SCALE_FIXED,
    LS_SCALE_ZERO,
    LS_SCALE_STAGE0,
    LS_SCALE_AMP
} ls_scale_rule;

typedef struct ls_loss_scale_config {
    ls_scale_rule rule;
    double initial, min;
    int64_t window, hysteresis;
    bool consecutive;
} ls_loss_scale_config;

typedef struct ls_loss_scale {
    ls_loss_scale_config cfg;
    double scale;
    int64_t hysteresis; /* what is left of it                          */
    int64_t it, last;   /* boundaries so far; the last that overflowed */
} ls_loss_scale;

ls_loss_scale ls_loss_scale_init(const ls_loss_scale_config *cfg);

/* The factor of the next boundary's gradients; 1 without a rule. */
static inline double ls_loss_scale_now(const ls_loss_scale *s)
{
    return s->cfg.rule == LS_SCALE_NONE ? 1 : s->scale;
}

/* Whether a gradient that is not finite skips the update rather than ending the run. */
static inline bool ls_loss_scale_skips(const ls_loss_scale *s)
{
    return s->cfg.rule != LS_SCALE_NONE;
}

/* One boundary. LS_E_NUMERIC: it overflowed with nothing left to lower (rule zero), or overflowed without a rule; the state stays. */
ls_status ls_loss_scale_update(ls_loss_scale *s, bool overflow);

const char *ls_scale_rule_word(ls_scale_rule rule);

#endif
