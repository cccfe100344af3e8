/* doctor_impl.h - a row of `lockstep doctor`, for the files that fill them. */
#ifndef LS_CLI_DOCTOR_IMPL_H
#define LS_CLI_DOCTOR_IMPL_H

#include <stdbool.h>
#include <stddef.h>

typedef enum part_state { PART_OK, PART_MISSING, PART_FAILED } part_state;

typedef struct part {
    const char *name;
    bool basic; /* every run needs it */
    part_state state;
    char text[600], hint[400];
} part;

void doctor_put(part *p, part_state state, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void doctor_hint(part *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* doctor_gpu.c: NVIDIA's driver and its devices; our plugin; the libraries it brought in; what NVML tells; NCCL. */
void doctor_look_cuda(part *p);
void doctor_look_plugin(part *p);
void doctor_look_libraries(part *p);
void doctor_look_nvml(part *p);
void doctor_look_nccl(part *p);
/* A small product on the device ("cuda" or "cpu") against sums in double; about a second. */
void doctor_try_device(part *p, const char *device);

#endif
