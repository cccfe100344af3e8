/* dsconfig.c - the reader: walks the JSON by the rows of dsconfig_tables.c. It knows types, ranges and messages; which keys exist
 * and what they mean is in the tables. */
#include "config/dsconfig.h"
#include "config/dsconfig_impl.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PLACE_MAX = 256, WORD_MAX = 128 };

static const char *dotted(char buf[PLACE_MAX], const char *place, const char *key)
{
    snprintf(buf, PLACE_MAX, "%s%s%.100s", place, *place ? "." : "", key);
    return buf;
}

void train_ds_note(ds_reader *r, const char *fmt, ...)
{
    char text[PLACE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ls_str_addf(&r->c->no_effect, "%s%s", r->c->no_effect.len ? ", " : "", text);
}

static const char *nearest_in(const ds_table *t, const char *key)
{
    const char *words[WORD_MAX];
    size_t n = 0;
    for (size_t i = 0; i < t->n && n < WORD_MAX; i++) words[n++] = t->row[i].key;
    return ls_nearest_word(key, words, n);
}

static ls_status unknown_key(ds_reader *r, const char *place, const ds_row *row, size_t n, const char *key)
{
    const ds_table here = {place, row, n}, *in = &here;
    const char *near = nearest_in(&here, key);
    char where[PLACE_MAX], full[PLACE_MAX];
    /* Not here by any spelling: the same word, or a similar one, may belong to another block. */
    for (size_t i = 0; !near && i < train_ds_n_tables; i++) {
        in = &train_ds_tables[i];
        for (size_t j = 0; j < in->n && !near; j++)
            if (!strcmp(in->row[j].key, key)) near = key;
    }
    for (size_t i = 0; !near && i < train_ds_n_tables; i++) near = nearest_in(in = &train_ds_tables[i], key);
    if (!near) return ls_fail(LS_E_CONFIG, "%s: '%s' is not a DeepSpeed key", r->what, dotted(where, place, key));
    return ls_fail(LS_E_CONFIG, "%s: '%s' is not a DeepSpeed key; the nearest one is '%s'%s", r->what,
                   dotted(where, place, key), dotted(full, in->place, near),
                   in == &here  ? ""
                   : *in->place ? ", inside that block"
                                : " at the top level");
}

/* Whether the value, or anything in it, says "enabled": true. */
static bool asks_for_something(const json_t *v, int depth)
{
    const char *key;
    json_t *item;
    if (depth > 16) return true;
    if (json_is_object(v)) {
        json_object_foreach((json_t *)(uintptr_t)v, key, item)
        {
            if (!strcmp(key, "enabled") && json_is_true(item)) return true;
            if (asks_for_something(item, depth + 1)) return true;
        }
        return false;
    }
    return depth == 0 && v && !json_is_null(v) && !json_is_false(v);
}

static bool is_nothing(const json_t *v)
{
    if (json_is_null(v) || json_is_false(v)) return true;
    if (json_is_object(v)) return json_object_size(v) == 0;
    if (json_is_array(v)) return json_array_size(v) == 0;
    return json_is_string(v) && !*json_string_value(v);
}

static ls_status wrong_type(ds_reader *r, const char *place, const json_t *v, const char *wanted)
{
    if (json_is_string(v) && !strcmp(json_string_value(v), "auto"))
        return ls_fail(LS_E_CONFIG, "%s: '%s' is \"auto\", which is not resolved here; give %s or leave the key out",
                       r->what, place, wanted);
    return ls_fail(LS_E_CONFIG, "%s: '%s' must be %s", r->what, place, wanted);
}

static ls_status read_number(ds_reader *r, const char *place, const json_t *v, const ds_row *row, double *out)
{
    bool whole = row->kind == DS_INT;
    if (!json_is_number(v)) return wrong_type(r, place, v, whole ? "a whole number" : "a number");
    double x = json_number_value(v);
    if (!isfinite(x) || (whole && (x != floor(x) || fabs(x) > 9.2e18)))
        return wrong_type(r, place, v, whole ? "a whole number" : "a number");
    bool inside = (row->lo == 0 && row->hi == 0) || (x >= row->lo && x <= row->hi);
    if (!inside && row->effect == DS_REFUSE)
        return ls_fail(LS_E_UNSUPPORTED, "%s: '%s' is %g: this feature is not supported; leave the key out", r->what,
                       place, x);
    if (!inside && isinf(row->hi))
        return ls_fail(LS_E_CONFIG, "%s: '%s' is %g, but must be at least %g", r->what, place, x, row->lo);
    if (!inside)
        return ls_fail(LS_E_CONFIG, "%s: '%s' is %g, but must be in %g..%g", r->what, place, x, row->lo, row->hi);
    *out = x;
    return LS_OK;
}

static bool one_of(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = choices; *p;) {
        size_t k = strcspn(p, "|");
        if (k == n && !strncasecmp(p, word, n)) return true;
        p += k + (p[k] == '|');
    }
    return false;
}

