/* hf.c - loads weights of a Hugging Face folder; all tensors are matched with the model before the first one is copied. */
#include "ckpt/hf.h"
#include "ckpt/llmc.h"

#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "ckpt/checkpoint_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE ((size_t)64 << 10) /* bytes at the begin, in the middle and at the end of a tensor */

int hf_n_tensor(const ls_model *m)
{
    int n = 0;
    for (int u = 0; u < m->n_unit; u++) n += m->unit[u].n_tensor;
    return n;
}

ls_status hf_check_shape(const char *file, const ls_st_tensor *src, const ls_tensor *t)
{
    bool same = src->n_dim == t->n_dim;
    for (int d = 0; same && d < t->n_dim; d++) same = src->dim[d] == t->dim[d];
    if (same) return LS_OK;
    ls_st_tensor want = {.n_dim = t->n_dim, .dim = {t->dim[0], t->n_dim > 1 ? t->dim[1] : 0}};
    char a[96], b[96];
    return ls_fail(LS_E_CONFIG, "%s: tensor %s has shape %s; this model needs %s", file, src->name, ls_st_shape(src, a),
                   ls_st_shape(&want, b));
}

/* Buffers that old versions of transformers saved: the causal mask and its fill value. */
static bool is_buffer(const char *name)
{
    const char *tail = strstr(name, ".attn.");
    return tail && (!strcmp(tail, ".attn.bias") || !strcmp(tail, ".attn.masked_bias"));
}

static ls_status bind_one(hf_set *s, const ls_model *m, const char *file, const ls_st_tensor *src,
                          const ls_st_tensor **tied_head)
{
    int unit;
    if (is_buffer(src->name)) return LS_OK;
    if (m->cfg.tied && !strcmp(src->name, "lm_head.weight")) {
        *tied_head = src;
        return LS_OK;
    }
    const ls_tensor *t = ls_model_find(m, src->name, &unit);
    if (!t)
        return ls_fail(LS_E_CONFIG, "%s: tensor %s is not part of this model (%d layers, %s head)", file, src->name,
                       m->cfg.n_layer, m->cfg.tied ? "tied" : "untied");
    int k = (int)(t - m->unit[unit].tensor);
    for (int u = 0; u < unit; u++) k += m->unit[u].n_tensor;
    if (s->src[k]) return ls_fail(LS_E_FORMAT, "%s: tensor %s is a duplicate of %s", file, src->name, s->src[k]->name);
    if (!ls_st_is_float(src))
        return ls_fail(LS_E_FORMAT, "%s: tensor %s has type %s; supported types: F32, F16, BF16, F64", file, src->name,
                       src->dt_word);
    LS_TRY(hf_check_shape(file, src, t));
    s->src[k] = src;
    return LS_OK;
}

static ls_status check_all(const hf_set *s, const ls_model *m, const char *dir, const ls_st_tensor *tied_head)
{
    int k = 0;
    for (int u = 0; u < m->n_unit; u++)
        for (int i = 0; i < m->unit[u].n_tensor; i++, k++) {
            if (s->src[k]) continue;
            const char *name = m->unit[u].tensor[i].name;
            return ls_fail(LS_E_FORMAT, "%s: tensor %s is missing%s", dir, name,
                           strcmp(name, "lm_head.weight")
                               ? ""
                               : ": the head is tied to wte, that of this model is not; use --variant hf");
        }
    const ls_st_tensor *wte = s->src[0]; /* unit 0 begins with it */
    if (tied_head && (tied_head->other_dtype != wte->other_dtype || tied_head->dt != wte->dt ||
                      tied_head->nbytes != wte->nbytes || memcmp(tied_head->data, wte->data, wte->nbytes)))
        return ls_fail(
            LS_E_CONFIG,
            "%s: lm_head.weight differs from %s, but the head of this model is tied to it; set tie_word_embeddings to false to keep both",
            dir, wte->name);
    return LS_OK;
}

/* Opens the files of an index; every tensor must be in the file that the index names. */
static ls_status open_shard(hf_set *s, const char *dir, const char *index, const char *tensor, const char *name,
                            ls_st_file **file)
{
    char path[PATH_MAX];
    if (!name || !ckpt_name_ok(name))
        return ls_fail(LS_E_FORMAT, "%s: the file of tensor %s, \"%s\", is not a plain file name", index, tensor,
                       name ? name : "");
    for (int f = 0; f < s->n_file; f++) {
        *file = &s->file[f];
        if (!strcmp(ls_path_base(s->file[f].path), name)) return LS_OK;
    }
    *file = &s->file[s->n_file];
    LS_TRY(ls_path_in(path, dir, "%s", name));
    LS_TRY(ls_st_open(*file, path));
    s->n_file++;
    return LS_OK;
}

