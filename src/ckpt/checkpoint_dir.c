/* checkpoint_dir.c - the folders of a run: temporary folders, atomic publishing, the newest checkpoint, pruning.
 *
 *   .tmp-<name>-<pid>   being written (locked by its writer), or left over from an exchange
 *   .old-<name>-<pid>   the replaced folder until the new one exists; only on file systems that cannot exchange two names
 *   .del-<name>-<pid>   being removed
 *   damaged-<name>      a checkpoint whose files differ from their checksums; the newest such one that was found right after writing
 *   earlier-<k>/        checkpoints of earlier runs in this folder
 *   damaged-<name>/     a checkpoint that a restart has passed over
 *
 * A lock (flock on the folder) shows whether the writer is alive; process ids are reused, locks are not. */
#include "ckpt/checkpoint_impl.h"

#include "core/log.h"
#include "core/mem.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool ckpt_name_ok(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/') && strlen(name) < 200;
}

ls_status ckpt_split_path(const char *path, char dir[PATH_MAX], char name[PATH_MAX])
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n >= PATH_MAX) return ls_fail(LS_E_IO, "path too long: %.200s...", path);
    memcpy(dir, path, n);
    dir[n] = '\0';
    char *slash = strrchr(dir, '/');
    snprintf(name, PATH_MAX, "%s", slash ? slash + 1 : dir);
    if (!slash) snprintf(dir, PATH_MAX, ".");
    else if (slash == dir) dir[1] = '\0';
    else *slash = '\0';
    return LS_OK;
}

/* "step-40" with prefix "step-" -> 40; -1 for any other name. */
static int64_t number_of(const char *name, const char *prefix)
{
    size_t skip = strlen(prefix);
    int64_t n;
    if (strncmp(name, prefix, skip) || !isdigit((unsigned char)name[skip])) return -1;
    return strspn(name + skip, "0123456789") == strlen(name + skip) && ls_parse_i64(name + skip, &n) ? n : -1;
}

static bool is_checkpoint_name(const char *name)
{
    return number_of(name, "step-") >= 0 || number_of(name, "epoch-") >= 0;
}

void ckpt_remove_quietly(const char *path)
{
    ls_err_kept before;
    ls_err_keep(&before);
    if (ls_fs_remove_tree(path) == LS_OK) return;
    ls_warn("checkpoint", "cannot remove %s: %s", path, ls_err_words());
    ls_err_restore(&before);
}

/* ---- leftovers ---- */

/* ".tmp-<name>-<pid>" -> length of <name>; 0 for any other name. */
static size_t hidden_name(const char *entry, const char *prefix)
{
    size_t skip = strlen(prefix), n = strlen(entry);
    if (strncmp(entry, prefix, skip)) return 0;
    size_t end = n;
    while (end > skip && isdigit((unsigned char)entry[end - 1])) end--;
    return end < n && end > skip + 1 && entry[end - 1] == '-' ? end - 1 - skip : 0;
}

/* Restores a folder that was renamed by a process that died before the new one was in place. */
static ls_status put_back(const char *run_dir, const char *entry, size_t n_name)
{
    char from[PATH_MAX], to[PATH_MAX];
    LS_TRY(ls_path_in(from, run_dir, "%s", entry));
    LS_TRY(ls_path_in(to, run_dir, "%.*s", (int)n_name, entry + 5));
    if (!ls_fs_exists(to)) return ls_fs_rename(from, to);
    ckpt_remove_quietly(from);
    return LS_OK;
}

static ls_status remove_dead(const char *run_dir, const char *entry)
{
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, run_dir, "%s", entry));
    int fd = ls_fs_open(path, O_RDONLY | O_DIRECTORY);
    bool alive = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (!alive) ckpt_remove_quietly(path);
    if (fd >= 0) close(fd);
    return LS_OK;
}

