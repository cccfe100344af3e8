/* strategy.c - what every strategy shares: memory, the tree, the order of a step. */
#include "parallel/strategy.h"

#include "core/mem.h"

#include <string.h>

static const ls_strategy_ops *const all[] = {&ls_strategy_single, &ls_strategy_dp, &ls_strategy_ddp};
#define N_ALL ((int)(sizeof all / sizeof all[0]))

static bool power_of_two(int n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static ls_status check_layout(const char *name, int W, const ls_strategy_opts *o)
{
    if (!strcmp(name, "single") && W > 1)
        return ls_fail(LS_E_CONFIG, "--strategy single has one worker, and there are %d: use ddp or dp", W);
    if (W > 1 && o->deterministic && !power_of_two(o->n_micro)) {
        int below = 1;
        while (below * 2 < o->n_micro) below *= 2;
        return ls_fail(LS_E_CONFIG,
                       "%d workers x %d micro-batches: the sum of %d gradients has one order, and workers can follow "
                       "it only with 1, 2, 4, 8 … "
                       "micro-batches each; %d or %d would work, or --no_deterministic",
                       W, o->n_micro, W * o->n_micro, below, 2 * below);
    }
    return LS_OK;
}

static ls_status plan_rows(ls_strategy *s, ls_plan *plan)
{
    const ls_model *m = s->model;
    const int64_t esize = (int64_t)ls_dtype_nbytes(m->compute->ops->dtype);
    const bool moments = s->ops->holds_moments(s);
    for (int u = 0; u < m->n_unit; u++) {
        const int64_t nbytes = m->unit[u].n_pad * esize;
        s->row[0][u] = ls_plan_add(plan, LS_PART_PARAM, nbytes, LS_PLAN_ALWAYS, "unit %d", u);
        s->row[1][u] = s->row[2][u] = -1;
        if (!moments) continue;
        s->row[1][u] = ls_plan_add(plan, LS_PART_OPT, nbytes, LS_PLAN_ALWAYS, "unit %d first moment", u);
        s->row[2][u] = ls_plan_add(plan, LS_PART_OPT, nbytes, LS_PLAN_ALWAYS, "unit %d second moment", u);
    }
    return ls_gradtree_plan(&s->tree, s->model, s->opts.n_micro, plan);
}

ls_status ls_strategy_create(ls_strategy **out, const char *name, ls_model *m, ls_comm *c, const ls_strategy_opts *o,
                             ls_plan *plan)
{
    const ls_strategy_ops *ops = NULL;
    for (int i = 0; i < N_ALL; i++)
        if (!strcmp(name, all[i]->name)) ops = all[i];
    if (!ops)
        return ls_fail(LS_E_UNSUPPORTED, "--strategy %s is not offered by this version: single, dp and ddp are", name);
    LS_TRY(check_layout(name, ls_comm_size(c), o));
    ls_strategy *s = ls_alloc(sizeof *s);
    if (!s) return ls_nomem(sizeof *s, "a strategy");
    *s = (ls_strategy){.ops = ops, .model = m, .comm = c, .opts = *o, .waiting = m->n_unit};
    /* a unit may be cut into pieces of a bucket: n / bucket + 1 of them */
    for (int u = 0; u < m->n_unit; u++) s->cap_ticket += (int)(m->unit[u].n_grad / o->bucket) + 1;
    s->ticket = ls_alloc((size_t)s->cap_ticket * sizeof *s->ticket);
    for (int k = 0; k < 3; k++) s->row[k] = ls_alloc((size_t)m->n_unit * sizeof *s->row[k]);
    ls_status st = s->ticket && s->row[0] && s->row[1] && s->row[2] ? LS_OK : ls_nomem(4096, "a strategy");
    if (st == LS_OK) st = plan_rows(s, plan);
    if (st != LS_OK) {
        ls_strategy_destroy(&s);
        return st;
    }
    *out = s;
    return LS_OK;
}

void ls_strategy_bind(ls_strategy *s, const ls_plan *plan)
{
    for (int u = 0; u < s->model->n_unit; u++) {
        ls_unit *unit = &s->model->unit[u];
        unit->param = ls_plan_at(plan, s->row[0][u]);
        unit->m = s->row[1][u] < 0 ? NULL : ls_plan_at(plan, s->row[1][u]);
        unit->v = s->row[2][u] < 0 ? NULL : ls_plan_at(plan, s->row[2][u]);
    }
    ls_gradtree_bind(s->tree, plan);
}

void ls_strategy_destroy(ls_strategy **sp)
{
    ls_strategy *s = *sp;
    if (!s) return;
    ls_gradtree_destroy(&s->tree);
    ls_free(s->ticket);
    for (int k = 0; k < 3; k++) ls_free(s->row[k]);
    ls_free(s);
    *sp = NULL;
}

int64_t ls_strategy_leaf(const ls_strategy *s, int m)
{
    return (int64_t)ls_comm_rank(s->comm) * s->opts.n_micro + m;
}

void ls_strategy_begin(ls_strategy *s, int micro)
{
    s->micro = micro;
    ls_gradtree_begin(s->tree, micro);
}

ls_status ls_strategy_grad_ready(ls_strategy *s, int u)
{
    LS_TRY(ls_gradtree_ready(s->tree, u));
    if (s->micro < s->opts.n_micro - 1 || !s->ops->grad_ready) return LS_OK;
    return s->ops->grad_ready(s, u);
}

ls_status ls_strategy_step_due(ls_strategy *s)
{
    if (s->ops->step_due) LS_TRY(s->ops->step_due(s));
    return ls_strategy_updates(s) ? ls_model_fold_tied(s->model) : LS_OK;
}

ls_status ls_strategy_step_done(ls_strategy *s)
{
    return s->ops->step_done ? s->ops->step_done(s) : LS_OK;
}

bool ls_strategy_updates(const ls_strategy *s)
{
    return s->ops->holds_moments(s);
}

/* ---- single ---- */

static bool always(const ls_strategy *s)
{
    (void)s;
    return true;
}

const ls_strategy_ops ls_strategy_single = {.name = "single", .holds_moments = always};
