/* content.c - the sections of a report, in the order in which a reader asks. A section without numbers is left out. */
#include "report/page/content.h"
#include "core/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *content_estimate_text(char buf[96], const ls_estimate *e, int decimals)
{
    char v[40], h[40];
    if (e->half >= 0)
        snprintf(buf, 96, "%s \xc2\xb1 %s", ls_number_text(v, e->mean, decimals), ls_number_text(h, e->half, decimals));
    else ls_number_text(buf, e->mean, decimals);
    return buf;
}

void content_groups(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_table(d, NULL, "setting", "workers", "runs", "tokens/s", "wall time, s", "speed-up",
                               "efficiency, %", "train loss", "val loss");
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        char tokens[96], speedup[96];
        ls_str loss = {0}, val = {0};
        ls_loss_words(a, g, false, false, &loss);
        ls_loss_words(a, g, true, false, &val);
        ls_doc_cells(d, b, g->short_name, LS_TEXT("%d", g->world), LS_TEXT("%d", g->n_run),
                     content_estimate_text(tokens, &g->tokens, g->tokens.mean < 100 ? 2 : 1), LS_NUM(g->wall.mean, 2),
                     content_estimate_text(speedup, &g->speedup, 2), LS_NUM(100 * g->efficiency.mean, 1), loss.data,
                     val.data);
        d->failed = d->failed || loss.failed || val.failed;
        ls_str_fini(&loss);
        ls_str_fini(&val);
    }
}

/* A chart and what to see in it; false: it is empty, and nothing was added. */
bool content_draw(const ls_analysis *a, ls_doc *d, void (*fill)(const ls_analysis *a, ls_chart *c), const char *words)
{
    const int before = d->n;
    ls_chart c;
    fill(a, &c);
    ls_doc_chart(d, &c, words);
    return d->n > before;
}

/* What the times are of, and whether the settings did the same work. */
static void time_words(const ls_analysis *a, ls_str *out)
{
    bool later = true;
    for (int i = 0; i < a->n_group; i++) later = later && a->group[i].first->later_epochs;
    ls_str_add(out, "Shorter is faster. ");
    if (content_has_wall(a))
        ls_str_add(
            out,
            "Wall time of the run from its first step, with validation and checkpoints, without the start of the program; ");
    else ls_str_addf(out, "Mean time of %s, as recorded; ", later ? "the epochs after the first" : "an epoch");
    ls_str_add(out, a->allowed ? "mismatch_allowed: the work of the settings differs."
                    : later    ? "the translation study's files do not record how much work an epoch was."
                    : a->n_kind > 1
                        ? "all settings train on the same data, data parallelism and pipelines with different batches."
                    : a->weak ? "weak scaling: the work of a step grows with the workers."
                              : "the settings do the same work.");
}

static void speed(const ls_analysis *a, ls_doc *d)
{
    ls_str words = {0};
    if (!a->n_group) return;
    ls_doc_add(d, LS_BLOCK_SECTION, "Throughput and scaling");
    content_draw(a, d, chart_throughput, "Longer is faster. The thin line is the 95 % interval of the mean.");
    content_groups(a, d);
    content_pivot(a, d);
    time_words(a, &words);
    content_draw(a, d, chart_time, words.data ? words.data : "");
    d->failed = d->failed || words.failed;
    ls_str_fini(&words);
    content_step_times(a, d);
    content_draw(a, d, chart_speedup, "Grey without marks is ideal: twice the workers, twice the speed.");
    content_draw(a, d, chart_efficiency, "Speed-up divided by the number of workers.");
}

static void losses(const ls_analysis *a, ls_doc *d)
{
    ls_doc_section(d, "Loss");
    content_draw(
        a, d, chart_loss,
        a->same_loss
            ? "One line represents all runs: their losses are equal bit for bit."
            : "Means over neighbouring steps; one line per setting, or per seed of a setting. Settings whose losses are equal bit for bit share a line.");
    content_draw(a, d, chart_epoch_loss, "Runs without a file of steps.");
    content_losses(a, d);
}

