/* inputs.c - files, folders and standard input as a flat list. */
#include "data/corpus.h"
#include "core/fs.h"
#include "core/mem.h"

#include <stdbool.h>
#include <string.h>

#define MAX_DEPTH 64 /* folders in folders: a link that points up ends here */

static bool cut_suffix(const char *name, size_t *n, const char *suffix)
{
    size_t k = strlen(suffix);
    if (*n < k || memcmp(name + *n - k, suffix, k)) return false;
    *n -= k;
    return true;
}

static size_t unpacked_length(const char *path)
{
    size_t n = strlen(path);
    if (!cut_suffix(path, &n, ".gz")) cut_suffix(path, &n, ".zst");
    return n;
}

static bool is_markup(const char *path)
{
    size_t n = unpacked_length(path);
    return cut_suffix(path, &n, ".md") || cut_suffix(path, &n, ".rst");
}

/* Text if it is given by its name, but the README of a folder is not a document of the corpus. */
static bool is_readme(const char *path)
{
    return is_markup(path) && !strncasecmp(ls_path_base(path), "readme.", 7);
}

static ls_text_format format_of(const char *path)
{
    size_t n = unpacked_length(path);
    if (cut_suffix(path, &n, ".jsonl") || cut_suffix(path, &n, ".ndjson")) return LS_TEXT_JSONL;
    if (cut_suffix(path, &n, ".txt") || cut_suffix(path, &n, ".text") || is_markup(path)) return LS_TEXT_PLAIN;
    return LS_TEXT_AUTO;
}

static ls_status push(ls_inputs *list, const char *path, ls_text_format format)
{
    LS_TRY(ls_reserve(&list->item, &list->cap, list->n + 1, sizeof *list->item, "the list of inputs"));
    ls_corpus_file in = {NULL, format, -1, -1};
    if (format == LS_TEXT_LINES && format_of(path) == LS_TEXT_JSONL)
        return ls_fail(LS_E_ARG, "%s: lines of JSON are documents already; leave --lines out", path);
    if (strcmp(path, "-")) LS_TRY(ls_fs_size(path, &in.nbytes));
    in.path = ls_strdup(path);
    if (!in.path) return ls_nomem(strlen(path), "the list of inputs");
    list->item[list->n++] = in;
    return LS_OK;
}

static ls_status skip(ls_inputs *list, const char *path)
{
    LS_TRY(ls_reserve(&list->skipped, &list->cap_skipped, list->n_skipped + 1, sizeof *list->skipped,
                      "the list of inputs"));
    char *copy = ls_strdup(path);
    if (!copy) return ls_nomem(strlen(path), "the list of inputs");
    list->skipped[list->n_skipped++] = copy;
    return LS_OK;
}

static ls_status add_folder(ls_inputs *list, const char *path, ls_text_format format, int depth)
{
    if (depth > MAX_DEPTH) return ls_fail(LS_E_IO, "%s: folders are nested more than %d deep", path, MAX_DEPTH);
    char **name = NULL;
    size_t n = 0;
    LS_TRY(ls_fs_list(path, &name, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        if (name[i][0] == '.') continue;
        char p[PATH_MAX];
        LS_TRY_GOTO(st, done, ls_path_in(p, path, "%s", name[i]));
        ls_text_format f = format != LS_TEXT_AUTO ? format : is_readme(p) ? LS_TEXT_AUTO : format_of(p);
        if (ls_fs_is_dir(p)) st = add_folder(list, p, format, depth + 1);
        else st = f != LS_TEXT_AUTO ? push(list, p, f) : skip(list, p);
    }
done:
    ls_fs_list_free(name, n);
    return st;
}

ls_status ls_inputs_add(ls_inputs *list, const char *word, ls_text_format format)
{
    if (!strcmp(word, "-")) {
        for (size_t i = 0; i < list->n; i++)
            if (!strcmp(list->item[i].path, "-"))
                return ls_fail(LS_E_ARG, "standard input (-) is given twice; it can be read only once");
        if (format == LS_TEXT_AUTO)
            return ls_fail(LS_E_ARG, "the format of standard input (-) is unknown; add --format txt, lines or jsonl");
        return push(list, word, format);
    }
    if (!ls_fs_exists(word)) return ls_fail(LS_E_IO, "%s: no such file or folder", word);
    if (ls_fs_is_dir(word)) {
        size_t before = list->n;
        LS_TRY(add_folder(list, word, format, 0));
        if (list->n == before)
            return ls_fail(LS_E_FORMAT, "%s: the folder has no .txt, .md, .rst or .jsonl file (plain, .gz or .zst)",
                           word);
        return LS_OK;
    }
    if (format == LS_TEXT_AUTO) format = format_of(word);
    if (format == LS_TEXT_AUTO)
        return ls_fail(
            LS_E_ARG,
            "%s: unknown format: the name does not end in .txt, .md, .rst or .jsonl (plain, .gz or .zst); add --format",
            word);
    return push(list, word, format);
}

void ls_inputs_fini(ls_inputs *list)
{
    for (size_t i = 0; i < list->n; i++) ls_free(list->item[i].path);
    ls_free(list->item);
    ls_fs_list_free(list->skipped, list->n_skipped);
    *list = (ls_inputs){0};
}

int64_t ls_inputs_nbytes(const ls_inputs *list)
{
    int64_t sum = 0;
    for (size_t i = 0; i < list->n; i++) {
        if (list->item[i].nbytes < 0) return -1;
        sum += list->item[i].nbytes;
    }
    return sum;
}
