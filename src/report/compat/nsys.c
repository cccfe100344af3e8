/* nsys.c - one pass over the text per section; a row is a line whose first field is a number. The summary is in nsys_summary.c. */
#include "report/compat/nsys.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the white space at p (ASCII, and the Unicode blanks that locales put between digits), 0 when there is none. */
static size_t blank(const char *p, const char *end)
{
    const unsigned char *u = (const unsigned char *)p;
    if (p >= end) return 0;
    if (*u == ' ' || (*u >= '\t' && *u <= '\r') || (*u >= 0x1c && *u <= 0x1f)) return 1;
    if (end - p >= 2 && u[0] == 0xc2 && (u[1] == 0xa0 || u[1] == 0x85)) return 2;
    if (end - p >= 3 && u[0] == 0xe2 && u[1] == 0x80 &&
        ((u[2] >= 0x80 && u[2] <= 0x8a) || u[2] == 0xa8 || u[2] == 0xaf))
        return 3;
    if (end - p >= 3 && u[0] == 0xe3 && u[1] == 0x80 && u[2] == 0x80) return 3;
    return 0;
}

static const char *trim_left(const char *p, const char *end)
{
    for (size_t k; (k = blank(p, end));) p += k;
    return p;
}

static const char *trim_right(const char *p, const char *end)
{
    const char *last = p; /* after the last byte that is no blank */
    while (p < end) {
        size_t k = blank(p, end);
        p += k ? k : 1;
        if (!k) last = p;
    }
    return last;
}

static bool holds(const char *p, const char *end, const char *word)
{
    return memmem(p, (size_t)(end - p), word, strlen(word)) != NULL;
}

static bool begins(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(end - p) >= n && !memcmp(p, word, n);
}

typedef struct field {
    const char *at, *end;
} field;

/* Fields between runs of two or more blanks: the first two, and the last. Returns their number. */
static int split(const char *p, const char *end, field f[3])
{
    int n = 0;
    const char *start = p;
    while (p <= end) {
        size_t k = blank(p, end), k2 = k ? blank(p + k, end) : 0;
        if (p == end || k2) {
            if (n < 2) f[n] = (field){start, p};
            f[2] = (field){start, p};
            n++;
            if (p == end) break;
            start = p = trim_left(p, end);
        } else {
            p += k ? k : 1;
        }
    }
    return n;
}

static bool percent_of(field f, double *out)
{
    char buf[64];
    size_t n = (size_t)(f.end - f.at);
    if (n && f.end[-1] == '%') n--;
    if (!n || n >= sizeof buf) return false;
    memcpy(buf, f.at, n);
    buf[n] = '\0';
    return !strpbrk(buf, "xX") && ls_parse_f64(buf, out);
}

static bool unit_at(const char *p, const char **unit)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    for (size_t i = 0; i < 4; i++) {
        size_t n = strlen(units[i]);
        unsigned char after = (unsigned char)(strncmp(p, units[i], n) ? 'x' : p[n]);
        if (after == '_' || (after >= '0' && after <= '9') || ((after | 32) >= 'a' && (after | 32) <= 'z')) continue;
        *unit = units[i];
        return true;
    }
    return false;
}

/* "62,14,25" -> "621425 ns"; "1.5 ms" as it is; else NULL. *ok is false when memory is out. */
static char *total_of(field f, bool *ok)
{
    char *s = ls_strndup(f.at, (size_t)(f.end - f.at)), *out = NULL;
    *ok = s;
    if (!s) return NULL;
    size_t n = 0;
    for (const char *p = s; *p; p++)
        if (*p != ',') s[n++] = *p;
    s[n] = '\0';
    if (n && strspn(s, "0123456789") == n) {
        out = ls_asprintf("%s ns", s);
        *ok = out;
    } else {
        for (const char *p = s; *p && !out && *ok;) {
            size_t digits = strspn(p, "0123456789");
            if (!digits) {
                p++;
                continue;
            }
            if (p[digits] == '.' && strspn(p + digits + 1, "0123456789"))
                digits += 1 + strspn(p + digits + 1, "0123456789");
            const char *unit, *at = trim_left(p + digits, s + n);
            if (unit_at(at, &unit)) {
                out = ls_asprintf("%.*s %s", (int)digits, p, unit);
                *ok = out;
            }
            p += digits;
        }
    }
    ls_free(s);
    return out;
}

static void row_fini(ls_nsys_row *r)
{
    ls_free(r->name);
    ls_free(r->total);
    ls_free(r->raw);
}

ls_status ls_nsys_add(ls_nsys_rows *rows, ls_nsys_row r)
{
    if (!r.name || !r.raw || !ls_grow(&rows->row, rows->n, &rows->cap, sizeof r)) {
        row_fini(&r);
        return ls_nomem(sizeof r, "a row of a summary");
    }
    r.order = rows->n;
    rows->row[rows->n++] = r;
    return LS_OK;
}

ls_status ls_nsys_parse(const char *text, size_t n, const char *marker, ls_nsys_rows *rows)
{
    bool inside = false;
    for (const char *line = text, *stop = text + n; line < stop;) {
        const char *nl = memchr(line, '\n', (size_t)(stop - line)), *end = nl ? nl : stop, *next = nl ? nl + 1 : stop;
        if (end > line && end[-1] == '\r') end--;
        const char *at = trim_left(line, end), *to = trim_right(at, end);
        const char *whole = line;
        field f[3];
        double percent;
        line = next;
        if (holds(at, to, marker)) {
            inside = true;
            continue;
        }
        if (begins(at, to, "**") || begins(at, to, "Processing [")) inside = false;
        if (!inside || at == to || *at == '-' || *at == '=') continue;
        if (split(at, to, f) < 3 || !percent_of(f[0], &percent)) continue;
        bool ok;
        LS_TRY(ls_nsys_add(rows, (ls_nsys_row){.percent = percent,
                                               .total = total_of(f[1], &ok),
                                               .name = ls_strndup(f[2].at, (size_t)(f[2].end - f[2].at)),
                                               .raw = ls_strndup(whole, (size_t)(end - whole))}));
        if (!ok) return ls_nomem((size_t)(end - whole), "a row of a summary");
    }
    return LS_OK;
}

static int by_share(const void *a, const void *b)
{
    const ls_nsys_row *x = a, *y = b;
    if (x->percent != y->percent) return x->percent < y->percent ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

void ls_nsys_rank(ls_nsys_rows *rows)
{
    if (rows->n) qsort(rows->row, (size_t)rows->n, sizeof *rows->row, by_share);
}

void ls_nsys_rows_fini(ls_nsys_rows *rows)
{
    for (int i = 0; i < rows->n; i++) row_fini(&rows->row[i]);
    ls_free(rows->row);
    *rows = (ls_nsys_rows){0};
}
