/* device_checks.h - checks that every communicator for device memory must pass: the same bits as `local` on host memory, in the order of the
 * device's queue. Operations of that queue write the inputs and read the results, so a communicator that does not wait for the queue, or
 * does not make it wait, gives wrong numbers. */
#ifndef LS_TESTS_DEVICE_CHECKS_H
#define LS_TESTS_DEVICE_CHECKS_H

#include "comm_checks.h"
#include "core/half.h"
#include "device_double.h"

typedef struct on_device {
    ls_comm *c, *ref; /* the tested one, and `local` on host memory with the same ranks */
    device_double *d;
    wrong *w;
    char *x, *y, *hx, *hy, *got; /* `room` bytes each: x, y on the device, hx, hy for ref, got on the host */
    size_t room;
} on_device;

/* Numbers of a wide range, whose sums depend on their order; cheap to compute. */
static inline float device_number(int rank, int64_t i)
{
    const uint32_t h = ((uint32_t)i * 2654435761U ^ (uint32_t)(rank + 1) * 2246822519U) * 3266489917U;
    return ((float)(h >> 8) / 8388608.0f - 1.0f) * (h % 7 == 0 ? 1e5f : 1.0f);
}

static inline float device_tree(int first, int n, int64_t i)
{
    if (n == 1) return device_number(first, i);
    int left = 1;
    while (left * 2 < n) left *= 2;
    return device_tree(first, left, i) + device_tree(first + left, n - left, i);
}

static inline void device_value(void *p, int64_t at, ls_dtype dt, int rank, int64_t i)
{
    const float v = device_number(rank, i);
    switch (dt) {
    case LS_F64: ((double *)p)[at] = (double)v * 1.000000001; break;
    case LS_BF16: ((uint16_t *)p)[at] = ls_to_bf16(v); break;
    case LS_F16: ((uint16_t *)p)[at] = ls_to_f16(v / 1024); break;
    case LS_I64: ((int64_t *)p)[at] = (int64_t)v + i; break;
    default: ((float *)p)[at] = v;
    }
}

typedef struct device_job {
    void *y;
    const void *x;
    int64_t n;
    ls_dtype dt;
    int rank;
} device_job;

static inline void device_fill_now(void *arg)
{
    device_job *j = arg;
    for (int64_t i = 0; i < j->n; i++) device_value(j->y, i, j->dt, j->rank, i);
    free(j);
}

static inline void device_fetch_now(void *arg)
{
    device_job *j = arg;
    memcpy(j->y, j->x, (size_t)j->n);
    free(j);
}

static inline void device_fill(on_device *o, void *p, int64_t n, ls_dtype dt)
{
    device_job *j = malloc(sizeof *j);
    *j = (device_job){.y = p, .n = n, .dt = dt, .rank = ls_comm_rank(o->c)};
    double_call(o->d, device_fill_now, j);
}

static inline void device_fetch(on_device *o, void *to, const void *from, size_t nbytes)
{
    device_job *j = malloc(sizeof *j);
    *j = (device_job){.y = to, .x = from, .n = (int64_t)nbytes};
    double_call(o->d, device_fetch_now, j);
}

/* The queue sees at x (nbytes) the bytes that ref has at hx. */
static inline void device_same(on_device *o, const char *x, const char *hx, size_t nbytes, const char *what)
{
    device_fetch(o, o->got, x, nbytes);
    (void)double_sync(o->d);
    if (!memcmp(o->got, hx, nbytes) || o->w->words[0]) return;
    size_t i = 0;
    while (o->got[i] == hx[i]) i++;
    snprintf(o->w->words, sizeof o->w->words, "%s: byte %zu of %zu differs (%s)", what, i, nbytes, ls_err_words());
}

static inline void device_setup(on_device *o, void *p, void *host, int64_t n, ls_dtype dt)
{
    device_fill(o, p, n, dt);
    for (int64_t i = 0; i < n; i++) device_value(host, i, dt, ls_comm_rank(o->c), i);
}

static inline bool device_open(on_device *o, size_t room)
{
    o->room = room;
    o->got = calloc(1, room);
    o->hx = ls_comm_alloc(o->ref, room);
    o->hy = ls_comm_alloc(o->ref, room);
    (void)double_alloc(o->d, room, (void **)&o->x);
    (void)double_alloc(o->d, room, (void **)&o->y);
    CHECK(o->w, o->got && o->hx && o->hy && o->x && o->y);
    return !o->w->words[0];
}

