/* job.c - checks the text of a block, extracts it from JSON, and encodes or counts it. */
#include "data/job.h"
#include "data/jsonl.h"
#include "data/pretokenize.h"
#include "core/hash.h"
#include "core/mem.h"

#include <string.h>

#define PART_BYTES (LS_BLOCK_BYTES / 4) /* encoded at a time: bounds what the longest piece needs */
#define KEEP_BYTES (4 * LS_BLOCK_BYTES) /* larger buffers are freed after a block */

void data_job_fini(data_job *j)
{
    ls_free(j->block.text);
    ls_words_fini(&j->words);
    ls_ids_fini(&j->ids);
    ls_free(j->token);
    ls_free(j->doc);
    ls_str_fini(&j->text);
    ls_str_fini(&j->fixed);
    *j = (data_job){0};
}

/* After an unusually long line: memory follows the largest of a few blocks, not the largest ever seen by each. */
static void give_back(data_job *j)
{
    if (j->ids.cap * sizeof *j->ids.id > 2 * KEEP_BYTES) ls_ids_fini(&j->ids);
    if (j->cap_token * sizeof *j->token > KEEP_BYTES) {
        ls_free(j->token);
        j->token = NULL;
        j->cap_token = 0;
    }
    if (j->text.cap > KEEP_BYTES) ls_str_fini(&j->text);
    if (j->fixed.cap > KEEP_BYTES) ls_str_fini(&j->fixed);
}

/* Encodes a long document in parts, split where a piece always ends, else (no such position) between characters. */
static ls_status take_text(data_job *j, const data_job_rules *rules, ls_encoder *e, const unsigned char *p, size_t n)
{
    j->n_text_byte += (int64_t)n;
    while (n) {
        size_t k = n;
        if (k > PART_BYTES) {
            k = data_split_cut(p, PART_BYTES);
            if (!k) k = data_split_char_end(p, PART_BYTES);
        }
        if (rules->tok) LS_TRY(ls_encode(e, p, k, &j->ids));
        else LS_TRY(ls_words_add_text(&j->words, p, k));
        p += k;
        n -= k;
    }
    return LS_OK;
}

static ls_status push_doc(data_job *j, data_doc doc)
{
    LS_TRY(ls_reserve(&j->doc, &j->cap_doc, j->n_doc + 1, sizeof *j->doc, "the documents of a block"));
    doc.end = j->ids.n;
    j->doc[j->n_doc++] = doc;
    return LS_OK;
}

static ls_status end_doc(data_job *j, const data_job_rules *rules, data_doc doc)
{
    if (rules->tok) LS_TRY(ls_ids_push(&j->ids, ls_tokenizer_eot(rules->tok)));
    return push_doc(j, doc);
}

/* Bytes that start a character. */
int64_t data_count_chars(const unsigned char *p, size_t n)
{
    int64_t k = 0;
    for (size_t i = 0; i < n; i++) k += (p[i] & 0xc0) != 0x80;
    return k;
}

bool data_drops_docs(const data_job_rules *rules)
{
    return rules->min_chars || rules->max_chars || rules->dedup;
}

bool data_length_ok(const data_job_rules *rules, int64_t chars)
{
    return chars >= rules->min_chars && (!rules->max_chars || chars <= rules->max_chars);
}

/* Takes p[0, n) with invalid UTF-8 replaced by U+FFFD where the rules ask for it. */
static ls_status take_fixed(data_job *j, const data_job_rules *rules, ls_encoder *e, const unsigned char *p, size_t n)
{
    if (rules->bad_utf8 != LS_BAD_UTF8_REPLACE || data_utf8_check(p, n) == n) return take_text(j, rules, e, p, n);
    j->fixed.len = 0;
    data_utf8_replace((const char *)p, n, false, &j->fixed);
    if (j->fixed.failed) return ls_nomem(n, "a text");
    return take_text(j, rules, e, (const unsigned char *)j->fixed.data, j->fixed.len);
}

static ls_status run_plain(data_job *j, const data_job_rules *rules, ls_encoder *e)
{
    const ls_text_block *b = &j->block;
    const size_t good = rules->bad_utf8 == LS_BAD_UTF8_ERROR ? data_utf8_check(b->text, b->n) : b->n;
    if (good < b->n)
        return ls_fail(LS_E_FORMAT, "%s: byte %lld (0x%02x) is not valid UTF-8; use --invalid_utf8 replace or keep",
                       b->in->path, (long long)(b->offset + (int64_t)good), b->text[good]);
    LS_TRY(take_fixed(j, rules, e, b->text, b->n));
    return b->ends_doc ? end_doc(j, rules, (data_doc){0}) : LS_OK;
}

