/* trace.h - what a worker did when: typed spans and counters, by thread, on one clock.
 *
 *   trace (one per worker) ── lane "main"             [span span span …     ]   written by one thread, the newest are kept
 *                        ├─ lane "dp collectives"   [span …               ]
 *                        └─ lane "checkpoint"       [span                 ]
 *
 *   const int64_t t0 = ls_span_begin();                       0 when this thread is not traced: one load and one branch
 *   …
 *   ls_span_end(t0, (ls_trace_span){.kind = LS_SPAN_FWD, .name = "h", .index = u, .micro = m});
 *
 * A span that is not ended (an early return) leaves nothing behind. A thread has at most one lane at a time (ls_trace_enter).
 *
 * Invariants
 *   1. lanes are allocated when they are made; recording allocates nothing and takes no lock;
 *   2. a lane has one writer. A full one forgets its oldest spans and counts them (`dropped`);
 *   3. spans of a lane are nested or apart, as the calls of its thread were;
 *   4. times are CLOCK_MONOTONIC in nanoseconds: one clock for all workers of a host. Between hosts an offset and its drift are
 *      estimated (ls_trace_clock; comm/clock_sync.h says how). */
#ifndef LS_CORE_TRACE_H
#define LS_CORE_TRACE_H

#include "core/err.h"
#include "core/str.h"

#include <stdbool.h>
#include <stdint.h>

/* clang-format off */
/*    kind                category       before the name */
#define LS_SPAN_LIST(X)                                       \
    X(LS_SPAN_STEP,       "step",        "")                  \
    X(LS_SPAN_PHASE,      "phase",       "")                  \
    X(LS_SPAN_FWD,        "unit",        "forward ")          \
    X(LS_SPAN_BWD,        "unit",        "backward ")         \
    X(LS_SPAN_BWD_IN,     "unit",        "backward (input) ") \
    X(LS_SPAN_BWD_W,      "unit",        "backward (weights) ") \
    X(LS_SPAN_COLL,       "collective",  "")                  \
    X(LS_SPAN_WAIT,       "wait",        "wait ")             \
    X(LS_SPAN_PIPE,       "pipeline",    "")                  \
    X(LS_SPAN_CKPT,       "checkpoint",  "checkpoint ")       \
    X(LS_SPAN_KERNEL,     "kernel",      "")                  \
    X(LS_SPAN_COPY,       "copy",        "")                  \
    X(LS_SPAN_COUNTER,    "counter",     "")
/* clang-format on */

typedef enum ls_span_kind {
#define X(kind, category, before) kind,
    LS_SPAN_LIST(X)
#undef X
} ls_span_kind;

/* What is known of a span; what does not apply stays 0. Strings are borrowed forever: literals. */
typedef struct ls_trace_span {
    const char *name;
    const char *site; /* who asked for it: LS_SITE; of kernels and copies, for which unit and operation it ran */
    int64_t begin, end;
    int64_t bytes;  /* moved or written                                */
    double value;   /* of a counter                                    */
    uint64_t seq;   /* of a request in its lane, or of a step; 0: none */
    int32_t index;  /* after the name; 0: none (so from 1 on)         */
    int32_t micro;  /* micro-batch, from 1 on; 0: none                 */
    uint16_t label; /* bucket, or a pipeline's chunk from 1 on; 0: none                                 */
    uint8_t kind;
} ls_trace_span;

typedef struct ls_lane ls_lane;
typedef struct ls_trace ls_trace;

/* The calling thread's lane, NULL while it is not traced. Only the functions below touch it. */
extern _Thread_local ls_lane *ls_trace_here_;

int64_t ls_trace_now(void); /* nanoseconds, CLOCK_MONOTONIC */
void ls_trace_push_(ls_lane *l, const ls_trace_span *s);
void ls_trace_end_(int64_t begin, const ls_trace_span *s);

static inline int64_t ls_span_begin(void)
{
    return __builtin_expect(ls_trace_here_ != NULL, 0) ? ls_trace_now() : 0;
}

/* Ends what began at `begin_at`; the span after it is made only when it is recorded. */
#define ls_span_end(begin_at, ...)                      \
    do {                                                \
        const int64_t ls_begin_ = (begin_at);           \
        if (__builtin_expect(ls_begin_ != 0, 0)) {      \
            const ls_trace_span ls_what_ = __VA_ARGS__; \
            ls_trace_end_(ls_begin_, &ls_what_);        \
        }                                               \
    } while (0)

static inline void ls_trace_count(const char *name, double value)
{
    if (__builtin_expect(!ls_trace_here_, 1)) return;
    const int64_t now = ls_trace_now();
    ls_trace_push_(ls_trace_here_,
                   &(ls_trace_span){.kind = LS_SPAN_COUNTER, .name = name, .begin = now, .end = now, .value = value});
}

/* ---- units ----
 * What a thread is working on, for whoever names work that it queues on a device (compute/kernel_times.h). With a profiler that watches
 * (core/nvtx.h) a unit is a range of its own, "forward h.3". */
typedef struct ls_trace_place {
    uint32_t id; /* kind of pass << 12 | unit + 1; 0: outside units */
    int32_t index;
    const char *name;
} ls_trace_place;

extern _Thread_local ls_trace_place ls_trace_unit;

/*   const int64_t t0 = ls_unit_begin(u, &span);   … the unit …   ls_unit_end(t0, &span);       span: kind, name, index */
int64_t ls_unit_begin(int u, const ls_trace_span *s);
void ls_unit_end(int64_t begin, const ls_trace_span *s);

/* "forward h.3": the label of a span, from its kind, name and index. */
const char *ls_span_words(const ls_trace_span *s, char buf[64]);

/* ---- set-up ---- */

ls_status ls_trace_create(ls_trace **out, int rank);
void ls_trace_destroy(ls_trace **t); /* when no thread is in one of its lanes any more */

/* The lane of this name; where there is none, a new one for n_span spans, after the others in the picture. LS_E_NOMEM. Not from several threads
 * at once. */
ls_status ls_trace_lane(ls_trace *t, const char *name, int64_t n_span, ls_lane **out);
/* A string of the trace's own, for spans whose names are not literals. NULL: no memory. */
const char *ls_trace_text(ls_trace *t, const char *text);
/* From now on this thread records into the lane; NULL: it does not record. Returns the one before. */
ls_lane *ls_trace_enter(ls_lane *l);

/* When the trace began on rank 0's clock: times in the files count from it. */
void ls_trace_set_base(ls_trace *t, int64_t base);
/* This clock is ahead of rank 0's by `offset` at the moment `at` (of this clock), give or take `error`; all in nanoseconds. Called
 * at the begin and at the end of a run: times between are interpolated. Without a call the clocks are taken as equal. */
void ls_trace_clock(ls_trace *t, int64_t at, int64_t offset, int64_t error);

/* ---- reading; the writers must be at rest ---- */
int64_t ls_trace_spans(const ls_trace *t, int64_t *dropped); /* dropped (may be NULL): those that were forgotten */

/* ---- files (Chrome's trace format, which Perfetto opens: one event per line) ---- */

/* This worker's part, whole by itself: <dir>/trace.rank<R>.json, pid = rank, tid = lane. host is for its name. */
ls_status ls_trace_write(const ls_trace *t, const char *dir, const char *host);
/* The parts of ranks 0 … n-1 as <dir>/trace.json, line by line; then the parts are removed. A missing part is LS_E_IO. */
ls_status ls_trace_merge(const char *dir, int n);

#endif
