/* test_cuda_kernels.cpp - every memory-bound kernel on the emulated device, compared with its equation in double. Where nvcc is
 * available, the same file tests a real device (device/cuda_kernels; run it under compute-sanitizer, too).
 *
 * Shapes are the widths of GPT-2 and odd ones, in all three types, with aligned and unaligned addresses (`off`), dropout, and
 * accumulated sums. Bounds: the rounding to the type of the result, plus the float arithmetic before it: a few units of 2^-24
 * for elements, times the depth of the summation tree for sums. */
/* ls-test: long */
/* ls-test: cards */
#include "cuda_check.h"
#include "fp8_codes.h"

#include "compute/cuda/kernels/kernels.h"
#include "compute/decide.h"

#include <algorithm>
#include <deque>
#include <numeric>

typedef std::vector<double> numbers;

static const double SLACK = 2e-6; /* about 32 units: sums of some hundred terms in a tree, fast exponentials */

/* Off, with its own key, and with a key that is read on the device. */
struct dropout {
    ls_drop d = {};
    array head;
    explicit dropout(int kind) : head(LS_F64, 3)
    {
        ls_pass_head h = {0x1234567890abcdefu, 0.25, 0};
        CU(cudaMemcpy(head.at(), &h, sizeof h, cudaMemcpyHostToDevice));
        if (kind == 0) return;
        d.p = 0.3f;
        d.key = kind == 1 ? 0xfedcba9876543210u : ls_rng_key(h.drop_key, LS_RNG_DROPOUT, 5, 2);
        d.unit = 5, d.site = 2;
        if (kind == 2) d.at = (const ls_pass_head *)head.at();
        d.first = 1000;
    }
    ls_drop arg() const /* the argument of the kernel: with `at` it must not read the key */
    {
        ls_drop a = d;
        if (a.at) a.key = 1;
        return a;
    }
};

/* ---- layer normalisation ---- */

struct row_stats {
    double mean, rstd;
};

static row_stats stats_of(const double *x, int64_t C, double eps)
{
    double mean = 0, var = 0;
    for (int64_t j = 0; j < C; j++) mean += x[j] / (double)C;
    for (int64_t j = 0; j < C; j++) var += (x[j] - mean) * (x[j] - mean) / (double)C;
    return {mean, 1 / sqrt(var + eps)};
}

static void norm_case(ls_dtype dt, int64_t R, int64_t C, int drop_kind, bool acc, int64_t off)
{
    judge_orders(
        words("norm %s R %d C %d drop %d acc %d off %d", ls_dtype_word(dt), (int)R, (int)C, drop_kind, acc, (int)off),
        [=](verdict &v, void *s) {
            const double eps = 1e-5;
            const size_t n = (size_t)(R * C);
            dropout drop(drop_kind);
            array x(dt, R * C, off), delta(dt, R * C, off), w(dt, C, off), b(dt, C, off), res(dt, R * C, off),
                y(dt, R * C, off), again(dt, R * C);
            array mean(LS_F32, R), rstd(LS_F32, R);
            x.random(1, 1, 0.5), delta.random(2), w.random(3, 0.3, dt == LS_F32 ? 1 : 0), b.random(4, 0.2);
            numbers gain = w.was; /* as it is multiplied by */
            for (double &e : gain) e += dt == LS_F32 ? 0 : 1;
            const array *normed = &x;
            if (drop_kind < 0) {
                CU(cu_layernorm_fwd(s, dt, nullptr, y.at(), mean.f(), rstd.f(), x.at(), nullptr, w.at(), b.at(), R, C,
                                    eps, ls_drop()));
            } else {
                CU(cu_layernorm_fwd(s, dt, res.at(), y.at(), mean.f(), rstd.f(), x.at(), delta.at(), w.at(), b.at(), R,
                                    C, eps, drop.arg()));
                normed = &res;
            }
            CU(cu_layernorm_again(s, dt, again.at(), normed->at(), mean.f(), rstd.f(), w.at(), b.at(), R, C));
            CU(cudaDeviceSynchronize());
            numbers sum(n), want(n), means((size_t)R), rstds((size_t)R);
            for (size_t i = 0; i < n; i++) sum[i] = x.was[i] + delta.was[i] * keeps(drop.d, drop.d.first + (int64_t)i);
            if (drop_kind >= 0) v.near("res", res, sum, 0x1p-23);
            const numbers in = normed->get(); /* the norm is that of the rounded row */
            double wild = 1; /* a row of equal values: rstd is large, and so is the effect of rounding the mean */
            for (int64_t r = 0; r < R; r++) {
                const row_stats st = stats_of(&in[(size_t)(r * C)], C, eps);
                means[(size_t)r] = st.mean, rstds[(size_t)r] = st.rstd;
                wild = st.rstd > wild ? st.rstd : wild;
                for (int64_t j = 0; j < C; j++) {
                    const size_t i = (size_t)(r * C + j);
                    want[i] = (in[i] - st.mean) * st.rstd * gain[(size_t)j] + b.was[(size_t)j];
                }
            }
            v.near("mean", mean, means, SLACK);
            v.near("rstd", rstd, rstds, SLACK * wild);
            v.near("y", y, want, SLACK * wild);
            v.near("again", again, want, SLACK * wild);
            if (off == 0) assert_true(y.bytes() == again.bytes());

            array dy(dt, R * C, off), dx(dt, R * C, off), dw(LS_F32, C), db(LS_F32, C),
                scratch(LS_F32, (int64_t)cu_norm_bwd_nbytes(R, C) / 4);
            dy.random(6);
            dw.random(7), db.random(8);
            const bool with_res = drop_kind != 1;
            numbers wx(n), ww = acc ? dw.was : numbers((size_t)C), wb = acc ? db.was : numbers((size_t)C);
            if (with_res) dx.random(9); /* dres lies where dx goes */
            const numbers mg = mean.get(), rg = rstd.get();
            double made = 0; /* size of the terms of dx: with one column they cancel except for rounding */
            for (int64_t r = 0; r < R; r++) {
                double g = 0, gh = 0;
                for (int64_t j = 0; j < C; j++) {
                    const size_t i = (size_t)(r * C + j);
                    const double h = (in[i] - mg[(size_t)r]) * rg[(size_t)r], d = dy.was[i];
                    g += d * gain[(size_t)j] / (double)C;
                    gh += d * gain[(size_t)j] * h / (double)C;
                    ww[(size_t)j] += d * h;
                    made = std::max(made, fabs(rg[(size_t)r] * d * gain[(size_t)j]));
                    wb[(size_t)j] += d;
                }
                for (int64_t j = 0; j < C; j++) {
                    const size_t i = (size_t)(r * C + j);
                    const double h = (in[i] - mg[(size_t)r]) * rg[(size_t)r];
                    wx[i] = rg[(size_t)r] * (dy.was[i] * gain[(size_t)j] - g - h * gh) + (with_res ? dx.was[i] : 0);
                }
            }
            CU(cu_layernorm_bwd(s, dt, dx.at(), dw.f(), db.f(), dy.at(), with_res ? dx.at() : nullptr, normed->at(),
                                w.at(), mean.f(), rstd.f(), R, C, acc, scratch.at()));
            CU(cudaDeviceSynchronize());
            for (double e : wx) made = std::max(made, wild * fabs(e));
            v.near("dx", dx, wx, SLACK, made);
            v.near("dw", dw, ww, SLACK);
            v.near("db", db, wb, SLACK);
        });
}

