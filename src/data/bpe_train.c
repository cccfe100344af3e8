/* bpe_train.c - the BPE trainer: incremental pair counts, the best pair from a heap, updates only in words with that pair.
 *
 *   words    one array of symbols; word w is sym[start[w] .. start[w] + len[w])
 *   pairs    hash table (left, right) -> count and a list of the words that may contain it
 *   heap     pairs by count; an entry with an outdated count is reinserted with the current one when it is popped
 * Invariants
 *   1. the count of a pair is the sum over words of occurrences x word count (occurrences in a run like "aaa" overlap);
 *   2. the list of a pair has every word that contains it, and possibly words that no longer do;
 *   3. counts only decrease, except those of pairs with the new token: these are pushed after each merge. */
#include "data/bpe_train.h"
#include "data/tokenizer_impl.h"
#include "core/hash.h"
#include "core/mem.h"

#include <string.h>

#define NIL UINT32_MAX

typedef struct pair {
    int32_t left, right;
    int64_t count;
    uint32_t list;  /* first node */
    uint32_t fresh; /* raised during the merge numbered so */
} pair;

typedef struct node {
    uint32_t word, next;
} node;

typedef struct candidate {
    int64_t count;
    uint32_t pair;
} candidate;

/* prepare.c limits a corpus to 16 MiB of different words, which make far fewer pairs and nodes than 2^32. */
typedef struct trainer {
    const ls_words *words;
    ls_tokenizer *tok; /* n_vocab and n_merge: learned so far */
    int first;         /* id of the first byte: the number of special tokens before it */
    int32_t *sym;
    size_t *start;
    uint32_t *len;
    pair *pairs;
    uint32_t *slot; /* pair number + 1 */
    node *nodes;
    candidate *heap;
    uint32_t *raised;   /* pairs raised by this merge */
    uint32_t *by_bytes; /* id + 1 of the token with these bytes: two merges can make the same one */
    uint32_t n_pair, n_slot, n_node, free_node, n_raised, step, n_by_bytes;
    size_t n_heap, cap_pair, cap_node, cap_heap, cap_raised, cap_merge;
} trainer;

static ls_status rehash(trainer *t)
{
    uint32_t n = t->n_slot ? t->n_slot * 2 : 1u << 16;
    uint32_t *p = ls_alloc(n * sizeof *p);
    if (!p) return ls_nomem(n * sizeof *p, "the BPE trainer");
    for (uint32_t i = 0; i < t->n_pair; i++) {
        uint32_t k = (uint32_t)data_pair_hash(t->pairs[i].left, t->pairs[i].right) & (n - 1);
        while (p[k]) k = (k + 1) & (n - 1);
        p[k] = i + 1;
    }
    ls_free(t->slot);
    t->slot = p;
    t->n_slot = n;
    return LS_OK;
}

/* The number of the pair, made with count 0 when it is new. */
static ls_status pair_at(trainer *t, int32_t left, int32_t right, uint32_t *out)
{
    if (2 * (t->n_pair + 1) > t->n_slot) LS_TRY(rehash(t));
    uint32_t mask = t->n_slot - 1, k = (uint32_t)data_pair_hash(left, right) & mask;
    for (; t->slot[k]; k = (k + 1) & mask) {
        const pair *x = &t->pairs[t->slot[k] - 1];
        if (x->left == left && x->right == right) {
            *out = t->slot[k] - 1;
            return LS_OK;
        }
    }
    LS_TRY(ls_reserve(&t->pairs, &t->cap_pair, t->n_pair + 1, sizeof *t->pairs, "the BPE trainer"));
    t->pairs[t->n_pair] = (pair){left, right, 0, NIL, NIL};
    *out = t->n_pair++;
    t->slot[k] = t->n_pair;
    return LS_OK;
}

static ls_status lower(trainer *t, int32_t left, int32_t right, int64_t count)
{
    uint32_t p;
    LS_TRY(pair_at(t, left, right, &p));
    t->pairs[p].count -= count;
    return LS_OK;
}

static ls_status raise_pair(trainer *t, int32_t left, int32_t right, int64_t count, uint32_t word)
{
    uint32_t p;
    LS_TRY(pair_at(t, left, right, &p));
    t->pairs[p].count += count;
    if (t->pairs[p].list == NIL || t->nodes[t->pairs[p].list].word != word) { /* words come one after another */
        uint32_t k = t->free_node;
        if (k != NIL) {
            t->free_node = t->nodes[k].next;
        } else {
            LS_TRY(ls_reserve(&t->nodes, &t->cap_node, t->n_node + 1, sizeof *t->nodes, "the BPE trainer"));
            k = t->n_node++;
        }
        t->nodes[k] = (node){word, t->pairs[p].list};
        t->pairs[p].list = k;
    }
    if (t->pairs[p].fresh != t->step) {
        t->pairs[p].fresh = t->step;
        LS_TRY(ls_reserve(&t->raised, &t->cap_raised, t->n_raised + 1, sizeof *t->raised, "the BPE trainer"));
        t->raised[t->n_raised++] = p;
    }
    return LS_OK;
}

