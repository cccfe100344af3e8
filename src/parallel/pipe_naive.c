/* pipe_naive.c - one micro-batch after the other through all stages and back: one stage computes at a time.
 *
 *   0  F0 .. .. .. .. B0 F1 .. .. .. .. B1
 *   1  .. F0 .. .. B0 .. .. F1 .. .. B1 ..
 *   2  .. .. F0 B0 .. .. .. .. F1 B1 .. ..
 *
 *   p stages, m micro-batches: time m p (f + b), bubble (p-1)/p, one activation a stage */
#include "parallel/schedule.h"

ls_status ls_pipe_naive(ls_schedule *s, const ls_pipe_opts *o)
{
    (void)o;
    for (int r = 0; r < s->n_stage; r++)
        for (int m = 0; m < s->n_micro; m++) {
            ls_schedule_emit(s, r, LS_PIPE_FWD, m, 0);
            ls_schedule_emit(s, r, LS_PIPE_BWD, m, 0);
        }
    return LS_OK;
}
