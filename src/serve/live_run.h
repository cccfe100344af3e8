/* live_run.h - one run folder, read while the run writes it, for as long as the reader lives.
 *
 *   metrics.jsonl       only the bytes since the last look, at most LS_LIVE_CHUNK at a time: a file of any size costs little per look
 *   events.jsonl        the same
 *   ranks.jsonl         whole: it is small
 *   RUN_COMPLETE.txt    whether it exists
 *   run.lock            the process that holds it, after a failure: a supervisor (train --max_restarts) that starts the run again
 *
 * A file that was replaced (another inode) or became shorter is read from its beginning. A last line without its end is read again at the
 * next look. Lines that are no JSON objects are counted and skipped.
 *
 * ls_live_run_peek reads the end of metrics.jsonl only: enough for a row of a table. */
#ifndef LS_SERVE_LIVE_RUN_H
#define LS_SERVE_LIVE_RUN_H

#include "run/events.h"
#include "run/jsonl.h"
#include "serve/curve.h"

#include <limits.h>

enum { LS_LIVE_CHUNK = 1 << 20, LS_LIVE_EVENTS = 24, LS_LIVE_VALIDATIONS = 2048, LS_LIVE_RANKS = 16384 };

typedef enum ls_live_state {
    LS_LIVE_WAITING,    /* nothing is written yet                              */
    LS_LIVE_RUNNING,    /*                                                     */
    LS_LIVE_FINISHED,   /* RUN_COMPLETE.txt exists                             */
    LS_LIVE_STOPPED,    /* by a signal, after saving                           */
    LS_LIVE_FAILED,     /* it recorded a failure, or its process is gone       */
    LS_LIVE_SILENT,     /* wrote nothing for long, and its process is unknown  */
    LS_LIVE_RESTARTING, /* between two attempts of a supervised run          */
    LS_N_LIVE_STATE
} ls_live_state;
extern const char *const ls_live_state_name[LS_N_LIVE_STATE];

/* The last values; NAN, -1: not known. */
typedef struct ls_live_last {
    int64_t step, total_steps, epoch, tokens_per_step, updated_ms, started_ms;
    double value[LS_N_CURVE];
    double val_loss;
    int64_t val_step;
} ls_live_last;

typedef struct ls_live_rank {
    int rank;
    int64_t step, updated_ms, pid, pid_namespace, rss_bytes, memory_bytes; /* -1: not known */
    bool on_device;
    double step_time, exposed, cpu, gpu, power; /* NAN: not known */
    char phase[16], host[100];
} ls_live_rank;

typedef struct ls_live_event {
    int64_t step, time_ms;
    double loss;
    char kind[16], name[48]; /* "validation"; name: of a checkpoint, the state at the end, the result of an audit */
    char words[200];         /* failure, restart, resize, audit: for people */
} ls_live_event;

typedef struct ls_live_validation {
    int64_t step;
    double loss;
} ls_live_validation;

typedef struct ls_live_run {
    char dir[PATH_MAX];
    char *id; /* its name below the served folder, unique, in UTF-8: other bytes are \\xNN */
    ls_live_state state;
    ls_live_last last;
    char strategy[32], precision[16], device[16], layout[48], ended[16]; /* of the last start and end; "": not known */
    char reason[512];                                                    /* of a failure; "": not known */
    ls_run_history seen;                                                 /* of this run and its attempts */
    int64_t world, parameters;                                           /* -1: not known */
    ls_curve curve;
    ls_live_validation *val; /* ascending steps */
    int n_val, cap_val;
    int64_t val_generation;
    ls_live_event event[LS_LIVE_EVENTS]; /* the newest, oldest first */
    int n_event;
    ls_live_rank *rank;
    int n_rank, cap_rank;
    int64_t n_bad; /* lines that could not be read */
    ls_follow steps, events;
    off_t peeked; /* size of metrics.jsonl at the last peek, and its time */
    int64_t peeked_at;
    bool kept;    /* its curves are read; else only peeked */
    double asked; /* when they were last asked for; 0: never. Of the set */
} ls_live_run;

ls_status ls_live_run_init(ls_live_run *r, const char *dir, const char *id);
void ls_live_run_fini(ls_live_run *r);

/* Reads what is new; *more: there is more than one chunk. A file that is missing is not an error. LS_E_NOMEM. */
ls_status ls_live_run_update(ls_live_run *r, bool *more);
/* The last values and the state without the curves. LS_E_NOMEM. */
ls_status ls_live_run_peek(ls_live_run *r);
/* Part of metrics.jsonl that has been read, 0 to 1; a last line without an end counts as read. */
double ls_live_run_read(const ls_live_run *r);

#endif