/* Puts the text of one line into j->text. */
static ls_status line_text(data_job *j, const data_job_rules *rules, const unsigned char *line, size_t len,
                           int64_t number)
{
    const char *path = j->block.in->path, *why = NULL;
    size_t at = 0, good = rules->bad_utf8 == LS_BAD_UTF8_ERROR ? data_utf8_check(line, len) : len;
    if (good < len)
        return ls_fail(LS_E_FORMAT,
                       "%s: line %lld, byte %zu (0x%02x) is not valid UTF-8; use --invalid_utf8 replace or keep", path,
                       (long long)number, good + 1, line[good]);
    if (j->block.in->format == LS_TEXT_LINES) {
        j->text.len = 0;
        ls_str_addn(&j->text, line, len && line[len - 1] == '\r' ? len - 1 : len);
        return j->text.failed ? ls_nomem(len, "a line of text") : LS_OK;
    }
    ls_jsonl_result r = ls_jsonl_text((const char *)line, len, rules->text_key, &j->text, &at, &why);
    if (r == LS_JSONL_NOMEM) return ls_nomem(len, "a line of JSON");
    if (r == LS_JSONL_BAD)
        return ls_fail(LS_E_FORMAT, "%s: line %lld is not a JSON object: byte %zu: expected %s", path,
                       (long long)number, at + 1, why);
    if (r == LS_JSONL_NO_KEY)
        return ls_fail(LS_E_FORMAT, "%s: line %lld has no key \"%s\"; use --text_key for another key", path,
                       (long long)number, rules->text_key);
    if (r == LS_JSONL_NOT_TEXT)
        return ls_fail(LS_E_FORMAT, "%s: line %lld: the value of \"%s\" is not a string", path, (long long)number,
                       rules->text_key);
    if (r == LS_JSONL_LONE && rules->bad_utf8 == LS_BAD_UTF8_ERROR)
        return ls_fail(
            LS_E_FORMAT,
            "%s: line %lld: \"%s\" has a lone surrogate, which is not valid UTF-8; use --invalid_utf8 replace or keep",
            path, (long long)number, rules->text_key);
    return LS_OK;
}

/* A document outside the limits is recorded without tokens. */
static ls_status take_line(data_job *j, const data_job_rules *rules, ls_encoder *e, const unsigned char *p, size_t n)
{
    data_doc doc = {0};
    if (rules->min_chars || rules->max_chars) doc.chars = data_count_chars(p, n);
    if (rules->dedup) doc.hash = ls_xxh64(p, n);
    if (!data_length_ok(rules, doc.chars)) {
        j->n_text_byte += (int64_t)n;
        return push_doc(j, doc);
    }
    LS_TRY(take_fixed(j, rules, e, p, n));
    return end_doc(j, rules, doc);
}

static ls_status run_lines(data_job *j, const data_job_rules *rules, ls_encoder *e)
{
    const ls_text_block *b = &j->block;
    int64_t number = b->line;
    for (size_t at = 0, next; at < b->n; at = next, number++) {
        size_t len = ls_text_block_line(b, at, &next);
        if (ls_line_is_blank(b->text + at, len)) continue;
        LS_TRY(line_text(j, rules, b->text + at, len, number));
        LS_TRY(take_line(j, rules, e, (const unsigned char *)j->text.data, j->text.len));
    }
    return LS_OK;
}

static ls_status to_tokens(data_job *j)
{
    LS_TRY(ls_reserve(&j->token, &j->cap_token, j->ids.n, sizeof *j->token, "the tokens of a block"));
    for (size_t i = 0; i < j->ids.n; i++)
        j->token[i] = (uint16_t)j->ids.id[i]; /* ls_prepare has checked that the vocabulary fits */
    j->n_token = j->ids.n;
    return LS_OK;
}

void data_job_end(data_job *j, ls_status st)
{
    j->st = st;
    if (st != LS_OK) ls_err_keep(&j->error);
}

void data_job_run(data_job *j, const data_job_rules *rules, ls_encoder *e)
{
    if (j->st != LS_OK) return;
    give_back(j);
    j->ids.n = j->n_doc = 0;
    j->n_text_byte = 0;
    j->words.max_bytes = SIZE_MAX / 2;
    ls_words_clear(&j->words);
    ls_status st = j->block.in->format == LS_TEXT_PLAIN ? run_plain(j, rules, e) : run_lines(j, rules, e);
    if (st == LS_OK && rules->tok) st = to_tokens(j);
    data_job_end(j, st);
}
