/* train_end.c - --summary: what a user wants to see when a run is complete. */
#include "cli/train_start.h"
#include "config/run_options.h"
#include "core/fs.h"
#include "core/minmax.h"
#include "core/progress.h"
#include "data/unicode.h"
#include "run/jsonl.h"
#include "run/metrics.h"
#include "serve/screen.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

#define COLUMNS 60
#define ROWS    8
#define LABEL   9  /* columns before the curve */
#define SAMPLE  80 /* tokens */

/* ---- the loss curve ---- */

typedef struct point {
    double loss, val; /* val: validation after the step; NaN: there was none */
} point;

typedef struct curve {
    point *point; /* of each step */
    int n, cap;
    int64_t first_step, last_step;
} curve;

static ls_status read_curve(const char *run_dir, curve *c)
{
    ls_jsonl l;
    ls_metrics_row row;
    ls_status st = LS_OK;
    LS_TRY(ls_jsonl_open(&l, ls_path_of(run_dir, "metrics.jsonl").text, LS_JSONL_ALL));
    while (st == LS_OK && ls_jsonl_next(&l)) {
        if (!ls_metrics_read(l.row, &row)) continue;
        if (!ls_grow(&c->point, c->n, &c->cap, sizeof *c->point)) st = ls_nomem(sizeof *c->point, "a loss curve");
        else c->point[c->n++] = (point){row.x[LS_ROW_LOSS], row.x[LS_ROW_VAL_LOSS]};
        c->last_step = row.step;
        if (c->n == 1) c->first_step = c->last_step;
    }
    ls_jsonl_fini(&l);
    return st;
}

/* The mean losses of column x of `width`, of those that are numbers; NaN: there is none. */
static point column(const curve *c, int width, int x)
{
    point sum = {0, 0};
    int n = 0, n_val = 0;
    for (int64_t i = (int64_t)c->n * x / width; i < (int64_t)c->n * (x + 1) / width; i++) {
        const point *p = &c->point[i];
        if (!isnan(p->loss)) sum.loss += p->loss, n++;
        if (!isnan(p->val)) sum.val += p->val, n_val++;
    }
    return (point){n ? sum.loss / n : NAN, n_val ? sum.val / n_val : NAN};
}

static void draw(const curve *c, ls_str *out)
{
    const int columns = ls_terminal_columns(STDOUT_FILENO), left = columns ? LS_MAX(columns - LABEL - 1, 8) : COLUMNS;
    const ls_screen screen = {.columns = LABEL + 1 + COLUMNS, .blocks = ls_screen_unicode()};
    const int n = LS_MIN(c->n, LS_MIN(left, COLUMNS));
    double loss[COLUMNS], val[COLUMNS];
    for (int x = 0; x < n; x++) {
        const point at = column(c, n, x);
        loss[x] = at.loss, val[x] = at.val;
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
    ls_free(c.point);
    if (st == LS_OK) return cli_print(&out);
    ls_str_fini(&out);
    return st;
}
