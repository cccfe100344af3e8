#include "core/json.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ls_status ls_json_parse(const char *text, size_t n, const char *what, json_t **out)
{
    json_error_t e;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!j) return ls_fail(LS_E_FORMAT, "%s: line %d, column %d: %s", what, e.line, e.column, e.text);
    *out = j;
    return LS_OK;
}

/* Of a string that begins at text[i], the place after it. */
static size_t string_end(const char *text, size_t n, size_t i)
{
    for (i++; i < n && text[i] != '"'; i++)
        if (text[i] == '\\' && i + 1 < n) i++;
    return i < n ? i + 1 : n;
}

char *ls_json_plain(const char *text, size_t n)
{
    char *out = ls_alloc(n + 1);
    size_t comma = n; /* a comma that only blanks follow; n: none */
    char before = 0;  /* the comma */
    if (!out) return NULL;
    memcpy(out, text, n);
    out[n] = '\0';
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        const bool block = text[i] == '/' && i + 1 < n && text[i + 1] == '*';
        if (block || text[i] == '#' || (text[i] == '/' && i + 1 < n && text[i + 1] == '/')) {
            end = block ? i + 2 : i;
            while (end < n && (block ? text[end] != '*' || end + 1 == n || text[end + 1] != '/' : text[end] != '\n'))
                end++;
            if (block) end = end < n ? end + 2 : n;
            for (; i < end; i++)
                if (text[i] != '\n') out[i] = ' ';
            continue;
        }
        if (text[i] == '"') end = string_end(text, n, i);
        if ((text[i] == '}' || text[i] == ']') && comma < n) out[comma] = ' ';
        if (text[i] == ',' && before && !strchr("[{,:", before)) comma = i;
        else if (!strchr(" \t\r\n", text[i])) comma = n;
        if (!strchr(" \t\r\n", text[i])) before = text[i];
        i = end;
    }
    return out;
}

int ls_json_line(const char *text, const char *path)
{
    const size_t n = strlen(text);
    int line = 1, depth = 0, found = 0, at_depth = 1; /* the next name of the path is a key at this depth */
    for (size_t i = 0, end; i < n && *path; i = end) {
        const size_t name = strcspn(path, ".");
        end = text[i] == '"' ? string_end(text, n, i) : i + 1;
        depth += text[i] == '{' || text[i] == '[' ? 1 : text[i] == '}' || text[i] == ']' ? -1 : 0;
        line += text[i] == '\n';
        if (text[i] != '"' || depth != at_depth || end - i != name + 2 || strncmp(text + i + 1, path, name) != 0)
            continue;
        if (text[end + strspn(text + end, " \t\r\n")] != ':') continue;
        found = line;
        at_depth++;
        path += name + (path[name] == '.');
    }
    return found;
}

ls_status ls_json_load(const char *path, json_t **out)
{
    char *text;
    size_t n;
    LS_TRY(ls_fs_read_most(path, LS_FS_TEXT_MOST, &text, &n));
    ls_status st = ls_json_parse(text, n, path, out);
    ls_free(text);
    return st;
}

const json_t *ls_json_at(const json_t *root, const char *path)
{
    char key[64];
    for (const char *p = path; root && *p;) {
        const size_t n = strcspn(p, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, p);
        root = json_object_get(root, key);
        p += n + (p[n] == '.');
    }
    return root;
}

