/* prepare.c - counts words (to train a vocabulary), encodes, splits and writes a corpus. */
#include "data/prepare.h"
#include "data/bpe_train.h"
#include "data/prepare_impl.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/log.h"
#include "core/mem.h"

#include <math.h>
#include <string.h>

#define WORD_BYTES ((size_t)16 << 20) /* of different words in training: keeps the trainer below 1 GiB */
#define MAX_VOCAB  65536

static void report(data_run *r, int64_t taken)
{
    if (!r->o->progress) return;
    ls_prepare_progress p = {.phase = r->phase,
                             .done = r->done_before + taken,
                             .done_start = r->done_start,
                             .total = r->total,
                             .text_bytes = r->text_bytes - r->text_start,
                             .n_token = r->train.at.n_token + r->val.at.n_token,
                             .seconds = ls_now() - r->start};
    r->o->progress(r->o->progress_ctx, &p);
}

static ls_status journal_now(data_run *r, const ls_corpus_pos *pos)
{
    data_mark train, val = {0};
    LS_TRY(data_sink_mark(&r->train, &train));
    if (r->val.open) LS_TRY(data_sink_mark(&r->val, &val));
    r->last_entry = ls_now();
    r->doc.journaled = r->doc.open;
    return data_journal_write(r, pos, &train, &val);
}

/* The text of an unfinished plain document before the place where a resumed run continues. */
static void see_again(void *ctx, const unsigned char *text, size_t n)
{
    data_run *r = ctx;
    if (!r->doc.open) return;
    r->doc.chars += data_count_chars(text, n);
    ls_xxh_add(&r->doc.hash, text, n);
}

/* Runs the blocks of the inputs through the worker pool, from `pos` on (NULL: from the beginning). rules->tok NULL: counts words. */
static ls_status pass(data_run *r, const ls_inputs *inputs, const ls_corpus_pos *pos, const data_job_rules *rules,
                      int64_t limit_docs, int64_t limit_bytes, data_take take)
{
    ls_blocks blocks;
    ls_blocks_init(&blocks, inputs, limit_docs, limit_bytes);
    ls_status st = pos ? ls_blocks_seek(&blocks, pos, see_again, r) : LS_OK;
    if (pos) r->done_start = r->done_before + ls_blocks_taken(&blocks);
    const data_pipeline how = {.threads = r->o->threads,
                               .files = r->o->journal_seconds < 0 ? 1 : r->o->files, /* pipes: one after the other */
                               .dir = r->stage.dir,
                               .take = take,
                               .ctx = r};
    if (st == LS_OK) st = data_pipeline_run(&how, &blocks, rules);
    if (st == LS_E_STOPPED && rules->tok && r->o->journal_seconds >= 0 && r->pos.text_bytes)
        LS_TRY(journal_now(r, &r->pos));
    r->done_before += ls_blocks_taken(&blocks);
    ls_blocks_fini(&blocks);
    return st;
}

static void begin_phase(data_run *r, const char *phase, int64_t total)
{
    r->phase = phase;
    r->start = ls_now();
    r->total = total;
    r->done_before = r->done_start = r->text_bytes = r->text_start = 0;
}

/* ---- training the vocabulary ---- */

static ls_status take_words(void *ctx, const data_job *j, int64_t taken)
{
    data_run *r = ctx;
    LS_TRY(ls_words_add_all(&r->words, &j->words));
    r->text_bytes += j->n_text_byte;
    report(r, taken);
    return LS_OK;
}

static ls_status no_text(const ls_inputs *in, const char *option)
{
    if (in->n > 1) return ls_fail(LS_E_FORMAT, "the %zu files of %s contain no text", in->n, option);
    const char *path = in->n ? in->item[0].path : option;
    return ls_fail(LS_E_FORMAT, "%s contains no text", strcmp(path, "-") ? path : "standard input");
}

/* All text counts, also that of documents that are dropped later. The result is kept for a resumed run. */
static ls_status train_vocab(data_run *r, ls_tokenizer **out)
{
    const ls_prepare_opts *o = r->o;
    const ls_path file = ls_path_of(r->stage.dir, "tokenizer.json");
    if (r->resume) return ls_tokenizer_load(file.text, out);
    begin_phase(r, "counting words", ls_inputs_nbytes(o->train));
    r->words.max_bytes = WORD_BYTES;
    LS_TRY(pass(r, o->train, NULL, &(data_job_rules){NULL, o->text_key, o->bad_utf8, 0, 0, false}, o->limit_docs,
                o->train_bytes, take_words));
    if (!r->words.n) return no_text(o->train, "--input");
    begin_phase(r, "training the vocabulary", r->total);
    report(r, 0);
    LS_TRY(ls_bpe_train(&r->words, o->train_vocab, o->train_min_count, out));
    ls_words_fini(&r->words);
    return ls_tokenizer_save(*out, file.text);
}

