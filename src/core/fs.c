#include "core/fs.h"
#include "core/mem.h"
#include "core/str.h"

#include <stdatomic.h>
#include <signal.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool ls_fs_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0;
}

bool ls_fs_is_dir(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool ls_fs_is_file(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

ls_status ls_fs_size(const char *path, int64_t *nbytes)
{
    struct stat s;
    if (stat(path, &s)) return ls_fail(LS_E_IO, "%s: %s", path, strerror(errno));
    *nbytes = s.st_size;
    return LS_OK;
}

ls_status ls_fs_mkdirs(const char *path)
{
    if (!*path) return ls_fail(LS_E_IO, "cannot create a folder: the path is empty");
    char *p = ls_strdup(path);
    if (!p) return ls_nomem(strlen(path), "a path");
    ls_status st = LS_OK;
    for (char *s = p + 1;; s++) {
        if (*s != '/' && *s != '\0') continue;
        char c = *s;
        *s = '\0';
        if (ls_fs_mkdir(p) && errno != EEXIST) {
            st = ls_fail(LS_E_IO, "cannot create the folder %s: %s", p, ls_fs_why(errno));
            break;
        }
        *s = c;
        if (!c) break;
    }
    const int fd = st == LS_OK ? ls_fs_open(path, O_PATH | O_DIRECTORY) : -1;
    if (fd >= 0) close(fd);
    else if (st == LS_OK)
        st = ls_fail(LS_E_IO, "cannot create the folder %s: %s", path,
                     errno == ENOTDIR ? "a file of that name exists" : ls_fs_why(errno));
    ls_free(p);
    return st;
}

ls_status ls_fs_mkdir_next(const char *dir, const char *prefix, char path[PATH_MAX])
{
    for (int k = 1;; k++) {
        LS_TRY(ls_path_in(path, dir, "%s%d", prefix, k));
        if (!ls_fs_mkdir(path)) return LS_OK;
        if (errno != EEXIST) return ls_fail(LS_E_IO, "cannot create the folder %s: %s", path, ls_fs_why(errno));
    }
}

/* A named pipe may wait for its other end for ever, and a device may have no end. A pipe that the shell has opened for this process,
 * <(command), is read. */
static ls_status check_input(int fd, const char *path, struct stat *s)
{
    static const char *const open_files[] = {"/dev/fd/", "/dev/stdin", "/proc/self/fd/"};
    if (fstat(fd, s)) return ls_fail(LS_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (S_ISREG(s->st_mode)) return LS_OK;
    for (size_t i = 0; i < sizeof open_files / sizeof *open_files && !S_ISDIR(s->st_mode); i++)
        if (!strncmp(path, open_files[i], strlen(open_files[i]))) return LS_OK;
    return ls_fail(LS_E_IO, "cannot read %s: it is %s; a regular file is needed", path,
                   S_ISDIR(s->st_mode)    ? "a folder"
                   : S_ISFIFO(s->st_mode) ? "a named pipe"
                   : S_ISSOCK(s->st_mode) ? "a socket"
                                          : "a device");
}

int (*ls_fs_fault)(const char *path, ls_fs_access how);

int ls_fs_open_input(const char *path, struct stat *s, ls_status *st)
{
    int fd = -1;
    if (!ls_fs_fault || !(errno = ls_fs_fault(path, LS_FS_READ)))
        fd = ls_fs_open(path, O_RDONLY | O_NONBLOCK); /* does not wait for the writer of a named pipe */
    if (fd < 0) *st = ls_fail(LS_E_IO, "cannot read %s: %s", path, ls_fs_why(errno));
    else *st = check_input(fd, path, s);
    if (*st == LS_OK) {
        if (!S_ISREG(s->st_mode)) (void)fcntl(fd, F_SETFL, 0);
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

static ls_status too_large(const char *path, size_t most)
{
    char text[32];
    return ls_fail(LS_E_FORMAT, "%s is too large: the limit for this file is %s", path,
                   ls_human_bytes(text, (double)most));
}

static ls_status read_all(int fd, const struct stat *s, const char *path, size_t most, char **data, size_t *n)
{
    if ((uint64_t)s->st_size > most) return too_large(path, most);
    size_t cap = 0, more = (size_t)s->st_size + 2; /* the NUL, and one byte to see the end without growing */
    for (*n = 0;;) {
        if (*n > most) return too_large(path, most);
        if (*n + 1 >= cap) { /* again: the file grew meanwhile, or is a pipe */
            char *p = ls_realloc(*data, cap + more);
            if (!p) return ls_nomem(cap + more, path);
            *data = p;
            cap += more;
            more = cap / 2 + 4096;
        }
        const ssize_t k = read(fd, *data + *n, cap - *n - 1);
        if (k < 0 && errno != EINTR) return ls_fail(LS_E_IO, "cannot read %s: %s", path, strerror(errno));
        if (!k) break;
        if (k > 0) *n += (size_t)k;
    }
    (*data)[*n] = '\0';
    return LS_OK;
}

ls_status ls_fs_read_most(const char *path, size_t most, char **data, size_t *n)
{
    char *buf = NULL;
    struct stat s;
    ls_status st;
    const int fd = ls_fs_open_input(path, &s, &st);
    if (fd < 0) return st;
    st = read_all(fd, &s, path, most, &buf, n);
    if (st == LS_OK) *data = buf;
    else ls_free(buf);
    close(fd);
    return st;
}

ls_status ls_fs_read(const char *path, char **data, size_t *n)
{
    return ls_fs_read_most(path, SIZE_MAX / 4, data, n);
}

int ls_fs_fsync(int fd, const char *path)
{
    if (!ls_fs_fault || !(errno = ls_fs_fault(path, LS_FS_SYNC))) return fsync(fd);
    return -1;
}

static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return ls_strdup(".");
    return slash == path ? ls_strdup("/") : ls_strndup(path, (size_t)(slash - path));
}

ls_status ls_fs_sync_dir(const char *path)
{
    int fd = ls_fs_open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot open the folder %s: %s", path, ls_fs_why(errno));
    int rc = ls_fs_fsync(fd, path), e = errno;
    close(fd);
    if (rc && e != EINVAL && e != EROFS) return ls_fail(LS_E_IO, "cannot sync the folder %s: %s", path, strerror(e));
    return LS_OK;
}

static ls_status sync_parent(const char *path)
{
    char *dir = parent_of(path);
    if (!dir) return ls_nomem(strlen(path), "a path");
    ls_status st = ls_fs_sync_dir(dir);
    ls_free(dir);
    return st;
}

/* What path stands for: *file (ls_free) with links resolved; *direct: it exists and is not a regular file, so a rename would destroy it. */
static ls_status out_target(const char *path, char **file, bool *direct)
{
    struct stat s;
    char real[PATH_MAX];
    const bool there = !stat(path, &s), link = !lstat(path, &(struct stat){0});
    const int fd = ls_fs_open(path, O_PATH);
    if (fd >= 0) close(fd);
    else if (errno == ELOOP) return ls_fail(LS_E_IO, "cannot write %s: %s", path, ls_fs_why(errno));
    if (!there && link) return ls_fail(LS_E_IO, "cannot write %s: the symbolic link is broken", path);
    if (there && S_ISDIR(s.st_mode)) return ls_fail(LS_E_IO, "cannot write %s: it is a folder", path);
    *direct = there && !S_ISREG(s.st_mode);
    /* a pipe's name below /proc leads nowhere */
    const char *name = there && !*direct && realpath(path, real) ? real : path;
    *file = ls_strdup(name);
    return *file ? LS_OK : ls_nomem(strlen(name), "a path");
}

int ls_fs_open_new(const char *path)
{
    if (ls_fs_unlink(path, false) && errno != ENOENT) return -1;
    return ls_fs_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW);
}

int ls_fs_open_lines(const char *path)
{
    const int fd = ls_fs_open(path, O_RDWR | O_APPEND | O_CREAT);
    char last;
    const off_t n = fd < 0 ? 0 : lseek(fd, 0, SEEK_END); /* -1 for a pipe */
    if (n > 0 && pread(fd, &last, 1, n - 1) == 1 && last != '\n') (void)!write(fd, "\n", 1);
    return fd;
}

/* Whether the temporary file is still the one that was opened: another process may write the same file. */
static ls_status check_tmp(const ls_fs_out *o)
{
    struct stat mine, named;
    if (!o->tmp ||
        (!fstat(o->fd, &mine) && !lstat(o->tmp, &named) && mine.st_dev == named.st_dev && mine.st_ino == named.st_ino))
        return LS_OK;
    return ls_fail(LS_E_IO, "cannot write %s: another process is writing this file", o->path);
}

ls_status ls_fs_out_open(ls_fs_out *o, const char *path)
{
    bool direct;
    *o = (ls_fs_out){.fd = -1};
    char *dir = parent_of(path);
    if (!dir) return ls_nomem(strlen(path), "a path");
    ls_status st = ls_fs_mkdirs(dir);
    ls_free(dir);
    LS_TRY(st);
    LS_TRY(out_target(path, &o->file, &direct));
    o->path = ls_strdup(path);
    if (!direct) o->tmp = ls_asprintf("%s.tmp", o->file);
    if (!o->path || (!direct && !o->tmp)) {
        ls_fs_out_abort(o);
        return ls_nomem(strlen(path), "a path");
    }
    o->fd = direct ? ls_fs_open(o->file, O_WRONLY) : ls_fs_open_new(o->tmp);
    if (o->fd < 0) {
        st = ls_fail(LS_E_IO, "cannot write %s: %s", path, ls_fs_why(errno));
        ls_free(o->tmp);
        o->tmp = NULL; /* not ours to remove */
        ls_fs_out_abort(o);
    }
    return st;
}

ls_status ls_fs_append(int fd, const char *path, const void *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        const size_t left = n - at;
        ssize_t k = -1;
        if (!ls_fs_fault || !(errno = ls_fs_fault(path, LS_FS_WRITE)))
            k = write(fd, (const char *)data + at, left > ((size_t)1 << 30) ? (size_t)1 << 30 : left);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            const char *why = k ? strerror(errno) : "write returned 0 bytes";
            const off_t pos = lseek(fd, 0, SEEK_CUR); /* -1 for a pipe */
            return ls_fail(LS_E_IO, "cannot write %s at byte %lld: %s", path, (long long)(pos < 0 ? (off_t)at : pos),
                           why);
        }
        at += (size_t)k;
    }
    return LS_OK;
}

ls_status ls_fs_out_append(ls_fs_out *o, const void *data, size_t n)
{
    LS_TRY(ls_fs_append(o->fd, o->path, data, n));
    o->nbytes += (int64_t)n;
    return LS_OK;
}

ls_status ls_fs_out_commit(ls_fs_out *o)
{
    ls_status st = check_tmp(o);
    if (st != LS_OK) { /* the temporary file is the other process's */
        ls_free(o->tmp);
        o->tmp = NULL;
        ls_fs_out_abort(o);
        return st;
    }
    if (ls_fs_fsync(o->fd, o->path) && errno != EINVAL)
        st = ls_fail(LS_E_IO, "cannot sync %s: %s", o->path, strerror(errno));
    if (close(o->fd) && st == LS_OK) st = ls_fail(LS_E_IO, "cannot close %s: %s", o->path, strerror(errno));
    o->fd = -1;
    if (st == LS_OK && o->tmp && ls_fs_move(o->tmp, o->file, 0))
        st = ls_fail(LS_E_IO, "cannot rename the temporary file to %s: %s", o->path, ls_fs_why(errno));
    if (st == LS_OK && o->tmp) {
        ls_free(o->tmp);
        o->tmp = NULL;
        st = sync_parent(o->file);
    }
    ls_fs_out_abort(o);
    return st;
}

void ls_fs_out_abort(ls_fs_out *o)
{
    if (o->fd >= 0) close(o->fd);
    if (o->tmp) (void)ls_fs_unlink(o->tmp, false);
    ls_free(o->tmp);
    ls_free(o->file);
    ls_free(o->path);
    *o = (ls_fs_out){.fd = -1};
}

ls_status ls_fs_write(const char *path, const void *data, size_t n)
{
    ls_fs_out o;
    LS_TRY(ls_fs_out_open(&o, path));
    ls_status st = ls_fs_out_append(&o, data, n);
    if (st != LS_OK) {
        ls_fs_out_abort(&o);
        return st;
    }
    return ls_fs_out_commit(&o);
}

/* ---- maps ----
 * A file that becomes shorter while it is mapped raises SIGBUS at the next access beyond its end. The handler knows the maps and
 * names the file; the process cannot go on. */

#define MOST_MAPS 256

static struct mapped {
    _Atomic uintptr_t at; /* 0: free */
    size_t n;
    char path[256];
} mapped[MOST_MAPS];

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    (void)context;
    for (int i = 0; i < MOST_MAPS; i++) {
        const uintptr_t from = mapped[i].at;
        if (!from || at < from || at >= from + mapped[i].n) continue;
        static const char before[] = "lockstep: bad input data: ",
                          after[] = " became shorter while it was read, or its disk failed\n";
        const char *const text[] = {before, mapped[i].path, after};
        for (int k = 0; k < 3; k++)
            if (write(STDERR_FILENO, text[k], strlen(text[k])) < 0) break;
        _exit(3); /* of LS_E_FORMAT */
    }
    struct sigaction usual = {.sa_handler =
                                  SIG_DFL}; /* not in a map: a defect; the access is repeated and ends the process */
    (void)sigaction(signal, &usual, NULL);
}

