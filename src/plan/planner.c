/* planner.c - plans, predicts and ranks every layout of a number of workers. */
#include "plan/planner_impl.h"

#include "comm/start.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "model/model.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ls_train_config ls_planner_config(const ls_planner_query *q, const char *strategy, ls_mesh mesh, const char *schedule,
                                  int interleave, int micro_batch)
{
    const int dp = mesh.n[LS_AXIS_DP];
    return (ls_train_config){.model = q->model,
                             .world_size = mesh.world,
                             .seq_len = q->seq_len,
                             .micro_batch = micro_batch,
                             .grad_accum = (int)(q->global_batch / dp / micro_batch),
                             .global_batch = q->global_batch,
                             .compute = q->cuda ? "cuda" : "cpu",
                             .device = q->cuda ? "cuda" : "cpu",
                             .precision = ls_precision_word(q->dtype),
                             .dtype = q->dtype,
                             .device_index = -1,
                             .strategy = strategy,
                             .mesh = mesh,
                             .schedule = mesh.n[LS_AXIS_PP] > 1 ? schedule : NULL,
                             .interleave = interleave,
                             .bucket = q->bucket ? q->bucket
                                       : q->cuda ? LS_BUCKET_GPU
                                                 : LS_BUCKET,
                             .gather_bucket = LS_GATHER_BUCKET,
                             .prefetch_bucket = LS_PREFETCH_BUCKET,
                             .recompute = q->recompute,
                             .offload = q->offload,
                             .clip = 1,
                             .deterministic = !q->no_deterministic || !q->cuda};
}

ls_status ls_planner_settle(const ls_cluster *cl, ls_planner_query *q)
{
    const char *word = ls_precision_word(q->dtype);
    const bool dropout = q->model.attn_pdrop > 0;
    if (dropout && !ls_cluster_knows_dropout(cl, q->dtype, true)) {
        if (q->dropout_given)
            return ls_fail(LS_E_UNSUPPORTED,
                           "--dropout %g: cluster %s has no times with dropout in %s; plan with --dropout 0, %s",
                           q->model.attn_pdrop, cl->name, word,
                           cl->cpu ? "or measure again (plan --measure --dropout P)"
                                   : "measure (plan --measure), or add attention_dropout_flops to its rates");
        q->model.embd_pdrop = q->model.attn_pdrop = q->model.resid_pdrop = 0;
        q->dropout_given = q->dropout_unknown = true;
    }
    if (q->cuda && !q->no_deterministic && !ls_cluster_knows_order(cl, q->dtype))
        q->no_deterministic = q->order_unknown = true;
    return LS_OK;
}

void ls_planner_share(const ls_cluster *cl, ls_train_config *c)
{
    int share[1024];
    if (cl->cpu && c->world_size > 1 && c->world_size <= 1024) (void)ls_train_share_cores(c, cl->devices, share);
}

static int threads_of(const ls_cluster *cl, const ls_train_config *c, int rank)
{
    const int W = ls_cluster_crowd(cl, c->world_size).on_host;
    if (c->threads) return c->threads;
    if (c->stage_thread[0]) return c->stage_thread[ls_mesh_coord(&c->mesh, rank).at[LS_AXIS_PP]];
    if (!cl->cpu || cl->devices < W) return 1;
    rank %= W;
    return cl->devices * (rank + 1) / W - cl->devices * rank / W;
}

ls_worker_cpu ls_planner_cpu(const ls_cluster *cl, const ls_train_config *c, int rank)
{
    return (ls_worker_cpu){threads_of(cl, c, rank), ls_cluster_kernel(cl, c->dtype)};
}

void ls_planned_words(const ls_train_config *c, char buf[96])
{
    const int D = c->mesh.n[LS_AXIS_DP], P = c->mesh.n[LS_AXIS_PP], T = c->mesh.n[LS_AXIS_TP];
    char pipe[64] = "", chunks[16] = "", cut[16] = "";
    if (T > 1) snprintf(cut, sizeof cut, " tp %d", T);
    if (c->interleave > 1) snprintf(chunks, sizeof chunks, " x %d", c->interleave);
    if (P > 1) snprintf(pipe, sizeof pipe, " pp %d (%.24s%s)", P, c->schedule, chunks);
    snprintf(buf, 96, "%s dp %d%s%s, %d x %d", c->strategy, D, pipe, cut, c->micro_batch, c->grad_accum);
}

