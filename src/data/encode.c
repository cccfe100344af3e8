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

typedef struct symbol {
    int32_t id;
    uint32_t next, prev; /* positions */
    uint32_t rank;       /* of the pair with the next one */
} symbol;

struct ls_encoder {
    const ls_tokenizer *t;
    memo *table;
    /* for long pieces: symbols linked by position, and the heap of their pairs */
    symbol *sym;
    uint64_t *heap;
    size_t cap_sym, cap_heap, n_heap;
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

void ls_encoder_destroy(ls_encoder **ep)
{
    ls_encoder *e = *ep;
    if (!e) return;
    ls_free(e->sym);
    ls_free(e->heap);
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

/* Stores the rank of the pair at position i, and in the heap if the pair can be merged. */
static void set_rank(ls_encoder *e, uint32_t i, uint32_t rank)
{
    e->sym[i].rank = rank;
    if (rank == DATA_NO_RANK) return;
    const uint64_t x = (uint64_t)rank << 32 | i;
    uint64_t *heap = e->heap;
    size_t k = e->n_heap++;
    for (; k && heap[(k - 1) / 2] > x; k = (k - 1) / 2) heap[k] = heap[(k - 1) / 2];
    heap[k] = x;
}

static uint64_t heap_pop(ls_encoder *e)
{
    uint64_t *heap = e->heap, top = heap[0], x = heap[--e->n_heap];
    size_t i = 0, n = e->n_heap;
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && heap[c + 1] < heap[c]) c++;
        if (heap[c] >= x) break;
        heap[i] = heap[c];
    }
    heap[i] = x;
    return top;
}

/* The same for a piece of any length. An entry of the heap is rank << 32 | position, so that the lowest rank comes first and
 * the leftmost among equals; an entry whose pair has changed meanwhile does not match the rank at its position and is dropped. */
static ls_status merge_long(ls_encoder *e, const unsigned char *p, size_t n, int32_t *out, size_t *n_out)
{
    const ls_tokenizer *t = e->t;
    if (n >= UINT32_MAX) return ls_fail(LS_E_UNSUPPORTED, "a text of %zu bytes that cannot be split is too long", n);
    LS_TRY(ls_reserve(&e->sym, &e->cap_sym, n, sizeof *e->sym, "a long word"));
    /* n pairs at first, two more with each of n - 1 merges */
    LS_TRY(ls_reserve(&e->heap, &e->cap_heap, 3 * n, sizeof *e->heap, "a long word"));
    symbol *sym = e->sym;
    const uint32_t end = (uint32_t)n;
    e->n_heap = 0;
    for (uint32_t i = 0; i < end; i++) {
        sym[i] = (symbol){.id = t->byte_id[p[i]], .next = i + 1, .prev = i - 1}; /* prev of the first is never read */
        set_rank(e, i, i + 1 < end ? t->first[p[i] * 256 + p[i + 1]] : DATA_NO_RANK);
    }
    while (e->n_heap) {
        uint64_t top = heap_pop(e);
        uint32_t i = (uint32_t)top, r = (uint32_t)(top >> 32);
        if (sym[i].rank != r) continue;
        uint32_t gone = sym[i].next, after = sym[gone].next;
        sym[i].id = t->merge[r].id;
        sym[i].next = after;
        sym[gone].rank = DATA_NO_RANK;
        if (after < end) sym[after].prev = i;
        set_rank(e, i, after < end ? data_pair_rank(t, sym[i].id, sym[after].id) : DATA_NO_RANK);
        if (i) set_rank(e, sym[i].prev, data_pair_rank(t, sym[sym[i].prev].id, sym[i].id));
    }
    size_t k = 0;
    for (uint32_t i = 0; i < end; i = sym[i].next) out[k++] = sym[i].id;
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
    return ls_reserve(&ids->id, &ids->cap, ids->n + n + MEMO_IDS, sizeof *ids->id, "a list of ids");
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
