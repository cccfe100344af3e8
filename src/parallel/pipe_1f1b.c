/* pipe_1f1b.c - schedules with a whole backward pass: a rank runs some forwards ahead, then one forward and one backward in turn, then
 * drains. They differ in the number of forwards ahead. p stages, m micro-batches:
 *
 *                 ahead of rank r        time                bubble        activations of rank r
 *   naive         0                      m p (f + b)         (p-1)/p       1
 *   gpipe         all                    (m + p - 1)(f + b)  (p-1)/(m+p-1) m          (Huang et al., 2019)
 *   1f1b          p - 1 - r              as gpipe            as gpipe      min(m, p - r)   (PipeDream-Flush, Narayanan et al., 2021)
 *   interleaved   2(p-1-r) + (v-1)p      (v m + p - 1)(f + b) with the costs of a chunk; bubble (p-1)/(vm+p-1) if p divides m;
 *                                        at most (v-1) p + 2 (p - 1 - r) + 1 activations of a chunk     (Narayanan et al., 2021)
 *
 *   naive   0  F0 .. .. .. .. B0 F1 .. .. .. .. B1        gpipe   0  F0 F1 F2 .. .. .. .. B0 B1 B2
 *           1  .. F0 .. .. B0 .. .. F1 .. .. B1 ..                1  .. F0 F1 F2 .. .. B0 B1 B2 ..
 *           2  .. .. F0 B0 .. .. .. .. F1 B1 .. ..                2  .. .. F0 F1 F2 B0 B1 B2 .. ..
 *
 *   1f1b    0  F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3        interleaved   0  F0.0 F1.0 F0.1 F1.1 …
 *           1  .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..                      1  .... F0.0 F1.0 F0.1 …
 *           2  .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
 *
 * Backwards go from micro-batch 0 up: gradients are summed in the tree's order. With v chunks per rank, micro-batches go in groups of p
 * through chunk 0, then the same group through chunk 1; backwards likewise, from the last chunk down. If p does not divide m, the order is
 * made for the next multiple and micro-batches that do not exist are left out: no dependency crosses micro-batches, so the order stays
 * free of cycles. (A shorter last group can deadlock: rank 0 would wait for a chunk that rank p-1 starts only after rank 0's.) */
#include "parallel/schedule.h"

#include <limits.h>

/* The k-th of the p * v * groups places: which micro-batch and chunk. */
static void emit_place(ls_schedule *s, int r, ls_pipe_kind kind, int k)
{
    const int p = s->n_stage, v = s->n_chunk;
    const int group = k / (p * v), in_group = k % (p * v), micro = group * p + in_group % p;
    const int chunk = kind == LS_PIPE_FWD ? in_group / p : v - 1 - in_group / p;
    if (micro < s->n_micro) ls_schedule_emit(s, r, kind, micro, chunk);
}

static void emit_rank(ls_schedule *s, int r, int ahead)
{
    const int p = s->n_stage, places = (s->n_micro + p - 1) / p * p * s->n_chunk,
              warm = ahead < places ? ahead : places;
    for (int k = 0; k < warm; k++) emit_place(s, r, LS_PIPE_FWD, k);
    for (int k = warm; k < places; k++) {
        emit_place(s, r, LS_PIPE_FWD, k);
        emit_place(s, r, LS_PIPE_BWD, k - warm);
    }
    for (int k = places - warm; k < places; k++) emit_place(s, r, LS_PIPE_BWD, k);
}

ls_status ls_pipe_naive(ls_schedule *s, const ls_pipe_opts *o)
{
    (void)o;
    for (int r = 0; r < s->n_stage; r++) emit_rank(s, r, 0);
    return LS_OK;
}

ls_status ls_pipe_gpipe(ls_schedule *s, const ls_pipe_opts *o)
{
    (void)o;
    for (int r = 0; r < s->n_stage; r++) emit_rank(s, r, INT_MAX);
    return LS_OK;
}

ls_status ls_pipe_1f1b(ls_schedule *s, const ls_pipe_opts *o)
{
    (void)o;
    for (int r = 0; r < s->n_stage; r++) emit_rank(s, r, s->n_stage - 1 - r);
    return LS_OK;
}

ls_status ls_pipe_interleaved(ls_schedule *s, const ls_pipe_opts *o)
{
    (void)o;
    for (int r = 0; r < s->n_stage; r++) emit_rank(s, r, 2 * (s->n_stage - 1 - r) + (s->n_chunk - 1) * s->n_stage);
    return LS_OK;
}
