/* test_gemm.c - every fp32 matrix-product kernel that this CPU supports, compared with sums in double (bf16: test_gemm_bf16.c). */
/* ls-test: long */
#include "gemm_check.h"

#include <stdlib.h>

static void each(void (*f)(const gemm_kernel *k))
{
    bool usable;
    const gemm_kernel *k;
    for (int i = 0; (k = gemm_list(i, &usable)); i++) {
        if (gemm_is_bf16(k)) continue;
        print_message("  %s%s\n", gemm_name(k), usable ? "" : ": not supported by this CPU");
        if (usable) f(k);
    }
}

static void shapes_of(const gemm_kernel *k)
{
    check_shapes(k, 4, 400);
}

static void every_shape_matches_sums_in_double(void **state)
{
    (void)state;
    each(shapes_of);
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    each(check_all_threads);
}

static void algebra_of(const gemm_kernel *k)
{
    check_algebra(k, &(gemm_case){.M = 300, .N = 3500, .K = 700, .bias = false}, 2);
    check_algebra(k, &(gemm_case){.tb = true, .M = 100, .N = 5003, .K = 768}, 3);
    check_algebra(k, &(gemm_case){.ta = true, .M = 2500, .N = 130, .K = 600, .pad = 7}, 2);
}

static void large_products_satisfy_matrix_identities(void **state)
{
    (void)state;
    each(algebra_of);
}

/* Kernels differ in the order of their sums; none may have a much larger error than the plain kernel. */
static void error_of(const gemm_kernel *k)
{
    if (strcmp(gemm_name(k), "blas") == 0) return; /* the order of a library's sums is unknown */
    double plain = check_error(gemm_pick(false, "plain"), 4), mine = check_error(k, 4);
    print_message("    error %.3f, plain %.3f (u sum|a||b|)\n", mine, plain);
    assert_true(mine <= 1.5 * plain);
}

static void no_kernel_is_much_less_exact(void **state)
{
    (void)state;
    each(error_of);
}

/* NaN and infinity affect exactly their row and their column of the result. */
static void special_of(const gemm_kernel *k)
{
    static const int64_t rows[] = {2, 70};
    for (int r = 0; r < 2; r++) {
        gemm_case q = {.M = rows[r], .N = 90, .K = 75};
        gemm_data d = check_make(&q, 21);
        d.a[1 * d.args.lda + 74] = (float)NAN;
        d.b[33 * d.args.ldb + 89] = (float)INFINITY;
        check_run(k, &d, 2);
        for (int64_t i = 0; i < q.M; i++)
            for (int64_t j = 0; j < q.N; j++) {
                bool want = i != 1 && j != 89;
                if ((isfinite(d.c[i * d.args.ldc + j]) != 0) != want)
                    fail_msg("%s: C[%lld,%lld] = %g", gemm_name(k), (long long)i, (long long)j,
                             (double)d.c[i * d.args.ldc + j]);
            }
        check_free(&d);
    }
}

static void nan_and_infinity_stay_in_their_places(void **state)
{
    (void)state;
    each(special_of);
}

static void the_best_usable_kernel_is_picked(void **state)
{
    (void)state;
    unsetenv("LS_GEMM");
    bool usable;
    const gemm_kernel *best = gemm_pick(false, NULL), *k;
    assert_non_null(best);
    for (int i = 0; (k = gemm_list(i, &usable)); i++) {
        if (usable) {
            assert_ptr_equal(k, best); /* the first usable one of the list */
            break;
        }
    }
    assert_null(gemm_pick(false, "no-such-kernel"));
    assert_null(gemm_list(-1, &usable));
    setenv("LS_GEMM", "plain", 1);
    assert_string_equal(gemm_name(gemm_pick(false, NULL)), "plain");
    assert_string_equal(gemm_name(gemm_pick(false, "blas")), "blas"); /* a name given in the call wins */
    setenv("LS_GEMM", "no-such-kernel", 1);
    assert_null(gemm_pick(false, NULL));
    setenv("LS_GEMM", "", 1);
    assert_ptr_equal(gemm_pick(false, NULL), best);
    unsetenv("LS_GEMM");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_usable_kernel_is_picked),
        cmocka_unit_test(every_shape_matches_sums_in_double),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(large_products_satisfy_matrix_identities),
        cmocka_unit_test(no_kernel_is_much_less_exact),
        cmocka_unit_test(nan_and_infinity_stay_in_their_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
