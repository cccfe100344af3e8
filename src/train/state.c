/* state.c - the trainer's object inside a checkpoint: where the run was, and what its metrics had gathered.
 *
 * Equal runs have equal states, on any layout. What was measured, and what depends on the layout, is an object of its own beside it
 * (timings.json); earlier versions wrote one object.
 *
 * Real numbers are written in the shortest form that reads back the same, so a resumed run reports the sums of an unbroken
 * one. What would change the meaning of the position (data, batch, sequence length, seed) is recorded and compared. */
#include "train/train_impl.h"

#include "core/json.h"
#include "core/mem.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The formatter folds these lists another way each time it sees them. */
/* clang-format off */
#define EPOCH_REALS(X)                                                                                        \
    X(train_loss, train_loss) X(val_loss, val_loss) X(grad_norm_max, grad_norm_max)                           \
    X(grad_norm_last, grad_norm_last) X(loss_sum, loss_sum)
#define EPOCH_INTS(X)                                                                                         \
    X(epoch_idx, epoch_idx) X(tokens, tokens) X(updates_applied, updates_applied)                             \
    X(updates_skipped, updates_skipped) X(sequences_dropped, sequences_dropped)
#define STATE_REALS(X) X(loss_sum) X(norm_max) X(norm_last)
#define STATE_INTS(X) X(step) X(epoch) X(epoch_step) X(tokens) X(n_spike)
/* measured */
#define EPOCH_TIMES(X)                                                                                        \
    X(wall_time, wall_time) X(step_mean, step.mean) X(step_p50, step.p50) X(step_p95, step.p95)               \
    X(dataload_mean, dataload.mean) X(update_mean, update.mean) X(update_p50, update.p50)                     \
    X(update_p95, update.p95)
#define EPOCH_COUNTS(X)                                                                                       \
    X(micro_steps, micro_steps) X(grad_accum, grad_accum) X(n_sample, n_sample) X(n_update, n_update)         \
    X(peak_rss_bytes, peak_rss_bytes) X(cuda_allocated, cuda_bytes) X(cuda_reserved, cuda_bytes)              \
    X(cuda_allocated_global, cuda_bytes_global) X(cuda_reserved_global, cuda_bytes_global)
#define STATE_TIMES(X) X(epoch_time) X(total_time)
/* clang-format on */

static void put_spread(ls_jsonw *w, const char *key, const ls_spread *s)
{
    ls_jsonw_put_open(w, key, '{');
    ls_jsonw_members(w, LS_KV("mean", s->mean), LS_KV("var", s->var), LS_KV("n", s->n));
    ls_jsonw_close(w);
}

/* Runs without a loss scale, and that never had one, write nothing. */
static void put_scale(ls_jsonw *w, const ls_run_state *s)
{
    if (s->scale.cfg.rule == LS_SCALE_NONE && !s->skipped) return;
    ls_jsonw_put_open(w, "loss_scale", '{');
    ls_jsonw_members(w, LS_KV("rule", ls_scale_rule_word(s->scale.cfg.rule)), LS_KV("scale", s->scale.scale),
                     LS_KV("hysteresis", s->scale.hysteresis), LS_KV("boundaries", s->scale.it),
                     LS_KV("last_overflow", s->scale.last), LS_KV("skipped", s->skipped),
                     LS_KV("epoch_skipped", s->epoch_skipped));
    ls_jsonw_close(w);
}

static ls_fp8_state *fp8_of(const ls_trainer *t)
{
    return t->model ? t->model->fp8 : NULL;
}

