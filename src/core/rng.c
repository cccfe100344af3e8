#include "core/rng.h"

uint64_t ls_rng_permute(uint64_t key, uint64_t n, uint64_t i)
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
