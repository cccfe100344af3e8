/* checkpoint_dir.c - the folders of a run: temporary folders, atomic publishing, the newest checkpoint, pruning.
 *
 *   .tmp-<name>-<pid>   being written (locked by its writer), or left over from an exchange
 *   .old-<name>-<pid>   the replaced folder until the new one exists; only on file systems that cannot exchange two names
 *   .del-<name>-<pid>   being removed
 *   earlier-<k>/        checkpoints of earlier runs in this folder
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
#include <unistd.h>

bool ckpt_name_ok(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/') && strlen(name) < 200;
}

/* "step-40" with prefix "step-" -> 40; -1 for any other name. */
static int64_t number_of(const char *name, const char *prefix)
{
    size_t skip = strlen(prefix);
    int64_t n;
    if (strncmp(name, prefix, skip) || !isdigit((unsigned char)name[skip])) return -1;
    return strspn(name + skip, "0123456789") == strlen(name + skip) && ls_parse_i64(name + skip, &n) ? n : -1;
}

void ckpt_remove_quietly(const char *path)
{
    char words[2048], trail[4096];
    snprintf(words, sizeof words, "%s", ls_err_words());
    snprintf(trail, sizeof trail, "%s", ls_err_trail());
    if (ls_fs_remove_tree(path) != LS_OK) {
        ls_warn("checkpoint", "cannot remove %s: %s", path, ls_err_words());
        ls_err_adopt(words, trail);
    }
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
    char *name = ls_strndup(entry + 5, n_name);
    char *from = ls_path_join(run_dir, entry), *to = name ? ls_path_join(run_dir, name) : NULL;
    ls_status st = LS_OK;
    if (!from || !to) st = ls_nomem(strlen(run_dir), "a path");
    else if (!ls_fs_exists(to)) st = ls_fs_rename(from, to);
    else ckpt_remove_quietly(from);
    ls_free(name);
    ls_free(from);
    ls_free(to);
    return st;
}

static void remove_dead(const char *run_dir, const char *entry)
{
    char *path = ls_path_join(run_dir, entry);
    if (!path) return; /* the next start removes it */
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool alive = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (!alive) ckpt_remove_quietly(path);
    if (fd >= 0) close(fd);
    ls_free(path);
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
            remove_dead(run_dir, names[i]);
    }
    ls_fs_list_free(names, n);
    return st;
}

ls_status ls_ckpt_clean(const char *run_dir)
{
    return sweep(run_dir, true);
}

/* ---- writing ---- */

ls_status ckpt_tmp_open(const char *run_dir, const char *name, char **tmp, int *lock)
{
    LS_TRY(ls_fs_mkdirs(run_dir));
    LS_TRY(ls_ckpt_clean(run_dir));
    char *path = ls_asprintf("%s/.tmp-%s-%ld", run_dir, name, (long)getpid());
    if (!path) return ls_nomem(strlen(run_dir), "a path");
    ls_status st = LS_OK;
    int fd = -1;
    if (mkdir(path, 0777)) {
        st = ls_fail(LS_E_IO, "cannot write a checkpoint in %s: %s", run_dir, strerror(errno));
    } else if ((fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        st = ls_fail(LS_E_IO, "cannot open %s: %s", path, strerror(errno));
        rmdir(path);
    } else {
        (void)flock(fd, LOCK_EX | LOCK_NB); /* without file locks no other process can hold one either */
    }
    if (st != LS_OK) {
        ls_free(path);
        return st;
    }
    *tmp = path;
    *lock = fd;
    return LS_OK;
}

/* Two renames, for file systems that cannot exchange names; sweep() repairs the state after a crash between them. */
static ls_status replace_in_two(const char *run_dir, const char *tmp, const char *name, const char *final, bool later)
{
    char *old = ls_asprintf("%s/.old-%s-%ld", run_dir, name, (long)getpid());
    if (!old) return ls_nomem(strlen(run_dir), "a path");
    ls_status st = LS_OK;
    if (rename(final, old)) {
        st = ls_fail(LS_E_IO, "cannot rename %s: %s", final, strerror(errno));
    } else if (rename(tmp, final)) {
        st = ls_fail(LS_E_IO, "cannot rename %s to %s: %s", tmp, final, strerror(errno));
        if (rename(old, final)) ls_warn("checkpoint", "%s is kept as %s until the next start", final, old);
    } else {
        st = ls_fs_sync_dir(run_dir);
        if (st == LS_OK && !later) ckpt_remove_quietly(old); /* else the next start removes it */
    }
    ls_free(old);
    return st;
}

ls_status ckpt_publish(const char *run_dir, const char *tmp, const char *name, bool later)
{
    char *final = ls_path_join(run_dir, name);
    if (!final) return ls_nomem(strlen(run_dir), "a path");
    ls_status st = ls_fs_sync_dir(tmp);
    if (st != LS_OK) {
    } else if (!rename(tmp, final)) {
        st = ls_fs_sync_dir(run_dir);
    } else if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) {
        st = ls_fail(LS_E_IO, "cannot rename %s to %s: %s", tmp, final, strerror(errno));
    } else if (!renameat2(AT_FDCWD, tmp, AT_FDCWD, final, RENAME_EXCHANGE)) {
        st = ls_fs_sync_dir(run_dir);
        if (st == LS_OK && !later) ckpt_remove_quietly(tmp); /* now the old one */
    } else if (errno == EINVAL || errno == ENOSYS) {
        st = replace_in_two(run_dir, tmp, name, final, later);
    } else {
        st = ls_fail(LS_E_IO, "cannot exchange %s and %s: %s", tmp, final, strerror(errno));
    }
    ls_free(final);
    return st;
}

