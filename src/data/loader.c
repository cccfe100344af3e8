#include "data/loader.h"
#include "data/meta.h"
#include "data/pairs.h"
#include "data/sources.h"
#include "data/token_header.h"
#include "core/argv.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SCAN_MAX ((int64_t)128 << 20) /* ids looked at when a file is opened */
#define SLOTS    65536

#define HASH_WHOLE  ((int64_t)LS_DATA_SMALL / 2) /* ids of a source that are all hashed */
#define HASH_PIECE  ((int64_t)32768)             /* of a larger one, ids of each piece  */
#define HASH_PIECES 64

static int32_t token_at(const ls_token_file *f, int64_t i)
{
    const unsigned char *p = (const unsigned char *)f->map.data + f->data_at + 2 * i;
    return p[0] | p[1] << 8;
}

static ls_status bad_id(const ls_token_file *f, int64_t i, int vocab_size)
{
    return ls_fail(
        LS_E_FORMAT,
        "%s: token id %d at position %lld is outside the vocabulary of %d: the file is from another tokenizer, or the vocabulary of the model is too small",
        f->path, token_at(f, i), (long long)i, vocab_size);
}

/* ---- pairs ---- */

static const unsigned char *mask_of(const ls_token_source *s)
{
    return s->mask.data;
}

static bool pair_begins(const unsigned char *mask, int64_t i)
{
    return !mask[i] && (!i || mask[i - 1]);
}

/* Finds the pairs: a mask of 0s and 1s that begins with a source and ends with a target. */
static ls_status index_pairs(ls_token_source *s, const char *mask_path)
{
    const unsigned char *mask = mask_of(s);
    const int64_t n = s->n_token;
    if ((int64_t)s->mask.n != n)
        return ls_fail(LS_E_FORMAT, "%s has %zu bytes, but %s has %lld tokens; prepare the data again", mask_path,
                       s->mask.n, s->file[0].path, (long long)n);
    int64_t n_pair = 0;
    for (int64_t i = 0; i < n; i++) {
        if (mask[i] > 1)
            return ls_fail(LS_E_FORMAT, "%s: byte %lld is %d, not 0 or 1", mask_path, (long long)i, mask[i]);
        n_pair += pair_begins(mask, i);
    }
    if (!n_pair || mask[0] || !mask[n - 1])
        return ls_fail(LS_E_FORMAT, "%s: it must begin with a source (0) and end with a target (1)", mask_path);
    s->start = ls_alloc((size_t)(n_pair + 1) * sizeof *s->start);
    if (!s->start) return ls_nomem((size_t)n_pair * sizeof *s->start, "the positions of the pairs");
    s->n_seq = 0;
    for (int64_t i = 0; i < n; i++)
        if (pair_begins(mask, i)) s->start[s->n_seq++] = i;
    s->start[n_pair] = n;
    return LS_OK;
}

static ls_status open_mask(ls_token_source *s, const char *path, int vocab_size)
{
    char mask_path[PATH_MAX];
    data_mask_path(path, mask_path);
    if (!*mask_path || !ls_fs_exists(mask_path)) return LS_OK;
    if (vocab_size <= LS_PAIR_PAD)
        return ls_fail(LS_E_FORMAT, "%s: pairs are padded with token id %d, but the vocabulary of the model has %d ids",
                       mask_path, LS_PAIR_PAD, vocab_size);
    LS_TRY(ls_fs_map_open(&s->mask, mask_path));
    return index_pairs(s, mask_path);
}

static ls_status pair_sequence(const ls_tokens *t, const ls_token_source *s, int64_t k, int32_t *ids, int32_t *target)
{
    const int64_t first = s->start[k], len = s->start[k + 1] - first;
    const unsigned char *mask = mask_of(s) + first;
    for (int i = 0; i <= t->seq_len; i++) {
        const int32_t id = i < len ? token_at(s->file, first + i) : LS_PAIR_PAD;
        if (id >= t->vocab_size) return bad_id(s->file, first + i, t->vocab_size);
        if (i < t->seq_len) ids[i] = id;
        if (i) target[i - 1] = i < len && mask[i] ? id : -1;
    }
    return LS_OK;
}

/* Targets of pair k within S+1 ids: source ids come first, then target ids. */
static int64_t pair_counted(const ls_tokens *t, const ls_token_source *s, int64_t k)
{
    const int64_t first = s->start[k], len = s->start[k + 1] - first;
    const unsigned char *mask = mask_of(s) + first, *one = memchr(mask, 1, (size_t)len);
    const int64_t source = one - mask, end = len < t->seq_len + 1 ? len : t->seq_len + 1;
    return end > source ? end - source : 0;
}

