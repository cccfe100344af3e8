#include "data/seen.h"
#include "core/fs.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void put(uint64_t *slot, size_t n_slot, uint64_t hash)
{
    size_t k = hash & (n_slot - 1);
    while (slot[k]) k = (k + 1) & (n_slot - 1);
    slot[k] = hash;
}

static ls_status grow(data_seen *s)
{
    const size_t n = s->n_slot ? 2 * s->n_slot : 8192;
    uint64_t *slot = ls_alloc(n * sizeof *slot);
    if (!slot) return ls_nomem(n * sizeof *slot, "the hashes of documents (--dedup)");
    for (size_t i = 0; i < s->n_slot; i++)
        if (s->slot[i]) put(slot, n, s->slot[i]);
    ls_free(s->slot);
    s->slot = slot;
    s->n_slot = n;
    return LS_OK;
}

static ls_status insert(data_seen *s, uint64_t hash, bool *is_new)
{
    if (4 * (s->n + 1) > 3 * s->n_slot) LS_TRY(grow(s));
    size_t k = hash & (s->n_slot - 1);
    while (s->slot[k] && s->slot[k] != hash) k = (k + 1) & (s->n_slot - 1);
    *is_new = !s->slot[k];
    if (!*is_new) return LS_OK;
    s->slot[k] = hash;
    s->n++;
    s->sum += hash;
    return LS_OK;
}

ls_status data_seen_add(data_seen *s, uint64_t hash, bool *is_new)
{
    if (!hash) hash = 1; /* 0: a free slot */
    LS_TRY(insert(s, hash, is_new));
    if (!*is_new) return LS_OK;
    s->buf[s->n_buf++] = hash;
    return s->n_buf == sizeof s->buf / sizeof *s->buf ? data_seen_flush(s) : LS_OK;
}

ls_status data_seen_flush(data_seen *s)
{
    if (!s->n_buf) return LS_OK;
    LS_TRY(ls_fs_append(s->fd, s->path, s->buf, s->n_buf * sizeof *s->buf));
    s->n_buf = 0;
    return LS_OK;
}

static ls_status read_back(data_seen *s, size_t n, uint64_t sum)
{
    ls_fs_map map;
    bool is_new = true;
    LS_TRY(ls_fs_map_open(&map, s->path));
    const uint64_t *hash = map.data;
    ls_status st = LS_OK;
    if (map.n / sizeof *hash < n) is_new = false;
    for (size_t i = 0; i < n && st == LS_OK && is_new; i++) st = insert(s, hash[i], &is_new);
    ls_fs_map_close(&map);
    LS_TRY(st);
    if (!is_new || s->sum != sum)
        return ls_fail(LS_E_FORMAT, "%s does not match the journal; leave out --resume to start from the beginning",
                       s->path);
    return LS_OK;
}

ls_status data_seen_open(data_seen *s, const char *path, size_t n, uint64_t sum)
{
    *s = (data_seen){.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
    s->path = ls_strdup(path);
    if (!s->path) return ls_nomem(strlen(path), "a path");
    if (s->fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", path, strerror(errno));
    if (n) LS_TRY(read_back(s, n, sum));
    const off_t end = (off_t)(n * sizeof *s->buf);
    if (ftruncate(s->fd, end) || lseek(s->fd, end, SEEK_SET) != end)
        return ls_fail(LS_E_IO, "cannot write %s: %s", path, strerror(errno));
    return LS_OK;
}

void data_seen_close(data_seen *s)
{
    if (s->path && s->fd >= 0) close(s->fd);
    ls_free(s->path);
    ls_free(s->slot);
    *s = (data_seen){.fd = -1};
}
