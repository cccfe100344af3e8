/* coll_log.h - DIST_DEBUG=1: the position of each worker among the collectives of an epoch, on stdout and in <run>/rank_logs/rank<r>.log (appended).
 *
 *   [Rank 0] COLL_ENTER seq=7 op=all_reduce tag=epoch_1_train_steps_max dtype=float64 shape=(1,)
 *   [Rank 0] COLL_EXIT  seq=7 op=all_reduce tag=epoch_1_train_steps_max
 *
 * Points and texts are R1's (docs/REFERENCES.md). Lockstep does not need these collectives: they run only for the log, between steps, and
 * their results are not used. A worker whose last line is an ENTER waits there for workers with a lower seq. */
#ifndef LS_TRAIN_COLL_LOG_H
#define LS_TRAIN_COLL_LOG_H

#include "comm/comm.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Zeroed: off, and every call does nothing. */
typedef struct ls_coll_log {
    bool on;
    int fd, rank;
    int64_t seq;
    ls_comm *comm;
    double *room; /* for the values of all workers; owned by the communicator */
    void (*line)(void *ctx, const char *text);
    void *ctx;
} ls_coll_log;

/* line (may be NULL) gets every line too. LS_E_IO, LS_E_NOMEM. */
ls_status ls_coll_log_open(ls_coll_log *l, const char *run_dir, ls_comm *comm, void (*line)(void *, const char *),
                           void *ctx);
void ls_coll_log_close(ls_coll_log *l);

/* Writes "[Rank r] " and the text. When the file cannot be written, it is closed with a warning and the run continues. */
void ls_coll_log_say(ls_coll_log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Collective over the communicator; the tag is "epoch_<epoch>_<what>", or `what` alone with epoch 0. At most 2 values are reduced. */
ls_status ls_coll_log_barrier(ls_coll_log *l, int64_t epoch, const char *what);
ls_status ls_coll_log_reduce(ls_coll_log *l, int64_t epoch, const char *what, const double *value, int n);

#endif
