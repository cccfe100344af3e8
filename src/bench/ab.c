#include "bench/ab.h"
#include "core/stat.h"

#include <math.h>

static const double z80 = 0.8416; /* a one-sided quantile: four times in five */

/* The interval and the verdict of a mean d with its standard error. */
static void judge(ls_ab *r, double mean, double error, double df)
{
    const double half = ls_t95(df) * error;
    r->low = expm1(mean - half);
    r->high = expm1(mean + half);
    r->p = error > 0 ? ls_t_two_sided(mean / error, df) : mean == 0 ? 1 : 0;
    r->visible = expm1((ls_t_quantile(LS_AB_CONFIDENCE, df) + z80) * error);
    if (r->p < 1 - LS_AB_CONFIDENCE) r->verdict = mean > 0 ? LS_AB_BETTER : LS_AB_WORSE;
}

ls_ab ls_ab_compare(const double *a, const double *b, int n)
{
    ls_ab r = {.change = NAN, .low = NAN, .high = NAN, .p = NAN, .noise = NAN, .visible = NAN};
    double sum = 0, squares = 0;
    for (int pass = 0; pass < 2; pass++) /* the second needs the mean of the first */
        for (int i = 0; i < n; i++) {
            const double d = log(b[i] / a[i]);
            if (!isfinite(d) || !(a[i] > 0)) continue;
            if (pass) squares += (d - sum / r.n) * (d - sum / r.n);
            else sum += d, r.n++;
        }
    if (!r.n) return r;
    const double mean = sum / r.n;
    r.change = expm1(mean);
    if (r.n < 2) return r;
    r.noise = sqrt(squares / (r.n - 1));
    judge(&r, mean, r.noise / sqrt(r.n), r.n - 1);
    return r;
}

/* Mean and spread of the logarithms. */
static ls_estimate logs_of(const double *x, int n)
{
    ls_estimate e = {.mean = NAN};
    double sum = 0, squares = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            if (!(x[i] > 0) || !isfinite(x[i])) continue;
            if (pass) squares += (log(x[i]) - sum / e.n) * (log(x[i]) - sum / e.n);
            else sum += log(x[i]), e.n++;
        }
    if (e.n) e.mean = sum / e.n;
    if (e.n > 1) e.stdev = sqrt(squares / (e.n - 1));
    return e;
}

ls_ab ls_ab_unpaired(const double *a, const double *b, int n)
{
    ls_ab r = {.change = NAN, .low = NAN, .high = NAN, .p = NAN, .noise = NAN, .visible = NAN};
    const ls_estimate x = logs_of(a, n), y = logs_of(b, n);
    double df;
    const ls_estimate d = ls_welch(&x, &y, &df);
    r.n = d.n;
    if (!r.n) return r;
    r.change = expm1(d.mean);
    if (r.n < 2) return r;
    r.noise = d.stdev;
    judge(&r, d.mean, sqrt(x.stdev * x.stdev / x.n + y.stdev * y.stdev / y.n), df);
    return r;
}

const char *ls_ab_words(ls_ab_verdict v)
{
    return v == LS_AB_BETTER ? "better" : v == LS_AB_WORSE ? "worse" : "no difference shown";
}

int ls_ab_pairs_for(double noise, double change)
{
    const double size = fabs(log1p(change));
    if (!(noise > 0) || !(size > 0)) return 2;
    for (int n = 2; n < 10000; n++)
        if ((ls_t_quantile(LS_AB_CONFIDENCE, n - 1) + z80) * noise / sqrt(n) <= size) return n;
    return 10000;
}
