/* inputs.h - the files of a corpus and their order.
 *
 * An input is a file, a folder (all its .txt and .jsonl files, plain or compressed, at any depth, sorted by bytes; names that
 * start with a dot are skipped) or "-" for standard input. Inputs keep the given order. */
#ifndef LS_DATA_INPUTS_H
#define LS_DATA_INPUTS_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum ls_text_format {
    LS_TEXT_AUTO, /* from the name: .txt .text .md or .jsonl .ndjson, optionally with .gz or .zst */
    LS_TEXT_PLAIN,
    LS_TEXT_JSONL,
} ls_text_format;

typedef struct ls_corpus_file {
    char *path; /* "-": standard input */
    ls_text_format format;
    int64_t nbytes; /* size of the file; -1 for standard input */
    int fd;         /* a duplicate of standard input; -1: open the path */
} ls_corpus_file;

typedef struct ls_inputs {
    ls_corpus_file *item;
    size_t n, cap;
} ls_inputs;

/* LS_E_ARG (format unknown, "-" twice or without a format), LS_E_IO (missing), LS_E_FORMAT (a folder with no text in it). */
ls_status ls_inputs_add(ls_inputs *list, const char *word, ls_text_format format);
void ls_inputs_fini(ls_inputs *list);
int64_t ls_inputs_nbytes(const ls_inputs *list); /* -1 if unknown */

#endif
