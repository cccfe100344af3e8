/* resolve_device.c - where a run computes, and in how many bits.
 *
 *   device      as chosen (device_choice.h): --device, else LS_DEVICE, else a GPU where there is one
 *   precision   --precision, else the JSON's fp16, bf16 or fp8 block, else fp32 with a JSON (as DeepSpeed) that has no "auto", else fp32 on the
 *               CPU and bf16 on a GPU. auto: bf16 on a GPU and on a CPU with bf16 instructions, else fp32. A GPU without bf16 (compute/card.h) has
 *               fp16 in its place, and what it does not have is refused. The CPU has no fp16; its bf16 rounds the operands of
 *               products, and everything is stored in fp32. A run that is resumed keeps the precision of its steps, unless an option
 *               or a section of the JSON names one; a JSON that is typed overrides a --precision of the run.
 *   loss scale  fp16 only. By the JSON's fp16 block and ZeRO stage, as DeepSpeed chooses (loss_scale.h): stage 0 or no ZeRO block has its
 *               own rule. --run_type baseline alone: torch's. Without a JSON: DeepSpeed's rule for ZeRO and its defaults. The strategy of
 *               the command line changes nothing, so that strategies compute the same. */
#include "config/resolve_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

ls_dtype ls_precision_dtype(const char *precision)
{
    return !strcmp(precision, "bf16") || !strcmp(precision, "fp8") ? LS_BF16
           : !strcmp(precision, "fp16")                            ? LS_F16
                                                                   : LS_F32;
}

const char *ls_precision_named(const char *word)
{
    static const char *const known[] = {"fp32", "bf16", "fp16", "fp8"};
    for (size_t i = 0; i < sizeof known / sizeof *known && word; i++)
        if (!strcmp(word, known[i])) return known[i];
    return NULL;
}

const char *ls_precision_of_backend(const char *asked, const char *compute, const ls_card *card)
{
    if (asked && strcmp(asked, "auto") != 0) return asked;
    if (!strcmp(compute, "cuda")) return !card || card->bf16 ? "bf16" : "fp16";
    return asked && !strcmp(compute, "cpu") && ls_compute_cpu_bf16().native ? "bf16" : "fp32";
}

const char *ls_precision_choose(const char *asked, bool cuda)
{
    return ls_precision_of_backend(asked, cuda ? "cuda" : "cpu", NULL);
}

ls_status ls_precision_check(const char *who, const char *precision, const ls_device_choice *d)
{
    const bool fp8 = !strcmp(precision, "fp8");
    if (!d->card || ls_precision_dtype(precision) != LS_BF16 || (fp8 ? d->card->fp8 : d->card->bf16)) return LS_OK;
    return ls_fail(LS_E_UNSUPPORTED,
                   "%s needs a GPU of compute capability %s or later, but %s; use --precision %s or fp32", who,
                   fp8 ? "8.9" : "8.0", d->lacks, d->card->bf16 ? "bf16" : "fp16");
}

ls_status ls_precision_check_tf32(const ls_device_choice *d)
{
    if (!d->card || d->card->mma >= 80) return LS_OK;
    return ls_fail(LS_E_UNSUPPORTED, "--tf32 needs a GPU of compute capability 8.0 or later, but %s; leave it out",
                   d->lacks);
}

ls_compute_open_opts ls_train_compute_opts(const ls_train_config *c)
{
    return (ls_compute_open_opts){.dtype = c->dtype,
                                  .device = c->device_index,
                                  .local_rank = c->local_rank < 0 ? 0 : c->local_rank,
                                  .tf32 = c->tf32,
                                  .stochastic = c->stochastic,
                                  .deterministic = c->deterministic};
}

static const char *json_name(const ls_ds_config *ds)
{
    return ds && ds->path ? ds->path : "the DeepSpeed JSON";
}

