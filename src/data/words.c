/* words.c - a hash table of pieces in the order of first occurrence. */
#include "data/bpe_train.h"
#include "data/pretokenize.h"
#include "core/hash.h"
#include "core/mem.h"

#include <string.h>

void ls_words_fini(ls_words *w)
{
    ls_free(w->bytes);
    ls_free(w->word);
    ls_free(w->slot);
    *w = (ls_words){.max_bytes = w->max_bytes};
}

void ls_words_clear(ls_words *w)
{
    if (w->slot) memset(w->slot, 0, w->n_slot * sizeof *w->slot);
    w->n = w->n_bytes = 0;
}

static ls_status rehash(ls_words *w)
{
    size_t n = w->n_slot ? w->n_slot * 2 : 8192;
    uint32_t *p = ls_alloc(n * sizeof *p);
    if (!p) return ls_nomem(n * sizeof *p, "word counts");
    for (size_t i = 0; i < w->n; i++) {
        size_t k = w->word[i].hash & (n - 1);
        while (p[k]) k = (k + 1) & (n - 1);
        p[k] = (uint32_t)i + 1;
    }
    ls_free(w->slot);
    w->slot = p;
    w->n_slot = n;
    return LS_OK;
}

ls_status ls_words_add(ls_words *w, const unsigned char *piece, size_t nbytes, int64_t count)
{
    if (nbytes > DATA_WORD_MAX) return LS_OK;
    if (2 * (w->n + 1) > w->n_slot) LS_TRY(rehash(w));
    const uint32_t h = (uint32_t)ls_xxh64(piece, nbytes);
    const size_t mask = w->n_slot - 1;
    size_t k = h & mask;
    for (; w->slot[k]; k = (k + 1) & mask) {
        ls_word *x = &w->word[w->slot[k] - 1];
        if (x->hash == h && x->nbytes == nbytes && !memcmp(w->bytes + x->off, piece, nbytes)) {
            x->count += count;
            return LS_OK;
        }
    }
    if (w->n_bytes + nbytes > w->max_bytes || w->n >= UINT32_MAX - 1) return LS_OK;
    LS_TRY(ls_reserve(&w->bytes, &w->cap_bytes, w->n_bytes + nbytes, 1, "word counts"));
    LS_TRY(ls_reserve(&w->word, &w->cap, w->n + 1, sizeof *w->word, "word counts"));
    memcpy(w->bytes + w->n_bytes, piece, nbytes);
    w->word[w->n] = (ls_word){w->n_bytes, (uint32_t)nbytes, h, count};
    w->n_bytes += nbytes;
    w->slot[k] = (uint32_t)++w->n;
    return LS_OK;
}

ls_status ls_words_add_text(ls_words *w, const unsigned char *text, size_t n)
{
    while (n) {
        size_t k = data_split_next(text, n);
        LS_TRY(ls_words_add(w, text, k, 1));
        text += k;
        n -= k;
    }
    return LS_OK;
}

ls_status ls_words_add_all(ls_words *w, const ls_words *more)
{
    for (size_t i = 0; i < more->n; i++)
        LS_TRY(ls_words_add(w, more->bytes + more->word[i].off, more->word[i].nbytes, more->word[i].count));
    return LS_OK;
}
