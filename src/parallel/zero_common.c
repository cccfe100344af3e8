/* zero_common.c - shared by the ZeRO strategies: buckets, gathering after an update, gradients in flight.
 *
 * A bucket of b elements of a unit that is cut into W parts is elements [k, k + b/W) of every part: each worker gets the same share of
 * every bucket, and buckets can be as small as one likes. */
#include "parallel/parallel_impl.h"

#include "core/log.h"

static int64_t step_of(const ls_strategy *s, int64_t bucket)
{
    const int64_t n = bucket / ls_comm_size(s->comm);
    return n > 0 ? n : 1;
}

ls_status parallel_scatter(ls_strategy *s, void *x, int64_t n, void *out)
{
    const int64_t W = ls_comm_size(s->comm), part = n / W, step = step_of(s, s->opts.bucket);
    for (int64_t at = 0; at < part; at += step) {
        const int64_t k = part - at < step ? part - at : step;
        ls_comm_label(s->comm, ++s->n_bucket);
        LS_TRY(ls_reduce_scatter_apart(s->comm, parallel_grad(s, out, at, k), parallel_grad(s, x, at, k * W), part,
                                       LS_SITE, s->ops->common ? NULL : &s->last));
    }
    return LS_OK;
}

static ls_status scatter_in_place(ls_strategy *s, void *x, int64_t n)
{
    const int64_t part = parallel_part(s, n);
    return parallel_scatter(s, x, n, ls_at_wide(s->model->compute, x, part * ls_comm_rank(s->comm)));
}

ls_status parallel_scatter_post(ls_strategy *s, int u)
{
    const ls_unit *unit = &s->model->unit[u];
    LS_TRY(scatter_in_place(s, unit->grad, unit->n_pad));
    if (unit->n_grad == unit->n_pad) return LS_OK;
    return scatter_in_place(s, ls_at_wide(s->model->compute, unit->grad, unit->n_pad), unit->n_grad - unit->n_pad);
}

/* ---- parameters that are whole ---- */

ls_status parallel_gather_post(ls_strategy *s, int u)
{
    const ls_compute *c = s->model->compute;
    const ls_unit *unit = &s->model->unit[u];
    const int64_t W = ls_comm_size(s->comm), part = unit->n_pad / W, step = step_of(s, s->opts.gather_bucket);
    char *mine = ls_at(c, unit->param, part * ls_comm_rank(s->comm));
    for (int64_t at = 0; at < part; at += step) {
        const int64_t k = part - at < step ? part - at : step;
        ls_comm_label(s->comm, ++s->n_bucket);
        LS_TRY(ls_all_gather_apart(s->comm, parallel_param(s, unit->param, at, k * W), part,
                                   parallel_param(s, mine, at, k), LS_SITE, &s->unit[u].gather));
    }
    return LS_OK;
}

ls_status parallel_arrived(ls_strategy *s, int u)
{
    LS_TRY(ls_wait(s->comm, s->unit[u].gather));
    s->unit[u].gather = 0;
    return LS_OK;
}

ls_status parallel_gather_wait(ls_strategy *s, int u, ls_pass pass)
{
    if (pass == LS_FWD && u == s->model->n_unit - 1 && s->model->cfg.tied) LS_TRY(parallel_arrived(s, 0));
    return parallel_arrived(s, u);
}

/* ---- gradients in flight ---- */

int64_t ls_window_take(ls_window *w, int64_t n, bool high)
{
    if (w->n == LS_WINDOW_MAX) return -1;
    for (int i = 0; i <= w->n; i++) { /* gap k is before live[k] */
        const int k = high ? w->n - i : i;
        const int64_t begin = k ? w->live[k - 1].at + w->live[k - 1].n : 0;
        const int64_t end = k < w->n ? w->live[k].at : w->capacity;
        if (end - begin < n) continue;
        for (int j = w->n++; j > k; j--) w->live[j] = w->live[j - 1];
        w->live[k].at = high ? end - n : begin;
        w->live[k].n = n;
        return w->live[k].at;
    }
    return -1;
}

void ls_window_give(ls_window *w, int64_t at)
{
    int k = 0;
    while (k < w->n && w->live[k].at != at) k++;
    LS_ASSERT(k < w->n);
    for (w->n--; k < w->n; k++) w->live[k] = w->live[k + 1];
}

