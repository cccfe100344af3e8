/* resolve_optim.c - optimizer, learning rate schedule and clipping.
 *
 * With a DeepSpeed JSON its own defaults hold (optimizer block: lr 1e-3, no decay; without the block those of the
 * scaling study's baseline: AdamW, lr 1e-4, decay 0.01; no scheduler: constant; no clipping). Without one ours do:
 * AdamW 3e-4, betas 0.9 0.95, decay 0.1, cosine to a tenth after a warm-up, clipping at 1. */
#include "config/resolve_impl.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A JSON without an optimizer block: the defaults are those of the scaling study, not of DeepSpeed. */
static train_origin optimizer_from(train_origin from, const ls_ds_config *ds)
{
    if (ds && from.source == LS_FROM_DEFAULT && !ls_ds_get(ds, "optimizer"))
        return (train_origin){LS_FROM_DEFAULT, "the JSON has no optimizer"};
    return train_or_deepspeed(from, ds);
}

/* Adds a setting: the value of the command line, of the JSON, or a default. */
static double pick(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c, const char *name,
                   const char *flag, double cli, const char *key, double missing)
{
    train_origin from = train_from_json(o, flag, ds, key);
    from = strncmp(key, "optimizer.", 10) ? train_or_deepspeed(from, ds) : optimizer_from(from, ds);
    const double value = from.source == LS_FROM_CLI ? cli : ls_ds_real(ds, key, missing);
    train_put_real(c, name, value, from);
    return value;
}

static ls_status read_betas(const ls_train_options *o, double b[2])
{
    char words[64];
    const ls_opt_list *l = &o->betas;
    if (l->n == 2) snprintf(words, sizeof words, "%.30s,%.30s", l->word[0], l->word[1]);
    else snprintf(words, sizeof words, "%.60s", l->word[0]);
    char *comma = strchr(words, ',');
    bool ok = l->n <= 2 && comma;
    if (ok) {
        *comma = '\0';
        ok = ls_parse_f64(words, &b[0]) && ls_parse_f64(comma + 1, &b[1]);
    }
    if (!ok || !(b[0] >= 0 && b[0] < 1 && b[1] >= 0 && b[1] < 1))
        return ls_fail(LS_E_ARG,
                       "--betas %.40s%s%.40s%s: must be two numbers, at least 0 and less than 1, such as 0.9 0.95",
                       l->word[0], l->n > 1 ? " " : "", l->n > 1 ? l->word[1] : "", l->n > 2 ? " ..." : "");
    return LS_OK;
}

/* One of the betas: --adam_beta1, --adam_beta2, or that of --betas, of the JSON or of the defaults, which *b and `from` have. */
static ls_status one_beta(const ls_train_options *o, const char *flag, double typed, const char *name, double *b,
                          train_origin from, ls_train_config *c)
{
    const train_origin own = train_from(o, flag, NULL);
    if (own.source == LS_FROM_CLI) {
        if (o->betas.n) return ls_fail(LS_E_ARG, "--betas and %s cannot be combined; leave one out", flag);
        if (typed >= 1) return ls_fail(LS_E_ARG, "%s %g: must be at least 0 and less than 1", flag, typed);
        *b = typed;
        from = own;
    }
    train_put_real(c, name, *b, from);
    return LS_OK;
}

