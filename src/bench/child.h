/* child.h - runs this program as a child process, for one run of a benchmark. */
#ifndef LS_BENCH_CHILD_H
#define LS_BENCH_CHILD_H

#include "core/argv.h"

/* The path of this executable. LS_E_IO. */
ls_status ls_program_path(char buf[4096]);

/* Runs program with the arguments `words`; stdout and stderr go to files. *code is the exit code (128 + signal if killed). The child has
 * its own process group, so that Ctrl-C reaches only this process, and it ends with this process. On a stop request it gets SIGTERM, and
 * SIGKILL after `grace` seconds; the result is LS_E_STOPPED. tick (may be NULL) is called a few times per second. */
typedef struct ls_child {
    const char *program, *out_path, *err_path;
    const ls_argv *words;
    double grace;
    void (*tick)(void *ctx, double seconds);
    void *ctx;
} ls_child;
ls_status ls_child_run(const ls_child *c, int *code);

#endif
