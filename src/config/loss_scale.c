#include "config/loss_scale.h"

ls_loss_scale ls_loss_scale_init(const ls_loss_scale_config *cfg)
{
    return (ls_loss_scale){
        .cfg = *cfg, .scale = cfg->rule == LS_SCALE_NONE ? 1 : cfg->initial, .hysteresis = cfg->hysteresis, .last = -1};
}

static double lowered(const ls_loss_scale *s)
{
    return s->scale / 2 > s->cfg.min ? s->scale / 2 : s->cfg.min;
}

static ls_status overflowed(ls_loss_scale *s)
{
    const ls_loss_scale_config *c = &s->cfg;
    if (c->rule == LS_SCALE_NONE) return ls_fail(LS_E_NUMERIC, "a gradient is not finite, and no loss scaling is used");
    if (c->rule == LS_SCALE_AMP) s->scale /= 2;
    if (c->rule == LS_SCALE_STAGE0) s->scale = lowered(s);
    if (c->rule == LS_SCALE_ZERO) {
        const bool lower = c->hysteresis == 1 || s->hysteresis == 1;
        if (lower && s->scale == c->min)
            return ls_fail(
                LS_E_NUMERIC,
                "gradients overflow in fp16 at the smallest loss scale %g (fp16.min_loss_scale); try a lower --lr, more warm-up, --clip, or --precision bf16",
                c->min);
        if (lower) s->scale = lowered(s);
        else s->hysteresis--;
    }
    s->last = s->it;
    return LS_OK;
}

static void went_well(ls_loss_scale *s)
{
    const ls_loss_scale_config *c = &s->cfg;
    const int64_t n = s->it - s->last - 1; /* good boundaries before this one */
    if (c->rule == LS_SCALE_AMP && n + 1 == c->window) {
        s->scale *= 2;
        s->last = s->it;
    }
    if (c->rule != LS_SCALE_ZERO && c->rule != LS_SCALE_STAGE0) return;
    const bool grows = n > 0 && n % c->window == 0;
    if (c->consecutive || grows) s->hysteresis = c->hysteresis;
    if (grows) s->scale *= 2;
}

ls_status ls_loss_scale_update(ls_loss_scale *s, bool overflow)
{
    if (overflow) LS_TRY(overflowed(s));
    else went_well(s);
    s->it++;
    return LS_OK;
}

const char *ls_scale_rule_word(ls_scale_rule rule)
{
    static const char *const word[] = {"none", "fixed", "zero", "stage0", "amp"};
    return word[rule];
}
