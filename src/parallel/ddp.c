/* ddp.c - gradients are summed bucket by bucket while backward goes on; every worker updates all parameters, or, where the workers share one
 * optimizer state, a part of them.
 *
 *   P parameters, G gradient elements (P, and embed once more for a tied head), N workers; in fp32 (strategy.h has the others)
 *   bytes held   4P + 4G + 8P                      with one state 4P + 4G + 8P/N
 *   sent / step  all_reduce(G)                     elements, in buckets, in reverse order of use
 *                reduce_scatter(G) + all_gather(P)  with one state
 *
 * One state is for CPU workers of one host (config/resolve.h): they have the same memory and its bandwidth in common, of which N whole
 * updates need 28NP bytes, and parts that are gathered 28P + 8NP at most. An all_reduce is a reduce_scatter and an all_gather of sums, so
 * as many elements are sent. The order of all sums is the same, and so is every bit.
 * Invariants
 *   1. a bucket is posted when the units in it are final: ready units are gathered until they reach the bucket's size, a larger
 *      unit is cut into pieces of that size;
 *   2. equal gradients and equal parameters give equal steps: nothing is sent after them;
 *   3. with one state: those of zero1.c. */
#include "parallel/parallel_impl.h"

static ls_status post(ls_strategy *s, int u)
{
    const ls_unit *unit = &s->model->unit[u];
    for (int64_t at = 0; at < unit->n_grad; at += s->opts.bucket) {
        const int64_t n = unit->n_grad - at < s->opts.bucket ? unit->n_grad - at : s->opts.bucket;
        ls_comm_label(s->comm, ++s->n_bucket);
        LS_TRY(ls_all_reduce(s->comm, parallel_grad(s, unit->grad, at, n), LS_SITE, &s->last));
    }
    return LS_OK;
}

const ls_strategy_ops ls_strategy_ddp = {.name = "ddp", .post = post};

const ls_strategy_ops ls_strategy_ddp_one_state = {.name = "ddp",
                                                   .parts = LS_SHARD_OPT,
                                                   .acquire = parallel_gather_wait,
                                                   .post = parallel_scatter_post,
                                                   .unit_done = parallel_gather_post};
