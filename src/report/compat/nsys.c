/* nsys.c - one pass over the text per section; a row is a line whose first field is a number. The summary is in nsys_summary.c. */
#include "report/compat/nsys.h"
#include "core/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the white space at p (ASCII, and the Unicode blanks that locales put between digits), 0 when there is none. */
static size_t blank(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    if (*u == ' ' || (*u >= '\t' && *u <= '\r') || (*u >= 0x1c && *u <= 0x1f)) return 1;
    if (u[0] == 0xc2) return u[1] == 0xa0 || u[1] == 0x85 ? 2 : 0;
    if (u[0] == 0xe3) return u[1] == 0x80 && u[2] == 0x80 ? 3 : 0;
    if (u[0] != 0xe2 || u[1] != 0x80) return 0;
    return (u[2] >= 0x80 && u[2] <= 0x8a) || u[2] == 0xa8 || u[2] == 0xaf ? 3 : 0;
}

/* Cuts a line into fields at runs of two or more blanks, and drops blanks at both ends: the first two fields, and the last. Returns their
 * number. */
static int split(char *line, char *f[3])
{
    int n = 0;
    bool open = false; /* inside a field */
    for (char *p = line; *p;) {
        char *run = p;
        int n_blank = 0;
        for (size_t k; (k = blank(p)); p += k) n_blank++;
        if (open && (n_blank > 1 || (n_blank && !*p))) {
            *run = '\0';
            open = false;
        }
        if (!*p) break;
        if (!open) {
            if (n < 2) f[n] = p;
            f[2] = p;
            n++;
            open = true;
        }
        p++;
    }
    return n;
}

static bool percent_of(char *text, double *out)
{
    const size_t n = strlen(text);
    if (n && text[n - 1] == '%') text[n - 1] = '\0';
    return !strpbrk(text, "xX") && ls_parse_f64(text, out);
}

static const char *unit_at(const char *p)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    for (size_t i = 0; i < 4; i++) {
        const size_t n = strlen(units[i]);
        if (!strncmp(p, units[i], n) && p[n] != '_' && !isalnum((unsigned char)p[n])) return units[i];
    }
    return NULL;
}

/* "62,14,25" -> "621425 ns"; "1.5 ms" as it is; else NULL. *ok is false when memory is out. */
static char *total_of(char *s, bool *ok)
{
    static const char digits[] = "0123456789";
    char *out = NULL;
    size_t n = 0;
    for (const char *p = s; *p; p++)
        if (*p != ',') s[n++] = *p;
    s[n] = '\0';
    *ok = true;
    if (n && strspn(s, digits) == n) {
        out = ls_asprintf("%s ns", s);
        *ok = out;
    }
    for (const char *p = s; !out && *ok && (p = strpbrk(p, digits));) {
        size_t len = strspn(p, digits);
        const size_t more = p[len] == '.' ? strspn(p + len + 1, digits) : 0;
        if (more) len += 1 + more;
        const char *at = p + len;
        for (size_t k; (k = blank(at));) at += k;
        const char *unit = unit_at(at);
        if (unit) {
            out = ls_asprintf("%.*s %s", (int)len, p, unit);
            *ok = out;
        }
        p += len;
    }
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

/* Adds a line of a section, if it is a row. It is cut. */
static ls_status add_line(const char *raw, char *line, ls_nsys_rows *rows)
{
    char *f[3];
    double percent;
    bool ok;
    if (split(line, f) < 3 || *f[0] == '-' || *f[0] == '=' || !percent_of(f[0], &percent)) return LS_OK;
    LS_TRY(ls_nsys_add(
        rows, (ls_nsys_row){
                  .percent = percent, .total = total_of(f[1], &ok), .name = ls_strdup(f[2]), .raw = ls_strdup(raw)}));
    return ok ? LS_OK : ls_nomem(strlen(raw), "a row of a summary");
}

ls_status ls_nsys_parse(const char *text, size_t n, const char *marker, ls_nsys_rows *rows)
{
    bool inside = false;
    ls_status st = LS_OK;
    for (const char *p = text, *stop = text + n, *end; p < stop && st == LS_OK; p = end + 1) {
        end = memchr(p, '\n', (size_t)(stop - p));
        if (!end) end = stop;
        const size_t len = (size_t)(end - p) - (end > p && end[-1] == '\r');
        char *raw = ls_strndup(p, len), *line = ls_strndup(p, len), *at = line;
        if (!raw || !line) st = ls_nomem(len, "a line of nsys");
        for (size_t k; st == LS_OK && (k = blank(at));) at += k;
        if (st == LS_OK && strstr(at, marker)) inside = true;
        else if (st == LS_OK) {
            inside = inside && strncmp(at, "**", 2) && strncmp(at, "Processing [", 12);
            if (inside) st = add_line(raw, at, rows);
        }
        ls_free(raw);
        ls_free(line);
    }
    return st;
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
