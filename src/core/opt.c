#include "core/opt.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char fold(char c)
{
    return c == '_' ? '-' : c;
}

static bool same_name(const char *row, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!row[i] || fold(row[i]) != fold(text[i])) return false;
    return true;
}

/* Appends "--a, --b or --c": at most `most` rows whose names begin with `text`, or (not prefix) visible ones that contain it. */
static void list_names(const ls_opt *table, size_t n_row, const char *text, size_t n, bool prefix, int most,
                       ls_str *out)
{
    const ls_opt *last = NULL; /* added when it is known whether another follows */
    int k = 0;
    for (size_t i = 0; i < n_row && k < most; i++) {
        bool has = false;
        for (const char *at = table[i].name; *at && !has && (!prefix || at == table[i].name); at++)
            has = same_name(at, text, n);
        if (!has || (!prefix && !table[i].help)) continue;
        if (last) ls_str_addf(out, "%s--%s", k > 1 ? ", " : "", last->name);
        last = &table[i];
        k++;
    }
    if (last) ls_str_addf(out, "%s--%s", k > 1 ? " or " : "", last->name);
}

static ls_status ambiguous(const ls_opt *table, size_t n_row, const char *typed, const char *text, size_t n)
{
    ls_str names = {0};
    list_names(table, n_row, text, n, true, INT_MAX, &names);
    const ls_status st = ls_fail(LS_E_ARG, "ambiguous option %s%.*s: it could be %s", typed, (int)n, text,
                                 names.data ? names.data : "one of several");
    ls_str_fini(&names);
    return st;
}

/* Names the options that contain what was typed, or else the one with the nearest spelling. */
static ls_status unknown(const ls_opt *table, size_t n_row, const char *typed, const char *text, size_t n)
{
    const char *names[256];
    char folded[64] = {0};
    ls_str near = {0};
    size_t k = 0;
    for (size_t i = 0; i < n_row && k < 256; i++)
        if (table[i].help) names[k++] = table[i].name;
    snprintf(folded, sizeof folded, "%.*s", (int)n, text);
    bool under = k && strchr(names[0], '_');
    for (char *p = folded; *p; p++) *p = under && *p == '-' ? '_' : *p;
    const char *nearest = ls_nearest_word(folded, names, k);
    if (n >= 4) list_names(table, n_row, text, n, false, 3, &near);
    if (nearest && !near.len) ls_str_addf(&near, "--%s", nearest);
    const ls_status st =
        ls_fail(LS_E_ARG, "unknown option %s%.*s%s%s%s (--help lists the options)", typed, (int)n, text,
                near.len ? "; did you mean " : "", near.len ? near.data : "", near.len ? "?" : "");
    ls_str_fini(&near);
    return st;
}

/* The row that `text` (n bytes) names: exactly, or as the only one it begins. typed: its dashes, for messages. */
static ls_status find(const ls_opt *table, size_t n_row, const char *typed, const char *text, size_t n,
                      const ls_opt **out)
{
    const ls_opt *hit = NULL;
    bool several = false;
    for (size_t i = 0; i < n_row; i++) {
        if (!same_name(table[i].name, text, n)) continue;
        several = hit;
        hit = &table[i];
        if (!hit->name[n]) {
            *out = hit;
            return LS_OK;
        }
    }
    if (several) return ambiguous(table, n_row, typed, text, n);
    if (!hit) return unknown(table, n_row, typed, text, n);
    *out = hit;
    return LS_OK;
}

/* Text that ls_parse_f64 refuses because the number is infinite or NaN, or larger than a double can be. */
static bool is_infinite(const char *text)
{
    char *end;
    const double v = strtod(text, &end);
    return end != text && !*end && !isfinite(v);
}

static const char *dashes(const ls_opt *row)
{
    return row->name[1] ? "--" : "-";
}