/* Opens the files of an index; every tensor must be in the file that the index names. */
static ls_status open_shards(hf_set *s, const ls_model *m, const char *dir, const char *index, json_t *map,
                             const ls_st_tensor **tied_head)
{
    json_t *value;
    const char *name;
    if (!json_is_object(map) || !json_object_size(map)) return ls_fail(LS_E_FORMAT, "%s has no weight_map", index);
    s->file = ls_alloc(json_object_size(map) * sizeof *s->file);
    if (!s->file) return ls_nomem(json_object_size(map) * sizeof *s->file, "the table of weight files");
    json_object_foreach(map, name, value)
    {
        ls_st_file *f;
        LS_TRY(open_shard(s, dir, index, name, json_string_value(value), &f));
        const ls_st_tensor *src = ls_st_find(f, name);
        if (!src) return ls_fail(LS_E_FORMAT, "%s: tensor %s is missing, but %s lists it", f->path, name, CKPT_INDEX);
        LS_TRY(bind_one(s, m, f->path, src, tied_head));
    }
    return LS_OK;
}

static ls_status open_index(hf_set *s, const ls_model *m, const char *dir, const char *index,
                            const ls_st_tensor **tied_head)
{
    json_t *root = NULL;
    LS_TRY(ls_json_load(index, &root));
    const ls_status st = open_shards(s, m, dir, index, json_object_get(root, "weight_map"), tied_head);
    json_decref(root);
    return st;
}

static ls_status open_single(hf_set *s, const ls_model *m, const char *path, const ls_st_tensor **tied_head)
{
    s->file = ls_alloc(sizeof *s->file);
    if (!s->file) return ls_nomem(sizeof *s->file, "the table of weight files");
    LS_TRY(ls_st_open(s->file, path));
    s->n_file = 1;
    for (int64_t i = 0; i < s->file->n; i++) LS_TRY(bind_one(s, m, path, &s->file->tensor[i], tied_head));
    return LS_OK;
}

static ls_status no_weights(const char *dir)
{
    char bin[PATH_MAX];
    LS_TRY(ls_path_in(bin, dir, "pytorch_model.bin"));
    if (!ls_fs_is_dir(dir)) return ls_fail(LS_E_IO, "%s: no such folder", dir);
    return ls_fail(LS_E_IO, "%s has neither " CKPT_MODEL " nor " CKPT_INDEX "%s", dir,
                   ls_fs_exists(bin) ? "; convert its pytorch_model.bin with save_pretrained of transformers" : "");
}

static ls_status open_and_bind(hf_set *s, const ls_model *m, const char *dir)
{
    const ls_st_tensor *tied_head = NULL;
    char single[PATH_MAX], index[PATH_MAX];
    LS_TRY(ls_path_in(single, dir, CKPT_MODEL));
    LS_TRY(ls_path_in(index, dir, CKPT_INDEX));
    s->src = ls_alloc((size_t)s->n_src * sizeof *s->src);
    if (!s->src) return ls_nomem((size_t)s->n_src * sizeof *s->src, "the tensor table of a folder");
    if (ls_llmc_is(dir)) return llmc_bind(s, m, dir);
    if (ls_fs_exists(single)) LS_TRY(open_single(s, m, single, &tied_head));
    else if (ls_fs_exists(index)) LS_TRY(open_index(s, m, dir, index, &tied_head));
    else LS_TRY(no_weights(dir));
    return check_all(s, m, dir, tied_head);
}

ls_status hf_open(hf_set *s, const ls_model *m, const char *dir)
{
    *s = (hf_set){.n_src = hf_n_tensor(m)};
    const ls_status st = open_and_bind(s, m, dir);
    if (st != LS_OK) hf_close(s);
    return st;
}

/* Fills one piece in host memory from the tensors of its unit. */
static void fill_piece(const ls_st_tensor *const *src, const ls_model *m, ls_dtype dt, const ls_piece *p)
{
    const ls_unit *x = &m->unit[p->unit];
    const int64_t end = p->first + p->n, e = (int64_t)ls_dtype_nbytes(dt);
    LS_ASSERT(src || !x->n_tensor);
    for (int i = 0; i < x->n_tensor; i++) {
        const ls_tensor *t = &x->tensor[i];
        const ls_tensor_range r = ls_tensor_within(t, p->first, p->n);
        const double less = ls_tensor_gain(t) && e == 2 ? 1 : 0; /* compute.h, ls_gains */
        if (r.from < r.to)
            ls_st_copy_part(src[i], r.from - t->offset, r.to - r.from, less, (char *)p->data + (r.from - p->first) * e,
                            dt);
    }
    const int64_t pad = p->first > x->n ? p->first : x->n;
    if (pad < end) memset((char *)p->data + (pad - p->first) * e, 0, (size_t)((end - pad) * e));
}

