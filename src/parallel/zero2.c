/* zero2.c - moments and gradients sharded: a gradient is reduced as soon as backward has written it.
 *
 *   P parameters, G gradient elements (P, and embed once more for a tied head), N workers, M micro-batches each; fp32
 *   bytes held   4P + 4G/N + 8P/N, and gradients in flight: two neighbouring units, or reduce_bucket_size elements if that is more
 *                (M > 1: bit_length(M-1) times 4G/N, the levels of the tree)
 *   sent / step  M reduce_scatter(G) + all_gather(P)  elements, in buckets
 * Invariants
 *   1. worker r has the micro-batches mW + r: the collective adds the tree's lower levels, the parts its upper ones;
 *   2. a gradient's place is given back only after its reduction has arrived everywhere. */
#include "parallel/parallel_impl.h"

const ls_strategy_ops ls_strategy_zero2 = {.name = "zero2",
                                           .parts = LS_SHARD_OPT | LS_SHARD_GRAD,
                                           .acquire = parallel_gather_wait,
                                           .grad_begin = parallel_flight_begin,
                                           .grad_ready = parallel_flight_ready,
                                           .step_due = parallel_flight_land_all,
                                           .unit_done = parallel_gather_post};
