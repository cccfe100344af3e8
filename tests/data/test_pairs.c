/* Parallel corpora: the three forms of input, their errors, the files that prepare writes, and pairs as samples. */
#include "cmocka_all.h"
#include "core/fs.h"
#include "core/mem.h"
#include "data/loader.h"
#include "data/prepare_pairs.h"
#include "test_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *dir;

static const char *put(const char *name, const char *text)
{
    static char path[8][300];
    static int k;
    k = (k + 1) % 8;
    snprintf(path[k], sizeof path[k], "%s/%s", dir, name);
    assert_int_equal(ls_fs_write(path[k], text, strlen(text)), LS_OK);
    return path[k];
}

/* All pairs as "source|target;" */
static ls_status read_all(const char *const *path, int n, const ls_langs *l, char *out, size_t cap)
{
    ls_pairs p = {0};
    ls_substr src, tgt;
    bool end = false;
    size_t at = 0;
    ls_status st = ls_pairs_open(&p, path, n, l);
    out[0] = '\0';
    while (st == LS_OK) {
        st = ls_pairs_next(&p, &src, &tgt, &end);
        if (st != LS_OK || end) break;
        at += (size_t)snprintf(out + at, cap - at, "%.*s|%.*s;", (int)src.n, src.n ? src.data : "", (int)tgt.n,
                               tgt.n ? tgt.data : "");
    }
    ls_pairs_close(&p);
    return st;
}

/* Line i has length[i] bytes, which depend on i and the position. */
static void lines_of_any_length_are_read(void **state)
{
    (void)state;
    static const size_t length[] = {0, 1, 65535, 65536, 65537, 0, 131072, 300000, 7, 131071, 1 << 20, 3};
    for (int form = 0; form < 3; form++) { /* ends: \n, \r\n, the last line without an end */
        ls_str s = {0};
        ls_str_add(&s, "\xef\xbb\xbf");
        for (size_t i = 0; i < N_OF(length); i++) {
            for (size_t k = 0; k < length[i]; k++) ls_str_addc(&s, (char)('a' + (i * 7 + k) % 26));
            if (form == 1) ls_str_addc(&s, '\r');
            if (form < 2 || i + 1 < N_OF(length)) ls_str_addc(&s, '\n');
        }
        assert_int_equal(ls_fs_write(test_path(dir, "lines.txt", NULL), s.data, s.len), LS_OK);
        ls_str_fini(&s);
        ls_lines l = {0};
        ls_substr line;
        bool end = false;
        size_t n = 0;
        const char *path = test_path(dir, "lines.txt", NULL);
        assert_int_equal(ls_lines_open(&l, path), LS_OK);
        for (; ls_lines_next(&l, &line, &end) == LS_OK && !end; n++) {
            assert_true(n < N_OF(length));
            assert_int_equal(line.n, length[n]);
            for (size_t k = 0; k < line.n; k++)
                if (line.data[k] != (char)('a' + (n * 7 + k) % 26)) fail_msg("line %zu byte %zu", n, k);
        }
        assert_true(end);
        assert_int_equal(n, N_OF(length));
        assert_int_equal(l.line, N_OF(length));
        ls_lines_close(&l);
    }
}

static void every_form_gives_the_same_pairs(void **state)
{
    (void)state;
    static const char want[] = "ein Haus|a house;der \"Hund\"|the dog;|empty;";
    const ls_langs l = {"de", "en"};
    char got[500];
    const char *text[] = {put("a.de", "ein Haus\r\n\r\nder \"Hund\"\r\n\r\n"),
                          put("a.en", "a house\n\nthe dog\nempty")};
    assert_int_equal(read_all(text, 2, &l, got, sizeof got), LS_OK);
    assert_string_equal(got, want);
    const char *tsv[] = {put("a.tsv", "ein Haus\ta house\n\nder \"Hund\"\tthe dog\n\tempty\n")};
    assert_int_equal(read_all(tsv, 1, &l, got, sizeof got), LS_OK);
    assert_string_equal(got, want);
    /* the names of the languages, or src and tgt; other keys are ignored */
    const char *json[] = {put("a.jsonl", "{\"de\": \"ein Haus\", \"en\": \"a house\", \"id\": 3}\n"
                                         "{\"tgt\": \"the dog\", \"src\": \"der \\\"Hund\\\"\"}\n\n"
                                         "{\"src\": \"\", \"en\": \"empty\"}\n")};
    assert_int_equal(read_all(json, 1, &l, got, sizeof got), LS_OK);
    assert_string_equal(got, want);
    const char *several[] = {tsv[0], text[0], text[1], json[0]};
    assert_int_equal(read_all(several, 4, &l, got, sizeof got), LS_OK);
    assert_int_equal(strlen(got), 3 * strlen(want));
}

