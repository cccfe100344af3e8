/* jsonl.c - a strict JSON reader that keeps one string and skips the rest. */
#include "data/jsonl.h"
#include "data/unicode.h"

#include <string.h>

#define MAX_DEPTH 200

typedef struct reader {
    const char *p, *end;
    const char *why; /* what was expected at p */
    const char *key; /* of the outermost object */
    ls_str *out;     /* its string */
    bool lone;       /* the string read last has a lone surrogate */
    bool found, text, text_lone;
    ls_substr other; /* the value, if it is not a string */
} reader;

static bool bad(reader *r, const char *why)
{
    r->why = why;
    return false;
}

static bool take(reader *r, char c)
{
    if (r->p == r->end || *r->p != c) return false;
    r->p++;
    return true;
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
        if (take(r, '"')) return true;
        if (!take(r, '\\')) return bad(r, "no control character in a string");
        if (r->p == r->end) return bad(r, "a character after \\");
        if (take(r, 'u')) {
            if (!read_u(r, out)) return false;
            continue;
        }
        const char *k = *r->p ? strchr(from, *r->p) : NULL;
        if (!k) return bad(r, "one of \"\\/bfnrtu after \\");
        r->p++;
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
    take(r, '-');
    const char *first = r->p;
    size_t k = digits(r);
    if (!k) return bad(r, "a value");
    if (k > 1 && *first == '0') {
        r->p = first + 1;
        return bad(r, "no digit after a leading 0");
    }
    if (take(r, '.') && !digits(r)) return bad(r, "a digit after the decimal point");
    if (take(r, 'e') || take(r, 'E')) {
        if (!take(r, '+')) take(r, '-');
        if (!digits(r)) return bad(r, "a digit in the exponent");
    }
    return true;
}

static bool read_list(reader *r, int depth, char close);

/* Skips a value inside `depth` objects and arrays. */
static bool skip_value(reader *r, int depth)
{
    static const char *const word[] = {"true", "false", "null"};
    skip_blanks(r);
    if (take(r, '"')) return read_string(r, NULL);
    if (take(r, '{')) return read_list(r, depth, '}');
    if (take(r, '[')) return read_list(r, depth, ']');
    for (size_t i = 0; i < 3; i++) {
        const size_t n = strlen(word[i]);
        if ((size_t)(r->end - r->p) < n || memcmp(r->p, word[i], n)) continue;
        r->p += n;
        return true;
    }
    return skip_number(r);
}

/* Whether the key at p (after its quote) is the requested one; p is then after its closing quote. A key with escapes is decoded at the
 * end of *out and removed again. */
static bool read_key(reader *r, bool *is_it)
{
    ls_str *out = r->out;
    size_t n = strlen(r->key), keep = out->len;
    *is_it = (size_t)(r->end - r->p) > n && r->p[n] == '"' && !memcmp(r->p, r->key, n) && !memchr(r->key, '\\', n);
    if (*is_it) {
        r->p += n + 1;
        return true;
    }
    if (!read_string(r, out)) return false;
    *is_it = !out->failed && out->len - keep == n && (!n || !memcmp(out->data + keep, r->key, n));
    out->len = keep;
    return true;
}

static bool read_member(reader *r, int depth)
{
    bool wanted = false;
    skip_blanks(r);
    if (!take(r, '"')) return bad(r, "a key");
    if (!(depth == 1 ? read_key(r, &wanted) : read_string(r, NULL))) return false;
    skip_blanks(r);
    if (!take(r, ':')) return bad(r, "\":\"");
    if (!wanted) return skip_value(r, depth);
    skip_blanks(r);
    r->found = true;
    r->text = take(r, '"');
    if (!r->text) {
        const char *first = r->p;
        if (!skip_value(r, depth)) return false;
        r->other = (ls_substr){first, (size_t)(r->p - first)};
        return true;
    }
    r->out->len = 0;
    if (!read_string(r, r->out)) return false;
    r->text_lone = r->lone;
    return true;
}

/* The rest of an object or array after its opening bracket; `depth` others are around it. */
static bool read_list(reader *r, int depth, char close)
{
    if (depth > MAX_DEPTH) {
        r->p--;
        return bad(r, "less nesting");
    }
    skip_blanks(r);
    if (take(r, close)) return true;
    for (;;) {
        if (!(close == '}' ? read_member(r, depth + 1) : skip_value(r, depth + 1))) return false;
        skip_blanks(r);
        if (take(r, close)) return true;
        if (!take(r, ',')) return bad(r, close == '}' ? "\",\" or \"}\"" : "\",\" or \"]\"");
    }
}

static bool read_line(reader *r)
{
    skip_blanks(r);
    if (!take(r, '{')) return bad(r, "an object");
    if (!read_list(r, 0, '}')) return false;
    skip_blanks(r);
    return r->p == r->end || bad(r, "the end of the line");
}

ls_jsonl_result ls_jsonl_text(const char *line, size_t n, const char *key, ls_str *out, size_t *at, const char **why)
{
    reader r = {.p = line, .end = line + n, .key = key, .out = out};
    out->len = 0;
    const bool ok = read_line(&r);
    *at = (size_t)(r.p - line);
    *why = r.why;
    if (out->failed) return LS_JSONL_NOMEM;
    if (!ok) return LS_JSONL_BAD;
    if (!r.found) return LS_JSONL_NO_KEY;
    if (!r.text) return LS_JSONL_NOT_TEXT;
    return r.text_lone ? LS_JSONL_LONE : LS_JSONL_OK;
}

bool ls_jsonl_object(const char *line, size_t n, const char *key, ls_str *work, ls_substr *value)
{
    reader r = {.p = line, .end = line + n, .key = key, .out = work};
    work->len = 0;
    if (!read_line(&r) || !r.found || r.text || !r.other.n || *r.other.data != '{') return false;
    *value = r.other;
    return true;
}
