/* host.c - core/err.h inside the plugin: words and trails are the program's, so they go there. */
#include "compute/cuda/host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static ls_plugin_host program; /* set once, by the first open, before anything can fail */

void cuda_host_is(const ls_plugin_host *host)
{
    if (!program.fail) program = *host;
}

ls_status ls_fail_at(ls_status code, const char *file, int line, const char *fmt, ...)
{
    char words[2000];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    return program.fail ? program.fail(code, file, line, words) : code;
}

ls_status ls_fail_via(ls_status st, const char *file, int line, const char *expr)
{
    return program.via ? program.via(st, file, line, expr) : st;
}

const char *ls_err_words(void)
{
    return program.words ? program.words() : "";
}

void ls_err_clear(void)
{
    if (program.clear) program.clear();
}

void ls_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "lockstep (cuda): assertion failed: %s at %s:%d\n", cond, file, line);
    abort(); /* check-source: allowed, because LS_ASSERT is for our own bugs */
}
