#include "core/str.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool room_for(ls_str *s, size_t n)
{
    if (s->failed) return false;
    if (s->len + n + 1 <= s->cap) return true;
    size_t cap = s->cap ? s->cap * 2 : 256;
    while (cap < s->len + n + 1) cap *= 2;
    char *p = ls_realloc(s->data, cap);
    if (!p) {
        s->failed = true;
        return false;
    }
    s->data = p;
    s->cap = cap;
    return true;
}

void ls_str_addn(ls_str *s, const void *bytes, size_t n)
{
    if (!room_for(s, n)) return;
    if (n) memcpy(s->data + s->len, bytes, n);
    s->len += n;
    s->data[s->len] = '\0';
}

void ls_str_add(ls_str *s, const char *text)
{
    ls_str_addn(s, text, strlen(text));
}

void ls_str_addc(ls_str *s, char c)
{
    ls_str_addn(s, &c, 1);
}

void ls_str_addf(ls_str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !room_for(s, (size_t)n)) return;
    va_start(ap, fmt);
    vsnprintf(s->data + s->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    s->len += (size_t)n;
}

void ls_str_printable(ls_str *s)
{
    for (size_t i = 0; i < s->len;) {
        uint32_t c = 0;
        const int n = ls_utf8_decode((const unsigned char *)s->data + i, s->len - i, &c);
        if (!n || (c < 32 && c != '\n' && c != '\t') || (c >= 127 && c < 160))
            memset(s->data + i, '?', n ? (size_t)n : 1); /* U+0080 to U+009F are control characters, too */
        i += n ? (size_t)n : 1;
    }
}

void ls_str_fini(ls_str *s)
{
    ls_free(s->data);
    *s = (ls_str){0};
}

bool ls_parse_f64(const char *text, double *out)
{
    if (!text || !*text || isspace((unsigned char)*text)) return false;
    char *end = NULL;
    errno = 0;
    double v = strtod(text, &end);
    if (*end || !isfinite(v)) return false;
    *out = v;
    return true;
}

static double characters(const char *text, size_t n)
{
    double k = 0;
    for (size_t i = 0; i < n; i++) k += (text[i] & 0xc0) != 0x80;
    return k;
}

size_t ls_line_of(const char *text, double width, double (*columns)(const char *text, size_t n))
{
    size_t fits = 0, blank = 0;
    columns = columns ? columns : characters;
    for (size_t n = 1; text[n - 1]; n++) {
        if ((text[n] & 0xc0) == 0x80) continue; /* inside a character */
        if (columns(text, n) > width) return blank ? blank : fits ? fits : n;
        fits = n;
        if (text[n] == ' ') blank = n;
    }
    return fits;
}

void ls_str_add_piece(ls_str *s, const char **text, int width)
{
    const size_t n = ls_line_of(*text, width, NULL);
    ls_str_addf(s, "%.*s%*s", (int)n, *text, width - (int)characters(*text, n), "");
    *text += n;
    *text += strspn(*text, " ");
}

bool ls_ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}

bool ls_one_of(const char *choices, const char *word, bool any_case)
{
    const size_t n = strlen(word);
    for (const char *p = choices; *p;) {
        const size_t k = strcspn(p, "|");
        if (k == n && !(any_case ? strncasecmp : strncmp)(p, word, n)) return true;
        p += k + (p[k] == '|');
    }
    return false;
}

bool ls_parse_i64(const char *text, int64_t *out)
{
    if (!text || !*text || isspace((unsigned char)*text)) return false;
    char *end = NULL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (!*end && !errno) {
        *out = v;
        return true;
    }
    double d;
    if (errno || !ls_parse_f64(text, &d) || d != floor(d) || fabs(d) > 9.0e15) return false;
    if (strpbrk(text, "xX")) return false;
    *out = (int64_t)d;
    return true;
}

size_t ls_edit_distance(const char *a, const char *b)
{
    size_t n = strlen(b);
    size_t row[64], above[64] = {0}; /* of a's previous character, and of the one before it */
    if (n >= 64 || strlen(a) >= 64) return SIZE_MAX;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diag = row[0], next[64];
        next[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diag + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (next[j - 1] + 1 < best) best = next[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above[j - 2] + 1 < best)
                best = above[j - 2] + 1;
            next[j] = best;
            diag = row[j];
        }
        memcpy(above, row, (n + 1) * sizeof *row);
        memcpy(row, next, (n + 1) * sizeof *row);
    }
    return row[n];
}

const char *ls_nearest_word(const char *word, const char *const *words, size_t n)
{
    const char *best = NULL;
    size_t least = strlen(word) / 3 + 1;
    for (size_t i = 0; i < n; i++) {
        size_t d = ls_edit_distance(word, words[i]);
        if (d < least || (d == least && !best)) {
            least = d;
            best = words[i];
        }
    }
    return best;
}

char *ls_human_bytes(char buf[32], double nbytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (nbytes >= 1024 && u < 4) {
        nbytes /= 1024;
        u++;
    }
    snprintf(buf, 32, u ? "%.1f %s" : "%.0f %s", nbytes, unit[u]);
    return buf;
}

char *ls_human_time(char buf[32], double seconds)
{
    long s = seconds < 0 ? 0 : (long)(seconds + 0.5);
    if (s < 60) snprintf(buf, 32, "%lds", s);
    else if (s < 3600) snprintf(buf, 32, "%ldm%02lds", s / 60, s % 60);
    else snprintf(buf, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    return buf;
}

char *ls_number_text(char buf[40], double x, int decimals)
{
    char plain[40];
    if (!isfinite(x)) {
        snprintf(buf, 40, "\xe2\x80\x93"); /* an en dash */
        return buf;
    }
    if (fabs(x) >= 1e15 || (x != 0 && fabs(x) < 1e-6)) {
        snprintf(buf, 40, "%.3g", x);
        return buf;
    }
    snprintf(plain, sizeof plain, "%.*f", decimals, x);
    if (plain[0] == '-' && !plain[1 + strspn(plain + 1, "0.")])
        memmove(plain, plain + 1, strlen(plain)); /* no minus zero */
    size_t digits = strcspn(plain, "."), sign = plain[0] == '-', k = 0;
    for (size_t i = 0; plain[i] && k < 38; i++) {
        if (i > sign && i < digits && (digits - i) % 3 == 0) buf[k++] = ',';
        buf[k++] = plain[i];
    }
    buf[k] = '\0';
    return buf;
}
