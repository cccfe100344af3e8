/* prepare_journal.c - what a killed `prepare` needs to continue. */
#include "data/prepare_impl.h"
#include "data/meta.h"
#include "data/spill.h"
#include "core/fs.h"
#include "core/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "journal.json"
#define FORMAT    "lockstep-prepare-1"

/* ---- settings ---- */

static void list_inputs(ls_str *s, const char *name, const ls_inputs *in)
{
    for (size_t i = 0; in && i < in->n; i++) {
        struct stat sb;
        const ls_corpus_file *f = &in->item[i];
        const bool found = f->fd < 0 && !stat(f->path, &sb);
        ls_str_addf(s, "%s %s: %lld bytes, format %d, changed %lld.%09ld\n", name, f->path, (long long)f->nbytes,
                    (int)f->format, found ? (long long)sb.st_mtim.tv_sec : 0LL, found ? sb.st_mtim.tv_nsec : 0L);
    }
}

static ls_status collect_settings(data_run *r)
{
    const ls_prepare_opts *o = r->o;
    ls_str *s = &r->settings;
    char hex[65] = "";
    ls_str_addf(s, "version: %s\n", LS_VERSION);
    list_inputs(s, "input", o->train);
    list_inputs(s, "val-input", o->val);
    if (o->tok) { /* by its bytes: a file of the same name may have changed */
        const ls_path path = ls_path_of(r->stage.dir, "tokenizer.json");
        LS_TRY(ls_tokenizer_save(o->tok, path.text));
        LS_TRY(data_file_sha256(path.text, hex));
        ls_str_addf(s, "tokenizer: %s\n", hex);
    } else {
        ls_str_addf(s, "tokenizer: trained, vocab-size %d, min-frequency %lld, bytes %lld\n", o->train_vocab,
                    (long long)o->train_min_count, (long long)o->train_bytes);
    }
    ls_str_addf(s, "text-key: %s\ninvalid-utf8: %d\nval-fraction: %.17g\n", o->text_key, (int)o->bad_utf8,
                o->val_fraction);
    ls_str_addf(s, "limit-docs: %lld\nlimit-val-docs: %lld\nmin-chars: %lld\nmax-chars: %lld\ndedup: %d\n",
                (long long)o->limit_docs, (long long)o->limit_val_docs, (long long)o->min_chars,
                (long long)o->max_chars, (int)o->dedup);
    ls_str_addf(s, "shard-tokens: %lld\n", (long long)o->shard_tokens);
    return s->failed ? ls_nomem(s->cap, "the journal") : LS_OK;
}

/* The first line in which the two differ. */
static ls_status other_settings(const data_run *r, const char *then)
{
    const char *now = r->settings.data;
    size_t at = 0;
    for (size_t i = 0; then[i] && then[i] == now[i]; i++)
        if (then[i] == '\n') at = i + 1;
    return ls_fail(
        LS_E_CONFIG,
        "--resume: %s was begun with '%.*s', this command has '%.*s'; use the same command, or leave out --resume to start from the beginning",
        r->stage.dir, (int)strcspn(then + at, "\n"), then + at, (int)strcspn(now + at, "\n"), now + at);
}

/* ---- reading ---- */

static ls_status read_entry(data_run *r, const char *path)
{
    json_t *j = NULL;
    LS_TRY(ls_json_load(path, &j));
    const char *format = json_string_value(json_object_get(j, "format"));
    const char *then = json_string_value(json_object_get(j, "settings"));
    const char *command = json_string_value(json_object_get(j, "command"));
    ls_status st = LS_OK;
    if (!format || strcmp(format, FORMAT) || !then)
        st = ls_fail(LS_E_FORMAT, "%s is not a journal of this version; leave out --resume to start from the beginning",
                     path);
    else if (strcmp(then, r->settings.data)) st = other_settings(r, then);
    if (st == LS_OK && command) {
        ls_free(r->command);
        r->command = ls_strdup(command);
        if (!r->command) st = ls_nomem(strlen(command), "the journal");
    }
    if (st != LS_OK) {
        json_decref(j);
        return st;
    }
    r->resume = j;
    r->has_entry = true;
    return LS_OK;
}

ls_status data_journal_begin(data_run *r)
{
    const ls_path path = ls_path_of(r->stage.dir, FILE_NAME);
    if (r->o->command && !(r->command = ls_strdup(r->o->command))) return ls_nomem(256, "the command line");
    if (r->o->resume && !ls_fs_exists(path.text))
        LS_TRY(data_stage_clear(&r->stage)); /* nothing that can be continued */
    LS_TRY(collect_settings(r));
    return r->o->resume && ls_fs_exists(path.text) ? read_entry(r, path.text) : LS_OK;
}

