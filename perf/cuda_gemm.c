/* cuda_gemm.c - checks and times the matrix products of a GPT-2 step on a GPU: fused and separate results are equal, the rules of gemm.c hold;
 * prints what the library fuses, the selected algorithms and their speed.
 *
 *   cuda_gemm [--check] [--batch B --seq T] [--type bf16|f16|tf32|f32|fp8] [--deterministic] [--turns N]
 *   cuda_gemm --fp32 [--batch B --seq T] [--deterministic] [--turns N]
 *
 * --fp32: float products by the library, by kernels/gemm_f32.cu (Hopper), and by the library in TF32: times, speeds, and the error of some
 * elements against sums in double. Without --batch: 4, 8, 16, 32 and 64 sequences of 1024.
 * Without --batch: 64 x 1024, 16 x 512 and 4 x 512; without --type: all five. fp8: the products of blocks with 8-bit operands; checks also compare
 * elements with sums in double. Exit code 1 if a check fails. */
#include "compute/compute.h"
#include "compute/cuda/gemm_impl.h"
#include "compute/cuda/kernels/gemm_f32.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    C = 768,
    LAYERS = 12,
    VOCAB = 50257,
    VOCAB_EVEN = 50240,
    VOCAB_PAD = 50304,
    CHUNK = 11008 /* of classifier.c */
};

typedef struct options {
    int64_t batch, seq, turns, small;
    const char *type;
    bool check, deterministic, fp32;
} options;

typedef struct device {
    cudaStream_t stream;
    cu_gemm *g;
    void *workspace;
    char *a, *b, *out, *out2, *aux, *aux2, *bias, *add;
    float *sums, *sums2;
    float *factor; /* fp8: of a and b; else NULL */
    size_t nbytes; /* of a, b, out, … each */
    ls_dtype dt;
    bool failed;
} device;

#define CU(call)                                                                                       \
    do {                                                                                               \
        const cudaError_t cu_e_ = (call);                                                              \
        if (cu_e_) {                                                                                   \
            fprintf(stderr, "%s: %s (%s:%d)\n", #call, cudaGetErrorString(cu_e_), __FILE__, __LINE__); \
            exit(4);                                                                                   \
        }                                                                                              \
    } while (0)

static void must(ls_status st)
{
    if (st == LS_OK) return;
    fprintf(stderr, "%s\n%s", ls_err_words(), ls_err_trail());
    exit(4);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { BLOCK = 1048573 }; /* a prime: rows are not repeated */

/* Normal numbers of deviation `scale`, a block of them over and over. */
static void fill(const device *d, void *to, size_t nbytes, double scale, uint64_t key)
{
    const size_t size = ls_dtype_nbytes(d->dt), all = (size_t)BLOCK * size;
    char *host = ls_alloc(all);
    if (!host) exit(5);
    for (int64_t i = 0; i < BLOCK; i++) {
        const float f = (float)(ls_rng_normal(key, (uint64_t)i) * scale);
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if (d->dt == LS_F32) memcpy(host + 4 * i, &f, 4);
        else if (d->dt == LS_BF16) memcpy(host + 2 * i, &(uint16_t){(uint16_t)(u >> 16)}, 2);
        else { /* half: cut off, small numbers to zero */ const int e = (int)(u >> 23 & 255) - 112;
            const uint16_t h = (uint16_t)((u >> 16 & 0x8000) | (e > 0 ? (uint32_t)e << 10 | (u >> 13 & 1023) : 0));
            memcpy(host + 2 * i, &h, 2);
        }
    }
    for (size_t at = 0; at < nbytes; at += all)
        CU(cudaMemcpy((char *)to + at, host, nbytes - at < all ? nbytes - at : all, cudaMemcpyHostToDevice));
    ls_free(host);
}

/* Codes of e4m3 or e5m2 below 2, the same block of 2^20 over and over: what the device and the host read. */
enum { CODES = 1 << 20 };
static uint8_t code_at(uint64_t key, int64_t i)
{
    return (uint8_t)(ls_rng_u64(key, (uint64_t)(i % CODES)) & 0xbf);
}

static void fill_codes(void *to, size_t nbytes, uint64_t key)
{
    uint8_t *host = ls_alloc(CODES);
    if (!host) exit(5);
    for (int64_t i = 0; i < CODES; i++) host[i] = code_at(key, i);
    for (size_t at = 0; at < nbytes; at += CODES)
        CU(cudaMemcpy((char *)to + at, host, nbytes - at < CODES ? nbytes - at : CODES, cudaMemcpyHostToDevice));
    ls_free(host);
}

static void use_fp8(device *d)
{
    const float factor[] = {0.5f, 0, 0, 0, 0.25f}; /* 16 bytes apart */
    CU(cudaMalloc((void **)&d->factor, sizeof factor));
    CU(cudaMemcpy(d->factor, factor, sizeof factor, cudaMemcpyHostToDevice));
    fill_codes(d->a, d->nbytes, 0);
    fill_codes(d->b, d->nbytes, 1);
}

static device open_device(ls_dtype dt, bool tf32, bool deterministic, int64_t elements)
{
    device d = {.dt = dt, .nbytes = (size_t)elements * ls_dtype_nbytes(dt)};
    char **each[] = {&d.a, &d.b, &d.out, &d.out2, &d.aux, &d.aux2, &d.add};
    CU(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking));
    must(cu_gemm_open(&d.g, d.stream, tf32, deterministic));
    d.g->tensor = false; /* our own kernel is switched on where it is meant */
    CU(cudaMalloc(&d.workspace, CU_GEMM_NBYTES));
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        CU(cudaMalloc((void **)each[i], d.nbytes));
        fill(&d, *each[i], d.nbytes, i == 1 ? 0.03 : 1, i);
    }
    CU(cudaMalloc((void **)&d.bias, VOCAB_PAD * 4));
    fill(&d, d.bias, VOCAB_PAD * ls_dtype_nbytes(dt), 1, 77);
    CU(cudaMalloc((void **)&d.sums, VOCAB_PAD * 4));
    CU(cudaMalloc((void **)&d.sums2, VOCAB_PAD * 4));
    return d;
}

