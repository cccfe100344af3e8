/* pretokenize.h - the split pattern of GPT-2 as a scanner that returns the next piece of a text.
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Any bytes are accepted: a byte that is not part of valid UTF-8 is a separate character that is neither letter, number nor
 * space. The concatenated pieces are the text. The pattern never looks back, so a text can be split wherever a piece must
 * end; data_split_cut finds such positions without knowing what follows. */
#ifndef LS_DATA_PRETOKENIZE_H
#define LS_DATA_PRETOKENIZE_H

#include "data/unicode.h"

#include <stdbool.h>

/* Classes of single bytes: data_class, and DATA_WIDE for the bytes of longer characters. */
#define DATA_WIDE 4
extern const unsigned char data_byte_class[256];

/* Slow paths for text that is not ASCII. `at` is the current position in a run of class k; returns its end. */
size_t data_split_run(const unsigned char *p, size_t n, size_t at, data_class k);
size_t data_split_space(const unsigned char *p, size_t n);
size_t data_split_wide(const unsigned char *p, size_t n, size_t at);

/* Length in bytes of the piece that starts at p; the text has n > 0 more bytes. */
static inline size_t data_split_next(const unsigned char *p, size_t n)
{
    size_t i = 0;
    if (p[0] == '\'' && n > 1) {
        unsigned char a = p[1];
        if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
        if (n > 2 && ((a == 'r' && p[2] == 'e') || (a == 'v' && p[2] == 'e') || (a == 'l' && p[2] == 'l'))) return 3;
    } else if (p[0] == ' ' && n > 1) {
        i = 1;
    }
    unsigned k = data_byte_class[p[i]];
    if (k == DATA_SPACE) return data_split_space(p, n);
    if (k == DATA_WIDE) return data_split_wide(p, n, i);
    do i++;
    while (i < n && data_byte_class[p[i]] == k);
    if (i < n && data_byte_class[p[i]] == DATA_WIDE) return data_split_run(p, n, i, (data_class)k);
    return i;
}

/* The last position in p[0, n) where a piece ends regardless of the text before and after; 0 if there is none. The pieces of a
 * text are those before this position followed by those after it. */
size_t data_split_cut(const unsigned char *p, size_t n);

/* Used if there is none: the end of the last complete character in p[0, n), n > 0; never 0. */
size_t data_split_char_end(const unsigned char *p, size_t n);

#endif
