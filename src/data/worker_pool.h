/* pipeline.h - blocks in, jobs run by several threads, results out in order.
 *
 * The calling thread reads and takes the results; `threads` others work (none when it is 1: the caller does it all). What comes
 * out does not depend on their number, errors included: the first one in the order of the corpus is reported. */
#ifndef LS_DATA_PIPELINE_H
#define LS_DATA_PIPELINE_H

#include "data/job.h"

/* Takes one finished job; called in order, by the caller's thread. */
typedef ls_status (*data_take)(void *ctx, const data_job *j, const ls_blocks *at);

/* LS_E_STOPPED when core/stop.h says so. */
ls_status data_pipeline_run(ls_blocks *blocks, const data_job_rules *rules, int threads, data_take take, void *ctx);

#endif
