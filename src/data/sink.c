/* sink.c - token files, one after the other. */
#include "data/sink.h"
#include "data/sources.h"
#include "data/token_header.h"
#include "core/fs.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BUF_TOKENS ((size_t)256 << 10)
#define SYNC_BYTES ((off_t)32 << 20) /* given to the disk at a time, so that syncing at the end is short */

void data_sink_file_name(const data_sink *s, size_t k, char name[64])
{
    if (s->shard_tokens) ls_shard_name(name, s->part, (int)k);
    else snprintf(name, 64, "%s.bin", s->part);
}

static ls_status file_path(const data_sink *s, size_t k, char path[PATH_MAX])
{
    char name[64];
    data_sink_file_name(s, k, name);
    return ls_path_in(path, s->dir, "%s", name);
}

/* Opens the current file and cuts it to at.in_file tokens. */
static ls_status open_current(data_sink *s)
{
    char path[PATH_MAX];
    const off_t n = (off_t)(2 * s->at.in_file);
    LS_TRY(file_path(s, s->at.n_done, path));
    if (s->fd < 0) s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->fd < 0 || ftruncate(s->fd, n) || lseek(s->fd, n, SEEK_SET) != n)
        return ls_fail(LS_E_IO, "cannot write %s: %s", path, strerror(errno));
    return LS_OK;
}

void data_sink_close(data_sink *s)
{
    if (s->open && s->fd >= 0) close(s->fd);
    ls_free(s->dir);
    ls_free(s->buf);
    ls_free(s->done);
    *s = (data_sink){.fd = -1};
}

ls_status data_sink_flush(data_sink *s)
{
    char path[PATH_MAX];
    if (!s->n_buf) return LS_OK;
    LS_TRY(file_path(s, s->at.n_done, path));
    LS_TRY(ls_fs_append(s->fd, path, s->buf, s->n_buf * sizeof *s->buf));
    ls_sha256_add(&s->at.sha, s->buf, s->n_buf * sizeof *s->buf);
    s->n_buf = 0;
    const off_t end = (off_t)(2 * s->at.in_file) / SYNC_BYTES * SYNC_BYTES;
    if (end > s->sync_at)
        (void)sync_file_range(s->fd, s->sync_at, end - s->sync_at, SYNC_FILE_RANGE_WRITE); /* a hint */
    s->sync_at = end;
    return LS_OK;
}

/* The current file is complete. */
static ls_status end_file(data_sink *s)
{
    LS_TRY(data_sink_flush(s));
    LS_TRY(ls_reserve(&s->done, &s->cap, s->at.n_done + 1, sizeof *s->done, "a list of token files"));
    s->done[s->at.n_done].n_token = s->at.in_file;
    ls_sha256_hex(&s->at.sha, s->done[s->at.n_done].sha256);
    close(s->fd);
    s->fd = -1;
    s->at.n_done++;
    s->at.in_file = 0;
    ls_sha256_init(&s->at.sha);
    return LS_OK;
}

ls_status data_sink_add(data_sink *s, const uint16_t *token, size_t n)
{
    while (n) {
        if (s->shard_tokens && s->at.in_file == s->shard_tokens) {
            LS_TRY(end_file(s));
            LS_TRY(open_current(s));
        }
        size_t k = BUF_TOKENS - s->n_buf < n ? BUF_TOKENS - s->n_buf : n;
        if (s->shard_tokens && s->shard_tokens - s->at.in_file < (int64_t)k)
            k = (size_t)(s->shard_tokens - s->at.in_file);
        memcpy(s->buf + s->n_buf, token, k * sizeof *token);
        s->n_buf += k;
        s->at.n_token += (int64_t)k;
        s->at.in_file += (int64_t)k;
        token += k;
        n -= k;
        if (s->n_buf == BUF_TOKENS) LS_TRY(data_sink_flush(s));
    }
    return LS_OK;
}

/* Removes files above the current one. */
static ls_status remove_after(data_sink *s, size_t last)
{
    for (size_t k = s->at.n_done + 1; k <= last; k++) {
        char path[PATH_MAX];
        LS_TRY(file_path(s, k, path));
        if (unlink(path) && errno != ENOENT) return ls_fail(LS_E_IO, "cannot remove %s: %s", path, strerror(errno));
    }
    return LS_OK;
}