static ls_status resolve_adam(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    static const struct {
        double lr, beta2, weight_decay;
    } defaults[] = {{3e-4, 0.95, 0.1}, {1e-4, 0.999, 0.01}, {1e-3, 0.999, 0}}; /* ours, that baseline's, DeepSpeed's */
    const bool block = ls_ds_get(ds, "optimizer"),
               adam = !strcasecmp(ls_ds_text(ds, "optimizer.type", "AdamW"), "Adam");
    const int k = !ds ? 0 : !block ? 1 : 2;
    const json_t *betas = ls_ds_get(ds, "optimizer.params.betas");
    const train_origin from = block ? (train_origin){LS_FROM_JSON, "optimizer"}
                                    : optimizer_from((train_origin){LS_FROM_DEFAULT, ""}, ds),
                       betas_from = optimizer_from(train_from_json(o, "--betas", ds, "optimizer.params.betas"), ds);
    double b[2] = {0.9, defaults[k].beta2};
    for (size_t i = 0; betas && i < 2; i++) b[i] = json_number_value(json_array_get(betas, i));
    if (o->betas.n) LS_TRY(read_betas(o, b));
    snprintf(c->optimizer, sizeof c->optimizer, "%s", adam ? "Adam" : "AdamW");
    c->bias_correction = ls_ds_bool(ds, "optimizer.params.bias_correction", true);
    c->coupled = adam && !ls_ds_bool(ds, "optimizer.params.adam_w_mode", true);
    c->decay_matrices_only = !strcmp(o->decay, "matrices");
    train_put_text(c, "optimizer", c->optimizer, (train_origin){from.source, block ? "optimizer.type" : from.detail});
    c->lr.base = pick(o, ds, c, "lr", "--lr", o->lr, "optimizer.params.lr", defaults[k].lr);
    LS_TRY(one_beta(o, "--adam_beta1", o->adam_beta1, "beta1", &b[0], betas_from, c));
    LS_TRY(one_beta(o, "--adam_beta2", o->adam_beta2, "beta2", &b[1], betas_from, c));
    c->beta1 = b[0];
    c->beta2 = b[1];
    c->eps = pick(o, ds, c, "eps", "--eps", o->eps, "optimizer.params.eps", 1e-8);
    c->weight_decay = pick(o, ds, c, "weight_decay", "--weight_decay", o->weight_decay, "optimizer.params.weight_decay",
                           defaults[k].weight_decay);
    train_put_text(c, "decay", o->decay, train_from(o, "--decay", NULL));
    train_put_bool(c, "decoupled_decay", !c->coupled, from);
    train_put_bool(c, "bias_correction", c->bias_correction, from);
    const double checked[] = {c->lr.base, c->weight_decay, c->eps};
    const char *const names[] = {"learning rate (--lr)", "weight decay (--weight_decay)", "--eps"};
    for (int i = 0; i < 3; i++)
        if (!(checked[i] >= 0 && checked[i] <= 1e6))
            return ls_fail(LS_E_ARG, "%s %g: must be 0 to 1e6", names[i], checked[i]);
    return LS_OK;
}

/* One of the names of ls_lr_word. */
static ls_lr_kind kind_of(const char *word)
{
    int k = 0;
    while (k < LS_LR_RANGE_TEST && strcmp(word, ls_lr_word((ls_lr_kind)k))) k++;
    return (ls_lr_kind)k;
}

/* The scheduler of the JSON, with DeepSpeed's defaults. */
static ls_lr_schedule read_schedule(const ls_ds_config *ds)
{
    const ls_lr_kind kind = kind_of(ls_ds_text(ds, "scheduler.type", ""));
    return (ls_lr_schedule){.kind = kind,
                            .min = kind == LS_LR_RANGE_TEST
                                       ? ls_ds_real(ds, "scheduler.params.lr_range_test_min_lr", 1e-3)
                                       : ls_ds_real(ds, "scheduler.params.warmup_min_lr", 0),
                            .max = ls_ds_real(ds, "scheduler.params.warmup_max_lr", 0.001),
                            .warmup = ls_ds_int(ds, "scheduler.params.warmup_num_steps", 1000),
                            .total = ls_ds_int(ds, "scheduler.params.total_num_steps", 0),
                            .linear = !strcmp(ls_ds_text(ds, "scheduler.params.warmup_type", "log"), "linear"),
                            .warmup_min_ratio = ls_ds_real(ds, "scheduler.params.warmup_min_ratio", 0),
                            .floor_ratio = ls_ds_real(ds, "scheduler.params.cos_min_ratio", 0.0001),
                            .range_size = ls_ds_real(ds, "scheduler.params.lr_range_test_step_size", 2000),
                            .range_rate = ls_ds_real(ds, "scheduler.params.lr_range_test_step_rate", 1),
                            .range_staircase = ls_ds_bool(ds, "scheduler.params.lr_range_test_staircase", false),
                            .last_batch_iteration = ls_ds_int(ds, "scheduler.params.last_batch_iteration", -1)};
}

/* A parameter of the scheduler of the JSON, or DeepSpeed's default of it. */
static train_origin scheduler_key(const ls_ds_config *ds, const char *key)
{
    return ls_ds_get(ds, key) ? (train_origin){LS_FROM_JSON, key} : (train_origin){LS_FROM_DEEPSPEED, key};
}