static void close_device(device *d)
{
    void *all[] = {d->a,   d->b,    d->out,  d->out2,  d->aux,    d->aux2,
                   d->add, d->bias, d->sums, d->sums2, d->factor, d->workspace};
    CU(cudaStreamSynchronize(d->stream));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) CU(cudaFree(all[i]));
    cu_gemm_close(&d->g);
    CU(cudaStreamDestroy(d->stream));
}

/* ---- the products of a step --------------------------------------------------------------------------------------- */

typedef struct row {
    const char *what;
    int64_t M, N, K, count;
    bool ta, tb, bias, add, sums, wide; /* wide: a float result */
    cu_epilogue epilogue;
    int64_t lda, ldo;
} row;

static int step_rows(row *r, int64_t R)
{
    const int64_t n = R < CHUNK ? R : CHUNK, chunks = (R + n - 1) / n;
    int k = 0;
    r[k++] = (row){"qkv", R, 3 * C, C, LAYERS, .bias = true};
    r[k++] = (row){"out + residual", R, C, C, LAYERS, .bias = true, .add = true};
    r[k++] = (row){"up, gelu", R, 4 * C, C, LAYERS, .bias = true, .epilogue = CU_GELU};
    r[k++] = (row){"down + residual", R, C, 4 * C, LAYERS, .bias = true, .add = true};
    r[k++] = (row){"d down, gelu'", R, 4 * C, C, LAYERS, .tb = true, .epilogue = CU_DGELU};
    r[k++] = (row){"d up", R, C, 4 * C, LAYERS, .tb = true};
    r[k++] = (row){"d out", R, C, C, LAYERS, .tb = true};
    r[k++] = (row){"d qkv", R, C, 3 * C, LAYERS, .tb = true};
    r[k++] = (row){"dw down, db", 4 * C, C, R, LAYERS, .ta = true, .sums = true, .wide = true};
    r[k++] = (row){"dw up, db", C, 4 * C, R, LAYERS, .ta = true, .sums = true, .wide = true};
    r[k++] = (row){"dw out, db", C, C, R, LAYERS, .ta = true, .sums = true, .wide = true};
    r[k++] = (row){"dw qkv, db", C, 3 * C, R, LAYERS, .ta = true, .sums = true, .wide = true};
    r[k++] = (row){"logits", n, VOCAB_PAD, C, chunks, .tb = true, .ldo = VOCAB_PAD};
    r[k++] = (row){"d logits w", n, C, VOCAB_PAD, chunks, .lda = VOCAB_PAD};
    r[k++] = (row){"dw vocabulary", VOCAB_EVEN, C, n, chunks, .ta = true, .wide = true, .lda = VOCAB_PAD};
    r[k++] = (row){"dw, the rest", VOCAB - VOCAB_EVEN, C, n, chunks, .ta = true, .wide = true, .lda = VOCAB_PAD};
    return k;
}

