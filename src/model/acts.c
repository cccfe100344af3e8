/* acts.c - the activations of a pass, as rows of the memory plan.
 *
 *             forward →                                   ← backward
 *   slot u    |x  mean rstd  qkv lse atty  res mean rstd  fc| … alive from forward of u (x: of u-1) to backward of u
 *   shared    ln tmp ffn | classifier | ffn dffn da db      alive during the pass, or the phase that uses them
 *
 * Without training nothing is kept: one set of buffers serves every block, and x alternates between two. With
 * recompute a block keeps only x, and one set of the other buffers serves all blocks; its second forward writes
 * the next block's x again, so that x lives one time point longer. */
#include "model/model_impl.h"

#include "core/mem.h"

#include <stdio.h>

enum {
    ROW_X,
    ROW_MEAN1,
    ROW_RSTD1,
    ROW_QKV,
    ROW_LSE,
    ROW_ATTY,
    ROW_RES,
    ROW_MEAN2,
    ROW_RSTD2,
    ROW_FC,
    ROW_GELU,
    ROW_KCACHE,
    ROW_VCACHE,
    ROW_DOUT, /* from here on: of a split backward */
    ROW_DFC,
    ROW_DPROJ,
    ROW_DQKV,
    ROW_DNORM,
    N_SLOT_ROW
};
enum {
    ROW_LN,
    ROW_TMP,
    ROW_FFN,
    ROW_FFN_AGAIN,
    ROW_DFFN,
    ROW_DA,
    ROW_DB,
    ROW_LOSS,
    ROW_WORK,
    ROW_HEAD_WORK,
    N_SHARED_ROW
};

_Static_assert((int)N_SLOT_ROW == LS_ACTS_SET, "a set has one entry per row of a slot");

typedef struct shape {
    int64_t R, S, C;      /* rows, this shard's rows outside the products, channels */
    int64_t H, A, F;      /* this shard's heads, their channels and its MLP columns */
    int64_t cache;        /* elements of one cache: B * cache_len * C */
    int64_t esize, wsize; /* bytes of an element; in the optimizer's type */
} shape;

static const char *const slot_word[N_SLOT_ROW] = {"x",       "mean1", "rstd1", "qkv",    "lse",   "atty",
                                                  "res",     "mean2", "rstd2", "fc",     "gelu",  "k cache",
                                                  "v cache", "d out", "d fc",  "d proj", "d qkv", "d norms"};

static int64_t slot_elements(const shape *s, int row);

static int64_t slot_bytes(const shape *s, int row)
{
    switch (row) {
    case ROW_MEAN1:
    case ROW_RSTD1:
    case ROW_MEAN2:
    case ROW_RSTD2:
    case ROW_LSE:
    case ROW_DNORM: return slot_elements(s, row) * s->wsize;
    default: return slot_elements(s, row) * s->esize;
    }
}

static int64_t slot_elements(const shape *s, int row)
{
    switch (row) {
    case ROW_DQKV:
    case ROW_QKV: return 3 * s->R * s->A;
    case ROW_DFC:
    case ROW_GELU:
    case ROW_FC: return s->R * s->F;
    case ROW_DNORM: return 4 * s->C;
    case ROW_KCACHE:
    case ROW_VCACHE: return s->cache;
    case ROW_LSE: return s->R * s->H;
    case ROW_ATTY: return s->R * s->A;
    case ROW_DOUT:
    case ROW_DPROJ: return s->R * s->C;
    case ROW_X:
    case ROW_RES: return s->S * s->C;
    default: return s->S;
    }
}

/* In a pipeline every row has an unlimited life. */
static int add(ls_plan *plan, const ls_acts_opts *o, ls_part part, int64_t nbytes, int first, int last,
               const char *what, int u)
{
    char name[40];
    if (u < 0) snprintf(name, sizeof name, "%s", what);
    else snprintf(name, sizeof name, "unit %d %s", u, what);
    return o->pipe ? ls_plan_add(plan, part, nbytes, LS_PLAN_ALWAYS, "%s", name)
                   : ls_plan_add(plan, part, nbytes, first, last, "%s", name);
}