/* ---- opening ---- */

static ls_status refuse_text(const char *path)
{
    static const char *const text[] = {".txt", ".json", ".jsonl", ".tsv", ".csv", ".md"};
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
        if (ls_ends_in(path, text[i]))
            return ls_fail(LS_E_FORMAT, "%s is text, not a token file; convert it with `lockstep prepare %s --out DIR`",
                           path, ls_quoted(path).text);
    return LS_OK;
}

static ls_status open_file(ls_token_source *s, const char *path, int vocab_size)
{
    LS_TRY(refuse_text(path));
    ls_token_file *f = &s->file[s->n_file];
    f->path = ls_strdup(path);
    if (!f->path) return ls_nomem(strlen(path), "a path");
    s->n_file++;
    LS_TRY(ls_fs_map_open(&f->map, path));
    LS_TRY(data_token_header(path, f->map.data, f->map.n, &f->data_at));
    if (f->map.n % 2)
        return ls_fail(LS_E_FORMAT, "%s has %zu bytes, an odd number; a token file has 2 bytes per token", path,
                       f->map.n);
    f->first = s->n_token;
    s->n_token = f->end = f->first + (int64_t)((f->map.n - f->data_at) / 2);
    const int64_t n = f->end - f->first < SCAN_MAX ? f->end - f->first : SCAN_MAX;
    for (int64_t i = 0; i < n; i++)
        if (token_at(f, i) >= vocab_size) return bad_id(f, i, vocab_size);
    return LS_OK;
}

static ls_status open_files(ls_token_source *s, char *const *path, size_t n, int vocab_size)
{
    s->file = ls_alloc(n * sizeof *s->file);
    if (!s->file) return ls_nomem(n * sizeof *s->file, "a list of token files");
    for (size_t i = 0; i < n; i++) LS_TRY(open_file(s, path[i], vocab_size));
    return LS_OK;
}

static ls_status open_source(ls_tokens *t, const ls_data_source *from)
{
    LS_TRY(ls_reserve(&t->source, &t->cap, t->n_source + 1, sizeof *t->source, "a list of data sources"));
    ls_token_source *s = &t->source[t->n_source++];
    *s = (ls_token_source){.weight = from->weight};
    if (ls_is_shards(from->path)) {
        char **path = NULL;
        size_t n = 0;
        LS_TRY(ls_shards_list(from->path, &path, &n));
        const ls_status st = open_files(s, path, n, t->vocab_size);
        ls_fs_list_free(path, n);
        LS_TRY(st);
    } else {
        LS_TRY(open_files(s, (char *const[]){from->path}, 1, t->vocab_size));
    }
    s->n_seq = s->n_token > 0 ? (s->n_token - 1) / t->seq_len : 0;
    if (s->n_file == 1) LS_TRY(open_mask(s, from->path, t->vocab_size));
    if (!s->start != !t->source[0].start)
        return ls_fail(LS_E_CONFIG, "%s: a blend has either text or pairs of sentences, not both", from->path);
    if (s->n_seq < 1)
        return ls_fail(LS_E_FORMAT,
                       "%s has %lld tokens, but one sequence of %d needs %d; use a smaller --seq_length or more text",
                       from->path, (long long)s->n_token, t->seq_len, t->seq_len + 1);
    ls_info("data", "%s: %lld tokens, %lld %s of %d", from->path, (long long)s->n_token, (long long)s->n_seq,
            s->start ? "pairs in sequences" : "sequences", t->seq_len);
    t->n_token += s->n_token;
    t->n_seq += s->n_seq;
    return LS_OK;
}

/* ---- blends ---- */

static double weight_of(const ls_token_source *s)
{
    return s->weight > 0 ? s->weight : (double)s->n_seq;
}

