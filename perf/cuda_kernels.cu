/* cuda_kernels.cu - the kernels that memory bounds, at the shapes of GPT-2 124M: checked on samples against plain loops
 * in double, then timed.
 *
 *   cuda_kernels [--dtype bf16|f16|f32] [--batch 64] [--seq 1024] [--small] [--no-check] [name ...]
 *
 * Microseconds a launch (median of batches of launches back to back, over arrays that take turns so that caches do not
 * help where they would not in a step), GB/s of the bytes that must move, and per cent of what a copy inside the
 * device's memory reaches. Without --batch: 64 x 1024 and 4 x 512. --small is for the emulated device: it checks, and
 * its times mean nothing. Exit code 1: a result is wrong. */
#include "compute/cuda/gpu.cuh"
#include "compute/cuda/kernels/kernels.h"

#include <algorithm>
#include <functional>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

#include "cuda_check.h"

/* Element i of array `key`: uniform in (-1, 1) * scale + shift, as the device and the host make it alike. */
LS_HOST_DEVICE float made(uint32_t key, int64_t i, float scale, float shift)
{
    return fmaf((float)(ls_rng_u32(key, (uint32_t)i ^ (uint32_t)(i >> 32) * 0x9e3779b9u) >> 8) * 0x1p-23f - 1.0f, scale,
                shift);
}

template <class T> static __global__ void fill(T *x, int64_t n, uint32_t key, float scale, float shift)
{
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256)
        x[i] = from_float<T>(made(key, i, scale, shift));
}

struct options {
    ls_dtype dt = LS_BF16;
    int64_t B = 0, T = 0;
    bool small = false, check = true;
    std::vector<std::string> only;
};

static size_t wide_of(ls_dtype dt)
{
    return ls_dtype_nbytes(dt);
}

static double value_of(ls_dtype dt, const void *p)
{
    if (dt == LS_BF16) return (double)to_float(*(const bf16 *)p);
    if (dt == LS_F16) return (double)to_float(*(const f16 *)p);
    if (dt == LS_F64) return *(const double *)p;
    return (double)*(const float *)p;
}

static double rounded(ls_dtype dt, float f)
{
    return dt == LS_BF16  ? (double)to_float(from_float<bf16>(f))
           : dt == LS_F16 ? (double)to_float(from_float<f16>(f))
                          : (double)f;
}

/* n elements, in `turns` copies that launches use one after the other. */
struct array {
    ls_dtype dt;
    int64_t n;
    int turns;
    uint32_t key;
    float scale = 1, shift = 0;
    unsigned char *p = nullptr;
    array(ls_dtype type, int64_t count, int copies, uint32_t name, float s = 1, float at = 0)
        : dt(type), n(count), turns(copies), key(name), scale(s), shift(at)
    {
        CU(cudaMalloc((void **)&p, (size_t)(n * turns) * wide_of(dt)));
        refill();
    }
    array(const array &) = delete;
    array &operator=(const array &) = delete;
    ~array() { cudaFree(p); }
    void refill()
    {
        for (int k = 0; k < turns; k++) {
            if (dt == LS_BF16) CU(LS_LAUNCH(fill<bf16>, 1024, 256, 0, nullptr, (bf16 *)at(k), n, key, scale, shift));
            else if (dt == LS_F16) CU(LS_LAUNCH(fill<f16>, 1024, 256, 0, nullptr, (f16 *)at(k), n, key, scale, shift));
            else if (dt == LS_F32)
                CU(LS_LAUNCH(fill<float>, 1024, 256, 0, nullptr, (float *)at(k), n, key, scale, shift));
            else CU(cudaMemset(at(k), 0, (size_t)n * wide_of(dt)));
        }
        CU(cudaDeviceSynchronize());
    }
    void *at(int turn) const { return p + (size_t)(n * (turn % turns)) * wide_of(dt); }
    float *f(int turn) const { return (float *)at(turn); }
    double was(int64_t i) const { return rounded(dt, made(key, i, scale, shift)); } /* before anything wrote there */
    std::vector<double> read(int64_t from, int64_t count) const                     /* now, of turn 0 */
    {
        std::vector<unsigned char> raw((size_t)count * wide_of(dt));
        CU(cudaMemcpy(raw.data(), p + (size_t)from * wide_of(dt), raw.size(), cudaMemcpyDeviceToHost));
        std::vector<double> x((size_t)count);
        for (size_t i = 0; i < x.size(); i++) x[i] = value_of(dt, raw.data() + i * wide_of(dt));
        return x;
    }
    double read1(int64_t i) const { return read(i, 1)[0]; }
};

