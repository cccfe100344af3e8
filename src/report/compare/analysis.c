/* analysis.c - groups, comparability, speed-ups, waterfall. */
#include "report/compare/analysis.h"
#include "core/mem.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- likeness --- */

/* Equal as in Python: 16 and 16.0 are equal. */
static bool alike(const json_t *a, const json_t *b)
{
    if (!a || !b || json_is_null(a) || json_is_null(b)) return (!a || json_is_null(a)) == (!b || json_is_null(b));
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (!json_is_object(a) || !json_is_object(b)) return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b)) return false;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)a, key,
                        v) if (!json_object_get(b, key) || !alike(v, json_object_get(b, key))) return false;
    return true;
}

static bool in_comparison(const ls_run *r)
{
    return r->world > 0 && r->metrics;
}

/* No step is left after the warm-up. */
static bool is_short(const ls_run *r)
{
    return r->n_step && r->n_step <= ls_run_first(r);
}

/* Whether a run counts where speeds are compared. */
static bool is_benchmark(const ls_analysis *a, const ls_run *r)
{
    if (a->steady && is_short(r)) return false; /* else it would change the basis of all speeds */
    if (r->resumed && !a->steady) return false; /* whole epochs include the steps before */
    return in_comparison(r) && !r->profiled && !r->changed && !(r->events && r->events->seen.resizes);
}

/* Sequences of a step and worker; NaN if unknown. */
static double batch_by_worker(const ls_run *r)
{
    const json_t *g = json_object_get(json_object_get(r->metrics, "training_config"), "global_batch_size");
    return json_is_number(g) ? json_number_value(g) / r->world : NAN;
}

static int kind_of(const ls_analysis *a, const ls_run *r)
{
    const bool pipeline = !strncmp(r->strategy, "pp", 2) || strstr(r->strategy, " pp");
    return a->n_kind > 1 && pipeline ? LS_KIND_PIPELINE : LS_KIND_ALL;
}

/* Whether two runs trained on as many sequences, up to the incomplete batch of each epoch. */
static bool same_sequences(const ls_run *x, const ls_run *y)
{
    const double bx = batch_by_worker(x) * x->world, by = batch_by_worker(y) * y->world;
    const int epochs = x->n_epoch > y->n_epoch ? x->n_epoch : y->n_epoch;
    return fabs(x->n_update * bx - y->n_update * by) < epochs * fmax(bx, by);
}

/* What weak scaling changes on purpose. */
static bool excused(const ls_analysis *a, const char *field, const ls_run *base, const ls_run *r)
{
    if (!a->weak) return false;
    return !strcmp(field, "epochs") || (!strcmp(field, "optimizer_steps") && same_sequences(base, r)) ||
           (!strcmp(field, "global_batch_size") && batch_by_worker(base) == batch_by_worker(r));
}

static const char *const fields[] = {
    "seq_len", "dataset_name", "dataset_subset_sizes", "global_batch_size", "epochs", "model_size", "precision"};
enum { N_FIELD = sizeof fields / sizeof *fields };

/* The differences between a run and the baseline: the scaling study's seven fields, then the number of steps. */
static void compare_run(ls_analysis *a, int i, int baseline)
{
    const ls_run *first = &a->set->run[baseline], *r = &a->set->run[i];
    const json_t *base = json_object_get(first->metrics, "training_config"),
                 *other = json_object_get(r->metrics, "training_config");
    for (int k = 0; k < N_FIELD; k++) {
        const json_t *x = json_object_get(base, fields[k]), *y = json_object_get(other, fields[k]);
        if (alike(x, y) || excused(a, fields[k], first, r)) continue;
        if (a->precisions && !strcmp(fields[k], "precision")) a->other_precision = true;
        else a->mismatch[a->n_mismatch++] = (ls_mismatch){fields[k], x, y, i, baseline};
    }
    if (first->n_update_json && r->n_update_json && first->n_update != r->n_update &&
        !excused(a, "optimizer_steps", first, r))
        a->mismatch[a->n_mismatch++] =
            (ls_mismatch){"optimizer_steps", first->n_update_json, r->n_update_json, i, baseline};
}

