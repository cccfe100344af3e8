/* checkpoint_sums.c - checksums.json: written last, compared first.
 *
 * {"format", "version": 2, "hash": "XXH3-64", "block_bytes", "files": {"<name>": {"bytes", "root", "blocks": [...]}}}
 * blocks are the hashes of the blocks of block_bytes in order; root is the hash of this list (little-endian) and distinguishes a
 * damaged list from a damaged file. Workers can share the hashing and comparing of blocks.
 * Version 1 has "xxh3" of the whole file in place of root; there the hash of the whole file decides, and blocks only locate the damage. */
#include "ckpt/checkpoint_impl.h"

#include "core/deadline.h"
#include "core/hash.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FORMAT "lockstep-checksums"

static size_t n_block_of(size_t nbytes)
{
    return (nbytes + CKPT_BLOCK - 1) / CKPT_BLOCK;
}

static uint64_t block_hash(const void *data, size_t nbytes, size_t b)
{
    const size_t at = b * CKPT_BLOCK;
    return ls_xxh64((const char *)data + at, nbytes - at < CKPT_BLOCK ? nbytes - at : CKPT_BLOCK);
}

static const char *hex_of(uint64_t hash, char hex[20])
{
    snprintf(hex, 20, "%016" PRIx64, hash);
    return hex;
}

static bool hex_is(const json_t *v, uint64_t hash)
{
    char hex[20];
    const char *text = json_string_value(v);
    return text && !strcmp(text, hex_of(hash, hex));
}

void ckpt_sums_begin(ckpt_sums *s)
{
    ls_jsonw_init(&s->w, &s->text, 2);
    ls_jsonw_open(&s->w, '{');
    ls_jsonw_members(&s->w, LS_KV("format", FORMAT), LS_KV("version", LS_CKPT_VERSION), LS_KV("hash", "XXH3-64"),
                     LS_KV("block_bytes", (int64_t)CKPT_BLOCK));
    ls_jsonw_put_open(&s->w, "files", '{');
}

void ckpt_sums_add(ckpt_sums *s, const char *name, const void *data, size_t nbytes, const int64_t *known)
{
    const size_t n = n_block_of(nbytes);
    char hex[20];
    ls_xxh root;
    ls_xxh_init(&root);
    for (size_t b = 0; b < n; b++) {
        const uint64_t hash = known ? (uint64_t)known[b] : block_hash(data, nbytes, b);
        ls_xxh_add(&root, &hash, sizeof hash);
    }
    ls_jsonw_put_open(&s->w, name, '{');
    ls_jsonw_members(&s->w, LS_KV("bytes", (int64_t)nbytes), LS_KV("root", hex_of(ls_xxh_value(&root), hex)));
    ls_jsonw_put_open(&s->w, "blocks", '[');
    for (size_t b = 0; b < n; b++)
        ls_jsonw_str(&s->w, hex_of(known ? (uint64_t)known[b] : block_hash(data, nbytes, b), hex));
    ls_jsonw_close(&s->w);
    ls_jsonw_close(&s->w);
}

/* " (inside transformer.wte.weight, ...)" for the bytes from..to of a safetensors file. */
static void name_tensors(ls_str *out, const char *path, size_t from, size_t to)
{
    ls_st_file f;
    size_t n = strlen(path);
    if (n < 12 || strcmp(path + n - 12, ".safetensors")) return;
    if (ls_st_open(&f, path) != LS_OK) {
        ls_str_add(out, " (the header cannot be read)");
        return;
    }
    int named = 0;
    if (from < f.data_at) {
        ls_str_add(out, " (header");
        named++;
    }
    for (int64_t i = 0; i < f.n; i++) {
        size_t a = (size_t)((const char *)f.tensor[i].data - (const char *)f.map.data), b = a + f.tensor[i].nbytes;
        if (b <= from || a > to) continue;
        if (named++ < 4) ls_str_addf(out, "%s%s", named == 1 ? " (" : ", ", f.tensor[i].name);
    }
    if (named > 4) ls_str_addf(out, " and %d more", named - 4);
    if (named) ls_str_addc(out, ')');
    ls_st_close(&f);
}

