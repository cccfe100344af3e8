/* stat.h - means with 95 % intervals, Student's t distribution, medians. */
#ifndef LS_CORE_STAT_H
#define LS_CORE_STAT_H

#include <stdbool.h>

typedef struct ls_estimate {
    double mean;  /* NaN: not known, as the two others       */
    double stdev; /* sample standard deviation               */
    double half;  /* mean +- half is the 95 % interval       */
    int n;        /* values                                  */
    bool within;  /* the values are steps of one run; else repeats */
} ls_estimate;

/* NaNs are left out; sample standard deviation, 0 for one value; the interval needs two. */
ls_estimate ls_estimate_of(const double *x, int n);

/* b - a of independent values: the mean and, with two values of each, Welch's 95 % interval; *df: its degrees of freedom (may be NULL). */
ls_estimate ls_welch(const ls_estimate *a, const ls_estimate *b, double *df);

double ls_t95(double df);                           /* two-sided 95 % quantile of Student's t; NaN below df 1       */
double ls_t_quantile(double confidence, double df); /* two-sided: P(|t| <= q) = confidence, 0 <= confidence < 1     */
double ls_t_two_sided(double t, double df);         /* p value: P(|T| >= |t|)                                       */
double ls_median(const double *sorted, int n);      /* NaN for none                                                 */
int ls_by_value(const void *a, const void *b);      /* for qsort of doubles                                         */

#endif
