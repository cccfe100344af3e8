/* zero1.c - moments sharded: every worker updates its part of each unit and gathers the others'.
 *
 *   P parameters, G gradient elements (P, and embed once more for a tied head), N workers; fp32
 *   bytes held   4P + 4G + 8P/N
 *   sent / step  reduce_scatter(G) + all_gather(P)  elements, in buckets
 * Invariants
 *   1. after step_due only this worker's part of a gradient is the sum;
 *   2. the gather of a unit is posted when its part is updated and waited for before its next use, so it overlaps the rest of the
 *      optimizer and the forward pass. */
#include "parallel/parallel_impl.h"

static ls_status scatter_in_place(ls_strategy *s, void *x, int64_t n)
{
    const int64_t part = parallel_part(s, n);
    return parallel_scatter(s, x, n, ls_at_wide(s->model->compute, x, part * ls_comm_rank(s->comm)));
}

static ls_status post(ls_strategy *s, int u)
{
    const ls_unit *unit = &s->model->unit[u];
    LS_TRY(scatter_in_place(s, unit->grad, unit->n_pad));
    if (unit->n_grad == unit->n_pad) return LS_OK;
    return scatter_in_place(s, ls_at_wide(s->model->compute, unit->grad, unit->n_pad), unit->n_grad - unit->n_pad);
}

const ls_strategy_ops ls_strategy_zero1 = {.name = "zero1",
                                           .parts = LS_SHARD_OPT,
                                           .acquire = parallel_gather_wait,
                                           .post = post,
                                           .unit_done = parallel_gather_post};
