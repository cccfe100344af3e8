/* Loss scales. The rows were made with DeepSpeed 0.18.3's own DynamicLossScaler, FP16_Optimizer._update_scale and with torch's
 * _amp_update_scale_ (tests/oracle/loss_scale.py runs them again, on random rows); the rules in words are those of src/config/loss_scale.h. */
#include "config/loss_scale.h"
#include "cmocka_all.h"

#include <string.h>

static const ls_loss_scale_config usual = {
    .rule = LS_SCALE_ZERO, .initial = 65536, .min = 1, .window = 1000, .hysteresis = 2};

static void must(ls_loss_scale *s, const char *overflow)
{
    for (; *overflow; overflow++) assert_int_equal(ls_loss_scale_update(s, *overflow == '1'), LS_OK);
}

/* Checks the scale after every accumulation boundary of the row. */
static void follows(const ls_loss_scale_config *c, const char *overflow, const double *scale)
{
    ls_loss_scale s = ls_loss_scale_init(c);
    for (int i = 0; overflow[i]; i++) {
        assert_int_equal(ls_loss_scale_update(&s, overflow[i] == '1'), LS_OK);
        if (ls_loss_scale_now(&s) != scale[i])
            fail_msg("%s: scale %g after boundary %d, expected %g", ls_scale_rule_word(c->rule), s.scale, i, scale[i]);
    }
}

static void scales_follow_deepspeed_and_torch(void **state)
{
    (void)state;
    const ls_loss_scale_config zero = {.rule = LS_SCALE_ZERO, .initial = 256, .min = 1, .window = 3, .hysteresis = 2};
    follows(&zero, "1101000010000000",
            (const double[]){256, 128, 128, 64, 64, 64, 64, 128, 128, 128, 128, 128, 256, 256, 256, 512});
    ls_loss_scale_config c = zero;
    c.consecutive = true; /* a boundary without an overflow resets the hysteresis */
    follows(&c, "1101000010000000",
            (const double[]){256, 128, 128, 128, 128, 128, 128, 256, 256, 256, 256, 256, 512, 512, 512, 1024});
    c = zero;
    c.rule = LS_SCALE_STAGE0;
    follows(&c, "1101000010000000", (const double[]){128, 64, 64, 32, 32, 32, 32, 64, 32, 32, 32, 32, 64, 64, 64, 128});
    c = zero;
    c.rule = LS_SCALE_AMP;
    follows(&c, "1101000010000000",
            (const double[]){128, 64, 64, 32, 32, 32, 64, 64, 32, 32, 32, 64, 64, 64, 128, 128});
    c = zero;
    c.rule = LS_SCALE_FIXED;
    follows(&c, "1101", (const double[]){256, 256, 256, 256});
}

static void the_first_overflow_uses_hysteresis(void **state)
{
    (void)state;
    ls_loss_scale s = ls_loss_scale_init(&usual);
    assert_true(ls_loss_scale_now(&s) == 65536 && ls_loss_scale_skips(&s));
    must(&s, "1");
    assert_true(s.scale == 65536 && s.hysteresis == 1);
    must(&s, "0101"); /* every later overflow halves the scale, until a growth resets the hysteresis */
    assert_true(s.scale == 65536 / 4 && s.hysteresis == 1);
    for (int i = 0; i < 1000; i++) must(&s, "0");
    assert_true(s.scale == 65536 / 4 && s.hysteresis == 1);
    must(&s, "0"); /* boundary 1001 without an overflow */
    assert_true(s.scale == 65536 / 2 && s.hysteresis == 2);
    for (int i = 0; i < 999; i++) must(&s, "0");
    assert_true(s.scale == 65536 / 2);
    must(&s, "0"); /* then every 1000 boundaries */
    assert_true(s.scale == 65536);
    must(&s, "1");
    assert_true(s.scale == 65536 && s.hysteresis == 1);
}

static void only_the_zero_rule_fails_at_the_minimum(void **state)
{
    (void)state;
    ls_loss_scale_config c = usual;
    c.initial = 8;
    c.min = 3; /* not a power of two: the last reduction is smaller */
    ls_loss_scale s = ls_loss_scale_init(&c);
    must(&s, "1");
    must(&s, "1");
    assert_true(s.scale == 4);
    must(&s, "1");
    assert_true(s.scale == 3);
    const ls_loss_scale before = s;
    assert_int_equal(ls_loss_scale_update(&s, true), LS_E_NUMERIC);
    assert_non_null(strstr(ls_err_words(), "smallest loss scale 3"));
    assert_memory_equal(&s, &before, sizeof s);
    c.rule = LS_SCALE_STAGE0; /* without ZeRO the run continues at the minimum */
    s = ls_loss_scale_init(&c);
    must(&s, "11111111");
    assert_true(s.scale == 3);
    c.rule = LS_SCALE_AMP; /* torch has no minimum */
    s = ls_loss_scale_init(&c);
    must(&s, "11111");
    assert_true(s.scale == 0.25);
}

static void an_overflow_without_a_rule_fails(void **state)
{
    (void)state;
    const ls_loss_scale_config none = {0};
    ls_loss_scale s = ls_loss_scale_init(&none);
    assert_true(ls_loss_scale_now(&s) == 1 && !ls_loss_scale_skips(&s));
    must(&s, "000");
    assert_true(ls_loss_scale_now(&s) == 1);
    assert_int_equal(ls_loss_scale_update(&s, true), LS_E_NUMERIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_follow_deepspeed_and_torch),
        cmocka_unit_test(the_first_overflow_uses_hysteresis),
        cmocka_unit_test(only_the_zero_rule_fails_at_the_minimum),
        cmocka_unit_test(an_overflow_without_a_rule_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
