/* doctor_impl.h - a row of `lockstep doctor`, for the files that fill them. */
#ifndef LS_CLI_DOCTOR_IMPL_H
#define LS_CLI_DOCTOR_IMPL_H

#include "compute/compute.h"

typedef enum part_state { PART_OK, PART_MISSING, PART_FAILED } part_state;

typedef struct part {
    const char *name;
    bool basic; /* every run needs it */
    part_state state;
    char text[600], hint[400]; /* hint "": none */
} part;

/* Fills the row; hint (may be NULL): what to do about it. */
void doctor_put(part *p, part_state state, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same with the message of this thread's last failure, which is cleared. */
void doctor_put_error(part *p, part_state state, const char *hint);

/* doctor_gpu.c: the NVIDIA driver and its devices; the CUDA plugin; the libraries that it loads; NVML; NCCL. */
void doctor_look_cuda(part *p);
void doctor_look_plugin(part *p);
void doctor_look_libraries(part *p);
void doctor_look_nvml(part *p);
void doctor_look_nccl(part *p);
/* A small product on the device ("cuda" or "cpu") compared with sums in double. */
void doctor_try_device(part *p, const char *device);
/* The same in one type. *worst: the largest difference, relative to the sum of the sizes of the terms; correct results are below
 * DOCTOR_F32 (rounding: 1e-7) and DOCTOR_BF16 (rounding of the result: 2^-9). */
#define DOCTOR_F32  1e-6
#define DOCTOR_BF16 4e-3
ls_status doctor_multiply(const char *device, ls_dtype dtype, double *worst, char words[LS_COMPUTE_WORDS],
                          ls_device_info *info);

#endif
