/* test_cuda_gemm.c - products of compute/cuda/gemm.h on the emulated device: every option compared with sums in double, whatever the library
 * refuses to fuse; how algorithms are chosen, cached and checked.
 *
 * Error bound: a sum of K products in float is within K 2^-24 of sum |a||b|; the result is rounded to its type once, or twice where a part
 * was not fused (an argument of GELU that is rounded in memory changes the result by its slope, at most 1.13). */
/* ls-test: long */
#include "compute/compute.h"
#include "compute/cuda/gemm_impl.h"
#include "core/fs.h"
#include "core/str.h"
#include "cuda_numbers.h"
#include "test_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct option {
    int64_t M, N, K, pad, off;
    bool ta, tb, bias;
    int add;  /* 0 none, 1 in place, 2 another array */
    int sums; /* 0 none, 1 written, 2 added to */
    cu_epilogue epilogue;
    ls_dtype dt, out_dt;
} option;

typedef struct data {
    double *a, *b, *bias, *add, *aux, *sums; /* on the host, in double */
    int64_t n_a, n_b, n_out, lda, ldb, ldo;
    cu_product p;
} data;

static data make(const option *o, uint64_t seed)
{
    data d = {0};
    d.lda = (o->ta ? o->M : o->K) + o->pad;
    d.ldb = (o->tb ? o->K : o->N) + (o->sums ? 0 : o->pad);
    d.ldo = o->N + (o->epilogue == CU_PLAIN ? o->pad : 0);
    d.n_a = d.lda * (o->ta ? o->K : o->M);
    d.n_b = d.ldb * (o->tb ? o->N : o->K);
    d.n_out = d.ldo * o->M;
    d.a = num_normal(o->dt, d.n_a, ls_rng_key(seed, LS_RNG_TEST, 1, 0), 1);
    d.b = num_normal(o->dt, d.n_b, ls_rng_key(seed, LS_RNG_TEST, 2, 0), 1 / sqrt((double)o->K));
    d.bias = num_normal(o->dt, o->N, ls_rng_key(seed, LS_RNG_TEST, 3, 0), 1);
    d.add = num_normal(o->out_dt, d.n_out, ls_rng_key(seed, LS_RNG_TEST, 4, 0), 1);
    d.aux = num_normal(o->dt, o->M * o->N, ls_rng_key(seed, LS_RNG_TEST, 5, 0), 1);
    d.sums = num_normal(LS_F32, o->N, ls_rng_key(seed, LS_RNG_TEST, 6, 0), 1);
    d.p = (cu_product){.a = num_device(o->dt, d.a, d.n_a, o->off),
                       .b = num_device(o->dt, d.b, d.n_b, o->off),
                       .out = num_device(o->out_dt, d.add, d.n_out, o->off),
                       .M = o->M,
                       .N = o->N,
                       .K = o->K,
                       .lda = d.lda,
                       .ldb = d.ldb,
                       .ldo = d.ldo,
                       .ta = o->ta,
                       .tb = o->tb,
                       .dt = o->dt,
                       .out_dt = o->out_dt,
                       .epilogue = o->epilogue,
                       .b_sums_add = o->sums == 2};
    if (o->bias) d.p.bias = num_device(o->dt, d.bias, o->N, o->off);
    if (o->add) d.p.add = o->add == 1 ? d.p.out : num_device(o->out_dt, d.add, d.n_out, o->off);
    if (o->epilogue != CU_PLAIN) d.p.aux = num_device(o->dt, d.aux, o->M * o->N, o->off);
    if (o->sums) d.p.b_sums = num_device(LS_F32, d.sums, o->N, 0);
    return d;
}

static void drop(data *d, const option *o)
{
    num_free(o->dt, (void *)(uintptr_t)d->p.a, o->off);
    num_free(o->dt, (void *)(uintptr_t)d->p.b, o->off);
    num_free(o->dt, (void *)(uintptr_t)d->p.bias, o->off);
    if (o->add == 2) num_free(o->out_dt, (void *)(uintptr_t)d->p.add, o->off);
    num_free(o->out_dt, d->p.out, o->off);
    num_free(o->dt, d->p.aux, o->off);
    num_free(LS_F32, d->p.b_sums, 0);
    double *all[] = {d->a, d->b, d->bias, d->add, d->aux, d->sums};
    for (size_t i = 0; i < N_OF(all); i++) ls_free(all[i]);
}

