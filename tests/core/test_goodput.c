/* Goodput with failures: the formula against an event simulation over a grid of parameters, and the best interval against a search. */
#include "cmocka_all.h"
#include "core/goodput.h"

#include <math.h>
#include <stdio.h>

#define HOUR 3600.0

/* Failures strike steps, checkpoints and restarts: from one in 2000 hours to one in less than a restart and a checkpoint. */
static void goodput_agrees_with_an_event_simulation(void **state)
{
    (void)state;
    static const double mtbf[] = {500 * HOUR, 6300 * HOUR, 50000 * HOUR}, checkpoint[] = {1, 30, 600},
                        restart[] = {0, 120, 1800};
    static const int hosts[] = {1, 64, 2048};
    double worst = 0;
    int n = 0;
    for (size_t a = 0; a < N_OF(mtbf); a++)
        for (size_t b = 0; b < N_OF(hosts); b++)
            for (size_t c = 0; c < N_OF(checkpoint); c++)
                for (size_t d = 0; d < N_OF(restart); d++) {
                    const ls_failures f = {mtbf[a], hosts[b], checkpoint[c], restart[d], 0.75};
                    const ls_goodput g = ls_goodput_best(&f);
                    for (int64_t steps = g.steps / 3 + 1; steps <= 3 * g.steps + 3; steps *= 3) {
                        const double at = ls_goodput_at(&f, steps),
                                     seen = ls_goodput_simulate(&f, steps, 7 + (uint64_t)n);
                        worst = fmax(worst, fabs(seen / at - 1));
                        if (!(fabs(seen / at - 1) < 0.05))
                            fail_msg(
                                "mtbf %g h, %d hosts, checkpoint %g s, restart %g s, %lld steps: %.4f, simulated %.4f",
                                mtbf[a] / HOUR, hosts[b], checkpoint[c], restart[d], (long long)steps, at, seen);
                        n++;
                    }
                }
    print_message("%d cases, worst difference %.2f %%\n", n, 100 * worst);
    assert_true(n > 150);
}

static void the_best_interval_beats_all_others(void **state)
{
    (void)state;
    static const ls_failures all[] = {
        {6300 * HOUR, 2048, 4, 300, 0.1},
        {500 * HOUR, 1024, 120, 900, 2.5},
        {100 * HOUR, 1024, 900, 60, 7}, /* a checkpoint takes longer than a failure is away */
        {10000 * HOUR, 1, 10, 60, 400}};
    for (size_t i = 0; i < N_OF(all); i++) {
        const ls_goodput g = ls_goodput_best(&all[i]);
        assert_true(g.steps >= 1 && g.goodput > 0 && g.goodput < 1);
        for (int64_t k = 1; k < 40 * g.steps; k += 1 + k / 50)
            if (ls_goodput_at(&all[i], k) > g.goodput * (1 + 1e-12))
                fail_msg("case %zu: %lld steps give %.6f, %lld steps %.6f", i, (long long)g.steps, g.goodput,
                         (long long)k, ls_goodput_at(&all[i], k));
        assert_true(fabs(g.goodput + g.checkpoints + g.lost - 1) < 1e-12 && g.lost > 0 && g.checkpoints > 0);
    }
}

static void youngs_interval_is_close_while_failures_are_rare(void **state)
{
    (void)state;
    const ls_failures rare = {50000 * HOUR, 8, 20, 300, 0.5}, often = {100 * HOUR, 1024, 300, 300, 0.5};
    const ls_goodput a = ls_goodput_best(&rare), b = ls_goodput_best(&often);
    assert_true(fabs(a.mtbf - 6250 * HOUR) < 1e-6 && fabs(a.young - sqrt(2 * 20 * a.mtbf)) < 1e-6);
    assert_true(fabs(a.best / a.young - 1) < 0.01);
    assert_true(b.best < 0.8 * b.young && b.goodput < 0.4); /* the first order is wrong here: M is 352 s */
}

static void without_failures_only_checkpoints_cost_time(void **state)
{
    (void)state;
    const ls_failures f = {1e12, 1, 10, 100, 1};
    assert_true(fabs(ls_goodput_at(&f, 90) - 0.9) < 1e-6);
    assert_true(fabs(ls_goodput_simulate(&f, 90, 1) - 0.9) < 1e-3);
    assert_true(ls_goodput_simulate(&f, 90, 1) == ls_goodput_simulate(&f, 90, 1)); /* a function of the seed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goodput_agrees_with_an_event_simulation),
        cmocka_unit_test(the_best_interval_beats_all_others),
        cmocka_unit_test(youngs_interval_is_close_while_failures_are_rare),
        cmocka_unit_test(without_failures_only_checkpoints_cost_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
