/* strategy.c - what every strategy shares: memory, the tree, buckets, the order of a step. */
#include "parallel/parallel_impl.h"

#include "compute/decide.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/rng.h"
#include "parallel/tensor.h"

#include <stdio.h>
#include <string.h>

static const ls_strategy_ops *const all[] = {&ls_strategy_single, &ls_strategy_dp,    &ls_strategy_ddp,
                                             &ls_strategy_zero1,  &ls_strategy_zero2, &ls_strategy_zero3};
#define N_ALL ((int)(sizeof all / sizeof all[0]))

static const ls_strategy_ops *find(const char *name)
{
    for (int i = 0; i < N_ALL; i++)
        if (!strcmp(name, all[i]->name)) return all[i];
    return NULL;
}

/* The table of a run: ddp has two. */
static const ls_strategy_ops *table_of(const char *name, bool one_state)
{
    const ls_strategy_ops *ops = find(name);
    return ops == &ls_strategy_ddp && one_state ? &ls_strategy_ddp_one_state : ops;
}

int64_t ls_strategy_pad(const char *name, bool one_state, int n_worker)
{
    const ls_strategy_ops *ops = table_of(name, one_state);
    return LS_NORM_BLOCK * (int64_t)(ops && ops->parts ? n_worker : 1);
}

/* The largest power of two below n > 1. */
static int power_below(int n)
{
    int below = 1;
    while (below * 2 < n) below *= 2;
    return below;
}

/* "4", "2 or 8": the nearest powers of two on both sides of a number between `below` and 2 below by which n can be divided. */
static const char *powers_that_divide(int n, int below, char buf[32])
{
    int less = below;
    while (n % less) less /= 2;
    if (n % (2 * below)) snprintf(buf, 32, "%d", less);
    else snprintf(buf, 32, "%d or %d", less, 2 * below);
    return buf;
}

ls_status ls_strategy_check(const char *name, int n_worker, int n_micro, bool deterministic)
{
    const ls_strategy_ops *ops = find(name);
    const int W = n_worker;
    if (!ops)
        return ls_fail(LS_E_UNSUPPORTED, "unknown strategy '%s'; use single, dp, ddp, zero1, zero2 or zero3", name);
    if (ops == &ls_strategy_single && W > 1)
        return ls_fail(LS_E_CONFIG, "--strategy single needs one worker (got %d); use ddp, dp, zero1, zero2 or zero3",
                       W);
    if (W == 1 || n_micro == 1 || !deterministic) return LS_OK;
    const bool at_once = ops->parts & LS_SHARD_GRAD;
    const int below = power_below(at_once ? W : n_micro);
    char few[32];
    if (2 * below == (at_once ? W : n_micro)) return LS_OK;
    if (at_once)
        return ls_fail(
            LS_E_CONFIG,
            "--strategy %s on %d replicas x %d micro-batches = %d gradients: in deterministic mode %s needs a power-of-two number of replicas (workers / (pp x tp)), or one micro-batch per replica; use %s replicas, or --no_deterministic",
            name, W, n_micro, W * n_micro, name, powers_that_divide(W * n_micro, below, few));
    return ls_fail(
        LS_E_CONFIG,
        "%d workers x %d micro-batches = %d gradients: deterministic mode needs a power-of-two number of micro-batches per worker; use %d or %d, or --no_deterministic",
        W, n_micro, W * n_micro, below, 2 * below);
}

static bool updates(const ls_strategy *s)
{
    return !s->ops->master || ls_comm_rank(s->comm) == 0;
}

/* Common parameters are in the memory of rank 0. */
static bool holds_params(const ls_strategy *s)
{
    return !s->ops->common || ls_comm_rank(s->comm) == 0;
}

static ls_status plan_gradients(ls_strategy *s, ls_plan *plan)
{
    const ls_model *m = s->model;
    const int64_t esize = (int64_t)ls_dtype_nbytes(m->compute->ops->wide);
    int64_t *n = ls_alloc((size_t)m->n_unit * sizeof *n);
    if (!n) return ls_nomem((size_t)m->n_unit * sizeof *n, "a strategy");
    const bool cut = parallel_cuts(s, LS_SHARD_GRAD);
    for (int u = 0; u < m->n_unit; u++)
        if (ls_strategy_here(s, u)) n[u] = cut ? parallel_part(s, m->unit[u].n_grad) : m->unit[u].n_grad;
    /* tensor parallelism sums parts of a gradient after it is computed, so nothing may be in it before */
    const bool running = !s->opts.deterministic && (cut || !s->opts.tensor);
    const ls_gradtree_how how = running                      ? LS_GRADTREE_RUNNING
                                : s->opts.adds_alike && !cut ? LS_GRADTREE_PAIRED
                                                             : LS_GRADTREE_PLAIN;
    ls_status st = ls_gradtree_plan(&s->tree, s->model, s->opts.n_micro, n, cut, how, plan);
    ls_free(n);
    if (st == LS_OK) s->tree->taken = s->ops->post != NULL; /* where sums are sealed, one is reduced at once */
    if (!cut) return st;
    s->grads.capacity = parallel_flight_capacity(s);
    s->grads_row = ls_plan_add(plan, LS_PART_BUCKET, s->grads.capacity * esize, LS_PLAN_ALWAYS, "gradients in flight");
    return st;
}

