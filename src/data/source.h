/* source.h - the bytes of an input: a file or standard input, plain, gzip or zstd, told apart by their first bytes.
 *
 * Compressed streams may have several members or frames. A stream that ends inside one is an error, not an end. */
#ifndef LS_DATA_SOURCE_H
#define LS_DATA_SOURCE_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ls_source ls_source;

/* path "-" is standard input; `fd` >= 0 reads that descriptor instead (borrowed, read from its start by offset). A name that
 * ends in .gz or .zst must hold what it says. LS_E_IO, LS_E_FORMAT, LS_E_NOMEM. */
ls_status ls_source_open(const char *path, int fd, ls_source **out);
void ls_source_close(ls_source **s);

/* Up to cap bytes of text; *n == 0 is the end. */
ls_status ls_source_read(ls_source *s, unsigned char *buf, size_t cap, size_t *n);

/* Bytes taken from the file so far (compressed ones, when it is): progress against the file's size. */
int64_t ls_source_taken(const ls_source *s);

#endif