enum { MOST_SIZE = 1024 }; /* of a micro-batch, of accumulation: what is looked at */

static const char *const strategies[] = {"single", "dp", "ddp", "zero1", "zero2", "zero3"};

/* Up to this number of workers every layout is evaluated. */
enum { EVERY = 64, MOST_KEPT = 64 };

typedef struct candidate {
    ls_train_config cfg;
    double least; /* lower bound of its step; 0: unknown */
} candidate;

typedef struct search {
    const ls_cluster *cl;
    const ls_planner_query *q;
    ls_planner_result *r;
    size_t cap;
    candidate *list;
    size_t n_list, list_cap;
    bool bounded;           /* only layouts that can be among the best are evaluated */
    double best[MOST_KEPT]; /* seconds of the fastest layouts that fit, ascending */
    int n_best;
    double of_kind[6][2][2]; /* the fastest of each strategy; without and with stages, shards */
} search;

/* Counts an impossible combination and keeps its message, without duplicates. */
static void refuse(search *s, const char *words)
{
    enum { MOST = sizeof s->r->bad / sizeof s->r->bad[0], SAME = 40 };
    int k = 0;
    s->r->n_bad++;
    while (k < MOST && s->r->bad[k][0] && strncmp(s->r->bad[k], words, SAME)) k++;
    if (k < MOST && !s->r->bad[k][0]) snprintf(s->r->bad[k], sizeof s->r->bad[k], "%s", words);
}

/* The shards of a layer differ by one row of the vocabulary at most: shard 0, and the first that has a row more than it. */
static int shard_with_most(int64_t vocab, int T)
{
    for (int t = 1; t < T; t++)
        if (vocab * (t + 1) / T - vocab * t / T > vocab / T) return t;
    return 0;
}

/* Of the first replica: the others hold as much, or less. Sets worst, worst_rank, host_bytes. */
static ls_status worst_worker(const ls_cluster *cl, const ls_planner_query *q, ls_planned *l, ls_stages *stages,
                              ls_schedule *schedule)
{
    const ls_train_config *c = &l->cfg;
    const int P = c->mesh.n[LS_AXIS_PP], T = c->mesh.n[LS_AXIS_TP],
              shard[2] = {0, shard_with_most(c->model.vocab_size, T)};
    int64_t host = 0;
    for (int p = 0; p < P; p++)
        for (int k = 0; k < (shard[1] ? 2 : 1); k++) {
            ls_plan_memory m;
            const int rank = p * T + shard[k];
            LS_TRY(planner_memory_in(c, q->gpu, ls_planner_cpu(cl, c, rank), rank, q->val_seqs, stages, schedule, &m));
            host = LS_MAX(host, m.host);
            if (m.total <= l->worst.total) continue;
            l->worst = m;
            l->worst_rank = rank;
        }
    l->host_bytes = cl->cpu || c->offload ? host * ls_cluster_crowd(cl, c->world_size).on_host : 0;
    return LS_OK;
}

int64_t ls_planner_comm_bytes(const ls_train_config *c)
{
    if (strcmp(c->device, "cuda") || !c->deterministic) return 0;
    return (int64_t)(ls_comm_nccl_nbytes(c->mesh.n[LS_AXIS_DP]) + ls_comm_nccl_nbytes(c->mesh.n[LS_AXIS_TP]));
}

int64_t ls_planner_reserve(const ls_planner_query *q)
{
    return q->cuda ? (int64_t)(0.6 * (1 << 30)) : 0;
}

int64_t ls_planner_checkpoint_bytes(const ls_model_config *m)
{
    return 3 * (int64_t)sizeof(float) * ls_model_n_param(m);
}

ls_failures ls_planner_failures(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l)
{
    const int on_host = ls_cluster_crowd(cl, l->cfg.world_size).on_host;
    return (ls_failures){.mtbf = q->mtbf,
                         .hosts = (l->cfg.world_size + on_host - 1) / on_host,
                         .checkpoint = (double)ls_planner_checkpoint_bytes(&l->cfg.model) / q->checkpoint_bandwidth,
                         .restart = q->restart,
                         .step = l->time.step};
}

