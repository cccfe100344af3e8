/* observe.h - how the clock, the trace, the log lines and the metrics file watch a run.
 *
 *   run    RUN_BEGIN → RUN_READY → epochs → RUN_END
 *   epoch  EPOCH_BEGIN → steps → EPOCH_TRAINED → EPOCH_END → VALIDATED → CHECKPOINT_BEGIN → CHECKPOINT_END
 *   step   STEP_BEGIN → phases → STEP_END; then, in a run, STEP_LOG, and VALIDATED and CHECKPOINT_* where they are due
 *
 * The step and the loop emit events; observers measure, print and write. No observer changes what is computed: a run has the same
 * weights with any set of observers. The built-in observers, in the order in which they are called:
 *
 *   clock      step_clock.c       where the time of a step went; fills the times of ls_step_result at STEP_END, the metrics at EPOCH_END
 *   spikes     observe.c          gradient norms of the epoch; warns about values far above the recent ones
 *   trace      observe.c          phases as spans of the trace and as NVTX ranges
 *   metrics    metrics_log.c      metrics.jsonl
 *   live       live.c             events.jsonl and ranks.jsonl, for `lockstep serve` and `lockstep watch`
 *   monitor    monitor.c          TensorBoard events, and DeepSpeed's CSV files and lines
 *   reference  reference_log.c    the stdout lines of the ZeRO scaling study (docs/REFERENCES.md) where they are asked for, and DIST_DEBUG's log of
 *                                 collectives
 *   progress   progress.c         the status of the newest step, and lines for events
 *   telemetry  telemetry.c        utilisation and power of the GPU
 *
 * One further observer may be set in the trainer; it is called last. An event reaches every worker at the same point of its run, except RUN_END, which only
 * rank 0 emits; between steps an observer may therefore call collectives. An observer that fails ends the run.
 *
 * There is no event for a collective: the threads of a communicator execute it while the step continues, and its only consumer, the trace,
 * records it there (ls_comm_trace). */
#ifndef LS_TRAIN_OBSERVE_H
#define LS_TRAIN_OBSERVE_H

#include "core/err.h"
#include "train/artifacts.h"

#include <stdbool.h>
#include <stdint.h>

struct ls_trainer;

typedef struct ls_step_result {
    double loss, grad_norm, lr; /* mean over the step's tokens; before clipping */
    double loss_scale;          /* factor of the loss in this step; 0: no loss scaling */
    bool skipped;               /* the gradients overflowed and no parameter was updated */
    ls_step_split split;        /* seconds; adds up to t_total                */
    double t_wait;              /* for a checkpoint, part of split.other      */
    double t_total;
    double cpu; /* CPU seconds / (wall seconds * threads) of this worker */
} ls_step_result;

/* Phases of a step, named as the scaling study's ranges where the trace shows them. Phases may be nested, each at most
 * once at a time. */
/* clang-format off */
/*    phase                   name in the trace             covers                                               */
#define LS_PHASE_LIST(X)                                                                                          \
    X(LS_PHASE_START,         NULL)                      /* workers agree to run this step                     */ \
    X(LS_PHASE_INPUT,         "train/dataload")          /* a micro-batch is read and sent to the device       */ \
    X(LS_PHASE_READ,          NULL)                      /* of it, the reading                                 */ \
    X(LS_PHASE_STAGE_INPUT,   "train/dataload")          /* the same inside a pipeline                         */ \
    X(LS_PHASE_PASS,          NULL)                      /* forward and loss, also when a device replays them  */ \
    X(LS_PHASE_FORWARD,       "train/forward")                                                                    \
    X(LS_PHASE_LOSS,          "train/loss")                                                                       \
    X(LS_PHASE_BACKWARD,      "train/backward")                                                                   \
    X(LS_PHASE_PIPELINE,      NULL)                      /* all micro-batches of a pipeline                    */ \
    X(LS_PHASE_REDUCE,        "train/allreduce_gradients")                                                        \
    X(LS_PHASE_NORM,          "train/gradient_norm")     /* norm and loss                                      */ \
    X(LS_PHASE_SQUARES,       NULL)                      /* of it, the norm                                    */ \
    X(LS_PHASE_WAIT,          NULL)                      /* for the checkpoint writer, which reads parameters  */ \
    X(LS_PHASE_AUDIT,         "train/audit")             /* hashes, and the passes that are repeated           */ \
    X(LS_PHASE_UPDATE,        "train/optimizer_step")                                                             \
    X(LS_PHASE_NUMBERS,       "train/wait_for_norm")     /* one worker: norm and loss are read after it        */ \
    X(LS_PHASE_VAL_FORWARD,   "val/forward")                                                                      \
    X(LS_PHASE_VAL_LOSS,      "val/loss")
