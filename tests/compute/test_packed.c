/* Packed matrices: what a copy represents, and that a row of a product has the same bits in every call, for every SIMD table and number of
 * threads. tests/compute/test_ops.c compares the products with the reference. */
#include "cmocka_all.h"
#include "compute/cpu/simd.h"
#include "core/half.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const ls_pack form[] = {LS_PACK_BF16, LS_PACK_INT8};

static float *some(int64_t n, uint64_t key)
{
    float *x = ls_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)ls_rng_normal(key, (uint64_t)i);
    return x;
}

static void open_cpu(ls_compute *c, int threads, int64_t K)
{
    assert_int_equal(ls_compute_open(c, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, threads), LS_OK);
    c->scratch = ls_alloc(ls_compute_scratch(c, &(ls_compute_shapes){.B = 1, .T = 1, .C = K, .packed = true}));
}

static void close_cpu(ls_compute *c)
{
    ls_free(c->scratch);
    ls_compute_close(c);
}

/* A copy made from rows and one made from columns are equal; unpack returns the rounded numbers. */
static void a_copy_represents_the_rounded_matrix(void **state)
{
    (void)state;
    enum { K = 131, N = 53 };
    ls_compute c;
    open_cpu(&c, 2, K);
    float *w = some(K * N, 1), *t = some(K * N, 1), *back = some(K * N, 2);
    for (int k = 0; k < K; k++)
        for (int n = 0; n < N; n++) t[n * K + k] = w[k * N + n];
    for (int f = 0; f < 2; f++) {
        const size_t nbytes = (size_t)ls_packed_nbytes(form[f], K, N);
        void *a = ls_alloc(nbytes), *b = ls_alloc(nbytes);
        memset(b, 0xff, nbytes);
        c.ops->pack(&c, form[f], a, w, K, N, false);
        c.ops->pack(&c, form[f], b, t, K, N, true);
        assert_memory_equal(a, b, nbytes);
        c.ops->unpack(&c, form[f], back, a, K, N, false);
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++) {
                float top = 0;
                for (int i = k / 64 * 64; i < K && i < k / 64 * 64 + 64; i++) top = fmaxf(top, fabsf(w[i * N + n]));
                const float x = w[k * N + n], y = back[k * N + n];
                if (form[f] == LS_PACK_BF16) assert_true(y == ls_from_bf16(ls_to_bf16(x)));
                else assert_true(fabsf(x - y) <= top / 127 * 0.5001f);
            }
        c.ops->unpack(&c, form[f], back, a, K, N, true);
        for (int i = 0; i < K * N; i++) assert_true(fabsf(back[i] - t[i]) < 0.05f);
        ls_free(a);
        ls_free(b);
    }
    ls_free(w);
    ls_free(t);
    ls_free(back);
    close_cpu(&c);
}

#define MOST 131 /* rows: more than share one reading of the matrix */

/* Every row of products with several numbers of rows has the bits of the row alone. many: (MOST,N) of the last one, kept by the caller. */
static void check_rows(ls_compute *c, ls_pack f, const float *x, const void *w, const float *b, int64_t K, int64_t N,
                       float *many, const char *table)
{
    static const int64_t rows[] = {2, 3, 4, 5, 6, 7, 8, 9, 17, MOST};
    float *one = ls_alloc((size_t)(MOST * N) * sizeof *one);
    for (int64_t r = 0; r < MOST; r++) c->ops->linear_packed(c, f, one + r * N, x + r * K, w, b, 1, K, N);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        c->ops->linear_packed(c, f, many, x, w, b, rows[i], K, N);
        for (int64_t r = 0; r < rows[i]; r++)
            if (memcmp(one + r * N, many + r * N, (size_t)N * sizeof *one) != 0)
                fail_msg("%s, form %d: row %d of %d, K %d, N %d differs from the row alone", table, (int)f, (int)r,
                         (int)rows[i], (int)K, (int)N);
    }
    ls_free(one);
}

static void rows_have_the_bits_of_single_rows(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {5, 7}, {16, 64}, {37, 81}, {64, 128}, {131, 260}, {260, 131}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int f = 0; f < 2; f++) {
            const int64_t K = sizes[i][0], N = sizes[i][1], n = MOST * N;
            float *fw = some(K * N, 1), *x = some(MOST * K, 2), *b = some(N, 3);
            float *got = ls_alloc((size_t)n * sizeof *got), *plain = ls_alloc((size_t)n * sizeof *got),
                  *fused = ls_alloc((size_t)n * sizeof *got);
            void *w = ls_alloc((size_t)ls_packed_nbytes(form[f], K, N));
            bool usable;
            int n_fused = 0;
            for (int t = 0; simd_list(t, &usable); t++) {
                const char *table = simd_list(t, &usable)->name;
                if (!usable) continue;
                setenv("LS_SIMD", table, 1);
                for (int threads = 1; threads <= 3; threads += 2) {
                    ls_compute c;
                    open_cpu(&c, threads, K);
                    c.ops->pack(&c, form[f], w, fw, K, N, false);
                    check_rows(&c, form[f], x, w, b, K, N, got, table);
                    close_cpu(&c);
                    if (t == 0) memcpy(plain, got, (size_t)n * sizeof *got);
                    else if (!n_fused++) memcpy(fused, got, (size_t)n * sizeof *got);
                    /* plain C adds and multiplies, the others fuse the two; these do so alike */
                    if (t > 0) assert_memory_equal(fused, got, (size_t)n * sizeof *got);
                    float top = 0;
                    for (int64_t k = 0; k < n; k++) top = fmaxf(top, fabsf(plain[k]));
                    for (int64_t k = 0; k < n; k++) assert_true(fabsf(got[k] - plain[k]) <= 2e-6f * top);
                }
            }
            ls_free(fw);
            ls_free(x);
            ls_free(b);
            ls_free(got);
            ls_free(plain);
            ls_free(fused);
            ls_free(w);
        }
    unsetenv("LS_SIMD");
}