static void wrong_files_are_refused_with_the_line(void **state)
{
    (void)state;
    const ls_langs l = {"src", "tgt"};
    char got[500];
    static const struct {
        const char *name, *text, *words;
    } cases[] = {{"b.tsv", "a\tb\nno tab\n", "b.tsv: line 2 has no tab"},
                 {"b.tsv", "a\tb\tc\n", "line 1 has more than one tab"},
                 {"b.jsonl", "{\"src\": \"x\"}\n", "line 1 has no key \"tgt\""},
                 {"b.jsonl", "\n{\"src\": 5, \"tgt\": \"x\"}\n", "line 2: the value of \"src\" is not a string"},
                 {"b.jsonl", "{\"src\": \"x\", }\n", "line 1, column 14: not JSON"},
                 {"b.jsonl", "{\"src\": \"\\ud800\", \"tgt\": \"\"}\n", "half of a surrogate pair"},
                 {"b.jsonl", "{\"src\": \"a\\u0000b\", \"tgt\": \"\"}\n", "line 1 contains a NUL character"},
                 {"b.tsv", "\xc3\t\n", "line 1: byte 1 (0xc3) is not UTF-8"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        const char *path = put(cases[i].name, cases[i].text);
        assert_int_equal(read_all(&path, 1, &l, got, sizeof got), LS_E_FORMAT);
        if (!strstr(ls_err_words(), cases[i].words)) fail_msg("%s, expected %s", ls_err_words(), cases[i].words);
    }
    const char *text[] = {put("b.de", "one\ntwo\n"), put("b.en", "one\n")};
    assert_int_equal(read_all(text, 2, &l, got, sizeof got), LS_E_FORMAT);
    assert_non_null(strstr(ls_err_words(), "b.en ends after line 1"));
    assert_int_equal(read_all(text, 1, &l, got, sizeof got), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "needs its translation"));
}

static void languages_come_from_options_or_file_names(void **state)
{
    (void)state;
    ls_langs l;
    const char *text[] = {"x/train.de.gz", "x/train.en"}, *plain[] = {"a.txt", "b.txt"}, *tsv[] = {"x.tsv"};
    assert_int_equal(ls_langs_choose(&l, NULL, NULL, text, 2), LS_OK);
    assert_string_equal(l.src, "de");
    assert_string_equal(l.tgt, "en");
    assert_int_equal(ls_langs_choose(&l, NULL, "fr", text, 2), LS_OK);
    assert_string_equal(l.tgt, "fr");
    assert_int_equal(ls_langs_choose(&l, NULL, NULL, plain, 2), LS_OK);
    assert_string_equal(l.src, "src");
    assert_int_equal(ls_langs_choose(&l, "de", NULL, tsv, 1), LS_OK);
    assert_string_equal(l.tgt, "tgt");
    assert_int_equal(ls_langs_choose(&l, "d e", NULL, tsv, 1), LS_E_ARG);
    assert_int_equal(ls_langs_choose(&l, "en", NULL, text, 2), LS_E_ARG);
    assert_non_null(strstr(ls_err_words(), "both 'en'"));
}

/* 40 pairs of words, in a folder `name`. */
static ls_status prepare(const char *name, ls_prepare_pairs_result *r)
{
    char pairs[300], tests[300];
    snprintf(pairs, sizeof pairs, "%s/train.tsv", dir);
    snprintf(tests, sizeof tests, "%s/test.tsv", dir);
    const char *in[] = {pairs}, *test[] = {tests};
    const ls_langs l = {"de", "en"};
    char out[300];
    snprintf(out, sizeof out, "%s/%s", dir, name);
    return ls_prepare_pairs(&(ls_prepare_pairs_opts){.input = {in, NULL, test},
                                                     .n_input = {1, 0, 1},
                                                     .langs = &l,
                                                     .vocab_size = 300,
                                                     .min_count = 2,
                                                     .val_fraction = 0.1,
                                                     .out_dir = out},
                            r);
}

