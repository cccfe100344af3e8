/* planner_explain.c - says in words why the first layout is the fastest, and what to change.
 *
 * A sentence has the numbers that it follows from. Suggestions are layouts that were planned and predicted like those of the search. */
#include "plan/planner_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- why ---- */

static int stages_of(const ls_planned *l)
{
    return l->cfg.mesh.n[LS_AXIS_PP];
}

static double compute_of(const ls_prediction *t)
{
    return t->forward + t->backward;
}

/* "0.123 s" or "4.56 ms" */
char *planner_rate_words(char buf[40], double x)
{
    const double unit = x > 1e4 ? pow(10, floor(log10(x)) - 3) : 1;
    return ls_number_text(buf, round(x / unit) * unit, 0);
}

static const char *sec_words(double sec, char buf[32])
{
    if (fabs(sec) < 0.1) snprintf(buf, 32, "%.3g ms", 1e3 * sec);
    else snprintf(buf, 32, "%.3g s", sec);
    return buf;
}

static void composition(const ls_planner_result *r, ls_str *out)
{
    const ls_planned *l = &r->layout[0];
    const ls_prediction *t = &l->time;
    char words[96], a[32], b[32];
    ls_planned_words(&l->cfg, words);
    ls_str_addf(out,
                "%s is the fastest of %d layout%s that fit%s: of its step of %s, %.1f %% is forward and backward, ",
                words, r->n_fit, r->n_fit == 1 ? "" : "s", r->n_fit == 1 ? "s" : "", sec_words(t->step, a),
                100 * compute_of(t) / t->step);
    if (stages_of(l) > 1)
        ls_str_addf(out, "%.1f %% waiting for other stages and workers (pipeline bubble %.1f %%), ",
                    100 * t->exposed / t->step, 100 * t->bubble);
    else if (l->cfg.world_size > 1) ls_str_addf(out, "%.1f %% exposed communication, ", 100 * t->exposed / t->step);
    ls_str_addf(out, "%.1f %% the update of parameters.\n", 100 * (t->optimizer + t->other) / t->step);
    if (stages_of(l) == 1 && t->comm - t->exposed > 1e-3 * t->comm)
        ls_str_addf(out, "It communicates for %s per step, of which %s overlap with compute.\n", sec_words(t->comm, a),
                    sec_words(t->comm - t->exposed, b));
}

/* What l loses against the best: the parts that make up at least a quarter of the difference. */
static void losses(const ls_planned *best, const ls_planned *l, ls_str *out)
{
    const ls_prediction *a = &best->time, *b = &l->time;
    const double more = b->step - a->step, part[] = {compute_of(b) - compute_of(a), b->exposed - a->exposed,
                                                     b->optimizer + b->other - a->optimizer - a->other};
    const bool bubble = b->bubble > a->bubble + 0.01;
    const char *const name[] = {"forward and backward",
                                bubble ? "waiting for stages and workers" : "exposed communication", "the update"};
    const char *comma = "";
    char sec[32];
    for (int k = 0; k < 3; k++) {
        if (!(part[k] > 0) || part[k] < 0.25 * more) continue;
        ls_str_addf(out, "%s%s +%s", comma, name[k], sec_words(part[k], sec));
        if (k == 1 && bubble)
            ls_str_addf(out, " (bubble %.1f %%, %.1f %% in the first)", 100 * b->bubble, 100 * a->bubble);
        comma = ", ";
    }
}

typedef bool kind_fn(const ls_planned *best, const ls_planned *l, const char *strategy);

static bool of_strategy(const ls_planned *best, const ls_planned *l, const char *strategy)
{
    (void)best;
    return !strcmp(l->cfg.strategy, strategy);
}

static bool other_stages(const ls_planned *best, const ls_planned *l, const char *strategy)
{
    (void)strategy;
    return (stages_of(l) > 1) != (stages_of(best) > 1);
}

static bool other_shards(const ls_planned *best, const ls_planned *l, const char *strategy)
{
    (void)strategy;
    return (l->cfg.mesh.n[LS_AXIS_TP] > 1) != (best->cfg.mesh.n[LS_AXIS_TP] > 1);
}

