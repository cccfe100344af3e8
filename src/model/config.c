#include "model/config.h"
#include "core/fs.h"
#include "core/mem.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const char *ls_variant_word(ls_variant v)
{
    return v == LS_VARIANT_R1 ? "r1" : "hf";
}

ls_status ls_variant_parse(const char *word, ls_variant *out)
{
    if (!strcmp(word, "hf")) *out = LS_VARIANT_HF;
    else if (!strcmp(word, "r1")) *out = LS_VARIANT_R1;
    else return ls_fail(LS_E_ARG, "unknown variant '%s'; use hf or r1", word);
    return LS_OK;
}

/* GPT-2's paper sizes; tiny is ours. */
#define DEFAULTS \
    .tied = true, .embd_pdrop = 0.1, .attn_pdrop = 0.1, .resid_pdrop = 0.1, .ln_eps = 1e-5, .init_range = 0.02
static const ls_model_config preset[] = {
    {"gpt2", 12, 12, 768, 1024, 50257, DEFAULTS, .eos_id = 50256},
    {"gpt2-medium", 24, 16, 1024, 1024, 50257, DEFAULTS, .eos_id = 50256},
    {"gpt2-large", 36, 20, 1280, 1024, 50257, DEFAULTS, .eos_id = 50256},
    {"gpt2-xl", 48, 25, 1600, 1024, 50257, DEFAULTS, .eos_id = 50256},
    {"tiny", 4, 4, 128, 256, 257, DEFAULTS, .eos_id = 256},
};

static const ls_model_config *find_preset(const char *name)
{
    for (size_t i = 0; i < sizeof preset / sizeof preset[0]; i++)
        if (!strcmp(preset[i].name, name)) return &preset[i];
    return NULL;
}

bool ls_model_config_is_preset(const char *name)
{
    return find_preset(name) != NULL;
}

ls_status ls_model_config_preset(const char *name, ls_model_config *out)
{
    const ls_model_config *p = find_preset(name);
    for (size_t i = 0; !p && i < sizeof preset / sizeof preset[0]; i++) { /* llm.c: d12, by the number of layers */
        char depth[16];
        snprintf(depth, sizeof depth, "d%d", preset[i].n_layer);
        if (preset[i].n_layer >= 12 && !strcmp(name, depth))
            return ls_fail(LS_E_ARG, "unknown model '%s'; use %s, which has %d layers", name, preset[i].name,
                           preset[i].n_layer);
    }
    if (!p)
        return ls_fail(
            LS_E_ARG,
            "unknown model '%s'; use gpt2, gpt2-medium, gpt2-large, gpt2-xl, tiny, a config.json or a folder with one",
            name);
    *out = *p;
    return LS_OK;
}

ls_status ls_model_config_named(const char *name, ls_model_config *out)
{
    if (!find_preset(name) && ls_fs_exists(name)) return ls_model_config_load(name, out);
    return ls_model_config_preset(name, out);
}

void ls_model_config_set_variant(ls_model_config *c, ls_variant v)
{
    c->variant = v;
    c->gelu = v == LS_VARIANT_R1 ? LS_GELU_ERF : LS_GELU_TANH;
    c->tied = v == LS_VARIANT_HF;
}

int64_t ls_model_n_param(const ls_model_config *c)
{
    int64_t C = c->n_embd, V = c->vocab_size;
    return V * C * (c->tied ? 1 : 2) + (int64_t)c->n_ctx * C + c->n_layer * (12 * C * C + 13 * C) + 2 * C;
}

char *ls_model_size_words(const ls_model_config *c, char buf[96])
{
    snprintf(buf, 96, "n_layer=%d, n_head=%d, n_embd=%d", c->n_layer, c->n_head, c->n_embd);
    return buf;
}

/* The keys of config.json that are numbers, and the member of ls_model_config that each one sets. */
typedef struct number_key {
    size_t at;
    const char *name[3]; /* the second and the third mean the same as the first */
} number_key;