/* The same in host or device memory, in parts. */
static ls_status fill_anywhere(ckpt_fill *f, const ls_st_tensor *const *src, const ls_model *m, ls_dtype dt, ls_piece p)
{
    const size_t e = ls_dtype_nbytes(dt);
    while (p.n) {
        void *room;
        size_t k;
        LS_TRY(ckpt_fill_next(f, p.data, (size_t)p.n * e, &room, &k));
        const ls_piece part = {p.what, p.unit, p.first, (int64_t)(k / e), room};
        fill_piece(src, m, dt, &part);
        p.first += part.n;
        p.n -= part.n;
        p.data = (char *)p.data + k;
    }
    return LS_OK;
}

ls_status hf_fill(const ls_st_tensor *const *src, const ls_model *m, ls_flat what, const ls_piece *piece, int n_piece)
{
    const ls_compute_ops *ops = m->compute->ops;
    const int n = ckpt_n_piece(m, piece, n_piece);
    ckpt_fill f;
    LS_TRY(ckpt_fill_open(&f, m->compute));
    ls_status st = LS_OK;
    for (int i = 0; i < n && st == LS_OK; i++) {
        const ls_piece p = ckpt_piece(m, piece, i);
        int skip = 0;
        for (int u = 0; u < p.unit; u++) skip += m->unit[u].n_tensor;
        if (p.what != what || !p.n) continue;
        const bool narrow = p.data == m->unit[p.unit].param && !piece; /* a model's own, without master weights */
        st = fill_anywhere(&f, src + skip, m, narrow ? ops->dtype : ops->wide, p);
    }
    return ckpt_fill_close(&f, st);
}

void hf_close(hf_set *s)
{
    for (int i = 0; i < s->n_file; i++) ls_st_close(&s->file[i]);
    ls_free(s->file);
    ls_free(s->src);
    ls_free(s->own);
    *s = (hf_set){0};
}

ls_status hf_compare(const hf_set *s, const ls_model *m, ls_comm *team)
{
    int local;
    ls_xxh h;
    if (!team) return LS_OK;
    ls_xxh_init(&h);
    for (int k = 0; k < hf_n_tensor(m); k++) {
        const ls_st_tensor *t = s->src[k];
        const size_t n = t->nbytes < SAMPLE ? t->nbytes : SAMPLE;
        for (size_t i = 0; i < 3; i++) ls_xxh_add(&h, (const char *)t->data + (t->nbytes - n) / 2 * i, n);
    }
    const int64_t mine = (int64_t)ls_xxh_value(&h);
    int64_t first = mine;
    ls_status st = ls_broadcast(team, (ls_view){&first, 1, LS_I64}, 0, LS_SITE, NULL);
    if (st == LS_OK && mine != first)
        st = ls_fail(LS_E_CONFIG,
                     "the workers read different weights: their hash is %016" PRIx64
                     " on rank 0 (%.100s) and %016" PRIx64 " on rank %d (%.100s); every host needs the same files",
                     (uint64_t)first, ls_comm_host(team, 0, &local), (uint64_t)mine, ls_comm_rank(team),
                     ls_comm_host(team, ls_comm_rank(team), &local));
    return ckpt_agree(team, st, LS_SITE);
}

static ls_status open_compared(hf_set *s, const ls_model *m, const char *dir, ls_comm *team)
{
    char sums[PATH_MAX];
    LS_TRY(ls_path_in(sums, dir, CKPT_SUMS));
    if (ls_fs_exists(sums)) /* a lockstep checkpoint: check for damage */
        LS_TRY(ckpt_sums_verify(dir, false, ckpt_rank(team), ckpt_size(team)));
    return hf_open(s, m, dir);
}

ls_status ls_hf_load(const ls_model *m, const char *dir, const ls_piece *piece, int n_piece, ls_comm *comm)
{
    hf_set s = {0};
    ls_comm *team = ckpt_team(comm);
    ls_status st = ckpt_check_pieces(m, piece, n_piece, false);
    if (st == LS_OK) st = open_compared(&s, m, dir, team);
    st = ckpt_agree(team, st, LS_SITE);
    LS_ASSERT(s.src || st != LS_OK);
    if (st == LS_OK) st = hf_compare(&s, m, team);
    if (st == LS_OK) ls_info("model", "weights from %s", dir);
    if (st == LS_OK) {
        st = hf_fill(s.src, m, LS_FLAT_PARAM, piece, n_piece);
        if (m->compute->device) st = ckpt_agree(team, st, LS_SITE);
    }
    hf_close(&s);
    return st;
}
