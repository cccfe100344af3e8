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
#include "core/minmax.h"

#include <stdio.h>

typedef struct shape {
    int64_t R, S, C;      /* rows, this shard's rows outside the products, channels */
    int64_t H, A, F;      /* this shard's heads, their channels and its MLP columns */
    int64_t cache;        /* elements of one cache: B * cache_len * C */
    int64_t esize, wsize; /* bytes of an element; in the optimizer's type */
    int64_t fp8;          /* bytes of an 8-bit operand's element; 0: there are none */
} shape;

/* clang-format off */
/*    member of ls_slot   word of the plan   bytes */
#define SLOT_ROWS(X)                                        \
    X(x,      "x",       s->S * s->C * s->esize)            \
    X(mean1,  "mean1",   s->S * s->wsize)                   \
    X(rstd1,  "rstd1",   s->S * s->wsize)                   \
    X(qkv,    "qkv",     3 * s->R * s->A * s->esize)        \
    X(lse,    "lse",     s->R * s->H * s->wsize)            \
    X(atty,   "atty",    s->R * s->A * s->esize)            \
    X(res,    "res",     s->S * s->C * s->esize)            \
    X(mean2,  "mean2",   s->S * s->wsize)                   \
    X(rstd2,  "rstd2",   s->S * s->wsize)                   \
    X(fc,     "fc",      s->R * s->F * s->esize)            \
    X(ln1_t,  "ln1 fp8", s->R * s->C * s->fp8)              \
    X(atty_t, "atty fp8", s->R * s->A * s->fp8)             \
    X(ln2_t,  "ln2 fp8", s->R * s->C * s->fp8)              \
    X(gelu_t, "gelu fp8", s->R * s->F * s->fp8)             \
    X(gelu,   "gelu",    s->R * s->F * s->esize)            \
    X(kcache, "k cache", s->cache * s->esize)               \
    X(vcache, "v cache", s->cache * s->esize)               \
    /* of a split backward */                               \
    X(dout,   "d out",   s->R * s->C * s->esize)            \
    X(dfc,    "d fc",    s->R * s->F * s->esize)            \
    X(dproj,  "d proj",  s->R * s->C * s->esize)            \
    X(dqkv,   "d qkv",   3 * s->R * s->A * s->esize)        \
    X(dnorm,  "d norms", 4 * s->C * s->wsize)
/* Members of ls_acts: the buffers of a single pass. */
#define SHARED_ROWS(X) X(ln) X(tmp) X(ffn) X(ffn_again) X(dffn) X(da) X(db) X(x8) X(dy8) X(dy8_t) X(row_loss) X(work) X(head_work)

#define X(member, word, nbytes) ROW_##member,
enum { SLOT_ROWS(X) N_SLOT_ROW };
#undef X
#define X(member) ROW_##member,
enum { SHARED_ROWS(X) N_SHARED_ROW };
#undef X
/* clang-format on */

static const char *slot_word(int row)
{
#define X(member, word, nbytes) word,
    static const char *const words[] = {SLOT_ROWS(X)};
#undef X
    return words[row];
}

static int64_t slot_bytes(const shape *s, int row)
{
#define X(member, word, nbytes) nbytes,
    const int64_t bytes[] = {SLOT_ROWS(X)};
#undef X
    return bytes[row];
}

typedef struct planner {
    const ls_model *m;
    ls_acts_opts o;
    shape s;
    ls_plan *plan;
    int end;     /* the last time of backward                               */
    int pair[2]; /* x of even and odd units, without training               */
    int *set;    /* rows that all blocks share: no training, or recompute   */
} planner;

/* In a pipeline every row has an unlimited life. u -1: of no unit. */
static int add(const planner *p, ls_part part, int64_t nbytes, int first, int last, const char *what, int u)
{
    const int life[2][2] = {{first, last}, {LS_PLAN_ALWAYS}}, *t = life[p->o.pipe];
    return u < 0 ? ls_plan_add(p->plan, part, nbytes, t[0], t[1], "%s", what)
                 : ls_plan_add(p->plan, part, nbytes, t[0], t[1], "unit %d %s", u, what);
}

static int add_act(const planner *p, int64_t nbytes, int first, int last, const char *what)
{
    return add(p, LS_PART_ACT, nbytes, first, last, what, -1);
}

