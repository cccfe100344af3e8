/* tokenizer_impl.h - tokenizer internals, for the JSON reader, the trainer and the encoder. */
#ifndef LS_DATA_TOKENIZER_IMPL_H
#define LS_DATA_TOKENIZER_IMPL_H

#include "data/tokenizer.h"

#define DATA_EOT_NAME  "<|endoftext|>"
#define DATA_NO_RANK   UINT32_MAX
#define DATA_MAX_VOCAB (1 << 22)

typedef struct data_merge {
    int32_t left, right, id; /* merges two neighbours; the rank is the index in the list */
} data_merge;

typedef struct data_pair {
    int32_t left, right;
    uint32_t rank; /* DATA_NO_RANK: free */
} data_pair;

struct ls_tokenizer {
    int n_vocab, n_merge;
    int32_t eot;
    /* Token i is bytes[off[i], off[i] + len[i]); len 0: no token has this id yet. */
    unsigned char *bytes;
    size_t n_bytes, cap_bytes;
    size_t *off;
    uint32_t *len;
    unsigned char *added; /* 1: matched by name, not by merges */
    int32_t byte_id[256];
    data_merge *merge;
    uint32_t *first;     /* [256][256] the rank of two single bytes */
    data_pair *pair;     /* open addressing, at most half full */
    uint32_t pair_shift; /* 64 - log2(slots) */
    uint32_t pair_mask;
};

/* An empty tokenizer with room for n_vocab tokens and n_merge merges. */
ls_status data_tokenizer_new(int n_vocab, int n_merge, ls_tokenizer **out);
ls_status data_tokenizer_set(ls_tokenizer *t, int32_t id, const void *bytes, size_t nbytes);
ls_status data_tokenizer_set_eot(ls_tokenizer *t, int32_t id);

/* Call it after all tokens and merges are set: checks them and builds the tables. LS_E_FORMAT; `what` is used in messages. */
ls_status data_tokenizer_finish(ls_tokenizer *t, const char *what);

/* Printable characters for bytes as in GPT-2: 33-126, 161-172, 174-255 unchanged, the others from U+0100 in order. */
uint32_t data_byte_to_char(unsigned char b);
int data_char_to_byte(uint32_t code_point); /* -1: none */

/* The ids of bytes in GPT-2's order of its first 256 tokens. */
unsigned char data_gpt2_byte(int id);

static inline uint64_t data_pair_hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static inline uint32_t data_pair_rank(const ls_tokenizer *t, int32_t left, int32_t right)
{
    for (uint32_t i = (uint32_t)(data_pair_hash(left, right) * 0xbf58476d1ce4e5b9u >> t->pair_shift);; i++) {
        const data_pair *s = &t->pair[i & t->pair_mask];
        if (s->rank == DATA_NO_RANK || (s->left == left && s->right == right)) return s->rank;
    }
}

#endif
