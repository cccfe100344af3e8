/* tokenizer_json.c - reads and writes vocabulary files: tokenizer.json of Hugging Face, and the vocab.bpe + encoder.json of the original release.
 *
 * A file with an unsupported setting (another model, a normalizer, a prefix space) is rejected and the setting named, so that ids
 * never differ silently from those of the original library. */
#include "data/tokenizer_impl.h"
#include "data/unicode.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"

#include <string.h>

/* Decodes the printable form of a token to bytes; false if a character is not in byte-level form. */
static bool token_bytes(const char *text, size_t n, ls_str *out)
{
    out->len = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int k = ls_utf8_decode((const unsigned char *)text + i, n - i, &c);
        int b = k ? data_char_to_byte(c) : -1;
        if (b < 0) return false;
        ls_str_addc(out, (char)b);
        i += (size_t)k;
    }
    return true;
}

static ls_status set_token(ls_tokenizer *t, const char *what, const char *key, json_int_t id, ls_str *scratch)
{
    if (id < 0 || id >= t->n_vocab)
        return ls_fail(LS_E_FORMAT, "%s: token \"%.60s\" has id %lld, but there are only %d tokens", what, key,
                       (long long)id, t->n_vocab);
    if (t->len[id]) return ls_fail(LS_E_FORMAT, "%s: two tokens have id %lld", what, (long long)id);
    size_t n = strlen(key);
    if (!n || n > 65535)
        return ls_fail(LS_E_FORMAT, "%s: the token with id %lld has %zu bytes", what, (long long)id, n);
    if (!strcmp(key, DATA_EOT_NAME)) return data_tokenizer_set_eot(t, (int32_t)id);
    if (t->added[id]) return data_tokenizer_set(t, (int32_t)id, key, n);
    if (!token_bytes(key, n, scratch))
        return ls_fail(LS_E_FORMAT, "%s: token \"%.60s\" is not in byte-level form", what, key);
    if (scratch->failed) return ls_nomem(n, "a vocabulary");
    return data_tokenizer_set(t, (int32_t)id, scratch->data, scratch->len);
}

/* The id of the token with this printable form (n bytes, in s from `at` on), or -1. */
static int32_t id_of(const json_t *vocab, ls_str *s, size_t at)
{
    const json_t *id = s->failed || at == s->len ? NULL : json_object_get(vocab, s->data + at);
    return id ? (int32_t)json_integer_value(id) : -1;
}

/* Sets merge `rank` from "a" and "b" (not NUL-terminated). The order of the appends NUL-terminates each token in turn. */
static ls_status set_merge(ls_tokenizer *t, const char *what, const json_t *vocab, size_t rank, const char *a,
                           size_t na, const char *b, size_t nb, ls_str *s)
{
    data_merge m;
    s->len = 0;
    ls_str_addn(s, a, na);
    m.left = id_of(vocab, s, 0);
    ls_str_addn(s, b, nb);
    m.right = s->len > na ? id_of(vocab, s, na) : -1;
    m.id = id_of(vocab, s, 0);
    if (s->failed) return ls_nomem(na + nb, "a vocabulary");
    if (m.left < 0 || m.right < 0 || m.id < 0)
        return ls_fail(LS_E_FORMAT, "%s: merge %zu, \"%.60s\", uses tokens that are not in the vocabulary", what, rank,
                       s->data);
    t->merge[rank] = m;
    return LS_OK;
}

static ls_status set_vocab(ls_tokenizer *t, const char *what, const json_t *vocab, ls_str *scratch)
{
    const char *key;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, id)
    {
        if (!json_is_integer(id))
            return ls_fail(LS_E_FORMAT, "%s: the id of token \"%.60s\" is not an integer", what, key);
        LS_TRY(set_token(t, what, key, json_integer_value(id), scratch));
    }
    return LS_OK;
}

