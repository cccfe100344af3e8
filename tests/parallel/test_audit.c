/* Who is blamed, from hashes alone. */
#include "parallel/audit.h"

#include "../support/cmocka_all.h"

#include <stdlib.h>
#include <string.h>

enum { U = 4, W = 4, N_STATE = LS_AUDIT_N_STATE * U };

static ls_mesh mesh(int dp, int pp, int tp)
{
    ls_mesh m;
    assert_int_equal(ls_mesh_build(&m, dp * pp * tp, dp, pp, tp), LS_OK);
    return m;
}

static void fill(uint64_t *x, int n_rank, int n)
{
    for (int r = 0; r < n_rank; r++)
        for (int i = 0; i < n; i++) x[r * n + i] = 100 + (uint64_t)i;
}

/* ---- state ---- */

static const bool both[LS_AUDIT_N_STATE] = {true, true, true}, none[LS_AUDIT_N_STATE] = {false};

static void equal_states_have_no_fault(void **state)
{
    uint64_t x[W * N_STATE];
    const ls_mesh m = mesh(W, 1, 1);
    ls_audit_fault f;
    (void)state;
    fill(x, W, N_STATE);
    assert_false(ls_audit_state(&m, U, x, x, both, &f));
}

static void memory_that_changed_at_rest_names_its_rank(void **state)
{
    uint64_t then[2 * N_STATE], now[2 * N_STATE];
    const ls_mesh m = mesh(2, 1, 1);
    ls_audit_fault f;
    (void)state;
    fill(then, 2, N_STATE);
    memcpy(now, then, sizeof now);
    now[N_STATE + 3 * LS_AUDIT_N_STATE + LS_AUDIT_OPTIMIZER] ^= 1; /* rank 1, unit 3 */
    assert_true(ls_audit_state(&m, U, then, now, none, &f));
    assert_int_equal(f.rank, 1);
    assert_int_equal(f.unit, 3);
    assert_int_equal(f.what, LS_AUDIT_OPT);
    assert_true(f.at_rest);
}

static void a_sum_that_changed_names_its_rank_and_unit(void **state)
{
    enum { LEVELS = 2, N = LEVELS * U };
    uint64_t x[3 * 2 * N];
    const ls_mesh m = mesh(3, 1, 1);
    ls_audit_fault f;
    (void)state;
    for (int i = 0; i < 3 * 2 * N; i++) x[i] = (uint64_t)(i / (2 * N) * 1000 + i % N);
    assert_false(ls_audit_sums(&m, U, N, x, &f));
    x[2 * 2 * N + N + U + 3] ^= 1; /* rank 2, level 1, unit 3, when it was read */
    assert_true(ls_audit_sums(&m, U, N, x, &f));
    assert_int_equal(f.rank, 2);
    assert_int_equal(f.unit, 3);
    assert_int_equal(f.what, LS_AUDIT_GRAD);
    assert_true(f.at_rest);
}

static void the_replica_that_differs_from_all_others_is_named(void **state)
{
    const ls_mesh m = mesh(W, 1, 1);
    (void)state;
    for (int r = 0; r < W; r++) {
        uint64_t x[W * N_STATE];
        ls_audit_fault f;
        fill(x, W, N_STATE);
        x[r * N_STATE + LS_AUDIT_N_STATE + LS_AUDIT_PARAMS] ^= 4; /* unit 1 */
        assert_true(ls_audit_state(&m, U, NULL, x, both, &f));
        assert_int_equal(f.rank, r);
        assert_int_equal(f.unit, 1);
        assert_int_equal(f.what, LS_AUDIT_PARAM);
        assert_false(f.at_rest);
        assert_false(ls_audit_state(&m, U, NULL, x, none, &f)); /* sharded: not compared */
    }
}

static void nobody_is_named_without_a_majority(void **state)
{
    uint64_t x[W * N_STATE];
    const ls_mesh two = mesh(2, 1, 1), four = mesh(W, 1, 1);
    ls_audit_fault f;
    (void)state;
    fill(x, W, N_STATE);
    x[N_STATE + LS_AUDIT_PARAMS] = 1;
    assert_true(ls_audit_state(&two, U, NULL, x, both, &f));
    assert_int_equal(f.rank, -1);
    x[2 * N_STATE + LS_AUDIT_PARAMS] = 1; /* two and two */
    assert_true(ls_audit_state(&four, U, NULL, x, both, &f));
    assert_int_equal(f.rank, -1);
}

