/* sources.c - reads and writes the text that names token files. */
#include "data/sources.h"
#include "core/argv.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ls_status ls_sources_add(ls_data_sources *s, const char *path, double weight)
{
    if (s->n == LS_MAX_SOURCE) return ls_fail(LS_E_ARG, "a blend has at most %d sources", LS_MAX_SOURCE);
    LS_TRY(ls_reserve(&s->item, &s->cap, s->n + 1, sizeof *s->item, "a list of data sources"));
    char *copy = ls_strdup(path);
    if (!copy) return ls_nomem(strlen(path), "a list of data sources");
    s->item[s->n++] = (ls_data_source){copy, weight};
    return LS_OK;
}

void ls_sources_fini(ls_data_sources *s)
{
    for (size_t i = 0; i < s->n; i++) ls_free(s->item[i].path);
    ls_free(s->item);
    *s = (ls_data_sources){0};
}

/* All sources have a weight, or none. */
static ls_status check_weights(const ls_data_sources *s, const char *where)
{
    for (size_t i = 1; i < s->n; i++)
        if ((s->item[i].weight > 0) != (s->item[0].weight > 0))
            return ls_fail(LS_E_ARG, "%s: %s has no weight; give a weight to every source, or to none", where,
                           s->item[s->item[i].weight > 0 ? 0 : i].path);
    return LS_OK;
}

/* Also "nan" and "inf", which are no weights. */
static bool is_number(const char *text, double *value)
{
    char *end = NULL;
    *value = strtod(text, &end);
    return end != text && !*end;
}

/* "path" or "path:weight". */
static ls_status add_word(ls_data_sources *s, char *word, const char *text)
{
    double weight = 0;
    char *colon = strrchr(word, ':');
    if (colon && is_number(colon + 1, &weight)) {
        if (!(weight > 0) || !isfinite(weight))
            return ls_fail(LS_E_ARG, "%s: weight %s: must be a positive number", text, colon + 1);
        *colon = '\0';
    }
    if (!*word) return ls_fail(LS_E_ARG, "%s: a source has no path; expected PATH:WEIGHT,PATH:WEIGHT,...", text);
    return ls_sources_add(s, word, weight);
}

ls_status ls_sources_parse(const char *text, ls_data_sources *out)
{
    ls_data_sources s = {0};
    ls_status st = LS_OK;
    if (ls_fs_exists(text) || !strpbrk(text, ",:")) {
        st = ls_sources_add(&s, text, 0);
    } else {
        char *copy = ls_strdup(text), *next = copy;
        if (!copy) return ls_nomem(strlen(text), "a list of data sources");
        while (next && st == LS_OK) {
            char *word = next;
            next = strchr(word, ',');
            if (next) *next++ = '\0';
            st = add_word(&s, word, text);
        }
        ls_free(copy);
        if (st == LS_OK) st = check_weights(&s, text);
    }
    if (st == LS_OK) *out = s;
    else ls_sources_fini(&s);
    return st;
}

/* A misspelt key would be ignored. */
static ls_status check_keys(const json_t *object, const char *file, const char *where, const char *a, const char *b)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!strcmp(key, a) || (b && !strcmp(key, b))) continue;
        return ls_fail(LS_E_FORMAT, "%s%s: unknown key \"%s\"; expected \"%s\"%s%s%s", file, where, key, a,
                       b ? " and \"" : "", b ? b : "", b ? "\"" : "");
    }
    return LS_OK;
}