static inline void device_close(on_device *o)
{
    double_release(o->d, o->x);
    double_release(o->d, o->y);
    free(o->got);
}

/* All collectives of one type on W parts of `part` elements (all_reduce, reduce, broadcast: `extra` more); separate parts are `gap` apart. */
static inline void device_kinds(on_device *o, ls_dtype dt, int64_t part, int64_t extra, int64_t gap)
{
    const int W = ls_comm_size(o->c), rank = ls_comm_rank(o->c);
    const int64_t n = W * part, m = n + extra, stride = part + gap, far = (W - 1) * stride + part;
    const size_t e = ls_dtype_nbytes(dt);
    wrong *w = o->w;
    ls_ticket t = 0;
    if ((size_t)(W * stride + extra) * e > o->room || w->words[0]) return;
#define ON(v, k) (ls_view){(v), (k), dt}
    device_setup(o, o->x, o->hx, m, dt);
    CHECK(w, ls_all_reduce(o->c, ON(o->x, m), LS_SITE, &t) == LS_OK);
    CHECK(w, ls_all_reduce(o->ref, ON(o->hx, m), LS_SITE, NULL) == LS_OK && ls_wait(o->c, t) == LS_OK);
    device_same(o, o->x, o->hx, (size_t)m * e, "all_reduce");
    /* reduce_scatter: into another buffer, in place, with separate parts */
    device_setup(o, o->y, o->hy, far, dt);
    CHECK(w, ls_reduce_scatter(o->c, ON(o->x, part), ON(o->y, n), LS_SITE, &t) == LS_OK);
    CHECK(w, ls_reduce_scatter(o->ref, ON(o->hx, part), ON(o->hy, n), LS_SITE, NULL) == LS_OK);
    CHECK(w, ls_wait(o->c, t) == LS_OK);
    device_same(o, o->x, o->hx, (size_t)part * e, "reduce_scatter");
    device_same(o, o->y, o->hy, (size_t)n * e, "the input of reduce_scatter");
    const size_t mine = (size_t)(part * rank) * e, there = (size_t)(stride * rank) * e;
    CHECK(w, ls_reduce_scatter(o->c, ON(o->y + mine, part), ON(o->y, n), LS_SITE, NULL) == LS_OK);
    CHECK(w, ls_reduce_scatter(o->ref, ON(o->hy + mine, part), ON(o->hy, n), LS_SITE, NULL) == LS_OK);
    device_same(o, o->y + mine, o->hy + mine, (size_t)part * e, "reduce_scatter in place");
    device_setup(o, o->y, o->hy, far, dt);
    CHECK(w, ls_reduce_scatter_apart(o->c, ON(o->y + there, part), ON(o->y, n), stride, LS_SITE, NULL) == LS_OK);
    CHECK(w, ls_reduce_scatter_apart(o->ref, ON(o->hy + there, part), ON(o->hy, n), stride, LS_SITE, NULL) == LS_OK);
    device_same(o, o->y + there, o->hy + there, (size_t)part * e, "reduce_scatter apart");
    /* all_gather: in place with separate parts, into another buffer, in place with adjacent parts */
    CHECK(w, ls_all_gather_apart(o->c, ON(o->y, n), stride, ON(o->y + there, part), LS_SITE, NULL) == LS_OK);
    CHECK(w, ls_all_gather_apart(o->ref, ON(o->hy, n), stride, ON(o->hy + there, part), LS_SITE, NULL) == LS_OK);
    for (int p = 0; p < W; p++)
        device_same(o, o->y + (size_t)(stride * p) * e, o->hy + (size_t)(stride * p) * e, (size_t)part * e,
                    "all_gather apart");
    device_setup(o, o->x, o->hx, part, dt);
    CHECK(w, ls_all_gather(o->c, ON(o->y, n), ON(o->x, part), LS_SITE, &t) == LS_OK);
    CHECK(w, ls_all_gather(o->ref, ON(o->hy, n), ON(o->hx, part), LS_SITE, NULL) == LS_OK && ls_wait(o->c, t) == LS_OK);
    device_same(o, o->y, o->hy, (size_t)n * e, "all_gather");
    device_setup(o, o->y, o->hy, n, dt);
    CHECK(w, ls_all_gather(o->c, ON(o->y, n), ON(o->y + mine, part), LS_SITE, NULL) == LS_OK);
    CHECK(w, ls_all_gather(o->ref, ON(o->hy, n), ON(o->hy + mine, part), LS_SITE, NULL) == LS_OK);
    device_same(o, o->y, o->hy, (size_t)n * e, "all_gather in place");
    for (int root = 0; root < W; root += root + 1) {
        device_setup(o, o->y, o->hy, m, dt);
        CHECK(w, ls_reduce(o->c, ON(o->y, m), root, LS_SITE, &t) == LS_OK);
        CHECK(w, ls_reduce(o->ref, ON(o->hy, m), root, LS_SITE, NULL) == LS_OK && ls_wait(o->c, t) == LS_OK);
        device_same(o, o->y, o->hy, (size_t)m * e, "reduce"); /* on other ranks it is unchanged */
        device_setup(o, o->x, o->hx, m, dt);
        CHECK(w, ls_broadcast(o->c, ON(o->x, m), root, LS_SITE, &t) == LS_OK);
        CHECK(w, ls_broadcast(o->ref, ON(o->hx, m), root, LS_SITE, NULL) == LS_OK && ls_wait(o->c, t) == LS_OK);
        device_same(o, o->x, o->hx, (size_t)m * e, "broadcast");
    }
#undef ON
}

