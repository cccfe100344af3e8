/* planner_check.h - compares a finished run with the prediction of the planner.
 *
 * The configuration is that of the run folder: options.json, and what training_metrics.json records of choices. Measured times are the mean over its steps (metrics.jsonl,
 * without the first two and those above twice the median), or over the fastest 10 %; memory is what each worker
 * reported. */
#ifndef LS_PLAN_PLANNER_CHECK_H
#define LS_PLAN_PLANNER_CHECK_H

#include "plan/planner.h"
#include "core/argv.h"

typedef struct ls_run_record {
    char dir[512];
    ls_train_options options;
    ls_argv words;                                          /* of options.json, which the options borrow */
    char compute[LS_COMPUTE_WORDS], kernel[LS_KERNEL_NAME]; /* description of the backend; its matmul kernel on a CPU */
    ls_train_config cfg;
    char cut[1024]; /* stages that were measured */
    int64_t val_seqs;
    ls_plan_memory *memory; /* of each rank                         */
    ls_prediction seen;     /* measured: no comm, calls or elements */
    int n_step;
    bool pipeline;
} ls_run_record;

/* LS_E_IO, LS_E_FORMAT: the message names the file and the key. */
ls_status ls_run_record_load(const char *dir, bool fastest, ls_run_record *r);
void ls_run_record_fini(ls_run_record *r);

/* Prints prediction and measurement as text or JSON. *worst: relative difference of tokens/s. */
ls_status ls_planner_check(const ls_cluster *cl, const ls_run_record *r, bool json, ls_str *out, double *worst);

#endif
