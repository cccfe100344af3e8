/* look.h - whether there is a GPU that this program can use.
 *
 * A child process loads the plugin, creates the context of the device and ends with the answer. The caller loads nothing and creates no
 * context: it may still fork workers (a context does not survive a fork), and a run on the CPU does not carry CUDA's libraries. */
#ifndef LS_COMPUTE_LOOK_H
#define LS_COMPUTE_LOOK_H

#include "core/device.h"

#include <stdbool.h>

#define LS_LOOK_WORDS 304

typedef struct ls_look {
    bool there;
    ls_device_info info;     /* of the device, when there; also of one that cannot be used, as far as it is known */
    char why[LS_LOOK_WORDS]; /* not there: the reason and what to do, one line                                    */
    bool expected;           /* not there, but this machine has an NVIDIA GPU or a driver that fails             */
    bool accepted; /* expected, and nothing can mend it: the GPU is too old, or CUDA_VISIBLE_DEVICES hides it */
} ls_look;

/* The device that "cuda" (device -1) or "cuda:N" would open for the worker local_rank of this host. Waits at most a minute for the driver. Call it
 * before this process has threads. */
void ls_gpu_look(int device, int local_rank, ls_look *out);

/* Whether a device of NVIDIA that displays or computes is in this folder of sysfs. */
bool look_for_hardware(const char *pci_devices);

/* look(device, local_rank) in a child process, within so many seconds: ls_gpu_look's own means, and for tests. */
typedef ls_look look_fn(int device, int local_rank);
ls_look look_in_child(look_fn *look, int device, int local_rank, double limit);

#endif
