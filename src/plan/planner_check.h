/* planner_check.h - a finished run beside what the planner says of it.
 *
 * The configuration is read back from the run's command line, so that what is predicted is what ran. Measured times are the mean of
 * its steps (metrics.jsonl, without the first two and those of more than twice the median), or of the fastest tenth; memory is what every
 * worker reported. */
#ifndef LS_PLAN_PLANNER_CHECK_H
#define LS_PLAN_PLANNER_CHECK_H

#include "plan/planner.h"

typedef struct ls_run_record {
    char dir[512];
    ls_train_options options;
    char *words; /* the command line, cut into words that the options borrow */
    char *argv[256];
    ls_train_config cfg;
    char cut[1024]; /* stages that were measured */
    int64_t val_seqs;
    ls_plan_memory *memory; /* of each rank                         */
    ls_prediction seen;     /* measured: no comm, calls or elements */
    int n_step;
    bool pipeline;
} ls_run_record;

/* LS_E_IO, LS_E_FORMAT: the file and the key. */
ls_status ls_run_record_load(const char *dir, bool fastest, ls_run_record *r);
void ls_run_record_fini(ls_run_record *r);

/* Both sides as text or as JSON. *worst: the difference of tokens/s, as a part of the measured. */
ls_status ls_planner_check(const ls_cluster *cl, const ls_run_record *r, bool json, ls_str *out, double *worst);

#endif
