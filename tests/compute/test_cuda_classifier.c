/* test_cuda_classifier.c - the classifier on the emulated device compared with cpu-ref in double: odd shapes, chunks, ignored rows, accumulation
 * into dw, w with and without readable rows after its end, a loss factor that the kernel reads when it runs, a vocabulary sharded over workers.
 *
 * Bounds, relative to the largest number: logits and their gradients are rounded to the type (2^-9 for bf16), sums are in float. */
/* ls-test: long */
#include "compute/cuda/cuda_impl.h"
#include "cuda_numbers.h"

#include <stdio.h>
#include <stdlib.h>

#define MOST_PART  3
#define MOST_CHUNK 16

typedef struct shape {
    int64_t R, C, V, room; /* room: rows after w that may be read */
    bool acc, loss_only, at;
    int n_part;
    int mib; /* 0: the default */
} shape;

typedef struct backend {
    ls_compute c;
    ls_dtype dt;
} backend;

static backend open_cuda(ls_dtype dt)
{
    backend b = {.dt = dt};
    assert_int_equal(cuda_open(&(ls_compute_open_opts){.dtype = dt, .device = 0, .deterministic = true}, &b.c), LS_OK);
    return b;
}

static double bound_of(ls_dtype dt)
{
    return dt == LS_BF16 ? 1.2e-2 : dt == LS_F16 ? 1.5e-3 : 1e-5;
}

/* The values that each part contributes for each chunk: recorded in a first round, distributed in a second one. */
typedef struct meeting {
    int round, part, n_part, chunk;
    double *given[MOST_PART][MOST_CHUNK];
} meeting;

static ls_status gather(void *ctx, double *x, int64_t n)
{
    meeting *m = ctx;
    assert_true(m->chunk < MOST_CHUNK);
    CU(cudaDeviceSynchronize());
    if (m->round == 0) {
        double *mine = m->given[m->part][m->chunk] = ls_alloc((size_t)n * sizeof *mine);
        assert_non_null(mine);
        CU(cudaMemcpy(mine, x + m->part * n, (size_t)n * sizeof *mine, cudaMemcpyDeviceToHost));
        for (int p = 0; p < m->n_part; p++) CU(cudaMemset(x + p * n, 0, (size_t)n * sizeof *x));
    } else {
        for (int p = 0; p < m->n_part; p++)
            CU(cudaMemcpy(x + p * n, m->given[p][m->chunk], (size_t)n * sizeof *x, cudaMemcpyHostToDevice));
    }
    m->chunk++;
    return LS_OK;
}

typedef struct answer {
    double *loss, *dx, *dw;
} answer;

static answer made(const shape *s)
{
    answer a = {ls_alloc((size_t)s->R * sizeof(double)), ls_alloc((size_t)(s->R * s->C) * sizeof(double)),
                ls_alloc((size_t)(s->V * s->C) * sizeof(double))};
    assert_true(a.loss && a.dx && a.dw);
    return a;
}

static void gone(answer *a)
{
    ls_free(a->loss);
    ls_free(a->dx);
    ls_free(a->dw);
}

static void reference(const shape *s, const double *x, const double *w, const double *dw0, const int32_t *target,
                      double dloss, answer *a)
{
    ls_compute c;
    assert_int_equal(ls_compute_open(&c, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F64}, 1), LS_OK);
    const ls_compute_shapes shapes = {.B = 1, .T = s->R, .C = s->C, .V = s->V, .backward = true, .n_part = 1};
    c.scratch_nbytes = ls_compute_scratch(&c, &shapes);
    c.scratch = ls_alloc(c.scratch_nbytes);
    memcpy(a->dw, dw0, (size_t)(s->V * s->C) * sizeof(double));
    assert_int_equal(c.ops->classifier(&c, &(ls_classifier){.row_loss = a->loss,
                                                            .dx = a->dx,
                                                            .dw = a->dw,
                                                            .x = x,
                                                            .w = w,
                                                            .target = target,
                                                            .dloss = dloss,
                                                            .R = s->R,
                                                            .C = s->C,
                                                            .V = s->V,
                                                            .acc = s->acc}),
                     LS_OK);
    ls_free(c.scratch);
    ls_compute_close(&c);
}