static ls_status find_mismatches(ls_analysis *a)
{
    const ls_run_set *set = a->set;
    const size_t most = (size_t)set->n * (N_FIELD + 1) + 1;
    a->baseline = -1;
    a->mismatch = ls_alloc(most * sizeof *a->mismatch);
    if (!a->mismatch) return ls_nomem(most * sizeof *a->mismatch, "mismatches");
    for (int kind = 0; kind < a->n_kind; kind++) {
        int baseline = -1; /* sorted: the fewest workers, first given */
        for (int i = 0; i < set->n; i++) {
            if (!is_benchmark(a, &set->run[i]) || kind_of(a, &set->run[i]) != kind) continue;
            if (baseline < 0) baseline = i;
            compare_run(a, i, baseline);
        }
        if (a->baseline < 0) a->baseline = baseline;
    }
    return LS_OK;
}

/* Files of the scaling study: only `precision` differs, and only between one worker and several. */
static bool of_engines(const ls_analysis *a)
{
    for (int i = 0; i < a->n_mismatch; i++) {
        const ls_run *r = &a->set->run[a->mismatch[i].run], *b = &a->set->run[a->mismatch[i].base];
        if (strcmp(a->mismatch[i].field, "precision") || b->world != 1 || r->world < 2) return false;
        if (json_object_get(r->metrics, "lockstep") || json_object_get(b->metrics, "lockstep")) return false;
    }
    return a->n_mismatch > 0;
}

void ls_allowed_words(const ls_analysis *a, ls_str *out)
{
    const ls_mismatch *m = a->mismatch;
    const char *x = a->engines ? json_string_value(m->baseline) : NULL, *y = x ? json_string_value(m->other) : NULL;
    if (x && y)
        ls_str_addf(
            out,
            "mismatch_allowed: precision is %s on one worker and %s on several, so speed-ups include this difference.",
            x, y);
    else ls_str_add(out, "mismatch_allowed: the runs are not comparable, so differences include different work.");
}

/* --- groups --- */

static ls_status add_to_group(ls_analysis *a, int i)
{
    const ls_run *r = &a->set->run[i];
    ls_group *g = NULL;
    for (int k = 0; k < a->n_group && !g; k++)
        if (a->group[k].world == r->world && !strcmp(a->group[k].first->setting, r->setting)) g = &a->group[k];
    if (!g) {
        g = &a->group[a->n_group];
        g->run = ls_alloc((size_t)a->set->n * sizeof *g->run);
        if (!g->run) return ls_nomem((size_t)a->set->n * sizeof *g->run, "a group of runs");
        g->world = r->world;
        g->kind = kind_of(a, r);
        g->no_benchmark = !is_benchmark(a, r);
        g->interrupted = r->resumed || (r->events && ls_was_interrupted(r->events));
        g->first = r;
        g->over_base = g->of_best = ls_ratio_of(NULL, 0, NULL, 0, true); /* not known */
        a->n_group++;
    }
    g->run[g->n_run++] = i;
    return LS_OK;
}

/* True when some line of `text` is `line` (n bytes). */
static bool has_line(const char *text, const char *line, size_t n)
{
    for (const char *p = text; *p;) {
        size_t k = strcspn(p, "\n");
        if (k == n && !memcmp(p, line, n)) return true;
        p += k + (p[k] == '\n');
    }
    return false;
}

/* A layout over all workers has one name on any number of them: "pp4 1f1b" on 4 is "pp (1f1b)", "tp4" is "tp". */
static void plain_name(const ls_run *r, char *buf, size_t cap)
{
    const char *s = r->strategy;
    char *end = NULL;
    const bool pp = !strncmp(s, "pp", 2), tp = !strncmp(s, "tp", 2);
    const long n = pp || tp ? strtol(s + 2, &end, 10) : 0;
    const bool whole = end && end > s + 2 && n == r->world && n > 1 && !strstr(s, " tp");
    if (whole && !*end) snprintf(buf, cap, "%.2s", s);
    else if (whole && pp && *end == ' ') snprintf(buf, cap, "pp (%s)", end + 1);
    else snprintf(buf, cap, "%s", s);
}

