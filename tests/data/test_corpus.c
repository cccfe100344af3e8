/* Inputs: complete and truncated compressed files, folders, blocks of text, and JSON lines. */
#include "cmocka_all.h"
#include "core/mem.h"
#include "core/rng.h"
#include "data/corpus.h"
#include "data/jsonl.h"
#include "data/prepare.h"
#include "data/pretokenize.h"
#include "own_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static size_t gzip_of(const void *data, size_t n, unsigned char *out, size_t cap)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)data;
    z.avail_in = (unsigned)n;
    z.next_out = out;
    z.avail_out = (unsigned)cap;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t k = z.total_out;
    deflateEnd(&z);
    return k;
}

/* Reads all of a file through small reads. */
static ls_status read_all(const char *path, unsigned char *out, size_t cap, size_t *n)
{
    ls_byte_stream *s = NULL;
    *n = 0;
    LS_TRY(ls_byte_stream_open(path, -1, &s));
    ls_status st = LS_OK;
    for (size_t k = 1; st == LS_OK && k;) {
        st = ls_byte_stream_read(s, out + *n, cap - *n < 777 ? cap - *n : 777, &k);
        if (st == LS_OK) *n += k;
    }
    ls_byte_stream_close(&s);
    return st;
}

#define TEXT_N 50000
static unsigned char text[TEXT_N], packed[4 * TEXT_N], got[2 * TEXT_N + 10];

static void fill_text(void)
{
    uint64_t key = ls_rng_key(5, LS_RNG_TEST, 0, 0);
    for (size_t i = 0; i < TEXT_N; i++) text[i] = (unsigned char)("etaoin shrdlu\n"[ls_rng_u64(key, i) % 14]);
}

static void compressed_files_read_whole_or_fail(void **state)
{
    (void)state;
    fill_text();
    size_t n, k;
    assert_int_equal(ls_fs_write(in_dir("a.txt"), text, TEXT_N), LS_OK);
    assert_int_equal(read_all(in_dir("a.txt"), got, sizeof got, &n), LS_OK);
    assert_int_equal(n, TEXT_N);
    assert_memory_equal(got, text, TEXT_N);
    for (int zstd = 0; zstd < 2; zstd++) { /* two members in one file; the name need not end in .gz or .zst */
        const char *names[] = {zstd ? "b.txt.zst" : "b.txt.gz", "b.txt"};
        k = zstd ? ZSTD_compress(packed, sizeof packed, text, TEXT_N, 3) : gzip_of(text, TEXT_N, packed, sizeof packed);
        memcpy(packed + k, packed, k);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(ls_fs_write(in_dir(names[i]), packed, 2 * k), LS_OK);
            assert_int_equal(read_all(in_dir(names[i]), got, sizeof got, &n), LS_OK);
            assert_int_equal(n, 2 * TEXT_N);
            assert_memory_equal(got, text, TEXT_N);
            assert_memory_equal(got + TEXT_N, text, TEXT_N);
        }
        /* truncated at many places: always an error, never a shorter text; a file may end only where a member ends */
        for (size_t cut = 1; cut < 2 * k;
             cut += cut < 40 || (cut > k - 20 && cut < k + 20) || cut > 2 * k - 20 ? 1 : 997) {
            if (cut == k) continue;
            assert_int_equal(ls_fs_write(in_dir(names[0]), packed, cut), LS_OK);
            assert_int_equal(read_all(in_dir(names[0]), got, sizeof got, &n), LS_E_FORMAT);
            if (!strstr(ls_err_words(), "truncated") || !strstr(ls_err_words(), names[0]))
                fail_msg("%s", ls_err_words());
        }
        packed[k / 2] ^= 0x55;
        assert_int_equal(ls_fs_write(in_dir(names[0]), packed, k), LS_OK);
        ls_status st = read_all(in_dir(names[0]), got, sizeof got, &n);
        if (!zstd) assert_int_equal(st, LS_E_FORMAT); /* gzip has a checksum; zstd's is optional and off here */
        assert_int_equal(ls_fs_write(in_dir(names[0]), "plain text", 10), LS_OK);
        assert_int_equal(read_all(in_dir(names[0]), got, sizeof got, &n), LS_E_FORMAT);
        assert_non_null(strstr(ls_err_words(), zstd ? "not a zstd" : "not a gzip"));
    }
    k = gzip_of(text, TEXT_N, packed, sizeof packed);
    memset(packed + k, 0, 512); /* zero padding is not a second member */
    assert_int_equal(ls_fs_write(in_dir("c.gz"), packed, k + 512), LS_OK);
    assert_int_equal(read_all(in_dir("c.gz"), got, sizeof got, &n), LS_OK);
    assert_int_equal(n, TEXT_N);
    packed[k + 100] = 'x';
    assert_int_equal(ls_fs_write(in_dir("c.gz"), packed, k + 512), LS_OK);
    assert_int_equal(read_all(in_dir("c.gz"), got, sizeof got, &n), LS_E_FORMAT);
}

