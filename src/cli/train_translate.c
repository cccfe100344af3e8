/* train_translate.c - `lockstep train --task translate`: BLEU of the checkpoint of each epoch, and the files of R3's scripts.
 *
 *   WORKDIR/config.json, tokenizer.json       of the last checkpoint
 *   WORKDIR/rank<r>_results_epoch<e>.json     data parallel: validation_loss, bleu, training_time, tokens_per_sec, chrf
 *   WORKDIR/rank<r>_gen_epoch<e>.json         the test pairs with their translations
 *   WORKDIR/eval_results_epoch<e>.json, gen_epoch<e>.json     the same of a pipeline
 *
 * All replicas have the same weights, so validation loss, BLEU and translations of an epoch are equal; a replica's tokens/s is its part of
 * the run's. Epochs count from 0. Files that are not older than the run's training_metrics.json are kept: after an interruption only missing
 * epochs are translated, and a run with nothing left to do changes no file. */
#include "cli/translation.h"
#include "cli/commands.h"
#include "core/fs.h"

#include <math.h>
#include <sys/stat.h>

/* Results of one epoch. */
typedef struct epoch {
    double val_loss, time, tokens_per_sec; /* NaN: none */
    double bleu, chrf;
} epoch;

ls_status cli_translate_check(const ls_train_options *o)
{
    char path[PATH_MAX];
    const bool on = !strcmp(o->task, "translate");
    if (!on && ls_train_given(o, "workdir")) return ls_fail(LS_E_ARG, "--workdir needs --task translate; leave it out");
    if (!on) return LS_OK;
    if (!o->data)
        return ls_fail(LS_E_ARG, "--task translate needs --data DIR, made by `lockstep prepare --task translate`");
    LS_TRY(ls_path_in(path, o->data, "train.mask"));
    if (!ls_fs_exists(path))
        return ls_fail(
            LS_E_CONFIG,
            "--task translate: %s has no train.mask; make the folder with `lockstep prepare --task translate`",
            o->data);
    return cli_test_pairs(o->data, path);
}

static double real_at(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static ls_status copy_file(const char *from_dir, const char *to_dir, const char *file)
{
    char *data = NULL;
    size_t n = 0;
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, from_dir, "%s", file));
    LS_TRY(ls_fs_read(path, &data, &n));
    ls_status st = ls_path_in(path, to_dir, "%s", file);
    if (st == LS_OK) st = ls_fs_write(path, data, n);
    ls_free(data);
    return st;
}

/* rank < 0: the file of a pipeline. */
static ls_status results_path(const char *dir, int e, int rank, char path[PATH_MAX])
{
    return rank < 0 ? ls_path_in(path, dir, "eval_results_epoch%d.json", e)
                    : ls_path_in(path, dir, "rank%d_results_epoch%d.json", rank, e);
}

/* One line; without times for a pipeline. */
static ls_status write_results(const char *dir, int e, int rank, const epoch *x)
{
    ls_str s = {0};
    ls_jsonw w;
    char path[PATH_MAX];
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("validation_loss", x->val_loss), LS_KV("bleu", x->bleu));
    if (rank >= 0) ls_jsonw_members(&w, LS_KV("training_time", x->time), LS_KV("tokens_per_sec", x->tokens_per_sec));
    ls_jsonw_put_real(&w, "chrf", x->chrf); /* ours, after the keys of R3 */
    ls_jsonw_close(&w);
    ls_status st = s.failed ? ls_nomem(s.len, "the results") : results_path(dir, e, rank, path);
    if (st == LS_OK) st = ls_fs_write(path, s.data, s.len);
    ls_str_fini(&s);
    return st;
}

static ls_status gen_path(const char *dir, int e, int rank, char path[PATH_MAX])
{
    return rank < 0 ? ls_path_in(path, dir, "gen_epoch%d.json", e)
                    : ls_path_in(path, dir, "rank%d_gen_epoch%d.json", rank, e);
}

