/* metrics.h - metrics.jsonl: one row per optimizer step. The table below is what a row has, in the order of the file; the writer and all
 * readers are made of it. */
#ifndef LS_RUN_METRICS_H
#define LS_RUN_METRICS_H

#include "core/json.h"

/* X(name, key, type) */
#define LS_ROW_LIST(X)                                                  \
    X(STEP, step, int)                                                  \
    X(EPOCH, epoch, int)                                                \
    X(LOSS, loss, real)                                                 \
    X(LR, lr, real)                                                     \
    X(GRAD_NORM, grad_norm, real)                                       \
    X(LOSS_SCALE, loss_scale, real)                                     \
    X(SKIPPED, skipped, bool)                                           \
    X(TOKENS, tokens, int)                                              \
    X(TOKENS_PER_SEC, tokens_per_sec, real)                             \
    X(TFLOPS, tflops, real)                                             \
    X(STEP_TIME, step_time_sec, real)                                   \
    X(DATA, data_sec, real)                                             \
    X(FORWARD, forward_sec, real)                                       \
    X(BACKWARD, backward_sec, real)                                     \
    X(COMM_EXPOSED, comm_exposed_sec, real)                             \
    X(OPTIMIZER, optimizer_sec, real)                                   \
    X(OTHER, other_sec, real)                                           \
    X(CPU, cpu_utilisation, real)                                       \
    X(VAL_LOSS, val_loss, real)                                         \
    X(TIME, time_unix_ms, int)                                          \
    X(BUBBLE, bubble_sec, real) /* read only: runs of older versions */ \
    X(STRAGGLER, straggler_sec, real)                                   \
    X(REDUCE, reduce_sec, real)

typedef enum ls_row_key {
#define X(name, key, type) LS_ROW_##name,
    LS_ROW_LIST(X)
#undef X
        LS_N_ROW_KEY
} ls_row_key;
extern const char *const ls_row_name[LS_N_ROW_KEY];

typedef struct ls_metrics_row {
    int64_t step;
    double x[LS_N_ROW_KEY]; /* NaN: null, or not there */
    uint32_t has;           /* bit k: the row has key k, as a number or null */
} ls_metrics_row;

#define ls_metrics_has(row, metric) ((row)->has >> (metric)&1)
static inline void ls_metrics_set(ls_metrics_row *row, ls_row_key k, double x)
{
    row->x[k] = x;
    row->has |= 1u << k;
}

/* The row of a line; false: it has no step. NULL has none. */
bool ls_metrics_read(const json_t *line, ls_metrics_row *row);
/* A whole number of a row; -1: not there. */
int64_t ls_metrics_int(const ls_metrics_row *row, ls_row_key k);
/* Appends a line with the keys that the row has. */
void ls_metrics_write(const ls_metrics_row *row, ls_str *out);

#endif
