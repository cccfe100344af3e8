/* corpus.h - the files of a text corpus, read in blocks that can be processed in any order.
 *
 *   inputs        files, folders (all their text and .jsonl files, plain or compressed, at any depth, sorted by bytes; names that start with
 *                 a dot, README.md, README.rst and other types are skipped) and "-" for standard input, in the given order
 *   byte stream   one of them as bytes: plain, gzip or zstd, detected by the first bytes. Compressed streams may have several members or
 *                 frames; a stream that ends inside one is an error.
 *   block         of plain text: part of one document, which ends where a piece of the GPT-2 split pattern always ends (or between
 *                 characters, if a block has no such position); of lines (of JSON, or of text whose lines are documents): a number of
 *                 complete lines
 *
 * The block boundaries depend only on the corpus, so the result does not depend on the number of threads. Memory is bounded. */
#ifndef LS_DATA_CORPUS_H
#define LS_DATA_CORPUS_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ls_text_format {
    LS_TEXT_AUTO,  /* from the name: .txt .text .md .rst or .jsonl .ndjson, optionally with .gz or .zst */
    LS_TEXT_PLAIN, /* one document */
    LS_TEXT_JSONL,
    LS_TEXT_LINES, /* each line that is not blank is a document, without its line end */
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
    char **skipped; /* files of folders that are of another type */
    size_t n_skipped, cap_skipped;
} ls_inputs;

/* LS_E_ARG (format unknown, "-" twice or without a format, LS_TEXT_LINES for a file of JSON lines), LS_E_IO (missing), LS_E_FORMAT (a folder with no text in it). */
ls_status ls_inputs_add(ls_inputs *list, const char *word, ls_text_format format);
void ls_inputs_fini(ls_inputs *list);
int64_t ls_inputs_nbytes(const ls_inputs *list); /* -1 if unknown */

/* ---- byte streams ---- */

typedef struct ls_byte_stream ls_byte_stream;

/* path "-" is standard input; fd >= 0 is read instead of the path (borrowed, read from offset 0). A file named .gz or .zst must have
 * that format. LS_E_IO, LS_E_FORMAT, LS_E_NOMEM. */
ls_status ls_byte_stream_open(const char *path, int fd, ls_byte_stream **out);
void ls_byte_stream_close(ls_byte_stream **s);
/* Reads up to cap bytes of text; *n == 0 at the end. */
ls_status ls_byte_stream_read(ls_byte_stream *s, unsigned char *buf, size_t cap, size_t *n);
/* Bytes read from the file so far (compressed size), for progress. */
int64_t ls_byte_stream_taken(const ls_byte_stream *s);
/* Memory that it needs now. */
size_t ls_byte_stream_memory(const ls_byte_stream *s);

/* ---- blocks ---- */

#define LS_BLOCK_BYTES ((size_t)1 << 20)
#define LS_LINE_MAX    ((size_t)32 << 20) /* of a line */

/* A place between two blocks, from which reading can continue. */
typedef struct ls_corpus_pos {
    size_t at;                 /* input */
    int64_t offset, line;      /* in it: bytes of text, number of the next line */
    int64_t n_doc, text_bytes; /* of the inputs so far */
    int64_t taken_before;      /* bytes of finished files */
    bool in_doc;               /* plain text: inside a document */
} ls_corpus_pos;

typedef struct ls_text_block {
    const ls_corpus_file *in; /* owned by the inputs */
    unsigned char *text;
    size_t n, cap;
    int64_t offset;      /* of text[0] in the unpacked file                       */
    int64_t line;        /* number of the first line, from 1 (not plain text)     */
    bool ends_doc;       /* plain text: the document's last block                 */
    ls_corpus_pos after; /* the place after it */
} ls_text_block;

typedef struct ls_blocks {
    const ls_inputs *inputs;
    size_t end;          /* the input to stop before */
    int64_t limit_docs;  /* maximum number of documents; 0: no limit */
    int64_t limit_bytes; /* stop after the block that reaches it; 0: no limit */
    ls_byte_stream *source;
    unsigned char *carry; /* read, but after the end of the last block */
    size_t n_carry, cap_carry;
    ls_corpus_pos pos;
} ls_blocks;

void ls_blocks_init(ls_blocks *b, const ls_inputs *inputs, int64_t limit_docs, int64_t limit_bytes);
void ls_blocks_fini(ls_blocks *b);
/* Continues at a place: the text before it in its file is read and handed to `see` (may be NULL). LS_E_FORMAT if the file is shorter. */
ls_status ls_blocks_seek(ls_blocks *b, const ls_corpus_pos *pos,
                         void (*see)(void *ctx, const unsigned char *text, size_t n), void *ctx);

/* Reads the next block into *out (its buffer is reused); *end is true, without a block, at the end of the corpus. Empty plain files and
 * blank lines are not documents. */
ls_status ls_blocks_next(ls_blocks *b, ls_text_block *out, bool *end);

int64_t ls_blocks_taken(const ls_blocks *b); /* bytes of the files read so far; the total is ls_inputs_nbytes */

/* Length of the line at `at`, without the line end; *next is the start of the next line. */
size_t ls_text_block_line(const ls_text_block *b, size_t at, size_t *next);
bool ls_line_is_blank(const unsigned char *p, size_t n);

#endif
