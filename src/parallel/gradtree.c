#include "parallel/gradtree.h"
#include "core/mem.h"

static int bit_length(unsigned x)
{
    int n = 0;
    for (; x; x >>= 1) n++;
    return n;
}

ls_status ls_gradtree_plan(ls_gradtree **out, ls_model *m, int n_micro, const int64_t *n, bool elsewhere,
                           ls_gradtree_how how, ls_plan *plan)
{
    LS_ASSERT(n_micro >= 1 && !(elsewhere && how == LS_GRADTREE_PAIRED));
    const bool one = n_micro == 1 || how == LS_GRADTREE_RUNNING;
    const int n_level = one ? 1 : bit_length((unsigned)n_micro - 1), U = m->n_unit;
    const int64_t esize = (int64_t)ls_dtype_nbytes(m->compute->ops->wide);
    ls_gradtree *t = ls_alloc(sizeof *t);
    if (!t) return ls_nomem(sizeof *t, "the gradient plan");
    int *row = ls_alloc((size_t)(n_level * U + 1) * sizeof *row);
    void **level = ls_alloc((size_t)(n_level * U) * sizeof *level);
    int64_t *count = ls_alloc((size_t)U * sizeof *count);
    *t = (ls_gradtree){.model = m,
                       .n = count,
                       .n_micro = n_micro,
                       .n_level = n_level,
                       .how = how,
                       .elsewhere = elsewhere,
                       .row = row,
                       .level = level};
    if (!row || !level || !count) {
        ls_gradtree_destroy(&t);
        return ls_nomem((size_t)(n_level * U) * 16, "the gradient plan");
    }
    int64_t largest = 0;
    for (int u = 0; u < U; u++) {
        count[u] = n ? n[u] : m->unit[u].n_grad;
        if (count[u] > largest) largest = count[u];
    }
    for (int k = 0; k < n_level; k++) {
        for (int u = 0; u < U; u++) {
            row[k * U + u] = -1;
            if (!count[u]) continue;
            /* the classifier's gradient is made in the head's forward */
            int first = u == U - 1 ? ls_moment_fwd(m, u) : ls_moment_bwd(m, u), last = ls_moment_step(m);
            if (n_micro > 1) first = 0;
            row[k * U + u] =
                ls_plan_add(plan, LS_PART_GRAD, count[u] * esize, first, last, "unit %d gradient, tree level %d", u, k);
        }
    }
    row[n_level * U] = -1;
    if (!one && !elsewhere && how == LS_GRADTREE_PLAIN)
        row[n_level * U] =
            ls_plan_add(plan, LS_PART_GRAD, largest * esize, ls_moment_fwd(m, U - 1), ls_moment_bwd(m, 0), "carry");
    *out = t;
    return LS_OK;
}

void ls_gradtree_bind(ls_gradtree *t, const ls_plan *plan)
{
    const int n = t->n_level * t->model->n_unit;
    for (int i = 0; i < n; i++) t->level[i] = t->row[i] < 0 ? NULL : ls_plan_at(plan, t->row[i]);
    t->carry = t->row[n] < 0 ? NULL : ls_plan_at(plan, t->row[n]);
}

void ls_gradtree_destroy(ls_gradtree **t)
{
    if (!*t) return;
    ls_free((*t)->n);
    ls_free((*t)->row);
    ls_free((*t)->level);
    ls_free(*t);
    *t = NULL;
}

static bool paired(const ls_gradtree *t)
{
    return t->how == LS_GRADTREE_PAIRED;
}

/* What the binary counter counts: micro-batches, or pairs of them; of these the levels above the lowest are the counter's. */
static int turn_of(const ls_gradtree *t, int micro)
{
    return paired(t) ? micro >> 1 : micro;
}

static bool carries(const ls_gradtree *t, int turn)
{
    return turn == turn_of(t, t->n_micro - 1) ? turn != 0 : turn & 1;
}

/* Level k of the counter, of unit u; with one turn in all there is one level. */
static int index_of(const ls_gradtree *t, int k, int u)
{
    const int from = paired(t) && t->n_level > 1;
    return (from + k) * t->model->n_unit + u;
}

static void *level_at(const ls_gradtree *t, int k, int u)
{
    return t->level[index_of(t, k, u)];
}

/* ---- seals ---- */

int ls_gradtree_n_seal(const ls_gradtree *t)
{
    return (t->n_level + 1) * t->model->n_unit;
}

/* Continues a chain by n elements at x. */
static ls_status add_link(const ls_gradtree *t, uint64_t *hash, const void *x, int64_t n)
{
    ls_compute *c = t->model->compute;
    return ls_compute_hash(c, hash, x, (size_t)n * ls_dtype_nbytes(c->ops->wide), true);
}

