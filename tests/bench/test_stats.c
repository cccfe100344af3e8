/* The statistics of a verdict: Student's t compared with published quantiles, and simulations of the paired test: a setting compared with itself, and
 * with one that is 5 % slower, with noise, drift and outliers. */
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
static ls_ratio session(uint64_t seed, const machine *m, int n, double slower)
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
    return ls_ratio_of(a, n, b, n, true);
}

static int claims(const machine *m, int n, double slower, int v, int tries, uint64_t seed)
{
    int c = 0;
    for (int i = 0; i < tries; i++) c += session(seed + (uint64_t)i, m, n, slower).shown == v;
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
            const int none = claims(&m[i], pairs[k], 1, 0, TRIES, 7000 * (i + 1) + 100000 * k);
            /* the level is 1 %: 10 of 1000 are expected, and 23 is four standard deviations more */
            if (TRIES - none > 23)
                fail_msg("machine %zu, %d pairs: %d false claims in %d", i, pairs[k], TRIES - none, TRIES);
            int good = 0; /* twenty comparisons: at least nineteen without a claim */
            for (int t = 0; t < TRIES / 20; t++)
                good += claims(&m[i], pairs[k], 1, 0, 20, 900000 + 20 * (uint64_t)t) >= 19;
            if (good < TRIES / 20 * 95 / 100)
                fail_msg("machine %zu, %d pairs: %d of %d", i, pairs[k], good, TRIES / 20);
        }
}

static void a_slowdown_of_five_percent_is_found(void **state)
{
    (void)state;
    const machine calm = {0.02, 0.1, 0}, busy = {0.05, 0.2, 0};
    assert_true(claims(&calm, 10, 1.05, -1, 1000, 1) > 900);
    assert_true(claims(&busy, 40, 1.05, -1, 1000, 2) > 900);
    assert_true(claims(&calm, 10, 1 / 1.05, 1, 1000, 3) > 900);
    assert_int_equal(claims(&calm, 10, 1.05, 1, 1000, 4), 0);
    /* the number of pairs of the rule finds it in about four of five cases */
    const int n = ls_pairs_for(0.05 * sqrt(2), 0.05);
    const machine still = {0.05, 0, 0};
    const int seen = claims(&still, n, 1.05, -1, 2000, 5);
    if (seen < 1500 || seen > 1800) fail_msg("%d pairs found it %d times in 2000", n, seen);
}

static void the_change_is_estimated_with_bounds(void **state)
{
    (void)state;
    const double a[] = {100, 102, 98, 101}, b[] = {110, 113, 107, 111};
    ls_ratio r = ls_ratio_of(a, 4, b, 4, true);
    assert_near(r.ratio, 1.0998, 1e-3);
    assert_true(r.low < r.ratio && r.ratio < r.high && r.shown == 1);
    assert_near(ls_ratio_of(b, 4, a, 4, true).ratio, 1 / r.ratio,
                1e-12); /* a ratio: exchanged sides give the inverse */
    const double same[] = {5, 5, 5}, holes[] = {NAN, 5, 0};
    assert_int_equal(ls_ratio_of(same, 3, same, 3, true).shown, 0);
    r = ls_ratio_of(same, 3, holes, 3, true);
    assert_int_equal(r.n, 1); /* pairs without two values are left out; one pair shows nothing */
    assert_true(isnan(r.p) && r.shown == 0);
    assert_int_equal(ls_ratio_of(a, 0, b, 0, true).n, 0);
}

/* p values by numerical integration of the density with the degrees of freedom of Welch. */
static void unpaired_runs_have_no_order(void **state)
{
    (void)state;
    const double a[] = {30000, 20000, 40000}, b[] = {30610, 20400, 40790}, c[] = {20400, 40790, 30610};
    assert_int_equal(ls_ratio_of(a, 3, b, 3, true).shown, 1); /* as pairs */
    const ls_ratio r = ls_ratio_of(a, 3, b, 3, false), other = ls_ratio_of(a, 3, c, 3, false);
    assert_int_equal(r.shown, 0);
    assert_near(r.p, 0.947739831, 1e-6);
    assert_near(r.ratio, ls_ratio_of(a, 3, b, 3, true).ratio, 1e-12);
    assert_near(r.p, other.p, 1e-12);
    assert_near(r.low, other.low, 1e-12);
    const double x[] = {100, 101, 99, 102}, y[] = {121, 119, 120, 122}, hole[] = {121, NAN, 0, 122};
    assert_int_equal(ls_ratio_of(x, 4, y, 4, false).shown, 1);
    assert_int_equal(ls_ratio_of(y, 4, x, 4, false).shown, -1);
    assert_near(ls_ratio_of(x, 4, y, 4, false).p, 8.72359031e-07, 1e-12);
    assert_int_equal(ls_ratio_of(x, 4, hole, 4, false).n, 2);
    assert_true(isnan(ls_ratio_of(x, 1, y, 1, false).p) && ls_ratio_of(x, 1, y, 1, false).n == 1);
}