static void layer_norm_matches_its_equation(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 3, 65, 768, 1600};
    for (ls_dtype dt : TYPES)
        for (int64_t C : widths) {
            norm_case(dt, 7, C, -1, false, 0);
            norm_case(dt, C < 100 ? 37 : 1, C, 1, true, 0);
        }
    norm_case(LS_BF16, 37, 768, 2, true, 0);
    norm_case(LS_BF16, 5, 768, 0, false, 1); /* not aligned */
    norm_case(LS_F16, 300, 64, 2, true, 0);  /* blocks take several turns */
    norm_case(LS_BF16, 9, 256, 0, false, 0);
    norm_case(LS_BF16, 3, 1024, 0, true, 0);
    norm_case(LS_BF16, 70, 2560, 2, true, 0); /* four warps per row, several turns */
    norm_case(LS_F32, 5, 256, 0, true, 0);
    norm_case(LS_F32, 3, 512, 1, true, 0);
    norm_case(LS_F32, 3, 1024, 0, true, 0);
    norm_case(LS_F32, 3, 4096, 0, true, 0);
    norm_case(LS_F16, 2, 4104, 2, false, 0); /* too wide for registers */
}

static void column_sums_match_their_equation(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 1},      {7, 3},     {37, 65},   {130, 768}, {9000, 8},
                                        {200, 2304}, {2048, 40}, {4096, 24}, {4097, 24}, {70, 8200}};
    for (ls_dtype dt : TYPES)
        for (const int64_t *shape : shapes)
            for (int acc = 0; acc < 2; acc++) {
                const int64_t R = shape[0], N = shape[1];
                judge_orders(words("columns %s R %d N %d acc %d", ls_dtype_word(dt), (int)R, (int)N, acc),
                             [=](verdict &v, void *s) {
                                 array x(dt, R * N), sums(LS_F32, N),
                                     scratch(LS_F32, (int64_t)cu_sums_nbytes(R, N) / 4);
                                 x.random(1), sums.random(2);
                                 numbers want = acc ? sums.was : numbers((size_t)N);
                                 for (int64_t i = 0; i < R * N; i++) want[(size_t)(i % N)] += x.was[(size_t)i];
                                 CU(cu_column_sums(s, dt, sums.f(), x.at(), R, N, acc, scratch.at()));
                                 CU(cudaDeviceSynchronize());
                                 v.near("sums", sums, want, SLACK);
                             });
            }
}

/* ---- single elements ---- */

static double gelu(double x, ls_gelu kind)
{
    if (kind == LS_GELU_ERF) return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x, ls_gelu kind)
{
    if (kind == LS_GELU_ERF) return 0.5 * (1 + erf(x * sqrt(0.5))) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
    const double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void gelu_matches_its_equation(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 7, 8, 65, 5003};
    for (ls_dtype dt : TYPES)
        for (int64_t n : lengths)
            for (int k = 0; k < 4; k++) {
                const ls_gelu kind = k % 2 ? LS_GELU_ERF : LS_GELU_TANH;
                const int64_t off = k / 2;
                judge_orders(words("gelu %s n %d kind %d off %d", ls_dtype_word(dt), (int)n, (int)kind, (int)off),
                             [=](verdict &v, void *s) {
                                 array x(dt, n, off), y(dt, n, off), dy(dt, n, off);
                                 x.random(1, 3), dy.random(2);
                                 numbers wy((size_t)n), wx((size_t)n);
                                 for (size_t i = 0; i < (size_t)n; i++) {
                                     if (i % 50 == 49) x.was[i] = i % 100 == 99 ? 40 : -40;
                                 }
                                 x.put(x.was);
                                 for (size_t i = 0; i < (size_t)n; i++) {
                                     wy[i] = gelu(x.was[i], kind);
                                     wx[i] = dy.was[i] * gelu_slope(x.was[i], kind);
                                 }
                                 CU(cu_gelu_fwd(s, dt, y.at(), x.at(), n, kind));
                                 CU(cu_gelu_bwd(s, dt, dy.at(), dy.at(), x.at(), n, kind)); /* in place */
                                 CU(cudaDeviceSynchronize());
                                 v.near("y", y, wy, SLACK, 1);
                                 v.near("dx", dy, wx, SLACK, 1);
                             });
            }
}

static void add_and_dropout_match_their_equation(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 7, 65, 9001};
    for (ls_dtype dt : TYPES)
        for (int64_t n : lengths)
            for (int kind = 0; kind < 3; kind++)
                judge_orders(words("add %s n %d drop %d", ls_dtype_word(dt), (int)n, kind), [=](verdict &v, void *s) {
                    const int64_t off = kind == 1 && n > 8 ? 1 : 0;
                    dropout drop(kind);
                    array x(dt, n, off), delta(dt, n, off), y(dt, n, off), dx(dt, n, off), plain(dt, n), moved(dt, n);
                    x.random(1), delta.random(2);
                    numbers wy((size_t)n), wx((size_t)n), wp((size_t)n);
                    for (size_t i = 0; i < (size_t)n; i++) {
                        const double keep = keeps(drop.d, drop.d.first + (int64_t)i);
                        wy[i] = x.was[i] + delta.was[i] * keep;
                        wx[i] = x.was[i] * keep;
                        wp[i] = x.was[i] + delta.was[i];
                    }
                    CU(cu_drop_bwd(s, dt, dx.at(), x.at(), n, drop.arg()));
                    CU(cu_add(s, dt, plain.at(), x.at(), delta.at(), n));
                    CU(cu_copy(s, moved.at(), delta.at(), (size_t)n * ls_dtype_nbytes(dt)));
                    CU(cu_add_fwd(s, dt, x.at(), x.at(), delta.at(), n, drop.arg())); /* in place */
                    CU(cu_zero(s, y.at(), (size_t)n * ls_dtype_nbytes(dt)));
                    CU(cudaDeviceSynchronize());
                    v.near("y", x, wy, 0x1p-23);
                    v.near("dx", dx, wx, 0x1p-23);
                    v.near("sum", plain, wp, 0);
                    v.same("copy", moved, delta.was);
                    v.same("zero", y, numbers((size_t)n));
                });
}