static ls_status write_epoch(const char *dir, int e, int dp, bool pipe, const epoch *x, const ls_translation_set *set,
                             const ls_langs *langs)
{
    char path[PATH_MAX];
    for (int r = pipe ? -1 : 0; r < (pipe ? 0 : dp); r++) {
        LS_TRY(write_results(dir, e, r, x));
        LS_TRY(gen_path(dir, e, r, path));
        LS_TRY(cli_write_translations(set, langs, path));
    }
    return LS_OK;
}

static void print_epoch(int e, int dp, bool pipe, const epoch *x)
{
    for (int r = 0; r < (pipe ? 1 : dp); r++) {
        char on[32] = "";
        if (!pipe) snprintf(on, sizeof on, " on Rank %d", r);
        printf("Epoch %d%s: Training Time = %.4f, Tokens_per_sec = %.2f\n", e, on, x->time, x->tokens_per_sec);
        if (!isnan(x->val_loss)) printf("Epoch %d%s: Validation Loss = %.6f\n", e, on, x->val_loss);
        printf("Epoch %d%s: {'bleu': %.4f, 'chrf': %.4f}\n", e, on, x->bleu, x->chrf);
    }
    fflush(stdout);
}

/* Mean and population deviation over the epochs, without the first if there are others. */
static void print_average(const char *what, const double *x, int n)
{
    const int first = n > 1;
    double mean = 0, var = 0;
    for (int i = first; i < n; i++) mean += x[i] / (n - first);
    for (int i = first; i < n; i++) var += (x[i] - mean) * (x[i] - mean) / (n - first);
    printf("%s: average %.4f, standard deviation %.4f over %d epoch%s%s\n", what, mean, sqrt(var), n - first,
           n - first == 1 ? "" : "s", first ? " (without epoch 0)" : "");
}

typedef struct evaluation {
    const ls_train_options *o;
    ls_session_opts open;
    char pairs[PATH_MAX], workdir[PATH_MAX];
    int dp;
    bool pipe;
    struct timespec written; /* training_metrics.json */
} evaluation;

static bool is_current(const evaluation *v, const char *path)
{
    struct stat sb;
    if (stat(path, &sb)) return false;
    return sb.st_mtim.tv_sec > v->written.tv_sec ||
           (sb.st_mtim.tv_sec == v->written.tv_sec && sb.st_mtim.tv_nsec >= v->written.tv_nsec);
}

/* All files of an epoch exist and are of this run. */
static bool is_evaluated(const evaluation *v, int e)
{
    char path[PATH_MAX];
    for (int r = v->pipe ? -1 : 0; r < (v->pipe ? 0 : v->dp); r++) {
        if (results_path(v->workdir, e, r, path) != LS_OK || !is_current(v, path)) return false;
        if (gen_path(v->workdir, e, r, path) != LS_OK || !is_current(v, path)) return false;
    }
    return true;
}

static ls_status copy_if_old(const evaluation *v, const char *from_dir, const char *file)
{
    return is_current(v, ls_path_of(v->workdir, file).text) ? LS_OK : copy_file(from_dir, v->workdir, file);
}

/* Translates the test pairs with the checkpoint of epoch e, counted from 0. */
static ls_status evaluate(evaluation *v, const char *checkpoint, int e, epoch *x)
{
    /* greedy, as R3; a length that was not given may be more than the model has */
    const ls_translate_opts how = {
        .beam = 1, .batch = 32, .max_len = ls_train_given(v->o, "seq_length") ? v->o->seq_length : 0};
    ls_session s = {0};
    ls_langs langs;
    ls_translation_set set = {0};
    ls_session_opts open = v->open;
    open.checkpoint = checkpoint;
    LS_TRY(ls_translate_open(&s, open, &how, &langs));
    ls_status st = ls_translation_set_read(&set, &(const char *){v->pairs}, 1, &langs, 0);
    if (st == LS_OK) st = ls_translate(&s, &how, &set);
    if (st == LS_OK) {
        x->bleu = ls_bleu_of(&set.bleu).score;
        x->chrf = ls_chrf_of(&set.chrf);
        st = write_epoch(v->workdir, e, v->dp, v->pipe, x, &set, &langs);
    }
    if (st == LS_OK) print_epoch(e, v->dp, v->pipe, x);
    ls_translation_set_fini(&set);
    ls_session_close(&s);
    return st;
}

