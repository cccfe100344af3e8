/* child.h - one program started, watched and ended: this program itself, as a run of a benchmark. */
#ifndef LS_BENCH_CHILD_H
#define LS_BENCH_CHILD_H

#include "core/argv.h"

/* The file of this very program. LS_E_IO. */
ls_status ls_program_path(char buf[4096]);

/* Runs program with the words, stdout and stderr into files; *code is its exit code (128 + signal when it was killed). It has a process
 * group of its own, so that a terminal's Ctrl-C reaches us alone, and ends with us. When stop is requested it gets SIGTERM, and
 * SIGKILL when `grace` seconds later it is still there; then LS_E_STOPPED. tick (may be NULL) is called a few times a second. */
typedef struct ls_child {
    const char *program, *out_path, *err_path;
    const ls_argv *words;
    double grace;
    void (*tick)(void *ctx, double seconds);
    void *ctx;
} ls_child;
ls_status ls_child_run(const ls_child *c, int *code);

#endif