/* Buffers of a single pass: one set serves every unit, and all activations that share it. */
static void plan_shared(const planner *p, int *sh)
{
    const ls_model *m = p->m;
    const ls_acts_opts *o = &p->o;
    const shape *s = &p->s;
    const int head = m->n_unit - 1, end = p->end;
    const int64_t ffn = s->R * s->F * s->esize, stream = s->R * s->C * s->esize, local = s->S * s->C * s->esize;
    const int loss = ls_moment_fwd(m, head), turn = ls_moment_bwd(m, head); /* the head's forward, its backward */
    for (int k = 0; k < N_SHARED_ROW; k++) sh[k] = -1;
    sh[ROW_ln] = add_act(p, stream, 0, end, "norm output");
    sh[ROW_tmp] = add_act(p, stream, 0, end, "projection output");
    sh[ROW_row_loss] = add_act(p, s->R * (int64_t)sizeof(double), 0, end, "row losses");
    if (!o->train || o->recompute || (o->pipe && !o->keep_gelu)) {
        sh[ROW_ffn] = sh[ROW_ffn_again] = add_act(p, ffn, 0, end, "gelu output");
    } else if (!o->keep_gelu) { /* not needed between forward and backward, so the classifier may use its memory */
        sh[ROW_ffn] = add_act(p, ffn, 0, loss - 1, "gelu output, forward");
        sh[ROW_ffn_again] = add_act(p, ffn, turn + 1, end, "gelu output, backward");
    } /* else every slot has its own buffer */
    if (o->train) {
        sh[ROW_dffn] = add_act(p, ffn, turn + 1, end, "gradient of the MLP hidden layer");
        if (!o->pipe) sh[ROW_da] = add_act(p, local, turn, end, "gradient of the block input");
        sh[ROW_db] = add_act(p, local, loss, end, "gradient of the residual");
    }
    if (s->fp8) {
        const int64_t widest = s->R * LS_MAX(s->F, LS_MAX(3 * s->A, s->C)); /* outputs of fc, qkv and projections */
        sh[ROW_x8] = add_act(p, s->R * LS_MAX(s->F, s->C), 0, end, "fp8 input");
        sh[ROW_dy8] = add_act(p, widest, turn, end, "fp8 gradient");
        sh[ROW_dy8_t] = add_act(p, widest, turn, end, "fp8 gradient, transposed");
    }
    ls_compute_shapes shapes = {.B = o->B,
                                .T = o->T > o->cache_len ? o->T : o->cache_len,
                                .C = s->C,
                                .H = m->cfg.n_head,
                                .ffn = s->F,
                                .backward = o->train,
                                .n_part = m->shard.size,
                                .packed = o->packed,
                                .fp8 = s->fp8 > 0};
    sh[ROW_work] = ls_plan_add(p->plan, LS_PART_WORK, (int64_t)ls_compute_scratch(m->compute, &shapes), LS_PLAN_ALWAYS,
                               "operations");
    if (o->last <= head) return; /* this stage has no classifier */
    shapes.V = model_vocab(m);
    sh[ROW_head_work] =
        add(p, LS_PART_WORK, (int64_t)ls_compute_scratch(m->compute, &shapes), loss, loss, "classifier", -1);
}

/* The rows that blocks share: all but x and GELU's output. */
static void plan_set(planner *p, int *set)
{
    const ls_acts *other = p->o.share;
    if (p->o.train && !p->o.recompute) return;
    p->set = set;
    for (int k = ROW_x + 1; k < ROW_gelu; k++)
        set[k] = other                   ? other->row[k]
                 : !slot_bytes(&p->s, k) ? -1
                                         : add_act(p, slot_bytes(&p->s, k), 0, p->end, slot_word(k));
}

/* Row k of unit u, or -1: it has none. */
static int plan_slot_row(const planner *p, int u, int k)
{
    const ls_acts_opts *o = &p->o;
    const int head = p->m->n_unit - 1;
    const int64_t nbytes = slot_bytes(&p->s, k);
    /* after the last unit there is only its output */
    if (u < o->first || u > o->last || (u == o->last && k != ROW_x)) return -1;
    if ((u == head && k > ROW_rstd1) || !nbytes) return -1;
    if (k >= ROW_dout) return o->split ? add(p, LS_PART_ACT, nbytes, 0, p->end, slot_word(k), u) : -1;
    if (k >= ROW_kcache)
        return o->cache_len ? ls_plan_add(p->plan, LS_PART_ACT, nbytes, LS_PLAN_ALWAYS, "unit %d %s", u, slot_word(k))
                            : -1;
    if (k == ROW_gelu && (p->set || !o->keep_gelu)) return -1;
    if (k == ROW_x && !o->train) return p->pair[u % 2];
    if (k != ROW_x && p->set && u != head) return p->set[k];
    return add(p, LS_PART_ACT, nbytes, ls_moment_fwd(p->m, u) - (k == ROW_x),
               ls_moment_bwd(p->m, u) + (k == ROW_x && o->recompute), slot_word(k), u);
}