static double step_of(ls_dtype dt) /* half a unit in the last place */
{
    return dt == LS_BF16 ? 0x1p-8 : dt == LS_F16 ? 0x1p-11 : 0x1p-24;
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double slope(double x)
{
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

static double at_a(const data *d, const option *o, int64_t m, int64_t k)
{
    return d->a[o->ta ? k * d->lda + m : m * d->lda + k];
}
static double at_b(const data *d, const option *o, int64_t k, int64_t n)
{
    return d->b[o->tb ? n * d->ldb + k : k * d->ldb + n];
}

static void near(double got, double want, double bound, const char *what, int64_t m, int64_t n, const option *o)
{
    if (fabs(got - want) <= bound) return;
    fail_msg(
        "%s (%lld,%lld) of M %lld N %lld K %lld ta %d tb %d %s>%s bias %d add %d sums %d epilogue %d pad %lld: %.9g, not %.9g",
        what, (long long)m, (long long)n, (long long)o->M, (long long)o->N, (long long)o->K, o->ta, o->tb,
        ls_dtype_word(o->dt), ls_dtype_word(o->out_dt), o->bias, o->add, o->sums, (int)o->epilogue, (long long)o->pad,
        got, want);
}

static void verify(const data *d, const option *o)
{
    double *out = num_host(o->out_dt, d->p.out, d->n_out);
    double *aux = o->epilogue == CU_GELU ? num_host(o->dt, d->p.aux, o->M * o->N) : NULL;
    double *sums = o->sums ? num_host(LS_F32, d->p.b_sums, o->N) : NULL;
    const double u = step_of(o->out_dt);
    for (int64_t n = 0; n < o->N; n++) {
        double s = 0, most = 0;
        for (int64_t m = 0; m < o->M; m++) {
            double v = 0, size = 0;
            for (int64_t k = 0; k < o->K; k++) {
                v += at_a(d, o, m, k) * at_b(d, o, k, n);
                size += fabs(at_a(d, o, m, k) * at_b(d, o, k, n));
            }
            if (o->bias) v += d->bias[n], size += fabs(d->bias[n]);
            double bound = (double)(o->K + 4) * 0x1p-24 * size + (o->bias ? u * (fabs(v) + fabs(v - d->bias[n])) : 0);
            if (aux) {
                near(aux[m * o->N + n], v, 2 * step_of(o->dt) * fabs(v) + bound + 1e-7, "aux", m, n, o);
                bound = 1.2 * (bound + 2 * step_of(o->dt) * fabs(v));
                v = gelu(v);
            } else if (o->epilogue == CU_DGELU) {
                const double f = slope(d->aux[m * o->N + n]);
                bound = bound * fabs(f) + u * fabs(v * f) + 2e-6 * fabs(v);
                v *= f;
            }
            const double last = v + (o->add ? d->add[m * d->ldo + n] : 0);
            near(out[m * d->ldo + n], last, bound + 2 * u * (fabs(v) + fabs(last)) + 1e-7, "out", m, n, o);
        }
        for (int64_t k = 0; sums && k < o->K; k++) s += at_b(d, o, k, n), most += fabs(at_b(d, o, k, n));
        if (sums && o->sums == 2) s += d->sums[n], most += fabs(d->sums[n]);
        if (sums) near(sums[n], s, (double)(o->K + 4) * 0x1p-24 * most + 1e-7, "sum", 0, n, o);
    }
    for (int64_t m = 0; m < o->M; m++) /* the padding between rows is unchanged */
        for (int64_t n = o->N; n < d->ldo; n++) assert_true(out[m * d->ldo + n] == d->add[m * d->ldo + n]);
    ls_free(out);
    ls_free(aux);
    ls_free(sums);
}

typedef struct bench {
    cudaStream_t stream;
    cu_gemm *g;
    void *workspace;
} bench;

static bench open_bench(bool tf32, bool deterministic)
{
    bench b = {0};
    CU(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    CU(cudaMalloc(&b.workspace, CU_GEMM_NBYTES));
    assert_int_equal(cu_gemm_open(&b.g, b.stream, tf32, deterministic), LS_OK);
    return b;
}

static void close_bench(bench *b)
{
    CU(cudaDeviceSynchronize());
    cu_gemm_close(&b->g);
    CU(cudaFree(b->workspace));
    CU(cudaStreamDestroy(b->stream));
}

static void try(bench *b, const option *o, uint64_t seed)
{
    data d = make(o, seed);
    assert_int_equal(cu_gemm_run(b->g, &d.p, b->workspace), LS_OK);
    verify(&d, o);
    drop(&d, o);
}

/* Every option, or one of `every` of them. */
static void every_option(uint32_t refuse, int every)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 7, 3}, {9, 16, 33}, {17, 24, 40}, {33, 50, 65}, {12, 64, 129}};
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
    bench b = open_bench(false, true);
    int n = (int)refuse;
    emu_lt_state()->refuse = refuse;
    for (size_t t = 0; t < 3; t++)
        for (int bits = 0; bits < 32; bits++)
            for (int add = 0; add < 3; add++)
                for (int sums = 0; sums < 3; sums++)
                    for (int e = CU_PLAIN; e <= CU_DGELU; e++, n++) {
                        const option o = {.ta = bits & 1,
                                          .tb = bits >> 1 & 1,
                                          .bias = bits >> 2 & 1,
                                          .dt = types[t],
                                          .out_dt = bits >> 3 & 1 ? LS_F32 : types[t],
                                          .pad = bits >> 4 & 1 ? 3 + 5 * (n % 2) : 0,
                                          .off = n % 5 == 4,
                                          .add = add,
                                          .sums = sums,
                                          .epilogue = (cu_epilogue)e,
                                          .M = shapes[n % 6][0],
                                          .N = shapes[n % 6][1],
                                          .K = shapes[n % 6][2]};
                        if ((sums && o.tb) || (e && (o.out_dt != o.dt || add == 1)) || n % every) continue;
                        try(&b, &o, (uint64_t)n);
                    }
    close_bench(&b);
    emu_lt_state()->refuse = 0;
}

