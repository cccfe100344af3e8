/* The planner's search over thousands of workers, and its words: why a layout is the best, and what to change. (Predictions and memory: test_planner.c.) */
#include "assert_text.h"
#include "plan/planner_impl.h"
#include "core/mem.h"
#include "cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- thousands of workers ---- */

static ls_planner_query large_query(const char *model, int workers, int64_t batch)
{
    ls_planner_query q = {.global_batch = batch,
                          .seq_len = 512,
                          .workers = workers,
                          .cuda = true,
                          .dtype = LS_BF16,
                          .top = 15,
                          .bucket = 1 << 23};
    assert_int_equal(ls_model_config_preset(model, &q.model), LS_OK);
    return q;
}

static ls_cluster large_cluster(int workers)
{
    ls_cluster cl;
    char name[32];
    snprintf(name, sizeof name, "h100:%d", workers);
    assert_int_equal(ls_cluster_open(name, &cl), LS_OK);
    assert_true(cl.count == workers && cl.hosts == (workers + 7) / 8);
    return cl;
}

/* With --all nothing is left out: the bounded search finds the same first layouts, and every bound is below its prediction. */
static void a_bounded_search_finds_the_fastest_layouts(void **state)
{
    (void)state;
    const ls_cluster cl = large_cluster(128);
    ls_planner_query q = large_query("gpt2", 128, 128);
    q.max_tp = 2;
    ls_planner_result some, all;
    assert_int_equal(ls_planner_search(&cl, &q, &some), LS_OK);
    q.top = 0;
    assert_int_equal(ls_planner_search(&cl, &q, &all), LS_OK);
    print_message("%d of %d layouts evaluated\n", some.n, all.n);
    assert_true(some.n_slow > 0 && !all.n_slow && some.n + some.n_slow == all.n);
    for (int i = 0; i < 15; i++)
        assert_true(some.layout[i].fits && some.layout[i].time.step == all.layout[i].time.step);
    for (int i = 0; i < all.n; i++) {
        const ls_planned *l = &all.layout[i];
        const double least = planner_least(&cl, &l->cfg);
        if (!(least > 0 && least <= l->time.step * (1 + 1e-9))) {
            char words[96];
            ls_planned_words(&l->cfg, words);
            fail_msg("%s: bound %g s, predicted %g s", words, least, l->time.step);
        }
    }
    static const char *const strategy[] = {"ddp", "zero1", "zero2", "zero3"};
    for (size_t k = 0; k < N_OF(strategy); k++) { /* the fastest of each strategy is evaluated, too */
        int a = 0, b = 0;
        while (strcmp(some.layout[a].cfg.strategy, strategy[k])) a++;
        while (strcmp(all.layout[b].cfg.strategy, strategy[k])) b++;
        assert_true(some.layout[a].time.step == all.layout[b].time.step);
    }
    ls_planner_result_fini(&some);
    ls_planner_result_fini(&all);
}

static void dp_is_not_recommended_on_several_hosts(void **state)
{
    (void)state;
    const ls_cluster cl = large_cluster(64);
    ls_planner_query q = large_query("gpt2", 64, 64);
    ls_planner_result r;
    ls_prediction dp, zero1;
    q.max_tp = 1;
    assert_int_equal(ls_planner_search(&cl, &q, &r), LS_OK);
    assert_true(r.no_dp && r.n_fit > 0);
    for (int i = 0; i < r.n; i++) assert_string_not_equal(r.layout[i].cfg.strategy, "dp");
    ls_planner_result_fini(&r);
    q.strategy = "dp"; /* evaluated if it is requested, and at its cost */
    assert_int_equal(ls_planner_search(&cl, &q, &r), LS_OK);
    assert_true(!r.no_dp && r.n_fit > 0);
    ls_planner_result_fini(&r);
    ls_train_config c = ls_planner_config(&q, "dp", (ls_mesh){{64, 1, 1}, 64}, NULL, 1, 1);
    c.bucket = c.gather_bucket = 1 << 26;
    assert_int_equal(ls_planner_predict(&cl, &c, &dp), LS_OK);
    c.strategy = "zero1";
    assert_int_equal(ls_planner_predict(&cl, &c, &zero1), LS_OK);
    assert_true(dp.step > 1.2 * zero1.step && dp.exposed > zero1.exposed && dp.optimizer > 10 * zero1.optimizer);
    q.strategy = NULL;
    q.workers = 8; /* one host: as before */
    assert_int_equal(ls_planner_search(&cl, &q, &r), LS_OK);
    assert_true(!r.no_dp);
    ls_planner_result_fini(&r);
}