/* The magnitudes that decide the scales of the next step (model/fp8.h), the newest step first. */
static void put_fp8(ls_jsonw *w, const ls_fp8_state *f)
{
    if (!f || !f->history.used) return;
    ls_jsonw_put_open(w, "fp8_amax_history", '[');
    for (int s = 0; s < f->history.used; s++) {
        ls_jsonw_open(w, '[');
        for (int i = 0; i < f->history.n; i++) ls_jsonw_real(w, f->history.amax[s * f->history.n + i]);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

/* The hash of the training data, exact in every JSON reader. */
static int64_t data_id(const ls_trainer *t)
{
    return (int64_t)(t->train_hash >> 12);
}

void ls_run_state_write(const ls_trainer *t, ls_str *out)
{
    const ls_run_state *s = &t->state;
    const ls_train_config *c = t->cfg;
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
#define X(f) ls_jsonw_put_int(&w, #f, s->f);
    STATE_INTS(X)
#undef X
#define X(f) ls_jsonw_put_real(&w, #f, s->f);
    STATE_REALS(X)
#undef X
    if (s->targets != s->tokens) ls_jsonw_put_int(&w, "targets", s->targets);
    put_spread(&w, "loss_spread", &s->loss_spread);
    put_spread(&w, "norm_spread", &s->norm_spread);
    put_scale(&w, s);
    put_fp8(&w, fp8_of(t));
    ls_jsonw_put_open(&w, "run", '{');
    ls_jsonw_members(&w, LS_KV("seed", (int64_t)c->seed), LS_KV("seq_len", c->seq_len),
                     LS_KV("global_batch", c->global_batch), LS_KV("micro_batch", c->micro_batch),
                     LS_KV("train_tokens", t->train.n_token), LS_KV("total_steps", c->total_steps),
                     LS_KV("precision", c->precision));
    if (c->tf32) ls_jsonw_put_bool(&w, "tf32", true);
    if (c->stochastic) ls_jsonw_put_bool(&w, "stochastic_rounding", true);
    if (ls_tokens_blend_id(&t->train)) ls_jsonw_put_int(&w, "train_blend", ls_tokens_blend_id(&t->train));
    ls_jsonw_put_int(&w, "train_hash", data_id(t));
    if (c->max_train_steps >= 0) {
        ls_jsonw_put_int(&w, "max_train_steps", c->max_train_steps);
        ls_jsonw_put_int(&w, "steps_per_epoch", c->steps_per_epoch);
    }
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "epochs_done", '[');
    for (int64_t i = 0; i < s->epoch; i++) {
        const ls_epoch_metrics *e = &s->done[i];
        ls_jsonw_open(&w, '{');
#define X(key, f) ls_jsonw_put_int(&w, #key, e->f);
        EPOCH_INTS(X)
#undef X
#define X(key, f) ls_jsonw_put_real(&w, #key, e->f);
        EPOCH_REALS(X)
#undef X
        ls_jsonw_put_bool(&w, "has_val", e->has_val);
        ls_jsonw_put_bool(&w, "cut", e->cut);
        if (e->targets != e->tokens) ls_jsonw_put_int(&w, "targets", e->targets);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

void ls_run_timings_write(const ls_trainer *t, ls_str *out)
{
    const ls_run_state *s = &t->state;
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_int(&w, "step", s->step);
#define X(f) ls_jsonw_put_real(&w, #f, s->f);
    STATE_TIMES(X)
#undef X
    ls_jsonw_put_open(&w, "epochs_done", '[');
    for (int64_t i = 0; i < s->epoch; i++) {
        const ls_epoch_metrics *e = &s->done[i];
        ls_jsonw_open(&w, '{');
#define X(key, f) ls_jsonw_put_int(&w, #key, e->f);
        EPOCH_COUNTS(X)
#undef X
#define X(key, f) ls_jsonw_put_real(&w, #key, e->f);
        EPOCH_TIMES(X)
#undef X
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

static int64_t get_int(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : 0;
}

static double get_real(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : 0;
}

static ls_spread get_spread(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return (ls_spread){get_real(v, "mean"), get_real(v, "var"), get_int(v, "n")};
}

/* option: what sets the value, as it is printed before the value of the checkpoint. */
static ls_status compare(const json_t *run, const char *key, const char *option, int64_t now, const char *path)
{
    int64_t then = get_int(run, key);
    if (then == now) return LS_OK;
    return ls_fail(
        LS_E_CONFIG,
        "--resume: %s was written with %s %lld, but this run has %lld; use the same, or start a new run (another --checkpoint_path) with --init_from %s",
        path, option, (long long)then, (long long)now, path);
}

/* Under the same rule the loss scale continues; under another rule it starts at its initial value. A fixed scale is that of the configuration. The
 * number of skipped steps is kept in all cases: the optimizer's t and the learning rate schedule count applied updates. */
static ls_status get_scale(ls_run_state *s, const ls_train_config *c, const json_t *o, const char *path)
{
    const char *rule = json_string_value(json_object_get(o, "rule"));
    s->scale = ls_loss_scale_init(&c->loss_scale);
    s->skipped = get_int(o, "skipped");
    s->epoch_skipped = get_int(o, "epoch_skipped");
    if (s->skipped < 0 || s->skipped > s->step || s->epoch_skipped < 0 || s->epoch_skipped > s->epoch_step)
        return ls_fail(
            LS_E_FORMAT,
            "%s: inconsistent: %lld of %lld updates skipped, %lld of %lld in its epoch; resume from another checkpoint",
            path, (long long)s->skipped, (long long)s->step, (long long)s->epoch_skipped, (long long)s->epoch_step);
    if (!rule || c->loss_scale.rule == LS_SCALE_NONE || strcmp(rule, ls_scale_rule_word(c->loss_scale.rule)))
        return LS_OK;
    ls_loss_scale then = s->scale;
    if (c->loss_scale.rule != LS_SCALE_FIXED) {
        then.scale = get_real(o, "scale");
        then.hysteresis = get_int(o, "hysteresis");
    }
    then.it = get_int(o, "boundaries");
    then.last = get_int(o, "last_overflow");
    if (!(then.scale > 0) || then.it < 0 || then.last < -1 || then.last >= then.it || then.hysteresis < 0)
        return ls_fail(
            LS_E_FORMAT,
            "%s: inconsistent: a loss scale of %g after %lld boundaries, the last overflow at %lld; resume from another checkpoint",
            path, then.scale, (long long)then.it, (long long)then.last);
    if (then.hysteresis > c->loss_scale.hysteresis) then.hysteresis = c->loss_scale.hysteresis;
    s->scale = then;
    return LS_OK;
}

/* Without a history, as of a checkpoint of another precision, the next step records one. Of a longer one the newest steps are taken, which may
 * have only 0 of an operand. */
static ls_status get_fp8(ls_fp8_state *f, const json_t *steps, const char *path)
{
    if (!f) return LS_OK;
    ls_fp8_history *h = &f->history;
    h->used = 0;
    if (steps && !json_is_array(steps))
        return ls_fail(LS_E_FORMAT,
                       "%s: fp8_amax_history of the trainer's state is not a list; resume from another checkpoint",
                       path);
    for (size_t s = 0; s < json_array_size(steps) && h->used < h->length; s++, h->used++) {
        const json_t *step = json_array_get(steps, s);
        for (int i = 0; i < h->n; i++) {
            const json_t *v = json_array_get(step, (size_t)i);
            const float amax = (float)json_number_value(v);
            if (!json_is_number(v) || json_array_size(step) != (size_t)h->n || !(amax >= 0) || !isfinite(amax))
                return ls_fail(LS_E_FORMAT,
                               "%s: fp8_amax_history of the trainer's state: step %zu must have %d numbers from 0 to "
                               "%.2g; resume from another checkpoint",
                               path, s, h->n, (double)FLT_MAX);
            h->amax[h->used * h->n + i] = amax;
        }
    }
    (void)ls_fp8_settle(h);
    return LS_OK;
}

static void get_epoch_timings(const json_t *o, ls_epoch_metrics *e)
{
#define X(key, f) e->f = get_int(o, #key);
    EPOCH_COUNTS(X)
#undef X
#define X(key, f) e->f = get_real(o, #key);
    EPOCH_TIMES(X)
#undef X
}

static void get_timings(const json_t *o, ls_run_state *s)
{
#define X(f) s->f = get_real(o, #f);
    STATE_TIMES(X)
#undef X
}

/* From timings.json; those of an earlier version have been read. Without them a run goes on: they are only reported. */
static void add_timings(ls_trainer *t, const json_t *state, const char *timings, const char *path)
{
    ls_run_state *s = &t->state;
    json_t *o = NULL;
    if (json_object_get(state, "total_time")) return;
    if (!timings || ls_json_parse(timings, strlen(timings), path, &o) != LS_OK || get_int(o, "step") != s->step) {
        ls_err_clear();
        train_tell(t, "%.400s has no timings.json of its step: the times of this run begin at 0\n", path);
    } else {
        const json_t *done = json_object_get(o, "epochs_done");
        get_timings(o, s);
        for (int64_t i = 0; i < s->epoch; i++) get_epoch_timings(json_array_get(done, (size_t)i), &s->done[i]);
    }
    json_decref(o);
}

static void get_epoch(const json_t *o, const ls_train_config *c, ls_epoch_metrics *e)
{
#define X(key, f) e->f = get_int(o, #key);
    EPOCH_INTS(X)
#undef X
#define X(key, f) e->f = get_real(o, #key);
    EPOCH_REALS(X)
#undef X
    get_epoch_timings(o, e);
    e->has_val = json_is_true(json_object_get(o, "has_val"));
    e->cut = json_is_true(json_object_get(o, "cut"));
    e->targets = json_object_get(o, "targets") ? get_int(o, "targets") : e->tokens; /* written where they differ */
    if (json_object_get(o, "cut")) return;
    /* written by version 0.1.0 */
    e->cut = e->updates_applied + e->updates_skipped < c->steps_per_epoch;
    e->loss_sum = e->train_loss * (double)e->tokens;
}

/* The last epoch ended early, at the step limit of its run: with a later limit it continues. */
static void reopen_epoch(ls_run_state *s, const ls_train_config *c)
{
    if (!s->epoch || s->epoch_step || s->step >= c->total_steps) return;
    const ls_epoch_metrics *e = &s->done[s->epoch - 1];
    const int64_t steps = e->updates_applied + e->updates_skipped;
    if (!e->cut || steps >= c->steps_per_epoch) return;
    s->epoch--;
    s->epoch_step = steps;
    s->epoch_skipped = e->updates_skipped;
    s->tokens = e->tokens;
    s->targets = e->targets;
    s->loss_sum = e->loss_sum;
    s->epoch_time = e->wall_time;
    s->norm_max = e->grad_norm_max;
}

/* A schedule that depends on the length of the run is another one when the length changes. */
static void note_length(const ls_trainer *t, int64_t then, const char *path)
{
    const ls_train_config *c = t->cfg;
    const bool over = t->state.step >= c->total_steps || t->state.epoch >= c->epochs; /* no step is left */
    if (!then || then == c->total_steps || !c->lr_by_length || over) return;
    train_tell(
        t,
        "%.400s was written by a run of %lld steps: from step %lld on, learning rates are those of a %s schedule over %lld steps "
        "(--lr_schedule constant does not depend on the length of a run)\n",
        path, (long long)then, (long long)t->state.step + 1, ls_lr_word(c->lr.kind), (long long)c->total_steps);
}

enum { COMPUTED_WORDS = 160 };

static void computed_words(const ls_run_computed *b, char buf[COMPUTED_WORDS])
{
    char fp8[96] = "";
    if (b->fp8_format)
        snprintf(fp8, sizeof fp8, " (fp8_format %s, fp8_amax_history_len %d, fp8_margin %d)", b->fp8_format,
                 b->fp8_history, b->fp8_margin);
    snprintf(buf, COMPUTED_WORDS, "%s%s%s%s", b->tf32 ? "tf32" : b->precision, fp8,
             b->stochastic ? " with stochastic rounding" : "",
             !b->device                  ? ""
             : strcmp(b->device, "cuda") ? " on the CPU"
                                         : " on the GPU");
}

static ls_run_computed computed_now(const ls_train_config *c)
{
    return (ls_run_computed){.precision = c->precision,
                             .device = c->device,
                             .fp8_format = c->fp8.on ? ls_fp8_format_word(&c->fp8) : NULL,
                             .fp8_history = c->fp8.history,
                             .fp8_margin = c->fp8.margin,
                             .tf32 = c->tf32,
                             .stochastic = c->stochastic};
}

/* What the state says of its last step. Earlier versions did not record it, but what only fp8 or fp16 has tells it, too. */
static ls_run_computed computed_of_state(const json_t *state)
{
    const json_t *run = json_object_get(state, "run");
    const char *word = json_string_value(json_object_get(run, "precision"));
    const char *rule = json_string_value(json_object_get(json_object_get(state, "loss_scale"), "rule"));
    ls_run_computed out = {.tf32 = json_is_true(json_object_get(run, "tf32")),
                           .stochastic = json_is_true(json_object_get(run, "stochastic_rounding"))};
    if (!word && json_object_get(state, "fp8_amax_history")) word = "fp8";
    for (int i = LS_SCALE_FIXED + 1; !word && rule && i <= LS_SCALE_AMP; i++) /* a fixed one may also be of bf16 */
        if (!strcmp(rule, ls_scale_rule_word((ls_scale_rule)i))) word = "fp16";
    out.precision = ls_precision_named(word);
    return out;
}

/* options.json, which tells the precision of the steps, was deleted. One that nobody names must be that of the state. The checkpoint is whole:
 * what is wrong is the command (LS_E_CONFIG), which a supervisor does not repeat. */
static ls_status check_computed(const ls_trainer *t, const ls_run_computed *then, const char *path)
{
    const ls_train_config *c = t->cfg;
    if (c->before.precision || !c->precision_open || t->state.step >= c->total_steps) return LS_OK;
    if (!then->precision && *c->before.lost)
        train_tell(t, "%s; the precision of the steps of this run is not known: it continues in %s\n", c->before.lost,
                   c->precision);
    if (!then->precision || !strcmp(then->precision, c->precision)) return LS_OK;
    const bool fp8 = !strcmp(then->precision, "fp8"), gpu = fp8 || !strcmp(then->precision, "fp16");
    return ls_fail(LS_E_CONFIG,
                   "%s: its steps were computed in %s, but without the options.json of the run this machine and these "
                   "options choose %s; add --precision %s to continue in it%s%s, or --precision %s to change it",
                   path, then->precision, c->precision, then->precision, gpu ? " (on a GPU" : "",
                   fp8   ? ", with --fp8_format, --fp8_amax_history_len and --fp8_margin as before)"
                   : gpu ? ")"
                         : "",
                   c->precision);
}

/* The same precision by other kernels may have other last bits. */
static void note_kernels(const ls_trainer *t)
{
    char now[LS_COMPUTE_WORDS];
    const char *then = t->cfg->before.kernels;
    if (*then && !ls_compute_same_bits(then, ls_compute_family(&t->compute, now)))
        train_tell(t, "steps up to %lld were computed by other kernels: \"%s\", from here on \"%s\"\n",
                   (long long)t->state.step, then, now);
}

/* Where a run continues in another precision, on another device, with other settings of fp8 or other kernels, than its steps were computed. */
static void note_computed(const ls_trainer *t, ls_run_computed b)
{
    const ls_train_config *c = t->cfg;
    ls_run_computed d = computed_now(c);
    if (!b.precision || t->state.step >= c->total_steps) return;
    char was[COMPUTED_WORDS], now[COMPUTED_WORDS];
    if (!b.fp8_format || !d.fp8_format) b.fp8_format = d.fp8_format = NULL;
    if (!b.device) d.device = NULL; /* not known */
    computed_words(&b, was);
    computed_words(&d, now);
    if (!strcmp(was, now)) note_kernels(t);
    else
        train_tell(t, "steps up to %lld were computed in %s, from here on in %s\n", (long long)t->state.step, was, now);
}

/* Room for the epochs of a longer run, whose limit is now lower. */
static ls_status grow_done(ls_run_state *s)
{
    const size_t nbytes = (size_t)(s->epoch + 1) * sizeof *s->done;
    ls_epoch_metrics *more = ls_alloc(nbytes);
    if (!more) return ls_nomem(nbytes, "the metrics of epochs");
    ls_free(s->done);
    s->done = more;
    return LS_OK;
}

/* A state whose position is unknown would restart the data at its begin. */
static ls_status check_keys(const json_t *o, int64_t step, const char *path)
{
    static const char *const key[] = {"step", "epoch", "epoch_step", "tokens", "loss_sum"};
    const json_t *run = json_object_get(o, "run"), *mine = json_object_get(o, "step");
    const size_t n = json_object_get(run, "train_hash") ? sizeof key / sizeof *key : 1; /* 1: version 0.1.0 */
    for (size_t i = 0; i < n; i++)
        if (!json_is_number(json_object_get(o, key[i])))
            return ls_fail(LS_E_FORMAT, "%s: the trainer's state has no %s; resume from another checkpoint", path,
                           key[i]);
    if (step < 0 || json_integer_value(mine) == step) return LS_OK;
    return ls_fail(LS_E_FORMAT, "%s: inconsistent: the checkpoint is of step %lld, the trainer's state of step %lld",
                   path, (long long)step, (long long)json_integer_value(mine));
}

/* --max_train_steps counts micro-batches of one worker: the same number with other workers would change the length of epochs. */
static ls_status check_epochs(const json_t *run, const ls_train_config *c, const char *path)
{
    const json_t *limit = json_object_get(run, "max_train_steps"), *steps = json_object_get(run, "steps_per_epoch");
    if (!json_is_integer(limit) || !json_is_integer(steps) || json_integer_value(limit) != c->max_train_steps ||
        json_integer_value(steps) == c->steps_per_epoch)
        return LS_OK;
    return ls_fail(
        LS_E_CONFIG,
        "--resume: %s: --max_train_steps %lld counts micro-batches of one worker; with the workers of this run an epoch would have "
        "%lld steps instead of %lld; use --max_train_steps %lld",
        path, (long long)c->max_train_steps, (long long)c->steps_per_epoch, (long long)json_integer_value(steps),
        (long long)(json_integer_value(steps) * c->grad_accum));
}

ls_status ls_run_state_read(ls_trainer *t, const char *json, const char *timings, int64_t step, const char *path)
{
    const ls_train_config *c = t->cfg;
    ls_run_state *s = &t->state;
    json_t *o = NULL;
    LS_TRY(ls_json_parse(json, strlen(json), path, &o));
    const json_t *run = json_object_get(o, "run"), *done = json_object_get(o, "epochs_done");
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, out, check_keys(o, step, path));
    LS_TRY_GOTO(st, out, compare(run, "seed", "--seed", (int64_t)c->seed, path));
    LS_TRY_GOTO(st, out, compare(run, "seq_len", "--seq_length", c->seq_len, path));
    LS_TRY_GOTO(st, out, compare(run, "global_batch", "--global_batch_size", c->global_batch, path));
    LS_TRY_GOTO(st, out, compare(run, "micro_batch", "--micro_batch_size_per_gpu", c->micro_batch, path));
    LS_TRY_GOTO(st, out,
                compare(run, "train_tokens", "training data whose number of tokens is", t->train.n_token, path));
    LS_TRY_GOTO(st, out,
                compare(run, "train_blend", "a blend of training data with the identifier",
                        ls_tokens_blend_id(&t->train), path));
    if (json_object_get(run, "train_hash")) /* checkpoints of version 0.1.0 have none */
        LS_TRY_GOTO(st, out, compare(run, "train_hash", "training data whose hash is", data_id(t), path));
    LS_TRY_GOTO(st, out, check_epochs(run, c, path));
#define X(f) s->f = get_int(o, #f);
    STATE_INTS(X)
#undef X
#define X(f) s->f = get_real(o, #f);
    STATE_REALS(X)
#undef X
    get_timings(o, s);
    s->targets = json_object_get(o, "targets") ? get_int(o, "targets") : s->tokens; /* written where they differ */
    s->loss_spread = get_spread(o, "loss_spread");
    s->norm_spread = get_spread(o, "norm_spread");
    if (s->step < 0 || s->epoch < 0 || s->epoch_step < 0 || s->epoch_step > c->steps_per_epoch ||
        s->epoch != (int64_t)json_array_size(done)) {
        st = ls_fail(LS_E_FORMAT, "%s: the trainer's state contradicts itself (step %lld, epoch %lld, step %lld of it)",
                     path, (long long)s->step, (long long)s->epoch, (long long)s->epoch_step);
        goto out;
    }
    if (s->epoch > c->epochs && c->epochs_auto) {
        LS_TRY_GOTO(st, out, grow_done(s));
    } else if (s->epoch > c->epochs) {
        st = ls_fail(LS_E_CONFIG,
                     "--resume: %s has %lld finished epochs, but this run has %lld; use --epochs %lld or more", path,
                     (long long)s->epoch, (long long)c->epochs, (long long)s->epoch);
        goto out;
    }
    LS_TRY_GOTO(st, out, get_scale(s, c, json_object_get(o, "loss_scale"), path));
    LS_TRY_GOTO(st, out, get_fp8(fp8_of(t), json_object_get(o, "fp8_amax_history"), path));
    if (fp8_of(t) && s->step > 0 && !fp8_of(t)->history.used)
        train_tell(
            t,
            "%s has no magnitudes for fp8, or only 0 of an operand: the next step is computed in bf16 and records them\n",
            path);
    for (int64_t i = 0; i < s->epoch; i++) get_epoch(json_array_get(done, (size_t)i), c, &s->done[i]);
    add_timings(t, o, timings, path);
    reopen_epoch(s, c);
    note_length(t, get_int(run, "total_steps"), path);
    const ls_run_computed of = computed_of_state(o);
    const bool known = c->before.precision && (!of.precision || !strcmp(of.precision, c->before.precision));
    const ls_run_computed then = known ? c->before : of; /* an attempt that wrote options.json may have saved nothing */
    LS_TRY_GOTO(st, out, check_computed(t, &then, path));
    note_computed(t, then);
out:
    json_decref(o);
    return st;
}