/* Leaves out the classifier's, whose size is all there is to them; small > 1: tiny ones. */
static int small_rows(row *r, int n_row, int64_t small)
{
    int n = 0;
    for (int i = 0; i < n_row; i++) {
        if (r[i].lda || r[i].ldo) continue;
        if (small > 1)
            r[i].M = r[i].M > 48 ? 48 : r[i].M, r[i].N = r[i].N > 64 ? 64 : r[i].N, r[i].K = r[i].K > 80 ? 80 : r[i].K;
        r[n++] = r[i];
    }
    return n;
}

/* Those of fp8: as model/layers_fp8.c asks for them. Gradients have e5m2. */
static int fp8_rows(row *r, int64_t R)
{
    const int n = step_rows(r, R);
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (r[i].lda || r[i].ldo || r[i].count != LAYERS) continue; /* the classifier's */
        r[k] = r[i];
        r[k].sums = false;
        r[k].epilogue = CU_PLAIN;
        k++;
    }
    return k;
}

static cu_product product_of_fp8(const device *d, const row *r)
{
    const bool dx = r->tb, dw = r->ta;
    cu_product p = {.out = d->out, .a = d->a, .b = d->b, .M = r->M, .N = r->N, .K = r->K, .tb = true};
    p.lda = p.ldb = r->K, p.ldo = r->N;
    p.dt = d->dt, p.out_dt = r->wide ? LS_F32 : d->dt;
    p.bias = r->bias ? d->bias : NULL;
    p.add = r->add ? d->add : NULL;
    p.fp8 = (cu_fp8){.on = true, .a_factor = d->factor, .b_factor = d->factor + 4, .fast = !dx && !dw};
    p.fp8.a_form = dx ? LS_E5M2 : LS_E4M3;
    p.fp8.b_form = dw ? LS_E5M2 : LS_E4M3;
    return p;
}

static cu_product product_of(const device *d, const row *r)
{
    if (d->factor) return product_of_fp8(d, r);
    return (cu_product){.out = d->out,
                        .a = d->a,
                        .b = d->b,
                        .M = r->M,
                        .N = r->N,
                        .K = r->K,
                        .lda = r->lda  ? r->lda
                               : r->ta ? r->M
                                       : r->K,
                        .ldb = r->tb ? r->K : r->N,
                        .ldo = r->ldo ? r->ldo : r->N,
                        .ta = r->ta,
                        .tb = r->tb,
                        .dt = d->dt,
                        .out_dt = r->wide ? LS_F32 : d->dt,
                        .bias = r->bias ? d->bias : NULL,
                        .add = r->add ? d->add : NULL,
                        .aux = r->epilogue ? d->aux : NULL,
                        .epilogue = r->epilogue,
                        .b_sums = r->sums ? d->sums : NULL};
}

static char *fused_words(char buf[40], uint32_t f)
{
    snprintf(buf, 40, "%s%s%s%s%s", f & GEMM_BIAS ? "bias " : "", f & GEMM_GELU ? "gelu " : "",
             f & GEMM_ADD ? "add " : "", f & GEMM_SUMS ? "sums " : "", f & GEMM_ROWS ? "(rows) " : "");
    if (!*buf) snprintf(buf, 40, "-");
    return buf;
}

static uint32_t config(const cu_gemm_choice *c, cublasLtMatmulAlgoConfigAttributes_t what)
{
    cublasLtMatmulAlgo_t algo;
    uint32_t v = 0;
    size_t n;
    memcpy(&algo, c->algo, sizeof algo);
    (void)cublasLtMatmulAlgoConfigGetAttribute(&algo, what, &v, sizeof v, &n);
    return v;
}

