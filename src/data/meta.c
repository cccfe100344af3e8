/* meta.c - compares token files with meta.json. */
#include "data/meta.h"
#include "data/sources.h"
#include "data/token_header.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FORMAT     "lockstep-" /* -tokens-1, -pairs-1 */
#define PIECE      ((size_t)64 << 10)
#define N_PIECE    64
#define HOW_TO_FIX "run `lockstep prepare` again, or remove meta.json if the change is intended"

void data_sample_hex(const void *data, size_t n, char hex[17])
{
    const unsigned char *p = data;
    ls_xxh h;
    ls_xxh_init(&h);
    if (n <= N_PIECE * PIECE) ls_xxh_add(&h, p, n);
    for (size_t i = 0; i < N_PIECE && n > N_PIECE * PIECE; i++)
        ls_xxh_add(&h, p + (i == N_PIECE - 1 ? n - PIECE : (n - PIECE) / (N_PIECE - 1) * i), PIECE);
    snprintf(hex, 17, "%016" PRIx64, ls_xxh_value(&h));
}

static void sha256_of(const void *data, size_t n, char hex[65])
{
    ls_sha256 s;
    ls_sha256_init(&s);
    ls_sha256_add(&s, data, n);
    ls_sha256_hex(&s, hex);
}

ls_status data_file_sha256(const char *path, char hex[65])
{
    ls_fs_map m;
    LS_TRY(ls_fs_map_open(&m, path));
    sha256_of(m.data, m.n, hex);
    ls_fs_map_close(&m);
    return LS_OK;
}

void data_mask_path(const char *path, char mask[PATH_MAX])
{
    const size_t n = strlen(path);
    mask[0] = '\0';
    if (ls_ends_in(path, ".bin") && n + 2 <= PATH_MAX) snprintf(mask, PATH_MAX, "%.*s.mask", (int)n - 4, path);
}

/* ---- the comparison ---- */

/* The entry of a file in meta.json: that of a part, or of one of its shards. */
static const json_t *find_entry(const json_t *meta, const char *name)
{
    static const char *const part[] = {"train", "val"};
    for (int i = 0; i < 2; i++) {
        const json_t *p = json_object_get(meta, part[i]), *shards = json_object_get(p, "shards");
        const char *file = json_string_value(json_object_get(p, "file"));
        if (p && !file && !shards) file = i ? "val.bin" : "train.bin"; /* pairs */
        if (file && !strcmp(file, name)) return p;
        for (size_t k = 0; k < json_array_size(shards); k++) {
            const json_t *s = json_array_get(shards, k);
            file = json_string_value(json_object_get(s, "file"));
            if (file && !strcmp(file, name)) return s;
        }
    }
    return NULL;
}

static ls_status differs(const char *path, const char *what, const char *has, const char *want)
{
    return ls_fail(
        LS_E_FORMAT,
        "%s: its %s is %.16s..., but meta.json has %.16s...: the file was changed or belongs to another `prepare`; " HOW_TO_FIX,
        path, what, has, want);
}

/* The keys of a file in its entry. */
typedef struct keys {
    const char *sha256, *sample;
    int bytes; /* per token */
} keys;

static const keys of_tokens = {"sha256", "xxh3_sample", 2}, of_mask = {"mask_sha256", "mask_xxh3_sample", 1};

static ls_status check_content(const json_t *entry, const keys *k, const char *path, const ls_fs_map *m, bool whole)
{
    const char *sha = json_string_value(json_object_get(entry, k->sha256));
    const char *sample = json_string_value(json_object_get(entry, k->sample));
    const json_t *tokens = json_object_get(entry, "tokens");
    const long long n = json_integer_value(tokens);
    char hex[65];
    size_t head = 0;
    if (k->bytes == 2) LS_TRY(data_token_header(path, m->data, m->n, &head));
    if (json_is_integer(tokens) && m->n - head != (size_t)(k->bytes * n))
        return ls_fail(
            LS_E_FORMAT,
            "%s has %zu bytes, but meta.json has %lld tokens of %d byte%s (%lld bytes): the file was changed or is truncated; " HOW_TO_FIX,
            path, m->n, n, k->bytes, k->bytes == 1 ? "" : "s", k->bytes * n);
    if (sha && (whole || m->n <= LS_DATA_SMALL)) {
        sha256_of(m->data, m->n, hex);
        return strcmp(hex, sha) ? differs(path, "SHA-256", hex, sha) : LS_OK;
    }
    if (!sample) return LS_OK;
    data_sample_hex(m->data, m->n, hex);
    return strcmp(hex, sample) ? differs(path, "sampled hash", hex, sample) : LS_OK;
}

