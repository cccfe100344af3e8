/* test_argv.h - command lines as text. */
#ifndef LS_TESTS_TEST_ARGV_H
#define LS_TESTS_TEST_ARGV_H

#include "core/err.h"

#include <string.h>

#define TEST_ARGV_MAX 64

/* Splits text at single blanks, in place, and returns the number of arguments. They point into text. */
static inline int test_argv(char *text, char *argv[TEST_ARGV_MAX])
{
    int argc = 0;
    for (char *p = text; *p;) {
        LS_ASSERT(argc < TEST_ARGV_MAX);
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p) *p++ = '\0';
    }
    return argc;
}

#endif
