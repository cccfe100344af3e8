/* source.c - one read function for plain, gzip and zstd files. */
#include "data/source.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define RAW_BYTES ((size_t)256 << 10)

typedef enum packing { PLAIN, GZIP, ZSTD } packing;

struct ls_byte_stream {
    const char *path; /* owned; for messages */
    char *path_own;
    int fd;
    bool own_fd, by_offset, eof; /* eof of the raw bytes */
    int64_t taken;
    packing kind;
    unsigned char *raw;
    size_t at, n; /* raw[at, n) is not used yet */
    z_stream z;
    bool z_on, inside; /* inside a member or frame */
    ZSTD_DCtx *zd;
};

/* zlib and zstd allocate through core/mem too. */
static void *z_alloc(void *opaque, unsigned n, unsigned nbytes)
{
    (void)opaque;
    return ls_alloc((size_t)n * nbytes);
}

static void z_release(void *opaque, void *p)
{
    (void)opaque;
    ls_free(p);
}

static ls_status fill(ls_byte_stream *s)
{
    if (s->at < s->n || s->eof) return LS_OK;
    ssize_t k;
    do k = s->by_offset ? pread(s->fd, s->raw, RAW_BYTES, (off_t)s->taken) : read(s->fd, s->raw, RAW_BYTES);
    while (k < 0 && errno == EINTR);
    if (k < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", s->path, strerror(errno));
    s->at = 0;
    s->n = (size_t)k;
    s->taken += k;
    s->eof = k == 0;
    return LS_OK;
}

static bool ends_in(const char *path, const char *ext)
{
    size_t n = strlen(path), k = strlen(ext);
    return n >= k && !strcmp(path + n - k, ext);
}

/* Reads at least four bytes, or all, to detect the format. */
static ls_status look(ls_byte_stream *s)
{
    LS_TRY(fill(s));
    while (s->n < 4 && !s->eof) { /* a pipe may give them one by one */
        ssize_t k;
        do
            k = s->by_offset ? pread(s->fd, s->raw + s->n, RAW_BYTES - s->n, (off_t)s->taken)
                             : read(s->fd, s->raw + s->n, RAW_BYTES - s->n);
        while (k < 0 && errno == EINTR);
        if (k < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", s->path, strerror(errno));
        s->n += (size_t)k;
        s->taken += k;
        s->eof = k == 0;
    }
    const unsigned char *p = s->raw;
    if (s->n >= 2 && p[0] == 0x1f && p[1] == 0x8b) s->kind = GZIP;
    if (s->n >= 4 && p[1] == 0xb5 && p[2] == 0x2f && p[3] == 0xfd && p[0] == 0x28) s->kind = ZSTD;
    if (s->n >= 4 && p[1] == 0x2a && p[2] == 0x4d && p[3] == 0x18 && (p[0] & 0xf0) == 0x50)
        s->kind = ZSTD; /* skippable */
    if (ends_in(s->path, ".gz") && s->kind != GZIP)
        return ls_fail(LS_E_FORMAT, "%s: not a gzip file: it %s", s->path,
                       s->n < 2 ? "is truncated" : "has another signature");
    if (ends_in(s->path, ".zst") && s->kind != ZSTD)
        return ls_fail(LS_E_FORMAT, "%s: not a zstd file: it %s", s->path,
                       s->n < 4 ? "is truncated" : "has another signature");
    return LS_OK;
}

static ls_status start(ls_byte_stream *s)
{
    LS_TRY(look(s));
    if (s->kind == GZIP) {
        s->z.zalloc = z_alloc;
        s->z.zfree = z_release;
        if (inflateInit2(&s->z, 15 + 16) != Z_OK) return ls_nomem(65536, "unpacking gzip");
        s->z_on = true;
    } else if (s->kind == ZSTD) {
        s->zd = ZSTD_createDCtx();
        if (!s->zd) return ls_nomem(1 << 20, "unpacking zstd");
    }
    return LS_OK;
}

ls_status ls_byte_stream_open(const char *path, int fd, ls_byte_stream **out)
{
    ls_byte_stream *s = ls_alloc(sizeof *s);
    if (!s) return ls_nomem(sizeof *s, path);
    s->fd = -1;
    s->path_own = ls_strdup(strcmp(path, "-") ? path : "standard input");
    s->path = s->path_own;
    s->raw = ls_alloc(RAW_BYTES);
    ls_status st = s->path && s->raw ? LS_OK : ls_nomem(RAW_BYTES, path);
    struct stat sb;
    if (st == LS_OK && fd >= 0) {
        s->fd = fd;
        s->by_offset = true;
    } else if (st == LS_OK && !strcmp(path, "-")) {
        s->fd = STDIN_FILENO;
    } else if (st == LS_OK) {
        s->fd = open(path, O_RDONLY | O_CLOEXEC);
        s->own_fd = s->fd >= 0;
        if (s->fd < 0) st = ls_fail(LS_E_IO, "cannot read %s: %s", path, strerror(errno));
        else if (fstat(s->fd, &sb) || S_ISDIR(sb.st_mode))
            st = ls_fail(LS_E_IO, "cannot read %s: it is a folder", path);
    }
    if (st == LS_OK) st = start(s);
    if (st == LS_OK)
        ls_debug("data", "%s: %s", s->path, s->kind == GZIP ? "gzip" : s->kind == ZSTD ? "zstd" : "not compressed");
    if (st != LS_OK) {
        ls_byte_stream_close(&s);
        return st;
    }
    *out = s;
    return LS_OK;
}

void ls_byte_stream_close(ls_byte_stream **sp)
{
    ls_byte_stream *s = *sp;
    if (!s) return;
    if (s->z_on) inflateEnd(&s->z);
    ZSTD_freeDCtx(s->zd);
    if (s->own_fd) close(s->fd);
    ls_free(s->raw);
    ls_free(s->path_own);
    ls_free(s);
    *sp = NULL;
}

static ls_status cut_off(const ls_byte_stream *s)
{
    return ls_fail(LS_E_FORMAT, "%s: the %s stream is truncated after %lld bytes", s->path,
                   s->kind == GZIP ? "gzip" : "zstd", (long long)s->taken);
}

/* Some archivers pad with zeros after the last member. */
static bool only_zeros(ls_byte_stream *s)
{
    while (s->at < s->n && !s->raw[s->at]) s->at++;
    return s->at == s->n;
}

static ls_status read_gzip(ls_byte_stream *s, unsigned char *buf, size_t cap, size_t *n)
{
    *n = 0;
    while (*n == 0) {
        LS_TRY(fill(s));
        if (!s->inside) {
            if (s->at == s->n && s->eof) return LS_OK;
            if (s->taken > (int64_t)(s->n - s->at) && only_zeros(s)) continue;
            inflateReset(&s->z);
            s->inside = true;
        } else if (s->at == s->n) {
            return cut_off(s);
        }
        s->z.next_in = s->raw + s->at;
        s->z.avail_in = (unsigned)(s->n - s->at);
        s->z.next_out = buf;
        s->z.avail_out = (unsigned)(cap < (1u << 30) ? cap : 1u << 30);
        unsigned room = s->z.avail_out;
        int rc = inflate(&s->z, Z_NO_FLUSH);
        s->at = s->n - s->z.avail_in;
        *n = room - s->z.avail_out;
        if (rc == Z_STREAM_END) s->inside = false;
        else if (rc == Z_MEM_ERROR) return ls_nomem(65536, "unpacking gzip");
        else if (rc != Z_OK && rc != Z_BUF_ERROR)
            return ls_fail(LS_E_FORMAT, "%s: damaged gzip data before byte %lld: %s", s->path,
                           (long long)(s->taken - (int64_t)(s->n - s->at)), s->z.msg ? s->z.msg : "unknown error");
    }
    return LS_OK;
}

static ls_status read_zstd(ls_byte_stream *s, unsigned char *buf, size_t cap, size_t *n)
{
    *n = 0;
    while (*n == 0) {
        LS_TRY(fill(s));
        bool drained = s->at == s->n;
        if (drained && s->eof && !s->inside) return LS_OK;
        ZSTD_inBuffer in = {s->raw, s->n, s->at};
        ZSTD_outBuffer o = {buf, cap, 0};
        size_t rc = ZSTD_decompressStream(s->zd, &o, &in);
        if (ZSTD_isError(rc))
            return ls_fail(LS_E_FORMAT, "%s: damaged zstd data before byte %lld: %s", s->path,
                           (long long)(s->taken - (int64_t)(s->n - in.pos)), ZSTD_getErrorName(rc));
        if (drained && s->eof && o.pos == 0 && rc) return cut_off(s);
        s->at = in.pos;
        s->inside = rc != 0;
        *n = o.pos;
    }
    return LS_OK;
}

ls_status ls_byte_stream_read(ls_byte_stream *s, unsigned char *buf, size_t cap, size_t *n)
{
    if (s->kind == GZIP) return read_gzip(s, buf, cap, n);
    if (s->kind == ZSTD) return read_zstd(s, buf, cap, n);
    LS_TRY(fill(s));
    size_t k = s->n - s->at < cap ? s->n - s->at : cap;
    memcpy(buf, s->raw + s->at, k);
    s->at += k;
    *n = k;
    return LS_OK;
}

int64_t ls_byte_stream_taken(const ls_byte_stream *s)
{
    return s->taken - (int64_t)(s->n - s->at);
}
