/* encode.c - encodes text: splits it, looks each piece up in a cache, else merges.
 *
 * In English text 90 % of the pieces are in the table of recent pieces (direct-mapped, one cache line per entry, two memory reads
 * per piece). Other pieces are merged by lowest rank, leftmost first on ties: short ones by scanning an array, long ones (letters
 * without a blank can be megabytes) with a heap in n log n. */
#include "data/tokenizer_impl.h"
#include "data/pretokenize.h"
#include "core/mem.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files and the key below are little-endian"
#endif

#define KEY_BYTES   24
#define MEMO_IDS    9
#define MEMO_BITS   16
#define SHORT_PIECE 64

/* 64 bytes: a piece of at most 24 bytes, zero-padded, and its ids. nbytes 0: free. */
typedef struct memo {
    uint64_t key[3];
    uint8_t nbytes, n;
    int32_t id[MEMO_IDS];
} memo;
_Static_assert(sizeof(memo) == 64, "one cache line");

struct ls_encoder {
    const ls_tokenizer *t;
    memo *table;
    /* for long pieces: a list of symbols linked by position, and the heap of their pairs */
    size_t cap;
    int32_t *sym;
    uint32_t *next, *prev, *rank;
    uint64_t *heap;
};

ls_status ls_encoder_create(const ls_tokenizer *t, ls_encoder **out)
{
    ls_encoder *e = ls_alloc(sizeof *e);
    if (!e) return ls_nomem(sizeof *e, "an encoder");
    e->t = t;
    e->table = ls_alloc(sizeof(memo) << MEMO_BITS);
    if (!e->table) {
        ls_free(e);
        return ls_nomem(sizeof(memo) << MEMO_BITS, "an encoder");
    }
    *out = e;
    return LS_OK;
}

static void free_lists(ls_encoder *e)
{
    ls_free(e->sym);
    ls_free(e->next);
    ls_free(e->prev);
    ls_free(e->rank);
    ls_free(e->heap);
    e->sym = NULL;
    e->next = e->prev = e->rank = NULL;
    e->heap = NULL;
    e->cap = 0;
}

void ls_encoder_destroy(ls_encoder **ep)
{
    ls_encoder *e = *ep;
    if (!e) return;
    free_lists(e);
    ls_free(e->table);
    ls_free(e);
    *ep = NULL;
}

/* Merges the bytes of a short piece; returns how many ids were written. */
static size_t merge_short(const ls_tokenizer *t, const unsigned char *p, size_t n, int32_t *sym)
{
    uint32_t rank[SHORT_PIECE]; /* of the pair (i, i+1) */
    for (size_t i = 0; i < n; i++) sym[i] = t->byte_id[p[i]];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = t->first[p[i] * 256 + p[i + 1]];
    while (n > 1) {
        uint32_t best = rank[0];
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < best) {
                best = rank[i];
                at = i;
            }
        }
        if (best == DATA_NO_RANK) break;
        sym[at] = t->merge[best].id;
        n--;
        for (size_t i = at + 1; i < n; i++) sym[i] = sym[i + 1];
        for (size_t i = at + 1; i + 1 < n; i++) rank[i] = rank[i + 1];
        if (at + 1 < n) rank[at] = data_pair_rank(t, sym[at], sym[at + 1]);
        if (at) rank[at - 1] = data_pair_rank(t, sym[at - 1], sym[at]);
    }
    return n;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t x)
{
    size_t i = (*n)++;
    for (; i && heap[(i - 1) / 2] > x; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], x = heap[--*n];
    size_t i = 0, m = *n;
    for (size_t c; (c = 2 * i + 1) < m; i = c) {
        if (c + 1 < m && heap[c + 1] < heap[c]) c++;
        if (heap[c] >= x) break;
        heap[i] = heap[c];
    }
    heap[i] = x;
    return top;
}

static ls_status room_for(ls_encoder *e, size_t n)
{
    if (n <= e->cap) return LS_OK;
    if (n >= UINT32_MAX) return ls_fail(LS_E_UNSUPPORTED, "a text of %zu bytes that cannot be split is too long", n);
    size_t cap = n + n / 2 < UINT32_MAX ? n + n / 2 : n;
    free_lists(e);
    e->sym = ls_alloc(cap * sizeof *e->sym);
    e->next = ls_alloc(cap * sizeof *e->next);
    e->prev = ls_alloc(cap * sizeof *e->prev);
    e->rank = ls_alloc(cap * sizeof *e->rank);
    e->heap = ls_alloc(3 * cap * sizeof *e->heap); /* n pairs at first, two more with each of n - 1 merges */
    if (!e->sym || !e->next || !e->prev || !e->rank || !e->heap) {
        free_lists(e);
        return ls_nomem(cap * 40, "a long word");
    }
    e->cap = cap;
    return LS_OK;
}

/* The same for a piece of any length. An entry of the heap is rank << 32 | position, so that the lowest rank comes first and
 * the leftmost among equals; an entry whose pair has changed meanwhile does not match rank[position] and is dropped. */