/* a before b: higher count, then lower ids. */
static bool before(const trainer *t, candidate a, candidate b)
{
    if (a.count != b.count) return a.count > b.count;
    const pair *x = &t->pairs[a.pair], *y = &t->pairs[b.pair];
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static ls_status push(trainer *t, candidate c)
{
    LS_TRY(ls_reserve(&t->heap, &t->cap_heap, t->n_heap + 1, sizeof *t->heap, "the BPE trainer"));
    size_t i = t->n_heap++;
    for (; i && before(t, c, t->heap[(i - 1) / 2]); i = (i - 1) / 2) t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = c;
    return LS_OK;
}

static candidate pop(trainer *t)
{
    candidate top = t->heap[0], x = t->heap[--t->n_heap];
    size_t i = 0, n = t->n_heap;
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && before(t, t->heap[c + 1], t->heap[c])) c++;
        if (!before(t, t->heap[c], x)) break;
        t->heap[i] = t->heap[c];
    }
    t->heap[i] = x;
    return top;
}

/* The raised pairs of this step enter the heap. */
static ls_status push_raised(trainer *t, int64_t min_count)
{
    for (uint32_t i = 0; i < t->n_raised; i++) {
        uint32_t p = t->raised[i];
        if (t->pairs[p].count >= min_count) LS_TRY(push(t, (candidate){t->pairs[p].count, p}));
    }
    t->n_raised = 0;
    t->step++;
    return LS_OK;
}

/* Replaces (left, right) by id in one word from left to right, and updates the counts of the neighbours. */
static ls_status merge_word(trainer *t, uint32_t w, int32_t left, int32_t right, int32_t id)
{
    int32_t *s = t->sym + t->start[w];
    uint32_t n = t->len[w], to = 0;
    int64_t count = t->words->word[w].count;
    for (uint32_t i = 0; i < n;) {
        if (i + 1 >= n || s[i] != left || s[i + 1] != right) {
            s[to++] = s[i++];
            continue;
        }
        if (to) {
            LS_TRY(lower(t, s[to - 1], left, count));
            LS_TRY(raise_pair(t, s[to - 1], id, count, w));
        }
        if (i + 2 < n) {
            LS_TRY(lower(t, right, s[i + 2], count));
            LS_TRY(raise_pair(t, id, s[i + 2], count, w));
        }
        s[to++] = id;
        i += 2;
    }
    t->len[w] = to;
    return LS_OK;
}

/* The id of the token whose bytes are those of the pair: a new one, or an older token with the same bytes. */
static ls_status token_of(trainer *t, const pair *p, int32_t *id)
{
    ls_tokenizer *tok = t->tok;
    uint32_t a = tok->len[p->left], b = tok->len[p->right];
    size_t n = (size_t)a + b;
    unsigned char *joined = ls_alloc(n);
    if (!joined) return ls_nomem(n, "a token");
    memcpy(joined, tok->bytes + tok->off[p->left], a);
    memcpy(joined + a, tok->bytes + tok->off[p->right], b);
    uint32_t mask = t->n_by_bytes - 1, k = (uint32_t)ls_xxh64(joined, n) & mask;
    ls_status st = LS_OK;
    for (; t->by_bytes[k]; k = (k + 1) & mask) {
        *id = (int32_t)t->by_bytes[k] - 1;
        if (tok->len[*id] == n && !memcmp(tok->bytes + tok->off[*id], joined, n)) break;
    }
    if (!t->by_bytes[k]) {
        *id = tok->n_vocab++;
        t->by_bytes[k] = (uint32_t)tok->n_vocab;
        st = data_tokenizer_set(tok, *id, joined, n);
    }
    ls_free(joined);
    return st;
}

