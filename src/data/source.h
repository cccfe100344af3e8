/* source.h - reads a file or standard input as bytes: plain, gzip or zstd, detected by the first bytes.
 *
 * Compressed streams may have several members or frames. A stream that ends inside one is an error. */
#ifndef LS_DATA_SOURCE_H
#define LS_DATA_SOURCE_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ls_byte_stream ls_byte_stream;

/* path "-" is standard input; fd >= 0 is read instead of the path (borrowed, read from offset 0). A file named .gz or .zst must have
 * that format. LS_E_IO, LS_E_FORMAT, LS_E_NOMEM. */
ls_status ls_byte_stream_open(const char *path, int fd, ls_byte_stream **out);
void ls_byte_stream_close(ls_byte_stream **s);

/* Reads up to cap bytes of text; *n == 0 at the end. */
ls_status ls_byte_stream_read(ls_byte_stream *s, unsigned char *buf, size_t cap, size_t *n);

/* Bytes read from the file so far (compressed size), for progress. */
int64_t ls_byte_stream_taken(const ls_byte_stream *s);

#endif
