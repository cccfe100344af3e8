/* prepare.c - counts words (to train a vocabulary), encodes, splits and writes a corpus. */
#include "data/prepare.h"
#include "data/bpe_train.h"
#include "data/job.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define WORD_BYTES ((size_t)16 << 20) /* of different words in training: keeps the trainer below 1 GiB */
#define MAX_VOCAB  65536

typedef struct sink {
    ls_fs_out out;
    bool open;
    ls_sha256 sha;
    int64_t n_token, n_doc;
} sink;

typedef struct run {
    const ls_prepare_opts *o;
    const char *phase;
    double start;
    int64_t done_before, total; /* bytes of inputs finished in earlier passes of this phase */
    int64_t text_bytes;
    sink train, val;
    bool to_val; /* this pass is the validation inputs */
    ls_words words;
} run;

static void report(run *r, const ls_blocks *at)
{
    if (!r->o->progress) return;
    ls_prepare_progress p = {.phase = r->phase,
                             .done = r->done_before + (at ? ls_blocks_taken(at) : 0),
                             .total = r->total,
                             .text_bytes = r->text_bytes,
                             .n_token = r->train.n_token + r->val.n_token,
                             .seconds = ls_now() - r->start};
    r->o->progress(r->o->progress_ctx, &p);
}

/* Runs the blocks of the inputs through the worker pool. tok NULL: counts words. */
static ls_status pass(run *r, const ls_inputs *inputs, const ls_tokenizer *tok, int64_t limit_docs, int64_t limit_bytes,
                      data_take take)
{
    ls_blocks blocks;
    ls_blocks_init(&blocks, inputs, limit_docs, limit_bytes);
    ls_status st =
        data_pipeline_run(&blocks, &(data_job_rules){tok, r->o->text_key, r->o->bad_utf8}, r->o->threads, take, r);
    r->done_before += ls_blocks_taken(&blocks);
    ls_blocks_fini(&blocks);
    return st;
}

static void begin_phase(run *r, const char *phase, int64_t total)
{
    r->phase = phase;
    r->start = ls_now();
    r->total = total;
    r->done_before = r->text_bytes = 0;
}

/* ---- training the vocabulary ---- */

static ls_status take_words(void *ctx, const data_job *j, const ls_blocks *at)
{
    run *r = ctx;
    LS_TRY(ls_words_add_all(&r->words, &j->words));
    r->text_bytes += j->n_text_byte;
    report(r, at);
    return LS_OK;
}

static ls_status no_text(const ls_inputs *in, const char *option)
{
    if (in->n > 1) return ls_fail(LS_E_FORMAT, "the %zu files of %s contain no text", in->n, option);
    const char *path = in->n ? in->item[0].path : option;
    return ls_fail(LS_E_FORMAT, "%s contains no text", strcmp(path, "-") ? path : "standard input");
}

static ls_status train_vocab(run *r, ls_tokenizer **out)
{
    const ls_prepare_opts *o = r->o;
    begin_phase(r, "counting words", ls_inputs_nbytes(o->train));
    r->words.max_bytes = WORD_BYTES;
    LS_TRY(pass(r, o->train, NULL, o->limit_docs, o->train_bytes, take_words));
    if (!r->words.n) return no_text(o->train, "--input");
    begin_phase(r, "training the vocabulary", r->total);
    report(r, NULL);
    LS_TRY(ls_bpe_train(&r->words, o->train_vocab, o->train_min_count, out));
    ls_words_fini(&r->words);
    return LS_OK;
}

/* ---- encoding ---- */

static ls_status sink_open(sink *s, const char *dir, const char *name)
{
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, dir, "%s", name));
    LS_TRY(ls_fs_out_open(&s->out, path));
    s->open = true;
    ls_sha256_init(&s->sha);
    return LS_OK;
}

static ls_status sink_add(sink *s, const uint16_t *token, size_t n)
{
    if (!n) return LS_OK;
    LS_TRY(ls_fs_out_append(&s->out, token, n * sizeof *token));
    ls_sha256_add(&s->sha, token, n * sizeof *token);
    s->n_token += (int64_t)n;
    return LS_OK;
}

static bool for_validation(int64_t doc, double fraction)
{
    return floor((double)(doc + 1) * fraction) > floor((double)doc * fraction);
}