/* A setting of fp8: the option's, else the JSON's, else that of the steps of the run that is resumed, else the option's default. */
static train_origin fp8_from(const ls_train_options *o, const ls_ds_config *ds, const char *flag, const char *key,
                             const ls_train_config *c)
{
    const train_origin from = train_from_json(o, flag, ds, key);
    const bool kept = from.source == LS_FROM_DEFAULT && c->fp8.on && c->before.fp8_format;
    return kept ? (train_origin){LS_FROM_RUN, flag} : from;
}

static int fp8_number(const ls_train_options *o, const ls_ds_config *ds, const char *flag, int64_t typed,
                      const char *key, int before, ls_train_config *c)
{
    const train_origin from = fp8_from(o, ds, flag, key, c);
    const int64_t value = from.source == LS_FROM_JSON  ? ls_ds_int(ds, key, typed)
                          : from.source == LS_FROM_RUN ? before
                                                       : typed;
    train_put_int(c, flag + 2, value, from);
    return (int)value;
}

/* An option that needs another precision or device. */
static ls_status refuse(ls_train_options *o, const char *name, const char *needs, ls_train_config *c)
{
    if (train_leaves_out(o, name, needs, c)) return LS_OK;
    return ls_fail(LS_E_CONFIG, "--%s needs %s, but this run uses %s on the %s; leave it out", name, needs,
                   c->precision, strcmp(c->device, "cuda") ? "CPU" : "GPU");
}

/* Settings of fp8 that are the defaults of this version, where those of the earlier steps cannot be read. */
static ls_status check_fp8_lost(const ls_train_config *c)
{
    for (int i = 0; i < c->n_setting && *c->before.lost && c->fp8.on; i++)
        if (!strncmp(c->setting[i].name, "fp8_", 4) && c->setting[i].source == LS_FROM_DEFAULT)
            return ls_fail(LS_E_FORMAT,
                           "%s; the settings of fp8 are not known: add --fp8_format, --fp8_amax_history_len and "
                           "--fp8_margin (as the run had them, if it was computed in fp8)",
                           c->before.lost);
    return LS_OK;
}

/* TransformerEngine's names in the JSON: format (or fp8_format), amax_history_len, margin, amax_compute_algo. most_recent is a history of one
 * step. */
static ls_status resolve_fp8(ls_train_options *o, const ls_ds_config *ds, const ls_device_choice *d, ls_train_config *c)
{
    char no_gpu[LS_DEVICE_WORDS];
    static const char *const flag[] = {"fp8_format", "fp8_amax_history_len", "fp8_margin"};
    const bool on = !strcmp(c->precision, "fp8");
    const bool recent = !strcasecmp(ls_ds_text(ds, "fp8.amax_compute_algo", "max"), "most_recent");
    for (size_t i = 0; i < sizeof flag / sizeof *flag && !on; i++)
        if (ls_train_given(o, flag[i])) LS_TRY(refuse(o, flag[i], "--precision fp8", c));
    if (on && !ls_ds_bool(ds, "fp8.reduce_amax", true))
        return ls_fail(
            LS_E_UNSUPPORTED,
            "%s: 'fp8.reduce_amax' is false, but scales always follow from the magnitudes of all workers, so "
            "that all have the same weights; set it to true",
            json_name(ds));
    if (on && !d->cuda)
        return ls_fail(
            LS_E_UNSUPPORTED,
            "%s%s needs a GPU of compute capability 8.9 or later, and the CPU supports only fp32 and bf16; %s "
            "--precision fp32 or --precision bf16; %s",
            o->precision ? "--precision fp8" : json_name(ds), o->precision ? "" : " enables fp8, which",
            o->precision ? "use" : "add", ls_device_no_gpu(d, no_gpu));
    c->fp8.on = on;
    const train_origin from = fp8_from(o, ds, "--fp8_format", ls_ds_name_given(ds, "fp8.format"), c);
    const char *format = from.source == LS_FROM_JSON  ? ls_ds_text(ds, "fp8.format", o->fp8_format)
                         : from.source == LS_FROM_RUN ? c->before.fp8_format
                                                      : o->fp8_format;
    c->fp8.e4m3 = !strcasecmp(format, "e4m3");
    train_put_text(c, "fp8_format", ls_fp8_format_word(&c->fp8), from);
    if (recent && !ls_train_given(o, "fp8_amax_history_len")) {
        c->fp8.history = 1;
        train_put_int(c, "fp8_amax_history_len", 1, (train_origin){LS_FROM_JSON, "fp8.amax_compute_algo"});
    } else {
        c->fp8.history = fp8_number(o, ds, "--fp8_amax_history_len", o->fp8_amax_history_len, "fp8.amax_history_len",
                                    c->before.fp8_history, c);
    }
    c->fp8.margin = fp8_number(o, ds, "--fp8_margin", o->fp8_margin, "fp8.margin", c->before.fp8_margin, c);
    return check_fp8_lost(c);
}