/* ---- timing ------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The median of `turns` runs, in milliseconds. */
static float time_of(device *d, const cu_product *p, int64_t turns)
{
    enum { MOST = 64 };
    float ms[MOST];
    cudaEvent_t from, to;
    const int n = turns < MOST ? (int)turns : MOST;
    CU(cudaEventCreate(&from));
    CU(cudaEventCreate(&to));
    for (int t = 0; t < n; t++) {
        CU(cudaEventRecord(from, d->stream));
        must(cu_gemm_run(d->g, p, d->workspace));
        CU(cudaEventRecord(to, d->stream));
        CU(cudaEventSynchronize(to));
        CU(cudaEventElapsedTime(&ms[t], from, to));
    }
    CU(cudaEventDestroy(from));
    CU(cudaEventDestroy(to));
    qsort(ms, (size_t)n, sizeof ms[0], by_value);
    return ms[n / 2];
}

static void time_step(device *d, const options *o, int64_t R, const char *type)
{
    row r[20];
    const int n = d->factor ? fp8_rows(r, R) : step_rows(r, R);
    double step = 0, flop = 0;
    printf("\n%s, %lld rows%s\n%-16s %6s %6s %6s %3s  %8s %8s  %-14s %-14s %s\n", type, (long long)R,
           o->deterministic ? ", deterministic" : "", "product", "M", "N", "K", "n", "usec", "TFLOP/s", "fused",
           "could be", "algorithm: id tile split scheme; seconds of choosing");
    for (int i = 0; i < n; i++) {
        cu_product p = product_of(d, &r[i]);
        uint32_t sets[GEMM_MOST_VARIANTS];
        cu_gemm_choice found[GEMM_MOST_ALGOS];
        char now[40], could[40];
        const int n_set = gemm_variants(d->g, &p, sets);
        const int offered = n_set ? gemm_propose(d->g, &p, sets[0], false, found, GEMM_MOST_ALGOS) : 0;
        const double begin = ls_now();
        must(cu_gemm_run(d->g, &p, d->workspace));
        CU(cudaStreamSynchronize(d->stream));
        const double chose = ls_now() - begin, ms = (double)time_of(d, &p, o->turns);
        const double work = 2.0 * (double)p.M * (double)p.N * (double)p.K;
        const cu_gemm_choice *c = &d->g->last;
        step += ms * (double)r[i].count;
        flop += work * (double)r[i].count;
        printf("%-16s %6lld %6lld %6lld %3lld  %8.1f %8.1f  %-14s %-14s %u %u %u %u; %.2f\n", r[i].what, (long long)p.M,
               (long long)p.N, (long long)p.K, (long long)r[i].count, ms * 1e3, work / ms * 1e-9,
               fused_words(now, c->fused | (p.add ? GEMM_ADD : 0u)),
               offered ? fused_words(could, sets[0]) : "(refused)", config(c, CUBLASLT_ALGO_CONFIG_ID),
               config(c, CUBLASLT_ALGO_CONFIG_TILE_ID), config(c, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
               config(c, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME), chose);
        fflush(stdout);
    }
    printf("all %sproducts of a step: %.2f ms, %.1f TFLOP/s; products alone would do %.0f thousand tokens/s\n",
           d->factor ? "blocks' " : "", step, flop / step * 1e-9, (double)R / step);
}

/* ---- checks ------------------------------------------------------------------------------------------------------- */

static float *to_host(const device *d, const void *p, ls_dtype dt, int64_t n)
{
    const size_t size = ls_dtype_nbytes(dt);
    char *raw = ls_alloc((size_t)n * size);
    float *f = ls_alloc((size_t)n * sizeof *f);
    if (!raw || !f) exit(5);
    CU(cudaStreamSynchronize(d->stream));
    CU(cudaMemcpy(raw, p, (size_t)n * size, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = 0;
        uint32_t u;
        if (dt == LS_F32) {
            memcpy(&f[i], raw + 4 * i, 4);
            continue;
        }
        memcpy(&h, raw + 2 * i, 2);
        if (dt == LS_BF16) {
            u = (uint32_t)h << 16;
            memcpy(&f[i], &u, 4);
        } else {
            const int e = h >> 10 & 31;
            f[i] = e ? ldexpf((float)(1024 + (h & 1023)), e - 25) : ldexpf((float)(h & 1023), -24);
            if (h & 0x8000) f[i] = -f[i];
        }
    }
    ls_free(raw);
    return f;
}

static double farthest(const float *a, const float *b, int64_t n)
{
    double most = 1e-30, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs((double)a[i] - (double)b[i]);
        if (!(e <= worst)) worst = e;
        most = fmax(most, fabs((double)b[i]));
    }
    return worst / most;
}

static void judge(device *d, bool ok, const char *what, const row *r, double off)
{
    printf("  %-4s %-34s %-16s M %lld N %lld K %lld  %.2e\n", ok ? "ok" : "BAD", what, r->what, (long long)r->M,
           (long long)r->N, (long long)r->K, off);
    if (!ok) d->failed = true;
}

/* Everything the library offers to fuse against nothing fused. */
static void check_fused(device *d, const row *r)
{
    const double bound = d->dt == LS_BF16 ? 2e-2 : d->dt == LS_F16 ? 3e-3 : d->g->tf32 ? 3e-3 : 2e-5;
    cu_product p = product_of(d, r), q = p;
    uint32_t sets[GEMM_MOST_VARIANTS];
    cu_gemm_choice found[1];
    const int64_t n = p.M * p.ldo;
    d->g->only = 15;
    (void)gemm_variants(d->g, &p, sets);
    if (!gemm_propose(d->g, &p, sets[0], false, found, 1)) {
        d->g->only = -1;
        judge(d, true, "nothing is fused: refused", r, 0);
        return;
    }
    must(cu_gemm_run(d->g, &p, d->workspace));
    q.out = d->out2;
    if (p.epilogue == CU_GELU) q.aux = d->aux2;
    if (p.b_sums) q.b_sums = d->sums2;
    d->g->only = 0;
    must(cu_gemm_run(d->g, &q, d->workspace));
    d->g->only = -1;
    float *x = to_host(d, p.out, p.out_dt, n), *y = to_host(d, q.out, p.out_dt, n);
    double off = farthest(x, y, n);
    judge(d, off <= bound, "fused against separate", r, off);
    ls_free(x);
    ls_free(y);
    if (p.b_sums) {
        x = to_host(d, p.b_sums, LS_F32, p.N), y = to_host(d, q.b_sums, LS_F32, p.N);
        off = farthest(x, y, p.N);
        judge(d, off <= (d->g->tf32 ? 2e-3 : 1e-4), "fused sums against separate", r, off);
        ls_free(x);
        ls_free(y);
    }
    if (p.epilogue == CU_GELU) {
        x = to_host(d, p.aux, p.dt, p.M * p.N), y = to_host(d, q.aux, p.dt, p.M * p.N);
        off = farthest(x, y, p.M * p.N);
        judge(d, off <= bound, "fused GELU's argument", r, off);
        ls_free(x);
        ls_free(y);
    }
}

static double code_value(uint8_t code, ls_fp8 form)
{
    const int bits = form == LS_E5M2 ? 2 : 3, bias = form == LS_E5M2 ? 15 : 7, e = (code & 127) >> bits,
              m = code & ((1 << bits) - 1);
    const double a = e ? ldexp(1 + ldexp(m, -bits), e - bias) : ldexp(m, 1 - bias - bits);
    return code & 128 ? -a : a;
}

/* Some elements of a product in fp8 against sums in double: the layouts, the factors, the formats. Tensor cores keep about 14
 * bits of the sums that they make at once. */
static void check_codes(device *d, const row *given)
{
    row r = *given;
    r.bias = r.add = false;
    const cu_product p = product_of(d, &r);
    must(cu_gemm_run(d->g, &p, d->workspace));
    float *got = to_host(d, p.out, p.out_dt, p.M * p.N);
    double worst = 0;
    for (int64_t k = 0; k < 64; k++) {
        const int64_t m = k * 7919 % p.M, n = k * 104729 % p.N;
        double sum = 0, size = 0;
        for (int64_t i = 0; i < p.K; i++) {
            const double t = 0.125 * code_value(code_at(0, m * p.K + i), p.fp8.a_form) *
                             code_value(code_at(1, n * p.K + i), p.fp8.b_form);
            sum += t, size += fabs(t);
        }
        const double off = fabs((double)got[m * p.N + n] - sum) / (size + 1e-30);
        if (!(off <= worst)) worst = off;
    }
    judge(d, worst <= (r.wide ? 1e-4 : 4e-3), "against double", &r, worst);
    ls_free(got);
}

static void check_laws(device *d, const row *r)
{
    cu_product p = product_of(d, r);
    const int64_t n = p.M * p.ldo;
    must(cu_gemm_run(d->g, &p, d->workspace));
    float *one = to_host(d, p.out, p.out_dt, n);
    must(cu_gemm_run(d->g, &p, d->workspace));
    float *two = to_host(d, p.out, p.out_dt, n);
    judge(d, !memcmp(one, two, (size_t)n * sizeof *one), "two runs, equal bits", r, 0);
    if (r->wide && !r->bias) {
        p.add = p.out;
        must(cu_gemm_run(d->g, &p, d->workspace));
        ls_free(two);
        two = to_host(d, p.out, p.out_dt, n);
        int64_t off = 0;
        for (int64_t i = 0; i < n; i++) off += two[i] != 2 * one[i];
        judge(d, off == 0 || !d->g->deterministic, "added to = product, then added", r, (double)off);
    }
    ls_free(one);
    ls_free(two);
}

/* Each of few rows as it is alone. */
static void check_few(device *d, const row *given)
{
    row r = *given;
    r.M = LS_FEW_ROWS;
    cu_product p = product_of(d, &r);
    must(cu_gemm_run(d->g, &p, d->workspace));
    float *all = to_host(d, p.out, p.out_dt, p.M * p.ldo);
    bool same = true;
    for (int64_t m = 1; m < LS_FEW_ROWS; m++) {
        p.M = m;
        must(cu_gemm_run(d->g, &p, d->workspace));
        float *some = to_host(d, p.out, p.out_dt, m * p.ldo);
        same = same && !memcmp(some, all, (size_t)(m * p.ldo) * sizeof *some);
        ls_free(some);
    }
    judge(d, same, "1 to 9 rows, equal bits", &r, 0);
    ls_free(all);
}

/* Our own kernel for float against the library. */
static void check_tensor(device *d, const row *r)
{
    cu_product p = product_of(d, r), q = p;
    const int64_t n = p.M * p.ldo;
    q.out = d->out2;
    if (p.epilogue == CU_GELU) q.aux = d->aux2;
    if (p.b_sums) q.b_sums = d->sums2;
    must(cu_gemm_run(d->g, &q, d->workspace));
    d->g->tensor = true;
    const int before = d->g->n_tensor;
    must(cu_gemm_run(d->g, &p, d->workspace));
    float *x = to_host(d, p.out, p.out_dt, n), *y = to_host(d, q.out, p.out_dt, n);
    const double off = farthest(x, y, n);
    judge(d, off <= 2e-5, d->g->n_tensor > before ? "6xBF16 kernel against library" : "(the library's own)", r, off);
    ls_free(x);
    ls_free(y);
    check_laws(d, r);
    d->g->tensor = false;
}

static void check_all(device *d, int64_t small)
{
    row r[32], odd[] = {{"odd", 77, 50257 / small, 65, 1, .tb = true},
                        {"odd", 131, 91, 77, 1, .bias = true},
                        {"odd", 131, 96, 77, 1, .bias = true, .epilogue = CU_GELU},
                        {"odd", 131, 96, 77, 1, .tb = true, .epilogue = CU_DGELU},
                        {"odd", 91, 131, 1001 / small, 1, .ta = true, .sums = true, .wide = true}};
    int n = small_rows(r, d->factor ? fp8_rows(r, 2048 / small) : step_rows(r, 2048 / small), small);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0] && !d->factor; i++) r[n++] = odd[i];
    for (int i = 0; i < n; i++) {
        if (d->factor) check_codes(d, &r[i]);
        check_fused(d, &r[i]);
        check_laws(d, &r[i]);
        if (!r[i].ta && !r[i].epilogue && !r[i].add && !d->factor) check_few(d, &r[i]);
        if (d->dt == LS_F32 && !d->g->tf32 && !d->factor && cu_gemm_f32_works()) check_tensor(d, &r[i]);
    }
}

