/* cuda_attention.cu - attention on the device: our kernels against plain loops in double, cuDNN against the same, then both timed.
 *
 *   cuda_attention [--dtype bf16|f16|f32] [--small] [--no-check] [--no-time] [--no-cudnn] [--no-wgmma]
 *
 * Checked, for every way there is (flash, flash with TF32, flash with wgmma in backward, with 2 and 3 warpgroups per block, cuDNN, cuDNN with one
 * order of sums): results, twice the same bits where they are
 * promised, and the same bits when recorded and run again as a CUDA graph. Timed: the shapes of GPT-2 124M (B64 T1024, B16 T512, B4 T512) and xl
 * (B8 T1024), milliseconds of a layer (median), TFLOP/s of the causal half (forward 2 B H T T D, backward 5 B H T T D) and their share of the
 * device's 989. --small is for the emulated device: it checks small shapes, and its times mean nothing. Exit code 1: a result is wrong.
 * Without --dtype: bf16, or f16 where there is none (code for less than 8.0; asked for, bf16 is skipped there). */
extern "C" {
#include "compute/cuda/attention.h"
}
#include "compute/cuda/gpu.cuh"
#include "compute/cuda/kernels/kernels.h"

#include <algorithm>
#include <chrono>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

#include "cuda_check.h"

/* ---- plain loops in double, one thread per row ------------------------------------------------------------------- */

struct plain_job {
    int B, T, H, D;
    drop_arg drop;
    double *p, *ds;         /* (B,H,T,T), p with dropout */
    double *y, *lse, *dqkv; /* as compute.h, in double   */
};

template <class E> static __global__ void plain_rows(plain_job j, const E *qkv, const E *dy)
{
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, T = j.T, D = j.D, C = (int64_t)j.H * D,
                  ld = 3 * C;
    if (row >= (int64_t)j.B * j.H * T) return;
    const int64_t i = row % T, bh = row / T, b = bh / j.H, h = bh % j.H;
    const E *q = qkv + (b * T + i) * ld + h * D, *k = qkv + b * T * ld + C + h * D, *v = k + C,
            *g = dy + (b * T + i) * C + h * D;
    double *p = j.p + row * T, *ds = j.ds + row * T, *y = j.y + (b * T + i) * C + h * D,
           *dq = j.dqkv + (b * T + i) * ld + h * D;
    const double scale = 1 / sqrt((double)D);
    const uint64_t key = drop_key(j.drop);
    double top = -INFINITY, sum = 0, mean = 0;
    for (int64_t c = 0; c <= i; c++) {
        double s = 0, d = 0;
        for (int64_t e = 0; e < D; e++) {
            s += (double)to_float(q[e]) * (double)to_float(k[c * ld + e]);
            d += (double)to_float(g[e]) * (double)to_float(v[c * ld + e]);
        }
        p[c] = s * scale, ds[c] = d;
        top = p[c] > top ? p[c] : top;
    }
    for (int64_t c = 0; c <= i; c++) sum += exp(p[c] - top);
    j.lse[row] = top + log(sum);
    for (int64_t c = 0; c <= i; c++) {
        const double f = (double)drop_factor(j.drop, key, (uint32_t)(row * T + c));
        p[c] = exp(p[c] - top) / sum, ds[c] *= f;
        mean += p[c] * ds[c];
    }
    for (int64_t c = 0; c <= i; c++) {
        ds[c] = scale * p[c] * (ds[c] - mean);
        p[c] *= (double)drop_factor(j.drop, key, (uint32_t)(row * T + c));
    }
    for (int64_t e = 0; e < D; e++) {
        double yy = 0, dd = 0;
        for (int64_t c = 0; c <= i; c++)
            yy += p[c] * (double)to_float(v[c * ld + e]), dd += ds[c] * (double)to_float(k[c * ld + e]);
        y[e] = yy, dq[e] = dd;
    }
}

