/* nvtx.h - named ranges for a profiler that watches from outside (nsys), by NVTX's own protocol: no header and no library of it is needed.
 *
 * nsys names a library in NVTX_INJECTION64_PATH. We load it and hand it tables of empty slots; it fills those of the calls that it wants
 * to see. Ranges of a thread are pushed and popped like brackets. Not opened, or nobody there: one load and one branch per call. */
#ifndef LS_CORE_NVTX_H
#define LS_CORE_NVTX_H

#include <stdbool.h>

/* Looks for a profiler, once in a process; true when one listens. */
bool ls_nvtx_open(void);

bool ls_nvtx_on(void); /* it was opened and one listens */
void ls_nvtx_push(const char *name);
void ls_nvtx_pop(void);

#endif
