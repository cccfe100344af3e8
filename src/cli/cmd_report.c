/* cmd_report.c - `lockstep report`: the page, and R1's table, chart and verifying tools. */
#include "cli/commands.h"

#include "core/fs.h"
#include "core/mem.h"
#include "report/page/report.h"
#include "report/compat/tools.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* R1's tools (docs/REFERENCES.md) end with 1 on a negative verdict; what there is to say was printed. */
static ls_status verdict_no(void)
{
    ls_err_clear();
    return LS_E_NUMERIC;
}

static ls_status print_and_free(ls_str *s)
{
    bool failed = s->failed;
    if (s->data) fputs(s->data, stdout);
    ls_str_fini(s);
    return failed ? ls_nomem(1024, "text") : LS_OK;
}

/* --- report table --- */

typedef struct table_options {
    const char *gpu1, *gpu2, *gpu4;
} table_options;

static const ls_opt table_opts[] = {
    {"gpu1", LS_OPT_STR, offsetof(table_options, gpu1), "FILE", NULL,
     "training_metrics.json of the run with one worker", "Files"},
    {"gpu2", LS_OPT_STR, offsetof(table_options, gpu2), "FILE", NULL, "... with two workers", NULL},
    {"gpu4", LS_OPT_STR, offsetof(table_options, gpu4), "FILE", NULL, "... with four workers", NULL},
};