static ls_status read_text(ds_reader *r, const char *place, const json_t *v, const ds_row *row)
{
    if (!json_is_string(v)) return wrong_type(r, place, v, "text");
    const char *s = json_string_value(v);
    if (row->words && !one_of(row->words, s))
        return ls_fail(LS_E_CONFIG, "%s: '%s' is '%.60s', but must be one of %s", r->what, place, s, row->words);
    if (!row->at) return LS_OK;
    char *dst = (char *)r->c + row->at; /* stored texts are choices of at most 7 bytes, in lower case */
    size_t i = 0;
    for (; s[i] && i < 7; i++) dst[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] + 32 : s[i]);
    dst[i] = '\0';
    return LS_OK;
}

static ls_status read_row(ds_reader *r, const char *place, const json_t *v, const ds_row *row, bool strict)
{
    char *base = (char *)r->c;
    if (strict && json_is_string(v) && !strcmp(json_string_value(v), "auto")) {
        if (!strcmp(place, "fp16.enabled") || !strcmp(place, "bf16.enabled")) r->c->precision_auto = true;
        return LS_OK;
    }
    if (json_is_null(v)) return LS_OK; /* the default */
    if (row->effect == DS_REFUSE && (row->kind == DS_BOOL || row->kind == DS_ANY || row->kind == DS_BLOCK) &&
        asks_for_something(v, 0))
        return ls_fail(LS_E_UNSUPPORTED, "%s: '%s' is enabled but not supported; remove or disable it", r->what, place);
    if (row->effect == DS_INERT && row->kind != DS_BLOCK && row->kind != DS_CALL && !is_nothing(v))
        train_ds_note(r, "%s", place);
    double x = 0;
    switch (row->kind) {
    case DS_BOOL:
        if (!json_is_boolean(v)) return wrong_type(r, place, v, "true or false");
        if (row->at) *(bool *)(void *)(base + row->at) = json_is_true(v);
        break;
    case DS_INT:
    case DS_REAL:
        LS_TRY(read_number(r, place, v, row, &x));
        if (row->at && row->kind == DS_INT)
            *(int64_t *)(void *)(base + row->at) = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)x;
        if (row->at && row->kind == DS_REAL) *(double *)(void *)(base + row->at) = x;
        break;
    case DS_TEXT: LS_TRY(read_text(r, place, v, row)); break;
    case DS_BLOCK:
        if (!json_is_object(v)) return wrong_type(r, place, v, "an object");
        LS_TRY(train_ds_block(r, place, v, row->sub, row->n_sub, strict || row->strict));
        break;
    case DS_CALL: LS_TRY(row->call(r, place, v)); break;
    case DS_ANY: break;
    }
    if (row->given) *(bool *)(void *)(base + row->given) = true;
    return LS_OK;
}

ls_status train_ds_block(ds_reader *r, const char *place, const json_t *v, const ds_row *row, size_t n, bool strict)
{
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        const ds_row *hit = NULL;
        for (size_t i = 0; i < n && !hit; i++)
            if (!strcmp(row[i].key, key)) hit = &row[i];
        if (!hit) return unknown_key(r, place, row, n, key);
        char where[PLACE_MAX];
        /* At the top a block's own rows decide ("auto" is for DeepSpeed's strict blocks). */
        LS_TRY(read_row(r, dotted(where, place, key), item, hit, strict));
    }
    return LS_OK;
}

void ls_ds_config_fini(ls_ds_config *c)
{
    ls_str_fini(&c->no_effect);
    ls_free(c->path);
    *c = (ls_ds_config){0};
}

ls_status ls_ds_config_parse(const char *text, size_t n, const char *what, ls_ds_config *out)
{
    ls_ds_config c;
    ds_reader r = {&c, what};
    json_t *root = NULL;
    ls_sha256 sha;
    ls_status st = ls_json_parse(text, n, what, &root);
    if (st != LS_OK) { /* a configuration that is no JSON is a bad configuration, not bad data */
        char words[512];
        snprintf(words, sizeof words, "%s", ls_err_words());
        return ls_fail(LS_E_CONFIG, "%s (comments and trailing commas are not JSON; a key may occur once)", words);
    }
    train_ds_defaults(&c);
    if (!json_is_object(root)) {
        json_decref(root);
        return ls_fail(LS_E_CONFIG, "%s: a DeepSpeed configuration must be a JSON object", what);
    }
    ls_sha256_init(&sha);
    ls_sha256_add(&sha, text, n);
    ls_sha256_hex(&sha, c.sha256);
    LS_TRY_GOTO(st, done, train_ds_block(&r, "", root, train_ds_tables[0].row, train_ds_tables[0].n, false));
    LS_TRY_GOTO(st, done, train_ds_check(&r, root));
    if (c.no_effect.failed) st = ls_nomem(c.no_effect.cap, "the list of keys without effect");
done:
    if (st != LS_OK) ls_ds_config_fini(&c);
    else *out = c;
    json_decref(root);
    return st;
}

ls_status ls_ds_config_load(const char *path, ls_ds_config *out)
{
    char *text;
    size_t n;
    ls_ds_config c;
    LS_TRY(ls_fs_read(path, &text, &n));
    ls_status st = ls_ds_config_parse(text, n, path, &c);
    ls_free(text);
    LS_TRY(st);
    c.path = ls_strdup(path);
    if (!c.path) {
        ls_ds_config_fini(&c);
        return ls_nomem(strlen(path), "a path");
    }
    ls_debug("config", "read the DeepSpeed configuration %s (%zu bytes)", path, n);
    *out = c;
    return LS_OK;
}
