/* trainer.h - one training run: plan, step, loop.
 *
 *   create   config -> tables, memory plan, one allocation, weights (fresh, imported or resumed)
 *   step     A micro-batches forward and backward, the tree's sum, norm and clip, one AdamW pass
 *   run      epochs of steps, validation, checkpoints, artifacts
 *
 * Invariants
 *   1. after create nothing is allocated, except while a checkpoint is posted;
 *   2. parameters change only inside the optimizer pass: until then a step can be abandoned and the state of the last finished
 *      one saved, as SIGTERM does in any phase. An offloaded optimizer that overlaps the backward pass (ls_strategy_opts) begins its
 *      pass with the backward pass of the last micro-batch: from there on a step is completed, and then saved;
 *   3. a step is a function of (seed, step, weights): a resume or another number of threads does not change a bit. */
#ifndef LS_TRAIN_TRAINER_H
#define LS_TRAIN_TRAINER_H

#include "core/lock.h"
#include "core/plan.h"
#include "core/progress.h"
#include "data/loader.h"
#include "model/input.h"
#include "model/model.h"
#include "parallel/pipe_exec.h"
#include "parallel/strategy.h"
#include "train/artifacts.h"
#include "train/audit.h"
#include "ckpt/checkpoint.h"
#include "train/event_file.h"
#include "train/live.h"
#include "train/nccl_proof.h"
#include "train/observe.h"
#include "train/step_clock.h"
#include "config/resolve.h"
#include "train/telemetry.h"

#include <limits.h>

/* One run writes to a folder. A run that was killed may need a moment to end: seconds. */
#define LS_RUN_LOCK_TIME   3.0
#define LS_RUN_LOCK_ADVICE "two runs cannot share a folder: wait for it, stop it, or use another --checkpoint_path"

/* Where a run prints. Any member may be NULL. */
typedef struct ls_train_io {
    void *ctx;
    void (*line)(void *ctx, const char *text);                   /* stdout: results and markers (docs/FORMATS.md) */
    void (*progress)(void *ctx, const ls_progress_line *status); /* stderr: the state of the newest step         */
    void (*event)(void *ctx, const char *text);                  /* stderr: what happened                       */
    void (*note)(void *ctx, const char *text);                   /* stderr: other messages                      */
    void (*debug)(void *ctx, const char *text);                  /* stdout of every worker: DIST_DEBUG's lines   */
    void (*opened)(void *ctx, const struct ls_trainer *t);       /* the compute backend is open, no more         */
} ls_train_io;

/* Mean and variance of a series with exponential forgetting, for the spike report. */
typedef struct ls_spread {
    double mean, var;
    int64_t n;
} ls_spread;

/* Adds a value; true when it is far above the recent values: more than 6 deviations and `margin` (a part of the mean) above the mean, once
 * 50 values are known. Norms vary more than losses from batch to batch, so they need a larger margin.
 * Values are forgotten with a half-life of about 14, so that the fall at the start of a run does not widen the spread for long. */
#define LS_LOSS_MARGIN 0.25
#define LS_NORM_MARGIN 2.0
bool ls_spread_add(ls_spread *s, double margin, double x);

/* What a checkpoint restores besides tensors. */
typedef struct ls_run_state {
    int64_t step;       /* optimizer steps, skipped ones included                              */
    int64_t epoch;      /* finished epochs                                                     */
    int64_t epoch_step; /* finished updates of the current epoch                               */
    double loss_sum;    /* of the current epoch: sum over counted tokens                       */
    int64_t tokens;
    int64_t targets;               /* tokens that count in the loss: all, except in pairs (data/loader.h)  */
    double epoch_time, total_time; /* seconds before the resume                                 */
    ls_epoch_metrics *done;        /* finished epochs                                           */
    ls_spread loss_spread, norm_spread;
    double norm_max, norm_last;
    int64_t n_spike;
    ls_loss_scale scale;
    int64_t skipped, epoch_skipped; /* steps whose gradients overflowed: of the run, of the current epoch */
} ls_run_state;

/* The number of the next update, for the learning rate schedule and the optimizer's bias correction. */
static inline int64_t ls_next_update(const ls_run_state *s)
{
    return s->step - s->skipped + 1;
}

