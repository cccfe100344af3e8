/* data_paths.c - from --data (a folder, several folders with weights, or a blend file) to token files and their tokenizer. */
#include "config/resolve.h"
#include "config/resolve_impl.h"
#include "core/argv.h"
#include "core/fs.h"
#include "core/mem.h"
#include "ckpt/checkpoint.h"
#include "data/sources.h"

#include <stdio.h>
#include <string.h>

void ls_train_paths_fini(ls_train_paths *p)
{
    ls_free(p->train);
    ls_free(p->val);
    ls_free(p->tokenizer);
    *p = (ls_train_paths){0};
}

/* <dir>/<name> when it exists, else NULL. */
static ls_status beside(const char *dir, const char *name, char **out)
{
    char *p = ls_path_join(dir, name);
    if (!p) return ls_nomem(strlen(dir), "a path");
    if (ls_fs_exists(p)) *out = p;
    else ls_free(p);
    return LS_OK;
}

/* train.bin or train_*.bin of a folder; NULL when there is neither. */
static ls_status find_part(const char *dir, const char *part, char **out)
{
    char file[64], shards[64];
    snprintf(file, sizeof file, "%s.bin", part);
    snprintf(shards, sizeof shards, "%s_*.bin", part);
    LS_TRY(beside(dir, file, out));
    if (!ls_shards_exist(dir, part)) return LS_OK;
    if (*out) return ls_fail(LS_E_IO, "%s has both %s and %s; remove one of them", dir, file, shards);
    *out = ls_path_join(dir, shards);
    return *out ? LS_OK : ls_nomem(strlen(dir), "a path");
}

static ls_status same_bytes(const char *a, const char *b, bool *same)
{
    ls_fs_map x, y;
    LS_TRY(ls_fs_map_open(&x, a));
    const ls_status st = ls_fs_map_open(&y, b);
    *same = st == LS_OK && x.n == y.n && !memcmp(x.data, y.data, x.n);
    ls_fs_map_close(&x);
    if (st == LS_OK) ls_fs_map_close(&y);
    return st;
}

/* The tokenizer of a folder: the first one found is that of the run, and the others must equal it. */
static ls_status take_tokenizer(const char *dir, size_t i, const char *first, ls_train_paths *p)
{
    char *file = NULL;
    bool same = true;
    LS_TRY(beside(dir, "tokenizer.json", &file));
    ls_status st = LS_OK;
    if (!i) {
        p->tokenizer = file;
        return LS_OK;
    }
    if (file && p->tokenizer) st = same_bytes(file, p->tokenizer, &same);
    if (st == LS_OK && (!file != !p->tokenizer || !same))
        st = ls_fail(LS_E_CONFIG,
                     "%s and %s have different tokenizers; prepare both with the same one (prepare --tokenizer %s)",
                     first, dir, first);
    ls_free(file);
    return st;
}

static ls_status no_folder(const char *path)
{
    const char *colon = strrchr(path, ':');
    if (ls_fs_exists(path)) return ls_fail(LS_E_IO, "--data %s: not a folder; in a list, name data folders only", path);
    if (colon) {
        char *dir = ls_strndup(path, (size_t)(colon - path));
        const bool weighted = dir && ls_fs_is_dir(dir);
        ls_free(dir);
        if (weighted) return ls_fail(LS_E_IO, "--data %s: '%s' is not a weight (a number above 0)", path, colon + 1);
    }
    return ls_fail(LS_E_IO, "--data %s: does not exist; create it with `lockstep prepare TEXT --out %s`", path,
                   ls_quoted(path).text);
}

/* Adds the files of one data folder to the two lists. */
static ls_status take_folder(const ls_data_source *from, ls_data_sources *train, ls_data_sources *val)
{
    char *file[2] = {NULL, NULL};
    if (!ls_fs_is_dir(from->path)) return no_folder(from->path);
    ls_status st = find_part(from->path, "train", &file[0]);
    if (st == LS_OK && !file[0])
        st = ls_fail(LS_E_IO, "%s has no train.bin; create it with `lockstep prepare TEXT --out %s`", from->path,
                     ls_quoted(from->path).text);
    if (st == LS_OK) st = find_part(from->path, "val", &file[1]);
    if (st == LS_OK) st = ls_sources_add(train, file[0], from->weight);
    if (st == LS_OK && file[1]) st = ls_sources_add(val, file[1], 0);
    ls_free(file[0]);
    ls_free(file[1]);
    return st;
}

