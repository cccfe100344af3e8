#include "parallel/audit.h"

const char *ls_audit_word(ls_audit_what what)
{
    static const char *const word[] = {"parameters", "optimizer", "activation", "gradient"};
    return word[what];
}

/* The value that more than half of x[0 … n-1] have. */
static bool majority(const uint64_t *x, int n, uint64_t *out)
{
    uint64_t lead = 0;
    int count = 0;
    for (int i = 0; i < n; i++) { /* a majority survives pairing unlike values off */
        if (!count) lead = x[i];
        count += x[i] == lead ? 1 : -1;
    }
    count = 0;
    for (int i = 0; i < n; i++) count += x[i] == lead;
    *out = lead;
    return 2 * count > n;
}

static int rank_at(const ls_mesh *m, int dp, int pp, int tp)
{
    return ls_mesh_rank(m, (ls_coord){{dp, pp, tp}});
}

/* ---- state ---- */

static bool at_rest(const ls_mesh *m, int n_unit, const uint64_t *then, const uint64_t *now, ls_audit_fault *f)
{
    const int n = LS_AUDIT_N_STATE * n_unit;
    for (int i = 0; i < m->world * n; i++) {
        if (then[i] == now[i]) continue;
        *f = (ls_audit_fault){.what = i % LS_AUDIT_N_STATE ? LS_AUDIT_OPT : LS_AUDIT_PARAM,
                              .unit = i % n / LS_AUDIT_N_STATE,
                              .rank = i / n,
                              .replica = -1,
                              .with = -1,
                              .at_rest = true};
        return true;
    }
    return false;
}

/* Hash i of the ranks at (pp, tp) of all replicas. *odd: the one that differs from the majority, -1: not known, or more than one. */
static bool replicas_differ(const ls_mesh *m, const uint64_t *all, int n, int i, int pp, int tp, int *odd)
{
    const int W = m->n[LS_AXIS_DP];
    const uint64_t first = all[(int64_t)rank_at(m, 0, pp, tp) * n + i];
    int n_first = 0, last_unlike = -1;
    for (int d = 0; d < W; d++) {
        const bool same = all[(int64_t)rank_at(m, d, pp, tp) * n + i] == first;
        n_first += same;
        if (!same) last_unlike = d;
    }
    if (n_first == W) return false;
    *odd = -1;
    if (n_first == W - 1 && W > 2) *odd = rank_at(m, last_unlike, pp, tp);
    if (n_first == 1 && W > 2) { /* the first one is odd if all others are alike */
        const uint64_t other = all[(int64_t)rank_at(m, 1, pp, tp) * n + i];
        bool alike = true;
        for (int d = 2; d < W; d++) alike = alike && all[(int64_t)rank_at(m, d, pp, tp) * n + i] == other;
        if (alike) *odd = rank_at(m, 0, pp, tp);
    }
    return true;
}

bool ls_audit_state(const ls_mesh *m, int n_unit, const uint64_t *then, const uint64_t *now,
                    const bool replicated[LS_AUDIT_N_STATE], ls_audit_fault *f)
{
    const int n = LS_AUDIT_N_STATE * n_unit, inner = m->n[LS_AXIS_PP] * m->n[LS_AXIS_TP];
    if (then && at_rest(m, n_unit, then, now, f)) return true;
    for (int i = 0; i < n; i++) {
        if (!replicated[i % LS_AUDIT_N_STATE]) continue;
        for (int k = 0; k < inner; k++) {
            int odd;
            if (!replicas_differ(m, now, n, i, k / m->n[LS_AXIS_TP], k % m->n[LS_AXIS_TP], &odd)) continue;
            *f = (ls_audit_fault){.what = i % LS_AUDIT_N_STATE ? LS_AUDIT_OPT : LS_AUDIT_PARAM,
                                  .unit = i / LS_AUDIT_N_STATE,
                                  .rank = odd,
                                  .replica = -1,
                                  .with = -1};
            return true;
        }
    }
    return false;
}

/* ---- sums ---- */

bool ls_audit_sums(const ls_mesh *m, int n_unit, int n, const uint64_t *hash, ls_audit_fault *f)
{
    for (int rank = 0; rank < m->world; rank++)
        for (int i = 0; i < n; i++) {
            const uint64_t *kept = hash + 2 * (int64_t)n * rank, *read = kept + n;
            if (kept[i] == read[i]) continue;
            *f = (ls_audit_fault){
                .what = LS_AUDIT_GRAD, .unit = i % n_unit, .rank = rank, .replica = -1, .with = -1, .at_rest = true};
            return true;
        }
    return false;
}

