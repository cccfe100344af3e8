/* tf32_sums.c - the error of sums on tensor cores, from a model of their arithmetic (decision 24): how long a run may be.
 *
 *   tf32_sums [BITS [GROUP]]        default 2 16
 *
 * Ways: TF32, three products of two TF32 numbers each (3 x), six products of three bf16 numbers each (6 x), summed by the tensor core over so
 * many k; then floats are added. Products of TF32 come in eights, so their groups have at most 8.
 * The model: of GROUP exact products and a sum, each is cut off BITS bits below the last bit of the largest, and their sum is cut to a float.
 * Operands are normal random numbers. Prints root mean square error over that of the results, the mean error in the direction of the result
 * (a bias, if its size is close to the first), and the largest error over sum |a||b|; all in units of 2^-24. */
#include "core/mem.h"
#include "core/rng.h"
#include "core/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 16 };
static int below = 2, group = MOST;

static float cut_to(float x, uint32_t plus) /* 11 bits */
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + plus) & 0xffffe000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

static float to_bf16(float x) /* the nearest, even if two are */
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

static double cut_at(double x, int exponent)
{
    return ldexp(trunc(ldexp(x, -exponent)), exponent);
}

static int exponent_of(double x)
{
    int e = -4000;
    if (x != 0) (void)frexp(x, &e);
    return e;
}

static float add_group(float c, const double *x, int n)
{
    int top = exponent_of((double)c);
    for (int i = 0; i < n; i++) top = exponent_of(x[i]) > top ? exponent_of(x[i]) : top;
    double s = cut_at((double)c, top - 24 - below);
    for (int i = 0; i < n; i++) s += cut_at(x[i], top - 24 - below);
    return s == 0 ? 0 : (float)cut_at(s, exponent_of(s) - 24);
}

/* of: numbers that the tensor core takes, 8 or 16. */
static float core(float c, const float *a, const float *b, int of)
{
    const int n = group < of ? group : of;
    double x[MOST];
    for (int i = 0; i < of; i++) x[i] = (double)a[i] * (double)b[i];
    for (int i = 0; i < of; i += n) c = add_group(c, x + i, n);
    return c;
}

/* products 6: of three bf16 each; 3: lo hi, hi lo, hi hi of TF32; 1: hi hi. run 0: all of K in the tensor core. */
static float dot(const float *a, const float *b, int64_t K, int64_t run, int products)
{
    static const int parts[6][2] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}}; /* of TF32 the last three */
    const int of = products == 6 ? 16 : 8;
    float sum = 0, r = 0;
    for (int64_t k = 0; k < K; k += of) {
        float x[3][MOST] = {{0}}, y[3][MOST] = {{0}};
        for (int64_t i = 0; i < of && k + i < K; i++) {
            float u = a[k + i], v = b[k + i];
            for (int p = 0; p < 3; p++) {
                x[p][i] = of == 16 ? to_bf16(u) : cut_to(u, p ? 0 : 0x1000);
                y[p][i] = of == 16 ? to_bf16(v) : cut_to(v, p ? 0 : 0x1000);
                u -= x[p][i], v -= y[p][i];
            }
        }
        for (int p = 6 - products; p < 6; p++) r = core(r, x[parts[p][0]], y[parts[p][1]], of);
        if (run && (k + of) % run == 0) sum += r, r = 0;
    }
    return sum + r;
}

static float fma_dot(const float *a, const float *b, int64_t K)
{
    float s = 0;
    for (int64_t k = 0; k < K; k++) s = fmaf(a[k], b[k], s);
    return s;
}

static const struct {
    const char *name;
    int64_t run;
    int products;
} ways[] = {{"float FMA", 0, 0},     {"TF32", 0, 1},     {"3 x, 16", 16, 3}, {"3 x, 32", 32, 3},
            {"6 x, all of K", 0, 6}, {"6 x, 16", 16, 6}, {"6 x, 32", 32, 6}, {"6 x, 64", 64, 6}};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void measure(int64_t K, int n, float *a, float *b)
{
    double squares[WAYS] = {0}, bias[WAYS] = {0}, worst[WAYS] = {0}, results = 0;
    for (int t = 0; t < n; t++) {
        double exact = 0, size = 0;
        for (int64_t k = 0; k < K; k++) {
            a[k] = (float)ls_rng_normal((uint64_t)(2 * t), (uint64_t)k);
            b[k] = (float)(0.03 * ls_rng_normal((uint64_t)(2 * t + 1), (uint64_t)k));
            exact += (double)a[k] * (double)b[k], size += fabs((double)a[k] * (double)b[k]);
        }
        results += exact * exact;
        for (int w = 0; w < WAYS; w++) {
            const float got = ways[w].products ? dot(a, b, K, ways[w].run, ways[w].products) : fma_dot(a, b, K);
            const double e = (double)got - exact;
            squares[w] += e * e, bias[w] += exact < 0 ? -e : e;
            worst[w] = fmax(worst[w], fabs(e) / size);
        }
    }
    const double unit = sqrt(results / n) * 0x1p-24;
    printf("K %lld, %d sums\n", (long long)K, n);
    for (int w = 0; w < WAYS; w++)
        printf("  %-14s %9.2f  %9.2f  %9.3f\n", ways[w].name, sqrt(squares[w] / n) / unit, bias[w] / n / unit,
               worst[w] * 0x1p24);
}

int main(int argc, char **argv)
{
    static const int64_t lengths[] = {64, 768, 3072, 8192, 50257};
    int64_t bits = below, of = group;
    if (argc > 3 || (argc > 1 && (!ls_parse_i64(argv[1], &bits) || bits < 0 || bits > 20)) ||
        (argc > 2 && (!ls_parse_i64(argv[2], &of) || of < 1 || MOST % of))) {
        fprintf(stderr, "usage: tf32_sums [BITS [GROUP]]; BITS 0 to 20, GROUP 1, 2, 4, 8 or 16\n");
        return 2;
    }
    below = (int)bits, group = (int)of;
    float *a = ls_alloc(sizeof(float) * 50257), *b = ls_alloc(sizeof(float) * 50257);
    if (!a || !b) return 5;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        measure(lengths[i], lengths[i] > 10000 ? 200 : 2000, a, b);
    ls_free(a);
    ls_free(b);
    return 0;
}