/* ---- embedding ---- */

static int32_t skewed(int64_t i, int64_t V, int kind)
{
    const uint64_t u = ls_rng_u64(99, (uint64_t)i);
    if (kind == 0) return (int32_t)(u % (uint64_t)V);
    if (kind == 1)
        return u % 10 < 7
                   ? (int32_t)(V / 2)
                   : (int32_t)(u / 16 % (uint64_t)(V + V / 2)) - (int32_t)(V / 4); /* one token often; some outside */
    return (int32_t)(V - 1);                                                       /* one token alone */
}

static void embed_case(ls_dtype dt, int64_t B, int64_t T, int64_t C, int64_t V, int kind, int drop_kind, bool acc,
                       int64_t off)
{
    judge_orders(words("embed %s B %d T %d C %d V %d ids %d drop %d acc %d off %d", ls_dtype_word(dt), (int)B, (int)T,
                       (int)C, (int)V, kind, drop_kind, acc, (int)off),
                 [=](verdict &v, void *s) {
                     const int64_t R = B * T, P = T + 2, first = kind == 1 ? 3 : 0;
                     dropout drop(drop_kind);
                     array wte(dt, V * C, off), wpe(dt, P * C, off), y(dt, R * C, off), dy(dt, R * C, off),
                         dwte(LS_F32, V * C), dwpe(LS_F32, P * C), ids(LS_I32, R);
                     array scratch(LS_F32, (int64_t)cu_embed_bwd_nbytes(R, C) / 4);
                     wte.random(1), wpe.random(2), dy.random(3), dwte.random(4), dwpe.random(5);
                     numbers which((size_t)R);
                     for (int64_t r = 0; r < R; r++) which[(size_t)r] = (double)(skewed(r, V, kind) + first);
                     ids.put(which);
                     numbers wy((size_t)(R * C)), wt = acc ? dwte.was : numbers((size_t)(V * C)),
                                                  wp = acc ? dwpe.was : numbers((size_t)(P * C));
                     for (int64_t r = 0; r < R; r++)
                         for (int64_t j = 0; j < C; j++) {
                             const int64_t id = (int64_t)which[(size_t)r] - first;
                             const bool here = id >= 0 && id < V;
                             const size_t i = (size_t)(r * C + j);
                             const double keep = keeps(drop.d, (int64_t)i);
                             wy[i] =
                                 ((here ? wte.was[(size_t)(id * C + j)] : 0) + wpe.was[(size_t)(r % T * C + j)]) * keep;
                             if (here) wt[(size_t)(id * C + j)] += dy.was[i] * keep;
                             wp[(size_t)(r % T * C + j)] += dy.was[i] * keep;
                         }
                     CU(cu_embed_fwd(s, dt, y.at(), ids.i(), first, V, wte.at(), wpe.at(), B, T, C, drop.arg()));
                     CU(cu_embed_bwd(s, dt, dwte.f(), dwpe.f(), dy.at(), ids.i(), first, B, T, C, V, P, drop.arg(), acc,
                                     scratch.at()));
                     CU(cudaDeviceSynchronize());
                     v.near("y", y, wy, 0x1p-22);
                     v.near("dwte", dwte, wt, SLACK);
                     v.near("dwpe", dwpe, wp, SLACK);
                 });
}

static void embedding_matches_its_equation(void **state)
{
    (void)state;
    for (ls_dtype dt : TYPES) {
        embed_case(dt, 1, 1, 1, 11, 0, 0, false, 0);
        embed_case(dt, 2, 7, 3, 11, 0, 1, true, 0);
        embed_case(dt, 3, 11, 65, 513, 1, 2, false, 0);
        embed_case(dt, 2, 20, 768, 11, 1, 0, true, 0);
        embed_case(dt, 5, 100, 16, 11, 1, 1, true, 0);
    }
    embed_case(LS_BF16, 4, 600, 8, 513, 1, 0, false, 0);   /* a list of many pieces */
    embed_case(LS_BF16, 4, 2100, 8, 513, 1, 0, false, 0);  /* several tiles */
    embed_case(LS_BF16, 3, 2800, 8, 70000, 0, 2, true, 0); /* three digits */
    embed_case(LS_F32, 2, 1100, 4, 300, 2, 0, true, 0);    /* one list of 69 pieces */
    embed_case(LS_F16, 2, 32, 24, 5, 2, 0, false, 0);      /* its last piece is full */
    embed_case(LS_BF16, 3, 50, 1600, 40, 1, 1, true, 1);   /* not aligned */
    embed_case(LS_BF16, 2, 50, 2304, 40, 1, 0, true, 0);   /* columns over several blocks */
}

/* A row of dwte depends only on the positions of its token: other tokens change no bit. */
static void other_tokens_change_no_gradient_bit(void **state)
{
    (void)state;
    const int64_t R = 900, C = 8, V = 50;
    std::vector<unsigned char> first;
    for (int turn = 0; turn < 2; turn++) {
        array dy(LS_BF16, R * C), dwte(LS_F32, V * C), dwpe(LS_F32, R * C), ids(LS_I32, R),
            scratch(LS_F32, (int64_t)cu_embed_bwd_nbytes(R, C) / 4);
        dy.random(1);
        numbers which((size_t)R);
        for (int64_t r = 0; r < R; r++)
            which[(size_t)r] = r % 3 == 1 ? 20 : turn == 0 ? (double)(r % 19) : (double)(21 + r % 7);
        ids.put(which);
        const ls_drop off = {};
        CU(cu_embed_bwd(nullptr, LS_BF16, dwte.f(), dwpe.f(), dy.at(), ids.i(), 0, 1, R, C, V, R, off, false,
                        scratch.at()));
        CU(cudaDeviceSynchronize());
        std::vector<unsigned char> raw = dwte.bytes();
        raw = std::vector<unsigned char>(raw.begin() + 20 * C * 4, raw.begin() + 21 * C * 4);
        if (turn == 0) first = raw;
        else assert_true(first == raw);
    }
}

