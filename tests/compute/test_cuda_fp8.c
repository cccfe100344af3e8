/* test_cuda_fp8.c - operands in 8 bits and their products, on the emulated device: rounding of every code, of ties and of what is too large; the
 * transposed copy, maxima and column sums; products compared with sums in double. */
#include "compute/cuda/cuda_impl.h"
#include "cuda_numbers.h"
#include "fp8_codes.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct bench {
    ls_compute c;
    void *scratch;
} bench;

static bench open_bench(void)
{
    bench b = {0};
    const ls_compute_open_opts o = {.dtype = LS_BF16, .device = 0, .deterministic = true};
    assert_int_equal(cuda_open(&o, &b.c), LS_OK);
    assert_non_null(b.c.ops->quantize);
    const ls_compute_shapes s = {.B = 1, .T = 512, .C = 128, .ffn = 512, .backward = true, .fp8 = true};
    CU(cudaMalloc(&b.scratch, cuda_scratch(&b.c, &s)));
    b.c.scratch = b.scratch;
    return b;
}

static void close_bench(bench *b)
{
    CU(cudaFree(b->scratch));
    cuda_close(&b->c);
}

static uint8_t *bytes_host(const void *p, int64_t n)
{
    uint8_t *x = ls_alloc((size_t)n);
    assert_non_null(x);
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(x, p, (size_t)n, cudaMemcpyDeviceToHost));
    return x;
}

/* All codes, the middle of two neighbours, what is next to the middle, and what is too large. */
static void every_code_is_rounded_to_nearest_even(void **state)
{
    (void)state;
    enum { N = 2048 };
    for (int f = 0; f < 2; f++) {
        const ls_fp8 form = f ? LS_E5M2 : LS_E4M3;
        double x[N];
        int n = 0;
        for (int code = 0; code < 256; code++) {
            const double v = fp8_value((uint8_t)code, form), next = fp8_value((uint8_t)(code + 1), form);
            if (isnan(v)) continue;
            x[n++] = v;
            if (isnan(next) || (code & 127) == 127) continue;
            const double middle = (v + next) / 2;
            x[n++] = middle;
            x[n++] = middle * (1 + 0x1p-7);
            x[n++] = middle * (1 - 0x1p-7);
        }
        const double large[] = {fp8_most(form) * (1 + 0x1p-4), 1e9, -1e30, 0x1p-120, -0x1p-120};
        for (size_t k = 0; k < sizeof large / sizeof *large; k++) x[n++] = large[k];
        assert_true(n < N);
        while (n < N) x[n++] = 0;
        for (int k = 0; k < N; k++)
            x[k] = num_as(LS_BF16, x[k]); /* codes and middles have few bits and stay as they are */
        bench b = open_bench();
        const double one = 1, zero = 0;
        void *dx = num_device(LS_BF16, x, N, 0), *scale = num_device(LS_F32, &one, 1, 0),
             *amax = num_device(LS_F32, &zero, 1, 0), *q = NULL;
        CU(cudaMalloc(&q, N));
        const ls_quantize a = {.x = dx, .q = q, .scale = scale, .amax = amax, .R = 16, .N = N / 16, .form = form};
        assert_int_equal(b.c.ops->quantize(&b.c, &a), LS_OK);
        uint8_t *got = bytes_host(q, N);
        for (int k = 0; k < N; k++)
            if (got[k] != fp8_code(x[k], form))
                fail_msg("%s: %.9g is code %d, expected %d", f ? "e5m2" : "e4m3", x[k], got[k], fp8_code(x[k], form));
        ls_free(got);
        num_free(LS_BF16, dx, 0), num_free(LS_F32, scale, 0), num_free(LS_F32, amax, 0);
        CU(cudaFree(q));
        close_bench(&b);
    }
}