template <class E> static __global__ void plain_columns(plain_job j, const E *qkv, const E *dy)
{
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, T = j.T, D = j.D, C = (int64_t)j.H * D,
                  ld = 3 * C;
    if (row >= (int64_t)j.B * j.H * T) return;
    const int64_t c = row % T, bh = row / T, b = bh / j.H, h = bh % j.H;
    double *dk = j.dqkv + (b * T + c) * ld + C + h * D, *dv = dk + C;
    for (int64_t e = 0; e < D; e++) {
        double kk = 0, vv = 0;
        for (int64_t i = c; i < T; i++) {
            kk += j.ds[(bh * T + i) * T + c] * (double)to_float(qkv[(b * T + i) * ld + h * D + e]);
            vv += j.p[(bh * T + i) * T + c] * (double)to_float(dy[(b * T + i) * C + h * D + e]);
        }
        dk[e] = kk, dv[e] = vv;
    }
}

template <class E> static __global__ void fill(E *x, int64_t n, uint32_t key)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float s = 0; /* nearly normal */
        for (uint32_t e = 0; e < 6; e++) s += (float)(ls_rng_u32(key + e, (uint32_t)i) >> 8) * 0x1p-23f - 1.0f;
        x[i] = from_float<E>(s * 0.7f);
    }
}

/* ---- one problem ------------------------------------------------------------------------------------------------- */

static cudaStream_t stream;

struct memory { /* of the device */
    unsigned char *p = nullptr;
    size_t n = 0;
    explicit memory(size_t nbytes) : n(nbytes) { CU(cudaMalloc((void **)&p, nbytes ? nbytes : 1)); }
    ~memory() { cudaFree(p); }
    memory(const memory &) = delete;
    std::vector<unsigned char> read() const
    {
        std::vector<unsigned char> x(n);
        CU(cudaStreamSynchronize(stream));
        CU(cudaMemcpy(x.data(), p, n, cudaMemcpyDeviceToHost));
        return x;
    }
};

static bool no_cudnn; /* compute-sanitizer cannot distinguish its kernels from races */
static bool no_wgmma;

struct way {
    const char *name, *kind;
    bool deterministic, tf32;
    const char *wgmma; /* LS_FLASH_WGMMA */
};

static const way ways[] = {
    {"flash", "flash", true, false, "0"},         {"flash tf32", "flash", true, true, "0"},
    {"flash wgmma 2", "flash", true, false, "2"}, {"flash wgmma 3", "flash", true, false, "3"},
    {"cudnn", "cudnn", false, false, "0"},        {"cudnn, one order", "cudnn", true, false, "0"}};

struct problem {
    ls_dtype dt;
    int64_t B, T, H, D;
    memory qkv, dy, y, lse, dqkv;
    ls_drop drop = {};
    problem(ls_dtype t, int64_t b, int64_t len, int64_t h, int64_t d)
        : dt(t), B(b), T(len), H(h), D(d), qkv(3 * count() * ls_dtype_nbytes(t)), dy(count() * ls_dtype_nbytes(t)),
          y(count() * ls_dtype_nbytes(t)), lse((size_t)(b * len * h) * 4), dqkv(3 * count() * ls_dtype_nbytes(t))
    {
        CU(random(qkv.p, 3 * count(), 11));
        CU(random(dy.p, count(), 77));
    }
    int random(void *x, size_t n, uint64_t key) const
    {
        LS_DISPATCH(dt, E, return LS_LAUNCH(fill<E>, 64, 128, 0, stream, (E *)x, (int64_t)n, key));
    }
    size_t count() const { return (size_t)(B * T * H * D); }
    cu_attention_job job(void *scratch) const
    {
        cu_attention_job j = {};
        j.y = y.p, j.dqkv = dqkv.p, j.lse = (float *)lse.p, j.qkv = qkv.p, j.dy = dy.p, j.scratch = scratch;
        j.B = B, j.T = T, j.H = H, j.D = D, j.drop = drop;
        return j;
    }
};

