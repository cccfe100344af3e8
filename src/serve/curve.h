/* curve.h - series over steps in bounded memory, for runs of any length.
 *
 *   steps     base ... base + width - 1 | next width steps | ...      at most LS_CURVE_BUCKETS buckets
 *   bucket    of each series: sum, count, lowest and highest value; so a curve is a mean and a band, and no peak is lost
 *
 * When the buckets are full, neighbours are merged and the width doubles. The generation changes whenever buckets that were read before
 * may have changed their meaning, so a reader that knows it asks only for the buckets since its last one. */
#ifndef LS_SERVE_CURVE_H
#define LS_SERVE_CURVE_H

#include "run/metrics.h"

#include <stdbool.h>
#include <stdint.h>

enum { LS_CURVE_BUCKETS = 1024 };

/* The series of metrics.jsonl that are shown. */
typedef enum ls_curve_series {
    LS_CURVE_LOSS,
    LS_CURVE_NORM,
    LS_CURVE_LR,
    LS_CURVE_RATE,
    LS_CURVE_TFLOPS,
    LS_CURVE_TIME,
    LS_CURVE_EXPOSED,
    LS_CURVE_CPU,
    LS_N_CURVE
} ls_curve_series;
extern const ls_row_key ls_curve_row[LS_N_CURVE]; /* by its key, also in the answers of the server */

typedef struct ls_bucket {
    double sum;
    float lo, hi;
    int32_t n; /* finite values; 0: none */
} ls_bucket;

typedef struct ls_curve {            /* zeroed: empty */
    ls_bucket (*bucket)[LS_N_CURVE]; /* NULL until the first step */
    int64_t *last;                   /* the last step of each bucket; -1: none */
    int n;                           /* buckets in use */
    int64_t base, width, last_step;
    int64_t generation;
} ls_curve;

/* One step; values that are not finite are left out. A step that is not after the last one replaces it and what followed: a run that was
 * resumed or started again. LS_E_NOMEM. */
ls_status ls_curve_add(ls_curve *c, int64_t step, const double value[LS_N_CURVE]);
void ls_curve_clear(ls_curve *c); /* forgets the steps, keeps the memory */
void ls_curve_fini(ls_curve *c);

#endif
