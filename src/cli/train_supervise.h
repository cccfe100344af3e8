/* train_supervise.h - `train --max_restarts`, --elastic and --hot_spare: the parent of the workers starts them again (supervise.h).
 *
 * The parent holds run.lock for all attempts and never opens a device. A run of one worker has a parent, too. */
#ifndef LS_CLI_TRAIN_SUPERVISE_H
#define LS_CLI_TRAIN_SUPERVISE_H

#include "cli/supervise.h"
#include "cli/train_layout.h"
#include "comm/launch.h"
#include "comm/start.h"
#include "config/resolve.h"

typedef struct train_runner {
    void *ctx;
    train_configure *configure;
    /* Runs the workers of one attempt until they have ended. */
    ls_status (*attempt)(void *ctx, const ls_train_options *o, supervise *s, ls_launch_end *end);
} train_runner;

/* The option that asks for a supervisor, without --; NULL: none. */
const char *train_restart_option(const ls_train_options *o);
bool train_is_supervised(const ls_train_options *o);
/* Refuses a supervisor in each worker of a launcher, and options that contradict each other. */
ls_status train_supervise_check(const ls_train_options *o, const ls_start_env *e);
ls_status train_supervise(const train_runner *r, const ls_train_options *o, const ls_device_choice *d);
/* In a worker: whether it was stopped to continue with another number of workers. s may be NULL. */
bool train_is_resizing(const supervise *s);

#endif
