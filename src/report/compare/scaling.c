/* scaling.c - scaling_report.json: the scaling study's keys first (docs/FORMATS.md), then ours (means as base,
 * intervals, every repeat). */
#include "core/fs.h"
#include "report/compare/analysis.h"

#include <stdio.h>
#include <string.h>

static void put_mismatches(ls_jsonw *w, const ls_analysis *a)
{
    ls_jsonw_put_open(w, "mismatches", '[');
    for (int i = 0; i < a->n_mismatch; i++) {
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "field", a->mismatch[i].field);
        ls_jsonw_put_value(w, "baseline", a->mismatch[i].baseline);
        ls_jsonw_put_value(w, "mismatch", a->mismatch[i].other);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void put_protocol(ls_jsonw *w, const ls_analysis *a, const ls_run *base, int kind,
                         void (*more)(const void *ctx, ls_jsonw *w), const void *ctx)
{
    const json_t *config = json_object_get(base->metrics, "training_config");
    const char *type = json_string_value(json_object_get(json_object_get(base->metrics, "hardware"), "instance_type"));
    const char *data = json_string_value(json_object_get(config, "dataset_name"));
    ls_jsonw_put_open(w, "protocol", '{');
    ls_jsonw_put_str(w, "instance_type", type ? type : "unknown");
    ls_jsonw_put_value(w, "seq_len", json_object_get(config, "seq_len"));
    ls_jsonw_put_str(w, "dataset_mode", data && strstr(data, "small") ? "small" : "full");
    ls_jsonw_put_value(w, "training_config", config);
    ls_jsonw_put_str(w, "scaling", a->weak && kind == LS_KIND_ALL ? "weak" : "strong"); /* ours, from here on */
    ls_jsonw_put_str(w, "tokens_per_sec_of", ls_basis_of(a));
    if (a->steady) ls_jsonw_put_int(w, "warmup_steps_excluded", base->n_warm);
    if (more) more(ctx, w);
    ls_jsonw_close(w);
}

/* Where a step's time went, as shares of it; they sum to 1. */
void ls_waterfall_put(ls_jsonw *w, const ls_waterfall *f)
{
    static const char *const key[LS_N_SPLIT] = {[LS_SPLIT_FORWARD] = "compute_slowdown",
                                                [LS_SPLIT_OPTIMIZER] = "optimizer_not_shared",
                                                [LS_SPLIT_EXPOSED] = "exposed_communication",
                                                [LS_SPLIT_BUBBLE] = "pipeline_bubble",
                                                [LS_SPLIT_STRAGGLER] = "stragglers",
                                                [LS_SPLIT_INPUT] = "input",
                                                [LS_SPLIT_OTHER] = "other"};
    if (!f->known) return;
    ls_jsonw_put_open(w, "waterfall", '{');
    ls_jsonw_put_real(w, "useful", f->useful);
    for (int k = 0; k < LS_N_SPLIT; k++)
        if (key[k] && (f->split || k == LS_SPLIT_OTHER)) ls_jsonw_put_real(w, key[k], f->lost[k]);
    ls_jsonw_close(w);
}

static void put_group(ls_jsonw *w, const ls_analysis *a, const ls_group *g)
{
    char key[16];
    snprintf(key, sizeof key, "%d", g->world);
    ls_jsonw_put_open(w, key, '{');
    ls_jsonw_put_open(w, "metrics_paths", '[');
    for (int i = 0; i < g->n_run; i++) {
        const char *dir = a->set->run[g->run[i]].dir;
        const bool file = ls_ends_in(dir, ".json") || (ls_fs_exists(dir) && !ls_fs_is_dir(dir));
        char path[4352];
        snprintf(path, sizeof path, "%.4096s%s", dir, file ? "" : "/training_metrics.json");
        ls_jsonw_str(w, path);
    }
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("mean_tokens_per_sec_global", g->recorded.mean),
                     LS_KV("stdev_tokens_per_sec_global", g->recorded.stdev),
                     LS_KV("mean_epoch_wall_time_sec", g->epoch_time.mean),
                     LS_KV("stdev_epoch_wall_time_sec", g->epoch_time.stdev), LS_KV("speedup_vs_1gpu", g->speedup_r1),
                     LS_KV("scaling_efficiency", g->speedup_r1 / g->world));
    /* ours */
    ls_jsonw_members(w, LS_KV("setting", g->short_name), LS_KV("speedup_vs_mean", g->speedup.mean),
                     LS_KV("speedup_vs_mean_half95", g->speedup.half), LS_KV("efficiency_vs_mean", g->efficiency.mean),
                     LS_KV("efficiency_vs_mean_half95", g->efficiency.half), LS_KV("tokens_per_sec", g->tokens.mean),
                     LS_KV("tokens_per_sec_half95", g->tokens.half),
                     LS_KV("interval_within_one_run", (bool)g->tokens.within));
    ls_ratios_put(w, g);
    ls_jsonw_put_open(w, "tokens_per_sec_repeats", '[');
    for (int i = 0; i < g->n_run; i++) ls_jsonw_real(w, ls_run_rate(a, &a->set->run[g->run[i]]));
    ls_jsonw_close(w);
    ls_waterfall_put(w, &g->waterfall);
    ls_jsonw_close(w);
}