static void prune_one(const char *run_dir, const char *name, bool later)
{
    ls_debug("checkpoint", "removing %s/%s (--keep_last)", run_dir, name);
    char *from = ls_path_join(run_dir, name), *to = ls_asprintf("%s/.del-%s-%ld", run_dir, name, (long)getpid());
    if (!from || !to) ls_warn("checkpoint", "cannot remove %s/%s: out of memory", run_dir, name);
    else if (rename(from, to)) ls_warn("checkpoint", "cannot remove %s: %s", from, strerror(errno));
    else if (!later) ckpt_remove_quietly(to);
    ls_free(from);
    ls_free(to);
}

void ckpt_prune(const char *run_dir, const char *name, int64_t step, int keep, bool later)
{
    char **names;
    size_t n;
    if (keep <= 0 || ls_fs_list(run_dir, &names, &n) != LS_OK) return;
    for (;;) { /* remove the oldest until `keep` are left; there are few */
        int64_t oldest = INT64_MAX;
        int count = 0;
        size_t at = 0;
        for (size_t i = 0; i < n; i++) {
            int64_t k = number_of(names[i], "step-");
            if (k < 0 || k > step) continue;
            count++;
            if (k < oldest && strcmp(names[i], name)) {
                oldest = k;
                at = i;
            }
        }
        if (count <= keep || oldest == INT64_MAX) break;
        prune_one(run_dir, names[at], later);
        names[at][0] = '\0'; /* no name any more */
    }
    ls_fs_list_free(names, n);
}

/* ---- an earlier run's ---- */

ls_status ls_ckpt_earlier_folder(const char *run_dir, char **path)
{
    for (int k = 1;; k++) {
        char *p = ls_asprintf("%s/earlier-%d", run_dir, k);
        if (!p) return ls_nomem(strlen(run_dir), "a path");
        if (!mkdir(p, 0777)) {
            *path = p;
            return LS_OK;
        }
        ls_status st =
            errno == EEXIST ? LS_OK : ls_fail(LS_E_IO, "cannot create the folder %s: %s", p, strerror(errno));
        ls_free(p);
        LS_TRY(st);
    }
}

static ls_status set_one_aside(const char *run_dir, const char *name, const char *where, int64_t *step)
{
    char *from = ls_path_join(run_dir, name), *to = ls_path_join(where, name);
    ls_status st = from && to ? LS_OK : ls_nomem(strlen(run_dir), "a path");
    int64_t k;
    if (st == LS_OK && ls_ckpt_is(from)) {
        if (ls_ckpt_state(from, NULL, &k) == LS_OK) *step = k > *step ? k : *step;
        else ls_err_clear(); /* damaged folders are moved, too */
    }
    if (st == LS_OK) st = ls_fs_rename(from, to);
    ls_free(from);
    ls_free(to);
    return st;
}