/* Steps of latency on several hosts; bytes over the cards of the workers of a host. */
static void collectives_between_hosts_follow_their_algorithm(void **state)
{
    (void)state;
    ls_cluster cl = {.devices = 8, .cards = 8, .inside = {1e-6, 300e9}, .between = {1e-5, 40e9}};
    const ls_coll_group whole = {32, 4, false}, ordered = {32, 4, true}, strided = {4, 4, false};
    const double ring = 3 * 1e-5 + 28 * 1e-6;
#define SEC(kind, group, bytes) ls_cluster_collective(&cl, LS_COLL_##kind, group, bytes)
    assert_true(fabs(SEC(ALL_GATHER, whole, 0) - ring) < 1e-12 && fabs(SEC(BROADCAST, whole, 0) - ring) < 1e-12);
    assert_true(fabs(SEC(ALL_REDUCE, whole, 0) - 2 * (2 * 1e-5 + 7 * 1e-6)) < 1e-12); /* a tree over the hosts */
    assert_true(fabs(SEC(REDUCE_SCATTER, ordered, 0) - (3 * 1e-6 + 2 * 1e-5)) < 1e-12);
    assert_true(fabs(SEC(ALL_REDUCE, ordered, 0) - (3 * 1e-6 + 2 * 1e-5 + ring)) < 1e-12);
    assert_true(fabs(SEC(ALL_GATHER, whole, 3e9) - ring - 3e9 * 31 / 32 / 300e9) <
                1e-9); /* 8 cards: as fast as inside */
    assert_true(fabs(SEC(ALL_GATHER, strided, 3e9) - 3e-5 - 3e9 * 3 / 4 / 40e9) < 1e-9); /* one card */
    assert_true(SEC(REDUCE, ordered, 3e9) > 1.8 * SEC(REDUCE_SCATTER, ordered, 3e9));    /* all parts go to the root */
    cl.cards = 0;
    assert_true(fabs(SEC(ALL_GATHER, whole, 3e9) - ring - 3e9 * 31 / 32 / 40e9) < 1e-9);
#undef SEC
}

static void a_number_of_devices_follows_the_name(void **state)
{
    (void)state;
    ls_cluster cl;
    static const char *const wrong[] = {"h100:0", "h100:16385", "h100:x", "h100:", "h101:8"};
    assert_int_equal(ls_cluster_open("v100:6", &cl), LS_OK);
    assert_true(cl.count == 6 && cl.hosts == 2 && cl.devices == 4);
    for (size_t i = 0; i < N_OF(wrong); i++) assert_int_equal(ls_cluster_open(wrong[i], &cl), LS_E_ARG);
    ls_err_clear();
}

/* ---- words ---- */

/* The text of a search, and what it advises. */
static void explain(const ls_cluster *cl, const ls_planner_query *q, ls_planner_result *r, ls_str *why, ls_str *change)
{
    assert_int_equal(ls_planner_search(cl, q, r), LS_OK);
    ls_planner_explain(r, why);
    ls_planner_advise(cl, q, r, change);
}

static void words_follow_from_the_numbers(void **state)
{
    (void)state;
    const ls_cluster cl = large_cluster(64);
    ls_planner_query q = large_query("gpt2", 64, 64);
    ls_planner_result r;
    ls_str why = {0}, change = {0};
    char part[160];
    q.max_tp = 1;
    explain(&cl, &q, &r, &why, &change);
    const ls_prediction *t = &r.layout[0].time;
    ls_planned_words(&r.layout[0].cfg, part);
    assert_non_null(strstr(why.data, part));
    snprintf(part, sizeof part, "%.1f %% is forward and backward", 100 * (t->forward + t->backward) / t->step);
    assert_non_null(strstr(why.data, part));
    for (int i = 0; i < r.n_fit; i++) { /* the fastest of each other strategy, with its distance */
        const char *strategy = r.layout[i].cfg.strategy;
        int first = 0;
        while (strcmp(r.layout[first].cfg.strategy, strategy)) first++;
        if (first < i || !strcmp(strategy, r.layout[0].cfg.strategy)) continue;
        const double ratio = r.layout[i].time.step / t->step;
        snprintf(part, sizeof part, ratio < 2 ? "%.1f %% slower" : "%.1f times the time",
                 ratio < 2 ? 100 * (ratio - 1) : ratio);
        if (!strstr(why.data, part)) fail_msg("%s: '%s' is not in\n%s", strategy, part, why.data);
    }
    /* the advice is a prediction */
    assert_non_null(strstr(change.data, "--global_batch 256"));
    ls_train_config c = r.layout[0].cfg;
    ls_prediction p;
    c.global_batch = 256;
    c.grad_accum *= 4;
    assert_int_equal(ls_planner_predict(&cl, &c, &p), LS_OK);
    char rate[40];
    snprintf(part, sizeof part, "reaches %s tokens/s (+%.0f %%)", planner_rate_words(rate, p.tokens_per_sec),
             100 * (p.tokens_per_sec / t->tokens_per_sec - 1));
    assert_non_null(strstr(change.data, part));
    ls_planner_result_fini(&r);
    ls_str_fini(&why);
    ls_str_fini(&change);
}

