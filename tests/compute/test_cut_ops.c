/* test_cut_ops.c - operations on a shard of a model compared with the same operations on the whole model, in every backend: the classifier
 * over parts of the vocabulary (workers are threads that meet at a barrier), attention of some heads, embedding rows that another worker has.
 *
 * Bounds: sums over parts have another order; the bounds are about four times the largest measured error (arm64: 1e-6 in float, 2e-15 in
 * double). Heads and rows are computed in the same way wherever they are stored: the bits are equal. */
/* ls-test: long */
#include "cmocka_all.h"
#include "compute/compute.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PART 4
#define GUARD    64

static const struct {
    const char *name;
    ls_dtype dt;
    double bound;
} backends[] = {{"cpu", LS_F32, 4e-6}, {"cpu-ref", LS_F32, 4e-6}, {"cpu-ref", LS_F64, 8e-15}};

static double get(const void *x, ls_dtype dt, int64_t i)
{
    return dt == LS_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static void *numbers(ls_dtype dt, int64_t n, uint64_t key, double scale)
{
    void *x = ls_alloc((size_t)(n ? n : 1) * ls_dtype_nbytes(dt));
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        const float v = (float)(ls_rng_normal(key, (uint64_t)i) * scale);
        if (dt == LS_F64) ((double *)x)[i] = (double)v;
        else ((float *)x)[i] = v;
    }
    return x;
}

static double difference(const void *a, const void *b, ls_dtype dt, int64_t n)
{
    double worst = 0, most = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs(get(a, dt, i) - get(b, dt, i));
        worst = e > worst || isnan(e) ? e : worst;
        most = fmax(most, fabs(get(b, dt, i)));
    }
    return worst / most;
}

/* ---- classifier ---- */

typedef struct meeting {
    pthread_barrier_t barrier;
    double *part[MAX_PART];
    int n_part;
} meeting;

typedef struct shard {
    meeting *m;
    int rank;
    ls_compute compute;
    ls_classifier job;
    ls_status st;
} shard;

static ls_status gather(void *ctx, double *x, int64_t n)
{
    shard *s = ctx;
    s->m->part[s->rank] = x;
    pthread_barrier_wait(&s->m->barrier);
    for (int p = 0; p < s->m->n_part; p++)
        if (p != s->rank) memcpy(x + p * n, s->m->part[p] + p * n, (size_t)n * sizeof *x);
    pthread_barrier_wait(&s->m->barrier);
    return LS_OK;
}

static void *run_shard(void *arg)
{
    shard *s = arg;
    s->st = s->compute.ops->classifier(&s->compute, &s->job);
    return NULL;
}

static void *scratch_of(ls_compute *c, int64_t R, int64_t C, int64_t V, int n_part)
{
    const ls_compute_shapes shapes = {
        .B = R, .T = 1, .C = C, .H = 1, .V = V, .ffn = C, .backward = true, .n_part = n_part};
    c->scratch_nbytes = ls_compute_scratch(c, &shapes);
    c->scratch = ls_alloc(c->scratch_nbytes + GUARD);
    assert_non_null(c->scratch);
    memset((char *)c->scratch + c->scratch_nbytes, 0x5a, GUARD);
    return c->scratch;
}

