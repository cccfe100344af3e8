/* Generation: the cache gives what a whole pass gives, however a text is cut into pieces; sampling is a function with the right frequencies. */
#include "cmocka_all.h"
#include "core/mem.h"
#include "core/rng.h"
#include "model_fixture.h"
#include "train/session.h"

#include <math.h>

static double farthest(const float *a, const float *b, int n)
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (d > worst) worst = d;
    }
    return worst;
}

static void the_cache_changes_nothing(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        ls_model_config cfg = small_config((ls_variant)v, 0);
        cfg.n_embd = 32;
        cfg.n_ctx = 24;
        fixture f;
        assert_int_equal(fixture_open(&f, &cfg, "cpu", LS_F32, 2, 1, 24, 1, false, 1), LS_OK);
        fixture_batch(&f, 3);
        float whole[24 * 19];
        ls_micro mb = {.ids = f.ids, .B = 1, .T = 24};
        assert_int_equal(ls_walk_fwd(f.model, f.acts, &mb, NULL, 0, f.model->n_unit), LS_OK);
        assert_int_equal(ls_model_logits(f.model, f.acts, &mb, false, whole), LS_OK);

        /* the same weights behind a cache, in pieces of at most 5 */
        ls_session s = {.compute = f.compute, .model = f.model};
        assert_int_equal(ls_acts_plan(&s.acts, f.model, &(ls_acts_opts){.B = 1, .T = 5, .cache_len = 24}, &s.plan),
                         LS_OK);
        assert_int_equal(ls_plan_layout(&s.plan), LS_OK);
        assert_int_equal(ls_plan_alloc(&s.plan, false), LS_OK);
        ls_acts_bind(s.acts, f.model, &s.plan);
        float logits[19];
        s.logits = logits;
        static const int cuts[][4] = {{24}, {1, 23}, {7, 1, 16}, {12, 11, 1}};
        double worst = 0;
        for (size_t c = 0; c < N_OF(cuts); c++) {
            int pos = 0;
            for (int i = 0; i < 4 && cuts[c][i]; i++) {
                assert_int_equal(ls_session_feed(&s, f.ids + pos, cuts[c][i], pos), LS_OK);
                pos += cuts[c][i];
                worst = fmax(worst, farthest(logits, whole + (pos - 1) * 19, 19));
            }
        }
        print_message("variant %d: worst difference of a logit %.2e\n", v, worst);
        assert_true(worst < 2e-5); /* logits of order 1; seen 1e-6: other sums in the softmax */
        ls_acts_destroy(&s.acts);
        ls_plan_fini(&s.plan);
        fixture_close(&f);
    }
}

static void sampling(void **state)
{
    (void)state;
    const float logits[5] = {1.0f, 3.0f, 2.0f, 3.0f, -50.0f};
    ls_sample_work work[5];
    ls_sampling greedy = {.temperature = 0, .top_p = 1};
    assert_int_equal(ls_sample(&greedy, logits, 5, 0, work), 1); /* the lower of equal ones */

    static const ls_sampling how[] = {{1, 0, 1, 9}, {0.5, 0, 1, 9}, {1, 2, 1, 9}, {1, 0, 0.6, 9}, {1, 3, 0.9, 9}};
    for (size_t h = 0; h < N_OF(how); h++) {
        /* what may be drawn, by hand: sorted 1, 3, 2, 0, 4 */
        static const int order[5] = {1, 3, 2, 0, 4};
        double p[5] = {0}, sum = 0;
        int n = how[h].top_k ? (int)how[h].top_k : 5;
        for (int i = 0; i < n; i++) sum += p[order[i]] = exp((double)logits[order[i]] / how[h].temperature);
        double head = 0;
        for (int i = 0; i < n; i++) {
            if (head >= how[h].top_p * sum) p[order[i]] = 0;
            head += p[order[i]];
        }
        double kept = 0;
        for (int i = 0; i < 5; i++) kept += p[i];
        int count[5] = {0};
        const int draws = 40000;
        for (int i = 0; i < draws; i++) count[ls_sample(&how[h], logits, 5, i, work)]++;
        for (int i = 0; i < 5; i++) {
            const double want = draws * p[i] / kept, sigma = sqrt(want + 1);
            if (fabs(count[i] - want) > 5 * sigma)
                fail_msg("setting %zu id %d: %d drawn, %.0f expected", h, i, count[i], want);
        }
        assert_int_equal(ls_sample(&how[h], logits, 5, 17, work), ls_sample(&how[h], logits, 5, 17, work));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_cache_changes_nothing), cmocka_unit_test(sampling)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
