/* nan_report.c - which tensor a NaN or an infinity is in, for the message of a run that fails on one. */
#include "train/train_impl.h"

#include <math.h>

static ls_status find_bad(ls_trainer *t, const ls_piece *p, const ls_tensor **bad)
{
    const ls_unit *unit = &t->model->unit[p->unit];
    for (int k = 0; k < unit->n_tensor; k++) {
        const ls_tensor *x = &unit->tensor[k];
        const ls_tensor_range r = ls_tensor_within(x, p->first, p->n);
        double sum = 0;
        if (r.from >= r.to) continue;
        LS_TRY(t->compute.ops->sumsq(&t->compute, t->norm_block, ls_at_wide(&t->compute, p->data, r.from - p->first),
                                     r.to - r.from, LS_NORM_BLOCK));
        LS_TRY(ls_compute_sync(&t->compute));
        for (int64_t i = 0; i < (r.to - r.from + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK; i++) sum += t->norm_block[i];
        if (isfinite(sum)) continue;
        *bad = x;
        return LS_OK;
    }
    return LS_OK;
}

/* Parameters are searched before gradients: a bad parameter makes every gradient bad. */
ls_status train_numbers_failed(ls_trainer *t, const char *what, double value, bool gradients)
{
    for (int pass = 0; pass < (gradients ? 2 : 1); pass++) {
        for (int u = 0; u < t->model->n_unit; u++) {
            const ls_own o = ls_strategy_own(t->strategy, u);
            const ls_piece p = {LS_FLAT_PARAM, u, o.first, o.n, pass ? o.grad : o.master};
            const ls_tensor *bad = NULL;
            LS_TRY(find_bad(t, &p, &bad));
            if (!bad) continue;
            return ls_fail(
                LS_E_NUMERIC,
                "step %lld: %s is %g; %s %s holds a NaN or an infinity (a lower --lr, warm-up or --clip may help)",
                (long long)t->state.step + 1, what, value, pass ? "the gradient of" : "the parameter", bad->name);
        }
    }
    return ls_fail(LS_E_NUMERIC,
                   "step %lld: %s is %g, while every parameter%s %s finite (a lower --lr, warm-up or --clip may help)",
                   (long long)t->state.step + 1, what, value, gradients ? " and gradient" : "",
                   ls_comm_size(t->comm) > 1 ? "that this worker updates is" : "is");
}