typedef struct range {
    int64_t first, n;
} range;

/* The elements of unit u that this worker would update if it were here. */
static range share_of(const ls_strategy *s, int u)
{
    const int64_t n_pad = s->model->unit[u].n_pad, part = parallel_part(s, n_pad);
    if (!updates(s)) return (range){0, 0};
    return parallel_cuts(s, LS_SHARD_OPT) ? (range){part * ls_comm_rank(s->comm), part} : (range){0, n_pad};
}

/* n elements of the optimizer's state of unit u. */
static int plan_state(const ls_strategy *s, ls_plan *plan, int u, int64_t n, const char *what)
{
    const int64_t nbytes = n * (int64_t)ls_dtype_nbytes(s->model->compute->ops->wide);
    char name[48];
    if (!s->opts.offload) return ls_plan_add(plan, LS_PART_OPT, nbytes, LS_PLAN_ALWAYS, "unit %d %s", u, what);
    snprintf(name, sizeof name, "unit %d %s", u, what);
    return ls_plan_add_host(plan, LS_PART_OPT, nbytes, name);
}

/* Its gradient on the host, where the update waits for the norm. */
static int plan_host_grad(const ls_strategy *s, ls_plan *plan, int u, int64_t n)
{
    char name[48];
    if (!s->opts.offload || s->opts.overlap) return -1;
    snprintf(name, sizeof name, "unit %d gradient on the host", u);
    return ls_plan_add_host(plan, LS_PART_BUCKET, n * (int64_t)ls_dtype_nbytes(s->model->compute->ops->wide), name);
}

/* The sums of n blocks. On several workers the host adds them; there is one place after them, for sums of a shard. */
static void plan_norm(ls_strategy *s, ls_plan *plan, int64_t n)
{
    const char *name = "gradient norm, sums of blocks";
    const int64_t nbytes = (n + 1) * (int64_t)sizeof(double);
    if (!ls_strategy_alone(s)) {
        s->norm_row = ls_plan_add_host(plan, LS_PART_WORK, nbytes, name);
        return;
    }
    s->norm_row = ls_plan_add(plan, LS_PART_WORK, nbytes, LS_PLAN_ALWAYS, "%s", name);
    s->decision_row =
        ls_plan_add(plan, LS_PART_WORK, (int64_t)sizeof(ls_decision), LS_PLAN_ALWAYS, "gradient norm, decision");
    s->decided_row =
        ls_plan_add_host(plan, LS_PART_WORK, (int64_t)sizeof(ls_decision), "gradient norm, decision on the host");
}

static ls_status plan_rows(ls_strategy *s, ls_plan *plan)
{
    const ls_model *m = s->model;
    const int64_t esize = (int64_t)ls_dtype_nbytes(m->compute->ops->dtype),
                  wsize = (int64_t)ls_dtype_nbytes(m->compute->ops->wide);
    int64_t n_block = 0, n_largest = 0;
    for (int u = 0; u < m->n_unit; u++) {
        const int64_t n_pad = m->unit[u].n_pad, n_own = share_of(s, u).n;
        ls_strategy_unit *unit = &s->unit[u];
        if (!parallel_present(s, u)) continue;
        const int64_t n_param = parallel_cuts(s, LS_SHARD_PARAM) ? parallel_part(s, n_pad) : n_pad;
        if (holds_params(s))
            unit->row[0] = ls_plan_add(plan, LS_PART_PARAM, n_param * esize, LS_PLAN_ALWAYS, "unit %d", u);
        if (!ls_strategy_here(s, u)) continue;
        n_block += n_pad / LS_NORM_BLOCK;
        if (!n_own) continue;
        unit->row[1] = plan_state(s, plan, u, n_own, "first moment");
        unit->row[2] = plan_state(s, plan, u, n_own, "second moment");
        if (parallel_masters(s)) unit->row[3] = plan_state(s, plan, u, n_own, "master weights");
        unit->host_row = plan_host_grad(s, plan, u, n_own);
        n_largest = LS_MAX(n_largest, n_own);
    }
    if (s->opts.offload) parallel_offload_plan(s, n_largest, plan);
    plan_norm(s, plan, n_block);
    const int64_t n_stage = s->opts.pipe ? ls_comm_size(s->opts.pipe) : 1;
    s->unit_sum_row = ls_plan_add_host(plan, LS_PART_WORK, n_stage * m->n_unit * (int64_t)sizeof(double),
                                       "gradient norm, sums of units");
    if (parallel_cuts(s, LS_SHARD_PARAM)) {
        s->params.capacity = parallel_fetch_capacity(s);
        s->params_row =
            ls_plan_add(plan, LS_PART_BUCKET, s->params.capacity * esize, LS_PLAN_ALWAYS, "gathered parameters");
    }
    if (s->opts.pipe && m->cfg.tied && ls_strategy_here(s, 0) && updates(s))
        s->tie_row = ls_plan_add(plan, LS_PART_GRAD, share_of(s, 0).n * wsize, LS_PLAN_ALWAYS,
                                 "tied embedding gradient of the last stage");
    return plan_gradients(s, plan);
}

