/* The mesh: ranks and coordinates, groups as ls_comm_split makes them, errors with the arithmetic, and the printed picture. */
#include "parallel/mesh.h"

#include "assert_text.h"

#include <string.h>

static void coordinates_and_ranks_convert_both_ways(void **state)
{
    (void)state;
    for (int dp = 1; dp <= 4; dp++)
        for (int pp = 1; pp <= 5; pp++)
            for (int tp = 1; tp <= 3; tp++) {
                ls_mesh m;
                assert_int_equal(ls_mesh_build(&m, dp * pp * tp, dp, pp, tp), LS_OK);
                for (int r = 0; r < m.world; r++) {
                    ls_coord c = ls_mesh_coord(&m, r);
                    assert_int_equal(ls_mesh_rank(&m, c), r);
                    for (int a = 0; a < LS_N_AXIS; a++) assert_true(c.at[a] >= 0 && c.at[a] < m.n[a]);
                }
                /* neighbours in tp have adjacent ranks, those in pp are tp ranks apart, those in dp are a replica apart */
                assert_int_equal(ls_mesh_rank(&m, (ls_coord){{0, 0, tp - 1}}), tp - 1);
                assert_int_equal(ls_mesh_rank(&m, (ls_coord){{0, pp - 1, 0}}), (pp - 1) * tp);
                assert_int_equal(ls_mesh_rank(&m, (ls_coord){{dp - 1, 0, 0}}), (dp - 1) * pp * tp);
            }
}

/* The ranks whose coordinates equal those of `rank` except along one axis. */
static void group_of(const ls_mesh *m, int axis, int rank, int *ranks)
{
    ls_coord c = ls_mesh_coord(m, rank);
    for (int k = 0; k < m->n[axis]; k++) {
        c.at[axis] = k;
        ranks[k] = ls_mesh_rank(m, c);
    }
}

/* Along each axis the ranks of one color form one group in the order of their keys, and each rank is in exactly one group. */
static void each_rank_is_in_one_group_per_axis(void **state)
{
    (void)state;
    ls_mesh m;
    assert_int_equal(ls_mesh_build(&m, 24, 2, 4, 3), LS_OK);
    for (int a = 0; a < LS_N_AXIS; a++) {
        int members[24] = {0};
        for (int r = 0; r < m.world; r++) {
            int color, key, ranks[24];
            ls_mesh_split(&m, (ls_axis)a, r, &color, &key);
            group_of(&m, a, r, ranks);
            assert_true(color >= 0 && color < m.world / m.n[a]);
            assert_int_equal(ranks[key], r);
            members[color]++;
            for (int k = 0; k < m.n[a]; k++) {
                int c2, k2;
                ls_mesh_split(&m, (ls_axis)a, ranks[k], &c2, &k2);
                assert_int_equal(c2, color);
                assert_int_equal(k2, k);
                if (k) assert_true(ranks[k] > ranks[k - 1]);
            }
        }
        for (int c = 0; c < m.world / m.n[a]; c++) assert_int_equal(members[c], m.n[a]);
    }
    int tp[3], pp[4], dp[2];
    group_of(&m, LS_AXIS_TP, 16, tp);
    group_of(&m, LS_AXIS_PP, 16, pp);
    group_of(&m, LS_AXIS_DP, 16, dp);
    assert_memory_equal(tp, ((int[]){15, 16, 17}), sizeof tp);
    assert_memory_equal(pp, ((int[]){13, 16, 19, 22}), sizeof pp);
    assert_memory_equal(dp, ((int[]){4, 16}), sizeof dp);
}

static void sizes_that_do_not_multiply_are_refused(void **state)
{
    (void)state;
    static const struct {
        int world, dp, pp, tp;
        const char *words;
    } bad[] = {
        {8, 2, 3, 1, "dp=2 x pp=3 x tp=1 = 6, but this run has 8 workers"},
        {4, 2, 2, 2, "dp=2 x pp=2 x tp=2 = 8, but this run has 4 workers"},
        {10, 0, 4, 1, "--pp 4 x --tp 1 needs a multiple of 4 workers, but this run has 10; use 8 or 12 workers"},
        {3, 0, 2, 2, "a multiple of 4 workers, but this run has 3; use 4 or 8 workers"},
        {8, 1, 0, 1, "every number must be 1 to"},
        {8, -1, 1, 1, "every number must be 1 to"},
        {0, 1, 1, 1, "every number must be 1 to"},
        {8, 1 << 20, 1 << 20, 1 << 20, "= 1152921504606846976, but this run has 8"},
        {8, 1, 1 << 21, 1, "every number must be 1 to"},
    };
    for (size_t i = 0; i < N_OF(bad); i++) {
        ls_mesh m = {.world = -7};
        assert_int_equal(ls_mesh_build(&m, bad[i].world, bad[i].dp, bad[i].pp, bad[i].tp), LS_E_CONFIG);
        assert_words(bad[i].words);
        assert_int_equal(m.world, -7);
    }
    ls_mesh m;
    assert_int_equal(ls_mesh_build(&m, 12, 0, 3, 2), LS_OK);
    assert_int_equal(m.n[LS_AXIS_DP], 2);
}

static void the_picture_shows_each_ranks_position(void **state)
{
    (void)state;
    ls_mesh m;
    ls_str s = {0};
    assert_int_equal(ls_mesh_build(&m, 12, 2, 3, 2), LS_OK);
    ls_mesh_print(&m, &s);
    assert_string_equal(s.data, "dp 2 x pp 3 x tp 2 = 12 workers\n"
                                "            stage 0   stage 1   stage 2\n"
                                "replica 0    0  1      2  3      4  5\n"
                                "replica 1    6  7      8  9     10 11\n");
    ls_str_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(coordinates_and_ranks_convert_both_ways),
                                       cmocka_unit_test(each_rank_is_in_one_group_per_axis),
                                       cmocka_unit_test(sizes_that_do_not_multiply_are_refused),
                                       cmocka_unit_test(the_picture_shows_each_ranks_position)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
