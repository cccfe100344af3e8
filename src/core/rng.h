/* rng.h - randomness is a function, not a state.
 *
 * A number is named by a key and an index; who asks for it, and in which order, does not change it. Keys are made from
 * the seed and whatever names the place (step, micro-batch, tensor). The function is SplitMix64's output of the counter; the
 * 32-bit form below it is for dropout masks, where vector code must produce the same values lane by lane.
 *
 *   uint64_t key = ls_rng_key(seed, LS_RNG_INIT, tensor, 0);
 *   double   x   = ls_rng_normal(key, i);
 */
#ifndef LS_CORE_RNG_H
#define LS_CORE_RNG_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__ /* kernels use these, too */
#define LS_RNG_FN static __host__ __device__ __forceinline__
#else
#define LS_RNG_FN static inline
#endif

typedef enum ls_rng_use {
    LS_RNG_INIT = 1,
    LS_RNG_ORDER,
    LS_RNG_DROPOUT,
    LS_RNG_SAMPLE,
    LS_RNG_TEST,
    LS_RNG_ROUND,
    LS_RNG_AUDIT
} ls_rng_use;

LS_RNG_FN uint64_t ls_rng_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

LS_RNG_FN uint64_t ls_rng_key(uint64_t seed, ls_rng_use use, uint64_t a, uint64_t b)
{
    uint64_t k = ls_rng_mix(seed + 0x9e3779b97f4a7c15u * (uint64_t)use);
    k = ls_rng_mix(k ^ (a + 0x632be59bd9b4e019u));
    return ls_rng_mix(k ^ (b * 0xd1342543de82ef95u + 0x2545f4914f6cdd1du));
}

LS_RNG_FN uint64_t ls_rng_u64(uint64_t key, uint64_t i)
{
    return ls_rng_mix(key + (i + 1) * 0x9e3779b97f4a7c15u);
}

static inline double ls_rng_uniform(uint64_t key, uint64_t i) /* [0, 1) */
{
    return (double)(ls_rng_u64(key, i) >> 11) * 0x1p-53;
}

/* Normal numbers 2j and 2j+1 of the stream, mean 0 and deviation 1 (Box-Muller makes them in pairs). */
static inline void ls_rng_normal2(uint64_t key, uint64_t j, double out[2])
{
    double u = ((double)(ls_rng_u64(key, 2 * j) >> 11) + 0.5) * 0x1p-53;
    double angle = 6.283185307179586 * ls_rng_uniform(key, 2 * j + 1), r = sqrt(-2.0 * log(u));
    out[0] = r * cos(angle);
    out[1] = r * sin(angle);
}

static inline double ls_rng_normal(uint64_t key, uint64_t i)
{
    double pair[2];
    ls_rng_normal2(key, i / 2, pair);
    return pair[i % 2];
}

/* 32 bits for element i: two multiplications, so that NEON and AVX2 make the same mask as this line. */
LS_RNG_FN uint32_t ls_rng_u32(uint64_t key, uint32_t i)
{
    uint32_t z = i * 0x9e3779b9u + (uint32_t)key;
    z = (z ^ (z >> 16)) * 0x85ebca6bu;
    z = (z ^ (z >> 13) ^ (uint32_t)(key >> 32)) * 0xc2b2ae35u;
    return z ^ (z >> 16);
}

/* A permutation of 0..n-1 as a function (a Feistel network over the next even power of two, walked until it lands
 * below n): sample order without a table. */
static inline uint64_t ls_rng_permute(uint64_t key, uint64_t n, uint64_t i)
{
    if (n < 2) return 0;
    unsigned half = 1;
    while (half < 32 && (n - 1) >> (2 * half)) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t l = i >> half, r = i & mask;
        for (uint64_t round = 0; round < 6; round++) {
            /* Each round its own function: key + round * (u64's own stride) would be one function, shifted, and is unfair. */
            uint64_t t = l ^ (ls_rng_u64(ls_rng_mix(key ^ (round + 1) * 0xd1342543de82ef95u), r) & mask);
            l = r;
            r = t;
        }
        i = (l << half) | r;
    } while (i >= n);
    return i;
}

#endif