static void watch_map(const ls_fs_map *m, const char *path)
{
    struct sigaction a = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER}, was;
    if (!sigaction(SIGBUS, NULL, &was) && was.sa_handler == SIG_DFL) (void)sigaction(SIGBUS, &a, NULL);
    for (int i = 0; i < MOST_MAPS; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&mapped[i].at, &none, 1)) continue; /* 1: taken, no address */
        mapped[i].n = m->n;
        snprintf(mapped[i].path, sizeof mapped[i].path, "%s", path);
        mapped[i].at = (uintptr_t)m->data;
        return;
    }
}

static void forget_map(const ls_fs_map *m)
{
    for (int i = 0; i < MOST_MAPS; i++)
        if (mapped[i].at == (uintptr_t)m->data) mapped[i].at = 0;
}

ls_status ls_fs_map_open(ls_fs_map *m, const char *path)
{
    struct stat s;
    ls_status st = LS_OK;
    *m = (ls_fs_map){"", 0};
    const int fd = ls_fs_open_input(path, &s, &st);
    if (fd < 0) return st;
    if (!S_ISREG(s.st_mode)) {
        st = ls_fail(LS_E_IO, "cannot read %s: it is not a regular file", path);
    } else if (s.st_size) {
        void *p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) st = ls_fail(LS_E_IO, "cannot map %s: %s", path, strerror(errno));
        else *m = (ls_fs_map){p, (size_t)s.st_size};
        if (m->n) watch_map(m, path);
    }
    close(fd);
    return st;
}