static ls_status to_text(const ls_data_sources *s, char **out)
{
    ls_str text = {0};
    if (!s->n) return LS_OK;
    const ls_status st = ls_sources_text(s, &text);
    if (st == LS_OK) *out = text.data;
    else ls_str_fini(&text);
    return st;
}

/* val: NULL when --val_data_path names another one. */
static ls_status from_data(const char *data, bool use_val, ls_train_paths *p)
{
    ls_data_sources list = {0}, train = {0}, val = {0};
    const bool file = ls_fs_exists(data) && !ls_fs_is_dir(data);
    LS_TRY(file ? ls_sources_load(data, &list) : ls_sources_parse(data, &list));
    ls_status st = LS_OK;
    for (size_t i = 0; i < list.n && st == LS_OK; i++) {
        st = take_folder(&list.item[i], &train, &val);
        if (st == LS_OK) st = take_tokenizer(list.item[i].path, i, list.item[0].path, p);
    }
    if (st == LS_OK) st = to_text(&train, &p->train);
    if (st == LS_OK && use_val) st = to_text(&val, &p->val);
    ls_sources_fini(&list);
    ls_sources_fini(&train);
    ls_sources_fini(&val);
    return st;
}

/* The files that --train_data_path or --val_data_path names exist; shards and blends are accepted here too. */
static ls_status from_files(const char *text, const char *what, char **out)
{
    ls_data_sources list = {0};
    LS_TRY(ls_sources_parse(text, &list));
    ls_status st = LS_OK;
    for (size_t i = 0; i < list.n && st == LS_OK; i++)
        if (!ls_is_shards(list.item[i].path) && !ls_fs_exists(list.item[i].path))
            st = ls_fail(
                LS_E_IO,
                "%s data %s does not exist; make it with `lockstep prepare TEXT --out DIR` and `cp DIR/%s.bin %s`",
                what, list.item[i].path, *what == 't' ? "train" : "val", ls_quoted(list.item[i].path).text);
    ls_sources_fini(&list);
    return st == LS_OK ? train_copy(out, text) : st;
}

/* Data without a tokenizer.json: the vocab.json and merges.txt beside it, else the tokenizer of the weights. */
static ls_status other_tokenizer(const ls_train_options *o, const char *dir, ls_train_paths *p)
{
    char file[PATH_MAX] = "";
    if (p->tokenizer) return LS_OK;
    if (ls_fs_is_dir(dir)) LS_TRY(ls_ckpt_tokenizer(dir, file));
    if (!*file && o->init_from) {
        char *weights = NULL;
        LS_TRY(ls_ckpt_resolve("--init_from", o->init_from, &weights));
        const ls_status st = ls_ckpt_tokenizer(weights, file);
        ls_free(weights);
        LS_TRY(st);
    }
    return *file ? train_copy(&p->tokenizer, file) : LS_OK;
}

static ls_status find(const ls_train_options *o, ls_train_paths *p)
{
    if (o->data) {
        LS_TRY(from_data(o->data, !o->val_data_path, p));
        LS_TRY(other_tokenizer(o, o->data, p));
    } else {
        const char *base = ls_path_base(o->train_data_path);
        char *dir = base == o->train_data_path ? ls_strdup(".")
                                               : ls_strndup(o->train_data_path, (size_t)(base - o->train_data_path));
        if (!dir) return ls_nomem(strlen(o->train_data_path), "a path");
        ls_status st = from_files(o->train_data_path, "training", &p->train);
        if (st == LS_OK) st = beside(dir, "tokenizer.json", &p->tokenizer);
        if (st == LS_OK) st = other_tokenizer(o, dir, p);
        ls_free(dir);
        LS_TRY(st);
    }
    return o->val_data_path ? from_files(o->val_data_path, "validation", &p->val) : LS_OK;
}

ls_status ls_train_find_paths(const ls_train_options *o, ls_train_paths *out)
{
    ls_train_paths p = {0};
    if (o->data && o->train_data_path)
        return ls_fail(LS_E_ARG, "--data and --train_data_path cannot be combined; leave one out");
    if (!o->data && !o->train_data_path)
        return ls_fail(
            LS_E_ARG,
            "no training data; give a text (lockstep train book.txt), --data DIR (written by `lockstep prepare`) or --train_data_path FILE; `lockstep data fetch shakespeare` writes a text");
    const ls_status st = find(o, &p);
    if (st != LS_OK) ls_train_paths_fini(&p);
    else *out = p;
    return st;
}
