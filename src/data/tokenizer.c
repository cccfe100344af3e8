/* tokenizer.c - builds and queries a tokenizer. Invariants after data_tokenizer_finish:
 *   1. every id below n_vocab has at least one byte, and each of the 256 bytes has an id;
 *   2. the bytes of a merge are those of its two parts joined, and no pair occurs twice;
 *   3. the tokenizer is immutable. */
#include "data/tokenizer.h"
#include "data/tokenizer_impl.h"
#include "core/fs.h"
#include "core/mem.h"

#include <string.h>

void ls_ids_fini(ls_ids *ids)
{
    ls_free(ids->id);
    *ids = (ls_ids){0};
}

ls_status ls_ids_push(ls_ids *ids, int32_t id)
{
    LS_TRY(ls_reserve(&ids->id, &ids->cap, ids->n + 1, sizeof *ids->id, "a list of ids"));
    ids->id[ids->n++] = id;
    return LS_OK;
}

static int stands_for_itself(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

uint32_t data_byte_to_char(unsigned char b)
{
    if (stands_for_itself(b)) return b;
    return b <= 32 ? 256u + b : b <= 160 ? 256u + 33 + (b - 127u) : 256u + 67;
}

int data_char_to_byte(uint32_t c)
{
    if (c < 256) return stands_for_itself(c) ? (int)c : -1;
    if (c <= 256 + 32) return (int)c - 256;
    if (c <= 256 + 66) return (int)c - 256 - 33 + 127;
    return c == 256 + 67 ? 173 : -1;
}

unsigned char data_gpt2_byte(int id)
{
    if (id < 94) return (unsigned char)(33 + id);
    if (id < 106) return (unsigned char)(161 + id - 94);
    if (id < 188) return (unsigned char)(174 + id - 106);
    return (unsigned char)data_char_to_byte((uint32_t)(256 + id - 188));
}

void ls_tokenizer_destroy(ls_tokenizer **tp)
{
    ls_tokenizer *t = *tp;
    if (!t) return;
    ls_free(t->bytes);
    ls_free(t->off);
    ls_free(t->len);
    ls_free(t->added);
    ls_free(t->merge);
    ls_free(t->first);
    ls_free(t->pair);
    ls_free(t);
    *tp = NULL;
}

ls_status data_tokenizer_new(int n_vocab, int n_merge, ls_tokenizer **out)
{
    ls_tokenizer *t = ls_alloc(sizeof *t);
    if (!t) return ls_nomem(sizeof *t, "a tokenizer");
    t->n_vocab = n_vocab;
    t->n_merge = n_merge;
    t->eot = -1;
    t->off = ls_alloc((size_t)n_vocab * sizeof *t->off);
    t->len = ls_alloc((size_t)n_vocab * sizeof *t->len);
    t->added = ls_alloc((size_t)n_vocab);
    t->merge = ls_alloc((size_t)n_merge * sizeof *t->merge);
    if (!t->off || !t->len || !t->added || !t->merge) {
        ls_tokenizer_destroy(&t);
        return ls_nomem((size_t)n_vocab * 16, "a tokenizer");
    }
    *out = t;
    return LS_OK;
}

ls_status data_tokenizer_set(ls_tokenizer *t, int32_t id, const void *bytes, size_t nbytes)
{
    LS_TRY(ls_reserve(&t->bytes, &t->cap_bytes, t->n_bytes + nbytes, 1, "a vocabulary"));
    memcpy(t->bytes + t->n_bytes, bytes, nbytes);
    t->off[id] = t->n_bytes;
    t->len[id] = (uint32_t)nbytes;
    t->n_bytes += nbytes;
    return LS_OK;
}

ls_status data_tokenizer_set_eot(ls_tokenizer *t, int32_t id)
{
    t->eot = id;
    t->added[id] = 1;
    return data_tokenizer_set(t, id, DATA_EOT_NAME, strlen(DATA_EOT_NAME));
}

/* Checks every merge: its bytes must be those of its two tokens joined. */
static ls_status check_merges(const ls_tokenizer *t, const char *what)
{
    for (int r = 0; r < t->n_merge; r++) {
        data_merge m = t->merge[r];
        uint32_t a = t->len[m.left], b = t->len[m.right];
        const unsigned char *whole = t->bytes + t->off[m.id];
        if (t->len[m.id] != a + b || memcmp(whole, t->bytes + t->off[m.left], a) ||
            memcmp(whole + a, t->bytes + t->off[m.right], b))
            return ls_fail(LS_E_FORMAT, "%s: merge %d gives id %d, whose bytes are not the two parts joined", what, r,
                           m.id);
    }
    return LS_OK;
}

static ls_status index_merges(ls_tokenizer *t, const char *what)
{
    uint32_t bits = 4;
    while (((size_t)1 << bits) < 2 * (size_t)t->n_merge) bits++;
    t->pair_mask = (uint32_t)(((uint64_t)1 << bits) - 1);
    t->pair_shift = 64 - bits;
    size_t n_slot = (size_t)1 << bits;
    t->pair = ls_alloc(n_slot * sizeof *t->pair);
    t->first = ls_alloc(65536 * sizeof *t->first);
    if (!t->pair || !t->first) return ls_nomem(n_slot * sizeof *t->pair, "the table of merges");
    for (size_t i = 0; i < n_slot; i++) t->pair[i].rank = DATA_NO_RANK;
    for (int r = 0; r < t->n_merge; r++) {
        data_merge m = t->merge[r];
        uint32_t i = (uint32_t)(data_pair_hash(m.left, m.right) * 0xbf58476d1ce4e5b9u >> t->pair_shift);
        for (; t->pair[i].rank != DATA_NO_RANK; i = (i + 1) & t->pair_mask)
            if (t->pair[i].left == m.left && t->pair[i].right == m.right)
                return ls_fail(LS_E_FORMAT, "%s: merge %d repeats merge %u", what, r, t->pair[i].rank);
        t->pair[i] = (data_pair){m.left, m.right, (uint32_t)r};
    }
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) t->first[a * 256 + b] = data_pair_rank(t, t->byte_id[a], t->byte_id[b]);
    return LS_OK;
}