void ls_fs_map_close(ls_fs_map *m)
{
    if (m->n) forget_map(m);
    if (m->n) munmap((void *)(uintptr_t)m->data, m->n);
    *m = (ls_fs_map){"", 0};
}

ls_status ls_fs_rename(const char *from, const char *to)
{
    if (ls_fs_move(from, to, 0)) return ls_fail(LS_E_IO, "cannot rename %s to %s: %s", from, to, ls_fs_why(errno));
    return sync_parent(to);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

ls_status ls_fs_list(const char *path, char ***names, size_t *n)
{
    const int fd = ls_fs_open(path, O_RDONLY | O_DIRECTORY);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        const ls_status failed = ls_fail(LS_E_IO, "cannot list %s: %s", path, ls_fs_why(errno));
        if (fd >= 0) close(fd);
        return failed;
    }
    char **list = NULL;
    size_t len = 0, cap = 0;
    ls_status st = LS_OK;
    struct dirent *e;
    while (st == LS_OK && (e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        st = ls_reserve(&list, &cap, len + 1, sizeof *list, "a folder listing");
        if (st != LS_OK) break;
        if ((list[len] = ls_strdup(e->d_name))) len++;
        else st = ls_nomem(strlen(e->d_name), "a folder listing");
    }
    closedir(d);
    if (st != LS_OK) {
        ls_fs_list_free(list, len);
        return st;
    }
    if (len) qsort(list, len, sizeof *list, by_bytes);
    *names = list;
    *n = len;
    return LS_OK;
}

void ls_fs_list_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++) ls_free(names[i]);
    ls_free(names);
}