static void a_prepared_folder_has_pairs_with_masks(void **state)
{
    (void)state;
    ls_prepare_pairs_result r;
    ls_tokenizer *tok = NULL;
    ls_langs l;
    ls_tokens t;
    int32_t ids[64], target[64];
    char path[300];
    assert_int_equal(prepare("data", &r), LS_OK);
    assert_int_equal(r.pairs[LS_PAIR_TRAIN], 36);
    assert_int_equal(r.pairs[LS_PAIR_VAL], 4);
    assert_int_equal(r.pairs[LS_PAIR_TEST], 1);
    snprintf(path, sizeof path, "%s/data", dir);
    assert_int_equal(ls_tokenizer_load(path, &tok), LS_OK);
    assert_int_equal(ls_langs_of(&l, tok, "it"), LS_OK);
    assert_string_equal(l.src, "de");
    assert_string_equal(l.tgt, "en");
    assert_int_equal(ls_tokenizer_n_vocab(tok), r.n_vocab);
    snprintf(path, sizeof path, "%s/data/train.bin", dir);
    assert_int_equal(ls_tokens_open(&t, path, 64, r.n_vocab), LS_OK);
    assert_true(ls_tokens_paired(&t));
    assert_int_equal(t.n_seq, 36);
    assert_int_equal(ls_tokens_sequence(&t, 1, ids, target), LS_OK);
    int n_src = 0, n = 0, counted = 0;
    while (ids[n_src] != LS_EOS_SRC) n_src++;
    while (ids[n] != LS_EOS_TGT) n++;
    for (int i = 0; i < 64; i++) {
        const bool counts = i >= n_src && i < n;
        assert_int_equal(target[i], counts ? ids[i + 1] : -1);
        if (i > n) assert_int_equal(ids[i], LS_PAIR_PAD);
        counted += counts;
    }
    assert_int_equal(target[n - 1], LS_EOS_TGT);
    ls_str text = {0};
    assert_int_equal(ls_tokenizer_decode(tok, ids, (size_t)n, &text), LS_OK);
    assert_string_equal(text.data, "wort1 ist gross<eos_de>word1 is large");
    ls_str_fini(&text);
    /* the count of a step is that of its samples, in the order of any epoch */
    for (int epoch = 0; epoch < 3; epoch++) {
        int64_t sum = 0;
        for (int p = 5; p < 15; p++) {
            assert_int_equal(ls_tokens_batch(&t, 7, epoch, p, 1, ids, target), LS_OK);
            for (int i = 0; i < 64; i++) sum += target[i] >= 0;
        }
        assert_int_equal(ls_tokens_counted(&t, 7, epoch, 5, 10), sum);
    }
    ls_tokens_close(&t);
    /* sequences that cut a target, or all of it */
    for (int S = 1; S < 30; S++) {
        int64_t sum = 0;
        assert_int_equal(ls_tokens_open(&t, path, S, r.n_vocab), LS_OK);
        for (int k = 0; k < 36; k++) {
            assert_int_equal(ls_tokens_sequence(&t, k, ids, target), LS_OK);
            for (int i = 0; i < S; i++) sum += target[i] >= 0;
        }
        assert_int_equal(ls_tokens_counted(&t, 1, 0, 0, 36), sum);
        ls_tokens_close(&t);
    }
    ls_tokenizer_destroy(&tok);
}

static void masks_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    ls_tokens t;
    const char *bin = put("c.bin", "\1\0\2\0\3\0\4\0");
    char path[300], ids[8] = {1, 0, 2, 0, 3, 0, 4, 0};
    snprintf(path, sizeof path, "%s", bin);
    assert_int_equal(ls_fs_write(path, ids, sizeof ids), LS_OK);
    static const struct {
        unsigned char mask[5];
        size_t n;
        const char *words;
    } cases[] = {{{0, 0, 1}, 3, "c.mask has 3 bytes, but"},
                 {{0, 0, 2, 1}, 4, "byte 2 is 2, not 0 or 1"},
                 {{1, 0, 0, 1}, 4, "must begin with a source"},
                 {{0, 1, 0, 0}, 4, "must begin with a source"}};
    char mask[300];
    snprintf(mask, sizeof mask, "%s/c.mask", dir);
    for (size_t i = 0; i < N_OF(cases); i++) {
        assert_int_equal(ls_fs_write(mask, cases[i].mask, cases[i].n), LS_OK);
        assert_int_equal(ls_tokens_open(&t, path, 2, 100), LS_E_FORMAT);
        if (!strstr(ls_err_words(), cases[i].words)) fail_msg("%s, expected %s", ls_err_words(), cases[i].words);
    }
}

static void a_failed_allocation_leaves_no_file(void **state)
{
    (void)state;
    ls_prepare_pairs_result r;
    const int64_t live = ls_mem_live();
    int n_failed = 0;
    for (int64_t k = 0;; k = k < 40 ? k + 1 : k + k / 8) {
        ls_mem_fail_at(k);
        const ls_status st = prepare("fails", &r);
        ls_mem_fail_at(-1);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
        assert_int_equal(ls_mem_live(), live);
        /* the folder appears as a whole; only syncing it can fail after that */
        if (ls_fs_exists(test_path(dir, "fails", NULL)))
            assert_int_equal(test_n_entries(test_path(dir, "fails", NULL)), 8);
        assert_int_equal(ls_fs_remove_tree(test_path(dir, "fails", NULL)), LS_OK);
        n_failed++;
    }
    assert_true(n_failed > 20);
}

static int make_files(void **state)
{
    (void)state;
    ls_str s = {0};
    dir = test_dir();
    for (int i = 0; i < 40; i++) ls_str_addf(&s, "wort%d ist gross\tword%d is large\n", i % 7, i % 7);
    put("train.tsv", s.data);
    put("test.tsv", "gross\tlarge \xc3\xbc\n");
    ls_str_fini(&s);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    test_dir_close(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_any_length_are_read),
        cmocka_unit_test(every_form_gives_the_same_pairs),
        cmocka_unit_test(wrong_files_are_refused_with_the_line),
        cmocka_unit_test(languages_come_from_options_or_file_names),
        cmocka_unit_test(a_prepared_folder_has_pairs_with_masks),
        cmocka_unit_test(masks_that_do_not_fit_are_refused),
        cmocka_unit_test(a_failed_allocation_leaves_no_file),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