ls_status data_tokenizer_finish(ls_tokenizer *t, const char *what)
{
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
    for (int id = 0; id < t->n_vocab; id++) {
        if (!t->len[id])
            return ls_fail(LS_E_FORMAT, "%s: no token has id %d, but there are %d tokens", what, id, t->n_vocab);
        if (t->len[id] == 1 && !t->added[id]) {
            int32_t *slot = &t->byte_id[t->bytes[t->off[id]]];
            if (*slot >= 0) return ls_fail(LS_E_FORMAT, "%s: ids %d and %d are the same byte", what, *slot, id);
            *slot = id;
        }
    }
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0)
            return ls_fail(LS_E_FORMAT, "%s: no token for byte 0x%02x; a byte-level vocabulary needs all 256", what, b);
    LS_TRY(check_merges(t, what));
    return index_merges(t, what);
}

ls_status ls_tokenizer_bytes(ls_tokenizer **out)
{
    ls_tokenizer *t = NULL;
    LS_TRY(data_tokenizer_new(257, 0, &t));
    ls_status st;
    for (int i = 0; i < 256; i++)
        LS_TRY_GOTO(st, done, data_tokenizer_set(t, i, &(unsigned char){(unsigned char)i}, 1));
    LS_TRY_GOTO(st, done, data_tokenizer_set_eot(t, 256));
    LS_TRY_GOTO(st, done, data_tokenizer_finish(t, "the byte vocabulary"));
    *out = t;
    t = NULL;
done:
    ls_tokenizer_destroy(&t);
    return st;
}

int ls_tokenizer_n_vocab(const ls_tokenizer *t)
{
    return t->n_vocab;
}

int ls_tokenizer_n_merge(const ls_tokenizer *t)
{
    return t->n_merge;
}

int32_t ls_tokenizer_eot(const ls_tokenizer *t)
{
    return t->eot;
}

ls_substr ls_tokenizer_special(const ls_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_vocab || !t->added[id]) return (ls_substr){0};
    return (ls_substr){(const char *)t->bytes + t->off[id], t->len[id]};
}

ls_status ls_tokenizer_decode(const ls_tokenizer *t, const int32_t *id, size_t n, ls_str *out)
{
    for (size_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= t->n_vocab)
            return ls_fail(LS_E_ARG, "token id %d at position %zu is outside the vocabulary of %d", id[i], i,
                           t->n_vocab);
        ls_str_addn(out, t->bytes + t->off[id[i]], t->len[id[i]]);
    }
    return out->failed ? ls_nomem(out->len, "decoded text") : LS_OK;
}