static const number_key size_key[] = {
    {offsetof(ls_model_config, n_layer), {"n_layer", "num_hidden_layers"}},
    {offsetof(ls_model_config, n_head), {"n_head", "num_attention_heads"}},
    {offsetof(ls_model_config, n_embd), {"n_embd", "hidden_size"}},
    {offsetof(ls_model_config, n_ctx), {"n_positions", "n_ctx", "max_position_embeddings"}},
    {offsetof(ls_model_config, vocab_size), {"vocab_size"}},
};

static const number_key real_key[] = {
    {offsetof(ls_model_config, embd_pdrop), {"embd_pdrop"}},
    {offsetof(ls_model_config, attn_pdrop), {"attn_pdrop"}},
    {offsetof(ls_model_config, resid_pdrop), {"resid_pdrop"}},
    {offsetof(ls_model_config, ln_eps), {"layer_norm_epsilon"}},
    {offsetof(ls_model_config, init_range), {"initializer_range"}},
};
enum { N_SIZE = sizeof size_key / sizeof size_key[0], N_REAL = sizeof real_key / sizeof real_key[0], N_RATE = 3 };

static int size_of(const ls_model_config *c, const number_key *k)
{
    return *(const int *)(const void *)((const char *)c + k->at);
}

static double real_of(const ls_model_config *c, const number_key *k)
{
    return *(const double *)(const void *)((const char *)c + k->at);
}

ls_status ls_model_config_check(const ls_model_config *c)
{
    for (int i = 0; i < N_SIZE; i++)
        if (size_of(c, &size_key[i]) <= 0)
            return ls_fail(LS_E_CONFIG, "model: %s is %d; it must be at least 1", size_key[i].name[0],
                           size_of(c, &size_key[i]));
    if (c->n_embd % c->n_head) {
        long long heads = c->n_head, width = c->n_embd / c->n_head;
        return ls_fail(
            LS_E_CONFIG,
            "model: n_embd %d is not a multiple of n_head %d; with --num_heads %d, --embedding_size can be %lld or %lld",
            c->n_embd, c->n_head, c->n_head, heads * (width ? width : 1), heads * (width ? width + 1 : 2));
    }
    for (int i = 0; i < N_RATE; i++) {
        const double rate = real_of(c, &real_key[i]);
        if (!(rate >= 0 && rate < 1))
            return ls_fail(LS_E_CONFIG, "model: %s is %g; a dropout rate (--dropout) must be at least 0 and below 1",
                           real_key[i].name[0], rate);
    }
    if (!(c->ln_eps > 0 && c->ln_eps < 1))
        return ls_fail(LS_E_CONFIG, "model: layer_norm_epsilon is %g; it must be between 0 and 1", c->ln_eps);
    if (!(c->init_range >= 0 && c->init_range < 100))
        return ls_fail(LS_E_CONFIG, "model: initializer_range is %g; it must be between 0 and 100", c->init_range);
    /* In double first: the whole-number formula may only be used once this holds. */
    double C = c->n_embd, n = (double)c->vocab_size * C * 2 + c->n_ctx * C + c->n_layer * (12 * C * C + 13 * C);
    if (n > 9.0e15) return ls_fail(LS_E_CONFIG, "model: about %.3g parameters; at most 9e15 are supported", n);
    if (c->eos_id >= c->vocab_size)
        return ls_fail(LS_E_CONFIG, "model: eos_token_id %d is outside the vocabulary of %d ids", c->eos_id,
                       c->vocab_size);
    return LS_OK;
}

/* Keys we read. An unknown key within one edit of one of these is a misspelling; other unknown keys belong to
 * other tools (task settings, versions) and say nothing about the computation. */
