/* Shards of a model: together they cover the model exactly once, their initial weights are those of the whole model, the gradient norm
 * counts every element once, and a step sends the number of elements that parallel/tensor.h documents. */
#include "cmocka_all.h"
#include "model_fixture.h"
#include "parallel/strategy.h"
#include "parallel/tensor.h"

#include <math.h>
#include <string.h>

static ls_model_config config(ls_variant variant)
{
    ls_model_config c = small_config(variant, 0);
    c.n_head = 4;
    c.n_embd = 32;
    c.vocab_size = 37; /* not a multiple of the number of workers */
    return c;
}

/* Allocates parameters for all units of the model. */
static void *take_units(ls_model *m)
{
    int64_t total = 0;
    for (int u = 0; u < m->n_unit; u++) total += m->unit[u].n_pad;
    float *all = ls_alloc((size_t)total * sizeof *all), *at = all;
    assert_non_null(all);
    for (int u = 0; u < m->n_unit; u++) {
        m->unit[u].param = at;
        at += m->unit[u].n_pad;
    }
    return all;
}

static void shards_cover_the_model_exactly_once(void **state)
{
    (void)state;
    for (int variant = 0; variant < 2; variant++) {
        const ls_model_config cfg = config(variant ? LS_VARIANT_R1 : LS_VARIANT_HF);
        ls_compute compute;
        ls_model *whole;
        assert_int_equal(ls_compute_open(&compute, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 1), LS_OK);
        assert_int_equal(ls_model_create(&whole, &cfg, &compute, 8), LS_OK);
        void *memory = take_units(whole);
        ls_model_init(whole, 9);
        for (int T = 1; T <= 4; T *= 2) {
            for (int u = 0; u < whole->n_unit; u++) {
                const int64_t n = whole->unit[u].n;
                int *seen = ls_alloc((size_t)n * sizeof *seen), *saved = ls_alloc((size_t)n * sizeof *saved);
                assert_true(seen && saved);
                for (int t = 0; t < T; t++) {
                    ls_model *m;
                    assert_int_equal(ls_model_create_shard(&m, &cfg, &compute, 8, (ls_shard){.rank = t, .size = T}),
                                     LS_OK);
                    void *mine = take_units(m);
                    ls_model_init(m, 9);
                    const ls_unit *x = &m->unit[u];
                    assert_int_equal(x->n_whole, n);
                    for (int64_t i = 0, k, at; i < x->n; i += k) {
                        bool everywhere;
                        k = ls_unit_run(x, i, &at, &everywhere);
                        assert_true(k > 0 && at >= 0 && at + k <= n);
                        assert_memory_equal((float *)x->param + i, (float *)whole->unit[u].param + at,
                                            (size_t)k * sizeof(float));
                        for (int64_t j = 0; j < k; j++)
                            if (!everywhere || t == 0) seen[at + j]++;
                    }
                    /* the same for the pieces of a checkpoint, from two halves of the flat buffer */
                    const ls_piece half[2] = {
                        {LS_FLAT_PARAM, u, 0, x->n_pad / 2, x->param},
                        {LS_FLAT_PARAM, u, x->n_pad / 2, x->n_pad - x->n_pad / 2, (float *)x->param + x->n_pad / 2}};
                    const int64_t n_piece = ls_tensor_pieces(m, half, 2, true, NULL);
                    ls_piece *piece = ls_alloc((size_t)(n_piece + 1) * sizeof *piece);
                    assert_non_null(piece);
                    assert_int_equal(ls_tensor_pieces(m, half, 2, true, piece), n_piece);
                    for (int64_t k = 0; k < n_piece; k++) {
                        assert_true(piece[k].unit == u && piece[k].what == LS_FLAT_PARAM && piece[k].n > 0);
                        assert_memory_equal(piece[k].data, (float *)whole->unit[u].param + piece[k].first,
                                            (size_t)piece[k].n * sizeof(float));
                        for (int64_t j = 0; j < piece[k].n; j++) saved[piece[k].first + j]++;
                    }
                    if (T == 1) assert_int_equal(n_piece, 2); /* contiguous elements stay one piece */
                    ls_free(piece);
                    ls_free(mine);
                    ls_model_destroy(&m);
                }
                for (int64_t i = 0; i < n; i++) assert_true(seen[i] == 1 && saved[i] == 1);
                ls_free(seen);
                ls_free(saved);
            }
        }
        ls_free(memory);
        ls_model_destroy(&whole);
    }
}

static void heads_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    ls_model_config cfg = config(LS_VARIANT_HF);
    assert_int_equal(ls_shard_check(&cfg, 4), LS_OK);
    assert_int_equal(ls_shard_check(&cfg, 3), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "4 heads over tp 3"));
    assert_int_equal(ls_shard_check(&cfg, 8), LS_E_CONFIG);
    cfg.vocab_size = 3;
    assert_int_equal(ls_shard_check(&cfg, 4), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "3 vocabulary ids over tp 4"));
}

