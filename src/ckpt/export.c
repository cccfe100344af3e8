#include "ckpt/export.h"

#include "core/mem.h"
#include "core/minmax.h"
#include "ckpt/checkpoint_impl.h"
#include "ckpt/llmc.h"

#include <string.h>
#include <unistd.h>

#define BUFFER ((size_t)4 << 20)

/* ---- a file of tensors ---- */

ls_status ckpt_tensor_open(ckpt_tensor_out *o, const char *path, ls_dtype dt)
{
    *o = (ckpt_tensor_out){.dt = dt, .buf = ls_alloc(BUFFER)};
    if (!o->buf) return ls_nomem(BUFFER, "a buffer for tensors");
    const ls_status st = ls_fs_out_open(&o->file, path);
    if (st != LS_OK) ls_free(o->buf);
    return st;
}

/* No number that is finite in fp32 is too large for fp16. */
static ls_status check_range(const ckpt_tensor_out *o, const ls_st_tensor *t, int64_t n)
{
    const uint16_t *x = (const uint16_t *)(const void *)o->buf;
    if (o->dt != LS_F16) return LS_OK;
    for (int64_t i = 0; i < n; i++)
        if ((x[i] & 0x7c00) == 0x7c00)
            return ls_fail(LS_E_CONFIG,
                           "tensor %s has numbers beyond 65504, the largest of fp16; use --dtype bf16 or fp32",
                           t->name);
    return LS_OK;
}

ls_status ckpt_tensor_put(ckpt_tensor_out *o, const ls_st_tensor *t, bool transposed)
{
    const size_t e = ls_dtype_nbytes(o->dt);
    const int64_t unit = transposed ? t->dim[0] : 1, n = ls_st_n(t) / unit; /* a part has whole rows of the transpose */
    const int64_t most = (int64_t)(BUFFER / e) / unit;
    if (!most) return ls_fail(LS_E_UNSUPPORTED, "tensor %s: a row has %lld elements", t->name, (long long)unit);
    for (int64_t i = 0; i < n; i += most) {
        const int64_t k = LS_MIN(most, n - i);
        if (transposed) ls_st_copy_transposed(t, i, k, o->buf, o->dt);
        else ls_st_copy_part(t, i, k, 0, o->buf, o->dt);
        LS_TRY(check_range(o, t, k * unit));
        LS_TRY(ls_fs_out_append(&o->file, o->buf, (size_t)(k * unit) * e));
    }
    return LS_OK;
}

ls_status ckpt_tensor_zeros(ckpt_tensor_out *o, int64_t nbytes)
{
    memset(o->buf, 0, (size_t)LS_MIN(nbytes, (int64_t)BUFFER));
    for (; nbytes > 0; nbytes -= (int64_t)BUFFER)
        LS_TRY(ls_fs_out_append(&o->file, o->buf, (size_t)LS_MIN(nbytes, (int64_t)BUFFER)));
    return LS_OK;
}

ls_status ckpt_tensor_close(ckpt_tensor_out *o, ls_status st)
{
    if (st == LS_OK) st = ls_fs_out_commit(&o->file);
    else ls_fs_out_abort(&o->file);
    ls_free(o->buf);
    return st;
}

/* ---- a folder for transformers ---- */

static ls_status copy_file(const char *from_dir, const char *to_dir, const char *name)
{
    ls_fs_map map;
    const ls_path from = ls_path_of(from_dir, name), to = ls_path_of(to_dir, name);
    if (!ls_fs_exists(from.text)) return LS_OK;
    LS_TRY(ls_fs_map_open(&map, from.text));
    const ls_status st = ckpt_file_put(to.text, map.data, map.n, NULL);
    ls_fs_map_close(&map);
    return st;
}