ls_status ls_strategy_create(ls_strategy **out, const char *name, ls_model *m, ls_comm *c, const ls_strategy_opts *o,
                             ls_plan *plan)
{
    const ls_strategy_ops *ops = table_of(name, o->one_state);
    const size_t U = (size_t)m->n_unit;
    LS_TRY(ls_strategy_check(name, ls_comm_size(c), o->n_micro, o->deterministic));
    ls_strategy *s = ls_alloc(sizeof *s);
    if (!s) return ls_nomem(sizeof *s, "a strategy");
    *s = (ls_strategy){
        .ops = ops, .model = m, .comm = c, .opts = *o, .waiting = m->n_unit, .micro = -1, .rehearsed = -1};
    s->params_row = s->grads_row = s->tie_row = s->decision_row = s->decided_row = -1;
    s->unit = ls_alloc(U * sizeof *s->unit);
    s->many.n = ls_alloc(U * sizeof *s->many.n);
    s->many.n_block = ls_alloc(U * sizeof *s->many.n_block);
    s->many.grad = ls_alloc(U * sizeof *s->many.grad);
    s->many.job = ls_alloc(U * sizeof *s->many.job);
    const bool room = s->unit && s->many.n && s->many.n_block && s->many.grad && s->many.job;
    for (size_t u = 0; s->unit && u < U; u++)
        s->unit[u] = (ls_strategy_unit){
            .role = o->role ? o->role[u] : LS_ROLE_HERE, .row = {-1, -1, -1, -1}, .held = -1, .host_row = -1};
    ls_status st = room ? plan_rows(s, plan) : ls_nomem(U * sizeof *s->many.job, "a strategy");
    if (st == LS_OK) *out = s;
    else ls_strategy_destroy(&s);
    return st;
}

static void *at(const ls_plan *plan, int row)
{
    return row < 0 ? NULL : ls_plan_at(plan, row);
}

ls_status ls_strategy_bind(ls_strategy *s, const ls_plan *plan)
{
    for (int u = 0; u < s->model->n_unit; u++) {
        ls_unit *unit = &s->model->unit[u];
        void *param = at(plan, s->unit[u].row[0]);
        if (s->ops->common && parallel_present(s, u)) LS_TRY(ls_comm_common(s->comm, param, LS_SITE, &param));
        if (parallel_cuts(s, LS_SHARD_PARAM)) s->unit[u].part = param;
        else unit->param = param;
        unit->m = at(plan, s->unit[u].row[1]);
        unit->v = at(plan, s->unit[u].row[2]);
        unit->master = at(plan, s->unit[u].row[3]);
    }
    s->norm = at(plan, s->norm_row);
    s->unit_sum = at(plan, s->unit_sum_row);
    s->decision = at(plan, s->decision_row);
    s->decided = at(plan, s->decided_row);
    s->tie = at(plan, s->tie_row);
    s->params_at = at(plan, s->params_row);
    s->grads_at = at(plan, s->grads_row);
    ls_gradtree_bind(s->tree, plan);
    parallel_offload_bind(s, plan);
    if (s->ops->bound) LS_TRY(s->ops->bound(s));
    ls_debug("parallel", "%s: buffers for %lld gradient elements in flight and %lld gathered parameter elements",
             s->ops->name, (long long)s->grads.capacity, (long long)s->params.capacity);
    return LS_OK;
}

void ls_strategy_destroy(ls_strategy **sp)
{
    ls_strategy *s = *sp;
    if (!s) return;
    parallel_early_close(s);
    parallel_offload_close(s);
    ls_gradtree_destroy(&s->tree);
    if (s->lend) {
        s->model->compute->look = NULL;
        ls_compute_borrow(s->model->compute, 0, NULL);
    }
    ls_lend_close(&s->lend);
    ls_free(s->unit);
    ls_free(s->many.n);
    ls_free(s->many.n_block);
    ls_free(s->many.grad);
    ls_free(s->many.job);
    ls_free(s);
    *sp = NULL;
}