/* "bucket 7"; of a switch its name alone. */
static void add_difference(ls_str *s, const char *line, size_t n)
{
    const bool on = n > 3 && !memcmp(line + n - 3, " on", 3);
    ls_str_addf(s, "%s%.*s", s->len ? ", " : " (", (int)(on ? n - 3 : n), line);
}

/* What a reader has to know of any group that has it. */
static bool is_mark(const char *line, size_t n)
{
    static const char resumed[] = "resumed_from_step ";
    return has_line("profiled on\nresized on\ninterrupted on\n", line, n) ||
           (n >= sizeof resumed && !memcmp(line, resumed, sizeof resumed - 1));
}

/* The strategy, and what distinguishes this group from others with as many workers and the same strategy. */
static ls_status name_group(const ls_analysis *a, ls_group *g)
{
    ls_str s = {0};
    char plain[160];
    for (const char *p = g->first->setting; *p;) {
        size_t n = strcspn(p, "\n");
        bool differs = is_mark(p, n);
        for (int k = 0; k < a->n_group; k++) {
            const ls_group *o = &a->group[k];
            if (o == g || o->world != g->world || strcmp(o->first->strategy, g->first->strategy)) continue;
            if (o->no_benchmark && !g->no_benchmark) continue; /* it is not compared with this one */
            differs = differs || !has_line(o->first->setting, p, n);
        }
        if (differs) add_difference(&s, p, n);
        p += n + (p[n] == '\n');
    }
    if (s.len) ls_str_addc(&s, ')');
    plain_name(g->first, plain, sizeof plain);
    const bool failed = s.failed;
    g->short_name = ls_asprintf("%s%s", plain, s.data ? s.data : "");
    g->label =
        g->short_name ? ls_asprintf("%s \xc3\x97 %d", g->short_name, g->world) : NULL; /* a multiplication sign */
    ls_str_fini(&s);
    return g->label && !failed ? LS_OK : ls_nomem(96, "the name of a setting");
}

/* Interval of a single run's throughput, from ten blocks of its steps (all of them: a block has one more than another where they do
 * not divide), carried over to the mean. */
static void interval_within(const ls_run *r, ls_estimate *e)
{
    enum { BLOCKS = 10 };
    const int n = r->n_step - ls_run_first(r);
    double block[BLOCKS];
    if (n < BLOCKS || e->n != 1) return;
    for (int b = 0; b < BLOCKS; b++) {
        int from = (int)((int64_t)b * n / BLOCKS), to = (int)((int64_t)(b + 1) * n / BLOCKS);
        double time = 0;
        for (int i = from; i < to; i++) time += r->step[ls_run_first(r) + i].time;
        block[b] = time > 0 ? (to - from) / time : NAN;
    }
    ls_estimate w = ls_estimate_of(block, BLOCKS);
    if (!(w.mean > 0) || isnan(w.half)) return;
    e->half = e->mean * w.half / w.mean;
    e->within = true;
}

static double run_value(const ls_run *r, int what)
{
    return what == 0   ? r->tokens_per_sec
           : what == 1 ? r->epoch_time
           : what == 2 ? r->wall
                       : r->tokens_per_update / r->step_time;
}

double ls_run_rate(const ls_analysis *a, const ls_run *r)
{
    return run_value(r, a->steady ? 3 : 0);
}

const char *ls_basis_of(const ls_analysis *a)
{
    bool later = a->n_group > 0;
    for (int i = 0; i < a->n_group; i++) later = later && a->group[i].first->later_epochs;
    return a->steady ? "steps after the warm-up" : later ? "epochs after the first" : "whole epochs";
}