static ls_status check_bytes(const json_t *entry, const keys *k, const char *path, bool whole)
{
    ls_fs_map m;
    LS_TRY(ls_fs_map_open(&m, path));
    const ls_status st = check_content(entry, k, path, &m, whole);
    ls_fs_map_close(&m);
    if (st == LS_OK) ls_debug("data", "%s matches meta.json", path);
    return st;
}

static ls_status check_file(const json_t *meta, const char *path, bool whole)
{
    const json_t *entry = find_entry(meta, ls_path_base(path));
    char mask[PATH_MAX];
    if (!entry) {
        ls_info("data", "%s is not in the meta.json beside it and is not compared", path);
        return LS_OK;
    }
    LS_TRY(check_bytes(entry, &of_tokens, path, whole));
    data_mask_path(path, mask);
    if (!json_object_get(entry, of_mask.sha256) || !*mask) return LS_OK;
    if (!ls_fs_exists(mask))
        return ls_fail(LS_E_FORMAT, "%s is missing: without it, the loss would count the sources; " HOW_TO_FIX, mask);
    return check_bytes(entry, &of_mask, mask, whole);
}

/* The shards on disk are those of meta.json. */
static ls_status check_shards(const json_t *meta, const char *pattern, bool whole)
{
    char **path = NULL, name[256];
    size_t n = 0;
    LS_TRY(ls_shards_list(pattern, &path, &n));
    ls_status st = LS_OK;
    ls_sources_name(pattern, name, sizeof name);
    const size_t listed = json_array_size(json_object_get(json_object_get(meta, name), "shards"));
    if (listed && listed != n)
        st = ls_fail(LS_E_FORMAT, "%s: %zu files, but meta.json has %zu shards; " HOW_TO_FIX, pattern, n, listed);
    for (size_t i = 0; i < n && st == LS_OK; i++) st = check_file(meta, path[i], whole);
    ls_fs_list_free(path, n);
    return st;
}

static ls_status check_tokenizer(const json_t *meta, const char *dir)
{
    const char *sha = json_string_value(json_object_get(meta, "tokenizer_sha256"));
    const ls_path file = ls_path_of(dir, "tokenizer.json");
    char hex[65];
    if (!sha || !ls_fs_exists(file.text)) return LS_OK;
    LS_TRY(data_file_sha256(file.text, hex));
    if (!strcmp(hex, sha)) return LS_OK;
    return ls_fail(
        LS_E_FORMAT,
        "%s is not the tokenizer that made the token files (SHA-256 %.16s..., meta.json has %.16s...); " HOW_TO_FIX,
        file.text, hex, sha);
}

static ls_status check_meta(const json_t *meta, const char *file, const char *dir, const char *path, bool whole)
{
    const char *format = json_string_value(json_object_get(meta, "format"));
    const char *dtype = json_string_value(json_object_get(meta, "dtype"));
    if (!format || strncmp(format, FORMAT, strlen(FORMAT))) return LS_OK; /* of another program */
    if (strcmp(format, FORMAT "tokens-1") && strcmp(format, FORMAT "pairs-1"))
        return ls_fail(LS_E_FORMAT, "%s has the format %s, this version reads " FORMAT "tokens-1 and " FORMAT "pairs-1",
                       file, format);
    if (!dtype || strcmp(dtype, "uint16"))
        return ls_fail(LS_E_FORMAT, "%s: the token files have the type %s; training reads uint16", file,
                       dtype ? dtype : "(none)");
    LS_TRY(check_tokenizer(meta, dir));
    return ls_is_shards(path) ? check_shards(meta, path, whole) : check_file(meta, path, whole);
}