static ls_status sweep(const char *run_dir, bool remove)
{
    char **names;
    size_t n;
    if (!ls_fs_is_dir(run_dir)) return LS_OK;
    LS_TRY(ls_fs_list(run_dir, &names, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        size_t k = hidden_name(names[i], ".old-");
        if (k) st = put_back(run_dir, names[i], k);
        else if (remove && (hidden_name(names[i], ".tmp-") || hidden_name(names[i], ".del-")))
            st = remove_dead(run_dir, names[i]);
    }
    ls_fs_list_free(names, n);
    return st;
}

ls_status ls_ckpt_clean(const char *run_dir)
{
    return sweep(run_dir, true);
}

/* ---- writing ---- */

ls_status ckpt_tmp_open(const char *run_dir, const char *name, char tmp[PATH_MAX], int *lock)
{
    char path[PATH_MAX];
    LS_TRY(ls_fs_mkdirs(run_dir));
    LS_TRY(ls_ckpt_clean(run_dir));
    LS_TRY(ls_path_in(path, run_dir, CKPT_TMP_NAME, name, (long long)getpid()));
    if (ls_fs_mkdir(path)) return ls_fail(LS_E_IO, "cannot write a checkpoint in %s: %s", run_dir, ls_fs_why(errno));
    int fd = ls_fs_open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        ls_status st = ls_fail(LS_E_IO, "cannot open %s: %s", path, ls_fs_why(errno));
        (void)ls_fs_unlink(path, true);
        return st;
    }
    (void)flock(fd, LOCK_EX | LOCK_NB); /* without file locks no other process can hold one either */
    memcpy(tmp, path, sizeof path);
    *lock = fd;
    return LS_OK;
}

static ls_status cannot_rename(const char *from, const char *to)
{
    return ls_fail(LS_E_IO, "cannot rename %s to %s: %s", from, to, ls_fs_why(errno));
}

/* Two renames, for file systems that cannot exchange names; sweep() repairs the state after a crash between them. */
static ls_status replace_in_two(const char *run_dir, const char *tmp, const char *name, const char *final)
{
    char old[PATH_MAX];
    LS_TRY(ls_path_in(old, run_dir, ".old-%s-%ld", name, (long)getpid()));
    if (ls_fs_move(final, old, 0)) return cannot_rename(final, old);
    if (!ls_fs_move(tmp, final, 0)) return ls_fs_sync_dir(run_dir);
    ls_status st = cannot_rename(tmp, final);
    if (ls_fs_move(old, final, 0)) ls_warn("checkpoint", "%s is kept as %s until the next start", final, old);
    return st;
}

ls_status ckpt_publish(const char *run_dir, const char *tmp, const char *name)
{
    char final[PATH_MAX];
    LS_TRY(ls_path_in(final, run_dir, "%s", name));
    LS_TRY(ls_fs_sync_dir(tmp));
    if (!ls_fs_move(tmp, final, 0)) return ls_fs_sync_dir(run_dir);
    if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) return cannot_rename(tmp, final);
    if (!ls_fs_move(tmp, final, RENAME_EXCHANGE)) return ls_fs_sync_dir(run_dir);
    if (errno == EINVAL || errno == ENOSYS) return replace_in_two(run_dir, tmp, name, final);
    return ls_fail(LS_E_IO, "cannot exchange %s and %s: %s", tmp, final, ls_fs_why(errno));
}

/* Hides a folder for ls_ckpt_clean. */
static void discard(const char *run_dir, const char *name)
{
    char from[PATH_MAX], to[PATH_MAX];
    ls_debug("checkpoint", "removing %s/%s", run_dir, name);
    if (ls_path_in(from, run_dir, "%s", name) != LS_OK ||
        ls_path_in(to, run_dir, ".del-%s-%ld", name, (long)getpid()) != LS_OK)
        return;
    if (ls_fs_move(from, to, 0)) ls_warn("checkpoint", "cannot remove %s: %s", from, ls_fs_why(errno));
}

static bool is_younger(const char *path, double hours)
{
    struct stat s;
    return hours > 0 && !stat(path, &s) && difftime(time(NULL), s.st_mtime) < hours * 3600;
}