static bool block_is(const ls_fs_map *map, const json_t *blocks, size_t b)
{
    return hex_is(json_array_get(blocks, b), block_hash(map->data, map->n, b));
}

static ls_status contradicts(const char *path)
{
    return ls_fail(LS_E_FORMAT, "%s: the entry in " CKPT_SUMS " is inconsistent (" CKPT_SUMS " is damaged)", path);
}

static ls_status tell_damage(const char *path, const ls_fs_map *map, const json_t *blocks)
{
    size_t n_bad = 0, n_block = n_block_of(map->n), first = 0, last = 0;
    for (size_t b = 0; b < n_block; b++) {
        if (block_is(map, blocks, b)) continue;
        if (!n_bad++) first = b;
        last = b;
    }
    if (!n_bad) return contradicts(path);
    size_t from = first * CKPT_BLOCK, to = (last + 1) * CKPT_BLOCK < map->n ? (last + 1) * CKPT_BLOCK - 1 : map->n - 1;
    ls_str where = {0};
    ls_str_addf(&where, "bytes %zu to %zu", from, to);
    if (n_bad > 1) ls_str_addf(&where, ", %zu of %zu blocks,", n_bad, n_block);
    name_tensors(&where, path, from, to);
    ls_status st = ls_fail(LS_E_FORMAT, "%s is damaged: %s differ from " CKPT_SUMS, path,
                           where.failed ? "some bytes" : where.data);
    ls_str_fini(&where);
    return st;
}

/* True if the list of blocks is intact: one hash per block of the file, and the root matches. */
static bool blocks_whole(const json_t *entry, size_t nbytes)
{
    const json_t *blocks = json_object_get(entry, "blocks");
    ls_xxh root;
    ls_xxh_init(&root);
    if (json_array_size(blocks) != n_block_of(nbytes)) return false;
    for (size_t b = 0; b < json_array_size(blocks); b++) {
        const char *hex = json_string_value(json_array_get(blocks, b));
        if (!hex || strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16) return false;
        const uint64_t hash = strtoull(hex, NULL, 16);
        ls_xxh_add(&root, &hash, sizeof hash);
    }
    return hex_is(json_object_get(entry, "root"), ls_xxh_value(&root));
}

/* The share of one worker: blocks [first, last) of all listed files in order. */
typedef struct share {
    int version, rank, size;
    size_t at, first, last; /* at: blocks of the files before this one */
    int turn;
} share;

/* Every worker checks sizes and lists, which is cheap. */
static ls_status verify_map(const char *path, const ls_fs_map *map, const json_t *entry, share *s)
{
    const json_t *bytes = json_object_get(entry, "bytes"), *blocks = json_object_get(entry, "blocks");
    if ((uint64_t)json_integer_value(bytes) != map->n)
        return ls_fail(LS_E_FORMAT, "%s is damaged: it has %zu bytes, not %lld as in " CKPT_SUMS, path, map->n,
                       (long long)json_integer_value(bytes));
    if (s->version == 1) {
        if (s->turn++ % s->size != s->rank || hex_is(json_object_get(entry, "xxh3"), ls_xxh64(map->data, map->n)))
            return LS_OK;
        return tell_damage(path, map, blocks);
    }
    if (!blocks_whole(entry, map->n)) return contradicts(path);
    const size_t n = n_block_of(map->n), from = s->first > s->at ? s->first - s->at : 0,
                 to = s->last > s->at ? s->last - s->at : 0;
    s->at += n;
    if (from >= n || to <= from) return LS_OK;
    const size_t end = to < n ? to : n, last = end * CKPT_BLOCK < map->n ? end * CKPT_BLOCK : map->n;
    void *begin = (void *)((uintptr_t)map->data + from * CKPT_BLOCK); /* blocks begin where pages do */
    (void)madvise(begin, last - from * CKPT_BLOCK, MADV_WILLNEED);    /* both hints: failing costs time only */
    (void)madvise(begin, last - from * CKPT_BLOCK, MADV_SEQUENTIAL);
    for (size_t b = from; b < end; b++)
        if (!block_is(map, blocks, b)) return tell_damage(path, map, blocks);
    return LS_OK;
}

