/* estimate.c - means with intervals. */
#include "report/analysis.h"

#include <math.h>

double ls_t95(int df)
{
    static const double t[] = {12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
                               2.2010,  2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860};
    if (df < 1) return NAN;
    if (df <= 20) return t[df - 1];
    double z = 1.959964, d = df; /* Cornish-Fisher: within 2e-4 from 20 on */
    return z + (z * z * z + z) / (4 * d) + (5 * pow(z, 5) + 16 * pow(z, 3) + 3 * z) / (96 * d * d);
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
