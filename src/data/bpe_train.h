/* bpe_train.h - learns a byte-level BPE vocabulary from word counts.
 *
 * Ids 0-255 are the bytes in the order of GPT-2, then one id per merge, then <|endoftext|>. Each step merges the most frequent
 * pair of neighbours; ties go to the lower left id, then the lower right id. Training stops at the requested size, or earlier
 * if no pair occurs min_count times. The order of the words does not matter. */
#ifndef LS_DATA_BPE_TRAIN_H
#define LS_DATA_BPE_TRAIN_H

#include "data/tokenizer.h"
#include "data/words.h"

#define LS_BPE_MIN_VOCAB 257

/* LS_E_ARG (n_vocab below 257 or too large), LS_E_NOMEM. */
ls_status ls_bpe_train(const ls_words *words, int n_vocab, int64_t min_count, ls_tokenizer **out);

#endif
