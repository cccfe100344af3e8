/* ddp.c - every worker steps; gradients are summed bucket by bucket while backward goes on.
 *
 *   P parameters, G gradient elements (P, and V*C more for a tied head), N workers; fp32
 *   bytes held   4P + 4G + 8P
 *   sent / step  all_reduce(G)                     elements, in buckets, in reverse order of use
 * Invariants
 *   1. a bucket is posted when the units in it are final: ready units are gathered until they reach the bucket's size, a larger
 *      unit is cut into pieces of that size;
 *   2. step_due returns with every ticket waited for;
 *   3. equal gradients and equal parameters give equal steps: nothing is sent after them. */
#include "parallel/strategy.h"

static bool everyone(const ls_strategy *s)
{
    (void)s;
    return true;
}

/* Posts the units that wait: from `waiting` - 1 down to `u`. */
static ls_status flush(ls_strategy *s, int u)
{
    for (int k = s->waiting - 1; k >= u; k--) {
        const ls_unit *unit = &s->model->unit[k];
        for (int64_t at = 0; at < unit->n_grad; at += s->opts.bucket) {
            const int64_t n = unit->n_grad - at < s->opts.bucket ? unit->n_grad - at : s->opts.bucket;
            LS_ASSERT(s->n_ticket < s->cap_ticket);
            LS_TRY(ls_all_reduce(s->comm, (ls_view){ls_at(s->model->compute, unit->grad, at), n, LS_F32}, LS_SITE,
                                 &s->ticket[s->n_ticket]));
            s->n_ticket++;
        }
    }
    s->waiting = u;
    s->n_waiting = 0;
    return LS_OK;
}

static ls_status ready(ls_strategy *s, int u)
{
    s->n_waiting += s->model->unit[u].n_grad;
    return s->n_waiting >= s->opts.bucket ? flush(s, u) : LS_OK;
}

static ls_status due(ls_strategy *s)
{
    LS_TRY(flush(s, 0));
    for (int i = 0; i < s->n_ticket; i++) LS_TRY(ls_wait(s->comm, s->ticket[i]));
    s->n_ticket = 0;
    s->waiting = s->model->n_unit;
    return LS_OK;
}

const ls_strategy_ops ls_strategy_ddp = {
    .name = "ddp", .holds_moments = everyone, .grad_ready = ready, .step_due = due};