/* Buffers of a single pass: one set serves every unit, and all activations that share it. */
static void plan_shared(const ls_model *m, const ls_acts_opts *o, const shape *s, ls_plan *plan, int *sh)
{
    const int head = m->n_unit - 1, end = ls_moment_bwd(m, 0);
    const int64_t ffn = s->R * s->F * s->esize, stream = s->R * s->C * s->esize;
    const int loss = ls_moment_fwd(m, head), turn = ls_moment_bwd(m, head); /* the head's forward, its backward */
    for (int k = 0; k < N_SHARED_ROW; k++) sh[k] = -1;
    sh[ROW_LN] = add(plan, o, LS_PART_ACT, stream, 0, end, "norm output", -1);
    sh[ROW_TMP] = add(plan, o, LS_PART_ACT, stream, 0, end, "projection output", -1);
    sh[ROW_LOSS] = add(plan, o, LS_PART_ACT, s->R * (int64_t)sizeof(double), 0, end, "row losses", -1);
    if (o->train && o->keep_gelu && !o->recompute)
        sh[ROW_FFN] = sh[ROW_FFN_AGAIN] = -1; /* every slot has its own buffer */
    else if (!o->train || o->recompute || o->pipe) {
        sh[ROW_FFN] = sh[ROW_FFN_AGAIN] = add(plan, o, LS_PART_ACT, ffn, 0, end, "gelu output", -1);
    } else { /* not needed between forward and backward, so the classifier may use its memory */
        sh[ROW_FFN] = add(plan, o, LS_PART_ACT, ffn, 0, loss - 1, "gelu output, forward", -1);
        sh[ROW_FFN_AGAIN] = add(plan, o, LS_PART_ACT, ffn, turn + 1, end, "gelu output, backward", -1);
    }
    if (o->train) {
        sh[ROW_DFFN] = add(plan, o, LS_PART_ACT, ffn, turn + 1, end, "d wide", -1);
        if (!o->pipe) sh[ROW_DA] = add(plan, o, LS_PART_ACT, s->S * s->C * s->esize, turn, end, "d x", -1);
        sh[ROW_DB] = add(plan, o, LS_PART_ACT, s->S * s->C * s->esize, loss, end, "d residual", -1);
    }
    ls_compute_shapes shapes = {.B = o->B,
                                .T = o->T > o->cache_len ? o->T : o->cache_len,
                                .C = s->C,
                                .H = m->cfg.n_head,
                                .ffn = s->F,
                                .backward = o->train,
                                .n_part = m->shard.size};
    sh[ROW_WORK] =
        ls_plan_add(plan, LS_PART_WORK, (int64_t)ls_compute_scratch(m->compute, &shapes), LS_PLAN_ALWAYS, "operations");
    if (o->last <= head) return; /* this stage has no classifier */
    shapes.V = model_vocab(m);
    sh[ROW_HEAD_WORK] =
        add(plan, o, LS_PART_WORK, (int64_t)ls_compute_scratch(m->compute, &shapes), loss, loss, "classifier", -1);
}

