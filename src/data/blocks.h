/* blocks.h - a corpus as a row of blocks that can be worked on in any order.
 *
 * A block of plain text is part of one document, cut where a piece of GPT-2's split pattern ends in any case (or, when there is
 * no such place in a whole block, between characters); a block of JSON lines is a number of whole lines. Where the cuts are
 * depends on the corpus alone, so what is made from the blocks in order does not depend on threads. Memory is bounded. */
#ifndef LS_DATA_BLOCKS_H
#define LS_DATA_BLOCKS_H

#include "data/inputs.h"
#include "data/source.h"

#include <stdbool.h>

#define LS_BLOCK_BYTES ((size_t)1 << 20)
#define LS_LINE_MAX    ((size_t)32 << 20) /* of JSON lines */

typedef struct ls_block {
    const ls_input *in; /* borrowed from the inputs */
    unsigned char *text;
    size_t n, cap;
    int64_t offset;    /* of text[0] in the unpacked file                       */
    int64_t line;      /* number of the first line, from 1 (JSON lines)         */
    int64_t first_doc; /* number of the first document, from 0 over all inputs  */
    bool ends_doc;     /* plain text: the document's last block                 */
} ls_block;

typedef struct ls_blocks {
    const ls_inputs *inputs;
    int64_t limit_docs;  /* stop after so many; 0: no limit */
    int64_t limit_bytes; /* stop after the block that reaches it; 0: no limit */
    size_t at;           /* input */
    ls_source *source;
    unsigned char *carry; /* read, but behind the last cut */
    size_t n_carry, cap_carry;
    int64_t offset, line;
    int64_t n_doc, text_bytes, taken_before; /* taken: bytes of finished files */
    bool in_doc;
} ls_blocks;

void ls_blocks_init(ls_blocks *b, const ls_inputs *inputs, int64_t limit_docs, int64_t limit_bytes);
void ls_blocks_fini(ls_blocks *b);

/* The next block into *out (its buffer is reused); *end is true, and there is no block, when all is read. Empty plain files and
 * blank lines are no documents. */
ls_status ls_blocks_next(ls_blocks *b, ls_block *out, bool *end);

int64_t ls_blocks_taken(const ls_blocks *b); /* bytes of the files so far, against ls_inputs_nbytes */

/* The length of the next line of a block from `at` on, without its end; *next is where the one after starts. */
size_t ls_block_line(const ls_block *b, size_t at, size_t *next);
bool ls_line_is_blank(const unsigned char *p, size_t n);

#endif