/* With --precision bf16 the matrix-product kernel of AMX multiplies the copies: the bits of products of the matrix itself, and of a row alone. */
static void check_copies(const char *kernel, int threads, int64_t K, int64_t N)
{
    static const int64_t rows[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, MOST};
    setenv("LS_GEMM", kernel, 1);
    ls_compute c;
    assert_int_equal(ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_BF16}, threads), LS_OK);
    assert_true(ls_compute_cpu_bf16_used().copies);
    const ls_compute_shapes shapes = {.B = 1, .T = MOST, .C = K, .V = N, .ffn = LS_MAX(K, N), .packed = true};
    const size_t room = ls_compute_scratch(&c, &shapes);
    unsigned char *scratch = c.scratch = ls_alloc(room + 64);
    memset(scratch + room, 0x5a, 64);
    float *fw = some(K * N, 1), *t = some(K * N, 1), *x = some(MOST * K, 2), *b = some(N, 3);
    double loss[2][MOST];
    int32_t target[MOST];
    float *want = some(MOST * N, 4), *got = some(MOST * N, 5);
    void *w = ls_alloc((size_t)ls_packed_nbytes(LS_PACK_BF16, K, N));
    if (K == 5) { /* rounds up to the smallest normal number, but counts as 0 */
        fw[3 * N] = t[3] = 1.17549429e-38f;
        for (int r = 0; r < MOST; r++) x[r * K + 3] = 1e30f;
    }
    for (int r = 0; r < MOST; r++) target[r] = (int32_t)(r % N);
    for (int64_t k = 0; k < K; k++)
        for (int64_t n = 0; n < N; n++) t[n * K + k] = fw[k * N + n];
    c.ops->pack(&c, LS_PACK_BF16, w, fw, K, N, false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const float *bias = i % 2 ? b : NULL;
        c.ops->linear_fwd(&c, want, x, fw, bias, rows[i], K, N);
        c.ops->linear_packed(&c, LS_PACK_BF16, got, x, w, bias, rows[i], K, N);
        assert_memory_equal(want, got, (size_t)(rows[i] * N) * sizeof *got);
    }
    for (int r = 0; r < MOST; r++) {
        c.ops->linear_packed(&c, LS_PACK_BF16, want, x + r * K, w, b, 1, K, N);
        assert_memory_equal(want, got + r * N, (size_t)N * sizeof *got);
    }
    for (int i = 0; i < 2; i++) {
        const ls_classifier a = {.row_loss = loss[i],
                                 .x = x,
                                 .w = t,
                                 .target = target,
                                 .R = MOST,
                                 .C = K,
                                 .V = N,
                                 .n_part = 1,
                                 .packed = i ? w : NULL,
                                 .form = LS_PACK_BF16};
        assert_int_equal(c.ops->classifier(&c, &a), LS_OK);
    }
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    for (int i = 0; i < 64; i++) assert_int_equal(scratch[room + (size_t)i], 0x5a);
    ls_free(fw);
    ls_free(t);
    ls_free(x);
    ls_free(b);
    ls_free(want);
    ls_free(got);
    ls_free(w);
    close_cpu(&c);
    unsetenv("LS_GEMM");
}

static void bf16_kernels_multiply_copies_as_the_matrix(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {5, 7}, {31, 16}, {32, 17}, {33, 48}, {64, 33}, {131, 260}, {1100, 65}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            check_copies("amx-bf16-emulated", threads, sizes[i][0], sizes[i][1]);
            const ls_cpu_bf16 best = ls_compute_cpu_bf16();
            if (best.native && !strcmp(best.kernel, "amx-bf16"))
                check_copies("amx-bf16", threads, sizes[i][0], sizes[i][1]);
        }
}

/* A number that is not finite, in the matrix or in a row, is not hidden by rounding: generate reports damaged weights by it. */
static void damaged_numbers_stay_visible(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum { K = 130, N = 40 };
    ls_compute c;
    open_cpu(&c, 1, K);
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < 3; i++) {
            float *fw = some(K * N, 1), *x = some(K, 2), y[N];
            void *w = ls_alloc((size_t)ls_packed_nbytes(form[f], K, N));
            fw[77 * N + 21] = bad[i];
            c.ops->pack(&c, form[f], w, fw, K, N, false);
            c.ops->linear_packed(&c, form[f], y, x, w, NULL, 1, K, N);
            for (int n = 0; n < N; n++) assert_int_equal(isfinite(y[n]) != 0, n != 21);
            fw[77 * N + 21] = 0;
            x[129] = bad[i];
            c.ops->pack(&c, form[f], w, fw, K, N, false);
            c.ops->linear_packed(&c, form[f], y, x, w, NULL, 1, K, N);
            for (int n = 0; n < N; n++) assert_false(isfinite(y[n]));
            ls_free(fw);
            ls_free(x);
            ls_free(w);
        }
    close_cpu(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_represents_the_rounded_matrix), cmocka_unit_test(rows_have_the_bits_of_single_rows),
        cmocka_unit_test(bf16_kernels_multiply_copies_as_the_matrix), cmocka_unit_test(damaged_numbers_stay_visible)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