struct bench {
    options o;
    int64_t B, T, R, C, F, V, ld, P;
    cudaStream_t stream;
    double copy_rate = 0;
    int wrong = 0;

    double unit() const { return o.dt == LS_BF16 ? 0x1p-8 : o.dt == LS_F16 ? 0x1p-11 : 0x1p-24; }
    bool wanted(const char *name) const
    {
        for (const std::string &w : o.only)
            if (std::string(name).find(w) != std::string::npos) return true;
        return o.only.empty();
    }
    /* got is near want: rounding of its type, and a little of `top`. */
    void near(const char *name, int64_t i, ls_dtype dt, double got, double want, double top)
    {
        const double u = dt == LS_BF16 ? 0x1p-8 : dt == LS_F16 ? 0x1p-11 : dt == LS_F64 ? 1e-15 : 0x1p-24;
        const double room = 1.01 * u * fabs(want) + 1e-5 * top;
        if (fabs(got - want) <= room) return;
        if (wrong++ < 20)
            printf("WRONG %s: element %lld is %.9g, wanted %.9g (room %.1e)\n", name, (long long)i, got, want, room);
    }
    void time(const char *name, double bytes, const std::function<int(int)> &run)
    {
        const int batches = o.small ? 1 : 7, launches = o.small ? 1 : bytes > 5e8 ? 5 : 40;
        std::vector<float> ms;
        cudaEvent_t from, to;
        CU(cudaEventCreate(&from));
        CU(cudaEventCreate(&to));
        for (int k = 0; k < 3 && !o.small; k++) CU(run(k));
        for (int k = 0; k < batches; k++) {
            float t = 0;
            CU(cudaEventRecord(from, stream));
            for (int i = 0; i < launches; i++) CU(run(i));
            CU(cudaEventRecord(to, stream));
            CU(cudaEventSynchronize(to));
            CU(cudaEventElapsedTime(&t, from, to));
            ms.push_back(t / (float)launches);
        }
        CU(cudaEventDestroy(from));
        CU(cudaEventDestroy(to));
        std::sort(ms.begin(), ms.end());
        const double rate = bytes / (ms[ms.size() / 2] * 1e-3 + 1e-12);
        if (copy_rate == 0) copy_rate = rate;
        printf("%-26s %9.1f us   best %9.1f us  %8.1f GB/s  %5.1f %% of a copy\n", name, 1e3 * ms[ms.size() / 2],
               1e3 * ms[0], rate * 1e-9, 100 * rate / copy_rate);
        fflush(stdout);
    }
};

static std::vector<int64_t> sample(int64_t n, int most)
{
    std::set<int64_t> s = {0, n - 1};
    for (int k = 0; k < most; k++) s.insert((int64_t)(ls_rng_u64(77, (uint64_t)k) % (uint64_t)n));
    return std::vector<int64_t>(s.begin(), s.end());
}

