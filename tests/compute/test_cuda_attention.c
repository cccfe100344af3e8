/* test_cuda_attention.c - attention on the emulated device compared with the equations in double: odd shapes, all types, dropout, sharded heads.
 *
 * Bounds, relative to the largest number of an array: p and ds are rounded to the type before their products, and results once more, so a few
 * units in the last place (bf16 2^-9, f16 2^-12); float32 is computed as three TF32 products with float sums. The bounds are about three
 * times the measured errors. Before 8.0 float32, also with TF32, is computed by float operations, and there is no bf16. */
/* ls-test: long */
/* ls-test: cards */
#include "cmocka_all.h"
#include "compute/cuda/attention.h"
#include "compute/cuda/kernels/flash.h"
#include "compute/cuda/kernels/kernels.h"
#include "fake_cuda/runtime.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- 16-bit numbers ---- */

static uint16_t to_half(double x, int mantissa, int bias) /* nearest even; no infinities here */
{
    int e;
    const uint16_t sign = x < 0 ? 0x8000 : 0;
    x = fabs(x);
    if (x == 0) return sign;
    frexp(x, &e);
    if (e - 1 < 1 - bias) e = 2 - bias; /* below the normal numbers */
    const double unit = ldexp(1.0, e - 1 - mantissa), steps = nearbyint(x / unit);
    return (uint16_t)(sign + (uint32_t)(steps + ldexp((double)(e - 2 + bias), mantissa)));
}

static double of_half(uint16_t h, int mantissa, int bias)
{
    const int e = (h & 0x7fff) >> mantissa, m = h & ((1 << mantissa) - 1);
    const double x = e ? ldexp(1.0 + ldexp(m, -mantissa), e - bias) : ldexp(m, 1 - bias - mantissa);
    return h & 0x8000 ? -x : x;
}

static void put(void *x, ls_dtype dt, int64_t i, double v)
{
    if (dt == LS_F32) ((float *)x)[i] = (float)v;
    else ((uint16_t *)x)[i] = dt == LS_BF16 ? to_half(v, 7, 127) : to_half(v, 10, 15);
}

static double get(const void *x, ls_dtype dt, int64_t i)
{
    if (dt == LS_F32) return (double)((const float *)x)[i];
    const uint16_t h = ((const uint16_t *)x)[i];
    return dt == LS_BF16 ? of_half(h, 7, 127) : of_half(h, 10, 15);
}

/* ---- one problem: arrays on the host and on the device ---- */

enum { QKV, Y, LSE, DY, DQKV, N_ARRAY };

typedef struct problem {
    int64_t B, T, H, D, n[N_ARRAY];
    ls_dtype dt;
    ls_drop drop;
    void *host[N_ARRAY], *dev[N_ARRAY], *scratch;
    double *want[N_ARRAY];
} problem;

#define GUARD 64 /* elements after every array, which must not change */

static ls_dtype type_of(const problem *p, int a)
{
    return a == LSE ? LS_F32 : p->dt;
}

static size_t room_of(const problem *p, int a)
{
    return (size_t)(p->n[a] + GUARD) * ls_dtype_nbytes(type_of(p, a));
}

static void make(problem *p, uint64_t key)
{
    const int64_t R = p->B * p->T, C = p->H * p->D;
    const int64_t n[N_ARRAY] = {3 * R * C, R * C, R * p->H, R * C, 3 * R * C};
    for (int a = 0; a < N_ARRAY; a++) {
        p->n[a] = n[a];
        p->host[a] = ls_alloc(room_of(p, a));
        p->want[a] = ls_alloc((size_t)n[a] * sizeof(double));
        assert_non_null(p->host[a]);
        assert_non_null(p->want[a]);
        memset(p->host[a], 0x7b, room_of(p, a));
        assert_int_equal(cudaMalloc(&p->dev[a], room_of(p, a)), 0);
        for (int64_t i = 0; i < n[a] && (a == QKV || a == DY); i++) {
            put(p->host[a], p->dt, i, ls_rng_normal(key + (uint64_t)a, (uint64_t)i));
            p->want[a][i] = get(p->host[a], p->dt, i);
        }
        assert_int_equal(cudaMemcpy(p->dev[a], p->host[a], room_of(p, a), cudaMemcpyHostToDevice), 0);
    }
}

