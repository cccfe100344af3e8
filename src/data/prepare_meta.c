/* prepare_meta.c - meta.json: the files of a data folder, their sizes and checksums, and how they were made. */
#include "data/prepare_impl.h"
#include "data/meta.h"
#include "core/fs.h"
#include "core/mem.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static ls_status put_file(ls_jsonw *w, const data_sink *s, size_t k)
{
    char name[64], hex[17];
    ls_fs_map map;
    data_sink_file_name(s, k, name);
    LS_TRY(ls_fs_map_open(&map, ls_path_of(s->dir, name).text));
    data_sample_hex(map.data, map.n, hex);
    ls_fs_map_close(&map);
    ls_jsonw_members(w, LS_KV("file", (const char *)name), LS_KV("tokens", s->done[k].n_token));
    if (!s->shard_tokens) ls_jsonw_put_int(w, "documents", s->at.n_doc);
    ls_jsonw_members(w, LS_KV("sha256", (const char *)s->done[k].sha256), LS_KV("xxh3_sample", (const char *)hex));
    return LS_OK;
}

static ls_status put_part(ls_jsonw *w, const data_sink *s)
{
    ls_jsonw_put_open(w, s->part, '{');
    if (!s->shard_tokens) {
        LS_TRY(put_file(w, s, 0));
    } else {
        ls_jsonw_members(w, LS_KV("tokens", s->at.n_token), LS_KV("documents", s->at.n_doc));
        ls_jsonw_put_open(w, "shards", '[');
        for (size_t k = 0; k < s->at.n_done; k++) {
            ls_jsonw_open(w, '{');
            LS_TRY(put_file(w, s, k));
            ls_jsonw_close(w);
        }
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    return LS_OK;
}

static void put_filter(ls_jsonw *w, const data_run *r)
{
    const ls_prepare_opts *o = r->o;
    if (!o->min_chars && !o->max_chars && !o->dedup) return;
    ls_jsonw_put_open(w, "dropped", '{');
    ls_jsonw_members(w, LS_KV("min_chars", o->min_chars), LS_KV("max_chars", o->max_chars), LS_KV("dedup", o->dedup),
                     LS_KV("too_short", r->n_short), LS_KV("too_long", r->n_long), LS_KV("duplicates", r->n_duplicate));
    ls_jsonw_close(w);
}

ls_status data_write_meta(const data_run *r, const ls_tokenizer *tok, const ls_prepare_result *res)
{
    ls_str s = {0};
    ls_jsonw w;
    char sha[65];
    LS_TRY(data_file_sha256(ls_path_of(r->stage.dir, "tokenizer.json").text, sha));
    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("format", "lockstep-tokens-1"), LS_KV("dtype", "uint16"),
                     LS_KV("vocab_size", res->n_vocab), LS_KV("eot_id", ls_tokenizer_eot(tok)));
    ls_status st = put_part(&w, &r->train);
    if (st == LS_OK && res->val_token) st = put_part(&w, &r->val);
    if (st == LS_OK) {
        put_filter(&w, r);
        ls_jsonw_members(&w, LS_KV("val_is_tail_of_stream", res->val_is_tail), LS_KV("text_bytes", res->text_bytes),
                         LS_KV("input_files", (int64_t)(r->o->train->n + (r->o->val ? r->o->val->n : 0))),
                         LS_KV("tokenizer_sha256", (const char *)sha), LS_KV("command", r->command),
                         LS_KV("version", LS_VERSION));
        ls_jsonw_close(&w);
        ls_str_addc(&s, '\n');
        st = s.failed ? ls_nomem(s.len, "meta.json") : LS_OK;
    }
    if (st == LS_OK) st = ls_fs_write(ls_path_of(r->stage.dir, "meta.json").text, s.data, s.len);
    ls_str_fini(&s);
    return st;
}

/* ---- a folder that is complete ---- */

/* By the time of the last change of the inode, which also a copy with an old date has. A missing file has no time. */
static bool changed_after(const char *path, const struct stat *meta)
{
    struct stat sb;
    if (stat(path, &sb)) return false;
    return sb.st_ctim.tv_sec > meta->st_mtim.tv_sec ||
           (sb.st_ctim.tv_sec == meta->st_mtim.tv_sec && sb.st_ctim.tv_nsec > meta->st_mtim.tv_nsec);
}