/* Sets one row from text; error messages name the option. */
static ls_status set(const ls_opt *row, void *target, const char *text)
{
    char *at = (char *)target + row->offset;
    switch (row->kind) {
    case LS_OPT_SWITCH:
        if (!strcmp(text, "true") || !strcmp(text, "1")) *(bool *)(void *)at = true;
        else if (!strcmp(text, "false") || !strcmp(text, "0")) *(bool *)(void *)at = false;
        else return ls_fail(LS_E_ARG, "%s%s %s: this switch takes true or false", dashes(row), row->name, text);
        return LS_OK;
    case LS_OPT_INT:
        if (!ls_parse_i64(text, (int64_t *)(void *)at))
            return ls_fail(LS_E_ARG, "%s%s %s: not a whole number%s", dashes(row), row->name, text,
                           strspn(text, "-0123456789") == strlen(text) ? " of 64 bits" : "");
        return LS_OK;
    case LS_OPT_REAL:
        if (!ls_parse_f64(text, (double *)(void *)at))
            return ls_fail(LS_E_ARG, "%s%s %s: %s", dashes(row), row->name, text,
                           is_infinite(text) ? "must be a finite number" : "not a number");
        return LS_OK;
    case LS_OPT_CHOICE:
        if (!ls_one_of(row->arg, text, false))
            return ls_fail(LS_E_ARG, "%s%s %s: not one of %s", dashes(row), row->name, text, row->arg);
        *(const char **)(void *)at = text;
        return LS_OK;
    case LS_OPT_MAYBE:
    case LS_OPT_STR: *(const char **)(void *)at = text; return LS_OK;
    case LS_OPT_WORDS: {
        ls_opt_words *w = (ls_opt_words *)(void *)at;
        if (w->n == LS_OPT_MAX_WORDS)
            return ls_fail(LS_E_ARG, "%s%s: at most %d times", dashes(row), row->name, LS_OPT_MAX_WORDS);
        w->word[w->n++] = text;
        return LS_OK;
    }
    case LS_OPT_LIST: break;
    }
    return ls_fail(LS_E_ARG, "%s%s takes a list", dashes(row), row->name);
}

ls_status ls_opt_defaults(const ls_opt *table, size_t n, void *target)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].def && table[i].kind != LS_OPT_LIST) LS_TRY(set(&table[i], target, table[i].def));
    return LS_OK;
}

static ls_status check_range(const ls_opt *row, const void *target)
{
    const void *at = (const char *)target + row->offset;
    if (row->lo >= row->hi) return LS_OK;
    const double v = row->kind == LS_OPT_INT ? (double)*(const int64_t *)at : *(const double *)at;
    if (v >= row->lo && v <= row->hi) return LS_OK;
    if (v < row->lo && row->hi >= INT32_MAX)
        return ls_fail(LS_E_ARG, "%s%s %.15g: must be at least %g", dashes(row), row->name, v, row->lo);
    return ls_fail(LS_E_ARG, "%s%s %.15g: must be %g to %.15g", dashes(row), row->name, v, row->lo, row->hi);
}

/* Moves argv[i] to place `at` (<= i) and what lay between one place up, lists that point there included. */
static void keep_word(const ls_opt *table, size_t n, void *target, char **argv, int at, int i)
{
    char *a = argv[i];
    memmove(argv + at + 1, argv + at, (size_t)(i - at) * sizeof *argv);
    argv[at] = a;
    for (size_t r = 0; r < n; r++) {
        if (table[r].kind != LS_OPT_LIST) continue;
        ls_opt_list *l = (ls_opt_list *)(void *)((char *)target + table[r].offset);
        uintptr_t word = (uintptr_t)l->word;
        if (l->n && word >= (uintptr_t)(argv + at) && word < (uintptr_t)(argv + i)) l->word++;
    }
}

