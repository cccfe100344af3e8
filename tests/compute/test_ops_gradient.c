/* test_ops_gradient.c - every backward is the derivative of its forward: central differences in double, on the reference backend.
 *
 * For an operation y(x1, x2, ...) and fixed random weights g, the loss is L = sum g y. The backward is called with dy = g, and
 * each element of each of its gradients is compared with (L(x+h) - L(x-h)) / 2h, h = 1e-5: the truncation error is of order
 * h^2 = 1e-10 and the rounding error 1e-16/h = 1e-11, times the size of L's derivatives. Largest error measured, over the
 * largest gradient of the array: 1.9e-10; the bound is 1e-9. */
/* ls-test: long */
#include "compute/compute.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BOUND 1e-9
#define STEP  1e-5
#define MAX   4096

static const ls_drop DROP = {.p = 0.25f, .key = 77}, OFF = {0};

typedef struct env {
    ls_compute c;
    double scratch[MAX];
    double a[8][MAX];                 /* inputs                              */
    double d[8][MAX];                 /* gradients of the inputs             */
    double y[MAX], g[MAX], t[4][MAX]; /* output, weights, other outputs */
    int64_t n[8], n_y;                /* elements                            */
    int32_t ids[64];
    ls_drop drop;
    ls_gelu kind;
    int64_t B, T, C, H, R, K, N, V, P;
} env;

typedef void (*forward_fn)(env *e);

static void fill(double *x, int64_t n, uint64_t key)
{
    assert_true(n <= MAX);
    for (int64_t i = 0; i < n; i++) x[i] = ls_rng_normal(key, (uint64_t)i);
}

static env *start(void)
{
    env *e = ls_alloc(sizeof *e);
    assert_non_null(e);
    assert_int_equal(ls_compute_open(&e->c, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F64}, 1), LS_OK);
    e->c.scratch = e->scratch;
    e->c.scratch_nbytes = sizeof e->scratch;
    for (int i = 0; i < 8; i++) fill(e->a[i], MAX, (uint64_t)i);
    for (int i = 0; i < 8; i++) fill(e->d[i], MAX, 50 + (uint64_t)i); /* backward must overwrite it */
    fill(e->g, MAX, 99);
    for (int i = 0; i < 64; i++) e->ids[i] = (int32_t)(ls_rng_u64(8, (uint64_t)i) % 5);
    return e;
}

static double loss(env *e, forward_fn forward)
{
    forward(e);
    double sum = 0;
    for (int64_t i = 0; i < e->n_y; i++) sum += e->g[i] * e->y[i];
    return sum;
}

/* Compares d[which] (already made by backward) with the slope of the loss along a[which]. */
static void check(env *e, const char *what, forward_fn forward, int which)
{
    double top = 0, err = 0;
    for (int64_t i = 0; i < e->n[which]; i++) {
        double x = e->a[which][i];
        e->a[which][i] = x + STEP;
        double up = loss(e, forward);
        e->a[which][i] = x - STEP;
        double down = loss(e, forward);
        e->a[which][i] = x;
        double slope = (up - down) / (2 * STEP);
        top = fmax(top, fabs(slope));
        err = fmax(err, fabs(slope - e->d[which][i]));
    }
    printf("%-26s argument %d: error %.1e of %.2f\n", what, which, err / top, top);
    assert_true(top > 0);
    assert_true(err <= BOUND * top);
}

#define OK(call) assert_int_equal((call), LS_OK)

/* ---- forwards: inputs a[..], output y -------------------------------------------------------------------------- */

static void f_embed(env *e)
{
    OK(e->c.ops->embed_fwd(&e->c, e->y, e->ids, 0, e->V, e->a[0], e->a[1], e->B, e->T, e->C, e->drop));
}

static void f_norm(env *e) /* x, w, b */
{
    OK(e->c.ops->layernorm_fwd(&e->c, e->y, e->t[0], e->t[1], e->a[0], e->a[1], e->a[2], e->R, e->C, 1e-5));
}

/* The block's residual: x, delta, w, b. Both outputs count: y with the weights g, the sum with the weights after them. */
static void f_add_norm(env *e)
{
    int64_t n = e->R * e->C;
    OK(e->c.ops->add_layernorm_fwd(&e->c, e->y + n, e->y, e->t[0], e->t[1], e->a[0], e->a[1], e->a[2], e->a[3], e->R,
                                   e->C, 1e-5, e->drop));
}

static void f_linear(env *e) /* x, w, b */
{
    OK(e->c.ops->linear_fwd(&e->c, e->y, e->a[0], e->a[1], e->a[2], e->R, e->K, e->N));
}

static void f_gelu(env *e)
{
    OK(e->c.ops->gelu_fwd(&e->c, e->y, e->a[0], e->n[0], e->kind));
}

static void f_add(env *e) /* x, delta */
{
    OK(e->c.ops->add_fwd(&e->c, e->y, e->a[0], e->a[1], e->n[0], e->drop));
}