static void folders_list_their_text_files_sorted(void **state)
{
    (void)state;
    const char *const files[] = {"f/b.txt",     "f/a.jsonl.gz",        "f/sub/z.txt.zst", "f/.hidden.txt",
                                 "f/notes.pdf", "f/sub/deep/q.ndjson", "f/README.md",     "f/c.rst"};
    for (size_t i = 0; i < N_OF(files); i++) assert_int_equal(ls_fs_write(in_dir(files[i]), "x", 1), LS_OK);
    ls_inputs list = {0};
    assert_int_equal(ls_inputs_add(&list, in_dir("f"), LS_TEXT_AUTO), LS_OK);
    const char *const want[] = {"f/a.jsonl.gz", "f/b.txt", "f/c.rst", "f/sub/deep/q.ndjson", "f/sub/z.txt.zst"};
    assert_int_equal(list.n, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(list.item[i].path, in_dir(want[i]));
        assert_int_equal(list.item[i].format, i == 0 || i == 3 ? LS_TEXT_JSONL : LS_TEXT_PLAIN);
    }
    assert_int_equal(ls_inputs_nbytes(&list), 5);
    assert_int_equal(list.n_skipped, 2);
    assert_string_equal(list.skipped[0], in_dir("f/README.md"));
    assert_int_equal(ls_inputs_add(&list, in_dir("f/README.md"), LS_TEXT_AUTO), LS_OK); /* by its name */
    assert_int_equal(ls_inputs_add(&list, in_dir("f/notes.pdf"), LS_TEXT_AUTO), LS_E_ARG);
    assert_int_equal(ls_inputs_add(&list, in_dir("f/notes.pdf"), LS_TEXT_PLAIN), LS_OK);
    assert_int_equal(ls_inputs_add(&list, in_dir("f/none.txt"), LS_TEXT_AUTO), LS_E_IO);
    assert_int_equal(ls_inputs_add(&list, "-", LS_TEXT_AUTO), LS_E_ARG);
    assert_int_equal(ls_inputs_add(&list, "-", LS_TEXT_JSONL), LS_OK);
    assert_int_equal(ls_inputs_add(&list, "-", LS_TEXT_JSONL), LS_E_ARG);
    assert_int_equal(ls_inputs_nbytes(&list), -1);
    assert_int_equal(mkdir(in_dir("empty"), 0777), 0);
    assert_int_equal(ls_inputs_add(&list, in_dir("empty"), LS_TEXT_AUTO), LS_E_FORMAT);
    ls_inputs_fini(&list);
}

/* The concatenated blocks of a file equal the file, and block borders do not change the pieces of the tokenizer. */
static void check_blocks(const char *name, const unsigned char *data, size_t n, int64_t docs)
{
    ls_inputs list = {0};
    ls_blocks b;
    ls_text_block block = {0};
    bool end = false;
    size_t at = 0, n_block = 0, n_piece = 0, want = 0;
    assert_int_equal(ls_fs_write(in_dir(name), data, n), LS_OK);
    assert_int_equal(ls_inputs_add(&list, in_dir(name), LS_TEXT_AUTO), LS_OK);
    ls_blocks_init(&b, &list, 0, 0);
    while (ls_blocks_next(&b, &block, &end) == LS_OK && !end) {
        assert_int_equal(block.offset, at);
        assert_true(at + block.n <= n);
        assert_memory_equal(block.text, data + at, block.n);
        for (size_t i = 0; i < block.n; n_piece++) i += data_split_next(block.text + i, block.n - i);
        at += block.n;
        n_block++;
    }
    assert_true(end);
    assert_int_equal(at, n);
    assert_int_equal(b.pos.n_doc, docs);
    for (size_t i = 0; i < n; want++) i += data_split_next(data + i, n - i);
    if (list.item[0].format == LS_TEXT_PLAIN) assert_int_equal(n_piece, want);
    assert_true(n < 2 * LS_BLOCK_BYTES || n_block > 1);
    ls_free(block.text);
    ls_blocks_fini(&b);
    ls_inputs_fini(&list);
}

