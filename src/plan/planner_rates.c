/* planner_rates.c - computes times from a cluster file: units, passes over memory, collectives.
 *
 *   unit        measured: from the nearest shape, scaled by work, with linear interpolation between two measured numbers of rows (the
 *               constant term covers work that does not grow with rows, such as the embed gradient). Rates: products / rate +
 *               attention / rate + bytes / bandwidth + idle time of the last tiles + launches
 *   pass        measured with as many busy workers, because they share the memory bandwidth
 *   collective  measured curve with linear interpolation, or latency and bus bandwidth */
#include "plan/cluster_file.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct shape {
    double C, V, R, T;
    bool dropout, ordered;
} shape;

/* ---- by rates ---- */

/* Work of a pass: FLOP of products and attention, exposed bytes of memory traffic, and the sum of the inner dimensions of its products.
 *
 * Elements of (R,C) per block: 17 forward, 29 backward (norms, GELU, residuals, operands of products that are not read during other
 * products). They are fitted with the rates of the H200 on one step whose parts are known (GPT-2, 64 x 1024, docs/results: blocks 58.6 ms of products
 * and 5.4 of norms, softmax 3.3 of the classifier's 24.6). Inner dimensions: forward C, C, C and 4C; gradients of inputs 3C, C, 4C and C; of
 * weights, which are split along R, C each; the classifier C and, for the gradient of its input, V.
 *
 * Dropout adds 3 elements forward and 4 backward (masks of the residuals are made again), fitted with attention's rate on five pairs of runs with and
 * without it (docs/results/plan_h200_2026-11-16.md). */
typedef struct pass_work {
    double products, attention, bytes, depth;
} pass_work;

static pass_work pass_of(shape s, double width, ls_unit_time kind)
{
    const double linear = 24 * s.C * s.C * s.R, attention = 2 * s.C * s.R * s.T, rows = s.C * s.R * width;
    switch (kind) {
    case LS_TIME_EMBED_FWD: return (pass_work){.bytes = 2 * rows};
    case LS_TIME_EMBED_BWD: return (pass_work){.bytes = 2 * rows + 4 * s.C * s.V};
    case LS_TIME_BLOCK_FWD: return (pass_work){linear, attention, (s.dropout ? 20 : 17) * rows, 7 * s.C};
    case LS_TIME_BLOCK_BWD: /* scores are made again */
        return (pass_work){2 * linear, 2.5 * attention, (s.dropout ? 33 : 29) * rows, 13 * s.C};
    case LS_TIME_BLOCK_IN: return (pass_work){linear, 2.5 * attention, (s.dropout ? 23 : 19) * rows, 9 * s.C};
    case LS_TIME_BLOCK_W: return (pass_work){linear, 0, 10 * rows, 4 * s.C};
    case LS_TIME_HEAD_FWD: /* with the classifier's backward */
        return (pass_work){6 * s.V * s.C * s.R, 0, 1.7 * s.V * s.R * width, 2 * s.C + s.V};
    default: return (pass_work){.bytes = 8 * rows};
    }
}

/* What the time of a pass is proportional to, without rates. */
static double work_of(shape s, ls_unit_time kind)
{
    if (kind == LS_TIME_EMBED_FWD) return s.C * s.R;
    if (kind == LS_TIME_EMBED_BWD) return s.C * (s.V + s.R);
    if (kind == LS_TIME_HEAD_BWD) return 10 * s.C * s.R;
    const pass_work w = pass_of(s, 1, kind);
    return w.products + w.attention;
}

static ls_cluster_rates rates_of(const ls_cluster *c, ls_dtype dt)
{
    ls_cluster_rates r = c->rates[ls_precision_index(dt)];
    if (r.matmul <= 0) r.matmul = c->matmul;
    if (r.attention <= 0) r.attention = r.matmul;
    return r;
}

double ls_cluster_element(const ls_cluster *c, ls_dtype dt)
{
    return (double)ls_dtype_nbytes(c->cpu ? LS_F32 : dt);
}

static double by_rates(const ls_cluster *c, ls_dtype dt, shape s, ls_unit_time kind)
{
    const ls_cluster_rates r = rates_of(c, dt);
    s.dropout = s.dropout && r.dropout > 0;
    const double attention = s.dropout ? r.dropout : s.ordered && r.ordered > 0 ? r.ordered : r.attention;
    const pass_work w = pass_of(s, ls_cluster_element(c, dt), kind);
    return w.products / r.matmul + w.attention / attention + w.bytes / c->bandwidth + w.depth * c->ramp +
           c->unit_overhead;
}

/* ---- precisions ---- */

