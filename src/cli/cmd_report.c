/* cmd_report.c - `lockstep report`: the page, and the scaling study's table, chart and verifying tools. */
#include "cli/commands.h"

#include "core/fs.h"
#include "core/json.h"
#include "report/page/report.h"
#include "report/compat/tools.h"

/* Options of all forms; the tools of the ZeRO scaling study (docs/REFERENCES.md) have their own. Their exit code is 1
 * after a negative result. */
typedef struct options {
    const char *gpu1, *gpu2, *gpu4;   /* table */
    const char *baseline, *optimized; /* charts */
    const char *dir;                  /* verify */
    ls_report_opts r;
    bool no_png, json;
    int64_t warmup;
} options;

/* --- report table --- */

static const ls_opt table_opts[] = {
    CLI_STR("gpu1", gpu1, "FILE", NULL, "training_metrics.json of the run with one worker", "Files"),
    CLI_STR("gpu2", gpu2, "FILE", NULL, "training_metrics.json of the run with two workers"),
    CLI_STR("gpu4", gpu4, "FILE", NULL, "training_metrics.json of the run with four workers"),
};

static const cli_page table_page = {
    table_opts, CLI_COUNT(table_opts), "report table --gpu1 FILE --gpu2 FILE --gpu4 FILE",
    "Print the scaling table of the reference trainer as Markdown. The runs are not checked for comparability; `lockstep report` does that."};

static ls_status run_table(const options *o)
{
    if (!o->gpu1 || !o->gpu2 || !o->gpu4)
        return ls_fail(LS_E_ARG, "report table needs --gpu1, --gpu2 and --gpu4 (training_metrics.json files)");
    ls_str s = {0};
    const ls_status st = ls_report_table(o->gpu1, o->gpu2, o->gpu4, &s);
    if (st == LS_OK) return cli_print(&s);
    ls_str_fini(&s);
    return st;
}

/* --- report charts --- */

static const ls_opt chart_opts[] = {
    CLI_STR("baseline_json", baseline, "FILE", NULL, "training_metrics.json of the baseline", "Files"),
    CLI_STR("optimized_json", optimized, "FILE", NULL, "training_metrics.json of the optimized run"),
    CLI_STR("out", r.out, "DIR", "docs", "output folder for the charts"),
};

static const cli_page chart_page = {
    chart_opts, CLI_COUNT(chart_opts), "report charts --baseline_json FILE --optimized_json FILE",
    "Draw bar charts of time and throughput of the last epoch (training_time_comparison, training_throughput_comparison) as SVG and, if rsvg-convert is installed, as PNG. Unreadable files are reported; the exit code stays 0 and no chart is written."};

static ls_status run_charts(const options *o)
{
    if (!o->baseline || !o->optimized)
        return ls_fail(LS_E_ARG, "report charts needs --baseline_json and --optimized_json");
    ls_str s = {0};
    const ls_status st = ls_report_pair(o->baseline, o->optimized, o->r.out, &s), printed = cli_print(&s);
    return st != LS_OK ? st : printed;
}

/* --- report verify --- */

static const ls_opt verify_opts[] = {
    CLI_STR("dir", dir, "DIR", NULL, "folder that contains run_* folders, at any depth", "Input"),
};

static const cli_page verify_page = {
    verify_opts, CLI_COUNT(verify_opts), "report verify --dir DIR",
    "Check every run_* folder: training_metrics.json exists and has all keys, train.log is not empty, and the number of workers matches the path (1gpu_, 2gpu_, 4gpu_). The exit code is 1 if a check fails or no run is found."};

static ls_status run_verify(const options *o)
{
    int n_run = 0, n_bad = 0;
    if (!o->dir) return ls_fail(LS_E_ARG, "report verify needs --dir DIR (a folder with run_* folders)");
    ls_str s = {0};
    const ls_status st = ls_report_verify(o->dir, &s, &n_run, &n_bad), printed = cli_print(&s);
    LS_TRY(st != LS_OK ? st : printed);
    if (!n_run) printf("No run_* directories found under %s\n", o->dir);
    return n_run && !n_bad ? LS_OK : cli_negative();
}

/* --- report RUN_DIR... --- */

static const ls_opt opts[] = {
    CLI_STR("out", r.out, "DIR", "report", "output folder for report.html, report.md, scaling_report.json and charts/",
            "Report"),
    CLI_SWITCH("allow_mismatch", r.allow_mismatch, "compare runs that are not comparable, and mark the page"),
    CLI_SWITCH(
        "weak", r.weak,
        "weak scaling: the global batch may grow with the number of workers [taken from the bench report next to the runs]"),
    CLI_INT_IN(0, 1000000, "warmup", warmup, "N", NULL,
               "number of warm-up steps to exclude [taken from the bench report next to the runs, else 5]"),
    CLI_SWITCH(
        "together", r.together,
        "compare all runs with one another, also those of several benchmarks [runs are compared inside a benchmark]"),
    CLI_SWITCH("json", json, "print one JSON object instead of the table (keys: docs/FORMATS.md)"),
    CLI_SWITCH("no_png", no_png, "write SVG charts only"),
};