/* One part of the vocabulary (or all of it) on the device; dx is added to a->dx. */
static void on_device(backend *b, const shape *s, int part, meeting *m, const double *x, const double *w,
                      const double *dw0, const int32_t *target, double dloss, answer *a)
{
    const int n_part = s->n_part > 1 ? s->n_part : 1;
    const int64_t first = s->V * part / n_part, V = s->V * (part + 1) / n_part - first, C = s->C, R = s->R;
    const int64_t room = part + 1 < n_part ? 0 : s->room;
    const ls_compute_shapes shapes = {.B = 1, .T = R, .C = C, .V = V, .backward = true, .n_part = n_part};
    double *wide = ls_alloc((size_t)((V + room) * C) * sizeof *wide); /* the values after w are large and finite */
    for (int64_t i = 0; i < (V + room) * C; i++) wide[i] = i < V * C ? w[first * C + i] : 1000;
    void *dev_x = num_device(b->dt, x, R * C, 0), *dev_w = num_device(b->dt, wide, (V + room) * C, 0);
    void *dx = num_device(b->dt, NULL, R * C, 0), *dw = num_device(LS_F32, dw0 + first * C, V * C, 0);
    void *loss = num_device(LS_F64, NULL, R, 0), *ids = NULL, *scratch = NULL, *head = NULL;
    const ls_pass_head now = {.dloss = dloss};
    CU(cudaMalloc(&ids, (size_t)R * sizeof(int32_t) + 1));
    CU(cudaMemcpy(ids, target, (size_t)R * sizeof(int32_t), cudaMemcpyHostToDevice));
    CU(cudaMalloc(&head, sizeof now));
    CU(cudaMemcpy(head, &now, sizeof now, cudaMemcpyHostToDevice));
    CU(cudaMalloc(&scratch, cuda_scratch(&b->c, &shapes)));
    b->c.scratch = scratch;
    m->chunk = 0;
    m->part = part;
    const ls_classifier cl = {.row_loss = loss,
                              .dx = s->loss_only ? NULL : dx,
                              .dw = s->loss_only ? NULL : dw,
                              .x = dev_x,
                              .w = dev_w,
                              .target = ids,
                              .dloss = s->at ? NAN : dloss,
                              .at = s->at ? head : NULL,
                              .R = R,
                              .C = C,
                              .V = V,
                              .V_room = room ? V + room : 0,
                              .acc = s->acc,
                              .first = first,
                              .part = part,
                              .n_part = n_part,
                              .gather = gather,
                              .gather_ctx = m};
    assert_int_equal(b->c.ops->classifier(&b->c, &cl), LS_OK);
    double *got_loss = num_host(LS_F64, loss, R), *got_dx = num_host(b->dt, dx, R * C),
           *got_dw = num_host(LS_F32, dw, V * C);
    memcpy(a->loss, got_loss, (size_t)R * sizeof *got_loss);
    memcpy(a->dw + first * C, got_dw, (size_t)(V * C) * sizeof *got_dw);
    for (int64_t i = 0; i < R * C; i++) a->dx[i] += got_dx[i];
    ls_free(got_loss);
    ls_free(got_dx);
    ls_free(got_dw);
    ls_free(wide);
    void *all[] = {dev_x, dev_w, dx, dw, loss, ids, head, scratch};
    for (size_t i = 0; i < N_OF(all); i++) CU(cudaFree(all[i]));
}