/* clang-format on */

typedef enum ls_phase {
#define X(phase, name) phase,
    LS_PHASE_LIST(X)
#undef X
        LS_N_PHASE
} ls_phase;

typedef enum ls_event_kind {
    LS_ON_RUN_BEGIN, /* before the folder of the run is changed                              */
    LS_ON_RUN_READY, /* the folder is prepared; the first step is next                       */
    LS_ON_RUN_END,   /* on rank 0, after the final files; text: the markers for stdout       */
    LS_ON_EPOCH_BEGIN,
    LS_ON_EPOCH_TRAINED, /* its steps are done                                                   */
    LS_ON_EPOCH_END,     /* its metrics are known: epoch; validation is next                     */
    LS_ON_STEP_BEGIN,
    LS_ON_STEP_END, /* the state is that after the step; step                               */
    LS_ON_STEP_LOG, /* in a run: a validation that was due has run; step, val_loss, n_val   */
    LS_ON_PHASE_BEGIN,
    LS_ON_PHASE_END,
    LS_ON_VALIDATED, /* val_loss, n_val, at_epoch                                            */
    LS_ON_CHECKPOINT_BEGIN,
    LS_ON_CHECKPOINT_END, /* it is posted; the writer may still be busy. text: its name; at_epoch */
    LS_ON_AUDIT,          /* audit: what differs; NULL: nothing */
    LS_ON_SAVED,          /* a checkpoint is in place, perhaps in a later step. text: its name; at_step */
    LS_ON_SAVE_FAILED,    /* a checkpoint is lost, and the run goes on. text: its name; at_step, reason */
    LS_ON_SAVE_EVERY,     /* --save_every auto has chosen: ls_trainer.saving */
    LS_ON_SHUTDOWN_BEGIN,
    LS_ON_SHUTDOWN_END /* the trainer holds no communicator and no device any more             */
} ls_event_kind;

/* Members that an event does not name are 0. */
typedef struct ls_event {
    ls_event_kind kind;
    ls_phase phase;
    int micro; /* of phases: the micro-batch, or -1                     */
    ls_step_result *step;
    ls_epoch_metrics *epoch;
    double val_loss;
    int64_t n_val; /* validation batches; 0: no validation ran              */
    bool at_epoch; /* at the end of an epoch, not between two of its steps  */
    const struct ls_audit_fault *audit;
    const char *text, *reason;
    int64_t at_step; /* of the checkpoint                                     */
} ls_event;

typedef struct ls_observer { /* zeroed: none */
    ls_status (*see)(void *ctx, struct ls_trainer *t, const ls_event *e);
    void *ctx;
} ls_observer;

/* Calls every observer in order, until one fails. */
ls_status ls_observe(struct ls_trainer *t, const ls_event *e);

/* micro: the micro-batch, or -1. */
static inline ls_status ls_phase_begin(struct ls_trainer *t, ls_phase p, int micro)
{
    return ls_observe(t, &(ls_event){.kind = LS_ON_PHASE_BEGIN, .phase = p, .micro = micro});
}

static inline ls_status ls_phase_end(struct ls_trainer *t, ls_phase p, int micro)
{
    return ls_observe(t, &(ls_event){.kind = LS_ON_PHASE_END, .phase = p, .micro = micro});
}

#endif