static void waterfall_table(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_add(d, LS_BLOCK_TABLE, "Shares of a step's time, %%");
    bool used[LS_N_SPLIT] = {0};
    int n = 0;
    if (!b) return;
    for (int k = 0; k < LS_N_SPLIT; k++) {
        for (int i = 0; i < a->n_group; i++)
            used[k] = used[k] || (a->group[i].waterfall.known && fabs(a->group[i].waterfall.lost[k]) >= 0.0005);
        n += used[k];
    }
    b->n_col = n + 3;
    ls_doc_cells(d, b, "setting", "useful work");
    for (int k = 0; k < LS_N_SPLIT; k++)
        if (used[k]) ls_doc_cells(d, b, content_part_words(k));
    ls_doc_cells(d, b, "sum");
    for (int i = 0; i < a->n_group; i++) {
        const ls_waterfall *w = &a->group[i].waterfall;
        double sum = w->useful;
        if (!w->known) continue;
        ls_doc_cells(d, b, a->group[i].label, LS_NUM(100 * w->useful, 1));
        for (int k = 0; k < LS_N_SPLIT; k++) {
            sum += w->lost[k];
            if (used[k]) ls_doc_cells(d, b, LS_NUM(100 * w->lost[k], 1));
        }
        ls_doc_cells(d, b, LS_NUM(100 * sum, 1));
    }
}

/* "the first 5", "the first 1 to 5", of all groups whose parts are means of the steps after the warm-up. */
static void warm_words(const ls_analysis *a, ls_str *out)
{
    int lo = -1, hi = 0;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        if (isnan(g->step_time) || !g->split_of_steps) continue;
        lo = lo < 0 || g->split_warm_lo < lo ? g->split_warm_lo : lo;
        hi = g->split_warm_hi > hi ? g->split_warm_hi : hi;
    }
    const char *which = a->short_of ? "the later steps" : "the steps after the warm-up";
    if (!hi) ls_str_add(out, "all steps (too few to leave out a warm-up)");
    else if (lo == hi) ls_str_addf(out, "%s (the first %d %s left out)", which, hi, hi == 1 ? "is" : "are");
    else ls_str_addf(out, "%s (the first %d to %d of a run are left out)", which, lo, hi);
}

/* Which steps the parts of a step are averaged over: it depends on the files of the run. */
static void split_words(const ls_analysis *a, ls_str *out)
{
    int of_steps = 0, recorded = 0;
    bool stages = false, repeats = false;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        if (isnan(g->step_time)) continue;
        repeats = repeats || (g->split_of_steps && g->n_run > 1);
        *(g->split_of_steps ? &of_steps : &recorded) += 1;
        stages = stages || g->split[LS_SPLIT_BUBBLE] > 0;
    }
    ls_str_add(out, "Mean over ");
    if (of_steps) warm_words(a, out);
    for (int i = 0, n = 0; i < a->n_group && recorded && of_steps; i++)
        if (!a->group[i].split_of_steps && !isnan(a->group[i].step_time))
            ls_str_addf(out, "%s%s", n++ ? ", " : "; for ", a->group[i].label);
    if (recorded && of_steps) ls_str_add(out, " over ");
    if (recorded) ls_str_add(out, "all steps of a run, warm-up included, as it recorded them");
    ls_str_addf(out, ". Times are those of rank 0%s.", stages ? "; of a pipeline, means over its stages" : "");
    if (repeats)
        ls_str_add(
            out, " A bar is as long as the geometric mean over the runs, as for tokens/s; its parts are scaled to it.");
}

static void time_parts(const ls_analysis *a, ls_doc *d)
{
    ls_str words = {0};
    ls_doc_section(d, "Where the time went");
    split_words(a, &words);
    content_draw(a, d, chart_step_split, words.data ? words.data : "");
    d->failed = d->failed || words.failed;
    ls_str_fini(&words);
    const char *see =
        "A bar is the time of a step. Useful is an equal share of the step of one worker; each other part is lost time. A part to the left of zero is a gain. Time that a run did not measure is in other.";
    if (content_draw(a, d, chart_waterfall, see)) waterfall_table(a, d);
}

