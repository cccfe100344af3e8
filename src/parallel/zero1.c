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

const ls_strategy_ops ls_strategy_zero1 = {.name = "zero1",
                                           .parts = LS_SHARD_OPT,
                                           .acquire = parallel_gather_wait,
                                           .post = parallel_scatter_post,
                                           .unit_done = parallel_gather_post};
