/* test_gemm_bf16.c - the bf16 kernels: the emulated instructions against the manuals' definitions, every kernel that runs here against sums in
 * double, and real instructions against their emulation, bit for bit. */
/* ls-test: long */
#define GEMM_EMULATE
#include "compute/cpu/gemm_bf16_emulate.h"
#undef GEMM_EMULATE

#include "gemm_check.h"

#include <stdlib.h>

/* Fewer cases under a sanitizer, which slows them. */
#ifdef __SANITIZE_ADDRESS__
enum { CASES = 6000, SHAPES = 10, EVERY = 2 };
#else
enum { CASES = 60000, SHAPES = 50, EVERY = 1 };
#endif

/* ---- the instructions, one number at a time ---- */

static float number(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* bf16 numbers of all sizes; one in eight is special: zeros, denormals, infinities, NaN, the largest and the smallest. */
static uint16_t draw_bf16(uint64_t key, uint64_t i, bool tame)
{
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x7f80, 0xff80, 0x7fc1, 0x7f7f, 0xff7f, 0x0080};
    const uint64_t r = ls_rng_u64(key, i);
    if (tame) return (uint16_t)((r & 0x807f) | (100 + (r >> 20) % 50) << 7);
    if (r >> 61 == 0) return special[(r >> 32) % (sizeof special / sizeof special[0])];
    return (uint16_t)(r >> 16 & 1 ? (r & 0x807f) | (uint64_t)(120 + (r >> 20) % 16) << 7 : r & 0xffff);
}

static float flushed(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float wide(uint16_t h)
{
    return flushed(number((uint32_t)h << 16));
}

static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || bits_of(a) == bits_of(b);
}

/* The sum of two doubles that have at most 24 bits each, rounded to odd at 24 bits. */
static float sum_to_odd(float a, float b)
{
    const long double s = (long double)a + (long double)b; /* 64 bits: not always exact; then `low` is not 0 */
    const long double low = (long double)b - (s - (long double)a) + ((long double)a - (s - (s - (long double)a)));
    if (!isfinite(a) || !isfinite(b)) return a + b;
    if (s == 0) return a + b;
    int e;
    long double m = fabsl(s), f = ldexpl(frexpl(m, &e), 24), whole = floorl(f); /* m = f 2^(e-24), f in [2^23, 2^24) */
    const bool down = low != 0 && (low < 0) != (s < 0), exact = f == whole && low == 0;
    if (down && f == whole)
        whole = whole == 0x1p23L ? (e--, 0x1p24L - 1) : whole - 1; /* below 2^23 the spacing is half */
    if (!exact && fmodl(whole, 2) == 0) whole += 1;
    const long double r = ldexpl(whole, e - 24);
    const float out = r >= 0x1p128L ? INFINITY : (float)r;
    return copysignf(flushed(out), s < 0 ? -1.0f : 1.0f);
}

static void dot_products_of_pairs_follow_the_manual(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < CASES; i++) {
        vu a, b;
        vf c;
        for (int e = 0; e < 16; e++) {
            const uint64_t at = i * 64 + (uint64_t)e * 4;
            a[e] = draw_bf16(1, at, i & 1) | (uint32_t)draw_bf16(1, at + 1, i & 1) << 16;
            b[e] = draw_bf16(1, at + 2, i & 1) | (uint32_t)draw_bf16(1, at + 3, i & 1) << 16;
            c[e] = flushed(number((uint32_t)ls_rng_u64(2, at)));
            if (i & 1) c[e] = (float)ls_rng_normal(2, at);
        }
        const vf got = emu_dpbf16(c, (vf)a, (vf)b);
        for (int e = 0; e < 16; e++) {
            const float odd = flushed(fmaf(wide((uint16_t)(a[e] >> 16)), wide((uint16_t)(b[e] >> 16)), c[e]));
            const float want = flushed(fmaf(wide((uint16_t)a[e]), wide((uint16_t)b[e]), odd));
            if (!same(got[e], want))
                fail_msg("%08x . %08x + %a = %a, want %a", a[e], b[e], (double)c[e], (double)got[e], (double)want);
        }
    }
}