static bool inputs_changed(const ls_inputs *in, const struct stat *meta)
{
    for (size_t i = 0; in && i < in->n; i++)
        if (in->item[i].fd >= 0 || changed_after(in->item[i].path, meta)) return true;
    return false;
}

static bool tokenizer_changed(const char *path, const struct stat *meta)
{
    static const char *const name[] = {"tokenizer.json", "vocab.json", "merges.txt"};
    bool yes = changed_after(path, meta);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        yes = yes || changed_after(ls_path_of(path, name[i]).text, meta);
    return yes;
}

/* The file of an entry of meta.json exists and has the tokens of it. */
static bool is_intact(const char *dir, const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "file"));
    if (!name) return false;
    const ls_path path = ls_path_of(dir, name);
    if (ls_fs_exists(path.text) && ls_data_check(path.text, false) == LS_OK) return true;
    ls_err_clear();
    return false;
}

static bool part_is_intact(const char *dir, const json_t *part)
{
    const json_t *shards = json_object_get(part, "shards");
    if (!shards) return is_intact(dir, part);
    for (size_t i = 0; i < json_array_size(shards); i++)
        if (!is_intact(dir, json_array_get(shards, i))) return false;
    return json_array_size(shards) > 0;
}

static int64_t count(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void read_result(const json_t *meta, ls_prepare_result *r)
{
    const json_t *train = json_object_get(meta, "train"), *val = json_object_get(meta, "val"),
                 *dropped = json_object_get(meta, "dropped"), *shards = json_object_get(train, "shards");
    const char *sha = json_string_value(json_object_get(train, "sha256")),
               *val_sha = json_string_value(json_object_get(val, "sha256"));
    *r = (ls_prepare_result){.train_token = count(train, "tokens"),
                             .val_token = count(val, "tokens"),
                             .train_doc = count(train, "documents"),
                             .val_doc = count(val, "documents"),
                             .text_bytes = count(meta, "text_bytes"),
                             .n_short = count(dropped, "too_short"),
                             .n_long = count(dropped, "too_long"),
                             .n_duplicate = count(dropped, "duplicates"),
                             .n_vocab = (int)count(meta, "vocab_size"),
                             .train_files = shards ? (int)json_array_size(shards) : 1,
                             .resumed = true,
                             .val_is_tail = json_is_true(json_object_get(meta, "val_is_tail_of_stream"))};
    if (sha) snprintf(r->train_sha256, sizeof r->train_sha256, "%s", sha);
    if (val_sha) snprintf(r->val_sha256, sizeof r->val_sha256, "%s", val_sha);
}

static bool same_text(const json_t *meta, const char *key, const char *want)
{
    const char *text = json_string_value(json_object_get(meta, key));
    return text && want && !strcmp(text, want);
}

bool ls_prepare_complete(const ls_prepare_opts *o, const char *tokenizer, ls_prepare_result *result)
{
    const ls_path file = ls_path_of(o->out_dir, "meta.json");
    const int64_t n = (int64_t)(o->train->n + (o->val ? o->val->n : 0));
    struct stat sb;
    json_t *meta = NULL;
    char partial[PATH_MAX];
    size_t len = strlen(o->out_dir);
    while (len > 1 && o->out_dir[len - 1] == '/') len--;
    snprintf(partial, sizeof partial, "%.*s.partial", (int)(len < 4000 ? len : 4000), o->out_dir);
    if (stat(file.text, &sb) || ls_fs_exists(partial) || ls_fs_exists(ls_path_of(o->out_dir, ".partial").text))
        return false;
    if (ls_json_load(file.text, &meta) != LS_OK) ls_err_clear();
    const json_t *val = json_object_get(meta, "val");
    const bool yes = same_text(meta, "format", "lockstep-tokens-1") && same_text(meta, "version", LS_VERSION) &&
                     same_text(meta, "command", o->command) && count(meta, "input_files") == n &&
                     !inputs_changed(o->train, &sb) && !inputs_changed(o->val, &sb) &&
                     !tokenizer_changed(tokenizer, &sb) &&
                     ls_fs_exists(ls_path_of(o->out_dir, "tokenizer.json").text) &&
                     part_is_intact(o->out_dir, json_object_get(meta, "train")) &&
                     (!json_is_object(val) || part_is_intact(o->out_dir, val));
    if (yes) read_result(meta, result);
    json_decref(meta);
    return yes;
}
