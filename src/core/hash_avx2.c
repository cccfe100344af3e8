/* hash_avx2.c - XXH3 compiled for AVX2: the library of distributions is built for any x86-64 CPU, and hashes memory in a cache at a third of this speed.
 * The values and the state are the same. Compiled with -mavx2 (CMakeLists.txt); empty elsewhere. */
#include "core/hash_impl.h"

#ifdef __AVX2__
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash_xxh64_avx2(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}

void hash_xxh_add_avx2(void *state, const void *data, size_t n)
{
    (void)XXH3_64bits_update(state, data, n);
}
#endif
