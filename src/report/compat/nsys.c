/* nsys.c - the text of `nsys stats`: a row is a line whose first field is a number; then the summary of all files. */
#include "core/fs.h"
#include "core/mem.h"
#include "report/compat/profile_summary.h"
#include "report/read/keys.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
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

/* "1.5 ms" in nanoseconds; -1: no time. */
static double nanoseconds(const char *total)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{" ns", 1}, {" us", 1e3}, {" ms", 1e6}, {" s", 1e9}};
    for (size_t i = 0; total && i < sizeof units / sizeof *units; i++)
        if (ls_ends_in(total, units[i].unit)) return strtod(total, NULL) * units[i].ns;
    return -1;
}

/* Adds row b to a: the time, and its line. */
static ls_status add_row(ls_nsys_row *a, const ls_nsys_row *b)
{
    char *raw = ls_asprintf("%s\n%s", a->raw, b->raw);
    char *total = ls_asprintf("%.0f ns", nanoseconds(a->total) + nanoseconds(b->total));
    if (!raw || !total) {
        ls_free(raw);
        ls_free(total);
        return ls_nomem(strlen(b->raw), "a row of a summary");
    }
    ls_free(a->raw);
    ls_free(a->total);
    a->raw = raw;
    a->total = total;
    return LS_OK;
}

ls_status ls_nsys_merge(ls_nsys_rows *rows)
{
    double all = 0;
    const int before = rows->n;
    ls_status st = LS_OK;
    for (int i = 0; i < rows->n; i++) {
        if (nanoseconds(rows->row[i].total) < 0) return LS_OK; /* what has no time cannot be added */
        all += nanoseconds(rows->row[i].total);
    }
    for (int i = 0; i < rows->n; i++) {
        int n = i + 1;
        for (int k = i + 1; k < rows->n; k++) {
            const bool same = st == LS_OK && !strcmp(rows->row[i].name, rows->row[k].name);
            if (same) st = add_row(&rows->row[i], &rows->row[k]);
            if (same && st == LS_OK) row_fini(&rows->row[k]);
            else rows->row[n++] = rows->row[k];
        }
        rows->n = n;
    }
    for (int i = 0; rows->n < before && all > 0 && i < rows->n; i++)
        rows->row[i].percent = round(1000 * nanoseconds(rows->row[i].total) / all) / 10; /* nsys prints one digit */
    return st;
}

void ls_nsys_rows_fini(ls_nsys_rows *rows)
{
    for (int i = 0; i < rows->n; i++) row_fini(&rows->row[i]);
    ls_free(rows->row);
    *rows = (ls_nsys_rows){0};
}

/* ---- the summary ---- */

#define NVTX "NVTX Range Summary"
#define OSRT "OS Runtime Summary"

static bool is_report(const char *name)
{
    return !strncmp(name, "nsys_", 5) && (ls_ends_in(name, ".nsys-rep") || ls_ends_in(name, ".qdrep"));
}

static bool is_stats(const char *name)
{
    return !strncmp(name, "nsys_stats_", 11) && strlen(name) >= 15 && ls_ends_in(name, ".txt");
}

/* nsys_<digits>_<host>.nsys-rep: adds the host to a sorted list. */
static void add_host(const char *name, json_t *list)
{
    char host[256];
    const char *p = name + 5 + strspn(name + 5, "0123456789"), *dot = strrchr(name, '.');
    size_t i = 0, n = json_array_size(list);
    if (p == name + 5 || *p != '_' || dot <= p + 1) return;
    snprintf(host, sizeof host, "%.*s", (int)(dot - p - 1), p + 1);
    while (i < n && strcmp(json_string_value(json_array_get(list, i)), host) < 0) i++;
    if (i == n || strcmp(json_string_value(json_array_get(list, i)), host))
        json_array_insert_new(list, i, json_string_nocheck(host));
}

/* As the launcher recorded them, one per line; else those that the names of the reports contain; else null. */
static json_t *hosts_of(const json_t *launcher, char **names, size_t n)
{
    const report_doc d = {.root = launcher};
    const char *text = report_str(&d, "slurm.hosts");
    json_t *list = json_array();
    if (!text) text = report_str(&d, "hosts");
    for (const char *p = text ? text : ""; *p;) {
        const size_t len = strcspn(p, "\n");
        if (strspn(p, " \t\r\v\f") < len) json_array_append_new(list, json_stringn_nocheck(p, len));
        p += len + (p[len] == '\n');
    }
    const bool recorded = json_array_size(list) > 0;
    for (size_t i = 0; i < n && !recorded; i++)
        if (is_report(names[i])) add_host(names[i], list);
    if (json_array_size(list)) return list;
    json_decref(list);
    return json_null();
}