int64_t ls_strategy_micro_of(const ls_strategy *s, int replica, int m)
{
    const int64_t r = replica;
    return parallel_cuts(s, LS_SHARD_GRAD) ? (int64_t)m * ls_comm_size(s->comm) + r : r * s->opts.n_micro + m;
}

int64_t ls_strategy_micro_index(const ls_strategy *s, int m)
{
    return ls_strategy_micro_of(s, ls_comm_rank(s->comm), m);
}

/* ---- around the walk ---- */

bool ls_strategy_records(const ls_strategy *s)
{
    const ls_strategy_ops *o = s->ops;
    return !o->acquire && !o->release && !o->post && !o->grad_begin && !o->grad_ready && !s->opts.offload;
}

void ls_strategy_begin(ls_strategy *s, int micro)
{
    s->micro = micro;
    s->rehearsed = -1;
}

ls_status ls_strategy_settle(ls_strategy *s)
{
    for (int u = 0; u < s->model->n_unit; u++) LS_TRY(parallel_arrived(s, u));
    return LS_OK;
}

void ls_strategy_rehearse(ls_strategy *s, int micro)
{
    s->micro = -1; /* hooks gather parameters and reduce nothing */
    s->rehearsed = micro;
}

bool ls_strategy_adds(const ls_strategy *s, int micro)
{
    return ls_gradtree_adds(s->tree, micro);
}

ls_status ls_strategy_acquire(ls_strategy *s, int u, ls_pass pass)
{
    if (s->ops->acquire) LS_TRY(s->ops->acquire(s, u, pass));
    /* the head's forward writes the classifier's gradient */
    const bool head = u == s->model->n_unit - 1, rehearsal = s->micro < 0;
    const int micro = rehearsal ? s->rehearsed : s->micro;
    if (micro < 0 || pass == LS_BWD_IN || (pass == LS_FWD) != head) return LS_OK;
    s->model->unit[u].acc = ls_gradtree_adds(s->tree, micro);
    if (!rehearsal) LS_TRY(ls_gradtree_read(s->tree, u, micro));
    if (s->ops->grad_begin && !rehearsal) return s->ops->grad_begin(s, u);
    s->model->unit[u].grad = s->ops->grad_begin ? s->grads_at : ls_gradtree_place(s->tree, u, micro);
    return LS_OK;
}

ls_status ls_strategy_release(ls_strategy *s, int u, ls_pass pass)
{
    return s->ops->release ? s->ops->release(s, u, pass) : LS_OK;
}

/* ---- seals ---- */

void ls_strategy_seal(ls_strategy *s, ls_seals seals)
{
    s->tree->seals = seals;
}

/* f of the elements that this worker has after the reduction: all, its part of the unit, and of the tied elements after the unit's own. */
static ls_status of_share(ls_strategy *s, int u, ls_status (*f)(ls_gradtree *, int, int64_t, int64_t))
{
    const ls_unit *unit = &s->model->unit[u];
    const range r = share_of(s, u);
    if (!ls_gradtree_seals(s->tree) || !ls_strategy_here(s, u) || !r.n) return LS_OK;
    if (!parallel_cuts(s, LS_SHARD_OPT) || parallel_cuts(s, LS_SHARD_GRAD)) return f(s->tree, u, 0, s->tree->n[u]);
    const int64_t tied = parallel_part(s, unit->n_grad - unit->n_pad);
    LS_TRY(f(s->tree, u, r.first, r.n));
    return f(s->tree, u, unit->n_pad + tied * ls_comm_rank(s->comm), tied);
}

ls_status parallel_sum_kept(ls_strategy *s, int u)
{
    return of_share(s, u, ls_gradtree_sum_kept);
}

ls_status parallel_sum_read(ls_strategy *s, int u)
{
    return of_share(s, u, ls_gradtree_sum_read);
}

ls_status parallel_local_read(ls_strategy *s, int u)
{
    return ls_gradtree_sum_read(s->tree, u, 0, s->tree->n[u]);
}

ls_status parallel_meet(ls_strategy *s, int u, const void *x, int64_t n)
{
    if (!s->tree->seals.waits || ls_comm_size(s->comm) == 1) return LS_OK;
    LS_TRY(ls_gradtree_waits(s->tree, u, x, n, false));
    LS_TRY(ls_compute_sync(s->model->compute)); /* what is queued after this is after the wait */
    LS_TRY(ls_barrier(s->comm, LS_SITE));
    return ls_gradtree_waits(s->tree, u, x, n, true);
}

ls_status ls_strategy_sums_read(ls_strategy *s)
{
    for (int u = 0; u < s->model->n_unit; u++) LS_TRY(parallel_sum_read(s, u));
    return LS_OK;
}

