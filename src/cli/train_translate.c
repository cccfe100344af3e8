/* train_translate.c - `lockstep train --task translate`: BLEU of the checkpoint of each epoch, and the files of the
 * translation study's scripts.
 *
 *   WORKDIR/config.json, tokenizer.json       of the last checkpoint
 *   WORKDIR/rank<r>_results_epoch<e>.json     data parallel: validation_loss, bleu, training_time, tokens_per_sec, chrf
 *   WORKDIR/rank<r>_gen_epoch<e>.json         the test pairs with their translations
 *   WORKDIR/eval_results_epoch<e>.json, gen_epoch<e>.json     the same of a pipeline
 *
 * All replicas have the same weights, so validation loss, BLEU and translations of an epoch are equal; a replica's tokens/s is its part of
 * the run's. Epochs count from 0. Results of this run (the loss and the time of training_metrics.json) are kept: only missing epochs are
 * translated, and a run with nothing left to do changes no file. Files of another run are moved to WORKDIR/earlier-<k>. */
#include "cli/translation.h"
#include "cli/commands.h"
#include "cli/train_start.h"
#include "core/fs.h"
#include "data/sources.h"

#include <math.h>
#include <sys/stat.h>

/* Results of one epoch. */
typedef struct epoch {
    double val_loss, time, tokens_per_sec; /* NaN: none */
    double bleu, chrf;
} epoch;

/* ---- the data ---- */

static ls_status add_path(char ***list, size_t *n, const char *dir, const char *name)
{
    if (!*list) *list = ls_alloc(LS_MAX_SOURCE * sizeof **list);
    if (!*list || !((*list)[*n] = ls_path_join(dir, name))) return ls_nomem(strlen(dir), "a path");
    ++*n;
    return LS_OK;
}

/* The test.jsonl of the folders that have one; if none has, the val.jsonl; *n is 0 if no folder has either. */
static ls_status find_pairs(const ls_data_sources *from, char ***path, size_t *n)
{
    static const char *const name[] = {"test.jsonl", "val.jsonl"};
    for (size_t k = 0; k < CLI_COUNT(name) && !*n; k++)
        for (size_t i = 0; i < from->n; i++)
            if (ls_fs_exists(ls_path_of(from->item[i].path, name[k]).text))
                LS_TRY(add_path(path, n, from->item[i].path, name[k]));
    return LS_OK;
}

/* The test pairs of --data, which is a folder or a blend of folders. Free with ls_fs_list_free. */
static ls_status test_pairs(const char *data, char ***path, size_t *n)
{
    ls_data_sources from = {0};
    ls_status st = LS_OK;
    if (ls_fs_is_dir(data)) st = ls_sources_add(&from, data, 0);
    else st = ls_fs_exists(data) ? ls_sources_load(data, &from) : ls_sources_parse(data, &from);
    for (size_t i = 0; i < from.n && st == LS_OK; i++)
        if (!ls_fs_exists(ls_path_of(from.item[i].path, "train.mask").text))
            st = ls_fail(LS_E_CONFIG,
                         "--task translate: %s has no train.mask; make the folder with `lockstep prepare --task "
                         "translate`",
                         from.item[i].path);
    if (st == LS_OK) st = find_pairs(&from, path, n);
    ls_sources_fini(&from);
    return st;
}

ls_status cli_translate_check(const ls_train_options *o, bool prints)
{
    char **path = NULL;
    size_t n = 0;
    const bool on = !strcmp(o->task, "translate");
    if (!on && ls_train_given(o, "workdir")) return ls_fail(LS_E_ARG, "--workdir needs --task translate; leave it out");
    if (!on) return LS_OK;
    if (!o->data)
        return ls_fail(LS_E_ARG, "--task translate needs --data DIR, made by `lockstep prepare --task translate`");
    ls_status st = test_pairs(o->data, &path, &n);
    ls_fs_list_free(path, n);
    if (st == LS_OK && !n && ls_train_given(o, "workdir"))
        st = ls_fail(LS_E_CONFIG, "--workdir %s: %s has no pairs to translate (" LS_NO_PAIRS "); leave --workdir out",
                     o->workdir, o->data);
    if (st == LS_OK && !n && prints)
        fprintf(stderr, "BLEU is not computed: %s has no pairs to translate (" LS_NO_PAIRS ")\n", o->data);
    return st;
}