/* clang-format off */
static const char *const known[] = {
    "n_layer", "num_hidden_layers", "n_head", "num_attention_heads", "n_embd", "hidden_size", "n_positions", "n_ctx",
    "max_position_embeddings", "vocab_size", "embd_pdrop", "attn_pdrop", "resid_pdrop", "layer_norm_epsilon",
    "initializer_range", "activation_function", "tie_word_embeddings", "n_inner", "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx", "add_cross_attention", "is_encoder_decoder", "model_type", "architectures",
    "eos_token_id", "bos_token_id", "pad_token_id", "lockstep_variant", "pruned_heads", "quantization_config"};
/* clang-format on */

static bool within_one_edit(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), i = 0;
    if (n > m + 1 || m > n + 1) return false;
    while (a[i] && a[i] == b[i]) i++;
    if (n == m) return !strcmp(a + i + (a[i] != 0), b + i + (b[i] != 0));
    return n > m ? !strcmp(a + i + 1, b + i) : !strcmp(a + i, b + i + 1);
}

static ls_status check_spelling(const json_t *root, const char *what)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        const char *near = NULL;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            if (!strcmp(key, known[i])) {
                near = NULL;
                break;
            }
            if (within_one_edit(key, known[i])) near = known[i];
        }
        if (near) return ls_fail(LS_E_CONFIG, "%s: key '%s' is not known; did you mean '%s'?", what, key, near);
    }
    return LS_OK;
}

/* The value of a key; NULL: it is missing or null. */
static const json_t *member(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(root, key);
    return json_is_null(v) ? NULL : v;
}

/* A size: whole, at least 1. default_size 0: the key must be there. */
static ls_status read_size(const json_t *root, const char *what, const number_key *k, int default_size, int *out)
{
    const json_t *v = NULL;
    int i = -1;
    while (!v && i < 2 && k->name[i + 1]) v = member(root, k->name[++i]);
    if (!v && !default_size)
        return ls_fail(LS_E_CONFIG, "%s: key '%s' is missing; add it, or set model_type to \"gpt2\" to use its default",
                       what, k->name[0]);
    const double x = v ? json_number_value(v) : default_size;
    if ((v && !json_is_number(v)) || x != floor(x) || x < 1 || x > 2147483647.0)
        return ls_fail(LS_E_CONFIG, "%s: '%s' must be a whole number from 1 to 2147483647", what, k->name[i]);
    *out = (int)x;
    return LS_OK;
}

static ls_status read_bool(const json_t *root, const char *what, const char *key, bool *out)
{
    const json_t *v = member(root, key);
    if (v && !json_is_boolean(v)) return ls_fail(LS_E_CONFIG, "%s: '%s' must be true or false", what, key);
    if (v) *out = json_is_true(v);
    return LS_OK;
}

/* A switch that must have one value, because the other asks for maths we do not have. */
static ls_status need_bool(const json_t *root, const char *what, const char *key, bool must)
{
    bool is = must;
    LS_TRY(read_bool(root, what, key, &is));
    if (is != must)
        return ls_fail(LS_E_UNSUPPORTED, "%s: '%s' is %s; this program computes GPT-2 with %s only", what, key,
                       must ? "false" : "true", must ? "true" : "false");
    return LS_OK;
}

static ls_status read_text(const json_t *root, const char *what, const char *key, const char **out)
{
    const json_t *v = member(root, key);
    if (v && !json_is_string(v)) return ls_fail(LS_E_CONFIG, "%s: '%s' must be a string", what, key);
    *out = json_string_value(v);
    return LS_OK;
}

