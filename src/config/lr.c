#include "config/lr.h"

#include <math.h>

const char *ls_lr_word(ls_lr_kind kind)
{
    static const char *const word[] = {"constant",       "cosine", "WarmupLR",   "WarmupDecayLR",
                                       "WarmupCosineLR", "linear", "LRRangeTest"};
    return word[kind];
}

static double half_cosine(double x) /* 1 at x = 0, 0 from x = 1 on */
{
    return (1 + cos(3.14159265358979323846 * (x < 1 ? x : 1))) / 2;
}

/* DeepSpeed's warm-up factor; 0 <= i < n. */
static double warm(const ls_lr_schedule *s, int64_t i, int64_t n)
{
    return s->linear ? (double)i / (double)n : log((double)(i + 1)) / log((double)n);
}

static double at_least_one(double x)
{
    return x > 1 ? x : 1;
}

double ls_lr_at(const ls_lr_schedule *s, int64_t k)
{
    const int64_t i = k - 1 + s->last_batch_iteration;
    const int64_t n = s->warmup > 2 ? s->warmup : 2;
    const double rest = at_least_one((double)s->total - (double)n);
    switch (s->kind) {
    case LS_LR_CONSTANT:
    case LS_LR_COSINE:
    case LS_LR_LINEAR: {
        const int64_t j = k - s->from_zero;
        if (s->warmup && j <= s->warmup) return s->base * (double)j / (double)s->warmup;
        if (s->kind == LS_LR_CONSTANT) return s->base;
        const double x = (double)(j - s->warmup) / at_least_one((double)s->total - (double)s->warmup);
        const double g = s->kind == LS_LR_COSINE ? half_cosine(x) : 1 - fmin(x, 1);
        if (s->min_is_floor) return s->min + (s->base - s->min) * g;
        return s->base * (s->floor_ratio + (1 - s->floor_ratio) * g);
    }
    case LS_LR_WARMUP:
    case LS_LR_WARMUP_DECAY: {
        if (i < 0) return s->min;
        double g = 1;
        if (i < n) g = warm(s, i, n);
        else if (s->kind == LS_LR_WARMUP_DECAY) g = fmax(0, (double)(s->total - i) / rest);
        return s->min + (s->max - s->min) * g;
    }
    case LS_LR_WARMUP_COSINE: {
        if (i < 0) return 0;
        double c = s->floor_ratio, r0 = s->warmup_min_ratio;
        if (i < n) return s->base * (r0 + (1 - r0) * warm(s, i, n));
        return s->base * (c + (1 - c) * half_cosine((double)(i - n + 1) / rest));
    }
    case LS_LR_RANGE_TEST: {
        double g = (double)(i + 1) / s->range_size;
        return s->min * (1 + s->range_rate * (s->range_staircase ? floor(g) : g));
    }
    }
    return s->base;
}
