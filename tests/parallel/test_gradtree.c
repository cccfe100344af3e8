/* The tree of micro-batches: for every number of micro-batches the sum equals a naive recursive sum bit for bit; a running sum does
 * not. Where it is sealed, every bit that changes the sum after a micro-batch changes a hash. */
#include "cmocka_all.h"
#include "model_fixture.h"

#include <math.h>
#include <string.h>

#define MAX_MICRO 21

/* Splits at the largest power of two below n, as described in gradtree.h. */
static void naive(float micro[][64], int first, int n, int width, float *out)
{
    if (n == 1) {
        memcpy(out, micro[first], (size_t)width * sizeof *out);
        return;
    }
    int left = 1;
    while (left * 2 < n) left *= 2;
    float a[64], b[64];
    naive(micro, first, left, width, a);
    naive(micro, first + left, n - left, width, b);
    for (int i = 0; i < width; i++) out[i] = a[i] + b[i];
}

static void check_every_number(ls_gradtree_how how)
{
    int running_differs = 0;
    int64_t nbytes = 0;
    fixture_how = how;
    for (int n = 1; n <= MAX_MICRO; n++) {
        fixture f;
        ls_model_config cfg = small_config(LS_VARIANT_HF, 0);
        assert_int_equal(fixture_open(&f, &cfg, "cpu-ref", LS_F32, 1, 1, 4, n, false, 3), LS_OK);
        static float micro[MAX_MICRO][64];
        float expect[64], running[64] = {0};
        for (int l = 0; l < n; l++) {
            for (int i = 0; i < 64; i++)
                micro[l][i] = (float)ls_rng_normal(7, (uint64_t)(l * 64 + i)) * powf(10, (float)(i % 5));
            for (int i = 0; i < 64; i++) running[i] += micro[l][i];
        }
        if (how == LS_GRADTREE_RUNNING) memcpy(expect, running, sizeof expect);
        else naive(micro, 0, n, 64, expect);
        if (how == LS_GRADTREE_RUNNING) { /* one gradient, however many micro-batches */
            if (n == 1) nbytes = ls_plan_part_bytes(&f.plan, LS_PART_GRAD);
            assert_int_equal(ls_plan_part_bytes(&f.plan, LS_PART_GRAD), nbytes);
        }
        for (int l = 0; l < n; l++) {
            ls_gradtree_begin(f.tree, l);
            for (int u = f.model->n_unit - 1; u >= 0; u--) {
                float *g = f.model->unit[u].grad;
                for (int64_t i = 0; i < f.model->unit[u].n_grad; i++)
                    g[i] = (f.model->unit[u].acc ? g[i] : 0) + micro[l][(i + u) % 64];
                assert_int_equal(fixture_ready(f.tree, u), LS_OK);
            }
        }
        for (int u = 0; u < f.model->n_unit; u++) {
            const float *g = f.model->unit[u].grad;
            for (int64_t i = 0; i < f.model->unit[u].n_grad; i++) assert_memory_equal(&g[i], &expect[(i + u) % 64], 4);
        }
        running_differs += memcmp(running, expect, sizeof expect) != 0;
        fixture_close(&f);
    }
    assert_true(how == LS_GRADTREE_RUNNING || running_differs > 10);
    fixture_how = LS_GRADTREE_PLAIN;
}

static void the_tree_gives_the_naive_sum(void **state)
{
    (void)state;
    check_every_number(LS_GRADTREE_PLAIN);
}

static void paired_gradients_give_the_naive_sum(void **state)
{
    (void)state;
    check_every_number(LS_GRADTREE_PAIRED);
}

static void a_running_sum_takes_one_gradient(void **state)
{
    (void)state;
    check_every_number(LS_GRADTREE_RUNNING);
}

/* A whole model: the sum of the tree equals the gradients of single micro-batches, added here in the same order. */
static void a_models_gradients_sum_in_tree_order(void **state)
{
    (void)state;
    ls_model_config cfg = small_config(LS_VARIANT_HF, 0.1);
    fixture one, many;
    double loss;
    const int n = 5;
    assert_int_equal(fixture_open(&one, &cfg, "cpu-ref", LS_F32, 1, 2, 6, 1, false, 1), LS_OK);
    assert_int_equal(fixture_open(&many, &cfg, "cpu-ref", LS_F32, 1, 2, 6, n, false, 1), LS_OK);
    for (int l = 0; l < n; l++) assert_int_equal(fixture_pass(&many, l, n, true, &loss), LS_OK);
    for (int u = 0; u < one.model->n_unit; u++) {
        const int64_t n_grad = one.model->unit[u].n_grad;
        float *micro[5];
        for (int l = 0; l < n; l++) {
            /* micro-batch l alone, with the loss scaled as for one of n */
            fixture_batch(&one, (uint64_t)l);
            int64_t counted = 0;
            for (int64_t i = 0; i < one.B * one.T; i++) counted += one.target[i] >= 0;
            ls_micro mb = {.ids = one.ids,
                           .target = one.target,
                           .B = one.B,
                           .T = one.T,
                           .train = true,
                           .drop_key = 1234 + (uint64_t)l,
                           .dloss = 1.0 / (double)(counted * n)};
            ls_gradtree_begin(one.tree, 0);
            assert_int_equal(ls_walk(one.model, one.acts, &mb, NULL, LS_FWD, 0, one.model->n_unit), LS_OK);
            assert_int_equal(ls_walk(one.model, one.acts, &mb, NULL, LS_BWD, 0, one.model->n_unit), LS_OK);
            micro[l] = ls_alloc((size_t)n_grad * 4);
            assert_non_null(micro[l]);
            memcpy(micro[l], one.model->unit[u].grad, (size_t)n_grad * 4);
        }
        const float *g = many.model->unit[u].grad;
        for (int64_t i = 0; i < n_grad; i++) {
            float expect = ((micro[0][i] + micro[1][i]) + (micro[2][i] + micro[3][i])) + micro[4][i];
            assert_memory_equal(&g[i], &expect, 4);
        }
        for (int l = 0; l < n; l++) ls_free(micro[l]);
    }
    fixture_close(&one);
    fixture_close(&many);
}

