/* meta.h - meta.json of a data folder: what prepare wrote, and the comparison of token files with it.
 *
 * A token file has a SHA-256 of all its bytes and a sample: the XXH3 of 64 pieces of 64 KiB at equal distances, the first and the last
 * piece included (of a file up to 4 MiB: of all bytes). Training compares size and sample of a large file, size and SHA-256 of a small
 * one, and on request the SHA-256 of all. */
#ifndef LS_DATA_META_H
#define LS_DATA_META_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LS_DATA_SMALL ((size_t)16 << 20) /* bytes of a file that is always read as a whole */

/* Compares the token files listed in the source string (data/sources.h), and the tokenizer.json beside them, with the meta.json beside them. Files
 * without a meta.json of prepare, or that it does not list, are not compared. whole: reads every byte. LS_E_FORMAT with the difference,
 * LS_E_IO. */
ls_status ls_data_check(const char *text, bool whole);

void data_sample_hex(const void *data, size_t n, char hex[17]);
ls_status data_file_sha256(const char *path, char hex[65]);

#endif