/* ---- the files ---- */

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
    ls_jsonw_put_real(&w, "chrf", x->chrf); /* ours, after the keys of the translation study */
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
        LS_TRY(gen_path(dir, e, r, path));
        LS_TRY(cli_write_translations(set, langs, path));
        LS_TRY(write_results(dir, e, r, x)); /* last: they say that the epoch is complete */
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
    const char *left = first ? " (without epoch 0)" : "";
    if (n - first == 1) printf("%s: average %.4f over 1 epoch%s\n", what, mean, left); /* which has no deviation */
    else printf("%s: average %.4f, standard deviation %.4f over %d epochs%s\n", what, mean, sqrt(var), n - first, left);
}

typedef struct evaluation {
    const ls_train_options *o;
    ls_session_opts open;
    char **pairs; /* files */
    size_t n_pairs;
    char workdir[PATH_MAX];
    int dp;
    bool pipe;
    const json_t *epochs; /* of training_metrics.json */
} evaluation;

static bool same_real(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* Not older than the checkpoint of the epoch. */
static bool is_newer(const evaluation *v, const char *path, int e)
{
    char checkpoint[PATH_MAX];
    struct stat a, b;
    if (ls_path_in(checkpoint, v->o->checkpoint_path, "epoch-%d/config.json", e + 1) != LS_OK) return false;
    if (stat(path, &a) || stat(checkpoint, &b)) return false;
    return a.st_mtim.tv_sec > b.st_mtim.tv_sec ||
           (a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec >= b.st_mtim.tv_nsec);
}

/* The results of an epoch have the loss and the time of this run. Those of a pipeline have no time: without a loss, their age decides. */
static bool is_of_run(const evaluation *v, int e, int rank)
{
    const json_t *row = json_array_get(v->epochs, (size_t)e);
    json_t *results = NULL;
    char path[PATH_MAX];
    if (!row || v->pipe != (rank < 0) || results_path(v->workdir, e, rank, path) != LS_OK || !ls_fs_exists(path))
        return false;
    if (ls_json_load(path, &results) != LS_OK) ls_err_clear(); /* it is written again */
    const double loss = ls_json_real_at(row, "val_loss_avg_global");
    bool yes = results && same_real(ls_json_real_at(results, "validation_loss"), loss);
    if (yes && !v->pipe)
        yes = same_real(ls_json_real_at(results, "training_time"), ls_json_real_at(row, "epoch_wall_time_sec"));
    if (yes && v->pipe && isnan(loss)) yes = is_newer(v, path, e);
    json_decref(results);
    return yes;
}

static bool is_evaluated(const evaluation *v, int e)
{
    char path[PATH_MAX];
    for (int r = v->pipe ? -1 : 0; r < (v->pipe ? 0 : v->dp); r++)
        if (!is_of_run(v, e, r) || gen_path(v->workdir, e, r, path) != LS_OK || !ls_fs_exists(path)) return false;
    return true;
}

/* Whether the name is that of a file of an epoch; rank -1: of a pipeline. */
static bool is_epoch_file(const char *name, int *e, int *rank)
{
    static const char *const of_rank[] = {"rank%d_results_epoch%d.json%n", "rank%d_gen_epoch%d.json%n"};
    static const char *const of_pipe[] = {"eval_results_epoch%d.json%n", "gen_epoch%d.json%n"};
    for (int k = 0; k < 2; k++) {
        int end = 0;
        if (sscanf(name, of_rank[k], rank, e, &end) == 2 && end && !name[end]) return *rank >= 0 && *e >= 0;
        *rank = -1;
        if (sscanf(name, of_pipe[k], e, &end) == 1 && end && !name[end]) return *e >= 0;
    }
    return false;
}

/* Moves the epochs of other runs away, so that all files of the folder are of one run. */
static ls_status set_aside(const evaluation *v)
{
    char **name = NULL, where[PATH_MAX] = "";
    size_t n = 0;
    int e, rank;
    LS_TRY(ls_fs_list(v->workdir, &name, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        if (!is_epoch_file(name[i], &e, &rank) || is_of_run(v, e, rank)) continue;
        if (!*where) st = ls_fs_mkdir_next(v->workdir, "earlier-", where);
        if (st == LS_OK) st = ls_fs_rename(ls_path_of(v->workdir, name[i]).text, ls_path_of(where, name[i]).text);
    }
    if (st == LS_OK && *where) printf("results of another run: moved to %s\n", where);
    ls_fs_list_free(name, n);
    return st;
}

/* ---- translating ---- */

/* Translates the test pairs with the checkpoint of epoch e, counted from 0. */
static ls_status evaluate(evaluation *v, const char *checkpoint, int e, epoch *x)
{
    /* greedy, as the translation study; a length that was not given may be more than the model has */
    const ls_translate_opts how = {
        .beam = 1, .batch = 32, .max_len = ls_train_given(v->o, "seq_length") ? v->o->seq_length : 0};
    ls_session s = {0};
    ls_langs langs;
    ls_translation_set set = {0};
    ls_session_opts open = v->open;
    open.checkpoint = checkpoint;
    LS_TRY(ls_translate_open(&s, open, &how, &langs));
    ls_status st = ls_translation_set_read(&set, (const char *const *)v->pairs, (int)v->n_pairs, &langs, 0);
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

static ls_status evaluate_epochs(evaluation *v)
{
    const int n = (int)json_array_size(v->epochs);
    double *time = ls_alloc((size_t)n * sizeof *time), *rate = ls_alloc((size_t)n * sizeof *rate);
    ls_status st = time && rate ? LS_OK : ls_nomem((size_t)n * sizeof *time, "the epochs");
    char checkpoint[PATH_MAX], last[PATH_MAX] = "";
    int done = 0, evaluated = 0;
    for (int e = 0; e < n && st == LS_OK; e++) {
        const json_t *row = json_array_get(v->epochs, (size_t)e);
        epoch x = {.val_loss = ls_json_real_at(row, "val_loss_avg_global"),
                   .time = ls_json_real_at(row, "epoch_wall_time_sec"),
                   .tokens_per_sec = ls_json_real_at(row, "tokens_per_sec_global") / v->dp};
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
    if (st == LS_OK) st = cli_copy_file(last, v->workdir, "config.json", true);
    if (st == LS_OK) st = cli_copy_file(last, v->workdir, "tokenizer.json", true);
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
    LS_TRY(ls_path_in(path, v->o->checkpoint_path, "training_metrics.json"));
    LS_TRY(ls_json_load(path, root));
    v->epochs = json_object_get(*root, "epochs");
    const int dp = (int)json_integer_value(ls_json_at(*root, "lockstep.dp")); /* 0: one worker */
    v->dp = dp ? dp : 1;
    v->pipe = json_integer_value(ls_json_at(*root, "lockstep.pp")) > 1;
    return train_end_session(&v->open, device, json_string_value(ls_json_at(*root, "lockstep.precision")), v->o);
}

ls_status cli_translate_epochs(const ls_train_options *o, const ls_device_choice *device)
{
    evaluation v = {.o = o, .open = {.threads = (int)o->threads}};
    json_t *root = NULL;
    if (strcmp(o->task, "translate") != 0) return LS_OK;
    snprintf(v.workdir, sizeof v.workdir, "%s", o->workdir ? o->workdir : "");
    if (!o->workdir) LS_TRY(ls_path_in(v.workdir, o->checkpoint_path, "workdir"));
    ls_status st = test_pairs(o->data, &v.pairs, &v.n_pairs);
    if (st == LS_OK && !v.n_pairs) return LS_OK; /* as cli_translate_check has printed */
    if (st == LS_OK) st = ls_fs_mkdirs(v.workdir);
    if (st == LS_OK) st = read_run(&v, device, &root);
    if (st == LS_OK) st = set_aside(&v);
    if (st == LS_OK) st = evaluate_epochs(&v);
    json_decref(root);
    ls_fs_list_free(v.pairs, v.n_pairs);
    return st;
}
