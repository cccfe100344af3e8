/* worker_pool.h - processes blocks on several threads and returns the results in order.
 *
 * The calling thread reads blocks and consumes results; `threads` worker threads process blocks (with 1, the caller does everything).
 * The result does not depend on their number: the first error in the order of the corpus is reported. */
#ifndef LS_DATA_WORKER_POOL_H
#define LS_DATA_WORKER_POOL_H

#include "data/job.h"

/* Consumes one finished job; called in order on the thread of the caller. */
typedef ls_status (*data_take)(void *ctx, const data_job *j, const ls_blocks *at);

/* LS_E_STOPPED after a stop request (core/stop.h). */
ls_status data_pipeline_run(ls_blocks *blocks, const data_job_rules *rules, int threads, data_take take, void *ctx);

#endif