/* One merge as "a b". */
static ls_status merge_line(ls_tokenizer *t, const char *what, const json_t *vocab, size_t rank, const char *line,
                            size_t n, ls_str *s)
{
    const char *blank = memchr(line, ' ', n), *end = line + n;
    if (!blank || memchr(blank + 1, ' ', (size_t)(end - blank - 1)))
        return ls_fail(LS_E_FORMAT, "%s: merge %zu, \"%.*s\", must be two tokens separated by a space", what, rank,
                       (int)(n < 60 ? n : 60), line);
    return set_merge(t, what, vocab, rank, line, (size_t)(blank - line), blank + 1, (size_t)(end - blank - 1), s);
}

/* One merge, "a b" or ["a", "b"]. */
static ls_status read_merge(ls_tokenizer *t, const char *what, const json_t *vocab, size_t rank, const json_t *m,
                            ls_str *s)
{
    const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);
    if (json_is_string(m)) return merge_line(t, what, vocab, rank, json_string_value(m), json_string_length(m), s);
    if (json_array_size(m) != 2 || !json_is_string(left) || !json_is_string(right))
        return ls_fail(LS_E_FORMAT, "%s: merge %zu is neither \"a b\" nor [\"a\", \"b\"]", what, rank);
    return set_merge(t, what, vocab, rank, json_string_value(left), json_string_length(left), json_string_value(right),
                     json_string_length(right), s);
}

/* The next line of a file of merges that is not empty or a comment ("#version"). */
static bool next_line(const char **p, const char *end, const char **line, size_t *n)
{
    while (*p < end) {
        const char *stop = memchr(*p, '\n', (size_t)(end - *p));
        if (!stop) stop = end;
        *line = *p;
        *n = (size_t)(stop - *p);
        *p = stop < end ? stop + 1 : end;
        if (*n && (*line)[*n - 1] == '\r') --*n;
        if (*n && !(*n >= 8 && !memcmp(*line, "#version", 8))) return true;
    }
    return false;
}

/* Added tokens are marked before the vocabulary is read: their form is their text. Those that the vocabulary lacks are set
 * from here. */
static ls_status added_tokens(ls_tokenizer *t, const char *what, const json_t *added, const json_t *vocab, bool mark,
                              ls_str *s)
{
    size_t i;
    json_t *a;
    json_array_foreach((json_t *)(uintptr_t)added, i, a)
    {
        const json_t *id = json_object_get(a, "id"), *name = json_object_get(a, "content");
        if (!json_is_integer(id) || !json_is_string(name))
            return ls_fail(LS_E_FORMAT, "%s: added token %zu has no integer id or no content", what, i);
        const json_t *in = json_object_get(vocab, json_string_value(name));
        if (in && json_integer_value(in) != json_integer_value(id))
            return ls_fail(LS_E_FORMAT, "%s: added token \"%.60s\" has two ids", what, json_string_value(name));
        if (mark) {
            if (json_integer_value(id) < 0 || json_integer_value(id) >= t->n_vocab)
                return ls_fail(LS_E_FORMAT, "%s: added token \"%.60s\" has id %lld, but there are only %d tokens", what,
                               json_string_value(name), (long long)json_integer_value(id), t->n_vocab);
            t->added[json_integer_value(id)] = 1;
        } else if (!in) {
            LS_TRY(set_token(t, what, json_string_value(name), json_integer_value(id), s));
        }
    }
    return LS_OK;
}

static int count_outside(const json_t *added, const json_t *vocab)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(added) && n < DATA_MAX_VOCAB; i++) {
        const char *name = json_string_value(json_object_get(json_array_get(added, i), "content"));
        if (name && !json_object_get(vocab, name)) n++;
    }
    return n;
}

/* The parts of a vocabulary file, and the names of their files for messages. */
typedef struct parts {
    const char *vocab_name, *merges_name;
    const json_t *vocab, *merges, *added;
    const char *lines, *lines_end; /* merges as text, if merges is NULL */
} parts;

