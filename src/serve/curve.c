#include "serve/curve.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

const ls_row_key ls_curve_row[LS_N_CURVE] = {
    [LS_CURVE_LOSS] = LS_ROW_LOSS,
    [LS_CURVE_NORM] = LS_ROW_GRAD_NORM,
    [LS_CURVE_LR] = LS_ROW_LR,
    [LS_CURVE_RATE] = LS_ROW_TOKENS_PER_SEC,
    [LS_CURVE_TFLOPS] = LS_ROW_TFLOPS,
    [LS_CURVE_TIME] = LS_ROW_STEP_TIME,
    [LS_CURVE_EXPOSED] = LS_ROW_COMM_EXPOSED,
    [LS_CURVE_CPU] = LS_ROW_CPU,
};

static void merge(ls_bucket *into, const ls_bucket *b)
{
    if (!b->n) return;
    if (!into->n || b->lo < into->lo) into->lo = b->lo;
    if (!into->n || b->hi > into->hi) into->hi = b->hi;
    into->sum += b->sum;
    into->n += b->n;
}

/* Bucket i becomes the sum of 2i and 2i+1. */
static void halve(ls_curve *c)
{
    for (int i = 0; i < c->n; i++) {
        const int to = i / 2;
        if (i % 2 == 0) {
            memmove(c->bucket[to], c->bucket[i], sizeof c->bucket[i]);
            c->last[to] = c->last[i];
            continue;
        }
        for (int s = 0; s < LS_N_CURVE; s++) merge(&c->bucket[to][s], &c->bucket[i][s]);
        if (c->last[i] >= 0) c->last[to] = c->last[i];
    }
    c->n = (c->n + 1) / 2;
    c->width *= 2;
    c->generation++;
}

/* Removes the steps from `step` on, and those before it in its bucket. */
static void cut(ls_curve *c, int64_t step)
{
    const int64_t keep = step <= c->base ? 0 : (step - c->base) / c->width;
    c->generation++;
    if (keep < c->n) c->n = (int)keep;
    if (!c->n) {
        c->width = 1;
        c->base = step;
    }
}

static ls_status begin(ls_curve *c, int64_t step)
{
    const size_t nbytes = LS_CURVE_BUCKETS * (sizeof *c->bucket + sizeof *c->last);
    if (!c->bucket) {
        c->bucket = ls_alloc(LS_CURVE_BUCKETS * sizeof *c->bucket);
        c->last = ls_alloc(LS_CURVE_BUCKETS * sizeof *c->last);
        if (!c->bucket || !c->last) {
            ls_curve_fini(c);
            return ls_nomem(nbytes, "the curves of a run");
        }
    }
    if (!c->n) {
        c->base = c->last_step = step;
        c->width = 1;
    }
    return LS_OK;
}

ls_status ls_curve_add(ls_curve *c, int64_t step, const double value[LS_N_CURVE])
{
    LS_TRY(begin(c, step));
    if (c->n && step <= c->last_step) cut(c, step);
    while ((step - c->base) / c->width >= LS_CURVE_BUCKETS) halve(c);
    const int at = (int)((step - c->base) / c->width);
    while (c->n <= at) {
        memset(c->bucket[c->n], 0, sizeof c->bucket[c->n]);
        c->last[c->n++] = -1;
    }
    for (int s = 0; s < LS_N_CURVE; s++)
        if (isfinite(value[s])) merge(&c->bucket[at][s], &(ls_bucket){value[s], (float)value[s], (float)value[s], 1});
    c->last[at] = c->last_step = step;
    return LS_OK;
}

void ls_curve_clear(ls_curve *c)
{
    c->n = 0;
    c->generation++;
}

void ls_curve_fini(ls_curve *c)
{
    ls_free(c->bucket);
    ls_free(c->last);
    *c = (ls_curve){.generation = c->generation};
}
