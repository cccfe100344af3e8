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

/* The same in pieces. */
typedef struct ls_xxh {
    _Alignas(64) unsigned char state[640];
} ls_xxh;
void ls_xxh_init(ls_xxh *s);
void ls_xxh_add(ls_xxh *s, const void *data, size_t n);
uint64_t ls_xxh_value(const ls_xxh *s); /* of what was added so far */

#endif
