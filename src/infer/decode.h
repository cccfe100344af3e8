/* decode.h - greedy and beam search for many prompts at once, with the key-value cache.
 *
 * All rows of a batch are at the same column. A row whose prompt is longer than the shortest one of its batch takes its next prompt id
 * while others choose theirs, so no row is padded on the left and the cache needs one position for all. Prompts are sorted by length
 * before they are divided into batches; the longest of a batch has row 0.
 *
 *   column          0 1 2 3 4 5 6 7 8 9
 *   row 0  prompt   d e f g h i j k|z u    | the end of a prompt
 *   row 1  prompt   a b c|x y .            . the id that ends a text
 *   pass            1     2 3 4     5      columns 0-2, 3, 4, 5-7, 8
 *
 * While a text is being made, a pass has one column; otherwise it has all columns up to the end of the shortest prompt that is left, and
 * the rows of ended texts are no longer computed. So a batch needs at most as many passes as its prompts one after the other.
 *
 * Beam search keeps the K best unfinished texts of a prompt, one row each. A text that continues the one of another row gets a copy of its
 * cached keys and values; the first continuation of a row stays in it. A finished text competes with log p / length^penalty, its length
 * with the id that ended it. The search of a prompt ends when K texts are finished and no unfinished one can become better.
 *
 * The result does not depend on the order of the prompts. The number of rows can change the rounding of logits (compute.h, invariant 4). */
#ifndef LS_INFER_DECODE_H
#define LS_INFER_DECODE_H

#include "infer/session.h"

#define LS_BEAM_MAX 64

typedef struct ls_decode_opts {
    int beam;              /* 1: greedy, up to LS_BEAM_MAX */
    double length_penalty; /* of beam search */
    int64_t
        max_len; /* ids that the model reads, prompt and text together; the text has one more. More than the session's
                        cache_len: the cache slides (ls_session_window), which beam search does not support */
    int64_t max_new;             /* ids of a text; 0: no limit but max_len */
    int32_t stop;                /* the id that ends a text; not part of it; negative: none */
    const ls_sampling *sampling; /* beam 1: how ids are chosen; NULL: greedy */
    /* Whether a text ends with the id that was added last, which stays part of it; NULL: no. */
    ls_status (*ends)(void *ctx, const ls_ids *text, bool *end);
    void *ends_ctx;
    void (*progress)(void *ctx, int64_t done, int64_t n); /* of prompts; may be NULL */
    void *progress_ctx;
} ls_decode_opts;

typedef struct ls_decode_item {
    const int32_t *prompt; /* borrowed */
    int64_t n_prompt;      /* > 0 */
    uint64_t seed;         /* added to that of the sampling */
    ls_ids text;           /* out: ids after the prompt; freed by the caller */
    bool stopped;          /* the text ended with `stop` or `ends`, not at a limit */
    double log_p;          /* of the text, with `stop`                       */
} ls_decode_item;

/* A prompt with more than max_len ids has an empty text. The session's B is the number of rows: beam * prompts of a batch. LS_E_NOMEM,
 * LS_E_STOPPED after a signal. */
ls_status ls_decode(ls_session *s, const ls_decode_opts *o, ls_decode_item *item, int64_t n);

#endif
