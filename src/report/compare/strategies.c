/* strategies.c - settings side by side: the table of `bench strategies`, and strategies_report.json. */
#include "report/compare/analysis.h"
#include "core/mem.h"
#include "core/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double wait_share(const ls_run *r)
{
    const double straggler = r->split[LS_SPLIT_STRAGGLER];
    if (r->world == 1) return 0;
    return (r->split[LS_SPLIT_EXPOSED] + (isnan(straggler) ? 0 : straggler)) / r->step_time;
}

static double bubble_share(const ls_run *r)
{
    const double b = r->split[LS_SPLIT_BUBBLE];
    if (isnan(b)) return r->split[LS_SPLIT_FORWARD] > 0 ? 0 : NAN; /* without parts of steps it is not known */
    return b / r->step_time;
}

/* Of the worker that needs most: on its device, where it has one. */
static double most_memory(const ls_run *r)
{
    const report_doc d = {r->metrics, "", NULL};
    const json_t *list = report_array(&d, "lockstep.memory.per_rank");
    double most = NAN;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const report_doc rank = {json_array_get(list, i), "", NULL};
        const double device = report_num(&rank, "device");
        most = fmax(most, device > 0 ? device : report_num(&rank, "peak_rss"));
    }
    return isnan(most) ? fmax(r->peak_bytes, r->peak_most) : most;
}

static double run_metric(const ls_run *r, int metric)
{
    switch (metric) {
    case LS_METRIC_COMMUNICATION: return wait_share(r);
    case LS_METRIC_BUBBLE: return bubble_share(r);
    case LS_METRIC_UTILISATION: return isnan(r->gpu_utilisation) ? r->cpu_utilisation : r->gpu_utilisation;
    default: return most_memory(r);
    }
}

ls_status ls_metrics_of(const ls_analysis *a, const ls_group *g, ls_estimate out[LS_N_METRIC])
{
    static const int of_runs[] = {LS_METRIC_COMMUNICATION, LS_METRIC_BUBBLE, LS_METRIC_UTILISATION, LS_METRIC_MEMORY};
    double *x = ls_alloc((size_t)g->n_run * sizeof *x);
    if (!x) return ls_nomem((size_t)g->n_run * sizeof *x, "repeats");
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < g->n_run; i++) x[i] = run_metric(&a->set->run[g->run[i]], of_runs[k]);
        out[of_runs[k]] = ls_estimate_of(x, g->n_run);
    }
    out[LS_METRIC_TOKENS] = g->tokens;
    out[LS_METRIC_WALL] = g->wall;
    out[LS_METRIC_SPEEDUP] = g->speedup;
    out[LS_METRIC_EFFICIENCY] = g->efficiency;
    ls_free(x);
    return LS_OK;
}

/* In strategies_report.json, and in the table: a column's name, the factor of its unit, and decimals. */
static const struct {
    const char *key, *column;
    double factor;
    int decimals;
} shown[LS_N_METRIC] = {[LS_METRIC_COMMUNICATION] = {"communication_overhead", "waits, %", 100, 1},
                        [LS_METRIC_BUBBLE] = {"pipeline_bubble", "bubble, %", 100, 1},
                        [LS_METRIC_TOKENS] = {"tokens_per_sec", "tokens/s", 1, 0},
                        [LS_METRIC_WALL] = {"training_time_sec", "time, s", 1, 2},
                        [LS_METRIC_UTILISATION] = {"cpu_utilisation", "CPU/GPU, %", 100, 1},
                        [LS_METRIC_MEMORY] = {"peak_memory_bytes", "memory, MiB", 1 / 1048576.0, 1},
                        [LS_METRIC_SPEEDUP] = {"speedup", "speed-up", 1, 2},
                        [LS_METRIC_EFFICIENCY] = {"scaling_efficiency", "efficiency, %", 100, 1}};

/* "12.3 ±0.4" */
static void add_cell(ls_table *t, const ls_estimate *e, double factor, int decimals)
{
    if (isnan(e->mean)) ls_table_cell(t, "-");
    else if (!(e->half >= 0)) ls_table_cell(t, "%.*f", decimals, factor * e->mean);
    else ls_table_cell(t, "%.*f \xc2\xb1%.*f", decimals, factor * e->mean, decimals, factor * e->half);
}

