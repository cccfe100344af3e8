#include "score/score_impl.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- 13a ---- */

static void replace(ls_str *s, ls_str *work, const char *from, const char *to)
{
    const size_t n = strlen(from);
    work->len = 0;
    for (size_t i = 0; i < s->len;) {
        if (s->len - i >= n && !memcmp(s->data + i, from, n)) {
            ls_str_add(work, to);
            i += n;
        } else {
            ls_str_addc(work, s->data[i++]);
        }
    }
    const ls_str old = *s;
    *s = *work;
    *work = old;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_mark(char c) /* a token by itself, anywhere */
{
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
           (c >= ':' && c <= '@') || c == '/';
}

static bool is_stop(char c)
{
    return c == '.' || c == ',';
}

typedef enum rule { MARKS, STOP_AFTER, STOP_BEFORE, DASH } rule;

/* One substitution over the whole line. A match consumes its characters: the second one of a pair does not begin another. Bytes do for
 * characters, since all that is looked for is ASCII. */
static void substitute(ls_str *s, ls_str *work, rule what)
{
    work->len = 0;
    for (size_t i = 0; i < s->len; i++) {
        const char c = s->data[i], next = i + 1 < s->len ? s->data[i + 1] : '\0';
        const bool pair = i + 1 < s->len && (what == STOP_AFTER    ? !is_digit(c) && is_stop(next)
                                             : what == STOP_BEFORE ? is_stop(c) && !is_digit(next)
                                                                   : what == DASH && is_digit(c) && next == '-');
        if (what == MARKS && is_mark(c)) {
            ls_str_addc(work, ' '), ls_str_addc(work, c), ls_str_addc(work, ' ');
        } else if (pair) {
            if (what == STOP_BEFORE) ls_str_addc(work, ' ');
            ls_str_addc(work, c), ls_str_addc(work, ' '), ls_str_addc(work, next);
            if (what != STOP_BEFORE) ls_str_addc(work, ' ');
            i++;
        } else {
            ls_str_addc(work, c);
        }
    }
    const ls_str old = *s;
    *s = *work;
    *work = old;
}

/* The text without white space at its ends and with single blanks between words. */
static void join_words(const ls_str *s, ls_str *out)
{
    bool gap = false;
    out->len = 0;
    for (size_t i = 0, k; i < s->len; i += k) {
        uint32_t id;
        k = score_char(s->data + i, s->len - i, &id);
        if (score_is_space(id)) {
            gap = out->len > 0;
            continue;
        }
        if (gap) ls_str_addc(out, ' ');
        gap = false;
        ls_str_addn(out, s->data + i, k);
    }
}

/* The length of the text without white space at its end. */
static size_t trimmed(ls_substr t)
{
    size_t end = 0;
    for (size_t i = 0, k; i < t.n; i += k) {
        uint32_t id;
        k = score_char(t.data + i, t.n - i, &id);
        if (!score_is_space(id)) end = i + k;
    }
    return end;
}

void ls_tokenize_13a(ls_substr line, ls_str *out)
{
    static const char *const plain[][2] = {{"<skipped>", ""}, {"-\n", ""},   {"\n", " "},  {"&quot;", "\""},
                                           {"&amp;", "&"},    {"&lt;", "<"}, {"&gt;", ">"}};
    ls_str s = {0}, work = {0};
    ls_str_addn(&s, line.data, trimmed(line));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) replace(&s, &work, plain[i][0], plain[i][1]);
    work.len = 0; /* the rules for pairs need a neighbour at both ends */
    ls_str_addc(&work, ' ');
    if (s.len) ls_str_addn(&work, s.data, s.len);
    ls_str_addc(&work, ' ');
    for (rule r = MARKS; r <= DASH; r++) substitute(&work, &s, r);
    join_words(&work, out);
    out->failed = out->failed || s.failed || work.failed;
    ls_str_fini(&s);
    ls_str_fini(&work);
}

/* ---- counts ---- */

typedef struct word {
    const char *p;
    size_t n;
    size_t at; /* its position in both texts */
} word;

