/* ngrams.c - clipped matches of n-grams.
 *
 * An n-gram is numbered by the number of its first n-1 items and its last item, so that comparing n-grams of any order is comparing two
 * 32-bit numbers. */
#include "score/score_impl.h"
#include "core/mem.h"

#include <string.h>

/* The n-grams of one order that have been seen: open addressing, at most half full. */
typedef struct table {
    uint64_t *key;
    uint32_t *name; /* number + 1; 0: free */
    size_t n_slot;
    int shift; /* 64 - log2(n_slot) */
    uint32_t n;
} table;

static ls_status table_open(table *t, size_t n)
{
    int bits = 4;
    while (((size_t)1 << bits) < 2 * n) bits++;
    *t = (table){.n_slot = (size_t)1 << bits, .shift = 64 - bits};
    t->key = ls_alloc(t->n_slot * sizeof *t->key);
    t->name = ls_alloc(t->n_slot * sizeof *t->name);
    return t->key && t->name ? LS_OK : ls_nomem(t->n_slot * 12, "n-grams");
}

static void table_clear(table *t)
{
    memset(t->name, 0, t->n_slot * sizeof *t->name);
    t->n = 0;
}

/* The number of an n-gram; a new one gets the next. */
static uint32_t name_of(table *t, uint64_t key)
{
    const size_t mask = t->n_slot - 1;
    size_t at = (size_t)((key ^ key >> 29) * 0x9e3779b97f4a7c15u >> t->shift);
    for (; t->name[at] && t->key[at] != key; at = (at + 1) & mask)
        ;
    if (!t->name[at]) {
        t->key[at] = key;
        t->name[at] = ++t->n;
    }
    return t->name[at] - 1;
}

/* Replaces the numbers of the (order-1)-grams of a sequence by those of its n-grams; returns how many there are. */
static size_t number(table *t, const uint32_t *item, size_t len, int order, uint32_t *name)
{
    const size_t n = (size_t)score_count(len, order);
    for (size_t i = 0; i < n; i++) name[i] = name_of(t, (uint64_t)name[i] << 32 | item[i + (size_t)order - 1]);
    return n;
}

/* The most often that one reference has each of n n-grams. In one, zeros before and after. */
static void count_most(const uint32_t *name, size_t n, uint32_t *one, uint32_t *count)
{
    for (size_t i = 0; i < n; i++)
        if (++one[name[i]] > count[name[i]]) count[name[i]] = one[name[i]];
    for (size_t i = 0; i < n; i++) one[name[i]] = 0;
}

ls_status score_match(const uint32_t *h, size_t nh, const uint32_t *r, const size_t *nr, int n_ref, int n_order,
                      int64_t *match)
{
    size_t most = nh;
    table t;
    for (int k = 0; k < n_ref; k++) most += nr[k];
    uint32_t *name = ls_alloc((3 * most + 1) * sizeof *name);
    ls_status st = table_open(&t, most);
    if (st == LS_OK && !name) st = ls_nomem(3 * most * sizeof *name, "n-grams");
    for (int order = 1; order <= n_order && st == LS_OK; order++) {
        uint32_t *in_h = name, *count = name + most, *one = count + most; /* count: what is not matched yet */
        table_clear(&t);
        memset(count, 0, 2 * most * sizeof *count);
        const size_t a = number(&t, h, nh, order, in_h);
        for (size_t k = 0, at = 0; k < (size_t)n_ref; at += nr[k++])
            count_most(name + nh + at, number(&t, r + at, nr[k], order, name + nh + at), one, count);
        for (size_t i = 0; i < a; i++)
            if (count[in_h[i]]) count[in_h[i]]--, match[order - 1]++;
    }
    ls_free(t.key);
    ls_free(t.name);
    ls_free(name);
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
