/* inputs.h - which files a corpus is made of, and in which order.
 *
 * A word is a file, a folder (all of its .txt and .jsonl files, plain or compressed, at any depth, sorted bytewise; names that
 * start with a dot are left out) or "-", standard input. Words keep the order in which they were given. */
#ifndef LS_DATA_INPUTS_H
#define LS_DATA_INPUTS_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum ls_text_format {
    LS_TEXT_AUTO, /* by the name: .txt .text .md or .jsonl .ndjson, then perhaps .gz or .zst */
    LS_TEXT_PLAIN,
    LS_TEXT_JSONL,
} ls_text_format;

typedef struct ls_input {
    char *path; /* "-": standard input */
    ls_text_format format;
    int64_t nbytes; /* of the file as it is; -1 for standard input */
    int fd;         /* a copy of standard input to read instead; -1: open the path */
} ls_input;

typedef struct ls_inputs {
    ls_input *item;
    size_t n, cap;
} ls_inputs;

/* LS_E_ARG (format unknown, "-" twice or without a format), LS_E_IO (missing), LS_E_FORMAT (a folder with no text in it). */
ls_status ls_inputs_add(ls_inputs *list, const char *word, ls_text_format format);
void ls_inputs_fini(ls_inputs *list);
int64_t ls_inputs_nbytes(const ls_inputs *list); /* -1 when unknown */

#endif
