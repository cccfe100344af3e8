#include "parallel/audit.h"

#include "core/minmax.h"

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

static ls_audit_fault fault_of_state(int i, int rank)
{
    return (ls_audit_fault){.what = i % LS_AUDIT_N_STATE == LS_AUDIT_OPTIMIZER ? LS_AUDIT_OPT : LS_AUDIT_PARAM,
                            .unit = i / LS_AUDIT_N_STATE,
                            .rank = rank,
                            .replica = -1,
                            .with = -1,
                            .first = -1};
}

static bool at_rest(const ls_mesh *m, int n_unit, const uint64_t *then, const uint64_t *now, ls_audit_fault *f)
{
    const int n = LS_AUDIT_N_STATE * n_unit;
    for (int i = 0; i < m->world * n; i++) {
        if (then[i] == now[i]) continue;
        *f = fault_of_state(i % n, i / n);
        f->at_rest = true;
        return true;
    }
    return false;
}

/* Ranks of one stage of a pipeline that have the same bits: n_dp replicas from dp on, n_tp shards from tp on. */
typedef struct box {
    int dp, n_dp, pp, tp, n_tp;
} box;

static int rank_in(const ls_mesh *m, box b, int k)
{
    return rank_at(m, b.dp + k / b.n_tp, b.pp, b.tp + k % b.n_tp);
}

/* Hash i of these ranks. *odd: the one that differs from the majority, -1: not known, or more than one. */
static bool copies_differ(const ls_mesh *m, const uint64_t *all, int n, int i, box b, int *odd)
{
    const int N = b.n_dp * b.n_tp;
    const uint64_t first = all[(int64_t)rank_in(m, b, 0) * n + i];
    int n_first = 0, last_unlike = -1;
    for (int k = 0; k < N; k++) {
        const bool same = all[(int64_t)rank_in(m, b, k) * n + i] == first;
        n_first += same;
        if (!same) last_unlike = k;
    }
    if (n_first == N) return false;
    *odd = -1;
    if (n_first == N - 1 && N > 2) *odd = rank_in(m, b, last_unlike);
    if (n_first == 1 && N > 2) { /* the first one is odd if all others are alike */
        const uint64_t other = all[(int64_t)rank_in(m, b, 1) * n + i];
        bool alike = true;
        for (int k = 2; k < N; k++) alike = alike && all[(int64_t)rank_in(m, b, k) * n + i] == other;
        if (alike) *odd = rank_in(m, b, 0);
    }
    return true;
}

/* The k-th set of ranks that must agree on hash i; false: there are no more. */
static bool next_box(const ls_mesh *m, int i, bool replicated, int k, box *b)
{
    const int W = m->n[LS_AXIS_DP], P = m->n[LS_AXIS_PP], S = m->n[LS_AXIS_TP];
    const bool copies = i % LS_AUDIT_N_STATE == LS_AUDIT_COPIES;
    const int n_dp = replicated ? W : 1, n_tp = copies ? S : 1, n_each = S / n_tp * (W / n_dp);
    if (k >= P * n_each) return false;
    *b = (box){.n_dp = n_dp, .pp = k / n_each, .n_tp = n_tp};
    b->dp = copies ? k % n_each : k % n_each / S;
    b->tp = copies ? 0 : k % n_each % S;
    return true;
}

/* Numbers that a wrong copy has made are on several ranks later, so a difference that has a majority is looked for among all. */
bool ls_audit_state(const ls_mesh *m, int n_unit, const uint64_t *then, const uint64_t *now,
                    const bool replicated[LS_AUDIT_N_STATE], ls_audit_fault *f)
{
    const int n = LS_AUDIT_N_STATE * n_unit;
    bool found = false;
    box b;
    if (then && at_rest(m, n_unit, then, now, f)) return true;
    for (int i = 0; i < n; i++)
        for (int k = 0; next_box(m, i, replicated[i % LS_AUDIT_N_STATE], k, &b); k++) {
            int odd;
            if (!copies_differ(m, now, n, i, b, &odd) || (found && odd < 0)) continue;
            *f = fault_of_state(i, odd);
            found = true;
            if (odd >= 0) return true;
        }
    return found;
}

/* ---- sums ---- */

bool ls_audit_sums(const ls_mesh *m, int n_unit, int n, const uint64_t *hash, ls_audit_fault *f)
{
    for (int rank = 0; rank < m->world; rank++)
        for (int i = 0; i < n; i++) {
            const uint64_t *kept = hash + 2 * (int64_t)n * rank, *read = kept + n;
            if (kept[i] == read[i]) continue;
            *f = (ls_audit_fault){.what = LS_AUDIT_GRAD,
                                  .unit = i % n_unit,
                                  .rank = rank,
                                  .replica = -1,
                                  .with = -1,
                                  .at_rest = true,
                                  .first = -1};
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

/* Who is wrong about hash i of replica p: over all ranks of the replica, those that the majority of the votes contradicts. If they are several shards of
 * one replica, one of them is. */
static void blame(const ls_mesh *m, const ls_audit_votes *v, int p, int i, ls_audit_fault *f)
{
    int set = -1, replica = -1;
    f->first = m->world;
    f->last = -1;
    for (int pp = 0; pp < m->n[LS_AXIS_PP]; pp++)
        for (int tp = 0; tp < m->n[LS_AXIS_TP]; tp++) {
            uint64_t vote[LS_AUDIT_VOTES], right;
            if (!computes(m, v, rank_at(m, p, pp, tp), i) || !votes_on(m, v, p, i, pp, tp, vote)) continue;
            const bool known = majority(vote, v->n, &right);
            for (int k = 0; k < v->n; k++) {
                if (known && vote[k] == right) continue;
                const int who = voter(m, v, k, p), rank = rank_at(m, who, pp, tp);
                set = joined(set, rank);
                replica = known ? joined(replica, who) : -2;
                f->first = LS_MIN(f->first, rank);
                f->last = LS_MAX(f->last, rank);
            }
        }
    f->rank = set < 0 ? -1 : set;
    if (f->rank >= 0 || replica < 0) f->first = f->last = -1;
}

bool ls_audit_passes(const ls_mesh *m, const ls_audit_votes *v, ls_audit_fault *f)
{
    const int n = v->n_micro * ls_audit_n_pass(v->n_unit), inner = m->n[LS_AXIS_PP] * m->n[LS_AXIS_TP];
    uint64_t vote[LS_AUDIT_VOTES];
    for (int p = 0; p < m->n[LS_AXIS_DP]; p++)
        for (int i = 0; i < n; i++)
            for (int k = 0; k < inner; k++) {
                if (!votes_on(m, v, p, i, k / m->n[LS_AXIS_TP], k % m->n[LS_AXIS_TP], vote)) continue;
                *f = (ls_audit_fault){.replica = p, .with = voter(m, v, 1, p)};
                blame(m, v, p, i, f);
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