static void f_attention(env *e) /* qkv */
{
    OK(e->c.ops->attention_fwd(&e->c, e->y, e->t[0], e->a[0], e->B, e->T, e->H, e->C / e->H, e->drop));
}

static void f_classifier(env *e) /* x, w; g is dloss for every row that counts */
{
    ls_classifier k = {
        .row_loss = e->y, .x = e->a[0], .w = e->a[1], .target = e->ids, .dloss = 0.5, .R = e->R, .C = e->C, .V = e->V};
    OK(e->c.ops->classifier(&e->c, &k));
}

static void f_logits(env *e) /* x, w: the same product as a linear layer with w transposed */
{
    OK(e->c.ops->logits(&e->c, e->y, e->a[0], e->a[1], e->R, e->C, e->V));
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static void embed_bwd_is_the_derivative(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        env *e = start();
        e->B = 2, e->T = 3, e->C = 4, e->V = 6, e->P = 5, e->drop = d ? DROP : OFF;
        e->n[0] = e->V * e->C, e->n[1] = e->P * e->C, e->n_y = e->B * e->T * e->C;
        OK(e->c.ops->embed_bwd(&e->c, e->d[0], e->d[1], e->g, e->ids, 0, e->B, e->T, e->C, e->V, e->P, e->drop, false));
        check(e, "embed", f_embed, 0);
        check(e, "embed", f_embed, 1);
        ls_free(e);
    }
}

static void layer_norm_bwd_is_the_derivative(void **state)
{
    (void)state;
    env *e = start();
    e->R = 4, e->C = 7;
    e->n[0] = e->n_y = e->R * e->C, e->n[1] = e->n[2] = e->C;
    f_norm(e);
    OK(e->c.ops->layernorm_bwd(&e->c, e->d[0], e->d[1], e->d[2], e->g, NULL, e->a[0], e->a[1], e->t[0], e->t[1], e->R,
                               e->C, false));
    for (int i = 0; i < 3; i++) check(e, "layernorm", f_norm, i);
    ls_free(e);
}

static void add_layer_norm_bwd_is_the_derivative(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        env *e = start();
        e->R = 4, e->C = 7, e->drop = d ? DROP : OFF;
        int64_t n = e->R * e->C;
        e->n[0] = e->n[1] = n, e->n[2] = e->n[3] = e->C, e->n_y = 2 * n;
        f_add_norm(e);
        memcpy(e->t[2], e->y + n, (size_t)n * sizeof(double));
        OK(e->c.ops->layernorm_bwd(&e->c, e->d[0], e->d[2], e->d[3], e->g, e->g + n, e->t[2], e->a[2], e->t[0], e->t[1],
                                   e->R, e->C, false));
        OK(e->c.ops->drop_bwd(&e->c, e->d[1], e->d[0], n, e->drop));
        for (int i = 0; i < 4; i++) check(e, d ? "add_layernorm dropout" : "add_layernorm", f_add_norm, i);
        ls_free(e);
    }
}

static void linear_bwd_is_the_derivative(void **state)
{
    (void)state;
    env *e = start();
    e->R = 5, e->K = 3, e->N = 4;
    e->n[0] = e->R * e->K, e->n[1] = e->K * e->N, e->n[2] = e->N, e->n_y = e->R * e->N;
    OK(e->c.ops->linear_bwd(&e->c, e->d[0], e->d[1], e->d[2], e->g, e->a[0], e->a[1], e->R, e->K, e->N, false));
    for (int i = 0; i < 3; i++) check(e, "linear", f_linear, i);
    ls_free(e);
}

static void gelu_bwd_is_the_derivative(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        env *e = start();
        e->kind = k ? LS_GELU_ERF : LS_GELU_TANH;
        e->n[0] = e->n_y = 40;
        OK(e->c.ops->gelu_bwd(&e->c, e->d[0], e->g, e->a[0], 40, e->kind));
        check(e, k ? "gelu erf" : "gelu tanh", f_gelu, 0);
        ls_free(e);
    }
}

static void add_bwd_is_the_derivative(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        env *e = start();
        e->drop = d ? DROP : OFF;
        e->n[0] = e->n[1] = e->n_y = 50;
        memcpy(e->d[0], e->g, 50 * sizeof(double));
        OK(e->c.ops->drop_bwd(&e->c, e->d[1], e->g, 50, e->drop));
        check(e, d ? "add dropout" : "add", f_add, 0);
        check(e, d ? "add dropout" : "add", f_add, 1);
        ls_free(e);
    }
}

static void attention_bwd_is_the_derivative(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        env *e = start();
        e->B = 2, e->T = 6, e->H = 2, e->C = 8, e->drop = d ? DROP : OFF;
        e->n_y = e->B * e->T * e->C, e->n[0] = 3 * e->n_y;
        f_attention(e);
        OK(e->c.ops->attention_bwd(&e->c, e->d[0], e->g, e->y, e->t[0], e->a[0], e->B, e->T, e->H, e->C / e->H,
                                   e->drop));
        check(e, d ? "attention dropout" : "attention", f_attention, 0);
        ls_free(e);
    }
}

