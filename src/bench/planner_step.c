/* planner_step.c - how long a step takes: what a worker does, in its order, with the cluster's seconds.
 *
 *   computing    |F0 F1 … Fh|Bh …        B1 B0|        |norm, update|          one lane: units, sums of gradients, passes over memory
 *   collectives        |bucket| |bucket|   |bucket|                  |gather   another: one at a time, in the order of posts
 *                                             waits ►|  exposed
 *
 * Posts and waits stand where the strategies' files have them: units go into buckets as ddp.c and zero1.c say, gradients in flight are
 * waited for when their window is full (shard.c), units are gathered ahead of use (zero3.c). Two steps are walked and the second one
 * counts, as gathers of parameters reach into the next step.
 *
 * Hiding has a price: a hidden collective takes (1 - overlap) of its time from computing. On CPU cores that is most of it.
 *
 * Not modelled: workers that are unequal, input, checkpoints, validation. */
#include "bench/planner_impl.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

static void spend(planner_worker *w, double sec, double *part)
{
    w->now += sec;
    *part += sec;
}

static void wait(planner_worker *w, double arrival)
{
    if (arrival <= w->now) return;
    w->p.exposed += arrival - w->now;
    w->now = arrival;
}

/* The arrival of a collective over n elements of the whole buffer, posted now. */
static double post(planner_worker *w, ls_coll kind, int64_t n)
{
    if (w->D < 2) return 0;
    const double sec = ls_cluster_collective(w->cl, kind, w->D, (double)n * w->cl->wire_bytes, w->between);
    w->lane = fmax(w->lane, w->now) + sec;
    w->busy += sec;
    w->p.calls[kind]++;
    w->p.elements[kind] += n;
    return w->lane;
}

/* A few numbers that everyone waits for. */
static void exchange(planner_worker *w, int n_worker, bool between)
{
    const double sec = ls_cluster_collective(w->cl, LS_COLL_ALL_GATHER, n_worker, 64.0 * n_worker, between);
    w->busy += sec;
    wait(w, w->now + sec);
}

/* ---- gradients ---- */

/* Sums of the tree that leaf m of M makes (parallel/gradtree.h). */
static int sums(int m, int M)
{
    int n = 0;
    if (m == M - 1) {
        for (int k = m; k; k >>= 1) n += k & 1;
        return n;
    }
    for (int k = m; k & 1; k >>= 1) n++;
    return n;
}

static void add_leaf(planner_worker *w, int m, int64_t n)
{
    spend(w, sums(m, w->c->grad_accum) * (double)n * w->pass.add, &w->p.backward);
}

static void scatter(planner_worker *w, int64_t n)
{
    const int64_t part = n / w->D, step = w->c->bucket / w->D > 0 ? w->c->bucket / w->D : 1;
    for (int64_t at = 0; at < part; at += step)
        w->last = post(w, LS_COLL_REDUCE_SCATTER, (part - at < step ? part - at : step) * w->D);
}

static void scatter_unit(planner_worker *w, int u)
{
    const ls_unit *unit = &w->m->unit[u];
    scatter(w, unit->n_pad);
    if (unit->n_grad > unit->n_pad) scatter(w, unit->n_grad - unit->n_pad);
}

static void flush(planner_worker *w, int u)
{
    for (int k = w->waiting - 1; k >= u; k--) {
        if (!planner_here(w, k)) continue;
        if (w->way == ZERO1) scatter_unit(w, k);
        else
            for (int64_t at = 0, n = w->m->unit[k].n_grad; at < n; at += w->c->bucket)
                w->last = post(w, LS_COLL_ALL_REDUCE, n - at < w->c->bucket ? n - at : w->c->bucket);
    }
    w->waiting = u;
    w->n_waiting = 0;
}

static void land(planner_worker *w)
{
    const planner_flight f = w->flight[0];
    wait(w, f.at);
    add_leaf(w, f.micro, w->m->unit[f.unit].n_grad / w->D);
    w->in_flight -= f.n;
    memmove(w->flight, w->flight + 1, (size_t)--w->n_flight * sizeof f);
}

static int64_t room_of(const planner_worker *w, int u)
{
    const int64_t n = planner_here(w, u) ? w->m->unit[u].n_grad : 0;
    return n + (w->c->grad_accum > 1 ? n / w->D : 0);
}

static int64_t window(const planner_worker *w)
{
    int64_t pair = 0, total = 0;
    for (int u = 0; u < w->m->n_unit; u++) {
        const int64_t two = room_of(w, u) + (u ? room_of(w, u - 1) : 0);
        pair = two > pair ? two : pair;
        total += room_of(w, u);
    }
    const int64_t asked = w->c->bucket < total ? w->c->bucket : total;
    return asked > pair ? asked : pair;
}