static void drop_all(problem *p)
{
    for (int a = 0; a < N_ARRAY; a++) {
        ls_free(p->host[a]), ls_free(p->want[a]);
        cudaFree(p->dev[a]);
    }
    cudaFree(p->scratch);
}

/* ---- the equations ---- */

static double factor(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const ls_drop d = p->drop;
    if (!(d.p > 0)) return 1;
    const int64_t row = ((d.n_head ? b * d.n_head + d.head : b * p->H) + h) * p->T + i;
    const uint64_t key = d.at ? ls_rng_key(d.at->drop_key, LS_RNG_DROPOUT, d.unit, d.site) : d.key;
    const uint32_t limit = (uint32_t)ceil((double)d.p * 4294967296.0);
    return ls_rng_u32(key, (uint32_t)(row * p->T + j)) >= limit ? 1.0 / (1.0 - (double)d.p) : 0;
}

static void reference(problem *p)
{
    const int64_t T = p->T, H = p->H, D = p->D, C = H * D, ld = 3 * C;
    const double *x = p->want[QKV], *dys = p->want[DY], scale = 1 / sqrt((double)D);
    double *y = p->want[Y], *dx = p->want[DQKV], *s = ls_alloc((size_t)T * 2 * sizeof *s), *dp = s + T;
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < T; i++) {
                const int64_t q = (b * T + i) * ld + h * D, k = b * T * ld + C + h * D, o = (b * T + i) * C + h * D;
                double top = -INFINITY, sum = 0, mean = 0;
                for (int64_t j = 0; j <= i; j++) {
                    s[j] = dp[j] = 0;
                    for (int64_t d = 0; d < D; d++) {
                        s[j] += scale * x[q + d] * x[k + j * ld + d];
                        dp[j] += dys[o + d] * x[k + C + j * ld + d];
                    }
                    dp[j] *= factor(p, b, h, i, j);
                    if (s[j] > top) top = s[j];
                }
                for (int64_t j = 0; j <= i; j++) sum += exp(s[j] - top);
                p->want[LSE][(b * H + h) * T + i] = top + log(sum);
                for (int64_t j = 0; j <= i; j++) s[j] = exp(s[j] - top) / sum, mean += s[j] * dp[j];
                for (int64_t j = 0; j <= i; j++) {
                    const double kept = s[j] * factor(p, b, h, i, j), ds = scale * s[j] * (dp[j] - mean);
                    for (int64_t d = 0; d < D; d++) {
                        y[o + d] += kept * x[k + C + j * ld + d];
                        dx[q + d] += ds * x[k + j * ld + d];
                        dx[k + j * ld + d] += ds * x[q + d];
                        dx[k + C + j * ld + d] += kept * dys[o + d];
                    }
                }
            }
    ls_free(s);
}

/* ---- running and comparing ---- */

static void run(problem *p, bool tf32)
{
    cu_attention *a = NULL;
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreate(&stream), 0);
    assert_int_equal(cu_attention_open(&a, stream, p->dt, true, tf32, "flash"), LS_OK);
    if (!p->scratch)
        assert_int_equal(cudaMalloc(&p->scratch, cu_attention_scratch(a, p->B, p->T, p->H, p->D, true)), 0);
    cu_attention_job j = {.y = p->dev[Y],
                          .dqkv = p->dev[DQKV],
                          .lse = p->dev[LSE],
                          .qkv = p->dev[QKV],
                          .dy = p->dev[DY],
                          .B = p->B,
                          .T = p->T,
                          .H = p->H,
                          .D = p->D,
                          .drop = p->drop,
                          .scratch = p->scratch};
    if (cu_attention_run(a, false, &j) != LS_OK || cu_attention_run(a, true, &j) != LS_OK)
        fail_msg("%s", ls_err_words());
    assert_int_equal(cudaStreamSynchronize(stream), 0);
    for (int i = 0; i < N_ARRAY; i++)
        assert_int_equal(cudaMemcpy(p->host[i], p->dev[i], room_of(p, i), cudaMemcpyDeviceToHost), 0);
    cu_attention_close(&a);
    cudaStreamDestroy(stream);
}

