/* meta.h - meta.json of a data folder: what prepare wrote, and the comparison of token files with it.
 *
 * A token file, and the mask of one with pairs, has a SHA-256 of all its bytes and a sample: the XXH3 of 64 pieces of 64 KiB at equal
 * distances, the first and the last piece included (of a file up to 4 MiB: of all bytes). Training compares size and sample of a large
 * file, size and SHA-256 of a small one, and on request the SHA-256 of all. */
#ifndef LS_DATA_META_H
#define LS_DATA_META_H

#include "core/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LS_DATA_SMALL ((size_t)16 << 20) /* bytes of a file that is always read as a whole */

/* Compares the token files listed in the source string (data/sources.h), their masks and the tokenizer.json with the meta.json beside them. Files
 * without a meta.json of prepare, or that it does not list, are not compared. whole: reads every byte. LS_E_FORMAT with the difference,
 * LS_E_IO. */
ls_status ls_data_check(const char *text, bool whole);

/* The SHA-256 of the data by meta.json, without reading it: that of one file, or of the list of those of several (of shards, of a blend, of
 * masks), each followed by a newline. "": some file is in no meta.json. LS_E_FORMAT, LS_E_IO, LS_E_NOMEM. */
ls_status ls_data_sum(const char *text, char hex[65]);

void data_sample_hex(const void *data, size_t n, char hex[17]);
ls_status data_file_sha256(const char *path, char hex[65]);
/* x.mask for x.bin; "" for another name. */
void data_mask_path(const char *path, char mask[PATH_MAX]);

#endif
