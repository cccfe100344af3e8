/* jsonl.c - a strict JSON reader that keeps one string and skips the rest. */
#include "data/jsonl.h"
#include "data/unicode.h"

#include <string.h>

#define MAX_DEPTH 200

typedef struct reader {
    const char *start, *p, *end;
    const char *why;
    bool lone; /* of the string read last */
} reader;

static bool bad(reader *r, const char *why)
{
    if (!r->why) r->why = why;
    return false;
}

static void skip_blanks(reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r')) r->p++;
}

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

/* After "\u": four digits or, for a surrogate pair, two groups of four. */
static bool read_u(reader *r, ls_str *out)
{
    int hi = r->end - r->p >= 4 ? hex4(r->p) : -1;
    if (hi < 0) return bad(r, "four hexadecimal digits after \\u");
    r->p += 4;
    uint32_t c = (uint32_t)hi;
    if (c >= 0xd800 && c < 0xe000) {
        int lo = c < 0xdc00 && r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u' ? hex4(r->p + 2) : -1;
        if (lo >= 0xdc00 && lo < 0xe000) {
            c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)lo - 0xdc00);
            r->p += 6;
        } else {
            r->lone = true;
        }
    }
    unsigned char utf8[4];
    int k = data_utf8_encode(c, utf8);
    if (out) ls_str_addn(out, utf8, (size_t)k);
    return true;
}

/* p is after the opening quote; out may be NULL. */
static bool read_string(reader *r, ls_str *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    r->lone = false;
    for (;;) {
        const char *run = r->p;
        while (r->p < r->end && *r->p != '"' && *r->p != '\\' && (unsigned char)*r->p >= 0x20) r->p++;
        if (out) ls_str_addn(out, run, (size_t)(r->p - run));
        if (r->p == r->end) return bad(r, "the end of a string");
        char c = *r->p;
        if ((unsigned char)c < 0x20) return bad(r, "no control character in a string");
        r->p++;
        if (c == '"') return true;
        if (r->p == r->end) return bad(r, "a character after \\");
        c = *r->p++;
        if (c == 'u') {
            if (!read_u(r, out)) return false;
            continue;
        }
        const char *k = c ? strchr(from, c) : NULL;
        if (!k) {
            r->p--;
            return bad(r, "one of \"\\/bfnrtu after \\");
        }
        if (out) ls_str_addc(out, to[k - from]);
    }
}

static size_t digits(reader *r)
{
    const char *a = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9') r->p++;
    return (size_t)(r->p - a);
}

static bool skip_number(reader *r)
{
    if (r->p < r->end && *r->p == '-') r->p++;
    const char *first = r->p;
    size_t k = digits(r);
    if (!k) return bad(r, "a value");
    if (k > 1 && *first == '0') {
        r->p = first + 1;
        return bad(r, "no digit after a leading 0");
    }
    if (r->p < r->end && *r->p == '.') {
        r->p++;
        if (!digits(r)) return bad(r, "a digit after the decimal point");
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-')) r->p++;
        if (!digits(r)) return bad(r, "a digit in the exponent");
    }
    return true;
}

static bool skip_word(reader *r, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n)) return bad(r, "a value");
    r->p += n;
    return true;
}

