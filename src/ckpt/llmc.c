#include "ckpt/llmc.h"

#include "core/mem.h"
#include "ckpt/checkpoint_impl.h"

#include <stdio.h>
#include <string.h>

#define MAX_PAD 65536 /* rows by which the vocabulary may be padded */

/* Tensors in the order of the file, with the names of transformers; blocks have one of each per layer. */
static const char *const begin_name[] = {"wte.weight", "wpe.weight"};
static const char *const block_name[] = {
    "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
static const char *const end_name[] = {"ln_f.weight", "ln_f.bias"};
enum { N_BLOCK_NAME = sizeof block_name / sizeof *block_name };

typedef struct header {
    int32_t magic, version, n_ctx, vocab, n_layer, n_head, n_embd, padded;
} header;

bool ls_llmc_is(const char *path)
{
    int32_t magic = 0;
    FILE *f = ls_fs_is_file(path) ? fopen(path, "rb") : NULL;
    const bool is = f && fread(&magic, sizeof magic, 1, f) == 1 && magic == LS_LLMC_MODEL;
    if (f) fclose(f);
    return is;
}

/* Elements of a file, with the padding of the vocabulary. */
static int64_t n_element(const ls_model_config *c, int64_t padded)
{
    return ls_model_n_param(c) + (padded - c->vocab_size) * c->n_embd;
}

static ls_status read_header(const ls_fs_map *map, const char *path, header *h, ls_model_config *c)
{
    if (map->n < LS_LLMC_HEADER)
        return ls_fail(LS_E_FORMAT, "%s: the file ends in the header of an llm.c model (%zu of %d bytes)", path, map->n,
                       LS_LLMC_HEADER);
    memcpy(h, map->data, sizeof *h);
    if (h->version != 3 && h->version != 5)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s: version %d of the model files of llm.c is not supported; use 3 (fp32) or 5 (bf16)", path,
                       h->version);
    LS_TRY(ls_model_config_preset("gpt2", c));
    snprintf(c->name, sizeof c->name, "%.63s", ls_path_base(path));
    c->n_ctx = h->n_ctx;
    c->vocab_size = h->vocab;
    c->n_layer = h->n_layer;
    c->n_head = h->n_head;
    c->n_embd = h->n_embd;
    c->embd_pdrop = c->attn_pdrop = c->resid_pdrop = 0;
    if (c->eos_id != c->vocab_size - 1) c->eos_id = -1;
    if (ls_model_config_check(c) != LS_OK) return ls_fail(LS_E_FORMAT, "%s: %s", path, ls_err_words());
    if (h->padded < h->vocab || h->padded - h->vocab > MAX_PAD)
        return ls_fail(LS_E_FORMAT, "%s: the padded vocabulary is %d, but the vocabulary %d", path, h->padded,
                       h->vocab);
    const int64_t want = LS_LLMC_HEADER + n_element(c, h->padded) * (h->version == 3 ? 4 : 2);
    if ((int64_t)map->n != want)
        return ls_fail(LS_E_FORMAT, "%s has %zu bytes, but its header describes %lld", path, map->n, (long long)want);
    return LS_OK;
}

ls_status ls_llmc_config(const char *path, ls_model_config *out)
{
    ls_fs_map map;
    header h;
    ls_model_config c;
    LS_TRY(ls_fs_map_open(&map, path));
    const ls_status st = read_header(&map, path, &h, &c);
    ls_fs_map_close(&map);
    if (st == LS_OK) *out = c;
    return st;
}

/* ---- the tensors in the order of the file ---- */

/* Calls `visit` for each tensor; k: its index in the tables of the model, units in order. */
typedef ls_status visit_fn(void *ctx, const ls_tensor *t, int k, bool transposed);

static ls_status visit_one(const ls_model *m, const char *name, visit_fn *visit, void *ctx)
{
    int unit;
    const ls_tensor *t = ls_model_find(m, name, &unit);
    LS_ASSERT(t);
    int k = (int)(t - m->unit[unit].tensor);
    for (int u = 0; u < unit; u++) k += m->unit[u].n_tensor;
    return visit(ctx, t, k, m->unit[unit].kind == LS_UNIT_BLOCK && t->n_dim == 2);
}

static ls_status visit_all(const ls_model *m, visit_fn *visit, void *ctx)
{
    char name[64];
    for (int i = 0; i < 2; i++) LS_TRY(visit_one(m, begin_name[i], visit, ctx));
    for (int i = 0; i < N_BLOCK_NAME; i++)
        for (int l = 0; l < m->cfg.n_layer; l++) {
            snprintf(name, sizeof name, "h.%d.%s", l, block_name[i]);
            LS_TRY(visit_one(m, name, visit, ctx));
        }
    for (int i = 0; i < 2; i++) LS_TRY(visit_one(m, end_name[i], visit, ctx));
    return LS_OK;
}

/* ---- reading ---- */

typedef struct binding {
    hf_set *set;
    ls_st_tensor *tensor; /* of the file that is bound, in the order of the model */
    const char *at;       /* the next byte of the file */
    char *room;           /* for the next matrix, (in,out) */
    int64_t padded;
    ls_dtype dt;
} binding;