static void whole_epochs_words(const ls_analysis *a, ls_str *out)
{
    const ls_run *few = NULL;
    bool any_later = false;
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (!in_comparison(r)) continue;
        any_later = any_later || r->later_epochs;
        if (!few && r->n_step && r->n_step - r->n_before <= a->short_of) few = r;
    }
    if (!strcmp(ls_basis_of(a), "epochs after the first")) {
        ls_str_add(out,
                   "Speeds are of the epochs after the first of each run, as it recorded them: the first is warm-up.");
        return;
    }
    ls_str_add(out, "Speeds are of whole epochs as the runs recorded them, warm-up included");
    if (any_later)
        ls_str_add(
            out,
            "; those of the translation study are of the epochs after the first, so they cannot be compared with the others");
    else if (few)
        ls_str_addf(out, ": %s has %d %s, none after a warm-up of %d", few->name, few->n_step - few->n_before,
                    few->n_step - few->n_before == 1 ? "step" : "steps", a->short_of);
    else ls_str_add(out, ": not every run has a metrics.jsonl with times of steps");
    ls_str_addc(out, '.');
}

static void resumed_words(const ls_analysis *a, ls_str *out)
{
    bool any = false;
    for (int i = 0; i < a->set->n; i++) any = any || (in_comparison(&a->set->run[i]) && a->set->run[i].n_before);
    if (any) ls_str_add(out, " Of a run that was resumed, the steps before that are left out, too.");
}

void ls_basis_words(const ls_analysis *a, ls_str *out)
{
    if (!a->steady) {
        whole_epochs_words(a, out);
        return;
    }
    if (!a->warm_hi) ls_str_add(out, "Speeds are of all steps: the runs are too short for a warm-up to be left out.");
    else if (a->warm_hi == 1 && a->warm_lo == 1)
        ls_str_add(out, "Speeds are of the steps after the warm-up: the first of each run is left out.");
    else if (a->warm_lo == a->warm_hi)
        ls_str_addf(out, "Speeds are of the steps after the warm-up: the first %d of each run are left out.",
                    a->warm_hi);
    else
        ls_str_addf(out, "Speeds are of the steps after the warm-up: the first %d to %d of a run are left out.",
                    a->warm_lo, a->warm_hi);
    resumed_words(a, out);
    int n = 0;
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (in_comparison(r) && is_short(r))
            ls_str_addf(out, "%s%s (%d %s)",
                        n++ ? ", " : " Not compared, since no step is left after the warm-up: ", r->name,
                        r->n_step - r->n_before, r->n_step - r->n_before == 1 ? "step" : "steps");
    }
    if (n) ls_str_addc(out, '.');
}

static ls_status measure_group(const ls_analysis *a, ls_group *g)
{
    double *x = ls_alloc((size_t)g->n_run * sizeof *x);
    if (!x) return ls_nomem((size_t)g->n_run * sizeof *x, "repeats");
    ls_estimate *e[] = {&g->recorded, &g->epoch_time, &g->wall};
    for (int what = 0; what < 3; what++) {
        for (int i = 0; i < g->n_run; i++) x[i] = run_value(&a->set->run[g->run[i]], what);
        *e[what] = ls_estimate_of(x, g->n_run);
    }
    for (int i = 0; i < g->n_run; i++) x[i] = ls_run_rate(a, &a->set->run[g->run[i]]);
    g->tokens = ls_geometric_of(x, g->n_run);
    if (g->n_run == 1) interval_within(g->first, &g->tokens);
    g->step_time = NAN;
    for (int k = 0; k < LS_N_SPLIT; k++) {
        for (int i = 0; i < g->n_run; i++) x[i] = a->set->run[g->run[i]].split[k];
        g->split[k] = ls_estimate_of(x, g->n_run).mean;
        if (g->split[k] > 0) g->step_time = (isnan(g->step_time) ? 0 : g->step_time) + g->split[k];
    }
    g->split_of_steps = true;
    for (int i = 0; i < g->n_run; i++) {
        const ls_run *r = &a->set->run[g->run[i]];
        g->split_of_steps = g->split_of_steps && r->split_of_steps;
        g->split_warm_lo = !i || r->n_warm < g->split_warm_lo ? r->n_warm : g->split_warm_lo;
        g->split_warm_hi = !i || r->n_warm > g->split_warm_hi ? r->n_warm : g->split_warm_hi;
        x[i] = r->step_time;
    }
    const double geometric = ls_geometric_of(x, g->n_run).mean, scale = geometric / g->step_time;
    for (int k = 0; k < LS_N_SPLIT && g->split_of_steps && scale > 0; k++) g->split[k] *= scale;
    if (g->split_of_steps && scale > 0) g->step_time = geometric;
    ls_free(x);
    return LS_OK;
}