ls_status ls_strategies_table(const ls_analysis *a, ls_str *out)
{
    static const int column[LS_N_METRIC] = {LS_METRIC_TOKENS,      LS_METRIC_SPEEDUP,       LS_METRIC_EFFICIENCY,
                                            LS_METRIC_WALL,        LS_METRIC_COMMUNICATION, LS_METRIC_BUBBLE,
                                            LS_METRIC_UTILISATION, LS_METRIC_MEMORY};
    ls_table t = {.n_col = 3 + LS_N_METRIC};
    ls_status st = LS_OK;
    ls_table_cell(&t, "setting");
    ls_table_cell(&t, "workers");
    ls_table_cell(&t, "runs");
    for (int k = 0; k < LS_N_METRIC; k++) ls_table_cell(&t, "%s", shown[column[k]].column);
    for (int i = 0; i < a->n_group && st == LS_OK; i++) {
        const ls_group *g = &a->group[i];
        ls_estimate e[LS_N_METRIC];
        st = ls_metrics_of(a, g, e);
        if (st != LS_OK) break;
        ls_table_cell(&t, "%s", g->short_name);
        ls_table_cell(&t, "%d", g->world);
        ls_table_cell(&t, "%d", g->n_run);
        for (int k = 0; k < LS_N_METRIC; k++) {
            const int m = column[k];
            const int decimals = m == LS_METRIC_TOKENS && e[m].mean < 1000 ? 1 : shown[m].decimals;
            add_cell(&t, &e[m], shown[m].factor, decimals);
        }
    }
    ls_table_print(&t, out);
    LS_TRY(st);
    const size_t before = out->len;
    ls_winner_words(a, out);
    if (out->len > before) ls_str_addc(out, '\n');
    return LS_OK;
}

static void put(ls_jsonw *w, const char *key, const ls_estimate *e)
{
    ls_jsonw_put_open(w, key, '{');
    /* NaN is written as null */
    ls_jsonw_members(w, LS_KV("mean", e->mean), LS_KV("half95", e->half), LS_KV("stdev", e->stdev), LS_KV("n", e->n));
    ls_jsonw_close(w);
}

static ls_status put_setting(ls_jsonw *w, const ls_analysis *a, const ls_group *g)
{
    ls_estimate e[LS_N_METRIC];
    LS_TRY(ls_metrics_of(a, g, e));
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("setting", g->short_name), LS_KV("workers", g->world));
    ls_jsonw_put_open(w, "runs", '[');
    for (int i = 0; i < g->n_run; i++) ls_jsonw_str(w, a->set->run[g->run[i]].dir);
    ls_jsonw_close(w);
    for (int k = 0; k < LS_N_METRIC; k++) put(w, shown[k].key, &e[k]);
    ls_ratios_put(w, g);
    ls_jsonw_put_open(w, "tokens_per_sec_repeats", '[');
    for (int i = 0; i < g->n_run; i++) ls_jsonw_real(w, ls_run_rate(a, &a->set->run[g->run[i]]));
    ls_jsonw_close(w);
    ls_waterfall_put(w, &g->waterfall);
    ls_jsonw_put_open(w, "collectives_rank0", '[');
    for (int i = 0; i < g->first->n_coll; i++) {
        const ls_run_coll *c = &g->first->coll[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("kind", c->kind), LS_KV("calls", c->calls), LS_KV("bytes_moved", c->nbytes),
                         LS_KV("busy_sec", c->busy), LS_KV("exposed_sec", c->exposed));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    ls_jsonw_close(w);
    return LS_OK;
}

ls_status ls_strategies_text(const ls_analysis *a, void (*more)(const void *ctx, ls_jsonw *w),
                             void (*left_out)(const void *ctx, ls_jsonw *w), const void *ctx, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "status", !a->comparable ? "invalid_comparison" : a->n_mismatch ? "mismatch_allowed" : "ok");
    ls_jsonw_put_open(&w, "protocol", '{');
    ls_jsonw_put_str(&w, "tokens_per_sec_of", ls_basis_of(a));
    if (a->steady && a->baseline >= 0) ls_jsonw_put_int(&w, "warmup_steps_excluded", a->set->run[a->baseline].n_warm);
    bool within = false;
    for (int i = 0; i < a->n_group; i++) within = within || a->group[i].tokens.within;
    ls_jsonw_put_str(&w, "interval",
                     within ? "95 %, Student's t over repeats; of a single run (n = 1), over its steps"
                            : "95 %, Student's t over repeats");
    if (more) more(ctx, &w);
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "mismatches", '[');
    for (int i = 0; i < a->n_mismatch; i++) {
        ls_jsonw_open(&w, '{');
        ls_jsonw_members(&w, LS_KV("field", a->mismatch[i].field), LS_KV("run", a->set->run[a->mismatch[i].run].dir));
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "settings", '[');
    for (int i = 0; i < a->n_group && a->comparable; i++) LS_TRY(put_setting(&w, a, &a->group[i]));
    ls_jsonw_close(&w);
    ls_leading_put(&w, a);
    ls_jsonw_put_open(&w, "left_out", '[');
    if (left_out) left_out(ctx, &w);
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    return LS_OK;
}
