/* ngrams.c - clipped matches of n-grams.
 *
 * An n-gram is numbered by the number of its first n-1 items and its last item, so that comparing n-grams of any order is comparing two
 * 32-bit numbers. */
#include "score/score_impl.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint32_t place_of(const uint64_t *sorted, size_t n, uint64_t key)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (sorted[mid] < key) lo = mid + 1;
        else hi = mid;
    }
    return (uint32_t)lo;
}

/* Replaces the numbers of (n-1)-grams by those of n-grams: their places in the sorted list. Returns the length of the list. */
static size_t number(const uint32_t *item, size_t len, int order, uint32_t *name, uint64_t *key)
{
    const size_t n = (size_t)score_count(len, order);
    for (size_t i = 0; i < n; i++) key[i] = (uint64_t)name[i] << 32 | item[i + (size_t)order - 1];
    return n;
}

ls_status score_match(const uint32_t *h, size_t nh, const uint32_t *r, size_t nr, int n_order, int64_t *match)
{
    const size_t most = nh + nr;
    uint32_t *name = ls_alloc((2 * most + 1) * sizeof *name), *names_r = name ? name + nh : NULL;
    uint64_t *key = ls_alloc((2 * most + 1) * sizeof *key);
    ls_status st = name && key ? LS_OK : ls_nomem(most * 24, "n-grams");
    for (int order = 1; order <= n_order && st == LS_OK; order++) {
        uint64_t *sorted = key + most;
        const size_t a = number(h, nh, order, name, key), b = number(r, nr, order, names_r, key + a);
        if (!a || !b) break;
        memcpy(sorted, key, (a + b) * sizeof *key);
        qsort(sorted, a + b, sizeof *sorted, by_value);
        uint32_t *count = name + most; /* of each n-gram of r that is not matched yet, by its place */
        memset(count, 0, (a + b) * sizeof *count);
        for (size_t i = 0; i < b; i++) count[names_r[i] = place_of(sorted, a + b, key[a + i])]++;
        for (size_t i = 0; i < a; i++) {
            name[i] = place_of(sorted, a + b, key[i]);
            if (count[name[i]]) count[name[i]]--, match[order - 1]++;
        }
    }
    ls_free(name);
    ls_free(key);
    return st;
}

size_t score_char(const char *p, size_t n, uint32_t *id)
{
    const unsigned char first = (unsigned char)p[0];
    const size_t len = first < 0xc2 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 1;
    uint32_t bytes = first;
    for (size_t i = 1; i < len; i++) {
        if (i >= n || ((unsigned char)p[i] & 0xc0) != 0x80) {
            *id = first;
            return 1;
        }
        bytes = bytes << 8 | (unsigned char)p[i];
    }
    *id = bytes;
    return len;
}

bool score_is_space(uint32_t id)
{
    if (id < 0x80) return (id >= 0x09 && id <= 0x0d) || (id >= 0x1c && id <= 0x20);
    return id == 0xc285 || id == 0xc2a0 || id == 0xe19a80 || (id >= 0xe28080 && id <= 0xe2808a) || id == 0xe280a8 ||
           id == 0xe280a9 || id == 0xe280af || id == 0xe2819f || id == 0xe38080;
}
