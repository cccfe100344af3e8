/* event_file.h - a TensorBoard event file: scalars over steps, readable by TensorBoard while the run goes on.
 *
 *   file     <dir>/events.out.tfevents.<seconds>.<host>.<pid>, a new one per attempt of a run; TensorBoard reads a folder's files as one, in
 *            the order of their names, so <seconds> is later than that of every file before
 *   record   length (u64), masked CRC-32C of it, an Event, masked CRC-32C of the Event
 *   Event    protocol buffer: 1 wall_time (double), 2 step (varint), then 3 file_version, 5 summary or 7 session_log
 *   Summary  repeated 1 Value {1 tag, 2 simple_value (float)}
 *
 * Little-endian. A record is written with one write(). Nothing is allocated. */
#ifndef LS_TRAIN_EVENT_FILE_H
#define LS_TRAIN_EVENT_FILE_H

#include "core/err.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

enum { LS_SCALAR_MAX = 16, LS_SCALAR_TAG_MAX = 64 };

typedef struct ls_scalar {
    const char *tag; /* shorter than LS_SCALAR_TAG_MAX */
    double value;
} ls_scalar;

typedef struct ls_event_file {
    int fd;
    char path[PATH_MAX]; /* "": closed */
} ls_event_file;

/* Makes the folder. after: the step of a resumed run, so that TensorBoard hides what earlier files have after it; -1: a new run. */
ls_status ls_event_file_open(ls_event_file *f, const char *dir, int64_t after);
/* One event with n values, at most LS_SCALAR_MAX. */
ls_status ls_event_file_add(ls_event_file *f, int64_t step, const ls_scalar *scalar, int n);
void ls_event_file_close(ls_event_file *f); /* takes a zeroed or closed one */

uint32_t ls_crc32c(const void *data, size_t n);

#endif