static ls_status verify_file(const char *dir, const char *name, const json_t *entry, share *s)
{
    ls_fs_map map;
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, dir, "%s", name));
    if (!ls_fs_exists(path)) return ls_fail(LS_E_FORMAT, "%s is missing (" CKPT_SUMS " lists it)", path);
    LS_TRY(ls_fs_map_open(&map, path));
    const ls_status st = verify_map(path, &map, entry, s);
    ls_fs_map_close(&map);
    return st;
}

/* Checks the list: format, required files, and only plain names with a size. */
static ls_status check_list(const char *path, const json_t *root, int *version)
{
    static const char *const required[] = {CKPT_CONFIG, CKPT_MODEL, CKPT_STATE};
    const char *format = json_string_value(json_object_get(root, "format")), *name;
    json_t *files = json_object_get(root, "files"), *entry;
    const json_t *number = json_object_get(root, "version");
    if (!format || strcmp(format, FORMAT) || !json_is_object(files) || json_integer_value(number) < 1)
        return ls_fail(LS_E_FORMAT, "%s is not a list of checksums", path);
    if (json_integer_value(number) > LS_CKPT_VERSION)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s: version %lld is too new; this program reads up to %d; use the program that wrote it", path,
                       (long long)json_integer_value(number), LS_CKPT_VERSION);
    *version = (int)json_integer_value(number);
    if (json_integer_value(json_object_get(root, "block_bytes")) != (json_int_t)CKPT_BLOCK)
        return ls_fail(LS_E_FORMAT, "%s: block_bytes is not %zu", path, CKPT_BLOCK);
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!json_object_get(files, required[i])) return ls_fail(LS_E_FORMAT, "%s does not list %s", path, required[i]);
    json_object_foreach(files, name, entry)
    {
        if (!ckpt_name_ok(name))
            return ls_fail(LS_E_FORMAT, "%s lists \"%s\", which is not a plain file name", path, name);
        if (!json_is_integer(json_object_get(entry, "bytes")))
            return ls_fail(LS_E_FORMAT, "%s: the entry of %s has no size", path, name);
    }
    return LS_OK;
}

/* checksums.json of a folder, checked; free with json_decref. */
static ls_status load_list(const char *dir, json_t **root, int *version)
{
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, dir, CKPT_SUMS));
    if (!ls_fs_exists(path)) return ls_fail(LS_E_FORMAT, "%s is missing: the checkpoint is incomplete", path);
    LS_TRY(ls_json_load(path, root));
    const ls_status st = check_list(path, *root, version);
    if (st == LS_OK) return LS_OK;
    json_decref(*root);
    *root = NULL;
    return st;
}

ls_status ckpt_sums_verify(const char *dir, bool optimizer, int rank, int size)
{
    json_t *root = NULL, *entry;
    const char *name;
    ls_status st = LS_OK;
    share s = {.rank = rank, .size = size};
    size_t n = 0;
    LS_TRY(load_list(dir, &root, &s.version));
    if (!optimizer) (void)json_object_del(json_object_get(root, "files"), CKPT_OPTIMIZER);
    json_object_foreach(json_object_get(root, "files"), name, entry)
    {
        n += json_array_size(json_object_get(entry, "blocks"));
    }
    s.first = n * (size_t)rank / (size_t)size;
    s.last = n * ((size_t)rank + 1) / (size_t)size;
    json_object_foreach(json_object_get(root, "files"), name, entry)
    {
        LS_TRY_GOTO(st, done, verify_file(dir, name, entry, &s));
    }
done:
    json_decref(root);
    return st;
}

/* ---- after writing ---- */

/* fresh: from the disk, not from the page cache, where the file system can do that; else pages are dropped if they are clean (files of a checkpoint
 * are synced). On a file system in memory the pages stay. */
