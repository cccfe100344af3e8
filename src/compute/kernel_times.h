/* kernel_times.h - what a device ran when, for which unit and operation, in a trace.
 *
 *   ls_kernel_times_begin(&k, &compute, n)    operations are named from here on (compute/named_ops.h)
 *   …steps…
 *   ls_kernel_times_end(&k, trace)            a lane for each stream: kernels and copies with unit, pass and operation
 *
 * Times come from the plugin's source (CUPTI) where it has one and it works. Else from marks (core/device.h) between units: they have no
 * kernels, a unit's time includes what the device waited in it, and rows of operations that would be recorded (graphs) are queued one by
 * one, which the message says.
 *
 * Not for the CPU: its operations are done when they return, and the trace's own spans have their times. */
#ifndef LS_COMPUTE_KERNEL_TIMES_H
#define LS_COMPUTE_KERNEL_TIMES_H

#include "compute/compute.h"
#include "compute/kernel_source.h"
#include "core/trace.h"

typedef struct ls_kernel_times ls_kernel_times;

/* c (a device's, plugin `plugin`: "cuda") must stay where it is until the end. n_record: how many are kept, the newest. LS_E_NOMEM. */
ls_status ls_kernel_times_begin(ls_kernel_times **out, ls_compute *c, const char *plugin, int64_t n_record);

/* Where times come from, and why not from elsewhere. */
const char *ls_kernel_times_words(const ls_kernel_times *k);

/* Waits for the device, writes lanes into the trace (NULL: drops everything), gives c its own operations back. */
ls_status ls_kernel_times_end(ls_kernel_times **k, ls_trace *trace, ls_kernel_facts *facts);

#endif
