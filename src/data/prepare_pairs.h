/* prepare_pairs.h - converts a parallel corpus to token files with masks, for the translation task.
 *
 *   train.bin, train.mask, val.bin, val.mask   the pairs: ids of the source, <eos_SRC>, ids of the target, <eos_TGT>; one mask byte per id
 *                                              (data/loader.h)
 *   val.jsonl, test.jsonl                      their texts, for BLEU: {"src": ..., "tgt": ...} with the names of the languages as keys
 *   tokenizer.json, meta.json
 *
 * Validation pairs are those of the validation inputs, or with a fraction f every (1/f)-th pair of the training inputs, as in prepare.h.
 * The files depend only on the corpus and the settings. The output folder is replaced as a whole (data/stage.h). */
#ifndef LS_DATA_PREPARE_PAIRS_H
#define LS_DATA_PREPARE_PAIRS_H

#include "data/pairs.h"

typedef enum ls_pair_part { LS_PAIR_TRAIN, LS_PAIR_VAL, LS_PAIR_TEST, LS_N_PAIR_PART } ls_pair_part;

typedef struct ls_prepare_pairs_opts {
    const char *const *input[LS_N_PAIR_PART]; /* as in ls_pairs_open */
    int n_input[LS_N_PAIR_PART];
    int64_t limit[LS_N_PAIR_PART]; /* pairs that are used; 0: all */
    const ls_langs *langs;
    const ls_tokenizer *tok; /* NULL: train one on both sides of the training pairs */
    int vocab_size;
    int64_t min_count;
    double val_fraction;
    const char *out_dir, *command;
    void (*progress)(void *ctx, const char *phase, int64_t pairs); /* may be NULL; called often */
    void *progress_ctx;
} ls_prepare_pairs_opts;

typedef struct ls_prepare_pairs_result {
    int64_t pairs[LS_N_PAIR_PART], tokens[LS_N_PAIR_PART], targets[LS_N_PAIR_PART];
    int64_t longest; /* ids of the longest training pair */
    int n_vocab, n_merge;
    char sha256[2][65]; /* of train.bin and val.bin; "": not written */
    double seconds;
} ls_prepare_pairs_result;

/* LS_E_ARG, LS_E_FORMAT (with the line), LS_E_CONFIG (a vocabulary beyond 16 bits), LS_E_IO (also: a val.jsonl or test.jsonl of the user
 * is in the folder), LS_E_NOMEM, LS_E_STOPPED. On failure none of the files is touched. */
ls_status ls_prepare_pairs(const ls_prepare_pairs_opts *o, ls_prepare_pairs_result *result);

#endif
