/* trace_impl.h - lanes from the inside: for trace.c, which records, and trace_write.c, which writes them out. */
#ifndef LS_CORE_TRACE_IMPL_H
#define LS_CORE_TRACE_IMPL_H

#include "core/trace.h"

#include <stdatomic.h>

/* Spans that are not read at the old end of a full lane: a thread that is still writing (a failed run) overwrites there. */
#define TRACE_SLACK 16

struct ls_lane {
    char name[48];
    uint64_t cap;       /* a power of two                        */
    _Atomic uint64_t n; /* spans recorded; span i is at i % cap  */
    ls_trace_span *span;
    ls_lane *next;
};

typedef struct trace_fix {
    int64_t at, offset, error;
} trace_fix;

typedef struct trace_text {
    struct trace_text *next;
    char text[];
} trace_text;

struct ls_trace {
    int rank, n_lane, n_fix;
    int64_t base;
    trace_fix fix[2]; /* the first and the last */
    ls_lane *lane, **tail;
    trace_text *text;
};

/* The lane's oldest readable span and one after its newest. */
void trace_range(const ls_lane *l, uint64_t *first, uint64_t *end);

#endif