static ls_status add_item(ls_data_sources *s, const json_t *item, const char *file, size_t i)
{
    char where[40];
    snprintf(where, sizeof where, ": blend[%zu]", i);
    LS_TRY(check_keys(item, file, where, "data", "weight"));
    const char *data = json_string_value(json_object_get(item, "data"));
    const json_t *w = json_object_get(item, "weight");
    const double weight = json_number_value(w);
    if (!data || !*data)
        return ls_fail(LS_E_FORMAT, "%s: blend[%zu] has no string \"data\" with the path of a data folder", file, i);
    if (w && (!json_is_number(w) || !(weight > 0) || !isfinite(weight)))
        return ls_fail(LS_E_FORMAT, "%s: blend[%zu].weight must be a positive number", file, i);
    char *path = ls_asprintf("%.*s%s", *data == '/' ? 0 : (int)(ls_path_base(file) - file), file, data);
    if (!path) return ls_nomem(strlen(data), "a path");
    const ls_status st = ls_sources_add(s, path, weight);
    ls_free(path);
    return st;
}

ls_status ls_sources_load(const char *file, ls_data_sources *out)
{
    ls_data_sources s = {0};
    json_t *root = NULL;
    const ls_status read = ls_json_load(file, &root);
    if (read == LS_E_FORMAT && !ls_ends_in(file, ".json"))
        return ls_fail(
            LS_E_FORMAT,
            "--data %s: neither a data folder nor a blend file (JSON); convert text with `lockstep prepare %s --out data`",
            file, ls_quoted(file).text);
    if (read != LS_OK) return read;
    const json_t *list = json_object_get(root, "blend");
    ls_status st = json_array_size(list) ? LS_OK
                                         : ls_fail(LS_E_FORMAT,
                                                   "%s is not a blend file: expected {\"blend\": [{\"data\": DIR, "
                                                   "\"weight\": NUMBER}, ...]}; token files are given with "
                                                   "--train_data_path",
                                                   file);
    if (st == LS_OK) st = check_keys(root, file, "", "blend", NULL);
    for (size_t i = 0; i < json_array_size(list) && st == LS_OK; i++)
        st = add_item(&s, json_array_get(list, i), file, i);
    if (st == LS_OK) st = check_weights(&s, file);
    json_decref(root);
    if (st == LS_OK) *out = s;
    else ls_sources_fini(&s);
    return st;
}

ls_status ls_sources_text(const ls_data_sources *s, ls_str *out)
{
    for (size_t i = 0; i < s->n; i++) {
        const ls_data_source *x = &s->item[i];
        char number[32];
        if (s->n > 1 && strchr(x->path, ','))
            return ls_fail(LS_E_UNSUPPORTED, "%s: a path in a blend cannot have a comma; rename it or make a link",
                           x->path);
        ls_str_addf(out, "%s%s", i ? "," : "", x->path);
        if (x->weight > 0) ls_str_addf(out, ":%s", ls_json_real(number, x->weight));
    }
    return out->failed ? ls_nomem(out->cap, "a list of data sources") : LS_OK;
}

/* Of shards, the folder. A path that does not exist stays as it is. */
static ls_status make_absolute(char **path)
{
    char folder[PATH_MAX], whole[PATH_MAX];
    const char *base = ls_path_base(*path);
    const int n = (int)(base - *path);
    const bool shards = !ls_fs_exists(*path) && ls_is_shards(*path);
    snprintf(folder, sizeof folder, "%.*s", n ? n : 1, n ? *path : ".");
    if (!realpath(shards ? folder : *path, whole)) return LS_OK;
    char *copy = shards ? ls_path_join(whole, base) : ls_strdup(whole);
    if (!copy) return ls_nomem(strlen(whole), "a path");
    ls_free(*path);
    *path = copy;
    return LS_OK;
}

ls_status ls_sources_absolute(const char *text, ls_str *out)
{
    ls_data_sources s = {0};
    LS_TRY(ls_sources_parse(text, &s));
    ls_status st = LS_OK;
    for (size_t i = 0; i < s.n && st == LS_OK; i++) st = make_absolute(&s.item[i].path);
    if (st == LS_OK) st = ls_sources_text(&s, out);
    ls_sources_fini(&s);
    return st;
}

/* "data/train_small.bin" -> "train_small", "data/train_*.bin" -> "train". */
static void file_name(const char *path, char *name, size_t nbytes)
{
    const char *base = ls_path_base(path), *end = strrchr(base, '.'), *star = strchr(base, '*');
    if (star) end = star > base && star[-1] == '_' ? star - 1 : star;
    snprintf(name, nbytes, "%.*s", end && end != base ? (int)(end - base) : (int)nbytes, base);
}

