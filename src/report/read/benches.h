/* benches.h - the benchmarks below a folder. Runs are compared inside a benchmark: those of two benchmarks differ in their work.
 *
 *   runs/                            not a benchmark
 *     20260101T120000Z/              a benchmark: it has a result file, or, if it was stopped, folders <N>(gpu|cpu)_<name>/run_<k>
 *       scaling_report.json
 *       1gpu_single/run_1 …
 *     mine/                          a run of its own
 */
#ifndef LS_REPORT_BENCHES_H
#define LS_REPORT_BENCHES_H

#include "core/argv.h"
#include "report/read/keys.h"

typedef enum ls_bench_kind {
    LS_BENCH_OF_SCALING,
    LS_BENCH_OF_STRATEGIES,
    LS_BENCH_OF_AB,
    LS_BENCH_OF_R3,
    LS_N_BENCH_KIND /* of a benchmark without a result file */
} ls_bench_kind;
extern const char *const ls_bench_file[LS_N_BENCH_KIND]; /* "scaling_report.json" */

typedef struct ls_found_bench {
    char *dir, *real; /* as found; its one name */
    ls_bench_kind kind;
    json_t *root; /* of the result file; NULL: there is none, or it cannot be read */
    ls_argv path; /* its runs */
} ls_found_bench;

typedef struct ls_found_benches {
    ls_found_bench *bench; /* in the order of their folders; a folder with several result files is several benchmarks */
    int n, cap;
} ls_found_benches;

/* Of an ab_report.json (NULL: false): --a or --b chose the precision, so that it is what is compared. */
bool ls_compares_precisions(const json_t *root);
bool ls_is_bench(const char *dir);
/* Adds the benchmarks at or below path that are not in the list yet. LS_E_NOMEM alone. */
ls_status ls_benches_find(ls_found_benches *b, const char *path);
void ls_benches_fini(ls_found_benches *b);

#endif
