/* The statistics of a verdict: Student's t compared with published quantiles, and simulations of the paired test: a setting compared with itself, and
 * with one that is 5 % slower, with noise, drift and outliers. */
#include "bench/ab.h"
#include "core/rng.h"
#include "core/stat.h"
#include "assert_near.h"

#include <math.h>

static void t_quantiles_match_published_values(void **state)
{
    (void)state;
    static const struct {
        double confidence, want;
        int df;
    } t[] = {{0.95, 12.706204736, 1}, {0.95, 4.302652730, 2},    {0.95, 2.262157163, 9},   {0.95, 2.045229642, 29},
             {0.99, 63.656741163, 1}, {0.99, 3.249835542, 9},    {0.99, 2.625890514, 100}, {0.5, 1.0, 1},
             {0.999, 4.780912586, 9}, {0.95, 1.960201239, 10000}};
    for (size_t i = 0; i < N_OF(t); i++) {
        assert_near(ls_t_quantile(t[i].confidence, t[i].df), t[i].want, 2e-8 * t[i].want);
        assert_near(ls_t_two_sided(t[i].want, t[i].df), 1 - t[i].confidence, 1e-9);
        assert_near(ls_t_two_sided(-t[i].want, t[i].df), 1 - t[i].confidence, 1e-9);
    }
    assert_near(ls_t_two_sided(0, 5), 1, 0);
    assert_near(ls_t_two_sided(INFINITY, 5), 0, 0);
    assert_true(isnan(ls_t_quantile(0.95, 0)) && isnan(ls_t_two_sided(1, 0)) && isnan(ls_t_quantile(1, 3)));
    const double x[] = {1, 2, 4, 9};
    assert_near(ls_median(x, 4), 3, 0);
    assert_near(ls_median(x, 3), 2, 0);
    assert_true(isnan(ls_median(x, 0)));
}

typedef struct machine {
    double noise, drift, outliers; /* of one run; over all runs; probability that a run takes 1.5 times as long */
} machine;

/* Runs in the order A B B A A B and so on; b takes `slower` times as long. */
static ls_ab session(uint64_t seed, const machine *m, int n, double slower)
{
    double a[64], b[64];
    const uint64_t key = ls_rng_key(seed, LS_RNG_TEST, 0, 0), luck = ls_rng_key(seed, LS_RNG_TEST, 1, 0);
    uint64_t at = 0;
    for (int k = 0; k < n; k++)
        for (int side = 0; side < 2; side++) {
            const int which = k % 2 ? 1 - side : side;
            double time =
                (which ? slower : 1) * exp(m->noise * ls_rng_normal(key, at) + m->drift * (2 * k + side) / (2.0 * n));
            if (ls_rng_uniform(luck, at++) < m->outliers) time *= 1.5;
            *(which ? &b[k] : &a[k]) = 1000 / time;
        }
    return ls_ab_compare(a, b, n);
}

static int claims(const machine *m, int n, double slower, ls_ab_verdict v, int tries, uint64_t seed)
{
    int c = 0;
    for (int i = 0; i < tries; i++) c += session(seed + (uint64_t)i, m, n, slower).verdict == v;
    return c;
}

static void equal_settings_show_no_difference(void **state)
{
    (void)state;
    static const machine m[] = {{0.02, 0, 0}, {0.05, 0.3, 0}, {0.10, 0, 0.1}, {0.002, 0.5, 0}};
    static const int pairs[] = {3, 5, 8, 20};
    enum { TRIES = 1000 };
    for (size_t i = 0; i < N_OF(m); i++)
        for (size_t k = 0; k < N_OF(pairs); k++) {
            const int none = claims(&m[i], pairs[k], 1, LS_AB_NONE, TRIES, 7000 * (i + 1) + 100000 * k);
            /* the level is 1 %: 10 of 1000 are expected, and 23 is four standard deviations more */
            if (TRIES - none > 23)
                fail_msg("machine %zu, %d pairs: %d false claims in %d", i, pairs[k], TRIES - none, TRIES);
            int good = 0; /* twenty comparisons: at least nineteen without a claim */
            for (int t = 0; t < TRIES / 20; t++)
                good += claims(&m[i], pairs[k], 1, LS_AB_NONE, 20, 900000 + 20 * (uint64_t)t) >= 19;
            if (good < TRIES / 20 * 95 / 100)
                fail_msg("machine %zu, %d pairs: %d of %d", i, pairs[k], good, TRIES / 20);
        }
}

