/* Cutting units into stages: the automatic cut compared with all possible cuts, cuts by hand, errors, and the rules of
 * the translation study (docs/REFERENCES.md). */
#include "parallel/stages.h"

#include "core/mem.h"
#include "core/rng.h"
#include "assert_text.h"

#include <float.h>
#include <string.h>

static double cost_of(const ls_part_cost *unit, int a, int b)
{
    double sum = 0;
    for (int u = a; u < b; u++) sum += unit[u].fwd + unit[u].bwd_in + unit[u].bwd_w;
    return sum;
}

/* Tries all cuts of units `from` to n - 1 into k parts and returns the cost of the largest part of the best cut. */
static double every_cut(const ls_part_cost *unit, int from, int n, int k)
{
    if (k == 1) return cost_of(unit, from, n);
    double best = DBL_MAX;
    for (int end = from + 1; end <= n - (k - 1); end++) {
        const double head = cost_of(unit, from, end), tail = every_cut(unit, end, n, k - 1);
        const double worst = head > tail ? head : tail;
        best = worst < best ? worst : best;
    }
    return best;
}

static double largest(const ls_stages *s, const ls_part_cost *unit)
{
    double most = 0;
    for (int g = 0; g < s->n_stage * s->n_chunk; g++) {
        const double c = cost_of(unit, s->first[g], s->first[g + 1]);
        most = c > most ? c : most;
    }
    return most;
}

static void the_balanced_cut_is_the_best(void **state)
{
    (void)state;
    for (uint64_t t = 0; t < 300; t++) {
        ls_part_cost unit[12];
        const int n = 3 + (int)(ls_rng_u64(t, 0) % 9), k = 1 + (int)(ls_rng_u64(t, 1) % (uint64_t)n);
        for (int u = 0; u < n; u++) {
            const double whole = (double)(ls_rng_u64(t, (uint64_t)(10 + u)) % 20); /* also zero and equal costs */
            unit[u] = (ls_part_cost){.fwd = whole, .bwd_in = t % 3 ? ls_rng_uniform(t, (uint64_t)(40 + u)) : 0};
        }
        ls_stages s;
        assert_int_equal(ls_stages_balance(&s, unit, n, k, 1, NULL), LS_OK);
        assert_int_equal(s.first[0], 0);
        assert_int_equal(s.first[k], n);
        for (int g = 0; g < k; g++) assert_true(s.first[g] < s.first[g + 1]);
        const double best = every_cut(unit, 0, n, k);
        assert_true(largest(&s, unit) <= best * (1 + 1e-9));
    }
}

/* GPT-2: blocks of equal cost, an embedding that costs almost nothing, and a head that costs about as much as five blocks. */
static void gpt2_is_cut_by_its_costs(void **state)
{
    (void)state;
    ls_model_config cfg;
    ls_part_cost unit[50], part[8];
    assert_int_equal(ls_model_config_preset("gpt2", &cfg), LS_OK);
    ls_stages_model(&cfg, 4, 512, unit);
    assert_true(unit[0].fwd < 1e-3 * unit[1].fwd);
    const double blocks = (unit[13].fwd + unit[13].bwd_in) / (unit[1].fwd + unit[1].bwd_in + unit[1].bwd_w);
    assert_true(blocks > 4.5 && blocks < 5.5); /* 6 V C / (72 C^2 + attention) */
    ls_stages s;
    assert_int_equal(ls_stages_balance(&s, unit, 14, 4, 1, NULL), LS_OK);
    assert_memory_equal(s.first, ((int[]){0, 5, 9, 13, 14}), 5 * sizeof(int));
    assert_int_equal(ls_stages_balance(&s, unit, 14, 2, 1, NULL), LS_OK);
    assert_memory_equal(s.first, ((int[]){0, 10, 14}), 3 * sizeof(int)); /* embed and 9 blocks; 3 blocks and the head */
    /* 2 ranks x 2 chunks: the same four parts, two per rank */
    assert_int_equal(ls_stages_balance(&s, unit, 14, 2, 2, NULL), LS_OK);
    assert_memory_equal(s.first, ((int[]){0, 5, 9, 13, 14}), 5 * sizeof(int));
    ls_stages_costs(&s, unit, part);
    double sum = 0, all = cost_of(unit, 0, 14);
    for (int g = 0; g < 4; g++) sum += part[g].fwd + part[g].bwd_in + part[g].bwd_w;
    assert_true(sum > all * (1 - 1e-12) && sum < all * (1 + 1e-12));
    ls_str t = {0};
    ls_stages_print(&s, unit, &t);
    assert_non_null(strstr(t.data, "stage 0 chunk 0: units 0-4, embed to block 3, "));
    assert_non_null(strstr(t.data, "stage 1 chunk 1: units 13-13, head, "));
    ls_str_fini(&t);
    /* equal costs are cut evenly, even if other cuts have the same largest part */
    for (int u = 0; u < 7; u++) unit[u] = (ls_part_cost){.fwd = 1};
    assert_int_equal(ls_stages_balance(&s, unit, 7, 3, 1, NULL), LS_OK);
    int count[4] = {0};
    for (int g = 0; g < 3; g++) count[s.first[g + 1] - s.first[g]]++;
    assert_int_equal(count[2], 2);
    assert_int_equal(count[3], 1);
}

