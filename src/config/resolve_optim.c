/* resolve_optim.c - optimizer, learning rate schedule and clipping.
 *
 * With a DeepSpeed JSON its own defaults hold (optimizer block: lr 1e-3, no decay; without the block those of R1's
 * baseline: AdamW, lr 1e-4, decay 0.01; no scheduler: constant; no clipping). Without one ours do: AdamW 3e-4, betas 0.9 0.95,
 * decay 0.1, cosine to a tenth after a warm-up, clipping at 1. */
#include "config/resolve_impl.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Adds a setting: the value of the command line, or otherwise that of the JSON or the default. */
static double pick(ls_train_config *c, const char *name, train_origin from, double cli, double otherwise)
{
    const double value = from.source == LS_FROM_CLI ? cli : otherwise;
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
        return ls_fail(LS_E_ARG, "--betas must be two numbers, at least 0 and less than 1, as 0.9 0.95 or 0.9,0.95");
    return LS_OK;
}

static ls_status resolve_adam(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const ls_ds_optimizer none = {
        .lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .bias_correction = true};
    const ls_ds_optimizer baseline = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .bias_correction = true};
    const ls_ds_optimizer *j = !ds ? &none : ds->optimizer.given ? &ds->optimizer : &baseline;
    const train_origin block =
        j->given ? (train_origin){LS_FROM_JSON, "optimizer"} : (train_origin){LS_FROM_DEFAULT, ""};
    const train_origin betas = train_from(o, "--betas", j->betas_given ? "optimizer.params.betas" : NULL);
    double b[2] = {j->beta1, j->beta2};
    if (o->betas.n) LS_TRY(read_betas(o, b));
    snprintf(c->optimizer, sizeof c->optimizer, "%s", j->given ? j->type : "AdamW");
    c->bias_correction = j->bias_correction;
    c->coupled = j->coupled;
    c->decay_matrices_only = !strcmp(o->decay, "matrices");
    c->beta1 = b[0];
    c->beta2 = b[1];
    train_put_text(c, "optimizer", c->optimizer, (train_origin){block.source, j->given ? "optimizer.type" : ""});
    c->lr.base = pick(c, "lr", train_from(o, "--lr", j->lr_given ? "optimizer.params.lr" : NULL), o->lr, j->lr);
    train_put_real(c, "beta1", b[0], betas);
    train_put_real(c, "beta2", b[1], betas);
    c->eps = pick(c, "eps", train_from(o, "--eps", j->eps_given ? "optimizer.params.eps" : NULL), o->eps, j->eps);
    c->weight_decay =
        pick(c, "weight_decay",
             train_from(o, "--weight_decay", j->weight_decay_given ? "optimizer.params.weight_decay" : NULL),
             o->weight_decay, j->weight_decay);
    train_put_text(c, "decay", o->decay, train_from(o, "--decay", NULL));
    train_put_bool(c, "decoupled_decay", !c->coupled, block);
    train_put_bool(c, "bias_correction", c->bias_correction, block);
    const double checked[] = {c->lr.base, c->weight_decay, c->eps};
    const char *const names[] = {"learning rate", "weight decay", "eps"};
    for (int i = 0; i < 3; i++)
        if (!(checked[i] >= 0 && checked[i] <= 1e6))
            return ls_fail(LS_E_CONFIG, "the %s is %g, but must be at least 0", names[i], checked[i]);
    return LS_OK;
}

/* One of the choices of --lr_schedule. */
static ls_lr_kind kind_of(const char *word)
{
    int k = 0;
    while (k < LS_LR_RANGE_TEST && strcmp(word, ls_lr_word((ls_lr_kind)k))) k++;
    return (ls_lr_kind)k;
}

