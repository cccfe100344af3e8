/* pipe_report.h - busy and idle time of every pipeline stage, compared with the simulator for the same costs.
 *
 *   measured    1 - busy / makespan of each stage, means over the steps; makespan: of the slowest stage
 *   predicted   ls_simulate of the same lists with the mean cost of every part's forward and backward, messages free
 *   replayed    ls_simulate of the last step with what each of its actions took, beside that step's own measured bubble
 *
 * Measured and replayed differ by communication that was not hidden; replayed and predicted by actions of one part that did not take the
 * same time (a busy machine). */
#ifndef LS_TRAIN_PIPE_REPORT_H
#define LS_TRAIN_PIPE_REPORT_H

#include "core/json.h"
#include "core/str.h"
#include "train/trainer.h"

struct ls_stage_facts;

typedef struct ls_pipe_report {
    const struct ls_stage_facts *stage; /* of the first replica; NULL: no pipeline, or another rank than 0 */
    double makespan, predicted_makespan;
    double measured, predicted; /* bubble over all stages  */
    double last, replayed;      /* bubble of the last step */
    ls_str rows;                /* pipeline.json: boxes of the last step, as measured and as replayed */
} ls_pipe_report;

/* Collective over the run's workers; only rank 0's is filled. Nothing without a pipeline. ls_str_fini(&rows) when done. */
ls_status ls_pipe_report_gather(ls_trainer *t, ls_pipe_report *out);
/* The object `pipeline` of training_metrics.json. */
void ls_pipe_report_write(const ls_pipe_report *r, const ls_trainer *t, ls_jsonw *w);
/* Two lines for io.note; nothing without a pipeline. */
void ls_pipe_report_print(const ls_pipe_report *r, const ls_trainer *t);

#endif
