/* hf.h - Hugging Face GPT-2 folders in and out.
 *
 * In: model.safetensors, or the shards that model.safetensors.index.json names. Tensor names with or without
 * "transformer."; the buffers attn.bias and attn.masked_bias are passed over; F32, F16, BF16 and F64 become the model's
 * type. A tied model takes lm_head.weight only when it equals wte bit for bit (or is absent). */
#ifndef LS_CKPT_HF_H
#define LS_CKPT_HF_H

#include "comm/comm.h"
#include "core/err.h"
#include "model/model.h"

/* Fills the pieces of parameters (elements beyond unit->n become 0; others are passed over), or with piece NULL every parameter
 * of the model (unit[u].param are allocated). Nothing is written unless all names and shapes fit. Collective over comm (may be
 * NULL). LS_E_IO, LS_E_FORMAT (damaged or missing; the words name tensor and file), LS_E_CONFIG (shapes of another model). */
ls_status ls_hf_load(const ls_model *m, const char *dir, const ls_piece *piece, int n_piece, ls_comm *comm);

/* Copies what transformers reads (config, generation_config, weights, tokenizer) from a checkpoint into `out`, a new
 * folder, or an old one when replace is true; checksums are compared first. */
ls_status ls_hf_export(const char *checkpoint, const char *out, bool replace);

/* A Hugging Face folder as a checkpoint of ours at step 0, in float and without moments. variant "hf", "r1" or NULL: as its
 * config.json says. */
ls_status ls_hf_import(const char *from, const char *out, const char *variant, bool replace);

#endif