/* The largest difference as a share of the largest number; also checks that the guard after the array is unchanged. */
static double off(const problem *p, int a)
{
    const size_t used = (size_t)p->n[a] * ls_dtype_nbytes(type_of(p, a));
    double most = 1e-30, error = 0;
    for (size_t i = used; i < room_of(p, a); i++) assert_int_equal(((unsigned char *)p->host[a])[i], 0x7b);
    for (int64_t i = 0; i < p->n[a]; i++) {
        const double v = get(p->host[a], type_of(p, a), i), w = p->want[a][i];
        if (!isfinite(v)) return INFINITY;
        if (fabs(w) > most) most = fabs(w);
        if (fabs(v - w) > error) error = fabs(v - w);
    }
    return a == LSE ? error : error / (most > 1e-3 ? most : 1e-3);
}

static const struct {
    ls_dtype dt;
    bool tf32;
    double y, lse, dqkv;
} kinds[] = {{LS_BF16, false, 8e-3, 1e-5, 1.2e-2},
             {LS_F16, false, 1e-3, 1e-5, 1.5e-3},
             {LS_F32, false, 2e-6, 3e-6, 4e-6},
             {LS_F32, true, 3e-3, 5e-3, 4e-3}};

/* Whether the card has it; with one that the environment names, the short form of the test has a type once. */
static bool here(int kind)
{
    const ls_card *card = cu_card();
    assert_non_null(card);
    return (kinds[kind].dt != LS_BF16 || card->bf16) && (!kinds[kind].tf32 || card->mma >= 80);
}

static bool brief(void)
{
    return getenv("LS_EMU_GPU") && !getenv("LS_TEST_ALL");
}

static void check(problem *p, int kind, const char *what)
{
    const double y = off(p, Y), lse = off(p, LSE), dqkv = off(p, DQKV);
    if (getenv("LS_TEST_VERBOSE"))
        print_message("%s%s B%d T%d H%d D%d p%.1f: y %.1e lse %.1e dqkv %.1e\n", ls_dtype_word(p->dt),
                      kinds[kind].tf32 ? " tf32" : "", (int)p->B, (int)p->T, (int)p->H, (int)p->D, (double)p->drop.p, y,
                      lse, dqkv);
    if (!(y <= kinds[kind].y && lse <= kinds[kind].lse && dqkv <= kinds[kind].dqkv))
        fail_msg("%s %s B%d T%d H%d D%d p%.1f: y %.2e (%.1e), lse %.2e (%.1e), dqkv %.2e (%.1e)", what,
                 ls_dtype_word(p->dt), (int)p->B, (int)p->T, (int)p->H, (int)p->D, (double)p->drop.p, y, kinds[kind].y,
                 lse, kinds[kind].lse, dqkv, kinds[kind].dqkv);
}

static void one(int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop, int kind)
{
    problem p = {.B = B, .T = T, .H = H, .D = D, .dt = kinds[kind].dt, .drop = drop};
    make(&p, (uint64_t)(B + 31 * T + 1009 * H + 7 * D));
    reference(&p);
    run(&p, kinds[kind].tf32);
    check(&p, kind, "attention");
    drop_all(&p);
}

static const ls_drop none, some = {.p = 0.3f, .key = 0x123456789abcdefu},
                           cut = {.p = 0.2f, .key = 77, .head = 3, .n_head = 9};

/* Sequence lengths at and around the tile sizes, in every type. */
static void every_length_matches_the_equations(void **state)
{
    static const int64_t T[] = {1, 5, 16, 63, 64, 65, 130, 200};
    (void)state;
    for (int kind = 0; kind < 4; kind++)
        for (int t = 0; here(kind) && t < 8; t += brief() ? 5 : 1) one(1, T[t], T[t] < 64 ? 2 : 1, 64, none, kind);
}

static void every_head_width_matches_the_equations(void **state)
{
    static const int64_t D[] = {1, 7, 32, 40, 65, 72, 100, 128};
    (void)state;
    for (int kind = 0; kind < 4; kind++)
        for (int d = 0; here(kind) && d < 8; d += brief() ? 3 : 1)
            one(d % 2 + 1, d % 3 == 0 ? 70 : 33, 2, D[d], d % 2 ? some : none, kind);
}

static void dropout_matches_the_equations(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        if (!here(kind)) continue;
        one(2, 65, 2, 64, some, kind);
        if (!brief()) one(1, 130, 2, 64, cut, kind);
        one(1, 66, 1, 128, cut, kind);
    }
}

