/* unicode.h - UTF-8 and the three character classes of GPT-2's split pattern. */
#ifndef LS_DATA_UNICODE_H
#define LS_DATA_UNICODE_H

#include <stddef.h>
#include <stdint.h>

typedef enum data_class { DATA_OTHER = 0, DATA_LETTER = 1, DATA_NUMBER = 2, DATA_SPACE = 3 } data_class;

/* Made by tools/make-unicode-table; see there for the layout. */
extern const unsigned char data_unicode_block[8704];
extern const unsigned char data_unicode_class[][32];

static inline data_class data_class_of(uint32_t code_point)
{
    const unsigned char *block = data_unicode_class[data_unicode_block[code_point >> 7]];
    return (data_class)(block[(code_point & 127) >> 2] >> (2 * (code_point & 3)) & 3);
}

/* Length of the well-formed UTF-8 sequence at p (n > 0 bytes are left) and its code point; 0 when there is none: a stray
 * continuation byte, an overlong form, a surrogate, beyond U+10FFFF, or cut off. */
static inline int data_utf8_decode(const unsigned char *p, size_t n, uint32_t *code_point)
{
    uint32_t c = p[0];
    if (c < 0x80) {
        *code_point = c;
        return 1;
    }
    if (c < 0xc2 || n < 2 || (p[1] & 0xc0) != 0x80) return 0;
    if (c < 0xe0) {
        *code_point = (c & 0x1f) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (n < 3 || (p[2] & 0xc0) != 0x80) return 0;
    if (c < 0xf0) {
        c = (c & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        if (c < 0x800 || (c >= 0xd800 && c < 0xe000)) return 0;
        *code_point = c;
        return 3;
    }
    if (c > 0xf4 || n < 4 || (p[3] & 0xc0) != 0x80) return 0;
    c = (c & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    if (c < 0x10000 || c > 0x10ffff) return 0;
    *code_point = c;
    return 4;
}

/* Writes 1 to 4 bytes; surrogates are written as three (needed to carry lone ones through). */
static inline int data_utf8_encode(uint32_t c, unsigned char out[4])
{
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (unsigned char)(0xc0 | c >> 6);
        out[1] = (unsigned char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (unsigned char)(0xe0 | c >> 12);
        out[1] = (unsigned char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (unsigned char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (unsigned char)(0xf0 | c >> 18);
    out[1] = (unsigned char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (unsigned char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (unsigned char)(0x80 | (c & 0x3f));
    return 4;
}

/* Bytes at p (n > 0, not well-formed) that one U+FFFD stands for: the part of a character before the first byte that cannot
 * belong to it, or a surrogate written as three bytes. */
size_t data_utf8_bad_len(const unsigned char *p, size_t n);

/* Offset of the first byte that is not part of well-formed UTF-8, or n. */
size_t data_utf8_check(const unsigned char *p, size_t n);

#endif