static ls_status start(trainer *t, int n_vocab)
{
    const ls_words *words = t->words;
    t->n_by_bytes = 1024;
    while (t->n_by_bytes < 2u * (uint32_t)n_vocab) t->n_by_bytes *= 2;
    t->sym = ls_alloc(words->n_bytes * sizeof *t->sym);
    t->start = ls_alloc(words->n * sizeof *t->start);
    t->len = ls_alloc(words->n * sizeof *t->len);
    t->by_bytes = ls_alloc(t->n_by_bytes * sizeof *t->by_bytes);
    if (!t->sym || !t->start || !t->len || !t->by_bytes) return ls_nomem(words->n_bytes * 8, "the BPE trainer");
    int32_t id_of[256];
    for (int i = 0; i < 256; i++) id_of[data_gpt2_byte(i)] = t->first + i;
    size_t at = 0;
    for (uint32_t w = 0; w < words->n; w++) {
        const ls_word *x = &words->word[w];
        t->start[w] = at;
        t->len[w] = x->nbytes;
        for (uint32_t i = 0; i < x->nbytes; i++) t->sym[at + i] = id_of[words->bytes[x->off + i]];
        for (uint32_t i = 0; i + 1 < x->nbytes; i++)
            LS_TRY(raise_pair(t, t->sym[at + i], t->sym[at + i + 1], x->count, w));
        at += x->nbytes;
    }
    return LS_OK;
}

static ls_status learn(trainer *t, int n_vocab, int64_t min_count)
{
    ls_tokenizer *tok = t->tok;
    LS_TRY(push_raised(t, min_count));
    while (tok->n_vocab < n_vocab && t->n_heap) {
        candidate c = pop(t);
        pair best = t->pairs[c.pair];
        if (best.count != c.count) {
            if (best.count >= min_count) LS_TRY(push(t, (candidate){best.count, c.pair}));
            continue;
        }
        int32_t id = 0;
        LS_TRY(token_of(t, &best, &id));
        /* tokens made twice: more merges than tokens */
        LS_TRY(ls_reserve(&tok->merge, &t->cap_merge, (size_t)tok->n_merge + 1, sizeof *tok->merge, "the merges"));
        tok->merge[tok->n_merge++] = (data_merge){best.left, best.right, id};
        t->pairs[c.pair].list = NIL;
        for (uint32_t k = best.list; k != NIL;) {
            uint32_t w = t->nodes[k].word, next = t->nodes[k].next;
            LS_TRY(merge_word(t, w, best.left, best.right, id));
            t->nodes[k].next = t->free_node;
            t->free_node = k;
            k = next;
        }
        t->pairs[c.pair].count = 0;
        LS_TRY(push_raised(t, min_count));
    }
    return LS_OK;
}

/* The special tokens, then the bytes. */
static ls_status set_first_tokens(ls_tokenizer *tok, const char *const *special, int n_special)
{
    for (int i = 0; i < n_special; i++) {
        tok->added[i] = 1;
        LS_TRY(data_tokenizer_set(tok, i, special[i], strlen(special[i])));
    }
    for (int i = 0; i < 256; i++)
        LS_TRY(data_tokenizer_set(tok, n_special + i, &(unsigned char){data_gpt2_byte(i)}, 1));
    tok->n_vocab = n_special + 256;
    return LS_OK;
}

ls_status ls_bpe_train(const ls_words *words, int n_vocab, int64_t min_count, ls_tokenizer **out)
{
    return ls_bpe_train_special(words, NULL, 0, n_vocab, min_count, out);
}

ls_status ls_bpe_train_special(const ls_words *words, const char *const *special, int n_special, int n_vocab,
                               int64_t min_count, ls_tokenizer **out)
{
    const bool eot = n_special == 0;
    const int least = 256 + (eot ? 1 : n_special);
    if (n_vocab < least || n_vocab > DATA_MAX_VOCAB)
        return ls_fail(LS_E_ARG, "a vocabulary of %d tokens is not possible; use %d (bytes and %s) to %d", n_vocab,
                       least, eot ? "end-of-text" : "special tokens", DATA_MAX_VOCAB);
    ls_tokenizer *tok = NULL;
    LS_TRY(data_tokenizer_new(n_vocab, 0, &tok));
    trainer t = {.words = words, .tok = tok, .first = n_special, .free_node = NIL};
    ls_status st;
    LS_TRY_GOTO(st, done, set_first_tokens(tok, special, n_special));
    LS_TRY_GOTO(st, done, start(&t, n_vocab));
    LS_TRY_GOTO(st, done, learn(&t, n_vocab - eot, min_count));
    if (eot) LS_TRY_GOTO(st, done, data_tokenizer_set_eot(tok, tok->n_vocab++));
    LS_TRY_GOTO(st, done, data_tokenizer_finish(tok, "the trained vocabulary"));
    *out = tok;
    tok = NULL;
done:
    ls_free(t.sym);
    ls_free(t.start);
    ls_free(t.len);
    ls_free(t.pairs);
    ls_free(t.slot);
    ls_free(t.nodes);
    ls_free(t.heap);
    ls_free(t.raised);
    ls_free(t.by_bytes);
    ls_tokenizer_destroy(&tok);
    return st;
}
