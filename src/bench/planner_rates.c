/* planner_rates.c - what a cluster's numbers mean: seconds of a unit, of a pass over memory, of a collective.
 *
 *   unit        measured: of the shape nearest to the one asked for, scaled by its work; between two measured numbers of rows a straight
 *               line (what does not grow with rows, such as embed's gradient, is in its foot). Rates: work / matmul + bytes / bandwidth
 *   pass        measured with as many workers at work, as they share the memory's bandwidth
 *   collective  measured curve, straight lines between its points; or latency and bus bandwidth */
#include "bench/cluster_file.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef struct shape {
    double C, V, R, T;
} shape;

static double work_of(shape s, ls_unit_time kind)
{
    const double linear = 24 * s.C * s.C * s.R, attention = 2 * s.C * s.R * s.T; /* causal: half of T x T */
    switch (kind) {
    case LS_TIME_EMBED_FWD: return s.C * s.R;
    case LS_TIME_EMBED_BWD: return s.C * (s.V + s.R);
    case LS_TIME_BLOCK_FWD: return linear + attention;
    case LS_TIME_BLOCK_BWD: return 2 * linear + 2.5 * attention; /* scores are made again */
    case LS_TIME_BLOCK_IN: return linear + 2.5 * attention;
    case LS_TIME_BLOCK_W: return linear;
    case LS_TIME_HEAD_FWD: return 6 * s.V * s.C * s.R; /* with the classifier's backward */
    default: return 10 * s.C * s.R;
    }
}

double ls_unit_work(const ls_model_config *m, int64_t B, int64_t T, ls_unit_time kind)
{
    return work_of((shape){m->n_embd, m->vocab_size, (double)(B * T), (double)T}, kind);
}

/* Elements that a pass reads and writes beside its products: norms, GELU, residuals, attention's rows. */
static double touched(shape s, ls_unit_time kind)
{
    switch (kind) {
    case LS_TIME_BLOCK_FWD: return 34 * s.C * s.R;
    case LS_TIME_BLOCK_BWD: return 60 * s.C * s.R;
    case LS_TIME_BLOCK_IN: return 40 * s.C * s.R;
    case LS_TIME_BLOCK_W: return 20 * s.C * s.R;
    case LS_TIME_HEAD_FWD: return 3 * s.V * s.R;
    default: return work_of(s, kind);
    }
}

static bool is_product(ls_unit_time kind)
{
    return kind >= LS_TIME_BLOCK_FWD && kind <= LS_TIME_HEAD_FWD;
}

static double by_rates(const ls_cluster *c, shape s, ls_unit_time kind)
{
    return (is_product(kind) ? work_of(s, kind) / c->matmul : 0) + touched(s, kind) * c->wire_bytes / c->bandwidth +
           c->unit_overhead;
}

static double far(double a, double b)
{
    return fabs(log2(a / b));
}

static shape shape_of(const ls_cluster_units *u)
{
    return (shape){u->n_embd, u->vocab, (double)(u->B * u->T), (double)u->T};
}

/* How unlike a measurement is, rows aside. */
static double unlike(const ls_cluster_units *u, int workers, const ls_model_config *m, double T)
{
    return 100 * far(u->workers, workers) + far(u->n_embd, m->n_embd) + far(u->vocab, m->vocab_size) +
           0.5 * far((double)u->T, T) + 0.5 * (u->dropout != (m->attn_pdrop > 0));
}

/* Of a shard of tp; below 0 where nothing was measured. */
static double measured(const ls_cluster *c, int workers, int tp, const ls_model_config *m, shape want,
                       ls_unit_time kind)
{
    double least = DBL_MAX, below_r = -1, above_r = DBL_MAX, below = 0, above = 0;
    for (int i = 0; i < c->n_units; i++)
        if (c->units[i].tp == tp) least = fmin(least, unlike(&c->units[i], workers, m, want.T));
    if (least == DBL_MAX) return -1;
    for (int i = 0; i < c->n_units; i++) {
        const ls_cluster_units *u = &c->units[i];
        if (u->tp != tp || unlike(u, workers, m, want.T) > least + 1e-9) continue;
        const shape had = shape_of(u), here = {want.C, want.V, had.R, want.T};
        const double sec = u->sec[kind] * work_of(here, kind) / work_of(had, kind);
        if (had.R <= want.R && had.R > below_r) below_r = had.R, below = sec;
        if (had.R >= want.R && had.R < above_r) above_r = had.R, above = sec;
    }
    const bool is_below = below_r >= 0, is_above = above_r < DBL_MAX;
    if (is_below && is_above)
        return above_r > below_r ? below + (above - below) * (want.R - below_r) / (above_r - below_r) : below;
    const shape edge = {want.C, want.V, is_below ? below_r : above_r, want.T};
    return (is_below ? below : above) * work_of(want, kind) / work_of(edge, kind);
}

double ls_cluster_unit(const ls_cluster *c, int workers, const ls_model_config *m, int64_t B, int64_t T,
                       ls_unit_time kind)
{
    const shape want = {m->n_embd, m->vocab_size, (double)(B * T), (double)T};
    const double sec = measured(c, workers, 1, m, want, kind);
    return sec >= 0 ? sec : by_rates(c, want, kind);
}