/* What save.c keeps. */
typedef struct ls_saving {
    int64_t step;   /* of the last checkpoint that this run posted to its folder, unless it failed; else -1 */
    int64_t posted; /* of the last one */
    char name[32];
    bool pending; /* the writer has not returned its status */
    bool held;    /* --audit: what was written of the current state is not published before this state was compared */
    bool beside;  /* this includes a copy in memory beside the writer's job */
    double began; /* when the last one was posted to the run folder */
    double stall; /* seconds in which training waited for it */
    int64_t first, every;  /* --save_every auto: the step of the first one; the interval, 0: not chosen yet */
    double cost, write;    /* what it was chosen from; --save_async: seconds until the writer was free, 0: not known */
    int64_t write_steps;   /* steps in this time */
    bool left_out;         /* --save_async: one was due while another was being written, and a line was printed */
    ls_ckpt_memory memory; /* copies for restarts */
    bool in_memory;        /* the last one was posted to it */
    void *room;            /* --save_async: for the copy */
    int64_t n_room;
    bool busy; /* a writer had work at the begin of the step, on any worker */
} ls_saving;

/* The log of collectives (reference_log.c). Zeroed: off. */
typedef struct ls_coll_log {
    bool on;
    int fd, rank;
    int64_t seq;
    double *room; /* for the values of all workers; owned by the communicator */
} ls_coll_log;

/* What monitor.c keeps. Zeroed: nothing is open. */
enum { LS_N_SERIES = 11 };
typedef struct ls_monitor {
    ls_event_file events;
    int csv[LS_N_SERIES]; /* descriptors + 1; 0: not open */
    double timed;         /* seconds of n_timed steps */
    int64_t n_timed;
    bool seen_step;
} ls_monitor;

/* Time of a step, smoothed. */
typedef struct ls_pace {
    double seconds;
    int64_t n;
} ls_pace;

/* Where the open spans of a step began, for the trace. */
typedef struct ls_step_spans {
    int64_t step, phase[LS_N_PHASE];
} ls_step_spans;

typedef struct ls_trainer {
    const ls_train_config *cfg;
    ls_train_io io;
    ls_compute compute;
    ls_model *model;
    ls_plan plan;
    ls_acts *acts;
    ls_comm *comm; /* the workers of this run                                          */
    bool owns_comm;
    ls_comm *dp; /* the replicas of this worker's part of the model; comm itself, or its own */
    ls_comm *tp; /* the workers with the other shards of its layers, or NULL         */
    ls_coord at; /* this worker's place in the mesh                                  */
    ls_comm *pp, *pp_acts,
        *pp_grads;    /* the stages of this replica: for the step, for activations, for gradients; or NULL */
    ls_comm *each[6]; /* all of them, each once: comm first */
    int n_each;
    ls_stages stages;
    ls_schedule *schedule; /* of a pipeline, or NULL                                       */
    ls_pipe *pipe;
    ls_strategy *strategy;
    ls_piece *hold, *save; /* what this worker holds; what it writes to checkpoints            */
    int n_hold, n_save;
    ls_model *whole; /* the model of checkpoints: model itself, or the tables of the model that it is a shard of */
    ls_piece *load;  /* hold as parts of it; save already is                                   */
    int n_load;
    int64_t n_target;                /* counted targets of the current step, on all workers               */
    ls_adamw hyper;                  /* of the current update: what all units have                       */
    ls_mark decided;                 /* one worker with a device: the decision about the update is made  */
    bool updating;                   /* the current step changes parameters already: it must be completed */
    ls_tokens train, val;            /* val.n_seq == 0: no validation                                    */
    uint64_t train_hash;             /* of the ids of train: a resumed run compares it                   */
    char train_sum[64], val_sum[64]; /* of the data, for the files of the run: rank 0's; "": none            */
    ls_input input;                  /* the micro-batches of a step                                      */
    int32_t *ids, *target;           /* room for one on the host                                         */
    double *norm_block;              /* scratch, to find the tensor that is not finite                   */
    ls_nccl_proof *proof;            /* of a run over NCCL; else NULL */
    ls_device_info device;           /* of a device, else all 0                                          */
    bool gpu_shared;                 /* two ranks of the run use one GPU                                 */
    double *micro_loss;              /* (loss sum, rows counted) of every micro-batch of a step          */
    float *fp8_amax;                 /* fp8: the magnitudes of every worker (model/fp8.h), else NULL     */
    bool fp8_zero;                   /* a step found an operand that was always 0                        */
    double *val_loss;                /* the same of every validation batch                               */
    ls_ckpt_writer *writer;
    ls_audit *audit; /* NULL: --audit 0 */
    ls_saving saving;
    ls_lock lock; /* rank 0's, on the run folder */
    ls_run_state state;
    int64_t resumed_from;
    bool complete; /* resumed after its last step, with its files written: nothing is left to do */
    bool broken;   /* a step failed on this worker                                       */
    /* what the observers keep, in the order in which they are called (observe.h) */
    ls_observer observer; /* a further one */
    ls_step_clock clock;
    ls_step_spans span; /* of the trace */
    ls_metrics_log log; /* rank 0's */
    ls_monitor monitor; /* rank 0's */
    ls_live live;       /* events.jsonl is rank 0's */
    ls_coll_log coll;   /* DIST_DEBUG=1 */
    ls_pace pace;       /* of this process */
    struct {
        double seconds, used; /* of the first steps; their CPU utilisation times their seconds */
        double waited;        /* for a core, before the first step */
        bool decided;
    } busy;
    ls_progress_line status; /* of the newest step that was shown */
    ls_telemetry gpu;        /* rank 0's */
    int64_t watched_tokens;
} ls_trainer;