/* ---- float products compared ------------------------------------------------------------------------------------- */

/* Numbers that fill() repeats. */
static float *block_of(double scale, uint64_t key)
{
    float *x = ls_alloc(BLOCK * sizeof *x);
    if (!x) exit(5);
    for (int64_t i = 0; i < BLOCK; i++) x[i] = (float)(ls_rng_normal(key, (uint64_t)i) * scale);
    return x;
}

typedef struct error {
    double rms, worst; /* of the root mean square of results; of sum |a||b| */
} error;

/* Of some elements of op(a) op(b), which is in d->out. */
static error error_of(const device *d, const cu_product *p, const float *a, const float *b)
{
    const int64_t n = p->K > 8192 ? 96 : 384;
    double squares = 0, results = 0, worst = 0;
    CU(cudaStreamSynchronize(d->stream));
    for (int64_t i = 0; i < n; i++) {
        const int64_t m = (int64_t)(ls_rng_u64(5, (uint64_t)(2 * i)) % (uint64_t)p->M);
        const int64_t c = (int64_t)(ls_rng_u64(5, (uint64_t)(2 * i + 1)) % (uint64_t)p->N);
        double sum = 0, size = 0;
        float got;
        for (int64_t k = 0; k < p->K; k++) {
            const double x = (double)a[(p->ta ? k * p->lda + m : m * p->lda + k) % BLOCK] *
                             (double)b[(p->tb ? c * p->ldb + k : k * p->ldb + c) % BLOCK];
            sum += x, size += fabs(x);
        }
        CU(cudaMemcpy(&got, (const float *)p->out + m * p->ldo + c, sizeof got, cudaMemcpyDeviceToHost));
        const double e = fabs((double)got - sum);
        squares += e * e, results += sum * sum;
        if (!(e / size <= worst)) worst = e / size;
    }
    return (error){sqrt(squares / results), worst};
}

