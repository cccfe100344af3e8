/* planner.c - every layout of so many workers: planned, timed, ranked. */
#include "bench/planner.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKET 6553600 /* elements: the trainer's default for all three */

ls_train_config ls_planner_config(const ls_planner_query *q, const char *strategy, int dp, int pp, const char *schedule,
                                  int interleave, int micro_batch)
{
    const int64_t bucket = q->bucket ? q->bucket : BUCKET;
    return (ls_train_config){.model = q->model,
                             .world_size = dp * pp,
                             .seq_len = q->seq_len,
                             .micro_batch = micro_batch,
                             .grad_accum = (int)(q->global_batch / dp / micro_batch),
                             .global_batch = q->global_batch,
                             .compute = "cpu",
                             .device = "cpu",
                             .precision = "fp32",
                             .strategy = strategy,
                             .mesh = {.n = {dp, pp, 1}, .world = dp * pp},
                             .schedule = pp > 1 ? schedule : NULL,
                             .interleave = interleave,
                             .bucket = bucket,
                             .gather_bucket = bucket,
                             .prefetch_bucket = bucket,
                             .recompute = q->recompute,
                             .deterministic = true};
}

int ls_planner_threads(const ls_cluster *cl, int workers, int rank)
{
    if (!cl->cpu || cl->devices < workers) return 1;
    return cl->devices * (rank + 1) / workers - cl->devices * rank / workers;
}

void ls_layout_words(const ls_train_config *c, char buf[96])
{
    const int D = c->mesh.n[LS_AXIS_DP], P = c->mesh.n[LS_AXIS_PP];
    char pipe[64] = "", chunks[16] = "";
    if (c->interleave > 1) snprintf(chunks, sizeof chunks, " x %d", c->interleave);
    if (P > 1) snprintf(pipe, sizeof pipe, " pp %d (%.24s%s)", P, c->schedule, chunks);
    snprintf(buf, 96, "%s dp %d%s, %d x %d", c->strategy, D, pipe, c->micro_batch, c->grad_accum);
}

typedef struct search {
    const ls_cluster *cl;
    const ls_planner_query *q;
    ls_planner_result *r;
    int cap;
} search;

/* A combination that cannot be: its words are kept, once each. */
static void refuse(search *s, const char *words)
{
    enum { MOST = sizeof s->r->bad / sizeof s->r->bad[0], SAME = 40 };
    int k = 0;
    s->r->n_bad++;
    while (k < MOST && s->r->bad[k][0] && strncmp(s->r->bad[k], words, SAME)) k++;
    if (k < MOST && !s->r->bad[k][0]) snprintf(s->r->bad[k], sizeof s->r->bad[k], "%s", words);
}

static ls_status worst_worker(const search *s, ls_layout *l)
{
    const int P = l->cfg.mesh.n[LS_AXIS_PP];
    for (int rank = 0; rank < P; rank++) { /* of the first replica: the others hold as much, or less */
        ls_plan_memory m;
        LS_TRY(ls_planner_memory(&l->cfg, ls_planner_threads(s->cl, l->cfg.world_size, rank), rank, 0, &m));
        if (m.total <= l->worst.total) continue;
        l->worst = m;
        l->worst_rank = rank;
    }
    return LS_OK;
}

static void judge(const search *s, ls_layout *l)
{
    const ls_cluster *cl = s->cl;
    const int64_t have = s->q->memory ? s->q->memory : cl->memory;
    const int on_host = l->cfg.world_size < cl->devices ? l->cfg.world_size : cl->devices;
    const int64_t need = cl->cpu ? l->worst.total * on_host : l->worst.total;
    char a[32], b[32], c[32], d[32];
    l->host_bytes = l->worst.total * on_host;
    l->fits = need <= have;
    if (l->fits) return;
    const int64_t *part = l->worst.part;
    snprintf(l->why, sizeof l->why,
             "needs %s%s, has %s; worker %d: parameters, gradients, optimizer %s, activations %s",
             ls_human_bytes(a, (double)need), cl->cpu ? " a host" : "", ls_human_bytes(b, (double)have), l->worst_rank,
             ls_human_bytes(c, (double)(part[LS_PART_PARAM] + part[LS_PART_GRAD] + part[LS_PART_OPT])),
             ls_human_bytes(d, (double)part[LS_PART_ACT]));
}