/* ---- encoding ---- */

static bool for_validation(int64_t doc, double fraction)
{
    return floor((double)(doc + 1) * fraction) > floor((double)doc * fraction);
}

/* Where the next document goes that is kept. */
static data_sink *next_sink(data_run *r)
{
    const bool split = !r->to_val && !(r->o->val && r->o->val->n);
    return r->to_val || (split && for_validation(r->n_kept, r->o->val_fraction)) ? &r->val : &r->train;
}

/* Whether a complete document is kept; counts those that are not. */
static ls_status judge(data_run *r, int64_t chars, uint64_t hash, bool *keep)
{
    *keep = data_length_ok(&r->rules, chars);
    if (!*keep) {
        if (chars < r->rules.min_chars) r->n_short++;
        else r->n_long++;
        return LS_OK;
    }
    if (!r->rules.dedup) return LS_OK;
    LS_TRY(data_seen_add(&r->seen, hash, keep));
    if (!*keep) r->n_duplicate++;
    return LS_OK;
}

static void count_doc(data_run *r, data_sink *s)
{
    s->at.n_doc++;
    r->n_kept++;
}

static ls_status take_lines(data_run *r, const data_job *j)
{
    size_t from = 0;
    for (size_t i = 0; i < j->n_doc; i++) {
        const data_doc *d = &j->doc[i];
        bool keep;
        LS_TRY(judge(r, d->chars, d->hash, &keep));
        if (keep) {
            data_sink *s = next_sink(r);
            LS_TRY(data_sink_add(s, j->token + from, d->end - from));
            count_doc(r, s);
        }
        from = d->end;
    }
    return LS_OK;
}

/* Drops what was written of a document. If the journal has an entry inside it, there is a new one before the files are cut: otherwise a
 * run that is killed then could not continue. */
static ls_status drop_doc(data_run *r, const data_job *j, data_sink *s)
{
    const data_plain_doc *d = &r->doc;
    if (d->journaled) {
        data_mark train, val = {0};
        LS_TRY(data_sink_mark(&r->train, &train));
        if (r->val.open) LS_TRY(data_sink_mark(&r->val, &val));
        *(d->to_val ? &val : &train) = d->start;
        LS_TRY(data_journal_write(r, &j->block.after, &train, &val));
    }
    return data_sink_rewind(s, &d->start);
}

/* A block of one document. Whether it is kept is known at its end: then what was written of it is dropped again. */
static ls_status take_plain(data_run *r, const data_job *j)
{
    const bool judged = data_drops_docs(&r->rules);
    data_plain_doc *d = &r->doc;
    bool keep = true;
    if (!d->open) {
        *d = (data_plain_doc){.open = true};
        data_sink *s = next_sink(r);
        d->to_val = s == &r->val;
        ls_xxh_init(&d->hash);
        if (judged) LS_TRY(data_sink_mark(s, &d->start));
    }
    data_sink *s = d->to_val ? &r->val : &r->train;
    if (judged) see_again(r, j->block.text, j->block.n);
    LS_TRY(data_sink_add(s, j->token, j->n_token));
    if (!j->block.ends_doc) return LS_OK;
    d->open = false;
    if (judged) LS_TRY(judge(r, d->chars, ls_xxh_value(&d->hash), &keep));
    if (!keep) return drop_doc(r, j, s);
    count_doc(r, s);
    return LS_OK;
}

static ls_status take_tokens(void *ctx, const data_job *j, int64_t taken)
{
    data_run *r = ctx;
    r->text_bytes += j->n_text_byte;
    LS_TRY(j->block.in->format == LS_TEXT_PLAIN ? take_plain(r, j) : take_lines(r, j));
    r->pos = j->block.after;
    report(r, taken);
    if (r->o->journal_seconds < 0 || ls_now() - r->last_entry < r->o->journal_seconds) return LS_OK;
    return journal_now(r, &j->block.after);
}

/* Moves the last n tokens of one part to the other. The journal has the result before the file is cut: a run that is killed meanwhile
 * cuts it when it is resumed. */
