#include "report/read/keys.h"
#include "core/fs.h"
#include "core/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ls_notes_add(ls_notes *notes, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (!notes || notes->failed) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    char *text = ls_grow(&notes->text, notes->n, &notes->cap, sizeof *notes->text) ? ls_strdup(line) : NULL;
    if (text) notes->text[notes->n++] = text;
    else notes->failed = true;
}

ls_status ls_notes_failure(ls_notes *notes, ls_status st)
{
    if (st == LS_OK || st == LS_E_NOMEM) return st;
    ls_notes_add(notes, "%s", ls_err_words());
    ls_err_clear();
    return LS_OK;
}

void ls_notes_fini(ls_notes *notes)
{
    for (int i = 0; i < notes->n; i++) ls_free(notes->text[i]);
    ls_free(notes->text);
    *notes = (ls_notes){0};
}

static const char *const type_words[] = {
    [JSON_OBJECT] = "an object",    [JSON_ARRAY] = "a list",  [JSON_STRING] = "text",
    [JSON_INTEGER] = "a number",    [JSON_REAL] = "a number", [JSON_TRUE] = "true or false",
    [JSON_FALSE] = "true or false", [JSON_NULL] = "null"};

static void wrong(const report_doc *d, const char *path, size_t n, json_type wanted, const json_t *v)
{
    ls_notes_add(d->notes, "%s: key %.*s: %s was expected, not %s", d->file, (int)n, path, type_words[wanted],
                 type_words[json_typeof(v)]);
}

const json_t *report_get(const report_doc *d, const char *path)
{
    const json_t *v = d->root;
    for (const char *p = path; v && *p;) {
        char key[64];
        size_t n = strcspn(p, ".");
        if (!json_is_object(v)) {
            wrong(d, path, p > path ? (size_t)(p - path - 1) : 0, JSON_OBJECT, v);
            return NULL;
        }
        snprintf(key, sizeof key, "%.*s", (int)n, p);
        v = json_object_get(v, key);
        if (json_is_null(v)) v = NULL;
        p += n + (p[n] == '.');
    }
    return v;
}

static const json_t *of_type(const report_doc *d, const char *path, json_type type)
{
    const json_t *v = report_get(d, path);
    const bool fits = v && (json_typeof(v) == type || (type == JSON_REAL && json_is_integer(v)));
    if (v && !fits) wrong(d, path, strlen(path), type, v);
    return fits ? v : NULL;
}

double report_num(const report_doc *d, const char *path)
{
    const json_t *v = of_type(d, path, JSON_REAL);
    const double x = v ? json_number_value(v) : NAN;
    return isfinite(x) ? x : NAN;
}

int64_t report_int(const report_doc *d, const char *path)
{
    double x = report_num(d, path);
    if (isnan(x)) return -1;
    if (x < 0 || x != floor(x) || x > 9.0e15) {
        ls_notes_add(d->notes, "%s: key %s: a whole number from 0 was expected, not %g", d->file, path, x);
        return -1;
    }
    return (int64_t)x;
}

const char *report_str(const report_doc *d, const char *path)
{
    return json_string_value(of_type(d, path, JSON_STRING));
}

const json_t *report_object(const report_doc *d, const char *path)
{
    return of_type(d, path, JSON_OBJECT);
}

const json_t *report_array(const report_doc *d, const char *path)
{
    return of_type(d, path, JSON_ARRAY);
}

void report_parse(const char *text, size_t n, const char *file, ls_notes *notes, json_t **out)
{
    (void)ls_notes_failure(notes, ls_json_parse(text, n, file, out));
    if (!*out || json_is_object(*out)) return;
    ls_notes_add(notes, "%s: an object was expected, not %s", file, type_words[json_typeof(*out)]);
    json_decref(*out);
    *out = NULL;
}

ls_status report_load(const char *dir, const char *name, ls_notes *notes, json_t **out)
{
    const ls_path path = ls_path_of(dir, name);
    char *text = NULL;
    size_t n = 0;
    if (!ls_fs_exists(path.text)) return LS_OK;
    LS_TRY(ls_notes_failure(notes, ls_fs_read_most(path.text, LS_FS_TEXT_MOST, &text, &n)));
    if (text) report_parse(text, n, path.text, notes, out);
    ls_free(text);
    return LS_OK;
}