static bool measured_in(const ls_cluster *c, ls_dtype dt)
{
    for (int i = 0; i < c->n_units; i++)
        if (c->units[i].tp == 1 && c->units[i].dtype == dt) return true;
    return false;
}

static bool computes(const ls_cluster *c, ls_dtype dt)
{
    if (c->cpu && dt != LS_F32) return dt == LS_BF16 && measured_in(c, dt);
    return measured_in(c, dt) || (c->bandwidth > 0 && rates_of(c, dt).matmul > 0);
}

const ls_card *ls_cluster_lacks(const ls_cluster *c, ls_dtype dt)
{
    const ls_card *card = c->capability ? ls_card_of(c->capability) : NULL;
    return card && dt == LS_BF16 && !card->bf16 ? card : NULL;
}

ls_status ls_cluster_check_precision(const ls_cluster *c, ls_dtype dt)
{
    static const ls_dtype all[] = {LS_F32, LS_BF16, LS_F16};
    char known[32] = "";
    const ls_card *lacks = ls_cluster_lacks(c, dt);
    if (lacks)
        return ls_fail(
            LS_E_UNSUPPORTED,
            "--precision %s: the cards of cluster %s (%s, compute capability %d.%d) have no %s products; use "
            "--precision fp16, which auto chooses there",
            ls_precision_word(dt), c->name, lacks->name, c->capability / 10, c->capability % 10, ls_precision_word(dt));
    if (computes(c, dt)) return LS_OK;
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        if (computes(c, all[k]))
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", known[0] ? ", " : "",
                     ls_precision_word(all[k]));
    if (c->cpu && dt == LS_F16)
        return ls_fail(
            LS_E_UNSUPPORTED,
            "--precision fp16: cluster %s has CPUs, which compute in fp32 and bf16 (its file has times in: %s); "
            "use one of them or a GPU cluster (" LS_CLUSTER_PRESETS ")",
            c->name, known[0] ? known : "none");
    return ls_fail(
        LS_E_UNSUPPORTED,
        "--precision %s: cluster %s has no times for it (it has: %s); measure it (plan --measure --device %s --precision %s) or use another precision",
        ls_precision_word(dt), c->name, known[0] ? known : "none", c->cpu ? "cpu" : "cuda", ls_precision_word(dt));
}

ls_dtype ls_cluster_default_precision(const ls_cluster *c)
{
    if (c->cpu && computes(c, LS_F32)) return LS_F32;
    return computes(c, LS_BF16) ? LS_BF16 : computes(c, LS_F16) ? LS_F16 : LS_F32;
}

const char *ls_cluster_kernel(const ls_cluster *c, ls_dtype dt)
{
    for (int i = 0; i < c->n_units; i++)
        if (c->units[i].dtype == dt && c->units[i].kernel[0]) return c->units[i].kernel;
    return "";
}

bool ls_cluster_has_bf16(const ls_cluster *c)
{
    const char *kernel = ls_cluster_kernel(c, LS_BF16);
    return c->cpu && kernel[0] && !strstr(kernel, "-emulated");
}

ls_dtype ls_cluster_auto_precision(const ls_cluster *c)
{
    return ls_cluster_has_bf16(c) ? LS_BF16 : ls_cluster_default_precision(c);
}

double ls_cluster_peak(const ls_cluster *c, ls_dtype dt)
{
    return c->rates[ls_precision_index(dt)].peak;
}

bool ls_cluster_knows_dropout(const ls_cluster *c, ls_dtype dt, bool dropout)
{
    bool with = rates_of(c, dt).dropout > 0 && c->bandwidth > 0, without = !c->n_units;
    for (int i = 0; i < c->n_units; i++) {
        const ls_cluster_units *u = &c->units[i];
        if (u->tp == 1 && u->dtype == dt) *(u->dropout ? &with : &without) = true;
    }
    return dropout ? with : without || (with && rates_of(c, dt).dropout > 0);
}

bool ls_cluster_knows_order(const ls_cluster *c, ls_dtype dt)
{
    return c->cpu || rates_of(c, dt).ordered > 0;
}

/* ---- measured ---- */

static double far(double a, double b)
{
    return fabs(log2(a / b));
}

/* Distance of a measurement from the requested shape, without rows. */
static double unlike(const ls_cluster_units *u, int workers, const ls_model_config *m, double T)
{
    return 100 * far(u->workers, workers) + far(u->n_embd, m->n_embd) + far(u->vocab, m->vocab_size) +
           0.5 * far((double)u->T, T) + 0.5 * (u->dropout != (m->attn_pdrop > 0));
}

