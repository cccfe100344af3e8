/* plugin.c - the edge of lockstep_cuda.so: its one symbol, and core/err.h inside it (messages and trails belong to the program, which gets them). */
#include "compute/cuda/cuda_impl.h"
#include "compute/plugin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static ls_plugin_host program; /* set once, by the first open, before anything can fail */

static void program_is(const ls_plugin_host *host)
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

static ls_status open_here(const ls_plugin_host *host, const ls_compute_open_opts *o, ls_compute *c)
{
    program_is(host);
    return cuda_open(o, c);
}

static ls_status look_here(const ls_plugin_host *host, const ls_compute_open_opts *o, ls_device_info *out)
{
    program_is(host);
    return cu_device_look(o, out);
}

static const ls_compute_plugin plugin = {
    .abi = LS_COMPUTE_ABI,
    .name = "cuda",
    .probe = cuda_probe,
    .look = look_here,
    .open = open_here,
    .close = cuda_close,
    .scratch = cuda_scratch,
    .describe = cuda_describe,
};

/* The symbol is LS_COMPUTE_SYMBOL, which in C is the name of a type already. */
const ls_compute_plugin *cuda_plugin(void) __asm__(LS_COMPUTE_SYMBOL) __attribute__((visibility("default")));

const ls_compute_plugin *cuda_plugin(void)
{
    return &plugin;
}
