/* summary.c - the first screen of a report: the fastest setting, by how much, why, and what is uncertain. */
#include "report/page/content.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *workers_word(int n)
{
    return n == 1 ? "worker" : "workers";
}

static const char *rate_text(char buf[96], const ls_estimate *e)
{
    return content_estimate_text(buf, e, e->mean < 100 ? 1 : 0);
}

/* The useful share and the largest lost ones: "... the rest is: 4.1 % exposed communication, 2.0 % compute slowdown." */
static void lost_words(const ls_waterfall *w, ls_str *out)
{
    bool used[LS_N_SPLIT] = {0};
    for (int n = 0; n < 3; n++) {
        int most = -1;
        for (int k = 0; k < LS_N_SPLIT; k++)
            if (!used[k] && w->lost[k] >= 0.002 && (most < 0 || w->lost[k] > w->lost[most])) most = k;
        if (most < 0) break;
        used[most] = true;
        if (!n) ls_str_addf(out, "%.1f %% of the time of its steps is useful work; the rest is: ", 100 * w->useful);
        ls_str_addf(out, "%s%.1f %% %s", n ? ", " : "", 100 * w->lost[most], content_part_words(most));
    }
    if (out->len) ls_str_addc(out, '.');
}

static void say_lost(const ls_group *g, ls_doc *d)
{
    const ls_waterfall *w = &g->waterfall;
    if (!w->known) return;
    if (!w->split) {
        ls_doc_add(
            d, LS_BLOCK_TEXT,
            "%.1f %% of the ideal is lost. The cause is not known: the run did not record the parts of its steps.",
            100 * (1 - w->useful));
        return;
    }
    ls_str s = {0};
    if (w->useful < 1) lost_words(w, &s); /* above ideal: ls_beyond_words */
    ls_doc_take(d, LS_BLOCK_TEXT, &s);
}

/* Which part makes the runner-up slower; both must have recorded their steps. */
static void say_why(const ls_group *best, const ls_group *second, ls_doc *d)
{
    int most = -1;
    double diff[LS_N_SPLIT], total = 0;
    for (int k = 0; k < LS_N_SPLIT; k++) {
        diff[k] = (isnan(second->split[k]) ? 0 : second->split[k]) - (isnan(best->split[k]) ? 0 : best->split[k]);
        total += diff[k];
        if (most < 0 || diff[k] > diff[most]) most = k;
    }
    if (!(total > 0) || diff[most] <= 0 || isnan(best->step_time) || isnan(second->step_time)) return;
    if (best->split_of_steps != second->split_of_steps) return; /* one with its warm-up, one without */
    ls_doc_add(
        d, LS_BLOCK_TEXT,
        "Why: a step of %s takes %.1f ms, one of %s %.1f ms. The largest part of the difference is %s (%+.1f ms).",
        best->label, 1000 * best->step_time, second->label, 1000 * second->step_time, ls_split[most].words,
        1000 * diff[most]);
}

/* Which settings lead, and why the winner does. */
static void say_ranking(const ls_analysis *a, int kind, ls_doc *d)
{
    const ls_ranking *r = &a->top[kind];
    ls_str s = {0};
    ls_str_add(&s, ls_kind_words(a, kind));
    ls_ranking_words(a, kind, &s);
    ls_doc_take(d, LS_BLOCK_LEAD, &s);
    if (r->winner < 0) return;
    say_why(&a->group[r->best], &a->group[r->second], d);
    say_lost(&a->group[r->best], d);
}

static void say_only(const ls_analysis *a, const ls_group *g, ls_doc *d)
{
    char rate[96];
    ls_doc_add(d, LS_BLOCK_LEAD, "%s%s on %d %s: %s tokens per second.", ls_kind_words(a, g->kind), g->short_name,
               g->world, workers_word(g->world), rate_text(rate, &g->tokens));
}

