/* cmocka_all.h - cmocka with the headers that must come before it. */
#ifndef LS_TESTS_CMOCKA_ALL_H
#define LS_TESTS_CMOCKA_ALL_H

/* clang-format off: cmocka.h needs these four first */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
/* clang-format on */

/* Ends the test as skipped, with the reason, unless it can run. */
#define SKIP_UNLESS(can, reason)                      \
    do {                                              \
        if (!(can)) {                                 \
            print_message("skipped: %s\n", (reason)); \
            skip();                                   \
        }                                             \
    } while (0)

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

#endif