/* 4 workers of one host: 16 bytes per parameter in all (master weights, moments, gradients), buffers of two units for each worker. */
static void offloaded_plans_have_their_host_memory_and_name_the_update(void **state)
{
    (void)state;
    ls_cluster cl;
    ls_planner_query q = large_query("gpt2-xl", 4, 64);
    ls_planner_result r;
    ls_str why = {0}, change = {0}, text = {0};
    char part[160];
    assert_true(ls_cluster_preset("h200", &cl));
    q.offload = true;
    q.strategy = "zero3";
    q.max_tp = 1;
    explain(&cl, &q, &r, &why, &change);
    const ls_planned *l = &r.layout[0];
    assert_true(r.n_fit > 0 && l->cfg.mesh.n[LS_AXIS_DP] == 4);
    const double P = (double)ls_model_n_param(&q.model), buffers = (double)l->host_bytes - 16 * P;
    print_message("%s%.3f GiB, of which buffers %.3f GiB\n", change.data, (double)l->host_bytes / (1 << 30),
                  buffers / (1 << 30));
    assert_true(l->host_bytes % 4 == 0 && buffers > 0 && buffers < 0.1 * 16 * P);
    ls_train_config c = l->cfg;
    ls_plan_memory m;
    assert_int_equal(ls_planner_memory(&c, NULL, (ls_worker_cpu){.threads = 1}, 0, 0, &m), LS_OK);
    assert_true(l->host_bytes == 4 * m.host);
    ls_planner_text(&cl, &q, &r, 1, 1000, &text);
    snprintf(part, sizeof part, "Optimizer state in host memory: %.2f GiB per host", (double)l->host_bytes / (1 << 30));
    assert_non_null(strstr(text.data, part));
    c.global_batch *= 4;
    c.grad_accum *= 4;
    ls_prediction p;
    assert_int_equal(ls_planner_predict(&cl, &c, &p), LS_OK);
    snprintf(part, sizeof part,
             "because the update of parameters takes %.1f %% of its step of %.3g s instead of %.1f %%",
             100 * (p.optimizer + p.other) / p.step, p.step, 100 * (l->time.optimizer + l->time.other) / l->time.step);
    assert_non_null(strstr(change.data, part));
    ls_planner_result_fini(&r);
    q.offload = false; /* GPUs have memory of their own */
    assert_int_equal(ls_planner_search(&cl, &q, &r), LS_OK);
    assert_true(r.n_fit && !r.layout[0].host_bytes);
    ls_planner_result_fini(&r);
    ls_str_fini(&why);
    ls_str_fini(&change);
    ls_str_fini(&text);
}

static void advice_for_layouts_that_do_not_fit_makes_them_fit(void **state)
{
    (void)state;
    const ls_cluster cl = large_cluster(8);
    ls_planner_query q = large_query("gpt2-xl", 8, 64);
    ls_planner_result r;
    ls_str why = {0}, change = {0};
    q.memory = (int64_t)6 << 30;
    q.strategy = "zero3";
    q.max_tp = 1;
    explain(&cl, &q, &r, &why, &change);
    assert_true(!r.n_fit && !why.len);
    print_message("%s", change.data);
    const char *more = strstr(change.data, "--cluster h100:"); /* the query has h100:8, which allows no --workers 16 */
    assert_non_null(more);
    assert_non_null(strstr(change.data, "--offload_optimizer cpu fits"));
    int workers = 0;
    long long batch = 0;
    assert_int_equal(sscanf(more, "--cluster h100:%d --global_batch %lld fits", &workers, &batch), 2);
    ls_planner_result_fini(&r);
    ls_cluster larger = cl;
    larger.hosts = workers / 8;
    q.workers = workers;
    q.global_batch = batch;
    assert_int_equal(ls_planner_search(&larger, &q, &r), LS_OK);
    assert_true(r.n_fit > 0);
    char rate[40], best[64]; /* the best of that command, not only a layout that fits */
    snprintf(best, sizeof best, ", %s tokens/s (", planner_rate_words(rate, r.layout[0].time.tokens_per_sec));
    print_message("best of %d workers: %s\n", workers, best);
    assert_true(strstr(more, best) && strstr(more, best) < strchr(more, '\n'));
    ls_planner_result_fini(&r);
    q = large_query("gpt2", 64, 16); /* fewer sequences than workers */
    change.len = 0;
    q.strategy = "ddp";
    explain(&larger, &q, &r, &why, &change);
    assert_non_null(strstr(
        change.data,
        "16 sequences allow at most 16 replicas, so each replica must be divided into at least 4 stages or shards"));
    ls_planner_result_fini(&r);
    ls_str_fini(&why);
    ls_str_fini(&change);
}
static void no_memory_is_leaked(void **state)
{
    (void)state;
    assert_int_equal(ls_mem_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bounded_search_finds_the_fastest_layouts),
        cmocka_unit_test(dp_is_not_recommended_on_several_hosts),
        cmocka_unit_test(collectives_between_hosts_follow_their_algorithm),
        cmocka_unit_test(a_number_of_devices_follows_the_name),
        cmocka_unit_test(words_follow_from_the_numbers),
        cmocka_unit_test(offloaded_plans_have_their_host_memory_and_name_the_update),
        cmocka_unit_test(advice_for_layouts_that_do_not_fit_makes_them_fit),
        cmocka_unit_test(no_memory_is_leaked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