static void close_to(const double *got, const double *want, int64_t n, double bound, const char *what, const shape *s)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= bound * most + 1e-12))
            fail_msg("%s %lld of R %lld C %lld V %lld room %lld acc %d parts %d MiB %d: %.9g, not %.9g (largest %.3g)",
                     what, (long long)i, (long long)s->R, (long long)s->C, (long long)s->V, (long long)s->room, s->acc,
                     s->n_part, s->mib, got[i], want[i], most);
}

static void try(backend *b, const shape *s, uint64_t seed)
{
    const int n_part = s->n_part > 1 ? s->n_part : 1;
    double *x = num_normal(b->dt, s->R * s->C, ls_rng_key(seed, LS_RNG_TEST, 1, 0), 1);
    double *w = num_normal(b->dt, s->V * s->C, ls_rng_key(seed, LS_RNG_TEST, 2, 0), 1.5 / sqrt((double)s->C));
    double *dw0 = num_normal(LS_F32, s->V * s->C, ls_rng_key(seed, LS_RNG_TEST, 3, 0), 0.01);
    int32_t *target = ls_alloc((size_t)s->R * sizeof *target + 1);
    const double dloss = 0.25;
    answer want = made(s), got = made(s), unused = made(s);
    meeting m = {.n_part = n_part};
    char text[16];
    for (int64_t r = 0; r < s->R; r++)
        target[r] = r % 5 == 3 ? -1 : (int32_t)(ls_rng_u64(seed, (uint64_t)r) % (uint64_t)s->V);
    snprintf(text, sizeof text, "%d", s->mib);
    if (s->mib) setenv("LS_CLASSIFIER_MIB", text, 1);
    reference(s, x, w, dw0, target, dloss, &want);
    for (int p = 0; n_part > 1 && p < n_part; p++) on_device(b, s, p, &m, x, w, dw0, target, dloss, &unused);
    m.round = 1;
    for (int p = 0; p < n_part; p++) on_device(b, s, p, &m, x, w, dw0, target, dloss, &got);
    unsetenv("LS_CLASSIFIER_MIB");
    close_to(got.loss, want.loss, s->R, bound_of(b->dt), "loss", s);
    for (int64_t r = 0; r < s->R; r++)
        if (target[r] < 0) assert_true(got.loss[r] == 0);
    if (!s->loss_only) {
        close_to(got.dx, want.dx, s->R * s->C, bound_of(b->dt), "dx", s);
        close_to(got.dw, want.dw, s->V * s->C, bound_of(b->dt), "dw", s);
    }
    for (int p = 0; p < MOST_PART; p++)
        for (int k = 0; k < MOST_CHUNK; k++) ls_free(m.given[p][k]);
    gone(&want);
    gone(&got);
    gone(&unused);
    ls_free(x);
    ls_free(w);
    ls_free(dw0);
    ls_free(target);
}

static void every_shape_matches_the_cpu_reference(void **state)
{
    (void)state;
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
    static const shape shapes[] = {
        {.R = 1, .C = 8, .V = 5},
        {.R = 7, .C = 24, .V = 61, .room = 3}, /* up to the padded width    */
        {.R = 7, .C = 24, .V = 61, .room = 2}, /* less than the padded width */
        {.R = 13, .C = 17, .V = 130, .room = 200, .acc = true},
        {.R = 33, .C = 16, .V = 64, .acc = true, .at = true},
        {.R = 6, .C = 12, .V = 257, .loss_only = true},
        {.R = 70, .C = 16, .V = 9001, .room = 64, .mib = 1}, /* several chunks            */
        {.R = 70, .C = 16, .V = 9001, .mib = 1, .acc = true, .at = true},
        {.R = 19, .C = 16, .V = 131, .n_part = 2},
        {.R = 19, .C = 24, .V = 200, .room = 64, .n_part = 3, .acc = true, .at = true},
        {.R = 5, .C = 8, .V = 67, .n_part = 2, .loss_only = true},
    };
    for (size_t t = 0; t < N_OF(types); t++) {
        backend b = open_cuda(types[t]);
        for (size_t i = 0; i < N_OF(shapes); i++) try(&b, &shapes[i], 100 * t + i);
        cuda_close(&b.c);
    }
}

