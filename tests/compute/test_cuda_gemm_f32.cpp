/* test_cuda_gemm_f32.cpp - float products on tensor cores (kernels/gemm_f32.cu): all transposes, shares, epilogues and odd sizes.
 *
 * On the emulated device results are compared bit for bit with a plain loop that states the order of every sum. Where nvcc is available,
 * the same file tests a real device (device/cuda_gemm_f32), whose tensor cores cut sums off: there the bound is 6 units of 2^-24 of
 * sum |a||b| (the model of decision 24 has at most 2.5), and the root mean square error is at most that of a loop of float FMAs.
 * Padding between rows is NaN, so that a read of it is visible. */
/* ls-test: long */
#include "cuda_check.h"

#include "compute/cuda/kernels/gemm_f32.h"
#include "compute/cuda/kernels/kernels.h"

typedef std::vector<double> numbers;

static const double BOUND = 6 * 0x1p-24;

struct shape {
    int M, N, K;
    bool ta, tb;
    int shares, gelu;
    bool bias, add, off; /* off: result, bias, addend and aux are not aligned, rows not multiples of 16 bytes */
};

struct matrices {
    int64_t lda, ldb, ldo;
    array a, b, out, bias, add, aux;
    explicit matrices(const shape &p, double b_scale)
        : lda(padded(p.ta ? p.M : p.K)), ldb(padded(p.tb ? p.K : p.N)), ldo(p.off ? p.N + 3 : padded(p.N)),
          a(LS_F32, lda * (p.ta ? p.K : p.M)), b(LS_F32, ldb * (p.tb ? p.N : p.K)), out(LS_F32, ldo * p.M, p.off),
          bias(LS_F32, p.N, p.off), add(LS_F32, ldo * p.M, p.off), aux(LS_F32, (int64_t)p.M * p.N, p.off)
    {
        a.random(1), b.random(2, b_scale), bias.random(3), add.random(4), aux.random(5);
        hide(a, lda, p.ta ? p.M : p.K), hide(b, ldb, p.tb ? p.K : p.N);
    }
    static int64_t padded(int64_t n) { return (n + 3) / 4 * 4 + 4; }
    static void hide(array &x, int64_t ld, int64_t n)
    {
        numbers v = x.was;
        for (size_t i = 0; i < v.size(); i++)
            if ((int64_t)i % ld >= n) v[i] = NAN;
        x.put(v);
    }
    float at_a(const shape &p, int m, int k) const { return (float)a.was[(size_t)(p.ta ? k * lda + m : m * lda + k)]; }
    float at_b(const shape &p, int k, int n) const { return (float)b.was[(size_t)(p.tb ? n * ldb + k : k * ldb + n)]; }
};

/* ---- the sum of an element, in its order ---- */

#ifdef LS_EMU
/* Part 0, 1 or 2 of x: the nearest of 8 bits, even if two are; of what remains the same. */
static float part_of(float x, int part)
{
    for (;; part--) {
        uint32_t u;
        float near;
        memcpy(&u, &x, sizeof u);
        u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
        memcpy(&near, &u, sizeof near);
        if (part == 0) return near;
        x -= near;
    }
}

static float plain_sum(const matrices &d, const shape &p, int m, int n)
{
    static const int parts[6][2] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
    const int stages = (p.K + CU_F32_BLOCK_K - 1) / CU_F32_BLOCK_K, each = (stages + p.shares - 1) / p.shares;
    const int length = each * CU_F32_BLOCK_K, run = cu_f32_run(length);
    float all = 0;
    for (int share = 0; share < p.shares; share++) {
        float sum = 0;
        for (int k0 = share * length; k0 < (share + 1) * length && k0 < p.K; k0 += run) {
            float r = 0;
            for (int k = k0; k < k0 + run && k < (share + 1) * length; k += 16)
                for (const int(&part)[2] : parts) {
                    double s = (double)r;
                    for (int i = k; i < k + 16 && i < p.K; i++)
                        s += (double)part_of(d.at_a(p, m, i), part[0]) * (double)part_of(d.at_b(p, i, n), part[1]);
                    r = (float)s;
                }
            sum += r;
        }
        all = share ? all + sum : sum;
    }
    return all;
}

#endif

static int launch(const matrices &d, const shape &p, void *stream, const array *part)
{
    cu_f32_job j = {};
    j.a = d.a.f(), j.b = d.b.f(), j.out = d.out.f(), j.lda = d.lda, j.ldb = d.ldb, j.ldo = d.ldo;
    j.M = p.M, j.N = p.N, j.K = p.K, j.gelu = p.gelu, j.shares = p.shares;
    if (p.bias) j.bias = d.bias.f();
    if (p.add) j.add = d.add.f();
    if (p.gelu) j.aux = d.aux.f();
    if (p.shares > 1) j.part = part->f();
    return cu_gemm_f32(stream, &j, p.ta, p.tb);
}

