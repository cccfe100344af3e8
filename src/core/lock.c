/* lock.c - lock files. */
#include "core/lock.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define POLL_USEC 50000

/* Whether `path` still names the file that fd has open: its last holder may have removed it in the meantime. */
static bool is_current(int fd, const char *path)
{
    struct stat mine, named;
    return !fstat(fd, &mine) && !lstat(path, &named) && mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

static void sign(int fd)
{
    char host[256] = "", utc[24], text[400];
    if (gethostname(host, sizeof host - 1)) snprintf(host, sizeof host, "?");
    ls_utc_stamp(utc);
    const int n = snprintf(text, sizeof text, "pid %d on host %s, since %s\n", (int)getpid(), host, utc);
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n) ls_debug("core", "lock: %s", strerror(errno));
}

static ls_status held_by_another(int fd, const char *path, const char *advice)
{
    char who[400] = "";
    const ssize_t n = pread(fd, who, sizeof who - 1, 0);
    for (ssize_t i = 0; i < n; i++)
        if (who[i] < ' ' || who[i] > '~') who[i] = 0;
    return ls_fail(LS_E_CONFIG, "another process holds %s (%s); %s", path, *who ? who : "it has not written its name",
                   advice);
}

ls_status ls_lock_take(ls_lock *l, const char *path, double seconds, const char *advice)
{
    const double until = ls_now() + seconds;
    if ((size_t)snprintf(l->path, sizeof l->path, "%s", path) >= sizeof l->path) {
        *l = (ls_lock){0};
        return ls_fail(LS_E_IO, "the path %.60s... is too long", path);
    }
    for (;;) {
        const int fd = ls_fs_open(path, O_RDWR | O_CREAT | O_NOFOLLOW);
        int e = fd < 0 ? errno : 0;
        if (!e && flock(fd, LOCK_EX | LOCK_NB)) e = errno;
        if (!e && is_current(fd, path)) {
            l->fd = fd;
            sign(fd);
            return LS_OK;
        }
        const bool taken = e == EWOULDBLOCK, late = ls_now() >= until;
        ls_status st = LS_OK;
        if (taken && late) st = held_by_another(fd, path, advice);
        else if (e && fd < 0) st = ls_fail(LS_E_IO, "cannot write %s: %s", path, ls_fs_why(e));
        else if (e && !taken) ls_debug("core", "%s: no lock: %s", path, strerror(e));
        if (fd >= 0) close(fd);
        if (st != LS_OK || (e && !taken)) {
            *l = (ls_lock){0};
            return st;
        }
        if (taken) usleep(POLL_USEC);
    }
}

bool ls_lock_is_held(const char *path)
{
    const int fd = ls_fs_open(path, O_RDONLY | O_NOFOLLOW);
    const bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return held;
}

void ls_lock_release(ls_lock *l)
{
    if (!*l->path) return;
    (void)ls_fs_unlink(l->path, false);
    close(l->fd);
    *l = (ls_lock){0};
}