static void tokens_are_sorted_stably(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 11},       {7, 1},         {2048, 255},    {65, 50257},
                                       {2047, 50257}, {2000, 262143}, {2049, 262144}, {8192, 255},
                                       {8193, 256},   {9000, 50257},  {8200, 65536},  {3000, 20000000}};
    for (const int64_t *size : sizes) {
        const int64_t R = size[0], V = size[1];
        judge_orders(words("sort R %d V %d", (int)R, (int)V), [=](verdict &v, void *s) {
            array ids(LS_I32, R), key(LS_I32, R), pos(LS_I32, R), room(LS_I32, (int64_t)cu_sort_nbytes(R) / 4);
            numbers which((size_t)R);
            for (int64_t r = 0; r < R; r++) which[(size_t)r] = (double)skewed(r, V, r % 3 == 0);
            ids.put(which);
            std::vector<int64_t> order((size_t)R);
            std::iota(order.begin(), order.end(), 0);
            numbers keys((size_t)R), wk, wp;
            for (size_t r = 0; r < (size_t)R; r++)
                keys[r] = which[r] >= 0 && which[r] < (double)V ? which[r] : (double)V;
            std::stable_sort(order.begin(), order.end(),
                             [&](int64_t a, int64_t b) { return keys[(size_t)a] < keys[(size_t)b]; });
            for (int64_t r : order) wk.push_back(keys[(size_t)r]), wp.push_back((double)r);
            CU(cu_sort_ids(s, key.i(), pos.i(), ids.i(), 0, V, R, room.at()));
            CU(cudaDeviceSynchronize());
            v.same("key", key, wk);
            v.same("pos", pos, wp);
        });
    }
}

/* ---- optimizer ---- */

static void adamw_case(ls_dtype dt, int64_t n, bool coupled, int64_t off)
{
    judge_orders(words("adamw %s n %d coupled %d off %d", ls_dtype_word(dt), (int)n, coupled, (int)off), [=](verdict &v,
                                                                                                             void *s) {
        array p(dt, n, off), w(LS_F32, n, off), g(LS_F32, n, off), m(LS_F32, n, off), u(LS_F32, n, off);
        w.random(1), g.random(2, 5), m.random(3, 0.1), u.random(4, 0.1);
        for (double &x : u.was) x = fabs(x);
        u.put(u.was);
        ls_adamw h = {};
        h.lr = 0.01, h.beta1 = 0.9, h.beta2 = 0.95, h.eps = 1e-8, h.weight_decay = 0.1, h.bias1 = 0.3, h.bias2 = 0.2,
        h.grad_scale = 0.25;
        h.coupled = coupled;
        h.n_plain = 2;
        h.plain[0][0] = 2, h.plain[0][1] = 5, h.plain[1][0] = 70, h.plain[1][1] = 900;
        h.gains.n = 2;
        h.gains.at[0][0] = 1, h.gains.at[0][1] = 3, h.gains.at[1][0] = 63, h.gains.at[1][1] = 102;
        numbers ww((size_t)n), wm((size_t)n), wv((size_t)n);
        for (size_t i = 0; i < (size_t)n; i++) {
            const bool plain = (i >= 2 && i < 5) || (i >= 70 && i < 900);
            const double decay = plain ? 0 : h.weight_decay, x = w.was[i];
            const double gi = g.was[i] * h.grad_scale + (coupled ? decay * x : 0);
            wm[i] = h.beta1 * m.was[i] + (1 - h.beta1) * gi;
            wv[i] = h.beta2 * u.was[i] + (1 - h.beta2) * gi * gi;
            ww[i] = x - h.lr * (wm[i] / h.bias1 / (sqrt(wv[i] / h.bias2) + h.eps) + (coupled ? 0 : decay * x));
        }
        CU(cu_adamw(s, dt, dt == LS_F32 ? w.at() : p.at(), w.f(), g.f(), m.f(), u.f(), n, &h, nullptr));
        CU(cudaDeviceSynchronize());
        v.near("w", w, ww, 0x1p-21);
        v.near("m", m, wm, 0x1p-21);
        v.near("v", u, wv, 0x1p-21);
        numbers rounded = w.get();
        for (size_t i = 0; i < (size_t)n; i++) {
            const bool gain = dt != LS_F32 && ((i >= 1 && i < 3) || (i >= 63 && i < 102));
            rounded[i] = narrowed(dt, (double)((float)rounded[i] - (gain ? 1.0f : 0.0f)));
        }
        if (dt != LS_F32) v.same("p", p, rounded);
        array q(dt, n, off);
        CU(cu_narrow(s, dt, q.at(), w.f(), n, &h.gains, nullptr));
        CU(cudaDeviceSynchronize());
        v.same("narrow", q, rounded);
    });
}

static void adamw_matches_its_equation(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 3, 65, 5002};
    for (ls_dtype dt : TYPES)
        for (int64_t n : lengths) {
            adamw_case(dt, n, false, 0);
            adamw_case(dt, n, true, n > 100);
        }
}

/* Rounds up or down to a neighbour, by the random bits of (key, element); the mean error is 0. */
static void stochastic_rounding_is_unbiased(void **state)
{
    (void)state;
    const int64_t n = 20001;
    array x(LS_F32, n), p(LS_BF16, n), q(LS_F16, n), g(LS_F32, n), m(LS_F32, n), v(LS_F32, n);
    const numbers zeros((size_t)n);
    x.random(1), g.put(zeros), m.put(zeros), v.put(zeros);
    ls_adamw h = {}; /* a step of length 0: weights are only rounded */
    h.beta1 = 0.9, h.beta2 = 0.95, h.eps = 1e-8, h.bias1 = h.bias2 = h.grad_scale = 1;
    const ls_rounding round = {0x1122334455667788u, 500};
    CU(cu_adamw(nullptr, LS_BF16, p.at(), x.f(), g.f(), m.f(), v.f(), n, &h, &round));
    CU(cudaDeviceSynchronize());
    const numbers got = p.get();
    double drift = 0, spread = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        float f = (float)x.was[i];
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        bits = (bits + (ls_rng_u32(round.key, (uint32_t)(500 + i)) & 0xffff)) & 0xffff0000u;
        memcpy(&f, &bits, sizeof f);
        assert_true(got[i] == (double)f);
        drift += (got[i] - x.was[i]) / fabs(x.was[i]);
        spread += fabs(got[i] - x.was[i]) / fabs(x.was[i]);
    }
    assert_true(fabs(drift) < 0.02 * spread); /* of 20001 draws; four deviations */
    array again(LS_BF16, n);                  /* from the master weights alone, as after a checkpoint was loaded */
    CU(cu_narrow(nullptr, LS_BF16, again.at(), x.f(), n, nullptr, &round));
    CU(cudaDeviceSynchronize());
    assert_true(again.get() == got);
    assert_int_equal(cu_narrow(nullptr, LS_F16, q.at(), x.f(), n, nullptr, &round), cudaErrorNotSupported);
    assert_int_equal(cu_adamw(nullptr, LS_F16, q.at(), x.f(), g.f(), m.f(), v.f(), n, &h, &round),
                     cudaErrorNotSupported);
}