/* The passes of n micro-batches. After number `micro`, the sign of an element of unit 1 in level k is flipped. */
static void add_all(fixture *f, int n, int micro, int k)
{
    for (int l = 0; l < n; l++) {
        ls_gradtree_begin(f->tree, l);
        for (int u = f->model->n_unit - 1; u >= 0; u--) {
            const ls_unit *unit = &f->model->unit[u];
            float *g = unit->grad;
            assert_int_equal(ls_gradtree_read(f->tree, u, l), LS_OK);
            for (int64_t i = 0; i < unit->n_grad; i++) g[i] = (unit->acc ? g[i] : 0) + (float)((l + 1) * (i % 7 + 1));
            assert_int_equal(fixture_ready(f->tree, u), LS_OK);
        }
        float *level = f->tree->level[k * f->model->n_unit + 1];
        if (l == micro) level[5] = -level[5];
    }
    for (int u = 0; u < f->model->n_unit; u++)
        assert_int_equal(ls_gradtree_sum_read(f->tree, u, 0, f->tree->n[u]), LS_OK);
}

static void check_seals(ls_gradtree_how how, int n)
{
    fixture f;
    ls_model_config cfg = small_config(LS_VARIANT_HF, 0);
    fixture_how = how;
    assert_int_equal(fixture_open(&f, &cfg, "cpu-ref", LS_F32, 1, 1, 4, n, false, 3), LS_OK);
    uint64_t kept[64], read[64];
    const int n_seal = ls_gradtree_n_seal(f.tree), U = f.model->n_unit;
    const float *sum = ls_gradtree_sum(f.tree, 1);
    float right = 0;
    assert_true(n_seal <= 64);
    int n_changed = 0;
    for (int micro = -1; micro < n; micro++)
        for (int k = 0; k < (micro < 0 ? 1 : f.tree->n_level); k++) { /* first without a flip */
            memset(kept, 0, sizeof kept);
            memset(read, 0, sizeof read);
            for (int j = 0; j < f.tree->n_level; j++) /* what is left there does not count */
                memset(f.tree->level[j * U + 1], 0, (size_t)f.tree->n[1] * sizeof(float));
            f.tree->seals = (ls_seals){kept, read, true};
            add_all(&f, n, micro, k);
            if (micro < 0) right = sum[5];
            const bool changed = sum[5] != right;
            int differ = -1;
            for (int i = 0; i < n_seal; i++)
                if (kept[i] != read[i]) differ = i;
            assert_int_equal(differ, changed ? k * U + 1 : -1);
            n_changed += changed;
        }
    assert_true(n_changed >= n); /* each micro-batch leaves a level that is read later */
    fixture_close(&f);
    fixture_how = LS_GRADTREE_PLAIN;
}

static void a_bit_that_changes_the_sum_changes_a_hash(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_MICRO; n++) {
        check_seals(LS_GRADTREE_PLAIN, n);
        check_seals(LS_GRADTREE_PAIRED, n);
    }
}

static void a_bit_that_changes_while_a_gradient_waits_changes_a_hash(void **state)
{
    fixture f;
    ls_model_config cfg = small_config(LS_VARIANT_HF, 0);
    uint64_t kept[64] = {0}, read[64] = {0};
    float x[3] = {1, 2, 3};
    (void)state;
    assert_int_equal(fixture_open(&f, &cfg, "cpu-ref", LS_F32, 1, 1, 4, 2, false, 3), LS_OK);
    assert_int_equal(ls_gradtree_waits(f.tree, 1, x, 3, false), LS_OK); /* not sealed: nothing is hashed */
    f.tree->seals = (ls_seals){kept, read, true};
    const int at = f.tree->n_level * f.model->n_unit + 1;
    for (int changed = 0; changed < 2; changed++) {
        assert_int_equal(ls_gradtree_waits(f.tree, 1, x, 3, false), LS_OK);
        if (changed) x[2] = -x[2];
        assert_int_equal(ls_gradtree_waits(f.tree, 1, x, 3, true), LS_OK);
        assert_true(at < ls_gradtree_n_seal(f.tree) && kept[at] && (kept[at] != read[at]) == changed);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_tree_gives_the_naive_sum),
                                       cmocka_unit_test(a_running_sum_takes_one_gradient),
                                       cmocka_unit_test(paired_gradients_give_the_naive_sum),
                                       cmocka_unit_test(a_models_gradients_sum_in_tree_order),
                                       cmocka_unit_test(a_bit_that_changes_the_sum_changes_a_hash),
                                       cmocka_unit_test(a_bit_that_changes_while_a_gradient_waits_changes_a_hash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
