/* assert_near.h - a check of floating-point numbers that prints both. */
#ifndef LS_TESTS_ASSERT_NEAR_H
#define LS_TESTS_ASSERT_NEAR_H

#include "cmocka_all.h"

#include <math.h>

/* |got - want| <= tolerance. Fails for NaN. */
#define assert_near(got, want, tolerance)                                             \
    do {                                                                              \
        const double got_ = (got), want_ = (want), tolerance_ = (tolerance);          \
        if (!(fabs(got_ - want_) <= tolerance_))                                      \
            fail_msg("got %.17g, expected %.17g within %g", got_, want_, tolerance_); \
    } while (0)

#endif
