/* Numbers are functions of key and index, with uniform and normal distributions; permutations contain each index once. Bounds are chosen so that
 * a fair generator fails about once in a million runs. The keys are fixed, so the result is the same in every run. */
#include "core/rng.h"
#include "cmocka_all.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void outputs_match_published_splitmix64(void **state)
{
    (void)state;
    /* SplitMix64 from state 0: its published first outputs. */
    assert_true(ls_rng_u64(0, 0) == 0xe220a8397b1dcdafu);
    assert_true(ls_rng_u64(0, 1) == 0x6e789e6aa1b965f4u);
    assert_true(ls_rng_u64(0, 2) == 0x06c45d188009454fu);
}

static void all_keys_are_different(void **state)
{
    (void)state;
    enum { N = 4 * 4 * 8 * 8 };
    uint64_t key[N];
    int n = 0;
    for (uint64_t seed = 0; seed < 4; seed++)
        for (int use = LS_RNG_INIT; use < LS_RNG_INIT + 4; use++)
            for (uint64_t a = 0; a < 8; a++)
                for (uint64_t b = 0; b < 8; b++) key[n++] = ls_rng_key(seed, (ls_rng_use)use, a, b);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) assert_true(key[i] != key[j]);
}

static void moments_match_the_distributions(void **state)
{
    (void)state;
    enum { N = 200000 };
    uint64_t key = ls_rng_key(7, LS_RNG_TEST, 1, 2);
    double m1 = 0, m2 = 0, z1 = 0, z2 = 0, z4 = 0, lag = 0, prev = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = ls_rng_uniform(key, i), z = ls_rng_normal(key, i);
        assert_true(u >= 0 && u < 1);
        assert_true(isfinite(z));
        m1 += u;
        m2 += u * u;
        lag += (u - 0.5) * (prev - 0.5);
        prev = u;
        z1 += z;
        z2 += z * z;
        z4 += z * z * z * z;
    }
    double s = 5 / sqrt(N); /* five deviations of a mean of N */
    assert_true(fabs(m1 / N - 1.0 / 2) < s * sqrt(1.0 / 12));
    assert_true(fabs(m2 / N - 1.0 / 3) < s * sqrt(4.0 / 45));
    assert_true(fabs(lag / N) < s / 12);
    assert_true(fabs(z1 / N) < s);
    assert_true(fabs(z2 / N - 1) < s * sqrt(2));
    assert_true(fabs(z4 / N - 3) < s * sqrt(96));
}

/* Dropout's 32 bits: every bit fair, neighbours independent, other keys independent, and 10% means 10%. */
static void dropout_bits_are_fair_and_independent(void **state)
{
    (void)state;
    enum { N = 200000 };
    uint64_t key = ls_rng_key(3, LS_RNG_DROPOUT, 11, 0), other = ls_rng_key(3, LS_RNG_DROPOUT, 12, 0);
    int ones[32] = {0}, same_next[32] = {0}, same_key[32] = {0}, dropped = 0;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t x = ls_rng_u32(key, i), y = ls_rng_u32(key, i + 1), z = ls_rng_u32(other, i);
        for (int b = 0; b < 32; b++) {
            ones[b] += x >> b & 1;
            same_next[b] += ~(x ^ y) >> b & 1;
            same_key[b] += ~(x ^ z) >> b & 1;
        }
        dropped += x < (uint32_t)(0.1 * 4294967296.0);
    }
    double limit = 5.5 * 0.5 * sqrt(N); /* 96 comparisons */
    for (int b = 0; b < 32; b++) {
        if (fabs(ones[b] - N / 2.0) > limit) fail_msg("bit %d is set %d times of %d", b, ones[b], N);
        if (fabs(same_next[b] - N / 2.0) > limit) fail_msg("bit %d repeats %d times of %d", b, same_next[b], N);
        if (fabs(same_key[b] - N / 2.0) > limit)
            fail_msg("bit %d is shared by two keys %d times of %d", b, same_key[b], N);
    }
    assert_true(fabs(dropped - 0.1 * N) < 5 * sqrt(0.09 * N));
}

static void every_index_appears_exactly_once(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 1000, 4096, 5000, 65537};
    for (size_t s = 0; s < N_OF(sizes); s++) {
        for (uint64_t key = 0; key < 20; key++) {
            uint64_t n = sizes[s];
            unsigned char *seen = calloc(n + 1, 1);
            assert_non_null(seen);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t j = ls_rng_permute(ls_rng_mix(key), n, i);
                assert_true(j < n);
                if (seen[j])
                    fail_msg("n %llu, key %llu: %llu appears twice", (unsigned long long)n, (unsigned long long)key,
                             (unsigned long long)j);
                seen[j] = 1;
            }
            free(seen);
        }
    }
    uint64_t big = (uint64_t)1 << 63; /* the largest number of bits */
    for (uint64_t i = 0; i < 100; i++) assert_true(ls_rng_permute(5, big + 1, i) <= big);
}

/* Over many keys every sample is at every place about equally often, and the places of neighbouring samples are independent. */
static void every_order_is_about_equally_likely(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {10, 37, 64};
    for (size_t s = 0; s < N_OF(sizes); s++) {
        enum { KEYS = 40000 };
        uint64_t n = sizes[s];
        int *count = calloc(n * n, sizeof *count), *step = calloc(n, sizeof *step);
        assert_non_null(count);
        assert_non_null(step);
        for (uint64_t k = 0; k < KEYS; k++) {
            uint64_t key = ls_rng_key(k, LS_RNG_ORDER, 0, 0);
            for (uint64_t i = 0; i < n; i++) count[i * n + ls_rng_permute(key, n, i)]++;
            step[(ls_rng_permute(key, n, 1) + n - ls_rng_permute(key, n, 0)) % n]++;
        }
        double p = 1.0 / (double)n, limit = 5.5 * sqrt(KEYS * p * (1 - p));
        for (uint64_t i = 0; i < n * n; i++)
            if (fabs(count[i] - KEYS * p) > limit)
                fail_msg("n %d: sample %d is at place %d %d times, expected %.0f +- %.0f", (int)n, (int)(i / n),
                         (int)(i % n), count[i], KEYS * p, limit);
        assert_int_equal(step[0], 0);
        double q = 1.0 / (double)(n - 1), wide = 5.5 * sqrt(KEYS * q * (1 - q));
        for (uint64_t d = 1; d < n; d++)
            if (fabs(step[d] - KEYS * q) > wide)
                fail_msg("n %d: neighbours are %d apart %d times, expected %.0f +- %.0f", (int)n, (int)d, step[d],
                         KEYS * q, wide);
        free(count);
        free(step);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_match_published_splitmix64), cmocka_unit_test(all_keys_are_different),
        cmocka_unit_test(moments_match_the_distributions),    cmocka_unit_test(dropout_bits_are_fair_and_independent),
        cmocka_unit_test(every_index_appears_exactly_once),   cmocka_unit_test(every_order_is_about_equally_likely),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
