/* export.h - writes the weights of a checkpoint for other programs.
 *
 *   hf     a folder for transformers: config.json, generation_config.json, the tokenizer, and model.safetensors or shards
 *          (model-00001-of-0000N.safetensors with model.safetensors.index.json)
 *   gguf   one file for llama.cpp, with the vocabulary
 *   llmc   one model file of llm.c (llmc.h)
 *
 * Numbers are rounded to the nearest in the type that is written. Equal weights give equal bytes. */
#ifndef LS_CKPT_EXPORT_H
#define LS_CKPT_EXPORT_H

#include "core/buf.h"
#include "core/err.h"
#include "core/str.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ls_export_kind { LS_EXPORT_HF, LS_EXPORT_GGUF, LS_EXPORT_LLMC } ls_export_kind;

/* The vocabulary of a GGUF file: token i and merge r in their printable form ("Ġthe", "Ġ t"), appended to a string. */
typedef struct ls_export_vocab {
    const void *ctx;
    int n_token, n_merge;
    int eot; /* -1: none */
    void (*token)(const void *ctx, int i, ls_str *out);
    bool (*special)(const void *ctx, int i);
    void (*merge)(const void *ctx, int r, ls_str *out);
} ls_export_vocab;

typedef struct ls_export_opts {
    ls_export_kind kind;
    const char *from; /* as ls_ckpt_resolve returns it */
    const char *out;  /* a folder (hf), or a file */
    ls_dtype
        dtype; /* LS_F32, LS_F16 or LS_BF16; vectors and positions of a GGUF file stay LS_F32, as llama.cpp needs them */
    int64_t shard_nbytes;         /* hf: the most bytes of tensors in a file; 0: one file */
    bool replace;                 /* an existing output */
    const ls_export_vocab *vocab; /* of gguf */
} ls_export_opts;

/* Checks the checksums of a checkpoint first. LS_E_ARG (the output exists), LS_E_CONFIG (the other program cannot compute this model, or
 * has a smaller vocabulary), and what ls_hf_load returns. */
ls_status ls_export(const ls_export_opts *o);

#endif
