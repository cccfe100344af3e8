/* ab.h - are two settings different? A paired test, for runs taken in turns (A B B A …).
 *
 *   pair k      one run of each, next to each other in time; d_k = ln(b_k / a_k), so that what slows both cancels
 *   estimate    exp(mean d) - 1, with the 95 % interval of Student's t over pairs
 *   verdict     a difference is claimed when the 99 % interval excludes zero: one false claim in a hundred comparisons of a setting
 *               with itself, so that 20 of them pass with at most one (chance of two: 1.7 %)
 */
#ifndef LS_BENCH_AB_H
#define LS_BENCH_AB_H

#include "core/err.h"

typedef enum ls_ab_verdict { LS_AB_NONE, LS_AB_BETTER, LS_AB_WORSE } ls_ab_verdict; /* of b, against a */

typedef struct ls_ab {
    int n;                    /* pairs                                                                    */
    double change, low, high; /* b against a: 0.05 is 5 % more; the 95 % interval; NaN without two pairs */
    double p;                 /* two-sided                                                                */
    double noise;             /* standard deviation of d                                                  */
    double visible;           /* a difference of this size would be claimed four times in five            */
    ls_ab_verdict verdict;
} ls_ab;

#define LS_AB_CONFIDENCE 0.99

/* Pairs with a value that is not positive and finite are left out. Larger is better (give times as 1/time). */
ls_ab ls_ab_compare(const double *a, const double *b, int n);
const char *ls_ab_words(ls_ab_verdict v);         /* "better", "worse", "no difference shown" */
int ls_ab_pairs_for(double noise, double change); /* pairs that make a difference of this size visible */

#endif