static inline void device_every_kind(on_device *o, const int64_t *sizes, int n_size)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F64, LS_F16, LS_I64};
    const int W = ls_comm_size(o->c);
    for (int i = 0; i < n_size; i++)
        for (size_t k = 0; k < (sizes[i] > 5000 ? 2 : sizeof types / sizeof types[0]); k++)
            device_kinds(o, types[k], sizes[i], (i + (int)k) % W, sizes[i] ? 5 + i : 0);
}

/* Host memory at the same time: losses, norms, agreement. */
static inline void device_host_memory(on_device *o)
{
    wrong *w = o->w;
    const int W = ls_comm_size(o->c), rank = ls_comm_rank(o->c);
    double d = rank + 0.5;
    int worst = 0;
    CHECK(w, ls_all_reduce(o->c, (ls_view){&d, 1, LS_F64}, LS_SITE, NULL) == LS_OK && d == W * (W - 1) / 2.0 + 0.5 * W);
    CHECK(w, ls_agree(o->c, rank == W - 1 ? 5 : 1, LS_SITE, &worst) == LS_OK && worst == 5);
    CHECK(w, ls_barrier(o->c, LS_SITE) == LS_OK);
}

/* Requests of all lanes at the same time, waited for in another order. Inputs of later requests are still being computed when they are
 * posted. */
static inline void device_overlap(on_device *o, ls_comm *c, int64_t len)
{
    enum { N = 8, R = 3 };
    const int W = ls_comm_size(c), rank = ls_comm_rank(c), next = (rank + 1) % W, prev = (rank + W - 1) % W;
    float *x[N], *in[R], *out[R], *got = malloc((size_t)len * 4 * (N + R));
    ls_ticket t[N], s[R], r[R];
    wrong *w = o->w;
    char *all = NULL;
    (void)double_alloc(o->d, (size_t)len * 4 * (N + 2 * R), (void **)&all);
    for (int k = 0; k < N; k++) x[k] = (float *)(void *)(all + (size_t)(len * 4 * k));
    for (int k = 0; k < R; k++) {
        in[k] = (float *)(void *)(all + (size_t)(len * 4 * (N + k)));
        out[k] = (float *)(void *)(all + (size_t)(len * 4 * (N + R + k)));
    }
    for (int k = 0; k < R && W > 1; k++) {
        const int64_t n = k == 1 ? 0 : k == 2 ? 5 : len;
        device_fill(o, out[k], n, LS_F32);
        CHECK(w, ls_send(c, (ls_view){out[k], n, LS_F32}, next, LS_SITE, &s[k]) == LS_OK);
        CHECK(w, ls_recv(c, (ls_view){in[k], n, LS_F32}, prev, LS_SITE, &r[k]) == LS_OK);
    }
    for (int k = 0; k < N; k++) {
        device_fill(o, x[k], len, LS_F32);
        CHECK(w, ls_all_reduce(c, (ls_view){x[k], len, LS_F32}, LS_SITE, &t[k]) == LS_OK);
    }
    for (int k = N - 1; k >= 0; k--) {
        CHECK(w, ls_wait(c, t[k]) == LS_OK);
        device_fetch(o, got + len * k, x[k], (size_t)len * 4);
    }
    for (int k = 0; k < R && W > 1; k++) {
        CHECK(w, ls_wait(c, r[k]) == LS_OK && ls_wait(c, s[k]) == LS_OK);
        device_fetch(o, got + len * (N + k), in[k], (size_t)len * 4);
    }
    (void)double_sync(o->d);
    for (int k = 0; k < N; k++) CHECK(w, ls_test(c, t[k]) && !memcmp(got + len * k, got, (size_t)len * 4));
    for (int64_t i = 0; i < len && ls_comm_size(o->c) == W && ls_comm_rank(o->c) == rank; i += 97) {
        const float sum = device_tree(0, W, i);
        CHECK(w, got[i] == sum);
        if (W > 1) CHECK(w, got[len * N + i] == device_number(prev, i));
    }
    double_release(o->d, all);
    free(got);
}

