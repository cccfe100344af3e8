/* run_workdir.c - the folder of the translation study's scripts (docs/REFERENCES.md) as a run: `workdir/`, one small
 * file per rank and epoch.
 *
 *   rank<r>_results_epoch<e>.json   data parallel: validation_loss, bleu, training_time, tokens_per_sec, of one rank
 *   eval_results_epoch<e>.json      pipeline: validation_loss and bleu alone; the number of workers is not recorded
 *
 *   tokens/s     sum over ranks of their mean over epochs      epoch time   mean over ranks and epochs
 *   loss         mean over ranks (of equal parts)              epoch 0      warm-up, where there is another: its speed is left out
 *
 * They are converted to the format of training_metrics.json and read like one. A run of ours has both: its training_metrics.json has the times,
 * also those of a pipeline, and workdir/ the BLEU. */
#include "core/fs.h"
#include "core/mem.h"
#include "report/read/run_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 100000, MAX_RANK = 4096 };

typedef struct result {
    int epoch, rank; /* rank -1: of the pipeline script */
    double loss, time, rate, bleu;
} result;

static bool named(const char *name, result *r)
{
    int end = 0;
    *r = (result){.rank = -1};
    if (sscanf(name, "rank%d_results_epoch%d.json%n", &r->rank, &r->epoch, &end) == 2 && end && !name[end])
        return r->rank >= 0 && r->rank < MAX_RANK && r->epoch >= 0;
    end = 0;
    r->rank = -1;
    return sscanf(name, "eval_results_epoch%d.json%n", &r->epoch, &end) == 1 && end && !name[end] && r->epoch >= 0;
}