/* With rows of the unit matrix as values, y is the matrix of probabilities: an element is 0 exactly where the CPU drops it. */
static void dropout_drops_what_the_cpu_drops(void **state)
{
    (void)state;
    const int64_t T = 128;
    ls_pass_head *head;
    assert_int_equal(cudaMalloc((void **)&head, sizeof *head), 0);
    const ls_pass_head seed = {.drop_key = 0xfeedface12345u};
    assert_int_equal(cudaMemcpy(head, &seed, sizeof seed, cudaMemcpyHostToDevice), 0);
    for (int kind = 0; kind < (brief() ? 2 : 3); kind++) {
        if (!here(kind)) continue;
        problem p = {.B = 2, .T = T, .H = 2, .D = 128, .dt = kinds[kind].dt};
        p.drop = (ls_drop){.p = 0.5f, .at = head, .unit = 4, .site = 2, .head = 1, .n_head = 5};
        make(&p, 5);
        for (int64_t r = 0; r < 2 * T; r++)
            for (int64_t c = 0; c < 3 * 256; c++)
                put(p.host[QKV], p.dt, r * 768 + c, c < 512 ? 0 : (double)(c % 128 == r % T));
        assert_int_equal(cudaMemcpy(p.dev[QKV], p.host[QKV], room_of(&p, QKV), cudaMemcpyHostToDevice), 0);
        run(&p, false);
        p.drop.at = &seed;
        for (int64_t b = 0; b < 2; b++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t i = 0; i < T; i++)
                    for (int64_t j = 0; j < T; j++) {
                        const double v = get(p.host[Y], p.dt, ((b * T + i) * 2 + h) * 128 + j);
                        assert_int_equal(v != 0, j <= i && factor(&p, b, h, i, j) != 0);
                    }
        drop_all(&p);
    }
    cudaFree(head);
}

/* The order in which threads and blocks happen to run changes no bit. */
static void the_order_of_threads_changes_no_bit(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        if (!here(kind)) continue;
        problem p = {.B = 1, .T = 150, .H = 2, .D = 64, .dt = kinds[kind].dt, .drop = some};
        void *first[N_ARRAY];
        make(&p, 99);
        for (int order = 0; order < (brief() ? 2 : 3); order++) {
            char word[8];
            snprintf(word, sizeof word, "%d", order * 7);
            if (order) setenv("LS_EMU_ORDER", word, 1);
            for (int a = 0; a < N_ARRAY && order; a++)
                if (a != QKV && a != DY) cudaMemset(p.dev[a], 0xff, (size_t)p.n[a] * ls_dtype_nbytes(type_of(&p, a)));
            assert_int_equal(cudaDeviceSynchronize(), 0);
            run(&p, kinds[kind].tf32);
            for (int a = 0; a < N_ARRAY; a++) {
                if (order == 0) {
                    first[a] = ls_alloc(room_of(&p, a));
                    memcpy(first[a], p.host[a], room_of(&p, a));
                } else {
                    assert_memory_equal(first[a], p.host[a], room_of(&p, a));
                }
            }
        }
        unsetenv("LS_EMU_ORDER");
        for (int a = 0; a < N_ARRAY; a++) ls_free(first[a]);
        drop_all(&p);
    }
}

/* Scores of thousands: softmax picks one value; nothing overflows, and backward stays finite. */
static void large_scores_do_not_overflow(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        if (!here(kind)) continue;
        problem p = {.B = 1, .T = 100, .H = 1, .D = 64, .dt = kinds[kind].dt};
        make(&p, 3);
        for (int64_t i = 0; i < p.n[QKV]; i++) {
            put(p.host[QKV], p.dt, i, 20 * p.want[QKV][i]);
            p.want[QKV][i] = get(p.host[QKV], p.dt, i);
        }
        assert_int_equal(cudaMemcpy(p.dev[QKV], p.host[QKV], room_of(&p, QKV), cudaMemcpyHostToDevice), 0);
        reference(&p);
        run(&p, false);
        assert_true(off(&p, Y) < (kind == 2 ? 1e-3 : 2e-2));
        assert_true(off(&p, LSE) < 2e-3);
        assert_true(off(&p, DQKV) < (kind == 2 ? 1e-3 : 5e-2));
        drop_all(&p);
    }
}

/* ---- backward with Hopper's instructions (LS_FLASH_WGMMA) ---- */