void ckpt_prune(const char *run_dir, const char *name, int64_t step, int keep, double hours)
{
    char **names;
    size_t n;
    if (keep <= 0 || ls_fs_list(run_dir, &names, &n) != LS_OK) return;
    for (size_t i = 0; i < n; i++) {
        const int64_t k = number_of(names[i], "step-");
        int newer = 0; /* the one that was just written counts as such */
        if (k < 0 || k > step || !strcmp(names[i], name)) continue;
        for (size_t j = 0; j < n; j++) {
            const int64_t other = number_of(names[j], "step-");
            newer += other >= 0 && other <= step && (other > k || !strcmp(names[j], name));
        }
        if (newer >= keep && !is_younger(ls_path_of(run_dir, names[i]).text, hours)) discard(run_dir, names[i]);
    }
    ls_fs_list_free(names, n);
}

void ckpt_set_bad(const char *run_dir, const char *name, const char *replaced)
{
    char **names;
    size_t n;
    char bad[PATH_MAX];
    const ls_path from = ls_path_of(run_dir, name);
    if (ls_path_in(bad, run_dir, "damaged-%s", name) != LS_OK || ls_fs_list(run_dir, &names, &n) != LS_OK) return;
    for (size_t i = 0; i < n; i++)
        if (!strncmp(names[i], "damaged-", 8) && is_checkpoint_name(names[i] + 8)) discard(run_dir, names[i]);
    ls_fs_list_free(names, n);
    if (ls_fs_move(from.text, bad, 0)) ls_warn("checkpoint", "cannot rename %s: %s", from.text, ls_fs_why(errno));
    else if (ls_ckpt_is(replaced) && ls_fs_move(replaced, from.text, 0))
        ls_warn("checkpoint", "cannot rename %s: %s", replaced, ls_fs_why(errno));
}

/* ---- an earlier run's ---- */

static ls_status set_one_aside(const char *run_dir, const char *name, const char *where, int64_t *step)
{
    char from[PATH_MAX], to[PATH_MAX];
    int64_t k;
    LS_TRY(ls_path_in(from, run_dir, "%s", name));
    LS_TRY(ls_path_in(to, where, "%s", name));
    if (ls_ckpt_is(from)) {
        if (ls_ckpt_state(from, NULL, &k) == LS_OK) *step = k > *step ? k : *step;
        else ls_err_clear(); /* damaged folders are moved, too */
    }
    LS_TRY(ls_fs_rename(from, to));
    ls_debug("checkpoint", "moved %s to %s", from, to);
    return LS_OK;
}