static ls_status bind_tensor(void *ctx, const ls_tensor *t, int k, bool transposed)
{
    binding *b = ctx;
    const int64_t e = (int64_t)ls_dtype_nbytes(b->dt);
    ls_st_tensor *out = &b->tensor[k];
    *out = (ls_st_tensor){
        .name = t->name, .dt = b->dt, .n_dim = t->n_dim, .dim = {t->dim[0], t->n_dim > 1 ? t->dim[1] : 0}};
    out->nbytes = (size_t)(t->n * e);
    out->data = b->at;
    if (transposed) {
        const ls_st_tensor stored = {.dt = b->dt, .n_dim = 2, .dim = {t->dim[1], t->dim[0]}, .data = b->at};
        ls_st_copy_transposed(&stored, 0, stored.dim[1], b->room, b->dt);
        out->data = b->room;
        b->room += out->nbytes;
    }
    b->at += k ? out->nbytes : (size_t)(b->padded * t->dim[1] * e); /* the token embedding is padded */
    b->set->src[k] = out;
    return LS_OK;
}

static ls_status bind_mapped(hf_set *s, const ls_model *m, const char *path)
{
    header h;
    ls_model_config c;
    ls_st_file *f = &s->file[0];
    LS_TRY(read_header(&f->map, path, &h, &c));
    const ls_model_config *want = &m->cfg;
    if (c.n_ctx != want->n_ctx || c.vocab_size != want->vocab_size || c.n_layer != want->n_layer ||
        c.n_embd != want->n_embd || !want->tied)
        return ls_fail(LS_E_CONFIG,
                       "%s has n_layer %d, n_embd %d, n_positions %d, vocab_size %d and a tied head; this model has "
                       "%d, %d, %d, %d and %s head",
                       path, c.n_layer, c.n_embd, c.n_ctx, c.vocab_size, want->n_layer, want->n_embd, want->n_ctx,
                       want->vocab_size, want->tied ? "a tied" : "an untied");
    const ls_dtype dt = h.version == 3 ? LS_F32 : LS_BF16;
    const size_t room = (size_t)(12LL * c.n_layer * c.n_embd * c.n_embd) * ls_dtype_nbytes(dt);
    f->tensor = ls_alloc((size_t)s->n_src * sizeof *f->tensor);
    s->own = ls_alloc(room);
    if (!f->tensor || !s->own) return ls_nomem(room, "the transposed matrices of an llm.c model");
    binding b = {s, f->tensor, (const char *)f->map.data + LS_LLMC_HEADER, s->own, h.padded, dt};
    return visit_all(m, bind_tensor, &b);
}

ls_status llmc_bind(hf_set *s, const ls_model *m, const char *path)
{
    s->file = ls_alloc(sizeof *s->file);
    if (!s->file) return ls_nomem(sizeof *s->file, "the table of weight files");
    LS_TRY(ls_fs_map_open(&s->file->map, path));
    s->n_file = 1;
    return bind_mapped(s, m, path);
}

/* ---- writing ---- */

typedef struct writing {
    const hf_set *set;
    ckpt_tensor_out *out;
    int64_t padded;
} writing;

static ls_status write_tensor(void *ctx, const ls_tensor *t, int k, bool transposed)
{
    writing *w = ctx;
    LS_TRY(ckpt_tensor_put(w->out, w->set->src[k], transposed));
    if (k) return LS_OK;
    return ckpt_tensor_zeros(w->out, (w->padded - t->dim[0]) * t->dim[1] * (int64_t)ls_dtype_nbytes(w->out->dt));
}

ls_status llmc_write(const hf_set *s, const ls_model *m, ls_dtype dt, const char *path)
{
    const ls_model_config *c = &m->cfg;
    const int32_t padded = (c->vocab_size + 127) / 128 * 128;
    const int32_t head[LS_LLMC_HEADER / 4] = {
        LS_LLMC_MODEL, dt == LS_F32 ? 3 : 5, c->n_ctx, c->vocab_size, c->n_layer, c->n_head, c->n_embd, padded};
    ckpt_tensor_out out;
    if (!c->tied || c->gelu != LS_GELU_TANH)
        return ls_fail(LS_E_CONFIG,
                       "llm.c computes GPT-2 with a tied head and tanh GELU; this model has %s head and %s GELU",
                       c->tied ? "a tied" : "an untied", c->gelu == LS_GELU_TANH ? "tanh" : "erf");
    if (dt != LS_F32 && dt != LS_BF16) return ls_fail(LS_E_ARG, "llm.c reads fp32 and bf16; use --dtype fp32 or bf16");
    LS_TRY(ckpt_tensor_open(&out, path, dt));
    writing w = {s, &out, padded};
    ls_status st = ls_fs_out_append(&out.file, head, sizeof head);
    if (st == LS_OK) st = visit_all(m, write_tensor, &w);
    return ckpt_tensor_close(&out, st);
}
