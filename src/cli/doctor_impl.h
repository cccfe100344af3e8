/* doctor_impl.h - a row of `lockstep doctor`, for the files that fill them. */
#ifndef LS_CLI_DOCTOR_IMPL_H
#define LS_CLI_DOCTOR_IMPL_H

#include "core/err.h"

#include <stdbool.h>

typedef enum part_state { PART_OK, PART_MISSING, PART_FAILED } part_state;

typedef struct part {
    const char *name;
    bool basic;    /* every run needs it */
    bool variable; /* it failed because an environment variable has a wrong value */
    part_state state;
    char text[600], hint[400]; /* hint "": none */
} part;

/* Fills the row; hint (may be NULL): what to do about it. */
void doctor_put(part *p, part_state state, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same with the message of this thread's last failure, which is cleared. */
void doctor_put_error(part *p, part_state state, const char *hint);

typedef void doctor_look(part *p);
/* doctor_gpu.c: the NVIDIA driver and its devices; the CUDA plugin; the libraries that it loads; NVML; NCCL. */
doctor_look doctor_look_cuda, doctor_look_plugin, doctor_look_libraries, doctor_look_nvml, doctor_look_nccl;
/* A small product on the device ("cuda" or "cpu") compared with sums in double. */
void doctor_try_device(part *p, const char *device);

/* doctor_burn.c: n workers (0: one per core or GPU) repeat the arithmetic of training. device: NULL, auto, cpu, cuda. LS_E_NUMERIC: one of
 * them computes wrong. */
ls_status doctor_burn(double minutes, int n, const char *device, bool json);

#endif
