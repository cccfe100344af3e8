/* ranking.c - which settings lead: ratios of speeds by turn, corrected for all pairs of settings, and the sentences about them.
 *
 *   tested      every setting with its base on one worker; the fastest with every other: of the family of all pairs of settings of a kind
 *   leading     the fastest, and those that are not shown to be slower */
#include "core/mem.h"
#include "report/compare/analysis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- pairs of runs --- */

/* "run_3" */
static const char *folder_name(const ls_run *r)
{
    const char *path = r->real ? r->real : r->dir, *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void ls_pair_up(const ls_run *const *a, int na, const ls_run *const *b, int nb, int *partner)
{
    bool by_name = false;
    for (int i = 0; i < na; i++) {
        partner[i] = -1;
        for (int k = 0; k < nb && partner[i] < 0; k++) {
            bool taken = strcmp(folder_name(a[i]), folder_name(b[k])) != 0;
            for (int j = 0; j < i; j++) taken = taken || partner[j] == k;
            if (!taken) partner[i] = k, by_name = true;
        }
    }
    for (int i = 0; i < na && i < nb && !by_name; i++) partner[i] = i;
}

/* Negative: x began first; 0: not known. */
static int compare_start(const ls_run *x, const ls_run *y)
{
    const char *s = json_string_value(json_object_get(x->metrics, "timestamp_utc")),
               *t = json_string_value(json_object_get(y->metrics, "timestamp_utc"));
    if (!s || !t || strlen(s) < 19 || strlen(t) < 19) return 0; /* 2026-01-28T01:23:44 */
    const int order = strncmp(s, t, 19);
    if (order || !x->n_step || !y->n_step) return order;
    const double ms = x->step[0].at_ms - y->step[0].at_ms;
    return ms > 0 ? 1 : ms < 0 ? -1 : 0;
}

bool ls_in_turns(const ls_run *const *a, const ls_run *const *b, int n)
{
    for (int i = 0; i < n; i++) {
        const int order = compare_start(a[i], b[i]);
        const ls_run *first = order < 0 ? a[i] : b[i], *last = order < 0 ? b[i] : a[i];
        if (!order) return false;
        for (int k = 0; k < 2 * n; k++) {
            const ls_run *other = k < n ? a[k] : b[k - n];
            if (other != first && other != last && compare_start(other, first) >= 0 && compare_start(other, last) <= 0)
                return false;
        }
    }
    return n > 0;
}

ls_status ls_group_ratio(const ls_analysis *a, const ls_group *base, const ls_group *g, ls_ratio *out)
{
    const int na = base->n_run, nb = g->n_run, both = na + nb;
    const ls_run **run = ls_alloc((size_t)both * 2 * sizeof *run), **x = run + both, **y = x + na;
    double *rate = ls_alloc((size_t)both * sizeof *rate);
    int *partner = ls_alloc((size_t)na * sizeof *partner), n = 0;
    const bool ok = run && rate && partner;
    if (ok) {
        for (int i = 0; i < both; i++) run[i] = &a->set->run[i < na ? base->run[i] : g->run[i - na]];
        ls_pair_up(run, na, run + na, nb, partner);
        for (int i = 0; i < na; i++)
            if (partner[i] >= 0) x[n] = run[i], y[n++] = run[na + partner[i]];
        const bool paired = n > 1 && ls_in_turns(x, y, n);
        for (int i = 0; i < both && !paired; i++) rate[i] = ls_run_rate(a, run[i]);
        for (int i = 0; i < n && paired; i++) rate[i] = ls_run_rate(a, x[i]), rate[n + i] = ls_run_rate(a, y[i]);
        *out = paired ? ls_ratio_of(rate, n, rate + n, n, true) : ls_ratio_of(rate, na, rate + na, nb, false);
    }
    ls_free(run);
    ls_free(rate);
    ls_free(partner);
    return ok ? LS_OK : ls_nomem((size_t)both * sizeof *rate, "pairs of runs");
}

/* --- the ranking --- */

static bool is_counted(const ls_analysis *a, int kind, int i)
{
    const ls_group *g = &a->group[i];
    return a->comparable && g->kind == kind && !g->no_benchmark && !isnan(g->tokens.mean);
}

static bool has_base(const ls_analysis *a, int i)
{
    return a->group[i].base >= 0 && a->group[i].base != i;
}

bool ls_leads(const ls_analysis *a, int i)
{
    const ls_group *g = &a->group[i];
    const ls_ranking *r = &a->top[g->kind];
    if (!is_counted(a, g->kind, i) || (r->best != i && !(g->of_best.p >= 0 && g->of_best.shown <= 0))) return false;
    return r->n_behind || (has_base(a, i) && g->over_base.shown > 0);
}

/* A setting with a single run, which may have met a fast moment, comes after those with several. */
static bool is_faster(const ls_analysis *a, int i, int than)
{
    const ls_group *g = &a->group[i], *o = than < 0 ? NULL : &a->group[than];
    if (!o || (g->n_run > 1) != (o->n_run > 1)) return !o || g->n_run > 1;
    return g->tokens.mean > o->tokens.mean;
}

ls_status ls_rank(ls_analysis *a, int kind)
{
    ls_ranking *r = &a->top[kind];
    int n = 0;
    *r = LS_NO_RANKING;
    for (int i = 0; i < a->n_group; i++) {
        if (!is_counted(a, kind, i)) continue;
        if (is_faster(a, i, r->best)) r->second = r->best, r->best = i;
        else if (is_faster(a, i, r->second)) r->second = i;
    }
    if (r->second < 0) return LS_OK;
    ls_group *best = &a->group[r->best];
    ls_ratio **tested = ls_alloc((size_t)a->n_group * 2 * sizeof *tested);
    if (!tested) return ls_nomem((size_t)a->n_group * 2 * sizeof *tested, "comparisons");
    ls_status st = LS_OK;
    for (int i = 0; i < a->n_group && st == LS_OK; i++) {
        ls_group *g = &a->group[i];
        if (!is_counted(a, kind, i)) continue;
        r->n_repeated += g->n_run > 1;
        if (has_base(a, i)) tested[n++] = &g->over_base;
        if (g != best) st = ls_group_ratio(a, g, best, &g->of_best);
        if (g != best && i != best->base && g->base != r->best)
            tested[n++] = &g->of_best; /* no over_base is the same */
    }
    r->n_tested = ls_holm(tested, n, r->n_repeated * (r->n_repeated - 1) / 2);
    r->winner = r->best;
    for (int i = 0; i < a->n_group; i++) {
        ls_group *g = &a->group[i];
        if (g == best || !is_counted(a, kind, i)) continue;
        if (i == best->base) g->of_best = best->over_base;
        if (g->base == r->best) g->of_best.holm = g->over_base.holm, g->of_best.shown = -g->over_base.shown;
        if (g->of_best.shown > 0) r->n_behind++;
        else r->winner = -1;
    }
    ls_free(tested);
    return st;
}

/* --- JSON --- */

const char *ls_result_words(const ls_ratio *r)
{
    return r->shown > 0 ? "faster" : r->shown < 0 ? "slower" : "no difference shown";
}

static void put_ratio(ls_jsonw *w, const char *key, const ls_ratio *r)
{
    if (!r->n) {
        ls_jsonw_key(w, key);
        ls_jsonw_null(w);
        return;
    }
    ls_jsonw_put_open(w, key, '{');
    ls_jsonw_members(w, LS_KV("ratio", r->ratio), LS_KV("low95", r->low), LS_KV("high95", r->high), LS_KV("p", r->p),
                     LS_KV("p_holm", r->holm), LS_KV("pairs", r->n), LS_KV("test", r->paired ? "paired" : "welch"),
                     LS_KV("result", ls_result_words(r)));
    ls_jsonw_close(w);
}

void ls_ratios_put(ls_jsonw *w, const ls_group *g)
{
    put_ratio(w, "over_one_worker", &g->over_base);
    put_ratio(w, "fastest_over_this", &g->of_best);
}

void ls_leading_put(ls_jsonw *w, const ls_analysis *a)
{
    ls_jsonw_put_open(w, "leading", '[');
    for (int i = 0; i < a->n_group; i++)
        if (ls_leads(a, i)) ls_jsonw_str(w, a->group[i].label);
    ls_jsonw_close(w);
}

/* --- words --- */

const char *ls_kind_words(const ls_analysis *a, int kind)
{
    return a->n_kind < 2 ? "" : kind == LS_KIND_PIPELINE ? "Pipelines: " : "Data parallel: ";
}

enum { FAST, SLOW, LEAD, BEHIND, FAST_BEHIND, ALSO_FAST, ONCE };

static bool is_named(const ls_analysis *a, int kind, int what, int i)
{
    const ls_group *g = &a->group[i];
    const bool based = has_base(a, i), behind = g->of_best.shown > 0, fast = based && g->over_base.shown > 0;
    if (!is_counted(a, kind, i)) return false;
    switch (what) {
    case FAST: return fast;
    case SLOW: return based && g->over_base.shown < 0;
    case LEAD: return ls_leads(a, i);
    case BEHIND: return behind;
    case FAST_BEHIND: return fast && behind;
    case ALSO_FAST: return fast && i != a->top[kind].best;
    default: return g->n_run == 1;
    }
}

static int count_named(const ls_analysis *a, int kind, int what)
{
    int n = 0;
    for (int i = 0; i < a->n_group; i++) n += is_named(a, kind, what, i);
    return n;
}

/* "a × 2, b × 2 and c × 2" */
static int add_names(const ls_analysis *a, int kind, int what, ls_str *out)
{
    const int n = count_named(a, kind, what);
    for (int i = 0, k = 0; i < a->n_group; i++)
        if (is_named(a, kind, what, i))
            ls_str_addf(out, "%s%s", !k ? "" : k + 1 == n ? " and " : ", ", a->group[i].label), k++;
    return n;
}

/* "1.75 times (95 %: 1.30 to 2.36)"; of several "1.60 to 1.75 times". */
static void add_ratios(const ls_analysis *a, int kind, int what, ls_str *out)
{
    double lo = INFINITY, hi = 0;
    int n = 0;
    const ls_ratio *last = NULL;
    for (int i = 0; i < a->n_group; i++) {
        if (!is_named(a, kind, what, i)) continue;
        last = &a->group[i].over_base;
        lo = fmin(lo, last->ratio), hi = fmax(hi, last->ratio);
        n++;
    }
    if (n == 1) ls_str_addf(out, "%.2f times (95 %%: %.2f to %.2f)", last->ratio, last->low, last->high);
    else ls_str_addf(out, "%.2f to %.2f times", lo, hi);
}

static void rate_words(const ls_group *g, ls_str *out)
{
    ls_str_addf(out, "%.*f tokens/s", g->tokens.mean < 100, g->tokens.mean);
}

static void winner_words(const ls_analysis *a, int kind, ls_str *out)
{
    const ls_ranking *r = &a->top[kind];
    const ls_group *g = &a->group[r->best], *o = &a->group[r->second];
    ls_str_addf(out, "Fastest: %s (", g->label);
    rate_words(g, out);
    if (has_base(a, r->best) && g->over_base.p >= 0)
        ls_str_addf(out, ", %.2f times one worker, 95 %%: %.2f to %.2f", g->over_base.ratio, g->over_base.low,
                    g->over_base.high);
    ls_str_addf(out, "). Next is %s (", o->label);
    rate_words(o, out);
    ls_str_addf(out, "): %s is %.2f times as fast (95 %%: %.2f to %.2f).", g->label, o->of_best.ratio, o->of_best.low,
                o->of_best.high);
    if (!count_named(a, kind, ALSO_FAST)) return;
    ls_str_add(out, " Also faster than one worker: ");
    add_names(a, kind, ALSO_FAST, out);
    ls_str_add(out, ", ");
    add_ratios(a, kind, ALSO_FAST, out);
    ls_str_addc(out, '.');
}

/* Without a winner: the settings that lead. */
static void leaders_words(const ls_analysis *a, int kind, ls_str *out)
{
    const char *best = a->group[a->top[kind].best].label;
    const int n_fast = count_named(a, kind, FAST), n_behind = count_named(a, kind, FAST_BEHIND);
    if (!n_fast) {
        const int n = add_names(a, kind, LEAD, out);
        ls_str_add(out, n > 1 ? " lead; among them no difference is shown. Slower than " : " leads. Slower than ");
        ls_str_addf(out, "%s: ", best);
        add_names(a, kind, BEHIND, out);
        ls_str_addc(out, '.');
        return;
    }
    add_names(a, kind, FAST, out);
    ls_str_add(out, n_fast > 1 ? " are faster than one worker, " : " is faster than one worker, ");
    add_ratios(a, kind, FAST, out);
    ls_str_add(out, n_fast > 1 && !n_behind ? "; among them no difference is shown." : ".");
    if (!n_behind) return;
    ls_str_addf(out, " Slower than %s: ", best);
    add_names(a, kind, FAST_BEHIND, out);
    ls_str_add(out, "; among the others no difference is shown.");
}

/* Nothing is shown: what was measured. */
static void open_words(const ls_analysis *a, int kind, ls_str *out)
{
    const ls_ranking *r = &a->top[kind];
    const ls_group *g = &a->group[r->best], *o = has_base(a, r->best) ? &a->group[g->base] : &a->group[r->second];
    const ls_ratio *x = has_base(a, r->best) ? &g->over_base : &o->of_best;
    if (!(x->p >= 0)) {
        ls_str_addf(out, "No winner is shown: %s was %.2f times as fast as %s, in too few runs for an interval.",
                    g->label, x->ratio, o->label);
        return;
    }
    ls_str_addf(
        out,
        "Fastest on average: %s, %.2f times %s (95 %%: %.2f to %.2f, p = %.2g, %d %s). No setting is shown to be faster: "
        "this ratio varies by %.0f %% from %s.",
        g->label, x->ratio, o->label, x->low, x->high, x->p, x->n, x->paired ? "turns" : "runs of each",
        100 * expm1(x->noise), x->paired ? "turn to turn" : "run to run");
}

void ls_ranking_words(const ls_analysis *a, int kind, ls_str *out)
{
    const ls_ranking *r = &a->top[kind];
    const int n_once = count_named(a, kind, ONCE);
    if (r->second < 0) return;
    if (r->winner >= 0) winner_words(a, kind, out);
    else if (count_named(a, kind, FAST) || r->n_behind) leaders_words(a, kind, out);
    else open_words(a, kind, out);
    if (count_named(a, kind, SLOW)) {
        ls_str_add(out, " Slower than one worker: ");
        add_names(a, kind, SLOW, out);
        ls_str_add(out, ", ");
        add_ratios(a, kind, SLOW, out);
        ls_str_addc(out, '.');
    }
    if (!n_once) return;
    int n_all = 0;
    for (int i = 0; i < a->n_group; i++) n_all += is_counted(a, kind, i);
    ls_str_addc(out, ' ');
    if (n_once == n_all) ls_str_add(out, "All settings");
    else add_names(a, kind, ONCE, out);
    ls_str_add(out, n_once > 1 ? " have one run each; repeat them to compare." : " has one run; repeat it to compare.");
}

void ls_correction_words(const ls_analysis *a, const char *before, ls_str *out)
{
    int n = 0;
    for (int kind = 0; kind < a->n_kind; kind++) {
        const ls_ranking *r = &a->top[kind];
        if (!r->n_tested) continue;
        ls_str_addf(
            out, "%s%s%s%d settings, %d pair%s", n ? "; " : before,
            n ? ""
              : "A difference is shown if p is below 1 % and, corrected by Holm for all pairs of settings, below 5 % (",
            ls_kind_words(a, kind), r->n_repeated, r->n_repeated * (r->n_repeated - 1) / 2,
            r->n_repeated > 2 ? "s" : "");
        n++;
    }
    if (n) ls_str_add(out, ").");
}

void ls_winner_words(const ls_analysis *a, ls_str *out)
{
    const size_t before = out->len;
    for (int kind = 0; kind < a->n_kind; kind++) {
        if (a->top[kind].second < 0) continue;
        if (out->len > before) ls_str_addc(out, ' ');
        else if (a->allowed) ls_allowed_words(a, out), ls_str_addc(out, ' ');
        ls_str_add(out, ls_kind_words(a, kind));
        ls_ranking_words(a, kind, out);
    }
    if (out->len == before) return;
    ls_beyond_words(a, " ", out);
    ls_correction_words(a, " ", out);
}

/* The spread of the runs of a group, as a share; NaN: fewer than three. */
static double spread_of(const ls_group *g)
{
    return g->n_run > 2 ? g->tokens.stdev / g->tokens.mean : NAN;
}

/* The median spread of the groups that a base is compared with; NaN: none is known. */
static double usual_spread(const ls_analysis *a, int base, double *x)
{
    int n = 0;
    for (int i = 0; i < a->n_group; i++)
        if (has_base(a, i) && a->group[i].base == base && spread_of(&a->group[i]) >= 0)
            x[n++] = spread_of(&a->group[i]);
    qsort(x, (size_t)n, sizeof *x, ls_by_value);
    return ls_median(x, n);
}

/* "Efficiency above 100 %: a × 2 (119 % …)." and the like; returns how many groups are named. */
static int beyond_list(const ls_analysis *a, bool compute, const char *head, ls_str *out)
{
    int n = 0;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const ls_waterfall *w = &g->waterfall;
        if (g->world < 2 || g->base < 0) continue;
        if (compute ? !w->split || w->lost[LS_SPLIT_FORWARD] > -0.05 : !(g->efficiency.mean > 1.05)) continue;
        ls_str_addf(out, "%s%s (", n++ ? ", " : head, g->label);
        if (compute) ls_str_addf(out, "%.0f %% of a step)", 100 * w->lost[LS_SPLIT_FORWARD]);
        else ls_str_addf(out, "%.0f %% of ideal over %s)", 100 * g->efficiency.mean, a->group[g->base].label);
    }
    if (n) ls_str_addc(out, '.');
    return n;
}