/* Of a winner, or of the only setting. */
static void cards(const ls_analysis *a, const ls_group *g, bool fastest, ls_doc *d)
{
    ls_block *b = ls_doc_add(d, LS_BLOCK_CARDS, NULL);
    ls_str loss = {0}, val = {0};
    ls_doc_cells(d, b, fastest ? "Fastest" : "Setting", g->label,
                 LS_TEXT("%d %s, %d %s", g->world, workers_word(g->world), g->n_run, g->n_run == 1 ? "run" : "runs"),
                 "Tokens per second", LS_NUM(g->tokens.mean, g->tokens.mean < 100 ? 1 : 0),
                 g->tokens.half >= 0
                     ? LS_TEXT("\xc2\xb1 %.1f %% (95 %%, over %s)", 100 * g->tokens.half / g->tokens.mean,
                               g->tokens.within ? "the steps of one run" : "repeats")
                     : "one run, no interval");
    if (!isnan(g->speedup.mean) && g->world > 1)
        ls_doc_cells(d, b, "Speed-up", LS_TEXT("%.2f \xc3\x97", g->speedup.mean),
                     LS_TEXT("%.0f %% of ideal", 100 * g->efficiency.mean));
    ls_loss_words(a, g, false, false, &loss);
    ls_loss_words(a, g, true, false, &val);
    if (!isnan(g->first->train_loss) && loss.data) ls_doc_cells(d, b, "Training loss", loss.data);
    if (!isnan(g->first->train_loss) && loss.data)
        ls_doc_cell(d, b, "%s%s", isnan(g->first->val_loss) ? "mean of the last epoch" : "validation ",
                    isnan(g->first->val_loss) || !val.data ? "" : val.data);
    d->failed = d->failed || loss.failed || val.failed;
    ls_str_fini(&loss);
    ls_str_fini(&val);
    if (g->first->peak_bytes > 0)
        ls_doc_cells(d, b, "Peak memory", ls_human_bytes((char[32]){0}, g->first->peak_bytes), "of rank 0");
}

char *content_json_text(char *buf, size_t n, const json_t *v)
{
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_value(&w, v);
    snprintf(buf, n, "%s", s.data ? s.data : "?");
    ls_str_fini(&s);
    return buf;
}

/* Whether mismatch i is the first of its field among the repeats of a setting; more: how many follow, which have the same values. */
static bool first_of_setting(const ls_analysis *a, int i, int *more)
{
    const ls_mismatch *m = &a->mismatch[i];
    const ls_run *r = &a->set->run[m->run];
    *more = 0;
    for (int k = 0; k < a->n_mismatch; k++) {
        const ls_mismatch *o = &a->mismatch[k];
        const ls_run *x = &a->set->run[o->run];
        if (k == i || o->field != m->field || x->world != r->world || strcmp(x->setting, r->setting)) continue;
        if (k < i) return false;
        ++*more;
    }
    return true;
}

static void say_mismatches(const ls_analysis *a, ls_doc *d)
{
    if (!a->n_mismatch) return;
    ls_str words = {0};
    if (a->allowed) ls_allowed_words(a, &words);
    else
        ls_str_add(
            &words,
            "invalid_comparison: the runs are not comparable, so they are not compared. Each run is reported separately; --allow_mismatch compares them anyway and marks the page.");
    ls_doc_take(d, LS_BLOCK_WARN, &words);
    const bool several = a->mismatch[0].base != a->mismatch[a->n_mismatch - 1].base; /* one of each kind */
    ls_block *b = ls_doc_add(d, LS_BLOCK_TABLE, "Fields that differ from %s",
                             several ? "the baseline" : a->set->run[a->mismatch[0].base].name);
    if (!b) return;
    b->n_col = 4;
    ls_doc_cells(d, b, "runs", "field", "baseline", "these runs");
    int n = 0;
    for (int i = 0; i < a->n_mismatch; i++) {
        const ls_mismatch *m = &a->mismatch[i];
        char base[120], other[120];
        int more;
        if (!first_of_setting(a, i, &more) || ++n > 40) continue;
        if (more) ls_doc_cell(d, b, "%s and %d more", a->set->run[m->run].name, more);
        else ls_doc_cells(d, b, a->set->run[m->run].name);
        ls_doc_cells(d, b, m->field, content_json_text(base, sizeof base, m->baseline),
                     content_json_text(other, sizeof other, m->other));
    }
    if (n > 40) ls_doc_add(d, LS_BLOCK_TEXT, "And %d more.", n - 40);
}

