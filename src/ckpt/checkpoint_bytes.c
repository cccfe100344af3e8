/* checkpoint_bytes.c - the bytes of a checkpoint's files.
 *
 * A weight file is written in blocks of 1 MiB that are put together in memory. A block that one worker writes completely is hashed there;
 * blocks of several workers are read back after all writes.
 *
 * A background thread takes time from training with every byte that it copies, and copying to the page cache is most of its work. With
 * `direct` whole pages go from the block to the disk (O_DIRECT); only pages that this worker does not write completely, and the end of a file,
 * go through the cache. File systems that cannot do this get ordinary writes. One such write is in flight at a time, so that a save for which training
 * waits is faster without. */
#include "ckpt/checkpoint_impl.h"

#include "core/deadline.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BLOCK ((int64_t)CKPT_BLOCK)
#define PAGE  ((int64_t)4096)

char *ckpt_block_alloc(void **memory)
{
    *memory = ls_alloc(CKPT_BLOCK + PAGE);
    return *memory ? (char *)*memory + (PAGE - (int64_t)((uintptr_t)*memory % PAGE)) % PAGE : NULL;
}

bool ckpt_no_direct(int error)
{
    return error == EINVAL || error == EOPNOTSUPP || error == EFAULT;
}

ls_status ckpt_file_create(const char *path, int64_t nbytes, int *out)
{
    int fd = ls_fs_open(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", path, ls_fs_why(errno));
    /* KEEP_SIZE: if the process dies, a short file is not mistaken for a complete one. If the file system cannot
     * reserve space, the writes report a full disk. */
    if (nbytes && fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, nbytes) && errno == ENOSPC) {
        struct statvfs v;
        double avail = fstatvfs(fd, &v) ? 0 : (double)v.f_bavail * (double)v.f_frsize;
        close(fd);
        return ls_fail(LS_E_IO, "cannot write %s: it needs %.1f MiB and the disk has %.1f MiB free", path,
                       (double)nbytes / 1048576.0, avail / 1048576.0);
    }
    *out = fd;
    return LS_OK;
}