/* --- speed-up and waterfall --- */

/* Lines of a setting that another one has, too. */
static int equal_lines(const char *x, const char *y)
{
    int n = 0;
    for (const char *p = x; *p;) {
        const size_t k = strcspn(p, "\n");
        n += has_line(y, p, k);
        p += k + (p[k] == '\n');
    }
    return n;
}

/* The group on one worker whose setting is nearest: the same strategy before others, then the fewest lines that only one of the two has,
 * then the first by its lines, whatever the order in which the runs were given; -1: none. */
static int find_base(const ls_analysis *a, const ls_group *g)
{
    int base = -1, most = INT_MIN;
    for (int k = 0; k < a->n_group; k++) {
        const ls_group *o = &a->group[k];
        if (o->world != 1 || o->no_benchmark || o->kind != g->kind) continue;
        const int same = !strcmp(o->first->strategy, g->first->strategy);
        const int equal = equal_lines(g->first->setting, o->first->setting);
        const int other = equal_lines(o->first->setting, o->first->setting) - equal; /* lines that only the base has */
        const int score = 20000 * same + 2 * (equal - other) + !o->interrupted;
        if (score > most || (score == most && strcmp(o->first->setting, a->group[base].first->setting) < 0))
            most = score, base = k;
    }
    return base;
}

static ls_status compare_with_base(const ls_analysis *a, ls_group *g)
{
    g->base = -1;
    g->speedup = g->efficiency = (ls_estimate){.mean = NAN, .stdev = NAN, .half = NAN};
    g->speedup_r1 = NAN;
    if (!a->comparable || g->no_benchmark) return LS_OK;
    g->base = find_base(a, g);
    if (g->base < 0) return LS_OK;
    const ls_group *b = &a->group[g->base];
    double base = b->first->tokens_per_sec;
    if (g->tokens.mean >= 0 && b->tokens.mean > 0) {
        if (g != b) LS_TRY(ls_group_ratio(a, b, g, &g->over_base));
        g->speedup.mean = g->over_base.ratio;
        g->speedup.half = (g->over_base.high - g->over_base.low) / 2;
    } else if (b->epoch_time.mean > 0 && g->epoch_time.mean > 0) {
        g->speedup.mean = b->epoch_time.mean / g->epoch_time.mean;
    }
    if (g->recorded.mean >= 0 && base > 0) g->speedup_r1 = g->recorded.mean / base;
    else if (g->epoch_time.mean > 0) g->speedup_r1 = b->first->epoch_time / g->epoch_time.mean;
    if (g == b) g->speedup.mean = g->speedup_r1 = 1.0, g->speedup.half = NAN;
    g->speedup.n = g->efficiency.n = g->tokens.n;
    g->efficiency.mean = g->speedup.mean / g->world;
    g->efficiency.half = g->speedup.half / g->world;
    return LS_OK;
}

static double or_zero(double x)
{
    return isnan(x) ? 0 : x;
}

static bool has_split(const ls_group *g)
{
    return g->split[LS_SPLIT_FORWARD] > 0 || g->split[LS_SPLIT_BACKWARD] > 0;
}

/* A part that workers share out takes 1/W of its time on one worker when all is ideal (weak scaling: all of it, for W times the
 * tokens); what it takes more is lost. Whatever the parts do not explain is "other", so the shares sum to one. */