static void say_basis(const ls_analysis *a, ls_doc *d)
{
    ls_str s = {0};
    ls_basis_words(a, &s);
    if (a->n_kind > 1)
        ls_str_add(
            &s,
            " As in the translation study, data parallelism is weak scaling (every worker has the batch of one), and pipelines, whose batch is another, are compared with one another only.");
    else if (a->weak)
        ls_str_add(
            &s,
            " Weak scaling: every worker has the batch of one, so the work grows with the workers, and ideal is the time of one worker.");
    ls_doc_take(d, LS_BLOCK_TEXT, &s);
}

static void doubts(const ls_analysis *a, bool ab, ls_doc *d)
{
    bool within = false, single = false;
    for (int i = 0; i < a->n_group; i++) {
        within = within || (a->group[i].tokens.within && !a->group[i].no_benchmark);
        single = single || (a->group[i].n_run == 1 && !a->group[i].no_benchmark);
    }
    if (a->same_loss)
        ls_doc_add(d, LS_BLOCK_TEXT,
                   "All %d runs have the same loss at every step, bit for bit: they computed the same training.",
                   a->n_loss);
    ls_str beyond = {0}, correction = {0};
    ls_beyond_words(a, "", &beyond);
    ls_doc_take(d, LS_BLOCK_WARN, &beyond);
    if (!ab) ls_correction_words(a, "", &correction);
    ls_doc_take(d, LS_BLOCK_TEXT, &correction);
    if (a->several_commits)
        ls_doc_add(d, LS_BLOCK_WARN,
                   "The runs were made by different commits of the program: a difference may come from the code.");
    if (within)
        ls_doc_add(
            d, LS_BLOCK_TEXT,
            "Where a setting was run once, its interval comes from the steps of that run and does not cover the difference from run to run, so no difference is shown from it; repeats (three or more) cover it.");
    else if (single && a->n_group > 1)
        ls_doc_add(d, LS_BLOCK_TEXT,
                   "A setting that was run once has no interval; three or more repeats would give one.");
}

static void say_profiled(const ls_analysis *a, ls_doc *d)
{
    ls_str names = {0};
    int n = 0;
    for (int i = 0; i < a->set->n; i++)
        if (a->set->run[i].profiled) ls_str_addf(&names, "%s%s", n++ ? ", " : "", a->set->run[i].name);
    if (n)
        ls_doc_add(
            d, LS_BLOCK_WARN,
            "Profiled: %s. A profiler slows a run down, so %s shown, but not compared: a profiled run is no benchmark.",
            names.data ? names.data : "?", n == 1 ? "it is" : "they are");
    d->failed = d->failed || names.failed;
    ls_str_fini(&names);
}

static void say_interrupted(const ls_analysis *a, ls_doc *d)
{
    ls_str names[4] = {{0}, {0}, {0}, {0}}; /* restarted, resized, resumed, resumed in another way */
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (r->resumed) ls_str_addf(&names[2 + r->changed], "%s%s", names[2 + r->changed].len ? ", " : "", r->name);
        if (!r->events || !ls_has_lost_time(r->events)) continue;
        ls_str *s = &names[r->events->seen.resizes > 0];
        ls_str_addf(s, "%s%s", s->len ? ", " : "", r->name);
    }
    if (names[0].len)
        ls_doc_add(
            d, LS_BLOCK_WARN,
            "Interrupted and restarted: %s. The times of steps are valid and are compared, with the first steps after a restart, which may be slower; wall times are not compared.",
            names[0].data);
    if (names[1].len)
        ls_doc_add(d, LS_BLOCK_WARN,
                   "Resized: %s. The number of workers changed during the run, so it is shown, but not compared.",
                   names[1].data);
    if (names[2].len)
        ls_doc_add(
            d, LS_BLOCK_WARN,
            "Resumed: %s. The steps before that may have had other options, so speeds are of the steps after it; wall times are not compared.",
            names[2].data);
    if (names[3].len)
        ls_doc_add(
            d, LS_BLOCK_WARN,
            "Resumed with other workers, layout, batch, precision or device: %s. The parts of the run are different, so it is shown, but not compared.",
            names[3].data);
    for (int i = 0; i < 4; i++) {
        d->failed = d->failed || names[i].failed;
        ls_str_fini(&names[i]);
    }
}