ls_status ckpt_write_at(int fd, const char *path, const char *data, size_t n, int64_t at)
{
    while (n) {
        ssize_t k = -1;
        if (!ls_fs_fault || !(errno = ls_fs_fault(path, LS_FS_WRITE))) k = pwrite(fd, data, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return ls_fail(LS_E_IO, "cannot write %s at byte %lld: %s", path, (long long)at,
                           k ? strerror(errno) : "no byte was written");
        data += k;
        n -= (size_t)k;
        at += k;
        ls_deadline_tick();
    }
    return LS_OK;
}

/* st: the status of the writes. */
static ls_status sync_and_close(int fd, const char *path, ls_status st)
{
    ls_deadline_hold(true);
    if (st == LS_OK && ls_fs_fsync(fd, path) && errno != EINVAL)
        st = ls_fail(LS_E_IO, "cannot sync %s: %s", path, strerror(errno));
    if (close(fd) && st == LS_OK) st = ls_fail(LS_E_IO, "cannot close %s: %s", path, strerror(errno));
    ls_deadline_hold(false);
    return st;
}

/* Copies up to n bytes of a file without reading them; returns how many. */
static size_t clone_bytes(int fd, const char *from, size_t n)
{
    const int in = ls_fs_open(from, O_RDONLY);
    size_t done = 0;
    while (in >= 0 && done < n) {
        const ssize_t k = copy_file_range(in, NULL, fd, NULL, n - done, 0);
        if (k <= 0) break; /* other file systems, or none that can: the rest is written */
        done += (size_t)k;
    }
    if (in >= 0) close(in);
    return done;
}

ls_status ckpt_file_put(const char *path, const void *data, size_t n, const char *from)
{
    int fd = -1;
    LS_TRY(ckpt_file_create(path, from ? 0 : (int64_t)n, &fd));
    const size_t done = from ? clone_bytes(fd, from, n) : 0;
    return sync_and_close(fd, path, ckpt_write_at(fd, path, (const char *)data + done, n - done, (int64_t)done));
}

/* A weight file being written: the bytes from..to of one block are in buf, at their place in the block. */
typedef struct out {
    int fd, direct; /* direct: -1 without */
    const char *path;
    int64_t nbytes, *block;
    char *buf;
    int64_t from, to;
} out;

/* Bytes at..end of the block in memory; false: not possible, *st is unchanged, or an error. */
static bool write_direct(out *o, int64_t at, int64_t end, ls_status *st)
{
    if (o->direct < 0 || end <= at) return false;
    *st = ckpt_write_at(o->direct, o->path, o->buf + at % BLOCK, (size_t)(end - at), at);
    if (*st == LS_OK || !ckpt_no_direct(errno)) return true;
    ls_err_clear();
    *st = LS_OK;
    close(o->direct);
    o->direct = -1;
    return false;
}

/* Writes what is in memory. */
static ls_status flush(out *o)
{
    const int64_t from = o->from, to = o->to, first = from - from % BLOCK;
    const int64_t low = (from + PAGE - 1) / PAGE * PAGE, high = to / PAGE * PAGE;
    ls_status st = LS_OK;
    if (to == from) return LS_OK;
    if (from == first && to == (first + BLOCK < o->nbytes ? first + BLOCK : o->nbytes))
        o->block[first / BLOCK] = (int64_t)ls_xxh64(o->buf, (size_t)(to - from));
    o->from = to;
    if (!write_direct(o, low, high, &st))
        return ckpt_write_at(o->fd, o->path, o->buf + (from - first), (size_t)(to - from), from);
    if (st == LS_OK) st = ckpt_write_at(o->fd, o->path, o->buf + (from - first), (size_t)(low - from), from);
    if (st == LS_OK) st = ckpt_write_at(o->fd, o->path, o->buf + (high - first), (size_t)(to - high), high);
    return st;
}

static ls_status room_in_block(void *ctx, int64_t at, size_t *n, char **to)
{
    out *o = ctx;
    if (at != o->to || at % BLOCK == 0) {
        LS_TRY(flush(o));
        o->from = at;
    }
    if ((int64_t)*n > BLOCK - at % BLOCK) *n = (size_t)(BLOCK - at % BLOCK);
    *to = o->buf + at % BLOCK;
    o->to = at + (int64_t)*n;
    return LS_OK;
}

ls_status ckpt_part_write(ckpt_part *p, ckpt_stage *stage, const char *path, int64_t file_nbytes, bool direct,
                          int64_t *block)
{
    void *memory;
    if (!p->n) return LS_OK;
    out o = {.path = path, .nbytes = file_nbytes, .direct = -1, .block = block, .buf = ckpt_block_alloc(&memory)};
    if (!o.buf) return ls_nomem(CKPT_BLOCK, "a block of a checkpoint");
    o.fd = ls_fs_open(path, O_WRONLY);
    if (o.fd < 0) {
        ls_free(memory);
        return ls_fail(LS_E_IO, "cannot write %s: %s", path, ls_fs_why(errno));
    }
    if (direct) o.direct = ls_fs_open(path, O_WRONLY | O_DIRECT);
    ls_status st = ckpt_stage_put(stage, p, room_in_block, &o);
    if (st == LS_OK) st = flush(&o);
    if (o.direct >= 0) close(o.direct);
    ls_free(memory);
    return sync_and_close(o.fd, path, st);
}

ls_status ckpt_block_read(const char *path, int64_t file_nbytes, int64_t b, int64_t *hash)
{
    const int64_t at = b * BLOCK, n = file_nbytes - at < BLOCK ? file_nbytes - at : BLOCK;
    char buf[16384];
    ls_xxh x;
    int fd = ls_fs_open(path, O_RDONLY);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", path, ls_fs_why(errno));
    ls_status st = LS_OK;
    ls_xxh_init(&x);
    for (int64_t done = 0; done < n && st == LS_OK;) {
        ssize_t k =
            pread(fd, buf, n - done < (int64_t)sizeof buf ? (size_t)(n - done) : sizeof buf, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            st = ls_fail(LS_E_IO, "cannot read %s at byte %lld: %s", path, (long long)(at + done),
                         k ? strerror(errno) : "the file was truncated");
        else {
            ls_xxh_add(&x, buf, (size_t)k);
            done += k;
        }
    }
    close(fd);
    *hash = (int64_t)ls_xxh_value(&x);
    return st;
}