static void every_option_matches_sums_in_double(void **state)
{
    (void)state;
    const int every = getenv("LS_TEST_ALL") ? 1 : 7; /* coprime to the numbers of shapes and of values of each option */
    every_option(0, 1);
    every_option(32 | 64, every);           /* GELU and its gradient are not fused      */
    every_option(4 | 256, every);           /* no bias, hence no GELU after a bias      */
    every_option(32 | 64 | 4 | 256, every); /* nothing but the product                  */
}

static void tf32_is_less_exact_and_wrong_use_fails(void **state)
{
    (void)state;
    bench b = open_bench(true, false);
    option o = {.M = 8, .N = 16, .K = 32, .dt = LS_F32, .out_dt = LS_F32};
    data d = make(&o, 1);
    assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_OK);
    double *out = num_host(LS_F32, d.p.out, d.n_out);
    double worst = 0;
    for (int64_t m = 0; m < o.M; m++)
        for (int64_t n = 0; n < o.N; n++) {
            double v = 0;
            for (int64_t k = 0; k < o.K; k++) v += at_a(&d, &o, m, k) * at_b(&d, &o, k, n);
            worst = fmax(worst, fabs(v - out[m * o.N + n]));
        }
    assert_true(worst > 1e-5 && worst < 5e-3); /* 10 bits of mantissa */
    d.p.epilogue = CU_GELU;
    assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_E_INTERNAL); /* no aux */
    d.p.M = 0;
    assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_OK);
    ls_free(out);
    drop(&d, &o);
    close_bench(&b);
}

/* ---- float products by our own kernel ---- */

static void tensor_products_match_sums_in_double(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{140, 72, 96}, {37, 132, 40}, {130, 20, 68}};
    setenv("LS_GEMM_FP32", "tensor", 1);
    bench b = open_bench(false, true);
    int n = 0, taken = 0;
    for (int bits = 0; bits < 8; bits++)
        for (int e = CU_PLAIN; e <= CU_DGELU; e++, n++) {
            option o = {.ta = bits & 1, .tb = bits >> 1 & 1, .bias = bits >> 2 & 1, .dt = LS_F32, .out_dt = LS_F32};
            o.epilogue = (cu_epilogue)e, o.add = e ? 2 * (n % 2) : n % 3, o.pad = n % 2 ? 4 : 0;
            o.M = shapes[n % 3][0], o.N = shapes[n % 3][1], o.K = shapes[n % 3][2];
            if (!o.tb) o.sums = n % 3, o.pad = o.sums ? 0 : o.pad;
            try(&b, &o, (uint64_t)n);
            taken += o.M % 4 == 0 || !o.ta; /* rows of a that 16-byte copies can read */
            assert_int_equal(b.g->n_tensor, taken);
        }
    assert_true(taken > 12 && taken < n);
    const option deep = {.M = 12, .N = 20, .K = 6000, .ta = true, .dt = LS_F32, .out_dt = LS_F32, .add = 1, .sums = 2};
    const cu_product wide = {.M = 65536, .N = 768, .K = 3072}, dwqkv = {.M = 768, .N = 2304, .K = 65536};
    const option least = {.M = LS_FEW_ROWS + 1, .N = 21, .K = 40, .dt = LS_F32, .out_dt = LS_F32, .tb = true};
    try(&b, &deep, 99);
    try(&b, &least, 98);
    taken += 2;
    assert_int_equal(b.g->n_tensor, taken);
    assert_true(gemm_f32_shares(&(cu_product){.M = 12, .N = 20, .K = 6000}) > 1); /* it had several */
    assert_int_equal(gemm_f32_shares(&wide), 1);
    assert_in_range(gemm_f32_shares(&dwqkv), 2, 9); /* partial sums fit into the workspace */
    cu_product side = {.a = b.workspace, .b = b.workspace, .M = 64, .N = 64, .K = 64, .lda = 64, .ldb = 64, .ldo = 64};
    side.dt = side.out_dt = LS_F32;
    assert_true(gemm_f32_takes(b.g, &side));
    side.K = 0;
    assert_false(gemm_f32_takes(b.g, &side));
    side.K = (int64_t)1 << 30; /* coordinates of tiles are int */
    assert_false(gemm_f32_takes(b.g, &side));
    side.K = 64, side.M = (int64_t)1 << 30;
    assert_false(gemm_f32_takes(b.g, &side));
    assert_int_equal(gemm_f32_shares(&(cu_product){.M = 1 << 29, .N = 1 << 20, .K = 1 << 20}), 1);
    /* the library's: few rows, an address or a stride that is not aligned, other types */
    const option not [] = {{.M = LS_FEW_ROWS, .N = 20, .K = 40, .dt = LS_F32, .out_dt = LS_F32},
                           {.M = 20, .N = 20, .K = 40, .off = 1, .dt = LS_F32, .out_dt = LS_F32},
                           {.M = 20, .N = 20, .K = 40, .pad = 3, .dt = LS_F32, .out_dt = LS_F32},
                           {.M = 20, .N = 24, .K = 40, .dt = LS_BF16, .out_dt = LS_F32}};
    for (size_t i = 0; i < N_OF(not ); i++) try(&b, &not [i], i);
    assert_int_equal(b.g->n_tensor, taken);
    char words[200];
    cu_gemm_describe(b.g, LS_F32, words, sizeof words);
    assert_non_null(strstr(words, "6xBF16"));
    cu_gemm_describe(b.g, LS_BF16, words, sizeof words);
    assert_null(strstr(words, "6xBF16"));
    close_bench(&b);
    cu_gemm *g = NULL; /* refused requests */
    assert_int_equal(cu_gemm_open(&g, NULL, true, false), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "--tf32"));
    setenv("LS_GEMM_FP32", "tensors", 1);
    assert_int_equal(cu_gemm_open(&g, NULL, false, false), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "use library or tensor"));
    assert_null(g);
    setenv("LS_GEMM_FP32", "library", 1);
    b = open_bench(false, true);
    try(&b, &deep, 100);
    assert_int_equal(b.g->n_tensor, 0);
    close_bench(&b);
    unsetenv("LS_GEMM_FP32");
}