void ls_sources_name(const char *text, char *name, size_t nbytes)
{
    ls_data_sources s = {0};
    if (ls_sources_parse(text, &s) != LS_OK || s.n < 2) {
        file_name(s.n ? s.item[0].path : text, name, nbytes);
    } else {
        for (size_t i = 0, at = 0; i < s.n && at < nbytes; i++) {
            char *path = s.item[i].path, *slash = strrchr(path, '/'), part[256];
            if (slash && slash != path) *slash = '\0'; /* the folder */
            snprintf(part, sizeof part, "%s", ls_path_base(path));
            if (!slash) file_name(s.item[i].path, part, sizeof part);
            at += (size_t)snprintf(name + at, nbytes - at, "%s%s", i ? "+" : "", part);
        }
    }
    ls_sources_fini(&s);
}

/* ---- shards ---- */

bool ls_is_shards(const char *path)
{
    return strchr(ls_path_base(path), '*') && !ls_fs_exists(path);
}

void ls_shard_name(char name[64], const char *part, int k)
{
    snprintf(name, 64, "%.40s_%03d.bin", part, k);
}

bool ls_shards_exist(const char *dir, const char *part)
{
    char name[64];
    ls_shard_name(name, part, 0);
    return ls_fs_exists(ls_path_of(dir, name).text);
}

/* The number between the two sides of the star; -1: another name. */
static int64_t shard_number(const char *name, const char *pattern)
{
    const char *star = strchr(pattern, '*');
    const size_t n = strlen(name), head = (size_t)(star - pattern), tail = strlen(star + 1);
    int64_t k = 0;
    if (n <= head + tail || n - head - tail > 9 || memcmp(name, pattern, head) || strcmp(name + n - tail, star + 1))
        return -1;
    for (size_t i = head; i < n - tail; i++) {
        if (name[i] < '0' || name[i] > '9') return -1;
        k = k * 10 + (name[i] - '0');
    }
    return k;
}

static ls_status put_shards(const char *dir, const char *base, char **names, size_t n_name, char **found, size_t n)
{
    for (size_t i = 0; i < n_name; i++) {
        const int64_t k = shard_number(names[i], base);
        if (k < 0) continue;
        if (k >= (int64_t)n || found[k])
            return ls_fail(LS_E_IO,
                           "%s/%s: the numbers of the %zu files must be 0 to %zu, each once; %s is not one of them",
                           dir, base, n, n - 1, names[i]);
        found[k] = ls_path_join(dir, names[i]);
        if (!found[k]) return ls_nomem(strlen(dir), "a path");
    }
    return LS_OK;
}

ls_status ls_shards_list(const char *pattern, char ***paths, size_t *n)
{
    const char *base = ls_path_base(pattern);
    char *dir = base == pattern ? ls_strdup(".") : ls_strndup(pattern, (size_t)(base - pattern)), **names = NULL;
    size_t n_name = 0, n_found = 0;
    if (!dir) return ls_nomem(strlen(pattern), "a path");
    ls_status st = ls_fs_list(dir, &names, &n_name);
    for (size_t i = 0; i < n_name; i++) n_found += shard_number(names[i], base) >= 0;
    if (st == LS_OK && !n_found) st = ls_fail(LS_E_IO, "%s: there is no such file", pattern);
    char **found = st == LS_OK ? ls_alloc(n_found * sizeof *found) : NULL;
    if (st == LS_OK)
        st = found ? put_shards(dir, base, names, n_name, found, n_found) : ls_nomem(n_found, "a list of shards");
    ls_fs_list_free(names, n_name);
    ls_free(dir);
    if (st == LS_OK) {
        *paths = found;
        *n = n_found;
    } else if (found) {
        ls_fs_list_free(found, n_found);
    }
    return st;
}
