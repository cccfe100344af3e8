/* tokenizer.h - byte-level BPE as GPT-2 has it: bytes to ids and back.
 *
 * A tokenizer does not change once made and may be shared by threads; each thread encodes through an encoder of its own.
 * Text is ordinary text: "<|endoftext|>" in it is encoded as the characters it is made of, never as the special id.
 * Any bytes can be encoded, and decode(encode(x)) == x. On well-formed UTF-8 the ids are those of tiktoken's
 * encode_ordinary with the same vocabulary. */
#ifndef LS_DATA_TOKENIZER_H
#define LS_DATA_TOKENIZER_H

#include "core/err.h"
#include "core/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ls_tokenizer ls_tokenizer;
typedef struct ls_encoder ls_encoder;

/* A growing list of ids. Zero-initialise; ls_ids_fini when done. */
typedef struct ls_ids {
    int32_t *id;
    size_t n, cap;
} ls_ids;
void ls_ids_fini(ls_ids *ids);
ls_status ls_ids_push(ls_ids *ids, int32_t id);

/* From a path: a folder with tokenizer.json, with vocab.bpe + encoder.json or with merges.txt + vocab.json (in this order), or a
 * tokenizer.json file. LS_E_IO, LS_E_FORMAT (not a vocabulary), LS_E_UNSUPPORTED (one of another kind), LS_E_NOMEM. */
ls_status ls_tokenizer_load(const char *path, ls_tokenizer **out);

/* The two forms from memory; `what` names them in messages. */
ls_status ls_tokenizer_from_json(const char *text, size_t n, const char *what, ls_tokenizer **out);
ls_status ls_tokenizer_from_gpt2(const char *merges, size_t n_merges, const char *merges_name, const char *vocab,
                                 size_t n_vocab, const char *vocab_name, ls_tokenizer **out);

/* 257 ids: the bytes, then end-of-text. */
ls_status ls_tokenizer_bytes(ls_tokenizer **out);

void ls_tokenizer_destroy(ls_tokenizer **t);

int ls_tokenizer_n_vocab(const ls_tokenizer *t);
int ls_tokenizer_n_merge(const ls_tokenizer *t);
int32_t ls_tokenizer_eot(const ls_tokenizer *t); /* -1 when the vocabulary has no <|endoftext|> */

/* The bytes of one id, borrowed; NULL for an id beyond the vocabulary. */
const unsigned char *ls_tokenizer_token(const ls_tokenizer *t, int32_t id, size_t *nbytes);

/* Appends the bytes of the ids (end-of-text as its name). LS_E_ARG for an id beyond the vocabulary, LS_E_NOMEM. */
ls_status ls_tokenizer_decode(const ls_tokenizer *t, const int32_t *id, size_t n, ls_str *out);

/* Hugging Face's tokenizer.json, complete (byte-level pre-tokenizer and decoder, BPE model, the special token). */
ls_status ls_tokenizer_to_json(const ls_tokenizer *t, ls_str *out);
ls_status ls_tokenizer_save(const ls_tokenizer *t, const char *path);

/* An encoder borrows the tokenizer and holds about 4 MiB: its memory of recent words. */
ls_status ls_encoder_create(const ls_tokenizer *t, ls_encoder **out);
void ls_encoder_destroy(ls_encoder **e);

/* Appends the ids of the n bytes to *ids. On failure (LS_E_NOMEM) *ids may hold a part of them. */
ls_status ls_encode(ls_encoder *e, const void *text, size_t n, ls_ids *ids);

/* The same for one text now and then. */
ls_status ls_tokenizer_encode(const ls_tokenizer *t, const void *text, size_t n, ls_ids *ids);

#endif