static double gelu_of(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double slope_of(double x)
{
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* slack 0: bit for bit. Rows are ld apart, and what is between them is still NaN. */
static void compare(verdict &v, const char *name, const array &x, int64_t ld, int N, const numbers &want, double slack)
{
    const numbers got = x.get();
    v.bits.push_back(x.bytes());
    if (!v.first) return;
    for (size_t i = 0; i < got.size(); i++) {
        const size_t row = i / (size_t)ld, col = i % (size_t)ld;
        if (col >= (size_t)N) {
            assert_true(got[i] != got[i]);
            continue;
        }
        const double e = want[row * (size_t)N + col];
        if (got[i] == e || fabs(got[i] - e) <= slack + (slack > 0 ? 0x1p-23 * fabs(e) : 0)) continue;
        printf("%s %s: row %zu column %zu is %.9g, expected %.9g\n", v.of.c_str(), name, row, col, got[i], e);
        fail();
    }
}

/* value: the sum with its bias; out: the result; returns the largest sum of |a||b|. */
static double expect(const matrices &d, const shape &p, numbers &value, numbers &out)
{
    double top = 1;
    for (int m = 0; m < p.M; m++)
        for (int n = 0; n < p.N; n++) {
            double sum = 0, size = 0;
            for (int k = 0; k < p.K; k++) {
                const double x = (double)d.at_a(p, m, k) * (double)d.at_b(p, k, n);
                sum += x, size += fabs(x);
            }
            top = top > size ? top : size;
#ifdef LS_EMU
            const float exact = plain_sum(d, p, m, n);
            assert_true(fabs((double)exact - sum) <= BOUND * size);
            sum = (double)exact;
#endif
            if (p.bias) sum = (double)((float)sum + (float)d.bias.was[(size_t)n]);
            value.push_back(sum);
            if (p.gelu == CU_F32_GELU) sum = gelu_of(sum);
            if (p.gelu == CU_F32_DGELU) sum *= slope_of(d.aux.was[(size_t)m * (size_t)p.N + (size_t)n]);
            if (p.add) sum += d.add.was[(size_t)(m * d.ldo + n)];
            out.push_back((double)(float)sum);
        }
    return top;
}

static void product_case(const shape &p)
{
    judge_orders(words("M %d N %d K %d ta %d tb %d shares %d gelu %d bias %d add %d off %d", p.M, p.N, p.K, p.ta, p.tb,
                       p.shares, p.gelu, p.bias, p.add, p.off),
                 [=](verdict &v, void *s) {
                     matrices d(p, 1 / sqrt((double)p.K));
                     array part(LS_F32, (int64_t)p.shares * p.M * ((p.N + 3) / 4 * 4));
                     numbers value, out;
                     CU(launch(d, p, s, &part));
                     CU(cudaDeviceSynchronize());
                     const double top = v.first ? expect(d, p, value, out) : 0;
#ifdef LS_EMU
                     const double slack = 0;
                     (void)top;
#else
                     const double slack = BOUND * top;
#endif
                     compare(v, "out", d.out, d.ldo, p.N, out, p.gelu ? 1.2 * slack + 2e-5 : slack);
                     if (p.gelu == CU_F32_GELU) compare(v, "aux", d.aux, p.N, p.N, value, slack);
                 });
}

static void products_have_the_bits_of_a_plain_loop(void **state)
{
    (void)state;
    static const int sizes[][3] = {{1, 1, 1}, {200, 259, 33}, {65, 260, 70}};
    int n = 0;
    for (int turn = 0; turn < 2; turn++)
        for (const int(&z)[3] : sizes)
            for (int t = 0; t < 4; t++, n++) {
                shape p = {z[0], z[1], z[2], (t & 1) != 0, (t & 2) != 0, 1, n % 3, false, false, false};
                p.bias = n % 4 < 2, p.add = n % 5 < 3, p.off = turn && n % 2;
                if (z[2] > 64 && turn) p.shares = 2 + n % 2;
                product_case(p);
            }
}

/* The runs of long sums, and what is left at the end of them. */
static void long_sums_have_the_bits_of_a_plain_loop(void **state)
{
    (void)state;
    assert_int_equal(cu_f32_run(4095), 16);
    for (int K : {4096, 2 * 4096 - 33, 24576 + 20}) {
        const shape p = {3, 5, K, true, false, K == 2 * 4096 - 33 ? 2 : 1, 0, false, false, false};
        matrices d(p, 1 / sqrt((double)K));
        array part(LS_F32, (int64_t)p.shares * p.M * 8);
        numbers value, out;
        CU(launch(d, p, nullptr, &part));
        CU(cudaDeviceSynchronize());
        verdict v;
        v.first = true;
        const double top = expect(d, p, value, out);
#ifdef LS_EMU
        compare(v, "out", d.out, d.ldo, p.N, out, 0 * top);
#else
        compare(v, "out", d.out, d.ldo, p.N, out, BOUND * top);
#endif
    }
}

/* The number of rows changes nothing. */
static void an_element_does_not_depend_on_the_number_of_rows(void **state)
{
    (void)state;
    const shape all = {200, 150, 70, false, true, 1, 0, false, false, false};
    shape few = all;
    few.M = 37;
    matrices x(all, 1), y(all, 1);
    CU(launch(x, all, nullptr, nullptr));
    CU(launch(y, few, nullptr, nullptr));
    CU(cudaDeviceSynchronize());
    const numbers one = x.out.get(), two = y.out.get();
    for (size_t i = 0; i < (size_t)(few.M * x.ldo); i++) assert_true(one[i] == two[i] || one[i] != one[i]);
}

static void not_a_number_stays_one(void **state)
{
    (void)state;
    const uint32_t odd[] = {0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0x7f800001u, 0x7f800000u}; /* and infinity */
    for (uint32_t bits : odd) {
        const shape p = {20, 24, 40, false, false, 1, 0, false, false, false};
        matrices d(p, 1);
        CU(cudaMemcpy(d.a.f() + 3 * d.lda + 17, &bits, sizeof bits, cudaMemcpyHostToDevice));
        CU(launch(d, p, nullptr, nullptr));
        CU(cudaDeviceSynchronize());
        const numbers got = d.out.get();
        for (int m = 0; m < p.M; m++)
            for (int n = 0; n < p.N; n++) assert_int_equal(!isfinite(got[(size_t)(m * d.ldo + n)]), m == 3);
    }
}

/* The root mean square of the error is at most that of one float FMA after the other. */
static void errors_are_at_most_those_of_float(void **state)
{
    (void)state;
#ifdef LS_EMU
    const int lengths[] = {64, 768}, side = 24;
#else
    const int lengths[] = {768, 3072, 50257}, side = 64;
#endif
    for (int K : lengths) {
        const shape p = {side, side, K, true, false, 1, 0, false, false, false};
        matrices d(p, 0.03);
        double ours = 0, fma = 0, size = 0;
        CU(launch(d, p, nullptr, nullptr));
        CU(cudaDeviceSynchronize());
        const numbers got = d.out.get();
        for (int m = 0; m < side; m++)
            for (int n = 0; n < side; n++) {
                double sum = 0;
                float f = 0;
                for (int k = 0; k < K; k++) {
                    sum += (double)d.at_a(p, m, k) * (double)d.at_b(p, k, n);
                    f = fmaf(d.at_a(p, m, k), d.at_b(p, k, n), f);
                }
                const double e = got[(size_t)(m * d.ldo + n)] - sum;
                ours += e * e, fma += ((double)f - sum) * ((double)f - sum), size += sum * sum;
            }
        printf("K %d: error %.2f, of float %.2f (2^-24 of the result, root mean square)\n", K,
               sqrt(ours / size) * 0x1p24, sqrt(fma / size) * 0x1p24);
        assert_true(ours > 0 && ours <= fma * 1.05 * 1.05);
    }
}

static void wrong_use_is_refused(void **state)
{
    (void)state;
    shape p = {8, 8, 40, false, false, 1, 0, false, false, false};
    matrices d(p, 1);
    array part(LS_F32, 4096);
    p.shares = 3; /* of two stages */
    assert_int_equal(launch(d, p, nullptr, &part), (int)cudaErrorInvalidValue);
    p.shares = 0;
    assert_int_equal(launch(d, p, nullptr, nullptr), (int)cudaErrorInvalidValue);
}

int main(void)
{
    if (no_cuda_device()) return 77;
    if (!cu_gemm_f32_works()) {
        printf("skipped: it is not a Hopper GPU, or the kernel is not compiled for it\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_bits_of_a_plain_loop),
        cmocka_unit_test(long_sums_have_the_bits_of_a_plain_loop),
        cmocka_unit_test(an_element_does_not_depend_on_the_number_of_rows),
        cmocka_unit_test(not_a_number_stays_one),
        cmocka_unit_test(errors_are_at_most_those_of_float),
        cmocka_unit_test(wrong_use_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