static ls_status run_table(int argc, char **argv)
{
    table_options o = {0};
    bool help = false;
    LS_TRY(ls_opt_parse(table_opts, 3, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("report table --gpu1 FILE --gpu2 FILE --gpu4 FILE",
                 "Print the scaling table of the reference trainer as Markdown. The runs are not checked for "
                 "comparability; `lockstep report` does that.",
                 table_opts, 3);
        return LS_OK;
    }
    if (!o.gpu1 || !o.gpu2 || !o.gpu4)
        return ls_fail(LS_E_ARG, "report table needs --gpu1, --gpu2 and --gpu4 (training_metrics.json files)");
    ls_str s = {0};
    ls_status st = ls_report_table(o.gpu1, o.gpu2, o.gpu4, &s);
    if (st != LS_OK) ls_str_fini(&s);
    LS_TRY(st);
    return print_and_free(&s);
}

/* --- report charts --- */

typedef struct chart_options {
    const char *baseline, *optimized, *out;
} chart_options;

static const ls_opt chart_opts[] = {
    {"baseline-json", LS_OPT_STR, offsetof(chart_options, baseline), "FILE", NULL,
     "training_metrics.json of the baseline", "Files"},
    {"optimized-json", LS_OPT_STR, offsetof(chart_options, optimized), "FILE", NULL,
     "training_metrics.json of the optimized run", NULL},
    {"out", LS_OPT_STR, offsetof(chart_options, out), "DIR", "docs", "output folder for the charts", NULL},
};

static ls_status run_charts(int argc, char **argv)
{
    chart_options o = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(chart_opts, 3, &o));
    LS_TRY(ls_opt_parse(chart_opts, 3, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("report charts --baseline-json FILE --optimized-json FILE",
                 "Draw bar charts of time and throughput of the last epoch (training_time_comparison, "
                 "training_throughput_comparison) as SVG and, if gnuplot is installed, as PNG. Unreadable files are "
                 "reported; the exit code stays 0 and no chart is written.",
                 chart_opts, 3);
        return LS_OK;
    }
    if (!o.baseline || !o.optimized)
        return ls_fail(LS_E_ARG, "report charts needs --baseline-json and --optimized-json");
    ls_str s = {0};
    ls_status st = ls_report_pair(o.baseline, o.optimized, o.out, &s);
    ls_status printed = print_and_free(&s);
    return st != LS_OK ? st : printed;
}

/* --- report verify --- */

typedef struct verify_options {
    const char *dir;
} verify_options;

static const ls_opt verify_opts[] = {
    {"dir", LS_OPT_STR, offsetof(verify_options, dir), "DIR", NULL, "folder that contains run_* folders, at any depth",
     "Input"},
};

static ls_status run_verify(int argc, char **argv)
{
    verify_options o = {0};
    bool help = false;
    int n_run = 0, n_bad = 0;
    LS_TRY(ls_opt_parse(verify_opts, 1, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("report verify --dir DIR",
                 "Check every run_* folder: training_metrics.json exists and has all keys, train.log is not empty, and "
                 "the number of workers matches the path (1gpu_, 2gpu_, 4gpu_). The exit code is 1 if a check fails or "
                 "no run is found.",
                 verify_opts, 1);
        return LS_OK;
    }
    if (!o.dir) return ls_fail(LS_E_ARG, "report verify needs --dir DIR (a folder with run_* folders)");
    ls_str s = {0};
    ls_status st = ls_report_verify(o.dir, &s, &n_run, &n_bad);
    ls_status printed = print_and_free(&s);
    if (st == LS_OK) st = printed;
    LS_TRY(st);
    if (!n_run) printf("No run_* directories found under %s\n", o.dir);
    return n_run && !n_bad ? LS_OK : verdict_no();
}

/* --- report RUN_DIR... --- */

typedef struct options {
    const char *out;
    bool allow_mismatch, no_png, weak;
    int64_t warmup;
} options;

static const ls_opt opts[] = {
    {"out", LS_OPT_STR, offsetof(options, out), "DIR", "report",
     "output folder for report.html, report.md, scaling_report.json and charts/", "Report"},
    {"allow-mismatch", LS_OPT_SWITCH, offsetof(options, allow_mismatch), NULL, NULL,
     "compare runs that are not comparable, and mark the page", NULL},
    {"weak", LS_OPT_SWITCH, offsetof(options, weak), NULL, NULL,
     "weak scaling: the global batch may grow with the number of workers [taken from the bench report next to the "
     "runs]",
     NULL},
    {"warmup", LS_OPT_INT, offsetof(options, warmup), "N", NULL,
     "number of warm-up steps to exclude [taken from the bench report next to the runs, else 5]", NULL},
    {"no-png", LS_OPT_SWITCH, offsetof(options, no_png), NULL, NULL, "write SVG charts only, do not use gnuplot", NULL},
};
#define N_OPT (sizeof opts / sizeof opts[0])

static void print_result(const ls_report_result *r, const options *o, bool written)
{
    for (int i = 0; i < r->notes.n; i++) fprintf(stderr, "note: %s\n", r->notes.text[i]);
    if (r->table.data) fputs(r->table.data, stdout);
    if (!written) return;
    if (r->no_gnuplot)
        fprintf(stderr, "note: gnuplot is not installed; only SVG charts are written (package gnuplot-nox)\n");
    printf("Wrote %s/report.html (%d runs, %d charts)\n", o->out, r->n_run, r->n_chart);
}

static ls_status run_report(int argc, char **argv)
{
    options o = {0};
    ls_opt_list paths = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(opts, N_OPT, &o));
    LS_TRY(ls_opt_parse(opts, N_OPT, &o, NULL, argc, argv, &paths, &help));
    if (help) {
        cli_help("report RUN_DIR... [--out DIR] [--weak] [--allow-mismatch]\n       lockstep report "
                 "table|charts|verify [OPTIONS]    (each has --help)",
                 "Read run folders of Lockstep or of the reference trainer, metrics files, or folders of run folders, "
                 "and write a self-contained page report.html, with report.md and the charts next to it.\n\nOnly "
                 "comparable runs are compared: same sequence length, data, global batch, epochs, model and precision. "
                 "If runs are not comparable, each run is reported separately, the differences are listed and the exit "
                 "code is 1. Unreadable files are reported with file and key and skipped; if no run is left, the exit "
                 "code is 3. Speed is measured over the steps after warm-up if every run has them (metrics.jsonl), "
                 "else over whole epochs; the page states which.",
                 opts, N_OPT);
        return LS_OK;
    }
    if (!paths.n) return ls_fail(LS_E_ARG, "report needs at least one run folder (lockstep report RUN_DIR...)");
    if (o.warmup < 0 || o.warmup > 1000000)
        return ls_fail(LS_E_ARG, "--warmup %lld: must be at least 1", (long long)o.warmup);
    ls_report_opts ro = {.path = paths.word,
                         .n_path = paths.n,
                         .out = o.out,
                         .allow_mismatch = o.allow_mismatch,
                         .png = !o.no_png,
                         .weak = o.weak,
                         .warm = (int)o.warmup};
    ls_report_result r = {0};
    ls_status st = ls_report_write(&ro, &r);
    bool unlike = r.n_mismatch && !r.comparable, weak = r.looks_weak;
    print_result(&r, &o, st == LS_OK);
    ls_report_result_fini(&r);
    LS_TRY(st);
    if (!unlike) return LS_OK;
    fprintf(stderr, "lockstep: invalid_comparison: the runs are not comparable, see %s/scaling_report.json (%s)\n",
            o.out,
            weak ? "the batch per worker is constant; --weak compares them as weak scaling"
                 : "--allow-mismatch compares them");
    return verdict_no();
}

ls_status cmd_report(int argc, char **argv)
{
    if (argc && !strcmp(argv[0], "table")) return run_table(argc - 1, argv + 1);
    if (argc && !strcmp(argv[0], "charts")) return run_charts(argc - 1, argv + 1);
    if (argc && !strcmp(argv[0], "verify")) return run_verify(argc - 1, argv + 1);
    return run_report(argc, argv);
}
