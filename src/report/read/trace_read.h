/* trace_read.h - a trace file added up: by rank, by phase, by unit, by collective. */
#ifndef LS_REPORT_TRACE_READ_H
#define LS_REPORT_TRACE_READ_H

#include "core/err.h"

#include <stdbool.h>
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

/* Parts of the steps of a rank: what its main thread was in, the innermost span counts. */
enum {
    TRACE_PART_FORWARD,
    TRACE_PART_BACKWARD,
    TRACE_PART_OPTIMIZER,
    TRACE_PART_INPUT,
    TRACE_PART_WAIT, /* exposed communication; in a pipeline, with its bubble */
    TRACE_PART_REST, /* the rest of the step */
    TRACE_N_PART
};

typedef struct trace_span {
    double begin, end; /* us */
} trace_span;

typedef struct trace_rank {
    char host[64];
    int64_t spans, dropped, clock_offset_ns, clock_error_ns, steps;
    double us[TRACE_N_US];
    double part[TRACE_N_PART]; /* us; they add up to the steps */
    double coll_in_steps;      /* us of collectives during steps; of several communicators, each counts */
    trace_span *step;          /* ascending */
    int n_step, cap_step;
    struct trace_open { /* spans of the main row that have not ended at `now`, each inside the one before */
        double end;
        int part; /* -1: that of the span around it */
    } open[8];
    int n_open;
    bool pipeline; /* it has actions of a pipeline */
    bool cut;      /* a step was left out because older spans were dropped */
    double now;
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
const trace_row *trace_find(const trace_table *t, const char *name);                       /* NULL: none */
void trace_facts_fini(trace_facts *f);

#endif