static void tile_products_follow_the_manual(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 40; n++) {
        uint32_t a[256], b[256];
        float c[256], want[256];
        for (uint64_t i = 0; i < 256; i++) {
            const uint64_t at = n * 1024 + 4 * i;
            const bool tame = n % 4 != 0;
            a[i] = draw_bf16(3, at, tame) | (uint32_t)draw_bf16(3, at + 1, tame) << 16;
            b[i] = draw_bf16(3, at + 2, tame) | (uint32_t)draw_bf16(3, at + 3, tame) << 16;
            c[i] = (float)ls_rng_normal(4, at);
        }
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++) {
                float part[2] = {0, 0};
                for (int p = 0; p < 16; p++)
                    for (int e = 0; e < 2; e++)
                        part[e] = flushed(fmaf(wide((uint16_t)(a[16 * i + p] >> 16 * e)),
                                               wide((uint16_t)(b[16 * p + j] >> 16 * e)), part[e]));
                want[16 * i + j] = flushed(flushed(c[16 * i + j]) + flushed(part[0] + part[1]));
            }
        emu_tdpbf16(c, a, b);
        for (int i = 0; i < 256; i++)
            if (!same(c[i], want[i]))
                fail_msg("tile %d: element %d is %a, want %a", (int)n, i, (double)c[i], (double)want[i]);
    }
}

static void bfmmla_rounds_to_odd(void **state)
{
    (void)state;
    int inexact = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        uint16_t a[8], b[8];
        emu_v4 c;
        for (uint64_t e = 0; e < 8; e++) {
            a[e] = draw_bf16(5, i * 16 + e, i & 1);
            b[e] = draw_bf16(5, i * 16 + 8 + e, i & 1);
        }
        for (uint64_t e = 0; e < 4; e++)
            c[e] = i & 2 ? (float)ls_rng_normal(6, i * 4 + e) : flushed(number((uint32_t)ls_rng_u64(6, i * 4 + e)));
        const emu_v4 got = emu_bfmmla(c, a, b);
        for (int e = 0; e < 4; e++) {
            const uint16_t *x = a + e / 2 * 4, *y = b + e % 2 * 4;
            float want = c[e];
            for (int k = 0; k < 4; k += 2) {
                const float p = flushed(wide(x[k]) * wide(y[k])), q = flushed(wide(x[k + 1]) * wide(y[k + 1]));
                want = sum_to_odd(want, sum_to_odd(p, q));
            }
            inexact += bits_of(want) & 1;
            if (!same(got[e], want))
                fail_msg("case %llu, element %d: %a, want %a", (unsigned long long)i, e, (double)got[e], (double)want);
        }
    }
    assert_true(inexact > CASES / 2);
}

static void numbers_are_rounded_to_the_nearest_even(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < CASES; i++) {
        vf x;
        for (int e = 0; e < 16; e++) x[e] = number((uint32_t)ls_rng_u64(7, i * 16 + (uint64_t)e));
        if (i == 0)
            x = (vf){0, -0.0f, INFINITY, -INFINITY, NAN, 0x1.fffffep127f, 0x1.01p0f, 0x1.03p0f, 0x1p-127f, 1e-40f};
        const vu r = emu_round(x);
        for (int e = 0; e < 16; e++) assert_int_equal(r[e], ls_to_bf16(flushed(x[e])));
    }
}

/* ---- the kernels ---- */

static void each(void (*f)(const gemm_kernel *k))
{
    bool usable;
    const gemm_kernel *k;
    for (int i = 0; (k = gemm_list(i, &usable)); i++) {
        if (!gemm_is_bf16(k)) continue;
        print_message("  %s%s\n", gemm_name(k), usable ? "" : ": not supported by this CPU");
        if (usable) f(k);
    }
}

static void shapes_of(const gemm_kernel *k)
{
    check_shapes(k, 4, getenv("LS_TEST_ALL") ? 80 : SHAPES);
}

static void every_shape_matches_sums_in_double(void **state)
{
    (void)state;
    each(shapes_of);
}

