#include "data/stage.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX ".partial"

static bool is_text_of_pairs(const char *name)
{
    return !strcmp(name, "val.jsonl") || !strcmp(name, "test.jsonl");
}

/* Files of the old folder that prepare has written. */
static bool is_ours(const data_stage *s, const char *name)
{
    static const char *const fixed[] = {"meta.json", "tokenizer.json", "train.bin",
                                        "val.bin",   "train.mask",     "val.mask"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (!strcmp(name, fixed[i])) return true;
    if (s->pairs && is_text_of_pairs(name)) return true;
    const size_t head = !strncmp(name, "train_", 6) ? 6 : !strncmp(name, "val_", 4) ? 4 : 0;
    const size_t digits = head ? strspn(name + head, "0123456789") : 0;
    return digits >= 3 && !strcmp(name + head + digits, ".bin");
}

/* Renaming it would pull the folder away from the user's shell. */
static bool is_current(const char *dir)
{
    char here[PATH_MAX];
    const size_t n = strlen(dir);
    return getcwd(here, sizeof here) && !strncmp(here, dir, n) && (here[n] == '/' || !here[n]);
}

static bool is_mount(const char *dir)
{
    struct stat a, b;
    const ls_path up = ls_path_of(dir, "..");
    return !stat(dir, &a) && !stat(up.text, &b) && (a.st_dev != b.st_dev || a.st_ino == b.st_ino);
}

static ls_status find_names(data_stage *s, const char *out)
{
    char real[PATH_MAX];
    const bool there = ls_fs_exists(out);
    if (there && !ls_fs_is_dir(out))
        return ls_fail(LS_E_IO, "cannot create the folder %s: a file of that name exists", out);
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/') n--;
    const bool usable = there && realpath(out, real);
    const char *name = usable ? real : out; /* a link stays; the folder that it points to is replaced */
    if (usable) n = strlen(real);
    if (n + sizeof SUFFIX + 1 >= PATH_MAX) return ls_fail(LS_E_IO, "the path %.200s... is too long", out);
    snprintf(s->out, sizeof s->out, "%.*s", (int)n, name);
    memcpy(s->dir, s->out, n);
    const bool inside = usable && (is_current(s->out) || is_mount(s->out));
    snprintf(s->dir + n, sizeof s->dir - n, "%s" SUFFIX, inside ? "/" : "");
    return LS_OK;
}

/* A name that only unfinished work has, or a second name of a file that the old folder keeps. */
static bool is_work(const data_stage *s, const char *name)
{
    struct stat a, b;
    if (is_ours(s, name) || is_text_of_pairs(name) || !strcmp(name, "journal.json") || !strcmp(name, "hashes.bin") ||
        ls_ends_in(name, ".tmp"))
        return true;
    return !lstat(ls_path_of(s->dir, name).text, &a) && !lstat(ls_path_of(s->out, name).text, &b) &&
           a.st_ino == b.st_ino;
}

/* A folder of that name with other files is not removed. */
static ls_status check_work(const data_stage *s)
{
    char **name = NULL;
    size_t n = 0;
    LS_TRY(ls_fs_list(s->dir, &name, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++)
        if (!is_work(s, name[i]))
            st = ls_fail(
                LS_E_IO,
                "%s is the folder for unfinished work, but it has %s, which `prepare` did not write; move it or choose another --out",
                s->dir, name[i]);
    ls_fs_list_free(name, n);
    return st;
}

ls_status data_stage_clear(const data_stage *s)
{
    char **name = NULL;
    size_t n = 0;
    LS_TRY(ls_fs_list(s->dir, &name, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) st = ls_fs_remove_tree(ls_path_of(s->dir, name[i]).text);
    ls_fs_list_free(name, n);
    return st;
}

static bool has_pairs(const char *dir)
{
    const ls_path path = ls_path_of(dir, "meta.json");
    json_t *meta = NULL;
    if (!ls_fs_exists(path.text)) return false;
    if (ls_json_load(path.text, &meta) != LS_OK) ls_err_clear(); /* it will be replaced */
    const char *format = json_string_value(json_object_get(meta, "format"));
    const bool yes = format && !strncmp(format, "lockstep-pairs-", 15);
    json_decref(meta);
    return yes;
}

ls_status data_stage_open(data_stage *s, const char *out, bool keep)
{
    *s = (data_stage){.lock = -1};
    LS_TRY(find_names(s, out));
    s->pairs = has_pairs(s->out);
    ls_status st = ls_fs_mkdirs(s->dir);
    if (st != LS_OK && ls_fs_is_dir(s->out)) { /* the folder above cannot be written */
        const size_t n = strlen(s->out);
        snprintf(s->dir + n, sizeof s->dir - n, "/" SUFFIX);
        st = ls_fs_mkdirs(s->dir);
    }
    LS_TRY(st);
    s->lock = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->lock < 0) return ls_fail(LS_E_IO, "cannot open the folder %s: %s", s->dir, strerror(errno));
    if (flock(s->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return ls_fail(LS_E_CONFIG, "another `lockstep prepare` is writing %s; wait for it or choose another --out",
                       s->out);
    LS_TRY(check_work(s));
    s->open = true;
    return keep ? LS_OK : data_stage_clear(s);
}

/* Other files of the old folder, as second names of the same files. false: it has something that cannot be taken along. */
static bool take_along(const data_stage *s)
{
    char **name = NULL;
    size_t n = 0;
    bool ok = ls_fs_list(s->out, &name, &n) == LS_OK;
    for (size_t i = 0; i < n && ok; i++) {
        const ls_path old = ls_path_of(s->out, name[i]), new = ls_path_of(s->dir, name[i]);
        struct stat sb;
        if (is_ours(s, name[i])) continue;
        ok = !lstat(old.text, &sb) && S_ISREG(sb.st_mode) && !link(old.text, new.text);
    }
    if (!ok) /* take them back */
        for (size_t i = 0; i < n; i++)
            if (!is_ours(s, name[i])) (void)unlink(ls_path_of(s->dir, name[i]).text);
    ls_fs_list_free(name, n);
    return ok;
}

/* Moves the files one by one; files of an earlier run that have no successor are removed. */
static ls_status replace_files(const data_stage *s)
{
    char **name = NULL;
    size_t n = 0;
    LS_TRY(ls_fs_rename(ls_path_of(s->dir, "meta.json").text, ls_path_of(s->out, "meta.json").text));
    LS_TRY(ls_fs_list(s->out, &name, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++)
        if (is_ours(s, name[i]) && strcmp(name[i], "meta.json") && !ls_fs_exists(ls_path_of(s->dir, name[i]).text))
            st = ls_fs_remove_tree(ls_path_of(s->out, name[i]).text);
    ls_fs_list_free(name, n);
    name = NULL;
    n = 0;
    if (st == LS_OK) st = ls_fs_list(s->dir, &name, &n);
    for (size_t i = 0; i < n && st == LS_OK; i++)
        st = ls_fs_rename(ls_path_of(s->dir, name[i]).text, ls_path_of(s->out, name[i]).text);
    ls_fs_list_free(name, n);
    return st;
}

ls_status data_stage_commit(data_stage *s)
{
    const bool sibling = s->dir[strlen(s->out)] != '/';
    LS_TRY(ls_fs_sync_dir(s->dir));
    if (!ls_fs_exists(s->out)) return ls_fs_rename(s->dir, s->out);
    if (sibling && take_along(s)) {
        LS_TRY(ls_fs_sync_dir(s->dir));
        if (!renameat2(AT_FDCWD, s->dir, AT_FDCWD, s->out, RENAME_EXCHANGE)) return LS_OK;
        ls_debug("data", "cannot exchange %s: %s; its files are replaced one by one", s->out, strerror(errno));
    }
    return replace_files(s);
}

void data_stage_close(data_stage *s, bool keep)
{
    if (s->open && !keep) (void)ls_fs_remove_tree(s->dir);
    if (s->lock >= 0) close(s->lock);
    *s = (data_stage){.lock = -1};
}