/* The option that names the schedule; NULL: none. */
static const char *schedule_flag(const ls_train_options *o)
{
    return o->lr_schedule ? "--lr_schedule" : o->lr_scheduler_type ? "--lr_scheduler_type" : NULL;
}

/* Without a scheduler in the JSON: the schedule of --lr_schedule or --lr_scheduler_type, with the defaults of its trainer. */
static ls_lr_schedule named_schedule(const ls_train_options *o, const ls_ds_config *ds, double base, bool *warmup_auto)
{
    const char *theirs = o->lr_scheduler_type;
    ls_lr_kind kind = o->lr_schedule ? kind_of(o->lr_schedule) : ds ? LS_LR_CONSTANT : LS_LR_COSINE;
    if (theirs) kind = !strncmp(theirs, "constant", 8) ? LS_LR_CONSTANT : kind_of(theirs);
    *warmup_auto = kind != LS_LR_CONSTANT && !theirs;
    return (ls_lr_schedule){.kind = kind,
                            .base = base,
                            .max = base,
                            .floor_ratio = theirs                        ? 0
                                           : kind == LS_LR_WARMUP_COSINE ? 0.0001
                                                                         : 0.1,
                            .from_zero = theirs,
                            .last_batch_iteration = -1};
}

/* The kind and its rates; warm-up and floor of the command line follow. */
static ls_status choose_schedule(const ls_train_options *o, const ls_ds_config *ds, bool json, ls_train_config *c)
{
    ls_lr_schedule *s = &c->lr;
    const double base = s->base;
    const char *flag = schedule_flag(o);
    const train_origin from =
        train_or_deepspeed(train_from(o, flag ? flag : "--lr_schedule", json ? "scheduler.type" : NULL), ds);
    train_origin min_from = from, max_from = from;
    if (json) {
        *s = read_schedule(ds);
        if (s->kind == LS_LR_RANGE_TEST && ls_train_given(o, "lr"))
            return ls_fail(LS_E_CONFIG, "scheduler LRRangeTest sets its own learning rates; leave --lr out");
        min_from = scheduler_key(ds, "scheduler.params.warmup_min_lr");
        max_from = scheduler_key(ds, "scheduler.params.warmup_max_lr");
        const bool takes_lr = s->kind == LS_LR_WARMUP && !ls_ds_get(ds, "scheduler.params.warmup_max_lr");
        if (takes_lr) max_from = train_rule("the optimizer's lr");
        if (ls_train_given(o, "lr")) max_from = train_from(o, "--lr", NULL);
        if (takes_lr || ls_train_given(o, "lr")) s->max = base;
    } else {
        *s = named_schedule(o, ds, base, &c->warmup_auto);
    }
    s->base = base;
    train_put_text(c, "lr_schedule", ls_lr_word(s->kind), from);
    if (s->from_zero) train_put_bool(c, "lr_from_zero", true, from);
    if (s->kind == LS_LR_WARMUP || s->kind == LS_LR_WARMUP_DECAY) {
        train_put_real(c, "lr_min", s->min, min_from);
        train_put_real(c, "lr_max", s->max, max_from);
    }
    if (s->kind == LS_LR_RANGE_TEST)
        train_put_real(c, "lr_min", s->min, scheduler_key(ds, "scheduler.params.lr_range_test_min_lr"));
    return LS_OK;
}

static ls_status resolve_warmup(ls_train_options *o, const ls_ds_config *ds, bool json, ls_train_config *c)
{
    ls_lr_schedule *s = &c->lr;
    const char *flag = schedule_flag(o);
    const bool range = s->kind == LS_LR_RANGE_TEST,
               none = range || (o->lr_scheduler_type && !strcmp(o->lr_scheduler_type, "constant")),
               left = none && train_leaves_out(o, "warmup_steps", "a schedule with a warm-up", c),
               steps = !left && ls_train_given(o, "warmup_steps");
    if (steps && range) return ls_fail(LS_E_CONFIG, "scheduler LRRangeTest has no warm-up; leave --warmup_steps out");
    if (steps && none)
        return ls_fail(
            LS_E_CONFIG,
            "--lr_scheduler_type constant has no warm-up; use constant_with_warmup, or leave --warmup_steps out");
    if (steps) s->warmup = o->warmup_steps, c->warmup_auto = false;
    if (c->warmup_auto) train_put_text(c, "warmup_steps", NULL, train_rule(TRAIN_WARMUP_RULE)); /* fit fills it */
    else if (s->kind != LS_LR_RANGE_TEST)
        train_put_int(c, "warmup_steps", s->warmup,
                      steps  ? train_from(o, "--warmup_steps", NULL)
                      : json ? scheduler_key(ds, "scheduler.params.warmup_num_steps")
                             : train_or_deepspeed(train_from(o, flag ? flag : "--lr_schedule", NULL), ds));
    return LS_OK;
}