void ls_beyond_words(const ls_analysis *a, const char *before, ls_str *out)
{
    double *x = ls_alloc((size_t)(a->n_group + 1) * sizeof *x);
    ls_str s = {0};
    bool once = false;
    int n = beyond_list(a, false, "Efficiency above 100 %: ", &s);
    n += beyond_list(a, true, n ? " Compute takes less than its share: " : "Compute takes less than its share: ", &s);
    for (int i = 0; i < a->n_group && x; i++) {
        const ls_group *g = &a->group[i];
        const double usual = usual_spread(a, i, x), spread = spread_of(g);
        once = once || (g->world > 1 && g->base >= 0 && g->efficiency.mean > 1.05 &&
                        (g->n_run == 1 || a->group[g->base].n_run == 1));
        if (!(spread > 0.02 && spread > 3 * usual)) continue;
        ls_str_addf(
            &s,
            "%sThe baseline was disturbed: the runs of %s vary by %.1f %%, those of the others by %.1f %% (median).",
            n++ ? " " : "", g->label, 100 * spread, 100 * usual);
    }
    if (once) ls_str_add(&s, " Single runs do not show that: the runs may have met different conditions; repeat them.");
    else if (n)
        ls_str_add(
            &s,
            " Either the runs on one worker were slowed by other work, or a share of the problem fits the caches better: repeat them on a quiet machine.");
    if (n) ls_str_addf(out, "%s%s", before, s.data ? s.data : "");
    out->failed = out->failed || s.failed || !x;
    ls_str_fini(&s);
    ls_free(x);
}
