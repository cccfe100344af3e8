/* gemm_amx.c - fp32 products on AMX's bf16 tiles.
 *
 * An fp32 number is the sum of three bf16 numbers, x = h + m + l: h is x rounded to 8 bits, m what is left rounded to 8 bits,
 * l the rest, which has at most 8 bits; exact unless parts fall below the smallest normal number. Of the nine products of two
 * such sums the six largest are computed, exactly, and added in fp32 by the tiles:
 *
 *        a b  =  hh + (hm + mh) + (mm + hl + lh)  +  what is left out: (ml + lm + ll) < 2^-23 |a b|, about 2^-27 on average
 *
 * A panel holds 32 rows of A or 32 columns of B as chunks of 32 steps of K, 6 KiB each, six tiles of 1 KiB:
 *
 *        h of the first 16 | h of the last 16 | m, m | l, l       tile of A: 16 rows x 32 k;  of B: 16 pairs of k x 16 columns x 2
 *
 * Four tiles hold 32 x 32 of C. A chunk is 24 tile products (384 cycles) and 14 tile loads. A block of C is summed in the
 * thread's own memory (second cache) over all of kb, 4 chunks at a time, so that the panel's piece of A (24 KiB) stays in the
 * first cache while B streams; C itself is touched once.
 *
 * Invariants
 *   1. padding is zero, and a row or column of zeros adds zeros to no element that exists;
 *   2. infinity and not-a-number go into h alone; since 0 * infinity is not a number, an element that such an operand reaches
 *      is not finite, but may be NaN where fp32 has infinity;
 *   3. each thread loads the tile configuration in enter and releases it in leave; the process asks the kernel for the state once,
 *      in usable.
 *
 * With GEMM_AMX_EMULATE (a test) the including file defines the four tile instructions; the rest is generic vector code and runs
 * anywhere. */
#include "compute/cpu/gemm_impl.h"
#include "compute/cpu/gemm_vec16.h"

#include <string.h>
#ifndef GEMM_AMX_EMULATE
#include <immintrin.h>
#endif

enum {
    W = 32,      /* rows or columns of a panel    */
    CHUNK = 32,  /* steps of K in a chunk         */
    TILE = 1024, /* bytes                         */
    CHUNK_NBYTES = 6 * TILE,
    SUB = 4, /* chunks between visits to C's block */
    MT = 256,
    NT = 256 /* block of C                    */
};

#ifndef GEMM_AMX_EMULATE
#define tile_zero(t)     _tile_zero(t)
#define tile_load(t, p)  _tile_loadd(t, p, 64)
#define tile_store(t, p) _tile_stored(t, p, 64)
#define tile_dp(c, a, b) _tile_dpbf16ps(c, a, b)
#endif

/* part[0..2] = the bits of h, m, l as fp32 (the lower 16 bits are zero) */
GEMM_INLINE void split(vu part[3], const vf *value)
{
    const vu v = (vu)*value;
    vu rounded = (v + 0x7fffu + ((v >> 16) & 1u)) & 0xffff0000u;
    vu special = (vu)((v & 0x7f800000u) == 0x7f800000u);
    vu cut = special | (vu)((rounded & 0x7f800000u) == 0x7f800000u); /* rounding must not make infinity of a number */
    vu quiet = (vu)((v & 0x7fffffffu) > 0x7f800000u) & 0x00400000u;  /* cutting must not make infinity of a NaN      */
    vu h = (cut & ((v & 0xffff0000u) | quiet)) | (~cut & rounded);
    vf rest = (vf)((vu)(*value - (vf)h) & ~special);
    vu r = (vu)rest;
    vu m = (r + 0x7fffu + ((r >> 16) & 1u)) & 0xffff0000u;
    part[0] = h;
    part[1] = m;
    part[2] = (vu)(rest - (vf)m) & 0xffff0000u;
}

/* One chunk's three tiles of 16 rows (columns): element (k, i) at src[i*ld + k] or src[k*ld + i]; out: the tile of h, those of
 * m and l two tiles further each. */
GEMM_INLINE void pack_tile_a(char *out, const float *src, int64_t ld, bool k_contig)
{
    vf lo[16], hi[16]; /* row i: steps 0..15 and 16..31 */
    for (int i = 0; i < 16; i++) {
        lo[i] = *(const vf_at *)(src + i * ld);
        hi[i] = *(const vf_at *)(k_contig ? src + i * ld + 16 : src + (i + 16) * ld);
    }
    if (!k_contig) {
        transpose16(lo);
        transpose16(hi);
    }
    for (int i = 0; i < 16; i++) {
        vu p[3], q[3];
        split(p, &lo[i]);
        split(q, &hi[i]);
        for (int e = 0; e < 3; e++)
            *(vh *)(void *)(out + 2 * TILE * e + 64 * i) =
                SHUFFLE((vh)p[e], (vh)q[e], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39,
                        41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63);
    }
}

GEMM_INLINE void pack_tile_b(char *out, const float *src, int64_t ld, bool k_contig)
{
    for (int half = 0; half < 2; half++) {
        vf x[16]; /* step 16*half + i: 16 columns */
        for (int i = 0; i < 16; i++)
            x[i] = *(const vf_at *)(k_contig ? src + i * ld + 16 * half : src + (i + 16 * half) * ld);
        if (k_contig) transpose16(x);
        for (int i = 0; i < 16; i += 2) {
            vu p[3], q[3];
            split(p, &x[i]);
            split(q, &x[i + 1]);
            for (int e = 0; e < 3; e++)
                *(vu *)(void *)(out + 2 * TILE * e + 64 * (8 * half + i / 2)) = (p[e] >> 16) | q[e];
        }
    }
}