double ls_json_real_at(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

int64_t ls_json_int_at(const json_t *object, const char *key)
{
    const double x = ls_json_real_at(object, key);
    return x >= 0 && x < 9e15 && x == floor(x) ? (int64_t)x : -1;
}

const char *ls_json_text_at(const json_t *object, const char *key)
{
    const char *v = json_string_value(json_object_get(object, key));
    return v ? v : "";
}

/* "d.dddde-14" -> the next decimal away from zero with as many digits. */
static void next_decimal(char *buf)
{
    char *e = strchr(buf, 'e');
    for (char *p = e - 1; p >= buf && *p != '-'; p--) {
        if (*p == '.') continue;
        if (*p != '9') {
            ++*p;
            return;
        }
        *p = '0';
    }
}

char *ls_json_real(char buf[32], double value)
{
    if (!isfinite(value)) {
        snprintf(buf, 32, "null");
        return buf;
    }
    int digits = 1;
    for (; digits < 17; digits++) { /* the fewest digits that read back the same */
        snprintf(buf, 32, "%.*e", digits - 1, value);
        if (strtod(buf, NULL) == value) break;
        /* Below a power of two doubles are closer than above it: the nearest decimal may then read back as the
         * neighbour below although the next one up, a little farther away, reads back as value. */
        next_decimal(buf);
        if (strtod(buf, NULL) == value) break;
    }
    if (digits == 17) snprintf(buf, 32, "%.16e", value);
    int exp10 = (int)strtol(strchr(buf, 'e') + 1, NULL, 10);
    if (value != 0 && (exp10 < -4 || exp10 >= 16)) return buf; /* printf's exponent already has two digits and a sign */
    int decimals = digits - 1 - exp10;
    snprintf(buf, 32, "%.*f", decimals < 1 ? 1 : decimals, value);
    return buf;
}

void ls_jsonw_init(ls_jsonw *w, ls_str *out, int indent)
{
    w->out = out;
    w->indent = indent;
    w->depth = 0;
    w->after_key = 0;
    w->in_array[0] = w->has_item[0] = 0; /* the others are set as their level opens */
}

static void newline(ls_jsonw *w)
{
    if (!w->indent) return;
    ls_str_addc(w->out, '\n');
    for (int i = 0; i < w->depth * w->indent; i++) ls_str_addc(w->out, ' ');
}

static void before_value(ls_jsonw *w)
{
    if (w->after_key) {
        w->after_key = 0;
        return;
    }
    if (!w->depth) return;
    LS_ASSERT(w->in_array[w->depth]);
    if (w->has_item[w->depth]) ls_str_add(w->out, w->indent ? "," : ", ");
    w->has_item[w->depth] = 1;
    newline(w);
}

void ls_jsonw_open(ls_jsonw *w, char bracket)
{
    before_value(w);
    LS_ASSERT(w->depth < LS_JSON_DEPTH);
    ls_str_addc(w->out, bracket);
    w->depth++;
    w->in_array[w->depth] = bracket == '[';
    w->has_item[w->depth] = 0;
}

void ls_jsonw_close(ls_jsonw *w)
{
    LS_ASSERT(w->depth > 0 && !w->after_key);
    int had = w->has_item[w->depth], array = w->in_array[w->depth];
    w->depth--;
    if (had) newline(w);
    ls_str_addc(w->out, array ? ']' : '}');
}

static void quoted(ls_str *out, ls_substr text)
{
    static const char plain[] = "\"\\\n\r\t\b\f", escaped[] = "\"\\nrtbf";
    ls_str_addc(out, '"');
    const unsigned char *p = (const unsigned char *)text.data, *const end = p + text.n;
    while (p < end) {
        uint32_t c;
        const int n = ls_utf8_decode(p, (size_t)(end - p), &c);
        if (!n) c = 0xfffd;
        p += n ? n : 1;
        const char *e = c < 0x7f ? memchr(plain, (int)c, sizeof plain - 1) : NULL;
        if (e) ls_str_addf(out, "\\%c", escaped[e - plain]);
        else if (c >= 0x20 && c < 0x7f) ls_str_addc(out, (char)c);
        else if (c < 0x10000) ls_str_addf(out, "\\u%04x", c);
        else ls_str_addf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
    }
    ls_str_addc(out, '"');
}

void ls_jsonw_key(ls_jsonw *w, const char *key)
{
    LS_ASSERT(w->depth > 0 && !w->in_array[w->depth] && !w->after_key);
    if (w->has_item[w->depth]) ls_str_add(w->out, w->indent ? "," : ", ");
    w->has_item[w->depth] = 1;
    newline(w);
    quoted(w->out, (ls_substr){key, strlen(key)});
    ls_str_add(w->out, ": ");
    w->after_key = 1;
}

void ls_jsonw_str(ls_jsonw *w, const char *value)
{
    if (value) ls_jsonw_text(w, (ls_substr){value, strlen(value)});
    else ls_jsonw_null(w);
}

void ls_jsonw_text(ls_jsonw *w, ls_substr value)
{
    before_value(w);
    quoted(w->out, value);
}

void ls_jsonw_int(ls_jsonw *w, int64_t value)
{
    before_value(w);
    ls_str_addf(w->out, "%lld", (long long)value);
}

void ls_jsonw_raw(ls_jsonw *w, const char *text)
{
    before_value(w);
    ls_str_add(w->out, text);
}

void ls_jsonw_real(ls_jsonw *w, double value)
{
    char buf[32];
    ls_jsonw_raw(w, ls_json_real(buf, value));
}

void ls_jsonw_bool(ls_jsonw *w, int value)
{
    ls_jsonw_raw(w, value ? "true" : "false");
}

void ls_jsonw_null(ls_jsonw *w)
{
    ls_jsonw_raw(w, "null");
}

void ls_jsonw_put_str(ls_jsonw *w, const char *key, const char *value)
{
    ls_jsonw_key(w, key);
    ls_jsonw_str(w, value);
}

void ls_jsonw_put_text(ls_jsonw *w, const char *key, ls_substr value)
{
    ls_jsonw_key(w, key);
    ls_jsonw_text(w, value);
}

void ls_jsonw_put_int(ls_jsonw *w, const char *key, int64_t value)
{
    ls_jsonw_key(w, key);
    ls_jsonw_int(w, value);
}

void ls_jsonw_put_count(ls_jsonw *w, const char *key, int64_t value)
{
    ls_jsonw_key(w, key);
    if (value < 0) ls_jsonw_null(w);
    else ls_jsonw_int(w, value);
}

void ls_jsonw_put_real(ls_jsonw *w, const char *key, double value)
{
    ls_jsonw_key(w, key);
    ls_jsonw_real(w, value);
}

void ls_jsonw_put_bool(ls_jsonw *w, const char *key, int value)
{
    ls_jsonw_key(w, key);
    ls_jsonw_bool(w, value);
}

void ls_jsonw_put_open(ls_jsonw *w, const char *key, char bracket)
{
    ls_jsonw_key(w, key);
    ls_jsonw_open(w, bracket);
}

void ls_jsonw_put_value(ls_jsonw *w, const char *key, const json_t *value)
{
    ls_jsonw_key(w, key);
    ls_jsonw_value(w, value);
}

void ls_jsonw_value(ls_jsonw *w, const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: {
        const char *k;
        json_t *item;
        ls_jsonw_open(w, '{');
        json_object_foreach((json_t *)(uintptr_t)v, k, item)
        {
            ls_jsonw_key(w, k);
            ls_jsonw_value(w, item);
        }
        ls_jsonw_close(w);
        break;
    }
    case JSON_ARRAY:
        ls_jsonw_open(w, '[');
        for (size_t i = 0; i < json_array_size(v); i++) ls_jsonw_value(w, json_array_get(v, i));
        ls_jsonw_close(w);
        break;
    case JSON_STRING: ls_jsonw_text(w, (ls_substr){json_string_value(v), json_string_length(v)}); break;
    case JSON_INTEGER: ls_jsonw_int(w, json_integer_value(v)); break;
    case JSON_REAL: ls_jsonw_real(w, json_real_value(v)); break;
    case JSON_TRUE:
    case JSON_FALSE: ls_jsonw_bool(w, json_is_true(v)); break;
    case JSON_NULL: ls_jsonw_null(w); break;
    }
}