static int64_t number(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* A plain-text document that is longer than its part before the entry: the mark at its start. */
static ls_status restore_doc(data_run *r, const json_t *o)
{
    data_plain_doc *d = &r->doc;
    d->open = json_is_true(json_object_get(o, "open"));
    if (!d->open) return LS_OK;
    d->journaled = true;
    d->to_val = json_is_true(json_object_get(o, "to_val"));
    ls_xxh_init(&d->hash); /* filled when the text before the place is read again */
    return data_sink_mark_at(d->to_val ? &r->val : &r->train, number(o, "start"), &d->start);
}

ls_status data_journal_restore(data_run *r, ls_corpus_pos *pos)
{
    const json_t *j = r->resume, *p = json_object_get(j, "position");
    *pos = (ls_corpus_pos){.at = (size_t)number(p, "file"),
                           .offset = number(p, "offset"),
                           .line = number(p, "line"),
                           .n_doc = number(p, "documents"),
                           .text_bytes = number(p, "read_bytes"),
                           .taken_before = number(p, "file_bytes"),
                           .in_doc = json_is_true(json_object_get(p, "in_document"))};
    r->to_val = json_is_true(json_object_get(j, "validation_inputs"));
    r->complete = json_is_true(json_object_get(j, "complete"));
    r->tail = json_is_true(json_object_get(j, "tail"));
    r->done_before = number(j, "done_before");
    r->text_bytes = r->text_start = number(j, "text_bytes");
    r->n_kept = number(j, "kept");
    r->n_short = number(j, "too_short");
    r->n_long = number(j, "too_long");
    r->n_duplicate = number(j, "duplicates");
    return restore_doc(r, json_object_get(j, "document"));
}

/* ---- writing ---- */

static void write_position(ls_jsonw *w, const ls_corpus_pos *p)
{
    ls_jsonw_put_open(w, "position", '{');
    ls_jsonw_members(w, LS_KV("file", (int64_t)p->at), LS_KV("offset", p->offset), LS_KV("line", p->line),
                     LS_KV("documents", p->n_doc), LS_KV("read_bytes", p->text_bytes),
                     LS_KV("file_bytes", p->taken_before), LS_KV("in_document", p->in_doc));
    ls_jsonw_close(w);
}

ls_status data_journal_write(data_run *r, const ls_corpus_pos *pos, const data_mark *train, const data_mark *val)
{
    ls_str s = {0};
    ls_jsonw w;
    if (r->o->dedup) LS_TRY(data_seen_flush(&r->seen));
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("format", FORMAT), LS_KV("command", r->command), LS_KV("settings", r->settings.data),
                     LS_KV("validation_inputs", r->to_val), LS_KV("complete", r->complete), LS_KV("tail", r->tail),
                     LS_KV("done_before", r->done_before), LS_KV("text_bytes", r->text_bytes), LS_KV("kept", r->n_kept),
                     LS_KV("too_short", r->n_short), LS_KV("too_long", r->n_long), LS_KV("duplicates", r->n_duplicate),
                     LS_KV("hashes", (int64_t)r->seen.n), LS_KV("hash_sum", (int64_t)r->seen.sum));
    write_position(&w, pos);
    ls_jsonw_put_open(&w, "document", '{');
    ls_jsonw_members(&w, LS_KV("open", r->doc.open), LS_KV("to_val", r->doc.to_val),
                     LS_KV("start", r->doc.start.n_token));
    ls_jsonw_close(&w);
    data_sink_save(&r->train, train, &w);
    if (r->val.open) data_sink_save(&r->val, val, &w);
    ls_jsonw_close(&w);
    ls_status st = s.failed ? ls_nomem(s.cap, "the journal") : LS_OK;
    if (st == LS_OK) st = ls_fs_write(ls_path_of(r->stage.dir, FILE_NAME).text, s.data, s.len);
    ls_str_fini(&s);
    if (st == LS_OK) r->has_entry = true;
    return st;
}

ls_status data_journal_end(data_run *r)
{
    static const char *const name[] = {FILE_NAME, FILE_NAME ".tmp", "hashes.bin", DATA_SPILL_NAME};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        LS_TRY(ls_fs_remove_tree(ls_path_of(r->stage.dir, name[i]).text));
    r->has_entry = false;
    return LS_OK;
}
