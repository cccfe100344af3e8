/* config.h - the shape of a GPT-2: presets, reading and writing Hugging Face's config.json, checks.
 *
 *   variant   head    GELU   after attention   initialisation
 *   hf        tied    tanh   dropout           N(0, init_range), residual projections scaled by depth
 *   r1        own     erf    no dropout        torch's defaults (init_range is not used)
 *
 * `gelu` and `tied` follow the variant unless a file sets them, so that a Hugging Face checkpoint with
 * activation "gelu" or an untied head works unchanged. The variant alone decides initialisation and the dropout
 * after the attention output.
 *
 * Invariants of a checked config: every size > 0, n_embd a multiple of n_head, the parameter count below 2^53,
 * rates in [0, 1), ln_eps > 0. */
#ifndef LS_MODEL_CONFIG_H
#define LS_MODEL_CONFIG_H

#include "compute/compute.h"
#include "core/err.h"
#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ls_variant { LS_VARIANT_HF, LS_VARIANT_R1 } ls_variant;

typedef struct ls_model_config {
    char name[64]; /* preset or source file, for messages */
    int n_layer, n_head, n_embd, n_ctx, vocab_size;
    ls_variant variant;
    ls_gelu gelu;
    bool tied;                                  /* the head is the token embedding                         */
    double embd_pdrop, attn_pdrop, resid_pdrop; /* r1 applies resid_pdrop after the feed-forward part only */
    double ln_eps, init_range;
    int eos_id; /* id of <|endoftext|>, -1 when not known */
} ls_model_config;

const char *ls_variant_word(ls_variant v); /* "hf", "r1" */
ls_status ls_variant_parse(const char *word, ls_variant *out);

/* "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl" or "tiny" (vocabulary 257 unless the data has another), as variant hf.
 * LS_E_ARG names the presets. */
ls_status ls_model_config_preset(const char *name, ls_model_config *out);
bool ls_model_config_is_preset(const char *name);

/* Reads a Hugging Face config.json, or a folder that contains one. LS_E_IO, LS_E_FORMAT (no JSON, wrong types), LS_E_CONFIG
 * (sizes that cannot work, keys that look misspelt), LS_E_UNSUPPORTED (another architecture or a feature we do not
 * compute). The result is checked. `what` names the source in messages. */
ls_status ls_model_config_load(const char *path, ls_model_config *out);
ls_status ls_model_config_from_json(const json_t *root, const char *what, ls_model_config *out);

/* A preset's name or a path. */
ls_status ls_model_config_named(const char *name, ls_model_config *out);

/* Changes the variant, and gelu and tied with it. */
void ls_model_config_set_variant(ls_model_config *c, ls_variant v);

/* LS_E_CONFIG with the arithmetic when an invariant above does not hold. */
ls_status ls_model_config_check(const ls_model_config *c);

/* Writes a config.json for transformers' GPT2LMHeadModel, plus the key lockstep_variant. Reading it gives the same config
 * except for its name. */
void ls_model_config_write(const ls_model_config *c, ls_str *out);

/* Parameters: V*C (twice when untied) + P*C + L*(12*C*C + 13*C) + 2*C. */
int64_t ls_model_n_param(const ls_model_config *c);

/* "n_layer=12, n_head=12, n_embd=768" */
char *ls_model_size_words(const ls_model_config *c, char buf[96]);

#endif
