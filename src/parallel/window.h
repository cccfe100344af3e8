/* window.h - buffers in flight: a region of fixed capacity for a few buffers at a time.
 *
 * Offsets are first fit from the low end (or the high end, for buffers that stay longer). Buffers are taken and given back in the same order
 * on every worker, so the offsets are the same, too. Nothing is allocated. */
#ifndef LS_PARALLEL_WINDOW_H
#define LS_PARALLEL_WINDOW_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_WINDOW_MAX 64

typedef struct ls_window {
    int64_t capacity; /* elements */
    int n;
    struct {
        int64_t at, n;
    } live[LS_WINDOW_MAX]; /* by offset */
} ls_window;

/* Offset of n free elements, or -1 if there is no room. */
int64_t ls_window_take(ls_window *w, int64_t n, bool high);
void ls_window_give(ls_window *w, int64_t at);

#endif
