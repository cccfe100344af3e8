/* fs_open.c - names that are opened and changed without following a link inside a folder that a stranger may have made.
 *
 *     typed/by/the/user/RUN / profiles / x.json
 *     '---- a root -------'   '-- never through a link --'
 *
 * Below a root each folder of a path is opened from the one before it, and neither a link nor ".." is taken. The root itself, and every path below
 * no root, is opened as usual. Roots are never removed: one is a few bytes, and a run folder stays what it is. */
#include "core/fs.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_BUCKET 1024

typedef struct root {
    struct root *next;
    size_t n;
    char path[];
} root;

static _Atomic(root *) bucket[N_BUCKET]; /* only grows, so readers need no lock */
static _Thread_local char link_found[PATH_MAX + 160];

/* FNV-1a, one byte more. */
static uint32_t hash_more(uint32_t h, char c)
{
    return (h ^ (unsigned char)c) * 16777619u;
}

static bool is_root(const char *path, size_t n, uint32_t hash)
{
    for (const root *r = atomic_load(&bucket[hash % N_BUCKET]); r; r = r->next)
        if (r->n == n && !memcmp(r->path, path, n)) return true;
    return false;
}

static ls_status add_root(const char *path)
{
    uint32_t hash = 2166136261u;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    for (size_t i = 0; i < n; i++) hash = hash_more(hash, path[i]);
    if (!n || is_root(path, n, hash)) return LS_OK;
    root *r = malloc(sizeof *r + n + 1); /* not of core/mem: it is never freed */
    if (!r) return ls_nomem(n, "the path of a run folder");
    r->n = n;
    memcpy(r->path, path, n);
    r->path[n] = '\0';
    r->next = atomic_load(&bucket[hash % N_BUCKET]);
    while (!atomic_compare_exchange_weak(&bucket[hash % N_BUCKET], &r->next, r)) continue;
    return LS_OK;
}

ls_status ls_fs_no_links(const char *path)
{
    char real[PATH_MAX];
    LS_TRY(add_root(path));
    return realpath(path, real) ? add_root(real) : LS_OK;
}

/* The outermost root above a path, or one that was itself given through a root, as RUN/../OTHER; its length, 0: none. */
static size_t root_above(const char *path)
{
    uint32_t hash = 2166136261u;
    size_t found = 0;
    bool up = false;
    for (size_t i = 0; path[i]; i++) {
        if (path[i] == '/' && i && (!found || up) && is_root(path, i, hash)) found = i, up = false;
        up = up || (found && !strncmp(path + i, "/../", 4));
        hash = hash_more(hash, path[i]);
    }
    return found;
}

/* The name that was not opened, which ends at path + end. errno becomes ELOOP if it is a link or leads up, and ls_fs_why tells which. */
static void note_link(int dir, const char *path, size_t end, const char *name)
{
    const int error = errno;
    const bool up = !strcmp(name, "..");
    struct stat s;
    const bool link = !up && !fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) && S_ISLNK(s.st_mode);
    errno = up || link ? ELOOP : error;
    if (errno == ELOOP)
        snprintf(link_found, sizeof link_found, "%.*s %s", path[end] ? (int)end : 2, path[end] ? path : "it",
                 up ? "leads out of the run folder"
                    : "is a symbolic link, which is not followed inside a run folder; replace it with its target, or "
                      "remove it");
}

const char *ls_fs_why(int error)
{
    return (error == ELOOP || error == ENXIO) && *link_found ? link_found : strerror(error);
}

static void close_kept(int dir) /* errno stays */
{
    const int error = errno;
    if (dir >= 0) close(dir);
    errno = error;
}

/* The folder in which the last name of a path lies, for close_kept, and that name; AT_FDCWD and the path where links are followed. -1 with errno. */
static int parent_open(const char *path, const char **name)
{
    ls_path part = {.text = ""};
    const size_t n = root_above(path);
    *link_found = '\0';
    *name = path;
    if (!n || !path[n + strspn(path + n, "/")]) return AT_FDCWD;
    if (strlen(path) >= sizeof part.text) errno = ENAMETOOLONG;
    else memcpy(part.text, path, n);
    int dir = *part.text ? open(part.text, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    for (const char *at = path + n + strspn(path + n, "/"); dir >= 0;) {
        const size_t len = strcspn(at, "/"), skip = len + strspn(at + len, "/");
        memcpy(part.text, at, len);
        part.text[len] = '\0';
        const bool up = !strcmp(part.text, "..");
        *name = at;
        if (!at[len] && !up) break;
        const int below = up ? -1 : openat(dir, part.text, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below < 0) note_link(dir, path, (size_t)(at - path) + len, part.text);
        close_kept(dir);
        dir = below;
        at += skip;
        if (!*at) *name = "."; /* the path ends in a slash */
        if (!*at) break;
    }
    return dir;
}

int ls_fs_open(const char *path, int flags)
{
    const char *name;
    const int dir = parent_open(path, &name), below = dir == AT_FDCWD ? 0 : O_NOFOLLOW | O_NONBLOCK;
    int fd = dir == -1 ? -1 : openat(dir, name, flags | below | O_CLOEXEC, 0666);
    struct stat s;
    if (fd >= 0 && below && (flags & O_PATH) && !fstat(fd, &s) &&
        S_ISLNK(s.st_mode)) { /* O_PATH opens the link itself */
        close(fd);
        fd = -1;
    }
    if (dir >= 0 && fd < 0) note_link(dir, path, strlen(path), name);
    close_kept(dir);
    if (!below || (flags & (O_PATH | O_DIRECTORY)) || (fd < 0 && errno != ENXIO)) return fd;
    if (fd >= 0 && !fstat(fd, &s) && (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode))) {
        (void)fcntl(fd, F_SETFL, (fcntl(fd, F_GETFL) & ~O_NONBLOCK) | (flags & O_NONBLOCK));
        return fd;
    }
    snprintf(link_found, sizeof link_found, "it is %s; a regular file is needed",
             fd < 0 || S_ISFIFO(s.st_mode) ? "a named pipe" : "a device or a socket");
    if (fd >= 0) close(fd); /* else ENXIO: a pipe that nobody reads */
    errno = ENXIO;
    return -1;
}

int ls_fs_mkdir(const char *path)
{
    const char *name;
    const int dir = parent_open(path, &name), rc = dir == -1 ? -1 : mkdirat(dir, name, 0777);
    close_kept(dir);
    return rc;
}

int ls_fs_unlink(const char *path, bool folder)
{
    const char *name;
    const int dir = parent_open(path, &name), rc = dir == -1 ? -1 : unlinkat(dir, name, folder ? AT_REMOVEDIR : 0);
    close_kept(dir);
    return rc;
}

int ls_fs_move(const char *from, const char *to, unsigned flags)
{
    const char *a, *b;
    const int x = parent_open(from, &a), y = x == -1 ? -1 : parent_open(to, &b);
    const int rc = y == -1 ? -1 : flags ? renameat2(x, a, y, b, flags) : renameat(x, a, y, b);
    close_kept(y);
    close_kept(x);
    return rc;
}
