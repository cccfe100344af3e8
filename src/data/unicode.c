/* unicode.c - checks long texts for valid UTF-8. */
#include "data/unicode.h"

#include <string.h>

size_t data_utf8_check(const unsigned char *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        while (n - i >= 8) { /* most text is ASCII: eight bytes at a time */
            memcpy(&eight, p + i, 8);
            if (eight & 0x8080808080808080u) break;
            i += 8;
        }
        if (i == n) break;
        uint32_t c;
        int k = ls_utf8_decode(p + i, n - i, &c);
        if (!k) return i;
        i += (size_t)k;
    }
    return n;
}

size_t data_utf8_bad_len(const unsigned char *p, size_t n)
{
    unsigned c = p[0];
    size_t want = c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 1, k = 1;
    if (n > 1 && ((c == 0xe0 && p[1] < 0xa0) || (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] >= 0x90))) return 1;
    while (k < want && k < n && (p[k] & 0xc0) == 0x80) k++;
    return k;
}
