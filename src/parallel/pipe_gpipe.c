/* pipe_gpipe.c - all forwards, then all backwards (Huang et al., 2019).
 *
 *   0  F0 F1 F2 .. .. .. .. B0 B1 B2
 *   1  .. F0 F1 F2 .. .. B0 B1 B2 ..
 *   2  .. .. F0 F1 F2 B0 B1 B2 .. ..
 *
 *   time (m + p - 1)(f + b), bubble (p-1)/(m+p-1), m activations a stage
 *
 * Backwards go from micro-batch 0 up, not from the last one down: the time is the same, and gradients are summed in
 * the tree's order. */
#include "parallel/schedule.h"

ls_status ls_pipe_gpipe(ls_schedule *s, const ls_pipe_opts *o)
{
    (void)o;
    for (int r = 0; r < s->n_stage; r++) {
        for (int m = 0; m < s->n_micro; m++) ls_schedule_emit(s, r, LS_PIPE_FWD, m, 0);
        for (int m = 0; m < s->n_micro; m++) ls_schedule_emit(s, r, LS_PIPE_BWD, m, 0);
    }
    return LS_OK;
}