static void norms(bench &b)
{
    const int64_t R = b.R, C = b.C, n = R * C;
    const ls_dtype dt = b.o.dt;
    const double E = (double)wide_of(dt), eps = 1e-5, RC = (double)n * E;
    const int turns = b.o.small ? 1 : 3;
    array x(dt, n, turns, 1, 1, 0.25f), delta(dt, n, turns, 2), w(dt, C, 1, 3, 0.5f, dt == LS_F32 ? 1.0f : 0.0f),
        bias(dt, C, 1, 4), y(dt, n, turns, 5), res(dt, n, turns, 6), dy(dt, n, turns, 7), dx(dt, n, turns, 8);
    array mean(LS_F32, R, 1, 9), rstd(LS_F32, R, 1, 10), dw(LS_F32, C, 1, 11), db(LS_F32, C, 1, 12),
        scratch(LS_F32, (int64_t)cu_norm_bwd_nbytes(R, C) / 4, 1, 13);
    const auto gain = [&](int64_t j) { return w.was(j) + (dt == LS_F32 ? 0 : 1); };
    ls_drop off = {}, on = {};
    on.p = 0.1f, on.key = 12345;
    const auto fwd = [&](int k) {
        return cu_layernorm_fwd(b.stream, dt, nullptr, y.at(k), mean.f(0), rstd.f(0), x.at(k), nullptr, w.at(0),
                                bias.at(0), R, C, eps, ls_drop());
    };
    const auto add = [&](int k) {
        return cu_layernorm_fwd(b.stream, dt, res.at(k), y.at(k), mean.f(0), rstd.f(0), x.at(k), delta.at(k), w.at(0),
                                bias.at(0), R, C, eps, off);
    };
    const auto add_drop = [&](int k) {
        return cu_layernorm_fwd(b.stream, dt, res.at(k), y.at(k), mean.f(0), rstd.f(0), x.at(k), delta.at(k), w.at(0),
                                bias.at(0), R, C, eps, on);
    };
    const auto again = [&](int k) {
        return cu_layernorm_again(b.stream, dt, y.at(k), x.at(k), mean.f(0), rstd.f(0), w.at(0), bias.at(0), R, C);
    };
    const auto bwd = [&](int k) {
        return cu_layernorm_bwd(b.stream, dt, dx.at(k), dw.f(0), db.f(0), dy.at(k), delta.at(k), x.at(k), w.at(0),
                                mean.f(0), rstd.f(0), R, C, false, scratch.at(0));
    };
    const auto bwd_alone = [&](int k) {
        return cu_layernorm_bwd(b.stream, dt, dx.at(k), dw.f(0), db.f(0), dy.at(k), nullptr, x.at(k), w.at(0),
                                mean.f(0), rstd.f(0), R, C, false, scratch.at(0));
    };
    const std::vector<int64_t> rows = sample(R, b.o.check ? 30 : 0), columns = sample(C, b.o.check ? 6 : 0);
    const auto check_rows = [&](const char *name, const array &in, bool made_input) {
        for (int64_t r : rows) {
            const std::vector<double> got = y.read(r * C, C), row = in.read(r * C, C);
            double m = 0, v = 0;
            for (double e : row) m += e / (double)C;
            for (double e : row) v += (e - m) * (e - m) / (double)C;
            for (int64_t j = 0; j < C; j++) {
                b.near(name, r * C + j, dt, got[(size_t)j],
                       (row[(size_t)j] - m) / sqrt(v + eps) * gain(j) + bias.was(j), 2);
                if (made_input) b.near(name, j, dt, row[(size_t)j], x.was(r * C + j), 0);
            }
        }
    };
    CU(fwd(0));
    CU(cudaDeviceSynchronize());
    if (b.o.check) check_rows("layernorm_fwd", x, true);
    CU(bwd(0));
    CU(cudaDeviceSynchronize());
    if (b.o.check) {
        std::vector<double> ms = mean.read(0, R), rs = rstd.read(0, R);
        for (int64_t r : rows) {
            const std::vector<double> got = dx.read(r * C, C);
            double g = 0, gh = 0;
            const double m = ms[(size_t)r], s = rs[(size_t)r];
            for (int64_t j = 0; j < C; j++) {
                const double d = dy.was(r * C + j) * gain(j);
                g += d / (double)C, gh += d * (x.was(r * C + j) - m) * s / (double)C;
            }
            for (int64_t j = 0; j < C; j++) {
                const double h = (x.was(r * C + j) - m) * s;
                b.near("layernorm_bwd dx", r * C + j, dt, got[(size_t)j],
                       s * (dy.was(r * C + j) * gain(j) - g - h * gh) + delta.was(r * C + j), 3);
            }
        }
        for (int64_t j : columns) {
            double sw = 0, sb = 0;
            for (int64_t r = 0; r < R; r++)
                sw += dy.was(r * C + j) * (x.was(r * C + j) - ms[(size_t)r]) * rs[(size_t)r], sb += dy.was(r * C + j);
            b.near("layernorm_bwd dw", j, LS_F32, dw.read1(j), sw, sqrt((double)R) + fabs(sw));
            b.near("layernorm_bwd db", j, LS_F32, db.read1(j), sb, sqrt((double)R) + fabs(sb));
        }
    }
    CU(again(0));
    CU(cudaDeviceSynchronize());
    if (b.o.check) check_rows("layernorm_again", x, true);
    CU(add_drop(0));
    CU(cudaDeviceSynchronize());
    if (b.o.check) {
        check_rows("add_layernorm_fwd", res, false);
        for (int64_t r : rows)
            for (int64_t j = 0; j < C; j += 97) {
                const int64_t i = r * C + j;
                const double keep = ls_rng_u32(on.key, (uint32_t)i) >= (uint32_t)ceil((double)on.p * 4294967296.0)
                                        ? 1 / (1 - (double)on.p)
                                        : 0;
                b.near("add_layernorm_fwd res", i, dt, res.read1(i), x.was(i) + keep * delta.was(i), 1e-2);
            }
    }
    b.time("layernorm_fwd", 2 * RC, fwd);
    b.time("add_layernorm_fwd", 4 * RC, add);
    b.time("add_layernorm_fwd drop", 4 * RC, add_drop);
    b.time("layernorm_again", 2 * RC, again);
    CU(fwd(0));
    b.time("layernorm_bwd", 3 * RC, bwd_alone);
    b.time("layernorm_bwd + dres", 4 * RC, bwd);
}

