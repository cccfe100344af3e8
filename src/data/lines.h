/* lines.h - the lines of a text file, one after the other: plain, gzip or zstd, or "-" for standard input.
 *
 * A line ends in \n or \r\n, which are not part of it; the last one may end with the file. A byte order mark at the start of the file is
 * skipped unless keep_mark is set. Lines that are not UTF-8 or longer than LS_LINE_MAX are LS_E_FORMAT, with the file and the line number. */
#ifndef LS_DATA_LINES_H
#define LS_DATA_LINES_H

#include "core/str.h"
#include "data/corpus.h"

typedef struct ls_lines {
    const char *path; /* borrowed */
    ls_byte_stream *source;
    unsigned char *buf;
    size_t at, n, cap;   /* buf[at, n) is not used yet */
    int64_t line;        /* number of the last line, from 1 */
    bool eof, keep_mark; /* keep_mark: set it after ls_lines_open */
} ls_lines;

/* LS_E_IO, LS_E_FORMAT, LS_E_NOMEM. */
ls_status ls_lines_open(ls_lines *l, const char *path);
void ls_lines_close(ls_lines *l); /* takes a zeroed one */

/* *line is valid until the next call; *end: there is none. */
ls_status ls_lines_next(ls_lines *l, ls_substr *line, bool *end);

#endif
