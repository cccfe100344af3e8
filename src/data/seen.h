/* seen.h - the 64-bit hashes (XXH3) of all documents so far, to drop duplicates.
 *
 * A table of 8-byte hashes that is at most three quarters full: 10.7 to 21.3 bytes per distinct document, and half as much again while
 * it grows. Two different documents among n have the same hash with probability n^2 / 2^65 (100 million: 0.03 %); the second is then
 * dropped by mistake. The hashes are also appended to a file, from which a resumed run reads them. */
#ifndef LS_DATA_SEEN_H
#define LS_DATA_SEEN_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct data_seen {
    uint64_t *slot;
    size_t n, n_slot;
    char *path;
    int fd;
    uint64_t buf[4096];
    size_t n_buf;
    uint64_t sum; /* of all hashes, to recognize a damaged file */
} data_seen;

/* Opens the file; the first n of its hashes, with this sum, are read, and the rest is cut off. LS_E_FORMAT if they differ. */
ls_status data_seen_open(data_seen *s, const char *path, size_t n, uint64_t sum);
void data_seen_close(data_seen *s); /* takes a zeroed one */
ls_status data_seen_add(data_seen *s, uint64_t hash, bool *is_new);
ls_status data_seen_flush(data_seen *s);

#endif
