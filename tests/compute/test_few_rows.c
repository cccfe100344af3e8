/* Invariant 4 of compute.h: a product of few rows gives the same bits as each row alone, for every SIMD table and number of threads. */
#include "cmocka_all.h"
#include "compute/cpu/simd.h"
#include "core/mem.h"
#include "core/rng.h"

#include <stdlib.h>
#include <string.h>

static float *some(int64_t n, uint64_t key)
{
    float *x = ls_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)ls_rng_normal(key, (uint64_t)i);
    return x;
}

static void few_rows_have_the_bits_of_single_rows(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {5, 7}, {16, 64}, {37, 81}, {64, 128}, {131, 260}, {260, 131}};
    bool usable;
    for (int t = 0; simd_list(t, &usable); t++) {
        const char *table = simd_list(t, &usable)->name;
        if (!usable) continue;
        setenv("LS_SIMD", table, 1);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int threads = 1; threads <= 3; threads += 2) {
                const int64_t K = sizes[i][0], N = sizes[i][1];
                float *fw = some(K * N, 1), *fx = some(LS_FEW_ROWS * K, 2), *fb = some(N, 3);
                float *many = ls_alloc((size_t)(LS_FEW_ROWS * N) * 4), *one = ls_alloc((size_t)N * 4);
                ls_compute c;
                assert_int_equal(ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, threads), LS_OK);
                c.scratch =
                    ls_alloc(ls_compute_scratch(&c, &(ls_compute_shapes){.B = 1, .T = LS_FEW_ROWS, .C = K, .ffn = N}));
                for (int op = 0; op < 2; op++)
                    for (int64_t R = 2; R <= LS_FEW_ROWS; R++) {
                        if (op) c.ops->logits(&c, many, fx, fw, R, K, N);
                        else c.ops->linear_fwd(&c, many, fx, fw, fb, R, K, N);
                        for (int64_t r = 0; r < R; r++) {
                            if (op) c.ops->logits(&c, one, fx + r * K, fw, 1, K, N);
                            else c.ops->linear_fwd(&c, one, fx + r * K, fw, fb, 1, K, N);
                            if (memcmp(one, many + r * N, (size_t)N * 4) != 0)
                                fail_msg("%s: row %d of %d, K %d, N %d differs from the row alone (%s)",
                                         op ? "logits" : "linear_fwd", (int)r, (int)R, (int)K, (int)N, table);
                        }
                    }
                ls_free(c.scratch);
                ls_free(fw);
                ls_free(fx);
                ls_free(fb);
                ls_free(many);
                ls_free(one);
            }
    }
    unsetenv("LS_SIMD");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_rows_have_the_bits_of_single_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
