/* Tokenizer: loading vocabularies, encoding, decoding, and the messages for files that are refused. */
#include "cmocka_all.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/mem.h"
#include "data/tokenizer.h"
#include "data/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tokenizer.json of the 256 bytes and the merges given as "a b" lines; `extra` goes before the model. */
static void make_json(ls_str *s, const char *const *merges, size_t n, const char *extra)
{
    ls_str_addf(s,
                "{%s\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\","
                "\"vocab\":{",
                extra);
    for (int i = 0; i < 256; i++)
        ls_str_addf(s, "%s\"\\u%04x\":%d", i ? "," : "", data_byte_to_char(data_gpt2_byte(i)), i);
    int id = 256;
    for (size_t i = 0; i < n; i++) {
        ls_str_add(s, ",\"");
        for (const char *p = merges[i]; *p; p++)
            if (*p != ' ') ls_str_addc(s, *p);
        ls_str_addf(s, "\":%d", id++);
    }
    ls_str_addf(s, ",\"<|endoftext|>\":%d},\"merges\":[", id);
    for (size_t i = 0; i < n; i++) ls_str_addf(s, "%s\"%s\"", i ? "," : "", merges[i]);
    ls_str_add(s, "]}}");
    assert_false(s->failed);
}

static ls_tokenizer *with_merges(const char *const *merges, size_t n)
{
    ls_str s = {0};
    ls_tokenizer *t = NULL;
    make_json(&s, merges, n, "");
    ls_status st = ls_tokenizer_from_json(s.data, s.len, "test", &t);
    if (st != LS_OK) print_message("%s\n", ls_err_words());
    assert_int_equal(st, LS_OK);
    ls_str_fini(&s);
    return t;
}

static void check_ids(const ls_tokenizer *t, const char *text, const int32_t *want, size_t n)
{
    ls_ids ids = {0};
    assert_int_equal(ls_tokenizer_encode(t, text, strlen(text), &ids), LS_OK);
    for (size_t i = 0; i < ids.n && i < n; i++)
        if (ids.id[i] != want[i]) print_message("place %zu: got %d, want %d\n", i, ids.id[i], want[i]);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.id, want, n * sizeof *want);
    ls_ids_fini(&ids);
}

static void every_byte_has_a_printable_character(void **state)
{
    (void)state;
    int seen[256] = {0};
    for (int b = 0; b < 256; b++) {
        uint32_t c = data_byte_to_char((unsigned char)b);
        assert_int_equal(data_char_to_byte(c), b);
        assert_true(c > 32 && c != 127 && c != 0xa0 && c != 0xad && c < 324);
        seen[data_gpt2_byte(b)]++;
    }
    for (int b = 0; b < 256; b++) assert_int_equal(seen[b], 1);
    assert_int_equal(data_byte_to_char(' '), 0x120); /* the character that GPT-2 files show for a blank */
    assert_int_equal(data_byte_to_char('\n'), 0x10a);
    assert_int_equal(data_char_to_byte(0x144), -1);
    assert_int_equal(data_char_to_byte(' '), -1);
}

static void the_byte_tokenizer_encodes_bytes_as_themselves(void **state)
{
    (void)state;
    ls_tokenizer *t = NULL;
    assert_int_equal(ls_tokenizer_bytes(&t), LS_OK);
    assert_int_equal(ls_tokenizer_n_vocab(t), 257);
    assert_int_equal(ls_tokenizer_eot(t), 256);
    const int32_t want[] = {'H', 'i', ' ', 0xc3, 0xa9, '<', '|', 'e'};
    check_ids(t, "Hi \xc3\xa9<|e", want, 8);
    ls_str s = {0};
    const int32_t ids[] = {'a', 256, 0, 255};
    assert_int_equal(ls_tokenizer_decode(t, ids, 4, &s), LS_OK);
    assert_int_equal(s.len, 16);
    assert_memory_equal(s.data, "a<|endoftext|>\0\xff", 16);
    const int32_t beyond[] = {1, 257};
    assert_int_equal(ls_tokenizer_decode(t, beyond, 2, &s), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "257"));
    ls_str_fini(&s);
    ls_tokenizer_destroy(&t);
    assert_null(t);
}

/* Merges apply by rank, leftmost first, and never across pieces. */
static void merges_apply_by_rank_within_pieces(void **state)
{
    (void)state;
    const char *const merges[] = {"b c", "a b", "a bc", "\xc4\xa0 a", "a a", "aa aa"};
    ls_tokenizer *t = with_merges(merges, 6);
    const int32_t abc[] = {258}; /* "b c" first, then "a bc"; "a b" does not apply */
    check_ids(t, "abc", abc, 1);
    const int32_t ab[] = {257};
    check_ids(t, "ab", ab, 1);
    /* " ab": "a b" has a lower rank than " a", so the blank stays alone */
    ls_ids ids = {0};
    assert_int_equal(ls_tokenizer_encode(t, "abc ab", 6, &ids), LS_OK);
    assert_int_equal(ids.n, 3); /* abc, the blank, ab */
    assert_int_equal(ids.id[0], 258);
    assert_int_equal(ids.id[2], 257);
    ls_ids_fini(&ids);
    const int32_t run[] = {261, 260, 'a' - 33}; /* seven letters: aaaa aa a */
    check_ids(t, "aaaaaaa", run, 3);
    ls_tokenizer_destroy(&t);
}

