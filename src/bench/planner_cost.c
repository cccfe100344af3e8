/* planner_cost.c - how long a step takes: what a worker does, in its order, with the cluster's seconds.
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
 * A pipeline is simulated with the cost of each part (parallel/simulate.h); what a stage does beside forward and backward (its buckets'
 * waits, its update) is added once, of the stage that takes longest.
 *
 * Not modelled: workers that are unequal, input, checkpoints, validation. */
#include "bench/planner.h"

#include "core/mem.h"
#include "parallel/pipe_exec.h"
#include "parallel/simulate.h"
#include "train/plan_run.h"

#include <math.h>
#include <string.h>

typedef enum way { SINGLE, DP, DDP, ZERO1, ZERO2, ZERO3, N_WAY } way;

static way way_of(const char *strategy)
{
    static const char *const name[N_WAY] = {"single", "dp", "ddp", "zero1", "zero2", "zero3"};
    int k = 0;
    while (k < N_WAY - 1 && strcmp(strategy, name[k])) k++;
    return (way)k;
}

typedef struct flight {
    int unit, micro;
    int64_t n;
    double at; /* arrival */
} flight;

typedef struct worker {
    const ls_cluster *cl;
    const ls_train_config *c;
    const ls_model *m;
    const unsigned char *role; /* NULL: all units are here */
    way way;
    int D; /* replicas */
    bool between;
    ls_cluster_passes pass;
    int threads;                     /* of this worker; 0: as measured with so many workers */
    double fwd[3], bwd[3];           /* seconds by ls_unit_kind */
    double seam_fwd[3], seam_bwd[3]; /* of sums between shards of a layer */
    double now, lane;                /* of the two lanes        */
    double busy;                     /* of the collectives      */
    ls_prediction p;

    double *gather; /* by unit: arrival of its parameters; 0: here      */
    bool *held;     /* zero3: gathered, or on its way                   */
    int waiting;
    int64_t n_waiting, capacity, in_flight;
    double last; /* arrival of the newest gradient bucket            */
    flight flight[LS_WINDOW_MAX];
    int n_flight;
} worker;

static bool here(const worker *w, int u)
{
    return !w->role || w->role[u] == LS_ROLE_HERE;
}

static void spend(worker *w, double sec, double *part)
{
    w->now += sec;
    *part += sec;
}

static void wait(worker *w, double arrival)
{
    if (arrival <= w->now) return;
    w->p.exposed += arrival - w->now;
    w->now = arrival;
}

/* The arrival of a collective over n elements of the whole buffer, posted now. */
static double post(worker *w, ls_coll kind, int64_t n)
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
static void exchange(worker *w, int n_worker, bool between)
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

static void add_leaf(worker *w, int m, int64_t n)
{
    spend(w, sums(m, w->c->grad_accum) * (double)n * w->pass.add, &w->p.backward);
}

static void scatter(worker *w, int64_t n)
{
    const int64_t part = n / w->D, step = w->c->bucket / w->D > 0 ? w->c->bucket / w->D : 1;
    for (int64_t at = 0; at < part; at += step)
        w->last = post(w, LS_COLL_REDUCE_SCATTER, (part - at < step ? part - at : step) * w->D);
}

static void scatter_unit(worker *w, int u)
{
    const ls_unit *unit = &w->m->unit[u];
    scatter(w, unit->n_pad);
    if (unit->n_grad > unit->n_pad) scatter(w, unit->n_grad - unit->n_pad);
}

static void flush(worker *w, int u)
{
    for (int k = w->waiting - 1; k >= u; k--) {
        if (!here(w, k)) continue;
        if (w->way == ZERO1) scatter_unit(w, k);
        else
            for (int64_t at = 0, n = w->m->unit[k].n_grad; at < n; at += w->c->bucket)
                w->last = post(w, LS_COLL_ALL_REDUCE, n - at < w->c->bucket ? n - at : w->c->bucket);
    }
    w->waiting = u;
    w->n_waiting = 0;
}