static void sums_of_squares_match_their_equation(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 1024}, {1023, 1024}, {1024, 1024}, {70001, 1024}, {3000, 100}, {301, 7}};
    for (const int64_t *shape : shapes) {
        const int64_t n = shape[0], block = shape[1], blocks = (n + block - 1) / block;
        std::vector<unsigned char> aligned;
        for (int64_t off = 0; off < 2; off++)
            judge_orders(words("sumsq n %d block %d off %d", (int)n, (int)block, (int)off),
                         [=, &aligned](verdict &v, void *s) {
                             array x(LS_F32, n, off), sums(LS_F64, blocks), all(LS_F64, 1);
                             x.random(1, 1e-3);
                             numbers want((size_t)blocks);
                             for (int64_t i = 0; i < n; i++)
                                 want[(size_t)(i / block)] += x.was[(size_t)i] * x.was[(size_t)i];
                             CU(cu_sumsq(s, sums.d(), x.f(), n, block));
                             CU(cu_sum(s, all.d(), sums.d(), blocks));
                             CU(cudaDeviceSynchronize());
                             v.near("sumsq", sums, want, 1e-14);
                             v.near("sum", all, {std::accumulate(want.begin(), want.end(), 0.0)}, 1e-14);
                             if (off == 0) aligned = sums.bytes();
                             assert_true(aligned == sums.bytes()); /* the same bits at every address */
                         });
    }
}

/* What a host decides from the same sums. */
static ls_decision decided_by_host(const ls_decide &a, const numbers &sums)
{
    ls_decision d = {};
    const double *x = sums.data();
    for (int u = 0; u < a.n_unit; x += a.n_block[u++]) {
        double turn[LS_NORM_TURNS] = {};
        ls_norm_add(turn, 0, x, a.n_block[u]);
        d.squares += ls_norm_unit(turn);
    }
    const double norm = ls_norm_of(d.squares, a.unscale);
    d.factor = ls_grad_factor(norm, a.clip, a.unscale);
    d.update = std::isfinite(norm);
    return d;
}

static void decision_case(const std::vector<int64_t> &blocks, double clip, double unscale, double put, int at)
{
    judge_orders(words("decide, %d units, clip %g, %g at %d", (int)blocks.size(), clip, put, at),
                 [=](verdict &v, void *s) {
                     const int64_t n = std::accumulate(blocks.begin(), blocks.end(), (int64_t)0);
                     array sums(LS_F64, n), scratch(LS_F64, (int64_t)blocks.size()), amax(LS_F32, 40), out(LS_F64, 3);
                     numbers x((size_t)n), most(40, 1.0);
                     for (size_t i = 0; i < x.size(); i++) x[i] = exp(4 * ls_rng_normal(9, i)); /* the order matters */
                     if (at == 1) x[x.size() / 2] = put;
                     if (at == 2) most[37] = put;
                     sums.put(x), amax.put(most);
                     void *room = nullptr;
                     CU(cudaHostAlloc(&room, sizeof(ls_decision) + 70 * sizeof(double), cudaHostAllocMapped));
                     double *loss = (double *)((ls_decision *)room + 1);
                     for (int i = 0; i < 70; i++)
                         loss[i] = i % 2 ? (double)NAN : 3.5; /* every second one is not a loss */
                     if (at == 3) loss[66] = put;
                     ls_decide a = {};
                     a.out = (ls_decision *)out.at(), a.host = (ls_decision *)room;
                     a.block_sum = sums.d(), a.n_block = blocks.data(), a.n_unit = (int)blocks.size();
                     a.clip = clip, a.unscale = unscale;
                     a.loss = loss, a.n_loss = 35, a.amax = amax.f(), a.n_amax = 40;
                     CU(cu_decide(s, &a, scratch.at()));
                     CU(cudaDeviceSynchronize());
                     ls_decision want = decided_by_host(a, x), got = *a.host, there;
                     if (at && !std::isfinite(put)) want.update = 0;
                     memcpy(&there, out.bytes().data(), sizeof there);
                     assert_memory_equal(&there, &got, sizeof got);
                     if (std::isfinite(want.squares))
                         assert_memory_equal(&got, &want, sizeof want); /* the bits of the host */
                     assert_int_equal(got.update, want.update);
                     assert_int_equal(got.update, !at || std::isfinite(put));
                     v.bits.push_back(out.bytes());
                     CU(cudaFreeHost(room));
                 });
}

/* The device and the host compute the same bits, whatever the units are, and notice every number that is not finite. */
static void decisions_are_those_of_the_host(void **state)
{
    (void)state;
    decision_case({1}, 0, 1, 0, 0);
    decision_case({7, 1, 8, 9}, 1.0, 1, 0, 0);
    decision_case({5000, 2047, 2048, 2049, 1}, 0.37, 1.0 / 3, 0, 0);
    decision_case({5000, 16}, 1e30, 0x1p-16, 0, 0);
    decision_case(std::vector<int64_t>(300, 3), 0.5, 1, 0, 0); /* more than one launch */
    for (const double bad : {(double)NAN, (double)INFINITY, -(double)INFINITY, 2.0})
        for (int at = 1; at <= 3; at++) decision_case({100, 40}, 1, 1, bad, at);
}

