/* tables.c - tables of a report: times of steps, workers by framework, translation runs, runs that are not compared. */
#include "report/page/content.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The geometric mean over the runs of a group that have the number, as that of tokens/s. */
static double group_mean(const ls_analysis *a, const ls_group *g, double (*get)(const ls_run *r))
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < g->n_run; i++) {
        const double x = get(&a->set->run[g->run[i]]);
        if (x > 0) sum += log(x), n++;
    }
    return n ? exp(sum / n) : NAN;
}

/* --- times of steps --- */

static double step_mean(const ls_run *r)
{
    return isnan(r->step_time) ? r->sampled[0] : r->step_time;
}

static double step_p95(const ls_run *r)
{
    return isnan(r->step_time) ? r->sampled[2] : r->step_p95;
}

/* Where a run is shorter than the warm-up, fewer steps are left out than elsewhere. */
static const char *steps_words(const ls_analysis *a, const ls_group *g, char buf[64])
{
    if (!a->short_of) return "steps after the warm-up";
    if (!g->split_warm_hi) return "all steps";
    snprintf(buf, 64,
             g->split_warm_lo == g->split_warm_hi ? "steps after the first %d" : "steps after the first %d or more",
             g->split_warm_lo);
    return buf;
}

void content_step_times(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    bool sampled = false, differ = a->short_of > 0; /* else all are of the steps after the warm-up, as the title says */
    for (int i = 0; i < a->n_group; i++)
        differ = differ || (!isnan(group_mean(a, &a->group[i], step_mean)) && isnan(a->group[i].first->step_time));
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const double mean = group_mean(a, g, step_mean), p95 = group_mean(a, g, step_p95);
        const bool steps = !isnan(g->first->step_time);
        char of[64];
        if (isnan(mean)) continue;
        if (!b && differ) b = ls_doc_table(d, "Times of steps", "setting", "mean, ms", "p95, ms", "p95 / mean", "of");
        if (!b) b = ls_doc_table(d, "Times of steps after the warm-up", "setting", "mean, ms", "p95, ms", "p95 / mean");
        sampled = sampled || !steps;
        ls_doc_cells(d, b, g->label, LS_NUM(1000 * mean, 3), LS_NUM(1000 * p95, 3), LS_NUM(p95 / mean, 2));
        if (differ) ls_doc_cells(d, b, steps ? steps_words(a, g, of) : "sampled micro-batches of rank 0");
    }
    if (sampled)
        ls_doc_add(
            d, LS_BLOCK_TEXT,
            "Sampled micro-batches are few, and with an even accumulation none of them has an update: their times exclude communication and the optimizer, and can be compared only between runs with the same accumulation.");
}

/* --- losses of settings whose runs differ in them --- */

static bool losses_differ(const ls_analysis *a, const ls_group *g)
{
    bool seeds = false; /* of one seed: the table of settings has the range */
    for (int i = 1; i < g->n_run; i++) seeds = seeds || a->set->run[g->run[i]].seed != g->first->seed;
    for (int i = 1; i < g->n_run && seeds; i++) {
        const ls_run *r = &a->set->run[g->run[i]];
        if (r->train_loss != g->first->train_loss || fabs(r->val_loss - g->first->val_loss) > 0) /* NaN: none ran */
            return g->first->train_loss > 0;
    }
    return false;
}

void content_losses(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    for (int i = 0; i < a->n_group; i++)
        for (int k = 0; k < a->group[i].n_run && losses_differ(a, &a->group[i]); k++) {
            const ls_run *r = &a->set->run[a->group[i].run[k]];
            if (!b) b = ls_doc_table(d, "Losses by seed", "setting", "seed", "run", "train loss", "val loss");
            ls_doc_cells(d, b, a->group[i].label, r->seed >= 0 ? LS_TEXT("%lld", (long long)r->seed) : NULL, r->name,
                         LS_NUM(r->train_loss, 4), LS_NUM(r->val_loss, 4));
        }
}

/* --- workers by framework --- */

/* The group of a framework on this number of workers; NULL: none. Several settings of one framework: the first. */
static const ls_group *pivot_cell(const ls_analysis *a, const char *name, int world)
{
    for (int i = 0; i < a->n_group; i++)
        if (a->group[i].world == world && !a->group[i].no_benchmark && !strcmp(a->group[i].short_name, name))
            return &a->group[i];
    return NULL;
}

enum { MOST = 40, WIDE = 6 }; /* WIDE: more frameworks than this are rows, not columns */

typedef struct pivot {
    const char *name[MOST]; /* frameworks: the names of settings */
    int world[MOST], n_name, n_world;
} pivot;

static void add_name(pivot *p, const char *name)
{
    for (int k = 0; k < p->n_name; k++)
        if (!strcmp(p->name[k], name)) return;
    if (p->n_name < MOST) p->name[p->n_name++] = name;
}

static void add_world(pivot *p, int world)
{
    for (int k = 0; k < p->n_world; k++)
        if (p->world[k] == world) return;
    if (p->n_world < MOST) p->world[p->n_world++] = world;
}

static const char *pivot_text(const ls_analysis *a, const pivot *p, int name, int world, bool speedup, char text[96])
{
    const ls_group *g = pivot_cell(a, p->name[name], p->world[world]);
    if (!g) return NULL;
    return speedup ? content_estimate_text(text, &g->speedup, 2)
                   : content_estimate_text(text, &g->tokens, g->tokens.mean < 100 ? 2 : 1);
}

