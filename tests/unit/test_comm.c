/* Collectives with workers as threads of one process: every kind, worlds 1 to 8, sums in the documented tree bit for bit, the
 * counted bytes equal to dry's, tickets that overlap, splits, a mismatch, an abort and a hang that name the rank. */
#include "cmocka_all.h"
#include "comm/comm.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/rng.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_W 8

typedef struct worker {
    ls_local_world *world;
    int rank, size;
    void (*body)(struct worker *w, ls_comm *c);
    char error[2048];
    ls_status st;
    int64_t moved[LS_N_COLL];
} worker;

/* cmocka's asserts belong to the main thread: workers note the first thing that is wrong. */
#define CHECK(w, cond)                                                                                                 \
    do {                                                                                                               \
        if (!(cond) && !(w)->error[0]) snprintf((w)->error, sizeof(w)->error, "%s:%d: %s", __FILE__, __LINE__, #cond); \
    } while (0)

static void *worker_main(void *arg)
{
    worker *w = arg;
    ls_comm *c = NULL;
    CHECK(w, ls_comm_local(w->world, w->rank, &c) == LS_OK);
    w->body(w, c);
    for (int k = 0; k < LS_N_COLL; k++) w->moved[k] = ls_comm_stats(c, (ls_coll)k).bytes;
    ls_comm_destroy(&c);
    return NULL;
}

static void run_world(int size, void (*body)(worker *, ls_comm *), worker out[MAX_W])
{
    ls_local_world *world = NULL;
    pthread_t thread[MAX_W];
    assert_int_equal(ls_local_world_create(size, (size_t)64 << 20, &world), LS_OK);
    for (int r = 0; r < size; r++) {
        out[r] = (worker){.world = world, .rank = r, .size = size, .body = body};
        assert_int_equal(pthread_create(&thread[r], NULL, worker_main, &out[r]), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < size; r++)
        if (out[r].error[0]) fail_msg("world %d rank %d: %s", size, r, out[r].error);
    ls_local_world_destroy(&world);
}

static float value(int rank, int64_t i)
{
    return (float)(ls_rng_normal(11, (uint64_t)(rank * 100000 + i)) * (i % 7 == 0 ? 1e5 : 1));
}

static float tree(int first, int n, int64_t i) /* the naive twin */
{
    if (n == 1) return value(first, i);
    int left = 1;
    while (left * 2 < n) left *= 2;
    return tree(first, left, i) + tree(first + left, n - left, i);
}

static void every_kind(worker *w, ls_comm *c)
{
    static const int64_t sizes[] = {8, 840, 8400, 84000};
    for (size_t k = 0; k < N_OF(sizes); k++) {
        const int64_t n = sizes[k] / w->size * w->size, part = n / w->size;
        float *x = ls_comm_alloc(c, (size_t)n * 4), *y = ls_comm_alloc(c, (size_t)n * 4),
              *own = ls_alloc((size_t)n * 4);
        CHECK(w, x && y && own);
        /* all_reduce, in the arena and (small) outside */
        for (int64_t i = 0; i < n; i++) x[i] = own[i] = value(w->rank, i);
        CHECK(w, ls_all_reduce(c, (ls_view){x, n, LS_F32}, LS_SITE, NULL) == LS_OK);
        for (int64_t i = 0; i < n; i++) {
            const float want = tree(0, w->size, i);
            CHECK(w, !memcmp(&x[i], &want, 4));
        }
        if (n * 4 <= LS_COMM_SMALL) {
            CHECK(w, ls_all_reduce(c, (ls_view){own, n, LS_F32}, LS_SITE, NULL) == LS_OK);
            CHECK(w, !memcmp(own, x, (size_t)n * 4));
        }
        /* reduce_scatter into another buffer and in place, then all_gather: the same as all_reduce */
        for (int64_t i = 0; i < n; i++) y[i] = value(w->rank, i);
        float *shard = y + part * w->rank;
        CHECK(w, ls_reduce_scatter(c, (ls_view){shard, part, LS_F32}, (ls_view){y, n, LS_F32}, LS_SITE, NULL) == LS_OK);
        CHECK(w, !memcmp(shard, x + part * w->rank, (size_t)part * 4));
        CHECK(w, ls_all_gather(c, (ls_view){y, n, LS_F32}, (ls_view){shard, part, LS_F32}, LS_SITE, NULL) == LS_OK);
        CHECK(w, !memcmp(y, x, (size_t)n * 4));
        /* reduce and broadcast, every root */
        for (int root = 0; root < w->size; root++) {
            for (int64_t i = 0; i < n; i++) y[i] = value(w->rank, i);
            CHECK(w, ls_reduce(c, (ls_view){y, n, LS_F32}, root, LS_SITE, NULL) == LS_OK);
            if (w->rank == root) CHECK(w, !memcmp(y, x, (size_t)n * 4));
            else
                for (int64_t i = 0; i < n; i += 7) CHECK(w, y[i] == value(w->rank, i));
            CHECK(w, ls_broadcast(c, (ls_view){y, n, LS_F32}, root, LS_SITE, NULL) == LS_OK);
            CHECK(w, !memcmp(y, x, (size_t)n * 4));
        }
        ls_free(own);
    }
    int worst = 0;
    CHECK(w, ls_agree(c, w->rank == w->size - 1 ? 5 : 1, LS_SITE, &worst) == LS_OK);
    CHECK(w, worst == 5 || w->size == 1);
    CHECK(w, ls_barrier(c, LS_SITE) == LS_OK);
    double d = w->rank + 0.5;
    CHECK(w, ls_all_reduce(c, (ls_view){&d, 1, LS_F64}, LS_SITE, NULL) == LS_OK);
    CHECK(w, d == w->size * (w->size - 1) / 2.0 + 0.5 * w->size);
}

static void collectives(void **state)
{
    (void)state;
    worker w[MAX_W];
    for (int size = 1; size <= MAX_W; size++) run_world(size, every_kind, w);
}

static void overlapping(worker *w, ls_comm *c)
{
    enum { N = 40, LEN = 1000 };
    float *x[N];
    ls_ticket t[N];
    for (int k = 0; k < N; k++) {
        x[k] = ls_comm_alloc(c, LEN * 4);
        for (int i = 0; i < LEN; i++) x[k][i] = (float)(w->rank + k);
    }
    for (int k = 0; k < N; k++) CHECK(w, ls_all_reduce(c, (ls_view){x[k], LEN, LS_F32}, LS_SITE, &t[k]) == LS_OK);
    for (int k = N - 1; k >= 0; k--) { /* waited for in another order */
        CHECK(w, ls_wait(c, t[k]) == LS_OK);
        CHECK(w, ls_test(c, t[k]));
        CHECK(w, x[k][LEN - 1] == (float)(w->size * (w->size - 1) / 2 + k * w->size));
    }
    /* a ring of sends and receives, all posted before any is waited for */
    const int next = (w->rank + 1) % w->size, prev = (w->rank + w->size - 1) % w->size;
    if (w->size > 1) {
        ls_ticket s[4], r[4];
        for (int k = 0; k < 4; k++) {
            x[k][0] = (float)(100 * w->rank + k);
            CHECK(w, ls_send(c, (ls_view){x[k], LEN, LS_F32}, next, LS_SITE, &s[k]) == LS_OK);
            CHECK(w, ls_recv(c, (ls_view){x[10 + k], LEN, LS_F32}, prev, LS_SITE, &r[k]) == LS_OK);
        }
        for (int k = 0; k < 4; k++) {
            CHECK(w, ls_wait(c, r[k]) == LS_OK && ls_wait(c, s[k]) == LS_OK);
            CHECK(w, x[10 + k][0] == (float)(100 * prev + k));
        }
    }
    /* halves and parities */
    ls_comm *half = NULL, *parity = NULL;
    CHECK(w, ls_comm_split(c, w->rank < w->size / 2, w->rank, &half) == LS_OK);
    CHECK(w, ls_comm_split(c, w->rank % 2, -w->rank, &parity) == LS_OK);
    int64_t sum = w->rank, back = w->rank;
    CHECK(w, ls_all_reduce(half, (ls_view){&sum, 1, LS_I64}, LS_SITE, NULL) == LS_OK);
    CHECK(w, ls_all_reduce(parity, (ls_view){&back, 1, LS_I64}, LS_SITE, NULL) == LS_OK);
    int64_t want_half = 0, want_parity = 0, above = 0;
    for (int p = 0; p < w->size; p++) {
        if ((p < w->size / 2) == (w->rank < w->size / 2)) want_half += p;
        if (p % 2 == w->rank % 2) want_parity += p, above += p > w->rank;
    }
    CHECK(w, sum == want_half && back == want_parity && ls_comm_rank(parity) == above);
    ls_comm_destroy(&half);
    ls_comm_destroy(&parity);
}

static void tickets_lanes_and_splits(void **state)
{
    (void)state;
    worker w[MAX_W];
    for (int size = 1; size <= MAX_W; size++) run_world(size, overlapping, w);
}

static void one_of_each(ls_comm *c, float *x, float *y)
{
    const int64_t W = ls_comm_size(c), n = 1200 * W;
    (void)ls_all_reduce(c, (ls_view){x, n, LS_F32}, LS_SITE, NULL);
    (void)ls_reduce_scatter(c, (ls_view){y, n / W, LS_F32}, (ls_view){x, n, LS_F32}, LS_SITE, NULL);
    (void)ls_all_gather(c, (ls_view){x, n, LS_F32}, (ls_view){y, n / W, LS_F32}, LS_SITE, NULL);
    (void)ls_broadcast(c, (ls_view){x, n, LS_F32}, 0, LS_SITE, NULL);
    (void)ls_reduce(c, (ls_view){x, n, LS_F32}, 0, LS_SITE, NULL);
}

static void counted(worker *w, ls_comm *c)
{
    one_of_each(c, ls_comm_alloc(c, 4800 * (size_t)w->size), ls_comm_alloc(c, 4800 * (size_t)w->size));
}

static void dry_counts_what_is_moved(void **state)
{
    (void)state;
    worker w[MAX_W];
    for (int size = 2; size <= MAX_W; size *= 2) {
        run_world(size, counted, w);
        for (int r = 0; r < size; r++) {
            ls_comm *dry = NULL;
            assert_int_equal(ls_comm_dry(r, size, &dry), LS_OK);
            one_of_each(dry, ls_comm_alloc(dry, 4800 * (size_t)size), ls_comm_alloc(dry, 4800 * (size_t)size));
            for (int k = 0; k < LS_N_COLL; k++) assert_int_equal(ls_comm_stats(dry, (ls_coll)k).bytes, w[r].moved[k]);
            ls_comm_destroy(&dry);
        }
    }
}

static void mismatched(worker *w, ls_comm *c)
{
    float x[4] = {0};
    w->st = w->rank ? ls_all_reduce(c, (ls_view){x, 4, LS_F32}, LS_SITE, NULL)
                    : ls_all_reduce(c, (ls_view){x, 3, LS_F32}, LS_SITE, NULL);
    CHECK(w, w->st == LS_E_COMM);
    CHECK(w, strstr(ls_err_words(), "disagree"));
}

static void late(worker *w, ls_comm *c)
{
    ls_comm_set_limit(c, 0.3);
    CHECK(w, ls_barrier(c, LS_SITE) == LS_OK);
    if (w->rank == 2) { /* sleeps through it; then the others are gone */
        usleep(900000);
        return;
    }
    const double begin = ls_now();
    w->st = ls_barrier(c, LS_SITE);
    CHECK(w, w->st == LS_E_COMM);
    CHECK(w, strstr(ls_err_words(), "look at rank 2"));
    CHECK(w, ls_now() - begin < 5);
}

static void abandoned(worker *w, ls_comm *c)
{
    if (w->rank == 1) {
        usleep(100000);
        ls_local_world_abort(w->world, 1, "rank 1 died by signal 9");
        return;
    }
    w->st = ls_barrier(c, LS_SITE);
    CHECK(w, w->st == LS_E_COMM);
    CHECK(w, strstr(ls_err_words(), "rank 1 died by signal 9"));
}

static void trouble(void **state)
{
    (void)state;
    worker w[MAX_W];
    run_world(2, mismatched, w);
    run_world(3, late, w);
    run_world(4, abandoned, w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(collectives), cmocka_unit_test(tickets_lanes_and_splits),
                                       cmocka_unit_test(dry_counts_what_is_moved), cmocka_unit_test(trouble)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
