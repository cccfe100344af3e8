/* lock.h - one writer of a folder: a lock file with the name of the process that holds it.
 *
 * The lock belongs to the open file, so it ends with the process, however that ends; the file is removed by the holder. */
#ifndef LS_CORE_LOCK_H
#define LS_CORE_LOCK_H

#include "core/err.h"

#include <limits.h>
#include <stdbool.h>

/* In a run folder: of its workers, or of the supervisor of workers on one host; of the supervisor of several hosts or of another launcher. */
#define LS_RUN_LOCK       "run.lock"
#define LS_SUPERVISE_LOCK "supervise.lock"

typedef struct ls_lock { /* zeroed: not held */
    int fd;
    char path[PATH_MAX];
} ls_lock;

/* Waits up to `seconds` for the lock `path`. LS_E_CONFIG: another process holds it; the message names it ("pid 7 on host a, since …")
 * and ends with `advice`. On a file system without locks it succeeds and holds nothing. */
ls_status ls_lock_take(ls_lock *l, const char *path, double seconds, const char *advice);
/* Whether a process holds it. */
bool ls_lock_is_held(const char *path);
void ls_lock_release(ls_lock *l); /* removes the file; accepts one that is not held */

#endif