static void points(bench &b)
{
    const ls_dtype dt = b.o.dt;
    const double E = (double)wide_of(dt);
    const int64_t n = b.R * b.F, m = b.R * b.C;
    const int turns = b.o.small ? 1 : 2;
    array x(dt, n, turns, 1, 4), dy(dt, n, turns, 2), y(dt, n, turns, 3);
    ls_drop off = {}, on = {};
    on.p = 0.1f, on.key = 999, on.first = 5;
    const auto s = sample(n, b.o.check ? 2000 : 0), s2 = sample(m, b.o.check ? 500 : 0);
    const auto gelu_fwd = [&](int k) { return cu_gelu_fwd(b.stream, dt, y.at(k), x.at(k), n, LS_GELU_TANH); };
    const auto gelu_bwd = [&](int k) { return cu_gelu_bwd(b.stream, dt, y.at(k), dy.at(k), x.at(k), n, LS_GELU_TANH); };
    const auto gelu_erf = [&](int k) { return cu_gelu_bwd(b.stream, dt, y.at(k), dy.at(k), x.at(k), n, LS_GELU_ERF); };
    const auto add = [&](int k) { return cu_add_fwd(b.stream, dt, y.at(k), x.at(k), dy.at(k), m, off); };
    const auto add_drop = [&](int k) { return cu_add_fwd(b.stream, dt, y.at(k), x.at(k), dy.at(k), m, on); };
    const auto drop_bwd = [&](int k) { return cu_drop_bwd(b.stream, dt, y.at(k), dy.at(k), m, on); };
    const auto keep = [&](int64_t i) {
        return ls_rng_u32(on.key, (uint32_t)(i + on.first)) >= (uint32_t)ceil((double)on.p * 4294967296.0)
                   ? 1 / (1 - (double)on.p)
                   : 0.0;
    };
    const auto half = [](double v) { return tanh(sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v)); };
    if (b.o.check) {
        CU(gelu_fwd(0));
        CU(cudaDeviceSynchronize());
        for (int64_t i : s) b.near("gelu_fwd", i, dt, y.read1(i), 0.5 * x.was(i) * (1 + half(x.was(i))), 1);
        CU(gelu_bwd(0));
        CU(cudaDeviceSynchronize());
        for (int64_t i : s) {
            const double v = x.was(i), t = half(v),
                         slope = 0.5 * (1 + t) +
                                 0.5 * v * (1 - t * t) * sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * v * v);
            b.near("gelu_bwd", i, dt, y.read1(i), dy.was(i) * slope, 1);
        }
        CU(gelu_erf(0));
        CU(cudaDeviceSynchronize());
        for (int64_t i : s) {
            const double v = x.was(i), slope = 0.5 * (1 + erf(v * sqrt(0.5))) +
                                               v * exp(-0.5 * v * v) / sqrt(2 * 3.14159265358979323846);
            b.near("gelu_bwd erf", i, dt, y.read1(i), dy.was(i) * slope, 1);
        }
        CU(add_drop(0));
        CU(cudaDeviceSynchronize());
        for (int64_t i : s2) b.near("add_fwd", i, dt, y.read1(i), x.was(i) + keep(i) * dy.was(i), 1e-1);
        CU(drop_bwd(0));
        CU(cudaDeviceSynchronize());
        for (int64_t i : s2) b.near("drop_bwd", i, dt, y.read1(i), keep(i) * dy.was(i), 1e-1);
    }
    b.time("gelu_fwd", 2 * E * (double)n, gelu_fwd);
    b.time("gelu_bwd", 3 * E * (double)n, gelu_bwd);
    b.time("gelu_bwd erf", 3 * E * (double)n, gelu_erf);
    b.time("add_fwd", 3 * E * (double)m, add);
    b.time("add_fwd drop", 3 * E * (double)m, add_drop);
    b.time("drop_bwd", 2 * E * (double)m, drop_bwd);

    array sums(LS_F32, b.F, 1, 20), scratch(LS_F32, (int64_t)cu_sums_nbytes(b.R, b.F) / 4, 1, 21);
    const auto columns = [&](int k) {
        return cu_column_sums(b.stream, dt, sums.f(0), dy.at(k), b.R, b.F, false, scratch.at(0));
    };
    CU(columns(0));
    CU(cudaDeviceSynchronize());
    for (int64_t j : sample(b.F, b.o.check ? 6 : 0)) {
        double sum = 0;
        for (int64_t r = 0; r < b.R && b.o.check; r++) sum += dy.was(r * b.F + j);
        if (b.o.check) b.near("column_sums", j, LS_F32, sums.read1(j), sum, sqrt((double)b.R));
    }
    b.time("column_sums", E * (double)n, columns);
}