static const cli_page page = {
    opts, CLI_COUNT(opts),
    "report RUN_DIR... [--out DIR] [--weak] [--allow_mismatch]\n       lockstep report table|charts|verify [OPTIONS]    (each has --help)",
    "Read run folders of Lockstep or of the reference trainer, metrics files, or folders of run folders, and write a self-contained page report.html, with report.md and the charts next to it. If a folder has several benchmarks, the page has an overview and one section for each, and their complete reports are in folders next to it.\n\nOnly comparable runs are compared: same sequence length, data, global batch, epochs, model and precision. If runs are not comparable, each run is "
    "reported separately, the differences are listed and the exit code is 1. Unreadable files are reported with file and key and skipped; if no run is left, the exit code is 3. Speed is measured over the steps after warm-up if every run has them (metrics.jsonl), else over whole epochs; the page states which."};

static ls_status print_json(const ls_report_result *r, const options *o)
{
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "report", ls_path_of(o->r.out, "report.html").text);
    ls_jsonw_put_open(&w, "notes", '[');
    for (int i = 0; i < r->notes.n; i++) ls_jsonw_str(&w, r->notes.text[i]);
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "parts", '[');
    if (r->json.data) ls_jsonw_raw(&w, r->json.data);
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    ls_str_addc(&s, '\n');
    return cli_print(&s);
}

static void print_result(const ls_report_result *r, const options *o, bool written)
{
    for (int i = 0; i < r->notes.n; i++) {
        ls_str s = {0};
        ls_str_addf(&s, "note: %s\n", r->notes.text[i]);
        cli_say(stderr, LS_COLOUR_NONE, s.data ? s.data : "");
        ls_str_fini(&s);
    }
    if (r->table.data) cli_say(stdout, LS_COLOUR_NONE, r->table.data);
    if (!written) return;
    if (r->no_rsvg)
        fprintf(stderr, "note: rsvg-convert is not installed; only SVG charts are written (package librsvg2-bin)\n");
    printf("Wrote %s/report.html (", o->r.out);
    if (r->n_part) printf("%d sections, ", r->n_part);
    printf("%d run%s, %d chart%s)\n", r->n_run, r->n_run == 1 ? "" : "s", r->n_chart, r->n_chart == 1 ? "" : "s");
}

static ls_status run_report(int argc, char **argv)
{
    options o = {0};
    ls_opt_list paths = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, &paths, NULL));
    if (!paths.n) return ls_fail(LS_E_ARG, "report needs at least one run folder (lockstep report RUN_DIR...)");
    if (paths.n == 1 && !ls_fs_exists(paths.word[0])) return ls_fail(LS_E_IO, "%s does not exist", paths.word[0]);
    o.r.path = paths.word;
    o.r.n_path = paths.n;
    o.r.png = !o.no_png;
    o.r.warm = (int)o.warmup;
    ls_report_result r = {0};
    ls_status st = ls_report_write(&o.r, &r);
    const bool unlike = r.n_mismatch && !r.comparable, weak = r.looks_weak, several = r.n_part > 0;
    if (o.json && st == LS_OK) st = print_json(&r, &o);
    else print_result(&r, &o, st == LS_OK);
    ls_report_result_fini(&r);
    LS_TRY(st);
    if (!unlike) return LS_OK;
    fprintf(stderr, "lockstep: invalid comparison: the runs%s are not comparable; see %s/%s (%s)\n",
            several ? " of a benchmark" : "", o.r.out, several ? "benchmarks.json" : "scaling_report.json",
            weak ? "the batch per worker is constant; --weak compares them as weak scaling"
                 : "--allow_mismatch compares them");
    return cli_negative();
}

ls_status cmd_report(int argc, char **argv)
{
    static const struct {
        const char *name;
        const cli_page *page;
        ls_status (*run)(const options *o);
    } tool[] = {
        {"table", &table_page, run_table}, {"charts", &chart_page, run_charts}, {"verify", &verify_page, run_verify}};
    for (size_t i = 0; argc && i < CLI_COUNT(tool); i++) {
        options o = {0};
        if (strcmp(argv[0], tool[i].name)) continue;
        LS_TRY(cli_parse(tool[i].page, &o, argc - 1, argv + 1, NULL, NULL));
        return tool[i].run(&o);
    }
    return run_report(argc, argv);
}