static void classifier_gradients_are_the_derivative(void **state)
{
    (void)state;
    env *e = start();
    e->R = 6, e->C = 5, e->V = 7;
    e->n[0] = e->R * e->C, e->n[1] = e->V * e->C, e->n_y = e->R;
    e->ids[3] = -1;
    for (int i = 0; i < e->R; i++) e->g[i] = 0.5;
    ls_classifier k = {.row_loss = e->y,
                       .dx = e->d[0],
                       .dw = e->d[1],
                       .x = e->a[0],
                       .w = e->a[1],
                       .target = e->ids,
                       .dloss = 0.5,
                       .R = e->R,
                       .C = e->C,
                       .V = e->V};
    OK(e->c.ops->classifier(&e->c, &k));
    check(e, "classifier", f_classifier, 0);
    check(e, "classifier", f_classifier, 1);
    ls_free(e);
}

/* logits has no backward of its own (it is used for generation): its derivative is linear_bwd with x and w exchanged. */
static void linear_bwd_is_the_derivative_of_logits(void **state)
{
    (void)state;
    env *e = start();
    e->R = 3, e->C = 4, e->V = 5;
    e->n[0] = e->R * e->C, e->n[1] = e->V * e->C, e->n_y = e->R * e->V;
    OK(e->c.ops->linear_fwd(&e->c, e->d[0], e->g, e->a[1], NULL, e->R, e->V, e->C));
    OK(e->c.ops->linear_bwd(&e->c, NULL, e->d[1], NULL, e->a[0], e->g, NULL, e->R, e->V, e->C, false));
    check(e, "logits", f_logits, 0);
    check(e, "logits", f_logits, 1);
    ls_free(e);
}

/* With the cache, every position gets the same result as with attention over the whole sequence, also when the prompt is split in two. */
static void cached_attention_equals_full_attention(void **state)
{
    (void)state;
    env *e = start();
    int64_t T = 6, H = 2, D = 4, C = H * D;
    e->B = 1, e->T = T, e->H = H, e->C = C, e->drop = OFF;
    f_attention(e);
    for (int64_t cut = 0; cut < T; cut++) {
        double *k = e->t[1], *v = e->t[2], *y = e->t[3];
        if (cut > 0) OK(e->c.ops->attention_cached(&e->c, y, k, v, e->a[0], 1, cut, 0, NULL, T, H, D, true));
        for (int64_t i = cut; i < T; i++)
            OK(e->c.ops->attention_cached(&e->c, y + i * C, k, v, e->a[0] + i * 3 * C, 1, 1, i, NULL, T, H, D, true));
        for (int64_t i = 0; i < T * C; i++) assert_true(fabs(y[i] - e->y[i]) < 1e-14);
    }
    ls_free(e);
}

/* One step of AdamW compared with the formula written out again, from zero moments: with bias correction the first step is
 * lr g/(|g| + eps), and decay pulls p by lr wd p. */
static void adamw_follows_its_formula(void **state)
{
    (void)state;
    env *e = start();
    ls_adamw h = {.lr = 0.1,
                  .beta1 = 0.9,
                  .beta2 = 0.99,
                  .eps = 1e-3,
                  .weight_decay = 0.5,
                  .bias1 = 0.1,
                  .bias2 = 0.01,
                  .grad_scale = 2};
    for (int coupled = 0; coupled < 2; coupled++) {
        h.coupled = coupled;
        memcpy(e->y, e->a[0], 10 * sizeof(double));
        memset(e->t[0], 0, sizeof e->t[0]);
        memset(e->t[1], 0, sizeof e->t[1]);
        OK(e->c.ops->adamw(&e->c, e->y, e->y, e->g, e->t[0], e->t[1], 10, &h));
        for (int i = 0; i < 10; i++) {
            double p = e->a[0][i], g = 2 * e->g[i] + (coupled ? 0.5 * p : 0);
            double want = p - 0.1 * (g / (fabs(g) + 1e-3) + (coupled ? 0 : 0.5 * p));
            assert_true(fabs(e->y[i] - want) < 1e-13);
        }
    }
    ls_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_bwd_is_the_derivative),
        cmocka_unit_test(layer_norm_bwd_is_the_derivative),
        cmocka_unit_test(add_layer_norm_bwd_is_the_derivative),
        cmocka_unit_test(linear_bwd_is_the_derivative),
        cmocka_unit_test(gelu_bwd_is_the_derivative),
        cmocka_unit_test(add_bwd_is_the_derivative),
        cmocka_unit_test(attention_bwd_is_the_derivative),
        cmocka_unit_test(classifier_gradients_are_the_derivative),
        cmocka_unit_test(linear_bwd_is_the_derivative_of_logits),
        cmocka_unit_test(adamw_follows_its_formula),
        cmocka_unit_test(cached_attention_equals_full_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