/* w <= 16 rows (columns), kb <= 32 steps; less than that goes through a copy with zeros */
GEMM_INLINE void pack_tile(char *out, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb, bool is_b)
{
    float copy[CHUNK * 16];
    if (w < 16 || kb < CHUNK) {
        copy_with_zeros(copy, CHUNK, src, false, ld, k_contig, w, kb);
        src = copy;
        ld = k_contig ? CHUNK : 16;
    }
    if (is_b) pack_tile_b(out, src, ld, k_contig);
    else pack_tile_a(out, src, ld, k_contig);
}

GEMM_INLINE void pack_panels(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w,
                             int64_t kb, bool is_b)
{
    for (int64_t k = 0; k < kb; k += CHUNK)
        for (int64_t i = 0; i < gemm_round_up(w, W); i += 16) {
            char *out = (char *)dst + (size_t)(i / W) * panel + (size_t)(k / CHUNK) * CHUNK_NBYTES +
                        (size_t)(i / 16 % 2) * TILE;
            const float *from = k_contig ? src + i * ld + k : src + k * ld + i;
            if (i >= w)
                for (int e = 0; e < 3; e++) memset(out + 2 * TILE * e, 0, TILE);
            else pack_tile(out, from, ld, k_contig, LS_MIN(w - i, 16), LS_MIN(kb - k, CHUNK), is_b);
        }
}

static void pack_a(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    if (k_contig) pack_panels(dst, panel, src, ld, true, w, kb, false);
    else pack_panels(dst, panel, src, ld, false, w, kb, false);
}

static void pack_b(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    if (k_contig) pack_panels(dst, panel, src, ld, true, w, kb, true);
    else pack_panels(dst, panel, src, ld, false, w, kb, true);
}

/* 32 x 32 of C (four tiles in c) += n_chunk chunks of a panel of A and one of B; small products come before the large one */
static void micro(int64_t n_chunk, const char *a, const char *b, char *c, bool add)
{
#define EACH_C(X)  X(0) X(1) X(2) X(3)
#define LOAD_C(t)  tile_load(t, c + (t)*TILE);
#define ZERO_C(t)  tile_zero(t);
#define STORE_C(t) tile_store(t, c + (t)*TILE);
#define FOUR_DP       \
    tile_dp(0, 4, 6); \
    tile_dp(1, 4, 7); \
    tile_dp(2, 5, 6); \
    tile_dp(3, 5, 7)
#define LOAD_A(part)                     \
    tile_load(4, a + 2 * TILE * (part)); \
    tile_load(5, a + 2 * TILE * (part) + TILE)
#define LOAD_B(part)                     \
    tile_load(6, b + 2 * TILE * (part)); \
    tile_load(7, b + 2 * TILE * (part) + TILE)
    enum { H, M, L };
    if (add) {
        EACH_C(LOAD_C)
    } else {
        EACH_C(ZERO_C)
    }
    for (int64_t k = 0; k < n_chunk; k++) {
        LOAD_A(L);
        LOAD_B(H);
        FOUR_DP;
        LOAD_A(M);
        FOUR_DP;
        LOAD_B(M);
        FOUR_DP;
        LOAD_A(H);
        FOUR_DP;
        LOAD_B(L);
        FOUR_DP;
        LOAD_B(H);
        FOUR_DP;
        a += CHUNK_NBYTES;
        b += CHUNK_NBYTES;
    }
    EACH_C(STORE_C)
}

/* One finished tile (up to 16 x 16 of it) goes to C. */
static void write_tile(const gemm_block *b, const float *t, int64_t row, int64_t col)
{
    int64_t m = LS_MIN(b->m - row, 16), n = LS_MIN(b->n - col, 16);
    float *c = b->c + row * b->ldc + col;
    const float *bias = b->bias ? b->bias + col : NULL;
    for (int64_t i = 0; i < m; i++, c += b->ldc, t += 16) {
        for (int64_t j = 0; j < n; j++) {
            float v = t[j];
            if (b->add) v = c[j] + v;
            if (bias) v = v + bias[j];
            c[j] = v;
        }
    }
}

static void block(const gemm_block *b)
{
    int64_t pm = gemm_ceil_div(b->m, W), pn = gemm_ceil_div(b->n, W), chunks = gemm_ceil_div(b->kb, CHUNK);
    char *tiles = (char *)b->tmp;
    for (int64_t k = 0; k < chunks; k += SUB)
        for (int64_t i = 0; i < pm; i++)
            for (int64_t j = 0; j < pn; j++)
                micro(LS_MIN(SUB, chunks - k), b->pa + (size_t)i * b->a_panel + (size_t)(k * CHUNK_NBYTES),
                      b->pb + (size_t)j * b->b_panel + (size_t)(k * CHUNK_NBYTES), tiles + (i * pn + j) * 4 * TILE,
                      k > 0);
    for (int64_t i = 0; i < pm; i++)
        for (int64_t j = 0; j < pn; j++)
            for (int t = 0; t < 4; t++) {
                int64_t row = i * W + t / 2 * 16, col = j * W + t % 2 * 16;
                if (row < b->m && col < b->n)
                    write_tile(b, (const float *)(const void *)(tiles + ((i * pn + j) * 4 + t) * TILE), row, col);
            }
}

const gemm_kernel gemm_kernel_amx = {
    .name = "amx",
    .mr = W,
    .nr = W,
    .kc = 768,
    .k_round = CHUNK,
    .elem_nbytes = 6,
    .mt = MT,
    .nt = NT,
    .tmp_nbytes = (size_t)MT * NT * sizeof(float),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = block,
#ifndef GEMM_AMX_EMULATE
    .usable = gemm_amx_usable,
    .enter = gemm_amx_enter,
    .leave = gemm_amx_leave,
#endif
};
