/* ddp.c - every worker steps; gradients are summed bucket by bucket while backward goes on.
 *
 *   P parameters, G gradient elements (P, and embed once more for a tied head), N workers; in fp32 (strategy.h has the others)
 *   bytes held   4P + 4G + 8P
 *   sent / step  all_reduce(G)                     elements, in buckets, in reverse order of use
 * Invariants
 *   1. a bucket is posted when the units in it are final: ready units are gathered until they reach the bucket's size, a larger
 *      unit is cut into pieces of that size;
 *   2. equal gradients and equal parameters give equal steps: nothing is sent after them. */
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
