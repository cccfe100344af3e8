/* findings.c - what the numbers show, in sentences, and what to do. Each sentence has a number with its 95 % interval; a difference is stated
 * only where two intervals over repeats do not overlap. What has no interval is no finding. */
#include "core/mem.h"
#include "report/page/content.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 12, MANY = 5 }; /* sentences of one kind; settings from which one sentence is of several */

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

/* x / y - 1 in percent, with the interval of a quotient. */
static ls_estimate more_than(const ls_estimate *x, const ls_estimate *y)
{
    const double ratio = x->mean / y->mean;
    return (ls_estimate){.mean = 100 * (ratio - 1),
                         .half = 100 * ratio * hypot(x->half / x->mean, y->half / y->mean),
                         .within = x->within || y->within};
}

/* A difference has no interval if that of a side is over the steps of a single run. */
static ls_estimate without_steps(const ls_estimate *e)
{
    ls_estimate x = *e;
    if (x.within) x.half = NAN;
    return x;
}

static const char *text_of(char buf[96], const ls_estimate *e, int decimals)
{
    return content_estimate_text(buf, e, decimals);
}

/* Why no difference is shown between two speeds, at the end of a sentence. */
static const char *why_open(const ls_estimate *x, const ls_estimate *y)
{
    return x->within && y->within   ? "in one run each; repeat them to compare"
           : x->within || y->within ? "but one of them has a single run; repeat it to compare"
                                    : "and their intervals overlap";
}

/* --- findings --- */

/* Faster or slower than one worker, by both intervals: that of the quotient and those of the speeds. */
static bool speedup_shown(const ls_analysis *a, const ls_group *g)
{
    return fabs(g->speedup.mean - 1) > g->speedup.half && !ls_overlap(&g->tokens, &a->group[g->base].tokens);
}

static int speedups(const ls_analysis *a, ls_doc *d, ls_block *b)
{
    int n = 0;
    for (int i = 0; i < a->n_group && n < MOST; i++) {
        const ls_group *g = &a->group[i];
        char up[96], eff[96];
        const ls_estimate share = times(g->efficiency, 100), shown = without_steps(&g->speedup);
        if (g->world < 2 || g->no_benchmark || !known(&g->speedup)) continue;
        if (speedup_shown(a, g))
            ls_doc_cell(d, b, "%s is %s times as fast as %s: %s %% of ideal.", g->label, text_of(up, &g->speedup, 2),
                        a->group[g->base].label, text_of(eff, &share, 1));
        else
            ls_doc_cell(d, b, "No speed-up of %s over %s is shown: %s times its speed, %s.", g->label,
                        a->group[g->base].label, text_of(up, &shown, 2),
                        why_open(&g->tokens, &a->group[g->base].tokens));
        n++;
    }
    return n;
}

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

/* The best setting on each number of workers compared with the others there. */
static int differences(const ls_analysis *a, ls_estimate (*metric)[LS_N_METRIC], ls_doc *d, ls_block *b)
{
    int n = 0;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const int k = extreme(a, metric, LS_METRIC_TOKENS, g, 1);
        char workers[48], gap[96];
        if (k < 0 || k == i || g->no_benchmark || !known(&g->tokens) || n >= MOST) continue;
        const ls_group *best = &a->group[k];
        const ls_estimate both = more_than(&best->tokens, &g->tokens), diff = without_steps(&both);
        if (ls_overlap(&best->tokens, &g->tokens))
            ls_doc_cell(d, b, "On %s, no difference in speed is shown between %s and %s: %s %%, %s.",
                        on(workers, g->world), best->short_name, g->short_name, text_of(gap, &diff, 1),
                        why_open(&best->tokens, &g->tokens));
        else
            ls_doc_cell(d, b, "On %s, %s is %s %% faster than %s.", on(workers, g->world), best->short_name,
                        text_of(gap, &diff, 1), g->short_name);
        n++;
    }
    return n;
}

static int waits(const ls_analysis *a, ls_estimate (*metric)[LS_N_METRIC], ls_doc *d, ls_block *b)
{
    int n = 0;
    for (int i = 0; i < a->n_group && n < MOST; i++) {
        const ls_estimate share = times(metric[i][LS_METRIC_COMMUNICATION], 100);
        char text[96];
        if (a->group[i].world < 2 || a->group[i].no_benchmark || !known(&share) || !(share.mean > share.half)) continue;
        ls_doc_cell(d, b, "%s waits for the data of other workers during %s %% of a step.", a->group[i].label,
                    text_of(text, &share, 1));
        n++;
    }
    return n;
}

