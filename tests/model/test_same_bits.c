/* The number of threads, recomputation and padding of the flat buffers change no bit. The fast backend differs from the double reference within a bound
 * (loss 1e-6, every gradient 1e-5 in relative norm; measured: 1e-7 and 7e-7). */
#include "cmocka_all.h"
#include "model_fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static ls_model_config middling(ls_variant v, double pdrop)
{
    ls_model_config c = small_config(v, pdrop);
    c.n_embd = 48;
    c.n_head = 3;
    c.n_ctx = 70;
    c.vocab_size = 301;
    c.init_range = 0.05;
    return c;
}

typedef struct grads {
    double loss;
    double *g; /* all tensors of all units, in order */
    int64_t n;
} grads;

static grads run(const ls_model_config *cfg, const char *backend, ls_dtype dt, int threads, bool recompute, int64_t pad)
{
    fixture f;
    grads r = {0};
    assert_int_equal(fixture_open(&f, cfg, backend, dt, threads, 3, 70, 2, recompute, pad), LS_OK);
    if (dt == LS_F64) { /* the same weights, rounded to float */
        fixture g;
        assert_int_equal(fixture_open(&g, cfg, "cpu-ref", LS_F32, 1, 3, 70, 2, recompute, pad), LS_OK);
        for (int u = 0; u < f.model->n_unit; u++)
            for (int64_t i = 0; i < f.model->unit[u].n; i++)
                ((double *)f.model->unit[u].param)[i] = (double)((float *)g.model->unit[u].param)[i];
        fixture_close(&g);
    }
    for (int micro = 0; micro < 2; micro++) {
        double loss = 0;
        assert_int_equal(fixture_pass(&f, micro, 2, true, &loss), LS_OK);
        r.loss += loss / 2;
    }
    assert_int_equal(fixture_fold_tied(f.model), LS_OK);
    for (int u = 0; u < f.model->n_unit; u++) r.n += f.model->unit[u].n;
    r.g = ls_alloc((size_t)r.n * sizeof *r.g);
    assert_non_null(r.g);
    int64_t at = 0;
    for (int u = 0; u < f.model->n_unit; u++)
        for (int64_t i = 0; i < f.model->unit[u].n; i++)
            r.g[at++] =
                dt == LS_F64 ? ((double *)f.model->unit[u].grad)[i] : (double)((float *)f.model->unit[u].grad)[i];
    fixture_close(&f);
    return r;
}

static void threads_recomputation_and_padding_change_no_bit(void **state)
{
    (void)state;
    for (int variant = 0; variant < 2; variant++) {
        ls_model_config cfg = middling((ls_variant)variant, 0.1);
        grads base = run(&cfg, "cpu", LS_F32, 1, false, 1);
        static const struct {
            int threads;
            bool recompute;
            int64_t pad;
        } other[] = {{2, false, 1}, {3, false, 1},  {7, false, 1},  {1, true, 1},
                     {2, true, 1},  {2, false, 64}, {5, true, 1000}};
        for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
            grads g = run(&cfg, "cpu", LS_F32, other[i].threads, other[i].recompute, other[i].pad);
            print_message("variant %d threads %d recompute %d pad %d\n", variant, other[i].threads, other[i].recompute,
                          (int)other[i].pad);
            assert_memory_equal(&g.loss, &base.loss, sizeof g.loss);
            assert_memory_equal(g.g, base.g, (size_t)g.n * sizeof *g.g);
            ls_free(g.g);
        }
        ls_free(base.g);
    }
}

static void the_fast_backend_is_close_to_the_reference(void **state)
{
    (void)state;
    for (int variant = 0; variant < 2; variant++) {
        for (int drop = 0; drop < 2; drop++) {
            ls_model_config cfg = middling((ls_variant)variant, drop ? 0.1 : 0);
            grads fast = run(&cfg, "cpu", LS_F32, 2, false, 1), reference = run(&cfg, "cpu-ref", LS_F64, 1, false, 1);
            double worst = 0;
            fixture f;
            assert_int_equal(fixture_open(&f, &cfg, "cpu-ref", LS_F32, 1, 1, 2, 1, false, 1), LS_OK);
            int64_t at = 0;
            for (int u = 0; u < f.model->n_unit; u++) {
                for (int k = 0; k < f.model->unit[u].n_tensor; k++) {
                    const ls_tensor *t = &f.model->unit[u].tensor[k];
                    double diff = 0, norm = 0;
                    for (int64_t i = 0; i < t->n; i++) {
                        diff += pow(fast.g[at + i] - reference.g[at + i], 2);
                        norm += pow(reference.g[at + i], 2);
                    }
                    at += t->n;
                    double error = sqrt(diff / fmax(norm, 1e-30));
                    if (error > 1e-5) print_error("%s: relative error %.3g\n", t->name, error);
                    assert_true(error <= 1e-5);
                    worst = fmax(worst, error);
                }
            }
            print_message("variant %d dropout %d: loss error %.2e, worst gradient error %.2e\n", variant, drop,
                          fabs(fast.loss - reference.loss) / reference.loss, worst);
            assert_true(fabs(fast.loss - reference.loss) <= 1e-6 * reference.loss);
            fixture_close(&f);
            ls_free(fast.g);
            ls_free(reference.g);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_recomputation_and_padding_change_no_bit),
                                       cmocka_unit_test(the_fast_backend_is_close_to_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
