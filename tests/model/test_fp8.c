/* Scales of fp8: the largest power of two that keeps the recorded magnitudes within the format, and the history that they come from. */
#include "model/fp8.h"
#include "cmocka_all.h"

#include <math.h>

static void a_scale_is_the_largest_power_of_two_that_fits(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        const ls_fp8 form = f ? LS_E5M2 : LS_E4M3;
        const float most = f ? 57344 : 448;
        for (float amax = 1e-9f; amax < 1e9f; amax *= 1.37f)
            for (int margin = 0; margin < 3; margin++) {
                const float s = ls_fp8_scale(amax, form, margin), top = amax * s * ldexpf(1, margin);
                int e;
                assert_true(frexpf(s, &e) == 0.5f);
                assert_true(top <= most && 2 * top > most);
            }
        assert_true(ls_fp8_scale(most, form, 0) == 1);
        assert_true(ls_fp8_scale(nextafterf(most, 1e30f), form, 0) == 0.5f);
        assert_true(ls_fp8_scale(0, form, 0) == 1);
        const float tiny = ls_fp8_scale(1e-45f, form, 0), huge = ls_fp8_scale(3e38f, form, 0);
        assert_true(isfinite(tiny) && isfinite(1 / tiny) && huge > 0 && isfinite(1 / huge));
    }
}

static void the_history_drops_its_oldest_step(void **state)
{
    (void)state;
    float room[3 * 2] = {0};
    ls_fp8_history h = {.n = 2, .length = 3, .amax = room};
    for (int s = 1; s <= 5; s++) {
        ls_fp8_push(&h, (float[]){(float)s, (float)(10 * s)});
        assert_int_equal(h.used, s < 3 ? s : 3);
        assert_true(room[0] == (float)s && room[1] == (float)(10 * s));
    }
    const float want[] = {5, 50, 4, 40, 3, 30};
    for (int i = 0; i < 6; i++) assert_true(room[i] == want[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_scale_is_the_largest_power_of_two_that_fits),
                                       cmocka_unit_test(the_history_drops_its_oldest_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
