/* ab.h - test of two settings: paired for runs in alternating order (A B B A …), Welch's for others.
 *
 *   pair k      one run of each, adjacent in time; d_k = ln(b_k / a_k), so that common slowdowns cancel
 *   unpaired    d = mean ln(b) - mean ln(a), with the spread of both sides and Welch's degrees of freedom: no order of runs matters
 *   estimate    exp(mean d) - 1, with the 95 % interval of Student's t over pairs, or Welch's
 *   verdict     a difference is reported if the 99 % interval excludes zero: one false report per hundred comparisons of a setting
 *               with itself, so at most one in 20 (chance of two: 1.7 %)
 */
#ifndef LS_BENCH_AB_H
#define LS_BENCH_AB_H

#include "core/err.h"

typedef enum ls_ab_verdict { LS_AB_NONE, LS_AB_BETTER, LS_AB_WORSE } ls_ab_verdict; /* of b relative to a */

typedef struct ls_ab {
    int n;                    /* pairs; runs per side, the smaller number, of the unpaired test            */
    double change, low, high; /* b relative to a: 0.05 is 5 % more; the 95 % interval; NaN without two pairs */
    double p;                 /* two-sided                                                                */
    double noise;             /* standard deviation of ln(b/a), of one run of each                        */
    double visible;           /* smallest difference that is detected with a probability of 80 %*/
    ls_ab_verdict verdict;
} ls_ab;

#define LS_AB_CONFIDENCE 0.99

/* Skips pairs with a value that is not positive and finite. Larger is better (pass times as 1/time). */
ls_ab ls_ab_compare(const double *a, const double *b, int n);
ls_ab ls_ab_unpaired(const double *a, const double *b, int n); /* n values each; skips values that are not positive */
const char *ls_ab_words(ls_ab_verdict v);                      /* "better", "worse", "no difference shown" */
int ls_ab_pairs_for(double noise, double change);              /* pairs needed to detect this difference */

#endif