ls_status ls_opt_parse(const ls_opt *table, size_t n, void *target, unsigned char *given, int argc, char **argv,
                       ls_opt_list *rest, bool *help)
{
    int n_rest = 0; /* words kept so far, moved to the front of argv */
    bool ended = false;
    for (int i = 0; i < argc; i++) {
        char *a = argv[i];
        if (help && !ended && (!strcmp(a, "--help") || !strcmp(a, "-h"))) {
            *help = true;
            continue;
        }
        if (!ended && !strcmp(a, "--")) {
            ended = true;
            continue;
        }
        if (ended || a[0] != '-' || !a[1]) {
            if (!rest)
                return ls_fail(LS_E_ARG, "unexpected argument '%s': it is not an option (--help lists the options)", a);
            keep_word(table, n, target, argv, n_rest++, i);
            continue;
        }
        if (a[1] != '-' && a[2]) return ls_fail(LS_E_ARG, "'%s': options start with two dashes (--name)", a);
        const char *typed = a[1] == '-' ? "--" : "-", *name = a + strlen(typed);
        size_t len = strcspn(name, "=");
        const ls_opt *row = NULL;
        LS_TRY(find(table, n, typed, name, len, &row));
        if (given) given[row - table] = 1;
        if (row->kind == LS_OPT_LIST) {
            ls_opt_list *l = (ls_opt_list *)(void *)((char *)target + row->offset);
            if (name[len]) {
                argv[i] = (char *)(uintptr_t)(name + len + 1);
                *l = (ls_opt_list){(const char *const *)&argv[i], 1};
                continue;
            }
            int first = i + 1;
            while (i + 1 < argc && (argv[i + 1][0] != '-' || !argv[i + 1][1])) i++;
            if (i < first)
                return ls_fail(LS_E_ARG, "%s%s needs at least one %s", typed, row->name, row->arg ? row->arg : "value");
            *l = (ls_opt_list){(const char *const *)&argv[first], i + 1 - first};
            continue;
        }
        const char *value = NULL;
        if (name[len]) value = name + len + 1;
        else if (row->kind == LS_OPT_SWITCH) value = "true";
        else if (row->kind == LS_OPT_MAYBE) value = i + 1 < argc && argv[i + 1][0] != '-' ? argv[++i] : "";
        else if (i + 1 < argc) value = argv[++i];
        if (!value) return ls_fail(LS_E_ARG, "%s%s needs a value (%s)", typed, row->name, row->arg ? row->arg : "text");
        LS_TRY(set(row, target, value));
        LS_TRY(check_range(row, target));
    }
    if (rest) *rest = (ls_opt_list){(const char *const *)argv, n_rest};
    return LS_OK;
}

/* Adds `text` and a line end. Lines are broken at blanks before column `width`; the next line begins at `indent`. */
static void wrapped(ls_str *out, const char *text, size_t indent, size_t column, size_t width)
{
    bool first = true;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (!first && column + 1 + n > width) {
            ls_str_addc(out, '\n');
            for (size_t i = 0; i < indent; i++) ls_str_addc(out, ' ');
            column = indent;
        } else if (!first) {
            ls_str_addc(out, ' ');
            column++;
        }
        ls_str_addn(out, text, n);
        column += n;
        first = false;
        text += n + (text[n] == ' ');
    }
    ls_str_addc(out, '\n');
}

void ls_opt_text(const char *text, ls_str *out)
{
    while (*text) {
        const size_t n = strcspn(text, "\n");
        ls_str line = {0};
        ls_str_addn(&line, text, n);
        if (n && *text != ' ') wrapped(out, line.data ? line.data : "", 0, 0, LS_OPT_COLUMNS);
        else ls_str_addf(out, "%s\n", line.data ? line.data : "");
        ls_str_fini(&line);
        text += n + (text[n] == '\n');
    }
}

void ls_opt_help(const ls_opt *table, size_t n, ls_str *out)
{
    const size_t indent = 28;
    for (size_t i = 0; i < n; i++) {
        const ls_opt *o = &table[i];
        if (o->section) ls_str_addf(out, "%s%s:\n", out->len ? "\n" : "", o->section);
        if (!o->help) continue;
        size_t start = out->len;
        ls_str_addf(out, "  --%s", o->name);
        if (o->kind != LS_OPT_SWITCH) ls_str_addf(out, " %s", o->arg ? o->arg : o->kind == LS_OPT_STR ? "TEXT" : "N");
        if (out->len - start + 2 > indent) {
            ls_str_addc(out, '\n');
            start = out->len;
        }
        while (out->len - start < indent) ls_str_addc(out, ' ');
        ls_str text = {0};
        ls_str_add(&text, o->help);
        const size_t len = strlen(o->help);
        const bool stated = len && o->help[len - 1] == ']'; /* the text names the default itself */
        if (o->def && !stated && o->kind != LS_OPT_SWITCH) ls_str_addf(&text, " [%s]", o->def);
        wrapped(out, text.data ? text.data : "", indent, indent, LS_OPT_COLUMNS);
        ls_str_fini(&text);
    }
}
