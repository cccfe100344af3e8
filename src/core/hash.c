#include "core/hash.h"

#include "core/hash_impl.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
/* clang 14 has these intrinsics only where a whole file is compiled for them. */
#if defined(__aarch64__) && !defined(__clang__)
#define HAS_SHA2 1
#include <arm_neon.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>
#endif
#define XXH_STATIC_LINKING_ONLY /* the state is in our own memory */
#include <xxhash.h>

/* SHA-256 as FIPS 180-4 states it: round constants are the fractional parts of cube roots of the first 64 primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void compress_plain(ls_sha256 *s, const unsigned char *p)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t lo = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t hi = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + lo + w[i - 7] + hi;
    }
    uint32_t a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3], e = s->h[4], f = s->h[5], g = s->h[6], h = s->h[7];
/* One round; the caller turns the names instead of moving eight words. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                \
    do {                                                                                                \
        uint32_t t = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i]; \
        d += t;                                                                                         \
        h = t + (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));               \
    } while (0)
    for (int i = 0; i < 64; i += 8) {
        ROUND(a, b, c, d, e, f, g, h, i);
        ROUND(h, a, b, c, d, e, f, g, i + 1);
        ROUND(g, h, a, b, c, d, e, f, i + 2);
        ROUND(f, g, h, a, b, c, d, e, i + 3);
        ROUND(e, f, g, h, a, b, c, d, i + 4);
        ROUND(d, e, f, g, h, a, b, c, i + 5);
        ROUND(c, d, e, f, g, h, a, b, i + 6);
        ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
#undef ROUND
    const uint32_t v[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

#ifdef HAS_SHA2
/* The same with the instructions for it: four rounds at a time, eight words of state in two vectors. */
__attribute__((target("+crypto"))) static void compress_arm(ls_sha256 *s, const unsigned char *p)
{
    uint32x4_t abcd = vld1q_u32(s->h), efgh = vld1q_u32(s->h + 4), w[4];
    const uint32x4_t abcd0 = abcd, efgh0 = efgh;
    for (int i = 0; i < 4; i++) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * i)));
    for (int i = 0; i < 16; i++) {
        const uint32x4_t kw = vaddq_u32(w[i % 4], vld1q_u32(K + 4 * i)), before = abcd;
        if (i < 12)
            w[i % 4] = vsha256su1q_u32(vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]), w[(i + 2) % 4], w[(i + 3) % 4]);
        abcd = vsha256hq_u32(abcd, efgh, kw);
        efgh = vsha256h2q_u32(efgh, before, kw);
    }
    vst1q_u32(s->h, vaddq_u32(abcd, abcd0));
    vst1q_u32(s->h + 4, vaddq_u32(efgh, efgh0));
}
#endif

#if defined(__x86_64__)
/* The same with SHA-NI, whose vectors hold the words f e b a and h g d c (lane 0 first). */
__attribute__((target("sha,sse4.1"))) static void compress_x86(ls_sha256 *s, const unsigned char *p)
{
    uint32_t *h = s->h;
    __m128i abef = _mm_set_epi32((int)h[0], (int)h[1], (int)h[4], (int)h[5]);
    __m128i cdgh = _mm_set_epi32((int)h[2], (int)h[3], (int)h[6], (int)h[7]), w[4];
    const __m128i abef0 = abef, cdgh0 = cdgh;
    const __m128i big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    for (int i = 0; i < 4; i++)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)p + i), big_endian);
    for (int i = 0; i < 16; i++) {
        const __m128i kw = _mm_add_epi32(w[i % 4], _mm_loadu_si128((const __m128i *)(const void *)(K + 4 * i)));
        if (i < 12) { /* words 4i + 16 to 4i + 19 */
            const __m128i w9 = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
            const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), w9);
            w[i % 4] = _mm_sha256msg2_epu32(sum, w[(i + 3) % 4]);
        }
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, kw);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(kw, 0x0e));
    }
    uint32_t x[4], y[4];
    _mm_storeu_si128((__m128i *)(void *)x, _mm_add_epi32(abef, abef0));
    _mm_storeu_si128((__m128i *)(void *)y, _mm_add_epi32(cdgh, cdgh0));
    const uint32_t next[8] = {x[3], x[2], y[3], y[2], x[1], x[0], y[1], y[0]};
    memcpy(h, next, sizeof next);
}

static bool has_sha_ni(void)
{
    static atomic_int known; /* 1: no, 2: yes; CPUID is slow in virtual machines */
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (!k) {
        unsigned a, b = 0, c = 0, d;
        const bool sse = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && (c & bit_SSSE3);
        k = sse && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) ? 2 : 1;
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return k == 2;
}
#endif

static void compress(ls_sha256 *s, const unsigned char *p)
{
#ifdef HAS_SHA2
    if (getauxval(AT_HWCAP) & HWCAP_SHA2) {
        compress_arm(s, p);
        return;
    }
#elif defined(__x86_64__)
    if (has_sha_ni()) {
        compress_x86(s, p);
        return;
    }
#endif
    compress_plain(s, p);
}

void ls_sha256_init(ls_sha256 *s)
{
    static const uint32_t h0[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, h0, sizeof h0);
    s->n = 0;
}

void ls_sha256_add(ls_sha256 *s, const void *data, size_t n)
{
    const unsigned char *p = data;
    while (n) {
        size_t at = s->n % 64, k = 64 - at < n ? 64 - at : n;
        const bool whole = k == 64; /* a block of the input, which need not be copied */
        if (!whole) memcpy(s->block + at, p, k);
        s->n += k;
        if (s->n % 64 == 0) compress(s, whole ? p : s->block);
        p += k;
        n -= k;
    }
}

void ls_sha256_hex(ls_sha256 *s, char hex[65])
{
    uint64_t bits = s->n * 8;
    unsigned char len[8];
    for (int i = 0; i < 8; i++) len[i] = (unsigned char)(bits >> (56 - 8 * i));
    ls_sha256_add(s, "\x80", 1);
    while (s->n % 64 != 56) ls_sha256_add(s, "", 1);
    ls_sha256_add(s, len, 8);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", s->h[i]);
}

static bool fit_for_simd(size_t n) /* this CPU has the vectors, and they are worth it for n bytes */
{
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx2")) return false;
#endif
    return n >= 1024;
}

uint64_t ls_xxh64(const void *data, size_t n)
{
    return fit_for_simd(n) ? hash_xxh64_simd(data, n) : XXH3_64bits(data, n);
}

_Static_assert(sizeof(XXH3_state_t) <= sizeof(((ls_xxh *)0)->state), "ls_xxh holds the library's state");

void ls_xxh_init(ls_xxh *s)
{
    XXH3_state_t *x = (XXH3_state_t *)(void *)s->state;
    XXH3_INITSTATE(x);
    (void)XXH3_64bits_reset(x);
}

void ls_xxh_add(ls_xxh *s, const void *data, size_t n)
{
    if (fit_for_simd(n)) hash_xxh_add_simd(s->state, data, n);
    else (void)XXH3_64bits_update((XXH3_state_t *)(void *)s->state, data, n);
}

uint64_t ls_xxh_value(const ls_xxh *s)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)s->state);
}