/* Distributes the slots: rounded down, then one more for the largest remainders (the first among equals). */
static ls_status share_slots(ls_tokens *t)
{
    double sum = 0, rest[LS_MAX_SOURCE];
    uint32_t left = SLOTS;
    for (size_t i = 0; i < t->n_source; i++) sum += weight_of(&t->source[i]);
    for (size_t i = 0; i < t->n_source; i++) {
        const double exact = weight_of(&t->source[i]) / sum * SLOTS;
        t->source[i].share = (uint32_t)floor(exact);
        rest[i] = exact - floor(exact);
        left -= t->source[i].share;
    }
    for (; left; left--) {
        size_t best = 0;
        for (size_t i = 1; i < t->n_source; i++)
            if (rest[i] > rest[best]) best = i;
        t->source[best].share++;
        rest[best] = -1;
    }
    for (size_t i = 0; i < t->n_source; i++)
        if (!t->source[i].share)
            return ls_fail(LS_E_CONFIG, "%s: its weight is %.3g of the blend; the least is 1/%d",
                           t->source[i].file[0].path, weight_of(&t->source[i]) / sum, SLOTS);
    return LS_OK;
}

/* Each slot goes to the source that is furthest below its share. */
static ls_status fill_slots(ls_tokens *t)
{
    int64_t used[LS_MAX_SOURCE] = {0};
    LS_TRY(share_slots(t));
    t->slot = ls_alloc(SLOTS);
    t->slot_nth = ls_alloc(SLOTS * sizeof *t->slot_nth);
    if (!t->slot || !t->slot_nth) return ls_nomem(SLOTS * sizeof *t->slot_nth, "the order of a blend");
    for (int64_t k = 0; k < SLOTS; k++) {
        size_t best = 0;
        int64_t most = INT64_MIN;
        for (size_t i = 0; i < t->n_source; i++) {
            const int64_t missing = (int64_t)t->source[i].share * (k + 1) - used[i] * SLOTS;
            if (missing <= most) continue;
            most = missing;
            best = i;
        }
        t->slot[k] = (uint8_t)best;
        t->slot_nth[k] = (uint32_t)used[best]++;
    }
    for (size_t i = 0; i < t->n_source; i++)
        ls_info("data", "blend: %s: %.2f %% of the samples, %.3g passes over it per epoch", t->source[i].file[0].path,
                100.0 * t->source[i].share / SLOTS,
                (double)t->n_seq * t->source[i].share / SLOTS / (double)t->source[i].n_seq);
    return LS_OK;
}

int64_t ls_tokens_blend_id(const ls_tokens *t)
{
    if (t->n_source < 2) return 0;
    ls_xxh h;
    ls_xxh_init(&h);
    for (size_t i = 0; i < t->n_source; i++) {
        const uint64_t x[2] = {t->source[i].share, (uint64_t)t->source[i].n_token};
        ls_xxh_add(&h, x, sizeof x);
    }
    return (int64_t)(ls_xxh_value(&h) >> 12); /* exact in every JSON reader */
}

static void add_ids(ls_xxh *h, const ls_token_source *s, int64_t first, int64_t n)
{
    for (const ls_token_file *f = s->file; n; f++) {
        if (first >= f->end) continue;
        const int64_t in_file = f->end - first < n ? f->end - first : n;
        ls_xxh_add(h, (const char *)f->map.data + f->data_at + 2 * (first - f->first), 2 * (size_t)in_file);
        first += in_file;
        n -= in_file;
    }
}

uint64_t ls_tokens_hash(const ls_tokens *t)
{
    ls_xxh h;
    ls_xxh_init(&h);
    for (const ls_token_source *s = t->source; s < t->source + t->n_source; s++) {
        const int64_t n = s->n_token, n_piece = n > HASH_WHOLE ? HASH_PIECES : 1, piece = n_piece > 1 ? HASH_PIECE : n;
        ls_xxh_add(&h, &n, sizeof n);
        for (int64_t i = 0; i < n_piece; i++) {
            const int64_t at = i == n_piece - 1 ? n - piece : (n - piece) / (n_piece - 1) * i;
            add_ids(&h, s, at, piece);
            if (s->mask.data) ls_xxh_add(&h, mask_of(s) + at, (size_t)piece);
        }
    }
    return ls_xxh_value(&h);
}

/* ---- open, close, read ---- */

ls_status ls_tokens_open(ls_tokens *t, const char *text, int seq_len, int vocab_size)
{
    ls_data_sources list = {0};
    *t = (ls_tokens){.seq_len = seq_len, .vocab_size = vocab_size};
    LS_TRY(ls_sources_parse(text, &list));
    ls_status st = LS_OK;
    for (size_t i = 0; i < list.n && st == LS_OK; i++) st = open_source(t, &list.item[i]);
    ls_sources_fini(&list);
    if (st == LS_OK && t->n_source > 1) st = fill_slots(t);
    if (st != LS_OK) ls_tokens_close(t);
    return st;
}