/* ---- passes ---- */

/* The replica that computed vote k on the micro-batches of replica p. */
static int voter(const ls_mesh *m, const ls_audit_votes *v, int k, int p)
{
    const int W = m->n[LS_AXIS_DP];
    return (p + W - v->shift[k]) % W;
}

/* The votes on hash i of the ranks at (pp, tp) of replica p; true: they differ. */
static bool votes_on(const ls_mesh *m, const ls_audit_votes *v, int p, int i, int pp, int tp, uint64_t *vote)
{
    const int64_t n = (int64_t)v->n_micro * ls_audit_n_pass(v->n_unit);
    bool differ = false;
    for (int k = 0; k < v->n; k++) {
        vote[k] = v->hash[k][rank_at(m, voter(m, v, k, p), pp, tp) * n + i];
        differ = differ || vote[k] != vote[0];
    }
    return differ;
}

/* Adds a rank to a set of at most one; -1: empty, -2: several. */
static int joined(int set, int rank)
{
    return set == -1 || set == rank ? rank : -2;
}

static void describe(const ls_audit_votes *v, int i, ls_audit_fault *f)
{
    const int at = i % ls_audit_n_pass(v->n_unit), fwd = LS_AUDIT_N_FWD * v->n_unit;
    f->what = at < fwd ? LS_AUDIT_ACT : LS_AUDIT_GRAD;
    f->unit = at < fwd ? at / LS_AUDIT_N_FWD : v->n_unit - 1 - (at - fwd) / LS_AUDIT_N_BWD;
}

/* Of hash i: whether the rank has computed it. In a pipeline the next stage has, in the same place, the hash of what it received: if only that is wrong, it
 * changed on either side or on the way. */
static bool computes(const ls_mesh *m, const ls_audit_votes *v, int rank, int i)
{
    const int n_pass = ls_audit_n_pass(v->n_unit), n = v->n_micro * n_pass;
    ls_audit_fault f;
    describe(v, i, &f);
    return m->n[LS_AXIS_PP] == 1 ||
           v->hash[0][(int64_t)rank * n + i / n_pass * n_pass + ls_audit_bwd(v->n_unit, f.unit, LS_AUDIT_DW)];
}

/* Who is wrong about hash i of replica p: over all ranks of the replica, those that the majority of the votes contradicts. */
static int blame(const ls_mesh *m, const ls_audit_votes *v, int p, int i)
{
    int set = -1;
    for (int pp = 0; pp < m->n[LS_AXIS_PP]; pp++)
        for (int tp = 0; tp < m->n[LS_AXIS_TP]; tp++) {
            uint64_t vote[LS_AUDIT_VOTES], right;
            if (!computes(m, v, rank_at(m, p, pp, tp), i) || !votes_on(m, v, p, i, pp, tp, vote)) continue;
            const bool known = majority(vote, v->n, &right);
            for (int k = 0; k < v->n; k++)
                if (!known || vote[k] != right) set = joined(set, rank_at(m, voter(m, v, k, p), pp, tp));
        }
    return set < 0 ? -1 : set;
}

bool ls_audit_passes(const ls_mesh *m, const ls_audit_votes *v, ls_audit_fault *f)
{
    const int n = v->n_micro * ls_audit_n_pass(v->n_unit), inner = m->n[LS_AXIS_PP] * m->n[LS_AXIS_TP];
    uint64_t vote[LS_AUDIT_VOTES];
    for (int p = 0; p < m->n[LS_AXIS_DP]; p++)
        for (int i = 0; i < n; i++)
            for (int k = 0; k < inner; k++) {
                if (!votes_on(m, v, p, i, k / m->n[LS_AXIS_TP], k % m->n[LS_AXIS_TP], vote)) continue;
                *f = (ls_audit_fault){.rank = blame(m, v, p, i), .replica = p, .with = voter(m, v, 1, p)};
                describe(v, i, f);
                return true;
            }
    return false;
}

void ls_audit_more_votes(const ls_mesh *m, ls_audit_votes *v)
{
    const int W = m->n[LS_AXIS_DP];
    v->n = 2;
    if (W > 2) v->shift[v->n++] = v->shift[1] % (W - 1) + 1; /* a third replica */
    if (W <= 2) v->shift[v->n++] = 0;                        /* both again */
    if (W == 2) v->shift[v->n++] = v->shift[1];
}
