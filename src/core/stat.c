/* stat.c - Student's t through the incomplete beta function: P(|T| >= t) = I_x(df/2, 1/2) with x = df/(df + t^2). */
#include "core/stat.h"

#include <math.h>
#include <stddef.h>

/* Continued fraction of the incomplete beta function (modified Lentz); converges quickly for x < (a+1)/(a+b+2). */
static double beta_fraction(double x, double a, double b)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double f = d;
    for (int m = 1; m < 500; m++) {
        for (int odd = 0; odd < 2; odd++) {
            const double k = odd ? -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
                                 : m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
            d = 1 + k * d;
            c = 1 + k / c;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = fabs(c) < tiny ? tiny : c;
            f *= c * d;
        }
        if (fabs(c * d - 1) < 1e-15) break;
    }
    return f;
}

static double incomplete_beta(double x, double a, double b)
{
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(x, a, b) / a;
    return 1 - front * beta_fraction(1 - x, b, a) / b;
}

double ls_t_two_sided(double t, double df)
{
    if (!(df >= 1) || isnan(t)) return NAN;
    return isinf(t) ? 0 : incomplete_beta(df / (df + t * t), df / 2, 0.5);
}

double ls_t_quantile(double confidence, double df)
{
    if (!(df >= 1) || !(confidence >= 0 && confidence < 1)) return NAN;
    double low = 0, high = 1;
    while (ls_t_two_sided(high, df) > 1 - confidence && high < 1e15) high *= 2;
    for (int i = 0; i < 200 && high - low > 1e-14 * high; i++) {
        const double mid = (low + high) / 2;
        if (ls_t_two_sided(mid, df) > 1 - confidence) low = mid;
        else high = mid;
    }
    return (low + high) / 2;
}

double ls_t95(double df)
{
    return ls_t_quantile(0.95, df);
}

ls_estimate ls_estimate_of(const double *x, int n)
{
    ls_estimate e = {.mean = NAN, .stdev = NAN, .half = NAN};
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(x[i])) sum += x[i], e.n++;
    if (!e.n) return e;
    e.mean = sum / e.n;
    for (int i = 0; i < n; i++)
        if (!isnan(x[i])) squares += (x[i] - e.mean) * (x[i] - e.mean);
    e.stdev = e.n > 1 ? sqrt(squares / (e.n - 1)) : 0.0;
    if (e.n > 1) e.half = ls_t95(e.n - 1) * e.stdev / sqrt(e.n);
    return e;
}

ls_estimate ls_welch(const ls_estimate *a, const ls_estimate *b, double *df)
{
    ls_estimate e = {.mean = b->mean - a->mean, .stdev = NAN, .half = NAN, .n = a->n < b->n ? a->n : b->n};
    double freedom = NAN;
    if (e.n > 1) {
        const double va = a->stdev * a->stdev / a->n, vb = b->stdev * b->stdev / b->n, v = va + vb;
        freedom = v > 0 ? v * v / (va * va / (a->n - 1) + vb * vb / (b->n - 1)) : a->n + b->n - 2;
        if (!(freedom >= e.n - 1)) freedom = e.n - 1; /* its lower bound, which rounding may pass */
        e.stdev = sqrt(a->stdev * a->stdev + b->stdev * b->stdev);
        e.half = ls_t95(freedom) * sqrt(v);
    }
    if (df) *df = freedom;
    return e;
}

/* ln(b/a), or ln(b) without a: mean, spread and interval. Values that are not positive and finite are left out. */
static ls_estimate logs_of(const double *a, const double *b, int n)
{
    ls_estimate e = {.mean = NAN, .stdev = NAN, .half = NAN};
    double sum = 0, squares = 0;
    for (int pass = 0; pass < 2; pass++) /* the second needs the mean of the first */
        for (int i = 0; i < n; i++) {
            const double x = a ? b[i] / a[i] : b[i], d = log(x);
            if (!(x > 0) || !isfinite(d) || (a && !(a[i] > 0))) continue;
            if (pass) squares += (d - sum / e.n) * (d - sum / e.n);
            else sum += d, e.n++;
        }
    if (e.n) e.mean = sum / e.n;
    if (e.n > 1) e.stdev = sqrt(squares / (e.n - 1)), e.half = ls_t95(e.n - 1) * e.stdev / sqrt(e.n);
    return e;
}

ls_estimate ls_geometric_of(const double *x, int n)
{
    ls_estimate e = logs_of(NULL, x, n);
    double least = INFINITY, most = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > 0 && isfinite(x[i])) least = fmin(least, x[i]), most = fmax(most, x[i]);
    if (!e.n) return e;
    e.mean = fmin(fmax(exp(e.mean), least), most); /* equal values: without rounding */
    e.stdev = e.n > 1 ? e.stdev * e.mean : 0;
    e.half *= e.mean;
    return e;
}

static const double z80 = 0.8416; /* a one-sided quantile: four times in five */

static void ratio_decide(ls_ratio *r)
{
    r->shown = r->p < LS_SHOWN_P && r->holm < LS_SHOWN_HOLM ? (r->ratio > 1 ? 1 : -1) : 0;
}

ls_ratio ls_ratio_of(const double *a, int na, const double *b, int nb, bool paired)
{
    ls_ratio r = {
        .paired = paired, .ratio = NAN, .low = NAN, .high = NAN, .p = NAN, .holm = NAN, .noise = NAN, .visible = NAN};
    ls_estimate d;
    double df, error;
    if (paired) {
        d = logs_of(a, b, na);
        df = d.n - 1;
        error = d.stdev / sqrt(d.n);
    } else {
        const ls_estimate x = logs_of(NULL, a, na), y = logs_of(NULL, b, nb);
        d = ls_welch(&x, &y, &df);
        error = sqrt(x.stdev * x.stdev / x.n + y.stdev * y.stdev / y.n);
    }
    r.n = d.n;
    r.ratio = exp(d.mean);
    if (r.n < 2) return r;
    r.noise = d.stdev;
    if (r.n < LS_PLAN_PAIRS && error < LS_LEAST_ERROR) return r;
    error = fmax(error, LS_LEAST_ERROR);
    const double half = ls_t95(df) * error;
    r.low = exp(d.mean - half);
    r.high = exp(d.mean + half);
    r.p = r.holm = ls_t_two_sided(d.mean / error, df);
    if (r.n >= LS_PLAN_PAIRS) r.visible = expm1((ls_t_quantile(1 - LS_SHOWN_P, df) + z80) * error);
    ratio_decide(&r);
    return r;
}

int ls_holm(ls_ratio *const *r, int n, int all)
{
    int m = 0;
    double least = 0;
    for (int i = 0; i < n; i++) m += r[i]->p >= 0, r[i]->holm = NAN;
    for (int k = 0; k < m; k++) {
        ls_ratio *next = NULL;
        for (int i = 0; i < n; i++)
            if (r[i]->p >= 0 && isnan(r[i]->holm) && (!next || r[i]->p < next->p)) next = r[i];
        next->holm = least = fmin(1, fmax(least, (all - k) * next->p));
        ratio_decide(next);
    }
    return m;
}

int ls_pairs_for(double noise, double change)
{
    const double size = fabs(log1p(change));
    if (!(noise > LS_LEAST_ERROR) || !(size > 0)) return LS_PLAN_PAIRS;
    for (int n = 2; n < 10000; n++)
        if ((ls_t_quantile(1 - LS_SHOWN_P, n - 1) + z80) * noise / sqrt(n) <= size) return n;
    return 10000;
}

int ls_by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ls_median(const double *sorted, int n)
{
    if (n < 1) return NAN;
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}