static double value_of(ls_dtype dt, const unsigned char *p, size_t i)
{
    if (dt == LS_BF16) return (double)to_float(((const bf16 *)p)[i]);
    if (dt == LS_F16) return (double)to_float(((const f16 *)p)[i]);
    if (dt == LS_F64) return ((const double *)p)[i];
    return (double)((const float *)p)[i];
}

/* The largest difference, as a share of the largest number. */
static double off(const memory &x, ls_dtype dt, const memory &want)
{
    const std::vector<unsigned char> a = x.read(), b = want.read();
    double most = 1e-3, error = 0;
    for (size_t i = 0; i < want.n / 8; i++) {
        const double v = value_of(dt, a.data(), i), w = value_of(LS_F64, b.data(), i);
        if (!(fabs(v) < 1e30)) return INFINITY;
        most = std::max(most, fabs(w)), error = std::max(error, fabs(v - w));
    }
    return error / most;
}

static int wrong = 0;

static void say_wrong(const char *what, const char *who)
{
    printf("    WRONG: %s (%s)\n", what, who);
    wrong++;
}

/* Whether it has code of its own for the problem: TF32 is for floats, wgmma for heads of 64 16-bit numbers. */
static bool applies(const way &w, const problem &p)
{
    return (!w.tf32 || p.dt == LS_F32) && (*w.wgmma == '0' || (p.dt != LS_F32 && p.D == 64)) &&
           !(p.drop.p > 0 && (w.kind[0] == 'c' || *w.wgmma == '3')); /* dropout: flash, 2 warpgroups */
}

static cu_attention *open_way(const way &w, ls_dtype dt)
{
    setenv("LS_FLASH_WGMMA", w.wgmma, 1);
    if ((no_cudnn && !strcmp(w.kind, "cudnn")) || (no_wgmma && *w.wgmma != '0')) return NULL;
    cu_attention *a = NULL;
    if (cu_attention_open(&a, stream, dt, w.deterministic, w.tf32, w.kind) != LS_OK) return NULL;
    return a;
}

static bool pass(cu_attention *a, const cu_attention_job &j, const char *who)
{
    if (cu_attention_run(a, false, &j) == LS_OK && cu_attention_run(a, true, &j) == LS_OK) return true;
    printf("    %-18s cannot: %s\n", who, ls_err_words());
    return false;
}

static bool same(const problem &p, const std::vector<unsigned char> first[3])
{
    return p.y.read() == first[0] && p.lse.read() == first[1] && p.dqkv.read() == first[2];
}

static int plain(const problem &p, const plain_job &j)
{
    const unsigned blocks = (unsigned)((p.B * p.H * p.T + 63) / 64);
    LS_DISPATCH(p.dt, E, {
        const E *qkv = (const E *)p.qkv.p, *dy = (const E *)p.dy.p;
        const int e = LS_LAUNCH(plain_rows<E>, blocks, 64, 0, stream, j, qkv, dy);
        return e ? e : LS_LAUNCH(plain_columns<E>, blocks, 64, 0, stream, j, qkv, dy);
    });
}