ls_plan_totals ls_planner_totals(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l)
{
    const ls_train_config *c = &l->cfg;
    const double peak = ls_cluster_peak(cl, c->dtype) * c->world_size, rate = l->time.tokens_per_sec;
    ls_plan_totals t = {NAN, NAN, NAN, NAN, NAN, NAN};
    if (peak > 0) t.mfu = rate * ls_flops_per_token(&c->model, c->seq_len) / peak;
    if (q->mtbf > 0) {
        const ls_failures f = ls_planner_failures(cl, q, l);
        t.goodput = ls_goodput_best(&f).goodput;
    }
    if (!(q->tokens > 0)) return t;
    t.seconds = t.elapsed = q->tokens / rate;
    if (q->mtbf > 0) t.elapsed = t.goodput < LS_GOODPUT_LEAST ? NAN : t.elapsed / t.goodput;
    if (cl->power > 0 && !cl->cpu) t.kwh = cl->power * c->world_size * t.elapsed / 3.6e6;
    if (q->price > 0) t.cost = q->price * c->world_size * t.elapsed / 3600;
    return t;
}

int64_t planner_need(const ls_planned *l)
{
    return l->worst.total + l->comm_bytes;
}

static void judge(const ls_cluster *cl, const ls_planner_query *q, ls_planned *l)
{
    const int64_t total = q->memory ? q->memory : cl->memory, reserve = ls_planner_reserve(q);
    const int64_t have = total > reserve ? total - reserve : 0;
    l->comm_bytes = ls_planner_comm_bytes(&l->cfg);
    const int64_t need = cl->cpu ? l->host_bytes : planner_need(l), *part = l->worst.part;
    char a[32], b[32], c[32], kept[64] = "";
    l->fits = need <= have;
    if (l->fits) return;
    int most = 0;
    for (int k = 1; k < LS_N_PART; k++)
        if (part[k] > part[most]) most = k;
    const bool copies = most == LS_PART_GRAD && q->cuda && l->cfg.deterministic && l->cfg.grad_accum > 2;
    if (reserve) snprintf(kept, sizeof kept, " (%s are reserved)", ls_human_bytes(a, (double)reserve));
    snprintf(l->why, sizeof l->why, "needs %s%s, %s available%s; worker %d: mostly %s, %s%s",
             ls_human_bytes(a, (double)need), cl->cpu ? " per host" : "", ls_human_bytes(b, (double)have), kept,
             l->worst_rank, ls_part_word((ls_part)most), ls_human_bytes(c, (double)part[most]),
             copies ? " (one order of sums keeps several copies; --no_deterministic keeps one)" : "");
}

ls_status planner_fit(const ls_cluster *cl, const ls_planner_query *q, ls_planned *l)
{
    ls_stages stages;
    ls_schedule *schedule = NULL;
    ls_status st = ls_run_stages(&l->cfg, NULL, &stages, &schedule);
    if (st == LS_OK) st = worst_worker(cl, q, l, &stages, schedule);
    ls_schedule_destroy(&schedule);
    if (st == LS_OK) judge(cl, q, l);
    return st;
}

/* ---- the search ---- */

static ls_status consider(search *s, const ls_train_config *c)
{
    LS_TRY(ls_reserve(&s->list, &s->list_cap, s->n_list + 1, sizeof *s->list, "the layouts"));
    candidate *k = &s->list[s->n_list++];
    *k = (candidate){.cfg = *c};
    if (!s->cl->cpu && s->q->workers > s->cl->devices && !s->q->bucket) planner_buckets(s->cl, &k->cfg);
    if (s->bounded) k->least = planner_least(s->cl, &k->cfg);
    return LS_OK;
}

static double *fastest_of_kind(search *s, const ls_train_config *c)
{
    size_t i = 0;
    while (i + 1 < sizeof strategies / sizeof strategies[0] && strcmp(strategies[i], c->strategy)) i++;
    return &s->of_kind[i][c->mesh.n[LS_AXIS_PP] > 1][c->mesh.n[LS_AXIS_TP] > 1];
}

