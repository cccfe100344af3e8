/* llmc.h - model files of llm.c (gpt2_124M.bin, gpt2_124M_bf16.bin).
 *
 *   256 x int32    20240326, version (3: fp32, 5: bf16), positions, vocabulary V, layers, heads, width C, padded vocabulary Vp, zeros
 *   wte (Vp,C), wpe (positions,C), then each of these for all layers before the next: ln_1 weight, bias; c_attn weight (3C,C), bias;
 *   attn.c_proj weight (C,C), bias; ln_2 weight, bias; c_fc weight (4C,C), bias; mlp.c_proj weight (C,4C), bias; then ln_f weight, bias
 *
 * Little-endian. Matrices of layers are stored (out,in), those of this program (in,out). The head is tied and GELU is the tanh form.
 * The reader compares the size of the file with the header before it allocates anything. */
#ifndef LS_CKPT_LLMC_H
#define LS_CKPT_LLMC_H

#include "core/err.h"
#include "model/config.h"

#define LS_LLMC_MODEL  20240326
#define LS_LLMC_HEADER 1024 /* bytes */

/* Whether a regular file begins like a model file of llm.c. */
bool ls_llmc_is(const char *path);
/* The model that the header describes, without dropout, as llm.c trains it. LS_E_FORMAT, LS_E_UNSUPPORTED (another version). */
ls_status ls_llmc_config(const char *path, ls_model_config *out);

#endif
