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

/* Adds the counts of one sentence, whose texts are tokens separated by blanks. */
static ls_status add_tokens(ls_bleu *b, const ls_str *hyp, const ls_str *ref)
{
    const size_t nh = count_words(hyp), nr = count_words(ref);
    word *w = ls_alloc((nh + nr) * sizeof *w);
    uint32_t *id = ls_alloc((nh + nr) * sizeof *id), n_id = 0;
    ls_status st = w && id ? LS_OK : ls_nomem((nh + nr) * sizeof *w, "the tokens of a sentence");
    if (st == LS_OK) {
        list_words(hyp, w, 0);
        list_words(ref, w + nh, nh);
        qsort(w, nh + nr, sizeof *w, by_bytes);
        for (size_t i = 0; i < nh + nr; i++) id[w[i].at] = i && by_bytes(&w[i - 1], &w[i]) ? ++n_id : n_id;
        st = score_match(id, nh, id + nh, nr, LS_BLEU_ORDER, b->match);
    }
    if (st == LS_OK) {
        b->hyp_len += (int64_t)nh;
        b->ref_len += (int64_t)nr;
        for (int k = 0; k < LS_BLEU_ORDER; k++) b->total[k] += score_count(nh, k + 1);
    }
    ls_free(w);
    ls_free(id);
    return st;
}

ls_status ls_bleu_add(ls_bleu *b, ls_substr hyp, ls_substr ref)
{
    ls_str h = {0}, r = {0};
    ls_tokenize_13a(hyp, &h);
    ls_tokenize_13a(ref, &r);
    const ls_status st =
        h.failed || r.failed ? ls_nomem(hyp.n + ref.n, "the tokens of a sentence") : add_tokens(b, &h, &r);
    ls_str_fini(&h);
    ls_str_fini(&r);
    return st;
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