/* ---- choosing ---- */

static char *folder;

static int with_folder(void **state)
{
    (void)state;
    folder = test_dir();
    setenv("LOCKSTEP_CACHE", folder, 1);
    setenv("LS_GEMM_TUNE", "1", 1);
    *emu_lt_state() = (emu_lt){0};
    return 0;
}

static int without_folder(void **state)
{
    (void)state;
    unsetenv("LOCKSTEP_CACHE");
    unsetenv("LS_GEMM_TUNE");
    *emu_lt_state() = (emu_lt){0};
    test_dir_close(folder);
    return 0;
}

/* ---- few rows ---- */

/* Up to LS_FEW_ROWS rows are computed like a single row, whichever number of rows is used first. */
static void few_rows(const option *all, bool up)
{
    bench b = open_bench(false, false);
    const size_t size = ls_dtype_nbytes(all->out_dt);
    data d = make(all, 3);
    double *each[LS_FEW_ROWS + 1];
    for (int64_t i = 1; i <= LS_FEW_ROWS; i++) {
        cu_product p = d.p;
        p.M = up ? i : LS_FEW_ROWS + 1 - i;
        CU(cudaMemset(p.out, 0, (size_t)d.n_out * size));
        assert_int_equal(cu_gemm_run(b.g, &p, b.workspace), LS_OK);
        each[p.M] = num_host(all->out_dt, p.out, p.M * d.ldo);
    }
    for (int64_t m = 1; m <= LS_FEW_ROWS; m++) {
        assert_memory_equal(each[m], each[LS_FEW_ROWS], (size_t)(m * d.ldo) * sizeof *each[m]);
        if (m < LS_FEW_ROWS) ls_free(each[m]);
    }
    ls_free(each[LS_FEW_ROWS]);
    assert_int_equal(b.g->n_timed + b.g->n_found + b.g->n_proposed, 1); /* one choice for all of them */
    drop(&d, all);
    option o = *all; /* the values themselves, with and without accumulation */
    for (o.M = 1; o.M <= LS_FEW_ROWS; o.M += 4)
        for (o.add = 0; o.add < 3; o.add++) try(&b, &o, (uint64_t)o.M);
    close_bench(&b);
}

static void few_rows_share_one_algorithm(void **state)
{
    (void)state;
    static const struct {
        int first[2], from[2], to[2];
        bool late;
    } lists[] = {
        {{0}, {0}, {0}, false},                                 /* one algorithm for all numbers of rows         */
        {{EMU_LT_SPLIT, EMU_LT_PLAIN}, {2, 0}, {9, 0}, false},  /* the first does not support one row            */
        {{EMU_LT_SPLIT, EMU_LT_PLAIN}, {1, 0}, {8, 0}, false},  /* the first does not support nine rows          */
        {{EMU_LT_SPLIT, EMU_LT_PLAIN}, {2, 1}, {9, 1}, false},  /* none supports every number of rows            */
        {{EMU_LT_SPLIT, EMU_LT_PLAIN}, {2, 0}, {9, 0}, true},   /* accepted for one row, then fails to start     */
        {{EMU_LT_SPLIT}, {1}, {4}, true},                       /* the same for five and more, with no other one */
        {{EMU_LT_BROKEN, EMU_LT_SPLIT}, {0, 1}, {0, 1}, false}, /* accepted, and always fails to start           */
    };
    const option shapes[] = {
        {.M = LS_FEW_ROWS, .N = 40, .K = 70, .bias = true, .dt = LS_BF16, .out_dt = LS_BF16},
        {.M = LS_FEW_ROWS, .N = 91, .K = 77, .bias = true, .dt = LS_BF16, .out_dt = LS_BF16},
        {.M = LS_FEW_ROWS, .N = 37, .K = 21, .pad = 3, .tb = true, .dt = LS_F16, .out_dt = LS_F32},
    };
    const option gelu = {.M = 4, .N = 48, .K = 21, .bias = true, .dt = LS_BF16, .out_dt = LS_BF16, .epilogue = CU_GELU};
    for (int tune = 0; tune < 2; tune++)
        for (size_t l = 0; l < N_OF(lists); l++) {
            emu_lt *lt = emu_lt_state();
            *lt = (emu_lt){0};
            for (int i = 0; i < 2; i++) {
                lt->first[i] = lists[l].first[i];
                lt->cols[i].from = lists[l].from[i], lt->cols[i].to = lists[l].to[i], lt->cols[i].late = lists[l].late;
            }
            setenv("LS_GEMM_TUNE", tune ? "again" : "0", 1);
            for (size_t s = 0; s < N_OF(shapes); s++) few_rows(&shapes[s], true), few_rows(&shapes[s], false);
            bench b = open_bench(false, false);
            try(&b, &gelu, 1);
            close_bench(&b);
            lt->refuse = 32;
            b = open_bench(false, false);
            try(&b, &gelu, 2);
            close_bench(&b);
        }
}