static ls_status evaluate_epochs(evaluation *v, const json_t *epochs)
{
    const int n = (int)json_array_size(epochs);
    double *time = ls_alloc((size_t)n * sizeof *time), *rate = ls_alloc((size_t)n * sizeof *rate);
    ls_status st = time && rate ? LS_OK : ls_nomem((size_t)n * sizeof *time, "the epochs");
    char checkpoint[PATH_MAX], last[PATH_MAX] = "";
    int done = 0, evaluated = 0;
    for (int e = 0; e < n && st == LS_OK; e++) {
        const json_t *row = json_array_get(epochs, (size_t)e);
        epoch x = {.val_loss = real_at(row, "val_loss_avg_global"),
                   .time = real_at(row, "epoch_wall_time_sec"),
                   .tokens_per_sec = real_at(row, "tokens_per_sec_global") / v->dp};
        st = ls_path_in(checkpoint, v->o->checkpoint_path, "epoch-%d", e + 1);
        if (st != LS_OK || !ls_fs_exists(checkpoint)) continue;
        if (!is_evaluated(v, e)) {
            st = evaluate(v, checkpoint, e, &x);
            evaluated++;
        }
        memcpy(last, checkpoint, sizeof last);
        time[done] = x.time;
        rate[done++] = x.tokens_per_sec * v->dp;
    }
    if (st == LS_OK && !done)
        st = ls_fail(LS_E_IO, "%s has no checkpoint of an epoch to translate with", v->o->checkpoint_path);
    if (st == LS_OK) st = copy_if_old(v, last, "config.json");
    if (st == LS_OK) st = copy_if_old(v, last, "tokenizer.json");
    if (st == LS_OK && !evaluated) printf("translations and results exist: %s\n", v->workdir);
    if (st == LS_OK && evaluated) {
        print_average("Training Time", time, done);
        print_average("Tokens_per_sec of all workers", rate, done);
        printf("translations and results: %s\n", v->workdir);
    }
    ls_free(time);
    ls_free(rate);
    return st;
}

/* The layout and the precision as the run had them: options and the DeepSpeed JSON are resolved there. */
static ls_status read_run(evaluation *v, const ls_device_choice *device, json_t **root)
{
    char path[PATH_MAX];
    struct stat sb;
    LS_TRY(ls_path_in(path, v->o->checkpoint_path, "training_metrics.json"));
    LS_TRY(ls_json_load(path, root));
    if (!stat(path, &sb)) v->written = sb.st_mtim;
    const int dp = (int)json_integer_value(ls_json_at(*root, "lockstep.dp")); /* 0: one worker */
    v->dp = dp ? dp : 1;
    v->pipe = json_integer_value(ls_json_at(*root, "lockstep.pp")) > 1;
    return ls_session_where(&v->open, device, json_string_value(ls_json_at(*root, "lockstep.precision")), v->o->compute,
                            v->o->tf32);
}

ls_status cli_translate_epochs(const ls_train_options *o, const ls_device_choice *device)
{
    evaluation v = {.o = o, .open = {.threads = (int)o->threads}};
    json_t *root = NULL;
    if (strcmp(o->task, "translate") != 0) return LS_OK;
    LS_TRY(cli_test_pairs(o->data, v.pairs));
    snprintf(v.workdir, sizeof v.workdir, "%s", o->workdir ? o->workdir : "");
    if (!o->workdir) LS_TRY(ls_path_in(v.workdir, o->checkpoint_path, "workdir"));
    LS_TRY(ls_fs_mkdirs(v.workdir));
    ls_status st = read_run(&v, device, &root);
    if (st == LS_OK) st = evaluate_epochs(&v, json_object_get(root, "epochs"));
    json_decref(root);
    return st;
}