/* Times are rounded: equal ratios say that the noise is below that, not that there is none. */
static void rounded_pairs_claim_little(void **state)
{
    (void)state;
    const double a[] = {100, 100, 100, 100}, b[] = {105, 105, 105, 105}, c[] = {100.02, 100.02, 100.02, 100.02},
                 near_b[] = {105, 105.01, 105, 105};
    for (int paired = 0; paired < 2; paired++) {
        for (int n = 2; n < LS_PLAN_PAIRS; n++) {
            const ls_ratio r = ls_ratio_of(a, n, b, n, paired), s = ls_ratio_of(a, n, near_b, n, paired);
            assert_true(isnan(r.p) && isnan(r.holm) && isnan(r.low) && isnan(r.high) && r.shown == 0 && r.n == n);
            assert_true(isnan(s.p) && s.shown == 0);
            assert_near(r.ratio, 1.05, 1e-12);
        }
        ls_ratio r = ls_ratio_of(a, 4, b, 4, paired);
        assert_int_equal(r.shown, 1);
        assert_near(log(r.high / r.low), 2 * ls_t95(paired ? 3 : 6) * 1e-4, 1e-12);
        assert_int_equal(ls_ratio_of(a, 4, c, 4, paired).shown, 0); /* 0.02 % in equal pairs */
        assert_near(ls_ratio_of(a, 4, a, 4, paired).p, 1, 0);
        ls_ratio *none[] = {&(ls_ratio){.p = NAN, .shown = 0}, &r};
        const double p = r.p;
        assert_int_equal(ls_holm(none, 2, 66), 1);
        assert_near(r.holm, 66 * p, 1e-18);
    }
    assert_int_equal(ls_pairs_for(0, 0.05), LS_PLAN_PAIRS);
}

/* Tables of k equal settings; the fastest is chosen by the same data. A wrong claim anywhere: at most one table in twenty. */
static void equal_settings_share_the_lead(void **state)
{
    (void)state;
    static const int settings[] = {4, 7, 12};
    enum { TRIES = 600, TURNS = 4 };
    for (size_t s = 0; s < N_OF(settings); s++) {
        const int k = settings[s];
        int wrong = 0;
        for (int i = 0; i < TRIES; i++) {
            const uint64_t key = ls_rng_key((uint64_t)i, LS_RNG_TEST, (uint64_t)k, 0);
            double x[12][TURNS], most = 0;
            ls_ratio ratio[24];
            ls_ratio *tested[24];
            int best = 0, n = 0;
            for (int j = 0; j < k; j++) {
                for (int t = 0; t < TURNS; t++) x[j][t] = exp(0.02 * ls_rng_normal(key, (uint64_t)(j * TURNS + t)));
                const double mean = ls_geometric_of(x[j], TURNS).mean;
                if (mean > most) most = mean, best = j;
            }
            for (int j = 1; j < k; j++) ratio[n++] = ls_ratio_of(x[0], TURNS, x[j], TURNS, true);
            for (int j = 1; j < k && best; j++) /* over setting 0: it is above */
                if (j != best) ratio[n++] = ls_ratio_of(x[j], TURNS, x[best], TURNS, true);
            for (int j = 0; j < n; j++) tested[j] = &ratio[j];
            ls_holm(tested, n, k * (k - 1) / 2);
            bool any = false;
            for (int j = 0; j < n; j++) any = any || ratio[j].shown;
            wrong += any;
        }
        /* 30 of 600 are allowed, and 46 is three standard deviations more */
        if (wrong > 46) fail_msg("%d settings: %d tables of %d have a wrong claim", k, wrong, TRIES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_quantiles_match_published_values), cmocka_unit_test(the_change_is_estimated_with_bounds),
        cmocka_unit_test(equal_settings_show_no_difference),  cmocka_unit_test(a_slowdown_of_five_percent_is_found),
        cmocka_unit_test(unpaired_runs_have_no_order),        cmocka_unit_test(rounded_pairs_claim_little),
        cmocka_unit_test(equal_settings_share_the_lead)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
