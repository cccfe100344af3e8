/* test_simd_math.c - exp and both GELUs of every SIMD table that this CPU supports, compared with libm in double in small steps over the
 * whole useful range. Prints the largest errors. */
/* ls-test: long */
#include "compute/cpu/simd.h"
#include "core/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static double gelu_tanh(double x)
{
    return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double gelu_erf(double x)
{
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

/* Relative errors of exp and erf-GELU; for tanh-GELU relative above -1 and absolute below, where the rounding of the argument dominates.
 * Measured: exp 8e-8, tanh 2.1e-7 and 4.2e-8, erf 4.4e-7. */
static void exp_and_gelu_match_libm(void **state)
{
    (void)state;
    enum { N = 400001 };
    float *x = ls_alloc(N * sizeof *x), *y = ls_alloc(N * sizeof *y);
    bool usable;
    for (int t = 0; simd_list(t, &usable); t++) {
        const simd_ops *k = simd_list(t, &usable);
        if (!usable) continue;
        double e_exp = 0, e_tanh = 0, e_erf = 0, tail = 0;
        for (int i = 0; i < N; i++) x[i] = -87.3f + 175.6f * (float)i / (N - 1);
        k->exp(y, x, N);
        for (int i = 0; i < N; i++) e_exp = fmax(e_exp, fabs((double)y[i] / exp((double)x[i]) - 1));
        for (int i = 0; i < N; i++) x[i] = -12 + 24.0f * (float)i / (N - 1);
        k->gelu_fwd(y, x, N, LS_GELU_TANH);
        for (int i = 0; i < N; i++) {
            double want = gelu_tanh((double)x[i]), e = fabs((double)y[i] - want);
            if (x[i] > -1) e_tanh = fmax(e_tanh, e / fmax(fabs(want), 1e-30));
            else tail = fmax(tail, e);
        }
        k->gelu_fwd(y, x, N, LS_GELU_ERF);
        for (int i = 0; i < N; i++) {
            double want = gelu_erf((double)x[i]);
            if (fabs(want) > 1e-30) e_erf = fmax(e_erf, fabs((double)y[i] / want - 1));
        }
        printf("%-8s exp %.2e  gelu tanh %.2e (tail, absolute %.2e)  gelu erf %.2e\n", k->name, e_exp, e_tanh, tail,
               e_erf);
        assert_true(e_exp < 3e-7);
        assert_true(e_tanh < 1e-6);
        assert_true(tail < 3e-7);
        assert_true(e_erf < 2e-6);
        float odd[4] = {NAN, -INFINITY, -1000, 0}, got[4];
        k->exp(got, odd, 4);
        assert_true(isnan(got[0]) && got[1] == 0 && got[2] == 0 && got[3] == 1);
        k->gelu_fwd(got, odd, 1, LS_GELU_TANH);
        assert_true(isnan(got[0]));
        k->gelu_fwd(got, odd, 1, LS_GELU_ERF);
        assert_true(isnan(got[0]));
    }
    ls_free(x);
    ls_free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exp_and_gelu_match_libm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
