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

/* Bytes of the character that begins with c; 1: none does. */
static size_t length_by_first(unsigned char c)
{
    return c < 0xc2 || c >= 0xf5 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

size_t data_utf8_whole(const char *p, size_t n)
{
    size_t back = 1;
    while (back < 3 && back < n && (p[n - back] & 0xc0) == 0x80) back++;
    return n && length_by_first((unsigned char)p[n - back]) > back ? n - back : n;
}

void data_utf8_replace(const char *p, size_t n, bool no_nul, ls_str *out)
{
    const unsigned char *at = (const unsigned char *)p, *const end = at + n;
    while (at < end) {
        size_t good = data_utf8_check(at, (size_t)(end - at));
        if (no_nul) good = strnlen((const char *)at, good);
        ls_str_addn(out, at, good);
        at += good;
        if (at == end) break;
        ls_str_add(out, "\xef\xbf\xbd");
        at += *at ? data_utf8_bad_len(at, (size_t)(end - at)) : 1;
    }
}

size_t data_utf8_bad_len(const unsigned char *p, size_t n)
{
    unsigned c = p[0];
    size_t want = length_by_first(p[0]), k = 1;
    if (n > 1 && ((c == 0xe0 && p[1] < 0xa0) || (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] >= 0x90))) return 1;
    while (k < want && k < n && (p[k] & 0xc0) == 0x80) k++;
    return k;
}
