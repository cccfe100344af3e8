/* checkpoint_memory.c - a second folder for the checkpoints of a run, in the memory of its host: it outlives the processes of the run.
 *
 *   /dev/shm/lockstep-<uid>/<id>/step-N   as in the run folder; <id> is 16 random hexadecimal digits
 *   /dev/shm/lockstep-<uid>/<id>/owner    the path of the run folder
 *   <run>/memory_copy                     <id>: a run folder that was removed and made again has none
 *
 * Anybody can create names in /dev/shm: a folder is used only if it belongs to this user and nobody else may enter it. */
#include "ckpt/checkpoint_impl.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define TOKEN "memory_copy"
#define OWNER "owner"

enum { ID = 16 };

static ls_path root(void)
{
    char name[64];
    snprintf(name, sizeof name, "lockstep-%ld", (long)geteuid());
    return ls_path_of("/dev/shm", name);
}

static bool is_private(const char *dir)
{
    struct stat s;
    return !lstat(dir, &s) && S_ISDIR(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & 077);
}

/* The text of a small file; false if there is none. */
static bool read_line(const char *path, char *line, size_t room)
{
    char *text = NULL;
    size_t n = 0;
    if (!ls_fs_is_file(path)) return false;
    if (ls_fs_read(path, &text, &n) != LS_OK) {
        ls_err_clear();
        return false;
    }
    const bool fits = n < room;
    if (fits) memcpy(line, text, n + 1);
    ls_free(text);
    return fits;
}

static bool read_id(const char *run_dir, char id[ID + 1])
{
    return read_line(ls_path_of(run_dir, TOKEN).text, id, ID + 1) && strlen(id) == ID &&
           strspn(id, "0123456789abcdef") == ID;
}

/* Whether this folder belongs to the run folder that its owner file names. */
static bool is_owned(const char *id, const char *dir)
{
    char owner[PATH_MAX], theirs[ID + 1];
    return read_line(ls_path_of(dir, OWNER).text, owner, sizeof owner) && read_id(owner, theirs) && !strcmp(id, theirs);
}

bool ls_ckpt_memory_find(const char *run_dir, char dir[PATH_MAX])
{
    char id[ID + 1], owner[PATH_MAX], here[PATH_MAX];
    const ls_path top = root();
    if (!read_id(run_dir, id) || !is_private(top.text)) return false;
    const ls_path at = ls_path_of(top.text, id);
    if (!is_private(at.text) || !realpath(run_dir, here) ||
        !read_line(ls_path_of(at.text, OWNER).text, owner, sizeof owner) || strcmp(owner, here))
        return false; /* a copy of the run folder has the file, but not the memory */
    memcpy(dir, at.text, strlen(at.text) + 1);
    return true;
}

/* Removes folders of runs that are gone. */
static void sweep_orphans(const char *top)
{
    char **names;
    size_t n;
    if (ls_fs_list(top, &names, &n) != LS_OK) {
        ls_err_clear();
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const ls_path one = ls_path_of(top, names[i]);
        if (strlen(names[i]) == ID && is_private(one.text) && !is_owned(names[i], one.text))
            ckpt_remove_quietly(one.text);
    }
    ls_fs_list_free(names, n);
}

static ls_status create(const char *run_dir, const char *top, char dir[PATH_MAX])
{
    uint64_t number;
    char id[ID + 1], here[PATH_MAX];
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return ls_fail(LS_E_IO, "cannot get random bytes: %s", strerror(errno));
    snprintf(id, sizeof id, "%016llx", (unsigned long long)number);
    if (!realpath(run_dir, here)) return ls_fail(LS_E_IO, "cannot read %s: %s", run_dir, strerror(errno));
    LS_TRY(ls_path_in(dir, top, "%s", id));
    LS_TRY(ls_fs_write(ls_path_of(run_dir, TOKEN).text, id, ID)); /* first: a folder without it is removed */
    if (mkdir(dir, 0700)) return ls_fail(LS_E_IO, "cannot create %s: %s", dir, strerror(errno));
    return ls_fs_write(ls_path_of(dir, OWNER).text, here, strlen(here));
}

ls_status ls_ckpt_memory_open(const char *run_dir, int64_t nbytes, char dir[PATH_MAX])
{
    const ls_path top = root();
    struct statvfs v;
    if (mkdir(top.text, 0700) && errno != EEXIST)
        return ls_fail(LS_E_IO, "cannot create %s: %s", top.text, strerror(errno));
    if (!is_private(top.text)) return ls_fail(LS_E_IO, "%s is not a private folder of this user; remove it", top.text);
    sweep_orphans(top.text);
    const bool found = ls_ckpt_memory_find(run_dir, dir);
    if (!found) LS_TRY(create(run_dir, top.text, dir));
    /* the last one stays until the new one is complete */
    const double need = 2.0 * (double)nbytes, memory = (double)ls_plan_available();
    const double room = statvfs(dir, &v) ? 0 : (double)v.f_bavail * (double)v.f_frsize;
    if (found || (need <= room && need <= memory)) return LS_OK;
    ls_ckpt_memory_drop(run_dir);
    return ls_fail(
        LS_E_NOMEM,
        "checkpoints in memory need %.1f MiB (two of them); /dev/shm has %.1f MiB free, the host %.1f MiB of memory",
        need / 1048576.0, room / 1048576.0, memory / 1048576.0);
}

void ls_ckpt_memory_drop(const char *run_dir)
{
    char dir[PATH_MAX];
    const ls_path token = ls_path_of(run_dir, TOKEN);
    if (!ls_fs_exists(token.text)) return;
    const bool found = ls_ckpt_memory_find(run_dir, dir);
    if (unlink(token.text)) ls_warn("checkpoint", "cannot remove %s: %s", token.text, strerror(errno));
    if (found) ckpt_remove_quietly(dir);
    (void)rmdir(root().text); /* if it was the last one */
}
