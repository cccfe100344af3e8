/* stops.h - texts that end a generated text, such as "\n\n" or "User:". They are compared with the bytes of the text, wherever tokens
 * begin and end. */
#ifndef LS_INFER_STOPS_H
#define LS_INFER_STOPS_H

#include "data/tokenizer.h"

typedef struct ls_stops {
    const char *const *text; /* borrowed, none is empty */
    int n;
} ls_stops;

/* Where the first stop text begins in s, if it ends after byte `from`; s.n if there is none. */
size_t ls_stops_find(const ls_stops *x, ls_substr s, size_t from);
/* Bytes at the end of s that may be the beginning of a stop text. */
size_t ls_stops_pending(const ls_stops *x, ls_substr s);
/* Whether the last id completes a stop text. LS_E_NOMEM. */
ls_status ls_stops_ends(const ls_stops *x, const ls_tokenizer *t, const ls_ids *ids, bool *end);

#endif
