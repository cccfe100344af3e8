/* test_cuda_generate.cpp - the kernels of generation: products with int8 matrices, attention to a cache, the best of rows of logits. Where nvcc is
 * available, the same file tests a real device (device/cuda_generate). */
#include "cuda_check.h"

#include "compute/cpu/packed.h"
#include "compute/cuda/kernels/kernels.h"

#include <algorithm>

typedef std::vector<double> numbers;

/* ---- int8 ---- */

/* A matrix (K,N) as compute/cpu/packed.h lays it out, and what it represents. */
struct matrix {
    int64_t K, N;
    numbers value;
    q8_group *device = nullptr;
    matrix(int64_t k, int64_t n) : K(k), N(n), value((size_t)(k * n))
    {
        const int64_t groups = packed_groups(K);
        std::vector<q8_group> host((size_t)(packed_panels(N) * groups));
        memset(host.data(), PACKED_FLIP, host.size() * sizeof host[0]);
        for (q8_group &g : host) memset(g.scale, 0, sizeof g.scale);
        for (int64_t j = 0; j < N; j++)
            for (int64_t i = 0; i < K; i++) {
                q8_group &g = host[(size_t)(j / PACKED_PANEL * groups + i / PACKED_GROUP)];
                const int q = (int)(ls_rng_u64(3, (uint64_t)(i * N + j)) % 255) - 127;
                g.scale[j % PACKED_PANEL] = 0.001f * (float)(1 + (i / PACKED_GROUP * 7 + j) % 13);
                g.w[i % PACKED_GROUP / 4][j % PACKED_PANEL][i % 4] = (uint8_t)((uint8_t)q ^ PACKED_FLIP);
                value[(size_t)(i * N + j)] = q * (double)g.scale[j % PACKED_PANEL];
            }
        CU(cudaMalloc((void **)&device, host.size() * sizeof host[0]));
        CU(cudaMemcpy(device, host.data(), host.size() * sizeof host[0], cudaMemcpyHostToDevice));
    }
    matrix(const matrix &) = delete;
    matrix &operator=(const matrix &) = delete;
    ~matrix() { cudaFree(device); }
};

static void int8_products_match_their_equation(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {/* R, K, N, ldy */
                                        {1, 64, 16, 16},   {3, 768, 50, 64}, {9, 200, 33, 33}, {17, 128, 40, 48},
                                        {40, 100, 32, 32}, {70, 64, 65, 65}, {8, 1024, 8, 8}};
    for (ls_dtype dt : {LS_BF16, LS_F16})
        for (const int64_t *s : shapes) {
            const int64_t R = s[0], K = s[1], N = s[2], ldy = s[3];
            const matrix w(K, N);
            array x(dt, R * K), b(dt, N);
            x.random(1);
            b.random(2);
            numbers want((size_t)(R * N));
            double top = 0;
            for (int64_t r = 0; r < R; r++)
                for (int64_t n = 0; n < N; n++) {
                    double y = b.was[(size_t)n], all = 0;
                    for (int64_t k = 0; k < K; k++) {
                        const double p = x.was[(size_t)(r * K + k)] * w.value[(size_t)(k * N + n)];
                        y += p, all += fabs(p);
                    }
                    want[(size_t)(r * N + n)] = y;
                    top = std::max(top, all);
                }
            judge_orders(words("int8 %lld %lld %lld", (long long)R, (long long)K, (long long)N),
                         [&](verdict &v, void *stream) {
                             array y(dt, R * ldy), dense(dt, R * N);
                             CU(cu_linear_int8(stream, dt, y.at(), ldy, x.at(), w.device, b.at(), R, K, N));
                             CU(cudaDeviceSynchronize());
                             const numbers got = y.get();
                             numbers rows((size_t)(R * N));
                             for (int64_t i = 0; i < R * N; i++) rows[(size_t)i] = got[(size_t)(i / N * ldy + i % N)];
                             v.near("y", dense.put(rows), want, 1e-6, top);
                         });
            /* a row has the bits of a call with that row alone */
            array y(dt, R * N), one(dt, N);
            CU(cu_linear_int8(nullptr, dt, y.at(), N, x.at(), w.device, nullptr, R, K, N));
            CU(cudaDeviceSynchronize());
            const numbers all = y.get();
            for (int64_t r : {(int64_t)0, R / 2, R - 1}) {
                const size_t row = (size_t)(r * K) * ls_dtype_nbytes(dt);
                CU(cu_linear_int8(nullptr, dt, one.at(), N, (char *)x.at() + row, w.device, nullptr, 1, K, N));
                CU(cudaDeviceSynchronize());
                const numbers alone = one.get();
                for (int64_t n = 0; n < N; n++) assert_true(alone[(size_t)n] == all[(size_t)(r * N + n)]);
            }
        }
}