static int memory(const ls_analysis *a, ls_estimate (*metric)[LS_N_METRIC], ls_doc *d, ls_block *b)
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
    return n;
}

/* --- the same of many settings: one sentence names several --- */

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

static int many_speedups(const ls_analysis *a, ls_doc *d, ls_block *b)
{
    names fast = {0}, slow = {0}, open = {0}, once = {0};
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        char up[96], detail[160];
        const ls_estimate shown = without_steps(&g->speedup);
        if (g->world < 2 || g->no_benchmark || !known(&g->speedup)) continue;
        snprintf(detail, sizeof detail, " (%s times, %.0f %% of ideal)", text_of(up, &shown, 2),
                 100 * g->efficiency.mean);
        if (g->speedup.within) add_name(&once, g->label, detail);
        else if (!speedup_shown(a, g)) add_name(&open, g->label, "");
        else add_name(g->speedup.mean > 1 ? &fast : &slow, g->label, detail);
    }
    return say_names(&fast, d, b, "Faster than one worker", "") + say_names(&slow, d, b, "Slower than one worker", "") +
           say_names(&open, d, b, "No difference from one worker is shown", "; the intervals overlap") +
           say_names(&once, d, b, "No difference from one worker is shown", ": single runs; repeat them to compare");
}

/* On each number of workers, the setting with the highest speed and those that it is faster than. */
static int many_differences(const ls_analysis *a, ls_estimate (*metric)[LS_N_METRIC], ls_doc *d, ls_block *b)
{
    int n = 0;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *best = &a->group[i];
        names slower = {0}, open = {0}, once = {0};
        char workers[48], before[300];
        if (best->no_benchmark || extreme(a, metric, LS_METRIC_TOKENS, best, 1) != i) continue;
        for (int k = 0; k < a->n_group; k++) {
            const ls_group *g = &a->group[k];
            char gap[96], detail[120];
            if (k == i || g->world != best->world || g->kind != best->kind || g->no_benchmark || !known(&g->tokens))
                continue;
            const ls_estimate diff = more_than(&best->tokens, &g->tokens);
            snprintf(detail, sizeof detail, " (by %s %%)", text_of(gap, &diff, 1));
            if (best->tokens.within || g->tokens.within) add_name(&once, g->short_name, "");
            else if (ls_overlap(&best->tokens, &g->tokens)) add_name(&open, g->short_name, "");
            else add_name(&slower, g->short_name, detail);
        }
        snprintf(before, sizeof before, "On %s, %.200s is faster than", on(workers, best->world), best->short_name);
        n += say_names(&slower, d, b, before, "");
        snprintf(before, sizeof before, "On %s, no difference in speed is shown between %.200s and", workers,
                 best->short_name);
        n += say_names(&open, d, b, before, "; the intervals overlap");
        n += say_names(&once, d, b, before, ": single runs; repeat them to compare");
    }
    return n;
}

static int many_waits(const ls_analysis *a, ls_estimate (*metric)[LS_N_METRIC], ls_doc *d, ls_block *b)
{
    names x = {0};
    for (int i = 0; i < a->n_group; i++) {
        const ls_estimate share = times(metric[i][LS_METRIC_COMMUNICATION], 100);
        char text[96], detail[120];
        if (a->group[i].world < 2 || a->group[i].no_benchmark || !known(&share) || !(share.mean > share.half)) continue;
        snprintf(detail, sizeof detail, " (%s)", text_of(text, &share, 1));
        add_name(&x, a->group[i].label, detail);
    }
    return say_names(&x, d, b, "Waiting for the data of other workers, in % of a step", "");
}

static bool are_many(const ls_analysis *a)
{
    int n = 0;
    for (int i = 0; i < a->n_group; i++) n += a->group[i].world > 1 && !a->group[i].no_benchmark;
    return n > MANY;
}

/* --- recommendation --- */

static ls_estimate per_worker(const ls_group *g)
{
    return times(g->tokens, 1.0 / g->world);
}

/* Whether a group counts where settings on several workers are compared. */
static bool is_several(const ls_group *g, int kind)
{
    return g->world > 1 && g->kind == kind && !g->no_benchmark && !isnan(g->tokens.mean);
}

/* The setting on several workers with the most tokens/s per worker, if its interval is above those of all others. Efficiencies would not do:
 * those of two settings have different bases. */
