/* profile.h - a traced run: which threads of a worker record, and the files that the workers write.
 *
 *   begin   clocks of several hosts are compared; the trainer's thread, the communicators and the checkpoint writer get lanes
 *   …       steps, validation, checkpoints (core/trace.h)
 *   end     every worker writes profiles/trace.rank<R>.json; rank 0 merges them into profiles/trace.json
 *
 * After a failed run the workers cannot merge their parts: each part stays and is a complete trace. */
#ifndef LS_TRAIN_PROFILE_H
#define LS_TRAIN_PROFILE_H

#include "train/trainer.h"

typedef struct ls_profile ls_profile;

/* The calling thread is traced from here to ls_profile_end. Collective over the trainer's workers. LS_E_NOMEM. */
ls_status ls_profile_begin(ls_profile **out, ls_trainer *t);

/* Before the trainer is destroyed, also after a failed run: adds the kernels of its device as lanes of the trace. NULL: nothing to do. */
void ls_profile_device_end(ls_profile *p);

/* Stops recording until it is called with pause false. Between steps, on every worker at the same step. LS_E_NOMEM. */
ls_status ls_profile_pause(ls_profile *p, ls_trainer *t, bool pause);
/* Ends it without a file, after the trainer is destroyed; comm still exists, or is NULL. */
void ls_profile_drop(ls_profile **p, ls_comm *comm);

/* After the trainer is destroyed; comm (may be NULL: a world of one) still exists. run: how the run ended; LS_OK and LS_E_STOPPED
 * are merged (and LS_OK returned), another status is returned as it is. *dropped (rank 0): spans of all workers that did not fit. Collective where the run ended well. */
ls_status ls_profile_end(ls_profile **p, ls_comm *comm, ls_status run, int64_t *dropped);

#endif
