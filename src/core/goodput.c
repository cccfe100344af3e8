/* goodput.c - see goodput.h. */
#include "core/goodput.h"

#include "core/rng.h"

#include <math.h>

static double period_of(const ls_failures *f, double tau)
{
    const double M = f->mtbf / f->hosts;
    return M * exp(f->restart / M) * expm1((tau + f->checkpoint) / M);
}

double ls_goodput_at(const ls_failures *f, int64_t steps)
{
    const double tau = (double)steps * f->step;
    return tau / period_of(f, tau);
}

/* The root in (0, M): (1 - x) exp(x + c) falls from exp(c) > 1 to 0, with x = tau / M and c = C / M. In logarithms, as c may be large. */
static double best_interval(double M, double C)
{
    double low = 0, high = 1;
    for (int i = 0; i < 200; i++) {
        const double x = 0.5 * (low + high);
        if (log1p(-x) + x + C / M > 0) low = x;
        else high = x;
    }
    return low * M;
}

ls_goodput ls_goodput_best(const ls_failures *f)
{
    const double M = f->mtbf / f->hosts, tau = best_interval(M, f->checkpoint), n = floor(tau / f->step);
    ls_goodput g = {.mtbf = M, .young = sqrt(2 * f->checkpoint * M), .best = tau};
    g.steps = n < 1 ? 1 : n > 1e15 ? (int64_t)1e15 : (int64_t)n;
    if (ls_goodput_at(f, g.steps + 1) > ls_goodput_at(f, g.steps)) g.steps++;
    g.goodput = ls_goodput_at(f, g.steps);
    g.checkpoints = g.goodput * f->checkpoint / ((double)g.steps * f->step);
    g.lost = 1 - g.goodput - g.checkpoints;
    return g;
}

/* Time of the next failure: its distance from now has the same distribution whatever happened before. */
static double until_failure(double M, uint64_t key, uint64_t *i)
{
    return -M * log1p(-ls_rng_uniform(key, (*i)++));
}

double ls_goodput_simulate(const ls_failures *f, int64_t steps, uint64_t seed)
{
    enum { RESTARTS = 20000, PERIODS = 10000, MOST_PERIODS = 1000000, MOST_FAILURES = 10000000 };
    const double M = f->mtbf / f->hosts, tau = (double)steps * f->step, work = tau + f->checkpoint;
    const uint64_t key = ls_rng_key(seed, LS_RNG_SAMPLE, 0, 0);
    uint64_t i = 0;
    int n = 0, done = 0;
    double now = 0, next = until_failure(M, key, &i);
    while ((done < PERIODS || n < RESTARTS) && done < MOST_PERIODS && i < MOST_FAILURES) {
        if (now + work <= next) { /* the period ends with a complete checkpoint */
            now += work;
            done++;
            continue;
        }
        n++;
        do { /* also a restart can fail */
            now = next;
            next = now + until_failure(M, key, &i);
        } while (now + f->restart > next && i < MOST_FAILURES);
        now += f->restart;
    }
    return done * tau / now;
}
