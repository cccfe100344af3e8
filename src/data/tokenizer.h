/* tokenizer.h - the byte-level BPE of GPT-2: encodes bytes to ids and decodes them.
 *
 * A tokenizer is immutable and can be shared by threads; each thread uses its own encoder.
 * "<|endoftext|>" in a text is encoded as ordinary characters, never as the special id.
 * Any bytes can be encoded, and decode(encode(x)) == x. For valid UTF-8 the ids are equal to those of
 * encode_ordinary of tiktoken with the same vocabulary. */
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

/* The vocabulary of GPT-2: from vocab_dir if given, else from the cache, else downloaded from `url` (NULL: the default) into the cache, with
 * SHA-256 checked. The error message says which files are needed and where. */
ls_status ls_gpt2_find(const char *vocab_dir, const char *url, ls_tokenizer **out);

/* From the text of a tokenizer.json; `what` names it in messages. */
ls_status ls_tokenizer_from_json(const char *text, size_t n, const char *what, ls_tokenizer **out);

/* 257 ids: the bytes, then end-of-text. */
ls_status ls_tokenizer_bytes(ls_tokenizer **out);

void ls_tokenizer_destroy(ls_tokenizer **t);

int ls_tokenizer_n_vocab(const ls_tokenizer *t);
int ls_tokenizer_n_merge(const ls_tokenizer *t);
int32_t ls_tokenizer_eot(const ls_tokenizer *t); /* -1 if the vocabulary has no <|endoftext|> */

/* The name of a special token (not NUL-terminated); {NULL, 0} if the id is an ordinary token or outside the vocabulary. */
ls_substr ls_tokenizer_special(const ls_tokenizer *t, int32_t id);

/* Appends the printable form of a token ("Ġthe"; a special token: its name), or of a merge ("Ġ t"), as in vocabulary files. */
void ls_tokenizer_form(const ls_tokenizer *t, int32_t id, ls_str *out);
void ls_tokenizer_merge_form(const ls_tokenizer *t, int rank, ls_str *out);

/* Appends the bytes of the ids (end-of-text as its name). LS_E_ARG for an id outside the vocabulary, LS_E_NOMEM. */
ls_status ls_tokenizer_decode(const ls_tokenizer *t, const int32_t *id, size_t n, ls_str *out);

/* Hugging Face's tokenizer.json, complete (byte-level pre-tokenizer and decoder, BPE model, the special token). */
ls_status ls_tokenizer_to_json(const ls_tokenizer *t, ls_str *out);
ls_status ls_tokenizer_save(const ls_tokenizer *t, const char *path);

/* An encoder borrows the tokenizer and uses about 4 MiB as a cache of recent words. */
ls_status ls_encoder_create(const ls_tokenizer *t, ls_encoder **out);
void ls_encoder_destroy(ls_encoder **e);

/* Appends the ids of the n bytes to *ids. On failure (LS_E_NOMEM) *ids may have some of them. */
ls_status ls_encode(ls_encoder *e, const void *text, size_t n, ls_ids *ids);

/* The same without an encoder, for occasional use. */
ls_status ls_tokenizer_encode(const ls_tokenizer *t, const void *text, size_t n, ls_ids *ids);

#endif