ls_status ls_strategy_sums_arrive(ls_strategy *s)
{
    return parallel_cuts(s, LS_SHARD_GRAD) ? parallel_early_look(s, true) : LS_OK;
}

/* ---- gradients ---- */

/* Posts the units that wait: from `waiting` - 1 down to `u`. */
static ls_status flush(ls_strategy *s, int u)
{
    ls_log(LS_LOG_TRACE, "parallel", "bucket of %lld elements: units %d to %d", (long long)s->n_waiting, u,
           s->waiting - 1);
    for (int k = s->waiting - 1; k >= u; k--) {
        if (!ls_strategy_here(s, k)) continue;
        LS_TRY(parallel_meet(s, k, s->model->unit[k].grad, s->tree->n[k]));
        LS_TRY(s->ops->post(s, k));
        s->unit[k].reduced = s->last;
        if (!ls_gradtree_seals(s->tree)) continue;
        LS_TRY(ls_wait(s->comm, s->last));
        LS_TRY(parallel_sum_kept(s, k));
    }
    s->waiting = s->off.posted = u;
    s->n_waiting = 0;
    return LS_OK;
}

static ls_status reduce(ls_strategy *s, int u)
{
    ls_unit *unit = &s->model->unit[u];
    if (s->ops->grad_ready) return s->ops->grad_ready(s, u);
    LS_TRY(ls_gradtree_add(s->tree, u, s->micro, unit->grad));
    if (s->micro < s->opts.n_micro - 1) return LS_OK;
    unit->grad = ls_gradtree_sum(s->tree, u);
    if (!s->ops->post) {
        s->off.posted = u;
        return LS_OK;
    }
    s->n_waiting += unit->n_grad;
    return s->n_waiting >= s->opts.bucket || ls_gradtree_seals(s->tree) ? flush(s, u) : LS_OK;
}

ls_status ls_strategy_grad_ready(ls_strategy *s, int u)
{
    LS_TRY(reduce(s, u));
    return s->off.begun && s->micro == s->opts.n_micro - 1 ? parallel_early_look(s, false) : LS_OK;
}

/* This worker's part of the gradient that head made of the tied embedding. */
static void *tied_part(const ls_strategy *s)
{
    const ls_model *m = s->model;
    const int head = m->n_unit - 1;
    char *sum = ls_gradtree_sum(s->tree, head);
    if (parallel_cuts(s, LS_SHARD_GRAD)) return ls_at_wide(m->compute, sum, parallel_part(s, m->unit[head].n_pad));
    return ls_at_wide(m->compute, sum, m->unit[head].n_pad + share_of(s, 0).first);
}

/* embed's gradient += head's, wherever the two are. */
static ls_status fold_tied(ls_strategy *s)
{
    ls_model *m = s->model;
    const bool embed = ls_strategy_here(s, 0), head = ls_strategy_here(s, m->n_unit - 1);
    const ls_dtype dt = m->compute->ops->wide;
    const range r = share_of(s, 0);
    if (!m->cfg.tied || !r.n || (!embed && !head)) return LS_OK;
    if (!embed) return ls_send(s->opts.pipe, (ls_view){tied_part(s), r.n, dt}, 0, LS_SITE, NULL);
    if (!head) LS_TRY(ls_recv(s->opts.pipe, (ls_view){s->tie, r.n, dt}, ls_comm_size(s->opts.pipe) - 1, LS_SITE, NULL));
    void *grad = ls_strategy_own(s, 0).grad;
    LS_TRY(parallel_sum_read(s, 0));
    LS_TRY(m->compute->ops->add(m->compute, grad, grad, head ? tied_part(s) : s->tie, r.n));
    return parallel_sum_kept(s, 0);
}

/* The updated embedding goes to the copy. */
static ls_status renew_copy(ls_strategy *s)
{
    ls_model *m = s->model;
    ls_comm *pipe = s->opts.pipe;
    const range r = share_of(s, 0);
    if (!pipe || !m->cfg.tied || !r.n) return LS_OK;
    void *at = parallel_cuts(s, LS_SHARD_PARAM) ? s->unit[0].part : ls_at(m->compute, m->unit[0].param, r.first);
    const ls_view x = {at, r.n, m->compute->ops->dtype};
    if (ls_strategy_here(s, 0) && !ls_strategy_here(s, m->n_unit - 1))
        return ls_send(pipe, x, ls_comm_size(pipe) - 1, LS_SITE, NULL);
    if (s->unit[0].role != LS_ROLE_COPY) return LS_OK;
    LS_TRY(ls_recv(pipe, x, 0, LS_SITE, NULL));
    return ls_strategy_unit_done(s, 0);
}