/* What changes with the number of workers by design. */
static bool by_design(const ls_analysis *a, const char *line, size_t n)
{
    static const char *const key[] = {"strategy",
                                      "micro_batch_size_per_gpu",
                                      "grad_accum_steps",
                                      "global_batch_size",
                                      "epochs",
                                      "precision",
                                      "dp",
                                      "pp",
                                      "tp",
                                      "schedule",
                                      "sequence_parallel",
                                      "comm",
                                      "interleave",
                                      "stages",
                                      "bucket",
                                      "gather_bucket",
                                      "prefetch_bucket",
                                      "nodes"};
    for (size_t i = 0; i < sizeof key / sizeof *key; i++)
        if (strlen(key[i]) == n && !strncmp(line, key[i], n)) return true;
    return a->weak && n == 5 && !strncmp(line, "steps", n); /* of the same data */
}

/* Differences between a setting and the runs on one worker that its speed-up is measured against. */
static void say_base_differences(const ls_analysis *a, ls_doc *d)
{
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i], *b = g->base >= 0 ? &a->group[g->base] : g;
        ls_str s = {0};
        for (const char *p = g->first->setting; *p && b != g;) {
            const size_t n = strcspn(p, "\n"), key = strcspn(p, " ");
            size_t k;
            const char *other = ls_setting_value(b->first->setting, p, key, &k);
            if (!by_design(a, p, key) && (!other || k != n - key - 1 || strncmp(other, p + key + 1, k)))
                ls_str_addf(&s, "%s%.*s (there: %.*s)", s.len ? ", " : "", (int)n, p, other ? (int)k : 4,
                            other ? other : "none");
            p += n + (p[n] == '\n');
        }
        if (s.len)
            ls_doc_add(d, LS_BLOCK_WARN, "The speed-up of %s over %s is not of the workers alone. It has: %s.",
                       g->label, b->label, s.data);
        d->failed = d->failed || s.failed;
        ls_str_fini(&s);
    }
}

void content_summary(const ls_analysis *a, const ls_found_bench *bench, ls_doc *d)
{
    ls_str paired = {0};
    ls_doc_add(d, LS_BLOCK_SECTION, "Summary");
    say_mismatches(a, d);
    if (!a->set->n) ls_doc_add(d, LS_BLOCK_TEXT, "There is no run to report.");
    if (a->comparable) content_ab_verdict(bench, &paired);
    const bool ab = paired.len > 0;
    ls_doc_take(d, LS_BLOCK_LEAD, &paired);
    for (int kind = 0; kind < a->n_kind && !ab; kind++) {
        const ls_ranking *r = &a->top[kind];
        if (r->second >= 0) say_ranking(a, kind, d);
        else if (r->best >= 0) say_only(a, &a->group[r->best], d);
    }
    say_profiled(a, d);
    say_interrupted(a, d);
    for (int kind = 0; kind < a->n_kind && !ab; kind++) {
        const ls_ranking *r = &a->top[kind];
        if (r->winner >= 0 || (r->best >= 0 && r->second < 0)) cards(a, &a->group[r->best], r->winner >= 0, d);
    }
    if (a->n_group) say_basis(a, d);
    say_base_differences(a, d);
    doubts(a, ab, d);
}
