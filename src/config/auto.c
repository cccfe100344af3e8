#include "config/auto.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RATIO     0.5  /* tokens that a run must see, per parameter         */
#define DATA      8.0  /* parameters at most, per token of the text         */
#define SHARE     0.85 /* of the time for steps; the rest for validation, checkpoints and the sample */
#define GPU_BATCH 4    /* times the batch of the ladder, on a GPU           */
#define STEPS     20   /* at least                                          */
#define EVALS     10   /* validations during the run                        */
#define AGREE     1.2  /* times, at most, between two measurements that agree */
#define WRONG     1.5  /* times, at least, between a trial that was wrong and the run */
#define CHECK     9    /* steps that are compared, if they take a second          */
#define SHORT     16   /* tokens per sequence, at least                     */
#define REREAD    4    /* passes over the text from which on there is dropout */

/* clang-format off */
static const struct {
    int layers, heads, width, length, micro, batch;
    double lr;
    int64_t steps; /* from so many on, if the user gave the steps */
} ladder[LS_AUTO_SIZES] = {
    {2,  2,  64,   64,   4, 8,   4e-3,   0},
    {3,  4,  128,  128,  4, 8,   4e-3,   100},
    {4,  6,  192,  128,  4, 8,   3e-3,   200},
    {6,  8,  256,  256,  4, 8,   2e-3,   2000},
    {6,  6,  384,  256,  8, 16,  1.5e-3, 5000},
    {8,  8,  512,  512,  8, 32,  1e-3,   10000},
    {12, 12, 768,  1024, 8, 64,  6e-4,   20000},
    {24, 16, 1024, 1024, 8, 128, 4e-4,   100000},
};
/* clang-format on */

static double matrix_parameters(double layers, double width, double vocab)
{
    return 12 * layers * width * width + vocab * width;
}

static double parameters(const ls_auto_facts *f, int size)
{
    return matrix_parameters(ladder[size].layers, ladder[size].width, f->vocab);
}

double ls_auto_flops_per_token(const ls_auto_facts *f, int size)
{
    return 6 * parameters(f, size) + 12.0 * ladder[size].layers * ladder[size].width * ladder[size].length;
}

/* Whether the steps that the user gave, or the time, are enough for this size. */
static bool is_trainable(const ls_auto_facts *f, int size, double flops)
{
    const double text = (double)f->train_tokens, most = (double)(f->epochs ? f->epochs : LS_AUTO_EPOCHS) * text,
                 in_time = SHARE * f->seconds * flops / ls_auto_flops_per_token(f, size);
    if (f->steps) return f->steps >= ladder[size].steps;
    return (f->epochs ? most : fmin(most, in_time)) >= RATIO * parameters(f, size);
}

int ls_auto_size(const ls_auto_facts *f, double flops)
{
    int size = LS_AUTO_SIZES - 1;
    while (size && !(parameters(f, size) <= DATA * (double)f->train_tokens && is_trainable(f, size, flops))) size--;
    return size;
}

int ls_auto_size_given(const ls_train_options *o)
{
    int size = LS_AUTO_SIZES - 1;
    if (!ls_train_given(o, "embedding_size")) return -1;
    while (size && ladder[size].width > o->embedding_size) size--;
    return size;
}

int64_t ls_auto_steps(double seconds, double step_seconds)
{
    double steps = SHARE * seconds / step_seconds;
    if (steps > 200) steps = floor(steps / 10) * 10;
    return steps < STEPS ? STEPS : (int64_t)fmin(steps, 1e15);
}

bool ls_auto_settled(const double *measured, int n, double *step_seconds)
{
    double sorted[LS_AUTO_TRIALS];
    for (int i = 0; i + 1 < n; i++) {
        *step_seconds = fmax(measured[i], measured[n - 1]);
        if (*step_seconds <= AGREE * fmin(measured[i], measured[n - 1])) return true;
    }
    for (int i = 0; i < n; i++) { /* by insertion */
        int k = i;
        for (; k > 0 && sorted[k - 1] > measured[i]; k--) sorted[k] = sorted[k - 1];
        sorted[k] = measured[i];
    }
    *step_seconds = sorted[n / 2];
    return n == LS_AUTO_TRIALS;
}

