/* spill.h - results of blocks that wait for their turn, in a file without a name, in the order in which they were added.
 *
 * The file is removed as soon as it is open, so nothing of it remains when the process is killed. One thread at a time may add and one may
 * read; both may do it at the same time. */
#ifndef LS_DATA_SPILL_H
#define LS_DATA_SPILL_H

#include "data/job.h"

#include <limits.h>

#define DATA_SPILL_NAME "ahead.tmp" /* while it is opened */

typedef struct data_spill {
    bool open;
    int fd;
    char path[PATH_MAX]; /* for messages */
    int64_t read_at;
} data_spill;

/* Not for two threads at the same time: they would use the same name. LS_E_IO. */
ls_status data_spill_open(data_spill *s, const char *dir);
void data_spill_close(data_spill *s); /* takes a zeroed one */
/* Appends the tokens and documents of an encoded block, and its text if with_text. */
ls_status data_spill_add(const data_spill *s, const data_job *j, bool with_text);
/* Reads the next one into a job, whose buffers are reused. */
ls_status data_spill_next(data_spill *s, data_job *j);

#endif
