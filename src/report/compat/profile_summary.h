/* profile_summary.h - profiles/profile_summary.json (docs/FORMATS.md), from the statistics of nsys or from our own trace.
 *
 * nsys: every <run_dir>/profiles/nsys_stats_*.txt is read as the scaling study's parser does (docs/REFERENCES.md#nsys).
 * Digit grouping follows the locale of the profiled host and is not checked. Rows are ranked by their share of time,
 * ties in the order of the file.
 *
 * trace: nvtx_top5 are the phases ("train/backward", ...) of all ranks, with shares of the sum over all phases;
 * osrt_top5 is empty. Under `lockstep`: seconds of each rank by kind, collectives with calls, bytes, busy and waited
 * time, and what the trace does not show (dropped spans, errors of clocks). The trace is read line by line, one event
 * each; it may be larger than memory. */
#ifndef LS_REPORT_PROFILE_SUMMARY_H
#define LS_REPORT_PROFILE_SUMMARY_H

#include "core/json.h"
#include "report/read/trace_read.h"

/* n_file 0: there were no statistics of nsys, and nothing was appended. */
ls_status ls_nsys_summary_text(const char *run_dir, ls_str *out, size_t *n_file);
/* Of <run_dir>/profiles/trace.json; table (may be NULL): the same for a terminal. LS_E_IO, LS_E_FORMAT (the line is named). */
ls_status ls_trace_summary_text(const char *run_dir, ls_str *out, ls_str *table);

/* inside the folder */
void profile_table(const trace_facts *f, ls_str *out);
typedef struct ls_nsys_row {
    double percent;
    int order;                /* as read */
    int file;                 /* its input */
    char *name, *total, *raw; /* total: "621 ns", or NULL */
} ls_nsys_row;

typedef struct ls_nsys_rows {
    ls_nsys_row *row;
    int n, cap;
} ls_nsys_rows;

/* Appends the rows of one section ("NVTX Range Summary", "OS Runtime Summary") of a stats text. LS_E_NOMEM. */
ls_status ls_nsys_parse(const char *text, size_t n, const char *marker, ls_nsys_rows *rows);
/* Appends a row and takes over its texts, also when it fails. LS_E_NOMEM: also if name or raw is NULL. */
ls_status ls_nsys_add(ls_nsys_rows *rows, ls_nsys_row r);
/* Rows of the same name, of several files or captures, become one: times are added, raw has a line of each, and the shares of all rows are
 * those of the sum of all times. Without such rows, or where a row has no time, nothing changes. LS_E_NOMEM. */
ls_status ls_nsys_merge(ls_nsys_rows *rows);
void ls_nsys_rank(ls_nsys_rows *rows); /* stable, descending */
void ls_nsys_rows_fini(ls_nsys_rows *rows);

typedef struct profile_file { /* an input */
    const char *name;
    ls_nsys_rows nvtx, osrt;
} profile_file;

typedef struct profile_summary {
    const char *run_dir;
    json_t *metrics, *launcher; /* files of the run; NULL: missing */
    json_t *hosts, *reports;    /* a list, or null; the reports of nsys: a list */
    profile_file *file;
    int n_file;
    int n_again;                     /* rows that another file of the same host has, too: counted once */
    const ls_nsys_rows *nvtx, *osrt; /* of all files, ranked */
} profile_summary;

/* Reads the files of the run, and makes an empty list of reports. LS_E_NOMEM alone. */
ls_status profile_summary_begin(profile_summary *p, const char *run_dir);
void profile_summary_put(const profile_summary *p, ls_jsonw *w); /* the members that both summaries have */
void profile_summary_fini(profile_summary *p);                   /* the file list stays the caller's */

#endif