/* Checks that strategy, stages and schedule fit the numbers of workers and micro-batches; the error message shows the arithmetic. */
ls_status ls_train_check_layout(const ls_train_config *c);

/* Distributes the cores of this machine over the workers of a run: stages that cost more get more. share has one entry per worker of the
 * world; false: equal shares (no pipeline, threads given, fewer cores than workers). Sets c->stage_thread. */
bool ls_train_share_cores(ls_train_config *c, int n_core, int *share);

/* Opens the data, plans, allocates, sets the weights. The config and the communicator must outlive the trainer; comm NULL is a
 * world of one. Collective over comm. */
ls_status ls_trainer_create(ls_trainer **out, ls_train_config *cfg, ls_comm *comm, const ls_train_io *io);
void ls_trainer_destroy(ls_trainer **t);

/* A unit's parameters or summed gradients (after a step), whole, on every worker of the first replica. scratch: n_pad elements from
 * ls_comm_alloc. Collective; for tests. */
ls_status ls_trainer_whole(ls_trainer *t, int u, bool gradient, void *scratch, const void **whole);

/* Seconds this worker waited for others, over all its groups. host_alone: without the waits of its device. */
double ls_trainer_exposed(const ls_trainer *t, bool host_alone);
double ls_trainer_exposed_between(const ls_trainer *t, double from, double to); /* of its device, by its clock */
/* Whether its communicators count what they do: in steps only, not in start-up, validation and checkpoints. */
void ls_trainer_count(ls_trainer *t, bool on);

/* One optimizer step of the current epoch position; LS_E_STOPPED leaves parameters and state untouched. */
ls_status ls_trainer_step(ls_trainer *t, ls_step_result *r);

/* Mean loss over validation sequences, at most max_val_steps batches per replica. *n_batch: how many ran. */
ls_status ls_trainer_validate(ls_trainer *t, double *loss, int64_t *n_batch);

/* GPU memory beside the plan: the communicators' buffers for sums in a fixed order. */
int64_t ls_trainer_comm_bytes(const ls_trainer *t);
/* The plan and these buffers: all that this program allocates for a step, on a device or in host memory. It never grows. */
int64_t ls_trainer_held_bytes(const ls_trainer *t);

/* The whole run with its files, which rank 0 writes. After SIGTERM: saves, and returns LS_E_STOPPED on every worker. If cfg->check finds that the steps
 * are to be chosen again, it returns LS_E_STOPPED without saving. */
ls_status ls_trainer_run(ls_trainer *t, const ls_run_identity *id);
/* Removes what such a run has written into its folder. */
ls_status ls_trainer_discard(const char *run_dir);

/* Matmul and attention operations of one token, forward and backward: 6 (12 L C^2 + V C) + 12 L C T. */
double ls_flops_per_token(const ls_model_config *c, int64_t T);

/* The trainer's JSON object in a checkpoint, the same for equal runs; and what was measured, which may be missing (NULL) when it is
 * read. step: of the checkpoint, which must be the state's; -1: any. */
void ls_run_state_write(const ls_trainer *t, ls_str *out);
void ls_run_timings_write(const ls_trainer *t, ls_str *out);
ls_status ls_run_state_read(ls_trainer *t, const char *json, const char *timings, int64_t step, const char *path);

/* Fresh, imported or resumed weights, as the config says. */
ls_status ls_trainer_load(ls_trainer *t);
/* Posts a checkpoint in the run folder. */
ls_status ls_trainer_save(ls_trainer *t, const char *name);

#endif
