/* utf8.h - characters of a text in UTF-8. */
#ifndef LS_CORE_UTF8_H
#define LS_CORE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length and code point of the valid UTF-8 sequence at p (n > 0 bytes remain); 0 if there is none: a stray continuation byte, an
 * overlong form, a surrogate, a code point above U+10FFFF, or a truncated sequence. A NUL ends every sequence, so 4 is
 * an n for a NUL-terminated text. */
static inline int ls_utf8_decode(const unsigned char *p, size_t n, uint32_t *code_point)
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

#endif