/* The encoder uses another method for long pieces: below and above that length the ids equal those of a naive loop. */
static void long_pieces_merge_as_short_ones(void **state)
{
    (void)state;
    const char *const merges[] = {"a b", "ab c", "c d", "a a", "abc d", "b b", "aa ab", "bb bb", "d d"};
    ls_tokenizer *t = with_merges(merges, 9);
    char text[400];
    for (size_t n = 1; n < sizeof text; n += 7) {
        for (size_t i = 0; i < n; i++) text[i] = (char)('a' + (i * i * 7 + i / 3 + n) % 4);
        int32_t sym[400]; /* naive: merge the pair of the lowest rank, leftmost first, until none is left */
        size_t m = n;
        for (size_t i = 0; i < n; i++) sym[i] = t->byte_id[(unsigned char)text[i]];
        for (;;) {
            uint32_t best = DATA_NO_RANK;
            size_t at = 0;
            for (size_t i = 0; i + 1 < m; i++)
                for (uint32_t r = 0; r < 9; r++)
                    if (t->merge[r].left == sym[i] && t->merge[r].right == sym[i + 1] && r < best) {
                        best = r;
                        at = i;
                    }
            if (best == DATA_NO_RANK) break;
            sym[at] = t->merge[best].id;
            memmove(sym + at + 1, sym + at + 2, (--m - at - 1) * sizeof *sym);
        }
        text[n] = '\0';
        check_ids(t, text, sym, m);
    }
    ls_tokenizer_destroy(&t);
}

static void a_saved_tokenizer_loads_unchanged(void **state)
{
    (void)state;
    const char *const merges[] = {"t h", "th e", "\xc4\xa0 the"};
    ls_tokenizer *t = with_merges(merges, 3), *u = NULL;
    ls_str s = {0}, again = {0};
    assert_int_equal(ls_tokenizer_to_json(t, &s), LS_OK);
    assert_int_equal(ls_tokenizer_from_json(s.data, s.len, "saved", &u), LS_OK);
    assert_int_equal(ls_tokenizer_to_json(u, &again), LS_OK);
    assert_string_equal(s.data, again.data);
    assert_int_equal(ls_tokenizer_eot(u), 259);
    const int32_t want[] = {258, 'n' - 33};
    check_ids(u, " then", want, 2);
    ls_str_fini(&s);
    ls_str_fini(&again);
    ls_tokenizer_destroy(&t);
    ls_tokenizer_destroy(&u);
}

static void unsupported_tokenizer_files_are_refused_and_explained(void **state)
{
    (void)state;
    const char *const good[] = {"a b"}, *const twice[] = {"a b", "a b"};
    static const struct {
        const char *extra, *words;
        ls_status st;
    } c[] = {
        {"\"normalizer\":{\"type\":\"NFC\"},", "normalizer", LS_E_UNSUPPORTED},
        {"\"added_tokens\":[{\"id\":999,\"content\":\"<x>\"}],", "999", LS_E_FORMAT},
        {"\"added_tokens\":[{\"id\":3,\"content\":\"<|endoftext|>\"}],", "two ids", LS_E_FORMAT},
        {"\"added_tokens\":[{\"content\":\"<|endoftext|>\"}],", "added token 0", LS_E_FORMAT},
        {"\"added_tokens\":7,", "added_tokens", LS_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        ls_str s = {0};
        ls_tokenizer *t = NULL;
        make_json(&s, good, 1, c[i].extra);
        assert_int_equal(ls_tokenizer_from_json(s.data, s.len, "t.json", &t), c[i].st);
        assert_null(t);
        if (!strstr(ls_err_words(), c[i].words)) print_message("%s: %s\n", c[i].words, ls_err_words());
        assert_non_null(strstr(ls_err_words(), c[i].words));
        ls_str_fini(&s);
    }
    static const char *const whole[][2] = {
        {"", "t.json"},
        {"{}", "model"},
        {"[1]", "model"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "WordPiece"},
        {"{\"model\":{\"type\":\"BPE\"}}", "pre_tokenizer"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},\"model\":{}}", "add_prefix_space"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", "byte 0x00"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "-1"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
         "two tokens"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}",
         "is not an integer"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"\\u4e00\":0},\"merges\":[]}}",
         "byte-level"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
         "merge 0"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merge 0"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[3]}}", "merge 0"},
    };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        ls_tokenizer *t = NULL;
        assert_int_not_equal(ls_tokenizer_from_json(whole[i][0], strlen(whole[i][0]), "t.json", &t), LS_OK);
        if (!strstr(ls_err_words(), whole[i][1])) print_message("%s: %s\n", whole[i][1], ls_err_words());
        assert_non_null(strstr(ls_err_words(), whole[i][1]));
    }
    ls_str s = {0};
    ls_tokenizer *t = NULL;
    make_json(&s, twice, 2, ""); /* the vocabulary has "ab" twice too, which the JSON reader refuses first */
    assert_int_equal(ls_tokenizer_from_json(s.data, s.len, "t.json", &t), LS_E_FORMAT);
    ls_str_fini(&s);
    assert_int_equal(ls_tokenizer_load("/nowhere/at/all", &t), LS_E_IO);
}