static bool other_micro_batch(const ls_planned *best, const ls_planned *l, const char *strategy)
{
    (void)strategy;
    const ls_train_config *a = &best->cfg, *b = &l->cfg;
    return !memcmp(&a->mesh, &b->mesh, sizeof a->mesh) && !strcmp(a->strategy, b->strategy) &&
           a->interleave == b->interleave && (!a->schedule || !strcmp(a->schedule, b->schedule)) &&
           a->micro_batch != b->micro_batch;
}

/* The first layout of a kind, which is the fastest that fits, or else the smallest that does not. */
static const ls_planned *first_of(const ls_planner_result *r, kind_fn *is, const char *strategy)
{
    for (int i = 1; i < r->n; i++)
        if (is(&r->layout[0], &r->layout[i], strategy)) return &r->layout[i];
    return NULL;
}

static void compare(const ls_planner_result *r, const char *what, const ls_planned *l, ls_str *out)
{
    const ls_planned *best = &r->layout[0];
    char buf[96], sec[32];
    ls_planned_words(&l->cfg, buf);
    const char *words = strcmp(what, l->cfg.strategy) ? buf : buf + strlen(what) + 1; /* "dp: at best dp 8" */
    if (!l->fits) {
        ls_str_addf(out, "%s: none fits; %s %s.\n", what, words, l->why);
        return;
    }
    const double ratio = l->time.step / best->time.step;
    ls_str_addf(out, "%s: at best %s, ", what, words);
    if (ratio < 2) ls_str_addf(out, "%.1f %% slower", 100 * (ratio - 1));
    else ls_str_addf(out, "%.1f times the time", ratio);
    ls_str_addf(out, " (%s per step): ", sec_words(l->time.step, sec));
    losses(best, l, out);
    ls_str_add(out, ".\n");
}

/* A layout that would be faster with more memory. */
static void too_large(const ls_planner_result *r, ls_str *out)
{
    const ls_planned *best = &r->layout[0], *l = NULL;
    char words[96];
    for (int i = r->n_fit; i < r->n; i++)
        if (r->layout[i].time.step < (l ? l : best)->time.step) l = &r->layout[i];
    if (!l) return;
    ls_planned_words(&l->cfg, words);
    ls_str_addf(out, "Memory excludes faster layouts: %s would be %.1f %% faster, but %s.\n", words,
                100 * (best->time.step / l->time.step - 1), l->why);
}

void ls_planner_explain(const ls_planner_result *r, ls_str *out)
{
    static const char *const strategy[] = {"dp", "ddp", "zero1", "zero2", "zero3"};
    const ls_planned *best = r->layout, *seen[16];
    int n_seen = 0;
    if (!r->n_fit) return;
    composition(r, out);
    const struct {
        const char *what;
        kind_fn *is;
    } shape[] = {
        {stages_of(best) > 1 ? "without a pipeline" : "with a pipeline", other_stages},
        {best->cfg.mesh.n[LS_AXIS_TP] > 1 ? "without tensor parallelism" : "with tensor parallelism", other_shards},
        {"with another micro-batch", other_micro_batch},
    };
    for (size_t i = 0; i < 8; i++) {
        const bool by_name = i < 5;
        if (by_name && !strcmp(strategy[i], best->cfg.strategy)) continue;
        const ls_planned *l = by_name ? first_of(r, of_strategy, strategy[i]) : first_of(r, shape[i - 5].is, NULL);
        bool again = !l;
        for (int k = 0; k < n_seen; k++) again |= seen[k] == l;
        if (again) continue;
        seen[n_seen++] = l;
        compare(r, by_name ? strategy[i] : shape[i - 5].what, l, out);
    }
    too_large(r, out);
}

/* ---- what to change ---- */

typedef struct advice {
    const ls_cluster *cl;
    ls_planner_query q; /* of the variant */
    const ls_planned *from;
    ls_planned l; /* the variant, evaluated */
} advice;