/* Shards have other parameters each, except those that are not cut. */
static void a_copy_of_a_shard_that_differs_is_found(void **state)
{
    const struct {
        int dp, pp, tp;
        bool replicated, named; /* by a majority: of all copies, or of those of one part */
    } c[] = {{1, 1, 2, true, false}, {1, 1, 3, true, true},   {2, 1, 2, true, true},
             {2, 2, 2, true, true},  {2, 1, 2, false, false}, {2, 2, 3, false, true}};
    (void)state;
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        const ls_mesh m = mesh(c[k].dp, c[k].pp, c[k].tp);
        const bool same[LS_AUDIT_N_STATE] = {c[k].replicated, c[k].replicated, c[k].replicated};
        for (int r = 0; r < m.world; r++) {
            uint64_t x[12 * N_STATE];
            ls_audit_fault f;
            fill(x, m.world, N_STATE);
            for (int q = 0; q < m.world; q++)
                for (int u = 0; u < U; u++)
                    x[q * N_STATE + u * LS_AUDIT_N_STATE + LS_AUDIT_PARAMS] += 1000 * (q % c[k].tp);
            assert_false(ls_audit_state(&m, U, NULL, x, same, &f));
            x[r * N_STATE + 2 * LS_AUDIT_N_STATE + LS_AUDIT_COPIES] ^= 1;
            x[r * N_STATE + 2 * LS_AUDIT_N_STATE + LS_AUDIT_PARAMS] ^= 1;
            assert_true(ls_audit_state(&m, U, NULL, x, same, &f));
            assert_int_equal(f.rank, c[k].named ? r : -1);
            assert_int_equal(f.unit, 2);
            assert_int_equal(f.what, LS_AUDIT_PARAM);
        }
    }
}

/* What the wrong copy has made is in all replicas of its shard, in units that come first. */
static void a_majority_anywhere_names_the_rank(void **state)
{
    const ls_mesh m = mesh(3, 1, 2);
    (void)state;
    for (int r = 0; r < m.world; r++) {
        uint64_t x[6 * N_STATE];
        ls_audit_fault f;
        fill(x, m.world, N_STATE);
        for (int q = r % 2; q < m.world; q += 2)
            x[q * N_STATE + LS_AUDIT_COPIES] = x[q * N_STATE + LS_AUDIT_PARAMS] = 7;
        assert_true(ls_audit_state(&m, U, NULL, x, both, &f));
        assert_int_equal(f.rank, -1);
        assert_int_equal(f.unit, 0);
        x[r * N_STATE + 2 * LS_AUDIT_N_STATE + LS_AUDIT_PARAMS] = 9;
        assert_true(ls_audit_state(&m, U, NULL, x, both, &f));
        assert_int_equal(f.rank, r);
        assert_int_equal(f.unit, 2);
    }
}

/* ---- passes ---- */

typedef struct ballot {
    ls_mesh m;
    int n;
    uint64_t *x[LS_AUDIT_VOTES];
    ls_audit_votes v;
} ballot;

static void open_ballot(ballot *b, ls_mesh m, int shift)
{
    *b = (ballot){.m = m, .n = ls_audit_n_pass(U)};
    b->v = (ls_audit_votes){.n = 2, .n_unit = U, .n_micro = 1, .shift = {0, shift}};
    for (int k = 0; k < LS_AUDIT_VOTES; k++) {
        b->x[k] = calloc((size_t)m.world * (size_t)b->n, sizeof **b->x);
        assert_non_null(b->x[k]);
        fill(b->x[k], m.world, b->n);
        b->v.hash[k] = b->x[k];
    }
}

static void close_ballot(ballot *b)
{
    for (int k = 0; k < LS_AUDIT_VOTES; k++) free(b->x[k]);
}