/* meta.json beside a token file; NULL: there is none. */
static ls_status load_meta(const char *path, char **dir, json_t **meta)
{
    const char *base = ls_path_base(path);
    *dir = base == path ? ls_strdup(".") : ls_strndup(path, (size_t)(base - path));
    if (!*dir) return ls_nomem(strlen(path), "a path");
    const ls_path file = ls_path_of(*dir, "meta.json");
    return ls_fs_exists(file.text) ? ls_json_load(file.text, meta) : LS_OK;
}

static ls_status check_source(const char *path, bool whole)
{
    char *dir = NULL;
    json_t *meta = NULL;
    ls_status st = load_meta(path, &dir, &meta);
    if (!dir) return st;
    const ls_path file = ls_path_of(dir, "meta.json");
    if (meta) st = check_meta(meta, file.text, dir, path, whole);
    else if (st == LS_OK && whole)
        st = ls_fail(LS_E_FORMAT, "--verify_data: %s has no meta.json with checksums; leave the option out", dir);
    json_decref(meta);
    ls_free(dir);
    return st;
}

ls_status ls_data_check(const char *text, bool whole)
{
    ls_data_sources list = {0};
    LS_TRY(ls_sources_parse(text, &list));
    ls_status st = LS_OK;
    for (size_t i = 0; i < list.n && st == LS_OK; i++) st = check_source(list.item[i].path, whole);
    ls_sources_fini(&list);
    return st;
}

/* ---- the sum ---- */

typedef struct sums {
    ls_str list;
    size_t n;
    bool missing;
} sums;

static void add_sum(sums *s, const json_t *entry, const char *key)
{
    const char *sha = json_string_value(json_object_get(entry, key));
    if (!sha || strlen(sha) != 64) s->missing = true;
    else ls_str_addf(&s->list, "%s\n", sha), s->n++;
}

static void add_file(sums *s, const json_t *meta, const char *path)
{
    const json_t *entry = find_entry(meta, ls_path_base(path));
    add_sum(s, entry, of_tokens.sha256);
    if (json_object_get(entry, of_mask.sha256)) add_sum(s, entry, of_mask.sha256);
}

static ls_status add_source(sums *s, const char *path)
{
    char *dir = NULL, **shard = NULL;
    size_t n = 0;
    json_t *meta = NULL;
    ls_status st = load_meta(path, &dir, &meta);
    const char *format = json_string_value(json_object_get(meta, "format"));
    if (!format || strncmp(format, FORMAT, strlen(FORMAT))) s->missing = true;
    else if (!ls_is_shards(path)) add_file(s, meta, path);
    else if (st == LS_OK) st = ls_shards_list(path, &shard, &n);
    for (size_t i = 0; i < n; i++) add_file(s, meta, shard[i]);
    ls_fs_list_free(shard, n);
    json_decref(meta);
    ls_free(dir);
    return st;
}

ls_status ls_data_sum(const char *text, char hex[65])
{
    ls_data_sources list = {0};
    sums s = {0};
    hex[0] = '\0';
    LS_TRY(ls_sources_parse(text, &list));
    ls_status st = LS_OK;
    for (size_t i = 0; i < list.n && st == LS_OK; i++) st = add_source(&s, list.item[i].path);
    ls_sources_fini(&list);
    if (st == LS_OK && s.list.failed) st = ls_nomem(s.list.cap, "checksums");
    if (st == LS_OK && !s.missing && s.n == 1) snprintf(hex, 65, "%.64s", s.list.data);
    else if (st == LS_OK && !s.missing && s.n) sha256_of(s.list.data, s.list.len, hex);
    ls_str_fini(&s.list);
    return st;
}