ls_status ls_strategy_step_due(ls_strategy *s)
{
    ls_model *m = s->model;
    if (s->ops->post) LS_TRY(flush(s, 0));
    if (s->off.begun) LS_TRY(parallel_early_look(s, true));
    if (s->ops->post) LS_TRY(ls_wait(s->comm, s->last));
    if (s->ops->step_due) LS_TRY(s->ops->step_due(s));
    s->last = 0;
    s->n_bucket = 0;
    s->waiting = m->n_unit;
    ls_comm_label(s->comm, 0);
    LS_TRY(fold_tied(s));
    return s->off.begun ? parallel_early_tied(s) : LS_OK;
}

ls_status ls_strategy_unit_done(ls_strategy *s, int u)
{
    return s->ops->unit_done ? s->ops->unit_done(s, u) : LS_OK;
}

ls_rounding ls_strategy_rounding(uint64_t seed, int64_t number, int u, int64_t first)
{
    return (ls_rounding){ls_rng_key(seed, LS_RNG_ROUND, (uint64_t)number - 1, (uint64_t)u), first};
}

ls_status ls_strategy_publish(ls_strategy *s, uint64_t seed, int64_t n_update)
{
    ls_compute *c = s->model->compute;
    if (s->ops->common) return s->ops->step_done(s); /* every worker has loaded its part */
    if (!parallel_masters(s)) return LS_OK;
    for (int u = 0; u < s->model->n_unit; u++) {
        const ls_own o = ls_strategy_own(s, u);
        if (!ls_strategy_here(s, u)) continue;
        const ls_gains gains = ls_unit_gains(&s->model->unit[u], o.first, o.n);
        const ls_rounding round = ls_strategy_rounding(seed, n_update, u, o.first);
        if (o.n && ls_compute_mixed(c))
            LS_TRY(c->ops->narrow(c, o.param, o.master, o.n, &gains, n_update ? &round : NULL));
        else if (o.n) LS_TRY(c->ops->copy(c, o.param, o.master, (size_t)o.n * ls_dtype_nbytes(c->ops->dtype)));
        LS_TRY(ls_strategy_unit_done(s, u));
    }
    return ls_strategy_step_done(s);
}

/* Alone: nobody waits for a unit. */
static ls_status update_at_once(ls_strategy *s, ls_hyper_fn *hyper, void *ctx)
{
    ls_compute *c = s->model->compute;
    for (int u = 0; u < s->model->n_unit; u++) {
        const ls_own o = ls_strategy_own(s, u);
        ls_adamw_job *j = &s->many.job[u];
        *j = (ls_adamw_job){.p = o.param, .master = o.master, .g = o.grad, .m = o.m, .v = o.v, .n = o.n};
        hyper(ctx, u, &o, &j->h);
    }
    return c->ops->adamw_many(c, s->many.job, s->model->n_unit);
}

ls_status ls_strategy_update(ls_strategy *s, ls_hyper_fn *hyper, void *ctx)
{
    ls_compute *c = s->model->compute;
    const bool at_once = ls_strategy_alone(s) && !s->opts.offload && c->ops->adamw_many;
    if (s->opts.overlap && s->off.begun) LS_TRY(parallel_early_finish(s));
    else if (s->opts.offload) LS_TRY(parallel_offload_update(s, hyper, ctx));
    if (at_once) LS_TRY(update_at_once(s, hyper, ctx));
    for (int u = 0; u < s->model->n_unit; u++) {
        const ls_own o = ls_strategy_own(s, u);
        ls_adamw h;
        if (!ls_strategy_here(s, u)) continue;
        if (o.n && !s->opts.offload && !at_once) {
            hyper(ctx, u, &o, &h);
            LS_TRY(c->ops->adamw(c, o.param, o.master, o.grad, o.m, o.v, o.n, &h));
        }
        LS_TRY(ls_strategy_unit_done(s, u));
    }
    return LS_OK;
}

ls_status ls_strategy_step_done(ls_strategy *s)
{
    LS_TRY(renew_copy(s));
    if (s->ops->step_done) LS_TRY(s->ops->step_done(s));
    if (s->off.begun) LS_TRY(parallel_early_done(s));
    s->n_bucket = 0;
    ls_comm_label(s->comm, 0);
    return LS_OK;
}

/* ---- who has what ---- */

ls_own ls_strategy_own(const ls_strategy *s, int u)
{
    const ls_model *m = s->model;
    const ls_unit *unit = &m->unit[u];
    const range r = share_of(s, u);
    ls_own o = {.first = r.first, .n = r.n, .m = unit->m, .v = unit->v};
    if (!r.n || !ls_strategy_here(s, u)) return (ls_own){0};
    o.param = parallel_cuts(s, LS_SHARD_PARAM) ? s->unit[u].part : ls_at(m->compute, unit->param, o.first);
    o.grad = ls_gradtree_sum(s->tree, u);
    if (!parallel_cuts(s, LS_SHARD_GRAD)) o.grad = ls_at_wide(m->compute, o.grad, o.first);
    o.master = parallel_masters(s) ? unit->master : o.param;
    return o;
}

