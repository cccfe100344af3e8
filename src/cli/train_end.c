/* train_end.c - --summary: what a user wants to see when a run is complete. */
#include "cli/train_start.h"
#include "config/run_options.h"
#include "core/fs.h"
#include "core/minmax.h"
#include "core/progress.h"
#include "data/unicode.h"
#include "serve/screen.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

#define COLUMNS 60
#define ROWS    8
#define LABEL   9  /* columns before the curve */
#define SAMPLE  80 /* tokens */

/* ---- the loss curve ---- */

typedef struct curve {
    double *loss; /* of each step                                */
    double *val;  /* validation after the step; NaN: there was none */
    int64_t n, cap;
    int64_t first_step, last_step;
} curve;

static ls_status add_step(curve *c, json_t *line)
{
    const json_t *val = json_object_get(line, "val_loss");
    if (c->n == c->cap) {
        const int64_t cap = c->cap ? 2 * c->cap : 1024;
        double *loss = ls_realloc(c->loss, (size_t)cap * sizeof *loss);
        if (loss) c->loss = loss;
        double *more = ls_realloc(c->val, (size_t)cap * sizeof *more);
        if (more) c->val = more;
        if (!loss || !more) return ls_nomem((size_t)cap * sizeof *loss, "a loss curve");
        c->cap = cap;
    }
    c->loss[c->n] = json_number_value(json_object_get(line, "loss"));
    c->val[c->n++] = json_is_number(val) ? json_number_value(val) : NAN;
    c->last_step = json_integer_value(json_object_get(line, "step"));
    if (c->n == 1) c->first_step = c->last_step;
    return LS_OK;
}

static ls_status read_curve(const char *run_dir, curve *c)
{
    char path[PATH_MAX], *data = NULL;
    size_t n = 0;
    ls_status st = LS_OK;
    LS_TRY(ls_path_in(path, run_dir, "metrics.jsonl"));
    LS_TRY(ls_fs_read(path, &data, &n));
    for (const char *at = data, *end; st == LS_OK && at < data + n; at = end + 1) {
        end = memchr(at, '\n', (size_t)(data + n - at));
        if (!end) break;
        json_t *line = NULL;
        st = ls_json_parse(at, (size_t)(end - at), path, &line);
        if (st == LS_OK) st = add_step(c, line);
        json_decref(line);
    }
    ls_free(data);
    return st;
}

/* The mean of the values of column x that are numbers; NaN: there is none. */
static double column(const double *v, int64_t n, int width, int x)
{
    double sum = 0;
    int64_t k = 0;
    for (int64_t i = n * x / width; i < n * (x + 1) / width; i++)
        if (!isnan(v[i])) sum += v[i], k++;
    return k ? sum / (double)k : NAN;
}

static void draw(const curve *c, ls_str *out)
{
    const int columns = ls_terminal_columns(STDOUT_FILENO), left = columns ? LS_MAX(columns - LABEL - 1, 8) : COLUMNS;
    const ls_screen screen = {.columns = LABEL + 1 + COLUMNS, .blocks = ls_screen_unicode()};
    const int n = (int)LS_MIN(c->n, LS_MIN(left, COLUMNS));
    double loss[COLUMNS], val[COLUMNS];
    for (int x = 0; x < n; x++) {
        loss[x] = column(c->loss, c->n, n, x);
        val[x] = column(c->val, c->n, n, x);
    }
    ls_screen_curve(&screen, loss, val, n, c->first_step, c->last_step, ROWS, out);
}

/* The validation loss of the last epoch, NaN if there is none. */
static double last_validation(const char *run_dir)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    double loss = NAN;
    if (ls_path_in(path, run_dir, "training_metrics.json") == LS_OK && ls_json_load(path, &root) == LS_OK) {
        const json_t *epochs = json_object_get(root, "epochs");
        const json_t *v = json_object_get(json_array_get(epochs, json_array_size(epochs) - 1), "val_loss_avg_global");
        if (json_is_number(v)) loss = json_number_value(v);
    }
    ls_err_clear();
    json_decref(root);
    return loss;
}

/* ---- the sample ---- */