static ls_status merge_long(ls_encoder *e, const unsigned char *p, size_t n, int32_t *out, size_t *n_out)
{
    const ls_tokenizer *t = e->t;
    LS_TRY(room_for(e, n));
    size_t n_heap = 0;
    const uint32_t end = (uint32_t)n;
    for (uint32_t i = 0; i < end; i++) {
        e->sym[i] = t->byte_id[p[i]];
        e->next[i] = i + 1;
        e->prev[i] = i - 1; /* of the first: wraps, never read */
        e->rank[i] = i + 1 < end ? t->first[p[i] * 256 + p[i + 1]] : DATA_NO_RANK;
        if (e->rank[i] != DATA_NO_RANK) heap_push(e->heap, &n_heap, (uint64_t)e->rank[i] << 32 | i);
    }
    while (n_heap) {
        uint64_t top = heap_pop(e->heap, &n_heap);
        uint32_t i = (uint32_t)top, r = (uint32_t)(top >> 32);
        if (e->rank[i] != r) continue;
        uint32_t gone = e->next[i], after = e->next[gone];
        e->sym[i] = t->merge[r].id;
        e->rank[gone] = DATA_NO_RANK;
        e->next[i] = after;
        e->rank[i] = DATA_NO_RANK;
        if (after < end) {
            e->prev[after] = i;
            e->rank[i] = data_pair_rank(t, e->sym[i], e->sym[after]);
            if (e->rank[i] != DATA_NO_RANK) heap_push(e->heap, &n_heap, (uint64_t)e->rank[i] << 32 | i);
        }
        if (i) {
            uint32_t b = e->prev[i];
            e->rank[b] = data_pair_rank(t, e->sym[b], e->sym[i]);
            if (e->rank[b] != DATA_NO_RANK) heap_push(e->heap, &n_heap, (uint64_t)e->rank[b] << 32 | b);
        }
    }
    size_t k = 0;
    for (uint32_t i = 0; i < end; i = e->next[i]) out[k++] = e->sym[i];
    *n_out = k;
    return LS_OK;
}

/* The first n <= 24 bytes at p as three words, the rest zero; `left` bytes may be read. */
static inline void load_key(const unsigned char *p, size_t n, size_t left, uint64_t key[3])
{
    unsigned char padded[KEY_BYTES];
    if (left < KEY_BYTES) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, p, n);
        p = padded;
    }
    memcpy(&key[0], p, 8);
    if (n <= 8) {
        key[0] &= UINT64_MAX >> (64 - 8 * n);
        key[1] = key[2] = 0;
        return;
    }
    memcpy(&key[1], p + 8, 8);
    if (n <= 16) {
        key[1] &= UINT64_MAX >> (128 - 8 * n);
        key[2] = 0;
        return;
    }
    memcpy(&key[2], p + 16, 8);
    key[2] &= UINT64_MAX >> (192 - 8 * n);
}

static inline size_t memo_slot(const uint64_t key[3])
{
    uint64_t h = key[0] * 0x9e3779b97f4a7c15u ^ key[1] * 0xc2b2ae3d27d4eb4fu ^ key[2] * 0xd6e8feb86659fd93u;
    return (h ^ h >> 32) * 0x9e3779b97f4a7c15u >> (64 - MEMO_BITS);
}

/* Room for n more ids and for the fixed-size copy out of a memo. */
static ls_status ids_reserve(ls_ids *ids, size_t n)
{
    size_t need = ids->n + n + MEMO_IDS;
    if (need <= ids->cap) return LS_OK;
    size_t cap = ids->cap + ids->cap / 2 > need ? ids->cap + ids->cap / 2 : need + 256;
    int32_t *p = ls_realloc(ids->id, cap * sizeof *p);
    if (!p) return ls_nomem(cap * sizeof *p, "a list of ids");
    ids->id = p;
    ids->cap = cap;
    return LS_OK;
}

ls_status ls_encode(ls_encoder *e, const void *text, size_t n, ls_ids *ids)
{
    const unsigned char *p = text;
    const ls_tokenizer *t = e->t;
    LS_TRY(ids_reserve(ids, n / 3));
    while (n) {
        size_t len = data_split_next(p, n);
        if (ids->cap - ids->n < len + MEMO_IDS) LS_TRY(ids_reserve(ids, len + n / 4));
        int32_t *out = ids->id + ids->n;
        if (len <= KEY_BYTES) {
            uint64_t key[3];
            load_key(p, len, n, key);
            memo *m = &e->table[memo_slot(key)];
            if (m->nbytes == len && m->key[0] == key[0] && m->key[1] == key[1] && m->key[2] == key[2]) {
                memcpy(out, m->id, sizeof m->id);
                ids->n += m->n;
            } else {
                size_t k = merge_short(t, p, len, out);
                ids->n += k;
                if (k <= MEMO_IDS) {
                    memcpy(m->key, key, sizeof m->key);
                    memcpy(m->id, out, k * sizeof *out);
                    m->nbytes = (uint8_t)len;
                    m->n = (uint8_t)k;
                }
            }
        } else if (len <= SHORT_PIECE) {
            ids->n += merge_short(t, p, len, out);
        } else {
            size_t k = 0;
            LS_TRY(merge_long(e, p, len, out, &k));
            ids->n += k;
        }
        p += len;
        n -= len;
    }
    return LS_OK;
}

ls_status ls_tokenizer_encode(const ls_tokenizer *t, const void *text, size_t n, ls_ids *ids)
{
    ls_encoder *e = NULL;
    LS_TRY(ls_encoder_create(t, &e));
    ls_status st = ls_encode(e, text, n, ids);
    ls_encoder_destroy(&e);
    return st;
}
