/* trial.h - how long a step takes on this machine, measured by a few real steps. */
#ifndef LS_TRAIN_TRIAL_H
#define LS_TRAIN_TRIAL_H

#include "config/resolve.h"

/* The time of a step of this configuration (ls_auto_settled), of one worker in a process of its own: neither memory nor a device stays open here, and no file is
 * written. Takes about `limit` seconds, up to 2.5 times as long if measurements disagree, and at least two steps. LS_E_NOMEM if the configuration does not fit into memory. */
ls_status ls_train_trial(ls_train_config *c, double limit, double *step_seconds);

#endif
