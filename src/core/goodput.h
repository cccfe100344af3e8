/* goodput.h - the useful share of a long training in which hosts fail, and the best interval between checkpoints.
 *
 *   a period      |  interval: steps  | checkpoint |  interval …
 *   a failure                ↯  restart | the steps since the last checkpoint again, and its checkpoint
 *
 * Failures of the hosts are independent, with exponential times between them, and one of them stops the run: with n hosts the mean time
 * between failures is M = (mean time of one host) / n. They also occur during checkpoints and restarts. With a period of tau + C seconds
 * (interval and checkpoint) and a restart of R seconds, the expected time of a period is (Daly 2006)
 *
 *   T(tau) = M exp(R / M) (exp((tau + C) / M) - 1)          goodput = tau / T(tau)
 *
 *   best tau      the root of (1 - tau / M) exp((tau + C) / M) = 1; then the better of the whole numbers of steps beside it
 *   first order   sqrt(2 C M) (Young 1974): close to it while C and tau are far below M */
#ifndef LS_CORE_GOODPUT_H
#define LS_CORE_GOODPUT_H

#include <stdint.h>

#define LS_GOODPUT_LEAST 1e-4 /* below it a run does not progress: its hours are not a number to print */

typedef struct ls_failures {
    double mtbf; /* mean seconds between failures of one host */
    int hosts;
    double checkpoint; /* seconds in which training waits for a checkpoint */
    double restart;    /* seconds from a failure to the first step of the restarted run */
    double step;       /* seconds of a step */
} ls_failures;

typedef struct ls_goodput {
    double mtbf;        /* of all hosts, seconds */
    double young;       /* seconds, first order  */
    double best;        /* seconds, exact */
    int64_t steps;      /* of the interval: a whole number, at least 1 */
    double goodput;     /* useful time / time, 0 to 1, with an interval of `steps` */
    double checkpoints; /* the shares of the time that are not useful: checkpoints that were kept, */
    double lost;        /* work that was repeated and restarts */
} ls_goodput;

ls_goodput ls_goodput_best(const ls_failures *f);
/* Goodput with an interval of `steps` steps. */
double ls_goodput_at(const ls_failures *f, int64_t steps);
/* The same by an event simulation, without the formula: at least 10,000 periods and 20,000 restarts, at most 1,000,000 periods. If
 * nearly all restarts fail it ends after 10,000,000 failures. */
double ls_goodput_simulate(const ls_failures *f, int64_t steps, uint64_t seed);

#endif