/* Runs p with `how` of LS_FLASH_WGMMA and compares every array with `first`, or keeps it there. */
static void run_wgmma(problem *p, const char *how, void *first[N_ARRAY])
{
    setenv("LS_FLASH_WGMMA", how, 1);
    cudaFree(p->scratch);
    p->scratch = NULL;
    for (int a = 0; a < N_ARRAY; a++)
        if (a != QKV && a != DY) cudaMemset(p->dev[a], 0xff, (size_t)p->n[a] * ls_dtype_nbytes(type_of(p, a)));
    assert_int_equal(cudaDeviceSynchronize(), 0);
    run(p, false);
    unsetenv("LS_FLASH_WGMMA");
    for (int a = 0; a < N_ARRAY; a++) {
        if (first[a]) {
            assert_memory_equal(first[a], p->host[a], room_of(p, a));
        } else {
            first[a] = ls_alloc(room_of(p, a));
            memcpy(first[a], p->host[a], room_of(p, a));
        }
    }
}

static void free_all(void *first[N_ARRAY])
{
    for (int a = 0; a < N_ARRAY; a++) ls_free(first[a]);
}

/* Every sum has the order of the other kernels' and the emulated products round alike: the same bits. */
static void wgmma_matches_the_equations_and_the_other_kernels(void **state)
{
    static const struct {
        int64_t B, T, H;
        const ls_drop *drop;
    } shapes[] = {
        {1, 1, 2, &none},   {2, 63, 1, &none}, {1, 64, 1, &some}, {1, 65, 2, &none},
        {1, 130, 1, &some}, {2, 200, 1, &cut}, {1, 520, 1, &none}}; /* the last, in bf16: more tiles than stages */
    (void)state;
    SKIP_UNLESS(flash_wgmma_works(), "wgmma needs a card of 9.0 and code of 9.0a");
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes - (size_t)kind; i++) {
            problem p = {.B = shapes[i].B, .T = shapes[i].T, .H = shapes[i].H, .D = 64, .dt = kinds[kind].dt};
            void *first[N_ARRAY] = {NULL};
            p.drop = *shapes[i].drop;
            make(&p, (uint64_t)(i + 1));
            reference(&p);
            run_wgmma(&p, "1", first);
            check(&p, kind, "wgmma");
            run_wgmma(&p, "2", first);
            run_wgmma(&p, "3", first);
            run_wgmma(&p, "0", first);
            free_all(first);
            drop_all(&p);
        }
}

/* Neither the warpgroups per block nor the number of blocks nor the order of threads changes a bit. */
static void wgmma_has_one_order(void **state)
{
    static const char *const how[][3] = {{"1", "4", ""}, {"2", "1", "7"}, {"3", "3", "14"}, {"3", "64", "21"}};
    (void)state;
    SKIP_UNLESS(flash_wgmma_works(), "wgmma needs a card of 9.0 and code of 9.0a");
    for (int with_drop = 0; with_drop < 2; with_drop++) {
        problem p = {.B = 2, .T = 150, .H = 2, .D = 64, .dt = LS_BF16, .drop = with_drop ? some : none};
        void *first[N_ARRAY] = {NULL};
        make(&p, 99);
        for (int i = 0; i < 4; i++) {
            setenv("LS_EMU_PROCESSORS", how[i][1], 1);
            setenv("LS_EMU_ORDER", how[i][2], 1);
            run_wgmma(&p, how[i][0], first);
        }
        free_all(first);
        drop_all(&p);
    }
    unsetenv("LS_EMU_PROCESSORS");
    unsetenv("LS_EMU_ORDER");
}

