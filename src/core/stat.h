/* stat.h - means with 95 % intervals, ratios of two settings, Student's t distribution, medians.
 *
 *   ratio      b / a, the geometric mean: exp(mean d). Paired: d_k = ln(b_k / a_k) of two runs made one after the other, so that common
 *              slowdowns cancel. Unpaired: mean ln(b) - mean ln(a), with the spread of both and Welch's degrees of freedom
 *   error      at least LS_LEAST_ERROR of the ratio, since recorded times are rounded. Below that, fewer than LS_PLAN_PAIRS pairs have no p
 *   shown      a difference is shown if p is below 1 % (one comparison of a setting with itself in a hundred) and, corrected by Holm for
 *              all pairs of the settings, below 5 % (one table in twenty, also for the fastest, which is chosen by the same data)
 */
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

/* The geometric mean of positive values; stdev and half are those of the logarithms, times the mean. */
ls_estimate ls_geometric_of(const double *x, int n);

#define LS_SHOWN_P     0.01
#define LS_SHOWN_HOLM  0.05
#define LS_LEAST_ERROR 1e-4 /* relative */
#define LS_PLAN_PAIRS  4    /* fewer say nothing about how many are needed */

/* Two settings by their speeds: b relative to a. */
typedef struct ls_ratio {
    int n; /* pairs; unpaired: runs of each, the smaller number                */
    bool paired;
    double ratio, low, high; /* and the 95 % interval; NaN without two pairs, or as p            */
    double p, holm;          /* NaN: not known; corrected by Holm (ls_holm; before that, p)      */
    double noise;            /* standard deviation of ln(b/a), of one run of each                */
    double visible;          /* smallest change detected four times in five; NaN: fewer than LS_PLAN_PAIRS */
    int shown;               /* 1: b is faster, -1: slower, 0: no difference is shown            */
} ls_ratio;

/* Larger is better (pass times as 1/time). Pairs (unpaired: values) that are not positive and finite are skipped; paired: nb is na. */
ls_ratio ls_ratio_of(const double *a, int na, const double *b, int nb, bool paired);
/* Corrects n comparisons out of a family of `all`, whose others are not known, and sets `shown`; returns how many have p. */
int ls_holm(ls_ratio *const *r, int n, int all);
int ls_pairs_for(double noise, double change); /* pairs needed to detect this change */

double ls_t95(double df);                           /* two-sided 95 % quantile of Student's t; NaN below df 1       */
double ls_t_quantile(double confidence, double df); /* two-sided: P(|t| <= q) = confidence, 0 <= confidence < 1     */
double ls_t_two_sided(double t, double df);         /* p value: P(|T| >= |t|)                                       */
double ls_median(const double *sorted, int n);      /* NaN for none                                                 */
int ls_by_value(const void *a, const void *b);      /* for qsort of doubles                                         */

#endif
