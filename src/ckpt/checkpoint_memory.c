/* checkpoint_memory.c - a second folder for the checkpoints of a run, in the memory of each of its hosts: it outlives the processes of the run.
 *
 *   /dev/shm/lockstep-<uid>/<id>-<machine>/step-N   as in the run folder; <id> is 16 random hexadecimal digits
 *   /dev/shm/lockstep-<uid>/<id>-<machine>/owner    the path of the run folder on this host
 *   <run>/memory_copy                               <id>: a run folder that was removed and made again has none; on several hosts
 *                                                   also the step of the newest copy. A copy of the run folder has it, too, but no host has
 *                                                   memory of that owner: it gets a new id
 *
 * The first worker of each host holds a lock on its folder. A folder is removed at the start of any run of this user if nobody holds it, nor a
 * lock of its run folder: that run was killed as a whole, or has failed.
 *
 * Anybody can create names in /dev/shm: a folder is used only if it belongs to this user and nobody else may enter it. */
#include "ckpt/checkpoint_impl.h"

#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define TOKEN "memory_copy"
#define OWNER "owner"
#define MAKES "new-" /* a folder that is being made has this before its name */
#define HEX   "0123456789abcdef"

enum { ID = LS_CKPT_MEMORY_ID, MAKE_TIME = 60 /* seconds */ };

static ls_path root(void)
{
    char name[64];
    snprintf(name, sizeof name, "lockstep-%ld", (long)geteuid());
    return ls_path_of("/dev/shm", name);
}

static void name_folder(const char *id, char name[2 * ID + 2])
{
    snprintf(name, 2 * ID + 2, "%.*s-%016" PRIx64, ID, id, (uint64_t)ls_comm_machine());
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
    ls_err_kept before;
    ls_err_keep(&before);
    if (ls_fs_read(path, &text, &n) != LS_OK) {
        ls_err_restore(&before);
        return false;
    }
    const bool fits = n < room;
    if (fits) memcpy(line, text, n + 1);
    ls_free(text);
    return fits;
}

typedef struct token {
    char id[ID + 1];
    int64_t step; /* of the newest copy; -1: not noted */
} token;

static bool read_token(const char *run_dir, token *t)
{
    char text[64];
    if (!read_line(ls_path_of(run_dir, TOKEN).text, text, sizeof text) || strspn(text, HEX) != ID) return false;
    memcpy(t->id, text, ID);
    t->id[ID] = '\0';
    if (text[ID] != ' ' || sscanf(text + ID, " %" SCNd64, &t->step) != 1) t->step = -1;
    return true;
}

/* Whether this folder belongs to the run folder that its owner file names. */
static bool is_of(const char *dir, const char *run_dir)
{
    char owner[PATH_MAX], here[PATH_MAX];
    return realpath(run_dir, here) && read_line(ls_path_of(dir, OWNER).text, owner, sizeof owner) &&
           !strcmp(owner, here);
}

/* ---- copies of runs that are gone ---- */

static bool is_locked(const char *dir)
{
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    const bool locked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return locked;
}

/* Whether a process of its run is alive: a worker of this host, or one that holds the run folder. */
static bool is_alive(const char *dir)
{
    char owner[PATH_MAX];
    token t;
    if (is_locked(dir)) return true;
    return read_line(ls_path_of(dir, OWNER).text, owner, sizeof owner) && read_token(owner, &t) &&
           !strncmp(t.id, ls_path_base(dir), ID) &&
           (ls_lock_is_held(ls_path_of(owner, LS_RUN_LOCK).text) ||
            ls_lock_is_held(ls_path_of(owner, LS_SUPERVISE_LOCK).text));
}

/* A folder that its maker has not completed in this time never will be. */
static bool is_abandoned(const char *dir)
{
    struct stat s;
    return !stat(dir, &s) && difftime(time(NULL), s.st_mtime) > MAKE_TIME;
}

void ls_ckpt_memory_sweep(const ls_ckpt_memory *m)
{
    const ls_path top = root();
    char **names;
    size_t n;
    if (!m->leads || !is_private(top.text)) return;
    if (ls_fs_list(top.text, &names, &n) != LS_OK) {
        ls_err_clear();
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const ls_path one = ls_path_of(top.text, names[i]);
        const bool makes = !strncmp(names[i], MAKES, sizeof MAKES - 1);
        if ((*m->id && !strncmp(names[i], m->id, ID)) || !is_private(one.text)) continue;
        if (makes ? !is_abandoned(one.text) : strspn(names[i], HEX) != ID || is_alive(one.text)) continue;
        ls_info("checkpoint", "removing %s: its run is gone", one.text);
        ckpt_remove_quietly(one.text);
    }
    ls_fs_list_free(names, n);
    (void)rmdir(top.text); /* if nothing is left */
}

