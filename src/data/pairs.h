/* pairs.h - parallel corpora: sentences with their translations, read one pair at a time.
 *
 *   x.tsv           source TAB target, one pair per line
 *   x.jsonl         one object per line with the keys of the two languages, or `src` and `tgt`; also inside an object `translation`, as
 *                   Hugging Face's datasets export them
 *   x.de x.en       two text files with equal numbers of lines: the source, then the target
 * All may be compressed (.gz, .zst). Empty lines of .tsv and .jsonl files are no pairs. Pairs of two empty texts are counted, and skipped
 * unless keep_empty is set.
 *
 * Tokens: <eos_SRC> ends a source, <eos_TGT> a target, <pad> fills a sequence; SRC and TGT are the names of the languages. They have
 * the first three ids. */
#ifndef LS_DATA_PAIRS_H
#define LS_DATA_PAIRS_H

#include "data/lines.h"
#include "data/tokenizer.h"

#define LS_EOS_SRC  0
#define LS_EOS_TGT  1
#define LS_PAIR_PAD 2
#define LS_LANG_MAX 24 /* bytes of a name, with the NUL */

typedef struct ls_langs {
    char src[LS_LANG_MAX], tgt[LS_LANG_MAX];
} ls_langs;

/* The names given on the command line (NULL: not given), else the endings of two text files, else src and tgt. A name has letters,
 * digits, - and _. LS_E_ARG. */
ls_status ls_langs_choose(ls_langs *l, const char *src, const char *tgt, const char *const *path, int n_path);
/* The names of a tokenizer of this task. LS_E_CONFIG for another one; `what` names it. */
ls_status ls_langs_of(ls_langs *l, const ls_tokenizer *t, const char *what);

typedef struct ls_pairs {
    const char *const *path; /* borrowed */
    int n_path, at;
    const ls_langs *langs;
    ls_lines src, tgt;
    ls_str text[2]; /* of a JSON line */
    bool open;
    bool keep_empty;    /* set it after ls_pairs_open */
    int64_t n, n_empty; /* pairs so far, without those that were skipped; pairs of two empty texts */
} ls_pairs;

/* LS_E_ARG: a text file without its translation. The paths and the languages are borrowed. */
ls_status ls_pairs_open(ls_pairs *p, const char *const *path, int n_path, const ls_langs *langs);
void ls_pairs_close(ls_pairs *p); /* takes a zeroed one */
/* The texts are valid until the next call. *end: there is no other pair. LS_E_FORMAT names the file and the line. */
ls_status ls_pairs_next(ls_pairs *p, ls_substr *src, ls_substr *tgt, bool *end);

/* The ids of a source with its end, and of a target with its end, appended. */
ls_status ls_pair_encode_source(ls_encoder *e, ls_substr src, ls_ids *ids);
ls_status ls_pair_encode_target(ls_encoder *e, ls_substr tgt, ls_ids *ids);

#endif