/* Continues the chain of level[i] by elements [first, first + n). */
static ls_status chain(const ls_gradtree *t, uint64_t *hash, int i, int64_t first, int64_t n)
{
    return hash && n ? add_link(t, &hash[i], ls_at_wide(t->model->compute, t->level[i], first), n) : LS_OK;
}

static ls_status kept(const ls_gradtree *t, int i)
{
    return chain(t, t->seals.kept, i, 0, t->n[i % t->model->n_unit]);
}

static ls_status is_read(const ls_gradtree *t, int i)
{
    return chain(t, t->seals.read, i, 0, t->n[i % t->model->n_unit]);
}

ls_status ls_gradtree_read(ls_gradtree *t, int u, int micro)
{
    if (!paired(t) || !(micro & 1)) return LS_OK;
    return is_read(t, carries(t, turn_of(t, micro)) ? u : index_of(t, 0, u)); /* its place */
}

static int index_of_sum(const ls_gradtree *t, int u)
{
    return (t->n_level - 1) * t->model->n_unit + u;
}

ls_status ls_gradtree_sum_kept(ls_gradtree *t, int u, int64_t first, int64_t n)
{
    return chain(t, t->seals.kept, index_of_sum(t, u), first, n);
}

ls_status ls_gradtree_sum_read(ls_gradtree *t, int u, int64_t first, int64_t n)
{
    return chain(t, t->seals.read, index_of_sum(t, u), first, n);
}

ls_status ls_gradtree_waits(ls_gradtree *t, int u, const void *x, int64_t n, bool over)
{
    uint64_t *hash = over ? t->seals.read : t->seals.kept;
    return hash && n ? add_link(t, &hash[t->n_level * t->model->n_unit + u], x, n) : LS_OK;
}

/* ---- sums ---- */

void *ls_gradtree_place(const ls_gradtree *t, int u, int micro)
{
    if (t->how == LS_GRADTREE_RUNNING) return micro && t->elsewhere ? NULL : t->level[u];
    if (!carries(t, turn_of(t, micro))) return level_at(t, 0, u);
    return paired(t) ? t->level[u] : t->carry;
}

bool ls_gradtree_adds(const ls_gradtree *t, int micro)
{
    if (t->how == LS_GRADTREE_RUNNING) return micro > 0 && !t->elsewhere;
    return paired(t) && micro & 1;
}

void *ls_gradtree_sum(const ls_gradtree *t, int u)
{
    return t->level[index_of_sum(t, u)];
}

/* Levels that hold a finished sum are the set bits of `turn`. A turn in the middle carries through the trailing ones; the last one meets
 * every level, lowest (its nearest neighbours) first. */
ls_status ls_gradtree_add(ls_gradtree *t, int u, int micro, void *x)
{
    ls_compute *c = t->model->compute;
    const int64_t n = t->n[u];
    const int turn = turn_of(t, micro), n_level = t->n_level - (paired(t) && t->n_level > 1);
    if (t->how == LS_GRADTREE_RUNNING && (micro || !t->elsewhere))
        return t->elsewhere ? c->ops->add(c, t->level[u], t->level[u], x, n) : LS_OK; /* else: it was added in place */
    if (paired(t) && !(micro & 1) && micro < t->n_micro - 1)                          /* its other half is to come */
        return kept(t, carries(t, turn) ? u : index_of(t, 0, u));
    if (!carries(t, turn)) {
        void *to = level_at(t, 0, u);
        if (x != to) LS_TRY(c->ops->copy(c, to, x, (size_t)n * ls_dtype_nbytes(c->ops->wide)));
        return t->taken && micro == t->n_micro - 1 ? LS_OK : kept(t, index_of(t, 0, u));
    }
    const bool last = turn == turn_of(t, t->n_micro - 1);
    int top = last ? n_level - 1
                   : 0; /* where the sum goes: the highest level (its bit is set in the last turn), or the first free */
    while (!last && turn >> top & 1) top++;
    int highest = last ? top : top - 1; /* the last level that is met */
    for (int k = 0; k <= highest; k++) {
        if (!(turn >> k & 1)) continue;
        void *to = k == highest ? level_at(t, top, u) : x;
        LS_TRY(is_read(t, index_of(t, k, u)));
        LS_TRY(c->ops->add(c, to, level_at(t, k, u), x, n));
    }
    return t->taken && last ? LS_OK : kept(t, index_of(t, top, u));
}

void ls_gradtree_begin(ls_gradtree *t, int micro)
{
    t->micro = micro;
    for (int u = 0; u < t->model->n_unit; u++) {
        t->model->unit[u].grad = ls_gradtree_place(t, u, micro);
        t->model->unit[u].acc = ls_gradtree_adds(t, micro);
    }
}