/* Keeps the seconds of a layout that fits. */
static void keep(search *s, const ls_planned *l)
{
    const int most = LS_MIN(MOST_KEPT, LS_MAX(s->q->top, 15));
    double *kind = fastest_of_kind(s, &l->cfg), sec = l->time.step;
    if (*kind == 0 || sec < *kind) *kind = sec;
    int k = s->n_best < most ? s->n_best++ : most;
    for (; k > 0 && s->best[k - 1] > sec; k--)
        if (k < most) s->best[k] = s->best[k - 1];
    if (k < most) s->best[k] = sec;
}

/* Whether the layout can be among those that are printed, or the fastest of its kind. */
static bool promising(search *s, const candidate *k)
{
    const int most = LS_MIN(MOST_KEPT, LS_MAX(s->q->top, 15));
    if (s->q->sketch) return !s->bounded || !s->n_best || k->least < s->best[0];
    const double kind = *fastest_of_kind(s, &k->cfg);
    return !s->bounded || s->n_best < most || k->least < s->best[most - 1] || (kind > 0 && k->least < kind) ||
           kind == 0;
}

static ls_status evaluate(search *s, const candidate *k)
{
    ls_planner_result *r = s->r;
    LS_TRY(ls_reserve(&r->layout, &s->cap, (size_t)r->n + 1, sizeof *r->layout, "the layouts"));
    ls_planned *l = &r->layout[r->n];
    *l = (ls_planned){.cfg = k->cfg};
    ls_planner_share(s->cl, &l->cfg);
    ls_status st = planner_fit(s->cl, s->q, l);
    const bool timed =
        !s->q->sketch || (l->fits && (!s->q->offload || ls_cluster_check_offload(s->cl, 1, s->q->dtype) == LS_OK));
    if (st == LS_OK && timed) st = ls_planner_predict(s->cl, &l->cfg, &l->time);
    if (st == LS_E_CONFIG || st == LS_E_ARG || st == LS_E_UNSUPPORTED) {
        refuse(s, ls_err_words());
        ls_err_clear();
        return LS_OK;
    }
    LS_TRY(st);
    if (l->fits) keep(s, l);
    r->n_fit += l->fits;
    r->n++;
    return LS_OK;
}

/* The next micro-batch size above b of `mine` sequences per replica, a product micro-batch x accumulation; 0: none. */
static int64_t next_size(int64_t mine, int64_t b)
{
    while (++b <= mine && b <= MOST_SIZE)
        if (mine % b == 0 && mine / b <= MOST_SIZE) return b;
    return 0;
}

static ls_status all_sizes(search *s, const char *strategy, ls_mesh mesh, const char *schedule, int interleave)
{
    const int64_t mine = s->q->global_batch / mesh.n[LS_AXIS_DP];
    for (int64_t b = next_size(mine, 0); b; b = next_size(mine, b)) {
        const ls_train_config c = ls_planner_config(s->q, strategy, mesh, schedule, interleave, (int)b);
        LS_TRY(consider(s, &c));
    }
    return LS_OK;
}

static ls_status all_schedules(search *s, const char *strategy, ls_mesh mesh)
{
    static const char *const plain[] = {"naive", "gpipe", "1f1b", "zb"};
    const int pp = mesh.n[LS_AXIS_PP];
    if (pp == 1) return all_sizes(s, strategy, mesh, NULL, 1);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (s->q->recompute && !strcmp(plain[i], "zb")) continue; /* a backward in two halves would recompute twice */
        LS_TRY(all_sizes(s, strategy, mesh, plain[i], 1));
    }
    for (int v = 2; v <= 4 && v * pp <= s->q->model.n_layer + 2; v++)
        LS_TRY(all_sizes(s, strategy, mesh, "interleaved", v));
    return LS_OK;
}