/* A head's numbers are the same bits alone and beside other heads and sequences. */
static void wgmma_does_not_depend_on_other_heads(void **state)
{
    enum { HEADS = 3, LENGTH = 100, BATCH = 2 };
    problem all = {.B = BATCH, .T = LENGTH, .H = HEADS, .D = 64, .dt = LS_BF16};
    problem one_head = {.B = 1, .T = LENGTH, .H = 1, .D = 64, .dt = LS_BF16};
    void *first[N_ARRAY] = {NULL}, *alone[N_ARRAY] = {NULL};
    (void)state;
    SKIP_UNLESS(flash_wgmma_works(), "wgmma needs a card of 9.0 and code of 9.0a");
    make(&all, 7);
    run_wgmma(&all, "1", first);
    make(&one_head, 8);
    for (int64_t t = 0; t < LENGTH; t++) { /* the last head of the last sequence */
        const int64_t row = (BATCH - 1) * LENGTH + t, h = HEADS - 1;
        const uint16_t *qkv = (const uint16_t *)all.host[QKV], *dy = (const uint16_t *)all.host[DY];
        for (int64_t part = 0; part < 3; part++)
            memcpy((uint16_t *)one_head.host[QKV] + (t * 3 + part) * 64, qkv + ((row * 3 + part) * HEADS + h) * 64,
                   128);
        memcpy((uint16_t *)one_head.host[DY] + t * 64, dy + (row * HEADS + h) * 64, 128);
    }
    for (int a = QKV; a <= DY; a += DY - QKV)
        assert_int_equal(cudaMemcpy(one_head.dev[a], one_head.host[a], room_of(&one_head, a), cudaMemcpyHostToDevice),
                         0);
    run_wgmma(&one_head, "1", alone);
    for (int64_t t = 0; t < LENGTH; t++)
        for (int64_t part = 0; part < 3; part++)
            assert_memory_equal(
                (uint16_t *)one_head.host[DQKV] + (t * 3 + part) * 64,
                (uint16_t *)all.host[DQKV] + ((((BATCH - 1) * LENGTH + t) * 3 + part) * HEADS + HEADS - 1) * 64, 128);
    free_all(first);
    free_all(alone);
    drop_all(&all);
    drop_all(&one_head);
}

static void wgmma_is_the_default_and_can_be_turned_off(void **state)
{
    (void)state;
    cu_attention *a = NULL;
    char words[256];
    setenv("LS_FLASH_WGMMA", "yes", 1);
    assert_int_equal(cu_attention_open(&a, NULL, LS_F16, true, false, "flash"), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "LS_FLASH_WGMMA=yes"));
    for (int off = 0; off < 2; off++) {
        if (off) setenv("LS_FLASH_WGMMA", "0", 1);
        else unsetenv("LS_FLASH_WGMMA");
        for (int wide = 0; wide < 2; wide++) {
            assert_int_equal(cu_attention_open(&a, NULL, wide ? LS_F32 : LS_F16, true, false, "flash"), LS_OK);
            cu_attention_describe(a, words, sizeof words);
            assert_int_equal(strstr(words, "wgmma") != NULL, !wide && !off && flash_wgmma_works());
            assert_true(cu_attention_scratch(a, 1, 100, 2, 64, true) >= 2 * 128 * 2 * sizeof(float));
            cu_attention_close(&a);
        }
    }
    unsetenv("LS_FLASH_WGMMA");
}

static void the_implementation_can_be_chosen(void **state)
{
    (void)state;
    cu_attention *a = NULL;
    char words[256];
    assert_int_equal(cu_attention_open(&a, NULL, LS_F16, false, false, "fast"), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "auto, cudnn or flash"));
    assert_int_equal(cu_attention_open(&a, NULL, LS_F64, false, false, "flash"), LS_E_UNSUPPORTED);
    assert_int_equal(cu_attention_open(&a, NULL, LS_F16, false, false, "cudnn"), LS_E_UNSUPPORTED);
    setenv("LS_ATTENTION", "auto,flash", 1);
    assert_int_equal(cu_attention_open(&a, NULL, LS_F16, false, false, NULL), LS_OK);
    unsetenv("LS_ATTENTION");
    cu_attention_describe(a, words, sizeof words);
    assert_non_null(strstr(words, "flash"));
    const ls_card *card = cu_card();
    assert_non_null(strstr(words, card->mma >= 80 ? "without cuDNN" : "cuDNN attention needs compute capability 8.0"));
    assert_int_equal(strstr(words, "m16n8k8") != NULL, card->mma == 75);
    assert_int_equal(strstr(words, "m8n8k4") != NULL, card->mma == 70);
    cu_attention_job j = {.B = 1, .T = 4, .H = 1, .D = 160};
    assert_int_equal(cu_attention_run(a, false, &j), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "160"));
    cu_attention_close(&a);
    assert_null(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_matches_the_equations),
        cmocka_unit_test(every_head_width_matches_the_equations),
        cmocka_unit_test(dropout_matches_the_equations),
        cmocka_unit_test(dropout_drops_what_the_cpu_drops),
        cmocka_unit_test(the_order_of_threads_changes_no_bit),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(the_implementation_can_be_chosen),
        cmocka_unit_test(wgmma_matches_the_equations_and_the_other_kernels),
        cmocka_unit_test(wgmma_has_one_order),
        cmocka_unit_test(wgmma_does_not_depend_on_other_heads),
        cmocka_unit_test(wgmma_is_the_default_and_can_be_turned_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