/* Evaluates a changed layout; false if it is impossible or does not fit. */
static bool try(advice *a)
{
    a->l.worst = (ls_plan_memory){0};
    a->l.cfg.world_size = a->l.cfg.mesh.world;
    memset(a->l.cfg.stage_thread, 0, sizeof a->l.cfg.stage_thread);
    ls_planner_share(a->cl, &a->l.cfg);
    const bool ok = planner_fit(a->cl, &a->q, &a->l) == LS_OK && a->l.fits &&
                    ls_planner_predict(a->cl, &a->l.cfg, &a->l.time) == LS_OK;
    ls_err_clear();
    return ok;
}

static advice variant(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *from)
{
    return (advice){.cl = cl, .q = *q, .from = from, .l = {.cfg = from->cfg}};
}

static double gain(const advice *a)
{
    return a->l.time.tokens_per_sec / a->from->time.tokens_per_sec - 1;
}

/* Gains below it are within the error of a prediction. */
#define WORTH 0.05

static void batch_too_small(const ls_planner_query *q, ls_str *out)
{
    if (q->global_batch >= q->workers) return;
    ls_str_addf(
        out,
        "The batch is too small for %d workers: %lld sequences allow at most %lld replicas, so each replica must be divided "
        "into at least %lld stages or shards.\n",
        q->workers, (long long)q->global_batch, (long long)q->global_batch,
        (long long)((q->workers + q->global_batch - 1) / q->global_batch));
}

/* Shares of a step that a larger batch can make smaller: waiting, the update. */
static void shares(const ls_prediction *t, double out[2])
{
    out[0] = t->exposed / t->step;
    out[1] = (t->optimizer + t->other) / t->step;
}

static void larger_batch(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *best, ls_str *out)
{
    advice a = variant(cl, q, best);
    a.q.global_batch = a.l.cfg.global_batch = 4 * q->global_batch;
    a.l.cfg.grad_accum *= 4;
    if (!try(&a) || gain(&a) < WORTH) return;
    double before[2], after[2];
    char rate[40];
    shares(&best->time, before);
    shares(&a.l.time, after);
    const int most = before[1] - after[1] > before[0] - after[0];
    const char *why = most                  ? "the update of parameters takes"
                      : stages_of(best) > 1 ? "waiting for other stages and workers takes"
                                            : "exposed communication takes";
    ls_str_addf(
        out,
        "Larger batch: --global_batch %lld (%.3g tokens per step, %d x %d) reaches %s tokens/s (+%.0f %%), because %s "
        "%.1f %% of its step of %.3g s instead of %.1f %%. A larger batch can need more tokens for the same loss.\n",
        (long long)a.q.global_batch, (double)a.q.global_batch * q->seq_len, a.l.cfg.micro_batch, a.l.cfg.grad_accum,
        planner_rate_words(rate, a.l.time.tokens_per_sec), 100 * gain(&a), why, 100 * after[most], a.l.time.step,
        100 * before[most]);
}

/* Memory that recomputation frees, used for a larger micro-batch. */
static void recomputation(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *best, ls_str *out)
{
    advice a = variant(cl, q, best);
    ls_train_config *c = &a.l.cfg;
    char rate[40];
    if (q->recompute || c->grad_accum % 2) return;
    c->recompute = a.q.recompute = true;
    c->micro_batch *= 2;
    c->grad_accum /= 2;
    if (c->schedule && !strcmp(c->schedule, "zb")) c->schedule = "1f1b";
    if (!try(&a) || gain(&a) < WORTH) return;
    ls_str_addf(out, "--recompute frees activations for a micro-batch of %d: %s tokens/s (+%.0f %%).\n", c->micro_batch,
                planner_rate_words(rate, a.l.time.tokens_per_sec), 100 * gain(&a));
}