/* Elements that every shard of a layer has (norms, biases) are counted by one shard only. */
static ls_status count_once(const ls_strategy *s, double *mine, double *work)
{
    const ls_model *m = s->model;
    for (int u = 0; u < m->n_unit; u++) {
        const ls_own o = ls_strategy_own(s, u);
        if (!o.n) continue;
        LS_TRY(ls_tensor_count_once(m, u, o.grad, o.first, o.n, mine, work));
        mine += o.n / LS_NORM_BLOCK;
    }
    return LS_OK;
}

bool ls_strategy_alone(const ls_strategy *s)
{
    return ls_comm_size(s->comm) == 1 && !s->opts.pipe && !s->opts.tensor;
}

ls_status ls_strategy_decide(ls_strategy *s, ls_decide a)
{
    const ls_model *m = s->model;
    const ls_compute_ops *ops = m->compute->ops;
    double *to = s->norm;
    for (int u = 0; u < m->n_unit; u++) {
        const ls_own o = ls_strategy_own(s, u);
        s->many.grad[u] = o.grad;
        s->many.n[u] = o.n;
        s->many.n_block[u] = o.n / LS_NORM_BLOCK;
    }
    if (ops->sumsq_many) LS_TRY(ops->sumsq_many(m->compute, to, s->many.grad, s->many.n, m->n_unit, LS_NORM_BLOCK));
    for (int u = 0; u < m->n_unit && !ops->sumsq_many; to += s->many.n_block[u++])
        LS_TRY(ops->sumsq(m->compute, to, s->many.grad[u], s->many.n[u], LS_NORM_BLOCK));
    a.out = s->decision;
    a.host = s->decided;
    a.block_sum = s->norm;
    a.n_block = s->many.n_block;
    a.n_unit = m->n_unit;
    return ops->decide(m->compute, &a);
}

/* Worker r's blocks of all units are together, so that one gather brings everyone's. */
ls_status ls_strategy_sum_squares(ls_strategy *s, double *sum)
{
    const ls_model *m = s->model;
    const int64_t W = parallel_cuts(s, LS_SHARD_OPT) ? ls_comm_size(s->comm) : 1, r = W > 1 ? ls_comm_rank(s->comm) : 0;
    int64_t mine = 0, at_unit = 0;
    *sum = 0;
    if (ls_strategy_alone(s)) {
        LS_TRY(ls_strategy_decide(s, (ls_decide){.unscale = 1}));
        LS_TRY(ls_compute_sync(m->compute));
        *sum = s->decided->squares;
        return LS_OK;
    }
    if (!updates(s)) return LS_OK;
    for (int u = 0; u < m->n_unit; u++)
        if (ls_strategy_here(s, u)) mine += m->unit[u].n_pad / LS_NORM_BLOCK / W;
    for (int u = 0; u < m->n_unit; u++) {
        const ls_own o = ls_strategy_own(s, u);
        if (!o.n) continue;
        double *to = s->norm + r * mine + at_unit;
        LS_TRY(m->compute->ops->sumsq(m->compute, to, o.grad, o.n, LS_NORM_BLOCK));
        at_unit += o.n / LS_NORM_BLOCK;
    }
    LS_TRY(ls_compute_sync(m->compute));
    LS_TRY(count_once(s, s->norm + r * mine, s->norm + mine * W));
    if (W > 1)
        LS_TRY(ls_all_gather(s->comm, (ls_view){s->norm, mine * W, LS_F64}, (ls_view){s->norm + r * mine, mine, LS_F64},
                             LS_SITE, NULL));
    const int n_stage = s->opts.pipe ? ls_comm_size(s->opts.pipe) : 1,
              stage = n_stage > 1 ? ls_comm_rank(s->opts.pipe) : 0;
    double *unit = s->unit_sum + (int64_t)stage * m->n_unit;
    at_unit = 0;
    for (int u = 0; u < m->n_unit; u++) {
        unit[u] = 0;
        if (!ls_strategy_here(s, u)) continue;
        const int64_t n = m->unit[u].n_pad / LS_NORM_BLOCK / W;
        double turn[LS_NORM_TURNS] = {0};
        for (int64_t p = 0; p < W; p++) ls_norm_add(turn, p * n, s->norm + p * mine + at_unit, n);
        unit[u] = ls_norm_unit(turn);
        at_unit += n;
    }
    if (s->opts.tensor) LS_TRY(ls_all_reduce(s->opts.tensor, (ls_view){unit, m->n_unit, LS_F64}, LS_SITE, NULL));
    if (n_stage > 1)
        LS_TRY(ls_all_gather(s->opts.pipe, (ls_view){s->unit_sum, (int64_t)n_stage * m->n_unit, LS_F64},
                             (ls_view){unit, m->n_unit, LS_F64}, LS_SITE, NULL));
    for (int u = 0; u < m->n_unit; u++) {
        double one = 0; /* the sum of the stage that has the unit; the other stages contribute 0 */
        for (int k = 0; k < n_stage; k++) one += s->unit_sum[(int64_t)k * m->n_unit + u];
        *sum += one;
    }
    return LS_OK;
}

