/* A tensor-parallel model over 2 and 4 workers (threads that use ls_comm_local), in double precision. Every gradient equals that of one
 * worker, and backward is the derivative of the loss: central differences check elements of every tensor, on whichever worker they are.
 *
 * Bounds: only the order of sums differs from one worker, so 1e-12 of the largest element of a tensor; for central differences as in
 * test_model_grad. */
/* ls-test: long */
#include "cmocka_all.h"
#include "model_fixture.h"
#include "parallel/tensor.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PROBES 3 /* elements checked in each tensor */
#define MAX_T  4

typedef struct worker {
    ls_local_world *world;
    int rank, size;
    const ls_model_config *cfg;
    bool recompute, by_rows;
    fixture *one; /* the model on one worker, with gradients */
    double one_loss;
    double worst, worst_difference;
    int n_checked;
    char error[512];
} worker;

#define CHECK(w, cond)                                                                                                 \
    do {                                                                                                               \
        if (!(cond) && !(w)->error[0]) snprintf((w)->error, sizeof(w)->error, "%s:%d: %s", __FILE__, __LINE__, #cond); \
    } while (0)

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    return most;
}

/* The index in this worker's shard of element `whole` of the whole tensor, or -1. */
static int64_t place_of(const ls_tensor *t, int64_t whole)
{
    for (int64_t i = 0, n, first; i < t->n; i += n) {
        n = ls_tensor_run(t, i, &first);
        if (whole >= first && whole < first + n) return i + whole - first;
    }
    return -1;
}

static void against_one(worker *w, const fixture *f)
{
    for (int u = 0; u < f->model->n_unit; u++) {
        const double *grad = f->model->unit[u].grad, *judge = w->one->model->unit[u].grad;
        for (int k = 0; k < f->model->unit[u].n_tensor; k++) {
            const ls_tensor *t = &f->model->unit[u].tensor[k], *o = &w->one->model->unit[u].tensor[k];
            const double scale = fmax(largest(judge + o->offset, o->n), 1e-3);
            for (int64_t i = 0, whole; i < t->n; i++) {
                (void)ls_tensor_run(t, i, &whole);
                const double error = fabs(grad[t->offset + i] - judge[o->offset + whole]) / scale;
                w->worst = fmax(w->worst, error);
                if (error > 1e-12 && !w->error[0])
                    snprintf(w->error, sizeof w->error, "%s[%lld]: %.15g, one worker has %.15g", t->name,
                             (long long)whole, grad[t->offset + i], judge[o->offset + whole]);
            }
        }
    }
}

static void differences(worker *w, fixture *f)
{
    const double h = 1e-5;
    double loss, up = 0, down = 0;
    for (int u = 0; u < f->model->n_unit; u++) {
        for (int k = 0; k < f->model->unit[u].n_tensor; k++) {
            const ls_tensor *t = &f->model->unit[u].tensor[k];
            const int64_t n = t->whole_dim[0] * (t->n_dim > 1 ? t->whole_dim[1] : 1);
            for (int p = 0; p < PROBES; p++) {
                const int64_t i =
                    place_of(t, (int64_t)(ls_rng_u64(93, (uint64_t)(u * 1000 + k * 10 + p)) % (uint64_t)n));
                double *x = (double *)f->model->unit[u].param + t->offset + i, old = 0, scale;
                CHECK(w, fixture_pass(f, 0, 1, true, &loss) == LS_OK && fixture_fold_tied(f->model) == LS_OK);
                const double *grad = (double *)f->model->unit[u].grad + t->offset;
                const double backward = i < 0 ? 0 : grad[i];
                scale = fmax(largest(grad, t->n), 1e-3);
                if (i >= 0) old = *x, *x = old + h;
                CHECK(w, fixture_pass(f, 0, 1, false, &up) == LS_OK);
                if (i >= 0) *x = old - h;
                CHECK(w, fixture_pass(f, 0, 1, false, &down) == LS_OK);
                if (i < 0) continue;
                *x = old;
                const double numeric = (up - down) / (2 * h), error = fabs(numeric - backward) / scale;
                w->worst_difference = fmax(w->worst_difference, error);
                w->n_checked++;
                if (error > 1e-7 && !w->error[0])
                    snprintf(w->error, sizeof w->error, "%s[%lld]: backward %.12g, difference %.12g", t->name,
                             (long long)i, backward, numeric);
            }
        }
    }
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    ls_comm *c = NULL;
    fixture f;
    double loss = 0;
    CHECK(w, ls_comm_local(w->world, w->rank, &c) == LS_OK);
    CHECK(w, fixture_open_shard(&f, w->cfg, "cpu-ref", LS_F64, 1, 2, 8, 1, w->recompute, 1,
                                (ls_shard){.rank = w->rank, .size = w->size, .rows = w->by_rows}) == LS_OK);
    ls_tensor_join(f.model, c);
    CHECK(w, fixture_pass(&f, 0, 1, true, &loss) == LS_OK && fixture_fold_tied(f.model) == LS_OK);
    CHECK(w, fabs(loss - w->one_loss) <= 1e-13 * fabs(loss));
    against_one(w, &f);
    differences(w, &f);
    fixture_close(&f);
    ls_comm_destroy(&c);
    return NULL;
}

