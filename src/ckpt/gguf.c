/* gguf.c - writes a model as a GGUF file for llama.cpp, architecture gpt2.
 *
 *   "GGUF", version 3, number of tensors, number of keys     uint32, uint32, uint64, uint64
 *   keys       name, type, value                             a string is a uint64 length and its bytes
 *   tensors    name, dimensions (fastest first), type, offset of its data
 *   data       each tensor at a multiple of 32 bytes
 *
 * Little-endian. Matrices of layers are stored (out,in), those of this program (in,out). */
#include "ckpt/export.h"

#include "core/mem.h"
#include "ckpt/checkpoint_impl.h"

#include <stdio.h>
#include <string.h>

#define ALIGNMENT 32

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 }; /* types of values  */
enum { TENSOR_F32 = 0, TENSOR_F16 = 1, TENSOR_BF16 = 30 };           /* types of tensors */
enum { FILE_F32 = 0, FILE_F16 = 1, FILE_BF16 = 32 };                 /* general.file_type */
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_UNUSED = 5 };      /* types of tokens  */

typedef struct head {
    ls_str text;
    uint64_t n_key;
} head;

/* ---- keys ---- */

static void put_u32(ls_str *s, uint32_t x)
{
    ls_str_addn(s, &x, 4);
}

static void put_u64(ls_str *s, uint64_t x)
{
    ls_str_addn(s, &x, 8);
}

static void put_string(ls_str *s, const char *text, size_t n)
{
    put_u64(s, n);
    ls_str_addn(s, text, n);
}

static void key(head *h, const char *name, uint32_t type)
{
    put_string(&h->text, name, strlen(name));
    put_u32(&h->text, type);
    h->n_key++;
}

static void key_string(head *h, const char *name, const char *value)
{
    key(h, name, STRING);
    put_string(&h->text, value, strlen(value));
}

static void key_u32(head *h, const char *name, int value)
{
    key(h, name, U32);
    put_u32(&h->text, (uint32_t)value);
}

static void key_array(head *h, const char *name, uint32_t type, int n)
{
    key(h, name, ARRAY);
    put_u32(&h->text, type);
    put_u64(&h->text, (uint64_t)n);
}

static void model_keys(head *h, const ls_model_config *c, ls_dtype dt)
{
    const float eps = (float)c->ln_eps;
    key_string(h, "general.architecture", "gpt2");
    key_u32(h, "general.file_type", dt == LS_F32 ? FILE_F32 : dt == LS_F16 ? FILE_F16 : FILE_BF16);
    key_u32(h, "general.alignment", ALIGNMENT);
    key_u32(h, "gpt2.block_count", c->n_layer);
    key_u32(h, "gpt2.context_length", c->n_ctx);
    key_u32(h, "gpt2.embedding_length", c->n_embd);
    key_u32(h, "gpt2.feed_forward_length", 4 * c->n_embd);
    key_u32(h, "gpt2.attention.head_count", c->n_head);
    key(h, "gpt2.attention.layer_norm_epsilon", F32);
    ls_str_addn(&h->text, &eps, 4);
}

/* The tokens of the tokenizer, then names for ids that the model alone has. */
static void vocab_keys(head *h, const ls_model_config *c, const ls_export_vocab *v)
{
    ls_str s = {0};
    key_string(h, "tokenizer.ggml.model", "gpt2");
    key_string(h, "tokenizer.ggml.pre", "gpt-2");
    key_array(h, "tokenizer.ggml.tokens", STRING, c->vocab_size);
    for (int i = 0; i < c->vocab_size; i++) {
        s.len = 0;
        if (i < v->n_token) v->token(v->ctx, i, &s);
        else ls_str_addf(&s, "[PAD%d]", i);
        put_string(&h->text, s.data, s.len);
    }
    key_array(h, "tokenizer.ggml.token_type", I32, c->vocab_size);
    for (int i = 0; i < c->vocab_size; i++)
        put_u32(&h->text, i >= v->n_token ? TOKEN_UNUSED : v->special(v->ctx, i) ? TOKEN_CONTROL : TOKEN_NORMAL);
    key_array(h, "tokenizer.ggml.merges", STRING, v->n_merge);
    for (int r = 0; r < v->n_merge; r++) {
        s.len = 0;
        v->merge(v->ctx, r, &s);
        put_string(&h->text, s.data, s.len);
    }
    if (v->eot >= 0) {
        key_u32(h, "tokenizer.ggml.bos_token_id", v->eot);
        key_u32(h, "tokenizer.ggml.eos_token_id", v->eot);
    }
    key(h, "tokenizer.ggml.add_bos_token", BOOL);
    ls_str_addc(&h->text, 0);
    h->text.failed |= s.failed;
    ls_str_fini(&s);
}

/* ---- tensors ---- */