/* A choice from the file is used for few rows only if it supports every number of them. */
static void a_cached_algorithm_must_fit_all_few_rows(void **state)
{
    (void)state;
    emu_lt *lt = emu_lt_state();
    const option nine = {.M = 9, .N = 91, .K = 77, .dt = LS_BF16, .out_dt = LS_BF16};
    option one = nine;
    lt->first[0] = EMU_LT_SPLIT, lt->first[1] = EMU_LT_PLAIN;
    lt->cols[1].from = lt->cols[1].to = 20; /* does not support nine rows */
    bench b = open_bench(false, true);
    try(&b, &nine, 1);
    assert_int_equal(b.g->last.algo[0], EMU_LT_SPLIT);
    close_bench(&b);
    lt->cols[0].from = 2, lt->cols[0].to = 9,
    lt->cols[1].to = 0; /* as if it had been chosen without a check with one row */
    one.M = 1;
    for (int again = 0; again < 2; again++) {
        b = open_bench(false, true);
        try(&b, again ? &one : &nine, 2);
        assert_int_equal(b.g->last.algo[0], EMU_LT_PLAIN);
        assert_int_equal(b.g->n_found, again);
        close_bench(&b);
    }
    lt->cols[1].from = lt->cols[1].to = 1; /* that rows are computed one by one is kept in the file, too */
    for (int again = 0; again < 2; again++) {
        option other = again ? one : nine;
        other.N = 93;
        b = open_bench(false, true);
        try(&b, &other, 3);
        assert_true(b.g->last.fused & GEMM_ROWS);
        assert_int_equal(b.g->n_found, again);
        close_bench(&b);
    }
}

/* An algorithm that is proposed and then refused is skipped, also when nothing is measured. */
static void a_refused_proposal_is_skipped(void **state)
{
    (void)state;
    const option o = {.M = 20, .N = 24, .K = 30, .dt = LS_BF16, .out_dt = LS_F32, .add = 1};
    setenv("LS_GEMM_TUNE", "0", 1);
    memcpy(emu_lt_state()->first, (int[8]){EMU_LT_BROKEN, EMU_LT_SPLIT}, sizeof emu_lt_state()->first);
    bench b = open_bench(false, true);
    try(&b, &o, 1);
    assert_int_equal(b.g->last.algo[0], EMU_LT_SPLIT);
    try(&b, &o, 2);
    close_bench(&b);
    emu_lt_state()->first[1] = 0;
    b = open_bench(false, true);
    data d = make(&o, 3);
    assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_E_DEVICE);
    assert_non_null(strstr(ls_err_words(), "every form of a product M 20"));
    drop(&d, &o);
    close_bench(&b);
}

/* ---- measuring ---- */

static const option dw = {.M = 24, .N = 40, .K = 50, .ta = true, .dt = LS_BF16, .out_dt = LS_F32, .add = 1, .sums = 2};

/* Measuring does not change results that are accumulated, and leaks no memory. */
static void measuring_changes_no_result(void **state)
{
    (void)state;
    bench b = open_bench(false, false);
    const int before = emu_count().allocations;
    data d = make(&dw, 9);
    const int made = emu_count().allocations;
    assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_OK);
    assert_int_equal(emu_count().allocations, made);
    assert_int_equal(emu_count().events, 0);
    verify(&d, &dw);
    assert_int_equal(b.g->n_timed, 1);
    assert_true(b.g->last.usec > 0);
    drop(&d, &dw);
    assert_int_equal(emu_count().allocations, before);
    /* the same shape without accumulation: the same choice, and the library is not asked again */
    option plain = dw;
    const cu_gemm_choice was = b.g->last;
    const int asked = emu_lt_state()->n_asked;
    plain.add = 0, plain.sums = 1;
    try(&b, &plain, 10);
    assert_int_equal(emu_lt_state()->n_asked, asked);
    assert_memory_equal(was.algo, b.g->last.algo, sizeof was.algo);
    /* no memory for a measurement: the first proposal is used */
    option other = dw;
    other.K = 51;
    d = make(&other, 11);
    emu_fail("cudaMalloc", cudaErrorMemoryAllocation, 0);
    assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_OK);
    verify(&d, &other);
    assert_int_equal(b.g->n_proposed, 1);
    assert_true(b.g->last.usec == 0);
    drop(&d, &other);
    close_bench(&b);
}