static void fewer_workers(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *best, ls_str *out)
{
    advice a = variant(cl, q, best);
    ls_mesh *m = &a.l.cfg.mesh;
    char rate[40];
    if (m->n[LS_AXIS_DP] % 4) return; /* two replicas remain, and the strategy */
    m->n[LS_AXIS_DP] /= 2;
    m->world /= 2;
    a.q.workers = m->world;
    a.l.cfg.grad_accum *= 2;
    if (!try(&a) || 2 * (1 + gain(&a)) < 1 + 3 * WORTH) return;
    ls_str_addf(
        out,
        "Half of the workers (%d) reach %.0f %% of this speed (%s tokens/s): each of them does %.0f %% more work per second.\n",
        m->world, 100 * (1 + gain(&a)), planner_rate_words(rate, a.l.time.tokens_per_sec),
        100 * (2 * (1 + gain(&a)) - 1));
}

static void precision(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *best, ls_str *out)
{
    static const ls_dtype half[] = {LS_BF16, LS_F16};
    advice a = variant(cl, q, best);
    char rate[40];
    for (size_t k = 0; k < 2 && q->cuda && q->dtype == LS_F32; k++) {
        a.q.dtype = a.l.cfg.dtype = half[k];
        a.l.cfg.precision = ls_precision_word(half[k]);
        if (!try(&a) || gain(&a) < WORTH) continue;
        ls_str_addf(out, "--precision %s reaches %s tokens/s (%.1f times).\n", a.l.cfg.precision,
                    planner_rate_words(rate, a.l.time.tokens_per_sec), 1 + gain(&a));
        return;
    }
}

/* ---- nothing fits ---- */

typedef struct way {
    char option[160];
    ls_planned
        l; /* the fastest layout that fits with it; without a time if the cluster has none of an offloaded update */
} way;

typedef struct ways {
    const ls_cluster *cl;
    way list[16];
    int n;
} ways;

/* Searches for layouts of the changed query; keeps the fastest that fits. */
static bool fits_with(ways *w, ls_planner_query q, const char *option)
{
    ls_planner_result r;
    q.top = 1;
    q.sketch = true;
    if (ls_planner_search(w->cl, &q, &r) != LS_OK) {
        ls_err_clear();
        return false;
    }
    const bool fits = r.n_fit > 0;
    if (fits && w->n < (int)(sizeof w->list / sizeof w->list[0])) {
        snprintf(w->list[w->n].option, sizeof w->list[0].option, "%s", option);
        w->list[w->n++].l = r.layout[0];
    }
    ls_planner_result_fini(&r);
    return fits;
}

/* `size` of the options that take less memory and keep the batch, in all combinations. */
static void fewer_bytes(ways *w, const ls_planner_query *q, int size)
{
    const bool sharded = !q->strategy || (strcmp(q->strategy, "dp") && strcmp(q->strategy, "ddp"));
    const struct {
        bool can;
        const char *option;
    } change[] = {{!q->recompute, "--recompute"},
                  {q->cuda && !q->no_deterministic, "--no_deterministic"},
                  {q->cuda && !q->offload && sharded, "--offload_optimizer cpu"},
                  {q->cuda && q->dtype == LS_F32, ""}};
    for (int mask = 1; mask < 16; mask++) {
        ls_planner_query with = *q;
        char option[160] = "";
        int n = 0;
        bool can = true;
        for (int k = 0; k < 4; k++) {
            if (!(mask >> k & 1)) continue;
            n++;
            can &= change[k].can;
            if (k < 3)
                snprintf(option + strlen(option), sizeof option - strlen(option), "%s%s", option[0] ? " " : "",
                         change[k].option);
        }
        if (n != size || !can) continue;
        with.recompute |= mask & 1;
        with.no_deterministic |= mask >> 1 & 1;
        with.offload |= mask >> 2 & 1;
        if (mask >> 3) {
            with.dtype = ls_cluster_check_precision(w->cl, LS_BF16) == LS_OK ? LS_BF16 : LS_F16;
            if (ls_cluster_check_precision(w->cl, with.dtype) != LS_OK) continue;
            snprintf(option + strlen(option), sizeof option - strlen(option), "%s--precision %s", option[0] ? " " : "",
                     ls_precision_word(with.dtype));
        }
        (void)fits_with(w, with, option);
    }
    ls_err_clear();
}

