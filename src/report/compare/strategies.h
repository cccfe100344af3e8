/* strategies.h - settings side by side by the six metrics of a framework comparison, each with its interval over repeats.
 *
 *   communication   share of a step that was waited for other workers' data (and, apart, for the pipeline's bubble)
 *   throughput      tokens/s
 *   time            wall seconds of the fixed work
 *   utilisation     CPU seconds / (wall seconds x threads), mean over workers
 *   memory          peak resident bytes, of the worker that had most
 *   scalability     speed-up over one worker, and efficiency
 */
#ifndef LS_REPORT_STRATEGIES_H
#define LS_REPORT_STRATEGIES_H

#include "report/compare/analysis.h"

enum {
    LS_METRIC_COMMUNICATION,
    LS_METRIC_BUBBLE,
    LS_METRIC_TOKENS,
    LS_METRIC_WALL,
    LS_METRIC_UTILISATION,
    LS_METRIC_MEMORY,
    LS_METRIC_SPEEDUP,
    LS_METRIC_EFFICIENCY,
    LS_N_METRIC
};

/* The metrics of a group. LS_E_NOMEM alone. */
ls_status ls_metrics_of(const ls_analysis *a, const ls_group *g, ls_estimate out[LS_N_METRIC]);
/* For a terminal. */
ls_status ls_strategies_table(const ls_analysis *a, ls_str *out);
/* strategies_report.json; more adds members to `protocol`, left_out to the list of what was not run. */
ls_status ls_strategies_text(const ls_analysis *a, void (*more)(const void *ctx, ls_jsonw *w),
                             void (*left_out)(const void *ctx, ls_jsonw *w), const void *ctx, ls_str *out);

#endif
