/* Properties for random bytes: decode(encode(x)) == x, the scanner splits as the regular expression does, and cutting the text changes
 * no piece. */
#include "cmocka_all.h"
#include "core/mem.h"
#include "core/rng.h"
#include "data/bpe_train.h"
#include "data/pretokenize.h"
#include "data/tokenizer.h"
#include "data/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_N 300

static uint64_t draws;
static uint64_t draw(uint64_t below)
{
    return ls_rng_u64(ls_rng_key(11, LS_RNG_TEST, 1, 2), draws++) % below;
}

/* A difficult text: characters of all planes and classes, contractions, runs of white space and, unless `valid`, random bytes. */
static size_t make_text(unsigned char *p, bool valid)
{
    static const char *const bits[] = {"'s",
                                       "'t",
                                       "'re",
                                       "'ve",
                                       "'m",
                                       "'ll",
                                       "'d",
                                       "'",
                                       "''",
                                       " ",
                                       "  ",
                                       "\n",
                                       "\n\n",
                                       "\t ",
                                       "\r\n",
                                       "\xc2\xa0",
                                       "\xe3\x80\x80",
                                       "\xe2\x80\xa8",
                                       "\xc2\x85",
                                       "the",
                                       " of",
                                       "naive",
                                       " 1999",
                                       "7",
                                       "...",
                                       " ?!",
                                       "\xcc\x81",
                                       "\xe2\x80\x99s",
                                       "\xd9\xa3",
                                       "\xe2\x85\xa7",
                                       "\x1c",
                                       "\xe2\x80\x8b",
                                       "_"};
    size_t n = 0, want = draw(MAX_N - 8);
    while (n < want) {
        uint64_t kind = draw(valid ? 8 : 10);
        if (kind < 5) {
            const char *s = bits[draw(N_OF(bits))];
            size_t k = strlen(s);
            memcpy(p + n, s, k);
            n += k;
        } else if (kind < 8) {
            uint32_t c = (uint32_t)(kind == 5 ? draw(0x80) : kind == 6 ? draw(0x3100) : draw(0x110000));
            if (c >= 0xd800 && c < 0xe000) c = 0x4e2d;
            n += (size_t)data_utf8_encode(c, p + n);
        } else {
            p[n++] = (unsigned char)draw(256);
        }
    }
    return n;
}

/* ---- the pattern, alternative by alternative, over decoded characters ---- */

typedef struct character {
    size_t at;
    data_class k;
    uint32_t c;
} character;

static size_t run_of(const character *ch, size_t n, size_t i, data_class k)
{
    size_t from = i;
    while (i < n && ch[i].k == k) i++;
    return i - from;
}

