/* The 16-bit types: every value converted to float and back; rounding compared with its definition (to the nearest, ties to even). */
#include "core/half.h"
#include "core/rng.h"
#include "cmocka_all.h"

#include <math.h>

typedef struct kind {
    float (*from)(uint16_t);
    uint16_t (*to)(float);
    uint16_t inf;
    double edge; /* from here on values round to infinity */
} kind;

static const kind kinds[] = {{ls_from_bf16, ls_to_bf16, 0x7f80, 0x1.ffp127}, {ls_from_f16, ls_to_f16, 0x7c00, 65520}};

static void every_16_bit_value_survives_the_round_trip(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (uint32_t h = 0; h < 65536; h++) {
            const float x = kinds[k].from((uint16_t)h);
            const uint16_t back = kinds[k].to(x);
            if ((h & 0x7fff) > kinds[k].inf) assert_true(isnan(x) && (back & 0x7fff) > kinds[k].inf);
            else assert_int_equal(back, h);
        }
    assert_true(ls_from_f16(0x3c00) == 1 && ls_from_f16(0x7bff) == 65504 && ls_from_f16(1) == 0x1p-24f);
    assert_true(ls_from_bf16(0x3f80) == 1 && ls_from_bf16(0xc040) == -3);
}

static void check(const kind *k, float x)
{
    const uint16_t h = k->to(x), a = h & 0x7fff;
    const double v = fabs((double)x);
    assert_int_equal(h >> 15, signbit(x) != 0);
    if (v >= k->edge) {
        assert_int_equal(a, k->inf);
        return;
    }
    assert_true(a < k->inf);
    const double here = (double)k->from(a), below = a ? (double)k->from((uint16_t)(a - 1)) : -1,
                 above = a + 1 < k->inf ? (double)k->from((uint16_t)(a + 1)) : here + (here - below);
    const double d = fabs(v - here), lo = v - below, hi = above - v;
    if (a && !(d < lo || (d == lo && a % 2 == 0))) fail_msg("%a became %a, %a is nearer", v, here, below);
    if (!(d < hi || (d == hi && a % 2 == 0))) fail_msg("%a became %a, %a is nearer", v, here, above);
}

static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < 400000; i++) { /* any float, and the floats around a tie */
            const uint32_t bits = ls_rng_u32(7, i);
            if (isfinite(ls_float_of(bits))) check(&kinds[k], ls_float_of(bits));
            const float x = kinds[k].from((uint16_t)(bits >> 16)), y = kinds[k].from((uint16_t)((bits >> 16) + 1));
            if (!isfinite(x) || !isfinite(y)) continue;
            const float mid = x + (y - x) / 2;
            check(&kinds[k], mid);
            check(&kinds[k], nextafterf(mid, INFINITY));
            check(&kinds[k], nextafterf(mid, -INFINITY));
        }
        check(&kinds[k], 65519.996f);
        check(&kinds[k], 65520.0f);
        check(&kinds[k], 3.4028235e38f);
        check(&kinds[k], 0x1p-25f);
        check(&kinds[k], 0x1.000002p-25f);
        check(&kinds[k], -0.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_16_bit_value_survives_the_round_trip),
                                       cmocka_unit_test(rounding_is_to_nearest_even)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
