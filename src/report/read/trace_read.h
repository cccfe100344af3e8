/* trace_read.h - a trace file added up: by rank, by phase, by unit, by collective. */
#ifndef LS_REPORT_TRACE_READ_H
#define LS_REPORT_TRACE_READ_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

#define TRACE_NAME     112
#define TRACE_MAX_RANK 65536

typedef struct trace_row {
    char name[TRACE_NAME];
    int64_t calls, bytes;
    double us;
} trace_row;

typedef struct trace_table {
    trace_row *row;
    int n, cap;
} trace_table;

typedef struct trace_rank {
    char host[64];
    int64_t spans, dropped, clock_offset_ns, clock_error_ns, steps;
    double step_us, unit_us, input_us, optimizer_us, wait_us, coll_us, ckpt_us;
    double kernel_us, copy_us; /* of the device; those of several streams count each */
} trace_rank;

/* Zero-initialise; tables are sorted, the longest first. */
typedef struct trace_facts {
    trace_rank *rank;
    int n_rank, cap_rank;
    trace_table phase, unit, coll, wait;
    trace_table kernel, device_op; /* of devices: by kernel, by what it ran for ("linear_fwd", else "forward h") */
} trace_facts;

/* LS_E_IO, LS_E_FORMAT: the file and the line are named. Events that other programs add to a trace are skipped. */
ls_status trace_read(const char *path, trace_facts *out);
ls_status trace_read_text(const char *text, size_t n, const char *path, trace_facts *out); /* path: for messages */
void trace_facts_fini(trace_facts *f);

#endif