/* Neither the options nor the JSON name a precision: that of the steps is kept, of a run that is resumed. */
static bool is_open(const ls_train_options *o, const ls_ds_config *ds, bool json, bool left_open)
{
    const bool section = ls_ds_get(ds, "fp16") || ls_ds_get(ds, "bf16") || ls_ds_get(ds, "fp8");
    return o->precision ? !strcmp(o->precision, "auto") : !json && (left_open || !section);
}

/* The precision is that of a run that is resumed: of its steps, or its --precision, which was not typed again. */
static bool is_of_run(const ls_train_options *o, const char *before)
{
    return before || (o->precision && train_by_run(o, "precision"));
}

/* A JSON that is typed when a run is resumed disables the precision of its steps. */
static bool is_disabled(const ls_train_options *o, const ls_ds_config *ds, const char *before)
{
    return before && train_json_typed(o, ds) && ls_ds_disables(ds, before) &&
           (!o->precision || train_by_run(o, "precision"));
}

/* --precision auto would choose another one. */
static void note_kept(const ls_train_options *o, const char *before, const ls_device_choice *d, ls_train_config *c)
{
    if (before && o->precision && strcmp(before, ls_precision_of_backend("auto", c->compute, d->card)))
        ls_str_addf(&c->notes, "--precision auto: the precision of the run, %s, is kept\n", before);
}

/* The JSON leaves the choice to the program. */
static void note_auto(const ls_train_options *o, const ls_ds_config *ds, bool chosen, ls_train_config *c)
{
    static const char *const block[] = {"fp8.enabled", "fp16.enabled", "bf16.enabled"};
    ls_str keys = {0};
    int n = 0;
    for (size_t i = 0; i < sizeof block / sizeof *block; i++)
        if (ls_ds_auto(ds, block[i])) ls_str_addf(&keys, "%s%s", n++ ? " and " : "", block[i]);
    if (n && !chosen && !o->precision)
        ls_str_addf(
            &c->notes,
            "%s of the DeepSpeed JSON %s \"auto\": this run computes in %s, the default %s; --precision chooses%s\n",
            keys.data ? keys.data : "", n > 1 ? "are" : "is", c->precision,
            strcmp(c->compute, "cuda") ? "on the CPU" : "on a GPU",
            strcmp(c->compute, "cuda") ? " (bf16, or auto: bf16 on a CPU that has it)" : "");
    ls_str_fini(&keys);
}

/* --bf16 False, and the run would compute in bf16. */
static ls_status check_off(const ls_train_options *o, const ls_ds_config *ds, const char *before, const char *key,
                           const ls_train_config *c)
{
    char why[256];
    if (!ls_train_off(o, c->precision)) return LS_OK;
    if (before) snprintf(why, sizeof why, "the steps of the run were computed in it");
    else if (o->precision && train_by_run(o, "precision"))
        snprintf(why, sizeof why, "the run has --precision %s", o->precision);
    else if (o->precision) snprintf(why, sizeof why, "--precision %s chooses it", o->precision);
    else if (key) snprintf(why, sizeof why, "%.180s enables it", json_name(ds));
    else snprintf(why, sizeof why, "it is the default on a GPU");
    return ls_fail(LS_E_ARG, "--%s False, but this run would compute in %s: %s; use --precision %s", c->precision,
                   c->precision, why,
                   strcmp(c->compute, "cuda")      ? "fp32"
                   : !strcmp(c->precision, "bf16") ? "fp32, fp16 or fp8"
                   : !strcmp(c->precision, "fp16") ? "fp32, bf16 or fp8"
                                                   : "fp32, bf16 or fp16");
}

