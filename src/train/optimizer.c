/* optimizer.c - the AdamW pass of a step, and the message of a run that fails on a NaN or an infinity. */
#include "train/train_impl.h"

#include <math.h>
#include <string.h>

/* The tensors among elements [o.first, o.first + o.n) that are not decayed. */
static void plain_ranges(const ls_unit *unit, const ls_own *o, ls_adamw *h)
{
    h->n_plain = 0;
    for (int i = 0; i < unit->n_tensor; i++) {
        const ls_tensor *x = &unit->tensor[i];
        const ls_tensor_range r = ls_tensor_within(x, o->first, o->n);
        if (r.from >= r.to || x->matrix) continue;
        h->plain[h->n_plain][0] = r.from - o->first;
        h->plain[h->n_plain++][1] = r.to - o->first;
    }
}
/* NOLINTNEXTLINE(misc-redundant-expression): today they are the same number */
_Static_assert((int)LS_ADAMW_PLAIN >= (int)LS_UNIT_MAX_TENSOR, "a unit's tensors may all be plain");

static void hyper_of(void *ctx, int u, const ls_own *o, ls_adamw *h)
{
    const ls_trainer *t = ctx;
    const ls_train_config *c = t->cfg;
    const ls_unit *unit = &t->model->unit[u];
    *h = t->hyper;
    if (c->decay_matrices_only) plain_ranges(unit, o, h);
    h->gains = ls_unit_gains(unit, o->first, o->n);
    h->round = ls_strategy_rounding(c->seed, ls_next_update(&t->state), u, o->first);
}

static ls_adamw hyper_now(const ls_trainer *t, double lr, double grad_scale, const ls_decision *at)
{
    const ls_train_config *c = t->cfg;
    const double k = (double)ls_next_update(&t->state);
    return (ls_adamw){.lr = lr,
                      .beta1 = c->beta1,
                      .beta2 = c->beta2,
                      .eps = c->eps,
                      .weight_decay = c->weight_decay,
                      .bias1 = c->bias_correction ? 1 - pow(c->beta1, k) : 1,
                      .bias2 = c->bias_correction ? 1 - pow(c->beta2, k) : 1,
                      .grad_scale = grad_scale,
                      .at = at,
                      .coupled = c->coupled};
}

ls_status train_optimizer_begin(ls_trainer *t, double lr)
{
    t->hyper = hyper_now(t, lr, 1, NULL);
    return ls_strategy_step_begin(t->strategy, hyper_of, t);
}

ls_status train_optimizer_pass(ls_trainer *t, double lr, double grad_scale, const ls_decision *at)
{
    if (!t->updating) t->hyper = hyper_now(t, lr, grad_scale, at); /* else another thread reads what it was set to */
    return ls_strategy_update(t->strategy, hyper_of, t);
}

/* The tensor of a piece that has a NaN or an infinity; unchanged if there is none. */
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
/* Among several workers, the lowest rank that found a tensor prints the error, or rank 0; the others only fail. In dp, only rank 0 knows
 * the norm. */
static ls_status choose_reporter(ls_trainer *t, bool found, bool gradients, bool *reports)
{
    const int rank = ls_comm_rank(t->comm), size = ls_comm_size(t->comm);
    int who = 0;
    *reports = true;
    if (size == 1 || (gradients && !strcmp(t->cfg->strategy, "dp"))) return LS_OK;
    LS_TRY(ls_agree(t->comm, found ? size - rank : 0, LS_SITE, &who));
    *reports = who ? who == size - rank : rank == 0;
    return LS_OK;
}

ls_status train_numbers_failed(ls_trainer *t, const char *what, double value, bool gradients)
{
    const ls_tensor *bad = NULL;
    bool of_gradient = false, reports;
    const bool spoilt = t->updating; /* parameters may be those that this gradient made */
    for (int pass = spoilt ? 1 : 0; pass < (gradients || spoilt ? 2 : 1) && !bad; pass++)
        for (int u = 0; u < t->model->n_unit && !bad; u++) {
            const ls_own o = ls_strategy_own(t->strategy, u);
            const ls_piece p = {LS_FLAT_PARAM, u, o.first, o.n, pass ? o.grad : o.master};
            LS_TRY(find_bad(t, &p, &bad));
            of_gradient = pass;
        }
    LS_TRY(choose_reporter(t, bad, gradients, &reports));
    const char *text = isnan(value) ? "NaN" : value > 0 ? "infinite" : "minus infinite";
    const long long step = t->state.step + 1;
    if (bad)
        (void)ls_fail(LS_E_NUMERIC,
                      "step %lld: %s is %s; %s %s has a NaN or an infinity (a lower --lr, warm-up or --clip may help)",
                      step, what, text, of_gradient ? "the gradient of" : "the parameter", bad->name);
    else
        (void)ls_fail(LS_E_NUMERIC,
                      "step %lld: %s is %s, while every %s is finite (a lower --lr, warm-up or --clip may help)", step,
                      what, text,
                      spoilt      ? "gradient"
                      : gradients ? "parameter and gradient"
                                  : "parameter");
    if (!reports) ls_err_set_peers();
    return LS_E_NUMERIC;
}