ls_status ls_strategy_whole(ls_strategy *s, int u, bool gradient, void *scratch, const void **whole)
{
    const ls_own o = ls_strategy_own(s, u);
    const ls_unit *unit = &s->model->unit[u];
    const ls_compute *c = s->model->compute;
    const ls_dtype dt = c->ops->wide;
    const bool cut = parallel_cuts(s, LS_SHARD_OPT);
    const void *mine = gradient ? o.grad : o.master;
    if (!cut && !c->device) {
        *whole = gradient ? o.grad : unit->param;
        return LS_OK;
    }
    void *part = ls_at_wide(c, scratch, o.first);
    LS_TRY(ls_compute_read(c, part, mine, (size_t)o.n * ls_dtype_nbytes(dt)));
    if (cut)
        LS_TRY(ls_all_gather(s->comm, (ls_view){scratch, unit->n_pad, dt}, (ls_view){part, o.n, dt}, LS_SITE, NULL));
    *whole = scratch;
    return LS_OK;
}

/* NULL before the memory is bound. */
static void *at_wide(const ls_compute *c, const void *base, int64_t i)
{
    return base ? ls_at_wide(c, base, i) : NULL;
}

/* Weights: those that the optimizer keeps, which are with the moments, or the parameters themselves. n = 0: none. */
static ls_piece weights_of(const ls_strategy *s, int u, bool save, range share)
{
    const ls_compute *c = s->model->compute;
    const ls_unit *unit = &s->model->unit[u];
    const ls_own o = ls_strategy_own(s, u);
    const bool cut = parallel_cuts(s, LS_SHARD_OPT), mixed = parallel_masters(s);
    if (mixed && !o.n) return (ls_piece){.n = 0};
    if (parallel_cuts(s, LS_SHARD_PARAM) || s->ops->common || (cut && (save || mixed)) ||
        (mixed && (!save || s->ops->master)))
        return (ls_piece){LS_FLAT_PARAM, u, o.first, o.n, o.master};
    if (!save) return (ls_piece){LS_FLAT_PARAM, u, 0, unit->n_pad, unit->param};
    return (ls_piece){LS_FLAT_PARAM, u, share.first, share.n, at_wide(c, mixed ? o.master : unit->param, share.first)};
}

int ls_strategy_pieces(const ls_strategy *s, bool save, ls_piece *piece)
{
    const ls_model *m = s->model;
    const int64_t W = ls_comm_size(s->comm), r = ls_comm_rank(s->comm);
    int n = 0;
    for (int u = 0; u < m->n_unit; u++) {
        const ls_unit *unit = &m->unit[u];
        const ls_own o = ls_strategy_own(s, u);
        if (s->unit[u].role == LS_ROLE_COPY && !save && !parallel_masters(s)) {
            const bool cut = parallel_cuts(s, LS_SHARD_PARAM);
            const range held = cut || s->ops->common ? share_of(s, u) : (range){0, unit->n_pad};
            void *at = cut ? s->unit[u].part : at_wide(m->compute, unit->param, held.first);
            piece[n++] = (ls_piece){LS_FLAT_PARAM, u, held.first, held.n, at};
        }
        if (!ls_strategy_here(s, u)) continue;
        /* replicas are equal: each worker writes its share of them */
        const int64_t first = unit->n_pad * r / W;
        const range share = {first, unit->n_pad * (r + 1) / W - first};
        piece[n] = weights_of(s, u, save, share);
        n += piece[n].n > 0;
        if (!o.n) continue;
        const bool own = parallel_cuts(s, LS_SHARD_OPT) || !save || s->ops->master;
        const range moments = own ? (range){o.first, o.n} : share;
        const int64_t skip = moments.first - o.first;
        piece[n++] = (ls_piece){LS_FLAT_M, u, moments.first, moments.n, at_wide(m->compute, o.m, skip)};
        piece[n++] = (ls_piece){LS_FLAT_V, u, moments.first, moments.n, at_wide(m->compute, o.v, skip)};
    }
    return n;
}

/* ---- single ---- */

const ls_strategy_ops ls_strategy_single = {.name = "single"};
