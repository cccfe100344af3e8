/* bench_content.c - benchmarks on a page: the result of each in words, and its section on a page of several. */
#include "core/mem.h"
#include "report/page/content.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *question;
} kind_words[LS_N_BENCH_KIND + 1] = {
    [LS_BENCH_OF_SCALING] = {"Scaling", "How much faster are several workers, and where is time lost?"},
    [LS_BENCH_OF_STRATEGIES] = {"Strategies", "Which layout is best for the same work?"},
    [LS_BENCH_OF_AB] = {"A and B",
                        "Is setting B better than A? Runs made in turns are compared in pairs of neighbours."},
    [LS_BENCH_OF_R3] = {"Translation",
                        "Data parallelism as weak scaling, and a pipeline with and without micro-batches."},
    [LS_N_BENCH_KIND] =
        {"Benchmark", "This folder has no result file: the benchmark was stopped, or its runs were made without one."},
};

void content_bench_title(const ls_found_bench *bench, ls_str *out)
{
    if (bench) ls_str_addf(out, "%s: %s", kind_words[bench->kind].name, bench->dir);
    else ls_str_add(out, "Runs outside of a benchmark");
}

/* --- A and B --- */

static const char *flags_of(const json_t *root, const char *side)
{
    const char *flags = json_string_value(json_object_get(json_object_get(root, side), "flags"));
    return flags && *flags ? flags : "the common options";
}

static bool unpaired(const json_t *root)
{
    const char *test = json_string_value(json_object_get(json_object_get(root, "difference"), "test"));
    return test && !strcmp(test, "welch");
}

void content_ab_verdict(const ls_found_bench *bench, ls_str *out)
{
    if (!bench || bench->kind != LS_BENCH_OF_AB || !bench->root) return;
    const report_doc d = {bench->root, "", NULL};
    const char *verdict = report_str(&d, "verdict");
    const double change = 100 * report_num(&d, "difference.change"), low = 100 * report_num(&d, "difference.low95"),
                 high = 100 * report_num(&d, "difference.high95");
    const int64_t pairs = report_int(&d, "difference.pairs");
    if (!verdict || isnan(change)) return;
    if (!strcmp(verdict, "better") || !strcmp(verdict, "worse"))
        ls_str_addf(out, "B is %s than A: %+.1f %% tokens/s", verdict, change);
    else ls_str_addf(out, "No difference between A and B is shown: %+.1f %% tokens/s", change);
    if (isnan(low) || isnan(high)) ls_str_add(out, " in one pair, which has no interval");
    else
        ls_str_addf(out, " (95 %%: %+.1f to %+.1f %%, p = %.2g, %lld %s)", low, high, report_num(&d, "difference.p"),
                    (long long)pairs, unpaired(bench->root) ? "runs of each, not made in turns" : "pairs");
    ls_str_addf(out, ". A: %s. B: %s.", flags_of(bench->root, "a"), flags_of(bench->root, "b"));
}

/* The unit of a value by the end of its key; *scale: from the unit of the file. */
static const char *unit_of(const char *key, double *scale)
{
    const bool sec = ls_ends_in(key, "_sec") && !ls_ends_in(key, "per_sec"), bytes = strstr(key, "bytes") != NULL;
    *scale = sec ? 1000 : bytes ? 1 / 1048576.0 : 1;
    return sec ? ", ms" : bytes ? ", MiB" : "";
}

static void change_row(const char *key, const json_t *fact, ls_doc *d, ls_block *b)
{
    const report_doc f = {fact, "", NULL};
    const double half = report_num(&f, "difference.half95");
    double scale;
    const char *unit = unit_of(key, &scale);
    const ls_estimate diff = {.mean = scale * report_num(&f, "difference.mean"),
                              .half = isnan(half) ? -1 : scale * half};
    char name[96], text[96];
    snprintf(name, sizeof name, "%.80s%s", key, unit);
    for (char *p = name; *p; p++)
        if (*p == '_') *p = ' ';
    char *end = strstr(name, " sec,");
    if (end) memmove(end, end + 4, strlen(end + 4) + 1);
    ls_doc_cells(d, b, name, LS_NUM(scale * report_num(&f, "a"), 3), LS_NUM(scale * report_num(&f, "b"), 3),
                 content_estimate_text(text, &diff, 3));
}

void content_ab_changes(const ls_found_bench *bench, ls_doc *d)
{
    const json_t *all = json_object_get(bench->root, "mechanism"), *words = json_object_get(bench->root, "words");
    const char *key;
    json_t *fact;
    if (!json_object_size(all)) return;
    ls_doc_add(d, LS_BLOCK_SECTION, "What differs between A and B");
    if (json_is_string(words)) ls_doc_add(d, LS_BLOCK_TEXT, "In words: %s.", json_string_value(words));
    ls_block *b = ls_doc_table(d, NULL, "mean", "A", "B",
                               unpaired(bench->root) ? "B \xe2\x88\x92 A" : "B \xe2\x88\x92 A, paired");
    json_object_foreach((json_t *)(uintptr_t)all, key, fact) change_row(key, fact, d, b);
}

/* --- any benchmark --- */

void content_verdict(const ls_analysis *a, const ls_found_bench *bench, ls_str *out)
{
    const size_t before = out->len;
    if (a->n_mismatch && !a->comparable) {
        ls_str_add(out, bench ? "invalid_comparison: the runs are not comparable, so they are not compared."
                              : "Not compared: the runs did different work.");
        return;
    }
    content_ab_verdict(bench, out);
    if (out->len == before) ls_winner_words(a, out);
    if (out->len == before && a->n_group == 1 && !isnan(a->group[0].tokens.mean))
        ls_str_addf(out, "%s: %.0f tokens/s.", a->group[0].label, a->group[0].tokens.mean);
    if (out->len == before) ls_str_add(out, "Nothing to compare.");
}

static void put_chart(const ls_analysis *a, const char *folder, void (*fill)(const ls_analysis *a, ls_chart *c),
                      const char *words, ls_doc *d)
{
    if (content_draw(a, d, fill, words)) d->block[d->n - 1].folder = folder;
}

void content_bench(const ls_analysis *a, const ls_found_bench *bench, const char *folder, ls_doc *d)
{
    ls_str title = {0}, verdict = {0};
    const bool same_work = a->comparable || a->n_group == 1;
    content_bench_title(bench, &title);
    ls_doc_take(d, LS_BLOCK_SECTION, &title);
    content_verdict(a, bench, &verdict);
    ls_doc_take(d, a->n_mismatch && !a->comparable ? LS_BLOCK_WARN : LS_BLOCK_LEAD, &verdict);
    if (bench) ls_doc_add(d, LS_BLOCK_TEXT, "%s", kind_words[bench->kind].question);
    if (same_work)
        put_chart(a, folder, chart_throughput, "Longer is faster. The thin line is the 95 % interval of the mean.", d);
    if (a->n_group) content_groups(a, d);
    if (same_work && (!bench || bench->kind != LS_BENCH_OF_AB))
        put_chart(a, folder, chart_step_split, "Time of a step by part, rank 0; of a pipeline, means over its stages.",
                  d);
    if (!bench) put_chart(a, folder, chart_loss, "Means over neighbouring steps.", d);
    ls_block *b =
        ls_doc_add(d, LS_BLOCK_LINK, "Complete report of these runs: findings, communication, memory, provenance");
    ls_doc_cell(d, b, "%s/report.html", folder);
}