/* The factor of a decision is grad_scale; without an update nothing is written. */
static void adamw_follows_the_decision(void **state)
{
    (void)state;
    const int64_t n = 5002;
    for (ls_dtype dt : TYPES) {
        std::vector<std::vector<unsigned char>> bytes;
        for (int kind = 0; kind < 3; kind++) {
            array p(dt, n), w(LS_F32, n), g(LS_F32, n), m(LS_F32, n), v(LS_F32, n), at(LS_F64, 3);
            w.random(1), g.random(2), m.random(3, 0.1), v.put(numbers((size_t)n, 0.01)), p.random(4);
            ls_adamw h = {};
            h.lr = 0.01, h.beta1 = 0.9, h.beta2 = 0.95, h.eps = 1e-8, h.bias1 = h.bias2 = 1, h.grad_scale = 0.3;
            const ls_decision d = {1, 0.3, kind == 1};
            CU(cudaMemcpy(at.at(), &d, sizeof d, cudaMemcpyHostToDevice));
            if (kind) h.at = (const ls_decision *)at.at(), h.grad_scale = 1e9;
            const array *all[] = {&w, &m, &v, &p};
            std::vector<unsigned char> before, after;
            for (const array *x : all)
                for (unsigned char c : x->bytes()) before.push_back(c);
            CU(cu_adamw(nullptr, dt, dt == LS_F32 ? w.at() : p.at(), w.f(), g.f(), m.f(), v.f(), n, &h, nullptr));
            CU(cudaDeviceSynchronize());
            for (const array *x : all)
                for (unsigned char c : x->bytes()) after.push_back(c);
            assert_true((before == after) == (kind == 2));
            bytes.push_back(after);
        }
        assert_true(bytes[0] == bytes[1]);
    }
}

/* More ranges than one launch takes, of odd lengths, some of them unaligned or empty: the bits of one call per range. */
static void many_ranges_have_the_bits_of_single_ones(void **state)
{
    (void)state;
    const int n_range = 40;
    for (ls_dtype dt : TYPES) {
        std::vector<std::vector<unsigned char>> bytes[2];
        for (int many = 0; many < 2; many++) {
            std::deque<array> kept;
            std::vector<ls_adamw_job> job;
            for (int i = 0; i < n_range; i++) {
                const int64_t n = i == 7 ? 0 : i % 5 == 4 ? 4096 : 1 + (int64_t)(ls_rng_u64(4, (uint64_t)i) % 9000);
                const int64_t off = i % 11 == 3;
                array *x[5];
                for (int k = 0; k < 5; k++) {
                    kept.emplace_back(k ? LS_F32 : dt, n + 1, off);
                    x[k] = &kept.back();
                    x[k]->random(10 * i + k, k == 4 ? 0.001 : 1, k == 4 ? 0.1 : 0);
                }
                ls_adamw_job j = {
                    dt == LS_F32 ? x[1]->at() : x[0]->at(), x[1]->at(), x[2]->at(), x[3]->at(), x[4]->at(), n, {}};
                j.h.lr = 0.01, j.h.beta1 = 0.9, j.h.beta2 = 0.95, j.h.eps = 1e-8, j.h.weight_decay = 0.1;
                j.h.bias1 = 0.3, j.h.bias2 = 0.2, j.h.grad_scale = 0.5 + i;
                j.h.n_plain = 1, j.h.plain[0][0] = i, j.h.plain[0][1] = 3 * i;
                j.h.gains.n = 1, j.h.gains.at[0][0] = 2, j.h.gains.at[0][1] = 2 + i;
                j.h.round = {(uint64_t)i * 77777, 5 * i};
                job.push_back(j);
            }
            const bool stochastic = dt == LS_BF16;
            if (many) CU(cu_adamw_many(nullptr, dt, job.data(), n_range, stochastic));
            for (int i = 0; i < n_range && !many; i++)
                CU(cu_adamw(nullptr, dt, job[(size_t)i].p, (float *)job[(size_t)i].master,
                            (const float *)job[(size_t)i].g, (float *)job[(size_t)i].m, (float *)job[(size_t)i].v,
                            job[(size_t)i].n, &job[(size_t)i].h, stochastic ? &job[(size_t)i].h.round : nullptr));
            CU(cudaDeviceSynchronize());
            for (const array &x : kept) bytes[many].push_back(x.bytes());
        }
        assert_true(bytes[0] == bytes[1]);
    }
    for (int64_t off = 0; off < 2; off++) {
        std::deque<array> kept;
        std::vector<const void *> x;
        std::vector<int64_t> n;
        int64_t blocks = 0;
        for (int i = 0; i < 140; i++) {
            n.push_back(i == 9 ? 0 : 64 * (1 + i * 7 % 50));
            kept.emplace_back(LS_F32, n.back() + 1, i % 3 == 1 ? off : 0);
            x.push_back(kept.back().random(i).at());
            blocks += n.back() / 64;
        }
        array one(LS_F64, blocks), all(LS_F64, blocks);
        double *to = one.d();
        for (size_t i = 0; i < n.size(); to += n[i++] / 64) CU(cu_sumsq(nullptr, to, (const float *)x[i], n[i], 64));
        CU(cu_sumsq_many(nullptr, all.d(), x.data(), n.data(), (int)n.size(), 64));
        CU(cudaDeviceSynchronize());
        assert_true(one.bytes() == all.bytes());
    }
}

/* ---- classifier ---- */

