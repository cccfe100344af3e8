#include "data/pairs.h"
#include "data/jsonl.h"
#include "core/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- languages ---- */

/* The length of a path without .gz or .zst. */
static size_t plain_length(const char *path)
{
    const size_t n = strlen(path);
    return ls_ends_in(path, ".gz") ? n - 3 : ls_ends_in(path, ".zst") ? n - 4 : n;
}

static bool has_ending(const char *path, const char *ending)
{
    const size_t n = plain_length(path), k = strlen(ending);
    return n > k && !memcmp(path + n - k, ending, k);
}

typedef enum kind { TEXT, TSV, JSONL } kind;

static kind kind_of(const char *path)
{
    if (has_ending(path, ".jsonl") || has_ending(path, ".ndjson")) return JSONL;
    return has_ending(path, ".tsv") ? TSV : TEXT;
}

static ls_status set_name(char name[LS_LANG_MAX], const char *flag, const char *text, size_t n)
{
    bool good = n > 0 && n < LS_LANG_MAX;
    for (size_t i = 0; i < n && good; i++) good = isalnum((unsigned char)text[i]) || text[i] == '-' || text[i] == '_';
    if (!good)
        return ls_fail(LS_E_ARG, "--%s '%s': a language is 1 to %d letters, digits, - or _", flag, text,
                       LS_LANG_MAX - 1);
    memcpy(name, text, n);
    name[n] = '\0';
    return LS_OK;
}

/* The ending of a text file, if it can be a language: train.de, but not train.txt. */
static void name_from_path(char name[LS_LANG_MAX], const char *path)
{
    const size_t n = plain_length(path);
    size_t dot = n;
    while (dot > 0 && path[dot - 1] != '.' && path[dot - 1] != '/') dot--;
    if (!dot || path[dot - 1] != '.' || has_ending(path, ".txt") || has_ending(path, ".text")) return;
    char ending[LS_LANG_MAX];
    if (n - dot >= sizeof ending) return;
    memcpy(ending, path + dot, n - dot);
    ending[n - dot] = '\0';
    if (set_name(name, "src_lang", ending, n - dot) != LS_OK) ls_err_clear();
}

ls_status ls_langs_choose(ls_langs *l, const char *src, const char *tgt, const char *const *path, int n_path)
{
    *l = (ls_langs){"src", "tgt"};
    if (n_path > 1 && kind_of(path[0]) == TEXT) {
        name_from_path(l->src, path[0]);
        name_from_path(l->tgt, path[1]);
    }
    if (src) LS_TRY(set_name(l->src, "src_lang", src, strlen(src)));
    if (tgt) LS_TRY(set_name(l->tgt, "tgt_lang", tgt, strlen(tgt)));
    if (!strcmp(l->src, l->tgt))
        return ls_fail(LS_E_ARG, "source and target language are both '%s'; give --src_lang and --tgt_lang", l->src);
    return LS_OK;
}

static bool eos_name(const ls_tokenizer *t, int32_t id, char name[LS_LANG_MAX])
{
    const ls_substr s = ls_tokenizer_special(t, id);
    if (s.n < 7 || s.n - 6 >= LS_LANG_MAX || memcmp(s.data, "<eos_", 5) || s.data[s.n - 1] != '>') return false;
    memcpy(name, s.data + 5, s.n - 6);
    name[s.n - 6] = '\0';
    return true;
}

ls_status ls_langs_of(ls_langs *l, const ls_tokenizer *t, const char *what)
{
    const ls_substr pad = ls_tokenizer_special(t, LS_PAIR_PAD);
    if (eos_name(t, LS_EOS_SRC, l->src) && eos_name(t, LS_EOS_TGT, l->tgt) && pad.n == 5 &&
        !memcmp(pad.data, "<pad>", 5))
        return LS_OK;
    return ls_fail(LS_E_CONFIG,
                   "%s: the tokenizer is not one of a translation task (ids 0 to 2 must be <eos_SOURCE>, <eos_TARGET>, "
                   "<pad>); make the data with `lockstep prepare --task translate`",
                   what);
}

/* ---- files ---- */

ls_status ls_pairs_open(ls_pairs *p, const char *const *path, int n_path, const ls_langs *langs)
{
    *p = (ls_pairs){.path = path, .n_path = n_path, .langs = langs};
    for (int i = 0; i < n_path; i++) {
        if (kind_of(path[i]) != TEXT) continue;
        if (i + 1 == n_path || kind_of(path[i + 1]) != TEXT)
            return ls_fail(
                LS_E_ARG,
                "%s: a text file needs its translation after it (two files with equal lines), or use .tsv or "
                ".jsonl",
                path[i]);
        i++;
    }
    return LS_OK;
}

void ls_pairs_close(ls_pairs *p)
{
    ls_lines_close(&p->src);
    ls_lines_close(&p->tgt);
    ls_str_fini(&p->text[0]);
    ls_str_fini(&p->text[1]);
    *p = (ls_pairs){0};
}

static ls_status split_tsv(const ls_lines *l, ls_substr line, ls_substr *src, ls_substr *tgt)
{
    const char *tab = memchr(line.data, '\t', line.n);
    const size_t n = tab ? (size_t)(tab - line.data) : 0;
    if (!tab || memchr(tab + 1, '\t', line.n - n - 1))
        return ls_fail(LS_E_FORMAT, "%s: line %lld has %s; a pair is source TAB target", l->path, (long long)l->line,
                       tab ? "more than one tab" : "no tab");
    *src = (ls_substr){line.data, n};
    *tgt = (ls_substr){tab + 1, line.n - n - 1};
    return LS_OK;
}