/* A call with fewer rows than planned, and so with fewer chunks, fits into the planned scratch. */
static void fewer_rows_need_no_more_scratch(void **state)
{
    (void)state;
    backend b = open_cuda(LS_BF16);
    setenv("LS_CLASSIFIER_MIB", "64", 1);
    const cuda *u = b.c.impl;
    size_t before = 0;
    for (int64_t R = 1; R < 70000; R += 997) {
        const size_t n =
            cuda_classifier_scratch(u, &(ls_compute_shapes){.B = 1, .T = R, .C = 768, .V = 50257, .backward = true});
        assert_true(n >= before && n <= (64 << 20) + 256);
        before = n;
    }
    unsetenv("LS_CLASSIFIER_MIB");
    const ls_compute_shapes big = {.B = 64, .T = 1024, .C = 768, .V = 50257, .backward = true};
    assert_int_equal(cuda_classifier_scratch(u, &big), (size_t)11008 * 50304 * 2);
    cuda_close(&b.c);
}

/* Without rows there is no gradient; dw is cleared, or unchanged when gradients are accumulated. */
static void no_rows_leave_no_gradient(void **state)
{
    (void)state;
    backend b = open_cuda(LS_F32);
    double seven[24];
    for (int i = 0; i < 24; i++) seven[i] = 7;
    for (int acc = 0; acc < 2; acc++) {
        float *dw = num_device(LS_F32, seven, 24, 0);
        float x = 0;
        assert_int_equal(b.c.ops->classifier(&b.c, &(ls_classifier){.dx = &x, .dw = dw, .C = 8, .V = 3, .acc = acc}),
                         LS_OK);
        double *got = num_host(LS_F32, dw, 24);
        for (int i = 0; i < 24; i++) assert_true(got[i] == (acc ? 7 : 0));
        ls_free(got);
        CU(cudaFree(dw));
    }
    cuda_close(&b.c);
}

/* A value that means nothing is refused, with the variable and what it may be; an empty one is not set. */
static void environment_variables_are_checked(void **state)
{
    static const struct {
        const char *name, *bad[4], *good, *words;
    } row[] = {{"LS_CUDA_GRAPHS", {"no", "2", "00"}, "1", "use 0 or 1"},
               {"LS_GEMM_TUNE", {"zzz", "2"}, "0", "use 0, 1 or again"},
               {"LS_CUPTI", {"zzz", "on"}, "graph", "use graph or off"},
               {"LS_CLASSIFIER_MIB", {"foo", "-3", "99999999999999999999", "1048577"}, "64", "from 1 to 1048576"}};
    (void)state;
    for (size_t i = 0; i < N_OF(row); i++) {
        ls_compute c = {0};
        for (int k = 0; k < 4 && row[i].bad[k]; k++) {
            setenv(row[i].name, row[i].bad[k], 1);
            assert_int_equal(cuda_open(&(ls_compute_open_opts){.dtype = LS_F32}, &c), LS_E_CONFIG);
            assert_non_null(strstr(ls_err_words(), row[i].name));
            assert_non_null(strstr(ls_err_words(), row[i].bad[k]));
            assert_non_null(strstr(ls_err_words(), row[i].words));
        }
        for (int empty = 0; empty < 2; empty++) {
            setenv(row[i].name, empty ? "" : row[i].good, 1);
            backend b = open_cuda(LS_F32);
            cuda_close(&b.c);
        }
        unsetenv(row[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_matches_the_cpu_reference),
        cmocka_unit_test(fewer_rows_need_no_more_scratch),
        cmocka_unit_test(no_rows_leave_no_gradient),
        cmocka_unit_test(environment_variables_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