static void check_classifier(size_t b, int T, int64_t R, int64_t C, int64_t V, bool gradient, bool acc)
{
    const ls_dtype dt = backends[b].dt;
    const size_t e = ls_dtype_nbytes(dt);
    void *x = numbers(dt, R * C, 1, 1), *w = numbers(dt, V * C, 2, 0.7), *dx = numbers(dt, R * C, 3, 1);
    void *dw = numbers(dt, V * C, 4, acc ? 0.1 : 1), *dw_cut = numbers(dt, V * C, 4, acc ? 0.1 : 1);
    void *dx_cut = numbers(dt, R * C, 5, 0);
    double *loss = ls_alloc((size_t)R * sizeof *loss), *loss_cut = ls_alloc((size_t)R * T * sizeof *loss_cut);
    int32_t *target = ls_alloc((size_t)R * sizeof *target);
    assert_true(loss && loss_cut && target);
    for (int64_t r = 0; r < R; r++) target[r] = r % 7 == 3 ? -1 : (int32_t)(ls_rng_u64(8, (uint64_t)r) % (uint64_t)V);
    ls_compute c;
    assert_int_equal(ls_compute_open(&c, backends[b].name, &(ls_compute_open_opts){.dtype = dt}, 2), LS_OK);
    void *scratch = scratch_of(&c, R, C, V, 1);
    const ls_classifier whole = {.row_loss = loss,
                                 .dx = gradient ? dx : NULL,
                                 .dw = gradient ? dw : NULL,
                                 .x = x,
                                 .w = w,
                                 .target = target,
                                 .dloss = 0.01,
                                 .R = R,
                                 .C = C,
                                 .V = V,
                                 .acc = acc};
    assert_int_equal(c.ops->classifier(&c, &whole), LS_OK);
    ls_free(scratch);

    meeting m = {.n_part = T};
    shard s[MAX_PART];
    pthread_t thread[MAX_PART];
    assert_int_equal(pthread_barrier_init(&m.barrier, NULL, (unsigned)T), 0);
    for (int t = 0; t < T; t++) {
        const int64_t first = V * t / T, n = V * (t + 1) / T - first;
        s[t] = (shard){.m = &m, .rank = t, .job = whole};
        assert_int_equal(
            ls_compute_open(&s[t].compute, backends[b].name, &(ls_compute_open_opts){.dtype = dt}, 1 + t % 2), LS_OK);
        scratch_of(&s[t].compute, R, C, n, T);
        ls_classifier *j = &s[t].job;
        j->row_loss = loss_cut + t * R;
        j->dx = gradient ? numbers(dt, R * C, 6, 1) : NULL;
        j->w = (char *)w + (size_t)(first * C) * e;
        j->dw = gradient ? (char *)dw_cut + (size_t)(first * C) * e : NULL;
        j->V = n;
        j->first = first;
        j->part = t;
        j->n_part = T;
        j->gather = gather;
        j->gather_ctx = &s[t];
        assert_int_equal(pthread_create(&thread[t], NULL, run_shard, &s[t]), 0);
    }
    for (int t = 0; t < T; t++) pthread_join(thread[t], NULL);
    double loss_error = 0;
    for (int t = 0; t < T; t++) {
        assert_int_equal(s[t].st, LS_OK);
        assert_memory_equal(loss_cut + t * R, loss_cut, (size_t)R * sizeof *loss); /* all workers have the same loss */
        for (int i = 0; i < GUARD; i++)
            assert_int_equal(((unsigned char *)s[t].compute.scratch)[s[t].compute.scratch_nbytes + (size_t)i], 0x5a);
        if (gradient) assert_int_equal(c.ops->add(&c, dx_cut, dx_cut, s[t].job.dx, R * C), LS_OK);
        ls_free(s[t].job.dx);
        ls_free(s[t].compute.scratch);
    }
    loss_error = difference(loss_cut, loss, LS_F64, R);
    assert_true(loss_error <= backends[b].bound);
    if (gradient) {
        const double in = difference(dx_cut, dx, dt, R * C), weights = difference(dw_cut, dw, dt, V * C);
        if (in > backends[b].bound || weights > backends[b].bound)
            print_error("%s %s, %d parts, R %lld V %lld: dx %.1e, dw %.1e\n", backends[b].name, ls_dtype_word(dt), T,
                        (long long)R, (long long)V, in, weights);
        assert_true(in <= backends[b].bound && weights <= backends[b].bound);
    }
    pthread_barrier_destroy(&m.barrier);
    void *all[] = {x, w, dx, dw, dw_cut, dx_cut, loss, loss_cut, target};
    for (size_t i = 0; i < N_OF(all); i++) ls_free(all[i]);
}

static void a_sharded_vocabulary_matches_the_whole(void **state)
{
    (void)state;
    static const int64_t R[] = {1, 9, 530}, V[] = {5, 37, 403}; /* 530: more than one chunk */
    for (size_t b = 0; b < N_OF(backends); b++)
        for (int T = 2; T <= MAX_PART; T++)
            for (size_t i = 0; i < N_OF(R); i++)
                for (size_t k = 0; k < N_OF(V); k++)
                    for (int how = 0; how < 3; how++) check_classifier(b, T, R[i], 24, V[k], how > 0, how > 1);
}