ls_status ls_ckpt_set_aside(const char *run_dir, char where[PATH_MAX], int64_t *step)
{
    char **names;
    size_t n;
    *where = '\0';
    *step = -1;
    if (!ls_fs_is_dir(run_dir)) return LS_OK;
    LS_TRY(ls_ckpt_clean(run_dir)); /* restores a folder from an interrupted rename */
    LS_TRY(ls_fs_list(run_dir, &names, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        if (!is_checkpoint_name(names[i])) continue;
        if (!*where) st = ls_fs_mkdir_next(run_dir, "earlier-", where);
        if (st == LS_OK) st = set_one_aside(run_dir, names[i], where, step);
    }
    ls_fs_list_free(names, n);
    return st == LS_OK && *where ? ls_fs_sync_dir(run_dir) : st;
}

/* ---- finding ---- */

bool ls_ckpt_is(const char *path)
{
    char file[PATH_MAX];
    return (ls_path_in(file, path, CKPT_STATE) == LS_OK && ls_fs_exists(file)) ||
           (ls_path_in(file, path, CKPT_SUMS) == LS_OK && ls_fs_exists(file));
}

/* The checkpoints of a run, newest first: by step, among equals the last by name. */
typedef struct entry {
    int64_t step;     /* -1: it cannot be read */
    const char *name; /* of the list of names  */
    char *why;        /* it cannot be read; or NULL */
} entry;

static int by_age(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    return a->step != b->step ? (a->step < b->step ? 1 : -1) : -strcmp(a->name, b->name);
}

/* Free them with free_entries. Names that are no checkpoints are left out. */
static ls_status list_entries(const char *run_dir, char ***names, size_t *n_name, entry **out, size_t *n)
{
    LS_TRY(ls_fs_list(run_dir, names, n_name));
    *n = 0;
    *out = ls_alloc((*n_name + 1) * sizeof **out);
    if (!*out) {
        ls_fs_list_free(*names, *n_name);
        return ls_nomem((*n_name + 1) * sizeof **out, "the checkpoints of a run");
    }
    for (size_t i = 0; i < *n_name; i++)
        if (is_checkpoint_name((*names)[i]) && ls_ckpt_is(ls_path_of(run_dir, (*names)[i]).text))
            (*out)[(*n)++] = (entry){-1, (*names)[i], NULL};
    return LS_OK;
}

static void free_entries(char **names, size_t n_name, entry *e, size_t n)
{
    for (size_t i = 0; i < n; i++) ls_free(e[i].why);
    ls_free(e);
    ls_fs_list_free(names, n_name);
}

/* Whether a checkpoint that gave `st` is damaged: its bytes differ or a file is missing. A file that cannot be read now may be whole. */
static bool is_damaged(ls_status st, const char *dir)
{
    static const char *const files[] = {CKPT_CONFIG, CKPT_MODEL, CKPT_OPTIMIZER, CKPT_STATE, CKPT_SUMS};
    if (st != LS_E_IO) return st == LS_E_FORMAT;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (access(ls_path_of(dir, files[i]).text, F_OK) && errno == ENOENT) return true;
    return false;
}

/* Checkpoints that are not used: those that cannot be read if they are older than the newest, else also newer ones that are damaged or cannot
 * be read. */
typedef enum pass_over { OLDER, DAMAGED, UNREADABLE /* or damaged */ } pass_over;

/* The highest step of a checkpoint that cannot be read: that in its name; an epoch has ended before a later one. */
static int64_t most_step(const entry *e, size_t n, const char *name)
{
    int64_t most = number_of(name, "step-");
    if (most >= 0) return most;
    most = INT64_MAX;
    for (size_t i = 0; i < n; i++)
        if (e[i].step >= 0 && e[i].step < most && number_of(e[i].name, "epoch-") > number_of(name, "epoch-"))
            most = e[i].step;
    return most;
}

/* Reads the steps of all but `skip`. */
static ls_status read_steps(const char *run_dir, const char *skip, pass_over over, entry *e, size_t n, ls_str *skipped)
{
    for (size_t i = 0; i < n; i++) {
        const ls_path one = ls_path_of(run_dir, e[i].name);
        if (skip && !strcmp(skip, e[i].name)) continue;
        const ls_status st = ls_ckpt_state(one.text, NULL, &e[i].step);
        if (st == LS_OK) continue;
        if (st == LS_E_NOMEM || (over == DAMAGED && !is_damaged(st, one.text))) return st;
        e[i].step = -1;
        e[i].why = ls_strdup(ls_err_words());
        if (!e[i].why) return ls_nomem(strlen(ls_err_words()), "a message");
        if (skipped) ls_str_addf(skipped, "%s\n", e[i].why);
    }
    return LS_OK;
}

/* LS_E_FORMAT if a checkpoint that cannot be read may be newer than `step`. */
static ls_status check_older(const char *run_dir, const entry *e, size_t n, int64_t step)
{
    const entry *newer = NULL;
    for (size_t i = 0; i < n; i++) {
        const int64_t most = e[i].why ? most_step(e, n, e[i].name) : -1;
        if (most <= step) continue;
        newer = &e[i];
        step = most;
    }
    if (!newer) return LS_OK;
    const ls_status st = ls_fail(LS_E_FORMAT, "%s", newer->why);
    return ckpt_tell_older(st, ls_path_of(run_dir, newer->name).text);
}

/* The newest checkpoint of a run with above < step < below, other than `skip`. Unless only older ones are passed over, its checksums agree,
 * too. `skipped` (may be NULL) gets a line for each that is passed over; any other that cannot be read ends the search. */
static ls_status newest(const char *run_dir, const char *skip, int64_t above, int64_t below, pass_over over,
                        char **path, ls_str *skipped)
{
    char **names;
    size_t n_name, n;
    entry *e;
    const entry *best = NULL;
    ls_err_kept before;
    LS_TRY(list_entries(run_dir, &names, &n_name, &e, &n));
    ls_err_keep(&before);
    ls_status st = read_steps(run_dir, skip, over, e, n, skipped);
    qsort(e, n, sizeof *e, by_age);
    for (size_t i = 0; i < n && st == LS_OK && !best; i++) {
        if (e[i].step <= above || e[i].step >= below) continue;
        const ls_path one = ls_path_of(run_dir, e[i].name);
        const ls_status sums = over != OLDER ? ckpt_sums_read(one.text, false, NULL) : LS_OK;
        if (sums == LS_OK) best = &e[i];
        else if (over == DAMAGED && !is_damaged(sums, one.text)) st = sums;
        else if (skipped) ls_str_addf(skipped, "%s\n", ls_err_words());
    }
    if (st == LS_OK && over == OLDER) st = check_older(run_dir, e, n, best ? best->step : above);
    if (st == LS_OK && skipped && skipped->failed) st = ls_nomem(skipped->cap, "the list of damaged checkpoints");
    if (st == LS_OK && best && !(*path = ls_strdup(ls_path_of(run_dir, best->name).text)))
        st = ls_nomem(strlen(best->name), "a path");
    free_entries(names, n_name, e, n);
    if (st == LS_OK) ls_err_restore(&before); /* those passed over are no failure */
    return st;
}

ls_status ckpt_newest(const char *run_dir, int64_t above, bool whole, char **path, ls_str *skipped)
{
    *path = NULL;
    return ls_fs_is_dir(run_dir) ? newest(run_dir, NULL, above, INT64_MAX, whole ? DAMAGED : OLDER, path, skipped)
                                 : LS_OK;
}

void ckpt_warn_skipped(const char *what, const ls_str *skipped)
{
    for (const char *line = skipped->data; line && *line; line += strcspn(line, "\n") + 1)
        ls_warn("checkpoint", "%s: %.*s", what, (int)strcspn(line, "\n"), line);
}

ls_status ls_ckpt_latest(const char *run_dir, char **path)
{
    ls_str skipped = {0};
    *path = NULL;
    if (!ls_fs_is_dir(run_dir)) return LS_OK;
    LS_TRY(sweep(run_dir, false));
    const ls_status st = ckpt_newest(run_dir, -1, false, path, &skipped);
    if (st == LS_OK) ckpt_warn_skipped(CKPT_NOT_NEEDED, &skipped);
    ls_str_fini(&skipped);
    LS_TRY(st);
    ls_info("checkpoint", "newest checkpoint in %s: %s", run_dir, *path ? *path : "none");
    return LS_OK;
}

/* The path of this folder if it has a model and none was found before. */
static ls_status take_model(const char *dir, const char *name, char **path)
{
    ls_model_config model;
    const ls_path at = ls_path_of(dir, name);
    if (*path || ls_model_config_load(at.text, &model) != LS_OK) return LS_OK;
    *path = ls_strdup(at.text);
    return *path ? LS_OK : ls_nomem(strlen(at.text), "a path");
}

static ls_status find_model(const char *dir, char **path)
{
    char **names;
    size_t n_name, n;
    entry *e;
    LS_TRY(list_entries(dir, &names, &n_name, &e, &n));
    ls_status st = read_steps(dir, NULL, UNREADABLE, e, n, NULL);
    qsort(e, n, sizeof *e, by_age);
    for (size_t i = 0; i < n && st == LS_OK; i++) st = take_model(dir, e[i].name, path);
    for (size_t i = 0; i < n_name && st == LS_OK; i++)
        if (hidden_name(names[i], ".old-")) st = take_model(dir, names[i], path);
    free_entries(names, n_name, e, n);
    return st;
}

ls_status ls_ckpt_any(const char *run_dir, char **path)
{
    char memory[PATH_MAX];
    ls_err_kept before;
    *path = NULL;
    if (!ls_fs_is_dir(run_dir)) return LS_OK;
    LS_TRY(ls_fs_no_links(run_dir));
    ls_err_keep(&before);
    LS_TRY(find_model(run_dir, path));
    if (!*path && ls_ckpt_memory_find(run_dir, memory))
        (void)find_model(memory, path); /* which may be removed meanwhile */
    ls_err_restore(&before);
    return LS_OK;
}

/* The newest whole one in the memory of this host; *step = -1 if there is none. */
static ls_status newest_in_memory(const char *run_dir, int64_t below, pass_over over, char **path, int64_t *step,
                                  ls_str *skipped)
{
    char memory[PATH_MAX];
    *step = -1;
    if (!ls_ckpt_memory_find(run_dir, memory)) return LS_OK;
    LS_TRY(newest(memory, NULL, -1, below, over, path, skipped));
    return *path ? ls_ckpt_state(*path, NULL, step) : LS_OK;
}

/* As newest, of the disk and of the memory of this host. */
static ls_status newest_of_both(const char *run_dir, const char *skip, int64_t below, pass_over over, char **path,
                                ls_str *skipped)
{
    char *memory = NULL, *disk = NULL;
    int64_t step;
    ls_status st = newest_in_memory(run_dir, below, over, &memory, &step, skipped);
    if (st == LS_OK) st = newest(run_dir, skip, step, below, over, &disk, skipped);
    *path = st != LS_OK ? NULL : disk ? disk : memory;
    if (memory != *path) ls_free(memory);
    if (disk != *path) ls_free(disk);
    return st;
}

ls_status ls_ckpt_newest_whole(const char *run_dir, bool unreadable, char **path, ls_str *skipped)
{
    *path = NULL;
    if (!ls_fs_is_dir(run_dir)) return LS_OK;
    LS_TRY(sweep(run_dir, false));
    return newest_of_both(run_dir, NULL, INT64_MAX, unreadable ? UNREADABLE : DAMAGED, path, skipped);
}

/* The first unused damaged-<name>, damaged-<name>.1, ... */
static ls_status reject_one(const char *run_dir, const char *name)
{
    char to[PATH_MAX];
    LS_TRY(ls_path_in(to, run_dir, "damaged-%s", name));
    for (int k = 1; ls_fs_exists(to); k++) LS_TRY(ls_path_in(to, run_dir, "damaged-%s.%d", name, k));
    return ls_fs_rename(ls_path_of(run_dir, name).text, to);
}

ls_status ls_ckpt_reject(const char *run_dir, const char *path)
{
    char **names;
    size_t n_name, n;
    entry *e, best = {.step = -1, .name = path ? ls_path_base(path) : ""};
    ls_err_kept before;
    if (!ls_fs_is_dir(run_dir)) return LS_OK;
    if (path) LS_TRY(ls_ckpt_state(path, NULL, &best.step));
    LS_TRY(list_entries(run_dir, &names, &n_name, &e, &n));
    ls_status st = LS_OK;
    ls_err_keep(&before);
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        const ls_path one = ls_path_of(run_dir, e[i].name);
        const ls_status read = ls_ckpt_state(one.text, NULL, &e[i].step);
        if (path && !strcmp(one.text, path)) continue; /* not one of the same name in memory */
        if (read != LS_OK && !path && !is_damaged(read, one.text)) st = read;
        else if (read != LS_OK || by_age(&e[i], &best) < 0) st = reject_one(run_dir, e[i].name);
    }
    if (st == LS_OK) ls_err_restore(&before);
    free_entries(names, n_name, e, n);
    return st;
}

char *ckpt_older_whole(const char *path, int64_t step)
{
    ls_err_kept before;
    char parent[PATH_MAX], name[PATH_MAX], *found = NULL;
    ls_err_keep(&before);
    if (ckpt_split_path(path, parent, name) == LS_OK)
        (void)newest_of_both(parent, name, step < 0 ? INT64_MAX : step, DAMAGED, &found, NULL);
    ls_err_restore(&before);
    return found;
}
