/* test_cuda_generate.cpp - the kernels of generation: products with packed matrices, attention to a cache, the best of rows of logits. Where nvcc is
 * available, the same file tests a real device (device/cuda_generate). */
/* ls-test: cards */
#include "cuda_check.h"

#include "compute/cpu/packed.h"
#include "compute/cuda/kernels/kernels.h"

#include <algorithm>

typedef std::vector<double> numbers;

/* ---- products ---- */

/* A matrix (K,N) as compute/cpu/packed.h lays it out, and what it represents. */
struct matrix {
    ls_pack form;
    int64_t K, N;
    numbers value;
    void *device = nullptr;
    matrix(ls_pack f, int64_t k, int64_t n) : form(f), K(k), N(n), value((size_t)(k * n))
    {
        std::vector<unsigned char> host((size_t)(packed_panels(N) * packed_panel_nbytes(form, K)), 0);
        if (form == LS_PACK_INT8) fill((q8_group *)host.data(), host.size() / sizeof(q8_group));
        else fill((uint32_t *)host.data());
        CU(cudaMalloc(&device, host.size()));
        CU(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
    }
    void fill(q8_group *to, size_t n)
    {
        for (size_t i = 0; i < n; i++) memset(to[i].w, PACKED_FLIP, sizeof to[i].w);
        for (int64_t j = 0; j < N; j++)
            for (int64_t i = 0; i < K; i++) {
                q8_group &g = to[j / PACKED_PANEL * packed_groups(K) + i / PACKED_GROUP];
                const int q = (int)(ls_rng_u64(3, (uint64_t)(i * N + j)) % 255) - 127;
                g.scale[j % PACKED_PANEL] = 0.001f * (float)(1 + (i / PACKED_GROUP * 7 + j) % 13);
                g.w[i % PACKED_GROUP / 4][j % PACKED_PANEL][i % 4] = (uint8_t)((uint8_t)q ^ PACKED_FLIP);
                value[(size_t)(i * N + j)] = q * (double)g.scale[j % PACKED_PANEL];
            }
    }
    void fill(uint32_t *to)
    {
        for (int64_t j = 0; j < N; j++)
            for (int64_t i = 0; i < K; i++) {
                const double v = value[(size_t)(i * N + j)] =
                    narrowed(LS_BF16, ls_rng_normal(5, (uint64_t)(i * N + j)));
                const float f = (float)v;
                uint32_t u;
                memcpy(&u, &f, sizeof u);
                const int64_t word = (j / PACKED_PANEL * packed_pairs(K) + i / 2) * PACKED_PANEL + j % PACKED_PANEL;
                to[word] |= u >> 16 << (i % 2 * 16);
            }
    }
    matrix(const matrix &) = delete;
    matrix &operator=(const matrix &) = delete;
    ~matrix() { cudaFree(device); }
    cu_packed product(void *y, const void *x, const void *b, int64_t R) const
    {
        cu_packed p = {};
        p.y = y, p.x = x, p.w = device, p.b = b, p.form = form, p.R = R, p.K = K, p.N = N;
        return p;
    }
};

static void one_product(ls_dtype dt, ls_pack form, int64_t R, int64_t K, int64_t N, int64_t ldy)
{
    const matrix w(form, K, N);
    array x(dt, R * K), b(dt, N), res(dt, R * N);
    x.random(1);
    b.random(2);
    res.random(3);
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
    judge_orders(
        words("form %d, type %d, %lld %lld %lld", (int)form, (int)dt, (long long)R, (long long)K, (long long)N),
        [&](verdict &v, void *stream) {
            array y(dt, R * ldy), dense(dt, R * N);
            cu_packed p = w.product(y.at(), x.at(), b.at(), R);
            p.ldy = ldy;
            CU(cu_linear_packed(stream, dt, &p));
            CU(cudaDeviceSynchronize());
            const numbers got = y.get();
            numbers rows((size_t)(R * N));
            for (int64_t i = 0; i < R * N; i++) rows[(size_t)i] = got[(size_t)(i / N * ldy + i % N)];
            v.near("y", dense.put(rows), want, 1e-6, top);
        });
    /* a row has the bits of a call with that row alone */
    array y(dt, R * N), one(dt, N), then(dt, R * N);
    const cu_packed p = w.product(y.at(), x.at(), b.at(), R);
    CU(cu_linear_packed(nullptr, dt, &p));
    CU(cudaDeviceSynchronize());
    const numbers all = y.get();
    for (int64_t r : {(int64_t)0, R / 2, R - 1}) {
        const cu_packed q = w.product(one.at(), (char *)x.at() + (size_t)(r * K) * ls_dtype_nbytes(dt), b.at(), 1);
        CU(cu_linear_packed(nullptr, dt, &q));
        CU(cudaDeviceSynchronize());
        const numbers alone = one.get();
        for (int64_t n = 0; n < N; n++) assert_true(alone[(size_t)n] == all[(size_t)(r * N + n)]);
    }
    /* what follows has the bits of separate operations */
    for (int kind = 0; kind < 3; kind++) {
        cu_packed q = w.product(then.at(), x.at(), b.at(), R);
        array separate(dt, R * N);
        if (kind == 2) q.add = res.at();
        else q.gelu = true, q.kind = kind ? LS_GELU_ERF : LS_GELU_TANH;
        CU(cu_linear_packed(nullptr, dt, &q));
        if (kind == 2) CU(cu_add_fwd(nullptr, dt, separate.at(), res.at(), y.at(), R * N, ls_drop{}));
        else CU(cu_gelu_fwd(nullptr, dt, separate.at(), y.at(), R * N, q.kind));
        CU(cudaDeviceSynchronize());
        assert_true(then.bytes() == separate.bytes());
    }
}

static void products_with_packed_matrices_match_their_equation(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {/* R, K, N, ldy */
                                        {1, 64, 16, 16},
                                        {3, 768, 50, 64},
                                        {9, 200, 33, 33},
                                        {17, 128, 40, 48},
                                        {40, 100, 32, 32},
                                        {70, 64, 65, 65},
                                        {8, 1153, 8, 8},
                                        /* product_many: K in one warp's sums, in sums of two groups, odd */
                                        {128, 192, 70, 80},
                                        {150, 1160, 100, 100},
                                        {131, 1101, 17, 17}};
    for (const int64_t *s : shapes) {
        if (!getenv("LS_TEST_ALL") && (s[0] == 17 || s[0] == 70)) continue;
        if (brief() && s[1] > 1000) continue;
        one_product(LS_F16, LS_PACK_INT8, s[0], s[1], s[2], s[3]);
        if (!cu_card()->bf16) continue;
        one_product(LS_BF16, LS_PACK_INT8, s[0], s[1], s[2], s[3]);
        one_product(LS_BF16, LS_PACK_BF16, s[0], s[1], s[2], s[3]);
    }
    const matrix w(LS_PACK_BF16, 8, 8);
    const cu_packed p = w.product(nullptr, nullptr, nullptr, 1);
    assert_int_not_equal(cu_linear_packed(nullptr, LS_F32, &p), 0);
}

/* ---- attention ---- */

static void cached_attention_matches_its_equation(void **state)
{
    (void)state;
    static const int64_t shapes[][6] = {/* B, Tq, pos, Tmax, H, D */
                                        {2, 1, 0, 9, 2, 64},
                                        {1, 1, 150, 160, 2, 64},
                                        {2, 3, 5, 20, 1, 64},
                                        {1, 1, 7, 8, 2, 24},
                                        {2, 1, 40, 50, 1, 32},
                                        {1, 2, 3, 9, 1, 128},
                                        {1, 1, 300, 301, 1, 16},
                                        {1, 4, 0, 4, 2, 20},
                                        /* prompts: flash, where rows need not be alike */
                                        {2, 16, 0, 16, 2, 64},
                                        {1, 70, 61, 140, 1, 64},
                                        {2, 17, 5, 30, 2, 24},
                                        {1, 20, 3, 30, 1, 128},
                                        {1, 65, 0, 65, 1, 100}};
    for (ls_dtype dt : TYPES)
        for (const int64_t *s : shapes) {
            const int64_t B = s[0], Tq = s[1], pos = s[2], Tmax = s[3], H = s[4], D = s[5], C = H * D;
            if (!getenv("LS_TEST_ALL") && (dt == (cu_card()->bf16 ? LS_F16 : LS_BF16) || pos == 300)) continue;
            if (dt == LS_BF16 && !cu_card()->bf16 && Tq >= 16) continue; /* flash */
            if (brief() && (Tq < 16 || pos > 60)) continue;              /* the others do not know the card */
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
            judge_orders(words("attention, B %lld Tq %lld pos %lld D %lld, type %d", (long long)B, (long long)Tq,
                               (long long)pos, (long long)D, (int)dt),
                         [&](verdict &out, void *stream) {
                             for (int way = 0; way < 4;
                                  way++) { /* the position as an argument, and from the device; alike or not */
                                 const bool device = way % 2, alike = way < 2;
                                 array y(dt, B * Tq * C), kc(dt, B * H * Tmax * D), vc(dt, B * H * Tmax * D);
                                 kc.put(k0);
                                 vc.put(v0);
                                 CU(cu_attention_cached(
                                     stream, dt, y.at(), kc.at(), vc.at(), qkv.at(), B, Tq, device ? -1 : pos,
                                     device ? (const ls_pass_head *)head.at() : nullptr, Tmax, H, D, alike, false));
                                 CU(cudaDeviceSynchronize());
                                 /* flash rounds the weights of the values to 16 bits */
                                 const bool rounded = !alike && Tq >= 16 && dt != LS_F32;
                                 out.near("y", y, want, rounded ? 2e-6 + unit_of(dt) / 4 : 2e-6, 4);
                                 out.same("keys", kc, k);
                                 out.same("values", vc, v);
                             }
                             const size_t each = out.bits.size() / 4;
                             assert_true(out.bits[0] == out.bits[each]);
                             assert_true(out.bits[2 * each] == out.bits[3 * each]);
                             assert_true(Tq >= 16 || out.bits[0] == out.bits[2 * each]);
                             if (!out.first) return;
                             /* alike: the bits of each position alone, which has the cache of those before it */
                             array kc(dt, B * H * Tmax * D), vc(dt, B * H * Tmax * D), row(dt, B * 3 * C), y(dt, B * C);
                             const size_t n = ls_dtype_nbytes(dt);
                             kc.put(k0);
                             vc.put(v0);
                             for (int64_t t = 0; t < Tq; t++) {
                                 for (int64_t b = 0; b < B; b++)
                                     CU(cudaMemcpy((char *)row.at() + (size_t)(b * 3 * C) * n,
                                                   (char *)qkv.at() + (size_t)((b * Tq + t) * 3 * C) * n,
                                                   (size_t)(3 * C) * n, cudaMemcpyDeviceToDevice));
                                 CU(cu_attention_cached(nullptr, dt, y.at(), kc.at(), vc.at(), row.at(), B, 1, pos + t,
                                                        nullptr, Tmax, H, D, true, false));
                                 CU(cudaDeviceSynchronize());
                                 const std::vector<unsigned char> alone = y.bytes();
                                 for (int64_t b = 0; b < B; b++)
                                     assert_memory_equal(alone.data() + (size_t)(b * C) * n,
                                                         out.bits[0].data() + (size_t)((b * Tq + t) * C) * n,
                                                         (size_t)C * n);
                             }
                         });
        }
}

/* A key that is not a number makes the whole row of its head so, wherever it is, and no other head. */
static void cached_attention_does_not_hide_a_nan(void **state)
{
    (void)state;
    const int64_t H = 2, D = 64, C = H * D, Tmax = 64, pos = 40;
    static const int64_t places[] = {0, 5, 33, 39};
    for (int64_t i = 0; i < 8; i++) { /* one new position, and as many as flash has */
        const int64_t at = places[i % 4], Tq = i < 4 ? 1 : 20;
        array qkv(LS_F32, Tq * 3 * C), kc(LS_F32, H * Tmax * D), vc(LS_F32, H * Tmax * D), y(LS_F32, Tq * C);
        qkv.random(1);
        vc.random(3);
        numbers k = kc.random(2).was;
        k[(size_t)(at * D + 7)] = NAN;
        kc.put(k);
        CU(cu_attention_cached(nullptr, LS_F32, y.at(), kc.at(), vc.at(), qkv.at(), 1, Tq, pos, nullptr, Tmax, H, D,
                               false, false));
        CU(cudaDeviceSynchronize());
        const numbers got = y.get();
        for (int64_t c = 0; c < Tq * C; c++)
            assert_true(c % C < D ? std::isnan(got[(size_t)c]) : std::isfinite(got[(size_t)c]));
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
                if (!getenv("LS_TEST_ALL") && (dt == LS_F16 || (grid > 0) == (V == 3000))) continue;
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
    if (no_cuda_device()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_with_packed_matrices_match_their_equation),
        cmocka_unit_test(cached_attention_matches_its_equation),
        cmocka_unit_test(cached_attention_does_not_hide_a_nan),
        cmocka_unit_test(the_best_logits_are_those_of_a_sort),
    };
    if (brief()) cmocka_set_test_filter("*e*match*equation"); /* the others do not know the card */
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