double ls_cluster_shard(const ls_cluster *c, int workers, int tp, const ls_model_config *m, int64_t B, int64_t T,
                        ls_unit_time kind)
{
    return measured(c, workers, tp, m, (shape){m->n_embd, m->vocab_size, (double)(B * T), (double)T}, kind);
}

ls_cluster_passes ls_cluster_pass(const ls_cluster *c, int workers)
{
    if (!c->n_passes)
        return (ls_cluster_passes){.workers = workers,
                                   .adamw = c->update_bytes / c->bandwidth,
                                   .alone = c->update_bytes / c->bandwidth,
                                   .sumsq = c->wire_bytes / c->bandwidth,
                                   .add = 3 * c->wire_bytes / c->bandwidth,
                                   .overlap = c->overlap,
                                   .apart = 1,
                                   .beside = 1};
    int best = 0;
    for (int i = 1; i < c->n_passes; i++)
        if (far(c->passes[i].workers, workers) < far(c->passes[best].workers, workers)) best = i;
    return c->passes[best];
}

/* ---- who is where ---- */

ls_crowd ls_cluster_crowd(const ls_cluster *c, int world)
{
    const int64_t all = (int64_t)c->hosts * c->devices;
    ls_crowd k = {.on_host = world < c->devices ? world : c->devices, .slower = 1};
    if (c->cpu && world > all) k.on_host = (world + c->hosts - 1) / c->hosts;
    k.timed = k.on_host < c->devices ? k.on_host : c->devices;
    for (int i = 0; i < c->n_units; i++) /* also with more workers than cores, where it was measured so */
        if (c->units[i].workers > k.timed && c->units[i].workers <= k.on_host) k.timed = c->units[i].workers;
    k.slower = (double)k.on_host / k.timed;
    return k;
}

static bool has_curve(const ls_cluster *c, ls_coll kind)
{
    for (int i = 0; i < c->n_curve; i++)
        if (c->curve[i].kind == kind) return true;
    return false;
}

ls_status ls_cluster_check_links(const ls_cluster *c, int world)
{
    static const ls_coll used[] = {LS_COLL_ALL_REDUCE, LS_COLL_REDUCE_SCATTER, LS_COLL_ALL_GATHER,
                                   LS_COLL_BROADCAST,  LS_COLL_REDUCE,         LS_COLL_SEND};
    const int on_host = ls_cluster_crowd(c, world).on_host;
    if (world > on_host && c->between.bandwidth <= 0)
        return ls_fail(LS_E_FORMAT,
                       "cluster %s: %d workers need %d hosts of %d, and link_between_hosts is missing or has no "
                       "bandwidth: how long do messages between hosts take?",
                       c->name, world, (world + on_host - 1) / on_host, on_host);
    for (size_t i = 0; i < sizeof used / sizeof used[0] && on_host > 1 && c->inside.bandwidth <= 0; i++)
        if (!has_curve(c, used[i]))
            return ls_fail(
                LS_E_FORMAT,
                "cluster %s: %d workers of a host talk, and there is neither a curve of %s in collectives nor "
                "a bandwidth in link_inside_host",
                c->name, on_host, ls_coll_word(used[i]));
    return LS_OK;
}

/* ---- collectives ---- */

static double factor(ls_coll kind, double n)
{
    if (kind == LS_COLL_ALL_REDUCE) return 2 * (n - 1) / n;
    if (kind == LS_COLL_REDUCE_SCATTER || kind == LS_COLL_ALL_GATHER) return (n - 1) / n;
    return 1;
}

static double steps(ls_coll kind, double n)
{
    if (kind == LS_COLL_ALL_REDUCE) return 2 * (n - 1);
    if (kind == LS_COLL_REDUCE_SCATTER || kind == LS_COLL_ALL_GATHER) return n - 1;
    return kind == LS_COLL_SEND || kind == LS_COLL_RECV ? 1 : ceil(log2(n));
}

static double on_curve(const ls_cluster_curve *v, double bytes)
{
    int k = 0;
    if (bytes <= v->bytes[0]) return v->sec[0];
    while (k < v->n && v->bytes[k] < bytes) k++;
    if (k == v->n) return v->sec[k - 1] * bytes / v->bytes[k - 1];
    const double part = (bytes - v->bytes[k - 1]) / (v->bytes[k] - v->bytes[k - 1]);
    return v->sec[k - 1] + part * (v->sec[k] - v->sec[k - 1]);
}

double ls_cluster_collective(const ls_cluster *c, ls_coll kind, int n, double bytes, bool between)
{
    if (n < 2) return 0;
    if (kind == LS_COLL_RECV) kind = LS_COLL_SEND;
    if (kind == LS_COLL_BARRIER || kind == LS_COLL_AGREE) kind = LS_COLL_ALL_GATHER, bytes = 8.0 * n;
    const ls_cluster_curve *best = NULL;
    for (int i = 0; i < c->n_curve && !between; i++) {
        const ls_cluster_curve *v = &c->curve[i];
        if (v->kind == kind && (!best || far(v->workers, n) < far(best->workers, n))) best = v;
    }
    if (best) return on_curve(best, bytes) * factor(kind, n) / factor(kind, best->workers);
    const ls_link *l = between ? &c->between : &c->inside;
    return steps(kind, n) * l->latency + (l->bandwidth > 0 ? factor(kind, n) * bytes / l->bandwidth : 0);
}