ls_auto_check ls_auto_check_of(const ls_auto_facts *f, const ls_auto_choice *c, double step_seconds, double end)
{
    ls_auto_check k = {.steps = c->steps, .most = c->most, .expected = step_seconds, .end = end};
    if (f->steps || f->epochs || !(step_seconds > 0)) return k;
    /* slow steps: fewer, as they are lost */
    const double few = fmax(2, fmin(CHECK, (double)c->steps / 20)), n = fmax(few, ceil(1 / step_seconds));
    if (1 + n <= (double)c->steps / 5) k.step = 1 + (int64_t)n;
    return k;
}

void ls_auto_watch(ls_auto_check *k, int64_t step, double seconds, double now)
{
    const int64_t n = k->step - 1, n_first = n / 2;
    if (step < 2 || step > k->step) return; /* the first step fills caches */
    k->half[step - 2 >= n_first] += seconds;
    if (step < k->step) return;
    const double a = k->half[0] / (double)n_first, b = k->half[1] / (double)(n - n_first),
                 mean = (k->half[0] + k->half[1]) / (double)n;
    const bool wrong = fmin(a, b) > WRONG * k->expected || WRONG * fmax(a, b) < k->expected;
    const int64_t steps = ls_auto_steps(k->end - now, mean);
    if (wrong && (steps < k->most ? steps : k->most) != k->steps) k->measured = mean;
}

/* ---- the choice ---- */

static void put(ls_auto_choice *c, const ls_train_options *o, const char *name, double value, const char *why, ...)
    __attribute__((format(printf, 5, 6)));

static void put(ls_auto_choice *c, const ls_train_options *o, const char *name, double value, const char *why, ...)
{
    va_list ap;
    LS_ASSERT(c->n < (int)(sizeof c->row / sizeof c->row[0]));
    ls_auto_row *r = &c->row[c->n++];
    *r = (ls_auto_row){.name = name, .given = ls_train_given(o, name)};
    snprintf(r->value, sizeof r->value, "%.10g", value);
    va_start(ap, why);
    vsnprintf(r->why, sizeof r->why, why, ap);
    va_end(ap);
}

