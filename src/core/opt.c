#include "core/opt.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static char fold(char c)
{
    return c == '-' ? '_' : c;
}

/* Whether `text` (n bytes) is the name, or begins with a name that ends in a star. */
static bool is_name(const char *name, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (name[i] == '*') return true;
        if (!name[i] || fold(name[i]) != fold(text[i])) return false;
    }
    return !name[n];
}

static size_t row_of(const ls_opt *table, size_t n_row, const char *text, size_t n)
{
    size_t i = 0;
    while (i < n_row && !is_name(table[i].name, text, n)) i++;
    return i;
}

size_t ls_opt_row(const ls_opt *table, size_t n, const char *name)
{
    return row_of(table, n, name, strlen(name));
}

/* ---- near misses ---- */

#define NAME_MAX_LEN 64
#define FAR          1000

/* How much a typed name differs from a name that begins with it, that has parts (of a_b_c) like it, or that is like it; FAR: too much. */
static int unlikeness(const char *typed, const char *name)
{
    const size_t n = strlen(typed), len = strlen(name);
    const int most = n < 3 ? 0 : n < 5 ? 1 : (int)n / 4 + 1;
    if (len >= NAME_MAX_LEN) return FAR;
    int least = FAR, d = (int)ls_edit_distance(typed, name);
    if (d <= most) least = 2 * d;
    if (n >= 2 && n < len && !strncmp(name, typed, n)) least = least < 3 ? least : 3;
    for (size_t i = 0; i < len && n >= 3; i++) {
        if (i && name[i - 1] != '_') continue;
        for (size_t end = i + 1; end <= len; end++) {
            char part[NAME_MAX_LEN];
            if (end < len && name[end] != '_') continue;
            snprintf(part, sizeof part, "%.*s", (int)(end - i), name + i);
            d = (int)ls_edit_distance(typed, part);
            const int cost = 2 * d + 1 + (int)(len - (end - i)) / 8;
            if (d <= most && cost < least) least = cost;
        }
    }
    return least;
}

/* Appends "--a, --b or --c": the visible rows that are most like `typed`, those of the first help page before others. */
static void add_near(const ls_opt *table, size_t n_row, const char *typed, ls_str *out)
{
    enum { MOST = 3 };
    const ls_opt *near[MOST] = {0};
    int cost[MOST], k = 0;
    for (size_t i = 0; i < n_row; i++) {
        const ls_opt *o = &table[i];
        if (!o->help && !o->of) continue;
        char name[NAME_MAX_LEN];
        snprintf(name, sizeof name, "%s", o->name);
        for (char *p = name; *p; p++) *p = fold(*p);
        int c = unlikeness(typed, name), at = k;
        if (c >= FAR || (o->of && c > 2 && strncmp(name, typed, strlen(typed)) != 0)) continue;
        c = 4 * c + (o->of ? 2 : 0) + !o->common;
        while (at && cost[at - 1] > c) at--;
        if (at == MOST) continue;
        if (k < MOST) k++;
        for (int j = k - 1; j > at; j--) near[j] = near[j - 1], cost[j] = cost[j - 1];
        near[at] = o;
        cost[at] = c;
    }
    while (k > 1 && cost[k - 1] > cost[0] + 4) k--; /* clearly less like it */
    for (int i = 0; i < k; i++) ls_str_addf(out, "%s--%s", !i ? "" : i + 1 < k ? ", " : " or ", near[i]->name);
}

/* Appends "--a x or --b x": the choices that have the typed name x as a value. Returns the choice that refuses it, or NULL. Words that many
 * options take say nothing about what was meant; cpu and cuda are devices wherever there is such an option. */
static const ls_opt *add_choices(const ls_opt *table, size_t n_row, const char *typed, ls_str *out)
{
    const ls_opt *refuses = NULL;
    if (ls_one_of("auto|none|off|on", typed, false)) return NULL;
    if (ls_one_of("cpu|cuda", typed, false)) {
        if (ls_opt_row(table, n_row, "device") < n_row) ls_str_addf(out, "--device %s", typed);
        return NULL;
    }
    for (const ls_opt *o = table; o < table + n_row; o++) {
        if (o->kind != LS_OPT_CHOICE || !o->help) continue;
        if (o->refused && !strcmp(typed, o->refused)) refuses = o;
        else if (ls_one_of(o->arg, typed, o->any_case))
            ls_str_addf(out, "%s--%s %s", out->len ? " or " : "", o->name, typed);
    }
    return refuses;
}