ls_status ls_fs_remove_tree(const char *path)
{
    struct stat s;
    if (lstat(path, &s)) return errno == ENOENT ? LS_OK : ls_fail(LS_E_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(s.st_mode)) {
        char **names;
        size_t n;
        LS_TRY(ls_fs_list(path, &names, &n));
        ls_status st = LS_OK;
        for (size_t i = 0; i < n && st == LS_OK; i++) {
            char *p = ls_path_join(path, names[i]);
            st = p ? ls_fs_remove_tree(p) : ls_nomem(256, "a path");
            ls_free(p);
        }
        ls_fs_list_free(names, n);
        LS_TRY(st);
    }
    if (ls_fs_unlink(path, S_ISDIR(s.st_mode))) return ls_fail(LS_E_IO, "cannot remove %s: %s", path, ls_fs_why(errno));
    return LS_OK;
}

static ls_status copy_file(const char *from, const char *to, mode_t mode)
{
    char block[65536];
    ssize_t n = 0;
    ls_status st = LS_OK;
    const int in = ls_fs_open(from, O_RDONLY);
    if (in < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", from, ls_fs_why(errno));
    const int out = ls_fs_open(to, O_WRONLY | O_CREAT | O_TRUNC);
    if (out < 0) st = ls_fail(LS_E_IO, "cannot write %s: %s", to, ls_fs_why(errno));
    else (void)fchmod(out, mode & 0777);
    while (st == LS_OK && (n = read(in, block, sizeof block)) > 0) st = ls_fs_append(out, to, block, (size_t)n);
    if (st == LS_OK && n < 0) st = ls_fail(LS_E_IO, "cannot read %s: %s", from, strerror(errno));
    close(in);
    if (out >= 0 && close(out) && st == LS_OK) st = ls_fail(LS_E_IO, "cannot write %s: %s", to, strerror(errno));
    return st;
}

static ls_status copy_any(const char *from, const char *to)
{
    struct stat s;
    char link[PATH_MAX], **names = NULL;
    size_t n = 0;
    if (lstat(from, &s)) return ls_fail(LS_E_IO, "%s: %s", from, strerror(errno));
    if (S_ISREG(s.st_mode)) return copy_file(from, to, s.st_mode);
    if (S_ISLNK(s.st_mode)) {
        const ssize_t k = readlink(from, link, sizeof link - 1);
        if (k > 0) link[k] = '\0';
        return k > 0 && !symlink(link, to) ? LS_OK
                                           : ls_fail(LS_E_IO, "cannot copy the link %s: %s", from, strerror(errno));
    }
    if (!S_ISDIR(s.st_mode)) return LS_OK; /* sockets and pipes belong to processes */
    LS_TRY(ls_fs_mkdirs(to));
    LS_TRY(ls_fs_list(from, &names, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        char *a = ls_path_join(from, names[i]), *b = ls_path_join(to, names[i]);
        st = a && b ? copy_any(a, b) : ls_nomem(256, "a path");
        ls_free(a);
        ls_free(b);
    }
    ls_fs_list_free(names, n);
    return st;
}

ls_status ls_fs_copy_tree(const char *from, const char *to)
{
    char *part = ls_asprintf("%s.partial", to), *dir = parent_of(to);
    ls_status st = part && dir ? LS_OK : ls_nomem(strlen(to), "a path");
    if (st == LS_OK) st = ls_fs_mkdirs(dir);
    if (st == LS_OK) st = ls_fs_remove_tree(part);
    if (st == LS_OK) st = copy_any(from, part);
    if (st == LS_OK) st = ls_fs_remove_tree(to);
    if (st == LS_OK) st = ls_fs_rename(part, to);
    ls_free(part);
    ls_free(dir);
    return st;
}

ls_status ls_path_in(char path[PATH_MAX], const char *dir, const char *name, ...)
{
    const size_t n = strlen(dir);
    const int at = snprintf(path, PATH_MAX, "%s%s", dir, n && dir[n - 1] == '/' ? "" : "/");
    int more = 0;
    va_list ap;
    va_start(ap, name);
    if (at >= 0 && at < PATH_MAX) more = vsnprintf(path + at, (size_t)(PATH_MAX - at), name, ap);
    va_end(ap);
    if (at >= 0 && more >= 0 && at + more < PATH_MAX) return LS_OK;
    return ls_fail(LS_E_IO, "the path of a file in %.200s... is too long", dir);
}

ls_path ls_path_of(const char *dir, const char *name)
{
    ls_path p;
    const size_t n = strlen(dir);
    const int len = snprintf(p.text, sizeof p.text, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    if (len < 0 || (size_t)len >= sizeof p.text) p.text[0] = '\0';
    return p;
}

char *ls_path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    return ls_asprintf("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

const char *ls_path_base(const char *path)
{
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}