static ls_status build(const parts *in, ls_tokenizer **out)
{
    const char *what = in->vocab_name;
    if (!json_is_object(in->vocab))
        return ls_fail(LS_E_FORMAT, "%s: the vocabulary must be an object of token: id", what);
    if (json_object_size(in->vocab) > DATA_MAX_VOCAB)
        return ls_fail(LS_E_UNSUPPORTED, "%s: too many tokens: %zu; the limit is %d", what, json_object_size(in->vocab),
                       DATA_MAX_VOCAB);
    const char *line, *p = in->lines;
    size_t rank, n, n_merge = json_array_size(in->merges);
    while (in->lines && next_line(&p, in->lines_end, &line, &n)) n_merge++;
    if ((!in->lines && !json_is_array(in->merges)) || n_merge > DATA_MAX_VOCAB ||
        (in->added && !json_is_array(in->added)))
        return ls_fail(LS_E_FORMAT, "%s: \"merges\" (at most %d) and \"added_tokens\" must be arrays", in->merges_name,
                       DATA_MAX_VOCAB);
    ls_tokenizer *t = NULL;
    ls_str s = {0};
    ls_status st;
    json_t *m;
    int n_vocab = (int)json_object_size(in->vocab) + count_outside(in->added, in->vocab);
    LS_TRY_GOTO(st, done, data_tokenizer_new(n_vocab, (int)n_merge, &t));
    LS_TRY_GOTO(st, done, added_tokens(t, what, in->added, in->vocab, true, &s));
    LS_TRY_GOTO(st, done, set_vocab(t, what, in->vocab, &s));
    LS_TRY_GOTO(st, done, added_tokens(t, what, in->added, in->vocab, false, &s));
    json_array_foreach((json_t *)(uintptr_t)in->merges, rank, m)
        LS_TRY_GOTO(st, done, read_merge(t, in->merges_name, in->vocab, rank, m, &s));
    p = in->lines;
    for (rank = 0; p && next_line(&p, in->lines_end, &line, &n); rank++)
        LS_TRY_GOTO(st, done, merge_line(t, in->merges_name, in->vocab, rank, line, n, &s));
    LS_TRY_GOTO(st, done, data_tokenizer_finish(t, what));
    *out = t;
    t = NULL;
done:
    ls_tokenizer_destroy(&t);
    ls_str_fini(&s);
    return st;
}

/* ---- tokenizer.json ---- */

static bool is_type(const json_t *j, const char *type)
{
    const char *s = json_string_value(json_object_get(j, "type"));
    return s && !strcmp(s, type);
}

static bool absent(const json_t *j)
{
    return !j || json_is_null(j) || (json_is_string(j) && !json_string_length(j));
}

/* Supported: no normalizer, the split pattern of GPT-2, plain BPE. */
static ls_status check_kind(const json_t *root, const json_t *model, const char *what)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *type = json_object_get(model, "type");
    if (!json_is_object(model)) return ls_fail(LS_E_FORMAT, "%s: not a tokenizer.json: \"model\" is missing", what);
    if (type && !is_type(model, "BPE"))
        return ls_fail(LS_E_UNSUPPORTED, "%s: model type %.40s is not supported; use byte-level BPE", what,
                       json_is_string(type) ? json_string_value(type) : "unnamed");
    if (!absent(json_object_get(root, "normalizer")))
        return ls_fail(LS_E_UNSUPPORTED, "%s: a normalizer is not supported; it must be null as in GPT-2", what);
    if (!is_type(pre, "ByteLevel"))
        return ls_fail(LS_E_UNSUPPORTED, "%s: the pre_tokenizer is not supported; it must be ByteLevel as in GPT-2",
                       what);
    if (json_is_true(json_object_get(pre, "add_prefix_space")))
        return ls_fail(LS_E_UNSUPPORTED, "%s: add_prefix_space true is not supported; it must be false as in GPT-2",
                       what);
    if (json_is_false(json_object_get(pre, "use_regex")) && json_array_size(json_object_get(model, "merges")))
        return ls_fail(LS_E_UNSUPPORTED, "%s: use_regex false is not supported: merges cannot cross words", what);
    static const char *const off[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        const json_t *v = json_object_get(model, off[i]);
        if (!absent(v) && !(json_is_real(v) && json_real_value(v) == 0) && strcmp(off[i], "unk_token"))
            return ls_fail(LS_E_UNSUPPORTED, "%s: model.%s is not supported; it must be unset as in GPT-2", what,
                           off[i]);
    }
    if (json_is_true(json_object_get(model, "byte_fallback")) || json_is_true(json_object_get(model, "ignore_merges")))
        return ls_fail(LS_E_UNSUPPORTED, "%s: byte_fallback and ignore_merges are not supported", what);
    return LS_OK;
}

