/* translate.h - translates sentences with a checkpoint of the translation task, and scores the result. */
#ifndef LS_INFER_TRANSLATE_H
#define LS_INFER_TRANSLATE_H

#include "data/pairs.h"
#include "infer/decode.h"
#include "score/score.h"

/* How a checkpoint is opened and searched. */
typedef struct ls_translate_opts {
    int beam; /* 1: greedy */
    double length_penalty;
    int64_t batch;   /* sentences at a time */
    int64_t max_len; /* ids of source and translation together, without the last; 0: the positions of the model */
    void (*progress)(void *ctx, int64_t done, int64_t n);
    void *progress_ctx;
} ls_translate_opts;

typedef struct ls_translation {
    char *src, *tgt, *gen; /* owned; tgt NULL: no reference; gen NULL until it is made */
} ls_translation;

typedef struct ls_translation_set {
    ls_translation *item;
    size_t n, cap;
    /* of the last call of ls_translate */
    int64_t n_token; /* ids that were generated, with the ends         */
    int64_t n_cut;   /* texts that end at max_len, or have no room     */
    double seconds;
    ls_bleu bleu; /* of sentences with a reference */
    ls_chrf chrf;
} ls_translation_set;

void ls_translation_set_fini(ls_translation_set *set);
/* Appends one sentence; tgt.data NULL: no reference. LS_E_FORMAT (a NUL character), LS_E_NOMEM. */
ls_status ls_translation_set_add(ls_translation_set *set, ls_substr src, ls_substr tgt);
/* Appends the pairs of files (data/pairs.h); limit 0: all. LS_E_FORMAT if there are none. */
ls_status ls_translation_set_read(ls_translation_set *set, const char *const *path, int n_path, const ls_langs *langs,
                                  int64_t limit);

/* Opens a checkpoint for ls_translate: `how` has checkpoint, device and threads; the rest is set here. LS_E_CONFIG if the tokenizer is not
 * one of this task, or max_len is more than the model's positions. */
ls_status ls_translate_open(ls_session *s, ls_session_opts how, const ls_translate_opts *o, ls_langs *langs);
/* Translates every sentence of the set and scores those with a reference. */
ls_status ls_translate(ls_session *s, const ls_translate_opts *o, ls_translation_set *set);
/* The text of ids, owned by the caller. Bytes that are not UTF-8 (a search may end inside a character) and NUL become U+FFFD. */
ls_status ls_translation_text(const ls_tokenizer *t, const ls_ids *ids, char **out);

#endif