static ls_status unknown(const ls_opt *table, size_t n_row, const char *dashes, const char *text, size_t n)
{
    char typed[NAME_MAX_LEN];
    ls_str near = {0};
    snprintf(typed, sizeof typed, "%.*s", (int)n, text);
    for (char *p = typed; *p; p++) *p = fold(*p);
    add_near(table, n_row, typed, &near);
    const ls_opt *refuses = near.len ? NULL : add_choices(table, n_row, typed, &near);
    if (refuses && !near.len) return ls_fail(LS_E_ARG, "unknown option %s%s: %s", dashes, typed, refuses->reason);
    const ls_status st =
        ls_fail(LS_E_ARG, "unknown option %s%.*s%s%s%s (--help_all lists the options)", dashes, (int)n, text,
                near.len ? "; did you mean " : "", near.len ? near.data : "", near.len ? "?" : "");
    ls_str_fini(&near);
    return st;
}

/* ---- values ---- */

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

int ls_opt_truth(const char *word)
{
    return ls_one_of("true|1|yes", word, true) ? 1 : ls_one_of("false|0|no", word, true) ? 0 : -1;
}

/* Sets one row from text; error messages name the option. */
static ls_status set(const ls_opt *row, void *target, const char *text)
{
    char *at = (char *)target + row->offset;
    switch (row->kind) {
    case LS_OPT_SWITCH:
        if (ls_opt_truth(text) < 0)
            return ls_fail(LS_E_ARG, "%s%s %s: this switch takes " LS_OPT_TRUTHS, dashes(row), row->name, text);
        *(bool *)(void *)at = ls_opt_truth(text);
        return LS_OK;
    case LS_OPT_INT:
        if (row->word && !strcmp(text, row->word)) *(int64_t *)(void *)at = -1;
        else if (!ls_parse_i64(text, (int64_t *)(void *)at))
            return ls_fail(LS_E_ARG, "%s%s %s: not a whole number%s%s%s", dashes(row), row->name, text,
                           strspn(text, "-0123456789") == strlen(text) ? " of 64 bits" : "", row->word ? " or " : "",
                           row->word ? row->word : "");
        return LS_OK;
    case LS_OPT_REAL:
        if (!ls_parse_f64(text, (double *)(void *)at))
            return ls_fail(LS_E_ARG, "%s%s %s: %s", dashes(row), row->name, text,
                           is_infinite(text) ? "must be a finite number" : "not a number");
        return LS_OK;
    case LS_OPT_CHOICE:
        if (row->refused && !strcmp(text, row->refused))
            return ls_fail(LS_E_UNSUPPORTED, "%s%s %s: %s", dashes(row), row->name, text, row->reason);
        if (!ls_one_of(row->arg, text, row->any_case))
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
        if (table[i].def && table[i].kind != LS_OPT_LIST && !table[i].of) LS_TRY(set(&table[i], target, table[i].def));
    return LS_OK;
}

static ls_status check_range(const ls_opt *row, const void *target, const char *text)
{
    const void *at = (const char *)target + row->offset;
    if (row->lo >= row->hi) return LS_OK;
    const double v = row->kind == LS_OPT_INT ? (double)*(const int64_t *)at : *(const double *)at;
    if ((v >= row->lo && v <= row->hi) || (row->word && v == -1 && !strcmp(text, row->word))) return LS_OK;
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

bool ls_opt_asks_page(const char *word, ls_opt_page *page)
{
    static const struct {
        const char *name;
        ls_opt_page page;
    } form[] = {{"-h", LS_OPT_FIRST_PAGE},
                {"--help", LS_OPT_FIRST_PAGE},
                {"--help_all", LS_OPT_ALL_PAGES},
                {"--help=all", LS_OPT_ALL_PAGES},
                {"--help=json", LS_OPT_JSON}};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++)
        if (is_name(form[i].name, word, strlen(word))) {
            if (page) *page = form[i].page;
            return true;
        }
    return false;
}

static bool is_number(const char *word)
{
    return *word && !word[strspn(word, "0123456789")];
}

/* Whether the word after a switch is its value. After a plain switch 1, 0, yes and no may be files. */
static bool is_truth(const ls_opt *row, const char *word)
{
    return row->value ? ls_opt_truth(word) >= 0 : ls_one_of("true|false", word, true);
}

/* argv[i] is the name of a list: takes its words; returns the place of the last. */
static ls_status take_list(const ls_opt *row, void *target, int argc, char **argv, int i, int *last)
{
    ls_opt_list *l = (ls_opt_list *)(void *)((char *)target + row->offset);
    char *equals = strchr(argv[i], '=');
    *last = i;
    if (equals) {
        argv[i] = equals + 1;
        *l = (ls_opt_list){(const char *const *)&argv[i], 1};
        return LS_OK;
    }
    while (*last + 1 < argc && (argv[*last + 1][0] != '-' || !argv[*last + 1][1])) ++*last;
    if (*last == i)
        return ls_fail(LS_E_ARG, "%s%s needs at least one %s", dashes(row), row->name, row->arg ? row->arg : "value");
    *l = (ls_opt_list){(const char *const *)&argv[i + 1], *last - i};
    return LS_OK;
}

/* ---- names of one row ---- */

/* given[] while words are parsed: the row was set; it was set under this name; the name stands for a value of another row, and was false. */
enum { SET = 1, NAMED = 2, OFF = 4 };

typedef union opt_value {
    bool on;
    int64_t n;
    double x;
    const char *text;
} opt_value;

static opt_value value_of(const ls_opt *row, const void *target)
{
    opt_value v = {0};
    memcpy(&v, (const char *)target + row->offset, row->kind == LS_OPT_SWITCH ? sizeof v.on : sizeof v);
    return v;
}

static bool is_other_value(const ls_opt *row, opt_value a, opt_value b)
{
    switch (row->kind) {
    case LS_OPT_SWITCH: return a.on != b.on;
    case LS_OPT_INT: return a.n != b.n;
    case LS_OPT_REAL: return a.x != b.x;
    case LS_OPT_STR:
    case LS_OPT_CHOICE:
    case LS_OPT_MAYBE: return strcmp(a.text, b.text) != 0;
    case LS_OPT_WORDS:
    case LS_OPT_LIST: break;
    }
    return false;
}

/* Row k has just set row `real`, which was `before`. Of one name the last value wins (but false cannot take back
 * the value that a switch stands for: check_false); two names with two values are a mistake. */
static ls_status check_names(const ls_opt *table, size_t n, const void *target, const unsigned char *given, size_t k,
                             size_t real, opt_value before)
{
    for (size_t i = 0; i < n; i++) {
        const bool same_row = i == real || (table[i].of && ls_opt_row(table, n, table[i].of) == real);
        if (i == k || !same_row || !(given[i] & NAMED)) continue;
        if (is_other_value(&table[real], before, value_of(&table[real], target)))
            return ls_fail(LS_E_ARG, "%s%s and %s%s are one option and have different values; leave one out",
                           dashes(&table[i]), table[i].name, dashes(&table[k]), table[k].name);
    }
    return LS_OK;
}

/* A switch that stands for a value of another row was false, and that row was given the value. */
static ls_status check_false(const ls_opt *table, size_t n, const void *target, const unsigned char *given)
{
    for (size_t k = 0; given && k < n; k++) {
        if (!(given[k] & OFF)) continue;
        const size_t real = ls_opt_row(table, n, table[k].of);
        if (given[k] & NAMED)
            return ls_fail(LS_E_ARG, "--%s and --%s False contradict each other; leave one out", table[k].name,
                           table[k].name);
        if ((given[real] & SET) && !strcmp(value_of(&table[real], target).text, table[k].value))
            return ls_fail(LS_E_ARG, "--%s False contradicts --%s %s; leave one out", table[k].name, table[real].name,
                           table[k].value);
    }
    return LS_OK;
}

/* argv[i] is the name of a row that replaces it; *last: the place of its last word. */
static ls_status name_of_others(const ls_opt *row, int argc, char **argv, int i, int *last)
{
    const char *equals = strchr(argv[i], '='), *value = equals ? equals + 1 : i + 1 < argc ? argv[i + 1] : "true";
    const bool same = row->arg && ls_one_of(row->arg, value, true);
    *last = i + (same && !equals && i + 1 < argc);
    if (same || (!equals && row->arg && ls_opt_truth(value) < 0 && ls_one_of(row->arg, "true", false))) return LS_OK;
    return ls_fail(LS_E_ARG, "unknown option %.*s; %s", (int)strcspn(argv[i], "="), argv[i], row->instead);
}

/* Whether the word is an option: a value was left out before it. */
static bool is_option(const ls_opt *table, size_t n, const char *word)
{
    const size_t dash = word[0] != '-' ? 0 : word[1] == '-' ? 2 : 1, len = strcspn(word, "=");
    if (!dash || len == dash || (dash == 1 && len > 2)) return false;
    const size_t k = row_of(table, n, word + dash, len - dash);
    return k < n && !table[k].instead;
}

/* Sets the row of argv[i], an option; *last: the place of its last word. */
static ls_status take_option(const ls_opt *table, size_t n, void *target, unsigned char *given, int argc, char **argv,
                             int i, int *last)
{
    char *a = argv[i];
    const char *typed = a[1] == '-' ? "--" : "-", *name = a + strlen(typed), *value = NULL;
    const size_t len = strcspn(name, "="), k = row_of(table, n, name, len);
    if (k < n && table[k].instead) return name_of_others(&table[k], argc, argv, i, last);
    if (a[1] != '-' && a[2]) return ls_fail(LS_E_ARG, "'%s': options start with two dashes (--name)", a);
    if (k == n) return unknown(table, n, typed, name, len);
    const size_t real = table[k].of ? ls_opt_row(table, n, table[k].of) : k;
    LS_ASSERT(real < n && !table[real].of);
    ls_opt row = table[real];
    row.name = table[k].name;
    if (row.kind == LS_OPT_LIST) {
        if (given) given[k] = given[real] = SET;
        return take_list(&row, target, argc, argv, i, last);
    }
    const bool alone = row.kind == LS_OPT_SWITCH || table[k].value;
    *last = i;
    if (name[len]) value = name + len + 1;
    else if (alone) value = i + 1 < argc && is_truth(&table[k], argv[i + 1]) ? argv[++*last] : "true";
    else if (row.kind == LS_OPT_MAYBE) value = i + 1 < argc && is_number(argv[i + 1]) ? argv[++*last] : "";
    else if (i + 1 < argc && (row.text || !is_option(table, n, argv[i + 1]))) value = argv[++*last];
    if (!value)
        return ls_fail(LS_E_ARG, "%s%s needs a value (%s)%s%s%s", typed, row.name, row.arg ? row.arg : "text",
                       i + 1 < argc ? "; " : "", i + 1 < argc ? argv[i + 1] : "",
                       i + 1 < argc ? " is an option (a value that looks so is given as --name=VALUE)" : "");
    const int truth = table[k].value ? ls_opt_truth(value) : -1;
    if (!truth) {
        if (given) given[k] |= OFF;
        return LS_OK;
    }
    if (table[k].value && truth < 0)
        return ls_fail(LS_E_ARG, "%s%s %s: this switch takes " LS_OPT_TRUTHS "; it stands for --%s %s", typed, row.name,
                       value, table[real].name, table[k].value);
    const opt_value before = value_of(&row, target);
    LS_TRY(set(&row, target, table[k].value ? table[k].value : value));
    LS_TRY(check_range(&row, target, value));
    if (!given) return LS_OK;
    LS_TRY(check_names(table, n, target, given, k, real, before));
    given[real] |= SET;
    given[k] = (unsigned char)((given[k] & ~OFF) | SET | NAMED); /* the last value of a name wins */
    return LS_OK;
}

ls_status ls_opt_parse(const ls_opt *table, size_t n, void *target, unsigned char *given, int argc, char **argv,
                       ls_opt_list *rest, ls_opt_page *page)
{
    int n_rest = 0; /* words kept so far, moved to the front of argv */
    bool ended = false;
    for (int i = 0; i < argc; i++) {
        char *a = argv[i];
        if (page && !ended && ls_opt_asks_page(a, page)) continue;
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
        LS_TRY(take_option(table, n, target, given, argc, argv, i, &i));
    }
    LS_TRY(check_false(table, n, target, given));
    for (size_t r = 0; given && r < n; r++) given[r] = given[r] != 0;
    if (rest) *rest = (ls_opt_list){(const char *const *)argv, n_rest};
    return LS_OK;
}

/* ---- help pages ---- */

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

/* What may follow the name of a switch that stands for a value of another row. */
static const char truth_arg[] = "[true|false]";

/* "(also --a, --b)": the other names of a row. */
static void add_aliases(const ls_opt *table, size_t n, const ls_opt *row, ls_str *out)
{
    int k = 0;
    for (size_t i = 0; i < n; i++) {
        if (!table[i].of || strcmp(table[i].of, row->name) != 0) continue;
        ls_str_addf(out, "%s--%s", k++ ? ", " : " (also ", table[i].name);
        if (table[i].value) ls_str_addf(out, " %s for %s", truth_arg, table[i].value);
    }
    if (k) ls_str_addc(out, ')');
}

/* The help of a row, its other names, and its default in brackets. */
static void add_help(const ls_opt *table, size_t n, const ls_opt *o, bool aliases, ls_str *out)
{
    const size_t len = strlen(o->help);
    const char *bracket =
        len && o->help[len - 1] == ']' ? strrchr(o->help, '[') : NULL; /* the text names the default */
    const size_t words = bracket && bracket > o->help ? (size_t)(bracket - o->help) - 1 : len;
    ls_str_addn(out, o->help, words);
    if (aliases) add_aliases(table, n, o, out);
    if (words < len) ls_str_add(out, o->help + words);
    else if (o->def && !bracket && o->kind != LS_OPT_SWITCH) ls_str_addf(out, " [%s]", o->def);
}

void ls_opt_help(const ls_opt *table, size_t n, ls_opt_page page, ls_str *out)
{
    const size_t indent = 28;
    const char *section = NULL;
    int n_common = 0, n_visible = 0;
    for (size_t i = 0; i < n; i++) n_common += table[i].help && table[i].common, n_visible += table[i].help != NULL;
    const bool every = page != LS_OPT_FIRST_PAGE || !n_common || n_common == n_visible;
    for (size_t i = 0; i < n; i++) {
        const ls_opt *o = &table[i];
        if (o->section) section = o->section;
        if (!o->help || (!every && !o->common)) continue;
        if (section) ls_str_addf(out, "%s%s:\n", out->len ? "\n" : "", section);
        section = NULL;
        size_t start = out->len;
        ls_str_addf(out, "  --%s", o->name);
        if (o->arg) ls_str_addf(out, " %s", o->arg);
        else if (o->kind != LS_OPT_SWITCH) ls_str_add(out, o->kind == LS_OPT_STR ? " TEXT" : " N");
        if (out->len - start + 2 > indent) {
            ls_str_addc(out, '\n');
            start = out->len;
        }
        while (out->len - start < indent) ls_str_addc(out, ' ');
        ls_str text = {0};
        add_help(table, n, o, page == LS_OPT_ALL_PAGES, &text);
        wrapped(out, text.data ? text.data : "", indent, indent, LS_OPT_COLUMNS);
        ls_str_fini(&text);
    }
    if (!every) ls_str_addf(out, "\n--help_all lists all %d options.\n", n_visible);
}

/* The heading above row i; NULL: none. */
static const char *section_of(const ls_opt *table, size_t i)
{
    while (i && !table[i].section) i--;
    return table[i].section;
}

void ls_opt_json(const ls_opt *table, size_t n, ls_jsonw *w)
{
    static const char *const kind[] = {"switch", "int", "real", "text", "choice", "list", "words", "maybe"};
    for (size_t i = 0; i < n; i++) {
        const size_t real = table[i].of ? ls_opt_row(table, n, table[i].of) : i;
        LS_ASSERT(real < n);
        if (table[i].instead) continue;
        const ls_opt *o = &table[real];
        const bool stands = table[i].value; /* for a value of o */
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("name", table[i].name), LS_KV("kind", kind[stands ? LS_OPT_SWITCH : o->kind]),
                         LS_KV("arg", stands ? truth_arg : o->arg), LS_KV("default", stands ? NULL : o->def),
                         LS_KV("help", table[i].help), LS_KV("section", section_of(table, real)),
                         LS_KV("alias_of", table[i].of), LS_KV("value", table[i].value),
                         LS_KV("common", (bool)o->common));
        if (o->lo < o->hi) ls_jsonw_members(w, LS_KV("min", o->lo), LS_KV("max", o->hi));
        ls_jsonw_close(w);
    }
}