ls_status ls_acts_plan(ls_acts **out, const ls_model *m, const ls_acts_opts *given, ls_plan *plan)
{
    ls_acts_opts opts = *given, *o = &opts;
    const int U = m->n_unit, head = U - 1, end = ls_moment_bwd(m, 0);
    const shape s = {.R = o->B * o->T,
                     .S = model_rows(m, o->B * o->T),
                     .C = m->cfg.n_embd,
                     .H = model_heads(m),
                     .A = model_width(m),
                     .F = model_ffn(m),
                     .cache = o->B * o->cache_len * model_width(m),
                     .esize = (int64_t)ls_dtype_nbytes(m->compute->ops->dtype),
                     .wsize = (int64_t)ls_dtype_nbytes(m->compute->ops->wide)};
    if (!o->last) o->last = U;
    ls_acts *a = ls_alloc(sizeof *a);
    ls_slot *slot = ls_alloc((size_t)U * sizeof *slot);
    int *row = ls_alloc((size_t)(U * N_SLOT_ROW + N_SHARED_ROW) * sizeof *row);
    if (!a || !slot || !row) {
        ls_free(a);
        ls_free(slot);
        ls_free(row);
        return ls_nomem((size_t)U * sizeof *slot, "the activation plan");
    }
    *a = (ls_acts){.B = o->B,
                   .T = o->T,
                   .cache_len = o->cache_len,
                   .train = o->train,
                   .recompute = o->recompute,
                   .slot = slot,
                   .row = row,
                   .first = o->first,
                   .last = o->last};
    int *sh = &row[U * N_SLOT_ROW];
    if (o->share)
        for (int k = 0; k < N_SHARED_ROW; k++) sh[k] = o->share->row[U * N_SLOT_ROW + k];
    else plan_shared(m, o, &s, plan, sh);

    int shared_set[N_SLOT_ROW]; /* one set for all blocks: no training, or recompute */
    const bool share = !o->train || o->recompute;
    for (int k = 0; share && k < N_SLOT_ROW; k++) {
        if (k == ROW_X || k >= ROW_GELU) continue;
        shared_set[k] =
            o->share ? o->share->set[k] : add(plan, o, LS_PART_ACT, slot_bytes(&s, k), 0, end, slot_word[k], -1);
        a->set[k] = shared_set[k];
    }
    int pair[2] = {-1, -1};
    for (int k = 0; !o->train && k < 2; k++)
        pair[k] = add(plan, o, LS_PART_ACT, slot_elements(&s, ROW_X) * s.esize, 0, end, k ? "x odd" : "x even", -1);

    for (int u = 0; u < U; u++) {
        for (int k = 0; k < N_SLOT_ROW; k++) {
            int *at = &row[u * N_SLOT_ROW + k];
            *at = -1;
            /* after the last unit there is only its output; embed keeps nothing */
            if (u == 0 || u < o->first || u > o->last || (u == o->last && k != ROW_X)) continue;
            if (u == head && k > ROW_RSTD1) continue;
            if (k >= ROW_DOUT) {
                if (o->split && u < head) *at = add(plan, o, LS_PART_ACT, slot_bytes(&s, k), 0, end, slot_word[k], u);
            } else if (k >= ROW_KCACHE) {
                if (o->cache_len)
                    *at = ls_plan_add(plan, LS_PART_ACT, s.cache * s.esize, LS_PLAN_ALWAYS, "unit %d %s", u,
                                      slot_word[k]);
            } else if (k == ROW_GELU && (!o->train || o->recompute || !o->keep_gelu)) continue;
            else if (k == ROW_X && !o->train) *at = pair[u % 2];
            else if (k != ROW_X && share && u != head) *at = shared_set[k];
            else
                *at = add(plan, o, LS_PART_ACT, slot_bytes(&s, k), ls_moment_fwd(m, u) - (k == ROW_X),
                          ls_moment_bwd(m, u) + (k == ROW_X && o->recompute), slot_word[k], u);
        }
    }
    *out = a;
    return LS_OK;
}

static void *at(const ls_plan *plan, int row)
{
    return row < 0 ? NULL : ls_plan_at(plan, row);
}

void ls_acts_bind(ls_acts *a, const ls_model *m, const ls_plan *plan)
{
    for (int u = 1; u < m->n_unit; u++) {
        const int *r = &a->row[u * N_SLOT_ROW];
        a->slot[u] = (ls_slot){.x = at(plan, r[ROW_X]),
                               .mean1 = at(plan, r[ROW_MEAN1]),
                               .rstd1 = at(plan, r[ROW_RSTD1]),
                               .qkv = at(plan, r[ROW_QKV]),
                               .lse = at(plan, r[ROW_LSE]),
                               .atty = at(plan, r[ROW_ATTY]),
                               .res = at(plan, r[ROW_RES]),
                               .mean2 = at(plan, r[ROW_MEAN2]),
                               .rstd2 = at(plan, r[ROW_RSTD2]),
                               .fc = at(plan, r[ROW_FC]),
                               .gelu = at(plan, r[ROW_GELU]),
                               .dout = at(plan, r[ROW_DOUT]),
                               .dfc = at(plan, r[ROW_DFC]),
                               .dproj = at(plan, r[ROW_DPROJ]),
                               .dqkv = at(plan, r[ROW_DQKV]),
                               .dnorm = at(plan, r[ROW_DNORM]),
                               .kcache = at(plan, r[ROW_KCACHE]),
                               .vcache = at(plan, r[ROW_VCACHE])};
    }
    const int *sh = &a->row[m->n_unit * N_SLOT_ROW];
    a->ln = at(plan, sh[ROW_LN]);
    a->tmp = at(plan, sh[ROW_TMP]);
    a->ffn = at(plan, sh[ROW_FFN]);
    a->ffn_again = at(plan, sh[ROW_FFN_AGAIN]);
    a->dffn = at(plan, sh[ROW_DFFN]);
    a->da = at(plan, sh[ROW_DA]);
    a->db = at(plan, sh[ROW_DB]);
    a->row_loss = at(plan, sh[ROW_LOSS]);
    a->work = at(plan, sh[ROW_WORK]);
    a->head_work = at(plan, sh[ROW_HEAD_WORK]);
    m->compute->scratch = a->work;
}

void ls_acts_destroy(ls_acts **a)
{
    if (!*a) return;
    ls_free((*a)->slot);
    ls_free((*a)->row);
    ls_free(*a);
    *a = NULL;
}
