#include "core/fs.h"
#include "core/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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
        if (mkdir(p, 0777) && errno != EEXIST) {
            st = ls_fail(LS_E_IO, "cannot create the folder %s: %s", p, strerror(errno));
            break;
        }
        *s = c;
        if (!c) break;
    }
    if (st == LS_OK && !ls_fs_is_dir(path))
        st = ls_fail(LS_E_IO, "cannot create the folder %s: a file of that name exists", path);
    ls_free(p);
    return st;
}

ls_status ls_fs_read(const char *path, char **data, size_t *n)
{
    ls_status st = LS_OK;
    char *buf = NULL;
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (fstat(fd, &s) || S_ISDIR(s.st_mode)) {
        st = ls_fail(LS_E_IO, "cannot read %s: %s", path, S_ISDIR(s.st_mode) ? "it is a folder" : strerror(errno));
        goto done;
    }
    size_t cap = (size_t)s.st_size + 2, len = 0; /* the NUL, and one byte to see the end without growing */
    buf = ls_alloc(cap);
    if (!buf) {
        st = ls_nomem(cap, path);
        goto done;
    }
    for (;;) {
        if (len + 1 == cap) { /* grew meanwhile, or a pipe */
            char *p = ls_realloc(buf, cap + cap / 2 + 4096);
            if (!p) {
                st = ls_nomem(cap, path);
                goto done;
            }
            buf = p;
            cap += cap / 2 + 4096;
        }
        ssize_t k = read(fd, buf + len, cap - len - 1);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            st = ls_fail(LS_E_IO, "cannot read %s: %s", path, strerror(errno));
            goto done;
        }
        if (!k) break;
        len += (size_t)k;
    }
    buf[len] = '\0';
    *data = buf;
    *n = len;
    buf = NULL;
done:
    ls_free(buf);
    close(fd);
    return st;
}

static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return ls_strdup(".");
    return slash == path ? ls_strdup("/") : ls_strndup(path, (size_t)(slash - path));
}

ls_status ls_fs_sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot open the folder %s: %s", path, strerror(errno));
    int rc = fsync(fd), e = errno;
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
    if (!there && link) return ls_fail(LS_E_IO, "cannot write %s: the symbolic link is broken", path);
    if (there && S_ISDIR(s.st_mode)) return ls_fail(LS_E_IO, "cannot write %s: it is a folder", path);
    *direct = there && !S_ISREG(s.st_mode);
    /* a pipe's name below /proc leads nowhere */
    const char *name = there && !*direct && realpath(path, real) ? real : path;
    *file = ls_strdup(name);
    return *file ? LS_OK : ls_nomem(strlen(name), "a path");
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
    o->fd = direct ? open(o->file, O_WRONLY | O_CLOEXEC) : open(o->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (o->fd < 0) {
        st = ls_fail(LS_E_IO, "cannot write %s: %s", path, strerror(errno));
        ls_free(o->tmp);
        o->tmp = NULL; /* not ours to remove */
        ls_fs_out_abort(o);
    }
    return st;
}

ls_status ls_fs_out_append(ls_fs_out *o, const void *data, size_t n)
{
    const char *p = data;
    while (n) {
        ssize_t k = write(o->fd, p, n > ((size_t)1 << 30) ? (size_t)1 << 30 : n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return ls_fail(LS_E_IO, "cannot write %s at byte %lld: %s", o->path, (long long)o->nbytes,
                           k ? strerror(errno) : "write returned 0 bytes");
        p += k;
        n -= (size_t)k;
        o->nbytes += k;
    }
    return LS_OK;
}

ls_status ls_fs_out_commit(ls_fs_out *o)
{
    ls_status st = LS_OK;
    if (fsync(o->fd) && errno != EINVAL) st = ls_fail(LS_E_IO, "cannot sync %s: %s", o->path, strerror(errno));
    if (close(o->fd) && st == LS_OK) st = ls_fail(LS_E_IO, "cannot close %s: %s", o->path, strerror(errno));
    o->fd = -1;
    if (st == LS_OK && o->tmp && rename(o->tmp, o->file))
        st = ls_fail(LS_E_IO, "cannot rename the temporary file to %s: %s", o->path, strerror(errno));
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
    if (o->tmp) unlink(o->tmp);
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

ls_status ls_fs_map_open(ls_fs_map *m, const char *path)
{
    *m = (ls_fs_map){"", 0};
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (fstat(fd, &s) || !S_ISREG(s.st_mode)) {
        close(fd);
        return ls_fail(LS_E_IO, "cannot read %s: it is not a regular file", path);
    }
    if (s.st_size) {
        void *p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            ls_status st = ls_fail(LS_E_IO, "cannot map %s: %s", path, strerror(errno));
            close(fd);
            return st;
        }
        *m = (ls_fs_map){p, (size_t)s.st_size};
    }
    close(fd);
    return LS_OK;
}

void ls_fs_map_close(ls_fs_map *m)
{
    if (m->n) munmap((void *)(uintptr_t)m->data, m->n);
    *m = (ls_fs_map){"", 0};
}

ls_status ls_fs_rename(const char *from, const char *to)
{
    if (rename(from, to)) return ls_fail(LS_E_IO, "cannot rename %s to %s: %s", from, to, strerror(errno));
    return sync_parent(to);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

ls_status ls_fs_list(const char *path, char ***names, size_t *n)
{
    DIR *d = opendir(path);
    if (!d) return ls_fail(LS_E_IO, "cannot list %s: %s", path, strerror(errno));
    char **list = NULL;
    size_t len = 0, cap = 0;
    ls_status st = LS_OK;
    struct dirent *e;
    while ((e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (len == cap) {
            cap = cap ? cap * 2 : 16;
            char **p = ls_realloc(list, cap * sizeof *p);
            if (!p) {
                st = ls_nomem(cap * sizeof *p, "a folder listing");
                break;
            }
            list = p;
        }
        if (!(list[len] = ls_strdup(e->d_name))) {
            st = ls_nomem(strlen(e->d_name), "a folder listing");
            break;
        }
        len++;
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
    if (S_ISDIR(s.st_mode) ? rmdir(path) : unlink(path))
        return ls_fail(LS_E_IO, "cannot remove %s: %s", path, strerror(errno));
    return LS_OK;
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