/* Busy, exposed and hidden time of one row are over the same steps: all that the collectives were counted over. */
static void hidden_table(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_table(d, "Exposed and hidden, by communicator", "setting", "communicator", "busy, ms per step",
                               "exposed, ms per step", "hidden, ms per step", "hidden, %");
    for (int i = 0; i < a->n_group; i++)
        for (int k = 0; k < LS_N_RUN_COMM; k++) {
            ls_run_comm_time t;
            if (!ls_run_comm_time_of(a->group[i].first, k, &t)) continue;
            ls_doc_cells(d, b, a->group[i].label, ls_run_comms[k].words, LS_NUM(1000 * t.busy, 3),
                         LS_NUM(1000 * t.exposed, 3), LS_NUM(1000 * t.hidden, 3),
                         LS_NUM(t.busy > 0 ? 100 * t.hidden / t.busy : NAN, 0));
        }
}

static void collectives_table(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_table(d, "By collective", "setting", "collective", "calls", "MiB per step",
                               "busy, ms per step", "waited, ms per step", "bus, GB/s");
    for (int i = 0; i < a->n_group; i++) {
        const ls_run *r = a->group[i].first;
        for (int k = 0; k < r->n_coll; k++) {
            const ls_run_coll *x = &r->coll[k];
            const double n = r->n_comm_step > 0 ? r->n_comm_step : NAN;
            ls_doc_cells(d, b, a->group[i].label, x->kind, LS_NUM(x->calls, 0), LS_NUM(x->nbytes / n / 1048576, 2),
                         LS_NUM(1000 * x->busy / n, 3), LS_NUM(1000 * x->exposed / n, 3), LS_NUM(x->busbw / 1e9, 2));
        }
    }
}

const char *content_wait_words(void)
{
    return "A wait is charged to the collective that was waited for, even if an earlier collective delayed it, so the wait for one kind can be longer than its busy time. Hidden time is computed over all collectives of a communicator together: busy minus waited, at least 0. Exposed time is what was waited, without the bubble of a pipeline.";
}

void content_counted_steps(const char *name, const ls_run *r, ls_doc *d)
{
    if (!r->n_coll || !(r->n_comm_step < r->n_update)) return;
    ls_doc_add(
        d, LS_BLOCK_TEXT,
        "%s: collectives are those of the last attempt, %.0f of %.0f steps, as the run was restarted or resumed.", name,
        r->n_comm_step, r->n_update);
}

static void communication(const ls_analysis *a, ls_doc *d)
{
    bool any = false;
    for (int i = 0; i < a->n_group; i++) any = any || a->group[i].first->n_coll;
    if (!any) return;
    ls_doc_add(d, LS_BLOCK_SECTION, "Communication");
    content_draw(
        a, d, chart_comm,
        "Time of rank 0 in collectives, mean over all steps of a run, warm-up included; of a run that was restarted or resumed, over those of its last attempt. Exposed: compute waited for data; the bubble of a pipeline is not counted here, but as a part of its own in a step's time. Hidden: the collectives ran while compute continued. Communicators below a hundredth of the longest are in the table only.");
    for (int i = 0; i < a->n_group; i++) content_counted_steps(a->group[i].label, a->group[i].first, d);
    ls_doc_add(d, LS_BLOCK_TEXT, "%s", content_wait_words());
    hidden_table(a, d);
    collectives_table(a, d);
}

static void memory_table(const ls_analysis *a, ls_doc *d)
{
    bool any = false;
    for (int i = 0; i < a->n_group; i++) any = any || a->group[i].first->planned_bytes > 0 || a->group[i].first->n_rank;
    if (!any) return;
    ls_block *b =
        ls_doc_table(d, NULL, "setting", "rank 0: planned, MiB", "rank 0: peak, MiB", "all ranks: least planned, MiB",
                     "all ranks: most planned, MiB", "all ranks: highest peak, MiB");
    for (int i = 0; i < a->n_group; i++) {
        const ls_run *r = a->group[i].first;
        ls_estimate e[LS_N_METRIC];
        if (ls_metrics_of(a, &a->group[i], e) != LS_OK) d->failed = true;
        else
            ls_doc_cells(d, b, a->group[i].label, LS_NUM(r->planned_bytes / 1048576, 1),
                         LS_NUM(r->peak_bytes / 1048576, 1), LS_NUM(r->rank_least / 1048576, 1),
                         LS_NUM(r->rank_most / 1048576, 1),
                         LS_NUM((r->peak_most > 0 ? r->peak_most : e[LS_METRIC_MEMORY].mean) / 1048576, 1));
    }
}