/* config.json, with the type of the weights: transformers loads them in it. */
static ls_status write_config(const ls_model_config *cfg, ls_dtype dt, const char *dir)
{
    static const char word[] = "\"torch_dtype\": \"float32\"";
    ls_str text = {0}, out = {0};
    ls_model_config_write(cfg, &text);
    const char *at = text.failed ? NULL : strstr(text.data, word);
    if (at) {
        ls_str_addn(&out, text.data, (size_t)(at - text.data));
        ls_str_addf(&out, "\"torch_dtype\": \"%s\"%s",
                    dt == LS_F32   ? "float32"
                    : dt == LS_F16 ? "float16"
                                   : "bfloat16",
                    at + strlen(word));
    }
    ls_status st = text.failed || out.failed ? ls_nomem(text.cap, CKPT_CONFIG) : LS_OK;
    if (st == LS_OK) st = ckpt_file_put(ls_path_of(dir, CKPT_CONFIG).text, out.data, out.len, NULL);
    ls_str_fini(&text);
    ls_str_fini(&out);
    return st;
}

/* The tensors of a folder in the order of the model, and the shard of each. */
typedef struct shards {
    ls_st_tensor *tensor; /* as they are written; data: of the source */
    int *shard;
    int n, n_shard;
    int64_t nbytes;
} shards;

static ls_status divide(const hf_set *s, const ls_model *m, ls_dtype dt, int64_t most, shards *out)
{
    *out = (shards){.n = hf_n_tensor(m), .n_shard = 1};
    out->tensor = ls_alloc((size_t)out->n * sizeof *out->tensor);
    out->shard = ls_alloc((size_t)out->n * sizeof *out->shard);
    if (!out->tensor || !out->shard) return ls_nomem((size_t)out->n * sizeof *out->tensor, "the tensor table");
    int64_t in_shard = 0;
    int k = 0;
    for (int u = 0; u < m->n_unit; u++)
        for (int i = 0; i < m->unit[u].n_tensor; i++, k++) {
            const int64_t nbytes = m->unit[u].tensor[i].n * (int64_t)ls_dtype_nbytes(dt);
            if (most && in_shard && in_shard + nbytes > most) {
                out->n_shard++;
                in_shard = 0;
            }
            out->tensor[k] = *s->src[k];
            out->tensor[k].name = m->unit[u].tensor[i].name;
            out->tensor[k].dt = dt;
            out->shard[k] = out->n_shard;
            out->nbytes += nbytes;
            in_shard += nbytes;
        }
    return LS_OK;
}

static ls_status shard_path(const shards *x, int shard, const char *dir, char path[PATH_MAX])
{
    if (x->n_shard == 1) return ls_path_in(path, dir, CKPT_MODEL);
    return ls_path_in(path, dir, CKPT_SHARD, shard, x->n_shard);
}

static ls_status write_shard(const hf_set *s, const shards *x, int shard, ls_dtype dt, const char *dir)
{
    char path[PATH_MAX];
    ckpt_tensor_out out;
    ls_str head = {0};
    int64_t nbytes;
    int first = 0, end;
    while (x->shard[first] < shard) first++;
    for (end = first; end < x->n && x->shard[end] == shard;) end++;
    LS_TRY(shard_path(x, shard, dir, path));
    ls_st_header(x->tensor + first, end - first, &head, &nbytes);
    ls_status st = head.failed ? ls_nomem(head.cap, "the header of a safetensors file") : LS_OK;
    if (st == LS_OK) st = ckpt_tensor_open(&out, path, dt);
    if (st == LS_OK) {
        st = ls_fs_out_append(&out.file, head.data, head.len);
        for (int k = first; k < end && st == LS_OK; k++) st = ckpt_tensor_put(&out, s->src[k], false);
        st = ckpt_tensor_close(&out, st);
    }
    ls_str_fini(&head);
    return st;
}