/* The number of characters that the first matching alternative takes at i. */
static size_t match(const character *ch, size_t n, size_t i)
{
    static const char *const contraction[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    static const data_class order[] = {DATA_LETTER, DATA_NUMBER, DATA_OTHER};
    for (size_t k = 0; k < 7; k++) {
        size_t len = strlen(contraction[k]), j = 0;
        while (j < len && i + j < n && ch[i + j].c == (unsigned char)contraction[k][j]) j++;
        if (j == len) return len;
    }
    for (size_t k = 0; k < 3; k++) { /* " ?" is greedy: with the blank first, then without */
        size_t m = ch[i].c == ' ' ? run_of(ch, n, i + 1, order[k]) : 0;
        if (m) return m + 1;
        m = run_of(ch, n, i, order[k]);
        if (m) return m;
    }
    size_t m = run_of(ch, n, i, DATA_SPACE);
    for (size_t take = m; take; take--) /* \s+(?!\S), giving back one at a time */
        if (i + take == n || ch[i + take].k == DATA_SPACE) return take;
    return m;
}

static void the_scanner_splits_as_the_pattern(void **state)
{
    (void)state;
    for (int round = 0; round < 30000; round++) {
        unsigned char p[MAX_N + 8];
        character ch[MAX_N + 9];
        size_t n = make_text(p, round % 2), m = 0, at = 0;
        for (size_t i = 0; i < n; m++) {
            uint32_t c = 0xffff;
            int k = ls_utf8_decode(p + i, n - i, &c);
            ch[m] = (character){i, k ? data_class_of(c) : DATA_OTHER, c};
            i += k ? (size_t)k : 1;
        }
        ch[m].at = n;
        for (size_t i = 0; i < m;) {
            size_t take = match(ch, m, i), got = data_split_next(p + at, n - at);
            if (at != ch[i].at || got != ch[i + take].at - at)
                fail_msg("round %d, byte %zu: the scanner takes %zu bytes, the pattern %zu", round, at, got,
                         ch[i + take].at - at);
            at += got;
            i += take;
        }
        assert_int_equal(at, n);
    }
}

static void a_cut_does_not_change_the_pieces(void **state)
{
    (void)state;
    int n_cut = 0;
    for (int round = 0; round < 30000; round++) {
        unsigned char p[MAX_N + 8];
        size_t n = make_text(p, round % 2), at = 0;
        size_t seen = n ? 1 + draw(n) : 0; /* the cut is chosen from the first `seen` bytes alone */
        size_t cut = seen ? data_split_cut(p, seen) : 0;
        if (!cut) continue;
        n_cut++;
        while (at < cut) at += data_split_next(p + at, n - at);
        assert_int_equal(at, cut);
        for (at = 0; at < cut;) { /* the part before the cut alone has the same pieces */
            size_t whole = data_split_next(p + at, n - at), part = data_split_next(p + at, cut - at);
            assert_int_equal(whole, part);
            at += part;
        }
    }
    assert_true(n_cut > 10000);
    for (int round = 0; round < 20000; round++) { /* the text up to data_split_char_end has only complete characters */
        unsigned char p[MAX_N + 8];
        size_t n = make_text(p, true);
        if (n < 8) continue;
        size_t k = data_split_char_end(p, 4 + draw(n - 4));
        assert_int_equal(data_utf8_check(p, k), k);
        assert_true(k > 0);
    }
}

static void check_round_trips(const ls_tokenizer *t)
{
    ls_encoder *e = NULL;
    ls_ids ids = {0};
    ls_str s = {0};
    assert_int_equal(ls_encoder_create(t, &e), LS_OK);
    for (int round = 0; round < 20000; round++) {
        unsigned char p[MAX_N + 8];
        size_t n = make_text(p, round % 2);
        ids.n = s.len = 0;
        assert_int_equal(ls_encode(e, p, n, &ids), LS_OK);
        assert_int_equal(ls_tokenizer_decode(t, ids.id, ids.n, &s), LS_OK);
        assert_int_equal(s.len, n);
        assert_memory_equal(s.data ? s.data : "", p, n);
        for (size_t i = 0; i < ids.n; i++) assert_int_not_equal(ids.id[i], ls_tokenizer_eot(t));
    }
    for (size_t n = 0; n < 3; n++) { /* long runs of one byte, and random bytes */
        static unsigned char big[200000];
        for (size_t i = 0; i < sizeof big; i++) big[i] = n == 0 ? 'a' : n == 1 ? ' ' : (unsigned char)draw(256);
        ids.n = s.len = 0;
        assert_int_equal(ls_encode(e, big, sizeof big, &ids), LS_OK);
        assert_int_equal(ls_tokenizer_decode(t, ids.id, ids.n, &s), LS_OK);
        assert_int_equal(s.len, sizeof big);
        assert_memory_equal(s.data, big, sizeof big);
    }
    ls_encoder_destroy(&e);
    ls_ids_fini(&ids);
    ls_str_fini(&s);
}

static void decoding_gives_back_the_encoded_bytes(void **state)
{
    (void)state;
    ls_tokenizer *t = NULL;
    assert_int_equal(ls_tokenizer_bytes(&t), LS_OK);
    check_round_trips(t);
    ls_tokenizer_destroy(&t);
    ls_words w = {.max_bytes = 1 << 20};
    for (int i = 0; i < 2000; i++) {
        unsigned char p[MAX_N + 8];
        assert_int_equal(ls_words_add_text(&w, p, make_text(p, true)), LS_OK);
    }
    assert_int_equal(ls_bpe_train(&w, 2000, 2, &t), LS_OK);
    assert_int_equal(ls_tokenizer_n_vocab(t), 2000);
    check_round_trips(t);
    ls_tokenizer_destroy(&t);
    ls_words_fini(&w);
    assert_int_equal(ls_tokenizer_load(LS_SOURCE_DIR "/tests/data/bpe", &t), LS_OK);
    check_round_trips(t);
    ls_tokenizer_destroy(&t);
}

/* An encoder that caches pieces gives the ids of an encoder that is new for each text. */
static void the_encoders_cache_changes_no_ids(void **state)
{
    (void)state;
    ls_words w = {.max_bytes = 1 << 20};
    ls_tokenizer *t = NULL;
    ls_encoder *e = NULL;
    for (int i = 0; i < 500; i++) {
        unsigned char p[MAX_N + 8];
        assert_int_equal(ls_words_add_text(&w, p, make_text(p, true)), LS_OK);
    }
    assert_int_equal(ls_bpe_train(&w, 1000, 2, &t), LS_OK);
    assert_int_equal(ls_encoder_create(t, &e), LS_OK);
    for (int round = 0; round < 300; round++) {
        unsigned char p[MAX_N + 8];
        size_t n = make_text(p, false);
        ls_ids a = {0}, b = {0};
        assert_int_equal(ls_encode(e, p, n, &a), LS_OK);
        assert_int_equal(ls_tokenizer_encode(t, p, n, &b), LS_OK);
        assert_int_equal(a.n, b.n);
        if (a.n) assert_memory_equal(a.id, b.id, a.n * sizeof *a.id);
        ls_ids_fini(&a);
        ls_ids_fini(&b);
    }
    ls_encoder_destroy(&e);
    ls_tokenizer_destroy(&t);
    ls_words_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scanner_splits_as_the_pattern),
        cmocka_unit_test(a_cut_does_not_change_the_pieces),
        cmocka_unit_test(decoding_gives_back_the_encoded_bytes),
        cmocka_unit_test(the_encoders_cache_changes_no_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