static void make_waterfall(const ls_analysis *a, ls_group *g)
{
    ls_waterfall *w = &g->waterfall;
    if (g->base < 0 || isnan(g->efficiency.mean) || !(g->tokens.mean > 0) || g->world < 2) return;
    const ls_group *b = &a->group[g->base];
    double tokens = g->first->tokens_per_update, T = tokens / g->tokens.mean, sum = 0;
    w->known = true;
    w->useful = g->efficiency.mean;
    w->split = has_split(g) && has_split(b) && T > 0;
    const double grown = tokens / b->first->tokens_per_update, ideal = (isnan(grown) ? 1 : grown) / g->world;
    for (int k = 0; k < LS_N_SPLIT && w->split; k++) {
        int into = k == LS_SPLIT_BACKWARD ? LS_SPLIT_FORWARD : k;
        if (k == LS_SPLIT_OTHER) continue;
        double lost = (or_zero(g->split[k]) - or_zero(b->split[k]) * ideal) / T;
        w->lost[into] += lost;
        sum += lost;
    }
    w->lost[LS_SPLIT_OTHER] = 1 - w->useful - sum;
}

bool ls_overlap(const ls_estimate *a, const ls_estimate *b)
{
    if (a->within || b->within) return true;
    return !(fabs(a->mean - b->mean) > a->half + b->half); /* true for NaN */
}

/* --- words --- */

static double loss_of(const ls_analysis *a, const ls_group *g, int i, bool validation)
{
    const ls_run *r = &a->set->run[g->run[i]];
    return validation ? r->val_loss : r->train_loss;
}

/* Whether every run has a seed, and runs with one seed have one loss. */
static bool seed_decides(const ls_analysis *a, const ls_group *g, bool validation)
{
    for (int i = 0; i < g->n_run; i++)
        for (int k = 0; k <= i; k++) {
            const ls_run *x = &a->set->run[g->run[i]], *y = &a->set->run[g->run[k]];
            const double dx = loss_of(a, g, i, validation), dy = loss_of(a, g, k, validation);
            if (x->seed < 0 || (x->seed == y->seed && dx != dy)) return false;
        }
    return g->n_run <= 8;
}

void ls_loss_words(const ls_analysis *a, const ls_group *g, bool validation, bool by_seed, ls_str *out)
{
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < g->n_run; i++) {
        const double x = loss_of(a, g, i, validation);
        lo = fmin(lo, x), hi = fmax(hi, x); /* ignore NaN */
    }
    if (!(hi >= lo)) ls_str_add(out, "\xe2\x80\x93");
    else if (lo == hi) ls_str_addf(out, "%.4f", lo);
    else if (!by_seed || !seed_decides(a, g, validation)) ls_str_addf(out, "%.4f to %.4f", lo, hi);
    else
        for (int i = 0, n = 0; i < g->n_run; i++) {
            const ls_run *r = &a->set->run[g->run[i]];
            bool again = false;
            for (int k = 0; k < i; k++) again = again || a->set->run[g->run[k]].seed == r->seed;
            if (again) continue;
            ls_str_addf(out, "%sseed %lld: %.4f", n++ ? ", " : "", (long long)r->seed, loss_of(a, g, i, validation));
        }
}

/* --- what else a sceptic would ask --- */

bool ls_same_losses(const ls_run *a, const ls_run *b)
{
    if (!a->n_step || a->n_step != b->n_step) return false;
    for (int i = 0; i < a->n_step; i++)
        if (a->step[i].step != b->step[i].step || !(a->step[i].loss == b->step[i].loss)) return false;
    return true;
}

static void look_at_all(ls_analysis *a)
{
    const ls_run *first = NULL;
    char commit[24] = "";
    a->same_loss = true;
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        char c[24];
        ls_run_commit(r->metrics, c);
        if (*c && *commit && strcmp(c, commit)) a->several_commits = true;
        if (*c) memcpy(commit, c, sizeof commit);
        if (!r->n_step) continue;
        a->n_loss++;
        if (first && !ls_same_losses(first, r)) a->same_loss = false;
        if (!first) first = r;
    }
    a->same_loss = a->same_loss && a->n_loss > 1;
}