static double gelu(double x, ls_gelu kind)
{
    return kind == LS_GELU_ERF ? 0.5 * x * (1 + erf(x / sqrt(2)))
                               : 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double slope(double x, ls_gelu kind)
{
    return (gelu(x + 1e-5, kind) - gelu(x - 1e-5, kind)) / 2e-5;
}

enum { PLAIN, GELU, SLOPE };

/* Values after GELU are computed in float: their codes may be neighbours of the expected ones. */
static void quantize_case(bench *b, int64_t R, int64_t N, int what, ls_gelu kind, ls_fp8 form, bool acc)
{
    const int64_t n = R * N;
    const double scale = 0x1p6, was = acc ? 0.75 : 0, zero = 0;
    double *x = num_normal(LS_BF16, n, ls_rng_key(5, LS_RNG_TEST, (uint64_t)n, 1), 1.5),
           *pre = num_normal(LS_BF16, n, ls_rng_key(5, LS_RNG_TEST, (uint64_t)n, 2), 1.5),
           *sums = ls_alloc((size_t)N * sizeof *sums);
    for (int64_t i = 0; i < N; i++) sums[i] = was;
    void *dx = num_device(LS_BF16, x, n, 0), *dpre = num_device(LS_BF16, pre, n, 0),
         *dscale = num_device(LS_F32, &scale, 1, 0), *amax = num_device(LS_F32, &zero, 1, 0),
         *dsums = num_device(LS_F32, sums, N, 0), *q = NULL, *qt = NULL;
    CU(cudaMalloc(&q, (size_t)n));
    CU(cudaMalloc(&qt, (size_t)n));
    ls_quantize a = {.x = what == GELU ? NULL : dx, .q = q, .qt = qt, .scale = dscale, .amax = amax, .kind = kind};
    a.pre = what == PLAIN ? NULL : dpre;
    a.sums = dsums, a.acc = acc, a.R = R, a.N = N, a.form = form;
    assert_int_equal(b->c.ops->quantize(&b->c, &a), LS_OK);
    uint8_t *got = bytes_host(q, n), *turned = bytes_host(qt, n);
    double *most = num_host(LS_F32, amax, 1), *got_sums = num_host(LS_F32, dsums, N), largest = 0;
    for (int64_t j = 0; j < N; j++) {
        double sum = was, size = fabs(was);
        for (int64_t i = 0; i < R; i++) {
            const int64_t k = i * N + j;
            const double v = what == PLAIN ? x[k] : what == GELU ? gelu(pre[k], kind) : x[k] * slope(pre[k], kind);
            const uint8_t want = fp8_code(v * scale, form);
            const int apart = abs((got[k] & 127) - (want & 127));
            assert_int_equal(turned[j * R + i], got[k]);
            if (what == PLAIN ? got[k] != want : apart > 1)
                fail_msg("%lld x %lld, %d: %.9g is code %d, expected %d", (long long)R, (long long)N, what, v, got[k],
                         want);
            sum += v, size += fabs(v), largest = fmax(largest, fabs(v));
        }
        assert_true(fabs(got_sums[j] - sum) <= 1e-5 * size + 1e-6);
    }
    assert_true(fabs(most[0] - largest) <= (what == PLAIN ? 0 : 1e-4 * largest));
    /* the maximum is kept, and alone it needs neither scale nor results */
    const double higher = 2 * largest;
    float raised = (float)higher;
    CU(cudaMemcpy(amax, &raised, sizeof raised, cudaMemcpyHostToDevice));
    a.q = a.qt = NULL, a.sums = NULL, a.scale = NULL;
    assert_int_equal(b->c.ops->quantize(&b->c, &a), LS_OK);
    double *kept = num_host(LS_F32, amax, 1);
    assert_true(kept[0] == (double)raised);
    num_free(LS_BF16, dx, 0), num_free(LS_BF16, dpre, 0), num_free(LS_F32, dscale, 0), num_free(LS_F32, amax, 0);
    num_free(LS_F32, dsums, 0);
    CU(cudaFree(q));
    CU(cudaFree(qt));
    double *all[] = {x, pre, sums, most, got_sums, kept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ls_free(all[i]);
    ls_free(got);
    ls_free(turned);
}

static void operands_are_rounded_transposed_and_summed(void **state)
{
    (void)state;
    bench b = open_bench();
    quantize_case(&b, 16, 16, PLAIN, LS_GELU_TANH, LS_E4M3, false);
    quantize_case(&b, 144, 272, PLAIN, LS_GELU_TANH, LS_E5M2, true);
    quantize_case(&b, 128, 128, GELU, LS_GELU_TANH, LS_E4M3, false);
    quantize_case(&b, 48, 80, GELU, LS_GELU_ERF, LS_E4M3, false);
    quantize_case(&b, 272, 48, SLOPE, LS_GELU_TANH, LS_E5M2, true);
    quantize_case(&b, 32, 144, SLOPE, LS_GELU_ERF, LS_E4M3, false);
    close_bench(&b);
}

static void a_nan_is_a_magnitude(void **state)
{
    (void)state;
    bench b = open_bench();
    double x[256] = {[7] = 3, [200] = NAN}, zero = 0;
    void *dx = num_device(LS_BF16, x, 256, 0), *amax = num_device(LS_F32, &zero, 1, 0);
    const ls_quantize a = {.x = dx, .amax = amax, .R = 16, .N = 16};
    assert_int_equal(b.c.ops->quantize(&b.c, &a), LS_OK);
    double *most = num_host(LS_F32, amax, 1);
    assert_true(isnan(most[0]));
    ls_free(most);
    num_free(LS_BF16, dx, 0), num_free(LS_F32, amax, 0);
    close_bench(&b);
}

typedef struct product_case {
    int64_t M, N, K;
    ls_fp8 a, b;
    bool bias, add, wide, acc;
} product_case;

static void check_product(bench *b, const product_case *o)
{
    const int64_t n_a = o->M * o->K, n_b = o->N * o->K, n = o->M * o->N;
    const double factor[2] = {0x1p-5, 0x1p-3};
    const ls_dtype dt = o->wide ? LS_F32 : LS_BF16;
    double *bias = num_normal(LS_BF16, o->N, 91, 1), *add = num_normal(dt, n, 92, 1), *x[2];
    uint8_t *code[2];
    void *q[2] = {NULL, NULL};
    for (int k = 0; k < 2; k++) { /* codes of normal numbers, and what they stand for */
        const int64_t len = k ? n_b : n_a;
        const ls_fp8 form = k ? o->b : o->a;
        x[k] = num_normal(LS_F32, len, ls_rng_key(9, LS_RNG_TEST, (uint64_t)k, 0), 8);
        code[k] = ls_alloc((size_t)len);
        for (int64_t i = 0; i < len; i++) {
            code[k][i] = fp8_code(x[k][i], form);
            x[k][i] = fp8_value(code[k][i], form) * factor[k];
        }
        CU(cudaMalloc(&q[k], (size_t)len));
        CU(cudaMemcpy(q[k], code[k], (size_t)len, cudaMemcpyHostToDevice));
    }
    void *y = num_device(dt, add, n, 0), *dbias = num_device(LS_BF16, bias, o->N, 0), *dadd = num_device(dt, add, n, 0),
         *fa = num_device(LS_F32, &factor[0], 1, 0), *fb = num_device(LS_F32, &factor[1], 1, 0);
    ls_product8 p = {.y = y, .a = q[0], .b = q[1], .a_form = o->a, .b_form = o->b, .a_factor = fa, .b_factor = fb};
    p.M = o->M, p.N = o->N, p.K = o->K, p.wide = o->wide, p.acc = o->acc;
    if (o->bias) p.bias = dbias;
    if (o->add) p.add = dadd;
    if (b->c.ops->product8(&b->c, &p) != LS_OK) fail_msg("%s", ls_err_words());
    double *got = num_host(dt, y, n);
    for (int64_t i = 0; i < o->M; i++)
        for (int64_t j = 0; j < o->N; j++) {
            double want = (o->bias ? bias[j] : 0) + (o->add || o->acc ? add[i * o->N + j] : 0), size = fabs(want);
            for (int64_t k = 0; k < o->K; k++) {
                const double t = x[0][i * o->K + k] * x[1][j * o->K + k];
                want += t, size += fabs(t);
            }
            const double bound = (double)o->K * 0x1p-24 * size + (o->wide ? 0 : 0x1p-7 * fabs(want) + 0x1p-8);
            if (!(fabs(got[i * o->N + j] - want) <= bound))
                fail_msg("M %lld N %lld K %lld: (%lld,%lld) is %.9g, expected %.9g", (long long)o->M, (long long)o->N,
                         (long long)o->K, (long long)i, (long long)j, got[i * o->N + j], want);
        }
    num_free(dt, y, 0), num_free(LS_BF16, dbias, 0), num_free(dt, dadd, 0), num_free(LS_F32, fa, 0);
    num_free(LS_F32, fb, 0);
    for (int k = 0; k < 2; k++) {
        CU(cudaFree(q[k]));
        ls_free(x[k]);
        ls_free(code[k]);
    }
    ls_free(bias);
    ls_free(add);
    ls_free(got);
}

static void products_match_sums_in_double(void **state)
{
    (void)state;
    const product_case cases[] = {{32, 48, 64, LS_E4M3, LS_E4M3, true, false, false, false},
                                  {16, 16, 16, LS_E4M3, LS_E4M3, true, true, false, false},
                                  {64, 32, 96, LS_E5M2, LS_E4M3, false, false, false, false},
                                  {48, 80, 128, LS_E4M3, LS_E5M2, false, false, true, false},
                                  {48, 80, 128, LS_E4M3, LS_E5M2, false, false, true, true}};
    bench b = open_bench();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_product(&b, &cases[i]);
    close_bench(&b);
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    bench b = open_bench();
    double x[400] = {0}, one = 1;
    void *dx = num_device(LS_BF16, x, 400, 0), *f = num_device(LS_F32, &one, 1, 0);
    const ls_quantize odd = {.x = dx, .amax = f, .R = 16, .N = 24}, part = {.x = dx, .amax = f, .R = 1, .N = 24};
    assert_int_not_equal(b.c.ops->quantize(&b.c, &odd), LS_OK);
    assert_int_not_equal(b.c.ops->quantize(&b.c, &part), LS_OK);
    assert_int_not_equal(b.c.ops->turn8(&b.c, dx, dx, 16, 24), LS_OK);
    const ls_product8 p = {.y = dx, .a = dx, .b = dx, .a_factor = f, .b_factor = f, .M = 16, .N = 16, .K = 8};
    assert_int_not_equal(b.c.ops->product8(&b.c, &p), LS_OK);
    num_free(LS_BF16, dx, 0), num_free(LS_F32, f, 0);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_rounded_to_nearest_even),
        cmocka_unit_test(operands_are_rounded_transposed_and_summed), cmocka_unit_test(a_nan_is_a_magnitude),
        cmocka_unit_test(products_match_sums_in_double), cmocka_unit_test(sizes_that_do_not_fit_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
