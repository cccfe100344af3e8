/* nsys.h - `nsys stats` text of a run to profiles/profile_summary.json (docs/FORMATS.md; R1's parser, docs/REFERENCES.md#nsys).
 *
 * Reads every <run_dir>/profiles/nsys_stats_*.txt. Digit grouping follows the locale of the profiled host and is not checked.
 * Keys, order and ranking (by share of time, ties in the order of the file) are those of docs/FORMATS.md. */
#ifndef LS_REPORT_NSYS_H
#define LS_REPORT_NSYS_H

#include "core/err.h"
#include "core/str.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct ls_nsys_row {
    double percent;
    int order;                /* as read */
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
void ls_nsys_rank(ls_nsys_rows *rows); /* stable, descending */
void ls_nsys_rows_fini(ls_nsys_rows *rows);

/* Text of the summary. n_file 0: there were no stats files, and nothing was appended. */
ls_status ls_nsys_summary_text(const char *run_dir, ls_str *out, size_t *n_file);

#endif