/* Operands in 8 bits, as it is and transposed; tests/compute/test_cuda_kernels.cpp checks them. */
static void operands(bench &b)
{
    if (b.o.dt != LS_BF16 || !cu_card()->fp8) return;
    const int64_t n = b.R * b.F;
    const int turns = b.o.small ? 1 : 2;
    array x(LS_BF16, n, turns, 1, 4), pre(LS_BF16, n, turns, 2), q(LS_BF16, n / 2, turns, 3),
        qt(LS_BF16, n / 2, turns, 4), scale(LS_F32, 1, 1, 5), sums(LS_F32, b.F, 1, 6),
        scratch(LS_F32, (int64_t)cu_quantize_nbytes(b.R, b.F) / 4, 1, 7);
    const auto run = [&](int k, bool with_x, bool with_pre, bool with_sums, int64_t N) {
        ls_quantize a = {};
        a.x = with_x ? x.at(k) : nullptr;
        a.pre = with_pre ? pre.at(k) : nullptr;
        a.q = q.at(k), a.qt = qt.at(k);
        a.scale = a.amax = scale.f(0);
        a.sums = with_sums ? sums.f(0) : nullptr;
        a.R = b.R, a.N = N;
        a.form = with_sums ? LS_E5M2 : LS_E4M3;
        return cu_quantize(b.stream, &a, scratch.at(0));
    };
    const double of_c = 4.0 * (double)(b.R * b.C), of_f = (double)n;
    b.time("quantize width C", of_c, [&](int k) { return run(k, true, false, false, b.C); });
    b.time("quantize", 4 * of_f, [&](int k) { return run(k, true, false, false, b.F); });
    b.time("quantize, sums", 4 * of_f, [&](int k) { return run(k, true, false, true, b.F); });
    b.time("quantize gelu", 4 * of_f, [&](int k) { return run(k, false, true, false, b.F); });
    b.time("quantize slope, sums", 6 * of_f, [&](int k) { return run(k, true, true, true, b.F); });
    array gain(LS_BF16, b.C, 1, 8, 0.5f), bias(LS_BF16, b.C, 1, 9, 0.2f), mean(LS_F32, b.R, 1, 10),
        rstd(LS_F32, b.R, 1, 11);
    const auto norm = [&](int k, bool sum) {
        ls_quantize_norm of = {};
        of.mean = mean.at(0), of.rstd = rstd.at(0), of.w = gain.at(0), of.b = bias.at(0), of.eps = 1e-5;
        if (sum) of.delta = pre.at(k), of.res = pre.at(k);
        ls_quantize a = {};
        a.x = x.at(k), a.q = q.at(k), a.qt = qt.at(k), a.scale = a.amax = scale.f(0), a.R = b.R, a.N = b.C,
        a.norm = &of;
        return cu_quantize(b.stream, &a, nullptr);
    };
    b.time("quantize norm", of_c, [&](int k) { return norm(k, false); });
    b.time("quantize add norm", 2 * of_c, [&](int k) { return norm(k, true); });
}