static int by_epoch(const void *a, const void *b)
{
    const result *x = a, *y = b;
    if (x->epoch != y->epoch) return x->epoch < y->epoch ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static ls_status load(const char *dir, char **names, size_t n, ls_notes *notes, result *all, int *n_all)
{
    for (size_t i = 0; i < n; i++) {
        result r;
        json_t *root = NULL;
        if (!named(names[i], &r) || *n_all == MAX_FILE) continue;
        LS_TRY(report_load(dir, names[i], notes, &root));
        const report_doc d = {root, names[i], notes};
        if (!root) continue;
        r.loss = report_num(&d, "validation_loss");
        r.bleu = report_num(&d, "bleu");
        r.time = r.rank < 0 ? NAN : report_num(&d, "training_time");
        r.rate = r.rank < 0 ? NAN : report_num(&d, "tokens_per_sec");
        all[(*n_all)++] = r;
        json_decref(root);
    }
    qsort(all, (size_t)*n_all, sizeof *all, by_epoch);
    return LS_OK;
}

/* The sum over ranks of the mean over epochs from `first` on; NaN when a rank did not record it. */
static double rate_of(const result *all, int n, int world, int first)
{
    double sum = 0;
    for (int rank = 0; rank < world; rank++) {
        double mine = 0;
        int k = 0;
        for (int i = 0; i < n; i++)
            if (all[i].rank == rank && all[i].epoch >= first && !isnan(all[i].rate)) mine += all[i].rate, k++;
        if (!k) return NAN;
        sum += mine / k;
    }
    return world ? sum : NAN;
}

/* Epoch by epoch from `first` on: seconds are means over ranks, tokens/s sums. */
static ls_status over_epochs(const result *all, int n, int first, ls_run *out)
{
    double *x = ls_alloc((size_t)n * 2 * sizeof *x);
    int k = 0;
    if (!x) return ls_nomem((size_t)n * 2 * sizeof *x, "epochs");
    for (int i = 0, end; i < n; i = end) {
        double time = 0, rate = 0, bleu = 0;
        for (end = i; end < n && all[end].epoch == all[i].epoch; end++)
            time += all[end].time, rate += all[end].rate, bleu += all[end].bleu;
        out->bleu = bleu / (end - i);
        if (all[i].epoch < first) continue;
        x[k] = time / (end - i);
        x[n + k++] = rate;
    }
    out->train_time = ls_estimate_of(x, k);
    out->rates = ls_estimate_of(x + n, k);
    out->translation = true;
    ls_free(x);
    return LS_OK;
}

static json_t *real_or_null(double x)
{
    return isnan(x) ? json_null() : json_real(x);
}

/* The list `epochs`: means over the ranks. *best: the lowest loss. */
static json_t *epochs_of(const result *all, int n, int first, double *best)
{
    json_t *list = json_array();
    *best = NAN;
    for (int i = 0, end; i < n; i = end) {
        double loss = 0, time = 0;
        for (end = i; end < n && all[end].epoch == all[i].epoch; end++) loss += all[end].loss, time += all[end].time;
        loss /= end - i;
        time = all[i].epoch >= first ? time / (end - i) : NAN;
        *best = fmin(*best, loss); /* ignores NaN */
        json_array_append_new(list, json_pack("{si so so}", "epoch", all[i].epoch + 1, "val_loss_avg_global",
                                              real_or_null(loss), "epoch_wall_time_sec", real_or_null(time)));
    }
    return list;
}

static ls_status tell(const char *dir, const result *all, int n, ls_notes *notes, ls_run *out)
{
    int world = 0;
    for (int i = 0; i < n; i++) world = all[i].rank >= world ? all[i].rank + 1 : world;
    const int first = all[n - 1].epoch > all[0].epoch ? 1 : 0;
    const double rate = rate_of(all, n, world, first);
    double best;
    json_t *epochs = epochs_of(all, n, first, &best);
    json_t *root =
        json_pack("{ss s{si} so s{so so}}", "schema_version", "2.0", "hardware", "world_size", world, "epochs", epochs,
                  "summary", "mean_tokens_per_sec_global", real_or_null(rate), "best_val_loss", real_or_null(best));
    char *text = json_dumps(root, 0);
    json_decref(root);
    ls_notes silent = {0}; /* of a file that does not exist */
    const ls_run_texts t = {.file[LS_RUN_METRICS] = {text, text ? strlen(text) : 0}};
    ls_status st = text ? ls_run_read_texts(&t, dir, &silent, out) : ls_nomem(1024, "a run of the translation scripts");
    ls_notes_fini(&silent);
    free(text);
    LS_TRY(st);
    if (!world)
        ls_notes_add(
            notes,
            "%s: eval_results_epoch*.json do not contain the number of workers, so the run is left out of comparisons",
            dir);
    else if (isnan(rate))
        ls_notes_add(notes, "%s: key tokens_per_sec: not of every rank from 0 to %d, so the run has no speed", dir,
                     world - 1);
    out->later_epochs = first > 0;
    snprintf(out->strategy, sizeof out->strategy, "%s", world ? "translation, data parallel" : "translation, pipeline");
    ls_free(out->setting);
    out->setting = ls_asprintf("strategy %s\n", out->strategy);
    st = out->setting ? over_epochs(all, n, first, out) : ls_nomem(64, "settings");
    if (st != LS_OK) ls_run_fini(out);
    return st;
}

/* The results in a folder, sorted by epoch; none if it cannot be listed. Free *all. */
static ls_status load_all(const char *dir, ls_notes *notes, result **all, int *n_all)
{
    char **names = NULL;
    size_t n = 0;
    int n_file = 0;
    result one;
    *all = NULL;
    *n_all = 0;
    if (ls_fs_list(dir, &names, &n) != LS_OK) { /* the caller reports it */
        ls_err_clear();
        return LS_OK;
    }
    for (size_t i = 0; i < n; i++) n_file += named(names[i], &one);
    if (n_file > MAX_FILE) n_file = MAX_FILE;
    *all = n_file ? ls_alloc((size_t)n_file * sizeof **all) : NULL;
    ls_status st = n_file && !*all ? ls_nomem((size_t)n_file * sizeof **all, "the results of epochs") : LS_OK;
    if (st == LS_OK && n_file) st = load(dir, names, n, notes, *all, n_all);
    ls_fs_list_free(names, n);
    return st;
}

ls_status run_read_workdir(const char *dir, ls_notes *notes, ls_run *out, bool *found)
{
    result *all;
    int n;
    ls_status st = load_all(dir, notes, &all, &n);
    if (st == LS_OK && n) st = tell(dir, all, n, notes, out);
    *found = st == LS_OK && n > 0;
    ls_free(all);
    return st;
}

/* Times and speeds of the epochs after the first, from training_metrics.json. */
static ls_status times_of_metrics(ls_run *r)
{
    const json_t *epochs = json_object_get(r->metrics, "epochs");
    const size_t n = json_array_size(epochs), first = n > 1;
    double *x = ls_alloc((n + 1) * 2 * sizeof *x);
    if (!x) return ls_nomem((n + 1) * 2 * sizeof *x, "epochs");
    for (size_t i = first; i < n; i++) {
        const report_doc e = {.root = json_array_get(epochs, i)};
        x[i - first] = report_num(&e, "epoch_wall_time_sec");
        x[n + i - first] = report_num(&e, "tokens_per_sec_global");
    }
    r->train_time = ls_estimate_of(x, (int)(n - first));
    r->rates = ls_estimate_of(x + n, (int)(n - first));
    ls_free(x);
    return LS_OK;
}

/* Whether a result is of the last epoch of a run: its files may be those of an earlier run in the same folder. */
static bool is_of_run(const result *x, const ls_run *r)
{
    const double loss = r->n_epoch ? r->epoch_val[r->n_epoch - 1] : NAN;
    const bool same = isnan(loss) ? isnan(x->loss) || x->loss == 0 : fabs(x->loss - loss) <= 1e-9 * fabs(loss);
    return x->epoch == r->n_epoch - 1 && x->rank < r->world && same; /* NaN, or 0: no validation batch ran */
}

ls_status run_add_results(const char *dir, ls_notes *notes, ls_run *r)
{
    const ls_path workdir = ls_path_of(dir, "workdir");
    result *all = NULL;
    int n = 0, k = 0;
    double bleu = 0;
    if (!r->metrics || !ls_fs_is_dir(workdir.text)) return LS_OK;
    ls_status st = load_all(workdir.text, notes, &all, &n);
    for (int i = 0; i < n; i++)
        if (is_of_run(&all[i], r)) bleu += all[i].bleu, k++;
    if (st == LS_OK && n && !k)
        ls_notes_add(
            notes,
            "%s: no results of the last epoch of training_metrics.json (epoch %d, with its validation loss): left out",
            workdir.text, r->n_epoch - 1);
    if (st == LS_OK && k) {
        r->bleu = bleu / k;
        r->translation = true;
        st = times_of_metrics(r);
    }
    ls_free(all);
    return st;
}