/* The kind of a setting; that of all runs without one. */
static int kind_of(const ls_analysis *a, const char *strategy)
{
    for (int i = 0; i < a->n_group && strategy; i++)
        if (!strcmp(a->group[i].short_name, strategy)) return a->group[i].kind;
    return LS_KIND_ALL;
}

/* One worker is the base of every setting of its kind. */
static bool asked(const ls_analysis *a, const ls_group *g, const char *strategy)
{
    if (!strategy) return true;
    return g->world < 2 ? g->kind == kind_of(a, strategy) : !strcmp(g->short_name, strategy);
}

/* The run whose configuration the file has: the baseline, or the first of a setting that has another. */
static const ls_run *baseline_of(const ls_analysis *a, const char *strategy)
{
    for (int i = 0; i < a->n_group && kind_of(a, strategy) != LS_KIND_ALL; i++)
        if (asked(a, &a->group[i], strategy)) return a->group[i].first;
    return &a->set->run[a->baseline];
}

/* A number of workers is a key, so it comes once: the first of its groups, if possible one that was not interrupted; of those on one worker, the one that the setting is
 * compared with. -1: none. */
static int choose(const ls_analysis *a, const char *strategy, int world)
{
    int first = -1;
    for (int i = a->n_group - 1; i >= 0; i--)
        if (a->group[i].world == world && !a->group[i].no_benchmark && asked(a, &a->group[i], strategy) &&
            (first < 0 || !a->group[i].interrupted || a->group[first].interrupted))
            first = i;
    for (int i = 0; i < a->n_group && world == 1; i++)
        if (a->group[i].world > 1 && asked(a, &a->group[i], strategy) && a->group[i].base >= 0) return a->group[i].base;
    return first;
}

/* The groups whose number of workers another one has. With a strategy: those of it; the others have files of their own. */
static void put_left_out(ls_jsonw *w, const ls_analysis *a, const char *strategy)
{
    bool any = false;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        if (!asked(a, g, strategy) || choose(a, strategy, g->world) == i) continue;
        if (!any) ls_jsonw_put_open(w, "left_out", '[');
        any = true;
        ls_jsonw_open(w, '{');
        ls_jsonw_members(
            w, LS_KV("setting", g->short_name), LS_KV("workers", g->world),
            LS_KV("why", g->first->profiled ? "a profiled run is no benchmark"
                         : g->no_benchmark && g->first->resumed
                             ? "it was resumed in another way, or has too few steps since: it is no benchmark"
                         : g->no_benchmark && g->first->n_step && g->first->n_step <= ls_run_first(g->first)
                             ? "no step is left after the warm-up"
                         : g->no_benchmark ? "its number of workers changed: it is no benchmark"
                                           : "`runs` has one setting per number of workers"));
        ls_jsonw_close(w);
    }
    if (any) ls_jsonw_close(w);
}

void ls_scaling_text(const ls_analysis *a, const char *strategy, void (*more)(const void *ctx, ls_jsonw *w),
                     const void *ctx, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    bool ok = a->comparable && a->baseline >= 0;
    ls_jsonw_put_str(&w, "status", !ok ? "invalid_comparison" : a->n_mismatch ? "mismatch_allowed" : "ok");
    if (ok) {
        put_protocol(&w, a, baseline_of(a, strategy), kind_of(a, strategy), more, ctx);
        ls_jsonw_put_open(&w, "runs", '{');
        for (int i = 0; i < a->n_group; i++)
            if (choose(a, strategy, a->group[i].world) == i) put_group(&w, a, &a->group[i]);
        ls_jsonw_close(&w);
        put_left_out(&w, a, strategy);
    }
    if (!ok || a->n_mismatch) put_mismatches(&w, a);
    ls_jsonw_close(&w);
}