/* ---- attention ---- */

static void cached_attention_matches_its_equation(void **state)
{
    (void)state;
    static const int64_t shapes[][6] = {/* B, Tq, pos, Tmax, H, D */
                                        {2, 1, 0, 9, 2, 64},     {1, 1, 150, 160, 2, 64}, {2, 3, 5, 20, 1, 64},
                                        {1, 1, 7, 8, 2, 24},     {2, 1, 40, 50, 1, 32},   {1, 2, 3, 9, 1, 128},
                                        {1, 1, 300, 301, 1, 16}, {1, 4, 0, 4, 2, 20}};
    for (ls_dtype dt : TYPES)
        for (const int64_t *s : shapes) {
            const int64_t B = s[0], Tq = s[1], pos = s[2], Tmax = s[3], H = s[4], D = s[5], C = H * D;
            array qkv(dt, B * Tq * 3 * C), cache(dt, B * H * Tmax * D), head(LS_F64, 3);
            qkv.random(1);
            const ls_pass_head at = {0, 0, pos};
            CU(cudaMemcpy(head.at(), &at, sizeof at, cudaMemcpyHostToDevice));
            numbers k = cache.random(2).was, v = cache.random(3).was, want((size_t)(B * Tq * C));
            const numbers k0 = k, v0 = v;
            for (int64_t b = 0; b < B; b++)
                for (int64_t t = 0; t < Tq; t++)
                    for (int64_t c = 0; c < C; c++) {
                        const size_t to = (size_t)(((b * H + c / D) * Tmax + pos + t) * D + c % D);
                        k[to] = qkv.was[(size_t)((b * Tq + t) * 3 * C + C + c)];
                        v[to] = qkv.was[(size_t)((b * Tq + t) * 3 * C + 2 * C + c)];
                    }
            for (int64_t i = 0; i < B * Tq * H; i++) {
                const int64_t h = i % H, t = i / H % Tq, b = i / (H * Tq), n = pos + t + 1;
                numbers p((size_t)n);
                double sum = 0;
                for (int64_t j = 0; j < n; j++) {
                    double x = 0;
                    for (int64_t d = 0; d < D; d++)
                        x += qkv.was[(size_t)((b * Tq + t) * 3 * C + h * D + d)] *
                             k[(size_t)(((b * H + h) * Tmax + j) * D + d)];
                    sum += p[(size_t)j] = exp(x / sqrt((double)D));
                }
                for (int64_t d = 0; d < D; d++) {
                    double y = 0;
                    for (int64_t j = 0; j < n; j++)
                        y += p[(size_t)j] / sum * v[(size_t)(((b * H + h) * Tmax + j) * D + d)];
                    want[(size_t)((b * Tq + t) * C + h * D + d)] = y;
                }
            }
            judge_orders(
                words("attention, B %lld Tq %lld pos %lld D %lld, type %d", (long long)B, (long long)Tq, (long long)pos,
                      (long long)D, (int)dt),
                [&](verdict &out, void *stream) {
                    for (int device = 0; device < 2; device++) { /* the position as an argument, and from the device */
                        array y(dt, B * Tq * C), kc(dt, B * H * Tmax * D), vc(dt, B * H * Tmax * D);
                        kc.put(k0);
                        vc.put(v0);
                        CU(cu_attention_cached(stream, dt, y.at(), kc.at(), vc.at(), qkv.at(), B, Tq, device ? -1 : pos,
                                               device ? (const ls_pass_head *)head.at() : nullptr, Tmax, H, D));
                        CU(cudaDeviceSynchronize());
                        out.near("y", y, want, 2e-6, 4);
                        out.same("keys", kc, k);
                        out.same("values", vc, v);
                    }
                    const size_t half = out.bits.size() / 2;
                    assert_true(out.bits[0] == out.bits[half]);
                });
        }
}

