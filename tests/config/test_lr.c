/* Learning rates: the schedules of DeepSpeed, their edge cases, and our own schedules. Expected numbers were computed by hand from
 * the formulas in the header or come from DeepSpeed. */
#include "config/lr.h"
#include "assert_near.h"

static void warmup_follows_deepspeeds_check_values(void **state)
{
    (void)state;
    ls_lr_schedule s = {.kind = LS_LR_WARMUP, .max = 1e-4, .warmup = 1000, .last_batch_iteration = -1};
    assert_near(ls_lr_at(&s, 1), 0,
                0); /* the first two updates of the ZeRO scaling study (docs/REFERENCES.md) change nothing */
    assert_near(ls_lr_at(&s, 2), 0, 0);
    assert_near(ls_lr_at(&s, 3), 1.0034e-5, 5e-10);
    assert_near(ls_lr_at(&s, 10), 3.1808e-5, 5e-10);
    assert_near(ls_lr_at(&s, 100), 6.6521e-5, 5e-10);
    assert_near(ls_lr_at(&s, 1000), 9.99855e-5, 5e-11);
    assert_near(ls_lr_at(&s, 1001), 1e-4, 1e-19);
    assert_near(ls_lr_at(&s, 1002), 1e-4, 0);
    assert_near(ls_lr_at(&s, 1000000), 1e-4, 0);
    s.min = 2e-5;
    s.linear = true;
    s.warmup = 10;
    assert_near(ls_lr_at(&s, 1), 2e-5, 0);
    assert_near(ls_lr_at(&s, 2), 2e-5, 1e-18);
    assert_near(ls_lr_at(&s, 7), 2e-5 + 8e-5 * 0.5, 1e-18);
    assert_near(ls_lr_at(&s, 12), 1e-4, 0);
    s.warmup = 1; /* below 2 acts as 2 */
    assert_near(ls_lr_at(&s, 3), 2e-5 + 8e-5 * 0.5, 1e-18);
    s.last_batch_iteration = 1; /* a schedule that was started before */
    assert_near(ls_lr_at(&s, 1), 2e-5 + 8e-5 * 0.5, 1e-18);
}

static void warmup_decay_ends_at_the_minimum(void **state)
{
    (void)state;
    ls_lr_schedule s = {.kind = LS_LR_WARMUP_DECAY,
                        .min = 1e-5,
                        .max = 1e-3,
                        .warmup = 10,
                        .total = 110,
                        .linear = true,
                        .last_batch_iteration = -1};
    assert_near(ls_lr_at(&s, 1), 1e-5, 0);
    assert_near(ls_lr_at(&s, 7), 1e-5 + 0.5 * 99e-5, 1e-18);  /* i = 5 of 10 */
    assert_near(ls_lr_at(&s, 12), 1e-3, 1e-18);               /* i = 10: the maximum */
    assert_near(ls_lr_at(&s, 62), 1e-5 + 0.5 * 99e-5, 1e-18); /* i = 60: halfway to min, not to 0 */
    assert_near(ls_lr_at(&s, 112), 1e-5, 1e-18);
    assert_near(ls_lr_at(&s, 5000), 1e-5, 1e-18);
    s.total = 5; /* shorter than the warm-up: DeepSpeed divides by 1 then */
    assert_near(ls_lr_at(&s, 12), 1e-5, 1e-18);
}

static void warmup_cosine_does_not_rise_again(void **state)
{
    (void)state;
    ls_lr_schedule s = {.kind = LS_LR_WARMUP_COSINE,
                        .base = 2e-4,
                        .warmup = 10,
                        .total = 110,
                        .linear = true,
                        .warmup_min_ratio = 0.1,
                        .floor_ratio = 0.001,
                        .last_batch_iteration = -1};
    assert_near(ls_lr_at(&s, 1), 0, 0); /* for any warmup_min_ratio */
    assert_near(ls_lr_at(&s, 2), 2e-5, 1e-18);
    assert_near(ls_lr_at(&s, 7), 2e-4 * (0.1 + 0.9 * 0.5), 1e-18);
    assert_near(ls_lr_at(&s, 12), 2e-4 * (0.001 + 0.999 * (1 + cos(M_PI * 0.01)) / 2), 1e-15); /* i = 10: x = 1/100 */
    assert_near(ls_lr_at(&s, 61), 2e-4 * (0.001 + 0.999 * 0.5), 1e-15);                        /* i = 59: x = 50/100 */
    assert_near(ls_lr_at(&s, 111), 2e-7, 1e-15);                                               /* x = 1 */
    assert_near(ls_lr_at(&s, 161), 2e-7, 1e-15); /* clamped: the cosine does not rise again */
}

static void the_range_test_grows_as_in_deepspeed(void **state)
{
    (void)state;
    ls_lr_schedule s = {
        .kind = LS_LR_RANGE_TEST, .min = 1e-3, .range_size = 10, .range_rate = 2, .last_batch_iteration = -1};
    assert_near(ls_lr_at(&s, 1), 1e-3, 0);
    assert_near(ls_lr_at(&s, 6), 1e-3 * (1 + 2 * 0.5), 1e-18);
    s.range_staircase = true;
    assert_near(ls_lr_at(&s, 10), 1e-3, 1e-18);
    assert_near(ls_lr_at(&s, 11), 3e-3, 1e-18);
}

static void our_schedules_have_no_zero_update(void **state)
{
    (void)state;
    ls_lr_schedule s = {
        .kind = LS_LR_COSINE, .base = 1e-3, .warmup = 4, .total = 24, .floor_ratio = 0.1, .last_batch_iteration = -1};
    assert_near(ls_lr_at(&s, 1), 2.5e-4, 1e-18); /* no update at rate 0 */
    assert_near(ls_lr_at(&s, 4), 1e-3, 1e-18);
    assert_near(ls_lr_at(&s, 14), 1e-3 * 0.55, 1e-18);
    assert_near(ls_lr_at(&s, 24), 1e-4, 1e-18);
    assert_near(ls_lr_at(&s, 100), 1e-4, 1e-18);
    for (int64_t k = 5; k <= 24; k++) assert_true(ls_lr_at(&s, k) < ls_lr_at(&s, k - 1));
    s.warmup = 0;
    assert_true(ls_lr_at(&s, 1) > 9.9e-4);
    s.kind = LS_LR_CONSTANT;
    assert_near(ls_lr_at(&s, 1), 1e-3, 0);
    s.warmup = 2;
    assert_near(ls_lr_at(&s, 1), 5e-4, 1e-18);
    assert_near(ls_lr_at(&s, 3), 1e-3, 0);
    assert_string_equal(ls_lr_word(LS_LR_WARMUP_COSINE), "WarmupCosineLR");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_follows_deepspeeds_check_values),
        cmocka_unit_test(warmup_decay_ends_at_the_minimum),
        cmocka_unit_test(warmup_cosine_does_not_rise_again),
        cmocka_unit_test(the_range_test_grows_as_in_deepspeed),
        cmocka_unit_test(our_schedules_have_no_zero_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
