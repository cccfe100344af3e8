/* train_impl.h - what the files of this folder share about a step and about the end of a run. */
#ifndef LS_TRAIN_TRAIN_IMPL_H
#define LS_TRAIN_TRAIN_IMPL_H

#include "train/trainer.h"

/* A call as one phase of the step (observe.h), announced to the observers. micro: the micro-batch, or -1. Returns on failure. */
#define TRAIN_PHASE(t, phase, micro, call)             \
    do {                                               \
        LS_TRY(ls_phase_begin((t), (phase), (micro))); \
        LS_TRY(call);                                  \
        LS_TRY(ls_phase_end((t), (phase), (micro)));   \
    } while (0)

/* The hooks of the walk (ctx: the trainer): they call the strategy's. One worker can stop before any unit; several stop where all of them look. */
ls_status train_acquire(void *ctx, int u, ls_pass pass);
ls_status train_release(void *ctx, int u, ls_pass pass);

/* Reads micro-batch `number` of the step into a slot of t->input, or for a stage of a pipeline. m: its number for observers. */
ls_status train_load(ls_trainer *t, int64_t number, int m, int slot, ls_micro *mb);
ls_status train_load_stage(ls_trainer *t, int64_t number, int m, int32_t *ids, int32_t *target, ls_micro *mb);

/* The hook `computed` of the passes of an audit (ctx: the trainer). */
ls_status train_audit_computed(void *ctx, int u, ls_pass pass, const ls_acts *a);
ls_status train_audit_received(void *ctx, int u, ls_pass pass, const ls_acts *a);

/* LS_E_STOPPED on every worker when one of them was asked to stop. Collective; one worker alone does not look here. *most (if not NULL) is
 * the largest `mine` (below INT_MAX) of all workers. */
ls_status train_agree_to_stop(ls_trainer *t, int mine, int *most);

/* Remembers that this worker failed. A stop is common to all workers, and a failed collective has been reported to all. */
ls_status train_own_failure(ls_trainer *t, ls_status st);

/* Every worker gets the (loss, rows) pairs of all replicas, n_each from each, and adds the first n in their order, so that the sum is the
 * same on any layout. Pair k of replica r is number r * n_each + k, or strided k * W + r. */
ls_status train_sum_losses(ls_trainer *t, double *pairs, int64_t n_each, int64_t n, bool strided, double sum[2]);

/* One AdamW pass over the elements that this worker owns. grad_scale: factor of every gradient, unless `at` has it (ls_adamw). */
ls_status train_optimizer_pass(ls_trainer *t, double lr, double grad_scale, const ls_decision *at);
/* Before the micro-batches of a step: what of its pass an offloaded optimizer may do during the backward pass. */
ls_status train_optimizer_begin(ls_trainer *t, double lr);

/* LS_E_NUMERIC, naming the first tensor with a NaN or an infinity among the elements that a worker updates. Collective, except for the
 * gradients of dp. */
ls_status train_numbers_failed(ls_trainer *t, const char *what, double value, bool gradients);

/* Prints a message through io.note, if it is set. */
void train_tell(const ls_trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What must be the same on every worker: settings and version; kernels; token files; the newest checkpoint (NULL: none) of --resume.
 * LS_E_CONFIG on all of them with the first difference. Collective. */
ls_status train_compare_settings(const ls_trainer *t);
ls_status train_compare_kernels(const ls_trainer *t);
ls_status train_compare_data(const ls_trainer *t);
ls_status train_compare_checkpoint(const ls_trainer *t, const char *name);

/* Faults that are due at this event, and in the gradient of unit u, which a micro-batch has completed (faults.c). */
ls_status train_faults(ls_trainer *t, const ls_event *e);
ls_status train_grad_faults(ls_trainer *t, int u);
ls_status train_tree_faults(ls_trainer *t, int u); /* the strategy has taken the gradient */

/* Checkpoints (save.c); collective. At the end of an epoch, after a step where one is due, and when the run stops: the state of the last finished step.
 * end waits until the last one is whole on the disk; last saves the end of the run so, and must succeed. */
ls_status train_save_begin(ls_trainer *t);
void train_save_forget(ls_trainer *t); /* the run ends, and the disk has its last state */
ls_status train_save_epoch(ls_trainer *t);
ls_status train_save_due(ls_trainer *t);
ls_status train_save_stop(ls_trainer *t);
ls_status train_save_end(ls_trainer *t);
ls_status train_save_last(ls_trainer *t);
/* Before the run fails: a checkpoint that is being written, and not held, is completed. Failures are warnings. */
void train_save_finish(ls_trainer *t);
/* In a step: whether this worker's writer has work; what can be finished if none has (not collective if busy); and before the update,
 * that the parameters may change. With an audit they are compared then, and what was written of them is published only after confirm. */
int train_save_busy(const ls_trainer *t);
ls_status train_save_advance(ls_trainer *t, bool busy);
ls_status train_save_release(ls_trainer *t);
ls_status train_save_confirm(ls_trainer *t);

int64_t train_peak_rss(void);

/* The status during a validation: `done` of n batches per replica. */
/* Whether events are printed as lines of their own; a line of one, "step 8  saving step-8\n". */
bool train_shows_events(const ls_trainer *t);
void train_event(ls_trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void train_show_validation(ls_trainer *t, int64_t done, int64_t n);

/* The files of a run: those of an earlier run move away and the metrics file opens; at the end facts are gathered and all is written.
 * Collective. */
ls_status train_begin_files(ls_trainer *t);
/* Rank 0 alone: one run writes to a folder. Does nothing if this run holds the lock already. */
ls_status train_lock_folder(ls_trainer *t);
ls_status train_end_files(ls_trainer *t, const ls_run_identity *id);

/* Observers (observe.h). */
ls_status train_see_clock(ls_trainer *t, const ls_event *e);
ls_status train_see_metrics(ls_trainer *t, const ls_event *e);
ls_status train_see_live(ls_trainer *t, const ls_event *e);
ls_status train_see_monitor(ls_trainer *t, const ls_event *e);
ls_status train_see_reference(ls_trainer *t, const ls_event *e);
ls_status train_see_progress(ls_trainer *t, const ls_event *e);
ls_status train_see_telemetry(ls_trainer *t, const ls_event *e);

#endif