/* Why --precision auto chose what it did. */
static const char *auto_words(const char *before, const char *compute, const ls_card *card)
{
    if (before) return "the precision of the run";
    if (!strcmp(compute, "cuda")) return !card || card->bf16 ? "a GPU has bf16" : "this GPU has no bf16";
    if (strcmp(compute, "cpu")) return "cpu-ref supports only fp32";
    return ls_compute_cpu_bf16().native ? "this CPU has bf16 instructions" : "this CPU has no bf16 instructions";
}

/* What the GPU does not have. of_run: the precision is that of the run that is resumed. */
static ls_status check_card(const ls_train_options *o, const ls_ds_config *ds, const ls_device_choice *d, bool of_run,
                            const ls_train_config *c)
{
    char who[300];
    if (of_run) snprintf(who, sizeof who, "the steps of this run were computed in %s, which", c->precision);
    else if (o->precision) snprintf(who, sizeof who, "--precision %s", c->precision);
    else snprintf(who, sizeof who, "%.200s enables %s, which", json_name(ds), c->precision);
    return ls_precision_check(who, c->precision, d);
}

static ls_status resolve_precision(ls_train_options *o, const ls_ds_config *ds, const ls_device_choice *d,
                                   ls_train_config *c)
{
    const bool cuda = d->cuda;
    char no_gpu[LS_DEVICE_WORDS];
    /* fp8 beside bf16 is fp8, as in TransformerEngine; beside fp16 it is refused below */
    const bool fp16 = ls_ds_bool(ds, "fp16.enabled", false), fp8 = ls_ds_bool(ds, "fp8.enabled", false),
               bf16 = ls_ds_bool(ds, "bf16.enabled", false), json = !o->precision && (fp16 || fp8 || bf16),
               left_open = !ds || ls_ds_precision_open(ds);
    const char *key = fp8 ? "fp8.enabled" : fp16 ? "fp16.enabled" : "bf16.enabled";
    if (json && fp16 && fp8)
        return ls_fail(LS_E_CONFIG, "%s enables fp16 and fp8; fp8 computes the rest in bf16: disable fp16",
                       json_name(ds));
    if (json && fp16 && bf16)
        return ls_fail(LS_E_CONFIG, "%s enables fp16 and bf16; enable one of them, or add --precision", json_name(ds));
    const bool open = is_open(o, ds, json, left_open);
    const char *before = open && !is_disabled(o, ds, c->before.precision) ? c->before.precision : NULL;
    c->precision_open = open || (!o->precision && !json); /* a section that enables nothing names none */
    if (c->precision_open && c->before.damaged) return ls_fail(LS_E_FORMAT, "%s; add --precision", c->before.lost);
    c->precision = before              ? before
                   : o->precision      ? ls_precision_of_backend(o->precision, c->compute, d->card)
                   : json              ? (fp8    ? "fp8"
                                          : fp16 ? "fp16"
                                                 : "bf16")
                   : cuda && left_open ? ls_precision_of_backend(NULL, c->compute, d->card)
                                       : "fp32";
    c->dtype = ls_precision_dtype(c->precision);
    c->precision_why = o->precision && !strcmp(o->precision, "auto") ? auto_words(before, c->compute, d->card) : NULL;
    LS_TRY(check_off(o, ds, before, json ? key : NULL, c));
    if (open && !before && !o->precision &&
        ((c->dtype == LS_BF16 && ls_ds_disables(ds, "bf16")) || (c->dtype == LS_F16 && ls_ds_disables(ds, "fp16"))))
        return ls_fail(LS_E_CONFIG, "%s disables %s and has %s \"auto\", which is %s on %s GPU; add --precision fp32%s",
                       json_name(ds), c->precision, ls_ds_precision_open(ds), c->precision,
                       c->dtype == LS_BF16 ? "a" : "this", c->dtype == LS_BF16 ? ", fp16 or fp8" : "");
    note_kept(o, before, d, c);
    note_auto(o, ds, before || json, c);
    if (is_of_run(o, before) && !cuda && (c->dtype == LS_F16 || !strcmp(c->precision, "fp8")))
        return ls_fail(
            LS_E_UNSUPPORTED,
            "the steps of this run were computed in %s, but the CPU supports only fp32 and bf16; resume it on a GPU, or "
            "add --precision fp32 or --precision bf16; %s",
            c->precision, ls_device_no_gpu(d, no_gpu));
    LS_TRY(check_card(o, ds, d, is_of_run(o, before), c));
    LS_TRY(resolve_fp8(o, ds, d, c));
    if (!cuda && json && c->dtype == LS_F16)
        return ls_fail(
            LS_E_UNSUPPORTED,
            "%s enables fp16, but the CPU supports only fp32 and bf16; add --precision fp32 or --precision bf16%s%s",
            json_name(ds), *d->why ? "; --device auto found no GPU: " : ", or --device cuda", d->why);
    if (!cuda && c->dtype == LS_F16)
        return ls_fail(
            LS_E_UNSUPPORTED,
            "--precision fp16: the CPU supports only fp32 and bf16; use --precision fp32 or --precision bf16; %s",
            ls_device_no_gpu(d, no_gpu));
    if (!cuda && c->dtype == LS_BF16 && strcmp(c->compute, "cpu") != 0)
        return ls_fail(LS_E_UNSUPPORTED, "--compute %s: it supports only fp32; use --compute cpu or --precision fp32",
                       c->compute);
    if (!cuda && !strcmp(c->compute, "cpu")) LS_TRY(ls_compute_cpu_check(c->dtype));
    if (!cuda && c->dtype == LS_BF16 && !ls_compute_cpu_bf16().native)
        ls_str_addf(&c->notes, "bf16 is emulated: this CPU has no bf16 instructions, and --precision fp32 is faster\n");
    train_origin from =
        before ? (train_origin){LS_FROM_RUN, "--precision"} : train_from(o, "--precision", json ? key : NULL);
    if (from.source == LS_FROM_DEFAULT && cuda && ds)
        from.detail = left_open ? "the JSON has \"auto\"" : "the JSON enables none of fp16, bf16 and fp8";
    char detail[80];
    if (c->precision_why && from.source == LS_FROM_CLI) {
        snprintf(detail, sizeof detail, "--precision auto: %s", c->precision_why);
        from.detail = detail;
    }
    train_put_text(c, "precision", c->precision, from);
    c->tf32 = o->tf32 && cuda && c->dtype == LS_F32;
    c->stochastic = o->stochastic_rounding && cuda && c->dtype == LS_BF16;
    if (o->tf32 && !c->tf32) LS_TRY(refuse(o, "tf32", "--device cuda --precision fp32", c));
    if (c->tf32 && d->card && d->card->mma < 80) c->tf32 = !train_leaves_out(o, "tf32", "compute capability 8.0", c);
    if (c->tf32) LS_TRY(ls_precision_check_tf32(d));
    if (o->stochastic_rounding && !c->stochastic)
        LS_TRY(refuse(o, "stochastic_rounding", "--device cuda --precision bf16 or fp8", c));
    train_put_bool(c, "tf32", c->tf32, train_from(o, "--tf32", NULL));
    train_put_bool(c, "stochastic_rounding", c->stochastic, train_from(o, "--stochastic_rounding", NULL));
    return LS_OK;
}

