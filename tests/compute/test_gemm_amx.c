/* test_gemm_amx.c - the AMX kernel with its tile instructions emulated: packing, splitting, indexing and accuracy are checked on
 * every machine, with or without the instructions. */
/* ls-test: long */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The instructions according to the pseudo-code of the manual: a product sums the even and the odd steps of K separately, from zero, and adds both
 * sums to the accumulator. */
static _Thread_local struct {
    float f[256];
} emu_tile[8];

static void emu_dp(int c, int a, int b)
{
    uint16_t x[16][16][2], y[16][16][2];
    memcpy(x, &emu_tile[a], sizeof x);
    memcpy(y, &emu_tile[b], sizeof y);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float part[2] = {0, 0};
            for (int p = 0; p < 16; p++)
                for (int e = 0; e < 2; e++) {
                    uint32_t u = (uint32_t)x[i][p][e] << 16, v = (uint32_t)y[p][j][e] << 16;
                    float fu, fv;
                    memcpy(&fu, &u, sizeof fu);
                    memcpy(&fv, &v, sizeof fv);
                    part[e] = fmaf(fu, fv, part[e]);
                }
            emu_tile[c].f[i * 16 + j] += part[0] + part[1];
        }
}
#define GEMM_AMX_EMULATE
#define gemm_kernel_amx  gemm_amx_emulated
#define tile_zero(t)     memset(&emu_tile[t], 0, TILE)
#define tile_load(t, p)  memcpy(&emu_tile[t], (p), TILE)
#define tile_store(t, p) memcpy((p), &emu_tile[t], TILE)
#define tile_dp(c, a, b) emu_dp(c, a, b)
#include "compute/cpu/gemm_amx.c"

#include "gemm_check.h"

static void every_shape_matches_sums_in_double(void **state)
{
    (void)state;
    check_shapes(&gemm_amx_emulated, 4, 120);
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    check_threads(&gemm_amx_emulated, &(gemm_case){.M = 103, .N = 301, .K = 900, .bias = true});
    check_threads(&gemm_amx_emulated,
                  &(gemm_case){.ta = true, .tb = true, .M = 70, .N = 300, .K = 64, .acc = true, .pad = 1});
}

static void amx_is_about_as_exact_as_plain(void **state)
{
    (void)state;
    double plain = check_error(gemm_pick(false, "plain"), 4), mine = check_error(&gemm_amx_emulated, 4);
    print_message("  error %.3f, plain %.3f (u sum|a||b|)\n", mine, plain);
    assert_true(mine <= 1.5 * plain);
}

/* h + m + l == x, exactly, for normal numbers whose parts are normal; every part is a bf16. */
static void three_bf16_parts_add_up_exactly(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        vf x;
        vu part[3];
        for (int e = 0; e < 16; e++) {
            uint32_t bits = (uint32_t)ls_rng_u64(17, i * 16 + (uint64_t)e),
                     exponent = 20 + bits % 235; /* to the largest */
            bits = (bits & 0x807fffffu) | exponent << 23;
            if (exponent == 255) bits &= 0xff7fffffu;
            float f;
            memcpy(&f, &bits, sizeof f);
            x[e] = f;
        }
        if (i == 0) x[0] = 0x1.fffffep127f; /* rounds to infinity */
        split(part, &x);
        for (int e = 0; e < 16; e++) {
            double sum = 0;
            for (int p = 0; p < 3; p++) {
                uint32_t bits = part[p][e];
                float f;
                memcpy(&f, &bits, sizeof f);
                assert_int_equal(bits & 0xffff, 0);
                sum += (double)f;
            }
            if (sum != (double)x[e]) fail_msg("%a splits into parts that add up to %a", (double)x[e], sum);
        }
    }
}

static void nan_and_infinity_survive_the_split(void **state)
{
    (void)state;
    static const uint32_t special[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7fffffffu, 0x7f800001u, 0xffffffffu};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        vu bits = {special[i]}, part[3];
        vf x = (vf)bits;
        split(part, &x);
        bool nan = (special[i] & 0x7fffffffu) > 0x7f800000u;
        assert_int_equal(part[0][0] & 0x7f800000u, 0x7f800000u);
        assert_int_equal((part[0][0] & 0x7fffffu) != 0, nan);
        assert_int_equal(part[1][0] | part[2][0], 0);
    }
    gemm_case q = {.M = 40, .N = 50, .K = 75};
    gemm_data d = check_make(&q, 21);
    d.a[1 * d.args.lda + 74] = (float)NAN;
    d.b[33 * d.args.ldb + 49] = (float)INFINITY;
    check_run(&gemm_amx_emulated, &d, 2);
    for (int64_t i = 0; i < q.M; i++)
        for (int64_t j = 0; j < q.N; j++) assert_int_equal(isfinite(d.c[i * d.args.ldc + j]) != 0, i != 1 && j != 49);
    check_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_bf16_parts_add_up_exactly),      cmocka_unit_test(every_shape_matches_sums_in_double),
        cmocka_unit_test(the_number_of_threads_changes_no_bit), cmocka_unit_test(amx_is_about_as_exact_as_plain),
        cmocka_unit_test(nan_and_infinity_survive_the_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