static void check(problem &p)
{
    const size_t rows = (size_t)(p.B * p.H * p.T);
    memory probs(rows * (size_t)p.T * 8), ds(rows * (size_t)p.T * 8), y(p.count() * 8), lse(rows * 8),
        dqkv(3 * p.count() * 8);
    plain_job j = {(int)p.B,          (int)p.T,       (int)p.H,      (int)p.D,        drop_of(p.drop),
                   (double *)probs.p, (double *)ds.p, (double *)y.p, (double *)lse.p, (double *)dqkv.p};
    CU(plain(p, j));
    CU(cudaStreamSynchronize(stream));
    printf("  B%d T%d H%d D%d%s\n", (int)p.B, (int)p.T, (int)p.H, (int)p.D, p.drop.p > 0 ? " dropout" : "");
    for (const way &w : ways) {
        if (!applies(w, p)) continue;
        cu_attention *a = open_way(w, p.dt);
        if (!a) {
            printf("    %-18s not here: %s\n", w.name, ls_err_words());
            continue;
        }
        memory scratch(cu_attention_scratch(a, p.B, p.T, p.H, p.D, true));
        const cu_attention_job job = p.job(scratch.p);
        for (const memory *m : {&p.y, &p.lse, &p.dqkv}) CU(cudaMemsetAsync(m->p, 0xff, m->n, stream));
        if (pass(a, job, w.name)) {
            const double ey = off(p.y, p.dt, y), el = off(p.lse, LS_F32, lse), ed = off(p.dqkv, p.dt, dqkv);
            const double by = w.tf32 ? 3e-3 : p.dt == LS_BF16 ? 8e-3 : p.dt == LS_F16 ? 1e-3 : 4e-6;
            printf("    %-18s y %.1e  lse %.1e  dqkv %.1e\n", w.name, ey, el, ed);
            if (!(ey <= by && ed <= 2 * by && el <= (w.tf32 ? 3e-3 : 2e-5))) say_wrong("results are off", w.name);
            const std::vector<unsigned char> first[3] = {p.y.read(), p.lse.read(), p.dqkv.read()};
            CU(cudaMemsetAsync(p.dqkv.p, 0xff, p.dqkv.n, stream));
            if (pass(a, job, w.name) && !same(p, first)) {
                if (w.deterministic) say_wrong("a second run has other bits", w.name);
                else printf("    %-18s a second run has other bits (allowed)\n", w.name);
            }
            cudaGraph_t graph;
            cudaGraphExec_t exec;
            CU(cudaMemsetAsync(p.dqkv.p, 0xff, p.dqkv.n, stream));
            CU(cudaStreamSynchronize(stream));
            CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            const bool recorded = pass(a, job, w.name);
            CU(cudaStreamEndCapture(stream, &graph));
            CU(cudaGraphInstantiate(&exec, graph, 0));
            CU(cudaGraphLaunch(exec, stream));
            CU(cudaStreamSynchronize(stream));
            if (!recorded || (w.deterministic && !same(p, first)))
                say_wrong("recorded as a graph it has other bits", w.name);
            else if (off(p.dqkv, p.dt, dqkv) > 2 * by) say_wrong("recorded as a graph results are off", w.name);
            cudaGraphExecDestroy(exec);
            cudaGraphDestroy(graph);
        }
        cu_attention_close(&a);
    }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

template <class F> static double milliseconds(int n, F &&f)
{
    cudaEvent_t from, to;
    std::vector<float> ms;
    CU(cudaEventCreate(&from));
    CU(cudaEventCreate(&to));
    for (int i = 0; i < 3; i++) f();
    for (int i = 0; i < n; i++) {
        float t;
        CU(cudaEventRecord(from, stream));
        for (int k = 0; k < 4; k++) f();
        CU(cudaEventRecord(to, stream));
        CU(cudaEventSynchronize(to));
        CU(cudaEventElapsedTime(&t, from, to));
        ms.push_back(t / 4);
    }
    CU(cudaEventDestroy(from));
    CU(cudaEventDestroy(to));
    std::sort(ms.begin(), ms.end());
    return (double)ms[ms.size() / 2];
}

static void time_one(problem &p, const char *words, int n)
{
    printf("  B%d T%d H%d D%d   %s\n", (int)p.B, (int)p.T, (int)p.H, (int)p.D, words);
    for (int with_drop = 0; with_drop < 2; with_drop++)
        for (const way &w : ways) {
            p.drop.p = with_drop ? 0.1f : 0.0f;
            cu_attention *a = applies(w, p) ? open_way(w, p.dt) : NULL;
            if (!a) continue;
            const auto start = std::chrono::steady_clock::now();
            const size_t nbytes = cu_attention_scratch(a, p.B, p.T, p.H, p.D, true);
            const double plan = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            memory scratch(nbytes);
            const cu_attention_job j = p.job(scratch.p);
            if (pass(a, j, w.name)) {
                const double flop = 2.0 * (double)(p.B * p.H * p.T) * (double)(p.T * p.D);
                const double f = milliseconds(n, [&] { cu_attention_run(a, false, &j); }),
                             b = milliseconds(n, [&] { cu_attention_run(a, true, &j); });
                printf(
                    "    %-18s%s forward %7.3f ms %6.1f TFLOP/s %4.1f %%   backward %7.3f ms %6.1f TFLOP/s %4.1f %%   both %7.3f ms   scratch %.1f MiB, plans %.2f s\n",
                    w.name, with_drop ? " drop" : "     ", f, flop / f * 1e-9, flop / f / 989e7, b,
                    2.5 * flop / b * 1e-9, 2.5 * flop / b / 989e7, f + b, (double)nbytes / 1048576, plan);
            }
            cu_attention_close(&a);
        }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const ls_card *card = cu_card();
    if (!card) return fprintf(stderr, "cuda_attention: there is no device, or no code for it\n"), 2;
    ls_dtype dt = card->bf16 ? LS_BF16 : LS_F16;
    bool small = false, checks = true, times = true;
    for (int i = 1; i < argc; i++) {
        const std::string w = argv[i];
        if (w == "--small") small = true;
        else if (w == "--no-check") checks = false;
        else if (w == "--no-time") times = false;
        else if (w == "--no-cudnn") no_cudnn = true;
        else if (w == "--no-wgmma") no_wgmma = true;
        else if (w == "--dtype" && i + 1 < argc) {
            const std::string t = argv[++i];
            dt = t == "f32" ? LS_F32 : t == "f16" ? LS_F16 : LS_BF16;
        } else {
            fprintf(stderr,
                    "usage: %s [--dtype bf16|f16|f32] [--small] [--no-check] [--no-time] [--no-cudnn] [--no-wgmma]\n",
                    argv[0]);
            return 2;
        }
    }
    CU(cudaStreamCreate(&stream));
    printf("attention, %s, kernels of %d.%d\n", ls_dtype_word(dt), card->capability / 10, card->capability % 10);
    if (dt == LS_BF16 && !card->bf16) return printf("  skipped: there is no bf16\n"), 0;
    {
        cu_attention *a = NULL;
        char words[256] = "";
        if (cu_attention_open(&a, stream, dt, false, false, NULL) == LS_OK)
            cu_attention_describe(a, words, sizeof words);
        printf("  %s\n", words);
        cu_attention_close(&a);
    }
    if (checks) {
        static const int shapes[][5] = {{1, 5, 2, 64, 0},    {1, 65, 2, 64, 1},   {2, 70, 1, 40, 0},
                                        {1, 33, 2, 128, 0},  {2, 200, 3, 64, 1},  {2, 512, 4, 64, 0},
                                        {1, 1024, 3, 64, 0}, {1, 1000, 2, 128, 1}};
        for (int i = 0; i < (small ? 4 : 8); i++) {
            problem p(dt, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
            check(p);
            if (!shapes[i][4]) continue;
            p.drop.p = 0.2f, p.drop.key = 12345678901u;
            check(p);
        }
    }
    if (times && small) {
        problem p(dt, 1, 64, 2, 64);
        time_one(p, "(times mean nothing here)", 1);
    } else if (times) {
        const struct {
            int64_t B, T, H;
            const char *words;
        } shapes[] = {{64, 1024, 12, "known: cuDNN 0.31 ms + 1.46 ms in bf16"},
                      {16, 512, 12, "124M"},
                      {4, 512, 12, "124M, reference protocol"},
                      {8, 1024, 25, "xl"}};
        for (const auto &s : shapes) {
            problem p(dt, s.B, s.T, s.H, 64);
            time_one(p, s.words, 9);
        }
    }
    printf(wrong ? "%d WRONG\n" : "all right\n", wrong);
    return wrong ? 1 : 0;
}