/* ---- of a run ---- */

bool ls_ckpt_memory_find(const char *run_dir, char dir[PATH_MAX])
{
    token t;
    char name[2 * ID + 2];
    const ls_path top = root();
    if (!read_token(run_dir, &t) || !is_private(top.text)) return false;
    name_folder(t.id, name);
    const ls_path at = ls_path_of(top.text, name);
    if (!is_private(at.text) || !is_of(at.text, run_dir)) return false;
    memcpy(dir, at.text, strlen(at.text) + 1);
    return true;
}

int64_t ls_ckpt_memory_noted(const char *run_dir)
{
    token t;
    return read_token(run_dir, &t) ? t.step : -1;
}

/* In place, and not synced: the step is for those who count, workers ask each other. */
void ls_ckpt_memory_note(const ls_ckpt_memory *m, const char *run_dir, int64_t step)
{
    char text[64];
    const int n = snprintf(text, sizeof text, "%s %20" PRId64 "\n", m->id, step);
    const int fd = ls_fs_open(ls_path_of(run_dir, TOKEN).text, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    if (pwrite(fd, text, (size_t)n, 0) != n) ls_debug("checkpoint", "%s: %s", TOKEN, strerror(errno));
    close(fd);
}

/* Keeps other runs from removing the folder, until close or drop. */
static void hold(ls_ckpt_memory *m)
{
    const int fd = open(m->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    (void)flock(fd, LOCK_EX | LOCK_NB);
    m->lock = fd + 1;
}

static ls_status share_id(ls_ckpt_memory *m, ls_comm *team)
{
    if (team) LS_TRY(ls_broadcast(team, (ls_view){m->id, sizeof m->id, LS_U8}, 0, LS_SITE, NULL));
    char name[2 * ID + 2];
    name_folder(m->id, name);
    return ls_path_in(m->dir, root().text, "%s", name);
}

ls_status ls_ckpt_memory_look(ls_ckpt_memory *m, const char *run_dir, ls_comm *comm)
{
    ls_comm *team = ckpt_team(comm);
    *m = (ls_ckpt_memory){
        .step = -1, .leads = !team || ls_comm_where(team).local_rank == 0, .first = ckpt_rank(team) == 0};
    token t;
    if (m->first && read_token(run_dir, &t)) memcpy(m->id, t.id, sizeof m->id);
    LS_TRY(share_id(m, team));
    m->here = *m->id && is_private(root().text) && is_private(m->dir) && is_of(m->dir, run_dir);
    if (m->here && m->leads) hold(m);
    int any = m->here;
    if (team) LS_TRY(ls_agree(team, any, LS_SITE, &any));
    m->any = any;
    return LS_OK;
}

/* A link is not followed: the file that it names is not of this run. */
static void remove_odd(const char *file)
{
    struct stat s;
    if (!lstat(file, &s) && !S_ISREG(s.st_mode)) (void)ls_fs_unlink(file, false); /* if it stays, writing tells why */
}

static ls_status new_id(const char *run_dir, char id[ID + 1])
{
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return ls_fail(LS_E_IO, "cannot get random bytes: %s", strerror(errno));
    snprintf(id, ID + 1, "%016" PRIx64, number);
    const ls_path file = ls_path_of(run_dir, TOKEN);
    remove_odd(file.text);
    return ls_fs_write(file.text, id, ID);
}

/* The folder of this host, under its name when it is complete. */
ls_status ckpt_memory_make(ls_ckpt_memory *m, const char *run_dir)
{
    char here[PATH_MAX], made[PATH_MAX];
    const ls_path top = root();
    if (!realpath(run_dir, here)) return ls_fail(LS_E_IO, "cannot read %s: %s", run_dir, strerror(errno));
    LS_TRY(ls_path_in(made, top.text, MAKES "%s", ls_path_base(m->dir)));
    for (int tries = 0;; tries++) { /* another run may remove the folder above it while it is empty */
        if (mkdir(top.text, 0700) && errno != EEXIST)
            return ls_fail(LS_E_IO, "cannot create %s: %s", top.text, strerror(errno));
        if (!is_private(top.text) && tries == 3)
            return ls_fail(LS_E_IO, "%s is not a private folder of this user; remove it", top.text);
        if (!is_private(top.text)) continue;
        if (is_locked(m->dir)) return ls_fail(LS_E_IO, "%s belongs to a live run in another folder", m->dir);
        ckpt_remove_quietly(made);
        ckpt_remove_quietly(m->dir);
        if (!mkdir(made, 0700)) break;
        if (errno != ENOENT || tries == 3) return ls_fail(LS_E_IO, "cannot create %s: %s", made, strerror(errno));
    }
    LS_TRY(ls_fs_write(ls_path_of(made, OWNER).text, here, strlen(here)));
    LS_TRY(ls_fs_rename(made, m->dir));
    m->here = true;
    hold(m);
    return LS_OK;
}

/* The last one stays until the new one is complete. */
static ls_status check_room(const char *dir, int64_t nbytes)
{
    struct statvfs v;
    const double need = 2.0 * (double)nbytes, memory = (double)ls_plan_available();
    const double room = statvfs(dir, &v) ? 0 : (double)v.f_bavail * (double)v.f_frsize;
    if (need <= room && need <= memory) return LS_OK;
    return ls_fail(
        LS_E_NOMEM,
        "checkpoints in memory need %.1f MiB (two of them); /dev/shm has %.1f MiB free, the host %.1f MiB of memory",
        need / 1048576.0, room / 1048576.0, memory / 1048576.0);
}

static ls_status open_here(ls_ckpt_memory *m, const char *run_dir, int64_t nbytes)
{
    if (!m->leads || m->here) return LS_OK;
    LS_TRY(ckpt_memory_make(m, run_dir));
    return check_room(m->dir, nbytes);
}

/* The folder of this host, and what is left of one that was being made. */
static void remove_here(ls_ckpt_memory *m, const char *run_dir)
{
    char made[PATH_MAX];
    if (m->leads && *m->id) {
        if (m->here) ckpt_remove_quietly(m->dir);
        if (ls_path_in(made, root().text, MAKES "%s", ls_path_base(m->dir)) == LS_OK && is_of(made, run_dir))
            ckpt_remove_quietly(made); /* of a worker that was killed while it made the folder */
        (void)rmdir(root().text);      /* if it was the last one */
    }
    ls_ckpt_memory_close(m);
    m->here = false;
}

/* A host could not make its folder. The copies of hosts that had one stay: a run can be resumed from them. */
static void undo_open(ls_ckpt_memory *m, const char *run_dir, bool had)
{
    if (!m->any) ls_ckpt_memory_drop(m, run_dir);
    else if (!had) remove_here(m, run_dir);
}

ls_status ls_ckpt_memory_open(ls_ckpt_memory *m, const char *run_dir, int64_t nbytes, ls_comm *comm)
{
    ls_comm *team = ckpt_team(comm);
    const bool had = m->here;
    ls_status st = m->first && !m->any ? new_id(run_dir, m->id) : LS_OK;
    LS_TRY(ckpt_agree(team, st, LS_SITE));
    LS_TRY(share_id(m, team));
    st = ckpt_agree(team, open_here(m, run_dir, nbytes), LS_SITE);
    if (st != LS_OK) {
        undo_open(m, run_dir, had);
        return st;
    }
    m->here = m->any = is_private(m->dir);
    if (!m->here)
        st = ls_fail(LS_E_IO,
                     "rank %d does not see the memory of the first worker of its host (/dev/shm); leave "
                     "--save_memory_every out",
                     ckpt_rank(team));
    return ckpt_agree(team, st, LS_SITE);
}

void ls_ckpt_memory_close(ls_ckpt_memory *m)
{
    if (m->lock) close(m->lock - 1);
    m->lock = 0;
}

void ls_ckpt_memory_drop(ls_ckpt_memory *m, const char *run_dir)
{
    const ls_path file = ls_path_of(run_dir, TOKEN);
    if (m->first && unlink(file.text) && errno != ENOENT)
        ls_warn("checkpoint", "cannot remove %s: %s", file.text, strerror(errno));
    remove_here(m, run_dir);
    m->any = false;
    m->id[0] = '\0';
}
