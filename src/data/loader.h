/* loader.h - reads training samples from token files; the order is a function of seed and epoch.
 *
 * A token file is a headerless stream of 16-bit ids, little-endian. Sequence k of length S has inputs [kS, kS+S) and targets
 * [kS+1, kS+S+1); there are floor((n-1)/S) of them and the tail is dropped. Position p of epoch e holds the sequence
 * permute(key(seed, e), p): the order depends on seed and epoch alone, so any worker can fetch any sample, and a resumed run
 * needs no state but its position. */
#ifndef LS_DATA_LOADER_H
#define LS_DATA_LOADER_H

#include "core/err.h"
#include "core/fs.h"

#include <stdint.h>

typedef struct ls_tokens {
    ls_fs_map map;
    char path[512]; /* for messages, cut if longer */
    int64_t n_token, n_seq;
    int seq_len, vocab_size;
} ls_tokens;

/* LS_E_FORMAT: an odd number of bytes, shorter than one sequence, or an id at or beyond vocab_size (files up to 256 MiB are
 * read once here; in larger ones the first are, and every batch is checked as it is fetched). */
ls_status ls_tokens_open(ls_tokens *t, const char *path, int seq_len, int vocab_size);
void ls_tokens_close(ls_tokens *t); /* takes a zeroed one */

/* Sequence k -> ids and target, S numbers each. */
ls_status ls_tokens_sequence(const ls_tokens *t, int64_t k, int32_t *ids, int32_t *target);

/* n samples from position p of an epoch on. */
ls_status ls_tokens_batch(const ls_tokens *t, uint64_t seed, int64_t epoch, int64_t p, int64_t n, int32_t *ids,
                          int32_t *target);

#endif