static void embeddings(bench &b)
{
    const ls_dtype dt = b.o.dt;
    const int64_t R = b.R, C = b.C, V = b.V;
    const double E = (double)wide_of(dt), RC = (double)(R * C);
    const int turns = b.o.small ? 1 : 3;
    array wte(dt, V * C, 1, 1), wpe(dt, b.P * C, 1, 2), y(dt, R * C, turns, 3), dy(dt, R * C, turns, 4),
        dwte(LS_F32, V * C, 1, 5), dwpe(LS_F32, b.P * C, 1, 6);
    array ids(LS_I32, R, 2, 0), scratch(LS_F32, (int64_t)cu_embed_bwd_nbytes(R, C) / 4, 1, 7);
    std::vector<int32_t> id((size_t)(2 * R)); /* as text: few tokens often, many rarely; then one token alone */
    std::set<int32_t> seen;
    for (int64_t r = 0; r < R; r++) {
        id[(size_t)r] = (int32_t)(exp((double)(ls_rng_u64(5, (uint64_t)r) >> 11) * 0x1p-53 * log((double)V))) - 1;
        id[(size_t)(R + r)] = (int32_t)(V / 2);
        seen.insert(id[(size_t)r]);
    }
    CU(cudaMemcpy(ids.p, id.data(), id.size() * 4, cudaMemcpyHostToDevice));
    const ls_drop off = {};
    const int32_t *text = (const int32_t *)ids.at(0), *one = (const int32_t *)ids.at(1);
    const auto fwd = [&](int k) {
        return cu_embed_fwd(b.stream, dt, y.at(k), text, 0, V, wte.at(0), wpe.at(0), b.B, b.T, C, off);
    };
    const auto bwd = [&](int k) {
        return cu_embed_bwd(b.stream, dt, dwte.f(0), dwpe.f(0), dy.at(k), text, 0, b.B, b.T, C, V, b.P, off, true,
                            scratch.at(0));
    };
    const auto bwd_new = [&](int k) {
        return cu_embed_bwd(b.stream, dt, dwte.f(0), dwpe.f(0), dy.at(k), text, 0, b.B, b.T, C, V, b.P, off, false,
                            scratch.at(0));
    };
    const auto bwd_one = [&](int k) {
        return cu_embed_bwd(b.stream, dt, dwte.f(0), dwpe.f(0), dy.at(k), one, 0, b.B, b.T, C, V, b.P, off, true,
                            scratch.at(0));
    };
    int32_t *key = (int32_t *)scratch.at(0), *pos = key + R + 4;
    array room(LS_I32, (int64_t)cu_sort_nbytes(R) / 4, 1, 0);
    const auto sort = [&](int) { return cu_sort_ids(b.stream, key, pos, text, 0, V, R, room.at(0)); };
    if (b.o.check) {
        CU(fwd(0));
        CU(bwd(0));
        CU(cudaDeviceSynchronize());
        for (int64_t i : sample(R * C, 1000))
            b.near("embed_fwd", i, dt, y.read1(i),
                   wte.was(id[(size_t)(i / C)] * C + i % C) + wpe.was(i / C % b.T * C + i % C), 0);
        for (int64_t j : sample(C, 3)) {
            std::vector<double> t((size_t)V), p((size_t)b.P), gt, size((size_t)V);
            for (int64_t v = 0; v < V; v++) t[(size_t)v] = dwte.was(v * C + j);
            for (int64_t q = 0; q < b.P; q++) p[(size_t)q] = dwpe.was(q * C + j);
            for (int64_t r = 0; r < R; r++)
                t[(size_t)id[(size_t)r]] += dy.was(r * C + j), p[(size_t)(r % b.T)] += dy.was(r * C + j),
                    size[(size_t)id[(size_t)r]]++;
            for (int64_t v = 0; v < V; v++)
                if (v < 300 || v % 211 == 0)
                    b.near("embed_bwd dwte", v * C + j, LS_F32, dwte.read1(v * C + j), t[(size_t)v],
                           1 + sqrt(size[(size_t)v]));
            for (int64_t q = 0; q < b.P; q += 1 + b.P / 100)
                b.near("embed_bwd dwpe", q * C + j, LS_F32, dwpe.read1(q * C + j), p[(size_t)q], sqrt((double)b.B));
        }
    }
    const double rows = (double)seen.size() * (double)C;
    b.time("embed_fwd", 2 * E * RC, fwd);
    b.time("sort_ids", 48.0 * (double)R, sort);
    b.time("embed_bwd acc", 2 * E * RC + 8 * rows + 8 * (double)(b.T * C), bwd);
    b.time("embed_bwd", 2 * E * RC + 4 * rows + 4 * (double)(b.P * C + V * C), bwd_new);
    b.time("embed_bwd one token", 2 * E * RC + 8 * (double)(b.T * C), bwd_one);
}

