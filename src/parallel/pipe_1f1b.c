/* pipe_1f1b.c - fill, then one forward and one backward in turn, then drain (PipeDream-Flush, Narayanan et al., 2021).
 *
 *   0  F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
 *   1  .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
 *   2  .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
 *
 *   time (m + p - 1)(f + b) as gpipe, bubble (p-1)/(m+p-1), but min(m, p - stage) activations */
#include "parallel/schedule.h"

ls_status ls_pipe_1f1b(ls_schedule *s, const ls_pipe_opts *o)
{
    (void)o;
    for (int r = 0; r < s->n_stage; r++) {
        const int n = s->n_micro, ahead = s->n_stage - 1 - r, warm = ahead < n ? ahead : n;
        for (int m = 0; m < warm; m++) ls_schedule_emit(s, r, LS_PIPE_FWD, m, 0);
        for (int m = warm; m < n; m++) {
            ls_schedule_emit(s, r, LS_PIPE_FWD, m, 0);
            ls_schedule_emit(s, r, LS_PIPE_BWD, m - warm, 0);
        }
        for (int m = n - warm; m < n; m++) ls_schedule_emit(s, r, LS_PIPE_BWD, m, 0);
    }
    return LS_OK;
}
