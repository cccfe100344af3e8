/* hash_impl.h - XXH3 compiled for one instruction set: AVX2 on x86-64, which the caller checks. */
#ifndef LS_CORE_HASH_IMPL_H
#define LS_CORE_HASH_IMPL_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash_xxh64_simd(const void *data, size_t n);
void hash_xxh_add_simd(void *state, const void *data, size_t n);

#endif