static void choices_are_kept_in_the_cache_file(void **state)
{
    (void)state;
    bench b = open_bench(false, true), c;
    try(&b, &dw, 1);
    char *path = ls_strdup(cu_gemm_cache_path(b.g->cache)), *text = NULL;
    const cu_gemm_choice chosen = b.g->last;
    size_t n;
    assert_int_equal(b.g->n_timed, 1);
    close_bench(&b);

    c = open_bench(false, true); /* another worker, another run */
    try(&c, &dw, 2);
    assert_int_equal(c.g->n_timed, 0);
    assert_int_equal(c.g->n_found, 1);
    assert_memory_equal(chosen.algo, c.g->last.algo, sizeof chosen.algo);
    close_bench(&c);

    c = open_bench(false, false); /* not deterministic: another key */
    try(&c, &dw, 2);
    assert_int_equal(c.g->n_timed, 1);
    close_bench(&c);

    assert_int_equal(ls_fs_read(path, &text, &n), LS_OK); /* invalid lines are ignored, the others are kept */
    char *broken = ls_asprintf("%sgarbage 1 2 3\n12 13", text);
    assert_int_equal(ls_fs_write(path, broken, strlen(broken)), LS_OK);
    c = open_bench(false, true);
    try(&c, &dw, 3);
    assert_int_equal(c.g->n_found, 1);
    close_bench(&c);
    ls_free(broken);

    ls_str strange = {0}; /* an algorithm that the library does not know: measured again */
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        char *word = line;
        for (int k = 0; k < 10 && word; k++) word = memchr(word + 1, ' ', (size_t)(end - word));
        ls_str_addn(&strange, line, (size_t)((word && line != text ? word : end) - line));
        if (word && line != text) ls_str_add(&strange, " 63 0 0 0 0 0 0 0");
        ls_str_addc(&strange, '\n');
    }
    assert_int_equal(ls_fs_write(path, strange.data, strange.len), LS_OK);
    c = open_bench(false, true);
    try(&c, &dw, 4);
    assert_int_equal(c.g->n_timed, 1);
    assert_memory_not_equal(c.g->last.algo, &(uint64_t){0x63}, sizeof(uint64_t));
    close_bench(&c);
    ls_str_fini(&strange);
    setenv("LS_GEMM_TUNE", "again", 1);
    c = open_bench(false, false);
    try(&c, &dw, 4);
    assert_int_equal(c.g->n_timed, 1);
    close_bench(&c);
    setenv("LS_GEMM_TUNE", "0", 1);
    c = open_bench(false, true);
    try(&c, &dw, 5);
    assert_int_equal(c.g->n_proposed, 1);
    assert_null(cu_gemm_cache_path(c.g->cache));
    close_bench(&c);
    ls_free(text);
    ls_free(path);
}

/* An algorithm that breaks a rule of determinism is not chosen, however fast it is; one that is proposed and then refused is skipped. */
static void an_algorithm_that_breaks_a_rule_never_wins(void **state)
{
    (void)state;
    static const int lists[][8] = {{EMU_LT_UNLAWFUL, EMU_LT_SPLIT},
                                   {EMU_LT_UNSTEADY, EMU_LT_PLAIN},
                                   {EMU_LT_BROKEN, EMU_LT_UNLAWFUL, EMU_LT_UNSTEADY, EMU_LT_SPLIT}};
    static const int winner[] = {EMU_LT_SPLIT, EMU_LT_PLAIN, EMU_LT_SPLIT};
    for (size_t i = 0; i < N_OF(lists); i++) {
        bench b = open_bench(false, true);
        option o = dw;
        o.M += (int64_t)i;
        memcpy(emu_lt_state()->first, lists[i], sizeof lists[i]);
        try(&b, &o, i);
        assert_int_equal(b.g->last.algo[0], winner[i]);
        /* a product that is added afterwards and a product that is accumulated give equal bits */
        data d = make(&o, 20 + i);
        cu_product p = d.p;
        p.add = NULL, p.b_sums_add = false;
        assert_int_equal(cu_gemm_run(b.g, &p, b.workspace), LS_OK);
        double *one = num_host(LS_F32, p.out, d.n_out);
        p.add = p.out;
        assert_int_equal(cu_gemm_run(b.g, &p, b.workspace), LS_OK);
        double *two = num_host(LS_F32, p.out, d.n_out);
        for (int64_t k = 0; k < d.n_out; k++) assert_true(two[k] == 2 * one[k]);
        ls_free(one);
        ls_free(two);
        drop(&d, &o);
        close_bench(&b);
    }
    /* an in-place algorithm is allowed only without determinism */
    memcpy(emu_lt_state()->first, (int[8]){EMU_LT_INPLACE}, sizeof emu_lt_state()->first);
    bench b = open_bench(false, true);
    option o = dw;
    o.M += 10;
    data d = make(&o, 40);
    assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_E_DEVICE);
    drop(&d, &o);
    close_bench(&b);
    b = open_bench(false, false);
    try(&b, &o, 41);
    assert_int_equal(b.g->last.algo[0], EMU_LT_INPLACE);
    close_bench(&b);
}