/* ---- the best logits ---- */

static bool before(const ls_best &a, const ls_best &b)
{
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

static void the_best_logits_are_those_of_a_sort(void **state)
{
    (void)state;
    const int64_t R = 3;
    ls_best *best;
    float *log_sum;
    CU(cudaHostAlloc((void **)&best, (size_t)(R * LS_BEST_MOST) * sizeof *best,
                     cudaHostAllocPortable | cudaHostAllocMapped));
    CU(cudaHostAlloc((void **)&log_sum, (size_t)R * sizeof *log_sum, cudaHostAllocPortable | cudaHostAllocMapped));
    static const int64_t shapes[][3] = {/* V, n, k */
                                        {5, 5, 1},        {5, 3, 3},       {2003, 2003, 1}, {2003, 1500, 50},
                                        {9001, 9001, 64}, {3000, 3000, 7}, {1100, 64, 64}};
    for (ls_dtype dt : TYPES)
        for (const int64_t *s : shapes)
            for (double grid : {0.0, 4.0, 0.5}) { /* 0: hardly a logit is equal to another; else many are */
                const int64_t V = s[0], n = s[1], k = s[2];
                array x(dt, R * V);
                numbers v((size_t)(R * V));
                for (size_t i = 0; i < v.size(); i++) {
                    v[i] = 3 * ls_rng_normal(ls_rng_key(7, LS_RNG_TEST, (uint64_t)V, 0), i);
                    if (grid > 0) v[i] = rint(v[i] * grid) / grid; /* -0, too */
                }
                x.put(v);
                judge_orders(words("best %lld of %lld of %lld", (long long)k, (long long)n, (long long)V),
                             [&](verdict &out, void *stream) {
                                 memset(best, 0xff, (size_t)(R * k) * sizeof *best);
                                 CU(cu_best(stream, dt, best, log_sum, x.at(), R, V, n, k));
                                 CU(cudaDeviceSynchronize());
                                 for (int64_t r = 0; r < R; r++) {
                                     std::vector<ls_best> all;
                                     double top = -INFINITY, sum = 0;
                                     for (int64_t i = 0; i < V; i++) {
                                         const double y = x.was[(size_t)(r * V + i)];
                                         if (i < n) all.push_back({(float)y, (int32_t)i});
                                         top = std::max(top, y);
                                     }
                                     for (int64_t i = 0; i < V; i++) sum += exp(x.was[(size_t)(r * V + i)] - top);
                                     std::sort(all.begin(), all.end(), before);
                                     std::sort(best + r * k, best + (r + 1) * k, before);
                                     for (int64_t i = 0; i < k; i++) {
                                         assert_int_equal(best[r * k + i].id, all[(size_t)i].id);
                                         assert_true(best[r * k + i].logit == all[(size_t)i].logit);
                                     }
                                     assert_true(fabs((double)log_sum[r] - top - log(sum)) < 1e-5 * (1 + fabs(top)));
                                 }
                                 (void)out;
                             });
            }
    for (double bad : {(double)NAN, (double)INFINITY, (double)-INFINITY}) { /* the other rows are as they were */
        array x(LS_F32, R * 100);
        numbers v(300, 1.0);
        v[150] = bad;
        x.put(v);
        CU(cu_best(nullptr, LS_F32, best, log_sum, x.at(), R, 100, 90, 1));
        CU(cudaDeviceSynchronize());
        assert_true(isfinite(log_sum[0]) && isnan(log_sum[1]) && isfinite(log_sum[2]));
    }
    assert_int_not_equal(cu_best(nullptr, LS_F32, best, log_sum, best, 1, 10, 10, LS_BEST_MOST + 1), 0);
    CU(cudaFreeHost(best));
    CU(cudaFreeHost(log_sum));
}

int main(void)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: there is no CUDA device\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_products_match_their_equation),
        cmocka_unit_test(cached_attention_matches_its_equation),
        cmocka_unit_test(the_best_logits_are_those_of_a_sort),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
