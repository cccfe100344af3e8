/* blocks.c - reads a corpus, splits it into blocks and counts documents. */
#include "data/corpus.h"
#include "data/pretokenize.h"
#include "core/mem.h"

#include <string.h>

void ls_blocks_init(ls_blocks *b, const ls_inputs *inputs, int64_t limit_docs, int64_t limit_bytes)
{
    *b = (ls_blocks){
        .inputs = inputs, .end = inputs->n, .limit_docs = limit_docs, .limit_bytes = limit_bytes, .pos.line = 1};
}

void ls_blocks_fini(ls_blocks *b)
{
    ls_byte_stream_close(&b->source);
    ls_free(b->carry);
    *b = (ls_blocks){0};
}

int64_t ls_blocks_taken(const ls_blocks *b)
{
    return b->pos.taken_before + (b->source ? ls_byte_stream_taken(b->source) : 0);
}

size_t ls_text_block_line(const ls_text_block *b, size_t at, size_t *next)
{
    const unsigned char *nl = memchr(b->text + at, '\n', b->n - at);
    size_t end = nl ? (size_t)(nl - b->text) : b->n;
    *next = nl ? end + 1 : end;
    return end - at;
}

bool ls_line_is_blank(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r') return false;
    return true;
}

/* Reads until the block has `want` bytes or the file ends. */
static ls_status read_up_to(ls_blocks *b, ls_text_block *out, size_t want, bool *eof)
{
    LS_TRY(ls_reserve(&out->text, &out->cap, want, 1, "a block of text"));
    while (out->n < want) {
        size_t k = 0;
        LS_TRY(ls_byte_stream_read(b->source, out->text + out->n, want - out->n, &k));
        if (!k) {
            *eof = true;
            return LS_OK;
        }
        out->n += k;
    }
    return LS_OK;
}

/* Bytes after `cut` are kept for the next block. */
static ls_status keep_rest(ls_blocks *b, ls_text_block *out, size_t cut)
{
    size_t rest = out->n - cut;
    LS_TRY(ls_reserve(&b->carry, &b->cap_carry, rest, 1, "a block of text"));
    if (rest) memcpy(b->carry, out->text + cut, rest);
    b->n_carry = rest;
    out->n = cut;
    return LS_OK;
}

static ls_status cut_plain(ls_blocks *b, ls_text_block *out, bool eof)
{
    if (!eof) {
        size_t cut = data_split_cut(out->text, out->n);
        LS_TRY(keep_rest(b, out, cut ? cut : data_split_char_end(out->text, out->n)));
    }
    out->ends_doc = eof;
    if (out->n) b->pos.in_doc = true;
    if (eof && b->pos.in_doc) {
        b->pos.n_doc++;
        b->pos.in_doc = false;
    }
    return LS_OK;
}

static ls_status cut_lines(ls_blocks *b, ls_text_block *out, bool eof)
{
    while (!eof) {
        const unsigned char *nl = memrchr(out->text, '\n', out->n);
        if (nl) {
            LS_TRY(keep_rest(b, out, (size_t)(nl - out->text) + 1));
            break;
        }
        if (out->n >= LS_LINE_MAX)
            return ls_fail(LS_E_FORMAT,
                           "%s: line %lld is longer than %zu MiB; use --format txt if its lines are not documents",
                           out->in->path, (long long)b->pos.line, LS_LINE_MAX >> 20);
        LS_TRY(read_up_to(b, out, out->n * 2 < LS_LINE_MAX ? out->n * 2 : LS_LINE_MAX, &eof));
    }
    for (size_t at = 0, next; at < out->n; at = next) {
        size_t k = ls_text_block_line(out, at, &next);
        if (!ls_line_is_blank(out->text + at, k)) {
            if (b->limit_docs && b->pos.n_doc == b->limit_docs) {
                out->n = at;
                return LS_OK;
            }
            b->pos.n_doc++;
        }
        b->pos.line++;
    }
    return LS_OK;
}

static ls_status next_in_file(ls_blocks *b, ls_text_block *out, bool *eof)
{
    LS_TRY(ls_reserve(&out->text, &out->cap, b->n_carry, 1, "a block of text"));
    if (b->n_carry) memcpy(out->text, b->carry, b->n_carry);
    out->n = b->n_carry;
    b->n_carry = 0;
    out->offset = b->pos.offset;
    out->line = b->pos.line;
    out->ends_doc = false;
    LS_TRY(read_up_to(b, out, LS_BLOCK_BYTES, eof));
    LS_TRY(out->in->format == LS_TEXT_PLAIN ? cut_plain(b, out, *eof) : cut_lines(b, out, *eof));
    b->pos.offset += (int64_t)out->n;
    b->pos.text_bytes += (int64_t)out->n;
    return LS_OK;
}

ls_status ls_blocks_next(ls_blocks *b, ls_text_block *out, bool *end)
{
    for (;;) {
        bool enough = (b->limit_docs && b->pos.n_doc >= b->limit_docs && !b->pos.in_doc) ||
                      (b->limit_bytes && b->pos.text_bytes >= b->limit_bytes);
        *end = b->pos.at >= b->end || enough;
        if (*end) return LS_OK;
        out->in = &b->inputs->item[b->pos.at];
        if (!b->source) LS_TRY(ls_byte_stream_open(out->in->path, out->in->fd, &b->source));
        bool eof = false;
        LS_TRY(next_in_file(b, out, &eof));
        if (eof && !b->n_carry) {
            b->pos.taken_before += ls_byte_stream_taken(b->source);
            ls_byte_stream_close(&b->source);
            b->pos.at++;
            b->pos.offset = 0;
            b->pos.line = 1;
        }
        out->after = b->pos;
        /* a plain file whose last block is empty still ends its document */
        if (out->n || (out->ends_doc && out->offset)) return LS_OK;
    }
}

ls_status ls_blocks_seek(ls_blocks *b, const ls_corpus_pos *pos,
                         void (*see)(void *ctx, const unsigned char *text, size_t n), void *ctx)
{
    b->pos = *pos;
    if (!pos->offset) return LS_OK;
    if (pos->at >= b->inputs->n) return ls_fail(LS_E_FORMAT, "the corpus has only %zu files", b->inputs->n);
    const ls_corpus_file *in = &b->inputs->item[pos->at];
    LS_TRY(ls_byte_stream_open(in->path, in->fd, &b->source));
    LS_TRY(ls_reserve(&b->carry, &b->cap_carry, LS_BLOCK_BYTES, 1, "a block of text"));
    for (int64_t left = pos->offset; left;) {
        size_t k = 0;
        LS_TRY(ls_byte_stream_read(b->source, b->carry, left < (int64_t)LS_BLOCK_BYTES ? (size_t)left : LS_BLOCK_BYTES,
                                   &k));
        if (!k) return ls_fail(LS_E_FORMAT, "%s has become shorter", in->path);
        if (see) see(ctx, b->carry, k);
        left -= (int64_t)k;
    }
    return LS_OK;
}