/* One row per framework: many do not fit as columns. */
static void tall_table(const ls_analysis *a, const pivot *p, bool speedup, ls_doc *d, ls_block *b)
{
    char text[96];
    b->n_col = p->n_world + 1;
    ls_doc_cells(d, b, "framework");
    for (int w = 0; w < p->n_world; w++)
        ls_doc_cell(d, b, "%d %s", p->world[w], p->world[w] == 1 ? "worker" : "workers");
    for (int k = 0; k < p->n_name; k++) {
        ls_doc_cells(d, b, p->name[k]);
        for (int w = 0; w < p->n_world; w++) ls_doc_cells(d, b, pivot_text(a, p, k, w, speedup, text));
    }
}

static void pivot_table(const ls_analysis *a, const pivot *p, bool speedup, ls_doc *d)
{
    ls_block *b = ls_doc_add(d, LS_BLOCK_TABLE, "%s",
                             speedup ? "Speed-up: workers by framework" : "Tokens per second: workers by framework");
    char text[96];
    if (!b) return;
    if (p->n_name > WIDE) {
        tall_table(a, p, speedup, d, b);
        return;
    }
    b->n_col = p->n_name + 1;
    ls_doc_cells(d, b, "workers");
    for (int k = 0; k < p->n_name; k++) ls_doc_cells(d, b, p->name[k]);
    for (int w = 0; w < p->n_world; w++) {
        ls_doc_cell(d, b, "%d", p->world[w]);
        for (int k = 0; k < p->n_name; k++) ls_doc_cells(d, b, pivot_text(a, p, k, w, speedup, text));
    }
}

/* Whether a framework ran on several numbers of workers. */
static bool any_on_several(const ls_analysis *a, const pivot *p)
{
    for (int k = 0; k < p->n_name; k++) {
        int n = 0;
        for (int w = 0; w < p->n_world; w++) n += pivot_cell(a, p->name[k], p->world[w]) != NULL;
        if (n > 1) return true;
    }
    return false;
}

void content_pivot(const ls_analysis *a, ls_doc *d)
{
    pivot p = {0};
    bool based = false;
    for (int i = 0; i < a->n_group; i++) { /* groups are sorted by workers */
        if (a->group[i].no_benchmark || isnan(a->group[i].tokens.mean)) continue;
        add_name(&p, a->group[i].short_name);
        add_world(&p, a->group[i].world);
        based = based || (a->group[i].world > 1 && !isnan(a->group[i].speedup.mean));
    }
    if (p.n_name < 2 || p.n_world < 2 || !a->comparable) return;
    if (p.n_name > WIDE && !any_on_several(a, &p)) return; /* it would repeat the table of settings */
    pivot_table(a, &p, false, d);
    if (!based) return;
    pivot_table(a, &p, true, d);
    ls_doc_add(
        d, LS_BLOCK_TEXT,
        "A speed-up is over the same framework on one worker; if it was not run there, over the nearest setting that was.");
}

/* --- translations --- */

void content_translation(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        char time[96], rate[96];
        if (!r->translation) continue;
        if (!b) {
            ls_doc_add(d, LS_BLOCK_SECTION, "Translation");
            ls_doc_add(
                d, LS_BLOCK_TEXT,
                "Training time (mean over ranks) and tokens/s (sum over ranks) are means over the epochs after the first (of a run with one epoch, of that one), with the 95 %% interval over epochs; they include padding. Validation loss is the best epoch's, BLEU the last one's. A dash: it was not stored.");
            b = ls_doc_table(d, NULL, "run", "kind", "workers", "epochs", "training time per epoch, s", "tokens/s",
                             "validation loss", "BLEU");
        }
        ls_doc_cells(d, b, r->name, r->strategy, r->world ? LS_TEXT("%d", r->world) : NULL, LS_TEXT("%d", r->n_epoch),
                     content_estimate_text(time, &r->train_time, 2), content_estimate_text(rate, &r->rates, 1),
                     LS_NUM(r->val_loss, 4), LS_NUM(r->bleu, 2));
    }
}

/* --- runs without a number of workers --- */

void content_alone(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    bool some = false; /* a file states the number of workers */
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (r->world || r->translation || isnan(r->epoch_time)) continue;
        if (!b) {
            ls_doc_section(d, "Runs that are not compared");
            b = ls_doc_table(d, NULL, "run", "workers", "training time per epoch, s", "tokens/s", "tokens/s of",
                             "train loss", "val loss");
        }
        some = some || r->n_stated > 0;
        ls_doc_cells(d, b, r->name, r->n_stated > 0 ? LS_TEXT("%d", r->n_stated) : NULL, LS_NUM(r->epoch_time, 2),
                     LS_NUM(r->tokens_per_sec, 1), r->legacy ? "one rank or all: not recorded" : NULL,
                     LS_NUM(r->train_loss, 4), LS_NUM(r->val_loss, 4));
    }
    if (b)
        ls_doc_add(
            d, LS_BLOCK_TEXT, "%s, so tokens/s cannot be compared with those of others.",
            some
                ? "Files of the older schema do not record whether tokens/s are of one rank or of all, and most of them no number of workers"
                : "Their files do not contain the number of workers");
}