static void resources(const ls_analysis *a, ls_doc *d)
{
    ls_doc_section(d, "Memory");
    const bool parts = content_draw(
        a, d, chart_memory,
        "As planned before the first step, at the moment of a step at which most is in use: a bar ends at the planned total. Buffers that are never in use together share memory.");
    const bool peak = content_draw(
        a, d, chart_peak, "Peak memory of rank 0, including the program; on a GPU, memory allocated by the program.");
    if (parts || peak) memory_table(a, d);
    ls_doc_section(d, "Use of the machine");
    content_draw(a, d, chart_utilisation, "Busy share of the cores or devices of the workers.");
    content_draw(a, d, chart_tflops,
                 "Floating-point operations of the model per second: those of a token times tokens/s.");
}

/* Whether a run has a picture of its pipeline: the first of the repeats of a setting has; words: what it is of. */
static bool pipeline_of(const ls_analysis *a, const ls_run *r, char words[256])
{
    bool first = !r->metrics;
    snprintf(words, 256, "%.250s", r->name);
    for (int g = 0; g < a->n_group; g++) {
        if (a->group[g].first != r) continue;
        first = true;
        snprintf(words, 256, "%s (%.140s)", a->group[g].label, r->name);
    }
    return first && r->n_span;
}

static void pipelines(const ls_analysis *a, ls_doc *d)
{
    static const char *const file[] = {"pipeline",    "pipeline_2",  "pipeline_3",  "pipeline_4",
                                       "pipeline_5",  "pipeline_6",  "pipeline_7",  "pipeline_8",
                                       "pipeline_9",  "pipeline_10", "pipeline_11", "pipeline_12",
                                       "pipeline_13", "pipeline_14", "pipeline_15", "pipeline_16"};
    enum { MOST = sizeof file / sizeof file[0] };
    ls_str left = {0};
    int n = 0, n_left = 0;
    double end = 0;
    char words[256];
    for (int i = 0; i < a->set->n; i++)
        for (int k = 0; k < a->set->run[i].n_span && pipeline_of(a, &a->set->run[i], words); k++)
            end = fmax(end, a->set->run[i].span[k].end);
    ls_doc_section(d, "Pipeline");
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        ls_chart c;
        if (!pipeline_of(a, r, words)) continue;
        if (!n)
            ls_doc_add(
                d, LS_BLOCK_TEXT,
                "The last step of each run, all on one axis of time. Simulated: the same actions with their measured times in the order of the schedule, if messages took no time. Idle includes waits for messages.");
        if (n == MOST) {
            if (!left.len) ls_str_addf(&left, "Only the first %d pipelines are drawn; left out: ", MOST);
            ls_str_addf(&left, "%s%s", n_left++ ? ", " : "", words);
            continue;
        }
        chart_gantt(r, end, &c);
        c.file = file[n++];
        ls_doc_chart(d, &c, words);
    }
    if (left.len) ls_str_addc(&left, '.');
    ls_doc_take(d, LS_BLOCK_TEXT, &left);
}

/* Field k of the first line of raw: fields are separated by two or more blanks; digits may be grouped in any way. NaN: it is no number. */
static double field_of(const char *raw, int k)
{
    char number[64];
    size_t n = 0;
    double x;
    const char *p = raw + strspn(raw, " \t"), *end = raw + strcspn(raw, "\n");
    for (; k; k--) {
        p = strstr(p, "  ");
        if (!p || p >= end) return NAN;
        p += strspn(p, " \t");
    }
    for (; p < end && *p != ' ' && n + 1 < sizeof number; p++)
        if (*p != ',') number[n++] = *p;
    number[n] = '\0';
    return ls_parse_f64(number, &x) ? x : NAN;
}

/* Instances and mean time of a row; raw has a line for each file of nsys that was added to it. NaN: a line does not state it. */
static double instances_of(const char *raw, double *mean_ms)
{
    double n = 0, ns = 0;
    for (const char *line = raw; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        n += field_of(line, 2);
        ns += field_of(line, 2) * field_of(line, 3);
    }
    *mean_ms = raw && n > 0 ? ns / n / 1e6 : NAN;
    return raw ? n : NAN;
}