/* Skips any value without recursion; is_object[level] is true for objects. */
static bool skip_value(reader *r)
{
    unsigned char is_object[MAX_DEPTH];
    int depth = 0;
    for (;;) {
        skip_blanks(r);
        if (r->p == r->end) return bad(r, "a value");
        char c = *r->p;
        bool opened = false;
        if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH) return bad(r, "less nesting");
            is_object[depth++] = c == '{';
            r->p++;
            skip_blanks(r);
            opened = true;
            if (r->p < r->end && *r->p == (c == '{' ? '}' : ']')) {
                r->p++;
                depth--;
                opened = false;
            }
        } else if (c == '"') {
            r->p++;
            if (!read_string(r, NULL)) return false;
        } else if (c == 't' || c == 'f' || c == 'n') {
            if (!skip_word(r, c == 't' ? "true" : c == 'f' ? "false" : "null")) return false;
        } else if (!skip_number(r)) {
            return false;
        }
        while (!opened) { /* after a value: the end of this level, or the next value */
            if (!depth) return true;
            skip_blanks(r);
            if (r->p == r->end) return bad(r, is_object[depth - 1] ? "\",\" or \"}\"" : "\",\" or \"]\"");
            c = *r->p;
            if (c == ',') {
                r->p++;
                opened = true;
            } else if (c == (is_object[depth - 1] ? '}' : ']')) {
                r->p++;
                depth--;
            } else {
                return bad(r, is_object[depth - 1] ? "\",\" or \"}\"" : "\",\" or \"]\"");
            }
        }
        if (is_object[depth - 1]) { /* a key first */
            skip_blanks(r);
            if (r->p == r->end || *r->p != '"') return bad(r, "a key");
            r->p++;
            if (!read_string(r, NULL)) return false;
            skip_blanks(r);
            if (r->p == r->end || *r->p != ':') return bad(r, "\":\"");
            r->p++;
        }
    }
}

/* True if the key at p (after its quote) is the requested one; p is then after its closing quote. A key with escapes is
 * decoded at the end of *out and removed again. */
static bool read_key(reader *r, const char *key, ls_str *out, bool *is_it)
{
    size_t n = strlen(key), keep = out->len;
    if ((size_t)(r->end - r->p) > n && r->p[n] == '"' && !memcmp(r->p, key, n) && !memchr(key, '\\', n)) {
        r->p += n + 1;
        *is_it = true;
        return true;
    }
    if (!read_string(r, out)) return false;
    *is_it = !out->failed && out->len - keep == n && (!n || !memcmp(out->data + keep, key, n));
    out->len = keep;
    return true;
}

ls_jsonl_result ls_jsonl_text(const char *line, size_t n, const char *key, ls_str *out, size_t *at, const char **why)
{
    reader r = {line, line, line + n, NULL, false};
    bool found = false, text = false, lone = false, ok = false;
    out->len = 0;
    skip_blanks(&r);
    if (r.p == r.end || *r.p != '{') {
        bad(&r, "an object");
        goto done;
    }
    r.p++;
    skip_blanks(&r);
    bool more = r.p == r.end || *r.p != '}';
    if (!more) r.p++;
    while (more) {
        skip_blanks(&r);
        bool is_it = false;
        if (r.p == r.end || *r.p != '"') {
            bad(&r, "a key");
            goto done;
        }
        r.p++;
        if (!read_key(&r, key, out, &is_it)) goto done;
        skip_blanks(&r);
        if (r.p == r.end || *r.p != ':') {
            bad(&r, "\":\"");
            goto done;
        }
        r.p++;
        skip_blanks(&r);
        if (is_it) found = true;
        if (is_it && r.p < r.end && *r.p == '"') {
            out->len = 0;
            r.p++;
            if (!read_string(&r, out)) goto done;
            text = true;
            lone = r.lone;
        } else {
            if (is_it) text = false;
            if (!skip_value(&r)) goto done;
        }
        skip_blanks(&r);
        if (r.p < r.end && *r.p == ',') {
            r.p++;
        } else if (r.p < r.end && *r.p == '}') {
            r.p++;
            more = false;
        } else {
            bad(&r, "\",\" or \"}\"");
            goto done;
        }
    }
    skip_blanks(&r);
    if (r.p != r.end) bad(&r, "the end of the line");
    else ok = true;
done:
    *at = (size_t)(r.p - r.start);
    *why = r.why;
    if (out->failed) return LS_JSONL_NOMEM;
    if (!ok) return LS_JSONL_BAD;
    if (!found) return LS_JSONL_NO_KEY;
    if (!text) return LS_JSONL_NOT_TEXT;
    return lone ? LS_JSONL_LONE : LS_JSONL_OK;
}