/* The kind and its rates; warm-up and floor of the command line follow. */
static ls_status choose_schedule(const ls_train_options *o, const ls_ds_config *ds, bool json, ls_train_config *c)
{
    ls_lr_schedule *s = &c->lr;
    const double base = s->base;
    const train_origin from = train_from(o, "--lr_schedule", json ? "scheduler.type" : NULL);
    train_origin min_from = from, max_from = from;
    if (json) {
        *s = ds->scheduler;
        if (s->kind == LS_LR_RANGE_TEST && ls_train_given(o, "lr"))
            return ls_fail(LS_E_CONFIG, "scheduler LRRangeTest sets its own learning rates; leave --lr out");
        min_from.detail = "scheduler.params.warmup_min_lr";
        max_from.detail = "scheduler.params.warmup_max_lr";
        const bool takes_lr = s->kind == LS_LR_WARMUP && !ds->scheduler_max_given;
        if (takes_lr) max_from = train_rule("the optimizer's lr");
        if (ls_train_given(o, "lr")) max_from = train_from(o, "--lr", NULL);
        if (takes_lr || ls_train_given(o, "lr")) s->max = base;
    } else {
        const ls_lr_kind kind = o->lr_schedule ? kind_of(o->lr_schedule) : ds ? LS_LR_CONSTANT : LS_LR_COSINE;
        *s = (ls_lr_schedule){.kind = kind,
                              .max = base,
                              .floor_ratio = kind == LS_LR_WARMUP_COSINE ? 0.0001 : 0.1,
                              .last_batch_iteration = -1};
        c->warmup_auto = kind != LS_LR_CONSTANT;
    }
    s->base = base;
    train_put_text(c, "lr_schedule", ls_lr_word(s->kind), from);
    if (s->kind == LS_LR_WARMUP || s->kind == LS_LR_WARMUP_DECAY) {
        train_put_real(c, "lr_min", s->min, min_from);
        train_put_real(c, "lr_max", s->max, max_from);
    }
    if (s->kind == LS_LR_RANGE_TEST)
        train_put_real(c, "lr_min", s->min, (train_origin){LS_FROM_JSON, "scheduler.params.lr_range_test_min_lr"});
    return LS_OK;
}

static ls_status resolve_schedule(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    ls_lr_schedule *s = &c->lr;
    const bool json = ds && ds->scheduler_given && !o->lr_schedule, steps = ls_train_given(o, "warmup_steps"),
               ratio = ls_train_given(o, "min_lr_ratio");
    LS_TRY(choose_schedule(o, ds, json, c));
    if (steps && o->warmup_steps < 0)
        return ls_fail(LS_E_CONFIG, "--warmup_steps %lld: must be at least 0", (long long)o->warmup_steps);
    if (steps && s->kind == LS_LR_RANGE_TEST)
        return ls_fail(LS_E_CONFIG, "scheduler LRRangeTest has no warm-up; leave --warmup_steps out");
    if (steps) s->warmup = o->warmup_steps, c->warmup_auto = false;
    const train_origin kind = train_from(o, "--lr_schedule", NULL);
    if (!c->warmup_auto && s->kind != LS_LR_RANGE_TEST)
        train_put_int(c, "warmup_steps", s->warmup,
                      steps || json ? train_from(o, "--warmup_steps", "scheduler.params.warmup_num_steps") : kind);
    const bool has_floor = s->kind == LS_LR_COSINE || s->kind == LS_LR_WARMUP_COSINE;
    if (ratio && !has_floor)
        return ls_fail(LS_E_CONFIG, "--min_lr_ratio is only for cosine schedules, but this run uses %s; leave it out",
                       ls_lr_word(s->kind));
    if (ratio && !(o->min_lr_ratio >= 0 && o->min_lr_ratio <= 1))
        return ls_fail(LS_E_CONFIG, "--min_lr_ratio %g: must be 0 to 1", o->min_lr_ratio);
    if (ratio) s->floor_ratio = o->min_lr_ratio;
    if (has_floor)
        train_put_real(c, "min_lr_ratio", s->floor_ratio,
                       ratio || json ? train_from(o, "--min_lr_ratio", "scheduler.params.cos_min_ratio") : kind);
    if (s->total)
        train_put_int(c, "lr_total_steps", s->total, (train_origin){LS_FROM_JSON, "scheduler.params.total_num_steps"});
    return LS_OK;
}

ls_status train_resolve_optimizer(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const bool json = ds && ds->gradient_clipping_given;
    LS_TRY(resolve_adam(o, ds, c));
    LS_TRY(resolve_schedule(o, ds, c));
    c->clip = pick(c, "gradient_clipping", train_from(o, "--clip", json ? "gradient_clipping" : NULL), o->clip,
                   ds ? ds->gradient_clipping : 1.0);
    if (c->clip >= 0 && isfinite(c->clip)) return LS_OK;
    return ls_fail(LS_E_CONFIG, "the clipping norm is %g, but must be at least 0 (0 = off)", c->clip);
}