enum { LIBRARY, KERNEL, TF32, WAYS };
static const struct {
    const char *name;
    bool tensor, tf32;
} ways[WAYS] = {
    [LIBRARY] = {"library", false, false}, [KERNEL] = {"kernel", true, false}, [TF32] = {"TF32", false, true}};

static void compare_fp32(device *d, cu_gemm *tf32, const options *o, int64_t R, const float *a, const float *b)
{
    row r[20];
    cu_gemm *own = d->g;
    double step[WAYS] = {0}, flop = 0;
    int n = step_rows(r, R);
    if (o->small > 1) n = small_rows(r, n, o->small);
    printf(
        "\nfloat, %lld rows%s: usec and TFLOP/s of each way; errors in 2^-24: root mean square of the result's, largest of sum |a||b|\n",
        (long long)R, o->deterministic ? ", deterministic" : "");
    printf("%-16s %6s %6s %6s %3s %6s", "product", "M", "N", "K", "n", "shares");
    for (int w = 0; w < WAYS; w++) printf("  %16s", ways[w].name);
    for (int w = 0; w < WAYS; w++) printf("  %18s", ways[w].name);
    printf("\n");
    for (int i = 0; i < n; i++) {
        const cu_product p = product_of(d, &r[i]);
        cu_product q = p; /* the product alone, for its error */
        error e[WAYS];
        q.bias = NULL, q.add = NULL, q.aux = NULL, q.b_sums = NULL, q.epilogue = CU_PLAIN;
        printf("%-16s %6lld %6lld %6lld %3lld %6d", r[i].what, (long long)p.M, (long long)p.N, (long long)p.K,
               (long long)r[i].count, gemm_f32_shares(&p));
        const double work = 2.0 * (double)p.M * (double)p.N * (double)p.K;
        flop += work * (double)r[i].count;
        for (int w = 0; w < WAYS; w++) {
            d->g = ways[w].tf32 ? tf32 : own;
            d->g->tensor = ways[w].tensor;
            must(cu_gemm_run(d->g, &p, d->workspace));
            const double ms = (double)time_of(d, &p, o->turns);
            step[w] += ms * (double)r[i].count;
            const int tune = (int)d->g->tune;
            d->g->tune = TUNE_OFF; /* its time is not printed */
            must(cu_gemm_run(d->g, &q, d->workspace));
            d->g->tune = tune;
            e[w] = error_of(d, &q, a, b);
            printf("  %9.1f %6.1f", ms * 1e3, work / ms * 1e-9);
        }
        for (int w = 0; w < WAYS; w++) printf("  %10.2f %7.2f", e[w].rms * 0x1p24, e[w].worst * 0x1p24);
        printf("\n");
        fflush(stdout);
        if (e[KERNEL].rms > 1.1 * e[LIBRARY].rms && e[KERNEL].rms > 4 * 0x1p-24) {
            printf("  BAD  the kernel's error is larger than the library's\n");
            d->failed = true;
        }
    }
    own->tensor = false;
    d->g = own;
    for (int w = 0; w < WAYS; w++)
        printf("%-10s all products of a step: %8.2f ms, %6.1f TFLOP/s, %.2f x the library\n", ways[w].name, step[w],
               flop / step[w] * 1e-9, step[LIBRARY] / step[w]);
}