/* By workers, then by speed; what is no benchmark last. */
static void sort_groups(ls_analysis *a)
{
    for (int i = 1; i < a->n_group; i++) {
        const ls_group g = a->group[i];
        int k = i;
        for (; k > 0 && a->group[k - 1].world == g.world; k--) {
            const ls_group *o = &a->group[k - 1];
            if (o->no_benchmark == g.no_benchmark ? !(g.tokens.mean > o->tokens.mean) : g.no_benchmark) break;
            a->group[k] = *o;
        }
        a->group[k] = g;
    }
}

ls_status ls_analyse(const ls_run_set *set, const ls_compare_opts *o, ls_analysis *out)
{
    const ls_compare_opts off = {0};
    o = o ? o : &off;
    ls_analysis a = {.set = set,
                     .baseline = -1,
                     .n_kind = o->apart ? LS_N_KIND : 1,
                     .weak = o->weak,
                     .precisions = o->precisions,
                     .steady = o->steady,
                     .short_of = o->short_of};
    ls_status st = LS_OK;
    bool benchmarks = false, all_short = true;
    for (int i = 0; i < set->n; i++) all_short = all_short && (is_short(&set->run[i]) || !in_comparison(&set->run[i]));
    if (all_short) a.steady = false;
    for (int i = 0; i < set->n; i++) benchmarks = benchmarks || is_benchmark(&a, &set->run[i]);
    for (int i = 0, n = 0; i < set->n; i++) {
        const ls_run *r = &set->run[i];
        if (benchmarks ? !is_benchmark(&a, r) : !in_comparison(r)) continue;
        if (!(run_value(r, 3) > 0)) a.steady = false; /* never one kind of number against the other */
        if (!n || r->n_warm < a.warm_lo) a.warm_lo = r->n_warm;
        if (!n++ || r->n_warm > a.warm_hi) a.warm_hi = r->n_warm;
    }
    a.group = ls_alloc((size_t)(set->n + 1) * sizeof *a.group);
    if (!a.group) return ls_nomem((size_t)set->n * sizeof *a.group, "groups of runs");
    LS_TRY_GOTO(st, fail, find_mismatches(&a));
    for (int i = 0; i < set->n; i++)
        if (in_comparison(&set->run[i])) LS_TRY_GOTO(st, fail, add_to_group(&a, i));
    a.engines = of_engines(&a);
    a.allowed = (o->allow_mismatch || a.engines) && a.n_mismatch;
    a.comparable = a.baseline >= 0 && (!a.n_mismatch || a.allowed);
    for (int i = 0; i < a.n_group; i++) {
        LS_TRY_GOTO(st, fail, name_group(&a, &a.group[i]));
        LS_TRY_GOTO(st, fail, measure_group(&a, &a.group[i]));
    }
    sort_groups(&a);
    for (int i = 0; i < a.n_group; i++) {
        LS_TRY_GOTO(st, fail, compare_with_base(&a, &a.group[i]));
        make_waterfall(&a, &a.group[i]);
    }
    for (int kind = 0; kind < LS_N_KIND; kind++) LS_TRY_GOTO(st, fail, ls_rank(&a, kind));
    look_at_all(&a);
    *out = a;
    return LS_OK;
fail:
    ls_analysis_fini(&a);
    return st;
}

void ls_analysis_fini(ls_analysis *a)
{
    for (int i = 0; i < a->n_group; i++) {
        ls_free(a->group[i].run);
        ls_free(a->group[i].label);
        ls_free(a->group[i].short_name);
    }
    ls_free(a->group);
    ls_free(a->mismatch);
    *a = (ls_analysis){.baseline = -1, .top = {LS_NO_RANKING, LS_NO_RANKING}};
}