ls_status data_sink_mark(data_sink *s, data_mark *m)
{
    LS_TRY(data_sink_flush(s));
    *m = s->at;
    return LS_OK;
}

ls_status data_sink_rewind(data_sink *s, const data_mark *m)
{
    LS_TRY(data_sink_flush(s));
    const size_t last = s->at.n_done;
    if (m->n_token == s->at.n_token && m->n_done == last) {
        s->at.n_doc = m->n_doc;
        return LS_OK;
    }
    if (m->n_done != last && s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
    s->at = *m;
    LS_TRY(remove_after(s, last));
    return open_current(s);
}

ls_status data_sink_mark_at(data_sink *s, int64_t n_token, data_mark *m)
{
    char path[PATH_MAX];
    ls_fs_map map;
    LS_TRY(data_sink_flush(s));
    data_mark r = {.n_token = n_token, .n_doc = s->at.n_doc};
    if (s->shard_tokens && n_token) r.n_done = (size_t)((n_token - 1) / s->shard_tokens);
    r.in_file = n_token - (int64_t)r.n_done * s->shard_tokens;
    LS_TRY(file_path(s, r.n_done, path));
    LS_TRY(ls_fs_map_open(&map, path));
    const bool whole = map.n >= 2 * (size_t)r.in_file;
    ls_sha256_init(&r.sha);
    if (whole) ls_sha256_add(&r.sha, map.data, 2 * (size_t)r.in_file);
    ls_fs_map_close(&map);
    if (!whole) return ls_fail(LS_E_FORMAT, "%s has fewer than %lld tokens", path, (long long)r.in_file);
    *m = r;
    return LS_OK;
}

ls_status data_sink_copy_tail(data_sink *s, int64_t n_token, data_sink *to)
{
    LS_TRY(data_sink_flush(s));
    for (size_t k = 0; k <= s->at.n_done; k++) {
        const int64_t first = (int64_t)k * s->shard_tokens;
        char path[PATH_MAX];
        ls_fs_map map;
        LS_TRY(file_path(s, k, path));
        LS_TRY(ls_fs_map_open(&map, path));
        const int64_t n = (int64_t)(map.n / 2), skip = n_token > first ? n_token - first : 0;
        const ls_status st =
            skip < n ? data_sink_add(to, (const uint16_t *)map.data + skip, (size_t)(n - skip)) : LS_OK;
        ls_fs_map_close(&map);
        LS_TRY(st);
    }
    return LS_OK;
}

ls_status data_sink_finish(data_sink *s)
{
    LS_TRY(end_file(s));
    s->open = false;
    for (size_t k = 0; k < s->at.n_done; k++) {
        char path[PATH_MAX];
        LS_TRY(file_path(s, k, path));
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        const bool ok = fd >= 0 && (!fsync(fd) || errno == EINVAL);
        const int why = errno;
        if (fd >= 0) close(fd);
        if (!ok) return ls_fail(LS_E_IO, "cannot sync %s: %s", path, strerror(why));
    }
    return LS_OK;
}

static ls_status add_header(data_token_file *f, const char *path)
{
    unsigned char head[DATA_TOKEN_HEADER];
    ls_fs_map map;
    ls_fs_out out;
    ls_sha256 sha;
    if (f->n_token > INT32_MAX)
        return ls_fail(LS_E_CONFIG, "%s has %lld tokens, but the header of llm.c can state %d; use --shard_tokens",
                       ls_path_base(path), (long long)f->n_token, INT32_MAX);
    data_token_header_make((int32_t)f->n_token, head);
    LS_TRY(ls_fs_map_open(&map, path));
    ls_status st = ls_fs_out_open(&out, path);
    if (st == LS_OK) {
        st = ls_fs_out_append(&out, head, sizeof head);
        if (st == LS_OK) st = ls_fs_out_append(&out, map.data, map.n);
        if (st == LS_OK) st = ls_fs_out_commit(&out);
        else ls_fs_out_abort(&out);
    }
    ls_sha256_init(&sha);
    ls_sha256_add(&sha, head, sizeof head);
    ls_sha256_add(&sha, map.data, map.n);
    ls_sha256_hex(&sha, f->sha256);
    ls_fs_map_close(&map);
    return st;
}

ls_status data_sink_add_headers(data_sink *s)
{
    char path[PATH_MAX];
    for (size_t k = 0; k < s->at.n_done; k++) {
        LS_TRY(file_path(s, k, path));
        LS_TRY(add_header(&s->done[k], path));
    }
    return LS_OK;
}

/* ---- the journal ---- */

void data_sink_save(const data_sink *s, const data_mark *m, ls_jsonw *w)
{
    char hex[65];
    ls_sha256 sha = m->sha;
    ls_sha256_hex(&sha, hex);
    ls_jsonw_put_open(w, s->part, '{');
    ls_jsonw_members(w, LS_KV("tokens", m->n_token), LS_KV("documents", m->n_doc), LS_KV("in_file", m->in_file),
                     LS_KV("sha256", (const char *)hex));
    ls_jsonw_put_open(w, "done", '[');
    for (size_t k = 0; k < m->n_done; k++) ls_jsonw_str(w, s->done[k].sha256);
    ls_jsonw_close(w);
    ls_jsonw_close(w);
}

static ls_status damaged(const data_sink *s, size_t k)
{
    char name[64];
    data_sink_file_name(s, k, name);
    return ls_fail(LS_E_FORMAT, "%s/%s does not match the journal; leave out --resume to start from the beginning",
                   s->dir, name);
}

/* A finished file k has the hash of the journal. */
static ls_status restore_done(data_sink *s, size_t k, const char *sha)
{
    data_mark m;
    data_token_file *f = &s->done[k];
    s->at.n_done = k;
    if (!sha || data_sink_mark_at(s, (int64_t)(k + 1) * s->shard_tokens, &m) != LS_OK || m.n_done != k)
        return damaged(s, k);
    f->n_token = s->shard_tokens;
    ls_sha256_hex(&m.sha, f->sha256);
    return strcmp(f->sha256, sha) ? damaged(s, k) : LS_OK;
}

/* Only reads until all is compared. */
static ls_status restore(data_sink *s, const json_t *saved)
{
    const json_t *done = json_object_get(saved, "done");
    const char *sha = json_string_value(json_object_get(saved, "sha256"));
    const int64_t n_token = json_integer_value(json_object_get(saved, "tokens"));
    const int64_t in_file = json_integer_value(json_object_get(saved, "in_file"));
    const size_t n_done = json_array_size(done);
    char hex[65], path[PATH_MAX];
    if (n_token < 0 || in_file < 0 || n_token != (int64_t)n_done * s->shard_tokens + in_file) return damaged(s, n_done);
    LS_TRY(ls_reserve(&s->done, &s->cap, n_done + 1, sizeof *s->done, "a list of token files"));
    for (size_t k = 0; k < n_done; k++) LS_TRY(restore_done(s, k, json_string_value(json_array_get(done, k))));
    data_mark m = {.n_token = n_token,
                   .n_doc = json_integer_value(json_object_get(saved, "documents")),
                   .n_done = n_done,
                   .in_file = in_file};
    ls_fs_map map;
    LS_TRY(file_path(s, n_done, path));
    if (ls_fs_map_open(&map, path) != LS_OK) return damaged(s, n_done);
    ls_sha256_init(&m.sha);
    const bool whole = map.n >= 2 * (size_t)in_file;
    if (whole) ls_sha256_add(&m.sha, map.data, 2 * (size_t)in_file);
    ls_fs_map_close(&map);
    ls_sha256 copy = m.sha;
    ls_sha256_hex(&copy, hex);
    if (!whole || !sha || strcmp(hex, sha)) return damaged(s, n_done);
    s->at = m;
    for (size_t k = n_done + 1;; k++) { /* files after the journal entry */
        LS_TRY(file_path(s, k, path));
        if (!s->shard_tokens || unlink(path)) break;
    }
    return open_current(s);
}

ls_status data_sink_open(data_sink *s, const char *dir, const char *part, int64_t shard_tokens, const json_t *saved)
{
    *s = (data_sink){.part = part, .shard_tokens = shard_tokens, .fd = -1, .open = true};
    ls_sha256_init(&s->at.sha);
    s->dir = ls_strdup(dir);
    s->buf = ls_alloc(BUF_TOKENS * sizeof *s->buf);
    if (!s->dir || !s->buf) return ls_nomem(BUF_TOKENS * sizeof *s->buf, "a token file");
    return saved ? restore(s, saved) : open_current(s);
}