ls_status ls_tokenizer_from_json(const char *text, size_t n, const char *what, ls_tokenizer **out)
{
    json_t *root = NULL;
    LS_TRY(ls_json_parse(text, n, what, &root));
    const json_t *model = json_object_get(root, "model");
    ls_status st = check_kind(root, model, what);
    if (st == LS_OK)
        st = build(&(parts){.vocab_name = what,
                            .merges_name = what,
                            .vocab = json_object_get(model, "vocab"),
                            .merges = json_object_get(model, "merges"),
                            .added = json_object_get(root, "added_tokens")},
                   out);
    json_decref(root);
    return st;
}

static ls_status load_json(const char *path, ls_tokenizer **out)
{
    char *text;
    size_t n;
    LS_TRY(ls_fs_read_most(path, LS_FS_TEXT_MOST, &text, &n));
    ls_status st = ls_tokenizer_from_json(text, n, path, out);
    ls_free(text);
    return st;
}

/* ---- vocab.bpe + encoder.json ---- */

static ls_status load_gpt2(const char *merges_path, const char *vocab_path, ls_tokenizer **out)
{
    char *text = NULL;
    size_t n;
    json_t *vocab = NULL;
    ls_status st;
    LS_TRY_GOTO(st, done, ls_fs_read_most(merges_path, LS_FS_TEXT_MOST, &text, &n));
    LS_TRY_GOTO(st, done, ls_json_load(vocab_path, &vocab));
    LS_TRY_GOTO(st, done,
                build(&(parts){.vocab_name = vocab_path,
                               .merges_name = merges_path,
                               .vocab = vocab,
                               .lines = text,
                               .lines_end = text + n},
                      out));
done:
    ls_free(text);
    json_decref(vocab);
    return st;
}

ls_status ls_tokenizer_load(const char *path, ls_tokenizer **out)
{
    static const char *const form[][2] = {
        {"tokenizer.json", NULL}, {"vocab.bpe", "encoder.json"}, {"merges.txt", "vocab.json"}};
    if (!ls_fs_exists(path)) return ls_fail(LS_E_IO, "%s: no such file or folder", path);
    ls_debug("data", "tokenizer from %s", path);
    if (!ls_fs_is_dir(path)) return load_json(path, out);
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        char a[PATH_MAX], b[PATH_MAX];
        const bool pair = form[i][1];
        LS_TRY(ls_path_in(a, path, "%s", form[i][0]));
        if (pair) LS_TRY(ls_path_in(b, path, "%s", form[i][1]));
        if (!ls_fs_exists(a) || (pair && !ls_fs_exists(b))) continue;
        return pair ? load_gpt2(a, b, out) : load_json(a, out);
    }
    return ls_fail(LS_E_IO,
                   "%s: the folder has neither tokenizer.json nor vocab.bpe + encoder.json nor merges.txt + vocab.json",
                   path);
}

/* ---- writing ---- */

void ls_tokenizer_form(const ls_tokenizer *t, int32_t id, ls_str *out)
{
    const unsigned char *p = t->bytes + t->off[id];
    if (t->added[id]) {
        ls_str_addn(out, p, t->len[id]);
        return;
    }
    for (uint32_t i = 0; i < t->len[id]; i++) {
        unsigned char utf8[4];
        ls_str_addn(out, utf8, (size_t)data_utf8_encode(data_byte_to_char(p[i]), utf8));
    }
}