static void classifier(bench &b)
{
    const ls_dtype dt = b.o.dt;
    const double E = (double)wide_of(dt);
    const int64_t R = b.R, V = b.V, ld = b.ld;
    array logits(dt, R * ld, 1, 1, 4), loss(LS_F64, R, 1, 0), target(LS_I32, R, 1, 0), parts(LS_F64, 3 * R, 1, 0),
        sum(LS_F64, 1, 1, 0);
    std::vector<int32_t> t((size_t)R);
    for (int64_t r = 0; r < R; r++)
        t[(size_t)r] = r % 17 == 3 ? -1 : (int32_t)(ls_rng_u64(6, (uint64_t)r) % (uint64_t)V);
    CU(cudaMemcpy(target.p, t.data(), t.size() * 4, cudaMemcpyHostToDevice));
    cu_softmax a = {};
    a.logits = logits.p, a.row_loss = (double *)loss.p, a.target = (const int32_t *)target.p;
    a.rows = R, a.V = V, a.ld = ld, a.dloss = 1.0, a.grad = true;
    cu_softmax only = a;
    only.grad = false;
    const auto grad = [&](int) { return cu_softmax_loss(b.stream, dt, &a); };
    const auto loss_only = [&](int) { return cu_softmax_loss(b.stream, dt, &only); };
    const auto part = [&](int) { return cu_softmax_parts(b.stream, dt, &a, (double *)parts.p); };
    const auto join = [&](int) { return cu_softmax_join(b.stream, dt, &a, (double *)parts.p, 1); };
    const auto total = [&](int) { return cu_sum(b.stream, (double *)sum.p, (const double *)loss.p, R); };
    if (b.o.check) {
        for (int way = 0; way < 3; way++) { /* loss alone; in one pass; in parts */
            logits.refill();
            if (way == 0) CU(loss_only(0));
            if (way == 1) CU(grad(0));
            if (way == 2) {
                CU(part(0));
                CU(join(0));
            }
            CU(total(0));
            CU(cudaDeviceSynchronize());
            for (int64_t r : sample(R, 12)) {
                double s = 0;
                for (int64_t j = 0; j < V; j++) s += exp(logits.was(r * ld + j));
                const double want = t[(size_t)r] < 0 ? 0 : log(s) - logits.was(r * ld + t[(size_t)r]);
                b.near("softmax loss", r, LS_F64, loss.read1(r), want, 1);
                if (way == 0) continue;
                const std::vector<double> got = logits.read(r * ld, ld);
                for (int64_t j = 0; j < ld; j++) {
                    const double d =
                        j >= V || t[(size_t)r] < 0 ? 0 : exp(logits.was(r * ld + j)) / s - (j == t[(size_t)r]);
                    b.near("softmax grad", r * ld + j, dt, got[(size_t)j], d, j < V ? exp(4) / s : 0);
                }
            }
            const std::vector<double> all = loss.read(0, R);
            double s = 0;
            for (double v : all) s += v;
            b.near("sum", 0, LS_F64, sum.read1(0), s, 1e-7 * s);
        }
        logits.refill();
    }
    b.time("softmax loss + grad", 2 * E * (double)(R * ld), grad);
    b.time("softmax loss alone", E * (double)(R * ld), loss_only);
    b.time("softmax parts", E * (double)(R * ld), part);
    b.time("softmax join + grad", 2 * E * (double)(R * ld), join);
    b.time("sum", 8.0 * (double)R, total);
}

