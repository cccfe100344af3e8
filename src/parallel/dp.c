/* dp.c - rank 0 updates for all workers, like torch's DataParallel but with processes.
 *
 *   P parameters, G gradient elements (P, and embed once more for a tied head), N workers; fp32
 *   bytes held   master 4P + 4G + 8P,  the others 4P + 4G
 *   sent / step  reduce(G) + broadcast(P)          elements, nothing overlapped
 * Invariants
 *   1. only rank 0 has moments and changes parameters by itself;
 *   2. step_done leaves equal parameters everywhere, bit for bit. */
#include "parallel/parallel_impl.h"

static ls_status collect(ls_strategy *s)
{
    for (int u = s->model->n_unit - 1; u >= 0; u--) {
        const ls_unit *unit = &s->model->unit[u];
        if (!ls_strategy_here(s, u)) continue;
        ls_comm_label(s->comm, ++s->n_bucket);
        if (ls_gradtree_seals(s->tree))
            LS_TRY(ls_barrier(s->comm, LS_SITE)); /* so that the reduction waits for nobody */
        LS_TRY(parallel_local_read(s, u));
        LS_TRY(ls_reduce(s->comm, parallel_grad(s, unit->grad, 0, unit->n_grad), 0, LS_SITE, NULL));
        LS_TRY(parallel_sum_kept(s, u));
    }
    return LS_OK;
}

static ls_status hand_out(ls_strategy *s)
{
    for (int u = 0; u < s->model->n_unit; u++) {
        const ls_unit *unit = &s->model->unit[u];
        if (!parallel_present(s, u)) continue;
        ls_comm_label(s->comm, ++s->n_bucket);
        LS_TRY(ls_broadcast(s->comm, parallel_param(s, unit->param, 0, unit->n_pad), 0, LS_SITE, NULL));
    }
    return LS_OK;
}

const ls_strategy_ops ls_strategy_dp = {.name = "dp", .master = true, .step_due = collect, .step_done = hand_out};