/* Refuses a mesh that is not possible, with the reason. */
static bool impossible(search *s, const ls_mesh *mesh)
{
    const ls_planner_query *q = s->q;
    char words[240];
    const int dp = mesh->n[LS_AXIS_DP], pp = mesh->n[LS_AXIS_PP], U = q->model.n_layer + 2;
    if (ls_shard_check(&q->model, mesh->n[LS_AXIS_TP]) != LS_OK) snprintf(words, 240, "%s", ls_err_words());
    else if (pp > U)
        snprintf(words, 240, "pp above %d: more stages than the model has units (embed, %d blocks, head)", U, U - 2);
    else if (q->global_batch % dp)
        snprintf(words, 240, "dp %d: the global batch of %lld sequences is not a multiple of %d", dp,
                 (long long)q->global_batch, dp);
    else if (!next_size(q->global_batch / dp, 0))
        snprintf(words, 240,
                 "dp %d: %lld sequences per replica are not a product micro-batch x accumulation with both at most %d",
                 dp, (long long)(q->global_batch / dp), MOST_SIZE);
    else if (q->strategy && (dp == 1) != !strcmp(q->strategy, "single"))
        snprintf(words, 240, "dp %d: strategy %s needs %s", dp, q->strategy,
                 dp == 1 ? "at least 2 replicas; use single for one replica" : "one replica");
    else return false;
    ls_err_clear();
    refuse(s, words);
    return true;
}

static ls_status all_strategies(search *s, ls_mesh mesh)
{
    if (impossible(s, &mesh)) return LS_OK;
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        /* with one replica every strategy is `single` */
        if ((mesh.n[LS_AXIS_DP] == 1) != (i == 0)) continue;
        if (s->q->strategy && strcmp(s->q->strategy, strategies[i])) continue;
        if (s->q->offload && (!strcmp(strategies[i], "dp") || !strcmp(strategies[i], "ddp"))) continue;
        if (s->r->no_dp && i == 1) continue;
        LS_TRY(all_schedules(s, strategies[i], mesh));
    }
    return LS_OK;
}

static int by_rank(const void *a, const void *b)
{
    const ls_planned *x = a, *y = b;
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (x->fits && x->time.step != y->time.step) return x->time.step < y->time.step ? -1 : 1;
    return (x->worst.total > y->worst.total) - (x->worst.total < y->worst.total);
}

static int by_bound(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return (x->least > y->least) - (x->least < y->least);
}

/* Best first: a layout whose lower bound is above the time of the best that are printed cannot be one of them. For advice the other schedules
 * follow 1f1b, and only if something fits. */
static ls_status evaluate_all(search *s)
{
    if (s->bounded && s->n_list) qsort(s->list, s->n_list, sizeof *s->list, by_bound);
    for (int later = 0; later <= s->q->sketch && (!later || s->n_best); later++)
        for (size_t i = 0; i < s->n_list; i++) {
            const char *schedule = s->list[i].cfg.schedule;
            if (s->q->sketch && (schedule && strcmp(schedule, "1f1b")) != later) continue;
            if (promising(s, &s->list[i])) LS_TRY(evaluate(s, &s->list[i]));
            else s->r->n_slow++;
        }
    return LS_OK;
}

ls_status ls_planner_search(const ls_cluster *cl, const ls_planner_query *q, ls_planner_result *out)
{
    search s = {.cl = cl,
                .q = q,
                .r = out,
                .bounded = q->top > 0 && q->top <= MOST_KEPT && (q->workers > EVERY || q->sketch) && !cl->cpu};
    ls_status st = LS_OK;
    *out = (ls_planner_result){0};
    out->no_dp = !cl->cpu && q->workers > cl->devices && !(q->strategy && !strcmp(q->strategy, "dp"));
    for (int tp = 1; tp <= q->workers && (!q->max_tp || tp <= q->max_tp); tp++)
        for (int pp = 1; pp * tp <= q->workers && st == LS_OK; pp++) {
            ls_mesh mesh;
            if (q->workers % (pp * tp)) continue;
            st = ls_mesh_build(&mesh, q->workers, 0, pp, tp);
            if (st == LS_OK) st = all_strategies(&s, mesh);
        }
    if (st == LS_OK) st = evaluate_all(&s);
    ls_free(s.list);
    ls_info("plan", "%d layouts of %d workers, %d fit in memory; %d combinations are not possible", out->n, q->workers,
            out->n_fit, out->n_bad);
    if (st != LS_OK) ls_planner_result_fini(out);
    else if (out->n) qsort(out->layout, (size_t)out->n, sizeof *out->layout, by_rank);
    return st;
}

void ls_planner_result_fini(ls_planner_result *r)
{
    ls_free(r->layout);
    *r = (ls_planner_result){0};
}