/* A value of the fp16 block, or of its defaults. */
static train_origin from_fp16(const ls_ds_config *ds, const char *key)
{
    return ls_ds_get(ds, "fp16") ? (train_origin){LS_FROM_JSON, key} : (train_origin){LS_FROM_DEFAULT, ""};
}

static void resolve_amp_scale(ls_train_config *c)
{
    c->loss_scale = (ls_loss_scale_config){.rule = LS_SCALE_AMP, .initial = 65536, .window = 2000};
    train_put_text(c, "loss_scale_rule", ls_scale_rule_word(LS_SCALE_AMP),
                   train_rule("--run_type baseline: torch's GradScaler"));
    train_put_real(c, "loss_scale", c->loss_scale.initial, train_rule("at the start"));
    train_put_int(c, "loss_scale_window", c->loss_scale.window, train_rule(""));
}

static void resolve_loss_scale(const ls_ds_config *ds, ls_train_config *c)
{
    const double asked = ls_ds_real(ds, "fp16.loss_scale", 0);
    const int64_t stage = ds ? ls_ds_int(ds, "zero_optimization.stage", 0) : 1;
    ls_loss_scale_config *s = &c->loss_scale;
    if (c->dtype == LS_BF16 && ls_ds_checks_overflow(ds)) {
        *s = (ls_loss_scale_config){.rule = LS_SCALE_FIXED, .initial = 1, .min = 1}; /* bad gradients skip a step */
        train_put_bool(c, "check_grad_overflow", true, (train_origin){LS_FROM_JSON, "bf16.check_grad_overflow"});
    }
    if (c->dtype != LS_F16) return;
    if (c->run_type && !strcmp(c->run_type, "baseline") && !c->engine) {
        resolve_amp_scale(c);
        return;
    }
    *s = (ls_loss_scale_config){.rule = stage ? LS_SCALE_ZERO : LS_SCALE_STAGE0,
                                .initial = ldexp(1, (int)ls_ds_int(ds, "fp16.initial_scale_power", 16)),
                                .min = ls_ds_real(ds, "fp16.min_loss_scale", 1),
                                .window = ls_ds_int(ds, "fp16.loss_scale_window", 1000),
                                .hysteresis = ls_ds_int(ds, "fp16.hysteresis", 2),
                                .consecutive = ls_ds_bool(ds, "fp16.consecutive_hysteresis", false)};
    if (asked > 0) s->rule = LS_SCALE_FIXED, s->initial = asked;
    const bool fixed = s->rule == LS_SCALE_FIXED;
    train_origin rule = from_fp16(ds, ""), start = from_fp16(ds, "fp16.initial_scale_power, at the start");
    rule.detail = fixed ? "fp16.loss_scale" : s->rule == LS_SCALE_STAGE0 ? "zero_optimization.stage 0" : "";
    if (fixed || start.source == LS_FROM_DEFAULT) start.detail = fixed ? "fp16.loss_scale" : "at the start";
    train_put_text(c, "loss_scale_rule", ls_scale_rule_word(s->rule), rule);
    train_put_real(c, "loss_scale", s->initial, start);
    if (fixed) return;
    train_put_int(c, "loss_scale_window", s->window, from_fp16(ds, "fp16.loss_scale_window"));
    train_put_real(c, "min_loss_scale", s->min, from_fp16(ds, "fp16.min_loss_scale"));
    if (s->rule != LS_SCALE_ZERO) return;
    train_put_int(c, "hysteresis", s->hysteresis, from_fp16(ds, "fp16.hysteresis"));
    train_put_bool(c, "consecutive_hysteresis", s->consecutive, from_fp16(ds, "fp16.consecutive_hysteresis"));
}

