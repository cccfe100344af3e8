/* ddp.c - gradients are summed bucket by bucket while backward goes on, and every worker updates all parameters; or, where the workers share one
 * optimizer state, gradients are summed after backward, and every worker updates a part of the one copy of the parameters.
 *
 *   P parameters, G gradient elements (P, and embed once more for a tied head), N workers; in fp32 (strategy.h has the others)
 *   bytes held   4P + 4G + 8P                      with one state 4P + 4G + 8P/N on rank 0, 4G + 8P/N on the others
 *   sent / step  all_reduce(G)                     elements, in buckets, in reverse order of use
 *                reduce_scatter(G)                 with one state, in buckets
 *
 * One state is for CPU workers of one host (config/resolve.h): they have the same memory and its bandwidth in common, of which N whole
 * updates need 28NP bytes, and one in parts 28P. All of them compute with the parameters in the memory of rank 0, so nothing is gathered. Their
 * cores compute all the time: sums in the background would take a core from a team that then waits at its barriers. So all threads of all workers sum
 * together when backward is done. The order of all sums is the same, and so is every bit.
 * Invariants
 *   1. a bucket is posted when the units in it are final: ready units are gathered until they reach the bucket's size, a larger
 *      unit is cut into pieces of that size;
 *   2. equal gradients and equal parameters give equal steps: nothing is sent after them;
 *   3. with one state: after step_due only this worker's part of a gradient is the sum. A worker writes its part of the parameters between the first
 *      barrier of step_due and that of step_done, or between bind and publish; nobody reads them then. */
#include "parallel/parallel_impl.h"

#include "core/cores.h"
#include "core/minmax.h"

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

/* ---- one state ---- */

/* A worker that is late computes with the cores of those that wait for it. */
static void borrow(void *ctx)
{
    ls_strategy *s = ctx;
    ls_compute *c = s->model->compute;
    int cpu[LS_LEND_ROOM];
    const int most = LS_MIN(c->n_most - c->n_own, LS_LEND_ROOM), n = ls_lend_take(s->lend, cpu, most);
    ls_compute_borrow(c, n, cpu);
}

static ls_status open_lend(ls_strategy *s)
{
    int own[LS_LEND_ROOM];
    const int n_own = ls_cores_list(own);
    LS_TRY(ls_lend_open(s->comm, own, n_own, ls_cores_may_use, LS_SITE, &s->lend));
    if (!s->lend) return LS_OK;
    s->model->compute->look = borrow;
    s->model->compute->look_ctx = s;
    return LS_OK;
}

/* The barrier keeps apart, in the statistics, the wait for the slowest worker and the sums. */
static ls_status meet(ls_strategy *s)
{
    if (!s->lend) return ls_barrier(s->comm, LS_SITE);
    ls_compute_borrow(s->model->compute, 0, NULL);
    ls_lend_give(s->lend);
    LS_TRY(ls_barrier(s->comm, LS_SITE));
    ls_lend_back(s->lend);
    return LS_OK;
}

static ls_status reduce_all(ls_strategy *s)
{
    LS_TRY(meet(s));
    for (int u = s->model->n_unit - 1; u >= 0; u--)
        if (ls_strategy_here(s, u)) LS_TRY(parallel_scatter_post(s, u));
    return LS_OK;
}

static ls_status all_updated(ls_strategy *s)
{
    return ls_barrier(s->comm, LS_SITE);
}

const ls_strategy_ops ls_strategy_ddp_one_state = {.name = "ddp",
                                                   .parts = LS_SHARD_OPT,
                                                   .common = true,
                                                   .bound = open_lend,
                                                   .step_due = reduce_all,
                                                   .step_done = all_updated};