static ls_status consider(search *s, const ls_train_config *c)
{
    ls_planner_result *r = s->r;
    if (r->n == s->cap) {
        const int cap = s->cap ? 2 * s->cap : 256;
        ls_layout *more = ls_realloc(r->layout, (size_t)cap * sizeof *more);
        if (!more) return ls_nomem((size_t)cap * sizeof *more, "the layouts");
        r->layout = more;
        s->cap = cap;
    }
    ls_layout *l = &r->layout[r->n];
    *l = (ls_layout){.cfg = *c};
    ls_status st = worst_worker(s, l);
    if (st == LS_OK) st = ls_planner_predict(s->cl, c, &l->time);
    if (st == LS_E_CONFIG || st == LS_E_ARG || st == LS_E_UNSUPPORTED) {
        refuse(s, ls_err_words());
        ls_err_clear();
        return LS_OK;
    }
    LS_TRY(st);
    judge(s, l);
    r->n_fit += l->fits;
    r->n++;
    return LS_OK;
}

/* Micro-batches of every size that divides a replica's share. */
static ls_status all_sizes(search *s, const char *strategy, int dp, int pp, const char *schedule, int interleave)
{
    const int64_t mine = s->q->global_batch / dp;
    for (int64_t b = 1; b <= mine && b <= 1024; b++) {
        if (mine % b || mine / b > 1024) continue;
        const ls_train_config c = ls_planner_config(s->q, strategy, dp, pp, schedule, interleave, (int)b);
        LS_TRY(consider(s, &c));
    }
    return LS_OK;
}

static ls_status all_schedules(search *s, const char *strategy, int dp, int pp)
{
    static const char *const plain[] = {"naive", "gpipe", "1f1b", "zb"};
    if (pp == 1) return all_sizes(s, strategy, dp, 1, NULL, 1);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (s->q->recompute && !strcmp(plain[i], "zb")) continue; /* a backward in two halves would recompute twice */
        LS_TRY(all_sizes(s, strategy, dp, pp, plain[i], 1));
    }
    for (int v = 2; v <= 4 && v * pp <= s->q->model.n_layer + 2; v++)
        LS_TRY(all_sizes(s, strategy, dp, pp, "interleaved", v));
    return LS_OK;
}

static int by_rank(const void *a, const void *b)
{
    const ls_layout *x = a, *y = b;
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (x->fits && x->time.step != y->time.step) return x->time.step < y->time.step ? -1 : 1;
    return (x->worst.total > y->worst.total) - (x->worst.total < y->worst.total);
}

ls_status ls_planner_search(const ls_cluster *cl, const ls_planner_query *q, ls_planner_result *out)
{
    static const char *const strategy[] = {"single", "dp", "ddp", "zero1", "zero2", "zero3"};
    search s = {.cl = cl, .q = q, .r = out};
    *out = (ls_planner_result){0};
    for (int pp = 1; pp <= q->workers; pp++) {
        char words[240];
        const int dp = q->workers / pp;
        if (q->workers % pp) continue;
        if (pp > q->model.n_layer + 2) {
            snprintf(words, sizeof words, "pp %d: the model has %d units (embed, %d blocks, head)", pp,
                     q->model.n_layer + 2, q->model.n_layer);
            refuse(&s, words);
            continue;
        }
        if (q->global_batch % dp) {
            snprintf(words, sizeof words, "dp %d: a global batch of %lld sequences leaves %lld over", dp,
                     (long long)q->global_batch, (long long)(q->global_batch % dp));
            refuse(&s, words);
            continue;
        }
        for (size_t i = 0; i < sizeof strategy / sizeof strategy[0]; i++) {
            /* with one replica every strategy is `single` */
            if ((dp == 1) != (i == 0) || (q->strategy && strcmp(q->strategy, strategy[i]))) continue;
            ls_status st = all_schedules(&s, strategy[i], dp, pp);
            if (st != LS_OK) {
                ls_planner_result_fini(out);
                return st;
            }
        }
    }
    if (out->n) qsort(out->layout, (size_t)out->n, sizeof *out->layout, by_rank);
    return LS_OK;
}

void ls_planner_result_fini(ls_planner_result *r)
{
    ls_free(r->layout);
    *r = (ls_planner_result){0};
}
