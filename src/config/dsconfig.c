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
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PLACE_MAX = 256, WORD_MAX = 128 };

static const char *dotted(char buf[PLACE_MAX], const char *place, const char *key)
{
    snprintf(buf, PLACE_MAX, "%s%s%.100s", place, *place ? "." : "", key);
    return buf;
}

/* "key (reason)" as a line of the groups. */
static void group_line(ls_str *group, const char *place, const char *words)
{
    ls_str_addf(group, "    %-52s %s\n", place, words);
}

void train_ds_note(ds_reader *r, const char *fmt, ...)
{
    char text[PLACE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ls_str_addf(&r->c->no_effect, "%s%s", r->c->no_effect.len ? ", " : "", text);
    if (!r->groups) return;
    char *reason = strchr(text, '(');
    if (!reason) {
        group_line(&r->groups->ignored, text, "no effect");
        return;
    }
    reason[-1] = '\0';
    reason[strlen(reason) - 1] = '\0'; /* ')' */
    train_ds_unused(r, text);
    group_line(&r->groups->ignored, text, reason + 1);
}

/* Only one value of these keys is an option: most_recent, and a precision that is enabled. With the others no option is given. */
static bool has_no_flag(const ds_reader *r, const char *place)
{
    if (!strcmp(place, "fp8.amax_compute_algo"))
        return strcasecmp(ls_ds_text(r->c, "fp8.amax_compute_algo", "max"), "most_recent");
    return ls_one_of("fp8.enabled|fp16.enabled|bf16.enabled|bfloat16.enabled", place, false) &&
           (ls_ds_auto(r->c, place) || json_is_false(ls_ds_get(r->c, place)));
}

static const char *flag_of(const ds_reader *r, const char *place)
{
    if (has_no_flag(r, place)) return NULL;
    for (size_t i = 0; i < train_ds_n_flags; i++)
        if (!strcmp(train_ds_flags[i].place, place)) return train_ds_flags[i].flag;
    return NULL;
}

void train_ds_used(ds_reader *r, const char *place)
{
    const char *flag = flag_of(r, place);
    if (r->groups) group_line(&r->groups->honoured, place, flag ? flag : "");
}

void train_ds_unused(ds_reader *r, const char *place)
{
    char start[PLACE_MAX];
    const int n = snprintf(start, sizeof start, "    %s", place);
    char *at = r->groups ? r->groups->honoured.data : NULL;
    while (at && *at) {
        char *next = strchr(at, '\n') + 1;
        if (strncmp(at, start, (size_t)n) || (at[n] != ' ' && at[n] != '.')) {
            at = next;
            continue;
        }
        memmove(at, next, strlen(next) + 1);
        r->groups->honoured.len -= (size_t)(next - at);
    }
    if (r->groups && !r->groups->honoured.len) ls_str_fini(&r->groups->honoured);
}

void train_ds_in_part(ds_reader *r, const char *place, const char *words)
{
    train_ds_unused(r, place);
    if (r->groups) group_line(&r->groups->honoured, place, words);
}

void train_ds_ignored(ds_reader *r, const char *place, const char *words)
{
    train_ds_unused(r, place);
    if (r->groups) group_line(&r->groups->ignored, place, words);
}

ls_status train_ds_refuse(ds_reader *r, const char *place, ls_status st)
{
    if (st != LS_E_CONFIG && st != LS_E_UNSUPPORTED) return st;
    const char *words = ls_err_words(), *flag = flag_of(r, place);
    const size_t n = strlen(r->what);
    char line[32] = "";
    if (!strncmp(words, r->what, n) && words[n] == ':') words += n + 2;
    const int number = r->text ? ls_json_line(r->text, place) : 0;
    if (number) snprintf(line, sizeof line, "line %d: ", number);
    if (!r->n_refused++) {
        r->first = st;
        snprintf(r->words, sizeof r->words, "%s: %s%s", r->what, line, words);
    }
    train_ds_unused(r, place);
    if (r->groups)
        ls_str_addf(&r->groups->refused, "    %s%s%s%s%s\n", line, words, flag ? " (flag: " : "", flag ? flag : "",
                    flag ? ")" : "");
    ls_err_clear();
    return LS_OK;
}

static const char *nearest_in(const ds_table *t, const char *key)
{
    const char *words[WORD_MAX];
    size_t n = 0;
    for (size_t i = 0; i < t->n && n < WORD_MAX; i++) words[n++] = t->row[i].key;
    return ls_nearest_word(key, words, n);
}

/* The names of this block are not DeepSpeed's, whose users do not know them. */
static ls_status unknown_fp8_key(ds_reader *r, const ds_row *row, size_t n, const char *key)
{
    char known[PLACE_MAX] = "";
    for (size_t i = 0; i < n; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", row[i].key);
    return ls_fail(LS_E_CONFIG, "%s: 'fp8.%.100s' is not a known key; the keys of the block fp8 are %s", r->what, key,
                   known);
}

static ls_status unknown_key(ds_reader *r, const char *place, const ds_row *row, size_t n, const char *key)
{
    const ds_table here = {place, row, n}, *in = &here;
    const char *near = nearest_in(&here, key);
    char where[PLACE_MAX], full[PLACE_MAX];
    /* Not here by any spelling: the same word may belong to another block. */
    for (size_t i = 0; !near && i < train_ds_n_tables; i++) {
        in = &train_ds_tables[i];
        for (size_t j = 0; j < in->n && !near; j++)
            if (!strcmp(in->row[j].key, key)) near = key;
    }
    if (!near && !strcmp(place, "fp8")) return unknown_fp8_key(r, row, n, key);
    if (!near) return ls_fail(LS_E_CONFIG, "%s: '%s' is not a DeepSpeed key", r->what, dotted(where, place, key));
    const bool fp8 = !strcmp(in->place, "fp8"); /* its names are TransformerEngine's */
    return ls_fail(LS_E_CONFIG, "%s: '%s' is not a %s key; the nearest one is '%s'%s", r->what,
                   dotted(where, place, key), fp8 ? "known" : "DeepSpeed", dotted(full, in->place, near),
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

bool train_ds_auto(const json_t *v)
{
    return json_is_string(v) && !strcmp(json_string_value(v), "auto");
}

static ls_status wrong_type(ds_reader *r, const char *place, const json_t *v, const char *wanted)
{
    char *is = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    const ls_status st =
        ls_fail(LS_E_CONFIG, "%s: '%s' is %.60s, but must be %s", r->what, place, is ? is : "of another type", wanted);
    free(is);
    return st;
}

static ls_status read_number(ds_reader *r, const char *place, const json_t *v, const ds_row *row)
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
    if (!inside && x < row->lo && row->hi >= 1e6) /* no limit that a user can meet */
        return ls_fail(LS_E_CONFIG, "%s: '%s' is %g, but must be at least %g", r->what, place, x, row->lo);
    if (!inside)
        return ls_fail(LS_E_CONFIG, "%s: '%s' is %g, but must be %g to %g", r->what, place, x, row->lo, row->hi);
    return LS_OK;
}

static ls_status read_text(ds_reader *r, const char *place, const json_t *v, const ds_row *row)
{
    if (!json_is_string(v)) return wrong_type(r, place, v, "text");
    const char *s = json_string_value(v);
    if (row->words && !ls_one_of(row->words, s, true))
        return ls_fail(LS_E_CONFIG, "%s: '%s' is '%.60s', but must be one of %s", r->what, place, s, row->words);
    return LS_OK;
}

static ls_status read_row(ds_reader *r, const char *place, const json_t *v, const ds_row *row)
{
    if (json_is_null(v) || (train_ds_auto(v) && row->kind != DS_CALL)) return LS_OK; /* the default */
    if (row->effect == DS_REFUSE && (row->kind == DS_BOOL || row->kind == DS_ANY || row->kind == DS_BLOCK) &&
        asks_for_something(v, 0))
        return ls_fail(LS_E_UNSUPPORTED, "%s: '%s' is enabled but not supported; remove or disable it", r->what, place);
    if (row->effect == DS_INERT && row->kind != DS_BLOCK && row->kind != DS_CALL && !is_nothing(v))
        train_ds_note(r, "%s", place);
    switch (row->kind) {
    case DS_BOOL: return json_is_boolean(v) ? LS_OK : wrong_type(r, place, v, "true or false");
    case DS_INT:
    case DS_REAL: return read_number(r, place, v, row);
    case DS_TEXT: return read_text(r, place, v, row);
    case DS_BLOCK:
        if (!json_is_object(v)) return wrong_type(r, place, v, "an object");
        return train_ds_block(r, place, v, row->sub, row->n_sub);
    case DS_CALL: return row->call(r, place, v);
    case DS_ANY: break;
    }
    return LS_OK;
}

/* Reads a row, and enters it in its group: blocks and rows with functions of their own enter what is in them. */
static ls_status place_row(ds_reader *r, const char *place, const json_t *v, const ds_row *row)
{
    const size_t noted = r->c->no_effect.len;
    const int refused = r->n_refused;
    LS_TRY(train_ds_refuse(r, place, read_row(r, place, v, row)));
    const bool entered = r->c->no_effect.len != noted || r->n_refused != refused;
    if (json_is_object(v) && !json_object_size(v)) {
        train_ds_ignored(r, place, "empty");
        return LS_OK;
    }
    const bool tuning = row->effect == DS_USED && row->kind != DS_TEXT && !strncmp(place, "zero_optimization.", 18) &&
                        strcmp(row->key, "ratio") != 0 && !flag_of(r, place); /* of DeepSpeed's implementation */
    if (!entered && tuning && row->kind != DS_BLOCK) train_ds_ignored(r, place, "recorded, no effect here");
    else if (!entered && row->kind != DS_BLOCK && row->kind != DS_CALL) train_ds_used(r, place);
    return LS_OK;
}

/* JSON has no comments; these keys are used as such. */
static bool is_comment(const char *key)
{
    return *key == '_' || !strcmp(key, "comment");
}

ls_status train_ds_block(ds_reader *r, const char *place, const json_t *v, const ds_row *row, size_t n)
{
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        const ds_row *hit = NULL;
        char where[PLACE_MAX];
        dotted(where, place, key);
        for (size_t i = 0; i < n && !hit; i++)
            if (!strcmp(row[i].key, key)) hit = &row[i];
        if (!hit && is_comment(key)) {
            if (r->groups) group_line(&r->groups->ignored, where, "a comment");
        } else if (!hit) {
            LS_TRY(train_ds_refuse(r, where, unknown_key(r, place, row, n, key)));
        } else {
            LS_TRY(place_row(r, where, item, hit));
        }
    }
    return LS_OK;
}

/* ---- values ---- */

const json_t *ls_ds_get(const ls_ds_config *ds, const char *key)
{
    const json_t *v = ds ? ls_json_at(ds->root, key) : NULL;
    return json_is_null(v) || train_ds_auto(v) ? NULL : v;
}

bool ls_ds_bool(const ls_ds_config *ds, const char *key, bool missing)
{
    const json_t *v = ls_ds_get(ds, key);
    return v ? json_is_true(v) : missing;
}

int64_t ls_ds_int(const ls_ds_config *ds, const char *key, int64_t missing)
{
    const json_t *v = ls_ds_get(ds, key);
    return !v ? missing : json_is_integer(v) ? json_integer_value(v) : (int64_t)json_number_value(v);
}

double ls_ds_real(const ls_ds_config *ds, const char *key, double missing)
{
    const json_t *v = ls_ds_get(ds, key);
    return v ? json_number_value(v) : missing;
}

const char *ls_ds_text(const ls_ds_config *ds, const char *key, const char *missing)
{
    const json_t *v = ls_ds_get(ds, key);
    return json_is_string(v) ? json_string_value(v) : missing;
}

/* ---- the file ---- */

void ls_ds_config_fini(ls_ds_config *c)
{
    json_decref(c->root);
    ls_str_fini(&c->text);
    ls_str_fini(&c->no_effect);
    ls_free(c->path);
    *c = (ls_ds_config){0};
}

/* The old form of zero_optimization becomes a block. */
static int rewrite_boolean(json_t *root)
{
    const json_t *zero = json_object_get(root, "zero_optimization");
    if (!json_is_boolean(zero)) return 0;
    return json_object_set_new(root, "zero_optimization", json_pack("{s:i}", "stage", json_is_true(zero) ? 1 : 0));
}

/* Two names of one setting: the second is refused. */
static ls_status check_names(ds_reader *r)
{
    for (size_t i = 0; i < train_ds_n_names; i++) {
        const char *name = train_ds_names[i][0], *other = train_ds_names[i][1];
        if (!ls_ds_get(r->c, name) || !ls_ds_get(r->c, other)) continue;
        LS_TRY(train_ds_refuse(r, other,
                               ls_fail(LS_E_CONFIG,
                                       "%s: '%s' and '%s' are two names of the same setting; give one of them", r->what,
                                       name, other)));
    }
    return LS_OK;
}

/* Keys with two names get the first one. */
static int rewrite_names(json_t *root)
{
    for (size_t i = 0; i < train_ds_n_names; i++) {
        const char *name = train_ds_names[i][0], *other = train_ds_names[i][1], *dot = strchr(name, '.');
        char block[PLACE_MAX];
        snprintf(block, sizeof block, "%.*s", dot ? (int)(dot - name) : 0, name);
        json_t *in = dot ? json_object_get(root, block) : root,
               *v = json_object_get(in, dot ? other + (dot - name) + 1 : other);
        if (v && !json_is_null(v) && !train_ds_auto(v) && json_object_set(in, dot ? dot + 1 : name, v)) return -1;
    }
    return 0;
}

static bool is_honoured(const ds_reader *r, const char *place)
{
    char start[PLACE_MAX];
    snprintf(start, sizeof start, "    %s ", place);
    return r->groups->honoured.data && strstr(r->groups->honoured.data, start);
}

/* The precision of the run is not what the block says. */
static void list_overridden(ds_reader *r, const char *block, const char *precision)
{
    char key[32], why[64];
    if (!ls_ds_overridden(r->c, block, precision)) return;
    snprintf(key, sizeof key, "%s.enabled", ls_ds_name_given(r->c, block));
    snprintf(why, sizeof why, "the run computes in %s", precision);
    if (is_honoured(r, key)) train_ds_ignored(r, key, why);
}

/* fp16 beside another precision is refused with the options, which may choose one. */
static void unlist_conflict(ds_reader *r)
{
    static const char *const key[] = {"fp8.enabled", "fp16.enabled", "bf16.enabled", "bfloat16.enabled"};
    const ls_ds_config *c = r->c;
    if (!ls_ds_bool(c, "fp16.enabled", false)) return;
    if (!ls_ds_bool(c, "fp8.enabled", false) && !ls_ds_bool(c, "bf16.enabled", false)) return;
    for (size_t i = 0; i < sizeof key / sizeof *key; i++)
        if (ls_ds_bool(c, key[i], false)) train_ds_unused(r, key[i]);
}

/* Moves the keys that a run in this precision does not use to those that are ignored; one that is refused stays so. */
static void list_idle(ds_reader *r, const char *precision, bool cpu)
{
    static const char *const offload[] = {"zero_optimization.offload_optimizer.device",
                                          "zero_optimization.cpu_offload"};
    static const char *const block[] = {"fp8", "fp16", "bf16"};
    ls_ds_idle idle[LS_DS_IDLE_MAX];
    for (size_t i = 0; i < sizeof offload / sizeof *offload && cpu; i++)
        if (is_honoured(r, offload[i])) train_ds_ignored(r, offload[i], "recorded, no effect on the CPU");
    if (precision ? !strcmp(precision, "auto") : ls_ds_precision_open(r->c) != NULL) { /* not known yet */
        const int n = ls_ds_idle_keys(r->c, "fp32", idle);
        for (int i = 0; i < n; i++)
            if (is_honoured(r, idle[i].key)) train_ds_in_part(r, idle[i].key, idle[i].why);
        return;
    }
    for (size_t i = 0; i < sizeof block / sizeof *block && precision; i++) list_overridden(r, block[i], precision);
    if (!precision) unlist_conflict(r);
    if (!precision) precision = ls_ds_precision(r->c);
    const int n = ls_ds_idle_keys(r->c, precision ? precision : "fp32", idle);
    for (int i = 0; i < n; i++)
        if (is_honoured(r, idle[i].key)) train_ds_ignored(r, idle[i].key, idle[i].why);
}

/* Reads all keys of `text`, as which r->text is read; those that are refused are counted in the reader. */
static ls_status read_plain(ds_reader *r, const char *text, size_t n)
{
    ls_ds_config *c = r->c;
    ls_sha256 sha;
    if (ls_json_parse(r->text, n, r->what, &c->root) != LS_OK) { /* a bad configuration, not bad data */
        char words[512];
        snprintf(words, sizeof words, "%s", ls_err_words());
        return ls_fail(LS_E_CONFIG, "%s (keys and texts need double quotes; a key may occur once)", words);
    }
    ls_str_addn(&c->text, text, n);
    ls_sha256_init(&sha);
    ls_sha256_add(&sha, text, n);
    ls_sha256_hex(&sha, c->sha256);
    if (!json_is_object(c->root))
        return ls_fail(LS_E_CONFIG, "%s: a DeepSpeed configuration must be a JSON object", r->what);
    if (rewrite_boolean(c->root)) return ls_nomem(n, "a DeepSpeed configuration");
    LS_TRY(train_ds_block(r, "", c->root, train_ds_tables[0].row, train_ds_tables[0].n));
    LS_TRY(check_names(r));
    if (rewrite_names(c->root) || c->no_effect.failed || c->text.failed)
        return ls_nomem(n, "a DeepSpeed configuration");
    return train_ds_check(r);
}

static ls_status read_keys(ds_reader *r, const char *text, size_t n)
{
    char *plain = ls_json_plain(text, n);
    if (!plain) return ls_nomem(n, "a DeepSpeed configuration");
    r->text = plain;
    const ls_status st = read_plain(r, text, n);
    r->text = NULL;
    ls_free(plain);
    return st;
}

ls_status ls_ds_config_parse(const char *text, size_t n, const char *what, ls_ds_config *out)
{
    ls_ds_config c = {0};
    ds_reader r = {.c = &c, .what = what};
    ls_status st = read_keys(&r, text, n);
    if (st == LS_OK && r.n_refused == 1) st = ls_fail(r.first, "%s", r.words);
    else if (st == LS_OK && r.n_refused)
        st = ls_fail(r.first, "%s (and %d more problem%s)", r.words, r.n_refused - 1, r.n_refused == 2 ? "" : "s");
    if (st != LS_OK) ls_ds_config_fini(&c);
    else *out = c;
    return st;
}

ls_status ls_ds_config_explain(const char *path, const char *precision, bool cpu, const char *later, ls_str *out)
{
    char *text;
    size_t n;
    ls_ds_config c = {0};
    ds_groups g = {0};
    ds_reader r = {.c = &c, .what = path, .groups = &g};
    LS_TRY(ls_fs_read_most(path, LS_FS_TEXT_MOST, &text, &n));
    const ls_status st = read_keys(&r, text, n);
    if (st == LS_OK) {
        list_idle(&r, precision, cpu);
        ls_str_addf(out, "DeepSpeed JSON %s: each key and the equivalent option of lockstep train\n", path);
        ls_str_addf(out, "  honoured\n%s", g.honoured.data ? g.honoured.data : "    none\n");
        ls_str_addf(out, "  ignored\n%s", g.ignored.data ? g.ignored.data : "    none\n");
        ls_str_addf(out, "  refused\n%s", g.refused.data ? g.refused.data : later ? "" : "    none\n");
        if (later) ls_str_addf(out, "    with the options, the model and this machine: %s\n", later);
    }
    ls_str_fini(&g.honoured);
    ls_str_fini(&g.ignored);
    ls_str_fini(&g.refused);
    ls_ds_config_fini(&c);
    ls_free(text);
    return st;
}

ls_status ls_ds_config_load(const char *path, ls_ds_config *out)
{
    char *text;
    size_t n;
    ls_ds_config c;
    LS_TRY(ls_fs_read_most(path, LS_FS_TEXT_MOST, &text, &n));
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