ls_status ls_acts_plan(ls_acts **out, const ls_model *m, const ls_acts_opts *o, ls_plan *plan)
{
    const int U = m->n_unit;
    planner p = {.m = m,
                 .o = *o,
                 .plan = plan,
                 .end = ls_moment_bwd(m, 0),
                 .s = {.R = o->B * o->T,
                       .S = model_rows(m, o->B * o->T),
                       .C = m->cfg.n_embd,
                       .H = model_heads(m),
                       .A = model_width(m),
                       .F = model_ffn(m),
                       .cache = o->B * o->cache_len * model_width(m),
                       .esize = (int64_t)ls_dtype_nbytes(m->compute->ops->dtype),
                       .wsize = (int64_t)ls_dtype_nbytes(m->compute->ops->wide),
                       .fp8 = m->fp8 && o->train}};
    if (!p.o.last) p.o.last = U;
    ls_acts *a = ls_alloc(sizeof *a);
    if (!a) return ls_nomem(sizeof *a, "the activation plan");
    *a = (ls_acts){.B = o->B, .T = o->T, .cache_len = o->cache_len, .recompute = o->recompute};
    a->slot = ls_alloc((size_t)U * sizeof *a->slot);
    a->row = ls_alloc((size_t)(U * N_SLOT_ROW + N_SHARED_ROW) * sizeof *a->row);
    if (!a->slot || !a->row) {
        ls_acts_destroy(&a);
        return ls_nomem((size_t)U * sizeof *a->slot, "the activation plan");
    }
    int *sh = &a->row[U * N_SLOT_ROW];
    if (o->share)
        for (int k = 0; k < N_SHARED_ROW; k++) sh[k] = o->share->row[U * N_SLOT_ROW + k];
    else plan_shared(&p, sh);
    plan_set(&p, a->row); /* embed keeps nothing, so the shared rows have its place */
    for (int k = 0; !o->train && k < 2; k++)
        p.pair[k] = add_act(&p, slot_bytes(&p.s, ROW_x), 0, p.end, k ? "x odd" : "x even");
    for (int u = 1; u < U; u++)
        for (int k = 0; k < N_SLOT_ROW; k++) a->row[u * N_SLOT_ROW + k] = plan_slot_row(&p, u, k);
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
        const int *row = &a->row[u * N_SLOT_ROW];
#define X(member, word, nbytes) .member = at(plan, row[ROW_##member]),
        a->slot[u] = (ls_slot){SLOT_ROWS(X)};
#undef X
    }
    const int *row = &a->row[m->n_unit * N_SLOT_ROW];
#define X(member) a->member = at(plan, row[ROW_##member]);
    SHARED_ROWS(X)
#undef X
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

ls_status ls_acts_copy_cache(const ls_model *m, const ls_acts *a, int64_t from, int64_t to, int64_t n_pos)
{
    ls_compute *c = m->compute;
    const int64_t H = m->cfg.n_head, D = m->cfg.n_embd / H, head = a->cache_len * D;
    const size_t nbytes = (size_t)(n_pos * D) * ls_dtype_nbytes(c->ops->dtype);
    LS_ASSERT(a->cache_len && from < a->B && to < a->B && n_pos <= a->cache_len && m->shard.size == 1);
    for (int u = 0; u < m->n_unit; u++) {
        void *const cache[] = {a->slot[u].kcache, a->slot[u].vcache};
        if (m->unit[u].kind != LS_UNIT_BLOCK) continue;
        for (int k = 0; k < 2; k++)
            for (int64_t h = 0; h < H; h++)
                LS_TRY(c->ops->copy(c, ls_at(c, cache[k], (to * H + h) * head),
                                    ls_at(c, cache[k], (from * H + h) * head), nbytes));
    }
    return LS_OK;
}