static int64_t given_or(const ls_train_options *o, const char *name, int64_t typed, int64_t otherwise)
{
    return ls_train_given(o, name) ? typed : otherwise;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The largest divisor of n that is at most `most`. */
static int64_t divisor(int64_t n, int64_t most)
{
    int64_t d = most < n ? most : n;
    while (d > 1 && n % d) d--;
    return d < 1 ? 1 : d;
}

/* Heads divide the width: the ladder's number of heads if it does, else heads of about 64 columns. */
static void choose_shape(const ls_train_options *o, int size, ls_auto_choice *c)
{
    const int64_t heads = ladder[size].heads;
    c->layers = given_or(o, "num_layers", o->num_layers, ladder[size].layers);
    c->width = given_or(o, "embedding_size", o->embedding_size, ladder[size].width);
    c->heads = given_or(o, "num_heads", o->num_heads, heads);
    if (!ls_train_given(o, "num_heads") && c->width > 0 && c->width % heads)
        c->heads = divisor(c->width, c->width / 64 + 1);
    if (!ls_train_given(o, "embedding_size") && c->heads > 0)
        c->width = (c->width + c->heads - 1) / c->heads * c->heads;
}

/* Short texts get short sequences: there must be enough of them for the steps of an epoch and for a validation batch. */
static void choose_length(const ls_auto_facts *f, const ls_train_options *o, int size, ls_auto_choice *c)
{
    int64_t S = ladder[size].length;
    if (ls_train_given(o, "max_position_embeddings")) S = least(S, o->max_position_embeddings);
    while (S / 2 >= SHORT && (f->train_tokens / S < 16 * ladder[size].batch ||
                              (f->val_tokens && f->val_tokens / S < 2 * ladder[size].micro)))
        S /= 2;
    c->length = given_or(o, "seq_length", o->seq_length, S);
    if (c->length < 1) c->length = 1; /* refused later */
}

/* Sequences of a step and of a micro-batch: a multiple of replicas and stages, no more than the text has. */
static void choose_batch(const ls_auto_facts *f, const ls_train_options *o, int size, ls_auto_choice *c)
{
    const bool b_given = ls_train_given(o, "micro_batch_size_per_gpu"),
               b_default = ls_train_given(o, "train_micro_batch_size_per_gpu");
    const int64_t each = (int64_t)f->dp * f->pp, seqs = f->train_tokens / c->length;
    int64_t micro = ladder[size].micro * (f->cuda ? GPU_BATCH : 1),
            batch = ladder[size].batch * (f->cuda ? GPU_BATCH : 1);
    while (batch > 1 && seqs < 8 * batch) batch /= 2;
    if (f->val_tokens) micro = least(micro, f->val_tokens / c->length);
    if (ls_train_given(o, "global_batch_size")) batch = o->global_batch_size;
    micro = divisor(batch / each > 0 ? batch / each : 1, micro > 0 ? micro : 1);
    if (b_given) micro = o->micro_batch_size_per_gpu;
    else if (b_default) micro = o->train_micro_batch_size_per_gpu;
    if (micro < 1) micro = 1; /* refused later */
    if (!ls_train_given(o, "global_batch_size")) batch = (batch + micro * each - 1) / (micro * each) * (micro * each);
    if (ls_train_given(o, "grad_accum_steps"))
        batch = micro * f->dp * (o->grad_accum_steps > 0 ? o->grad_accum_steps : 1);
    c->micro = micro;
    c->batch = batch > 0 ? batch : 1;
}

/* Sets c->steps; returns whether the text, not the time, limits them. */
static bool choose_steps(const ls_auto_facts *f, double step_seconds, ls_auto_choice *c)
{
    const int64_t seqs = f->train_tokens / c->length, epoch = seqs > c->batch ? seqs / c->batch : 1;
    const int64_t in_text = c->most = LS_AUTO_EPOCHS * epoch;
    c->steps = f->steps ? f->steps : f->epochs * epoch;
    if (c->steps) return false;
    const int64_t in_time = ls_auto_steps(f->seconds, step_seconds);
    c->steps = least(in_text, in_time);
    return in_text <= in_time;
}

/* What depends on the number of steps. */
static void put_times(const ls_auto_facts *f, const ls_train_options *o, double step_seconds, bool by_text,
                      ls_auto_choice *c)
{
    const double passes = (double)c->steps * (double)(c->batch * c->length) / (double)f->train_tokens;
    const bool given = f->steps || f->epochs;
    char time[32] = "";
    ls_human_time(time, (double)c->steps * step_seconds / SHARE);
    if (!given && by_text)
        put(c, o, "max_steps", (double)c->steps, "%d passes over the text, then it would be learned by heart; about %s",
            LS_AUTO_EPOCHS, time);
    else if (!given) put(c, o, "max_steps", (double)c->steps, "about %s, %.1f passes over the text", time, passes);
    if (!ls_train_given(o, "lr_scheduler_type"))
        put(c, o, "warmup_steps", (double)(c->steps / 20 > 0 ? c->steps / 20 : 1), "5 %% of the steps");
    if (passes < REREAD) put(c, o, "dropout", 0, "the text is read less than %d times", REREAD);
    else put(c, o, "dropout", passes < 3.0 * REREAD ? 0.1 : 0.2, "the text is read %.1f times", passes);
    if (f->val_tokens) {
        const double batch = (double)(c->micro * f->dp * c->length), all = (double)f->val_tokens / batch,
                     cheap = fmax(4, (double)c->steps * (double)(c->batch * c->length) / (4 * EVALS) / batch);
        put(c, o, "eval_every", (double)(c->steps / EVALS > 0 ? c->steps / EVALS : 1), "%lld validations",
            (long long)least(c->steps, EVALS));
        if (all > cheap) put(c, o, "max_val_steps", floor(cheap), "batches, so that validation takes little time");
    }
    /* rounded up: the fourth is the one at the end of the run, not some steps before it */
    const int64_t quarter = (c->steps + 3) / 4;
    put(c, o, "save_every", (double)quarter, "a checkpoint every quarter of the run");
    if (!ls_train_given(o, "save_every") || o->save_every)
        put(c, o, "keep_last", 1, "checkpoint of a step is kept, the newest");
}

void ls_auto_choose(const ls_auto_facts *f, const ls_train_options *o, int size, double step_seconds,
                    ls_auto_choice *out)
{
    ls_auto_choice c = {0};
    choose_shape(o, size, &c);
    choose_length(f, o, size, &c);
    choose_batch(f, o, size, &c);
    c.parameters = matrix_parameters((double)c.layers, (double)c.width, f->vocab);
    put(&c, o, "num_layers", (double)c.layers, "%.1f M parameters: as many as %s can train", c.parameters / 1e6,
        f->steps || f->epochs ? "text and steps" : "text and time");
    put(&c, o, "num_heads", (double)c.heads, "%s", "");
    put(&c, o, "embedding_size", (double)c.width, "of %lld heads", (long long)c.heads);
    put(&c, o, "vocab_size", f->vocab, "the tokenizer of the data");
    put(&c, o, "seq_length", (double)c.length, "tokens");
    put(&c, o, "max_position_embeddings", (double)c.length, "%s", "");
    if (!ls_train_given(o, "train_micro_batch_size_per_gpu"))
        put(&c, o, "micro_batch_size_per_gpu", (double)c.micro, "%s", "");
    if (!ls_train_given(o, "grad_accum_steps"))
        put(&c, o, "global_batch_size", (double)c.batch, "sequences per step, %lld at a time", (long long)c.micro);
    put(&c, o, "lr", ladder[size].lr, "for this width%s",
        ls_train_given(o, "lr_schedule") || ls_train_given(o, "lr_scheduler_type") || ls_train_given(o, "min_lr") ||
                ls_train_given(o, "min_lr_ratio")
            ? ""
            : "; then cosine to a tenth of it");
    if (step_seconds > 0 || f->steps || f->epochs) {
        const bool by_text = choose_steps(f, step_seconds, &c);
        put_times(f, o, step_seconds, by_text, &c);
    }
    *out = c;
}

ls_status ls_auto_words(const ls_auto_choice *c, ls_argv *out)
{
    LS_TRY(ls_argv_add(out, "--model=tiny")); /* its vocabulary is that of the data; the sizes follow */
    for (int i = 0; i < c->n; i++)
        if (!c->row[i].given) LS_TRY(ls_argv_addf(out, "--%s=%s", c->row[i].name, c->row[i].value));
    LS_TRY(ls_argv_add(out, "--eval_on_start"));
    return ls_argv_add(out, "--summary");
}

/* Appends a reason after the `at` columns of its row; on a narrow terminal below them. */
static void add_reason(const char *why, int at, int columns, ls_str *out)
{
    if (columns && columns - at < 24) {
        at = 6;
        ls_str_addf(out, "\n%*s", at, "");
    }
    for (const char *p = why; *p;) {
        const size_t n = columns ? ls_line_of(p, columns - at, NULL) : strlen(p);
        ls_str_addf(out, "%*s%.*s\n", p == why ? 0 : at, "", (int)n, p);
        p += n;
        p += strspn(p, " ");
    }
}

void ls_auto_table(const ls_auto_choice *c, int columns, ls_str *out)
{
    for (int i = 0; i < c->n; i++) {
        const ls_auto_row *r = &c->row[i];
        if (!*r->why || r->given) continue;
        const size_t from = out->len;
        ls_str_addf(out, "  --%-18s %-8s ", r->name, r->value);
        add_reason(r->why, (int)(out->len - from), columns, out);
    }
}

/* Most words of a text are one id of such a vocabulary, so that samples of small models have real words, and a byte of text costs fewer bits. */
int ls_auto_vocab(int64_t text_bytes)
{
    const double v = 3 * sqrt((double)(text_bytes > 0 ? text_bytes : 0));
    return v < 320 ? 320 : v > 32768 ? 32768 : (int)v / 64 * 64;
}
