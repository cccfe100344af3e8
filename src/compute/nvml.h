/* nvml.h - what NVIDIA's management library says of a GPU: load, power, energy, clocks, memory, heat.
 *
 * libnvidia-ml.so.1 is loaded when it is asked for (LS_NVML names another file); no header of it is needed. What it does not know or
 * refuses to say is NAN (null in JSON), value by value, and ls_nvml_refused has the reasons, once.
 *
 * Which GPU   NVML counts the GPUs of the machine in the order of their bus; a program counts those that CUDA_VISIBLE_DEVICES leaves it.
 *             A bus id ("0000:1b:00.0", from the runtime) or a UUID ("GPU-4f…", also its beginning) is the same for both. An index is
 *             that of the program: the list in CUDA_VISIBLE_DEVICES is followed. */
#ifndef LS_COMPUTE_NVML_H
#define LS_COMPUTE_NVML_H

#include "core/err.h"
#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct ls_nvml ls_nvml;

typedef struct ls_gpu_facts {
    char name[96], uuid[96], bus[32]; /* empty: unknown              */
    char driver[32];                  /* "580.65.06"                 */
    int capability;                   /* 90 = 9.0; 0: unknown        */
    double total;                     /* bytes of memory             */
    double power_limit;               /* W                           */
    double sm_mhz_max;
} ls_gpu_facts;

typedef struct ls_gpu_now {
    double busy;            /* part of the last moments in which a kernel ran, 0 … 1 */
    double power;           /* W                                                      */
    double energy;          /* J since the driver was loaded                          */
    double sm_mhz, mem_mhz; /* clocks                                                 */
    double used;            /* bytes of memory, of all programs                       */
    double celsius;
    uint64_t slowed; /* why the clock is below its limit: NVML's bits; 0 if unknown   */
} ls_gpu_now;

/* which: a bus id, a UUID, or an index; NULL is index 0. LS_E_UNSUPPORTED: no library, it does not start, no such GPU (the message says
 * which); LS_E_NOMEM. */
ls_status ls_nvml_open(ls_nvml **out, const char *which);
void ls_nvml_close(ls_nvml **n);

void ls_nvml_facts(ls_nvml *n, ls_gpu_facts *out);
void ls_nvml_read(ls_nvml *n, ls_gpu_now *out);

/* What was refused so far, "power: Not Supported, energy: …"; empty when nothing was. */
const char *ls_nvml_refused(const ls_nvml *n);

/* The reasons in `slowed`: "power cap, heat"; "none" for no bit. */
const char *ls_gpu_slowed_words(uint64_t bits, char buf[160]);

#endif
