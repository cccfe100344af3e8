/* prepare_meta.c - meta.json: the files of a data folder, their sizes and checksums, and how they were made. */
#include "data/prepare_impl.h"
#include "data/meta.h"
#include "core/fs.h"
#include "core/mem.h"

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