/* Elements that a unit takes in the window: its gradient, and this worker's part of the sum where that is not added at once. */
static int64_t room_of(const ls_strategy *s, int u)
{
    const int64_t n = ls_strategy_here(s, u) ? s->model->unit[u].n_grad : 0;
    return n + (s->opts.n_micro > 1 ? parallel_part(s, n) : 0);
}

/* Two neighbours at least, so that one travels while the next is computed. */
int64_t parallel_flight_capacity(const ls_strategy *s)
{
    int64_t pair = 0, total = 0;
    for (int u = 0; u < s->model->n_unit; u++) {
        const int64_t two = room_of(s, u) + (u ? room_of(s, u - 1) : 0);
        if (two > pair) pair = two;
        total += room_of(s, u);
    }
    const int64_t asked = s->opts.bucket < total ? s->opts.bucket : total;
    return asked > pair ? asked : pair;
}

ls_status parallel_flight_sum(ls_strategy *s, ls_flight *f)
{
    LS_TRY(ls_wait(s->comm, f->ticket));
    LS_TRY(ls_gradtree_add(s->tree, f->unit, f->micro, f->part));
    f->summed = true;
    if (!s->off.begun || f->micro < s->opts.n_micro - 1) return LS_OK;
    return parallel_early_ready(s, f->unit, s->opts.n_micro > 1 ? 0 : f->ticket); /* with several, the tree added */
}

/* The oldest one: waits for its sum, adds this worker's part to the tree, gives the place back. */
static ls_status land(ls_strategy *s)
{
    ls_flight *f = &s->flight[0];
    LS_ASSERT(s->n_flight && f->posted);
    if (!f->summed) LS_TRY(parallel_flight_sum(s, f));
    ls_window_give(&s->grads, f->at);
    for (int i = 1; i < s->n_flight; i++) s->flight[i - 1] = s->flight[i];
    s->n_flight--;
    return LS_OK;
}

static bool in_flight(const ls_strategy *s, int u)
{
    for (int i = 0; i < s->n_flight; i++)
        if (s->flight[i].unit == u) return true;
    return false;
}

ls_status parallel_flight_begin(ls_strategy *s, int u)
{
    const ls_compute *c = s->model->compute;
    int64_t at;
    while (in_flight(s, u)) LS_TRY(land(s)); /* the tree adds a unit's gradients one after the other */
    while ((at = ls_window_take(&s->grads, room_of(s, u), false)) < 0 || s->n_flight == LS_WINDOW_MAX) LS_TRY(land(s));
    ls_unit *unit = &s->model->unit[u];
    unit->grad = ls_at_wide(c, s->grads_at, at);
    void *part = ls_gradtree_place(s->tree, u, s->micro); /* NULL: it carries, so its part waits in the window */
    if (!part) part = ls_at_wide(c, unit->grad, unit->n_grad);
    s->flight[s->n_flight++] = (ls_flight){.unit = u, .micro = s->micro, .at = at, .part = part};
    return LS_OK;
}

ls_status parallel_flight_ready(ls_strategy *s, int u)
{
    const ls_compute *c = s->model->compute;
    const ls_unit *unit = &s->model->unit[u];
    ls_flight *f = &s->flight[s->n_flight - 1];
    LS_ASSERT(s->n_flight && f->unit == u && !f->posted);
    if (u + 1 == s->model->n_unit || !ls_strategy_here(s, u + 1))
        s->n_bucket = 0; /* counted anew in every micro-batch */
    ls_log(LS_LOG_TRACE, "parallel", "buckets of at most %lld elements: unit %d, %lld elements",
           (long long)s->opts.bucket, u, (long long)unit->n_grad);
    LS_TRY(parallel_meet(s, u, unit->grad, unit->n_grad));
    LS_TRY(parallel_scatter(s, unit->grad, unit->n_pad, f->part));
    if (unit->n_grad > unit->n_pad) /* the tied elements come after the unit's own, in the sum, too */
        LS_TRY(parallel_scatter(s, ls_at_wide(c, unit->grad, unit->n_pad), unit->n_grad - unit->n_pad,
                                ls_at_wide(c, f->part, parallel_part(s, unit->n_pad))));
    f->ticket = s->last;
    f->posted = true;
    return ls_gradtree_seals(s->tree) ? parallel_flight_sum(s, f) : LS_OK;
}

ls_status parallel_flight_land_all(ls_strategy *s)
{
    while (s->n_flight) LS_TRY(land(s));
    return LS_OK;
}
