/* words.h - counts the pieces of a text for the BPE trainer.
 *
 * Memory is bounded: pieces longer than DATA_WORD_MAX bytes are skipped, and when max_bytes is used no new pieces are added (known
 * ones are still counted). Only then do the counts depend on the order of the texts. */
#ifndef LS_DATA_WORDS_H
#define LS_DATA_WORDS_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

#define DATA_WORD_MAX 256

typedef struct ls_word {
    size_t off; /* in ls_words.bytes */
    uint32_t nbytes, hash;
    int64_t count;
} ls_word;

/* Set max_bytes, the rest zero; ls_words_fini when done. */
typedef struct ls_words {
    size_t max_bytes; /* room for different pieces */
    unsigned char *bytes;
    size_t n_bytes, cap_bytes;
    ls_word *word;
    size_t n, cap;
    uint32_t *slot; /* word number + 1, or 0 */
    size_t n_slot;
} ls_words;

void ls_words_fini(ls_words *w);
void ls_words_clear(ls_words *w); /* keeps the memory */

/* LS_E_NOMEM. */
ls_status ls_words_add(ls_words *w, const unsigned char *piece, size_t nbytes, int64_t count);
ls_status ls_words_add_text(ls_words *w, const unsigned char *text, size_t n);
ls_status ls_words_add_all(ls_words *w, const ls_words *more); /* in the order of `more` */

#endif
