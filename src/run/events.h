/* events.h - events.jsonl: what happened to a run. One table of kinds and keys (docs/FORMATS.md), one writer, and one state of what the events
 * so far say of its attempts. */
#ifndef LS_RUN_EVENTS_H
#define LS_RUN_EVENTS_H

#include "core/json.h"

/* clang-format off */
#define LS_RUN_EVENT_LIST(X)                                                                                        \
    X(START, "start") X(VALIDATION, "validation") X(CHECKPOINT, "checkpoint") X(SAVE_FAILED, "checkpoint_failed")   \
    X(SAVE_EVERY, "save_every") X(AUDIT, "audit") X(FAILURE, "failure") X(RESTART, "restart") X(RESIZE, "resize")   \
    X(END, "end")
/* The keys that readers look at, by type. */
#define LS_RUN_EVENT_INTS(X)                                                                                        \
    X(step) X(attempt) X(rank) X(time_unix_ms) X(world_size) X(dp) X(pp) X(tp) X(total_steps) X(tokens_per_step)    \
    X(parameters) X(dropped_steps) X(workers) X(from_step) X(lost_steps) X(from) X(to)
#define LS_RUN_EVENT_REALS(X) X(loss) X(lost_seconds) X(repeated_seconds) X(dropped_seconds) X(dropped_until_unix_ms)
#define LS_RUN_EVENT_TEXTS(X)                                                                                       \
    X(event) X(strategy) X(precision) X(device) X(name) X(state) X(reason) X(result) X(what) X(unit) X(host)        \
    X(cause) X(detail) X(why)
/* clang-format on */

typedef enum ls_run_event_kind {
#define X(name, word) LS_EV_##name,
    LS_RUN_EVENT_LIST(X)
#undef X
        LS_N_EV /* of a newer version */
} ls_run_event_kind;

typedef struct ls_run_event {
    ls_run_event_kind kind;
#define X(key) int64_t key; /* -1: null, not there, or no whole number from 0 */
    LS_RUN_EVENT_INTS(X)
#undef X
#define X(key) double key; /* NaN: null, or not there */
    LS_RUN_EVENT_REALS(X)
#undef X
#define X(key) const char *key; /* of the line; "": not there */
    LS_RUN_EVENT_TEXTS(X)
#undef X
} ls_run_event;
/* False: `line` is NULL. */
bool ls_run_event_read(const json_t *line, ls_run_event *e);

/* ---- attempts ---- */

/* What a `start` begins, and what else an event means by what was before. */
typedef enum ls_run_turn {
    LS_TURN_NONE,
    LS_TURN_NEW,     /* start: of another run in the folder; what was before is forgotten */
    LS_TURN_RESUMED, /* start: by somebody  */
    LS_TURN_AGAIN,   /* start: by the supervisor, after a failure or a resize */
    LS_TURN_REPEATED /* failure: of another rank of the same attempt; resize: written after the start of the next attempt. Neither counts more. */
} ls_run_turn;

typedef struct ls_run_history {                              /* zeroed: no events */
    int64_t failures, restarts, resizes, audits, bad_audits; /* audits: all, also those that failed */
    bool open;       /* an attempt has started, and nothing says that it ended */
    bool waits;      /* after a failure or a resize: no attempt has begun since, and a supervisor may start one */
    int64_t since;   /* when that was, milliseconds since 1970 */
    int64_t workers; /* of the last start */
    int64_t failed;  /* number of the attempt that failed last */
} ls_run_history;
ls_run_turn ls_run_history_add(ls_run_history *h, const ls_run_event *e);

/* ---- writing ---- */

typedef struct ls_event_log {
    int fd;          /* -1: events go nowhere; a run whose folder cannot be written goes on */
    const char *who; /* part of the program that warns of a failed write; NULL: none */
    ls_str line;
    ls_jsonw w;
} ls_event_log;

ls_event_log ls_event_log_open(const char *run_dir); /* to append; the failure is only in fd */
void ls_event_log_close(ls_event_log *l);
/* Of ls_event_add. A log that cannot be written is closed: a full disk must not cost a system call per line. */
ls_jsonw *ls_event_begin(ls_event_log *l, ls_run_event_kind kind);
void ls_event_end(ls_event_log *l);

/* ls_event_add(l, LS_EV_VALIDATION, LS_KV("step", step), LS_KV("loss", loss)) writes one line with one write. */
#define ls_event_add(l, kind, ...)                       \
    do {                                                 \
        ls_jsonw *const kv_w_ = ls_event_begin(l, kind); \
        __VA_ARGS__;                                     \
        ls_event_end(l);                                 \
    } while (0)

#endif