static void threads_of(const gemm_kernel *k)
{
    static const gemm_case cases[] = {
        {.M = 103, .N = 301, .K = 1100, .bias = true},
        {.tb = true, .M = 70, .N = 515, .K = 530, .acc = true, .pad = 3},
        {.ta = true, .M = 287, .N = 99, .K = 320, .acc = true},
        {.ta = true, .tb = true, .M = 70, .N = 300, .K = 65, .bias = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += EVERY) check_threads(k, &cases[i]);
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    each(threads_of);
}

/* Operands are rounded to the nearest even, once, and nothing else is: rounding them first changes no bit. */
static void rounding_of(const gemm_kernel *k)
{
    for (int t = 0; t < 4; t++) {
        const gemm_case q = {.ta = t & 1, .tb = t & 2, .M = 45, .N = 70, .K = 77, .bias = true, .acc = t == 3};
        gemm_case exact = q;
        exact.bf16 = true;
        gemm_data d = check_make(&q, 9), e = check_make(&exact, 9);
        check_run(k, &d, 1);
        check_run(k, &e, 2);
        assert_memory_equal(d.c, e.c, (size_t)d.n_c * sizeof *d.c);
        check_free(&d);
        check_free(&e);
    }
}

static void operands_are_rounded_once(void **state)
{
    (void)state;
    each(rounding_of);
}

static void special_of(const gemm_kernel *k)
{
    const gemm_case q = {.M = 40, .N = 70, .K = 75};
    gemm_data d = check_make(&q, 21);
    d.a[1 * d.args.lda + 74] = (float)NAN;
    d.b[33 * d.args.ldb + 69] = (float)INFINITY;
    d.a[5 * d.args.lda + 2] = 0x1.ffp127f; /* rounds to infinity */
    check_run(k, &d, 2);
    for (int64_t i = 0; i < q.M; i++)
        for (int64_t j = 0; j < q.N; j++)
            assert_int_equal(isfinite(d.c[i * d.args.ldc + j]) != 0, i != 1 && i != 5 && j != 69);
    check_free(&d);
}

static void nan_and_infinity_stay_in_their_places(void **state)
{
    (void)state;
    each(special_of);
}

static void real_of(const gemm_kernel *k)
{
    char name[64];
    if (gemm_is_emulated(k)) return;
    snprintf(name, sizeof name, "%s-emulated", gemm_name(k));
    const gemm_kernel *emulated = gemm_pick(true, name);
    assert_non_null(emulated);
    for (uint64_t n = 0; n < 60; n++) {
        const uint64_t r = ls_rng_u64(12, n);
        const gemm_case q = {.ta = r & 1,
                             .tb = r & 2,
                             .acc = r & 4,
                             .bias = r & 8,
                             .pad = r & 16 ? 3 : 0,
                             .M = 1 + (int64_t)(r >> 8 & 63),
                             .N = 1 + (int64_t)(r >> 16 & 63),
                             .K = 1 + (int64_t)(r >> 24 & 255)};
        gemm_data d = check_make(&q, n), e = check_make(&q, n);
        if (n % 3 == 0) /* large and small numbers, denormals */
            for (int64_t i = 0; i < d.n_a; i++)
                d.a[i] = e.a[i] = ldexpf(d.a[i], (int)(ls_rng_u64(13, (uint64_t)i) % 160) - 130);
        check_run(k, &d, 1);
        check_run(emulated, &e, 1);
        for (int64_t i = 0; i < d.n_c; i++)
            if (!same(d.c[i], e.c[i]))
                fail_msg("%s: element %lld of M=%lld N=%lld K=%lld is %a, emulated %a", gemm_name(k), (long long)i,
                         (long long)q.M, (long long)q.N, (long long)q.K, (double)d.c[i], (double)e.c[i]);
        check_free(&d);
        check_free(&e);
    }
}

static void instructions_match_their_emulation(void **state)
{
    (void)state;
    each(real_of);
}

static void kernels_are_chosen_by_type(void **state)
{
    (void)state;
    unsetenv("LS_GEMM");
    assert_true(gemm_is_bf16(gemm_pick(true, NULL)));
    assert_false(gemm_is_bf16(gemm_pick(false, NULL)));
    assert_null(gemm_pick(true, "plain"));
    assert_null(gemm_pick(false, "bfmmla-emulated"));
    bool usable, has = false;
    const gemm_kernel *k;
    for (int i = 0; (k = gemm_list(i, &usable)); i++) has |= usable && gemm_is_bf16(k) && !gemm_is_emulated(k);
    assert_int_equal(gemm_is_emulated(gemm_best(true)), !has);
    setenv("LS_GEMM", "amx-bf16-emulated", 1);
    assert_string_equal(gemm_name(gemm_pick(true, NULL)), "amx-bf16-emulated");
    assert_null(gemm_pick(false, NULL));
    assert_non_null(gemm_best(false));
    unsetenv("LS_GEMM");
}

/* A that is bf16 already gives the bits of fp32 numbers that round to it. */
static void narrow_of(const gemm_kernel *k)
{
    if (!gemm_takes_bf16(k)) return;
    for (int t = 0; t < 8; t++) {
        const gemm_case q = {.ta = t & 1,
                             .tb = t & 2,
                             .acc = t & 2,
                             .pad = t & 4 ? 3 : 0,
                             .M = t & 4 ? 45 : 96,
                             .N = 70,
                             .K = t & 4 ? 77 : 1100};
        gemm_data d = check_make(&q, 9), e = check_make(&q, 9);
        uint16_t *half = (uint16_t *)(void *)e.a;
        for (int64_t i = 0; i < d.n_a; i++) d.a[i] *= 0.3f;
        if (t & 1) d.a[5] = 1e-39f, e.a[5] = 1e-39f / 0.3f;
        check_run(k, &d, 1);
        gemm_narrow(k, half, e.a, e.n_a, 0.3f); /* in its place */
        for (int64_t i = 0; i < e.n_a; i++)     /* a denormal may be 0 already: the products count it as 0 */
            assert_true(half[i] == ls_to_bf16(d.a[i]) || half[i] == ls_to_bf16(flushed(d.a[i])));
        e.args.A16 = half;
        e.args.A = NULL;
        check_run(k, &e, 3);
        assert_memory_equal(d.c, e.c, (size_t)d.n_c * sizeof *d.c);
        check_free(&d);
        check_free(&e);
    }
}

static void operands_may_be_bf16_already(void **state)
{
    (void)state;
    int n = 0;
    bool usable;
    for (int i = 0; gemm_list(i, &usable); i++) n += usable && gemm_takes_bf16(gemm_list(i, NULL));
    assert_true(n > 0);
    each(narrow_of);
}

/* Where sums run on, one product has the bits of several that add to each other. */
static void cuts_of(const gemm_kernel *k)
{
    if (!gemm_runs_on(k)) return;
    const gemm_case q = {.ta = true, .M = 70, .N = 99, .K = 700};
    gemm_data d = check_make(&q, 5), e = check_make(&q, 5);
    check_run(k, &d, 2);
    const float *a = e.args.A, *b = e.args.B;
    for (int64_t at = 0, n; at < q.K; at += n) {
        e.args.K = n = LS_MIN(q.K - at, 96);
        e.args.A = a + at * e.args.lda;
        e.args.B = b + at * e.args.ldb;
        e.args.acc = at > 0;
        check_run(k, &e, 2); /* it begins with c0 */
        memcpy(e.c0, e.c, (size_t)e.n_c * sizeof *e.c);
    }
    assert_memory_equal(d.c, e.c, (size_t)d.n_c * sizeof *d.c);
    check_free(&d);
    check_free(&e);
}

static void sums_that_run_on_may_be_cut(void **state)
{
    (void)state;
    assert_true(gemm_runs_on(gemm_pick(true, "amx-bf16-emulated")));
    each(cuts_of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_products_of_pairs_follow_the_manual),
        cmocka_unit_test(tile_products_follow_the_manual),
        cmocka_unit_test(bfmmla_rounds_to_odd),
        cmocka_unit_test(numbers_are_rounded_to_the_nearest_even),
        cmocka_unit_test(kernels_are_chosen_by_type),
        cmocka_unit_test(every_shape_matches_sums_in_double),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(operands_are_rounded_once),
        cmocka_unit_test(operands_may_be_bf16_already),
        cmocka_unit_test(sums_that_run_on_may_be_cut),
        cmocka_unit_test(nan_and_infinity_stay_in_their_places),
        cmocka_unit_test(instructions_match_their_emulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
