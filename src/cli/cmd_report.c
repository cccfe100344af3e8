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
    {"gpu1", LS_OPT_STR, offsetof(table_options, gpu1), "FILE", NULL, "training_metrics.json of one worker", "Files"},
    {"gpu2", LS_OPT_STR, offsetof(table_options, gpu2), "FILE", NULL, "of two", NULL},
    {"gpu4", LS_OPT_STR, offsetof(table_options, gpu4), "FILE", NULL, "of four", NULL},
};

static ls_status run_table(int argc, char **argv)
{
    table_options o = {0};
    bool help = false;
    LS_TRY(ls_opt_parse(table_opts, 3, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("report table --gpu1 FILE --gpu2 FILE --gpu4 FILE",
                 "Prints the reference's scaling table as Markdown. Numbers are taken as they are: `report` checks "
                 "that runs are alike.",
                 table_opts, 3);
        return LS_OK;
    }
    if (!o.gpu1 || !o.gpu2 || !o.gpu4)
        return ls_fail(LS_E_ARG, "report table needs --gpu1, --gpu2 and --gpu4, each a training_metrics.json");
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
     "training_metrics.json to compare with", "Files"},
    {"optimized-json", LS_OPT_STR, offsetof(chart_options, optimized), "FILE", NULL,
     "training_metrics.json of the faster run", NULL},
    {"out", LS_OPT_STR, offsetof(chart_options, out), "DIR", "docs", "folder for the charts", NULL},
};

static ls_status run_charts(int argc, char **argv)
{
    chart_options o = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(chart_opts, 3, &o));
    LS_TRY(ls_opt_parse(chart_opts, 3, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("report charts --baseline-json FILE --optimized-json FILE [--out DIR]",
                 "Two bars each for time and throughput of the last epoch: training_time_comparison and\n"
                 "training_throughput_comparison, as SVG and, with gnuplot, PNG. A file that cannot be read is said, "
                 "and no chart made.",
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
    {"dir", LS_OPT_STR, offsetof(verify_options, dir), "DIR", NULL, "folder with run_* folders, at any depth", "What"},
};

static ls_status run_verify(int argc, char **argv)
{
    verify_options o = {0};
    bool help = false;
    int n_run = 0, n_bad = 0;
    LS_TRY(ls_opt_parse(verify_opts, 1, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("report verify --dir DIR",
                 "Checks every run_* folder: training_metrics.json is there and has its keys, train.log is not empty, "
                 "and the number of\n"
                 "workers is the one of the path (1gpu_, 2gpu_, 4gpu_). Exit code 1 when one is not ok, or when there "
                 "is none.",
                 verify_opts, 1);
        return LS_OK;
    }
    if (!o.dir) return ls_fail(LS_E_ARG, "report verify needs --dir, a folder with run_* folders");
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
     "folder for report.html, report.md, scaling_report.json and charts/", "Report"},
    {"allow-mismatch", LS_OPT_SWITCH, offsetof(options, allow_mismatch), NULL, NULL,
     "compares runs that are not alike, and marks the page", NULL},
    {"weak", LS_OPT_SWITCH, offsetof(options, weak), NULL, NULL,
     "weak scaling: the global batch may grow with the workers [when the bench's report beside the runs says so]",
     NULL},
    {"warmup", LS_OPT_INT, offsetof(options, warmup), "N", NULL,
     "first steps that are not counted [what the bench's report beside the runs says, else 5]", NULL},
    {"no-png", LS_OPT_SWITCH, offsetof(options, no_png), NULL, NULL, "SVG charts only, without gnuplot", NULL},
};
#define N_OPT (sizeof opts / sizeof opts[0])

static void print_result(const ls_report_result *r, const options *o, bool written)
{
    for (int i = 0; i < r->notes.n; i++) fprintf(stderr, "note: %s\n", r->notes.text[i]);
    if (r->table.data) fputs(r->table.data, stdout);
    if (!written) return;
    if (r->no_gnuplot)
        fprintf(stderr, "note: gnuplot is not installed: charts are SVG files only (package gnuplot-nox)\n");
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
        cli_help(
            "report RUN_DIR... [--out DIR] [--weak] [--allow-mismatch]   (or: report table | charts | verify, each "
            "with --help)",
            "Reads run folders of this program or of the reference trainer, metrics files, or folders of run folders, "
            "and writes one\n"
            "page that needs no network: report.html, with report.md and the charts beside it. Only like runs are "
            "compared (sequence\n"
            "length, data, global batch, epochs, model, precision): with unlike ones each is reported for itself, the "
            "differences are\n"
            "named and the exit code is 1. What cannot be read is said with its file and key; the rest is still "
            "reported, and\n"
            "with nothing left the exit code is 3. Speeds are of the steps behind the warm-up where every run has them "
            "(metrics.jsonl),\n"
            "else of whole epochs; the page says which.",
            opts, N_OPT);
        return LS_OK;
    }
    if (!paths.n) return ls_fail(LS_E_ARG, "report needs at least one run folder (lockstep report RUN_DIR...)");
    if (o.warmup < 0 || o.warmup > 1000000)
        return ls_fail(LS_E_ARG, "--warmup is a number of steps from 1, not %lld", (long long)o.warmup);
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
    fprintf(stderr, "lockstep: invalid_comparison: the runs are not alike, see %s/scaling_report.json (%s)\n", o.out,
            weak ? "every worker has the same batch: --weak compares them as weak scaling"
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