static void blocks_joined_give_the_file(void **state)
{
    (void)state;
    size_t n = 3 * LS_BLOCK_BYTES + 12345;
    unsigned char *p = ls_alloc(n);
    uint64_t key = ls_rng_key(6, LS_RNG_TEST, 0, 0);
    const char *const word[] = {
        " the", "\n", "  ", "it's", "42", "\xe3\x80\x80", "\xc3\xa9t\xc3\xa9", "...", " \t", "\xe4\xb8\xad\xe6\x96\x87",
        "'"};
    for (size_t i = 0, w = 0; i < n; w++) {
        const char *s = word[ls_rng_u64(key, w) % 11];
        for (; *s && i < n; s++) p[i++] = (unsigned char)*s;
    }
    memset(p + n - 8, 'a', 8); /* not in the middle of a character */
    check_blocks("words.txt", p, n, 1);
    check_blocks("one.txt", p, 1, 1);
    check_blocks("none.txt", p, 0, 0);
    check_blocks("exact.txt", (const unsigned char *)memset(p, 'x', LS_BLOCK_BYTES), LS_BLOCK_BYTES, 1);
    int64_t docs = 0; /* lines: some empty, one longer than a block, the last one without a newline */
    for (size_t i = 0; i < n; i++) p[i] = 'j';
    for (size_t i = 100; i<n; i += i % 1000> 500 ? 1 : 333) p[i] = '\n';
    memset(p + LS_BLOCK_BYTES / 2, 'k', 2 * LS_BLOCK_BYTES);
    p[n - 1] = 'e';
    for (size_t i = 0; i < n; i++)
        if (p[i] != '\n' && (i + 1 == n || p[i + 1] == '\n')) docs++;
    check_blocks("lines.jsonl", p, n, docs);
    ls_free(p);
}

static void the_document_limit_is_exact(void **state)
{
    (void)state;
    const char lines[] = "{\"text\":\"a\"}\n\n  \n{\"text\":\"b\"}\n{\"text\":\"c\"}";
    assert_int_equal(ls_fs_write(in_dir("l1.jsonl"), lines, sizeof lines - 1), LS_OK);
    ls_inputs list = {0};
    assert_int_equal(ls_inputs_add(&list, in_dir("l1.jsonl"), LS_TEXT_AUTO), LS_OK);
    assert_int_equal(ls_inputs_add(&list, in_dir("l1.jsonl"), LS_TEXT_AUTO), LS_OK);
    for (int64_t limit = 1; limit < 8; limit++) {
        ls_blocks b;
        ls_text_block block = {0};
        bool end = false;
        ls_blocks_init(&b, &list, limit, 0);
        while (ls_blocks_next(&b, &block, &end) == LS_OK && !end) {}
        assert_int_equal(b.pos.n_doc, limit < 6 ? limit : 6);
        ls_free(block.text);
        ls_blocks_fini(&b);
    }
    ls_inputs_fini(&list);
}