/* Several communicators at the same time; odd ranks post in another order. */
static inline void device_splits(on_device *o, int64_t len)
{
    enum { N = 3 };
    const int W = ls_comm_size(o->c), rank = ls_comm_rank(o->c);
    ls_comm *group[N] = {0};
    wrong *w = o->w;
    CHECK(w, ls_comm_split(o->c, rank < W / 2, rank, &group[0]) == LS_OK);
    CHECK(w, ls_comm_split(o->c, rank % 2, -rank, &group[1]) == LS_OK);
    CHECK(w, ls_comm_split(o->c, 0, 0, &group[2]) == LS_OK);
    float *all = NULL, *got = malloc((size_t)len * 4 * N);
    ls_ticket t[N][2];
    (void)double_alloc(o->d, (size_t)len * 4 * N, (void **)&all);
    for (int k = 0; k < N && !w->words[0]; k++) {
        const int g = rank % 2 ? N - 1 - k : k;
        device_fill(o, all + len * g, len, LS_F32);
        CHECK(w, ls_all_reduce(group[g], (ls_view){all + len * g, len, LS_F32}, LS_SITE, &t[g][0]) == LS_OK);
        CHECK(w, ls_broadcast(group[g], (ls_view){all + len * g, len, LS_F32}, 0, LS_SITE, &t[g][1]) == LS_OK);
    }
    for (int g = 0; g < N && !w->words[0]; g++) {
        CHECK(w, ls_wait(group[g], t[g][0]) == LS_OK && ls_wait(group[g], t[g][1]) == LS_OK);
        device_fetch(o, got + len * g, all + len * g, (size_t)len * 4);
    }
    (void)double_sync(o->d);
    for (int64_t i = 0; i < len && !w->words[0]; i += 31) {
        CHECK(w, got[2 * len + i] == device_tree(0, W, i));
        CHECK(w, got[i] == (rank < W / 2 ? device_tree(0, W / 2, i) : device_tree(W / 2, W - W / 2, i)));
    }
    if (!w->words[0]) device_overlap(o, group[0], len);
    for (int g = 0; g < N; g++) ls_comm_destroy(&group[g]);
    double_release(o->d, all);
    free(got);
}

/* Elements and bytes are counted as in `dry`, and staging counts its copies. */
static inline void device_counts(on_device *o, bool staged)
{
    const int W = ls_comm_size(o->c), rank = ls_comm_rank(o->c);
    ls_comm *dry = NULL;
    wrong *w = o->w;
    const int64_t n = 1200 * W;
    if ((size_t)n * 4 > o->room) return;
    ls_comm_stats_reset(o->c);
    const int64_t copied = o->d->n_copied;
    ls_comm_label(o->c, 7);
    checks_one_of_each(o->c, (float *)(void *)o->x, (float *)(void *)o->y);
    ls_comm_label(o->c, 0);
    CHECK(w, ls_comm_dry(rank, W, &dry) == LS_OK);
    float *hx = (float *)(void *)o->hx, *hy = (float *)(void *)o->hy;
    checks_one_of_each(dry, hx, hy);
    (void)double_sync(o->d);
    int64_t sum = 0;
    for (int k = 0; k < LS_N_COLL; k++) {
        const ls_comm_stat s = ls_comm_label_stats(o->c, (ls_coll)k, 7), d = ls_comm_stats(dry, (ls_coll)k);
        CHECK(w, s.bytes == d.bytes && s.calls == d.calls && s.elements == d.elements);
        CHECK(w, W == 1 || !s.calls || s.busy > 0);
        CHECK(w, (s.staged > 0) == (s.staged_seconds > 0) || s.staged > 0);
        sum += s.staged;
    }
    CHECK(w, !staged || W == 1 || (sum > 0 && sum == o->d->n_copied - copied));
    ls_comm_destroy(&dry);
}

#endif