static void land(worker *w)
{
    const flight f = w->flight[0];
    wait(w, f.at);
    add_leaf(w, f.micro, w->m->unit[f.unit].n_grad / w->D);
    w->in_flight -= f.n;
    memmove(w->flight, w->flight + 1, (size_t)--w->n_flight * sizeof f);
}

static int64_t room_of(const worker *w, int u)
{
    const int64_t n = here(w, u) ? w->m->unit[u].n_grad : 0;
    return n + (w->c->grad_accum > 1 ? n / w->D : 0);
}

static int64_t window(const worker *w)
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

static bool on_its_way(const worker *w, int u)
{
    for (int i = 0; i < w->n_flight; i++)
        if (w->flight[i].unit == u) return true;
    return false;
}

static void grad_begin(worker *w, int u, int m)
{
    if (w->way != ZERO2 && w->way != ZERO3) return;
    const int64_t n = room_of(w, u);
    while (w->n_flight && (on_its_way(w, u) || w->in_flight + n > w->capacity || w->n_flight == LS_WINDOW_MAX)) land(w);
    w->flight[w->n_flight++] = (flight){u, m, n, 0};
    w->in_flight += n;
}

static void grad_ready(worker *w, int u, int m)
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

static int needs(const worker *w, use x, int unit[2])
{
    const bool head = x.u == w->m->n_unit - 1;
    int n = 0;
    if (x.u < 0 || !here(w, x.u) || (x.u == 0 && x.pass != LS_FWD)) return 0;
    unit[n++] = x.u;
    if (head && x.pass == LS_FWD && w->m->cfg.tied) unit[n++] = 0;
    return n;
}

static use after(const worker *w, use x)
{
    const int head = w->m->n_unit - 1;
    if (x.pass == LS_FWD && x.u < head) return (use){x.u + 1, LS_FWD};
    return x.pass == LS_FWD ? (use){head, LS_BWD} : (use){x.u - 1, LS_BWD};
}

static void fetch(worker *w, int u)
{
    if (w->held[u]) return;
    w->held[u] = true;
    w->gather[u] = post(w, LS_COLL_ALL_GATHER, w->m->unit[u].n_pad);
}

static void acquire3(worker *w, use now)
{
    int unit[2], n = needs(w, now, unit);
    for (int i = 0; i < n; i++) fetch(w, unit[i]);
    int64_t ahead = 0;
    for (use x = after(w, now); ahead < w->c->prefetch_bucket && x.u >= 0 && here(w, x.u); x = after(w, x)) {
        int next[2], k = needs(w, x, next);
        for (int i = 0; i < k; i++) {
            fetch(w, next[i]);
            ahead += w->m->unit[next[i]].n_pad;
        }
    }
    for (int i = 0; i < n; i++) wait(w, w->gather[unit[i]]);
}

static void acquire(worker *w, int u, ls_pass pass)
{
    const int head = w->m->n_unit - 1;
    if (w->way == ZERO1 || w->way == ZERO2) {
        if (pass == LS_FWD && u == head && w->m->cfg.tied) wait(w, w->gather[0]);
        wait(w, w->gather[u]);
    }
    if (w->way == ZERO3) acquire3(w, (use){u, pass});
}

static void release(worker *w, int u, ls_pass pass)
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
static void seam(worker *w, double sec)
{
    w->busy += sec;
    wait(w, w->now + sec);
}

static void micro_batch(worker *w, int m)
{
    const int U = w->m->n_unit;
    for (int u = 0; u < U; u++) {
        if (!here(w, u)) continue;
        acquire(w, u, LS_FWD);
        if (u == U - 1) grad_begin(w, u, m);
        spend(w, w->fwd[w->m->unit[u].kind], &w->p.forward);
        seam(w, w->seam_fwd[w->m->unit[u].kind]);
        release(w, u, LS_FWD);
    }
    for (int u = U - 1; u >= 0; u--) {
        if (!here(w, u)) continue;
        acquire(w, u, LS_BWD);
        if (u < U - 1) grad_begin(w, u, m);
        spend(w, w->bwd[w->m->unit[u].kind], &w->p.backward);
        seam(w, w->seam_bwd[w->m->unit[u].kind]);
        grad_ready(w, u, m);
        release(w, u, LS_BWD);
    }
}

