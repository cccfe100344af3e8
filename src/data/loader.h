/* loader.h - reads training samples from token files; the order is a function of seed and epoch.
 *
 * A token file is a stream of 16-bit ids, little-endian, without a header or with that of llm.c (token_header.h); shards are one stream. Sequence k of length S has inputs [kS, kS+S)
 * and targets [kS+1, kS+S+1); there are floor((n-1)/S) of them and the tail is dropped. Position p of epoch e holds the sequence
 * permute(key(seed, e), p): the order depends on seed and epoch alone, so any worker can fetch any sample, and a resumed run
 * needs no state but its position.
 *
 * A blend has several sources. An epoch has as many samples as all sources have sequences, N, and its position p has the number
 * P = eN + p in the run. The source of sample P is entry P mod 65536 of a table in which source i occurs round(65536 w_i) times, spread
 * evenly. The j-th sample of source i (from 0, over the whole run) is position j mod n_i of its own pass j / n_i, in the order of that
 * pass: a source with a large weight is repeated, one with a small weight continues in the next epoch.
 *
 * A file x.bin with x.mask beside it (prepare_pairs.h) has pairs of a source and its translation: one byte of the mask per id, 0 for the
 * source and 1 for the target. A pair begins where a 1 is followed by a 0. Then a sequence is one pair, cut after S+1 ids and padded with
 * LS_PAIR_PAD; the target of an id that the mask does not count is -1 (no loss). */
#ifndef LS_DATA_LOADER_H
#define LS_DATA_LOADER_H

#include "core/err.h"
#include "core/fs.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct ls_token_file {
    ls_fs_map map;
    size_t data_at; /* byte of the first id: after the header of a file of llm.c (token_header.h) */
    char *path;
    int64_t first, end; /* tokens of its source */
} ls_token_file;

typedef struct ls_token_source {
    ls_token_file *file; /* one, or shards */
    size_t n_file;
    ls_fs_map mask; /* data NULL: no pairs */
    int64_t *start; /* of pairs: n_seq + 1 positions */
    int64_t n_token, n_seq;
    double weight;  /* as given; 0: none */
    uint32_t share; /* of 65536 samples of a blend */
} ls_token_source;

typedef struct ls_tokens {
    ls_token_source *source;
    size_t n_source, cap;
    int64_t n_token, n_seq; /* of all sources */
    int seq_len, vocab_size;
    uint8_t *slot;      /* a blend: the source of each of 65536 samples */
    uint32_t *slot_nth; /* and how many of them before it have the same source */
} ls_tokens;

/* Opens the files listed in the source string (data/sources.h). LS_E_FORMAT: a name of a text file, an odd number of bytes, shorter than one sequence, or an id at or
 * beyond vocab_size (files up to 256 MiB are read once here; in larger ones the first are, and every batch is checked as it is
 * fetched), or a mask that does not fit. LS_E_CONFIG: text and pairs in one blend, a weight that is too small. */
ls_status ls_tokens_open(ls_tokens *t, const char *text, int seq_len, int vocab_size);
void ls_tokens_close(ls_tokens *t); /* takes a zeroed one */

static inline bool ls_tokens_paired(const ls_tokens *t)
{
    return t->n_source && t->source[0].start;
}

int64_t ls_tokens_cut(const ls_tokens *t);            /* pairs with more than S+1 ids */
int64_t ls_tokens_without_target(const ls_tokens *t); /* pairs whose source has S+1 ids or more: no target is left */

/* Sequence k -> ids and target, S numbers each. In a blend, the sequences of the first source come first. */
ls_status ls_tokens_sequence(const ls_tokens *t, int64_t k, int32_t *ids, int32_t *target);

/* n samples from position p of an epoch on. */
ls_status ls_tokens_batch(const ls_tokens *t, uint64_t seed, int64_t epoch, int64_t p, int64_t n, int32_t *ids,
                          int32_t *target);

/* The number of targets that count in the n samples from position p of an epoch on. */
int64_t ls_tokens_counted(const ls_tokens *t, uint64_t seed, int64_t epoch, int64_t p, int64_t n);

/* Identifies the order of a blend: its weights and sizes. 0: one source. */
int64_t ls_tokens_blend_id(const ls_tokens *t);
/* A hash of the ids of each source and the masks of pairs, and of the number of ids; of a source above 8 Mi ids, of 64 pieces of 32 Ki
 * at equal distances. Files and shards of the same ids have the same hash. */
uint64_t ls_tokens_hash(const ls_tokens *t);

#endif
