/* The backward pass of the model is the derivative of its forward pass: central differences in double, for every tensor, both variants, with and without
 * dropout and recomputation.
 *
 * Bound: with h = 1e-5 the truncation is about h^2 |f'''| and the rounding about 1e-16/h; the largest measured relative error is 6e-9
 * (arm64), so 1e-7 leaves room for other libraries and still catches any wrong factor. */
/* ls-test: long */
#include "cmocka_all.h"
#include "model_fixture.h"

#include <math.h>
#include <stdio.h>

#define PROBES 6 /* elements checked in each tensor */

static void check(ls_variant variant, double pdrop, bool recompute)
{
    fixture f;
    ls_model_config cfg = small_config(variant, pdrop);
    assert_int_equal(fixture_open(&f, &cfg, "cpu-ref", LS_F64, 1, 2, 7, 1, recompute, 1), LS_OK);
    double loss, up = 0, down = 0, worst = 0;
    assert_int_equal(fixture_pass(&f, 0, 1, true, &loss), LS_OK);
    assert_int_equal(fixture_fold_tied(f.model), LS_OK);

    int n_checked = 0;
    for (int u = 0; u < f.model->n_unit; u++) {
        for (int k = 0; k < f.model->unit[u].n_tensor; k++) {
            const ls_tensor *t = &f.model->unit[u].tensor[k];
            double *grad = ls_alloc((size_t)t->n * sizeof *grad); /* another pass overwrites the buffers */
            assert_non_null(grad);
            assert_int_equal(fixture_pass(&f, 0, 1, true, &loss), LS_OK);
            assert_int_equal(fixture_fold_tied(f.model), LS_OK);
            for (int64_t i = 0; i < t->n; i++) grad[i] = ((double *)f.model->unit[u].grad)[t->offset + i];
            double scale = 0;
            for (int64_t i = 0; i < t->n; i++) scale = fmax(scale, fabs(grad[i]));
            for (int p = 0; p < PROBES; p++) {
                int64_t i = (int64_t)(ls_rng_u64(91, (uint64_t)(u * 1000 + k * 10 + p)) % (uint64_t)t->n);
                double *x = (double *)f.model->unit[u].param + t->offset + i, old = *x;
                const double h = 1e-5;
                *x = old + h;
                assert_int_equal(fixture_pass(&f, 0, 1, false, &up), LS_OK);
                *x = old - h;
                assert_int_equal(fixture_pass(&f, 0, 1, false, &down), LS_OK);
                *x = old;
                double numeric = (up - down) / (2 * h), error = fabs(numeric - grad[i]) / fmax(scale, 1e-3);
                if (error > 1e-7)
                    print_error("%s[%lld]: backward %.12g, difference %.12g\n", t->name, (long long)i, grad[i],
                                numeric);
                assert_true(error <= 1e-7);
                worst = fmax(worst, error);
                n_checked++;
            }
            ls_free(grad);
        }
    }
    print_message("%s dropout %.1f recompute %d: %d derivatives, worst relative error %.2e\n", ls_variant_word(variant),
                  pdrop, recompute, n_checked, worst);
    fixture_close(&f);
}

static void hf_gradients_match_differences(void **s)
{
    (void)s, check(LS_VARIANT_HF, 0, false);
}
static void hf_gradients_match_with_dropout(void **s)
{
    (void)s, check(LS_VARIANT_HF, 0.2, false);
}
static void hf_gradients_match_with_recomputation(void **s)
{
    (void)s, check(LS_VARIANT_HF, 0.2, true);
}
static void r1_gradients_match_differences(void **s)
{
    (void)s, check(LS_VARIANT_R1, 0, false);
}
static void r1_gradients_match_with_dropout(void **s)
{
    (void)s, check(LS_VARIANT_R1, 0.2, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hf_gradients_match_differences), cmocka_unit_test(hf_gradients_match_with_dropout),
        cmocka_unit_test(hf_gradients_match_with_recomputation), cmocka_unit_test(r1_gradients_match_differences),
        cmocka_unit_test(r1_gradients_match_with_dropout)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