static int by_bytes(const void *a, const void *b)
{
    const word *x = a, *y = b;
    const int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static size_t count_words(const ls_str *s)
{
    size_t n = s->len > 0;
    for (size_t i = 0; i < s->len; i++) n += s->data[i] == ' ';
    return n;
}

static void list_words(const ls_str *s, word *w, size_t at)
{
    for (size_t i = 0; i < s->len;) {
        const char *end = memchr(s->data + i, ' ', s->len - i);
        const size_t n = end ? (size_t)(end - s->data) - i : s->len - i;
        *w++ = (word){s->data + i, n, at++};
        i += n + 1;
    }
}

/* The reference length that is closest to n, the shorter of two. */
static size_t closest(const size_t *len, int n_ref, size_t n)
{
    size_t best = len[0];
    for (int k = 1; k < n_ref; k++) {
        const size_t d = len[k] > n ? len[k] - n : n - len[k], old = best > n ? best - n : n - best;
        if (d < old || (d == old && len[k] < best)) best = len[k];
    }
    return best;
}

/* Adds the counts of one sentence, whose texts (the translation, then the references) are tokens separated by blanks. len: room for the
 * numbers of their tokens. */
static ls_status add_tokens(ls_bleu *b, const ls_str *text, int n_ref, size_t *len)
{
    size_t all = 0;
    for (int k = 0; k <= n_ref; k++) all += len[k] = count_words(&text[k]);
    word *w = ls_alloc(all * sizeof *w);
    uint32_t *id = ls_alloc(all * sizeof *id), n_id = 0;
    ls_status st = w && id ? LS_OK : ls_nomem(all * sizeof *w, "the tokens of a sentence");
    if (st == LS_OK) {
        size_t at = 0;
        for (int k = 0; k <= n_ref; at += len[k++]) list_words(&text[k], w + at, at);
        qsort(w, all, sizeof *w, by_bytes);
        for (size_t i = 0; i < all; i++) id[w[i].at] = i && by_bytes(&w[i - 1], &w[i]) ? ++n_id : n_id;
        st = score_match(id, len[0], id + len[0], len + 1, n_ref, LS_BLEU_ORDER, b->match);
    }
    if (st == LS_OK) {
        b->hyp_len += (int64_t)len[0];
        b->ref_len += (int64_t)closest(len + 1, n_ref, len[0]);
        for (int k = 0; k < LS_BLEU_ORDER; k++) b->total[k] += score_count(len[0], k + 1);
    }
    ls_free(w);
    ls_free(id);
    return st;
}

ls_status ls_bleu_add_refs(ls_bleu *b, ls_substr hyp, const ls_substr *ref, int n)
{
    const size_t n_text = (size_t)n + 1;
    ls_str *text = ls_alloc(n_text * sizeof *text);
    size_t *len = ls_alloc(n_text * sizeof *len);
    ls_status st = text && len ? LS_OK : ls_nomem(n_text * sizeof *text, "the tokens of a sentence");
    for (size_t k = 0; text && k < n_text; k++) text[k] = (ls_str){0};
    for (size_t k = 0; k < n_text && st == LS_OK; k++) {
        ls_tokenize_13a(k ? ref[k - 1] : hyp, &text[k]);
        if (text[k].failed) st = ls_nomem(hyp.n, "the tokens of a sentence");
    }
    if (st == LS_OK) st = add_tokens(b, text, n, len);
    for (size_t k = 0; text && k < n_text; k++) ls_str_fini(&text[k]);
    ls_free(text);
    ls_free(len);
    return st;
}

ls_status ls_bleu_add(ls_bleu *b, ls_substr hyp, ls_substr ref)
{
    return ls_bleu_add_refs(b, hyp, &ref, 1);
}

ls_bleu_result ls_bleu_of(const ls_bleu *b)
{
    ls_bleu_result r = {.brevity = 1};
    const double hyp = (double)b->hyp_len, ref = (double)b->ref_len;
    double smooth = 1, log_sum = 0;
    bool any = false, all = true;
    if (hyp < ref) r.brevity = hyp > 0 ? exp(1 - ref / hyp) : 0;
    for (int k = 0; k < LS_BLEU_ORDER; k++) any = any || b->match[k];
    if (!any) return r;
    for (int k = 0; k < LS_BLEU_ORDER && all; k++) {
        all = b->total[k] > 0;
        if (!all) break;
        if (!b->match[k]) smooth *= 2;
        r.precision[k] =
            b->match[k] ? 100.0 * (double)b->match[k] / (double)b->total[k] : 100.0 / (smooth * (double)b->total[k]);
        log_sum += log(r.precision[k]);
    }
    r.score = all ? r.brevity * exp(log_sum / LS_BLEU_ORDER) : 0;
    return r;
}