/* The parameters serve as a gradient. Each worker's shard is divided into blocks as a strategy does. */
static void the_norm_counts_each_element_once(void **state)
{
    (void)state;
    const ls_model_config cfg = config(LS_VARIANT_R1);
    ls_compute compute;
    ls_model *whole;
    double judge = 0;
    assert_int_equal(ls_compute_open(&compute, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 1), LS_OK);
    assert_int_equal(ls_model_create(&whole, &cfg, &compute, 1), LS_OK);
    void *memory = take_units(whole);
    ls_model_init(whole, 4);
    for (int u = 0; u < whole->n_unit; u++)
        for (int64_t i = 0; i < whole->unit[u].n; i++) judge += pow(((double)((float *)whole->unit[u].param)[i]), 2);
    for (int T = 2; T <= 4; T *= 2) {
        for (int cuts = 1; cuts <= 2; cuts++) {
            double sum = 0;
            for (int t = 0; t < T; t++) {
                ls_model *m;
                assert_int_equal(ls_model_create_shard(&m, &cfg, &compute, LS_NORM_BLOCK * (int64_t)cuts,
                                                       (ls_shard){.rank = t, .size = T}),
                                 LS_OK);
                void *mine = take_units(m);
                ls_model_init(m, 4);
                for (int u = 0; u < m->n_unit; u++) {
                    const int64_t n = m->unit[u].n_pad / cuts;
                    for (int64_t first = 0; first < m->unit[u].n_pad; first += n) {
                        double block[64], work;
                        const float *grad = (float *)m->unit[u].param + first;
                        assert_true(n / LS_NORM_BLOCK <= 64);
                        assert_int_equal(compute.ops->sumsq(&compute, block, grad, n, LS_NORM_BLOCK), LS_OK);
                        assert_int_equal(ls_tensor_count_once(m, u, grad, first, n, block, &work), LS_OK);
                        for (int64_t i = 0; i < n / LS_NORM_BLOCK; i++) sum += block[i];
                    }
                }
                ls_free(mine);
                ls_model_destroy(&m);
            }
            assert_true(fabs(sum - judge) <= 1e-6 * judge); /* a block is summed in float */
        }
    }
    ls_free(memory);
    ls_model_destroy(&whole);
}

/* Elements that one micro-batch sends, counted by the `dry` backend. */
static void tensor_parallel_sends_the_documented_elements(void **state)
{
    (void)state;
    for (int T = 2; T <= 4; T *= 2) {
        for (int recompute = 0; recompute < 2; recompute++) {
            for (int rank = 0; rank < T; rank++) {
                const ls_model_config cfg = config(LS_VARIANT_HF);
                const int64_t R = 2 * 7, C = cfg.n_embd, L = cfg.n_layer;
                fixture f;
                ls_comm *c;
                double loss;
                assert_int_equal(fixture_open_shard(&f, &cfg, "cpu", LS_F32, 1, 2, 7, 1, recompute, 1,
                                                    (ls_shard){.rank = rank, .size = T}),
                                 LS_OK);
                assert_int_equal(ls_comm_dry(rank, T, &c), LS_OK);
                ls_tensor_join(f.model, c);
                assert_int_equal(fixture_pass(&f, 0, 1, false, &loss), LS_OK);
                assert_int_equal(ls_comm_stats(c, LS_COLL_ALL_REDUCE).elements, (2 * L + 2) * R * C);
                assert_int_equal(ls_comm_stats(c, LS_COLL_ALL_GATHER).elements, 3 * R * T);
                ls_comm_stats_reset(c);
                assert_int_equal(fixture_pass(&f, 0, 1, true, &loss), LS_OK);
                assert_int_equal(ls_comm_stats(c, LS_COLL_ALL_REDUCE).elements, ((recompute ? 6 : 4) * L + 2) * R * C);
                assert_int_equal(ls_comm_stats(c, LS_COLL_ALL_GATHER).elements, 3 * R * T);
                fixture_close(&f);
                ls_comm_destroy(&c);
            }
        }
    }
}

/* The same with sequence parallelism. */
static void sequence_parallel_sends_the_documented_elements(void **state)
{
    (void)state;
    for (int T = 2; T <= 4; T *= 2) {
        for (int recompute = 0; recompute < 2; recompute++) {
            const ls_model_config cfg = config(LS_VARIANT_HF);
            const int64_t R = 2 * 8, C = cfg.n_embd, L = cfg.n_layer, twice = recompute ? 2 * L : 0;
            fixture f;
            ls_comm *c;
            double loss;
            const ls_shard shard = {.rank = T - 1, .size = T, .rows = true};
            assert_int_equal(fixture_open_shard(&f, &cfg, "cpu", LS_F32, 1, 2, 8, 1, recompute, 1, shard), LS_OK);
            assert_int_equal(ls_comm_dry(T - 1, T, &c), LS_OK);
            ls_tensor_join(f.model, c);
            assert_int_equal(ls_model_stream(f.model, R), R * C / T);
            assert_int_equal(fixture_pass(&f, 0, 1, true, &loss), LS_OK);
            assert_int_equal(ls_comm_stats(c, LS_COLL_REDUCE_SCATTER).elements, (4 * L + 2 + twice) * R * C);
            assert_int_equal(ls_comm_stats(c, LS_COLL_ALL_GATHER).elements, (6 * L + 2 + twice) * R * C + 3 * R * T);
            assert_int_equal(ls_comm_stats(c, LS_COLL_ALL_REDUCE).elements, (4 * L + 2) * C);
            fixture_close(&f);
            ls_comm_destroy(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shards_cover_the_model_exactly_once),
                                       cmocka_unit_test(heads_that_do_not_divide_are_refused),
                                       cmocka_unit_test(the_norm_counts_each_element_once),
                                       cmocka_unit_test(tensor_parallel_sends_the_documented_elements),
                                       cmocka_unit_test(sequence_parallel_sends_the_documented_elements)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