void ls_tokens_close(ls_tokens *t)
{
    for (size_t i = 0; i < t->n_source; i++) {
        ls_token_source *s = &t->source[i];
        for (size_t k = 0; k < s->n_file; k++) {
            if (s->file[k].map.data) ls_fs_map_close(&s->file[k].map);
            ls_free(s->file[k].path);
        }
        ls_free(s->file);
        if (s->mask.data) ls_fs_map_close(&s->mask);
        ls_free(s->start);
    }
    ls_free(t->source);
    ls_free(t->slot);
    ls_free(t->slot_nth);
    *t = (ls_tokens){0};
}

static ls_status read_sequence(const ls_tokens *t, const ls_token_source *s, int64_t k, int32_t *ids, int32_t *target)
{
    const int64_t first = k * t->seq_len;
    if (s->start) return pair_sequence(t, s, k, ids, target);
    size_t lo = 0, hi = s->n_file; /* the file of the first token is in [lo, hi) */
    while (hi - lo > 1) {
        const size_t mid = (lo + hi) / 2;
        if (s->file[mid].first <= first) lo = mid;
        else hi = mid;
    }
    const ls_token_file *f = &s->file[lo];
    for (int i = 0; i <= t->seq_len; i++) {
        while (first + i >= f->end) f++;
        const int32_t id = token_at(f, first + i - f->first);
        if (id >= t->vocab_size) return bad_id(f, first + i - f->first, t->vocab_size);
        if (i < t->seq_len) ids[i] = id;
        if (i) target[i - 1] = id;
    }
    return LS_OK;
}

ls_status ls_tokens_sequence(const ls_tokens *t, int64_t k, int32_t *ids, int32_t *target)
{
    const ls_token_source *s = t->source;
    for (; k >= s->n_seq; s++) k -= s->n_seq;
    return read_sequence(t, s, k, ids, target);
}

/* Sample p of an epoch: its source and the number of its sequence there. */
static const ls_token_source *find_sample(const ls_tokens *t, uint64_t seed, int64_t epoch, int64_t p, int64_t *k)
{
    uint64_t i = 0;
    if (t->slot) {
        const int64_t at = epoch * t->n_seq + p;
        i = t->slot[at % SLOTS];
        const int64_t nth = at / SLOTS * t->source[i].share + t->slot_nth[at % SLOTS];
        epoch = nth / t->source[i].n_seq;
        p = nth % t->source[i].n_seq;
    }
    const ls_token_source *s = &t->source[i];
    *k = (int64_t)ls_rng_permute(ls_rng_key(seed, LS_RNG_ORDER, (uint64_t)epoch, i), (uint64_t)s->n_seq, (uint64_t)p);
    return s;
}

ls_status ls_tokens_batch(const ls_tokens *t, uint64_t seed, int64_t epoch, int64_t p, int64_t n, int32_t *ids,
                          int32_t *target)
{
    ls_log(LS_LOG_TRACE, "data", "epoch %lld: sequences %lld to %lld of the shuffled order", (long long)epoch,
           (long long)p, (long long)(p + n - 1));
    for (int64_t b = 0; b < n; b++) {
        int64_t k;
        const ls_token_source *s = find_sample(t, seed, epoch, p + b, &k);
        LS_TRY(read_sequence(t, s, k, ids + b * t->seq_len, target + b * t->seq_len));
    }
    return LS_OK;
}

int64_t ls_tokens_counted(const ls_tokens *t, uint64_t seed, int64_t epoch, int64_t p, int64_t n)
{
    int64_t sum = 0, k;
    if (!ls_tokens_paired(t)) return n * t->seq_len;
    for (int64_t b = 0; b < n; b++) {
        const ls_token_source *s = find_sample(t, seed, epoch, p + b, &k);
        sum += pair_counted(t, s, k);
    }
    return sum;
}

int64_t ls_tokens_cut(const ls_tokens *t)
{
    int64_t n = 0;
    for (const ls_token_source *s = t->source; s < t->source + t->n_source; s++)
        for (int64_t k = 0; s->start && k < s->n_seq; k++) n += s->start[k + 1] - s->start[k] > t->seq_len + 1;
    return n;
}

int64_t ls_tokens_without_target(const ls_tokens *t)
{
    int64_t n = 0;
    for (const ls_token_source *s = t->source; s < t->source + t->n_source; s++)
        for (int64_t k = 0; s->start && k < s->n_seq; k++) n += !pair_counted(t, s, k);
    return n;
}