void ls_tokenizer_merge_form(const ls_tokenizer *t, int rank, ls_str *out)
{
    ls_tokenizer_form(t, t->merge[rank].left, out);
    ls_str_addc(out, ' ');
    ls_tokenizer_form(t, t->merge[rank].right, out);
}

static void write_byte_level(ls_jsonw *w, const char *key)
{
    ls_jsonw_put_open(w, key, '{');
    ls_jsonw_put_str(w, "type", "ByteLevel");
    ls_jsonw_put_bool(w, "add_prefix_space", 0);
    ls_jsonw_put_bool(w, "trim_offsets", strcmp(key, "post_processor") != 0);
    ls_jsonw_put_bool(w, "use_regex", 1);
    ls_jsonw_close(w);
}

static void write_added(ls_jsonw *w, const ls_tokenizer *t, ls_str *s)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    ls_jsonw_put_open(w, "added_tokens", '[');
    for (int id = 0; id < t->n_vocab; id++) {
        if (!t->added[id]) continue;
        s->len = 0;
        ls_tokenizer_form(t, id, s);
        ls_jsonw_open(w, '{');
        ls_jsonw_put_int(w, "id", id);
        ls_jsonw_put_str(w, "content", s->data);
        for (size_t i = 0; i < 4; i++) ls_jsonw_put_bool(w, flags[i], 0);
        ls_jsonw_put_bool(w, "special", 1);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_model(ls_jsonw *w, const ls_tokenizer *t, ls_str *s)
{
    static const char *const off[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    static const char *const no[] = {"fuse_unk", "byte_fallback", "ignore_merges"};
    ls_jsonw_put_open(w, "model", '{');
    ls_jsonw_put_str(w, "type", "BPE");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) ls_jsonw_put_str(w, off[i], NULL);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) ls_jsonw_put_bool(w, no[i], 0);
    ls_jsonw_put_open(w, "vocab", '{');
    for (int id = 0; id < t->n_vocab; id++) {
        s->len = 0;
        ls_tokenizer_form(t, id, s);
        ls_jsonw_put_int(w, s->data, id);
    }
    ls_jsonw_close(w);
    ls_jsonw_put_open(w, "merges", '[');
    for (int r = 0; r < t->n_merge; r++) {
        s->len = 0;
        ls_tokenizer_merge_form(t, r, s);
        ls_jsonw_str(w, s->data);
    }
    ls_jsonw_close(w);
    ls_jsonw_close(w);
}

ls_status ls_tokenizer_to_json(const ls_tokenizer *t, ls_str *out)
{
    ls_str s = {0};
    ls_str_add(&s, "-"); /* so that data is never NULL below; every use starts at len 0 */
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    if (!s.failed) {
        ls_jsonw_open(&w, '{');
        ls_jsonw_put_str(&w, "version", "1.0");
        ls_jsonw_put_str(&w, "truncation", NULL);
        ls_jsonw_put_str(&w, "padding", NULL);
        write_added(&w, t, &s);
        ls_jsonw_put_str(&w, "normalizer", NULL);
        write_byte_level(&w, "pre_tokenizer");
        write_byte_level(&w, "post_processor");
        write_byte_level(&w, "decoder");
        write_model(&w, t, &s);
        ls_jsonw_close(&w);
        ls_str_addc(out, '\n');
    }
    bool failed = s.failed || out->failed;
    ls_str_fini(&s);
    return failed ? ls_nomem(out->len, "tokenizer.json") : LS_OK;
}

ls_status ls_tokenizer_save(const ls_tokenizer *t, const char *path)
{
    ls_str s = {0};
    ls_status st = ls_tokenizer_to_json(t, &s);
    if (st == LS_OK) st = ls_fs_write(path, s.data, s.len);
    ls_str_fini(&s);
    return st;
}
