/* hash_simd.c - XXH3 compiled for the vectors of a CPU: the library of distributions is built for every CPU and hashes memory in a cache at a third
 * (x86-64, without AVX2) or half (arm64) of this speed. The values and the state are the same. CMakeLists.txt has the options. */
#include "core/hash_impl.h"

#ifdef __aarch64__
#define XXH_NO_PREFETCH /* without it GCC keeps the sums in registers */
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash_xxh64_simd(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}

void hash_xxh_add_simd(void *state, const void *data, size_t n)
{
    (void)XXH3_64bits_update(state, data, n);
}
