/* step_clock.h - where the time of a step went, measured from its events (observe.h).
 *
 *   split         seconds of a step by part; waits for other workers are in comm_exposed alone. Means of the session: ls_step_clock_mean
 *   samples       times of single micro-batches, every timing_sample_every-th of an epoch
 *   update times  time of each optimizer step of an epoch, without waits for a checkpoint
 *   epoch, run    the time of an epoch is that of its steps: no validation, no checkpoints, no waits for a checkpoint. The time of a run is
 *                 all of it, with the sessions before a resume
 *
 * A device executes operations later than they are called. There the clock queues marks and reads them when the device has passed them. The
 * update of a step is still queued when the step returns, so its time is part of the next step's split. */
#ifndef LS_TRAIN_STEP_CLOCK_H
#define LS_TRAIN_STEP_CLOCK_H

#include "config/resolve.h"
#include "core/device.h"
#include "train/observe.h"

enum { LS_STEP_MAX_MARK = 128 }; /* with very many micro-batches the last ones are counted as backward */

typedef struct ls_step_clock {
    /* this session */
    double run_begin; /* on the clock of ls_now, less the time of the sessions before */
    ls_step_split sum;
    int64_t n_step, n_untimed;    /* steps; of them without a split, because the device lost a time */
    double cpu_begin, wall_begin; /* of the first step                                              */
    /* this epoch */
    double *sample_step, *sample_data, *update_time;
    int64_t n_sample, n_update;
    /* this step */
    ls_step_result *r;
    double begin, cpu;
    double at, exposed; /* the last mark; the total exposed time then */
    double began[LS_N_PHASE], read_end;
    double pipe, pipe_forward, pipe_backward; /* a pipeline: its time; its totals before this step */
    bool lost;                                /* a time of the device is not known                 */
    int n_mark;
    struct {
        ls_mark mark;
        double *part, waited;
    } mark[LS_STEP_MAX_MARK];
    ls_mark update[2], last_update[2]; /* a device: around this step's update and the one before */
} ls_step_clock;

ls_status ls_step_clock_init(ls_step_clock *k, const ls_train_config *c);
void ls_step_clock_fini(ls_step_clock *k);

ls_step_split ls_step_clock_mean(const ls_step_clock *k); /* not a number without a timed step: null in files */
double ls_step_clock_run(const struct ls_trainer *t);     /* seconds of the run                              */
double ls_step_clock_cpu(const struct ls_trainer *t);     /* CPU utilisation since the first step; 0 without one */

#endif
