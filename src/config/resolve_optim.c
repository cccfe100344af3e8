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

typedef struct choice {
    double value;
    ls_source source;
    const char *detail;
} choice;

/* Command line, else JSON, else a default. */
static choice pick(bool cli, double cli_value, const char *flag, bool json, double json_value, const char *key,
                   double def)
{
    if (cli) return (choice){cli_value, LS_FROM_CLI, flag};
    if (json) return (choice){json_value, LS_FROM_JSON, key};
    return (choice){def, LS_FROM_DEFAULT, ""};
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
    snprintf(c->optimizer, sizeof c->optimizer, "%s", j->given ? j->type : "AdamW");
    c->bias_correction = j->bias_correction;
    c->coupled = j->coupled;
    train_put_text(c, "optimizer", c->optimizer, j->given ? LS_FROM_JSON : LS_FROM_DEFAULT,
                   j->given ? "optimizer.type" : "");

    choice lr = pick(ls_train_given(o, "lr"), o->lr, "--lr", j->lr_given, j->lr, "optimizer.params.lr", j->lr);
    choice wd = pick(ls_train_given(o, "weight_decay"), o->weight_decay, "--weight_decay", j->weight_decay_given,
                     j->weight_decay, "optimizer.params.weight_decay", j->weight_decay);
    choice eps = pick(ls_train_given(o, "eps"), o->eps, "--eps", j->eps_given, j->eps, "optimizer.params.eps", j->eps);
    const choice *checked[] = {&lr, &wd, &eps};
    const char *const names[] = {"learning rate", "weight decay", "eps"};
    for (int i = 0; i < 3; i++)
        if (!(checked[i]->value >= 0 && checked[i]->value <= 1e6))
            return ls_fail(LS_E_CONFIG, "the %s is %g, but must be at least 0", names[i], checked[i]->value);
    double b[2] = {j->beta1, j->beta2};
    ls_source b_from = j->betas_given ? LS_FROM_JSON : LS_FROM_DEFAULT;
    const char *b_detail = j->betas_given ? "optimizer.params.betas" : "";
    if (o->betas.n) {
        LS_TRY(read_betas(o, b));
        b_from = LS_FROM_CLI, b_detail = "--betas";
    }
    c->lr.base = lr.value;
    c->weight_decay = wd.value;
    c->decay_matrices_only = !strcmp(o->decay, "matrices");
    c->eps = eps.value;
    c->beta1 = b[0];
    c->beta2 = b[1];
    train_put_real(c, "lr", lr.value, lr.source, lr.detail);
    train_put_real(c, "beta1", b[0], b_from, b_detail);
    train_put_real(c, "beta2", b[1], b_from, b_detail);
    train_put_real(c, "eps", eps.value, eps.source, eps.detail);
    train_put_real(c, "weight_decay", wd.value, wd.source, wd.detail);
    train_put_text(c, "decay", o->decay, ls_train_given(o, "decay") ? LS_FROM_CLI : LS_FROM_DEFAULT,
                   ls_train_given(o, "decay") ? "--decay" : "");
    train_put_bool(c, "decoupled_decay", !c->coupled, j->given ? LS_FROM_JSON : LS_FROM_DEFAULT,
                   j->given ? "optimizer" : "");
    train_put_bool(c, "bias_correction", c->bias_correction, j->given ? LS_FROM_JSON : LS_FROM_DEFAULT,
                   j->given ? "optimizer" : "");
    return LS_OK;
}

static ls_lr_kind kind_of(const char *word)
{
    const ls_lr_kind kinds[] = {LS_LR_CONSTANT, LS_LR_COSINE, LS_LR_WARMUP, LS_LR_WARMUP_DECAY, LS_LR_WARMUP_COSINE};
    size_t n = sizeof kinds / sizeof kinds[0], i = 0;
    while (i < n && strcmp(word, ls_lr_word(kinds[i]))) i++;
    LS_ASSERT(i < n); /* the table of options let no other word through */
    return kinds[i];
}

