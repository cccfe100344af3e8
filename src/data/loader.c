#include "data/loader.h"
#include "data/pairs.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/rng.h"

#include <stdio.h>
#include <string.h>

#define SCAN_MAX ((int64_t)128 << 20) /* ids looked at when a file is opened */

static int32_t token_at(const ls_tokens *t, int64_t i)
{
    const unsigned char *p = (const unsigned char *)t->map.data + 2 * i;
    return p[0] | p[1] << 8;
}

static ls_status bad_id(const ls_tokens *t, int64_t i)
{
    return ls_fail(
        LS_E_FORMAT,
        "%s: token id %d at position %lld is outside the vocabulary of %d: the file is from another tokenizer, or the vocabulary of the model is too small",
        t->path, token_at(t, i), (long long)i, t->vocab_size);
}

/* ---- pairs ---- */

static const unsigned char *mask_of(const ls_tokens *t)
{
    return t->mask.data;
}

static bool pair_begins(const unsigned char *mask, int64_t i)
{
    return !mask[i] && (!i || mask[i - 1]);
}

/* Finds the pairs: a mask of 0s and 1s that begins with a source and ends with a target. */
static ls_status index_pairs(ls_tokens *t, const char *mask_path)
{
    const unsigned char *mask = mask_of(t);
    const int64_t n = t->n_token;
    if ((int64_t)t->mask.n != n)
        return ls_fail(LS_E_FORMAT, "%s has %zu bytes, but %s has %lld tokens; prepare the data again", mask_path,
                       t->mask.n, t->path, (long long)n);
    int64_t n_pair = 0;
    for (int64_t i = 0; i < n; i++) {
        if (mask[i] > 1)
            return ls_fail(LS_E_FORMAT, "%s: byte %lld is %d, not 0 or 1", mask_path, (long long)i, mask[i]);
        n_pair += pair_begins(mask, i);
    }
    if (!n_pair || mask[0] || !mask[n - 1])
        return ls_fail(LS_E_FORMAT, "%s: it must begin with a source (0) and end with a target (1)", mask_path);
    t->start = ls_alloc((size_t)(n_pair + 1) * sizeof *t->start);
    if (!t->start) return ls_nomem((size_t)n_pair * sizeof *t->start, "the positions of the pairs");
    t->n_seq = 0;
    for (int64_t i = 0; i < n; i++)
        if (pair_begins(mask, i)) t->start[t->n_seq++] = i;
    t->start[n_pair] = n;
    return LS_OK;
}

static ls_status open_mask(ls_tokens *t, const char *path)
{
    char mask_path[PATH_MAX];
    if (!ls_ends_in(path, ".bin") || strlen(path) + 2 > sizeof mask_path) return LS_OK;
    snprintf(mask_path, sizeof mask_path, "%.*s.mask", (int)strlen(path) - 4, path);
    if (!ls_fs_exists(mask_path)) return LS_OK;
    LS_TRY(ls_fs_map_open(&t->mask, mask_path));
    return index_pairs(t, mask_path);
}

static ls_status pair_sequence(const ls_tokens *t, int64_t k, int32_t *ids, int32_t *target)
{
    const int64_t first = t->start[k], len = t->start[k + 1] - first;
    const unsigned char *mask = mask_of(t) + first;
    for (int i = 0; i <= t->seq_len; i++) {
        const int32_t id = i < len ? token_at(t, first + i) : LS_PAIR_PAD;
        if (id >= t->vocab_size) return bad_id(t, first + i);
        if (i < t->seq_len) ids[i] = id;
        if (i) target[i - 1] = i < len && mask[i] ? id : -1;
    }
    return LS_OK;
}

/* Targets of pair k within S+1 ids: source ids come first, then target ids. */
static int64_t pair_counted(const ls_tokens *t, int64_t k)
{
    const int64_t first = t->start[k], len = t->start[k + 1] - first;
    const unsigned char *mask = mask_of(t) + first, *one = memchr(mask, 1, (size_t)len);
    const int64_t source = one - mask, end = len < t->seq_len + 1 ? len : t->seq_len + 1;
    return end > source ? end - source : 0;
}