static int most_per_worker(const ls_analysis *a, int kind)
{
    int best = -1, n = 0;
    for (int i = 0; i < a->n_group; i++) {
        if (!is_several(&a->group[i], kind)) continue;
        n++;
        if (best < 0 || per_worker(&a->group[i]).mean > per_worker(&a->group[best]).mean) best = i;
    }
    for (int i = 0; i < a->n_group && n > 1; i++) {
        if (i == best || !is_several(&a->group[i], kind)) continue;
        const ls_estimate x = per_worker(&a->group[i]), y = per_worker(&a->group[best]);
        if (ls_overlap(&x, &y)) return -1;
    }
    return n > 1 ? best : -1;
}

/* Repeats of each side until a gap of this size would show: both intervals together are as wide as it. 0: not known, or too many. */
static int repeats_for(const ls_estimate *x, const ls_estimate *y)
{
    const double gap = fabs(x->mean - y->mean), spread = x->stdev + y->stdev;
    if (!(gap > 0) || !(spread > 0)) return 0;
    for (int n = 2; n <= 1000; n++)
        if (ls_t95(n - 1) * spread / sqrt(n) < gap) return n;
    return 0;
}

static void recommend_speed(const ls_analysis *a, int kind, ls_doc *d, ls_block *b)
{
    char text[96], other[96];
    const ls_ranking *r = &a->top[kind];
    const ls_group *g = &a->group[r->best];
    const char *whose = ls_kind_words(a, kind);
    if (r->winner >= 0) {
        ls_doc_cell(d, b, "%sFor speed, use %s: %s tokens/s; its interval is above those of all other settings.", whose,
                    g->label, text_of(text, &g->tokens, g->tokens.mean < 100));
        return;
    }
    const ls_group *o = &a->group[r->rival];
    if (!known(&g->tokens) || !known(&o->tokens)) {
        ls_doc_cell(
            d, b, "%sFor speed, no setting is recommended: %s has no interval. Run every setting three times or more.",
            whose, known(&g->tokens) ? o->label : g->label);
        return;
    }
    if (g->tokens.within || o->tokens.within) {
        ls_doc_cell(d, b,
                    "%sFor speed, no setting is recommended: %s%s%s. Run every setting three times or more to compare.",
                    whose, g->tokens.within ? g->label : o->label,
                    g->tokens.within && o->tokens.within ? LS_TEXT(" and %s", o->label) : "",
                    g->tokens.within && o->tokens.within ? " have one run each" : " has one run");
        return;
    }
    const int n = repeats_for(&g->tokens, &o->tokens);
    ls_doc_cell(d, b, "%sFor speed, no setting is recommended: %s (%s tokens/s) and %s (%s tokens/s) overlap.%s", whose,
                g->label, text_of(text, &g->tokens, g->tokens.mean < 100), o->label,
                text_of(other, &o->tokens, o->tokens.mean < 100),
                n ? LS_TEXT(" With this spread, about %d runs of each would show their difference.", n) : "");
}

static void recommend(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_add(d, LS_BLOCK_LIST, NULL);
    for (int kind = 0; kind < a->n_kind; kind++) {
        const int k = most_per_worker(a, kind);
        char text[96];
        if (a->top[kind].second < 0) continue;
        recommend_speed(a, kind, d, b);
        if (k < 0 || k == a->top[kind].winner) continue; /* it is recommended already */
        const ls_estimate rate = per_worker(&a->group[k]);
        ls_doc_cell(
            d, b,
            "%sFor the most work per worker on several workers, use %s: %s tokens/s per worker; its interval is above those of all others.",
            ls_kind_words(a, kind), a->group[k].label, text_of(text, &rate, rate.mean < 100));
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
    bool within = false;
    for (int i = 0; i < a->n_group; i++) within = within || (a->group[i].tokens.within && !a->group[i].no_benchmark);
    if (a->n_mismatch)
        ls_doc_add(d, LS_BLOCK_WARN,
                   "The runs are not comparable (mismatch_allowed): differences include different work.");
    ls_doc_add(
        d, LS_BLOCK_TEXT, "Made from the numbers below; \xc2\xb1 is the 95 %% interval.%s",
        within
            ? " The interval of a setting with a single run is over its steps, without the variation between runs: no difference is shown from it."
            : "");
    ls_block *b = ls_doc_add(d, LS_BLOCK_LIST, NULL);
    int n = are_many(a) ? many_speedups(a, d, b) + many_differences(a, metric, d, b) + many_waits(a, metric, d, b)
                        : speedups(a, d, b) + differences(a, metric, d, b) + waits(a, metric, d, b);
    n += memory(a, metric, d, b);
    if (!n && b)
        ls_doc_cell(d, b, "None: no two settings have intervals. Three or more runs of each setting give them.");
    recommend(a, d);
    ls_free(metric);
}