static bool compare_all(const options *o)
{
    static const int64_t batches[] = {4, 8, 16, 32, 64};
    const int64_t seq = o->seq ? o->seq : 1024, most_rows = (o->batch ? o->batch : 64) * seq;
    const int64_t n = most_rows < CHUNK ? most_rows : CHUNK;
    int64_t most = most_rows * 4 * C;
    if (!cu_gemm_f32_works()) {
        fprintf(stderr, "--fp32 needs a Hopper GPU, and a build for it (LS_CUDA_ARCH with 90a)\n");
        return true;
    }
    if (n * VOCAB_PAD > most) most = n * VOCAB_PAD;
    if ((int64_t)VOCAB_PAD * C > most) most = (int64_t)VOCAB_PAD * C;
    if (o->small > 1) most = 1 << 22;
    device d = open_device(LS_F32, false, o->deterministic, most);
    float *a = block_of(1, 0), *b = block_of(0.03, 1); /* as open_device fills them */
    cu_gemm *tf32 = NULL;
    must(cu_gemm_open(&tf32, d.stream, true, o->deterministic));
    for (size_t i = 0; i < (o->batch ? 1 : sizeof batches / sizeof batches[0]); i++)
        compare_fp32(&d, tf32, o, (o->batch ? o->batch : batches[i]) * seq, a, b);
    const bool failed = d.failed;
    cu_gemm_close(&tf32);
    close_device(&d);
    ls_free(a);
    ls_free(b);
    return failed;
}