/* Time ratio of a pass between two shapes: by rates if known, else by work. */
static double ratio(const ls_cluster *c, ls_dtype dt, shape to, shape from, ls_unit_time kind)
{
    if (c->bandwidth > 0 && rates_of(c, dt).matmul > 0) return by_rates(c, dt, to, kind) / by_rates(c, dt, from, kind);
    return work_of(to, kind) / work_of(from, kind);
}

/* Time of one of tp shards; negative if not measured. */
static double measured(const ls_cluster *c, int workers, int tp, ls_dtype dt, const ls_model_config *m, shape want,
                       ls_unit_time kind)
{
    double least = DBL_MAX, below_r = -1, above_r = DBL_MAX, below = 0, above = 0;
    for (int i = 0; i < c->n_units; i++)
        if (c->units[i].tp == tp && c->units[i].dtype == dt)
            least = fmin(least, unlike(&c->units[i], workers, m, want.T));
    if (least == DBL_MAX) return -1;
    for (int i = 0; i < c->n_units; i++) {
        const ls_cluster_units *u = &c->units[i];
        if (u->tp != tp || u->dtype != dt || unlike(u, workers, m, want.T) > least + 1e-9) continue;
        const shape had = {u->n_embd, u->vocab, (double)(u->B * u->T), (double)u->T, u->dropout, want.ordered},
                    here = {want.C, want.V, had.R, want.T, want.dropout, want.ordered};
        const double sec = u->sec[kind] * ratio(c, dt, here, had, kind);
        if (had.R <= want.R && had.R > below_r) below_r = had.R, below = sec;
        if (had.R >= want.R && had.R < above_r) above_r = had.R, above = sec;
    }
    const bool is_below = below_r >= 0, is_above = above_r < DBL_MAX;
    if (is_below && is_above)
        return above_r > below_r ? below + (above - below) * (want.R - below_r) / (above_r - below_r) : below;
    shape edge = want;
    edge.R = is_below ? below_r : above_r;
    return (is_below ? below : above) * ratio(c, dt, want, edge, kind);
}

double ls_cluster_unit(const ls_cluster *c, int workers, int tp, ls_dtype dt, const ls_model_config *m, bool ordered,
                       int64_t B, int64_t T, ls_unit_time kind)
{
    const shape want = {m->n_embd, m->vocab_size, (double)(B * T), (double)T, m->attn_pdrop > 0, ordered};
    const double sec = measured(c, workers, tp, dt, m, want, kind);
    return sec >= 0 || tp > 1 ? sec : by_rates(c, dt, want, kind);
}

/* Gradients, moments and master weights are fp32 in every precision. */
/* Bytes that an update moves through host memory for each parameter: the CPU reads gradient, master weight and moments, and writes the latter
 * and the parameter; the GPU accesses the state only, half of it in each direction. Together they take half of the parameters each. */
enum { BY_CPU = 30, BY_GPU = 24, ONE_WAY = 12 };
#define CPU_REACHES 0.67 /* of the host's bandwidth, alone: measured (docs/results/offload_h200_2026-11-16.md) */

/* The CPU's and the GPU's speed, as long as the memory of the host allows it. */
static void offload_rates(const ls_cluster *c, ls_cluster_passes *p)
{
    if (p->offload > 0 || !(c->host_memory > 0) || !(c->bus > 0)) return;
    const double cpu = CPU_REACHES * c->host_memory / BY_CPU, gpu = c->bus / ONE_WAY,
                 most = c->host_memory / (0.5 * (BY_CPU + BY_GPU));
    p->on_host = 1 / cpu;
    p->offload = 1 / fmin(cpu + gpu, most);
}

static ls_cluster_passes passes_of(const ls_cluster *c, int workers, ls_dtype dt)
{
    int best = -1;
    for (int i = 0; i < c->n_passes; i++) {
        if (c->passes[i].dtype != dt && c->bandwidth > 0) continue;
        if (best < 0 || far(c->passes[i].workers, workers) < far(c->passes[best].workers, workers)) best = i;
    }
    if (best >= 0) return c->passes[best];
    const double update = c->update_bytes + (c->cpu || dt == LS_F32 ? 0.0 : (double)ls_dtype_nbytes(dt));
    return (ls_cluster_passes){.workers = workers,
                               .dtype = dt,
                               .adamw = update / c->bandwidth,
                               .alone = update / c->bandwidth,
                               .sumsq = sizeof(float) / c->bandwidth,
                               .add = 3 * sizeof(float) / c->bandwidth,
                               .overlap = c->overlap,
                               .step = c->step_overhead,
                               .apart = 1,
                               .beside = 1};
}

ls_cluster_passes ls_cluster_pass(const ls_cluster *c, int workers, ls_dtype dt)
{
    ls_cluster_passes p = passes_of(c, workers, dt);
    offload_rates(c, &p);
    return p;
}

