/* findings.c - what the numbers show: all comparisons of speeds, waits and memory, and what to do. What has no interval is no finding. */
#include "core/mem.h"
#include "report/page/content.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 12 }; /* settings that a sentence names */

static const char *on(char buf[48], int world)
{
    snprintf(buf, 48, "%d %s", world, world == 1 ? "worker" : "workers");
    return buf;
}

static bool known(const ls_estimate *e)
{
    return !isnan(e->mean) && e->half >= 0;
}

static ls_estimate times(ls_estimate e, double factor)
{
    e.mean *= factor;
    e.half *= factor;
    return e;
}

static const char *text_of(char buf[96], const ls_estimate *e, int decimals)
{
    return content_estimate_text(buf, e, decimals);
}

/* --- speeds --- */

static void ratio_row(const char *setting, const char *other, const ls_ratio *x, ls_doc *d, ls_block *b)
{
    ls_doc_cells(d, b, setting, other, LS_TEXT("%d%s", x->n, x->paired ? "" : ", not in turns"), LS_NUM(x->ratio, 3),
                 x->low > 0 ? LS_TEXT("%.3f to %.3f", x->low, x->high) : NULL, x->p >= 0 ? LS_TEXT("%.2g", x->p) : NULL,
                 x->p >= 0 ? LS_TEXT("%.2g", x->holm) : NULL, ls_result_words(x));
}

/* All comparisons that were tested. */
static void comparisons(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_table(d, "Speeds compared by turn", "setting", "compared with", "turns", "times as fast",
                               "95 %", "p", "p, corrected (Holm)", "result");
    for (int i = 0; i < a->n_group; i++)
        if (a->group[i].over_base.n)
            ratio_row(a->group[i].label, a->group[a->group[i].base].label, &a->group[i].over_base, d, b);
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        if (!g->of_best.n || g - a->group == a->group[a->top[g->kind].best].base) continue; /* it is above */
        ratio_row(a->group[a->top[g->kind].best].label, g->label, &g->of_best, d, b);
    }
}

/* --- findings --- */

/* The group with the highest (or lowest) metric of those of the same kind on as many workers; -1: fewer than two groups have it. */
static int extreme(const ls_analysis *a, ls_estimate (*metric)[LS_N_METRIC], int m, const ls_group *like, int sign)
{
    int best = -1, n = 0;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        if (g->world != like->world || g->kind != like->kind || g->no_benchmark || !known(&metric[i][m])) continue;
        n++;
        if (best < 0 || sign * metric[i][m].mean > sign * metric[best][m].mean) best = i;
    }
    return n > 1 ? best : -1;
}

static void memory(const ls_analysis *a, ls_estimate (*metric)[LS_N_METRIC], ls_doc *d, ls_block *b)
{
    int n = 0;
    for (int i = 0; i < a->n_group && n < MOST; i++) {
        const int low = extreme(a, metric, LS_METRIC_MEMORY, &a->group[i], -1),
                  high = extreme(a, metric, LS_METRIC_MEMORY, &a->group[i], 1);
        char workers[48], x[96], y[96];
        if (low != i || low == high) continue;
        const ls_estimate least = times(metric[low][LS_METRIC_MEMORY], 1 / 1048576.0),
                          most = times(metric[high][LS_METRIC_MEMORY], 1 / 1048576.0);
        if (ls_overlap(&least, &most)) continue;
        ls_doc_cell(d, b, "On %s, the peak memory of a worker is lower with %s (%s MiB) than with %s (%s MiB).",
                    on(workers, a->group[i].world), a->group[low].short_name, text_of(x, &least, 1),
                    a->group[high].short_name, text_of(y, &most, 1));
        n++;
    }
}

typedef struct names {
    ls_str text;
    int n;
} names;

static void add_name(names *x, const char *name, const char *detail)
{
    if (x->n < MOST) ls_str_addf(&x->text, "%s%s%s", x->n ? ", " : "", name, detail);
    x->n++;
}

/* A sentence that ends with the names; nothing without any. */
static int say_names(names *x, ls_doc *d, ls_block *b, const char *before, const char *after)
{
    const int n = x->n;
    char more[32] = "";
    if (n > MOST) snprintf(more, sizeof more, " and %d more", n - MOST);
    if (n) ls_doc_cell(d, b, "%s: %s%s%s.", before, x->text.data ? x->text.data : "", more, after);
    d->failed = d->failed || x->text.failed;
    ls_str_fini(&x->text);
    return n > 0;
}

static void waits(const ls_analysis *a, ls_estimate (*metric)[LS_N_METRIC], ls_doc *d, ls_block *b)
{
    names x = {0};
    for (int i = 0; i < a->n_group; i++) {
        const ls_estimate share = times(metric[i][LS_METRIC_COMMUNICATION], 100);
        char text[96], detail[120];
        if (a->group[i].world < 2 || a->group[i].no_benchmark || !known(&share) || !(share.mean > share.half)) continue;
        snprintf(detail, sizeof detail, " (%s)", text_of(text, &share, 1));
        add_name(&x, a->group[i].label, detail);
    }
    say_names(&x, d, b, "Waiting for the data of other workers, in % of a step", "");
}

/* --- recommendation --- */

static void recommend(const ls_analysis *a, ls_doc *d, ls_block *b)
{
    for (int kind = 0; kind < a->n_kind; kind++) {
        const ls_ranking *r = &a->top[kind];
        names lead = {0};
        char before[96];
        if (r->second < 0) continue;
        for (int i = 0; i < a->n_group; i++)
            if (a->group[i].kind == kind && ls_leads(a, i)) add_name(&lead, a->group[i].label, "");
        snprintf(before, sizeof before, "%sFor speed, use%s", ls_kind_words(a, kind), lead.n > 1 ? " one of" : "");
        if (!say_names(&lead, d, b, before, lead.n > 1 ? "; memory and waits may decide between them" : ""))
            ls_doc_cell(
                d, b,
                "%sFor speed, no setting is recommended: more turns (--repeat) or a quieter machine would show more.",
                ls_kind_words(a, kind));
    }
}

void content_findings(const ls_analysis *a, ls_doc *d)
{
    bool any = false;
    for (int kind = 0; kind < a->n_kind; kind++) any = any || a->top[kind].second >= 0;
    if (!any) return;
    ls_estimate(*metric)[LS_N_METRIC] = ls_alloc((size_t)a->n_group * sizeof *metric);
    bool failed = !metric;
    for (int i = 0; i < a->n_group && !failed; i++) failed = ls_metrics_of(a, &a->group[i], metric[i]) != LS_OK;
    if (failed) {
        d->failed = true;
        ls_free(metric);
        return;
    }
    ls_doc_add(d, LS_BLOCK_SECTION, "Findings and recommendation");
    if (a->n_mismatch)
        ls_doc_add(d, LS_BLOCK_WARN,
                   "The runs are not comparable (mismatch_allowed): differences include different work.");
    comparisons(a, d);
    ls_doc_add(d, LS_BLOCK_TEXT, "\xc2\xb1 is the 95 %% interval.");
    ls_block *b = ls_doc_add(d, LS_BLOCK_LIST, NULL);
    waits(a, metric, d, b);
    memory(a, metric, d, b);
    recommend(a, d, b);
    ls_free(metric);
}
