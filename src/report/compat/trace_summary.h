/* trace_summary.h - profiles/profile_summary.json from profiles/trace.json (core/trace.h).
 *
 * Keys that R1 has (docs/REFERENCES.md#nsys) have its meaning
 * where a trace can fill them: nvtx_top5 are the phases ("train/backward", …) of all ranks,
 * with shares of the sum over all phases as nsys counts them; osrt_top5 is empty. Under "lockstep": seconds of each rank by kind,
 * collectives with calls, bytes, busy and waited time, and what the trace does not show (dropped spans, errors of clocks).
 *
 * The trace is read line by line, one event each; it may be larger than memory. */
#ifndef LS_REPORT_TRACE_SUMMARY_H
#define LS_REPORT_TRACE_SUMMARY_H

#include "core/err.h"
#include "core/str.h"

/* Text of the summary of <run_dir>/profiles/trace.json. LS_E_IO, LS_E_FORMAT (the line is named). */
ls_status ls_trace_summary_text(const char *run_dir, ls_str *out);

#endif