static ls_status move_tail(data_run *r, data_sink *from, data_sink *to, int64_t n)
{
    data_mark cut, end;
    LS_TRY(data_sink_mark_at(from, from->at.n_token - n, &cut));
    LS_TRY(data_sink_copy_tail(from, cut.n_token, to));
    LS_TRY(data_sink_mark(to, &end));
    const data_mark *train = from == &r->train ? &cut : &end, *val = from == &r->train ? &end : &cut;
    r->complete = r->tail = true;
    if (r->has_entry) LS_TRY(data_journal_write(r, &(ls_corpus_pos){.line = 1}, train, val));
    return data_sink_rewind(from, &cut);
}

/* Documents of very different sizes, or few of them: if those of validation have less than half or more than twice the fraction of the
 * tokens, the split is made at a token. */
static ls_status balance(data_run *r, double fraction)
{
    const int64_t have = r->val.at.n_token, want = (int64_t)floor((double)(r->train.at.n_token + have) * fraction);
    if (!want || (r->val.at.n_doc && 2 * have >= want && have <= 2 * want)) return LS_OK;
    return have < want ? move_tail(r, &r->train, &r->val, want - have) : move_tail(r, &r->val, &r->train, have - want);
}

/* What is left when documents were dropped. */
static ls_status check_left(const data_run *r, const data_sink *a, const data_sink *b, const ls_inputs *in,
                            const char *option)
{
    const int64_t dropped = r->n_short + r->n_long + r->n_duplicate;
    const int64_t n_token = a->at.n_token + (b ? b->at.n_token : 0), n_doc = a->at.n_doc + (b ? b->at.n_doc : 0);
    if (n_token > n_doc) return LS_OK;
    if (!dropped) return no_text(in, option);
    return ls_fail(
        LS_E_FORMAT,
        "no document of %s is left: %lld are shorter than --min_chars, %lld longer than --max_chars, %lld duplicates",
        option, (long long)r->n_short, (long long)r->n_long, (long long)r->n_duplicate);
}

static ls_status open_files(data_run *r, ls_corpus_pos *pos)
{
    const ls_prepare_opts *o = r->o;
    const bool val_inputs = o->val && o->val->n;
    const json_t *j = r->resume;
    LS_TRY(data_sink_open(&r->train, r->stage.dir, "train", o->shard_tokens, json_object_get(j, "train")));
    if (val_inputs || o->val_fraction > 0)
        LS_TRY(data_sink_open(&r->val, r->stage.dir, "val", 0, json_object_get(j, "val")));
    if (o->dedup)
        LS_TRY(data_seen_open(&r->seen, ls_path_of(r->stage.dir, "hashes.bin").text,
                              (size_t)json_integer_value(json_object_get(j, "hashes")),
                              (uint64_t)json_integer_value(json_object_get(j, "hash_sum"))));
    return j ? data_journal_restore(r, pos) : LS_OK;
}

/* The training inputs, then the validation inputs or the split. */
static ls_status encode_inputs(data_run *r, const ls_corpus_pos *from)
{
    const ls_prepare_opts *o = r->o;
    const bool val_inputs = o->val && o->val->n;
    if (!r->to_val) {
        LS_TRY(pass(r, o->train, from, &r->rules, o->limit_docs, 0, take_tokens));
        LS_TRY(check_left(r, &r->train, &r->val, o->train, "--input"));
        from = NULL;
    }
    if (val_inputs) {
        r->to_val = true;
        LS_TRY(pass(r, o->val, from, &r->rules, o->limit_val_docs, 0, take_tokens));
        LS_TRY(check_left(r, &r->val, NULL, o->val, "--val_input"));
    } else if (r->val.open) {
        LS_TRY(balance(r, o->val_fraction));
    }
    return LS_OK;
}

static ls_status encode_all(data_run *r, const ls_tokenizer *tok, ls_prepare_result *res)
{
    const ls_prepare_opts *o = r->o;
    const int64_t total = ls_inputs_nbytes(o->train), more = o->val && o->val->n ? ls_inputs_nbytes(o->val) : 0;
    ls_corpus_pos pos;
    begin_phase(r, "encoding", total < 0 || more < 0 ? -1 : total + more);
    r->last_entry = ls_now();
    r->rules = (data_job_rules){tok, o->text_key, o->bad_utf8, o->min_chars, o->max_chars, o->dedup};
    LS_TRY(open_files(r, &pos));
    if (!r->complete) LS_TRY(encode_inputs(r, r->resume ? &pos : NULL));
    res->val_is_tail = r->tail;
    if (!r->train.at.n_token)
        return ls_fail(LS_E_CONFIG, "--val_fraction %g leaves no document for training", o->val_fraction);
    return LS_OK;
}

