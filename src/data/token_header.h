/* token_header.h - the header of token files of llm.c: 256 integers of 32 bits, little-endian.
 *
 *   20240520, version 1, number of tokens, zeros; then the ids, 16 bits each
 *
 * Token files of this program have none. The first number cannot be mistaken: as ids it is 55432 and 308, and the size of the file must agree
 * with the number of tokens. */
#ifndef LS_DATA_TOKEN_HEADER_H
#define LS_DATA_TOKEN_HEADER_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

#define DATA_TOKEN_HEADER 1024

/* Bytes before the ids: 0, or DATA_TOKEN_HEADER if the file has a header. LS_E_FORMAT (the size does not agree), LS_E_UNSUPPORTED (another
 * version, or ids of 32 bits). */
ls_status data_token_header(const char *path, const void *data, size_t n, size_t *nbytes);
void data_token_header_make(int32_t n_token, unsigned char head[DATA_TOKEN_HEADER]);

#endif
