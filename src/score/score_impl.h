/* score_impl.h - what BLEU and chrF share: n-grams of two sequences of numbers, and characters. */
#ifndef LS_SCORE_SCORE_IMPL_H
#define LS_SCORE_SCORE_IMPL_H

#include "score/score.h"

#include <stdbool.h>

/* For each order 1 … n_order adds the number of n-grams of h that are in a reference too, each at most as often as the reference that has it
 * most often. The n_ref references follow one another in r; nr: their lengths. LS_E_NOMEM. */
ls_status score_match(const uint32_t *h, size_t nh, const uint32_t *r, const size_t *nr, int n_ref, int n_order,
                      int64_t *match);

/* The number of n-grams of a sequence of `len` items. */
static inline int64_t score_count(size_t len, int order)
{
    return len >= (size_t)order ? (int64_t)len - order + 1 : 0;
}

/* Length of the UTF-8 character at p (n > 0 bytes remain): 1 for a byte that begins none. *id: its bytes as one number. */
size_t score_char(const char *p, size_t n, uint32_t *id);
/* Whether the character is white space in Python's str.split. */
bool score_is_space(uint32_t id);

#endif