static void the_owner_of_a_wrong_gradient_is_named_by_two_others(void **state)
{
    (void)state;
    for (int shift = 1; shift < W; shift++)
        for (int p = 0; p < W; p++) {
            ballot b;
            ls_audit_fault f;
            open_ballot(&b, mesh(W, 1, 1), shift);
            assert_false(ls_audit_passes(&b.m, &b.v, &f));
            b.x[0][p * b.n + ls_audit_bwd(U, 2, LS_AUDIT_DW)] = 7;
            assert_true(ls_audit_passes(&b.m, &b.v, &f));
            assert_int_equal(f.rank, -1); /* one against one */
            ls_audit_more_votes(&b.m, &b.v);
            assert_int_equal(b.v.n, 3);
            assert_true(ls_audit_passes(&b.m, &b.v, &f));
            assert_int_equal(f.rank, p);
            assert_int_equal(f.replica, p);
            assert_int_equal(f.with, (p + W - shift) % W);
            assert_int_equal(f.what, LS_AUDIT_GRAD);
            assert_int_equal(f.unit, 2);
            close_ballot(&b);
        }
}

static void the_worker_that_repeats_wrongly_is_named(void **state)
{
    ballot b;
    ls_audit_fault f;
    (void)state;
    open_ballot(&b, mesh(W, 1, 1), 1);
    b.x[1][3 * b.n + ls_audit_fwd(1, LS_AUDIT_MLP)] = 7; /* rank 3 repeated the micro-batch of replica 0 */
    ls_audit_more_votes(&b.m, &b.v);
    assert_true(ls_audit_passes(&b.m, &b.v, &f));
    assert_int_equal(f.rank, 3);
    assert_int_equal(f.replica, 0);
    assert_int_equal(f.what, LS_AUDIT_ACT);
    assert_int_equal(f.unit, 1);
    close_ballot(&b);
}

static void the_third_voter_is_a_third_replica(void **state)
{
    (void)state;
    for (int n = 3; n < 9; n++)
        for (int shift = 1; shift < n; shift++) {
            ls_audit_votes v = {.n = 2, .shift = {0, shift}};
            const ls_mesh m = mesh(n, 1, 1);
            ls_audit_more_votes(&m, &v);
            assert_int_equal(v.n, 3);
            assert_in_range(v.shift[2], 1, n - 1);
            assert_int_not_equal(v.shift[2], shift);
        }
}

/* Two replicas repeat both: an error that does not come again is found; one that always comes leaves two against two. */
static void of_two_replicas_the_one_that_changes_its_result_is_named(void **state)
{
    const int at = ls_audit_bwd(U, 1, LS_AUDIT_DW);
    (void)state;
    for (int always = 0; always < 2; always++) {
        ballot b;
        ls_audit_fault f;
        open_ballot(&b, mesh(2, 1, 1), 1);
        b.x[0][1 * b.n + at] = 7;
        ls_audit_more_votes(&b.m, &b.v);
        assert_int_equal(b.v.n, 4);
        if (always) b.x[2][1 * b.n + at] = 7;
        assert_true(ls_audit_passes(&b.m, &b.v, &f));
        assert_int_equal(f.rank, always ? -1 : 1);
        close_ballot(&b);
    }
}

/* In a pipeline every later stage computes with the wrong number, too. */
static void the_stage_of_the_first_difference_is_named(void **state)
{
    ballot b;
    ls_audit_fault f;
    (void)state;
    open_ballot(&b, mesh(1, 2, 1), 0);
    for (int i = ls_audit_fwd(2, LS_AUDIT_HEADS); i < b.n; i++) /* unit 2 is rank 1's, units 0 and 1 are rank 0's */
        b.x[0][(i < ls_audit_bwd(U, 1, 0) ? 1 : 0) * b.n + i] = 7;
    ls_audit_more_votes(&b.m, &b.v);
    assert_true(ls_audit_passes(&b.m, &b.v, &f));
    assert_int_equal(f.rank, 1);
    assert_int_equal(f.unit, 2);
    assert_int_equal(f.what, LS_AUDIT_ACT);
    close_ballot(&b);
}

