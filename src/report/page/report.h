/* report.h - run folders to a folder with report.html, report.md, scaling_report.json and charts/ (SVG; PNG if rsvg-convert is installed). */
#ifndef LS_REPORT_REPORT_H
#define LS_REPORT_REPORT_H

#include "report/compare/analysis.h"

typedef struct ls_report_opts {
    const char *const *path; /* run folders, metrics files, folders of run folders */
    int n_path;
    const char *out;
    bool allow_mismatch, png;
    bool together; /* compare all runs with one another, also those of several benchmarks */
    bool weak; /* the global batch grows with the workers; detected if a benchmark report next to the runs states it */
    int warm;  /* steps that are left out; 0: from the benchmark report next to the runs, else LS_REPORT_WARM */
} ls_report_opts;

enum { LS_REPORT_WARM = 5 }; /* the bench's */

typedef struct ls_report_result {
    int n_part; /* benchmarks and, as one more, the runs outside of them, each with a section; 0: there is one page for all runs */
    int n_run, n_group, n_mismatch, n_chart, n_png;
    bool comparable, no_rsvg; /* rsvg-convert is not installed */
    bool looks_weak;          /* not comparable, but the batch per worker is equal */
    ls_str table;             /* the settings and interruptions as short tables, for a terminal */
    ls_str json;              /* the same as JSON objects, one per part, with commas between them */
    ls_notes notes;           /* what could not be read, and fields that differ  */
} ls_report_result;

/* Runs in several benchmarks, or in one and outside of it, are compared in the benchmarks alone: report.html has one section for each, and
 * the complete page of each is in a folder of its own. LS_E_FORMAT when there is not one run. The result is filled in every case but LS_E_NOMEM; fini it. */
ls_status ls_report_write(const ls_report_opts *o, ls_report_result *result);
void ls_report_result_fini(ls_report_result *r);

#endif