static ls_status read_stats(const char *profiles, profile_file *f, ls_nsys_rows *nvtx, ls_nsys_rows *osrt)
{
    char *text = NULL;
    size_t n = 0;
    ls_status st = ls_fs_read(ls_path_of(profiles, f->name).text, &text, &n);
    if (st == LS_OK) st = ls_nsys_parse(text, n, NVTX, &f->nvtx);
    if (st == LS_OK) st = ls_nsys_parse(text, n, OSRT, &f->osrt);
    if (st == LS_OK) st = ls_nsys_parse(text, n, NVTX, nvtx);
    if (st == LS_OK) st = ls_nsys_parse(text, n, OSRT, osrt);
    ls_nsys_rank(&f->nvtx);
    ls_nsys_rank(&f->osrt);
    ls_free(text);
    return st;
}

/* The host in nsys_stats_<digits>_<host>.txt and its length, .txt included; "" where the name has none. */
static const char *stats_host(const char *name)
{
    const char *p = name + 11 + strspn(name + 11, "0123456789");
    return p > name + 11 && *p == '_' ? p + 1 : "";
}

/* Takes out the rows of the last file, from `first` on, that an earlier file of the same host has, too: one report that was printed twice. The times of
 * two captures have nanoseconds and are never equal. */
static void drop_again(profile_summary *p, ls_nsys_rows *rows, int first)
{
    const int file = p->n_file - 1;
    int n = first;
    for (int i = first; i < rows->n; i++) {
        bool again = false;
        rows->row[i].file = file;
        for (int k = 0; k < first && !again; k++)
            again = !strcmp(rows->row[k].raw, rows->row[i].raw) &&
                    !strcmp(stats_host(p->file[rows->row[k].file].name), stats_host(p->file[file].name));
        if (again) row_fini(&rows->row[i]);
        else rows->row[n++] = rows->row[i];
    }
    p->n_again += rows->n - n;
    rows->n = n;
}

static ls_status write_summary(profile_summary *p, const char *run_dir, char **names, size_t n, ls_str *out)
{
    ls_jsonw w;
    LS_TRY(profile_summary_begin(p, run_dir));
    p->hosts = hosts_of(p->launcher, names, n);
    for (size_t i = 0; i < n; i++)
        if (is_report(names[i])) json_array_append_new(p->reports, json_string_nocheck(names[i]));
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    profile_summary_put(p, &w);
    ls_jsonw_close(&w);
    return out->failed ? ls_nomem(out->cap, "a profile summary") : LS_OK;
}

ls_status ls_nsys_summary_text(const char *run_dir, ls_str *out, size_t *n_file)
{
    const ls_path profiles = ls_path_of(run_dir, "profiles");
    char **names = NULL;
    size_t n = 0;
    ls_nsys_rows nvtx = {0}, osrt = {0};
    profile_summary p = {.nvtx = &nvtx, .osrt = &osrt};
    ls_status st = LS_OK;
    if (ls_fs_is_dir(profiles.text)) LS_TRY(ls_fs_list(profiles.text, &names, &n));
    p.file = ls_alloc((n + 1) * sizeof *p.file);
    if (!p.file) st = ls_nomem(n * sizeof *p.file, "a list of files");
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        if (!is_stats(names[i])) continue;
        const int before = nvtx.n, before_os = osrt.n;
        p.file[p.n_file].name = names[i];
        st = read_stats(profiles.text, &p.file[p.n_file++], &nvtx, &osrt);
        drop_again(&p, &nvtx, before);
        drop_again(&p, &osrt, before_os);
    }
    if (st == LS_OK) st = ls_nsys_merge(&nvtx);
    if (st == LS_OK) st = ls_nsys_merge(&osrt);
    ls_nsys_rank(&nvtx);
    ls_nsys_rank(&osrt);
    *n_file = (size_t)p.n_file;
    if (st == LS_OK && p.n_file) st = write_summary(&p, run_dir, names, n, out);
    for (int i = 0; i < p.n_file; i++) {
        ls_nsys_rows_fini(&p.file[i].nvtx);
        ls_nsys_rows_fini(&p.file[i].osrt);
    }
    ls_nsys_rows_fini(&nvtx);
    ls_nsys_rows_fini(&osrt);
    ls_free(p.file);
    ls_fs_list_free(names, n);
    profile_summary_fini(&p);
    return st;
}