static ls_status take_tokens(void *ctx, const data_job *j, const ls_blocks *at)
{
    run *r = ctx;
    bool split = !r->to_val && !(r->o->val && r->o->val->n);
    size_t from = 0;
    for (size_t i = 0; i <= j->n_doc; i++) { /* last iteration: tokens of a document that continues in the next block */
        size_t end = i < j->n_doc ? j->doc_end[i] : j->ids.n;
        bool val = r->to_val || (split && for_validation(j->block.first_doc + (int64_t)i, r->o->val_fraction));
        sink *s = val ? &r->val : &r->train;
        LS_TRY(sink_add(s, j->token + from, end - from));
        if (i < j->n_doc) s->n_doc++;
        from = end;
    }
    r->text_bytes += j->n_text_byte;
    report(r, at);
    return LS_OK;
}

/* Moves the last tokens of train to val: reads the temporary file back, then truncates it. */
static ls_status move_tail(run *r, double fraction)
{
    sink *train = &r->train;
    const size_t n_val = (size_t)floor((double)train->n_token * fraction), keep = (size_t)train->n_token - n_val;
    if (!n_val) return LS_OK;
    if (!train->out.tmp)
        return ls_fail(LS_E_IO, "cannot take validation data from the end of %s: it is not a regular file",
                       train->out.path);
    ls_fs_map written;
    LS_TRY(ls_fs_map_open(&written, train->out.tmp));
    const uint16_t *token = written.data;
    ls_sha256_init(&train->sha);
    ls_sha256_add(&train->sha, token, keep * sizeof *token);
    ls_status st = sink_add(&r->val, token + keep, n_val);
    ls_fs_map_close(&written);
    LS_TRY(st);
    if (ftruncate(train->out.fd, (off_t)(keep * sizeof *token)))
        return ls_fail(LS_E_IO, "cannot truncate %s: %s", train->out.tmp, strerror(errno));
    train->n_token = (int64_t)keep;
    return LS_OK;
}

static ls_status encode_all(run *r, const ls_tokenizer *tok, ls_prepare_result *res)
{
    const ls_prepare_opts *o = r->o;
    bool val_inputs = o->val && o->val->n;
    const int64_t total = ls_inputs_nbytes(o->train), more = val_inputs ? ls_inputs_nbytes(o->val) : 0;
    begin_phase(r, "encoding", total < 0 || more < 0 ? -1 : total + more);
    LS_TRY(sink_open(&r->train, o->out_dir, "train.bin"));
    if (val_inputs || o->val_fraction > 0) LS_TRY(sink_open(&r->val, o->out_dir, "val.bin"));
    LS_TRY(pass(r, o->train, tok, o->limit_docs, 0, take_tokens));
    if (r->train.n_token + r->val.n_token <= r->train.n_doc + r->val.n_doc) return no_text(o->train, "--input");
    if (val_inputs) {
        r->to_val = true;
        LS_TRY(pass(r, o->val, tok, o->limit_val_docs, 0, take_tokens));
        if (r->val.n_token <= r->val.n_doc) return no_text(o->val, "--val-input");
    } else if (r->val.open && !r->val.n_doc) {
        LS_TRY(move_tail(r, o->val_fraction));
        res->val_is_tail = r->val.n_token > 0;
    }
    if (!r->train.n_token)
        return ls_fail(LS_E_CONFIG, "--val-fraction %g leaves no document for training", o->val_fraction);
    return LS_OK;
}

/* ---- the files ---- */

static void write_part(ls_jsonw *w, const char *name, int64_t n_token, int64_t n_doc, const char *sha)
{
    ls_jsonw_put_open(w, name, '{');
    ls_jsonw_members(w, LS_KV("file", strcmp(name, "train") ? "val.bin" : "train.bin"), LS_KV("tokens", n_token),
                     LS_KV("documents", n_doc), LS_KV("sha256", sha));
    ls_jsonw_close(w);
}

