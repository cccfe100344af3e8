/* comm_checks.h - checks that every communicator must pass, for any backend: workers are threads (tests/comm/test_collectives.c) or
 * processes of mpirun (equiv/mpi_tool.c). A check records a message for the first failure; "" if there is none. */
#ifndef LS_TESTS_COMM_CHECKS_H
#define LS_TESTS_COMM_CHECKS_H

#include "comm/comm.h"
#include "core/half.h"
#include "core/mem.h"
#include "core/rng.h"

#include <stdio.h>
#include <string.h>

typedef struct wrong {
    char words[2400];
} wrong;

#define CHECK(w, cond)                                                                                           \
    do {                                                                                                         \
        if (!(cond) && !(w)->words[0])                                                                           \
            snprintf((w)->words, sizeof(w)->words, "%s:%d: %s (%s)", __FILE__, __LINE__, #cond, ls_err_words()); \
    } while (0)

static inline float checks_value(int rank, int64_t i)
{
    return (float)((ls_rng_uniform(11, (uint64_t)(rank * 1000003 + i)) - 0.5) * (i % 7 == 0 ? 1e5 : 1));
}

static inline float checks_tree(int first, int n, int64_t i) /* the expected sum, naively */
{
    if (n == 1) return checks_value(first, i);
    int left = 1;
    while (left * 2 < n) left *= 2;
    return checks_tree(first, left, i) + checks_tree(first + left, n - left, i);
}

/* All collectives on buffers of W * part elements (all_reduce, reduce, broadcast: W * part + extra) in shared memory. */
static inline void checks_kinds(wrong *w, ls_comm *c, float *x, float *y, float *want, int64_t part, int64_t extra)
{
    const int W = ls_comm_size(c), rank = ls_comm_rank(c);
    const int64_t n = W * part, m = n + extra;
    for (int64_t i = 0; i < m; i++) x[i] = checks_value(rank, i), want[i] = checks_tree(0, W, i);
    CHECK(w, ls_all_reduce(c, (ls_view){x, m, LS_F32}, LS_SITE, NULL) == LS_OK);
    CHECK(w, !memcmp(x, want, (size_t)m * 4));
    /* reduce_scatter into another buffer and in place, then all_gather: the same as all_reduce */
    for (int64_t i = 0; i < n; i++) y[i] = checks_value(rank, i);
    CHECK(w, ls_reduce_scatter(c, (ls_view){x, part, LS_F32}, (ls_view){y, n, LS_F32}, LS_SITE, NULL) == LS_OK);
    CHECK(w, !memcmp(x, want + part * rank, (size_t)part * 4));
    for (int64_t i = 0; i < n; i += 3) CHECK(w, y[i] == checks_value(rank, i)); /* the input is unchanged */
    float *shard = y + part * rank;
    CHECK(w, ls_reduce_scatter(c, (ls_view){shard, part, LS_F32}, (ls_view){y, n, LS_F32}, LS_SITE, NULL) == LS_OK);
    CHECK(w, !memcmp(shard, want + part * rank, (size_t)part * 4));
    CHECK(w, ls_all_gather(c, (ls_view){y, n, LS_F32}, (ls_view){shard, part, LS_F32}, LS_SITE, NULL) == LS_OK);
    CHECK(w, !memcmp(y, want, (size_t)n * 4));
    CHECK(w, ls_all_gather(c, (ls_view){y, n, LS_F32}, (ls_view){x, part, LS_F32}, LS_SITE, NULL) == LS_OK);
    CHECK(w, !memcmp(y, want, (size_t)n * 4));
    /* reduce and broadcast, every root */
    for (int root = 0; root < W; root++) {
        for (int64_t i = 0; i < m; i++) y[i] = checks_value(rank, i);
        CHECK(w, ls_reduce(c, (ls_view){y, m, LS_F32}, root, LS_SITE, NULL) == LS_OK);
        if (rank == root) CHECK(w, !memcmp(y, want, (size_t)m * 4));
        else
            for (int64_t i = 0; i < m; i += 7) CHECK(w, y[i] == checks_value(rank, i));
        CHECK(w, ls_broadcast(c, (ls_view){y, m, LS_F32}, root, LS_SITE, NULL) == LS_OK);
        CHECK(w, !memcmp(y, want, (size_t)m * 4));
    }
}

/* Sizes around every limit: none, odd, as much as fits in a slot, one more, several chunks between hosts. */
static inline void checks_every_kind(wrong *w, ls_comm *c, int64_t largest)
{
    static const int64_t sizes[] = {0, 1, 3, 127, 128, 1024, 1025, 40001};
    const int W = ls_comm_size(c), rank = ls_comm_rank(c);
    float *x = ls_comm_alloc(c, (size_t)(W * (largest + 1)) * 4),
          *y = ls_comm_alloc(c, (size_t)(W * (largest + 1)) * 4);
    float *want = ls_alloc((size_t)(W * (largest + 1)) * 4);
    CHECK(w, x && y && want);
    if (w->words[0]) return;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        if (sizes[k] <= largest)
            for (int extra = 0; extra < W; extra += 2) checks_kinds(w, c, x, y, want, sizes[k], extra);
    for (uint64_t k = 0; k < 4; k++) {
        const int64_t n = (int64_t)(ls_rng_u64(77, k) % (uint64_t)(largest / 2));
        checks_kinds(w, c, x, y, want, n, (int64_t)(ls_rng_u64(78, k) % (uint64_t)W));
    }
    checks_kinds(w, c, x, y, want, largest, 1 % W);
    /* small buffers may be in any memory */
    for (int64_t i = 0; i < 1000; i++) want[i] = checks_value(rank, i);
    CHECK(w, ls_all_reduce(c, (ls_view){want, 1000, LS_F32}, LS_SITE, NULL) == LS_OK);
    for (int64_t i = 0; i < 1000; i++) {
        const float sum = checks_tree(0, W, i);
        CHECK(w, !memcmp(&want[i], &sum, 4));
    }
    int worst = 0;
    CHECK(w, ls_agree(c, rank == W - 1 ? 5 : 1, LS_SITE, &worst) == LS_OK && worst == 5);
    CHECK(w, ls_barrier(c, LS_SITE) == LS_OK);
    double d = rank + 0.5;
    int64_t i64 = rank + 1;
    CHECK(w, ls_all_reduce(c, (ls_view){&d, 1, LS_F64}, LS_SITE, NULL) == LS_OK);
    CHECK(w, d == W * (W - 1) / 2.0 + 0.5 * W);
    CHECK(w, ls_all_reduce(c, (ls_view){&i64, 1, LS_I64}, LS_SITE, NULL) == LS_OK && i64 == W * (W + 1) / 2);
    ls_free(want);
}

/* Sums of 16-bit numbers: added in float in tree order, rounded once. Small buffers and several chunks. */
static inline void checks_halves(wrong *w, ls_comm *c, int64_t largest)
{
    const int W = ls_comm_size(c), rank = ls_comm_rank(c);
    uint16_t *x = ls_comm_alloc(c, (size_t)largest * 2);
    float v[64];
    CHECK(w, x != NULL);
    for (int turn = 0; turn < 6 && x; turn++) {
        const bool bf16 = turn % 2;
        const ls_dtype dt = bf16 ? LS_BF16 : LS_F16;
        const int64_t n = turn < 2 ? 3 : turn < 4 ? 1500 : largest; /* 1500: as float larger than a slot */
        const int root = W - 1;
        for (int reduce = 0; reduce < 2; reduce++) {
            for (int64_t i = 0; i < n; i++) {
                const float mine = checks_value(rank, i) / 1024;
                x[i] = bf16 ? ls_to_bf16(mine) : ls_to_f16(mine);
            }
            CHECK(w, (reduce ? ls_reduce(c, (ls_view){x, n, dt}, root, LS_SITE, NULL)
                             : ls_all_reduce(c, (ls_view){x, n, dt}, LS_SITE, NULL)) == LS_OK);
            for (int64_t i = 0; i < n && (!reduce || rank == root); i += n > 1500 ? 13 : 1) {
                for (int p = 0; p < W; p++) {
                    const float theirs = checks_value(p, i) / 1024;
                    v[p] = bf16 ? ls_from_bf16(ls_to_bf16(theirs)) : ls_from_f16(ls_to_f16(theirs));
                }
                for (int gap = 1; gap < W; gap *= 2) /* the same tree, from the bottom up */
                    for (int p = 0; p + gap < W; p += 2 * gap) v[p] += v[p + gap];
                CHECK(w, x[i] == (bf16 ? ls_to_bf16(v[0]) : ls_to_f16(v[0])));
            }
        }
    }
}

/* Requests that are waited for in another order, and a ring of sends and receives; all are posted before the first wait. */
static inline void checks_overlap(wrong *w, ls_comm *c, int64_t len)
{
    enum { N = 24, R = 4 };
    const int W = ls_comm_size(c), rank = ls_comm_rank(c), next = (rank + 1) % W, prev = (rank + W - 1) % W;
    float *x[N], *in[R], *out[R];
    ls_ticket t[N], s[R], r[R];
    for (int k = 0; k < N; k++) {
        x[k] = ls_comm_alloc(c, (size_t)len * 4);
        for (int64_t i = 0; i < len; i++) x[k][i] = (float)(rank + k);
    }
    for (int k = 0; k < R; k++) in[k] = ls_comm_alloc(c, (size_t)len * 4), out[k] = ls_comm_alloc(c, (size_t)len * 4);
    for (int k = 0; k < N; k++) CHECK(w, ls_all_reduce(c, (ls_view){x[k], len, LS_F32}, LS_SITE, &t[k]) == LS_OK);
    for (int k = 0; k < R && W > 1; k++) {
        const int64_t n = k == 1 ? 0 : k == 2 ? 5 : len;
        out[k][0] = (float)(100 * rank + k);
        CHECK(w, ls_send(c, (ls_view){out[k], n, LS_F32}, next, LS_SITE, &s[k]) == LS_OK);
        CHECK(w, ls_recv(c, (ls_view){in[k], n, LS_F32}, prev, LS_SITE, &r[k]) == LS_OK);
    }
    for (int k = N - 1; k >= 0; k--) {
        CHECK(w, ls_wait(c, t[k]) == LS_OK && ls_test(c, t[k]));
        CHECK(w, x[k][len - 1] == (float)(W * (W - 1) / 2 + k * W));
    }
    for (int k = 0; k < R && W > 1; k++) {
        CHECK(w, ls_wait(c, r[k]) == LS_OK && ls_wait(c, s[k]) == LS_OK);
        if (k != 1) CHECK(w, in[k][0] == (float)(100 * prev + k));
    }
}

/* Several communicators with pending requests at the same time: halves, even and odd ranks in reverse order, all ranks. Odd ranks post in
 * another order. */
static inline void checks_splits(wrong *w, ls_comm *c, int64_t len)
{
    enum { N = 3 };
    const int W = ls_comm_size(c), rank = ls_comm_rank(c);
    ls_comm *group[N] = {0};
    CHECK(w, ls_comm_split(c, rank < W / 2, rank, &group[0]) == LS_OK);
    CHECK(w, ls_comm_split(c, rank % 2, -rank, &group[1]) == LS_OK);
    CHECK(w, ls_comm_split(c, 0, 0, &group[2]) == LS_OK);
    float *x[N];
    ls_ticket t[N][2], s = 0, r = 0;
    int64_t above = 0, sum[N] = {0};
    if (w->words[0]) return;
    for (int p = 0; p < W; p++) {
        if ((p < W / 2) == (rank < W / 2)) sum[0] += p;
        if (p % 2 == rank % 2) sum[1] += p, above += p > rank;
        sum[2] += p;
    }
    CHECK(w, ls_comm_rank(group[1]) == above && ls_comm_rank(group[2]) == rank && ls_comm_size(group[2]) == W);
    for (int g = 0; g < N; g++) {
        x[g] = ls_comm_alloc(group[g], (size_t)len * 4);
        for (int64_t i = 0; i < len; i++) x[g][i] = (float)rank;
    }
    float *mail = ls_comm_alloc(c, (size_t)len * 8);
    const int G = ls_comm_size(group[0]), me = ls_comm_rank(group[0]);
    mail[0] = (float)(1000 + me);
    if (G > 1) {
        CHECK(w, ls_send(group[0], (ls_view){mail, len, LS_F32}, (me + 1) % G, LS_SITE, &s) == LS_OK);
        CHECK(w, ls_recv(group[0], (ls_view){mail + len, len, LS_F32}, (me + G - 1) % G, LS_SITE, &r) == LS_OK);
    }
    for (int k = 0; k < N; k++) {
        const int g = rank % 2 ? N - 1 - k : k;
        CHECK(w, ls_all_reduce(group[g], (ls_view){x[g], len, LS_F32}, LS_SITE, &t[g][0]) == LS_OK);
        CHECK(w, ls_broadcast(group[g], (ls_view){x[g], len, LS_F32}, 0, LS_SITE, &t[g][1]) == LS_OK);
    }
    for (int g = 0; g < N; g++) {
        CHECK(w, ls_wait(group[g], t[g][0]) == LS_OK && ls_wait(group[g], t[g][1]) == LS_OK);
        CHECK(w, x[g][0] == (float)sum[g] && x[g][len - 1] == (float)sum[g]);
    }
    CHECK(w, ls_wait(group[0], s) == LS_OK && ls_wait(group[0], r) == LS_OK);
    if (G > 1) CHECK(w, mail[len] == (float)(1000 + (me + G - 1) % G));
    for (int g = 0; g < N; g++) ls_comm_destroy(&group[g]);
}

static inline void checks_one_of_each(ls_comm *c, float *x, float *y)
{
    const int64_t W = ls_comm_size(c), n = 1200 * W;
    (void)ls_all_reduce(c, (ls_view){x, n, LS_F32}, LS_SITE, NULL);
    (void)ls_reduce_scatter(c, (ls_view){y, n / W, LS_F32}, (ls_view){x, n, LS_F32}, LS_SITE, NULL);
    (void)ls_all_gather(c, (ls_view){x, n, LS_F32}, (ls_view){y, n / W, LS_F32}, LS_SITE, NULL);
    (void)ls_broadcast(c, (ls_view){x, n, LS_F32}, 0, LS_SITE, NULL);
    (void)ls_reduce(c, (ls_view){x, n, LS_F32}, 0, LS_SITE, NULL);
}

/* Bytes as `dry` counts them; bytes to other hosts by the formulas of comm/net.c, for H equal hosts of L workers. */
static inline void checks_counts(wrong *w, ls_comm *c, int H, int L)
{
    const int W = ls_comm_size(c), rank = ls_comm_rank(c), h = rank / L;
    const int64_t n = 1200 * W, s = n / L;
    ls_comm *dry = NULL;
    ls_comm_stats_reset(c);
    ls_comm_hold_stats(c, true);
    checks_one_of_each(c, ls_comm_alloc(c, 4800 * (size_t)W), ls_comm_alloc(c, 4800 * (size_t)W));
    for (int k = 0; k < LS_N_COLL; k++) CHECK(w, ls_comm_stats(c, (ls_coll)k).calls == 0);
    CHECK(w, ls_comm_exposed(c) == 0);
    ls_comm_hold_stats(c, false);
    checks_one_of_each(c, ls_comm_alloc(c, 4800 * (size_t)W), ls_comm_alloc(c, 4800 * (size_t)W));
    CHECK(w, ls_comm_dry(rank, W, &dry) == LS_OK);
    checks_one_of_each(dry, ls_comm_alloc(dry, 4800 * (size_t)W), ls_comm_alloc(dry, 4800 * (size_t)W));
    for (int k = 0; k < LS_N_COLL; k++)
        CHECK(w, ls_comm_stats(dry, (ls_coll)k).bytes == ls_comm_stats(c, (ls_coll)k).bytes);
    ls_comm_destroy(&dry);
    if (1200 * W * 4 <= LS_COMM_SMALL || (H > 1 && s % H)) return;
    const int64_t part = H > 1 ? s / H : s;
    const int64_t reduce = H == 2 ? (h ? s : 0) : h ? s : s - part;
    const int64_t broadcast = H == 1 ? 0 : h == 0 ? s : (H - 2) * (s / (H - 1));
    CHECK(w, ls_comm_stats(c, LS_COLL_ALL_REDUCE).wire == 4 * ((s - part) + (H - 1) * part));
    CHECK(w, ls_comm_stats(c, LS_COLL_REDUCE_SCATTER).wire == 4 * (int64_t)(H - 1) * 1200);
    CHECK(w, ls_comm_stats(c, LS_COLL_ALL_GATHER).wire == 4 * (int64_t)(H - 1) * 1200);
    if (H == 1 || s % (H - 1) == 0) CHECK(w, ls_comm_stats(c, LS_COLL_BROADCAST).wire == 4 * broadcast);
    CHECK(w, ls_comm_stats(c, LS_COLL_REDUCE).wire == (H == 1 ? 0 : 4 * reduce));
}

#endif
