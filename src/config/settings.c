/* settings.c - every resolved setting, its value and where it came from: the list, and its two printed forms. */
#include "config/resolve_impl.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *ls_source_word(ls_source s)
{
    switch (s) {
    case LS_FROM_DEFAULT: return "default";
    case LS_FROM_CLI: return "command line";
    case LS_FROM_JSON: return "DeepSpeed JSON";
    case LS_FROM_MODEL: return "model";
    case LS_FROM_ENV: return "environment";
    case LS_FROM_DATA: return "data";
    case LS_FROM_RULE: return "rule";
    }
    return "?";
}

/* NULL once memory was out. */
static ls_setting *put(ls_train_config *c, const char *name, ls_setting_kind kind, ls_source source, const char *detail)
{
    ls_setting *s = NULL;
    if (c->cap_setting < 0) return NULL;
    for (int i = 0; i < c->n_setting && !s; i++)
        if (!strcmp(c->setting[i].name, name)) s = &c->setting[i];
    if (!s && c->n_setting == c->cap_setting) {
        int cap = c->cap_setting ? 2 * c->cap_setting : 64;
        ls_setting *p = ls_realloc(c->setting, (size_t)cap * sizeof *p);
        if (!p) {
            c->cap_setting = -1;
            return NULL;
        }
        c->setting = p;
        c->cap_setting = cap;
    }
    if (!s) s = &c->setting[c->n_setting++];
    else ls_free(s->text);
    *s = (ls_setting){.name = name, .kind = kind, .source = source};
    snprintf(s->detail, sizeof s->detail, "%s", detail ? detail : "");
    return s;
}

void train_put_int(ls_train_config *c, const char *name, int64_t value, ls_source source, const char *detail)
{
    ls_setting *s = put(c, name, LS_SETTING_INT, source, detail);
    if (s) s->i = value;
}

void train_put_bool(ls_train_config *c, const char *name, bool value, ls_source source, const char *detail)
{
    ls_setting *s = put(c, name, LS_SETTING_BOOL, source, detail);
    if (s) s->i = value;
}

void train_put_real(ls_train_config *c, const char *name, double value, ls_source source, const char *detail)
{
    ls_setting *s = put(c, name, LS_SETTING_REAL, source, detail);
    if (s) s->r = value;
}

void train_put_text(ls_train_config *c, const char *name, const char *value, ls_source source, const char *detail)
{
    ls_setting *s = put(c, name, value ? LS_SETTING_TEXT : LS_SETTING_NULL, source, detail);
    if (!s || !value) return;
    s->text = ls_strdup(value);
    if (!s->text) c->cap_setting = -1;
}

ls_status train_settings_check(const ls_train_config *c)
{
    return c->cap_setting < 0 ? ls_nomem(sizeof(ls_setting), "the list of settings") : LS_OK;
}

ls_status train_note(ls_train_config *c, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char **list = ls_realloc(c->note, (size_t)(c->n_note + 1) * sizeof *list);
    if (!list) return ls_nomem(sizeof text, "a note");
    c->note = list;
    list[c->n_note] = ls_strdup(text);
    if (!list[c->n_note]) return ls_nomem(sizeof text, "a note");
    c->n_note++;
    return LS_OK;
}

ls_status train_copy(char **dst, const char *text)
{
    *dst = text ? ls_strdup(text) : NULL;
    return text && !*dst ? ls_nomem(strlen(text), "a path") : LS_OK;
}

static void show(const ls_setting *s, ls_str *out)
{
    char buf[32];
    switch (s->kind) {
    case LS_SETTING_TEXT: ls_str_add(out, s->text); break;
    case LS_SETTING_INT: ls_str_addf(out, "%lld", (long long)s->i); break;
    case LS_SETTING_REAL: ls_str_add(out, ls_json_real(buf, s->r)); break;
    case LS_SETTING_BOOL: ls_str_add(out, s->i ? "true" : "false"); break;
    case LS_SETTING_NULL: ls_str_add(out, "none"); break;
    }
}

void ls_train_config_table(const ls_train_config *c, ls_str *out)
{
    size_t wide = 7, deep = 5;
    for (int i = 0; i < c->n_setting; i++) {
        ls_str v = {0};
        show(&c->setting[i], &v);
        if (strlen(c->setting[i].name) > wide) wide = strlen(c->setting[i].name);
        if (v.len > deep && v.len <= 48) deep = v.len; /* one long path does not widen the table */
        ls_str_fini(&v);
    }
    ls_str_addf(out, "%-*s  %-*s  %s\n", (int)wide, "setting", (int)deep, "value", "source");
    for (int i = 0; i < c->n_setting; i++) {
        const ls_setting *s = &c->setting[i];
        ls_str v = {0};
        show(s, &v);
        ls_str_addf(out, "%-*s  %-*s  %s%s%s%s\n", (int)wide, s->name, (int)deep, v.data ? v.data : "",
                    ls_source_word(s->source), *s->detail ? " (" : "", s->detail, *s->detail ? ")" : "");
        out->failed |= v.failed;
        ls_str_fini(&v);
    }
}

void ls_train_config_json(const ls_train_config *c, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    for (int i = 0; i < c->n_setting; i++) {
        const ls_setting *s = &c->setting[i];
        ls_jsonw_put_open(&w, s->name, '{');
        ls_jsonw_key(&w, "value");
        switch (s->kind) {
        case LS_SETTING_TEXT: ls_jsonw_str(&w, s->text); break;
        case LS_SETTING_INT: ls_jsonw_int(&w, s->i); break;
        case LS_SETTING_REAL: ls_jsonw_real(&w, s->r); break;
        case LS_SETTING_BOOL: ls_jsonw_bool(&w, s->i != 0); break;
        case LS_SETTING_NULL: ls_jsonw_null(&w); break;
        }
        ls_jsonw_put_str(&w, "source", ls_source_word(s->source));
        ls_jsonw_put_str(&w, "from", *s->detail ? s->detail : NULL);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
}
