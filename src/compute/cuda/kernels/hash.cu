/* hash.cu - the hash of an array, where it is: audits compare hashes, and no tensor leaves the device.
 *
 *   sum  = sum over i of mix(w[i] + (i+1)k), modulo 2^64      w: words of 8 bytes, the last one filled up with zeros; k is odd     nbytes read
 *   *out = mix(sum + mix(nbytes)); with `more`, mix(3 *out + that)
 *
 * Order   none: the sums are integers. mix is a bijection (core/rng.h), so an array in which one word changes never keeps its hash. */
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define THREADS 256
constexpr int UNROLL = 4; /* packs of two words that a thread has in flight */

/* The bytes of word i that exist, at any address. */
LS_DEVICE uint64_t word_at(const unsigned char *x, int64_t nbytes, int64_t i)
{
    uint64_t w = 0;
    for (int k = 0; k < 8 && 8 * i + k < nbytes; k++) w |= (uint64_t)x[8 * i + k] << (8 * k);
    return w;
}

/* part[block] = the sum of some of the words. WHOLE: x is aligned to 16 bytes. */
template <bool WHOLE>
__global__ void __launch_bounds__(THREADS) hash_words(uint64_t *part, const unsigned char *x, int64_t nbytes)
{
    LS_SHARED(uint64_t, sums, [THREADS / 32]);
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, step = (int64_t)gridDim.x * THREADS;
    const int64_t packs = WHOLE ? nbytes / 16 : 0, words = ceil_div<int64_t>(nbytes, 8);
    unsigned long long sum = 0;
#pragma unroll UNROLL
    for (int64_t j = thread; j < packs; j += step) {
        const uint4 w = vec_load<16, true>(x + 16 * j).u;
        sum += ls_rng_u64((uint64_t)w.y << 32 | w.x, (uint64_t)(2 * j));
        sum += ls_rng_u64((uint64_t)w.w << 32 | w.z, (uint64_t)(2 * j + 1));
    }
    for (int64_t i = 2 * packs + thread; i < words; i += step) sum += ls_rng_u64(word_at(x, nbytes, i), (uint64_t)i);
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[warp_id()] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int k = 1; k < THREADS / 32; k++) sum += sums[k];
    part[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(32) hash_join(uint64_t *out, const uint64_t *part, int n, int64_t nbytes, bool more)
{
    unsigned long long sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += 32) sum += part[i];
    sum = warp_sum(sum);
    if (threadIdx.x > 0) return;
    const uint64_t hash = ls_rng_mix(sum + ls_rng_mix((uint64_t)nbytes + 1));
    *out = more ? ls_rng_mix(3 * *out + hash) : hash;
}

} // namespace

extern "C" int cu_hash(void *stream, uint64_t *out, const void *x, size_t nbytes, bool more, void *scratch)
{
    const int64_t n = (int64_t)nbytes, blocks = ceil_div<int64_t>(n, (int64_t)THREADS * UNROLL * 16);
    const int grid = (int)(blocks < CU_HASH_BLOCKS ? blocks : CU_HASH_BLOCKS);
    uint64_t *part = (uint64_t *)scratch;
    if (grid) {
        const int e = LS_LAUNCH((aligned16(x) ? hash_words<true> : hash_words<false>), (unsigned)grid, THREADS, 0,
                                stream, part, (const unsigned char *)x, n);
        if (e) return e;
    }
    return LS_LAUNCH(hash_join, 1, 32, 0, stream, out, part, grid, n, more);
}