static bool on_its_way(const planner_worker *w, int u)
{
    for (int i = 0; i < w->n_flight; i++)
        if (w->flight[i].unit == u) return true;
    return false;
}

static void grad_begin(planner_worker *w, int u, int m)
{
    if (w->way != ZERO2 && w->way != ZERO3) return;
    const int64_t n = room_of(w, u);
    while (w->n_flight && (on_its_way(w, u) || w->in_flight + n > w->capacity || w->n_flight == LS_WINDOW_MAX)) land(w);
    w->flight[w->n_flight++] = (planner_flight){u, m, n, 0};
    w->in_flight += n;
}

static void grad_ready(planner_worker *w, int u, int m)
{
    if (w->way == ZERO2 || w->way == ZERO3) {
        scatter_unit(w, u);
        for (int i = 0; i < w->n_flight; i++)
            if (w->flight[i].unit == u) w->flight[i].at = w->D > 1 ? w->last : 0;
        return;
    }
    add_leaf(w, m, w->m->unit[u].n_grad);
    if (m < w->c->grad_accum - 1 || (w->way != DDP && w->way != ZERO1)) return;
    w->n_waiting += w->m->unit[u].n_grad;
    if (w->n_waiting >= w->c->bucket) flush(w, u);
}

/* ---- parameters ---- */

typedef struct use {
    int u;
    ls_pass pass;
} use;

static int needs(const planner_worker *w, use x, int unit[2])
{
    const bool head = x.u == w->m->n_unit - 1;
    int n = 0;
    if (x.u < 0 || !planner_here(w, x.u) || (x.u == 0 && x.pass != LS_FWD)) return 0;
    unit[n++] = x.u;
    if (head && x.pass == LS_FWD && w->m->cfg.tied) unit[n++] = 0;
    return n;
}

static use after(const planner_worker *w, use x)
{
    const int head = w->m->n_unit - 1;
    if (x.pass == LS_FWD && x.u < head) return (use){x.u + 1, LS_FWD};
    return x.pass == LS_FWD ? (use){head, LS_BWD} : (use){x.u - 1, LS_BWD};
}

static void fetch(planner_worker *w, int u)
{
    if (w->held[u]) return;
    w->held[u] = true;
    w->gather[u] = post(w, LS_COLL_ALL_GATHER, w->m->unit[u].n_pad);
}

static void acquire3(planner_worker *w, use now)
{
    int unit[2], n = needs(w, now, unit);
    for (int i = 0; i < n; i++) fetch(w, unit[i]);
    int64_t ahead = 0;
    for (use x = after(w, now); ahead < w->c->prefetch_bucket && x.u >= 0 && planner_here(w, x.u); x = after(w, x)) {
        int next[2], k = needs(w, x, next);
        for (int i = 0; i < k; i++) {
            fetch(w, next[i]);
            ahead += w->m->unit[next[i]].n_pad;
        }
    }
    for (int i = 0; i < n; i++) wait(w, w->gather[unit[i]]);
}

static void acquire(planner_worker *w, int u, ls_pass pass)
{
    const int head = w->m->n_unit - 1;
    if (w->way == ZERO1 || w->way == ZERO2) {
        if (pass == LS_FWD && u == head && w->m->cfg.tied) wait(w, w->gather[0]);
        wait(w, w->gather[u]);
    }
    if (w->way == ZERO3) acquire3(w, (use){u, pass});
}

static void release(planner_worker *w, int u, ls_pass pass)
{
    int unit[2], next[2];
    const use now = {u, pass}, then = after(w, now);
    if (w->way != ZERO3) return;
    const int n = needs(w, now, unit), k = needs(w, then, next);
    for (int i = 0; i < n; i++) {
        bool stays = false;
        for (int j = 0; j < k; j++) stays = stays || next[j] == unit[i];
        if (!stays) w->held[unit[i]] = false;
    }
}

/* ---- a step ---- */

/* Shards of a layer wait for each other's sums. */
static void seam(planner_worker *w, double sec)
{
    w->busy += sec;
    wait(w, w->now + sec);
}

static void micro_batch(planner_worker *w, int m)
{
    const int U = w->m->n_unit;
    for (int u = 0; u < U; u++) {
        if (!planner_here(w, u)) continue;
        acquire(w, u, LS_FWD);
        if (u == U - 1) grad_begin(w, u, m);
        spend(w, w->fwd[w->m->unit[u].kind], &w->p.forward);
        seam(w, w->seam_fwd[w->m->unit[u].kind]);
        release(w, u, LS_FWD);
    }
    for (int u = U - 1; u >= 0; u--) {
        if (!planner_here(w, u)) continue;
        acquire(w, u, LS_BWD);
        if (u < U - 1) grad_begin(w, u, m);
        spend(w, w->bwd[w->m->unit[u].kind], &w->p.backward);
        seam(w, w->seam_bwd[w->m->unit[u].kind]);
        grad_ready(w, u, m);
        release(w, u, LS_BWD);
    }
}

