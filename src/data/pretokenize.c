/* pretokenize.c - runs of non-ASCII characters, white space, and positions where a text can be split. */
#include "data/pretokenize.h"

/* clang-format off */
#define O DATA_OTHER
#define L DATA_LETTER
#define N DATA_NUMBER
#define S DATA_SPACE
#define W DATA_WIDE
#define W16 W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W
const unsigned char data_byte_class[256] = {
    O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O,   O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,   N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L,   L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L,   L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    W16, W16, W16, W16, W16, W16, W16, W16,
};
#undef O
#undef L
#undef N
#undef S
#undef W
#undef W16
/* clang-format on */

/* The class of the character at p and its bytes; a stray byte is one character of class other. */
static data_class class_at(const unsigned char *p, size_t n, size_t *nbytes)
{
    uint32_t c;
    int k = ls_utf8_decode(p, n, &c);
    *nbytes = k ? (size_t)k : 1;
    return k ? data_class_of(c) : DATA_OTHER;
}

size_t data_split_run(const unsigned char *p, size_t n, size_t at, data_class k)
{
    while (at < n) {
        size_t nbytes = 1;
        unsigned b = data_byte_class[p[at]];
        if ((b == DATA_WIDE ? class_at(p + at, n - at, &nbytes) : (data_class)b) != k) break;
        at += nbytes;
    }
    return at;
}

/* \s+(?!\S)|\s+ : all of the run at the end of the text, else all but its last character, which may belong to the next
 * piece; a run of one character is a piece. */
size_t data_split_space(const unsigned char *p, size_t n)
{
    size_t end = 0, last = 0;
    while (end < n) {
        size_t nbytes;
        if (class_at(p + end, n - end, &nbytes) != DATA_SPACE) break;
        last = end;
        end += nbytes;
    }
    return end == n || last == 0 ? end : last;
}

size_t data_split_wide(const unsigned char *p, size_t n, size_t at)
{
    size_t nbytes;
    data_class k = class_at(p + at, n - at, &nbytes);
    if (k == DATA_SPACE) return data_split_space(p, n);
    return data_split_run(p, n, at + nbytes, k);
}

/* The class of the character that ends before p[at], at > 0. */
static data_class class_before(const unsigned char *p, size_t at)
{
    uint32_t c;
    if (p[at - 1] < 0x80) return (data_class)data_byte_class[p[at - 1]];
    for (size_t k = 2; k <= 4 && k <= at; k++)
        if ((p[at - k] & 0xc0) != 0x80)
            return ls_utf8_decode(p + at - k, k, &c) == (int)k ? data_class_of(c) : DATA_OTHER;
    return DATA_OTHER;
}

/* A piece ends before white space that follows something else, and between a letter and a number or either and an ASCII
 * character of another class. (Not between "'" and a letter, and not inside white space.) Only an ASCII character
 * is accepted after the position: it is complete whatever the bytes before it are. */
size_t data_split_cut(const unsigned char *p, size_t n)
{
    for (size_t at = n; at-- > 1;) {
        unsigned k = data_byte_class[p[at]];
        if (k == DATA_WIDE) continue;
        data_class before = class_before(p, at);
        if (k == DATA_SPACE ? before != DATA_SPACE
                            : (before == DATA_LETTER || before == DATA_NUMBER) && before != (data_class)k)
            return at;
    }
    return 0;
}

size_t data_split_char_end(const unsigned char *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k < n; k++) {
        if ((p[n - k] & 0xc0) == 0x80) continue;
        uint32_t c;
        return p[n - k] >= 0xc0 && !ls_utf8_decode(p + n - k, k, &c) ? n - k : n;
    }
    return n;
}