/* The next stage has the hash of what it received in the sender's place. Units 0 and 1 are rank 0's, 2 and 3 rank 1's. */
static void what_changed_between_two_stages_names_nobody(void **state)
{
    const int out = ls_audit_fwd(1, LS_AUDIT_OUT), dx = ls_audit_bwd(U, 2, LS_AUDIT_DX);
    (void)state;
    for (int k = 0; k < 4; k++) { /* forward, backward; the message, or the sender's result, too */
        const int at = k & 1 ? dx : out, sender = k & 1;
        ballot b;
        ls_audit_fault f;
        open_ballot(&b, mesh(3, 2, 1), 1);
        for (int v = 0; v < LS_AUDIT_VOTES; v++)
            for (int r = 0; r < b.m.world; r++)
                for (int u = 0; u < U; u++)
                    if (u / 2 != r % 2) b.x[v][r * b.n + ls_audit_bwd(U, u, LS_AUDIT_DW)] = 0;
        for (int i = at; i < b.n; i++) b.x[0][(!sender) * b.n + i] ^= b.x[0][(!sender) * b.n + i] ? 1 : 0;
        if (k & 2) b.x[0][sender * b.n + at] ^= 1;
        ls_audit_more_votes(&b.m, &b.v);
        assert_true(ls_audit_passes(&b.m, &b.v, &f));
        assert_int_equal(f.rank, k & 2 ? sender : -1);
        close_ballot(&b);
    }
}

static void a_shard_is_named_only_if_it_differs_alone(void **state)
{
    const int at = ls_audit_fwd(1, LS_AUDIT_HEADS), sum = ls_audit_fwd(1, LS_AUDIT_RESIDUAL);
    (void)state;
    for (int alone = 0; alone < 2; alone++) {
        ballot b;
        ls_audit_fault f;
        open_ballot(&b, mesh(1, 1, 2), 0);
        b.x[0][0 * b.n + sum] = b.x[0][1 * b.n + sum] = 7; /* the sum of the shards */
        if (alone) b.x[0][1 * b.n + at] = 7;
        ls_audit_more_votes(&b.m, &b.v);
        assert_true(ls_audit_passes(&b.m, &b.v, &f));
        assert_int_equal(f.rank, alone ? 1 : -1);
        close_ballot(&b);
    }
}

static void of_several_shards_that_differ_one_is_wrong(void **state)
{
    const int at = ls_audit_bwd(U, 1, LS_AUDIT_DX);
    (void)state;
    for (int p = 0; p < 3; p++) {
        ballot b;
        ls_audit_fault f;
        open_ballot(&b, mesh(3, 1, 2), 1);
        b.x[0][(2 * p) * b.n + at] = b.x[0][(2 * p + 1) * b.n + at] = 7;
        ls_audit_more_votes(&b.m, &b.v);
        assert_true(ls_audit_passes(&b.m, &b.v, &f));
        assert_int_equal(f.rank, -1);
        assert_int_equal(f.first, 2 * p);
        assert_int_equal(f.last, 2 * p + 1);
        close_ballot(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_states_have_no_fault),
        cmocka_unit_test(memory_that_changed_at_rest_names_its_rank),
        cmocka_unit_test(a_sum_that_changed_names_its_rank_and_unit),
        cmocka_unit_test(the_replica_that_differs_from_all_others_is_named),
        cmocka_unit_test(nobody_is_named_without_a_majority),
        cmocka_unit_test(a_copy_of_a_shard_that_differs_is_found),
        cmocka_unit_test(a_majority_anywhere_names_the_rank),
        cmocka_unit_test(the_owner_of_a_wrong_gradient_is_named_by_two_others),
        cmocka_unit_test(the_worker_that_repeats_wrongly_is_named),
        cmocka_unit_test(the_third_voter_is_a_third_replica),
        cmocka_unit_test(of_two_replicas_the_one_that_changes_its_result_is_named),
        cmocka_unit_test(what_changed_between_two_stages_names_nobody),
        cmocka_unit_test(the_stage_of_the_first_difference_is_named),
        cmocka_unit_test(a_shard_is_named_only_if_it_differs_alone),
        cmocka_unit_test(of_several_shards_that_differ_one_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