static int open_read(const char *path, bool fresh)
{
    if (ls_fs_fault && (errno = ls_fs_fault(path, LS_FS_READ))) return -1;
    int fd = fresh ? ls_fs_open(path, O_RDONLY | O_NOFOLLOW | O_DIRECT) : -1;
    if (fd < 0 && (!fresh || ckpt_no_direct(errno))) fd = ls_fs_open(path, O_RDONLY | O_NOFOLLOW);
    if (fd < 0) return -1;
    if (fresh)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* both hints: failing costs only the proof, or time */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return fd;
}

static ls_status cannot_read(const char *path, size_t at)
{
    return ls_fail(LS_E_IO, "cannot read %s at byte %zu: %s", path, at, strerror(errno));
}

/* Later reads use the page cache; false: they do already. */
static bool end_direct(int fd)
{
    const int error = errno, flags = fcntl(fd, F_GETFL);
    const bool was = flags >= 0 && (flags & O_DIRECT) && !fcntl(fd, F_SETFL, flags & ~O_DIRECT);
    errno = error;
    return was;
}

/* *n: bytes that were read, fewer than CKPT_BLOCK at the end of the file only. */
static ls_status read_block(int fd, const char *path, size_t at, char *buf, size_t *n)
{
    for (*n = 0; *n < CKPT_BLOCK;) {
        const ssize_t k = pread(fd, buf + *n, CKPT_BLOCK - *n, (off_t)(at + *n));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && ckpt_no_direct(errno) && end_direct(fd)) continue; /* after the end of a file, for one */
        if (k < 0) return cannot_read(path, at + *n);
        if (!k) return LS_OK;
        *n += (size_t)k;
    }
    return LS_OK;
}

static ls_status read_back_file(int fd, const char *path, const json_t *entry, char *buf, const atomic_bool *hurry)
{
    const json_t *blocks = json_object_get(entry, "blocks");
    const size_t nbytes = (size_t)json_integer_value(json_object_get(entry, "bytes"));
    size_t at = 0, n = 0;
    if (!blocks_whole(entry, nbytes)) return contradicts(path);
    for (size_t b = 0; at <= nbytes; b++, at += n) {
        if (hurry && atomic_load(hurry)) return ls_fail(LS_E_STOPPED, "the run was asked to stop");
        LS_TRY(read_block(fd, path, at, buf, &n));
        ls_deadline_tick();
        if (!n) break;
        if (at + n > nbytes || !hex_is(json_array_get(blocks, b), ls_xxh64(buf, n)))
            return ls_fail(LS_E_FORMAT, "%s is damaged: bytes %zu to %zu differ from " CKPT_SUMS, path, at, at + n - 1);
    }
    return at == nbytes ? LS_OK : ls_fail(LS_E_FORMAT, "%s is damaged: it ends at byte %zu of %zu", path, at, nbytes);
}

ls_status ckpt_sums_read(const char *dir, bool fresh, const atomic_bool *hurry)
{
    json_t *root = NULL, *entry;
    const char *name;
    char path[PATH_MAX];
    int version = 0, fd;
    void *memory;
    char *buf = ckpt_block_alloc(&memory);
    if (!buf) return ls_nomem(CKPT_BLOCK, "a block of a checkpoint");
    ls_status st = ls_path_in(path, dir, CKPT_SUMS);
    if (st == LS_OK && fresh && (fd = open_read(path, true)) >= 0) close(fd);
    if (st == LS_OK) st = load_list(dir, &root, &version);
    if (st == LS_OK && version == 1) st = ckpt_sums_verify(dir, true, 0, 1);
    json_object_foreach(json_object_get(version == 1 ? NULL : root, "files"), name, entry)
    {
        if (st == LS_OK) st = ls_path_in(path, dir, "%s", name);
        if (st != LS_OK) break;
        fd = open_read(path, fresh);
        if (fd < 0) st = errno == ENOENT ? ls_fail(LS_E_FORMAT, "%s is missing", path) : cannot_read(path, 0);
        else {
            st = read_back_file(fd, path, entry, buf, hurry);
            close(fd);
        }
    }
    json_decref(root);
    ls_free(memory);
    return st;
}