/* training_config.precision: the scaling study's three words (docs/REFERENCES.md) where they apply. 16-bit runs with
 * DeepSpeed's loss scale have its word on any number of workers, so that they can be compared. */
static const char *label_of(const ls_train_config *c)
{
    if (c->fp8.on) return "fp8_mixed";
    if (c->dtype == LS_BF16) return "bf16_mixed";
    if (c->dtype == LS_F16) return c->loss_scale.rule == LS_SCALE_AMP ? "fp16_torch_amp" : "fp16_deepspeed";
    return c->tf32 ? "tf32" : "fp32";
}

static ls_status resolve_comm(ls_train_options *o, const ls_device_choice *d, ls_train_config *c)
{
    const bool nccl = !strcmp(o->comm, "nccl"), alone = c->world_size == 1;
    const bool left = (nccl && !d->cuda && train_leaves_out(o, "comm", "GPUs", c)) ||
                      (strcmp(o->comm, "auto") && alone && train_leaves_out(o, "comm", "several workers", c));
    if (nccl && *d->why && !left)
        return ls_fail(LS_E_UNSUPPORTED, "--comm nccl needs GPUs, but --device auto found none: %s", d->why);
    if (nccl && !d->cuda && !left)
        return ls_fail(LS_E_UNSUPPORTED,
                       "--comm nccl needs GPUs; add --device cuda, or use --comm local (one machine) or --comm mpi");
    if (strcmp(o->comm, "auto") && alone)
        return ls_fail(LS_E_UNSUPPORTED, "--comm %s: a single worker does not communicate; leave it out%s", o->comm,
                       strcmp(o->comm, "mpi") ? "" : ", or start several with mpirun or srun");
    c->comm = o->comm;
    train_put_text(c, "comm", o->comm, train_from(o, "--comm", NULL));
    const bool may = d->cuda && !alone && (!strcmp(o->comm, "auto") || !strcmp(o->comm, "nccl"));
    if (ls_train_given(o, "nccl_proof") && strcmp(o->nccl_proof, "off") && !may &&
        !train_leaves_out(o, "nccl_proof", "NCCL", c))
        return ls_fail(
            LS_E_CONFIG,
            "--nccl_proof %s: this run does not use NCCL (it needs --device cuda, several workers, and --comm nccl or auto); leave it out",
            o->nccl_proof);
    c->nccl_proof = o->nccl_proof;
    return LS_OK;
}