/* ---- the files ---- */

static ls_status finish(data_run *r, const ls_tokenizer *tok, ls_prepare_result *res)
{
    res->train_token = r->train.at.n_token;
    res->val_token = r->val.at.n_token;
    res->train_doc = r->train.at.n_doc;
    res->val_doc = r->val.at.n_doc;
    res->text_bytes = r->text_bytes;
    res->n_short = r->n_short;
    res->n_long = r->n_long;
    res->n_duplicate = r->n_duplicate;
    res->resumed = r->resume != NULL;
    res->n_vocab = ls_tokenizer_n_vocab(tok);
    res->n_merge = ls_tokenizer_n_merge(tok);
    LS_TRY(data_sink_finish(&r->train));
    const bool val = r->val.open;
    if (val) LS_TRY(data_sink_finish(&r->val));
    if (r->o->llmc) LS_TRY(data_sink_add_headers(&r->train));
    if (r->o->llmc && val) LS_TRY(data_sink_add_headers(&r->val));
    res->train_files = (int)r->train.at.n_done;
    if (!r->o->shard_tokens) memcpy(res->train_sha256, r->train.done[0].sha256, sizeof res->train_sha256);
    if (res->val_token) memcpy(res->val_sha256, r->val.done[0].sha256, sizeof res->val_sha256);
    else LS_TRY(ls_fs_remove_tree(ls_path_of(r->stage.dir, "val.bin").text));
    LS_TRY(ls_tokenizer_save(tok, ls_path_of(r->stage.dir, "tokenizer.json").text));
    LS_TRY(data_write_meta(r, tok, res));
    LS_TRY(data_journal_end(r));
    r->leave = true; /* complete, whatever happens next */
    LS_TRY(data_stage_commit(&r->stage));
    r->leave = false;
    return LS_OK;
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

static ls_status run(data_run *r, ls_prepare_result *res)
{
    const ls_prepare_opts *o = r->o;
    ls_tokenizer *trained = NULL;
    const double start = ls_now();
    ls_status st = LS_OK;
    if (o->tok) LS_TRY(check_tokenizer(o->tok));
    LS_TRY(data_stage_open(&r->stage, o->out_dir, o->resume));
    r->leave = true; /* it may be the work of another command */
    LS_TRY(data_journal_begin(r));
    r->leave = false;
    if (!o->tok) LS_TRY_GOTO(st, done, train_vocab(r, &trained));
    res->train_seconds = ls_now() - start;
    const ls_tokenizer *tok = o->tok ? o->tok : trained;
    LS_TRY_GOTO(st, done, check_tokenizer(tok));
    LS_TRY_GOTO(st, done, encode_all(r, tok, res));
    res->encode_seconds = ls_now() - r->start;
    LS_TRY_GOTO(st, done, finish(r, tok, res));
    res->seconds = ls_now() - start;
    ls_info("data", "%s: %lld training tokens and %lld validation tokens in %.1f s", o->out_dir,
            (long long)res->train_token, (long long)res->val_token, res->seconds);
done:
    ls_tokenizer_destroy(&trained);
    return st;
}

/* Unfinished work is kept where the same command can continue it. */
static ls_status end(data_run *r, ls_status st)
{
    const bool again = r->has_entry && !r->leave && (st == LS_E_STOPPED || st == LS_E_IO || st == LS_E_NOMEM);
    ls_err_kept why;
    if (again) {
        ls_err_keep(&why);
        st = ls_fail(st, "%s; the work so far is in %s: the same command with --resume continues it",
                     st == LS_E_STOPPED ? "stopped" : why.words, r->stage.dir);
    }
    data_stage_close(&r->stage, again || (r->leave && st != LS_OK));
    return st;
}

ls_status ls_prepare(const ls_prepare_opts *o, ls_prepare_result *result)
{
    data_run *r = ls_alloc(sizeof *r);
    if (!r) return ls_nomem(sizeof *r, "prepare");
    ls_prepare_result res = {0};
    r->o = o;
    r->stage.lock = r->train.fd = r->val.fd = r->seen.fd = -1;
    const ls_status st = end(r, run(r, &res));
    if (st == LS_OK) *result = res;
    data_sink_close(&r->train);
    data_sink_close(&r->val);
    data_seen_close(&r->seen);
    ls_words_fini(&r->words);
    ls_str_fini(&r->settings);
    ls_free(r->command);
    json_decref(r->resume);
    ls_free(r);
    return st;
}