ls_status ls_ckpt_set_aside(const char *run_dir, char **where, int64_t *step)
{
    char **names, *dir = NULL;
    size_t n;
    *where = NULL;
    *step = -1;
    if (!ls_fs_is_dir(run_dir)) return LS_OK;
    LS_TRY(ls_ckpt_clean(run_dir)); /* restores a folder from an interrupted rename */
    LS_TRY(ls_fs_list(run_dir, &names, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        if (number_of(names[i], "step-") < 0 && number_of(names[i], "epoch-") < 0) continue;
        if (!dir) st = ls_ckpt_earlier_folder(run_dir, &dir);
        if (st == LS_OK) st = set_one_aside(run_dir, names[i], dir, step);
        if (st == LS_OK) ls_debug("checkpoint", "moved %s/%s to %s", run_dir, names[i], dir);
    }
    ls_fs_list_free(names, n);
    if (st == LS_OK && dir) st = ls_fs_sync_dir(run_dir);
    if (st != LS_OK) {
        ls_free(dir);
        return st;
    }
    *where = dir;
    return LS_OK;
}

/* ---- finding ---- */

bool ls_ckpt_is(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* builds no paths, so it cannot run out of memory */
    if (fd < 0) return false;
    bool is = !faccessat(fd, CKPT_STATE, F_OK, 0) || !faccessat(fd, CKPT_SUMS, F_OK, 0);
    close(fd);
    return is;
}

/* The newest checkpoint of a run with step < below, other than `skip`, and among equals the last by name. With whole, its
 * checksums agree too. An unreadable one is passed over when whole is set, else it ends the search. */
static ls_status newest(const char *run_dir, const char *skip, int64_t below, bool whole, char **path)
{
    char **names, *best = NULL;
    size_t n;
    int64_t best_step = -1;
    LS_TRY(ls_fs_list(run_dir, &names, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        if (number_of(names[i], "step-") < 0 && number_of(names[i], "epoch-") < 0) continue;
        if (skip && !strcmp(skip, names[i])) continue;
        int64_t step;
        char *p = ls_path_join(run_dir, names[i]);
        if (!p) {
            st = ls_nomem(strlen(run_dir), "a path");
        } else if (ls_ckpt_is(p)) {
            ls_status one = ls_ckpt_state(p, NULL, &step);
            if (one == LS_OK && step < below && step >= best_step &&
                (!whole || ckpt_sums_verify(p, NULL, 0, 1) == LS_OK)) {
                char *swap = best;
                best = p;
                best_step = step;
                p = swap;
            } else if (one != LS_OK && !whole) {
                char *older = ckpt_older_whole(p, -1);
                st = ls_fail(one == LS_E_NOMEM ? one : LS_E_FORMAT, "%s%s%s", ls_err_words(),
                             older ? "; the newest complete checkpoint is "
                                   : "; the run has no other complete checkpoint",
                             older ? older : "");
                ls_free(older);
            }
        }
        ls_free(p);
    }
    ls_fs_list_free(names, n);
    if (st != LS_OK) {
        ls_free(best);
        return st;
    }
    *path = best;
    return LS_OK;
}

ls_status ls_ckpt_latest(const char *run_dir, char **path)
{
    *path = NULL;
    if (!ls_fs_is_dir(run_dir)) return LS_OK;
    LS_TRY(sweep(run_dir, false));
    LS_TRY(newest(run_dir, NULL, INT64_MAX, false, path));
    ls_info("checkpoint", "newest checkpoint in %s: %s", run_dir, *path ? *path : "none");
    return LS_OK;
}

char *ckpt_older_whole(const char *path, int64_t step)
{
    char words[2048], trail[4096], *found = NULL;
    snprintf(words, sizeof words, "%s", ls_err_words());
    snprintf(trail, sizeof trail, "%s", ls_err_trail());
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--; /* "run/step-4/" */
    char *own = ls_strndup(path, n);
    if (own) {
        const char *base = ls_path_base(own);
        char *parent = base == own ? ls_strdup(".") : ls_strndup(own, base - own > 1 ? (size_t)(base - own - 1) : 1);
        if (parent && newest(parent, base, step < 0 ? INT64_MAX : step, true, &found) != LS_OK) found = NULL;
        ls_free(parent);
    }
    ls_free(own);
    ls_err_adopt(words, trail);
    return found;
}

ls_status ls_ckpt_resolve(const char *path, char **out)
{
    char *config = ls_path_join(path, CKPT_CONFIG), *found = NULL;
    if (!config) return ls_nomem(strlen(path), "a path");
    bool here = ls_fs_exists(config) || (ls_ckpt_is(path) && ls_fs_is_dir(path));
    ls_free(config);
    if (here) {
        found = ls_strdup(path);
        if (!found) return ls_nomem(strlen(path), "a path");
    } else {
        LS_TRY(ls_ckpt_latest(path, &found));
    }
    if (!found)
        return ls_fail(LS_E_IO, "%s: %s", path,
                       ls_fs_is_dir(path)
                           ? "no checkpoint found: the folder has neither config.json nor a step-N or epoch-N folder"
                           : "no such folder");
    *out = found;
    return LS_OK;
}