/* The largest batch that fits, of the batch divided by powers of two: memory grows with the batch. */
static void smaller_batch(ways *w, const ls_planner_query *q)
{
    const int n = w->n;
    int low = 0, high = 0; /* divided by 2^low it does not fit, by 2^high it does */
    bool any = false;
    char option[64];
    while (q->global_batch % (2LL << high) == 0 && high < 20) high++;
    for (int k = high; k > low; k = (low + high) / 2) {
        ls_planner_query with = *q;
        with.global_batch >>= k;
        snprintf(option, sizeof option, "--global_batch %lld", (long long)with.global_batch);
        w->n = n;
        if (fits_with(w, with, option)) high = k, any = true;
        else if (!any) return;
        else w->n = n + 1, low = k;
    }
}

/* Two to 64 times the workers: as many as the smallest layout needs with everything sharded; then the fastest of them. */
static void more_workers(ways *w, const ls_planner_query *q, const ls_planned *least)
{
    ls_cluster more = *w->cl;
    ways found = {.cl = &more};
    char option[160];
    for (int by = 2; by <= 64 && !more.cpu && !found.n && w->n < (int)(sizeof w->list / sizeof w->list[0]); by *= 2) {
        advice a = variant(&more, q, least);
        ls_train_config *c = &a.l.cfg;
        c->mesh.n[LS_AXIS_DP] *= by;
        c->mesh.world *= by;
        c->strategy = "zero3";
        c->grad_accum = c->grad_accum >= by ? c->grad_accum / by : 1;
        c->global_batch = a.q.global_batch = (int64_t)c->grad_accum * c->micro_batch * c->mesh.n[LS_AXIS_DP];
        a.q.workers = c->mesh.world;
        more.hosts = (c->mesh.world + more.devices - 1) / more.devices;
        if (c->mesh.world > LS_CLUSTER_MOST || !try(&a)) continue;
        const char *kind = w->cl->count ? w->cl->name : ""; /* --cluster t4:4 allows no more workers */
        snprintf(option, sizeof option, "--%s%s%s%d --global_batch %lld", *kind ? "cluster " : "workers", kind,
                 *kind ? ":" : " ", c->mesh.world, (long long)c->global_batch);
        if (fits_with(&found, a.q, option)) w->list[w->n++] = found.list[0];
    }
}

static int by_speed(const void *a, const void *b)
{
    const double x = ((const way *)a)->l.time.tokens_per_sec, y = ((const way *)b)->l.time.tokens_per_sec;
    return (x < y) - (x > y);
}

static void to_fit(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *least, ls_str *out)
{
    ways w = {.cl = cl};
    char words[96], need[32], rate[40];
    for (int size = 1; size <= 4 && !w.n; size++) fewer_bytes(&w, q, size);
    smaller_batch(&w, q);
    more_workers(&w, q, least);
    if (!w.n)
        ls_str_add(out, "No option makes it fit, alone or with others, nor does a smaller batch or 64 times the "
                        "workers: use devices with more memory, or a smaller model.\n");
    qsort(w.list, (size_t)w.n, sizeof w.list[0], by_speed);
    for (int i = 0; i < w.n; i++) {
        const ls_planned *l = &w.list[i].l;
        ls_planned_words(&l->cfg, words);
        ls_str_addf(out, "%s fits: %s per worker, ", w.list[i].option, ls_human_bytes(need, (double)planner_need(l)));
        if (l->time.step > 0)
            ls_str_addf(out, "%s tokens/s (%s).\n", planner_rate_words(rate, l->time.tokens_per_sec), words);
        else
            ls_str_addf(out,
                        "speed unknown without host_memory_bandwidth and bus_bandwidth in the cluster file (%s).\n",
                        words);
    }
}

void ls_planner_advise(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, ls_str *out)
{
    batch_too_small(q, out);
    if (!r->n) return;
    if (!r->n_fit) {
        to_fit(cl, q, &r->layout[0], out);
        return;
    }
    const ls_planned *best = &r->layout[0];
    larger_batch(cl, q, best, out);
    recomputation(cl, q, best, out);
    fewer_workers(cl, q, best, out);
    precision(cl, q, best, out);
}