/* Elements of unit u that this worker (rank 0 of its group) updates. */
static int64_t share(const worker *w, int u)
{
    return here(w, u) ? w->m->unit[u].n_pad / (w->way >= ZERO1 ? w->D : 1) : 0;
}

static void sum_gradients(worker *w)
{
    const int U = w->m->n_unit;
    if (w->way == DDP || w->way == ZERO1) {
        flush(w, 0);
        wait(w, w->last);
    }
    for (int u = U - 1; u >= 0 && w->way == DP; u--)
        if (here(w, u)) wait(w, post(w, LS_COLL_REDUCE, w->m->unit[u].n_grad));
    while (w->n_flight) land(w);
    w->waiting = U;
    w->last = 0;
}

/* The tied embedding's two gradients become one; in a pipeline they lie on two stages. */
static void fold_tied(worker *w, bool between)
{
    const int64_t n = w->m->unit[0].n_pad / (w->way >= ZERO1 ? w->D : 1);
    const bool embed = here(w, 0), head = here(w, w->m->n_unit - 1);
    if (!w->m->cfg.tied || (!embed && !head)) return;
    if (embed != head) {
        const double sec = ls_cluster_collective(w->cl, LS_COLL_SEND, 2, (double)n * w->cl->wire_bytes, between);
        wait(w, w->now + 2 * sec); /* the gradient, and the new parameters back */
        w->busy += 2 * sec;
    }
    if (embed) spend(w, (double)n * w->pass.add, &w->p.optimizer);
}

static void update(worker *w)
{
    const int U = w->m->n_unit;
    for (int u = 0; u < U; u++) spend(w, (double)share(w, u) * w->pass.sumsq, &w->p.optimizer);
    if (w->way >= ZERO1) exchange(w, w->D, w->between);
    for (int u = 0; u < U; u++) {
        if (!here(w, u)) continue;
        spend(w, (double)share(w, u) * (w->way == DP ? w->pass.alone : w->pass.adamw), &w->p.optimizer);
        const int64_t part = w->m->unit[u].n_pad / w->D,
                      step = w->c->gather_bucket / w->D > 0 ? w->c->gather_bucket / w->D : 1;
        for (int64_t at = 0; at < part && (w->way == ZERO1 || w->way == ZERO2); at += step)
            w->gather[u] = post(w, LS_COLL_ALL_GATHER, (part - at < step ? part - at : step) * w->D);
    }
    for (int u = 0; u < U; u++) {
        if (w->way == DP && here(w, u)) wait(w, post(w, LS_COLL_BROADCAST, w->m->unit[u].n_pad));
        if (w->way == ZERO3) w->held[u] = false;
    }
}

static void step(worker *w)
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

/* One step of a worker whose unit's kinds have these seconds, after one before it. */
static ls_status walk(worker *w)
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

/* Of a unit whose layers are split: norms, residuals and dropout that every shard does for all rows, in passes like a sum's. */
static double uncut(const worker *w, ls_unit_time k)
{
    const double n = (double)w->c->micro_batch * w->c->seq_len * w->c->model.n_embd;
    const int rows = w->c->sequence_parallel ? w->c->mesh.n[LS_AXIS_TP] : 1;
    const double passes = k == LS_TIME_BLOCK_FWD                            ? 16
                          : k == LS_TIME_BLOCK_BWD || k == LS_TIME_BLOCK_IN ? 24
                          : k == LS_TIME_HEAD_BWD                           ? 8
                                                                            : 0;
    return passes * n / rows * w->pass.add;
}