static ls_status write_index(const shards *x, const char *dir)
{
    ls_str text = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &text, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_open(&w, "metadata", '{');
    ls_jsonw_put_int(&w, "total_size", x->nbytes);
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "weight_map", '{');
    for (int k = 0; k < x->n; k++) {
        char path[PATH_MAX];
        LS_TRY(shard_path(x, x->shard[k], dir, path));
        ls_jsonw_put_str(&w, x->tensor[k].name, ls_path_base(path));
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    ls_str_addc(&text, '\n');
    ls_status st = text.failed ? ls_nomem(text.cap, CKPT_INDEX)
                               : ckpt_file_put(ls_path_of(dir, CKPT_INDEX).text, text.data, text.len, NULL);
    ls_str_fini(&text);
    return st;
}

static ls_status fill_folder(const ls_export_opts *o, const hf_set *s, const ls_model *m, const char *dir)
{
    static const char *const copied[] = {CKPT_GEN, CKPT_TOKENIZER, CKPT_VOCAB, CKPT_MERGES};
    char from[PATH_MAX];
    shards x;
    LS_TRY(ls_ckpt_folder(o->from, from));
    LS_TRY(write_config(&m->cfg, o->dtype, dir));
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) LS_TRY(copy_file(from, dir, copied[i]));
    ls_status st = divide(s, m, o->dtype, o->shard_nbytes, &x);
    for (int k = 1; k <= x.n_shard && st == LS_OK; k++) st = write_shard(s, &x, k, o->dtype, dir);
    if (st == LS_OK && x.n_shard > 1) st = write_index(&x, dir);
    ls_free(x.tensor);
    ls_free(x.shard);
    return st;
}

static ls_status write_folder(const ls_export_opts *o, const hf_set *s, const ls_model *m)
{
    char dir[PATH_MAX], name[PATH_MAX], tmp[PATH_MAX];
    int lock = -1;
    LS_TRY(ckpt_split_path(o->out, dir, name));
    LS_TRY(ckpt_tmp_open(dir, name, tmp, &lock));
    ls_status st = fill_folder(o, s, m, tmp);
    if (st == LS_OK) st = ckpt_publish(dir, tmp, name);
    if (st != LS_OK) ckpt_remove_quietly(tmp);
    close(lock);
    return st == LS_OK ? ls_ckpt_clean(dir) : st; /* removes the folder that was replaced */
}

/* ---- any of the three ---- */

static ls_status check_output(const ls_export_opts *o)
{
    char dir[PATH_MAX], name[PATH_MAX];
    if (o->kind == LS_EXPORT_HF) return ckpt_open_output(o->from, o->out, o->replace, dir, name);
    if (ls_fs_is_dir(o->out)) return ls_fail(LS_E_ARG, "--out %s is a folder; give the name of a file", o->out);
    if (ls_fs_exists(o->out) && !o->replace)
        return ls_fail(LS_E_ARG, "%s exists; choose another file or add --force", o->out);
    return LS_OK;
}

ls_status ls_export(const ls_export_opts *o)
{
    ls_compute compute;
    ls_model_config cfg;
    ls_model *m = NULL;
    hf_set s = {0};
    LS_TRY(check_output(o));
    if (ls_ckpt_is(o->from)) LS_TRY(ls_ckpt_verify(o->from, false));
    LS_TRY(ls_ckpt_config(o->from, &cfg));
    LS_TRY(ls_compute_open(&compute, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F32}, 1)); /* for its type alone */
    LS_TRY(ls_model_create(&m, &cfg, &compute, 1));
    ls_status st = hf_open(&s, m, o->from);
    if (st == LS_OK && o->kind == LS_EXPORT_HF) st = write_folder(o, &s, m);
    if (st == LS_OK && o->kind == LS_EXPORT_GGUF) st = gguf_write(&s, m, o->dtype, o->vocab, o->out);
    if (st == LS_OK && o->kind == LS_EXPORT_LLMC) st = llmc_write(&s, m, o->dtype, o->out);
    hf_close(&s);
    ls_model_destroy(&m);
    return st;
}
