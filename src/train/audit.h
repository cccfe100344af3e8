/* audit.h - `--audit K`: in every K-th step, a run looks for numbers that hardware has computed or stored wrongly (docs/guide/audit.md).
 *
 * A step is a function of its weights and its samples, so any worker can compute the passes of any other again, bit for bit. An audited
 * step is
 *
 *   after the update before it   hashes of this worker's parameters and optimizer state; they are compared over replicas
 *   before its passes            each replica computes a micro-batch of another one (of the step: all of them), and hashes every unit
 *   its passes                   the same hashes of the micro-batches themselves. Sums of their gradients, over micro-batches and over workers, are hashed when
 *                                they are complete and again before they are read
 *   after its passes             both are compared; where they differ, further replicas decide who is wrong (parallel/audit.h)
 *   before its update            hashes of parameters and optimizer state again, and of the sums: nothing may have changed them in between
 *
 * A difference ends the run with LS_E_CORRUPT on every worker, before the update: no weight has changed, and no checkpoint of a state that is wrong
 * is published. The passes that are repeated use the memory of the step, before the step needs it: an audit
 * allocates nothing.
 *
 * What is found, and what is not: docs/decisions/0020-audit-by-repetition.md. */
#ifndef LS_TRAIN_AUDIT_H
#define LS_TRAIN_AUDIT_H

#include "model/model.h"
#include "parallel/audit.h"

struct ls_trainer;
typedef struct ls_audit ls_audit;

/* For a run with cfg->audit > 0, whose groups and strategy exist. t must outlive it. Then ls_audit_after_update, as the weights that were
 * loaded are those after an update. */
ls_status ls_audit_create(ls_audit **out, struct ls_trainer *t);
void ls_audit_destroy(ls_audit **a);

/* The points of a step, in order. Those of a step that is not audited do nothing. Collective; LS_E_CORRUPT. */
ls_status ls_audit_before_passes(ls_audit *a);
ls_status ls_audit_grad(ls_audit *a, int u); /* this worker's gradient of unit u is complete and not yet reduced */
ls_status ls_audit_after_passes(ls_audit *a);
ls_status ls_audit_before_update(ls_audit *a);
/* In a step that is not audited, whose numbers are not finite: replicas that differ explain them. Collective. */
ls_status ls_audit_replicas(ls_audit *a);
ls_status ls_audit_after_update(ls_audit *a);
/* Before a checkpoint: replicas that differ are not saved. The state is compared again when its bytes have been read, before the next update or, if there is
 * none, by after_save: a bit that changes in between is in the checkpoint, which is published only if the state is the same (train_save_confirm). */
ls_status ls_audit_before_save(ls_audit *a);
ls_status ls_audit_after_save(ls_audit *a);

bool ls_audit_runs(const ls_audit *a);                             /* the current step is audited; false for NULL */
bool ls_audit_compares(const ls_audit *a);                         /* before_update has something to do; likewise */
int64_t ls_audit_step(const ls_audit *a);                          /* of the newest result; steps are numbered from 1 */
const char *ls_audit_unit(const ls_model *m, int u, char buf[32]); /* "embed", "block 3", "head" */

#endif