static ls_status check_architecture(const json_t *root, const char *what, bool *is_gpt2)
{
    const char *type;
    LS_TRY(read_text(root, what, "model_type", &type));
    if (type && strcmp(type, "gpt2"))
        return ls_fail(LS_E_UNSUPPORTED, "%s: model_type '%s' is not supported; only gpt2 is", what, type);
    *is_gpt2 = type != NULL;
    const json_t *arch = json_object_get(root, "architectures");
    for (size_t i = 0; i < json_array_size(arch); i++) {
        const char *a = json_string_value(json_array_get(arch, i));
        if (a && strncmp(a, "GPT2", 4))
            return ls_fail(LS_E_UNSUPPORTED, "%s: architecture '%s' is not supported; only GPT2LMHeadModel is", what,
                           a);
    }
    LS_TRY(need_bool(root, what, "scale_attn_weights", true));
    LS_TRY(need_bool(root, what, "scale_attn_by_inverse_layer_idx", false));
    LS_TRY(need_bool(root, what, "add_cross_attention", false));
    LS_TRY(need_bool(root, what, "is_encoder_decoder", false));
    if (json_object_size(json_object_get(root, "pruned_heads")))
        return ls_fail(LS_E_UNSUPPORTED, "%s: 'pruned_heads' is set; pruned attention layers are not supported", what);
    if (json_is_object(json_object_get(root, "quantization_config")))
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s: the weights are quantized ('quantization_config'); load the original ones", what);
    return LS_OK;
}

static ls_status read_activation(const json_t *root, const char *what, ls_model_config *c)
{
    const char *word;
    LS_TRY(read_text(root, what, "activation_function", &word));
    if (!word) return LS_OK;
    if (!strcmp(word, "gelu_new") || !strcmp(word, "gelu_pytorch_tanh")) c->gelu = LS_GELU_TANH;
    else if (!strcmp(word, "gelu")) c->gelu = LS_GELU_ERF;
    else
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s: activation_function '%s' is not supported; use gelu_new, gelu_pytorch_tanh or gelu", what,
                       word);
    return LS_OK;
}

static ls_status read_numbers(const json_t *root, const char *what, bool is_gpt2, ls_model_config *c)
{
    static const number_key n_inner = {0, {"n_inner"}};
    for (int i = 0; i < N_SIZE; i++)
        LS_TRY(read_size(root, what, &size_key[i], is_gpt2 ? size_of(&preset[0], &size_key[i]) : 0,
                         (int *)(void *)((char *)c + size_key[i].at)));
    if (member(root, "n_inner")) {
        int inner;
        LS_TRY(read_size(root, what, &n_inner, 0, &inner));
        if (inner != 4LL * c->n_embd)
            return ls_fail(LS_E_UNSUPPORTED,
                           "%s: n_inner is %d; this program computes n_inner = 4 * n_embd = %lld only", what, inner,
                           4LL * c->n_embd);
    }
    for (int i = 0; i < N_REAL; i++) {
        const json_t *v = member(root, real_key[i].name[0]);
        if (v && !json_is_number(v))
            return ls_fail(LS_E_CONFIG, "%s: '%s' must be a number", what, real_key[i].name[0]);
        if (v) *(double *)(void *)((char *)c + real_key[i].at) = json_number_value(v);
    }
    return LS_OK;
}

ls_status ls_model_config_from_json(const json_t *root, const char *what, ls_model_config *out)
{
    ls_model_config c = {DEFAULTS, .eos_id = -1};
    if (!json_is_object(root)) return ls_fail(LS_E_CONFIG, "%s: a model configuration must be a JSON object", what);
    snprintf(c.name, sizeof c.name, "%s", ls_path_base(what));

    bool is_gpt2 = false;
    LS_TRY(check_spelling(root, what));
    LS_TRY(check_architecture(root, what, &is_gpt2));

    const char *word;
    LS_TRY(read_text(root, what, "lockstep_variant", &word));
    if (word) {
        ls_variant v = LS_VARIANT_HF;
        LS_TRY(ls_variant_parse(word, &v));
        ls_model_config_set_variant(&c, v);
    }
    LS_TRY(read_numbers(root, what, is_gpt2, &c));
    LS_TRY(read_activation(root, what, &c));
    LS_TRY(read_bool(root, what, "tie_word_embeddings", &c.tied));
    const json_t *eos = json_object_get(root, "eos_token_id");
    if (json_is_array(eos)) eos = json_array_get(eos, 0);
    if (json_is_integer(eos) && json_integer_value(eos) >= 0 && json_integer_value(eos) < c.vocab_size)
        c.eos_id = (int)json_integer_value(eos);
    ls_status st = ls_model_config_check(&c);
    if (st != LS_OK) {
        char words[512];
        snprintf(words, sizeof words, "%s", ls_err_words());
        return ls_fail(st, "%s: %s", what, words);
    }
    *out = c;
    return LS_OK;
}