/* The text of the key, or of `other` if the object does not have it. */
static ls_status json_text(const ls_lines *l, ls_substr line, const char *key, const char *other, ls_str *out)
{
    size_t at = 0;
    const char *why = NULL;
    ls_jsonl_result r = ls_jsonl_text(line.data, line.n, key, out, &at, &why);
    if (r == LS_JSONL_NO_KEY && strcmp(key, other)) r = ls_jsonl_text(line.data, line.n, other, out, &at, &why);
    switch (r) {
    case LS_JSONL_OK: return LS_OK;
    case LS_JSONL_NOMEM: return ls_nomem(line.n, "a JSON line");
    case LS_JSONL_BAD:
        return ls_fail(LS_E_FORMAT, "%s: line %lld, column %zu: not JSON: expected %s", l->path, (long long)l->line,
                       at + 1, why);
    case LS_JSONL_NO_KEY:
        return strcmp(key, other)
                   ? ls_fail(LS_E_FORMAT, "%s: line %lld has neither key \"%s\" nor \"%s\"", l->path,
                             (long long)l->line, key, other)
                   : ls_fail(LS_E_FORMAT, "%s: line %lld has no key \"%s\"; give --src_lang and --tgt_lang", l->path,
                             (long long)l->line, key);
    case LS_JSONL_NOT_TEXT:
        return ls_fail(LS_E_FORMAT, "%s: line %lld: the value of \"%s\" is not a string", l->path, (long long)l->line,
                       key);
    case LS_JSONL_LONE: break;
    }
    return ls_fail(LS_E_FORMAT, "%s: line %lld: \"%s\" has half of a surrogate pair", l->path, (long long)l->line, key);
}

static ls_status split_json(ls_pairs *p, ls_substr line, ls_substr *src, ls_substr *tgt)
{
    ls_substr inner;
    if (ls_jsonl_object(line.data, line.n, "translation", &p->text[0], &inner)) line = inner;
    LS_TRY(json_text(&p->src, line, p->langs->src, "src", &p->text[0]));
    LS_TRY(json_text(&p->src, line, p->langs->tgt, "tgt", &p->text[1]));
    *src = (ls_substr){p->text[0].data, p->text[0].len};
    *tgt = (ls_substr){p->text[1].data, p->text[1].len};
    return LS_OK;
}

/* A line without a pair; a tab alone separates two empty texts. */
static bool is_blank(kind what, ls_substr line)
{
    return ls_line_is_blank((const unsigned char *)line.data, line.n) &&
           !(what == TSV && line.n && memchr(line.data, '\t', line.n));
}

static ls_status next_in_file(ls_pairs *p, ls_substr *src, ls_substr *tgt, bool *end)
{
    const kind what = kind_of(p->path[p->at]);
    bool end_tgt = false;
    do LS_TRY(ls_lines_next(&p->src, src, end));
    while (what != TEXT && !*end && is_blank(what, *src));
    if (what == TEXT) {
        LS_TRY(ls_lines_next(&p->tgt, tgt, &end_tgt));
        if (*end != end_tgt)
            return ls_fail(LS_E_FORMAT, "%s ends after line %lld, but %s goes on; line k of both must be one pair",
                           *end ? p->src.path : p->tgt.path, (long long)(*end ? p->src : p->tgt).line,
                           *end ? p->tgt.path : p->src.path);
    }
    if (*end || what == TEXT) return LS_OK;
    return what == TSV ? split_tsv(&p->src, *src, src, tgt) : split_json(p, *src, src, tgt);
}

/* The next pair of any file; empty ones too. */
static ls_status next_pair(ls_pairs *p, ls_substr *src, ls_substr *tgt, bool *end)
{
    for (*end = true; p->at < p->n_path;) {
        const int n_file = kind_of(p->path[p->at]) == TEXT ? 2 : 1;
        if (!p->open) {
            LS_TRY(ls_lines_open(&p->src, p->path[p->at]));
            if (n_file == 2) LS_TRY(ls_lines_open(&p->tgt, p->path[p->at + 1]));
            p->open = true;
        }
        LS_TRY(next_in_file(p, src, tgt, end));
        if (!*end && ((src->n && memchr(src->data, '\0', src->n)) || (tgt->n && memchr(tgt->data, '\0', tgt->n))))
            return ls_fail(LS_E_FORMAT, "%s: line %lld contains a NUL character", p->src.path, (long long)p->src.line);
        if (!*end) return LS_OK;
        ls_lines_close(&p->src);
        ls_lines_close(&p->tgt);
        p->open = false;
        p->at += n_file;
    }
    return LS_OK;
}

ls_status ls_pairs_next(ls_pairs *p, ls_substr *src, ls_substr *tgt, bool *end)
{
    for (;;) {
        LS_TRY(next_pair(p, src, tgt, end));
        if (*end) return LS_OK;
        const bool empty = !src->n && !tgt->n;
        p->n_empty += empty;
        if (empty && !p->keep_empty) continue;
        p->n++;
        return LS_OK;
    }
}

ls_status ls_pair_encode_source(ls_encoder *e, ls_substr src, ls_ids *ids)
{
    LS_TRY(ls_encode(e, src.data, src.n, ids));
    return ls_ids_push(ids, LS_EOS_SRC);
}

ls_status ls_pair_encode_target(ls_encoder *e, ls_substr tgt, ls_ids *ids)
{
    LS_TRY(ls_encode(e, tgt.data, tgt.n, ids));
    return ls_ids_push(ids, LS_EOS_TGT);
}