/* A worker has `threads` cores: between what was measured with more and with fewer, speed grows with them in a straight line. */
static double unit_sec(const worker *w, ls_unit_time k)
{
    const ls_cluster *cl = w->cl;
    const ls_train_config *c = w->c;
    const int world = c->mesh.world < cl->devices ? c->mesh.world : cl->devices, T = c->mesh.n[LS_AXIS_TP];
    const double whole = ls_cluster_unit(cl, world, &c->model, c->micro_batch, c->seq_len, k),
                 sec = whole / T + (1 - 1.0 / T) * fmin(whole, uncut(w, k));
    const double even = (double)cl->devices / world;
    if (!w->threads || w->threads == even) return sec;
    const double other = w->threads > even ? even * 2 : even / 2; /* cores of the next measured one */
    const double speed = 1 / sec,
                 far = T / ls_cluster_unit(cl, (int)(cl->devices / other), &c->model, c->micro_batch, c->seq_len, k);
    const double at = speed + (far - speed) * (w->threads - even) / (other - even);
    return at > 0.1 * speed ? 1 / at : sec * even / w->threads;
}

static void unit_times(worker *w)
{
    const ls_train_config *c = w->c;
    const int T = c->mesh.n[LS_AXIS_TP];
    w->fwd[LS_UNIT_EMBED] = unit_sec(w, LS_TIME_EMBED_FWD);
    w->bwd[LS_UNIT_EMBED] = unit_sec(w, LS_TIME_EMBED_BWD);
    w->fwd[LS_UNIT_BLOCK] = unit_sec(w, LS_TIME_BLOCK_FWD);
    w->bwd[LS_UNIT_BLOCK] = unit_sec(w, LS_TIME_BLOCK_BWD) + (c->recompute ? w->fwd[LS_UNIT_BLOCK] : 0);
    w->fwd[LS_UNIT_HEAD] = unit_sec(w, LS_TIME_HEAD_FWD);
    w->bwd[LS_UNIT_HEAD] = unit_sec(w, LS_TIME_HEAD_BWD);
    if (T == 1) return;
    /* parallel/tensor.h: 4L + 2 sums of (R,C) a micro-batch, by rows a scatter and a gather each and 2L gathers more */
    const double bytes = (double)c->micro_batch * c->seq_len * c->model.n_embd * w->cl->wire_bytes;
    const bool far = T > w->cl->devices;
    const double scatter_sec = ls_cluster_collective(w->cl, LS_COLL_REDUCE_SCATTER, T, bytes, far),
                 gather_sec = ls_cluster_collective(w->cl, LS_COLL_ALL_GATHER, T, bytes, far),
                 sum_sec = ls_cluster_collective(w->cl, LS_COLL_ALL_REDUCE, T, bytes, far),
                 one = c->sequence_parallel ? scatter_sec + gather_sec : sum_sec,
                 again = c->sequence_parallel ? 2 * gather_sec : 0;
    w->seam_fwd[LS_UNIT_EMBED] = one;
    w->seam_fwd[LS_UNIT_BLOCK] = 2 * one;
    w->seam_bwd[LS_UNIT_BLOCK] = 2 * one + again + (c->recompute ? 2 * one : 0);
    w->seam_fwd[LS_UNIT_HEAD] =
        one + ls_cluster_collective(w->cl, LS_COLL_ALL_GATHER, T, 24.0 * c->micro_batch * c->seq_len * T, far);
}

/* ---- pipelines ---- */

/* What the executor does: head's forward belongs to the backward of its part (parallel/pipe_exec.h). */
static ls_part_cost part_cost(const worker *w, int first, int last, bool split)
{
    ls_part_cost k = {.act = 1};
    double n = 0;
    for (int u = first; u < last; u++) {
        const ls_unit_kind kind = w->m->unit[u].kind;
        n += (double)w->m->unit[u].n_grad;
        if (kind == LS_UNIT_HEAD) {
            k.bwd_in += w->fwd[kind] + w->bwd[kind] + w->seam_fwd[kind];
            continue;
        }
        k.fwd += w->fwd[kind] + w->seam_fwd[kind];
        k.bwd_in += w->seam_bwd[kind];
        if (kind == LS_UNIT_BLOCK && split) {
            k.bwd_in += unit_sec(w, LS_TIME_BLOCK_IN);
            k.bwd_w += unit_sec(w, LS_TIME_BLOCK_W);
        } else k.bwd_w += w->bwd[kind];
    }
    const double M = w->c->grad_accum; /* M - 1 sums in all */
    k.bwd_w += n / (w->way >= ZERO2 ? w->D : 1) * w->pass.add * (M - 1) / M;
    return k;
}

