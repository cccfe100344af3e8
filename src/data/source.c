/* source.c - one read function for plain, gzip and zstd files. */
#include "data/corpus.h"
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
    char *path; /* for messages */
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

/* zlib allocates through core/mem too. */
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

/* Reads once, to the end of the raw bytes. */
static ls_status read_raw(ls_byte_stream *s)
{
    ssize_t k;
    do
        k = s->by_offset ? pread(s->fd, s->raw + s->n, RAW_BYTES - s->n, (off_t)s->taken)
                         : read(s->fd, s->raw + s->n, RAW_BYTES - s->n);
    while (k < 0 && errno == EINTR);
    if (k < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", s->path, strerror(errno));
    s->n += (size_t)k;
    s->taken += k;
    s->eof = k == 0;
    return LS_OK;
}

static ls_status fill(ls_byte_stream *s)
{
    if (s->at < s->n || s->eof) return LS_OK;
    s->at = s->n = 0;
    return read_raw(s);
}

/* A name that promises a format is checked against the content. */
static ls_status check_name(const ls_byte_stream *s, const char *ext, packing kind, const char *what, size_t magic)
{
    size_t n = strlen(s->path), k = strlen(ext);
    if (s->kind == kind || n < k || strcmp(s->path + n - k, ext)) return LS_OK;
    return ls_fail(LS_E_FORMAT, "%s: not a %s file: it %s", s->path, what,
                   s->n < magic ? "is truncated" : "has another signature");
}

static ls_status detect(ls_byte_stream *s)
{
    while (s->n < 4 && !s->eof) LS_TRY(read_raw(s)); /* a pipe may give them one by one */
    const unsigned char *p = s->raw;
    if (s->n >= 2 && p[0] == 0x1f && p[1] == 0x8b) s->kind = GZIP;
    if (s->n >= 4 && p[1] == 0xb5 && p[2] == 0x2f && p[3] == 0xfd && p[0] == 0x28) s->kind = ZSTD;
    if (s->n >= 4 && p[1] == 0x2a && p[2] == 0x4d && p[3] == 0x18 && (p[0] & 0xf0) == 0x50)
        s->kind = ZSTD; /* skippable */
    LS_TRY(check_name(s, ".gz", GZIP, "gzip", 2));
    LS_TRY(check_name(s, ".zst", ZSTD, "zstd", 4));
    if (s->kind == GZIP) {
        s->z.zalloc = z_alloc;
        s->z.zfree = z_release;
        s->z_on = inflateInit2(&s->z, 15 + 16) == Z_OK;
        if (!s->z_on) return ls_nomem(65536, "unpacking gzip");
    } else if (s->kind == ZSTD) {
        s->zd = ZSTD_createDCtx();
        if (!s->zd) return ls_nomem(1 << 20, "unpacking zstd");
    }
    ls_debug("data", "%s: %s", s->path, s->kind == GZIP ? "gzip" : s->kind == ZSTD ? "zstd" : "not compressed");
    return LS_OK;
}

static ls_status open_path(ls_byte_stream *s)
{
    struct stat sb;
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC);
    s->own_fd = s->fd >= 0;
    if (s->fd < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", s->path, strerror(errno));
    if (fstat(s->fd, &sb) || S_ISDIR(sb.st_mode)) return ls_fail(LS_E_IO, "cannot read %s: it is a folder", s->path);
    return LS_OK;
}

ls_status ls_byte_stream_open(const char *path, int fd, ls_byte_stream **out)
{
    ls_byte_stream *s = ls_alloc(sizeof *s);
    if (!s) return ls_nomem(sizeof *s, path);
    const bool standard = !strcmp(path, "-");
    s->fd = fd >= 0 ? fd : STDIN_FILENO;
    s->by_offset = fd >= 0;
    s->path = ls_strdup(standard ? "standard input" : path);
    s->raw = ls_alloc(RAW_BYTES);
    ls_status st = s->path && s->raw ? LS_OK : ls_nomem(RAW_BYTES, path);
    if (st == LS_OK && fd < 0 && !standard) st = open_path(s);
    if (st == LS_OK) st = detect(s);
    if (st == LS_OK) *out = s;
    else ls_byte_stream_close(&s);
    return st;
}

void ls_byte_stream_close(ls_byte_stream **sp)
{
    ls_byte_stream *s = *sp;
    if (!s) return;
    if (s->z_on) inflateEnd(&s->z);
    ZSTD_freeDCtx(s->zd);
    if (s->own_fd) close(s->fd);
    ls_free(s->raw);
    ls_free(s->path);
    ls_free(s);
    *sp = NULL;
}

static ls_status damaged(const ls_byte_stream *s, const char *why)
{
    return ls_fail(LS_E_FORMAT, "%s: damaged %s data before byte %lld: %s", s->path, s->kind == GZIP ? "gzip" : "zstd",
                   (long long)ls_byte_stream_taken(s), why);
}

/* Unpacks raw[at, n) into buf; *n bytes of text come out, possibly none. */
static ls_status step_gzip(ls_byte_stream *s, unsigned char *buf, size_t cap, size_t *n)
{
    if (!s->inside) {
        if (ls_byte_stream_taken(s)) /* some archivers pad with zeros after the last member */
            while (s->at < s->n && !s->raw[s->at]) s->at++;
        if (s->at == s->n) return LS_OK;
        inflateReset(&s->z);
    }
    const unsigned room = (unsigned)(cap < (1u << 30) ? cap : 1u << 30);
    s->z.next_in = s->raw + s->at;
    s->z.avail_in = (unsigned)(s->n - s->at);
    s->z.next_out = buf;
    s->z.avail_out = room;
    const int rc = inflate(&s->z, Z_NO_FLUSH);
    s->at = s->n - s->z.avail_in;
    s->inside = rc != Z_STREAM_END;
    *n = room - s->z.avail_out;
    if (rc == Z_MEM_ERROR) return ls_nomem(65536, "unpacking gzip");
    if (rc == Z_OK || rc == Z_BUF_ERROR || rc == Z_STREAM_END) return LS_OK;
    return damaged(s, s->z.msg ? s->z.msg : "unknown error");
}

static ls_status step_zstd(ls_byte_stream *s, unsigned char *buf, size_t cap, size_t *n)
{
    ZSTD_inBuffer in = {s->raw, s->n, s->at};
    ZSTD_outBuffer o = {buf, cap, 0};
    const size_t rc = ZSTD_decompressStream(s->zd, &o, &in);
    s->at = in.pos;
    s->inside = rc != 0;
    *n = o.pos;
    return ZSTD_isError(rc) ? damaged(s, ZSTD_getErrorName(rc)) : LS_OK;
}

ls_status ls_byte_stream_read(ls_byte_stream *s, unsigned char *buf, size_t cap, size_t *n)
{
    for (*n = 0; *n == 0;) {
        LS_TRY(fill(s));
        const bool drained = s->at == s->n; /* the file has no more bytes */
        if (drained && !s->inside) return LS_OK;
        if (s->kind == PLAIN) {
            *n = s->n - s->at < cap ? s->n - s->at : cap;
            memcpy(buf, s->raw + s->at, *n);
            s->at += *n;
            return LS_OK;
        }
        LS_TRY(s->kind == GZIP ? step_gzip(s, buf, cap, n) : step_zstd(s, buf, cap, n));
        if (drained && !*n && s->inside)
            return ls_fail(LS_E_FORMAT, "%s: the %s stream is truncated after %lld bytes", s->path,
                           s->kind == GZIP ? "gzip" : "zstd", (long long)s->taken);
    }
    return LS_OK;
}

int64_t ls_byte_stream_taken(const ls_byte_stream *s)
{
    return s->taken - (int64_t)(s->n - s->at);
}

size_t ls_byte_stream_memory(const ls_byte_stream *s)
{
    return RAW_BYTES + (s->zd ? ZSTD_sizeof_DCtx(s->zd) : s->z_on ? (size_t)64 << 10 : 0);
}