ls_status ls_cluster_check_offload(const ls_cluster *c, int workers, ls_dtype dt)
{
    if (ls_cluster_pass(c, workers, dt).offload > 0) return LS_OK;
    return ls_fail(LS_E_UNSUPPORTED,
                   "%s has no times of an offloaded optimizer: measure again (plan --measure), or add "
                   "host_memory_bandwidth and bus_bandwidth",
                   c->name);
}

/* ---- placement ---- */

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
        return ls_fail(
            LS_E_FORMAT,
            "cluster %s: %d workers need %d hosts of %d; set link_between_hosts.bandwidth, which is missing or 0",
            c->name, world, (world + on_host - 1) / on_host, on_host);
    for (size_t i = 0; i < sizeof used / sizeof used[0] && on_host > 1 && c->inside.bandwidth <= 0; i++)
        if (!has_curve(c, used[i]))
            return ls_fail(
                LS_E_FORMAT,
                "cluster %s: no time for %d workers on a host: add %s to collectives, or set link_inside_host.bandwidth",
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

/* On several hosts, by the algorithms of NCCL and of comm/nccl_tree.c. Steps of a ring go to the next worker: one per host leaves it.
 *
 *   gather, scatter        a ring
 *   broadcast, reduce      a chain along it, in pieces: NCCL has no tree for them
 *   all_reduce             the faster of two rings and a tree over the hosts with a chain in each
 *   ordered sums           halving with the nearest partner first (log2 n steps), or every part sent to its worker; then all_reduce
 *                          gathers, and reduce sends all parts to the root, whose link takes as long as a gather
 *   agree, barrier         a message to every host (comm/net.c) */
#define MESSAGE_SEC 1e-6 /* assumed: host time of one of many small messages */

static double between_latency(const ls_cluster *c, ls_coll kind, ls_coll_group g)
{
    const double H = g.hosts, n = g.n, out = c->between.latency, in = fmin(c->inside.latency, out),
                 ring = (H - 1) * out + (n - H) * in;
    const bool halves = (g.n & (g.n - 1)) == 0;
    const double ordered = halves ? log2(n / H) * in + log2(H) * out : out + (n - 1) * MESSAGE_SEC;
    switch (kind) {
    case LS_COLL_SEND: return out;
    case LS_COLL_BARRIER:
    case LS_COLL_AGREE: return out + (H - 1) * MESSAGE_SEC;
    case LS_COLL_ALL_REDUCE: return g.ordered ? ordered + ring : 2 * fmin(ring, ceil(log2(H)) * out + (n / H - 1) * in);
    case LS_COLL_REDUCE_SCATTER: return g.ordered ? ordered : ring;
    case LS_COLL_REDUCE: return g.ordered ? ordered + out + (n - 1) * MESSAGE_SEC : ring;
    default: return ring;
    }
}

/* Workers of a host that belong to one group use the network cards of their share of the devices. */
static double between_sec(const ls_cluster *c, ls_coll kind, ls_coll_group g, double bytes)
{
    const double share = (double)g.n / g.hosts / c->devices, cards = fmax(1, floor(share * c->cards)),
                 rate = c->inside.bandwidth > 0
                            ? fmin(cards * c->between.bandwidth, fmax(c->inside.bandwidth, c->between.bandwidth))
                            : c->between.bandwidth,
                 volume = kind == LS_COLL_REDUCE && g.ordered ? factor(LS_COLL_ALL_REDUCE, g.n) : factor(kind, g.n);
    const bool empty = kind == LS_COLL_BARRIER || kind == LS_COLL_AGREE || !(rate > 0);
    return between_latency(c, kind, g) + (empty ? 0 : volume * bytes / rate);
}

double ls_cluster_collective(const ls_cluster *c, ls_coll kind, ls_coll_group g, double bytes)
{
    const int n = g.n;
    if (n < 2) return 0;
    if (kind == LS_COLL_RECV) kind = LS_COLL_SEND;
    if (g.hosts > 1) return between_sec(c, kind, g, bytes);
    if (kind == LS_COLL_BARRIER || kind == LS_COLL_AGREE) kind = LS_COLL_ALL_GATHER, bytes = 8.0 * n;
    const ls_cluster_curve *best = NULL;
    for (int i = 0; i < c->n_curve; i++) {
        const ls_cluster_curve *v = &c->curve[i];
        if (v->kind == kind && (!best || far(v->workers, n) < far(best->workers, n))) best = v;
    }
    if (best) return on_curve(best, bytes) * factor(kind, n) / factor(kind, best->workers);
    return steps(kind, n) * c->inside.latency +
           (c->inside.bandwidth > 0 ? factor(kind, n) * bytes / c->inside.bandwidth : 0);
}