/* One logit is far above all others, in one part: the exponentials of the others become 0, and nothing overflows. */
static void one_huge_logit_does_not_overflow(void **state)
{
    (void)state;
    for (size_t b = 0; b < N_OF(backends); b++) {
        meeting m = {.n_part = 2};
        shard s[2];
        pthread_t thread[2];
        float w32[4] = {-1, -2, 300, 1}, x32 = 2;
        double w64[4] = {-1, -2, 300, 1}, x64 = 2, loss[2][1];
        const int32_t target = 1;
        const bool wide = backends[b].dt == LS_F64;
        assert_int_equal(pthread_barrier_init(&m.barrier, NULL, 2), 0);
        for (int t = 0; t < 2; t++) {
            s[t] = (shard){.m = &m, .rank = t};
            assert_int_equal(
                ls_compute_open(&s[t].compute, backends[b].name, &(ls_compute_open_opts){.dtype = backends[b].dt}, 1),
                LS_OK);
            scratch_of(&s[t].compute, 1, 1, 2, 2);
            s[t].job = (ls_classifier){.row_loss = loss[t],
                                       .x = wide ? (void *)&x64 : (void *)&x32,
                                       .w = wide ? (void *)(w64 + 2 * t) : (void *)(w32 + 2 * t),
                                       .target = &target,
                                       .R = 1,
                                       .C = 1,
                                       .V = 2,
                                       .first = 2 * t,
                                       .part = t,
                                       .n_part = 2,
                                       .gather = gather,
                                       .gather_ctx = &s[t]};
            assert_int_equal(pthread_create(&thread[t], NULL, run_shard, &s[t]), 0);
        }
        for (int t = 0; t < 2; t++) pthread_join(thread[t], NULL);
        for (int t = 0; t < 2; t++) {
            assert_true(s[t].st == LS_OK && loss[t][0] == 604);
            ls_free(s[t].compute.scratch);
        }
        pthread_barrier_destroy(&m.barrier);
    }
}

/* ---- heads ---- */

/* Columns [from, from + n) of each of the parts of a row. */
static void cut_columns(void *to, const void *x, ls_dtype dt, int64_t R, int parts, int64_t width, int64_t from,
                        int64_t n)
{
    const size_t e = ls_dtype_nbytes(dt);
    for (int64_t r = 0; r < R; r++)
        for (int p = 0; p < parts; p++)
            memcpy((char *)to + (size_t)((r * parts + p) * n) * e,
                   (const char *)x + (size_t)((r * parts + p) * width + from) * e, (size_t)n * e);
}

static void some_heads_have_the_bits_of_all(void **state)
{
    (void)state;
    enum { B = 2, S = 19, H = 4, D = 8, C = H * D };
    for (size_t b = 0; b < N_OF(backends); b++) {
        const ls_dtype dt = backends[b].dt;
        const size_t e = ls_dtype_nbytes(dt);
        ls_compute c;
        assert_int_equal(ls_compute_open(&c, backends[b].name, &(ls_compute_open_opts){.dtype = dt}, 2), LS_OK);
        const ls_compute_shapes shapes = {.B = B, .T = S, .C = C, .H = H, .ffn = C, .backward = true};
        c.scratch = ls_alloc(ls_compute_scratch(&c, &shapes));
        assert_non_null(c.scratch);
        void *qkv = numbers(dt, B * S * 3 * C, 1, 1), *dy = numbers(dt, B * S * C, 2, 1);
        void *y = numbers(dt, B * S * C, 3, 1), *lse = numbers(dt, B * H * S, 4, 1),
             *dqkv = numbers(dt, B * S * 3 * C, 5, 1);
        const ls_drop all = {.p = 0.3f, .key = 99};
        assert_int_equal(c.ops->attention_fwd(&c, y, lse, qkv, B, S, H, D, all), LS_OK);
        assert_int_equal(c.ops->attention_bwd(&c, dqkv, dy, y, lse, qkv, B, S, H, D, all), LS_OK);
        for (int T = 1; T <= H; T *= 2) {
            for (int t = 0; t < T; t++) {
                const int64_t h = H / T, A = h * D;
                const ls_drop some = {.p = 0.3f, .key = 99, .head = t * h, .n_head = H};
                void *x = numbers(dt, B * S * 3 * A, 0, 0), *dyc = numbers(dt, B * S * A, 0, 0);
                void *yc = numbers(dt, B * S * A, 7, 1), *want = numbers(dt, B * S * 3 * A, 0, 0);
                void *l = numbers(dt, B * h * S, 8, 1), *dx = numbers(dt, B * S * 3 * A, 9, 1);
                cut_columns(x, qkv, dt, B * S, 3, C, t * A, A);
                cut_columns(dyc, dy, dt, B * S, 1, C, t * A, A);
                assert_int_equal(c.ops->attention_fwd(&c, yc, l, x, B, S, h, D, some), LS_OK);
                cut_columns(want, y, dt, B * S, 1, C, t * A, A);
                assert_memory_equal(yc, want, (size_t)(B * S * A) * e);
                assert_int_equal(c.ops->attention_bwd(&c, dx, dyc, yc, l, x, B, S, h, D, some), LS_OK);
                cut_columns(want, dqkv, dt, B * S, 3, C, t * A, A);
                assert_memory_equal(dx, want, (size_t)(B * S * 3 * A) * e);
                void *mine[] = {x, dyc, yc, want, l, dx};
                for (size_t i = 0; i < N_OF(mine); i++) ls_free(mine[i]);
            }
        }
        void *mine[] = {c.scratch, qkv, dy, y, lse, dqkv};
        for (size_t i = 0; i < N_OF(mine); i++) ls_free(mine[i]);
    }
}