static ls_status write_meta(const ls_prepare_opts *o, const ls_tokenizer *tok, const ls_prepare_result *res)
{
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("format", "lockstep-tokens-1"), LS_KV("dtype", "uint16"),
                     LS_KV("vocab_size", res->n_vocab), LS_KV("eot_id", ls_tokenizer_eot(tok)));
    write_part(&w, "train", res->train_token, res->train_doc, res->train_sha256);
    if (res->val_token) write_part(&w, "val", res->val_token, res->val_doc, res->val_sha256);
    ls_jsonw_members(&w, LS_KV("val_is_tail_of_stream", res->val_is_tail), LS_KV("text_bytes", res->text_bytes),
                     LS_KV("command", o->command), LS_KV("version", LS_VERSION));
    ls_jsonw_close(&w);
    ls_str_addc(&s, '\n');
    char path[PATH_MAX];
    ls_status st = s.failed ? ls_nomem(s.len, "meta.json") : ls_path_in(path, o->out_dir, "meta.json");
    if (st == LS_OK) st = ls_fs_write(path, s.data, s.len);
    ls_str_fini(&s);
    return st;
}

/* Removes a file of an earlier run, which would be mistaken for new data. */
static ls_status remove_old(const char *dir, const char *name)
{
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, dir, "%s", name));
    if (unlink(path) && errno != ENOENT) return ls_fail(LS_E_IO, "cannot remove %s: %s", path, strerror(errno));
    return LS_OK;
}

static ls_status finish(run *r, const ls_tokenizer *tok, ls_prepare_result *res)
{
    const ls_prepare_opts *o = r->o;
    res->train_token = r->train.n_token;
    res->val_token = r->val.n_token;
    res->train_doc = r->train.n_doc;
    res->val_doc = r->val.n_doc;
    res->text_bytes = r->text_bytes;
    res->n_vocab = ls_tokenizer_n_vocab(tok);
    res->n_merge = ls_tokenizer_n_merge(tok);
    ls_sha256_hex(&r->train.sha, res->train_sha256);
    if (res->val_token) ls_sha256_hex(&r->val.sha, res->val_sha256);
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, o->out_dir, "tokenizer.json"));
    LS_TRY(ls_tokenizer_save(tok, path));
    LS_TRY(remove_old(o->out_dir, "train.mask")); /* of pairs */
    LS_TRY(remove_old(o->out_dir, "val.mask"));
    if (res->val_token) {
        r->val.open = false;
        LS_TRY(ls_fs_out_commit(&r->val.out));
    } else {
        LS_TRY(remove_old(o->out_dir, "val.bin"));
    }
    r->train.open = false;
    LS_TRY(ls_fs_out_commit(&r->train.out));
    return write_meta(o, tok, res);
}

static ls_status check_tokenizer(const ls_tokenizer *tok)
{
    if (ls_tokenizer_eot(tok) < 0)
        return ls_fail(LS_E_CONFIG, "the vocabulary has no <|endoftext|>; it is needed after each document");
    if (ls_tokenizer_n_vocab(tok) > MAX_VOCAB)
        return ls_fail(LS_E_CONFIG, "a vocabulary of %d tokens does not fit the 16-bit token files (at most %d)",
                       ls_tokenizer_n_vocab(tok), MAX_VOCAB);
    return LS_OK;
}

ls_status ls_prepare(const ls_prepare_opts *o, ls_prepare_result *result)
{
    run r = {.o = o};
    ls_prepare_result res = {0};
    ls_tokenizer *trained = NULL;
    bool new_dir = !ls_fs_exists(o->out_dir);
    double start = ls_now();
    ls_status st = LS_OK;
    if (!o->tok) LS_TRY_GOTO(st, done, train_vocab(&r, &trained));
    res.train_seconds = ls_now() - start;
    const ls_tokenizer *tok = o->tok ? o->tok : trained;
    LS_TRY_GOTO(st, done, check_tokenizer(tok));
    LS_TRY_GOTO(st, done, encode_all(&r, tok, &res));
    res.encode_seconds = ls_now() - r.start;
    LS_TRY_GOTO(st, done, finish(&r, tok, &res));
    res.seconds = ls_now() - start;
    ls_info("data", "%s: %lld training tokens and %lld validation tokens in %.1f s", o->out_dir,
            (long long)res.train_token, (long long)res.val_token, res.seconds);
    *result = res;
done:
    if (r.train.open) ls_fs_out_abort(&r.train.out);
    if (r.val.open) ls_fs_out_abort(&r.val.out);
    if (st != LS_OK && new_dir) (void)rmdir(o->out_dir); /* only if nothing is in it */
    ls_words_fini(&r.words);
    ls_tokenizer_destroy(&trained);
    return st;
}