static double seams(const worker *w)
{
    double sum = 0;
    for (int u = 0; u < w->m->n_unit; u++)
        if (here(w, u)) sum += w->seam_fwd[w->m->unit[u].kind] + w->seam_bwd[w->m->unit[u].kind];
    return sum * w->c->grad_accum;
}

static ls_status pipeline(worker *w, const ls_schedule *s, const ls_stages *cut, ls_prediction *out)
{
    const int P = s->n_stage, n_part = P * s->n_chunk, U = w->m->n_unit;
    const double bytes = (double)w->c->micro_batch * w->c->seq_len * w->c->model.n_embd * w->cl->wire_bytes;
    ls_part_cost *part = ls_alloc((size_t)n_part * sizeof *part);
    unsigned char *role = ls_alloc((size_t)U);
    ls_status st = part && role ? LS_OK : ls_nomem((size_t)U * 16, "the prediction of a pipeline");
    bool split = false;
    for (int i = 0; i < s->rank[0].n_action; i++) split = split || s->rank[0].action[i].kind == LS_PIPE_BWD_W;
    double most = 0;
    for (int k = 0; k < P && st == LS_OK; k++) {
        worker one = *w;
        one.threads = w->c->stage_thread[0] ? w->c->stage_thread[k] : 0;
        unit_times(&one);
        for (int g = k; g < n_part; g += P) part[g] = part_cost(&one, cut->first[g], cut->first[g + 1], split);
        ls_pipe_roles(cut, w->c->model.tied, k, role);
        one.role = role;
        st = walk(&one);
        /* sums between shards are in the parts' costs already */
        const double rest = one.p.step - one.p.forward - one.p.backward - seams(&one);
        if (st == LS_OK && k == 0) *out = one.p;
        most = fmax(most, rest);
    }
    ls_sim sim;
    const ls_pipe_costs costs = {.part = part,
                                 .transfer = ls_cluster_collective(w->cl, LS_COLL_SEND, 2, bytes, P > w->cl->devices)};
    if (st == LS_OK) st = ls_simulate(&sim, s, &costs, 0);
    if (st == LS_OK) {
        out->step = sim.makespan + most;
        out->bubble = sim.bubble;
        out->forward = out->backward = 0;
        for (int g = 0; g < n_part; g += P) {
            out->forward += part[g].fwd * s->n_micro;
            out->backward += (part[g].bwd_in + part[g].bwd_w) * s->n_micro;
        }
        out->exposed = fmax(0, out->step - out->forward - out->backward - out->optimizer - out->other);
        ls_sim_fini(&sim);
    }
    ls_free(part);
    ls_free(role);
    return st;
}

ls_status ls_planner_predict(const ls_cluster *cl, const ls_train_config *c, ls_prediction *out)
{
    const int D = c->mesh.n[LS_AXIS_DP], world = c->mesh.world;
    ls_compute compute;
    ls_model *m = NULL;
    ls_stages cut;
    ls_schedule *s = NULL;
    LS_TRY(ls_compute_open(&compute, c->compute, LS_F32, 1));
    LS_TRY(ls_model_create_shard(&m, &c->model, &compute, ls_strategy_pad(c->strategy, D),
                                 (ls_shard){.size = c->mesh.n[LS_AXIS_TP], .rows = c->sequence_parallel}));
    worker w = {.cl = cl,
                .c = c,
                .m = m,
                .way = way_of(c->strategy),
                .D = D,
                .between = world > cl->devices && D > 1,
                .pass = ls_cluster_pass(cl, world < cl->devices ? world : cl->devices)};
    unit_times(&w);
    ls_status st = ls_run_stages(c, NULL, &cut, &s);
    if (st == LS_OK && s) st = pipeline(&w, s, &cut, out);
    else if (st == LS_OK) st = walk(&w);
    if (st == LS_OK && !s) *out = w.p;
    if (st == LS_OK) out->tokens_per_sec = (double)(c->global_batch * c->seq_len) / out->step;
    ls_schedule_destroy(&s);
    ls_model_destroy(&m);
    return st;
}