/* Elements of unit u that this worker (rank 0 of its group) updates. */
static int64_t share(const planner_worker *w, int u)
{
    return planner_here(w, u) ? w->m->unit[u].n_pad / (w->way >= ZERO1 ? w->D : 1) : 0;
}

static void sum_gradients(planner_worker *w)
{
    const int U = w->m->n_unit;
    if (w->way == DDP || w->way == ZERO1) {
        flush(w, 0);
        wait(w, w->last);
    }
    for (int u = U - 1; u >= 0 && w->way == DP; u--)
        if (planner_here(w, u)) wait(w, post(w, LS_COLL_REDUCE, w->m->unit[u].n_grad));
    while (w->n_flight) land(w);
    w->waiting = U;
    w->last = 0;
}

/* The tied embedding's two gradients become one; in a pipeline they lie on two stages. */
static void fold_tied(planner_worker *w, bool between)
{
    const int64_t n = w->m->unit[0].n_pad / (w->way >= ZERO1 ? w->D : 1);
    const bool embed = planner_here(w, 0), head = planner_here(w, w->m->n_unit - 1);
    if (!w->m->cfg.tied || (!embed && !head)) return;
    if (embed != head) {
        const double sec = ls_cluster_collective(w->cl, LS_COLL_SEND, 2, (double)n * w->cl->wire_bytes, between);
        wait(w, w->now + 2 * sec); /* the gradient, and the new parameters back */
        w->busy += 2 * sec;
    }
    if (embed) spend(w, (double)n * w->pass.add, &w->p.optimizer);
}

static void update(planner_worker *w)
{
    const int U = w->m->n_unit;
    for (int u = 0; u < U; u++) spend(w, (double)share(w, u) * w->pass.sumsq, &w->p.optimizer);
    if (w->way >= ZERO1) exchange(w, w->D, w->between);
    for (int u = 0; u < U; u++) {
        if (!planner_here(w, u)) continue;
        spend(w, (double)share(w, u) * (w->way == DP ? w->pass.alone : w->pass.adamw), &w->p.optimizer);
        const int64_t part = w->m->unit[u].n_pad / w->D,
                      step = w->c->gather_bucket / w->D > 0 ? w->c->gather_bucket / w->D : 1;
        for (int64_t at = 0; at < part && (w->way == ZERO1 || w->way == ZERO2); at += step)
            w->gather[u] = post(w, LS_COLL_ALL_GATHER, (part - at < step ? part - at : step) * w->D);
    }
    for (int u = 0; u < U; u++) {
        if (w->way == DP && planner_here(w, u)) wait(w, post(w, LS_COLL_BROADCAST, w->m->unit[u].n_pad));
        if (w->way == ZERO3) w->held[u] = false;
    }
}

static void step(planner_worker *w)
{
    const int P = w->c->mesh.n[LS_AXIS_PP], world = w->c->mesh.world, T = w->c->mesh.n[LS_AXIS_TP];
    const bool far = world > w->cl->devices;
    exchange(w, world, far); /* whether to stop */
    for (int m = 0; m < w->c->grad_accum; m++) micro_batch(w, m);
    exchange(w, w->D, w->between); /* losses */
    if (P > 1) exchange(w, P, P > w->cl->devices);
    sum_gradients(w);
    fold_tied(w, P > w->cl->devices);
    if (P > 1) exchange(w, P, P > w->cl->devices);
    if (T > 1) exchange(w, T, T > w->cl->devices); /* the norm */
    update(w);
    spend(w, w->pass.step, &w->p.other);
}

ls_status planner_walk(planner_worker *w)
{
    const size_t U = (size_t)w->m->n_unit;
    w->gather = ls_alloc(U * sizeof *w->gather);
    w->held = ls_alloc(U * sizeof *w->held);
    ls_status st = w->gather && w->held ? LS_OK : ls_nomem(U * 16, "the prediction of a step");
    if (st == LS_OK) {
        w->waiting = w->m->n_unit;
        w->capacity = window(w);
        step(w);
        const double begin = w->now;
        w->p = (ls_prediction){0};
        w->busy = 0;
        step(w);
        const double hidden = fmax(0, w->busy - w->p.exposed), price = (1 - w->pass.overlap) * hidden;
        w->p.comm = w->busy;
        w->p.backward += price;
        w->p.step = w->now - begin + price;
    }
    ls_free(w->gather);
    ls_free(w->held);
    return st;
}