static void json_lines_give_text_or_an_error(void **state)
{
    (void)state;
    static const struct {
        const char *line, *text; /* NULL: not OK */
        ls_jsonl_result result;
    } c[] = {
        {"{\"text\":\"hi\"}", "hi", LS_JSONL_OK},
        {" { \"id\" : [1, -2.5e+3, {\"text\": \"no\"}, true, null], \"text\" : \"a\\n\\u00e9\\\"\\/\" , \"z\":{} } \r",
         "a\n\xc3\xa9\"/", LS_JSONL_OK},
        {"{\"text\":\"\\ud83d\\ude00\"}", "\xf0\x9f\x98\x80", LS_JSONL_OK},
        {"{\"text\":\"\"}", "", LS_JSONL_OK},
        {"{\"te\\u0078t\":\"escaped key\",\"u\":1}", "escaped key", LS_JSONL_OK},
        {"{\"text\":\"first\",\"other\":\"x\",\"text\":\"last\"}", "last", LS_JSONL_OK},
        {"{\"text\":\"kept\",\"text2\":\"x\"}", "kept", LS_JSONL_OK},
        {"{}", NULL, LS_JSONL_NO_KEY},
        {"{\"body\":\"x\"}", NULL, LS_JSONL_NO_KEY},
        {"{\"a\":{\"text\":\"nested\"}}", NULL, LS_JSONL_NO_KEY},
        {"{\"text\":3}", NULL, LS_JSONL_NOT_TEXT},
        {"{\"text\":\"x\",\"text\":null}", NULL, LS_JSONL_NOT_TEXT},
        {"{\"text\":\"\\ud800\"}", "\xed\xa0\x80", LS_JSONL_LONE},
        {"{\"text\":\"\\udc00x\"}", "\xed\xb0\x80x", LS_JSONL_LONE},
        {"", NULL, LS_JSONL_BAD},
        {"[]", NULL, LS_JSONL_BAD},
        {"\"text\"", NULL, LS_JSONL_BAD},
        {"{\"text\":\"hi\"} x", NULL, LS_JSONL_BAD},
        {"{\"text\":\"hi\"", NULL, LS_JSONL_BAD},
        {"{\"text\":\"hi", NULL, LS_JSONL_BAD},
        {"{\"text\":\"hi\",}", NULL, LS_JSONL_BAD},
        {"{\"text\":\"a\tb\"}", NULL, LS_JSONL_BAD},
        {"{\"text\":\"\\x\"}", NULL, LS_JSONL_BAD},
        {"{\"text\":\"\\u12g4\"}", NULL, LS_JSONL_BAD},
        {"{\"text\":\"a\" \"b\":1}", NULL, LS_JSONL_BAD},
        {"{text:\"a\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":01,\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":1.,\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":1e,\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":-,\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":nul,\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":[1,],\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":[1 2],\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":{\"b\"},\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":{1:2},\"text\":\"\"}", NULL, LS_JSONL_BAD},
        {"{\"a\":[}],\"text\":\"\"}", NULL, LS_JSONL_BAD},
    };
    ls_str out = {0};
    for (size_t i = 0; i < N_OF(c); i++) {
        size_t at;
        const char *why = NULL;
        ls_jsonl_result r = ls_jsonl_text(c[i].line, strlen(c[i].line), "text", &out, &at, &why);
        if (r != c[i].result) fail_msg("%s: got %d, want %d (%s)", c[i].line, r, c[i].result, why ? why : "");
        if (r == LS_JSONL_BAD) assert_non_null(why);
        if (c[i].text) {
            assert_int_equal(out.len, strlen(c[i].text));
            assert_memory_equal(out.data ? out.data : "", c[i].text, out.len);
        }
    }
    char deep[1000] = "{\"text\":\"x\",\"a\":";
    size_t n = strlen(deep);
    memset(deep + n, '[', 400);
    memset(deep + n + 400, ']', 400);
    deep[n + 800] = '}';
    size_t at;
    const char *why = NULL;
    assert_int_equal(ls_jsonl_text(deep, n + 801, "text", &out, &at, &why), LS_JSONL_BAD);
    assert_string_equal(why, "less nesting");
    ls_str_fini(&out);
}

