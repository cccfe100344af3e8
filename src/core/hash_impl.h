/* hash_impl.h - forms of XXH3 for one instruction set. */
#ifndef LS_CORE_HASH_IMPL_H
#define LS_CORE_HASH_IMPL_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash_xxh64_avx2(const void *data, size_t n);
void hash_xxh_add_avx2(void *state, const void *data, size_t n);

#endif