/* The name of llama.cpp for one of transformers. */
static void name_of(const ls_unit *u, const char *theirs, char name[96])
{
    static const char *const pair[][2] = {{"wte.weight", "token_embd.weight"},
                                          {"wpe.weight", "position_embd.weight"},
                                          {"ln_f.", "output_norm."},
                                          {"lm_head.weight", "output.weight"},
                                          {"ln_1.", "attn_norm."},
                                          {"attn.c_attn.", "attn_qkv."},
                                          {"attn.c_proj.", "attn_output."},
                                          {"ln_2.", "ffn_norm."},
                                          {"mlp.c_fc.", "ffn_up."},
                                          {"mlp.c_proj.", "ffn_down."}};
    size_t i = 0;
    const char *at = NULL;
    while (i < sizeof pair / sizeof *pair && !(at = strstr(theirs, pair[i][0]))) i++;
    LS_ASSERT(at);
    char block[24] = "";
    if (u->kind == LS_UNIT_BLOCK) snprintf(block, sizeof block, "blk.%d.", u->layer);
    snprintf(name, 96, "%s%s%s", block, pair[i][1], at + strlen(pair[i][0]));
}

/* llama.cpp computes with vectors and positions in fp32. */
static ls_dtype type_of(const ls_tensor *t, ls_dtype dt)
{
    return t->n_dim < 2 || strstr(t->name, "wpe.") ? LS_F32 : dt;
}

static bool transposed(const ls_unit *u, const ls_tensor *t)
{
    return u->kind == LS_UNIT_BLOCK && t->n_dim == 2;
}

static int64_t aligned(int64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void tensor_table(head *h, const ls_model *m, ls_dtype dt)
{
    int64_t at = 0;
    for (int u = 0; u < m->n_unit; u++)
        for (int i = 0; i < m->unit[u].n_tensor; i++) {
            const ls_tensor *t = &m->unit[u].tensor[i];
            const ls_dtype type = type_of(t, dt);
            const bool flip = transposed(&m->unit[u], t);
            char name[96];
            name_of(&m->unit[u], t->name, name);
            put_string(&h->text, name, strlen(name));
            put_u32(&h->text, (uint32_t)t->n_dim);
            for (int d = t->n_dim - 1; d >= 0; d--) put_u64(&h->text, (uint64_t)t->dim[flip ? t->n_dim - 1 - d : d]);
            put_u32(&h->text, type == LS_F32 ? TENSOR_F32 : type == LS_F16 ? TENSOR_F16 : TENSOR_BF16);
            put_u64(&h->text, (uint64_t)at);
            at += aligned(t->n * (int64_t)ls_dtype_nbytes(type));
        }
}

static ls_status tensor_data(ckpt_tensor_out *out, const hf_set *s, const ls_model *m, ls_dtype dt)
{
    int k = 0;
    for (int u = 0; u < m->n_unit; u++)
        for (int i = 0; i < m->unit[u].n_tensor; i++, k++) {
            const ls_tensor *t = &m->unit[u].tensor[i];
            out->dt = type_of(t, dt);
            const int64_t nbytes = t->n * (int64_t)ls_dtype_nbytes(out->dt);
            LS_TRY(ckpt_tensor_put(out, s->src[k], transposed(&m->unit[u], t)));
            LS_TRY(ckpt_tensor_zeros(out, aligned(nbytes) - nbytes));
        }
    return LS_OK;
}

static ls_status make_head(head *h, const ls_model *m, ls_dtype dt, const ls_export_vocab *v)
{
    put_string(&h->text, "", 0); /* room for what is known last: 24 bytes */
    put_u64(&h->text, 0);
    put_u64(&h->text, 0);
    model_keys(h, &m->cfg, dt);
    vocab_keys(h, &m->cfg, v);
    tensor_table(h, m, dt);
    while (!h->text.failed && h->text.len % ALIGNMENT) ls_str_addc(&h->text, 0);
    if (h->text.failed) return ls_nomem(h->text.cap, "the header of a GGUF file");
    const uint32_t version = 3;
    const uint64_t n_tensor = (uint64_t)hf_n_tensor(m);
    memcpy(h->text.data, "GGUF", 4);
    memcpy(h->text.data + 4, &version, 4);
    memcpy(h->text.data + 8, &n_tensor, 8);
    memcpy(h->text.data + 16, &h->n_key, 8);
    return LS_OK;
}

ls_status gguf_write(const hf_set *s, const ls_model *m, ls_dtype dt, const ls_export_vocab *v, const char *path)
{
    const ls_model_config *c = &m->cfg;
    ckpt_tensor_out out;
    head h = {0};
    if (c->gelu != LS_GELU_TANH)
        return ls_fail(LS_E_CONFIG,
                       "llama.cpp computes GPT-2 with tanh GELU; this model has erf GELU and would give other results");
    if (v->n_token > c->vocab_size)
        return ls_fail(LS_E_CONFIG, "the tokenizer has %d tokens, but the vocabulary of the model has %d", v->n_token,
                       c->vocab_size);
    ls_status st = make_head(&h, m, dt, v);
    if (st == LS_OK) st = ckpt_tensor_open(&out, path, dt);
    if (st == LS_OK) {
        st = ls_fs_out_append(&out.file, h.text.data, h.text.len);
        if (st == LS_OK) st = tensor_data(&out, s, m, dt);
        st = ckpt_tensor_close(&out, st);
    }
    ls_str_fini(&h.text);
    return st;
}