/* The weights beside a config.json have at least two bytes per parameter: a config that needs more than there are is refused before anything
 * is allocated for it. */
static ls_status compare_with_weights(const char *dir, const char *file, const ls_model_config *c)
{
    char **name = NULL;
    size_t n = 0;
    int64_t nbytes = 0, sum = 0;
    if (!ls_fs_is_dir(dir)) return LS_OK;
    LS_TRY(ls_fs_list(dir, &name, &n));
    for (size_t i = 0; i < n; i++)
        if (ls_ends_in(name[i], ".safetensors") && ls_fs_size(ls_path_of(dir, name[i]).text, &nbytes) == LS_OK)
            sum += nbytes;
    ls_fs_list_free(name, n);
    if (!sum || ls_model_n_param(c) <= sum / 2) return LS_OK;
    return ls_fail(
        LS_E_CONFIG,
        "%s: describes %lld parameters (n_layer %d, n_embd %d, vocab_size %d), but the weights beside it are %lld bytes",
        file, (long long)ls_model_n_param(c), c->n_layer, c->n_embd, c->vocab_size, (long long)sum);
}

ls_status ls_model_config_load(const char *path, ls_model_config *out)
{
    char *file = ls_fs_is_dir(path) ? ls_path_join(path, "config.json") : ls_strdup(path);
    if (!file) return ls_nomem(strlen(path), "a path");
    json_t *root = NULL;
    ls_status st;
    LS_TRY_GOTO(st, done, ls_json_load(file, &root));
    LS_TRY_GOTO(st, done, ls_model_config_from_json(root, file, out));
    LS_TRY_GOTO(st, done, compare_with_weights(path, file, out));
    snprintf(out->name, sizeof out->name, "%s", ls_path_base(path));
done:
    json_decref(root);
    ls_free(file);
    return st;
}

void ls_model_config_write(const ls_model_config *c, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "activation_function", c->gelu == LS_GELU_TANH ? "gelu_new" : "gelu");
    ls_jsonw_put_open(&w, "architectures", '[');
    ls_jsonw_str(&w, "GPT2LMHeadModel");
    ls_jsonw_close(&w);
    ls_jsonw_put_real(&w, "attn_pdrop", c->attn_pdrop);
    ls_jsonw_put_count(&w, "bos_token_id", c->eos_id);
    ls_jsonw_put_real(&w, "embd_pdrop", c->embd_pdrop);
    ls_jsonw_put_count(&w, "eos_token_id", c->eos_id);
    ls_jsonw_members(&w, LS_KV("initializer_range", c->init_range), LS_KV("layer_norm_epsilon", c->ln_eps),
                     LS_KV("lockstep_variant", ls_variant_word(c->variant)), LS_KV("model_type", "gpt2"),
                     LS_KV("n_ctx", c->n_ctx), LS_KV("n_embd", c->n_embd), LS_KV("n_head", c->n_head));
    ls_jsonw_key(&w, "n_inner");
    ls_jsonw_null(&w);
    ls_jsonw_members(&w, LS_KV("n_layer", c->n_layer), LS_KV("n_positions", c->n_ctx),
                     LS_KV("reorder_and_upcast_attn", (bool)(false)), LS_KV("resid_pdrop", c->resid_pdrop),
                     LS_KV("scale_attn_by_inverse_layer_idx", (bool)(false)), LS_KV("scale_attn_weights", (bool)(true)),
                     LS_KV("tie_word_embeddings", c->tied), LS_KV("torch_dtype", "float32"),
                     LS_KV("use_cache", (bool)(true)), LS_KV("vocab_size", c->vocab_size));
    ls_jsonw_close(&w);
}