static ls_status resolve_schedule(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    ls_lr_schedule *s = &c->lr;
    const double base = s->base;
    bool json = ds && ds->scheduler_given && !o->lr_schedule;
    ls_source from = json ? LS_FROM_JSON : o->lr_schedule ? LS_FROM_CLI : LS_FROM_DEFAULT;
    const char *detail = json ? "scheduler.type" : o->lr_schedule ? "--lr_schedule" : "";
    ls_source max_from = from;
    const char *max_detail = detail;
    if (json) {
        *s = ds->scheduler;
        max_detail = "scheduler.params.warmup_max_lr";
        bool takes_lr = s->kind == LS_LR_WARMUP && !ds->scheduler_max_given;
        if (takes_lr || ls_train_given(o, "lr")) {
            s->max = base;
            max_from = ls_train_given(o, "lr") ? LS_FROM_CLI : LS_FROM_RULE;
            max_detail = ls_train_given(o, "lr") ? "--lr" : "the optimizer's lr";
        }
        if (s->kind == LS_LR_RANGE_TEST && ls_train_given(o, "lr"))
            return ls_fail(LS_E_CONFIG, "scheduler LRRangeTest sets its own learning rates; leave --lr out");
    } else {
        ls_lr_kind kind = o->lr_schedule ? kind_of(o->lr_schedule) : ds ? LS_LR_CONSTANT : LS_LR_COSINE;
        *s = (ls_lr_schedule){.kind = kind,
                              .max = base,
                              .floor_ratio = kind == LS_LR_WARMUP_COSINE ? 0.0001 : 0.1,
                              .last_batch_iteration = -1};
        c->warmup_auto = !ds || o->lr_schedule; /* DeepSpeed without a scheduler: constant from the first update on */
        if (kind == LS_LR_CONSTANT && !ls_train_given(o, "warmup_steps")) c->warmup_auto = false;
    }
    s->base = base;
    train_put_text(c, "lr_schedule", ls_lr_word(s->kind), from, detail);
    if (s->kind == LS_LR_WARMUP || s->kind == LS_LR_WARMUP_DECAY) {
        train_put_real(c, "lr_min", s->min, from, json ? "scheduler.params.warmup_min_lr" : detail);
        train_put_real(c, "lr_max", s->max, max_from, max_detail);
    }
    if (s->kind == LS_LR_RANGE_TEST) train_put_real(c, "lr_min", s->min, from, "scheduler.params.lr_range_test_min_lr");
    if (ls_train_given(o, "warmup_steps")) {
        if (o->warmup_steps < 0)
            return ls_fail(LS_E_CONFIG, "--warmup_steps %lld: must be at least 0", (long long)o->warmup_steps);
        if (s->kind == LS_LR_RANGE_TEST)
            return ls_fail(LS_E_CONFIG, "scheduler LRRangeTest has no warm-up; leave --warmup_steps out");
        s->warmup = o->warmup_steps;
        c->warmup_auto = false;
    }
    if (!c->warmup_auto && s->kind != LS_LR_RANGE_TEST)
        train_put_int(c, "warmup_steps", s->warmup, ls_train_given(o, "warmup_steps") ? LS_FROM_CLI : from,
                      ls_train_given(o, "warmup_steps") ? "--warmup_steps"
                      : json                            ? "scheduler.params.warmup_num_steps"
                                                        : detail);
    bool has_floor = s->kind == LS_LR_COSINE || s->kind == LS_LR_WARMUP_COSINE;
    bool ratio = ls_train_given(o, "min_lr_ratio");
    if (ratio && !has_floor)
        return ls_fail(LS_E_CONFIG, "--min_lr_ratio is only for cosine schedules, but this run uses %s; leave it out",
                       ls_lr_word(s->kind));
    if (ratio && !(o->min_lr_ratio >= 0 && o->min_lr_ratio <= 1))
        return ls_fail(LS_E_CONFIG, "--min_lr_ratio %g: must be 0 to 1", o->min_lr_ratio);
    if (ratio) s->floor_ratio = o->min_lr_ratio;
    if (has_floor)
        train_put_real(c, "min_lr_ratio", s->floor_ratio, ratio ? LS_FROM_CLI : from,
                       ratio  ? "--min_lr_ratio"
                       : json ? "scheduler.params.cos_min_ratio"
                              : detail);
    if (s->total) train_put_int(c, "lr_total_steps", s->total, LS_FROM_JSON, "scheduler.params.total_num_steps");
    return LS_OK;
}

ls_status train_resolve_optimizer(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    LS_TRY(resolve_adam(o, ds, c));
    LS_TRY(resolve_schedule(o, ds, c));
    choice clip = pick(ls_train_given(o, "clip"), o->clip, "--clip", ds && ds->gradient_clipping_given,
                       ds ? ds->gradient_clipping : 0, "gradient_clipping", ds ? 0.0 : 1.0);
    if (!(clip.value >= 0 && isfinite(clip.value)))
        return ls_fail(LS_E_CONFIG, "the clipping norm is %g, but must be at least 0 (0 = off)", clip.value);
    c->clip = clip.value;
    train_put_real(c, "gradient_clipping", clip.value, clip.source, clip.detail);
    return LS_OK;
}
