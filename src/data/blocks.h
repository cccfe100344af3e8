/* blocks.h - splits a corpus into blocks that can be processed in any order.
 *
 * A block of plain text is part of one document. It ends where a piece of the GPT-2 split pattern always ends (or between characters, if a
 * block has no such position). A block of JSON lines is a number of complete lines. The block boundaries depend only on the corpus, so the
 * result does not depend on the number of threads. Memory is bounded. */
#ifndef LS_DATA_BLOCKS_H
#define LS_DATA_BLOCKS_H

#include "data/inputs.h"
#include "data/source.h"

#include <stdbool.h>

#define LS_BLOCK_BYTES ((size_t)1 << 20)
#define LS_LINE_MAX    ((size_t)32 << 20) /* of JSON lines */

typedef struct ls_text_block {
    const ls_corpus_file *in; /* owned by the inputs */
    unsigned char *text;
    size_t n, cap;
    int64_t offset;    /* of text[0] in the unpacked file                       */
    int64_t line;      /* number of the first line, from 1 (JSON lines)         */
    int64_t first_doc; /* number of the first document, from 0 over all inputs  */
    bool ends_doc;     /* plain text: the document's last block                 */
} ls_text_block;

typedef struct ls_blocks {
    const ls_inputs *inputs;
    int64_t limit_docs;  /* maximum number of documents; 0: no limit */
    int64_t limit_bytes; /* stop after the block that reaches it; 0: no limit */
    size_t at;           /* input */
    ls_byte_stream *source;
    unsigned char *carry; /* read, but after the end of the last block */
    size_t n_carry, cap_carry;
    int64_t offset, line;
    int64_t n_doc, text_bytes, taken_before; /* taken: bytes of finished files */
    bool in_doc;
} ls_blocks;

void ls_blocks_init(ls_blocks *b, const ls_inputs *inputs, int64_t limit_docs, int64_t limit_bytes);
void ls_blocks_fini(ls_blocks *b);

/* Reads the next block into *out (its buffer is reused); *end is true, without a block, at the end of the corpus. Empty plain files and
 * blank lines are not documents. */
ls_status ls_blocks_next(ls_blocks *b, ls_text_block *out, bool *end);

int64_t ls_blocks_taken(const ls_blocks *b); /* bytes of the files read so far; the total is ls_inputs_nbytes */

/* Length of the line at `at`, without the line end; *next is the start of the next line. */
size_t ls_text_block_line(const ls_text_block *b, size_t at, size_t *next);
bool ls_line_is_blank(const unsigned char *p, size_t n);

#endif