/* ---- the program -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    ls_dtype dt;
    bool tf32, fp8;
} types[] = {{"bf16", LS_BF16, false, false},
             {"f16", LS_F16, false, false},
             {"tf32", LS_F32, true, false},
             {"f32", LS_F32, false, false},
             {"fp8", LS_BF16, false, true}};

static bool read_options(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        int64_t *number = !strcmp(argv[i], "--batch")   ? &o->batch
                          : !strcmp(argv[i], "--seq")   ? &o->seq
                          : !strcmp(argv[i], "--turns") ? &o->turns
                          : !strcmp(argv[i], "--small")
                              ? &o->small /* shapes for a slow device: only the checks, tiny */
                              : NULL;
        if (!strcmp(argv[i], "--check")) o->check = true;
        else if (!strcmp(argv[i], "--deterministic")) o->deterministic = true;
        else if (!strcmp(argv[i], "--fp32")) o->fp32 = true;
        else if (!strcmp(argv[i], "--type") && i + 1 < argc) o->type = argv[++i];
        else if (!number || i + 1 >= argc || !ls_parse_i64(argv[++i], number) || *number < 1) return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static const int64_t usual[][2] = {{64, 1024}, {16, 512}, {4, 512}};
    options o = {.turns = 20, .small = 1};
    bool failed = false;
    char words[96];
    if (!read_options(argc, argv, &o)) {
        fprintf(
            stderr,
            "usage: cuda_gemm [--check | --fp32] [--batch B --seq T] [--type bf16|f16|tf32|f32|fp8] [--deterministic] [--turns N]\n");
        return 2;
    }
    if (o.fp32) return compare_all(&o) ? 1 : 0;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        if (o.type && strcmp(o.type, types[t].name)) continue;
        const int64_t R = o.batch ? o.batch * (o.seq ? o.seq : 1024) : 65536;
        int64_t most = (o.check && !o.batch ? 4096 : R) * 4 * C, logits = (R < CHUNK ? R : CHUNK) * VOCAB_PAD;
        if (!o.check && logits > most) most = logits;
        if ((int64_t)VOCAB_PAD * C * 2 > most) most = (int64_t)VOCAB_PAD * C * 2; /* dw in float over a 16-bit type */
        if (o.small > 1) most = 1 << 22;
        device d = open_device(types[t].dt, types[t].tf32, o.deterministic, most);
        if (types[t].fp8) use_fp8(&d);
        if (o.check) {
            printf("\n%s%s\n", types[t].name, o.deterministic ? ", deterministic" : "");
            check_all(&d, o.small);
        } else if (o.batch) {
            time_step(&d, &o, R, types[t].name);
        } else {
            for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
                time_step(&d, &o, usual[i][0] * usual[i][1], types[t].name);
        }
        cu_gemm_describe(d.g, d.dt, words, sizeof words);
        printf("%s\n", words);
        failed = failed || d.failed;
        close_device(&d);
    }
    return failed ? 1 : 0;
}