/* The lowest rate: --min_lr_ratio, --min_lr, or that of the schedule. */
static ls_status resolve_floor(ls_train_options *o, const ls_ds_config *ds, bool json, ls_train_config *c)
{
    ls_lr_schedule *s = &c->lr;
    const char *flag = schedule_flag(o);
    const bool ours = s->kind == LS_LR_COSINE || s->kind == LS_LR_LINEAR, has = ours || s->kind == LS_LR_WARMUP_COSINE;
    if (!has) (void)train_leaves_out(o, "min_lr_ratio", "--lr_schedule cosine or linear", c);
    if (!ours) (void)train_leaves_out(o, "min_lr", "--lr_schedule cosine or linear", c);
    if (o->min_lr > s->base) (void)train_leaves_out(o, "min_lr", "a larger --lr", c);
    const bool ratio = ls_train_given(o, "min_lr_ratio"), rate = ls_train_given(o, "min_lr");
    if (ratio && rate) return ls_fail(LS_E_ARG, "--min_lr and --min_lr_ratio cannot be combined; leave one out");
    if (ratio && !has)
        return ls_fail(LS_E_CONFIG,
                       "--min_lr_ratio is only for cosine and linear schedules, but this run uses %s; leave it out",
                       ls_lr_word(s->kind));
    if (rate && !ours)
        return ls_fail(LS_E_CONFIG,
                       "--min_lr is only for the schedules cosine and linear, but this run uses %s; leave it out",
                       ls_lr_word(s->kind));
    if (rate && o->min_lr > s->base)
        return ls_fail(LS_E_CONFIG, "--min_lr %g: must be at most the learning rate %g (--lr)", o->min_lr, s->base);
    if (ratio) s->floor_ratio = o->min_lr_ratio;
    if (rate) {
        s->min = o->min_lr;
        s->min_is_floor = true;
        train_put_real(c, "min_lr", s->min, train_from(o, "--min_lr", NULL));
    } else if (has) {
        train_put_real(c, "min_lr_ratio", s->floor_ratio,
                       ratio  ? train_from(o, "--min_lr_ratio", NULL)
                       : json ? scheduler_key(ds, "scheduler.params.cos_min_ratio")
                              : train_or_deepspeed(train_from(o, flag ? flag : "--lr_schedule", NULL), ds));
    }
    return LS_OK;
}

static ls_status resolve_schedule(ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const bool json = ls_ds_get(ds, "scheduler") && !schedule_flag(o);
    if (o->lr_schedule && o->lr_scheduler_type)
        return ls_fail(LS_E_ARG, "--lr_schedule and --lr_scheduler_type cannot be combined; leave one out");
    LS_TRY(choose_schedule(o, ds, json, c));
    LS_TRY(resolve_warmup(o, ds, json, c));
    LS_TRY(resolve_floor(o, ds, json, c));
    if (c->lr.total)
        train_put_int(c, "lr_total_steps", c->lr.total,
                      (train_origin){LS_FROM_JSON, "scheduler.params.total_num_steps"});
    return LS_OK;
}

ls_status train_resolve_optimizer(ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    LS_TRY(resolve_adam(o, ds, c));
    LS_TRY(resolve_schedule(o, ds, c));
    c->clip = pick(o, ds, c, "gradient_clipping", "--clip", o->clip, "gradient_clipping", ds ? 0 : 1);
    if (c->clip >= 0 && isfinite(c->clip)) return LS_OK;
    return ls_fail(LS_E_CONFIG, "%s %g: must be at least 0 (0 = off)",
                   ls_train_given(o, "clip") ? "--clip" : "gradient_clipping of the DeepSpeed JSON:", c->clip);
}