static void bad_utf8_is_found_exactly(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        size_t n, good, bad; /* offset of the first bad byte, number of bytes that one U+FFFD replaces */
    } c[] = {
        {"plain", 5, 5, 0},        {"\xc3\xa9", 2, 2, 0},     {"\xf0\x9f\x98\x80", 4, 4, 0},
        {"abcdefgh\xff", 9, 8, 1}, {"\x80", 1, 0, 1},         {"\xc0\xaf", 2, 0, 1},
        {"\xe0\x80\x80", 3, 0, 1}, {"\xed\xa0\x80", 3, 0, 3}, {"\xf4\x90\x80\x80", 4, 0, 1},
        {"a\xe4\xb8", 3, 1, 2},    {"a\xe4\xb8z", 4, 1, 2},   {"\xf0\x9f\x98", 3, 0, 3},
        {"\xef\xbf\xbf", 3, 3, 0}, {"\xc2", 1, 0, 1},
    };
    for (size_t i = 0; i < N_OF(c); i++) {
        const unsigned char *p = (const unsigned char *)c[i].s;
        assert_int_equal(data_utf8_check(p, c[i].n), c[i].good);
        if (c[i].good < c[i].n) assert_int_equal(data_utf8_bad_len(p + c[i].good, c[i].n - c[i].good), c[i].bad);
    }
    static const struct {
        const char *s;
        size_t n, whole;
    } w[] = {
        {"", 0, 0},     {"a", 1, 1},     {"a\xe4", 2, 1},        {"a\xe4\xb8", 3, 1},    {"a\xe4\xb8\xad", 4, 4},
        {"\xc2", 1, 0}, {"\x80", 1, 1},  {"\x80\x80\x80", 3, 3}, {"\xf0\x9f\x98", 3, 0}, {"\xf0\x9f\x98\x80", 4, 4},
        {"\xff", 1, 1}, {"a\xe4z", 3, 3}};
    for (size_t i = 0; i < N_OF(w); i++) assert_int_equal(data_utf8_whole(w[i].s, w[i].n), w[i].whole);
    for (uint32_t k = 0; k < 0x110000; k++) { /* every code point, encoded and decoded */
        unsigned char b[4];
        uint32_t back = 0;
        int n = data_utf8_encode(k, b);
        int m = ls_utf8_decode(b, (size_t)n, &back);
        if (k >= 0xd800 && k < 0xe000) assert_int_equal(m, 0);
        else if (m != n || back != k) fail_msg("U+%04X: %d bytes, read back as U+%04X in %d", k, n, back, m);
    }
}

/* Each allocation of a run fails once, with a given and with a trained vocabulary: nothing leaks, and no partial file remains. */
static void a_failed_allocation_leaves_no_partial_file(void **state)
{
    (void)state;
    const char lines[] = "{\"text\":\"low lower lowest\"}\n{\"text\":\"new newer newest\"}\n";
    char out[256];
    snprintf(out, sizeof out, "%s/oom", dir);
    unsigned char gz[300];
    size_t n = gzip_of(lines, sizeof lines - 1, gz, sizeof gz);
    assert_int_equal(ls_fs_write(in_dir("oom.jsonl.gz"), gz, n), LS_OK);
    ls_tokenizer *bytes = NULL;
    ls_inputs list = {0};
    assert_int_equal(ls_tokenizer_bytes(&bytes), LS_OK);
    assert_int_equal(ls_inputs_add(&list, in_dir("oom.jsonl.gz"), LS_TEXT_AUTO), LS_OK);
    for (int trains = 0; trains < 2; trains++) {
        ls_prepare_opts o = {.train = &list,
                             .tok = trains ? NULL : bytes,
                             .train_vocab = 270,
                             .train_min_count = 2,
                             .text_key = "text",
                             .val_fraction = 0.5,
                             .threads = 1,
                             .out_dir = out};
        ls_prepare_result r = {0};
        int64_t live = ls_mem_live();
        long k = 0;
        for (;; k++) {
            ls_mem_fail_at(k);
            ls_status st = ls_prepare(&o, &r);
            ls_mem_fail_at(-1);
            assert_int_equal(ls_mem_live(), live);
            if (st == LS_OK) break;
            assert_int_equal(st, LS_E_NOMEM);
            char **name = NULL; /* the last files are written one by one: some may exist, but only complete ones */
            size_t n_name = 0;
            if (ls_fs_exists(out)) assert_int_equal(ls_fs_list(out, &name, &n_name), LS_OK);
            for (size_t i = 0; i < n_name; i++) assert_null(strstr(name[i], ".tmp"));
            ls_fs_list_free(name, n_name);
            assert_int_equal(ls_fs_remove_tree(out), LS_OK);
        }
        assert_true(k > 20);
        assert_int_equal(r.train_doc, 1);
        assert_int_equal(r.val_doc, 1);
        assert_int_equal(ls_fs_remove_tree(out), LS_OK);
    }
    ls_inputs_fini(&list);
    ls_tokenizer_destroy(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compressed_files_read_whole_or_fail),
        cmocka_unit_test(folders_list_their_text_files_sorted),
        cmocka_unit_test(blocks_joined_give_the_file),
        cmocka_unit_test(the_document_limit_is_exact),
        cmocka_unit_test(json_lines_give_text_or_an_error),
        cmocka_unit_test(bad_utf8_is_found_exactly),
        cmocka_unit_test(a_failed_allocation_leaves_no_partial_file),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