static void a_slowdown_of_five_percent_is_found(void **state)
{
    (void)state;
    const machine calm = {0.02, 0.1, 0}, busy = {0.05, 0.2, 0};
    assert_true(claims(&calm, 10, 1.05, LS_AB_WORSE, 1000, 1) > 900);
    assert_true(claims(&busy, 40, 1.05, LS_AB_WORSE, 1000, 2) > 900);
    assert_true(claims(&calm, 10, 1 / 1.05, LS_AB_BETTER, 1000, 3) > 900);
    assert_int_equal(claims(&calm, 10, 1.05, LS_AB_BETTER, 1000, 4), 0);
    /* the number of pairs of the rule finds it in about four of five cases */
    const int n = ls_ab_pairs_for(0.05 * sqrt(2), 0.05);
    const machine still = {0.05, 0, 0};
    const int seen = claims(&still, n, 1.05, LS_AB_WORSE, 2000, 5);
    if (seen < 1500 || seen > 1800) fail_msg("%d pairs found it %d times in 2000", n, seen);
}

static void the_change_is_estimated_with_bounds(void **state)
{
    (void)state;
    const double a[] = {100, 102, 98, 101}, b[] = {110, 113, 107, 111};
    ls_ab r = ls_ab_compare(a, b, 4);
    assert_near(r.change, 0.0998, 1e-3);
    assert_true(r.low < r.change && r.change < r.high && r.verdict == LS_AB_BETTER);
    assert_near(ls_ab_compare(b, a, 4).change, 1 / (1 + r.change) - 1,
                1e-12); /* a ratio: exchanged sides give the inverse */
    assert_string_equal(ls_ab_words(LS_AB_NONE), "no difference shown");
    const double same[] = {5, 5, 5}, holes[] = {NAN, 5, 0};
    assert_int_equal(ls_ab_compare(same, same, 3).verdict, LS_AB_NONE);
    r = ls_ab_compare(same, holes, 3);
    assert_int_equal(r.n, 1); /* pairs without two values are left out; one pair shows nothing */
    assert_true(isnan(r.p) && r.verdict == LS_AB_NONE);
    assert_int_equal(ls_ab_compare(a, b, 0).n, 0);
}

/* p values by numerical integration of the density with the degrees of freedom of Welch. */
static void unpaired_runs_have_no_order(void **state)
{
    (void)state;
    const double a[] = {30000, 20000, 40000}, b[] = {30610, 20400, 40790}, c[] = {20400, 40790, 30610};
    assert_int_equal(ls_ab_compare(a, b, 3).verdict, LS_AB_BETTER); /* as pairs */
    const ls_ab r = ls_ab_unpaired(a, b, 3), other = ls_ab_unpaired(a, c, 3);
    assert_int_equal(r.verdict, LS_AB_NONE);
    assert_near(r.p, 0.947739831, 1e-6);
    assert_near(r.change, ls_ab_compare(a, b, 3).change, 1e-12);
    assert_near(r.p, other.p, 1e-12);
    assert_near(r.low, other.low, 1e-12);
    const double x[] = {100, 101, 99, 102}, y[] = {121, 119, 120, 122}, hole[] = {121, NAN, 0, 122};
    assert_int_equal(ls_ab_unpaired(x, y, 4).verdict, LS_AB_BETTER);
    assert_int_equal(ls_ab_unpaired(y, x, 4).verdict, LS_AB_WORSE);
    assert_near(ls_ab_unpaired(x, y, 4).p, 8.72359031e-07, 1e-12);
    assert_int_equal(ls_ab_unpaired(x, hole, 4).n, 2);
    assert_true(isnan(ls_ab_unpaired(x, y, 1).p) && ls_ab_unpaired(x, y, 1).n == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_quantiles_match_published_values), cmocka_unit_test(the_change_is_estimated_with_bounds),
        cmocka_unit_test(equal_settings_show_no_difference), cmocka_unit_test(a_slowdown_of_five_percent_is_found),
        cmocka_unit_test(unpaired_runs_have_no_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