static void a_cut_by_hand_covers_each_unit_once(void **state)
{
    (void)state;
    ls_stages s;
    assert_int_equal(ls_stages_parse(&s, "0-3,4-9,10-13", 14, 3, 1), LS_OK);
    assert_memory_equal(s.first, ((int[]){0, 4, 10, 14}), 4 * sizeof(int));
    assert_int_equal(ls_stages_parse(&s, "0,1-12,13", 14, 3, 1), LS_OK);
    assert_memory_equal(s.first, ((int[]){0, 1, 13, 14}), 4 * sizeof(int));
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"0-3,5-9,10-13", "unit 4 is on no stage"},
        {"0-3,7-9,10-13", "units 4-6 are on no stage"},
        {"1-3,4-9,10-13", "unit 0 is on no stage"},
        {"0-3,4-9,10-12", "unit 13 is on no stage"},
        {"0-3,3-9,10-13", "unit 3 is on two stages"},
        {"0-9,4-6,10-13", "units 4-6 are on two stages"},
        {"0-3,4-13", "2 parts, but pp=3 x interleaving 1 needs 3"},
        {"0-3,4-5,6-7,8-13", "4 parts, but pp=3 x interleaving 1 needs 3"},
        {"0-3,4-9,10-14", "unit 14 does not exist; units are 0 to 13 (embed, 12 blocks, head)"},
        {"3-0,4-9,10-13", "3-0: the first unit must not be after the last"},
        {"", "column 1: expected a unit number"},
        {"0-3,,4-13", "column 5: expected a unit number"},
        {"0-,4-13", "column 1: the last unit of 0- is missing"},
        {"0-3;4-13", "column 4: unexpected ';'"},
        {"0-3,4-9,10-13,", "column 14: unexpected ','"},
        {"0-99999999999999999999", "the last unit of 0- is missing"},
        {"a", "column 1"},
    };
    for (size_t i = 0; i < N_OF(bad); i++) {
        assert_int_equal(ls_stages_parse(&s, bad[i].text, 14, 3, 1), LS_E_ARG);
        assert_words(bad[i].words);
    }
}

static void more_parts_than_units_are_refused(void **state)
{
    (void)state;
    ls_part_cost unit[14] = {{0}};
    ls_stages s;
    assert_int_equal(ls_stages_balance(&s, unit, 14, 5, 3, NULL), LS_E_CONFIG);
    assert_non_null(strstr(
        ls_err_words(),
        "12 blocks over pp=5 with interleaving 3: 5 x 3 = 15 parts, but the model has 14 units (embed, 12 blocks, head); pp x interleaving can be at most 14"));
    assert_int_equal(ls_stages_balance(&s, unit, 14, 0, 1, NULL), LS_E_CONFIG);
    assert_int_equal(ls_stages_parse(&s, "0-13", 14, 15, 1), LS_E_CONFIG);
    assert_int_equal(ls_stages_balance(&s, unit, 14, 14, 1, NULL), LS_OK); /* as many parts as units, all with cost 0 */
    const int64_t live = ls_mem_live();
    for (int k = 0;; k++) {
        ls_mem_fail_at(k);
        ls_status st = ls_stages_balance(&s, unit, 14, 3, 2, NULL);
        ls_mem_fail_at(-1);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
    }
}

static double stage_time(const ls_stages *s, const ls_part_cost *unit, int k, int thread)
{
    double sum = 0;
    for (int c = 0; c < s->n_chunk; c++)
        for (int u = s->first[c * s->n_stage + k]; u < s->first[c * s->n_stage + k + 1]; u++)
            sum += unit[u].fwd + unit[u].bwd_in + unit[u].bwd_w;
    return sum / thread;
}

/* All threads are used, no stage gets far more than an equal share, and the slowest stage is never slower than with equal shares. */
static void shared_threads_never_slow_the_slowest_stage(void **state)
{
    (void)state;
    const char *const name[] = {"tiny", "gpt2", "gpt2-medium", "gpt2-xl"};
    for (size_t i = 0; i < 4; i++) {
        ls_model_config c;
        ls_part_cost unit[64];
        assert_int_equal(ls_model_config_preset(name[i], &c), LS_OK);
        ls_stages_model(&c, 1, 256, unit);
        for (int P = 2; P <= 4; P++) {
            for (int n = P; n <= 40; n += 3) {
                ls_stages even, shared;
                int equal[4], thread[4], sum = 0;
                double before = 0, after = 0;
                for (int k = 0; k < P; k++) equal[k] = n / P + (k >= P - n % P);
                assert_int_equal(ls_stages_balance(&even, unit, c.n_layer + 2, P, 1, equal), LS_OK);
                assert_int_equal(ls_stages_share(&shared, thread, unit, c.n_layer + 2, P, 1, n), LS_OK);
                for (int k = 0; k < P; k++) {
                    const double a = stage_time(&even, unit, k, equal[k]), b = stage_time(&shared, unit, k, thread[k]);
                    before = a > before ? a : before;
                    after = b > after ? b : after;
                    sum += thread[k];
                    assert_true(thread[k] >= 1 && thread[k] <= (n / P + 1) * 3 / 2 + 1);
                }
                assert_int_equal(sum, n);
                assert_true(after <= before * (1 + 1e-12));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_threads_never_slow_the_slowest_stage), cmocka_unit_test(the_balanced_cut_is_the_best),
        cmocka_unit_test(gpt2_is_cut_by_its_costs), cmocka_unit_test(a_cut_by_hand_covers_each_unit_once),
        cmocka_unit_test(more_parts_than_units_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