/* Each allocation fails once: nothing leaks. */
static void a_failed_allocation_leaks_nothing(void **state)
{
    (void)state;
    const char *const merges[] = {"a b", "ab c"};
    ls_str s = {0};
    make_json(&s, merges, 2, "");
    int64_t live = ls_mem_live();
    long k = 0;
    for (;; k++) {
        ls_tokenizer *t = NULL;
        ls_ids ids = {0};
        ls_mem_fail_at(k);
        ls_status st = ls_tokenizer_from_json(s.data, s.len, "t", &t);
        if (st == LS_OK) st = ls_tokenizer_encode(t, "abcabcabc", 9, &ids);
        ls_mem_fail_at(-1);
        ls_ids_fini(&ids);
        ls_tokenizer_destroy(&t);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
    }
    assert_true(k > 8);
    ls_str_fini(&s);
}

/* A vocabulary in GPT-2's two files and a text of many scripts (tests/data/bpe/make.py): the ids are those that tiktoken finds. */
static void ids_equal_those_of_tiktoken(void **state)
{
    (void)state;
    const char *dir = LS_SOURCE_DIR "/tests/data/bpe";
    ls_tokenizer *t = NULL;
    char *text;
    size_t n;
    assert_int_equal(ls_tokenizer_load(dir, &t), LS_OK);
    assert_int_equal(ls_tokenizer_n_vocab(t), 757);
    assert_int_equal(ls_tokenizer_n_merge(t), 500);
    assert_int_equal(ls_tokenizer_eot(t), 756);
    assert_int_equal(ls_fs_read(LS_SOURCE_DIR "/tests/data/bpe/text.txt", &text, &n), LS_OK);
    ls_ids ids = {0};
    assert_int_equal(ls_tokenizer_encode(t, text, n, &ids), LS_OK);
    assert_int_equal(ids.n, 6239);
    ls_sha256 h;
    char hex[65];
    ls_sha256_init(&h);
    for (size_t i = 0; i < ids.n; i++) {
        const unsigned char le[2] = {(unsigned char)ids.id[i], (unsigned char)(ids.id[i] >> 8)};
        ls_sha256_add(&h, le, 2);
    }
    ls_sha256_hex(&h, hex);
    assert_string_equal(hex, "37379e9fe546c81204e33e3c4ebe622ca43293db389958c12201c04badd9d4d2");
    /* merging the bytes of any token except end-of-text by pairs gives that token */
    for (int32_t id = 0; id < 756; id++) {
        const size_t k = t->len[id];
        const unsigned char *p = t->bytes + t->off[id];
        int32_t sym[256];
        size_t m = k;
        assert_true(k < 256);
        for (size_t i = 0; i < k; i++) sym[i] = t->byte_id[p[i]];
        for (;;) {
            uint32_t best = DATA_NO_RANK;
            size_t at = 0;
            for (size_t i = 0; i + 1 < m; i++) {
                uint32_t r = data_pair_rank(t, sym[i], sym[i + 1]);
                if (r < best) {
                    best = r;
                    at = i;
                }
            }
            if (best == DATA_NO_RANK) break;
            sym[at] = t->merge[best].id;
            memmove(sym + at + 1, sym + at + 2, (--m - at - 1) * sizeof *sym);
        }
        assert_int_equal(m, 1);
        assert_int_equal(sym[0], id);
    }
    ls_free(text);
    ls_ids_fini(&ids);
    ls_tokenizer_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_has_a_printable_character),
        cmocka_unit_test(the_byte_tokenizer_encodes_bytes_as_themselves),
        cmocka_unit_test(merges_apply_by_rank_within_pieces),
        cmocka_unit_test(long_pieces_merge_as_short_ones),
        cmocka_unit_test(a_saved_tokenizer_loads_unchanged),
        cmocka_unit_test(unsupported_tokenizer_files_are_refused_and_explained),
        cmocka_unit_test(a_failed_allocation_leaks_nothing),
        cmocka_unit_test(ids_equal_those_of_tiktoken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