static void softmax_case(ls_dtype dt, int64_t rows, int64_t V, int64_t ld, int parts, bool at)
{
    judge_orders(
        words("softmax %s rows %d V %d ld %d parts %d at %d", ls_dtype_word(dt), (int)rows, (int)V, (int)ld, parts, at),
        [=](verdict &v, void *s) {
            /* columns of all parts side by side; part k has V - 3k of them */
            std::vector<int64_t> width, from;
            int64_t all_V = 0;
            for (int k = 0; k < parts; k++) width.push_back(V - 3 * k), from.push_back(all_V), all_V += width.back();
            const size_t n = (size_t)rows;
            array target(LS_I32, rows), loss(LS_F64, rows), head(LS_F64, 3), stats(LS_F64, 3 * rows * parts);
            numbers which(n), want(n), grad((size_t)(rows * all_V)), x((size_t)(rows * all_V));
            for (size_t r = 0; r < n; r++) which[r] = r % 5 == 3 ? -1 : (double)(ls_rng_u64(5, r) % (uint64_t)all_V);
            target.put(which);
            const ls_pass_head pass = {0, 0.125, 0};
            CU(cudaMemcpy(head.at(), &pass, sizeof pass, cudaMemcpyHostToDevice));
            const double dloss = 0.125;
            std::vector<array *> logits;
            for (int k = 0; k < parts; k++) {
                array *l = new array(dt, rows * ld);
                numbers fill((size_t)(rows * ld));
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t j = 0; j < ld; j++)
                        fill[(size_t)(r * ld + j)] =
                            j < width[(size_t)k] ? 4 * ls_rng_normal(7 + (uint64_t)k, (uint64_t)(r * ld + j)) : 100;
                l->put(fill);
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t j = 0; j < width[(size_t)k]; j++)
                        x[(size_t)(r * all_V + from[(size_t)k] + j)] = l->was[(size_t)(r * ld + j)];
                logits.push_back(l);
            }
            for (size_t r = 0; r < n; r++) {
                double top = -1e300, sum = 0;
                for (int64_t j = 0; j < all_V; j++) top = fmax(top, x[r * (size_t)all_V + (size_t)j]);
                for (int64_t j = 0; j < all_V; j++) sum += exp(x[r * (size_t)all_V + (size_t)j] - top);
                if (which[r] < 0) continue;
                want[r] = top + log(sum) - x[r * (size_t)all_V + (size_t)which[r]];
                for (int64_t j = 0; j < all_V; j++)
                    grad[r * (size_t)all_V + (size_t)j] =
                        dloss * (exp(x[r * (size_t)all_V + (size_t)j] - top) / sum - (j == (int64_t)which[r]));
            }
            cu_softmax a = {};
            a.row_loss = loss.d(), a.target = target.i(), a.rows = rows, a.ld = ld;
            a.dloss = at ? 7 : dloss, a.at = at ? (const ls_pass_head *)head.at() : nullptr;
            for (int pass_number = 0; pass_number < 2;
                 pass_number++) { /* loss alone, which changes no logit; then the gradient */
                a.grad = pass_number == 1;
                for (int k = 0; k < parts && parts > 1; k++) {
                    a.logits = logits[(size_t)k]->at(), a.V = width[(size_t)k], a.first = from[(size_t)k];
                    CU(cu_softmax_parts(s, dt, &a, stats.d() + 3 * rows * k));
                }
                CU(cudaDeviceSynchronize());
                const numbers known = stats.get();
                for (int k = 0; k < parts; k++) {
                    a.logits = logits[(size_t)k]->at(), a.V = width[(size_t)k], a.first = from[(size_t)k];
                    if (parts == 1) {
                        CU(cu_softmax_loss(s, dt, &a));
                    } else {
                        stats.put(known); /* every worker has its own copy */
                        CU(cu_softmax_join(s, dt, &a, stats.d(), parts));
                    }
                    CU(cudaDeviceSynchronize());
                    v.near("loss", loss, want, 1e-6);
                }
            }
            for (int k = 0; k < parts; k++) {
                numbers mine((size_t)(rows * ld)); /* 0 beside the vocabulary */
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t j = 0; j < width[(size_t)k]; j++)
                        mine[(size_t)(r * ld + j)] = grad[(size_t)(r * all_V + from[(size_t)k] + j)];
                v.near("dlogits", *logits[(size_t)k], mine, SLACK);
                delete logits[(size_t)k];
            }
        });
}

static void softmax_matches_its_equation(void **state)
{
    (void)state;
    for (ls_dtype dt : TYPES) {
        softmax_case(dt, 1, 11, 16, 1, false);
        softmax_case(dt, 7, 11, 11, 1, true); /* rows not aligned */
        softmax_case(dt, 7, 513, 520, 1, false);
        softmax_case(dt, 3, 12000, 12032, 1, true); /* several packs per thread */
        softmax_case(dt, 7, 513, 576, 3, false);
        softmax_case(dt, 2, 100, 101, 2, true);
    }
    softmax_case(LS_F32, 2, 50257, 50304, 1, false);  /* one row fits */
    softmax_case(LS_F32, 1, 60000, 60000, 1, false);  /* none fits */
    softmax_case(LS_BF16, 2, 57000, 57024, 1, false); /* two fit */
    for (ls_dtype dt : {LS_BF16, LS_F16}) {           /* held by registers */
        softmax_case(dt, 11, 50257, 50304, 1, false);
        softmax_case(dt, 2, 25152, 25152, 2, true);
        softmax_case(dt, 22, 12293, 16384, 1, false);
    }
    softmax_case(LS_BF16, 23, 40, 64, 1, false); /* blocks take several rows */
    softmax_case(LS_F32, 9, 29000, 29056, 1, false);
}

/* ---- operands in 8 bits: tests/compute/test_cuda_fp8.c has more of them, for the emulated device alone ---- */

static void quantize_case(int64_t R, int64_t N, bool sloped, ls_fp8 form)
{
    judge_orders(words("quantize R %d N %d slope %d form %d", (int)R, (int)N, sloped, (int)form), [=](verdict &v,
                                                                                                      void *s) {
        array x(LS_BF16, R * N), pre(LS_BF16, R * N), q(LS_BF16, R * N / 2), qt(LS_BF16, R * N / 2), scale(LS_F32, 1),
            amax(LS_F32, 1), sums(LS_F32, N), scratch(LS_F32, (int64_t)cu_quantize_nbytes(R, N) / 4);
        x.random(1, 1.5), pre.random(2, 1.5);
        scale.put({64}), amax.put({0});
        ls_quantize a = {};
        a.x = x.at(), a.pre = sloped ? pre.at() : nullptr, a.kind = LS_GELU_ERF;
        a.q = q.at(), a.qt = qt.at(), a.scale = scale.f(), a.amax = amax.f(), a.sums = sums.f();
        a.R = R, a.N = N, a.form = form;
        CU(cu_quantize(s, &a, scratch.at()));
        CU(cudaDeviceSynchronize());
        numbers want((size_t)N), most(1);
        const std::vector<unsigned char> got = q.bytes(), turned = qt.bytes();
        for (int64_t i = 0; i < R * N; i++) {
            const double value = x.was[(size_t)i] * (sloped ? gelu_slope(pre.was[(size_t)i], LS_GELU_ERF) : 1);
            const int code = fp8_code(value * 64, form), apart = abs((got[(size_t)i] & 127) - (code & 127));
            want[(size_t)(i % N)] += value;
            most[0] = fmax(most[0], fabs(value));
            assert_true(apart <= sloped); /* a value that is computed may be rounded to a neighbour */
            assert_int_equal(got[(size_t)i], turned[(size_t)(i % N * R + i / N)]);
        }
        v.bits.push_back(got);
        v.near("sums", sums, want, SLACK, 1.5 * sqrt((double)R));
        v.near("amax", amax, most, 1e-6);
    });
}

