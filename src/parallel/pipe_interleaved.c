/* pipe_interleaved.c - 1f1b over v chunks a rank, so that the pipeline fills v times faster (Narayanan et al., 2021).
 *
 *   0  F0.0 F1.0 F0.1 F1.1 …       2 ranks x 2 chunks: micro-batches go in groups of p through chunk 0, then the same
 *   1  .... F0.0 F1.0 F0.1 …       group through chunk 1; backwards likewise, from the last chunk down
 *
 *   m a multiple of p: time (v m + p - 1)(f + b) with the costs of a chunk, bubble (p-1)/(vm+p-1): 1f1b's divided by
 *   v, nearly
 *   activations: at most (v-1) p + 2 (p - 1 - rank) + 1 chunks
 *
 * Rank r runs 2 (p - 1 - r) + (v - 1) p forwards ahead, then alternates. When p does not divide m the order is made
 * for the next multiple and micro-batches that do not exist are left out: no dependency crosses micro-batches, so
 * what was free of cycles stays so. (A shorter last group in their place can deadlock: rank 0 would wait for a chunk
 * that rank p-1 starts only after rank 0's.) */
#include "parallel/schedule.h"

/* The k-th of the p * v * groups places: which micro-batch and chunk. */
static void emit_place(ls_schedule *s, int r, ls_pipe_kind kind, int k)
{
    const int p = s->n_stage, v = s->n_chunk;
    const int group = k / (p * v), in_group = k % (p * v), micro = group * p + in_group % p;
    const int chunk = kind == LS_PIPE_FWD ? in_group / p : v - 1 - in_group / p;
    if (micro < s->n_micro) ls_schedule_emit(s, r, kind, micro, chunk);
}

ls_status ls_pipe_interleaved(ls_schedule *s, const ls_pipe_opts *o)
{
    (void)o;
    const int p = s->n_stage, v = s->n_chunk, places = (s->n_micro + p - 1) / p * p * v;
    for (int r = 0; r < p; r++) {
        int warm = 2 * (p - 1 - r) + (v - 1) * p;
        warm = warm < places ? warm : places;
        for (int k = 0; k < warm; k++) emit_place(s, r, LS_PIPE_FWD, k);
        for (int k = warm; k < places; k++) {
            emit_place(s, r, LS_PIPE_FWD, k);
            emit_place(s, r, LS_PIPE_BWD, k - warm);
        }
        for (int k = places - warm; k < places; k++) emit_place(s, r, LS_PIPE_BWD, k);
    }
    return LS_OK;
}