/* While a stream is captured, nothing is measured. The next call outside of the capture measures, except that a deterministic worker keeps its choice. */
static void nothing_is_measured_during_capture(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        bench b = open_bench(false, deterministic);
        option o = dw;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        o.K += 3;
        data d = make(&o, 50);
        CU(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
        assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_OK);
        CU(cudaStreamEndCapture(b.stream, &graph));
        assert_int_equal(b.g->n_timed, 0);
        CU(cudaGraphInstantiateWithFlags(&exec, graph, 0));
        CU(cudaGraphLaunch(exec, b.stream));
        verify(&d, &o);
        drop(&d, &o);
        try(&b, &o, 51);
        assert_int_equal(b.g->n_timed, !deterministic);
        CU(cudaGraphExecDestroy(exec));
        CU(cudaGraphDestroy(graph));
        close_bench(&b);
    }
}

/* Workers that use a shape for the first time at the same time all take the choice of the first one. */
static void workers_agree_on_one_choice(void **state)
{
    (void)state;
    enum { WORKERS = 4, SHAPES = 5 };
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    for (int w = 0; w < WORKERS; w++) {
        if (fork()) continue;
        cu_gemm_cache *c = NULL;
        uint64_t chosen[SHAPES] = {0};
        bool ok = cu_gemm_cache_open(&c, "a GPU, 132", 7, true) == LS_OK;
        for (int k = 0; ok && k < SHAPES; k++) {
            const cu_gemm_key key = {.M = k};
            cu_gemm_choice mine = {.algo = {(uint64_t)getpid()}, .usec = 1};
            ok = cu_gemm_cache_lock(c, 20) == LS_OK;
            const cu_gemm_choice *there = cu_gemm_cache_filed(c, &key);
            if (there) mine = *there;
            else {
                usleep(2000); /* measuring */
                ok = ok && cu_gemm_cache_keep(c, &key, &mine) == LS_OK;
            }
            cu_gemm_cache_unlock(c);
            chosen[k] = mine.algo[0];
        }
        ok = ok && write(pipes[1], chosen, sizeof chosen) == (ssize_t)sizeof chosen;
        _exit(ok ? 0 : 1);
    }
    uint64_t first[SHAPES], other[SHAPES];
    for (int w = 0; w < WORKERS; w++) {
        int status = 0;
        assert_true(wait(&status) > 0 && status == 0);
        assert_int_equal(read(pipes[0], w ? other : first, sizeof first), sizeof first);
        if (w) assert_memory_equal(first, other, sizeof first);
    }
    close(pipes[0]);
    close(pipes[1]);
    /* waiting for a lock that is not released ends with an error */
    cu_gemm_cache *a = NULL, *b = NULL;
    assert_int_equal(cu_gemm_cache_open(&a, "a GPU, 132", 7, true), LS_OK);
    assert_int_equal(cu_gemm_cache_open(&b, "a GPU, 132", 7, true), LS_OK);
    assert_int_equal(cu_gemm_cache_lock(a, 1), LS_OK);
    assert_int_equal(cu_gemm_cache_lock(b, 0.05), LS_E_DEVICE);
    cu_gemm_cache_close(&a);
    assert_int_equal(cu_gemm_cache_lock(b, 1), LS_OK);
    cu_gemm_cache_close(&b);
}

/* The cache of the emulated device, opened as in another process. */
static cu_gemm_cache *other_cache(void)
{
    cu_gemm_cache *c = NULL;
    struct cudaDeviceProp gpu;
    char name[300];
    CU(cudaGetDeviceProperties(&gpu, 0));
    snprintf(name, sizeof name, "%s %d", gpu.name, gpu.multiProcessorCount);
    assert_int_equal(cu_gemm_cache_open(&c, name, cublasLtGetVersion(), true), LS_OK);
    return c;
}

typedef struct visitor {
    cu_gemm_cache *cache;
    const cu_gemm_key *key; /* to write, or NULL */
    ls_status got;
} visitor;

static void visit(void *arg)
{
    visitor *v = arg;
    const cu_gemm_choice split = {.algo = {EMU_LT_SPLIT}, .usec = 1};
    v->got = cu_gemm_cache_lock(v->cache, 5);
    if (v->got == LS_OK && v->key) v->got = cu_gemm_cache_keep(v->cache, v->key, &split);
    cu_gemm_cache_unlock(v->cache);
}

