/* checkpoint_sums.c - checksums.json: written last, compared first.
 *
 * {"format", "version", "hash": "XXH3-64", "block_bytes", "files": {"<name>": {"bytes", "xxh3", "blocks": [...]}}}
 * The whole-file hash decides (it is what `xxhsum -H3` prints); the hashes of the blocks only say where the damage lies. */
#include "train/checkpoint_impl.h"

#include "core/hash.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FORMAT "lockstep-checksums"

void ckpt_sums_text(const ckpt_sums *s, ls_str *out)
{
    ls_jsonw w;
    char hex[20];
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "format", FORMAT);
    ls_jsonw_put_int(&w, "version", LS_CKPT_VERSION);
    ls_jsonw_put_str(&w, "hash", "XXH3-64");
    ls_jsonw_put_int(&w, "block_bytes", (int64_t)LS_SUM_BLOCK);
    ls_jsonw_put_open(&w, "files", '{');
    for (int i = 0; i < s->n; i++) {
        ls_jsonw_put_open(&w, s->name[i], '{');
        ls_jsonw_put_int(&w, "bytes", s->sum[i].nbytes);
        ls_jsonw_key(&w, "xxh3");
        snprintf(hex, sizeof hex, "%016" PRIx64, s->sum[i].hash);
        ls_jsonw_str(&w, hex);
        ls_jsonw_put_open(&w, "blocks", '[');
        for (int64_t b = 0; b < s->sum[i].n_block; b++) {
            snprintf(hex, sizeof hex, "%016" PRIx64, s->sum[i].block[b]);
            ls_jsonw_str(&w, hex);
        }
        ls_jsonw_close(&w);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

void ckpt_sums_fini(ckpt_sums *s)
{
    for (int i = 0; i < s->n; i++) ls_sum_fini(&s->sum[i]);
    s->n = 0;
}

static bool hex_is(const json_t *v, uint64_t hash)
{
    char hex[20];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    const char *text = json_string_value(v);
    return text && !strcmp(text, hex);
}

/* " (inside transformer.wte.weight, ...)" for the bytes from..to of a safetensors file. */
static void name_tensors(ls_str *out, const char *path, size_t from, size_t to)
{
    ls_st_file f;
    size_t n = strlen(path);
    if (n < 12 || strcmp(path + n - 12, ".safetensors")) return;
    if (ls_st_open(&f, path) != LS_OK) {
        ls_str_add(out, " (its header cannot be read)");
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

static ls_status tell_damage(const char *path, const ls_fs_map *map, const json_t *blocks)
{
    size_t n_bad = 0, n_block = (map->n + LS_SUM_BLOCK - 1) / LS_SUM_BLOCK, first = 0, last = 0;
    for (size_t b = 0; b < n_block; b++) {
        size_t at = b * LS_SUM_BLOCK, k = map->n - at < LS_SUM_BLOCK ? map->n - at : LS_SUM_BLOCK;
        if (hex_is(json_array_get(blocks, b), ls_xxh64((const char *)map->data + at, k))) continue;
        if (!n_bad++) first = b;
        last = b;
    }
    if (!n_bad)
        return ls_fail(LS_E_FORMAT, "%s: its entry in " CKPT_SUMS " contradicts itself (" CKPT_SUMS " is damaged)",
                       path);
    size_t from = first * LS_SUM_BLOCK,
           to = (last + 1) * LS_SUM_BLOCK < map->n ? (last + 1) * LS_SUM_BLOCK - 1 : map->n - 1;
    ls_str where = {0};
    ls_str_addf(&where, "bytes %zu to %zu", from, to);
    if (n_bad > 1) ls_str_addf(&where, ", %zu of %zu blocks,", n_bad, n_block);
    name_tensors(&where, path, from, to);
    ls_status st = ls_fail(LS_E_FORMAT, "%s is damaged: %s differ from " CKPT_SUMS, path,
                           where.failed ? "some bytes" : where.data);
    ls_str_fini(&where);
    return st;
}

static ls_status verify_file(const char *path, const json_t *entry)
{
    ls_fs_map map;
    const json_t *bytes = json_object_get(entry, "bytes");
    if (!json_is_integer(bytes)) return ls_fail(LS_E_FORMAT, "%s: its entry in " CKPT_SUMS " has no size", path);
    if (!ls_fs_exists(path)) return ls_fail(LS_E_FORMAT, "%s is missing (" CKPT_SUMS " lists it)", path);
    LS_TRY(ls_fs_map_open(&map, path));
    ls_status st = LS_OK;
    if (map.n)
        (void)madvise((void *)(uintptr_t)map.data, map.n, MADV_WILLNEED); /* both hints: failing costs time only */
    if (map.n) (void)madvise((void *)(uintptr_t)map.data, map.n, MADV_SEQUENTIAL);
    if ((uint64_t)json_integer_value(bytes) != map.n)
        st = ls_fail(LS_E_FORMAT, "%s is damaged: it has %zu bytes, " CKPT_SUMS " says %lld", path, map.n,
                     (long long)json_integer_value(bytes));
    else if (!hex_is(json_object_get(entry, "xxh3"), ls_xxh64(map.data, map.n)))
        st = tell_damage(path, &map, json_object_get(entry, "blocks"));
    ls_fs_map_close(&map);
    return st;
}

ls_status ckpt_sums_verify(const char *dir, bool (*only)(const char *name))
{
    static const char *const required[] = {CKPT_CONFIG, CKPT_MODEL, CKPT_STATE};
    json_t *root = NULL, *entry;
    const char *name;
    ls_status st = LS_OK;
    char *path = ls_path_join(dir, CKPT_SUMS);
    if (!path) return ls_nomem(strlen(dir), "a path");
    if (!ls_fs_exists(path)) {
        st = ls_fail(LS_E_FORMAT, "%s is missing: the checkpoint is not whole", path);
        goto done;
    }
    LS_TRY_GOTO(st, done, ls_json_load(path, &root));
    const char *format = json_string_value(json_object_get(root, "format"));
    json_t *files = json_object_get(root, "files");
    if (!format || strcmp(format, FORMAT) || !json_is_object(files)) {
        st = ls_fail(LS_E_FORMAT, "%s is not a list of checksums", path);
        goto done;
    }
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        if (json_object_get(files, required[i])) continue;
        st = ls_fail(LS_E_FORMAT, "%s does not list %s", path, required[i]);
        goto done;
    }
    json_object_foreach(files, name, entry)
    {
        if (!ckpt_name_ok(name)) {
            st = ls_fail(LS_E_FORMAT, "%s lists \"%s\", which is not a plain file name", path, name);
            goto done;
        }
        if (only && !only(name)) continue;
        char *file = ls_path_join(dir, name);
        st = file ? verify_file(file, entry) : ls_nomem(strlen(dir), "a path");
        ls_free(file);
        if (st != LS_OK) goto done;
    }
done:
    json_decref(root);
    ls_free(path);
    return st;
}