/* ---- files ---- */

ls_status ls_tokens_open(ls_tokens *t, const char *path, int seq_len, int vocab_size)
{
    *t = (ls_tokens){.seq_len = seq_len, .vocab_size = vocab_size};
    snprintf(t->path, sizeof t->path, "%s", path);
    LS_TRY(ls_fs_map_open(&t->map, path));
    ls_status st = LS_OK;
    t->n_token = (int64_t)(t->map.n / 2);
    t->n_seq = t->n_token > 0 ? (t->n_token - 1) / seq_len : 0;
    if (t->map.n % 2)
        st =
            ls_fail(LS_E_FORMAT, "%s has %zu bytes, an odd number; a token file has 2 bytes per token", path, t->map.n);
    else st = open_mask(t, path);
    if (st == LS_OK && t->n_seq < 1)
        st = ls_fail(LS_E_FORMAT,
                     "%s has %lld tokens, but one sequence of %d needs %d; use a smaller --seq_length or more text",
                     path, (long long)t->n_token, seq_len, seq_len + 1);
    if (st == LS_OK)
        ls_info("data", "%s: %lld tokens, %lld %s of %d", path, (long long)t->n_token, (long long)t->n_seq,
                t->start ? "pairs in sequences" : "sequences", seq_len);
    int64_t n = t->n_token < SCAN_MAX ? t->n_token : SCAN_MAX;
    for (int64_t i = 0; i < n && st == LS_OK; i++)
        if (token_at(t, i) >= vocab_size) st = bad_id(t, i);
    if (st != LS_OK) ls_tokens_close(t);
    return st;
}

void ls_tokens_close(ls_tokens *t)
{
    if (t->map.data) ls_fs_map_close(&t->map);
    if (t->mask.data) ls_fs_map_close(&t->mask);
    ls_free(t->start);
    *t = (ls_tokens){0};
}

ls_status ls_tokens_sequence(const ls_tokens *t, int64_t k, int32_t *ids, int32_t *target)
{
    const int64_t first = k * t->seq_len;
    if (t->start) return pair_sequence(t, k, ids, target);
    for (int i = 0; i <= t->seq_len; i++) {
        int32_t id = token_at(t, first + i);
        if (id >= t->vocab_size) return bad_id(t, first + i);
        if (i < t->seq_len) ids[i] = id;
        if (i) target[i - 1] = id;
    }
    return LS_OK;
}

ls_status ls_tokens_batch(const ls_tokens *t, uint64_t seed, int64_t epoch, int64_t p, int64_t n, int32_t *ids,
                          int32_t *target)
{
    const uint64_t key = ls_rng_key(seed, LS_RNG_ORDER, (uint64_t)epoch, 0);
    ls_log(LS_LOG_TRACE, "data", "epoch %lld: sequences %lld to %lld of the shuffled order", (long long)epoch,
           (long long)p, (long long)(p + n - 1));
    for (int64_t b = 0; b < n; b++) {
        int64_t k = (int64_t)ls_rng_permute(key, (uint64_t)t->n_seq, (uint64_t)(p + b));
        LS_TRY(ls_tokens_sequence(t, k, ids + b * t->seq_len, target + b * t->seq_len));
    }
    return LS_OK;
}

int64_t ls_tokens_counted(const ls_tokens *t, uint64_t seed, int64_t epoch, int64_t p, int64_t n)
{
    if (!t->start) return n * t->seq_len;
    const uint64_t key = ls_rng_key(seed, LS_RNG_ORDER, (uint64_t)epoch, 0);
    int64_t sum = 0;
    for (int64_t b = 0; b < n; b++)
        sum += pair_counted(t, (int64_t)ls_rng_permute(key, (uint64_t)t->n_seq, (uint64_t)(p + b)));
    return sum;
}

int64_t ls_tokens_cut(const ls_tokens *t)
{
    int64_t n = 0;
    for (int64_t k = 0; t->start && k < t->n_seq; k++) n += t->start[k + 1] - t->start[k] > t->seq_len + 1;
    return n;
}
