/* tools.h - the scaling study's tools (docs/REFERENCES.md#the-zero-scaling-study): table, verifier and pair of charts,
 * with their rules, verdicts and output. */
#ifndef LS_REPORT_TOOLS_H
#define LS_REPORT_TOOLS_H

#include "core/err.h"
#include "core/str.h"

/* Markdown table of three metrics files, to the character. A missing number is LS_E_FORMAT with the file and key named. */
ls_status ls_report_table(const char *gpu1, const char *gpu2, const char *gpu4, ls_str *out);

/* Every run_* folder below dir, at any depth (the scaling study reads only the first level). Tab-separated table and
 * verdict go to out; *n_run 0: there was none, *n_bad: those that are not ok. LS_E_IO when dir cannot be listed. */
ls_status ls_report_verify(const char *dir, ls_str *out, int *n_run, int *n_bad);

/* Two bars each for time and tokens/s of the last epoch, into <out>/training_time_comparison and
 * training_throughput_comparison (.svg, and .png with rsvg-convert). words: the files written and the saving. */
ls_status ls_report_pair(const char *baseline, const char *optimized, const char *out, ls_str *words);

#endif