static void profile_rows(const ls_run *r, ls_doc *d, ls_block *b)
{
    const json_t *top = json_object_get(r->profile, "nvtx_top5");
    for (size_t k = 0; k < json_array_size(top); k++) {
        const report_doc row = {.root = json_array_get(top, k)};
        const char *name = report_str(&row, "name");
        double mean_ms;
        const double n = instances_of(report_str(&row, "raw"), &mean_ms);
        ls_doc_cells(d, b, r->name, name ? name : "?", LS_NUM(report_num(&row, "time_percent"), 1),
                     report_str(&row, "total_time"), LS_NUM(n, 0), LS_NUM(mean_ms, 3));
    }
}

static void profiles(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (!json_array_size(json_object_get(r->profile, "nvtx_top5"))) continue;
        if (!b) {
            ls_doc_add(d, LS_BLOCK_SECTION, "Profile");
            ls_doc_add(
                d, LS_BLOCK_TEXT,
                "The five largest NVTX ranges. Shares are of the sum over all ranges, nested ones included. Instances are counted over all profiled processes and the whole capture, so they grow with both.");
            b = ls_doc_table(d, NULL, "run", "range", "share of time, %", "total", "instances", "mean, ms");
        }
        profile_rows(r, d, b);
    }
}

static void scaling_files(const ls_analysis *a, ls_doc *d)
{
    static const char *const key[] = {"mean_tokens_per_sec_global", "stdev_tokens_per_sec_global",
                                      "mean_epoch_wall_time_sec", "speedup_vs_1gpu", "scaling_efficiency"};
    for (int i = 0; i < a->set->n_scaling; i++) {
        const json_t *root = a->set->scaling[i].root, *runs = json_object_get(root, "runs"), *v;
        const char *status = json_string_value(json_object_get(root, "status")), *name;
        if (!i) ls_doc_add(d, LS_BLOCK_SECTION, "Scaling reports found");
        ls_doc_add(d, LS_BLOCK_TEXT, "%s: %s", a->set->scaling[i].path, status ? status : "no status");
        if (!json_is_object(runs)) continue;
        ls_block *b = ls_doc_table(d, NULL, "workers", "tokens/s", "stdev", "epoch, s", "speed-up", "efficiency");
        json_object_foreach((json_t *)(uintptr_t)runs, name, v)
        {
            ls_doc_cell(d, b, "%.20s", name);
            for (int k = 0; k < 5; k++) ls_doc_cells(d, b, LS_NUM(report_num(&(report_doc){.root = v}, key[k]), 2));
        }
    }
}

static void problems(const ls_analysis *a, ls_doc *d)
{
    if (!a->set->notes.n) return;
    ls_doc_add(d, LS_BLOCK_SECTION, "What could not be read");
    ls_block *b = ls_doc_add(d, LS_BLOCK_LIST, NULL);
    for (int i = 0; i < a->set->notes.n && i < 200; i++) ls_doc_cell(d, b, "%s", a->set->notes.text[i]);
    if (a->set->notes.n > 200) ls_doc_cell(d, b, "and %d more", a->set->notes.n - 200);
}

void ls_report_doc(const ls_analysis *a, const ls_found_bench *bench, ls_doc *d)
{
    char now[24];
    int n = a->set->n;
    ls_utc_stamp(now);
    snprintf(d->title, sizeof d->title, "%s",
             a->n_group > 1 && a->comparable ? "Training runs compared"
             : n == 1                        ? "A training run"
                                             : "Training runs");
    ls_doc_add(d, LS_BLOCK_TEXT, "%d %s in %d %s, %s, lockstep %s", n, n == 1 ? "run" : "runs", a->n_group,
               a->n_group == 1 ? "setting" : "settings", now, LS_VERSION);
    content_summary(a, bench, d);
    if (bench && bench->kind == LS_BENCH_OF_AB)
        content_ab_changes(bench, d); /* of pairs: its findings would be of single runs */
    else content_findings(a, d);
    speed(a, d);
    content_interruptions(a, d);
    time_parts(a, d);
    communication(a, d);
    content_transport(a, d);
    losses(a, d);
    resources(a, d);
    pipelines(a, d);
    profiles(a, d);
    scaling_files(a, d);
    content_translation(a, d);
    content_alone(a, d);
    content_provenance(a, d);
    problems(a, d);
}
