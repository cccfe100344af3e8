/* translation.h - what the commands with --task translate share: options of the search, scores, files. */
#ifndef LS_CLI_TRANSLATION_H
#define LS_CLI_TRANSLATION_H

#include "core/fs.h"
#include "core/json.h"
#include "config/device_choice.h"
#include "config/options.h"
#include "infer/translate.h"

/* Rows of an option table for a structure `search` of the options. */
typedef struct cli_search {
    int64_t beam, batch, max_length;
    double length_penalty;
} cli_search;
#define CLI_SEARCH_ROWS                                                                                           \
    CLI_INT_IN(1, LS_BEAM_MAX, "beam", search.beam, "K", "1", "translate: texts kept by beam search; 1 = greedy", \
               "Translation"),                                                                                    \
        CLI_REAL_IN(-1e6, 1e6, "length_penalty", search.length_penalty, "A", "1",                                 \
                    "translate: beam search compares log probability / length^A"),                                \
        CLI_POSITIVE("batch", search.batch, "N", "32", "translate: sentences at a time"),                         \
        CLI_INT_IN(0, INT32_MAX, "max_length", search.max_length, "N", "0",                                       \
                   "translate: tokens of source and translation; 0 = the number of positions of the model")

/* LS_E_ARG. */
ls_status cli_search_check(const cli_search *o);
ls_translate_opts cli_search_opts(const cli_search *o, bool progress);

/* BLEU and chrF of n sentences with n_ref references each, as members of an open JSON object, and as lines on stdout. */
void cli_scores_json(const ls_bleu *bleu, const ls_chrf *chrf, int64_t n, int n_ref, ls_jsonw *w);
void cli_scores_print(const ls_bleu *bleu, const ls_chrf *chrf, int64_t n, int n_ref);

/* Writes the pairs and their translations as the translation study does: a list of {"example": {SRC: ..., TGT: ...},
 * "gen": ...}. */
ls_status cli_write_translations(const ls_translation_set *set, const ls_langs *langs, const char *path);
/* The pairs of a data folder that BLEU is computed on: test.jsonl, else val.jsonl; or the file itself. LS_E_IO. */
ls_status cli_test_pairs(const char *data, char path[PATH_MAX]);

/* What is missing in a data folder without test.jsonl and val.jsonl, for messages. */
#define LS_NO_PAIRS "`prepare --task translate` writes them with --test_input or --val_input"

/* train --task translate. Before the run: refuses data that is not of this task, and prints a line if it has no pairs to translate. After it:
 * translates the test pairs, if there are any, with the checkpoint of each epoch, prints BLEU and writes the files of --workdir. Both do nothing
 * with another task, except that --workdir is refused. */
ls_status cli_translate_check(const ls_train_options *o, bool prints);
ls_status cli_translate_epochs(const ls_train_options *o, const ls_device_choice *device);

#endif