static void check(ls_variant variant, int T, double pdrop, bool recompute, bool by_rows)
{
    ls_model_config cfg = small_config(variant, pdrop);
    fixture one;
    worker w[MAX_T];
    pthread_t thread[MAX_T];
    ls_local_world *world = NULL;
    double loss = 0;
    cfg.n_head = 4;
    assert_int_equal(fixture_open(&one, &cfg, "cpu-ref", LS_F64, 1, 2, 8, 1, false, 1), LS_OK);
    assert_int_equal(fixture_pass(&one, 0, 1, true, &loss), LS_OK);
    assert_int_equal(fixture_fold_tied(one.model), LS_OK);
    assert_int_equal(ls_local_world_create(T, (size_t)1 << 20, &world), LS_OK);
    for (int r = 0; r < T; r++) {
        w[r] = (worker){.world = world,
                        .rank = r,
                        .size = T,
                        .cfg = &cfg,
                        .recompute = recompute,
                        .by_rows = by_rows,
                        .one = &one,
                        .one_loss = loss};
        assert_int_equal(pthread_create(&thread[r], NULL, worker_main, &w[r]), 0);
    }
    for (int r = 0; r < T; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < T; r++)
        if (w[r].error[0]) fail_msg("tp %d rank %d: %s", T, r, w[r].error);
    print_message(
        "%s tp %d dropout %.1f recompute %d rows %d: largest error to one worker %.1e; rank 0: %d central differences, largest error %.1e\n",
        ls_variant_word(variant), T, pdrop, recompute, by_rows, w[0].worst, w[0].n_checked, w[0].worst_difference);
    ls_local_world_destroy(&world);
    fixture_close(&one);
}

static void two_workers_get_the_tied_gradients(void **s)
{
    (void)s, check(LS_VARIANT_HF, 2, 0, false, false);
}
static void four_workers_get_tied_gradients_with_dropout(void **s)
{
    (void)s, check(LS_VARIANT_HF, 4, 0.2, false, false);
}
static void recomputing_keeps_the_tied_gradients(void **s)
{
    (void)s, check(LS_VARIANT_HF, 2, 0.2, true, false);
}
static void four_workers_get_the_untied_gradients(void **s)
{
    (void)s, check(LS_VARIANT_R1, 4, 0, false, false);
}
static void two_workers_get_untied_gradients_with_dropout(void **s)
{
    (void)s, check(LS_VARIANT_R1, 2, 0.2, false, false);
}

static void sequence_parallel_keeps_the_tied_gradients(void **s)
{
    (void)s, check(LS_VARIANT_HF, 2, 0.2, false, true);
}
static void sequence_parallel_recomputing_keeps_the_gradients(void **s)
{
    (void)s, check(LS_VARIANT_HF, 4, 0.2, true, true);
}
static void sequence_parallel_keeps_the_untied_gradients(void **s)
{
    (void)s, check(LS_VARIANT_R1, 4, 0, false, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_workers_get_the_tied_gradients),
                                       cmocka_unit_test(four_workers_get_tied_gradients_with_dropout),
                                       cmocka_unit_test(recomputing_keeps_the_tied_gradients),
                                       cmocka_unit_test(four_workers_get_the_untied_gradients),
                                       cmocka_unit_test(two_workers_get_untied_gradients_with_dropout),
                                       cmocka_unit_test(sequence_parallel_keeps_the_tied_gradients),
                                       cmocka_unit_test(sequence_parallel_recomputing_keeps_the_gradients),
                                       cmocka_unit_test(sequence_parallel_keeps_the_untied_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