/* A measurement waits for what was queued before it, such as a collective that waits for a peer, and the peer may need the lock of the
 * file: if the lock were held, tensor parallelism with new shapes would deadlock. What the peer writes during the measurement is used. */
static void measuring_does_not_hold_the_lock(void **state)
{
    (void)state;
    const option o = {.M = 20, .N = 24, .K = 30, .dt = LS_BF16, .out_dt = LS_F32};
    memcpy(emu_lt_state()->first, (int[8]){EMU_LT_PLAIN, EMU_LT_SPLIT}, sizeof emu_lt_state()->first);
    for (int writes = 0; writes < 2; writes++) {
        bench b = open_bench(false, true);
        option now = o;
        now.M += writes;
        data d = make(&now, 60);
        const cu_gemm_key key = {now.M, now.N, now.K, d.lda, d.ldb, d.ldo, 0x54}; /* bf16 to float, deterministic */
        visitor v = {.cache = other_cache(), .key = writes ? &key : NULL, .got = LS_E_COMM};
        CU(cudaLaunchHostFunc(b.stream, visit, &v));
        assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_OK);
        verify(&d, &now);
        assert_int_equal(v.got, LS_OK);
        assert_int_equal(b.g->n_timed, !writes);
        assert_int_equal(b.g->n_found, writes);
        if (writes) assert_int_equal(b.g->last.algo[0], EMU_LT_SPLIT);
        cu_gemm_cache_close(&v.cache);
        drop(&d, &now);
        close_bench(&b);
    }
}

/* Nothing can be measured, and the first launch of a kernel waits for the device: the lock is not held meanwhile. */
static void a_proposal_does_not_hold_the_lock(void **state)
{
    (void)state;
    setenv("LS_EMU_SYNC", "launch", 1);
    bench b = open_bench(false, true);
    data d = make(&dw, 60);
    visitor v = {.cache = other_cache(), .got = LS_E_COMM};
    CU(cudaLaunchHostFunc(b.stream, visit, &v));
    emu_fail("cudaMalloc", cudaErrorMemoryAllocation, 0);
    assert_int_equal(cu_gemm_run(b.g, &d.p, b.workspace), LS_OK);
    verify(&d, &dw);
    assert_int_equal(b.g->n_proposed, 1);
    assert_int_equal(v.got, LS_OK);
    cu_gemm_cache_close(&v.cache);
    drop(&d, &dw);
    close_bench(&b);
    unsetenv("LS_EMU_SYNC");
}

/* If the lock or the file cannot be opened (it belongs to another user) or written, a deterministic worker does not use its own measurement, which
 * the other workers do not know. */
static void an_unshared_measurement_is_not_used(void **state)
{
    (void)state;
    for (int writes = 0; writes < 2; writes++) {
        bench b = open_bench(false, true);
        const char *file = cu_gemm_cache_path(b.g->cache);
        char *path = writes ? ls_strdup(file) : ls_asprintf("%.*s.lock", (int)strlen(file) - 4, file);
        assert_int_equal(ls_fs_remove_tree(path), LS_OK);
        assert_int_equal(mkdir(path, 0755), 0);
        try(&b, &dw, 1);
        assert_int_equal(b.g->n_timed, 0);
        assert_int_equal(b.g->n_proposed, 1);
        assert_true(b.g->last.usec == 0);
        assert_null(cu_gemm_cache_path(b.g->cache));
        assert_int_equal(ls_fs_remove_tree(path), LS_OK);
        ls_free(path);
        close_bench(&b);
    }
}

/* Where no file can be created, a deterministic worker measures nothing; another worker does. */
static void a_deterministic_worker_without_cache_measures_nothing(void **state)
{
    (void)state;
    setenv("LOCKSTEP_CACHE", "/proc/nowhere", 1);
    bench b = open_bench(false, true);
    try(&b, &dw, 1);
    assert_int_equal(b.g->n_proposed, 1);
    close_bench(&b);
    b = open_bench(false, false);
    try(&b, &dw, 1);
    assert_int_equal(b.g->n_timed, 1);
    char words[200];
    cu_gemm_describe(b.g, LS_BF16, words, sizeof words);
    assert_non_null(strstr(words, "1 measured"));
    close_bench(&b);
    setenv("LOCKSTEP_CACHE", folder, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_matches_sums_in_double),
        cmocka_unit_test(tf32_is_less_exact_and_wrong_use_fails),
        cmocka_unit_test(tensor_products_match_sums_in_double),
        cmocka_unit_test_setup_teardown(few_rows_share_one_algorithm, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(a_cached_algorithm_must_fit_all_few_rows, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(a_refused_proposal_is_skipped, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(measuring_changes_no_result, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(choices_are_kept_in_the_cache_file, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(an_algorithm_that_breaks_a_rule_never_wins, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(nothing_is_measured_during_capture, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(workers_agree_on_one_choice, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(measuring_does_not_hold_the_lock, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(a_proposal_does_not_hold_the_lock, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(an_unshared_measurement_is_not_used, with_folder, without_folder),
        cmocka_unit_test_setup_teardown(a_deterministic_worker_without_cache_measures_nothing, with_folder,
                                        without_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
