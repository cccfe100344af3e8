/* faults.c - the phases of a step and its tensors, for faults that are injected (core/inject.h). Called only where LOCKSTEP_FAULT is set. */
#include "core/inject.h"
#include "core/mem.h"
#include "train/train_impl.h"

/* A tensor in memory of the host or of the device. */
static ls_status flip(const ls_trainer *t, ls_flip_of what, int u, void *data, int64_t n, ls_dtype dt)
{
    const ls_device *d = t->compute.device;
    const size_t size = ls_dtype_nbytes(dt);
    if (!data || !n || !ls_inject_flips(what)) return LS_OK;
    if (!d || !d->owns(d->ctx, data)) {
        ls_inject_flip(what, u, data, n, size);
        return LS_OK;
    }
    void *host = ls_alloc((size_t)n * size);
    if (!host) return ls_nomem((size_t)n * size, "a fault");
    ls_status st = ls_compute_read(&t->compute, host, data, (size_t)n * size);
    ls_inject_flip(what, u, host, n, size);
    if (st == LS_OK) st = ls_compute_write(&t->compute, data, host, (size_t)n * size);
    ls_free(host);
    return st;
}

/* Parameters as this worker computes with them: a whole unit, or its shard. */
static ls_status flip_units(const ls_trainer *t, ls_flip_of what)
{
    const bool sharded = t->strategy->ops->parts & LS_SHARD_PARAM;
    for (int u = 0; u < t->model->n_unit; u++) {
        const ls_unit *unit = &t->model->unit[u];
        const ls_own own = ls_strategy_own(t->strategy, u);
        if (what == LS_FLIP_SUM) LS_TRY(flip(t, what, u, own.grad, own.n, t->compute.ops->wide));
        else if (what == LS_FLIP_MOMENT) LS_TRY(flip(t, what, u, own.m, own.n, t->compute.ops->wide));
        else if (sharded) LS_TRY(flip(t, what, u, own.param, own.n, t->compute.ops->dtype));
        else LS_TRY(flip(t, what, u, unit->param, unit->n, t->compute.ops->dtype));
    }
    return LS_OK;
}

/* The operations of a device are queued, and the hooks of its passes may not run. */
static ls_status check(const ls_trainer *t)
{
    const bool passes = ls_inject_flips(LS_FLIP_GRAD) || ls_inject_flips(LS_FLIP_ACT) || ls_inject_flips(LS_FLIP_TREE);
    if (!t->compute.device || !passes) return LS_OK;
    return ls_fail(
        LS_E_UNSUPPORTED,
        "LOCKSTEP_FAULT: on a GPU, flips are possible in tensor=param, tensor=moment, and tensor=sum without phase=backward");
}

ls_status train_faults(ls_trainer *t, const ls_event *e)
{
    if (e->kind == LS_ON_RUN_BEGIN) return check(t);
    if (e->kind == LS_ON_STEP_BEGIN) {
        ls_inject_step(t->state.step + 1);
        return flip_units(t, LS_FLIP_PARAM);
    }
    if (e->kind != LS_ON_PHASE_BEGIN) return LS_OK;
    if (e->phase == LS_PHASE_PASS || e->phase == LS_PHASE_PIPELINE) ls_inject_phase(LS_FAULT_FORWARD);
    if (e->phase == LS_PHASE_BACKWARD) ls_inject_phase(LS_FAULT_BACKWARD);
    if (e->phase == LS_PHASE_NORM) return flip_units(t, LS_FLIP_SUM);
    if (e->phase != LS_PHASE_UPDATE) return LS_OK;
    ls_inject_phase(LS_FAULT_UPDATE);
    return flip_units(t, LS_FLIP_MOMENT);
}

ls_status train_grad_faults(ls_trainer *t, int u)
{
    const ls_unit *unit = &t->model->unit[u];
    if (t->pipe) ls_inject_phase(LS_FAULT_BACKWARD);
    return flip(t, LS_FLIP_GRAD, u, unit->grad, unit->n, t->compute.ops->wide);
}

ls_status train_tree_faults(ls_trainer *t, int u)
{
    ls_strategy *s = t->strategy;
    if (s->micro || s->opts.n_micro == 1 || !ls_inject_flips(LS_FLIP_TREE)) return LS_OK;
    LS_TRY(ls_strategy_sums_arrive(s));
    return flip(t, LS_FLIP_TREE, u, ls_gradtree_place(s->tree, u, 0), s->tree->n[u], t->compute.ops->wide);
}