static void optimizer(bench &b, int64_t n)
{
    const ls_dtype dt = b.o.dt;
    const double E = dt == LS_F32 ? 0 : (double)wide_of(dt), N = (double)n;
    array w(LS_F32, n, 1, 1), g(LS_F32, n, 1, 2), m(LS_F32, n, 1, 3, 0.1f), v(LS_F32, n, 1, 4, 0.1f, 0.2f),
        p(dt, n, 1, 5);
    const int64_t blocks = (n + 1023) / 1024;
    double *sums = nullptr;
    CU(cudaMallocHost((void **)&sums, (size_t)blocks * sizeof(double)));
    ls_adamw h = {};
    h.lr = 1e-3, h.beta1 = 0.9, h.beta2 = 0.95, h.eps = 1e-8, h.weight_decay = 0.1, h.bias1 = 0.1, h.bias2 = 0.05,
    h.grad_scale = 0.5;
    h.n_plain = LS_ADAMW_PLAIN;
    for (int k = 0; k < LS_ADAMW_PLAIN; k++) h.plain[k][0] = 1000 * k, h.plain[k][1] = 1000 * k + 500;
    const ls_rounding up_or_down = {42, 0};
    const auto adamw = [&](int) { return cu_adamw(b.stream, dt, p.p, w.f(0), g.f(0), m.f(0), v.f(0), n, &h, nullptr); };
    const auto stochastic = [&](int) {
        return cu_adamw(b.stream, dt, p.p, w.f(0), g.f(0), m.f(0), v.f(0), n, &h, &up_or_down);
    };
    const auto narrow = [&](int) { return cu_narrow(b.stream, dt, p.p, w.f(0), n, nullptr, nullptr); };
    const auto sumsq = [&](int) { return cu_sumsq(b.stream, sums, g.f(0), n, 1024); };
    const auto add = [&](int) { return cu_add(b.stream, LS_F32, m.p, w.p, g.p, n); };
    if (b.o.check) {
        CU(adamw(0));
        CU(sumsq(0));
        CU(cudaDeviceSynchronize());
        for (int64_t i : sample(n, 2000)) {
            const bool plain = i < 1000 * LS_ADAMW_PLAIN && i % 1000 < 500;
            const double gi = g.was(i) * h.grad_scale, mi = h.beta1 * m.was(i) + (1 - h.beta1) * gi,
                         vi = h.beta2 * v.was(i) + (1 - h.beta2) * gi * gi;
            const double wi = w.was(i) - h.lr * (mi / h.bias1 / (sqrt(vi / h.bias2) + h.eps) +
                                                 (plain ? 0 : h.weight_decay) * w.was(i)),
                         got = w.read1(i);
            b.near("adamw w", i, LS_F32, got, wi, 0.05);
            b.near("adamw m", i, LS_F32, m.read1(i), mi, 0.05);
            b.near("adamw v", i, LS_F32, v.read1(i), vi, 0.05);
            if (dt != LS_F32) b.near("adamw p", i, dt, p.read1(i), got, 0);
        }
        for (int64_t k : sample(blocks, 200)) {
            double s = 0;
            for (int64_t i = k * 1024; i < n && i < (k + 1) * 1024; i++) s += g.was(i) * g.was(i);
            b.near("sumsq", k, LS_F64, sums[k], s, 1e-8 * s);
        }
    }
    b.time("adamw", (28 + E) * N, adamw);
    if (dt == LS_BF16) b.time("adamw stochastic", (28 + E) * N, stochastic);
    if (dt != LS_F32) b.time("narrow", (4 + E) * N, narrow);
    b.time("sumsq", 4 * N, sumsq);
    b.time("add float", 12 * N, add);
    CU(cudaFreeHost(sums));
}

static int run(const options &o, int64_t B, int64_t T)
{
    bench b;
    b.o = o, b.B = B, b.T = T, b.R = B * T;
    b.C = o.small ? 64 : 768, b.F = 4 * b.C, b.V = o.small ? 97 : 50257, b.ld = o.small ? 128 : 50304,
    b.P = o.small ? 20 : 1024;
    CU(cudaStreamCreate(&b.stream));
    printf("%s, batch %lld x %lld, width %lld\n", ls_dtype_word(o.dt), (long long)B, (long long)T, (long long)b.C);
    {
        const int64_t n = o.small ? 1 << 12 : 1 << 28;
        array from(LS_F32, n, 1, 1), to(LS_F32, n, 1, 2);
        b.time("copy", 8.0 * (double)n, [&](int) { return cu_copy(b.stream, to.p, from.p, (size_t)n * 4); });
    }
    if (b.wanted("norm")) norms(b);
    if (b.wanted("point")) points(b);
    if (b.wanted("quantize")) operands(b);
    if (b.wanted("embed")) embeddings(b);
    if (b.wanted("softmax")) classifier(b);
    if (b.wanted("optimizer") && (T > 512 || o.B || o.small)) optimizer(b, o.small ? 5003 : 124439808);
    CU(cudaStreamDestroy(b.stream));
    if (b.wrong) printf("%d results are WRONG\n", b.wrong);
    return b.wrong;
}

int main(int argc, char **argv)
{
    options o;
    for (int i = 1; i < argc; i++) {
        const std::string a = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
        if (a == "--small") o.small = true;
        else if (a == "--no-check") o.check = false;
        else if (a == "--dtype") o.dt = next == "f32" ? LS_F32 : next == "f16" ? LS_F16 : LS_BF16, i++;
        else if (a == "--batch") o.B = atoll(next.c_str()), i++;
        else if (a == "--seq") o.T = atoll(next.c_str()), i++;
        else if (a[0] != '-') o.only.push_back(a);
        else
            return fprintf(stderr, "cuda_kernels: %s is not known; the head of perf/cuda_kernels.cu tells\n", argv[i]),
                   2;
    }
    int wrong = 0;
    if (!cu_card()) return fprintf(stderr, "cuda_kernels: there is no device, or no code for it\n"), 2;
    if (o.small) wrong = run(o, 3, 16);
    else if (o.B) wrong = run(o, o.B, o.T ? o.T : 1024);
    else wrong = run(o, 64, 1024) + run(o, 4, 512);
    return wrong ? 1 : 0;
}