/* Continues an empty text, as documents begin. */
static ls_status write_sample(ls_session *s, ls_str *out)
{
    const ls_sampling how = {.temperature = 0.6, .top_k = 50, .top_p = 1};
    const int eot = ls_tokenizer_eot(s->tokenizer), V = s->model->cfg.vocab_size;
    const int64_t room = s->acts->cache_len, limit = room < SAMPLE ? room : SAMPLE;
    int32_t id[SAMPLE];
    int64_t n = 1, end;
    if (eot < 0 || limit < 2) return LS_OK;
    ls_sample_work *work = ls_alloc((size_t)V * sizeof *work);
    if (!work) return ls_nomem((size_t)V * sizeof *work, "sampling");
    id[0] = eot;
    ls_status st = ls_session_feed(s, id, 1, 0);
    if (st == LS_OK) id[n] = ls_sample(&how, s->logits, V, n, work), n++;
    while (st == LS_OK && n < limit) st = ls_session_extend(s, &how, id, &n, limit, work);
    for (end = 1; end < n && id[end] != eot;) end++;
    if (st == LS_OK) st = ls_tokenizer_decode(s->tokenizer, id + 1, (size_t)(end - 1), out);
    ls_free(work);
    return st;
}

ls_status train_end_session(ls_session_opts *how, const ls_device_choice *d, const char *precision,
                            const ls_train_options *o)
{
    const bool fp32 = ls_precision_dtype(ls_precision_choose(precision, d->cuda)) == LS_F32;
    return ls_session_where(how, d, precision, d->cuda ? "cpu" : o->compute, o->tf32 && d->cuda && fp32, NULL);
}

static ls_status sample(const ls_train_options *o, const ls_device_choice *d, ls_str *out)
{
    ls_session s = {0};
    ls_session_opts how = {.checkpoint = o->checkpoint_path,
                           .threads = (int)o->threads,
                           .B = 1,
                           .T = 1,
                           .cache_len = SAMPLE,
                           .tokenizer = true};
    LS_TRY(train_end_session(&how, d, o->precision, o));
    ls_status st = ls_session_open(&s, &how);
    if (st == LS_OK) st = write_sample(&s, out);
    ls_session_close(&s);
    return st;
}

/* ---- all ---- */

static ls_status next_commands(const ls_train_options *o, int64_t steps, ls_str *out)
{
    const char *const run = o->checkpoint_path;
    ls_argv generate = {0}, more = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, ls_argv_addf(&generate, "%s", program_invocation_name));
    LS_TRY_GOTO(st, done, ls_argv_add(&generate, "generate"));
    LS_TRY_GOTO(st, done, ls_argv_add(&generate, "--checkpoint"));
    LS_TRY_GOTO(st, done, ls_argv_add(&generate, run));
    LS_TRY_GOTO(st, done, ls_argv_add(&generate, "--prompt"));
    LS_TRY_GOTO(st, done, ls_argv_add(&generate, "Once upon a time"));
    LS_TRY_GOTO(st, done, ls_argv_addf(&more, "%s", program_invocation_name));
    LS_TRY_GOTO(st, done, ls_argv_add(&more, "train"));
    LS_TRY_GOTO(st, done, ls_argv_add(&more, "--resume"));
    LS_TRY_GOTO(st, done, ls_argv_add(&more, run));
    LS_TRY_GOTO(st, done, ls_argv_add(&more, "--max_steps"));
    LS_TRY_GOTO(st, done, ls_argv_addf(&more, "%lld", (long long)(2 * steps)));
    ls_str_add(out, "\nnext:\n  ");
    ls_argv_show(&generate, out);
    ls_str_add(out, "\n  ");
    ls_argv_show(&more, out);
    ls_run_options_typed(run, "again", out);
    ls_str_add(out, "\n");
done:
    ls_argv_fini(&generate);
    ls_argv_fini(&more);
    return st;
}

ls_status train_end_summary(const ls_train_options *o, const ls_device_choice *d)
{
    curve c = {0};
    ls_str out = {0};
    ls_status st = read_curve(o->checkpoint_path, &c);
    if (st == LS_OK && c.n) draw(&c, &out);
    const double val = last_validation(o->checkpoint_path);
    if (!isnan(val)) ls_str_addf(&out, "\nvalidation loss %.4f, perplexity %.1f\n", val, exp(val));
    if (st == LS_OK) {
        ls_str raw = {0}, text = {0};
        const ls_status made = sample(o, d, &raw);
        data_utf8_replace(raw.data, data_utf8_whole(raw.data, raw.len), false, &text);
        ls_str_printable(&text);
        ls_str_fini(&raw);
        if (made == LS_OK && text.len) ls_str_addf(&out, "\na sample (temperature 0.6):\n%s\n", text.data);
        else if (*ls_err_words()) fprintf(stderr, "no sample: %s\n", ls_err_words()); /* the run itself is complete */
        ls_err_clear();
        ls_str_fini(&text);
        st = next_commands(o, c.last_step, &out);
    }
    ls_free(c.loss);
    ls_free(c.val);
    if (st == LS_OK) return cli_print(&out);
    ls_str_fini(&out);
    return st;
}
