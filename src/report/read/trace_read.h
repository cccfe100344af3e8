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

/* Kinds of time that are added up for each rank. */
enum {
    TRACE_US_STEP,
    TRACE_US_UNIT,
    TRACE_US_INPUT,
    TRACE_US_OPTIMIZER,
    TRACE_US_WAIT,
    TRACE_US_COLL,
    TRACE_US_CKPT,
    TRACE_US_KERNEL, /* of the device; kernels and copies of several streams count each */
    TRACE_US_COPY,
    TRACE_N_US
};

typedef struct trace_rank {
    char host[64];
    int64_t spans, dropped, clock_offset_ns, clock_error_ns, steps;
    double us[TRACE_N_US];
} trace_rank;

/* Tables of names. DEVICE_OP: by what a kernel ran for ("linear_fwd", else "forward h"). */
enum { TRACE_PHASE, TRACE_UNIT, TRACE_COLL, TRACE_WAIT, TRACE_KERNEL, TRACE_DEVICE_OP, TRACE_N_TABLE };

/* Zero-initialise; tables are sorted, the longest first. */
typedef struct trace_facts {
    trace_rank *rank;
    int n_rank, cap_rank;
    trace_table table[TRACE_N_TABLE];
} trace_facts;

/* LS_E_IO, LS_E_FORMAT: the file and the line are named. Events that other programs add to a trace are skipped. */
ls_status trace_read(const char *path, trace_facts *out);
ls_status trace_read_text(const char *text, size_t n, const char *path, trace_facts *out); /* path: for messages */
void trace_facts_fini(trace_facts *f);

#endif