/* The two forms of an operand, made one after the other, are those that quantize makes at once. parts: ranges of the array. */
static void codes_case(int64_t R, int64_t N, int parts, ls_fp8 form)
{
    judge_orders(words("codes R %d N %d parts %d form %d", (int)R, (int)N, parts, (int)form), [=](verdict &v, void *s) {
        array x(LS_BF16, R * N), q(LS_BF16, R * N / 2), qt(LS_BF16, R * N / 2), code(LS_BF16, R * N / 2),
            turned(LS_BF16, R * N / 2), scale(LS_F32, 1), amax(LS_F32, 1), most(LS_F32, 1);
        x.random(1, 1.5);
        scale.put({64}), amax.put({0}), most.put({0});
        ls_quantize a = {};
        a.x = x.at(), a.q = q.at(), a.qt = qt.at(), a.scale = scale.f(), a.amax = amax.f(), a.R = R, a.N = N,
        a.form = form;
        CU(cu_quantize(s, &a, nullptr));
        a.qt = nullptr, a.amax = most.f(), a.R = 1;
        for (int64_t k = 0, each = R * N / parts / 16 * 16; k < parts; k++) {
            a.x = (const char *)x.at() + 2 * each * k;
            a.q = (char *)code.at() + each * k;
            a.N = k + 1 < parts ? each : R * N - each * k;
            CU(cu_quantize(s, &a, nullptr));
        }
        CU(cu_turn8(s, turned.at(), code.at(), R, N));
        CU(cudaDeviceSynchronize());
        assert_true(q.bytes() == code.bytes());
        assert_true(qt.bytes() == turned.bytes());
        assert_true(amax.bytes() == most.bytes());
        v.bits.push_back(turned.bytes());
    });
}

static void codes_are_those_of_whole_operands(void **state)
{
    (void)state;
    SKIP_UNLESS(cu_card()->fp8, "fp8 needs a card of 8.9 or later");
    codes_case(16, 16, 1, LS_E4M3);
    codes_case(272, 144, 3, LS_E4M3);
    codes_case(128, 384, 4, LS_E5M2);
}

static void operands_match_their_definition(void **state)
{
    (void)state;
    SKIP_UNLESS(cu_card()->fp8, "fp8 needs a card of 8.9 or later");
    quantize_case(128, 256, false, LS_E4M3);
    quantize_case(144, 80, false, LS_E5M2);
    quantize_case(80, 144, true, LS_E5M2);
}

/* drop_kind < 0: no residual sum. The operand has the bits of the norm and then the rounding of its output. */
static void quantize_norm_case(int64_t R, int64_t C, int drop_kind)
{
    judge_orders(words("quantize norm R %d C %d drop %d", (int)R, (int)C, drop_kind), [=](verdict &v, void *s) {
        dropout drop(drop_kind);
        const int64_t n = R * C;
        array x(LS_BF16, n), delta(LS_BF16, n), w(LS_BF16, C), b(LS_BF16, C), y(LS_BF16, n), scale(LS_F32, 1);
        x.random(1, 1, 0.5), delta.random(2), w.random(3, 0.3), b.random(4, 0.2);
        scale.put({32});
        std::vector<std::vector<unsigned char>> got[2];
        for (int fused = 0; fused < 2; fused++) {
            array q(LS_BF16, n / 2), qt(LS_BF16, n / 2), amax(LS_F32, 1), mean(LS_F32, R), rstd(LS_F32, R),
                res(LS_BF16, n);
            amax.put({0});
            ls_quantize a = {};
            a.q = q.at(), a.qt = qt.at(), a.scale = scale.f(), a.amax = amax.f(), a.R = R, a.N = C;
            ls_quantize_norm norm = {};
            norm.mean = mean.at(), norm.rstd = rstd.at(), norm.w = w.at(), norm.b = b.at(), norm.eps = 1e-5;
            norm.y = y.at();
            if (drop_kind >= 0) norm.delta = delta.at(), norm.res = res.at(), norm.drop = drop.arg();
            if (fused) {
                a.x = x.at(), a.norm = &norm;
            } else {
                CU(cu_layernorm_fwd(s, LS_BF16, norm.res, y.at(), mean.f(), rstd.f(), x.at(), norm.delta, w.at(),
                                    b.at(), R, C, norm.eps, norm.drop));
                a.x = y.at();
            }
            CU(cu_quantize(s, &a, nullptr));
            CU(cudaDeviceSynchronize());
            for (const array *one : {&q, &qt, &amax, &mean, &rstd}) got[fused].push_back(one->bytes());
            if (drop_kind >= 0) got[fused].push_back(res.bytes());
        }
        for (size_t k = 0; k < got[0].size(); k++)
            if (got[0][k] != got[1][k]) fail_msg("R %d C %d drop %d: array %d", (int)R, (int)C, drop_kind, (int)k);
        v.bits.push_back(got[1][0]);
    });
}

static void norms_write_the_operands_of_their_output(void **state)
{
    (void)state;
    SKIP_UNLESS(cu_card()->fp8, "fp8 needs a card of 8.9 or later");
    static const int64_t widths[] = {16, 272, 768, 1024, 1600, 2048, 2560, 4096, 4112}; /* every layout of a row */
    for (int64_t C : widths) quantize_norm_case(16, C, -1);
    quantize_norm_case(80, 768, 0);
    quantize_norm_case(48, 1600, 1);
    quantize_norm_case(16, 2560, 2);
    quantize_norm_case(16, 4112, 1);
    quantize_norm_case(4240, 16, -1); /* blocks of 32 rows */
#ifdef LS_EMU
    if (!getenv("LS_TEST_ALL")) return; /* seconds */
#endif
    quantize_norm_case(16912, 16, -1); /* blocks of 64 rows, of 16 at the end */
    quantize_norm_case(16944, 48, 1);
}

int main(void)
{
    if (no_cuda_device()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_norm_matches_its_equation),
        cmocka_unit_test(column_sums_match_their_equation),
        cmocka_unit_test(gelu_matches_its_equation),
        cmocka_unit_test(add_and_dropout_match_their_equation),
        cmocka_unit_test(embedding_matches_its_equation),
        cmocka_unit_test(other_tokens_change_no_gradient_bit),
        cmocka_unit_test(tokens_are_sorted_stably),
        cmocka_unit_test(adamw_matches_its_equation),
        cmocka_unit_test(stochastic_rounding_is_unbiased),
        cmocka_unit_test(sums_of_squares_match_their_equation),
        cmocka_unit_test(decisions_are_those_of_the_host),
        cmocka_unit_test(adamw_follows_the_decision),
        cmocka_unit_test(many_ranges_have_the_bits_of_single_ones),
        cmocka_unit_test(softmax_matches_its_equation),
        cmocka_unit_test(operands_match_their_definition),
        cmocka_unit_test(codes_are_those_of_whole_operands),
        cmocka_unit_test(norms_write_the_operands_of_their_output),
    };
    if (brief()) cmocka_set_test_filter("softmax*"); /* the others do not know the card */
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
