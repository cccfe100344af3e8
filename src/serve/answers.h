/* answers.h - what the server answers, as text: the list of runs, one run, Prometheus metrics. Pure functions of what was read. */
#ifndef LS_SERVE_ANSWERS_H
#define LS_SERVE_ANSWERS_H

#include "core/str.h"
#include "serve/live_set.h"

/* {"now_unix_ms", "runs": [{"id", "state", "step", ...}]} */
void ls_answer_runs(const ls_live_set *s, ls_str *out);
/* One run: its last values, ranks, events and curves. generation, from: what the client has (docs/LIVE.md); -1: nothing. */
void ls_answer_run(const ls_live_run *r, int64_t generation, int64_t from, ls_str *out);
/* The text format of Prometheus, version 0.0.4. */
void ls_answer_prometheus(const ls_live_set *s, ls_str *out);

#endif
