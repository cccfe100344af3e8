/* hash.h - SHA-256 for files that people compare, XXH3 for checksums of our own. */
#ifndef LS_CORE_HASH_H
#define LS_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct ls_sha256 {
    uint32_t h[8];
    uint64_t n;
    unsigned char block[64];
} ls_sha256;

void ls_sha256_init(ls_sha256 *s);
void ls_sha256_add(ls_sha256 *s, const void *data, size_t n);
void ls_sha256_hex(ls_sha256 *s, char hex[65]); /* ends the stream */

uint64_t ls_xxh64(const void *data, size_t n); /* XXH3, 64 bits */

#endif
