#include "data/loader.h"
#include "core/log.h"
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
    else if (t->n_seq < 1)
        st = ls_fail(LS_E_FORMAT,
                     "%s has %lld tokens, but one sequence of %d needs %d; use a smaller --seq_length or more text",
                     path, (long long)t->n_token, seq_len, seq_len + 1);
    ls_info("data", "%s: %lld tokens, %lld sequences of %d", path, (long long)t->n_token, (long long)t->n_seq, seq_len);
    int64_t n = t->n_token < SCAN_MAX ? t->n_token : SCAN_MAX;
    for (int64_t i = 0; i < n && st == LS_OK; i++)
        if (token_at(t, i) >= vocab_size) st = bad_id(t, i);
    if (st != LS_OK) ls_tokens_close(t);
    return st;
}

void ls_tokens_close(ls_tokens *t)
{
    if (t->map.data) ls_fs_map_close(&t->map);
    *t = (ls_tokens){0};
}

ls_status ls_tokens_sequence(const ls_tokens *t, int64_t k, int32_t *ids, int32_t *target)
{
    const int64_t first = k * t->seq_len;
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
