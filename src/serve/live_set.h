/* live_set.h - the runs below one or more folders, looked for again every few seconds: runs appear and disappear while they are watched.
 *
 * A run folder has metrics.jsonl or events.jsonl. A folder that links lead to is listed once. A path that was given and is no folder of runs is a run that has not started. Runs are
 * named by their place below the given folder; a name is looked up among those that were found and never used as a path. */
#ifndef LS_SERVE_LIVE_SET_H
#define LS_SERVE_LIVE_SET_H

#include "serve/live_run.h"

enum { LS_LIVE_RUNS = 2000, LS_LIVE_ROOTS = 64, LS_LIVE_KEPT = 16, LS_LIVE_DEPTH = 4 };

typedef struct ls_live_set {
    const char *root[LS_LIVE_ROOTS]; /* borrowed */
    int n_root;
    ls_live_run **run; /* in the order in which they were found */
    int n, cap;
    int left_out; /* runs beyond LS_LIVE_RUNS: those that were written longest ago */
    double looked, peeked;
} ls_live_set;

ls_status ls_live_set_add(ls_live_set *s, const char *root);
/* Looks for runs (at most every 5 s) and reads the last values of all (at most every second). LS_E_NOMEM. */
ls_status ls_live_set_look(ls_live_set *s);
/* The run with this name, with its curves as far as they are read; NULL: none. */
ls_status ls_live_set_ask(ls_live_set *s, const char *id, ls_live_run **out);
/* Reads one more chunk of the runs that were asked for in the last 10 s; *more: something is left. Curves that nobody asked for in a minute
 * are forgotten if more than LS_LIVE_KEPT are kept. */
ls_status ls_live_set_read(ls_live_set *s, bool *more);
/* The run that was written last; NULL: none. */
ls_live_run *ls_live_set_newest(const ls_live_set *s);
void ls_live_set_fini(ls_live_set *s);

#endif
