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
    if (notes->n == notes->cap) {
        int cap = notes->cap ? 2 * notes->cap : 8;
        char **p = ls_realloc(notes->text, (size_t)cap * sizeof *p);
        if (!p) {
            notes->failed = true;
            return;
        }
        notes->text = p;
        notes->cap = cap;
    }
    if ((notes->text[notes->n] = ls_strdup(line))) notes->n++;
    else notes->failed = true;
}

void ls_notes_fini(ls_notes *notes)
{
    for (int i = 0; i < notes->n; i++) ls_free(notes->text[i]);
    ls_free(notes->text);
    *notes = (ls_notes){0};
}

static const char *kind_word(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "text";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "true or false";
    case JSON_NULL: break;
    }
    return "null";
}

static void wrong(const report_doc *d, const char *path, size_t n, const char *wanted, const json_t *v)
{
    ls_notes_add(d->notes, "%s: key %.*s: %s was expected, not %s", d->file, (int)n, path, wanted, kind_word(v));
}

const json_t *report_get(const report_doc *d, const char *path)
{
    const json_t *v = d->root;
    for (const char *p = path; v && *p;) {
        char key[64];
        size_t n = strcspn(p, ".");
        if (!json_is_object(v)) {
            wrong(d, path, p > path ? (size_t)(p - path - 1) : 0, "an object", v);
            return NULL;
        }
        snprintf(key, sizeof key, "%.*s", (int)n, p);
        v = json_object_get(v, key);
        if (json_is_null(v)) v = NULL;
        p += n + (p[n] == '.');
    }
    return v;
}

double report_num(const report_doc *d, const char *path)
{
    const json_t *v = report_get(d, path);
    if (!v) return NAN;
    if (!json_is_number(v)) {
        wrong(d, path, strlen(path), "a number", v);
        return NAN;
    }
    double x = json_number_value(v);
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
    const json_t *v = report_get(d, path);
    if (!v || json_is_string(v)) return json_string_value(v);
    wrong(d, path, strlen(path), "text", v);
    return NULL;
}

const json_t *report_object(const report_doc *d, const char *path)
{
    const json_t *v = report_get(d, path);
    if (!v || json_is_object(v)) return v;
    wrong(d, path, strlen(path), "an object", v);
    return NULL;
}

const json_t *report_array(const report_doc *d, const char *path)
{
    const json_t *v = report_get(d, path);
    if (!v || json_is_array(v)) return v;
    wrong(d, path, strlen(path), "a list", v);
    return NULL;
}

ls_status report_load(const char *dir, const char *name, ls_notes *notes, json_t **out)
{
    char *path = ls_path_join(dir, name);
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = LS_OK;
    if (ls_fs_exists(path)) {
        st = ls_json_load(path, out);
        if (st == LS_E_FORMAT || st == LS_E_IO) { /* the others are still reported */
            ls_notes_add(notes, "%s", ls_err_words());
            ls_err_clear();
            st = LS_OK;
        } else if (st == LS_OK && !json_is_object(*out)) {
            ls_notes_add(notes, "%s: an object was expected, not %s", path, kind_word(*out));
            json_decref(*out);
            *out = NULL;
        }
    }
    ls_free(path);
    return st;
}