static void put_device(const ls_device_choice *d, ls_train_config *c)
{
    char detail[LS_DEVICE_WORDS];
    const bool said = *d->from != '\0';
    const ls_source source = !said ? LS_FROM_DEFAULT : !strcmp(d->from, "--device") ? LS_FROM_CLI : LS_FROM_ENV;
    if (d->automatic) snprintf(detail, sizeof detail, "%s%sauto: %.300s", d->from, said ? " " : "", d->words);
    else snprintf(detail, sizeof detail, "%s", d->from);
    c->device = d->cuda ? "cuda" : "cpu";
    c->device_index = d->index;
    snprintf(c->device_words, sizeof c->device_words, "%s", d->words);
    train_put_text(c, "device", d->automatic ? c->device : d->asked, (train_origin){source, detail});
}

ls_status train_resolve_device(ls_train_options *o, const ls_ds_config *ds, const ls_train_facts *facts,
                               ls_train_config *c)
{
    ls_device_choice d;
    c->before = facts->before;
    if (facts->device) d = *facts->device;
    else LS_TRY(ls_device_parse(ls_train_given(o, "device") ? "--device" : "", o->device, &d));
    const bool cuda = d.cuda;
    if (cuda && ls_train_given(o, "compute") && !train_leaves_out(o, "compute", "--device cpu", c))
        return ls_fail(LS_E_CONFIG, "--compute %s is only for the CPU, but --device is %s; leave one of them out",
                       o->compute, d.asked);
    put_device(&d, c);
    c->compute = cuda ? "cuda" : o->compute;
    train_put_text(c, "compute", c->compute, cuda ? train_rule("--device") : train_from(o, "--compute", NULL));
    LS_TRY(resolve_precision(o, ds, &d, c));
    LS_TRY(resolve_comm(o, &d, c));
    const char *sums = ls_ds_text(ds, "data_types.grad_accum_dtype", "fp32");
    if (strcasecmp(sums, "fp32"))
        return ls_fail(
            LS_E_UNSUPPORTED,
            "%s: 'data_types.grad_accum_dtype' is %s, but gradients are always accumulated in fp32; use fp32 or remove the key",
            json_name(ds), sums);
    resolve_loss_scale(ds, c);
    c->precision_label = label_of(c);
    return LS_OK;
}
