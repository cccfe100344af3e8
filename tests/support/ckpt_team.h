/* ckpt_team.h - worker threads that write and read checkpoints together, and models cut into random pieces. */
#ifndef LS_TESTS_CKPT_TEAM_H
#define LS_TESTS_CKPT_TEAM_H

#include "ckpt_support.h"
#include "comm/comm.h"

#include <pthread.h>

#define TEAM_MAX 8

typedef struct team_worker {
    ls_local_world *world;
    int rank, size;
    void (*body)(struct team_worker *w, ls_comm *c);
    void *arg;
    ls_status st; /* the result of the body, and its message */
    char words[2048];
    char error[2048]; /* the first failed check: cmocka's asserts work in the main thread only */
} team_worker;

#define TEAM_CHECK(w, cond)                                                                                           \
    do {                                                                                                              \
        if (!(cond) && !(w)->error[0])                                                                                \
            snprintf((w)->error, sizeof(w)->error, "%s:%d: %s (%.1500s)", __FILE__, __LINE__, #cond, ls_err_words()); \
    } while (0)

static inline void *team_main(void *arg)
{
    team_worker *w = arg;
    ls_comm *c = NULL;
    ls_status st = ls_comm_local(w->world, w->rank, &c);
    TEAM_CHECK(w, st == LS_OK);
    if (c) {
        ls_comm_set_limit(c, 60);
        TEAM_CHECK(w, ls_barrier(c, LS_SITE) == LS_OK); /* its lane runs from here on */
        w->body(w, c);
    }
    ls_comm_destroy(&c);
    return NULL;
}

static inline void team_run(int size, void (*body)(team_worker *, ls_comm *), void *arg, team_worker out[TEAM_MAX])
{
    ls_local_world *world = NULL;
    pthread_t thread[TEAM_MAX];
    assert_int_equal(ls_local_world_create(size, (size_t)32 << 20, &world), LS_OK);
    for (int r = 0; r < size; r++) {
        out[r] = (team_worker){.world = world, .rank = r, .size = size, .body = body, .arg = arg};
        assert_int_equal(pthread_create(&thread[r], NULL, team_main, &out[r]), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < size; r++)
        if (out[r].error[0]) fail_msg("world %d rank %d: %s", size, r, out[r].error);
    ls_local_world_destroy(&world);
}

static inline void team_note(team_worker *w, ls_status st)
{
    w->st = st;
    snprintf(w->words, sizeof w->words, "%s", st == LS_OK ? "" : ls_err_words());
}

/* All workers failed with this status and with the message of the worker where the error occurred. */
static inline void team_assert_failed(const team_worker *w, int size, ls_status st, const char *words)
{
    int met = 0;
    for (int r = 0; r < size; r++) {
        if (w[r].st != st) fail_msg("rank %d: status %d, not %d: %s", r, (int)w[r].st, (int)st, w[r].words);
        if (words && !strstr(w[r].words, words)) fail_msg("rank %d: \"%s\" not in \"%s\"", r, words, w[r].words);
        met += strncmp(w[r].words, "worker ", 7) != 0;
    }
    assert_true(met >= 1);
}

/* ---- a model cut into pieces, each in memory of its own ---- */

typedef struct test_cut {
    int n, size;
    ls_piece piece[1024]; /* worker r has [begin[r], begin[r + 1]) */
    int begin[TEAM_MAX + 1];
} test_cut;

static inline size_t test_elem(const ls_model *m)
{
    return ls_dtype_nbytes(m->compute->ops->dtype);
}

static inline void *test_flat(const ls_model *m, ls_flat what, int u)
{
    const ls_unit *x = &m->unit[u];
    return what == LS_FLAT_PARAM ? x->param : what == LS_FLAT_M ? x->m : x->v;
}

/* Cuts every buffer of the model into up to 5 pieces with random owners, sometimes with the padding. All are filled with 0x7f. */
static inline test_cut *test_cut_make(const ls_model *m, int size, uint64_t key)
{
    test_cut *c = calloc(1, sizeof *c);
    assert_non_null(c);
    ls_piece all[1024];
    int owner[1024], n = 0;
    uint64_t k = 0;
#define DRAW(below) ((int64_t)(ls_rng_uniform(key, k++) * (double)(below)))
    for (int what = 0; what < LS_N_FLAT; what++)
        for (int u = 0; u < m->n_unit; u++) {
            const int64_t end = DRAW(2) ? m->unit[u].n_pad : m->unit[u].n;
            int64_t at = 0;
            for (int64_t left = 1 + DRAW(5); at < end; left--) {
                int64_t len = left > 1 ? DRAW(end - at + 1) : end - at;
                if (DRAW(4) == 0 && len > 3) len = 1 + DRAW(3);
                if (left <= 1) len = end - at;
                assert_true(n < 1024);
                owner[n] = (int)DRAW(size);
                all[n++] = (ls_piece){.what = (ls_flat)what, .unit = u, .first = at, .n = len};
                at += len;
            }
        }
    for (int i = n - 1; i > 0; i--) { /* shuffle */
        const int j = (int)DRAW(i + 1), o = owner[i];
        const ls_piece p = all[i];
        all[i] = all[j], owner[i] = owner[j];
        all[j] = p, owner[j] = o;
    }
#undef DRAW
    c->size = size;
    for (int r = 0; r < size; r++) {
        c->begin[r] = c->n;
        for (int i = 0; i < n; i++)
            if (owner[i] == r) c->piece[c->n++] = all[i];
    }
    c->begin[size] = c->n;
    for (int i = 0; i < c->n; i++) {
        c->piece[i].data = malloc((size_t)c->piece[i].n * test_elem(m) + 1);
        assert_non_null(c->piece[i].data);
        memset(c->piece[i].data, 0x7f, (size_t)c->piece[i].n * test_elem(m));
    }
    return c;
}

static inline void test_cut_free(test_cut *c)
{
    for (int i = 0; i < c->n; i++) free(c->piece[i].data);
    free(c);
}

/* Copies the model into the pieces; padding stays 0x7f. */
static inline void test_cut_fill(test_cut *c, const ls_model *m)
{
    for (int i = 0; i < c->n; i++) {
        const ls_piece *p = &c->piece[i];
        const int64_t end = p->first + p->n < m->unit[p->unit].n ? p->first + p->n : m->unit[p->unit].n;
        if (end > p->first)
            memcpy(p->data, ls_at(m->compute, test_flat(m, p->what, p->unit), p->first),
                   (size_t)(end - p->first) * test_elem(m));
    }
}

/* True if the pieces equal the model byte for byte and padding is 0. Without `moments`, pieces of moments must still be 0x7f. */
static inline int test_cut_same(const test_cut *c, const ls_model *m, int moments)
{
    const size_t e = test_elem(m);
    for (int i = 0; i < c->n; i++) {
        const ls_piece *p = &c->piece[i];
        const char *have = p->data, *want = test_flat(m, p->what, p->unit);
        for (int64_t k = 0; k < p->n; k++)
            for (size_t b = 0; b < e; b++) {
                const int64_t at = p->first + k;
                const char x = p->what != LS_FLAT_PARAM && !moments ? 0x7f
                               : at < m->unit[p->unit].n            ? want[(size_t)at * e + b]
                                                                    : 0;
                if (have[(size_t)k * e + b] != x) return 0;
            }
    }
    return 1;
}

/* True if no piece was written to. */
static inline int test_cut_untouched(const test_cut *c, const ls_model *m)
{
    for (int i = 0; i < c->n; i++)
        for (size_t b = 0; b < (size_t)c->piece[i].n * test_elem(m); b++)
            if (((const char *)c->piece[i].data)[b] != 0x7f) return 0;
    return 1;
}

#endif
