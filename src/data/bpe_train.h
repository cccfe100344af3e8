/* bpe_train.h - learns a byte-level BPE vocabulary from word counts.
 *
 * Ids 0-255 are the bytes in the order of GPT-2, then one id per merge, then <|endoftext|>. Each step merges the most frequent
 * pair of neighbours; ties go to the lower left id, then the lower right id. Training stops at the requested size, or earlier
 * if no pair occurs min_count times. The order of the words does not matter. */
#ifndef LS_DATA_BPE_TRAIN_H
#define LS_DATA_BPE_TRAIN_H

#include "data/tokenizer.h"

/* Counts of the pieces of a text. Memory is bounded: pieces longer than DATA_WORD_MAX bytes are skipped, and when max_bytes is used no new
 * pieces are added (known ones are still counted). Only then do the counts depend on the order of the texts. */
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

#define LS_BPE_MIN_VOCAB 257

/* LS_E_ARG (n_vocab below 257 or too large), LS_E_NOMEM. */
ls_status ls_bpe_train(const ls_words *words, int n_vocab, int64_t min_count, ls_tokenizer **out);
/* The same with other special tokens: they have the first ids, bytes and merges follow, and there is no <|endoftext|>. */
ls_status ls_bpe_train_special(const ls_words *words, const char *const *special, int n_special, int n_vocab,
                               int64_t min_count, ls_tokenizer **out);

#endif
