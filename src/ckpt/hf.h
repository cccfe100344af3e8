/* hf.h - import of Hugging Face GPT-2 folders, and of model files of llm.c (llmc.h); export.h is the other direction.
 *
 * Import reads model.safetensors, or the shards listed in model.safetensors.index.json. Tensor names may start with
 * "transformer."; attn.bias and attn.masked_bias are ignored; F32, F16, BF16 and F64 are converted to the type of the
 * model. For a tied model lm_head.weight must be absent or equal to wte bit for bit. */
#ifndef LS_CKPT_HF_H
#define LS_CKPT_HF_H

#include "comm/comm.h"
#include "core/err.h"
#include "model/model.h"

/* Fills the pieces of parameters (elements beyond unit->n become 0; other pieces are skipped), or every parameter of the model if
 * piece is NULL (unit[u].param must be allocated). Writes nothing unless all names and shapes match. Collective over comm (may be
 * NULL). LS_E_IO, LS_E_FORMAT (damaged or missing; the message names tensor and file), LS_E_CONFIG (shapes of another model). */
ls_status ls_hf_load(const ls_model *m, const char *dir, const ls_piece *piece, int n_piece, ls_comm *comm);

/* Converts a Hugging Face folder or a model file of llm.c to a checkpoint at step 0, in fp32 and without optimizer state. variant: "hf", "r1", or NULL to
 * use its config.json. */
ls_status ls_hf_import(const char *from, const char *out, const char *variant, bool replace);

#endif