/* ---- rows of the embedding ---- */

static void sharded_embedding_rows_have_the_same_bits(void **state)
{
    (void)state;
    enum { B = 2, S = 5, C = 19, V = 7, R = B * S };
    static const int32_t ids[R] = {0, 6, 3, 3, 1, 5, 2, 4, 0, 6};
    for (size_t b = 0; b < N_OF(backends); b++) {
        const ls_dtype dt = backends[b].dt;
        const size_t e = ls_dtype_nbytes(dt);
        ls_compute c;
        assert_int_equal(ls_compute_open(&c, backends[b].name, &(ls_compute_open_opts){.dtype = dt}, 2), LS_OK);
        void *wte = numbers(dt, V * C, 1, 1), *wpe = numbers(dt, S * C, 2, 1), *dy = numbers(dt, R * C, 3, 1);
        void *y = numbers(dt, R * C, 4, 1), *dwte = numbers(dt, V * C, 5, 1), *dwpe = numbers(dt, S * C, 6, 1);
        void *sum = numbers(dt, R * C, 7, 0), *part = numbers(dt, R * C, 8, 1), *dte = numbers(dt, V * C, 9, 1);
        void *dpe = numbers(dt, S * C, 10, 1);
        const ls_drop drop = {.p = 0.4f, .key = 5};
        assert_int_equal(c.ops->embed_fwd(&c, y, ids, 0, V, wte, wpe, B, S, C, drop), LS_OK);
        assert_int_equal(c.ops->embed_bwd(&c, dwte, dwpe, dy, ids, 0, B, S, C, V, S, drop, false), LS_OK);
        for (int t = 0; t < 2; t++) {
            const int64_t first = V * t / 2, n = V * (t + 1) / 2 - first;
            const void *rows = (char *)wte + (size_t)(first * C) * e;
            assert_int_equal(c.ops->embed_fwd(&c, part, ids, first, n, rows, t ? NULL : wpe, B, S, C, (ls_drop){0}),
                             LS_OK);
            assert_int_equal(c.ops->add(&c, sum, sum, part, R * C), LS_OK);
            assert_int_equal(c.ops->embed_bwd(&c, dte, dpe, dy, ids, first, B, S, C, n, S, drop, false), LS_OK);
            assert_memory_equal(dte, (char *)dwte + (size_t)(first * C) * e, (size_t)(n * C) * e);
            assert_memory_equal(dpe, dwpe, (size_t)(S * C) * e);
        }
        assert_int_equal(c.ops->drop_bwd(&c, sum, sum, R * C, drop), LS_OK);
        assert_memory_equal(sum, y, (size_t)(R * C) * e);
        void *mine[] = {wte, wpe, dy, y, dwte, dwpe, sum, part, dte, dpe};
        for (size_t i = 0; i < N_OF(mine); i++) ls_free(mine[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sharded_vocabulary_matches_the_whole), cmocka_unit_test(one_huge_logit_does_not_overflow),
        cmocka_unit_test(some_heads_have_the_bits_of_all), cmocka_unit_test(sharded_embedding_rows_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
